/* Steps that another device starts before their tokens are known (qn_async_ops): tokens and probabilities have the bits
 * that they have without, whatever ends a request, and whatever fails. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <quern/quern.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/handles.h"
#include "array/array.h"
#include "backend/native/native_parts.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/random.h"
#include "engine/machine/engine_parts.h"
#include "tests/devices/other_compare.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/seen_picture.h"

enum { ROWS = 3, PROMPT = 37, TOKENS = 18 };

/* ---- the device's functions, counted ------------------------------------------------------------------ */

static struct {
    qn_device_ops ops;
    qn_async_ops async;
    const qn_device_ops *own;
    qn_engine *e;
    int64_t n_started, n_taken, n_wrong, n_failed;
} counted;

static int is_useful(qn_device *d)
{
    return 1;
}

static qn_status start(qn_exec *exec, const qn_sizes *sizes, qn_exec *after, const qn_buffer *guessed)
{
    const qn_status status = counted.own->async->start(exec, sizes, after, guessed);
    counted.n_started += after && status == QN_OK;
    counted.n_failed += after && status != QN_OK;
    return status;
}

static qn_status finish(qn_exec *exec, int64_t n, const int32_t *ids, int *as_guessed)
{
    const qn_status status = counted.own->async->finish(exec, n, ids, as_guessed);
    counted.n_taken += n && status == QN_OK && *as_guessed;
    counted.n_wrong += n && status == QN_OK && !*as_guessed;
    return status;
}

static void count(qn_model *model, int is_ahead)
{
    qn_engine *e = ((native_model *)model->object)->engine;
    if (counted.e != e) counted.own = e->device->ops;
    counted.e = e;
    counted.ops = *counted.own;
    counted.async = *counted.own->async;
    counted.async.is_useful = is_useful;
    counted.async.start = start;
    counted.async.finish = finish;
    counted.ops.async = is_ahead ? &counted.async : NULL;
    counted.n_started = counted.n_taken = counted.n_wrong = counted.n_failed = 0;
    e->device->ops = &counted.ops;
}

static qn_model *open_model(const char *path)
{
    qn_model *model = NULL;
    const qn_model_options o = {.device = qn_test_other()->name,
                                .n_threads = 1,
                                .parallel_slots = ROWS,
                                .prefill_chunk = 64,
                                .context_size = 128};
    counted.e = NULL;
    qn_test_ok(qn_model_open(qn_test_need_fixture(path), &o, &model));
    if (!((native_model *)model->object)->engine->device->ops->async) {
        qn_model_close(&model);
        qn_test_leave_out("the device has no asynchronous runs");
    }
    return model;
}

/* ---- what is generated -------------------------------------------------------------------------------- */

typedef struct {
    int64_t n[ROWS];
    int32_t ids[ROWS][TOKENS];
    float logprobs[ROWS][TOKENS];
    qn_end ends[ROWS];
} result;

/* most: tokens of all rows behind which the generation is cancelled; 0: none. */
static qn_status try_generate(qn_model *model, qn_generate_options o, int n_rows, int64_t most, result *out)
{
    int32_t ids[ROWS][PROMPT];
    qn_ids rows[ROWS];
    qn_generation *g = NULL;
    int64_t n_seen = 0;
    memset(out, 0, sizeof *out);
    for (int r = 0; r < n_rows; r++) {
        rows[r] = (qn_ids){ids[r], PROMPT - 7 * r};
        for (int i = 0; i < PROMPT; i++)
            ids[r][i] = (int32_t)(1 + qn_random_bits(i < 9 ? 1 : 2 + (uint64_t)r, (uint64_t)i) % 199);
    }
    o.logprobs = o.ignore_eos = 1;
    o.max_tokens = TOKENS;
    QN_TRY(qn_generation_open(model, &(qn_prompt){.rows = rows, .n_rows = n_rows}, &o, &g));
    qn_status status = QN_OK;
    for (int n_open = n_rows; n_open && status == QN_OK;) {
        qn_token t;
        status = qn_generation_next(g, &t);
        if (status != QN_OK) break;
        if (t.end != QN_END_NONE) {
            out->ends[t.row] = t.end;
            n_open--;
            continue;
        }
        out->logprobs[t.row][out->n[t.row]] = t.logprob;
        out->ids[t.row][out->n[t.row]++] = t.id;
        if (++n_seen == most) break;
    }
    qn_generation_close(g);
    return status;
}

static void generate(qn_model *model, qn_generate_options o, int n_rows, result *out)
{
    qn_test_ok(try_generate(model, o, n_rows, 0, out));
}

static void same_as_without(qn_model *model, qn_generate_options o, int n_rows)
{
    result want, got;
    count(model, 0);
    qn_test_ok(qn_model_clear_cache(model));
    generate(model, o, n_rows, &want);
    count(model, 1);
    for (int again = 0; again < 2; again++) {
        if (!again) qn_test_ok(qn_model_clear_cache(model));
        generate(model, o, n_rows, &got);
        assert_memory_equal(&got, &want, sizeof got);
    }
}

static void same_bits(void **state)
{
    qn_model *model = open_model(*state);
    for (int n_rows = 1; n_rows <= ROWS; n_rows++) {
        same_as_without(model, (qn_generate_options){0}, n_rows);
        print_message("%d rows: %d started, %d taken, %d wrong\n", n_rows, (int)counted.n_started,
                      (int)counted.n_taken, (int)counted.n_wrong);
        assert_int_equal(counted.n_failed, 0);
#ifndef QN_SHAKE /* it cuts steps anywhere */
        assert_true(counted.n_taken >= 2 * (TOKENS - 6) && counted.n_wrong == 0);
#endif
    }
    same_as_without(model, (qn_generate_options){.temperature = 1, .seed = 3}, 2);
    assert_int_equal(counted.n_started, 0);
    qn_model_close(&model);
}

/* A stop token, or the caller, ends a request behind which a step has started already. */
static void what_ends(void **state)
{
    qn_model *model = open_model(*state);
    result whole, got;
    count(model, 0);
    generate(model, (qn_generate_options){0}, ROWS, &whole);
    count(model, 1);
    for (int at = 1; at < TOKENS; at += 9) {
        const int32_t stop[] = {whole.ids[0][at], whole.ids[1][at / 2]};
        same_as_without(model, (qn_generate_options){.stop_ids = stop, .n_stop_ids = 2}, ROWS);
        qn_test_ok(try_generate(model, (qn_generate_options){0}, ROWS, at, &got));
        generate(model, (qn_generate_options){0}, ROWS, &got);
        assert_memory_equal(&got, &whole, sizeof whole);
    }
    assert_true(counted.n_started > 0);
    qn_model_close(&model);
}

/* ---- tokens that are not the guess -------------------------------------------------------------------- */

typedef struct {
    uint64_t hash;
    int64_t best;
} seen_row;

static qn_status see_row(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    const int64_t vocab = counted.e->config.vocab_size;
    *(seen_row *)user =
        (seen_row){qn_hash_bytes(logits, (size_t)vocab * sizeof *logits, 0), qn_test_argmax(logits, vocab)};
    return QN_OK;
}

static void wrong_guesses(void **state)
{
    enum { STEPS = 12, OTHER = 7 };
    int32_t ids[PROMPT];
    seen_row want[STEPS], got[STEPS];
    for (int i = 0; i < PROMPT; i++) ids[i] = (int32_t)(1 + qn_random_bits(9, (uint64_t)i) % 199);
    qn_model *model = open_model("models/llama");
    for (int round = 0; round < 2; round++) {
        count(model, round);
        qn_engine *e = counted.e;
        qn_sequence *s = qn_test_sequence(e), *other = qn_test_sequence(e);
        const qn_feed prompt = {s, ids, PROMPT, QN_LOGITS_NONE}, between = {other, ids, 5, QN_LOGITS_NONE};
        int32_t id = 5;
        qn_test_ok(qn_engine_step(e, 1, &prompt, NULL, NULL, NULL));
        qn_sequence_set_follows_best(s, 1);
        for (int i = 0; i < STEPS; i++) {
            seen_row *seen = (round ? got : want) + i;
            if (i == OTHER) qn_test_ok(qn_engine_step(e, 1, &between, NULL, NULL, NULL));
            qn_test_ok(qn_engine_step(e, 1, &(qn_feed){s, &id, 1, QN_LOGITS_LAST}, see_row, NULL, seen));
            id = (int32_t)((seen->best + (i % 3 == 2)) % e->config.vocab_size);
        }
        qn_sequence_free(s);
        qn_sequence_free(other);
    }
    assert_true(counted.n_wrong >= 3 && counted.n_taken >= 4);
    assert_memory_equal(got, want, sizeof want);
    qn_model_close(&model);
}

/* ---- pictures ----------------------------------------------------------------------------------------- */

/* A text is continued, and between two of its steps comes a picture whose tokens see each other: its block table is
 * marked, those of steps that start early are not. */
static void pictures(void **state)
{
    enum { STEPS = 12, OTHER = 5, TEXT = 5 };
    const char *kind = *state;
    char path[128];
    seen_row want[STEPS + 1], got[STEPS + 1];
    snprintf(path, sizeof path, "models/%s", kind);
    qn_model *model = open_model(path);
    for (int round = 0; round < 2; round++) {
        count(model, round);
        qn_engine *e = counted.e;
        seen_row *seen = round ? got : want;
        qn_test_picture p = qn_test_picture_open(e, kind);
        qn_sequence *s = qn_test_sequence(e), *other = qn_test_picture_sequence(e, &p);
        const qn_feed between = {other, p.ids, p.n_ids, QN_LOGITS_LAST};
        int32_t id = p.ids[p.n_ids - 1];
        qn_test_ok(qn_engine_step(e, 1, &(qn_feed){s, p.ids + p.n_ids - 1 - TEXT, TEXT, QN_LOGITS_NONE}, NULL,
                                  NULL, NULL));
        qn_sequence_set_follows_best(s, 1);
        for (int i = 0; i < STEPS; i++) {
            qn_test_ok(qn_engine_step(e, 1, &(qn_feed){s, &id, 1, QN_LOGITS_LAST}, see_row, NULL, &seen[i]));
            id = (int32_t)seen[i].best;
            if (i == OTHER) qn_test_ok(qn_engine_step(e, 1, &between, see_row, NULL, &seen[STEPS]));
        }
        qn_sequence_free(s);
        qn_sequence_free(other);
        qn_test_picture_close(&p);
    }
    assert_true(counted.n_taken >= STEPS - 4);
    assert_memory_equal(got, want, sizeof want);
    qn_model_close(&model);
}

/* ---- failures ----------------------------------------------------------------------------------------- */

static int is_emulated(void)
{
    const char *library = getenv("QUERN_CUDA_LIBRARY");
    return !strcmp(qn_test_other()->name, "cuda") && library && strstr(library, "cuda-host");
}

/* The n-th allocation fails, or the n-th launch and all that follow, in the midst of what is generated. A request
 * fails, or has the bits that it has without. Behind an allocation the model goes on; a lost card is lost. */
static void failing(const char *variable, int least, int step, int most, qn_status expected)
{
    const int64_t blocks = qn_mem_live_blocks();
    int64_t n_failed = 0, n_starts_failed = 0;
    result want, got;
    if (!is_emulated()) qn_test_leave_out("failures are of the emulated card");
    for (int n = least; n < most; n += step) {
        char text[16];
        qn_model *model = open_model("models/llama");
        if (n == least) {
            count(model, 0);
            generate(model, (qn_generate_options){0}, 2, &want);
            qn_test_ok(qn_model_clear_cache(model));
        }
        count(model, 1);
        snprintf(text, sizeof text, "%d", n);
        setenv(variable, text, 1);
        const qn_status status = try_generate(model, (qn_generate_options){0}, 2, 0, &got);
        unsetenv(variable);
        n_failed += status != QN_OK;
        n_starts_failed += counted.n_failed;
        if (status == QN_OK)
            assert_memory_equal(&got, &want, sizeof want);
        else
            assert_int_equal(status, expected);
        if (expected == QN_E_NOMEM) {
            generate(model, (qn_generate_options){0}, 2, &got);
            assert_memory_equal(&got, &want, sizeof want);
        }
        qn_model_close(&model);
    }
    assert_true(n_failed > 0 || n_starts_failed > 0);
    assert_int_equal(qn_mem_live_blocks(), blocks);
}

static void failing_allocations(void **state)
{
    failing("QUERN_CUDA_HOST_FAIL", 2, 4, 30, QN_E_NOMEM);
}

static void failing_launches(void **state)
{
    failing("QUERN_CUDA_HOST_LOST", 7, 51, 440, QN_E_DEVICE);
}

/* ---- the largest of a long line ----------------------------------------------------------------------- */

/* Ties, both zeros, infinities and NaN at the places where parts of a line meet. */
static void largest_of_long_lines(void **state)
{
    static const int64_t sizes[] = {4097, 8192, 49152, 151936};
    static const int64_t places[] = {0, 127, 128, 1023, 1024, 1187, 4095, 4096};
    enum { LINES = 8, MOST = 151936 };
    qn_test_pair pair = qn_test_pair_open(0);
    float *x = qn_alloc_array((size_t)LINES * MOST, sizeof *x);
    assert_non_null(x);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        const int64_t n = sizes[k];
        for (int64_t i = 0; i < LINES * n; i++) x[i] = (float)qn_random_unit(7, (uint64_t)i) - 2;
        for (int64_t line = 0; line < LINES; line++) {
            float *row = x + line * n;
            const int64_t a = places[line], b = n - 1 - places[(line * 3 + k) % LINES];
            row[a] = line == 1 ? 0.0f : line == 2 ? NAN : line == 5 ? INFINITY : 3;
            row[b] = line == 1 ? -0.0f : line == 3 ? NAN : line == 2 ? INFINITY : row[a];
            if (line == 6)
                for (int64_t i = 0; i < n; i++) row[i] = -INFINITY;
            if (line == 7) row[a] = row[b] = -3; /* the smallest, twice */
        }
        for (int least = 0; least < 2; least++) {
            int32_t got[2][LINES];
            for (int other = 0; other < 2; other++) {
                const qn_params p = {.reduce = {.axis = 1, .least = least}};
                qn_scope *s = qn_scope_new(other ? pair.other : pair.cpu);
                qn_array *in = qn_from_data(s, QN_DTYPE_F32, 2, (int64_t[]){LINES, n}, x),
                         *out = qn_apply(s, QN_PRIM_ARG_MAX, &p, 1, &in, NULL, QN_DTYPE_I32);
                qn_test_ok(qn_eval(s, 1, &out));
                memcpy(got[other], qn_array_data(out), sizeof got[other]);
                qn_scope_free(s);
            }
            assert_memory_equal(got[1], got[0], sizeof got[0]);
        }
    }
    qn_free(x);
    qn_test_pair_close(&pair);
}

int main(void)
{
    static char llama[] = "models/llama", windows[] = "models/gemma3_text", experts[] = "models/mixtral",
                gemma3[] = "gemma3_vision", gemma4[] = "gemma4_unified";
    const struct CMUnitTest tests[] = {
        {"the same bits: llama", same_bits, NULL, NULL, llama},
        {"the same bits: gemma3_text", same_bits, NULL, NULL, windows},
        {"the same bits: mixtral", same_bits, NULL, NULL, experts},
        {"what ends: llama", what_ends, NULL, NULL, llama},
        {"what ends: gemma3_text", what_ends, NULL, NULL, windows},
        cmocka_unit_test(wrong_guesses),
        {"pictures: gemma3_vision", pictures, NULL, NULL, gemma3},
        {"pictures: gemma4_unified", pictures, NULL, NULL, gemma4},
        cmocka_unit_test(failing_allocations),
        cmocka_unit_test(failing_launches),
        cmocka_unit_test(largest_of_long_lines),
    };
    return qn_test_run_others("ahead", tests, sizeof tests / sizeof *tests, NULL, NULL);
}
