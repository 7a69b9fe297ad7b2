/* Steps that are begun before their tokens are known: on a device that computes beside the host, here the
 * CPU's with three functions more. Whatever comes of the guesses, tokens and their probabilities have the
 * bits that they have without. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <quern/quern.h>
#include <string.h>

#include "api/handles.h"
#include "backend/native/native_parts.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/random.h"
#include "engine/machine/engine_parts.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

enum { ROWS = 3, PROMPT = 45, TOKENS = 40 };

/* ---- a device that computes beside the host ----------------------------------------------------------- */

typedef enum { GUESSES, GUESSES_WRONG, DOES_NOT_BEGIN, DOES_NOT_FINISH, HAS_NONE } manner;

static struct {
    qn_device_ops ops;
    const qn_device_ops *own;
    qn_engine *e;
    manner manner;
    int32_t guess[ROWS];
    int64_t n_guess, n_begun, n_taken, n_dropped, n_failed;
} beside;

static int is_useful(qn_device *d)
{
    return 1;
}

static qn_status start(qn_exec *exec, const qn_sizes *sizes, qn_exec *after, const qn_buffer *guessed)
{
    if (!after) return beside.own->run(exec, sizes);
    const int64_t vocab = beside.e->config.vocab_size;
    const float *logits = qn_program_output(beside.e->head, 0);
    assert_in_range(sizes->v[0], 1, ROWS);
    assert_true(beside.n_guess == 0 && sizes->v[0] == sizes->v[1]);
    if (beside.manner == DOES_NOT_BEGIN) {
        beside.n_failed++;
        return qn_fail(QN_E_DEVICE, "it did not begin");
    }
    for (int64_t i = 0; i < sizes->v[0]; i++) {
        beside.guess[i] = (int32_t)qn_test_argmax(logits + i * vocab, vocab);
        if (beside.manner == GUESSES_WRONG) beside.guess[i] = (int32_t)((beside.guess[i] + 1) % vocab);
        ((int32_t *)guessed->data)[i] = beside.guess[i];
    }
    beside.n_guess = sizes->v[0];
    beside.n_begun++;
    return beside.own->run(exec, sizes);
}

static qn_status finish(qn_exec *exec, int64_t n, const int32_t *ids, int *as_guessed)
{
    *as_guessed = 1;
    if (!n) return QN_OK;
    assert_int_equal(n, beside.n_guess);
    beside.n_guess = 0;
    if (beside.manner == DOES_NOT_FINISH && beside.n_begun % 3 == 0) {
        beside.n_failed++;
        return qn_fail(QN_E_DEVICE, "it was lost");
    }
    *as_guessed = memcmp(ids, beside.guess, (size_t)n * sizeof *ids) == 0;
    beside.n_taken += *as_guessed;
    beside.n_dropped += !*as_guessed;
    return QN_OK;
}

static void discard(qn_exec *exec)
{
    beside.n_dropped += beside.n_guess > 0;
    beside.n_guess = 0;
}

static const qn_async_ops async = {
    .is_useful = is_useful, .start = start, .finish = finish, .discard = discard};

static void compute_beside(qn_model *model, manner how)
{
    qn_engine *e = ((native_model *)model->object)->engine;
    if (beside.e != e) beside.own = e->device->ops;
    beside.ops = *beside.own;
    beside.e = e;
    beside.manner = how;
    beside.n_begun = beside.n_taken = beside.n_dropped = beside.n_failed = beside.n_guess = 0;
    if (how != HAS_NONE) {
        beside.ops.async = &async;
    }
    e->device->ops = &beside.ops;
}

/* ---- what is generated -------------------------------------------------------------------------------- */

typedef struct {
    int64_t n[ROWS];
    int32_t ids[ROWS][TOKENS];
    float logprobs[ROWS][TOKENS];
    qn_end ends[ROWS];
} result;

static void generate(qn_model *model, qn_generate_options o, int n_rows, result *out)
{
    int32_t ids[ROWS][PROMPT];
    qn_ids rows[ROWS];
    qn_generation *g = NULL;
    memset(out, 0, sizeof *out);
    for (int r = 0; r < n_rows; r++) {
        rows[r] = (qn_ids){ids[r], PROMPT - 7 * r};
        for (int i = 0; i < PROMPT; i++) /* a common beginning */
            ids[r][i] = (int32_t)(1 + qn_random_bits(i < 20 ? 1 : 2 + (uint64_t)r, (uint64_t)i) % 199);
    }
    o.logprobs = o.ignore_eos = 1;
    if (!o.max_tokens) o.max_tokens = TOKENS;
    qn_test_ok(qn_generation_open(model, &(qn_prompt){.rows = rows, .n_rows = n_rows}, &o, &g));
    for (int n_open = n_rows; n_open;) {
        qn_token t;
        qn_test_ok(qn_generation_next(g, &t));
        if (t.end != QN_END_NONE) {
            out->ends[t.row] = t.end;
            n_open--;
            continue;
        }
        out->logprobs[t.row][out->n[t.row]] = t.logprob;
        out->ids[t.row][out->n[t.row]++] = t.id;
    }
    qn_generation_close(g);
}

/* Alone and together, with what came before kept and forgotten. */
static void same_as_without(qn_model *model, qn_generate_options o, manner how)
{
    for (int n_rows = 1; n_rows <= ROWS; n_rows++) {
        result want, got;
        compute_beside(model, HAS_NONE);
        qn_test_ok(qn_model_clear_cache(model));
        generate(model, o, n_rows, &want);
        compute_beside(model, how);
        for (int again = 0; again < 3; again++) {
            if (again == 1) qn_test_ok(qn_model_clear_cache(model));
            generate(model, o, n_rows, &got);
            assert_memory_equal(&got, &want, sizeof got);
        }
        assert_int_equal(beside.n_guess, 0); /* nothing is left of a request that ended */
    }
}

static qn_model *open_model(const char *path)
{
    qn_model *model = NULL;
    beside.e = NULL;
    qn_test_ok(qn_model_open(
        qn_test_need_fixture(path),
        &(qn_model_options){.n_threads = 1, .parallel_slots = ROWS, .prefill_chunk = 32, .context_size = 256},
        &model));
    return model;
}

static void guesses(void **state)
{
    const int64_t blocks = qn_mem_live_blocks();
    qn_model *model = open_model(*state);
    same_as_without(model, (qn_generate_options){0}, GUESSES);
    print_message("%d begun, %d taken, %d dropped\n", (int)beside.n_begun, (int)beside.n_taken,
                  (int)beside.n_dropped);
    assert_int_equal(beside.n_taken + beside.n_dropped, beside.n_begun);
#ifdef QN_SHAKE /* steps are cut anywhere */
    assert_true(beside.n_taken > 0);
#else /* but where a page begins */
    assert_true(beside.n_taken >= 3 * (TOKENS - 8));
#endif
    same_as_without(model, (qn_generate_options){0}, GUESSES_WRONG);
    assert_true(beside.n_taken == 0 && beside.n_dropped == beside.n_begun && beside.n_begun > TOKENS);
    same_as_without(model, (qn_generate_options){0}, DOES_NOT_BEGIN);
    assert_true(beside.n_failed > TOKENS);
    same_as_without(model, (qn_generate_options){0}, DOES_NOT_FINISH); /* it begins anew, as ever */
    assert_true(beside.n_failed > 0 && beside.n_taken > 0);
    qn_model_close(&model);
    assert_int_equal(qn_mem_live_blocks(), blocks);
}

/* A token that ends the text comes after the step behind it was begun: what that wrote is nobody's. */
static void what_ends(void **state)
{
    qn_model *model = open_model(*state);
    result whole;
    compute_beside(model, HAS_NONE);
    generate(model, (qn_generate_options){0}, ROWS, &whole);
    for (int at = 1; at < TOKENS; at += 4) {
        const int32_t stop[] = {whole.ids[0][at], whole.ids[1][at / 2]};
        same_as_without(model, (qn_generate_options){.stop_ids = stop, .n_stop_ids = 2}, GUESSES);
        result again;
        generate(model, (qn_generate_options){0}, ROWS, &again);
        assert_memory_equal(&again, &whole, sizeof whole);
    }
    qn_model_close(&model);
}

/* What a step gives: a hash of its logits, and what greedy goes on with. */
typedef struct {
    uint64_t hash;
    int64_t best;
} seen_row;

static qn_status see_row(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    const int64_t vocab = beside.e->config.vocab_size;
    *(seen_row *)user =
        (seen_row){qn_hash_bytes(logits, (size_t)vocab * sizeof *logits, 0), qn_test_argmax(logits, vocab)};
    return QN_OK;
}

/* The early step is taken only if the step finds the sequence as it was: not behind the step of another one, nor
 * with other pages. */
static void changed_meanwhile(void **state)
{
    enum { STEPS = 12, FIRST = 32, OTHER = 4, PAGES = 8 };
    int32_t ids[PROMPT];
    seen_row want[STEPS], got[STEPS];
    for (int i = 0; i < PROMPT; i++) ids[i] = (int32_t)(1 + qn_random_bits(9, (uint64_t)i) % 199);
    qn_model *model = open_model("models/llama");
    for (int round = 0; round < 2; round++) {
        compute_beside(model, round ? GUESSES : HAS_NONE);
        qn_engine *e = beside.e;
        qn_sequence *other = qn_test_sequence(e), *s = qn_test_sequence(e);
        const qn_feed prompt[] = {{s, ids, FIRST, QN_LOGITS_NONE},
                                  {s, ids + FIRST, PROMPT - FIRST, QN_LOGITS_NONE}},
                      between = {other, ids, 2, QN_LOGITS_NONE};
        int32_t id = 5;
        for (int i = 0; i < 2; i++) qn_test_ok(qn_engine_step(e, 1, &prompt[i], NULL, NULL, NULL));
        qn_sequence_set_follows_best(s, 1);
        for (int i = 0; i < STEPS; i++) {
            seen_row *seen = (round ? got : want) + i;
            const int64_t n_dropped = beside.n_dropped;
            if (i == OTHER) qn_test_ok(qn_engine_step(e, 1, &between, NULL, NULL, NULL));
            /* Pages that the step of the first round did not have. */
            if (i == PAGES && round) qn_test_ok(qn_sequence_reserve(other, 2 * QN_PAGE_TOKENS));
            if (i == PAGES) qn_test_ok(qn_sequence_reserve(s, 2 * QN_PAGE_TOKENS));
            qn_test_ok(qn_engine_step(e, 1, &(qn_feed){s, &id, 1, QN_LOGITS_LAST}, see_row, NULL, seen));
            if (round) assert_int_equal(beside.n_dropped - n_dropped, i == OTHER || i == PAGES);
            id = (int32_t)seen->best;
        }
        qn_sequence_free(s);
        qn_sequence_free(other);
    }
    assert_true(beside.n_taken > STEPS / 2);
    assert_memory_equal(got, want, sizeof want);
    qn_model_close(&model);
}

/* Where the largest logit is not what comes next, and where states are changed in place, nothing is begun;
 * nor behind the last token. */
static void where_it_does_not(void **state)
{
    static const int32_t bias_id = 7;
    const qn_logit_bias bias = {bias_id, 1};
    const qn_generate_options others[] = {{.temperature = 1, .seed = 3},
                                          {.repeat_penalty = 1.3f},
                                          {.presence_penalty = 0.5f},
                                          {.logit_bias = &bias, .n_logit_bias = 1},
                                          {.max_tokens = 1}};
    qn_model *model = open_model("models/llama");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        same_as_without(model, others[i], GUESSES);
        assert_int_equal(beside.n_begun, 0);
    }
    qn_model_close(&model);
    model = open_model("models/qwen3_5");
    same_as_without(model, (qn_generate_options){0}, GUESSES);
    assert_int_equal(beside.n_begun, 0);
    qn_model_close(&model);
}

int main(void)
{
    static char llama[] = "models/llama", windows[] = "models/gemma3_text", experts[] = "models/mixtral";
    const struct CMUnitTest tests[] = {
        {"llama", guesses, NULL, NULL, llama},
        {"gemma3_text", guesses, NULL, NULL, windows},
        {"mixtral", guesses, NULL, NULL, experts},
        {"what ends: llama", what_ends, NULL, NULL, llama},
        {"what ends: gemma3_text", what_ends, NULL, NULL, windows},
        cmocka_unit_test(changed_meanwhile),
        cmocka_unit_test(where_it_does_not),
    };
    return cmocka_run_group_tests_name("ahead", tests, NULL, NULL);
}
