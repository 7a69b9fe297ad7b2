/* Whole models on another device: logits, greedy ids and what lies on the way against golden values for every
 * fixture of a known kind; several sequences in one step; prefixes, saved state and chats through the public
 * API; and 200 rounds of opening and closing that leave nothing behind. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <dirent.h>
#include <math.h>
#include <quern/quern.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/handles.h"
#include "backend/native/native_parts.h"
#include "base/buf.h"
#include "base/mem.h"
#include "base/random.h"
#include "engine/machine/engine_parts.h"
#include "tests/devices/other_compare.h"
#include "tests/engine/resident.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/golden_states.h"
#include "tests/support/models/kinds.h"
#include "tests/support/scratch.h"

/* The device orders its sums in its own way. */
static double tolerance_of(const char *kind)
{
    return qn_test_bound_of(qn_golden_tolerance(kind) > 2e-4 ? QN_TEST_LOGITS_WIDE : QN_TEST_LOGITS);
}

/* Its name, or the test ends here. */
static const char *other(void)
{
    return qn_test_other()->name;
}

static qn_engine *open_engine(const char *path, const char *device, int64_t max_sequences)
{
    return qn_test_engine(path, NULL,
                          (qn_engine_options){.device = device,
                                              .precision = QN_PRECISION_EXACT,
                                              .max_rows = 64,
                                              .max_sequences = max_sequences,
                                              .n_threads = 2});
}

/* ---- golden values ------------------------------------------------------------------------------------ */

static void golden(void **state)
{
    const char *kind = *state;
    char path[128];
    double logits = 0;
    qn_golden_errors errors = {0};
    snprintf(path, sizeof path, "models/%s", kind);
    const char *dir = qn_test_need_fixture(path);
    snprintf(path, sizeof path, "models/%s/expected.safetensors", kind);
    qn_safetensors *st;
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture(path), &st));
    qn_engine *e = open_engine(dir, other(), 1);
    assert_string_equal(qn_engine_get_info(e)->device, other());
    for (int i = 0; i < 5; i++) {
        const double worst = qn_golden_logits(e, st, i, i == 3 ? &errors : NULL);
        if (!(worst <= logits)) logits = worst;
    }
    print_message("%s: largest differences: logits %.1e, hidden states %.1e, keys %.1e, attention %.1e\n",
                  kind, logits, errors.hidden, errors.keys, errors.attention);
    assert_true(errors.n_hidden >= 2);
    if (errors.first[0]) fail_msg("%s is the first to leave the tolerance", errors.first);
    assert_true(logits <= tolerance_of(kind));
    for (int i = 0; i < 5; i++) qn_golden_greedy(e, st, i, 2 * tolerance_of(kind), kind);
    qn_engine_close(e);
    qn_safetensors_close(st);
}

/* ---- several sequences -------------------------------------------------------------------------------- */

enum { SEQUENCES = 4, LONGEST = 90, STEPS = 6 };

/* The last logits of each sequence, one below the other. */
typedef struct {
    float *out;
    int64_t vocab;
} last_rows;

static qn_status copy_last(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    const last_rows *l = user;
    memcpy(l->out + feed * l->vocab, logits + (n - 1) * l->vocab, (size_t)l->vocab * sizeof *logits);
    return QN_OK;
}

/* Sequences of some lengths, first whole, then token by token, all in the same steps, against the same
 * sequences alone: what is beside them in a step, and in a batch of attention, changes nothing to speak of.
 */
static void company(void **state)
{
    const char *kind = *state;
    char path[128];
    snprintf(path, sizeof path, "models/%s", kind);
    qn_engine *e = open_engine(qn_test_need_fixture(path), other(), SEQUENCES);
    const int64_t vocab = qn_engine_config(e)->vocab_size, lengths[SEQUENCES] = {LONGEST, 1, 33, 33};
    int32_t ids[SEQUENCES][LONGEST + STEPS];
    qn_sequence *s[SEQUENCES];
    qn_feed feeds[SEQUENCES];
    float *together = qn_alloc_array((size_t)(SEQUENCES * vocab), sizeof *together),
          *alone = qn_alloc_array((size_t)((LONGEST + STEPS) * vocab), sizeof *alone);
    const last_rows rows = {together, vocab};
    for (int i = 0; i < SEQUENCES; i++) {
        for (int k = 0; k < LONGEST + STEPS; k++)
            ids[i][k] = (int32_t)(qn_random_bits(9, (uint64_t)(i * 1000 + k)) % (uint64_t)vocab);
        s[i] = qn_test_sequence(e);
        feeds[i] = (qn_feed){s[i], ids[i], lengths[i], QN_LOGITS_LAST};
    }
    for (int step = 0; step <= STEPS; step++) {
        qn_test_ok(qn_engine_step(e, SEQUENCES, feeds, copy_last, NULL, (void *)(uintptr_t)&rows));
        for (int i = 0; i < SEQUENCES; i++)
            feeds[i] = (qn_feed){s[i], feeds[i].ids + feeds[i].n_ids, 1, QN_LOGITS_LAST};
    }
    for (int i = 0; i < SEQUENCES; i++) {
        const int64_t n = lengths[i] + STEPS;
        qn_test_logits(e, ids[i], n, 0, alone);
        for (int64_t k = 0; k < vocab; k++) {
            const double off = fabs((double)alone[(n - 1) * vocab + k] - (double)together[i * vocab + k]);
            if (!(off <= tolerance_of(kind)))
                fail_msg("%s: sequence %d differs by %g in company", kind, i, off);
        }
        qn_sequence_free(s[i]);
    }
    qn_free(together);
    qn_free(alone);
    qn_engine_close(e);
}

/* ---- the public API ----------------------------------------------------------------------------------- */

static qn_model *open_model(const char *path, const char *device)
{
    qn_model *m = NULL;
    const qn_model_options o = {.device = device, .precision = QN_PRECISION_EXACT, .context_size = 512};
    qn_test_ok(qn_model_open(path, &o, &m));
    return m;
}

/* The ids of a greedy answer behind out; n_cached: tokens of the prompt that were there already. */
static int64_t answer(qn_model *m, const qn_prompt *prompt, int64_t n, int32_t *out, int64_t *n_cached)
{
    const qn_generate_options o = {.max_tokens = n, .ignore_eos = 1};
    qn_generation *g = NULL;
    qn_generation_stats stats;
    qn_token t;
    int64_t made = 0;
    qn_test_ok(qn_generation_open(m, prompt, &o, &g));
    for (qn_test_ok(qn_generation_next(g, &t)); t.end == QN_END_NONE; qn_test_ok(qn_generation_next(g, &t)))
        out[made++] = t.id;
    assert_int_equal(t.end, QN_END_LENGTH);
    qn_test_ok(qn_generation_get_stats(g, &stats));
    if (n_cached) *n_cached = stats.n_cached_tokens;
    qn_generation_close(g);
    return made;
}

enum { PROMPT = 100, ANSWER = 12 };

static void fill(int32_t *ids, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(1 + qn_random_bits(seed, (uint64_t)i) % 200);
}

/* A prompt that begins like one before is not computed anew, and has the same answer; so it is in another
 * model that was given the saved state of this one. */
static void prefixes(void **state)
{
    char path[128];
    snprintf(path, sizeof path, "models/%s", (const char *)*state);
    const char *dir = qn_test_need_fixture(path), *scratch = qn_test_scratch();
    int32_t ids[PROMPT], first[ANSWER], again[ANSWER], loaded[ANSWER];
    int64_t n_cached;
    fill(ids, PROMPT, 3);
    const qn_ids row = {ids, PROMPT};
    const qn_prompt prompt = {.rows = &row, .n_rows = 1};
    qn_model *m = open_model(dir, other());
    assert_int_equal(answer(m, &prompt, ANSWER, first, &n_cached), ANSWER);
    assert_int_equal(n_cached, 0);
    assert_int_equal(answer(m, &prompt, ANSWER, again, &n_cached), ANSWER);
    assert_true(n_cached >= PROMPT / 2);
    assert_memory_equal(first, again, sizeof first);
    qn_test_ok(qn_model_save_state(m, qn_test_path(scratch, "state")));
    qn_model_close(&m);

    m = open_model(dir, other());
    qn_test_ok(qn_model_load_state(m, qn_test_path(scratch, "state")));
    assert_int_equal(answer(m, &prompt, ANSWER, loaded, &n_cached), ANSWER);
    assert_true(n_cached >= PROMPT / 2);
    assert_memory_equal(first, loaded, sizeof first);
    qn_model_close(&m);

    m = open_model(dir, "cpu"); /* whose pages lie in another order */
    assert_int_equal(qn_model_load_state(m, qn_test_path(scratch, "state")), QN_E_UNSUPPORTED);
    qn_model_close(&m);
    qn_test_remove(scratch);
}

/* ---- steps started before their tokens are known ------------------------------------------ */

static struct {
    qn_device_ops ops;
    qn_async_ops async;
    const qn_device_ops *own;
    int64_t n_started, n_as_guessed, n_others;
} counted;

static int is_useful(qn_device *d)
{
    return 1;
}

static int is_useless(qn_device *d)
{
    return 0;
}

static qn_status start_counted(qn_exec *e, const qn_sizes *sizes, qn_exec *after, const qn_buffer *guessed)
{
    counted.n_started += after != NULL;
    return counted.own->async->start(e, sizes, after, guessed);
}

static qn_status finish_counted(qn_exec *e, int64_t n, const int32_t *ids, int *as_guessed)
{
    QN_TRY(counted.own->async->finish(e, n, ids, as_guessed));
    if (n) *(*as_guessed ? &counted.n_as_guessed : &counted.n_others) += 1;
    return QN_OK;
}

/* Greedy answers go on where the device has begun to, with the ids and the logits' bits that they have without. */
static void ahead(void **state)
{
    enum { ROWS = 2, TOKENS = 40 };
    char path[128];
    int32_t ids[ROWS][PROMPT];
    struct {
        int32_t ids[ROWS][TOKENS];
        float logprobs[ROWS][TOKENS];
    } got[3];
    snprintf(path, sizeof path, "models/%s", (const char *)*state);
    qn_model *m = open_model(qn_test_need_fixture(path), other());
    qn_device *d = ((native_model *)m->object)->engine->device;
    if (!d->ops->async) {
        print_message("%s has no asynchronous runs\n", other());
        qn_model_close(&m);
        return;
    }
    counted.own = d->ops;
    counted.ops = *d->ops;
    counted.n_started = counted.n_as_guessed = counted.n_others = 0;
    counted.async = *d->ops->async;
    counted.async.start = start_counted;
    counted.async.finish = finish_counted;
    counted.ops.async = &counted.async;
    d->ops = &counted.ops;
    for (int turn = 0; turn < 3; turn++) {
        const int n_rows = turn < 2 ? ROWS : 1;
        const qn_generate_options o = {.max_tokens = TOKENS, .ignore_eos = 1, .logprobs = 1};
        const qn_ids rows[ROWS] = {{ids[0], PROMPT}, {ids[1], PROMPT - 11}};
        int64_t n[ROWS] = {0};
        qn_generation *g = NULL;
        counted.async.is_useful = turn ? is_useful : is_useless;
        for (int r = 0; r < ROWS; r++) fill(ids[r], PROMPT, 6 + (uint64_t)r);
        qn_test_ok(qn_model_clear_cache(m));
        qn_test_ok(qn_generation_open(m, &(qn_prompt){.rows = rows, .n_rows = n_rows}, &o, &g));
        for (int n_open = n_rows; n_open;) {
            qn_token t;
            qn_test_ok(qn_generation_next(g, &t));
            n_open -= t.end != QN_END_NONE;
            if (t.end != QN_END_NONE) continue;
            got[turn].logprobs[t.row][n[t.row]] = t.logprob;
            got[turn].ids[t.row][n[t.row]++] = t.id;
        }
        qn_generation_close(g);
        if (!turn) assert_int_equal(counted.n_started, 0);
    }
    d->ops = counted.own;
    assert_memory_equal(&got[0], &got[1], sizeof *got);
    assert_memory_equal(got[0].ids[0], got[2].ids[0], sizeof got->ids[0]);
    print_message("%d started, %d as guessed\n", (int)counted.n_started, (int)counted.n_as_guessed);
    assert_true(counted.n_as_guessed > TOKENS && counted.n_others == 0);
    qn_model_close(&m);
}

/* Two turns of a chat, the second on top of the first, as on the CPU. */
static void chat(void **state)
{
    char path[128];
    snprintf(path, sizeof path, "models/%s", (const char *)*state);
    const char *dir = qn_test_need_fixture(path);
    const qn_message turns[] = {
        {"user", "Hello there, what is it?"}, {"assistant", "A test."}, {"user", "Go on, then."}};
    int32_t ids[2][2][ANSWER];
    int64_t n_cached;
    for (int d = 0; d < 2; d++) {
        qn_model *m = open_model(dir, d ? other() : "cpu");
        for (int turn = 0; turn < 2; turn++) {
            const qn_prompt prompt = {.messages = turns, .n_messages = turn ? 3 : 1};
            assert_int_equal(answer(m, &prompt, ANSWER, ids[d][turn], &n_cached), ANSWER);
        }
        qn_figures figures;
        qn_test_ok(qn_model_get_figures(m, &figures));
        assert_int_equal(figures.n_preemptions, 0);
        qn_model_close(&m);
    }
    assert_memory_equal(ids[0], ids[1], sizeof ids[0]);
}

/* What the device lacks is said with what it has. */
static void refusals(void **state)
{
    const char *text = qn_test_other()->kv_refusal;
    const char *dir = qn_test_need_fixture("models/llama");
    static const qn_kv_type types[] = {QN_KV_Q8_0, QN_KV_Q4_0};
    for (size_t i = 0; i < 2; i++) {
        qn_model *m = NULL;
        const qn_model_options o = {.device = other(), .kv_type = types[i]};
        assert_int_equal(qn_model_open(dir, &o, &m), text ? QN_E_UNSUPPORTED : QN_OK);
        if (text) assert_non_null(strstr(qn_last_error(), text));
        qn_model_close(&m);
    }
}

/* ---- what is left behind ------------------------------------------------------------------------------ */

/* Threads of the process, 0 where the system does not tell. */
static int count_threads(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/task");
    for (struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

enum { ROUNDS = 200, WARM = 20, FLAT_KIB = 4096 };

/* QN_TEST_ROUNDS: fewer, for devices that are slow. */
static int count_rounds(void)
{
    const char *text = getenv("QN_TEST_ROUNDS");
    const long n = text ? strtol(text, NULL, 10) : ROUNDS;
    return n > WARM && n < ROUNDS ? (int)n : ROUNDS;
}

static void rounds(void **state)
{
    char path[128];
    snprintf(path, sizeof path, "models/%s", (const char *)*state);
    const char *dir = qn_test_need_fixture(path);
    int32_t ids[PROMPT], out[ANSWER];
    fill(ids, PROMPT, 5);
    const qn_ids row = {ids, PROMPT};
    const qn_prompt prompt = {.rows = &row, .n_rows = 1};
    qn_model *first = open_model(dir, other()); /* what it keeps for the process is there from then on */
    assert_int_equal(answer(first, &prompt, 3, out, NULL), 3);
    qn_model_close(&first);
    const int threads = count_threads();
    const int64_t blocks = qn_mem_live_blocks();
    qn_test_usage usage;
    const int tells = qn_test_get_usage(&usage);
    const size_t active = usage.active_bytes;
    const int n_rounds = count_rounds();
    long warm = 0;
    for (int i = 0; i < n_rounds; i++) {
        qn_model *m = open_model(dir, other());
        assert_int_equal(answer(m, &prompt, 3, out, NULL), 3);
        qn_test_get_usage(&usage);
        if (tells) assert_true(usage.active_bytes > active);
        qn_model_close(&m);
        qn_test_get_usage(&usage);
        if (usage.active_bytes != active)
            fail_msg("round %d leaves %zu bytes of %zu", i, usage.active_bytes, active);
        assert_int_equal(qn_mem_live_blocks(), blocks);
        if (i == WARM) warm = qn_test_resident_kib();
    }
    assert_int_equal(count_threads(), threads);
    const long now = qn_test_resident_kib();
    print_message("resident memory: %ld KiB after %d rounds, %ld after %d\n", warm, WARM, now, n_rounds);
#ifndef __SANITIZE_ADDRESS__
    assert_true(now <= warm + FLAT_KIB);
#endif
}

static qn_status ignore(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    return QN_OK;
}

/* Pages that the memory limit leaves room for can be used, though pools grow by doubling; then it ends in a
 * status: of keys and values, or of what attention needs beside them. */
static void limit(void **state)
{
    enum { ROOM = 12, TOKENS = 600 };
    static int32_t ids[TOKENS];
    const char *dir = qn_test_need_fixture("models/llama");
    const qn_engine_options o = {.device = other(), .max_rows = 16, .context_size = 1024};
    qn_engine *e = qn_test_engine(dir, NULL, o);
    qn_ledger *l = qn_engine_device_ledger(e);
    qn_sequence *s = qn_test_sequence(e);
    fill(ids, TOKENS, 11);
    qn_test_ok(qn_sequence_reserve(s, 1));
    const size_t page = qn_ledger_held(l, QN_LEDGER_KV);
    qn_ledger_set_limit(l, qn_ledger_total(l) + (ROOM - 1) * page);
    qn_status status = QN_OK;
    for (int64_t at = 0; at < TOKENS && status == QN_OK; at += 8) {
        const qn_feed feed = {s, ids + at, 8, QN_LOGITS_NONE};
        status = qn_engine_step(e, 1, &feed, ignore, NULL, NULL);
        assert_true(qn_ledger_total(l) <= qn_ledger_get_limit(l));
    }
    assert_int_equal(status, QN_E_NOMEM);
    print_message("%d pages: %d tokens, then: %s\n", ROOM, (int)qn_sequence_length(s), qn_last_error());
    assert_true(qn_sequence_length(s) >= ROOM / 2 * QN_PAGE_TOKENS);
    qn_sequence_free(s);
    qn_engine_close(e);
}

static qn_status open_and_step(const char *path)
{
    static const int32_t ids[] = {5, 9, 2, 77, 31, 8};
    qn_engine *e = NULL;
    qn_sequence *s = NULL;
    const qn_engine_options o = {.device = other(), .n_threads = 1, .max_rows = 16, .context_size = 64};
    qn_status status = qn_test_engine_try(path, &o, &e);
    if (status == QN_OK) status = qn_sequence_new(e, &s);
    const qn_feed feed = {s, ids, 6, QN_LOGITS_LAST};
    if (status == QN_OK) status = qn_engine_step(e, 1, &feed, ignore, NULL, NULL);
    qn_sequence_free(s);
    qn_engine_close(e);
    return status;
}

/* Some of the allocations of quern's own fail, one at a time. */
static void out_of_memory(void **state)
{
    const char *dir = qn_test_need_fixture("models/qwen3_next");
    qn_test_ok(open_and_step(dir));
    const int64_t live = qn_mem_live_blocks();
    int64_t n = 1;
    for (;; n += n < 20 ? 1 : 41) {
        const int64_t made = qn_mem_allocations();
        qn_mem_fail_nth(n);
        const qn_status status = open_and_step(dir);
        qn_mem_fail_nth(0);
        const int reached = qn_mem_allocations() - made >= n;
        if (status != (reached ? QN_E_NOMEM : QN_OK))
            fail_msg("allocation %d: %s, %s", (int)n, qn_status_name(status), qn_last_error());
        assert_int_equal(qn_mem_live_blocks(), live);
        if (!reached) break;
    }
    assert_true(n > 500);
}

/* Pages are written where they are: a step frees no pool that it has copied. What the device frees it keeps. Each step
 * is waited for, since a GPU copies what the step before still reads. Of devices that tell their memory. */
static void in_place(void **state)
{
    enum { TOKENS = 12288 };
    qn_test_usage before, after;
    if (!qn_test_get_usage(&before)) return;
    const char *dir = qn_test_need_fixture("models/llama");
    qn_engine *e = qn_test_engine(
        dir, NULL, (qn_engine_options){.device = other(), .context_size = 2 * TOKENS, .max_rows = 512});
    const qn_layer_config *layer = &qn_engine_config(e)->layers[0];
    const size_t pool = (size_t)(TOKENS * layer->num_key_value_heads * layer->head_dim) * sizeof(uint16_t);
    int32_t *ids = qn_alloc_array(TOKENS, sizeof *ids);
    fill(ids, TOKENS, 7);
    qn_sequence *many = qn_test_sequence(e), *few = qn_test_sequence(e);
    qn_feed feed = {many, ids, TOKENS, QN_LOGITS_NONE};
    qn_test_ok(qn_engine_step(e, 1, &feed, NULL, NULL, NULL));
    feed = (qn_feed){few, ids, 1, QN_LOGITS_LAST}; /* which may make the pool grow */
    qn_test_ok(qn_engine_step(e, 1, &feed, ignore, NULL, NULL));
    qn_device_clear_cache(e->device);
    qn_test_get_usage(&before);
    for (int i = 0; i < 40; i++) {
        feed = (qn_feed){few, ids + i, 1, QN_LOGITS_LAST};
        qn_test_ok(qn_engine_step(e, 1, &feed, ignore, NULL, NULL));
    }
    qn_test_get_usage(&after);
    print_message("pool of %zu bytes: %zu held before, %zu after, %zu freed\n", pool, before.active_bytes,
                  after.active_bytes, after.cache_bytes);
    assert_true(after.cache_bytes < pool);
    assert_true(after.active_bytes < before.active_bytes + pool / 2);
    qn_sequence_free(many);
    qn_sequence_free(few);
    qn_engine_close(e);
    qn_free(ids);
}

/* An argument picks tests by name: '*phi3*'. */
int main(int argc, char **argv)
{
    static struct CMUnitTest tests[2 * QN_TEST_KINDS_MAX + 16];
    static const qn_test_kind_row rows[] = {{"golden_", golden}, {"company_", company}};
    int n = qn_test_kind_rows(2, rows, tests);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    static const struct CMUnitTest others[] = {{"prefixes_llama", prefixes, NULL, NULL, "llama"},
                                               {"prefixes_gemma3", prefixes, NULL, NULL, "gemma3_text"},
                                               {"prefixes_qwen3_next", prefixes, NULL, NULL, "qwen3_next"},
                                               {"prefixes_deepseek_v3", prefixes, NULL, NULL, "deepseek_v3"},
                                               {"ahead_llama", ahead, NULL, NULL, "llama"},
                                               {"ahead_gemma3", ahead, NULL, NULL, "gemma3_text"},
                                               {"ahead_deepseek_v3", ahead, NULL, NULL, "deepseek_v3"},
                                               {"chat_qwen3", chat, NULL, NULL, "qwen3"},
                                               {"chat_qwen3_5", chat, NULL, NULL, "qwen3_5"},
                                               {"refusals", refusals, NULL, NULL, NULL},
                                               {"in_place", in_place, NULL, NULL, NULL},
                                               {"limit", limit, NULL, NULL, NULL},
                                               {"out_of_memory", out_of_memory, NULL, NULL, NULL},
                                               {"rounds_llama", rounds, NULL, NULL, "llama"},
                                               {"rounds_qwen3_next", rounds, NULL, NULL, "qwen3_next"}};
    memcpy(tests + n, others, sizeof others);
    n += (int)(sizeof others / sizeof others[0]);
    return qn_test_run_others("models", tests, (size_t)n, NULL, NULL);
}
