/* A pass of the model that fails, or gives what are no numbers: each pass of a piece of work in turn, over
 * full attention, sliding windows and recurrent layers. Who can go on does so with the bits that it would
 * have had, who cannot fails alone, and nothing of it is found again later. The device's own table of
 * functions is replaced for that. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
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

enum { PREFIX = 70, OWN = 9, TOKENS = 10, CHUNK = 32, HANDLE = 40, ROWS = 2 };

/* ---- passes that go wrong ----------------------------------------------------------------------------- */

typedef enum {
    FAILS,      /* it is not computed */
    FAILS_LATE, /* it is, and reported as failed */
    NO_NUMBERS  /* the head's logits are NaN */
} fault;

static struct {
    qn_device_ops ops;
    const qn_device_ops *good;
    qn_engine *e;
    int64_t n_runs, first, last; /* those from the first to the last one go wrong; 0: none */
    fault what;
} broken;

static qn_status run_broken(qn_exec *exec, const qn_sizes *sizes)
{
    int is_bad = ++broken.n_runs >= broken.first && broken.n_runs <= broken.last;
    if (is_bad && broken.what == FAILS) return qn_fail(QN_E_DEVICE, "pass %d was lost", (int)broken.n_runs);
    QN_TRY(broken.good->run(exec, sizes));
    if (is_bad && broken.what == FAILS_LATE)
        return qn_fail(QN_E_DEVICE, "pass %d was lost", (int)broken.n_runs);
    if (is_bad) {
        float *logits = (float *)(uintptr_t)qn_program_output(broken.e->head, 0);
        int64_t n = sizes->v[2] * broken.e->config.vocab_size;
        for (int64_t i = 0; i < n; i++) logits[i] = NAN;
    }
    return QN_OK;
}

static native_model *native_of(qn_model *model)
{
    return model->object;
}

static void break_passes(qn_model *model, fault what, int64_t first, int64_t last)
{
    qn_engine *e = native_of(model)->engine;
    if (e->device->ops != &broken.ops) {
        broken.good = e->device->ops;
        broken.ops = *broken.good;
        broken.ops.run = run_broken;
        e->device->ops = &broken.ops;
    }
    broken.e = e;
    broken.what = what;
    broken.first = first;
    broken.last = last;
    broken.n_runs = 0;
}

static void mend(qn_model *model)
{
    native_of(model)->engine->device->ops = broken.good;
}

/* ---- the work ----------------------------------------------------------------------------------------- */

/* What a piece of work gave. */
typedef struct {
    qn_status rows[ROWS];
    int64_t n[ROWS];
    int32_t ids[ROWS][TOKENS];
    float logprobs[ROWS][TOKENS];
    qn_status all, handle, scored;
    float of_prompt[PREFIX + OWN];
    int32_t n_scored;
    uint64_t logits[PREFIX], handle_logits; /* hashes */
} result;

typedef struct {
    int64_t vocab, next;
    result *out;
} taking;

static void make_ids(int32_t *ids, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(1 + qn_random_bits(seed, (uint64_t)i) % 199);
}

static qn_status take_logits(void *user, int64_t row, int64_t position, int64_t n, const float *logits)
{
    taking *t = user;
    assert_int_equal(position, t->next); /* in order, each once */
    for (int64_t i = 0; i < n; i++, t->next++) {
        if (isnan(logits[i * t->vocab])) return qn_fail(QN_E_INTERNAL, "not a number");
        t->out->logits[t->next] = qn_hash_bytes(logits + i * t->vocab, (size_t)t->vocab * sizeof *logits, 0);
    }
    return QN_OK;
}

/* Two rows that decode together, the first behind a prefix that is known. */
static void generate(qn_model *model, result *out)
{
    int32_t ids[ROWS][PREFIX + OWN];
    make_ids(ids[0], PREFIX, 1);
    make_ids(ids[0] + PREFIX, OWN, 2);
    make_ids(ids[1], OWN, 3);
    const qn_ids rows[ROWS] = {{ids[0], PREFIX + OWN}, {ids[1], OWN}};
    const qn_generate_options o = {.max_tokens = TOKENS,
                                   .ignore_eos = 1,
                                   .logprobs = 1,
                                   .temperature = 1,
                                   .mirostat = 2, /* its state outlives a restart */
                                   .dry_multiplier = 1,
                                   .seed = 4};
    qn_generation *g = NULL;
    qn_test_ok(qn_generation_open(model, &(qn_prompt){.rows = rows, .n_rows = ROWS}, &o, &g));
    for (int n_open = ROWS; n_open;) {
        qn_token t;
        qn_status status = qn_generation_next(g, &t);
        if (t.end != QN_END_NONE) {
            out->rows[t.row] = status;
            n_open--;
            continue;
        }
        out->logprobs[t.row][out->n[t.row]] = t.logprob;
        out->ids[t.row][out->n[t.row]++] = t.id;
    }
    qn_generation_close(g);
}

/* A prompt that has log-probabilities: each of its rows is wanted, and none twice. */
static void score(qn_model *model, result *out)
{
    int32_t ids[PREFIX + OWN];
    qn_generation *g = NULL;
    qn_token t;
    make_ids(ids, PREFIX + OWN, 1);
    const qn_generate_options o = {.max_tokens = 1, .ignore_eos = 1, .prompt_logprobs = 1};
    qn_test_ok(
        qn_generation_open(model, &(qn_prompt){.rows = &(qn_ids){ids, PREFIX + OWN}, .n_rows = 1}, &o, &g));
    do out->scored = qn_generation_next(g, &t);
    while (t.end == QN_END_NONE);
    for (qn_prompt_token p; qn_generation_get_prompt_token(g, 0, out->n_scored, &p) == QN_OK; out->n_scored++)
        if (out->n_scored) out->of_prompt[out->n_scored] = p.logprob;
    qn_generation_close(g);
}

static void work(qn_model *model, const qn_cache *from, float *logits, int64_t vocab, result *out)
{
    int32_t ids[PREFIX];
    qn_cache *next = NULL;
    memset(out, 0, sizeof *out);
    generate(model, out);
    score(model, out);
    make_ids(ids, PREFIX, 5);
    taking t = {.vocab = vocab, .out = out};
    out->all = qn_model_logits(model, &(qn_ids){ids, PREFIX}, 1, NULL, take_logits, &t);
    out->handle = qn_forward_with_cache(model, ids, 3, from, logits, vocab, &next);
    if (out->handle == QN_OK) out->handle_logits = qn_hash_bytes(logits, (size_t)vocab * sizeof *logits, 0);
    qn_cache_free(next);
}

/* ---- what must hold ----------------------------------------------------------------------------------- */

/* What was given is what there would have been, and what failed says so. */
static void check(const result *got, const result *want, int64_t k, int may_fail)
{
    for (int r = 0; r < ROWS; r++) {
        if (got->rows[r] != QN_OK && !(may_fail & 1 << r))
            fail_msg("pass %d: row %d: %s", (int)k, r, qn_status_name(got->rows[r]));
        if (got->rows[r] == QN_OK) assert_int_equal(got->n[r], want->n[r]);
        assert_memory_equal(got->ids[r], want->ids[r], (size_t)got->n[r] * sizeof got->ids[r][0]);
        assert_memory_equal(got->logprobs[r], want->logprobs[r],
                            (size_t)got->n[r] * sizeof got->logprobs[r][0]);
    }
    if (got->scored != QN_OK && !(may_fail & 1 << (ROWS + 1)))
        fail_msg("pass %d: a prompt: %s", (int)k, qn_status_name(got->scored));
    if (got->scored == QN_OK) assert_int_equal(got->n_scored, PREFIX + OWN);
    assert_memory_equal(got->of_prompt, want->of_prompt, (size_t)got->n_scored * sizeof *got->of_prompt);
    if (got->all != QN_OK && !(may_fail & 1 << ROWS))
        fail_msg("pass %d: logits: %s", (int)k, qn_status_name(got->all));
    if (got->all == QN_OK) assert_memory_equal(got->logits, want->logits, sizeof got->logits);
    assert_true(got->handle == QN_OK || got->handle == QN_E_DEVICE);
    if (got->handle == QN_OK) assert_true(got->handle_logits == want->handle_logits);
}

static void check_nothing_held(qn_model *model)
{
    qn_figures f;
    qn_test_ok(qn_model_get_figures(model, &f));
    assert_int_equal(f.n_active + f.n_queued, 0);
    const char *wrong = qn_tree_check(native_of(model)->engine->tree);
    if (wrong) fail_msg("%s", wrong);
}

/* Leaves the prefix and nothing else. */
static void leave_prefix(qn_model *model)
{
    int32_t ids[PREFIX];
    qn_generation *g = NULL;
    qn_token t;
    qn_test_ok(qn_model_clear_cache(model));
    make_ids(ids, PREFIX, 1);
    qn_test_ok(qn_generation_open(model, &(qn_prompt){.rows = &(qn_ids){ids, PREFIX}, .n_rows = 1},
                                  &(qn_generate_options){.max_tokens = 1, .ignore_eos = 1}, &g));
    do qn_test_ok(qn_generation_next(g, &t));
    while (t.end == QN_END_NONE);
    qn_generation_close(g);
}

static int64_t restarts_of(qn_model *model)
{
    qn_figures f;
    qn_test_ok(qn_model_get_figures(model, &f));
    return f.n_restarts;
}

typedef struct {
    const char *path;
    fault what;
    int for_good; /* all passes from the first that fails on */
} subject;

static void each_pass(void **state)
{
    const subject *s = *state;
    qn_model *model = NULL;
    qn_model_info info;
    qn_cache *from = NULL;
    result want, got;
    int32_t ids[HANDLE];
    int64_t k = 1, n_failed = 0, blocks = qn_mem_live_blocks();
    qn_test_ok(qn_model_open(
        qn_test_need_fixture(s->path),
        &(qn_model_options){
            .n_threads = 1, .parallel_slots = ROWS, .prefill_chunk = CHUNK, .context_size = 256},
        &model));
    qn_test_ok(qn_model_get_info(model, &info));
    float *logits = test_malloc((size_t)info.vocab_size * sizeof *logits);
    make_ids(ids, HANDLE, 6);
    qn_test_ok(qn_forward_with_cache(model, ids, HANDLE, NULL, logits, info.vocab_size, &from));
    leave_prefix(model);
    work(model, from, logits, info.vocab_size, &want);
    assert_true(want.all == QN_OK && want.handle == QN_OK);
    for (int has_gone_wrong = 1; has_gone_wrong; k++) {
        leave_prefix(model);
        break_passes(model, s->what, k, s->for_good ? INT64_MAX : k);
        work(model, from, logits, info.vocab_size, &got);
        has_gone_wrong = broken.n_runs >= k;
        mend(model);
        /* Without a known prefix there is nothing to blame logits that are no numbers on. */
        check(&got, &want, k, s->for_good ? 15 : s->what == NO_NUMBERS ? 14 : 0);
        n_failed += got.rows[0] != QN_OK || got.rows[1] != QN_OK || got.all != QN_OK || got.handle != QN_OK;
        check_nothing_held(model);
        work(model, from, logits, info.vocab_size, &got); /* with what it has left */
        check(&got, &want, k, 0);
        assert_int_equal(got.handle, QN_OK);
    }
    print_message("%d passes, %d pieces of work that had a failure, %d began anew\n", (int)k - 2,
                  (int)n_failed, (int)restarts_of(model));
    assert_true(k > 2 * TOKENS);
    if (s->for_good) assert_true(n_failed > 0); /* one pass that is lost need harm nobody */
    if (!s->for_good) assert_true(restarts_of(model) > 0);
    test_free(logits);
    qn_model_close(&model);
    assert_int_equal(qn_mem_live_blocks(), blocks);
}

/* What the tree keeps is no number any more: who builds on it begins anew from the root, is counted, and
 * gives what it would have given. */
static void bad_prefix(void **state)
{
    const subject *s = *state;
    qn_model *model = NULL;
    result want = {.all = QN_OK}, got = {.all = QN_OK};
    qn_test_ok(qn_model_open(qn_test_need_fixture(s->path),
                             &(qn_model_options){.n_threads = 1, .parallel_slots = ROWS, .context_size = 256},
                             &model));
    leave_prefix(model);
    generate(model, &want);
    leave_prefix(model);
    qn_engine *e = native_of(model)->engine;
    for (int g = 0; g < e->groups.n; g++) {
        size_t bytes = qn_pages_unit_bytes(e->pages[g]);
        char *bad = test_malloc(bytes);
        memset(bad, 0xff, bytes);
        for (int32_t id = 0; id < qn_pages_total(e->pages[g]); id++)
            if (qn_pages_get_info(e->pages[g], id).kept) e->device->ops->state_write(e->states[g], id, bad);
        test_free(bad);
    }
    generate(model, &got);
    for (int r = 0; r < ROWS; r++) qn_test_ok(got.rows[r]);
    assert_memory_equal(&got, &want, sizeof got);
    assert_int_equal(restarts_of(model), 1);
    check_nothing_held(model);
    qn_model_close(&model);
}

/* ---- guesses ------------------------------------------------------------------------------------------ */

enum { GUESSED = 40, PERIOD = 7 };

/* Rows that repeat themselves, of which each step guesses. Returns how many ids were guessed. */
static int64_t repeat(qn_model *model, int32_t n_draft, int32_t out[ROWS][GUESSED])
{
    int32_t ids[ROWS][PREFIX];
    qn_ids rows[ROWS];
    int64_t n[ROWS] = {0};
    qn_generation *g = NULL;
    qn_generation_stats stats;
    const qn_generate_options o = {.max_tokens = GUESSED,
                                   .ignore_eos = 1,
                                   .n_draft = n_draft,
                                   .seed = 9,
                                   .frequency_penalty = -2,
                                   .no_prefix_cache = 1};
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < PREFIX; i++)
            ids[r][i] = (int32_t)(1 + qn_random_bits((uint64_t)r, (uint64_t)(i % PERIOD)) % 199);
        rows[r] = (qn_ids){ids[r], PREFIX};
    }
    qn_test_ok(qn_generation_open(model, &(qn_prompt){.rows = rows, .n_rows = ROWS}, &o, &g));
    for (int n_open = ROWS; n_open;) {
        qn_token t;
        qn_test_ok(qn_generation_next(g, &t));
        n_open -= t.end != QN_END_NONE;
        if (t.end == QN_END_NONE) out[t.row][n[t.row]++] = t.id;
    }
    qn_test_ok(qn_generation_get_stats(g, &stats));
    qn_generation_close(g);
    for (int r = 0; r < ROWS; r++) assert_int_equal(n[r], GUESSED);
    return stats.n_drafted_tokens;
}

/* A step with guesses that fails in each of its passes: the ids that were drawn before stay, and the rest is
 * computed again. Few logits a pass, so that some of a step are drawn before another pass fails. */
static void guesses(void **state)
{
    static int32_t want[ROWS][GUESSED], got[ROWS][GUESSED];
    const fault ways[] = {FAILS, FAILS_LATE};
    int64_t n_guessed = 0;
    qn_model *model = NULL;
    qn_test_ok(qn_model_open(qn_test_need_fixture(*state),
                             &(qn_model_options){.n_threads = 1, .parallel_slots = ROWS, .context_size = 256},
                             &model));
    native_of(model)->engine->max_logit_rows = 3;
    assert_int_equal(repeat(model, 0, want), 0);
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        int has_gone_wrong = 1;
        for (int64_t k = 1; has_gone_wrong; k++) {
            break_passes(model, ways[w], k, k);
            n_guessed += repeat(model, 6, got);
            has_gone_wrong = broken.n_runs >= k;
            mend(model);
            assert_memory_equal(got, want, sizeof got);
            check_nothing_held(model);
        }
    }
    assert_true(n_guessed > 0);
    qn_model_close(&model);
}

int main(void)
{
    static const char *const paths[] = {"models/llama", "models/gemma3_text", "models/qwen3_5"};
    static const struct {
        const char *name;
        fault what;
        int for_good;
    } ways[] = {{"a pass fails", FAILS, 0},
                {"a pass fails late", FAILS_LATE, 0},
                {"a pass gives no numbers", NO_NUMBERS, 0},
                {"all passes fail from one on", FAILS, 1}};
    enum { KINDS = sizeof paths / sizeof *paths, WAYS = sizeof ways / sizeof *ways };
    static subject subjects[KINDS * (WAYS + 1)];
    static struct CMUnitTest tests[KINDS * (WAYS + 1) + 2];
    static char names[KINDS * (WAYS + 1)][96];
    for (int i = 0; i < KINDS * (WAYS + 1); i++) {
        int way = i / KINDS;
        subjects[i] = (subject){.path = paths[i % KINDS]};
        if (way < WAYS) subjects[i].what = ways[way].what, subjects[i].for_good = ways[way].for_good;
        snprintf(names[i], sizeof names[i], "%s: %s", paths[i % KINDS] + strlen("models/"),
                 way < WAYS ? ways[way].name : "a prefix is no good");
        tests[i] =
            (struct CMUnitTest){names[i], way < WAYS ? each_pass : bad_prefix, NULL, NULL, &subjects[i]};
    }
    for (int i = 0; i < 2; i++)
        tests[KINDS * (WAYS + 1) + i] = (struct CMUnitTest){i ? "guesses: gemma3_text" : "guesses: llama",
                                                            guesses, NULL, NULL, (void *)(uintptr_t)paths[i]};
    return _cmocka_run_group_tests("faults", tests, sizeof tests / sizeof *tests, NULL, NULL);
}
