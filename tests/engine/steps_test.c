/* What steps are made of, as probes see them: who is in them, which rows go first, how many of a prompt's
 * rows, when somebody leaves; and what prefixes save those who do not generate. No clock is judged. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <quern/quern.h>
#include <stdio.h>
#include <string.h>

#include "api/handles.h"
#include "backend/native/native_parts.h"
#include "base/mem.h"
#include "base/random.h"
#include "engine/machine/engine_parts.h"
#include "engine/schedule/scheduler_parts.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

enum { LONG = 1500, SHORT = 12, SEEN_MAX = 4096, PAGE = 32 };

static const char *const kinds[] = {"models/llama", "models/gemma3_text", "models/qwen3_5"};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* In the order in which they came. */
typedef struct {
    int64_t n_steps, n_tokens, n_mixed; /* n_mixed: steps with rows of a prompt beside one that decodes */
    qn_probe_step steps[SEEN_MAX];
    uint64_t requests[SEEN_MAX]; /* of tokens */
    int64_t step_of[SEEN_MAX];   /* steps that had ended before the token */
} seen;

static void look(void *user, const qn_probe_event *e)
{
    seen *s = user;
    if (e->step && s->n_steps < SEEN_MAX) {
        s->n_mixed += e->step->n_prefill_rows > 0 && e->step->n_rows > e->step->n_prefill_rows;
        s->steps[s->n_steps++] = *e->step;
    }
    if (e->token && s->n_tokens < SEEN_MAX) {
        s->step_of[s->n_tokens] = s->n_steps;
        s->requests[s->n_tokens++] = e->token->request;
    }
}

static qn_model *open_watched(const char *path, qn_model_options o, seen *s)
{
    qn_model *model = NULL;
    o.n_threads = 1;
    qn_test_ok(qn_model_open(qn_test_need_fixture(path), &o, &model));
    memset(s, 0, sizeof *s);
    qn_test_ok(qn_probe_add(model, 1 << QN_PROBE_STEP | 1 << QN_PROBE_TOKEN, look, s, NULL));
    return model;
}

static void make_ids(int32_t *ids, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(1 + qn_random_bits(seed, (uint64_t)i) % 199);
}

static qn_generation *begin(qn_model *model, const int32_t *ids, int64_t n, int64_t max_tokens)
{
    qn_generation *g = NULL;
    const qn_generate_options o = {.max_tokens = max_tokens, .ignore_eos = 1};
    qn_test_ok(qn_generation_open(model, &(qn_prompt){.rows = &(qn_ids){ids, n}, .n_rows = 1}, &o, &g));
    return g;
}

static qn_end drain(qn_generation *g)
{
    qn_token t;
    do qn_test_ok(qn_generation_next(g, &t));
    while (t.end == QN_END_NONE);
    return t.end;
}

/* ---- who is in a step --------------------------------------------------------------------------------- */

typedef struct {
    qn_model *model;
    int number, failed;
} caller;

static void *call(void *user)
{
    caller *c = user;
    int32_t ids[SHORT];
    for (int i = 0; i < 4 && !c->failed; i++) {
        qn_generation *g = NULL;
        qn_token t = {0};
        make_ids(ids, SHORT, (uint64_t)(10 * c->number + i + 1));
        c->failed =
            qn_generation_open(c->model, &(qn_prompt){.rows = &(qn_ids){ids, SHORT}, .n_rows = 1},
                               &(qn_generate_options){.max_tokens = QN_TOKENS_AHEAD - 2, .ignore_eos = 1},
                               &g) != QN_OK;
        while (!c->failed && t.end == QN_END_NONE) c->failed = qn_generation_next(g, &t) != QN_OK;
        qn_generation_close(g);
    }
    return NULL;
}

/* Who says nothing of slots gets one: whatever the number of callers, one sequence is computed at a time,
 * each whole, in order of arrival. */
static void one_at_a_time(void **state)
{
    enum { N = 3 };
    static seen s;
    pthread_t threads[N];
    caller callers[N];
    for (int background = 0; background < 2; background++) {
        qn_model *model = open_watched(*state, (qn_model_options){.background = background}, &s);
        for (int i = 0; i < N; i++) {
            callers[i] = (caller){model, i, 0};
            assert_int_equal(pthread_create(&threads[i], NULL, call, &callers[i]), 0);
        }
        for (int i = 0; i < N; i++) pthread_join(threads[i], NULL);
        for (int i = 0; i < N; i++) assert_int_equal(callers[i].failed, 0);
        assert_int_equal(s.n_tokens, N * 4 * (QN_TOKENS_AHEAD - 2));
        for (int64_t i = 0; i < s.n_steps; i++) assert_int_equal(s.steps[i].n_sequences, 1);
        for (int64_t i = 1; i < s.n_tokens; i++) assert_true(s.requests[i] >= s.requests[i - 1]);
        qn_model_close(&model);
    }
}

/* While somebody's long prompt is computed, every step has a row of who decodes. */
static void decode_first(void **state)
{
    static seen s;
    static int32_t ids[LONG];
    int32_t first[SHORT];
    qn_token t;
    qn_model *model =
        open_watched(*state, (qn_model_options){.parallel_slots = 2, .context_size = 2 * LONG}, &s);
    make_ids(ids, LONG, 1);
    make_ids(first, SHORT, 2);
    qn_generation *stream = begin(model, first, SHORT, 0);
    for (int i = 0; i < 5; i++) qn_test_ok(qn_generation_next(stream, &t));
    qn_generation *prompt = begin(model, ids, LONG, 1);
    qn_generation_stats stats = {0};
    int64_t from = s.n_steps, n = 0;
    for (; !stats.first_token_ms && n < 1000; n++) {
        qn_test_ok(qn_generation_next(stream, &t));
        assert_int_equal(t.end, QN_END_NONE);
        qn_test_ok(qn_generation_get_stats(prompt, &stats));
    }
    assert_true(stats.first_token_ms > 0);
    assert_true(s.n_mixed >= 2); /* it did not come in one piece */
    for (int64_t i = from; i < s.n_steps; i++) assert_true(s.steps[i].n_rows > s.steps[i].n_prefill_rows);
    drain(prompt);
    qn_generation_close(prompt);
    qn_generation_close(stream);
    qn_model_close(&model);
}

/* Of a prompt beside one that decodes as many rows are computed as fit 32 of a step's 40 ms, or the time of a
 * step without them, by what was measured, and all rows are whole tiles: the slower the machine, the fewer.
 * Where decoding takes long, a step without prompts tells how long. */
static void rows_by_time(void **state)
{
    static const struct {
        double ns_a_row, decode_ns;
        int64_t decode_rows, n_mixed, n_rows;
    } cases[] = {{1e6, 1e6, 1, 0, 31},   {0.5e6, 1e6, 1, 0, 63},  {2.5e6, 1e6, 1, 0, 15},
                 {100e6, 1e6, 1, 0, 15}, {0.33e6, 1e6, 1, 0, 95}, {1e6, 50e6, 1, 0, 47},
                 {1e6, 50e6, 1, 16, 0},  {1e6, 1e6, 1, 16, 31},   {1e6, 50e6, 8, 0, 0},
                 {1e6, 50e6, 1, 15, 47}};
    static seen s;
    static int32_t ids[LONG];
    int32_t first[SHORT];
    qn_token t;
    qn_model *model = open_watched(
        *state, (qn_model_options){.parallel_slots = 2, .context_size = 2 * LONG, .no_prefix_cache = 1}, &s);
    qn_scheduler *scheduler = ((native_model *)model->object)->scheduler;
    make_ids(ids, LONG, 1);
    make_ids(first, SHORT, 2);
    qn_generation *stream = begin(model, first, SHORT, 0);
    for (int i = 0; i < 3; i++) qn_test_ok(qn_generation_next(stream, &t));
    qn_generation *prompt = begin(model, ids, LONG, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int64_t step = s.n_steps, all = QN_PROMPT_TILES * QN_PROMPT_TILE;
        scheduler->prompt_costs = (qn_prompt_costs){0};
        qn_prompt_costs_note(&scheduler->prompt_costs, all, cases[i].ns_a_row * (double)all);
        scheduler->costs = (qn_step_costs){0};
        qn_step_costs_note(&scheduler->costs, cases[i].decode_rows, cases[i].decode_ns);
        scheduler->n_mixed = cases[i].n_mixed;
        qn_test_ok(qn_generation_next(stream, &t));
        assert_int_equal(s.n_steps, step + 1);
        assert_int_equal(s.steps[step].n_prefill_rows, cases[i].n_rows);
        assert_int_equal(s.steps[step].n_rows, cases[i].n_rows + 1);
        /* It was measured again, what there was. */
        const double known = qn_prompt_costs_get(&scheduler->prompt_costs, cases[i].n_rows);
        assert_true(!cases[i].n_rows || known != cases[i].ns_a_row * (double)(cases[i].n_rows + 1));
        assert_true(cases[i].n_rows || qn_step_costs_get(&scheduler->costs, 1) != cases[i].decode_ns);
        assert_int_equal(scheduler->n_mixed, cases[i].n_rows ? cases[i].n_mixed + 1 : 0);
    }
    qn_generation_close(prompt);
    qn_generation_close(stream);
    qn_model_close(&model);
}

/* Whoever cancels is in no step that begins later, in company and in every phase. */
static void cancelled_within_a_step(void **state)
{
    enum { QUEUED, PROMPT, DECODING, PHASES };
    static seen s;
    static int32_t ids[LONG];
    int32_t first[SHORT];
    qn_token t;
    make_ids(ids, LONG, 1);
    make_ids(first, SHORT, 2);
    for (int phase = 0; phase < PHASES; phase++) {
        qn_model *model = open_watched(*state,
                                       (qn_model_options){.parallel_slots = phase == QUEUED ? 1 : 2,
                                                          .prefill_chunk = 16,
                                                          .context_size = 2 * LONG},
                                       &s);
        qn_generation *stream = begin(model, first, SHORT, 0);
        qn_test_ok(qn_generation_next(stream, &t));
        qn_generation *g =
            begin(model, phase == DECODING ? ids + 7 : ids, phase == DECODING ? SHORT : LONG, 0);
        for (int i = 0; i < 6; i++) qn_test_ok(qn_generation_next(stream, &t));
        qn_figures f;
        qn_test_ok(qn_model_get_figures(model, &f));
        assert_int_equal(f.n_active, phase == QUEUED ? 1 : 2);
        if (phase == PROMPT) assert_true(s.steps[s.n_steps - 1].n_prefill_rows > 0);
        qn_generation_cancel(g);
        int64_t step = s.n_steps;
        for (int i = 0; i < 3; i++) qn_test_ok(qn_generation_next(stream, &t));
        assert_true(s.n_steps > step);
        for (int64_t i = step; i < s.n_steps; i++) {
            assert_int_equal(s.steps[i].n_sequences, 1);
            assert_int_equal(s.steps[i].n_prefill_rows + s.steps[i].n_waiting, 0);
        }
        step = s.n_steps;
        assert_int_equal(drain(g), QN_END_CANCELLED);
        assert_int_equal(s.n_steps, step); /* to hear of it nothing is computed */
        qn_test_ok(qn_model_get_figures(model, &f));
        assert_int_equal(f.n_active + f.n_queued, 1);
        qn_generation_close(g);
        qn_generation_close(stream);
        qn_model_close(&model);
    }
}

/* ---- from within -------------------------------------------------------------------------------------- */

typedef struct {
    qn_generation *other;
    int n;
} closing;

static void close_other(void *user)
{
    closing *c = user;
    if (c->n++ == 2) qn_generation_close(c->other);
}

static void close_at_token(void *user, const qn_probe_event *e)
{
    close_other(user);
}

static void count_calls(void *user)
{
    ++*(int *)user;
}

/* Who is told of an event may close another generation: it is in no later step, and told nothing more. */
static void closed_from_within(void **state)
{
    int32_t ids[2][SHORT];
    static seen s;
    for (int way = 0; way < 4; way++) { /* 3: by the last call that there is */
        const int64_t before = qn_mem_live_blocks();
        qn_model *model = open_watched(*state, (qn_model_options){.parallel_slots = 1 + (way > 0)}, &s);
        closing c = {.n = 0};
        int n_told = 0, n_before;
        for (int i = 0; i < 2; i++) make_ids(ids[i], SHORT, 70 + (uint64_t)i);
        qn_generate_options o = {
            .max_tokens = way == 3 ? 3 : 20, .ignore_eos = 1, .notify = close_other, .notify_user = &c};
        qn_generation *g = NULL;
        if (way == 2) {
            o.notify = NULL;
            qn_test_ok(qn_probe_add(model, 1 << QN_PROBE_TOKEN, close_at_token, &c, NULL));
        }
        qn_test_ok(
            qn_generation_open(model, &(qn_prompt){.rows = &(qn_ids){ids[0], SHORT}, .n_rows = 1}, &o, &g));
        o.notify = count_calls;
        o.notify_user = &n_told;
        o.max_tokens = 20;
        qn_test_ok(qn_generation_open(model, &(qn_prompt){.rows = &(qn_ids){ids[1], SHORT}, .n_rows = 1}, &o,
                                      &c.other));
        for (n_before = 0; c.n < 3; n_before = n_told) {
            qn_token t;
            qn_test_ok(qn_generation_next(g, &t));
        }
        int64_t step = s.n_steps;
        assert_int_equal(drain(g), QN_END_LENGTH);
        assert_true(n_told <= n_before + 1);
        for (int64_t i = step + 1; i < s.n_steps; i++) assert_int_equal(s.steps[i].n_sequences, 1);
        qn_figures f;
        qn_test_ok(qn_model_get_figures(model, &f));
        qn_generation_close(g);
        assert_int_equal(f.n_active + f.n_queued, 0);
        qn_model_close(&model);
        assert_int_equal(qn_mem_live_blocks(), before);
    }
}

static qn_status come_and_go(void *user, int64_t row, int64_t position, int64_t n, const float *logits)
{
    static const int32_t id = 5;
    qn_generation *g[3];
    for (int i = 0; i < 3; i++) g[i] = begin(user, &id, 1, 4);
    for (int i = 0; i < 3; i++) qn_generation_close(g[(i + 1) % 3]);
    return QN_OK;
}

/* Who comes and goes while logits are handed out was never there. */
static void opened_and_closed_within(void **state)
{
    int32_t ids[SHORT];
    static seen s;
    for (int background = 0; background < 2; background++) {
        qn_figures f;
        qn_model *model = open_watched(*state, (qn_model_options){.background = background}, &s);
        make_ids(ids, SHORT, 80);
        for (int i = 0; i < 3; i++)
            qn_test_ok(qn_model_logits(model, &(qn_ids){ids, SHORT}, 1, NULL, come_and_go, model));
        qn_test_ok(qn_model_get_figures(model, &f));
        assert_int_equal(f.n_active + f.n_queued, 0);
        qn_generation *g = begin(model, ids, SHORT, 4);
        assert_int_equal(drain(g), QN_END_LENGTH);
        qn_generation_close(g);
        qn_model_close(&model);
    }
}

/* ---- what prefixes save ------------------------------------------------------------------------------- */

/* Several answers to one prompt hold its pages together: each has of its own what it says, and no more. */
static void samples_share_pages(void **state)
{
    enum { SAMPLES = 8, PAGES = 9, TOKENS = 20 };
    static seen s;
    int32_t ids[PAGES * PAGE];
    qn_ids rows[SAMPLES];
    qn_figures before, after;
    qn_generation *g = NULL;
    qn_token t;
    const qn_generate_options o = {.max_tokens = TOKENS, .ignore_eos = 1, .temperature = 1, .seed = 3};
    qn_model *model = open_watched(*state, (qn_model_options){.parallel_slots = SAMPLES}, &s);
    make_ids(ids, PAGES * PAGE, 4);
    for (int i = 0; i < SAMPLES; i++) rows[i] = (qn_ids){ids, PAGES * PAGE};
    qn_test_ok(qn_model_get_figures(model, &before));
    qn_test_ok(qn_generation_open(model, &(qn_prompt){.rows = rows, .n_rows = SAMPLES}, &o, &g));
    do qn_test_ok(qn_generation_next(g, &t));
    while (t.row != SAMPLES - 1);
    qn_test_ok(qn_model_get_figures(model, &after));
    assert_int_equal(after.n_active, SAMPLES);
    int64_t n_groups = ((native_model *)model->object)->engine->groups.n;
    /* The prompt once; of each the page of its end, and what it has said; a slot each of recurrent state. */
    assert_in_range(after.pages_used, PAGES, n_groups * (PAGES + 2 * SAMPLES) + SAMPLES);
    int64_t n_computed = 0;
    for (int64_t i = 0; i < s.n_steps; i++) n_computed += s.steps[i].n_prefill_rows;
    assert_in_range(n_computed, PAGES * PAGE - 1,
                    PAGES * PAGE); /* the last id is fed as the first of a decode */
    for (int n_open = SAMPLES - (t.end != QN_END_NONE); n_open; n_open -= t.end != QN_END_NONE)
        qn_test_ok(qn_generation_next(g, &t));
    qn_generation_close(g);
    qn_model_close(&model);
}

static qn_status ignore_class(void *user, const qn_classify_result *r)
{
    return r->status;
}

static qn_status ignore_logits(void *user, int64_t row, int64_t position, int64_t n, const float *logits)
{
    return QN_OK;
}

/* Prompts that begin alike, by every call that takes lists of them: their beginning is computed once. */
static void lists_share_prefixes(void **state)
{
    enum { N = 6, COMMON = 5 * PAGE + 3, OWN = 4, CALLS = 3 };
    static int32_t ids[N][COMMON + OWN];
    static seen s;
    qn_ids rows[N];
    qn_prompt prompts[N];
    for (int call = 0; call < CALLS; call++) {
        qn_model *model = open_watched(*state, (qn_model_options){.parallel_slots = 1 + call}, &s);
        for (int i = 0; i < N; i++) {
            make_ids(ids[i], COMMON, 20 + (uint64_t)call);
            make_ids(ids[i] + COMMON, OWN, 30 + (uint64_t)i);
            ids[i][COMMON] = 1 + i;
            rows[i] = (qn_ids){ids[i], COMMON + OWN};
            prompts[i] = (qn_prompt){.rows = &rows[i], .n_rows = 1};
        }
        if (call == 0) qn_test_ok(qn_classify(model, prompts, N, NULL, ignore_class, NULL));
        if (call == 1)
            qn_test_ok(
                qn_model_logits(model, rows, N, &(qn_logits_options){.last_only = 1}, ignore_logits, NULL));
        if (call == 2) {
            qn_batch *b = NULL;
            qn_batch_result r;
            int is_there = 1;
            qn_test_ok(qn_batch_open(model, prompts, N, &(qn_generate_options){.max_tokens = 1}, &b));
            while (is_there) qn_test_ok(qn_batch_next(b, &r, &is_there));
            qn_batch_close(b);
        }
        int64_t n_computed = 0;
        for (int64_t i = 0; i < s.n_steps; i++) n_computed += s.steps[i].n_prefill_rows;
        if (n_computed > COMMON + N * (OWN + 1))
            fail_msg("call %d: %d rows were computed, %d are one prefix and %d the rest", call,
                     (int)n_computed, COMMON, N * OWN);
        qn_model_close(&model);
    }
}

/* The same prompt again computes its last token alone, whatever the layers; and one that leaves it behind
 * 1,024 ids goes on from there. */
static void full_hit(void **state)
{
    static seen s;
    static int32_t ids[LONG];
    qn_generation_stats stats;
    qn_model *model = open_watched(*state, (qn_model_options){.context_size = 2 * LONG}, &s);
    static const int64_t lengths[] = {2, 31, 32, 33, 64, 100, 257, LONG};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        make_ids(ids, lengths[i], 50 + i);
        for (int again = 0; again < 2; again++) {
            qn_generation *g = begin(model, ids, lengths[i], 3);
            assert_int_equal(drain(g), QN_END_LENGTH);
            qn_test_ok(qn_generation_get_stats(g, &stats));
            assert_int_equal(stats.n_cached_tokens, again ? lengths[i] - 1 : 0);
            qn_generation_close(g);
        }
    }
    ids[1300] = 1 + ids[1300] % 199; /* of the longest, which came last */
    qn_generation *g = begin(model, ids, LONG, 3);
    drain(g);
    qn_test_ok(qn_generation_get_stats(g, &stats));
    assert_in_range(stats.n_cached_tokens, 1024, 1300);
    qn_generation_close(g);
    qn_model_close(&model);
}

int main(void)
{
    static const struct {
        const char *name;
        void (*fn)(void **state);
    } each[] = {{"one_at_a_time", one_at_a_time},
                {"decode_first", decode_first},
                {"rows_by_time", rows_by_time},
                {"cancelled_within_a_step", cancelled_within_a_step},
                {"closed_from_within", closed_from_within},
                {"opened_and_closed_within", opened_and_closed_within},
                {"samples_share_pages", samples_share_pages},
                {"lists_share_prefixes", lists_share_prefixes},
                {"full_hit", full_hit}};
    enum { N = sizeof each / sizeof *each };
    static struct CMUnitTest tests[KINDS * N];
    static char names[KINDS * N][64];
    for (int i = 0; i < KINDS * N; i++) {
        void *kind = (void *)(uintptr_t)kinds[i % KINDS];
        snprintf(names[i], sizeof names[i], "%s of %s", each[i / KINDS].name,
                 kinds[i % KINDS] + strlen("models/"));
        tests[i] = (struct CMUnitTest){names[i], each[i / KINDS].fn, NULL, NULL, kind};
    }
    return _cmocka_run_group_tests("steps", tests, KINDS * N, NULL, NULL);
}
