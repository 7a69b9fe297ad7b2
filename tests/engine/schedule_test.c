/* The scheduler through the public API: what prefixes save, who is served when, what happens when memory,
 * queue or time run out. No wall-clock time is asserted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <quern/quern.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/random.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

enum { IDS_MAX = 2048, MANY = 32, PAGE = 32 };

static const char *const kinds[] = {"models/llama", "models/gemma3_text", "models/qwen3_5"};

static qn_model *open_model(const char *path, qn_model_options o)
{
    qn_model *model = NULL;
    o.n_threads = 1;
    qn_test_ok(qn_model_open(qn_test_need_fixture(path), &o, &model));
    return model;
}

static qn_model *open_mock(qn_model_options o)
{
    qn_model *model = NULL;
    o.n_threads = 1;
    o.backend = "mock";
    qn_test_ok(qn_model_open("3", &o, &model));
    return model;
}

static void make_ids(int32_t *ids, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(1 + qn_random_bits(seed, (uint64_t)i) % 399);
}

static qn_generation *open_row(qn_model *model, const int32_t *ids, int64_t n, qn_generate_options o)
{
    qn_generation *g = NULL;
    o.ignore_eos = 1;
    qn_test_ok(qn_generation_open(model, &(qn_prompt){.rows = &(qn_ids){ids, n}, .n_rows = 1}, &o, &g));
    return g;
}

/* All of a generation of one row; returns how many tokens came. */
static int64_t drain(qn_generation *g, int32_t *ids, int64_t n_max, qn_end *end)
{
    qn_token t;
    int64_t n = 0;
    for (;;) {
        qn_test_ok(qn_generation_next(g, &t));
        if (t.end != QN_END_NONE) break;
        assert_true(n < n_max);
        if (ids) ids[n] = t.id;
        n++;
    }
    if (end) *end = t.end;
    return n;
}

static qn_generation_stats stats_of(const qn_generation *g)
{
    qn_generation_stats s;
    qn_test_ok(qn_generation_get_stats(g, &s));
    return s;
}

/* ---- what prefixes save ---------------------------------------------------------------------------------
 */

/* The ids of a chat as the template renders it. */
static int64_t render(const qn_model *model, const char *messages, int generate, int32_t *ids)
{
    int32_t *made;
    int64_t n;
    const qn_prompt prompt = {.messages_json = messages,
                              .variables_json = generate ? NULL : "{\"add_generation_prompt\": false}"};
    qn_test_ok(qn_chat_render(model, &prompt, NULL, &made, &n));
    assert_true(n <= IDS_MAX);
    memcpy(ids, made, (size_t)n * sizeof *ids);
    qn_buffer_free(made);
    return n;
}

static int64_t common(const int32_t *a, int64_t n_a, const int32_t *b, int64_t n_b)
{
    int64_t n = 0;
    while (n < n_a && n < n_b && a[n] == b[n]) n++;
    return n;
}

static void add_message(qn_buf *messages, const char *role, const char *content, size_t n)
{
    if (messages->length)
        messages->data[messages->length - 1] = ',';
    else
        qn_buf_putc(messages, '[');
    qn_buf_printf(messages, "{\"role\":\"%s\",\"content\":", role);
    qn_buf_json_string(messages, content, n);
    qn_buf_puts(messages, "}]");
}

/* Each turn computes no more than what is new behind the last end of a message, prompt or answer up to which
 * nothing has changed: the new message, and what the template or the tokenizer wrote anew. is_full: behind
 * the first id that has changed. */
static void chat_prefills_what_is_new(qn_model *model, int n_turns, int is_full)
{
    static int32_t ids[IDS_MAX], last[IDS_MAX], stable[IDS_MAX];
    int64_t n_last = 0, n_prompt = 0, n_stable = 0, n_computed = 0, n_all = 0;
    qn_buf messages = {0}, said = {0};
    char text[64];
    for (int turn = 0; turn < n_turns; turn++) {
        snprintf(text, sizeof text, "Message %d: what does a mill grind?", turn);
        add_message(&messages, "user", text, strlen(text));
        int64_t n = render(model, messages.data, 1, ids), same = common(ids, n, last, n_last), from = 0;
        const int64_t points[] = {n_stable, n_prompt, n_last - 1};
        for (size_t i = 0; i < 3; i++)
            if (points[i] <= same && points[i] > from) from = points[i];
        if (is_full && n_last) { /* one can go on from anywhere; the last token was drawn and never fed */
            from = same < n_last ? same : n_last - 1;
            if (from > n - 1) from = n - 1;
        }

        qn_generation *g;
        qn_token t;
        qn_generate_options o = {
            .max_tokens = 1 + turn % 7 * 5, .temperature = 1, .seed = 1 + (uint64_t)turn};
        qn_test_ok(qn_generation_open(model, &(qn_prompt){.messages_json = messages.data}, &o, &g));
        memcpy(last, ids, (size_t)n * sizeof *ids);
        n_prompt = n_last = n;
        qn_buf_reset(&said);
        for (;;) {
            qn_test_ok(qn_generation_next(g, &t));
            qn_buf_append(&said, t.text, t.text_bytes);
            if (t.end != QN_END_NONE) break;
            last[n_last++] = t.id;
        }
        qn_generation_stats s = stats_of(g);
        assert_int_equal(s.n_prompt_tokens, n);
        if (n - s.n_cached_tokens > n - from)
            fail_msg("turn %d: %d of %d tokens were computed, %d are new behind %d", turn,
                     (int)(n - s.n_cached_tokens), (int)n, (int)(n - from), (int)from);
        n_computed += n - s.n_cached_tokens;
        n_all += n;
        qn_generation_close(g);
        n_stable = common(stable, render(model, messages.data, 0, stable), last, n_prompt);
        add_message(&messages, "assistant", said.data ? said.data : "", said.length);
    }
    assert_true(4 * n_computed < n_all);
    qn_buf_free(&messages);
    qn_buf_free(&said);
}

static void chats(void **state)
{
    qn_model *model = open_model(*state, (qn_model_options){.context_size = IDS_MAX});
    qn_model_info info;
    qn_test_ok(qn_model_get_info(model, &info));
    if (!info.has_chat_template) {
        qn_model_close(&model);
        model = open_model(*state, (qn_model_options){.context_size = IDS_MAX,
                                                      .chat_template =
                                                          "{% for m in messages %}[{{ m.role }}]{{ m.content "
                                                          "}}\n{% endfor %}{% if add_generation_prompt %}"
                                                          "[assistant]{% endif %}"});
    }
    chat_prefills_what_is_new(model, 12, *state == kinds[0]);
    qn_model_close(&model);
}

static void chat_of_mock(void **state)
{
    qn_model *model = open_mock((qn_model_options){0});
    chat_prefills_what_is_new(model, 20, 0);
    qn_model_close(&model);
}

/* Many requests over one prefix compute it once, be they queued before it is there or behind it. */
static void shared_prefix(void **state)
{
    static int32_t ids[MANY][IDS_MAX], alone[IDS_MAX], got[IDS_MAX];
    enum { PREFIX = 5 * PAGE + 7, OWN = 4, TOKENS = 6 };
    for (int32_t slots = 1; slots <= MANY; slots *= 32) {
        qn_model *model = open_model(*state, (qn_model_options){.parallel_slots = slots});
        qn_generation *g[MANY];
        int64_t n_computed = 0;
        for (int i = 0; i < MANY; i++) {
            make_ids(ids[i], PREFIX, 1);
            make_ids(ids[i] + PREFIX, OWN, 100 + (uint64_t)i);
            ids[i][PREFIX] = 1 + i;
            g[i] = open_row(model, ids[i], PREFIX + OWN, (qn_generate_options){.max_tokens = TOKENS});
        }
        for (int i = 0; i < MANY; i++) {
            assert_int_equal(drain(g[i], got, IDS_MAX, NULL), TOKENS);
            qn_generation_stats s = stats_of(g[i]);
            n_computed += s.n_prompt_tokens - s.n_cached_tokens;
            qn_generation_close(g[i]);
            if (i % 8) continue;
            qn_generation *other =
                open_row(model, ids[i], PREFIX + OWN,
                         (qn_generate_options){.max_tokens = TOKENS, .no_prefix_cache = 1});
            assert_int_equal(drain(other, alone, IDS_MAX, NULL), TOKENS);
            assert_int_equal(stats_of(other).n_cached_tokens, 0);
            qn_generation_close(other);
            assert_memory_equal(got, alone, TOKENS * sizeof *got);
        }
        assert_int_equal(n_computed, PREFIX + MANY * OWN);
        qn_model_close(&model);
    }
}

/* A whole prompt that is known is computed but for its last token, whose logits are wanted. Another salt, or
 * a model without prefixes, shares nothing. */
static void full_hit(void **state)
{
    static int32_t ids[IDS_MAX], first[IDS_MAX], again[IDS_MAX];
    const struct {
        qn_generate_options o;
        int hits;
    } cases[] = {{{.max_tokens = 8}, 0},
                 {{.max_tokens = 8}, 1},
                 {{.max_tokens = 8, .cache_salt = "other"}, 0},
                 {{.max_tokens = 8, .cache_salt = "other"}, 1},
                 {{.max_tokens = 8, .cache_salt = ""}, 1},
                 {{.max_tokens = 8, .no_prefix_cache = 1}, 0}};
    for (int64_t n = 2; n < 200; n += 33) { /* 2, 35, 68, ... */
        for (int without = 0; without < 2; without++) {
            qn_model *model = open_model(*state, (qn_model_options){.no_prefix_cache = without});
            make_ids(ids, n, (uint64_t)n);
            for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
                qn_generation *g = open_row(model, ids, n, cases[i].o);
                assert_int_equal(drain(g, i ? again : first, IDS_MAX, NULL), 8);
                int64_t n_cached = stats_of(g).n_cached_tokens;
                if (!cases[i].hits || without) assert_int_equal(n_cached, 0);
                if (cases[i].hits && !without && *state == kinds[0]) assert_int_equal(n_cached, n - 1);
                qn_generation_close(g);
                if (i) assert_memory_equal(first, again, 8 * sizeof *first);
            }
            qn_model_close(&model);
        }
    }
}

/* ---- memory ---------------------------------------------------------------------------------------------
 */

/* More requests than there is memory for: all of them end as they would alone, some of them in turns. */
static void preemption(void **state)
{
    enum { ROWS = 8, PROMPT = 60, TOKENS = 200 };
    static int32_t ids[ROWS][IDS_MAX], alone[ROWS][IDS_MAX], got[ROWS][IDS_MAX];
    qn_model *model = open_model(*state, (qn_model_options){.parallel_slots = ROWS, .no_prefix_cache = 1});
    qn_memory memory;
    qn_generation *g[ROWS];
    size_t most = 0;
    qn_generate_options o = {.max_tokens = TOKENS, .temperature = 1, .logprobs = 1, .dry_multiplier = 1};
    for (int i = 0; i < ROWS; i++) {
        make_ids(ids[i], PROMPT, 50 + (uint64_t)i);
        o.seed = 1 + (uint64_t)i;
        o.mirostat = i % 3;
        g[i] = open_row(model, ids[i], PROMPT, o);
        assert_int_equal(drain(g[i], alone[i], IDS_MAX, NULL), TOKENS);
        qn_test_ok(qn_model_get_memory(model, &memory));
        if (memory.kv_bytes + memory.cache_memory_bytes > most)
            most = memory.kv_bytes + memory.cache_memory_bytes;
        qn_generation_close(g[i]);
    }
    qn_model_close(&model);
    model = open_model(*state, (qn_model_options){.parallel_slots = ROWS});
    qn_test_ok(qn_model_get_memory(model, &memory));
    for (int i = 0; i < ROWS; i++) { /* opened, so that the limit is of what they take when they run */
        o.seed = 1 + (uint64_t)i;
        o.mirostat = i % 3;
        g[i] = open_row(model, ids[i], PROMPT, o);
    }
    qn_test_ok(qn_model_get_memory(model, &memory));
    const size_t beside = memory.active_memory_bytes - memory.kv_bytes; /* some may have run ahead by now */
    qn_test_ok(qn_model_set_memory_limit(model, beside + 3 * most, NULL));
    int64_t n[ROWS] = {0};
    for (int n_open = ROWS; n_open;)
        for (int i = 0; i < ROWS; i++) {
            qn_token t;
            if (n[i] < 0) continue;
            qn_test_ok(qn_generation_next(g[i], &t));
            if (t.end == QN_END_NONE) {
                got[i][n[i]++] = t.id;
                continue;
            }
            assert_int_equal(t.end, QN_END_LENGTH);
            assert_int_equal(n[i], TOKENS);
            assert_memory_equal(got[i], alone[i], TOKENS * sizeof got[i][0]);
            n[i] = -1;
            n_open--;
        }
    for (int i = 0; i < ROWS; i++) qn_generation_close(g[i]);
    qn_figures f;
    qn_test_ok(qn_model_get_figures(model, &f));
    assert_true(f.n_preemptions > 0);
    assert_int_equal(f.pages_used, 0);
    qn_model_close(&model);
}

/* ---- who is served when ---------------------------------------------------------------------------------
 */

/* Generations in the order in which they got their first and their last events. */
typedef struct {
    int64_t n_started, n_seen;
    int started[MANY], seen[64 * MANY];
} history;
typedef struct {
    history *history;
    int number, has_started;
} listener;

static void hear(void *user)
{
    listener *l = user;
    history *h = l->history;
    if (!l->has_started) h->started[h->n_started++] = l->number;
    l->has_started = 1;
    if (h->n_seen < 64 * MANY) h->seen[h->n_seen++] = l->number;
}

typedef struct {
    const char *tenant;
    int32_t priority;
} asked;

/* n requests of 20 tokens that are there before anything is computed; the order in which they start. */
static void serve(qn_model *model, int n, const asked *a, history *h)
{
    static int32_t ids[MANY][8];
    listener listeners[MANY];
    qn_generation *g[MANY];
    memset(h, 0, sizeof *h);
    for (int i = 0; i < n; i++) {
        listeners[i] = (listener){h, i, 0};
        make_ids(ids[i], 8, 900 + (uint64_t)i);
        g[i] = open_row(model, ids[i], 8,
                        (qn_generate_options){.max_tokens = 20,
                                              .tenant = a[i].tenant,
                                              .priority = a[i].priority,
                                              .notify = hear,
                                              .notify_user = &listeners[i]});
    }
    for (int i = 0; i < n; i++) assert_int_equal(drain(g[i], NULL, 20, NULL), 20);
    for (int i = 0; i < n; i++) qn_generation_close(g[i]);
    assert_int_equal(h->n_started, n);
}

static void assert_started(const history *h, const int *expected, int n)
{
    for (int i = 0; i < n; i++)
        if (h->started[i] != expected[i])
            fail_msg("the request that started as number %d is %d, expected %d", i, h->started[i],
                     expected[i]);
}

/* One at a time, as they came, and each whole before the next. */
static void order(void **state)
{
    static history h;
    const asked equal[6] = {0};
    qn_model *model = open_model(*state, (qn_model_options){.parallel_slots = 1});
    serve(model, 6, equal, &h);
    assert_started(&h, (const int[]){0, 1, 2, 3, 4, 5}, 6);
    for (int64_t i = 1; i < h.n_seen; i++) assert_true(h.seen[i] >= h.seen[i - 1]);
    qn_model_close(&model);
}

static void priorities(void **state)
{
    static history h;
    const asked a[] = {{NULL, 0}, {NULL, -3}, {NULL, 2}, {NULL, 0}, {NULL, 2}, {NULL, 7}};
    qn_model *model = open_model(*state, (qn_model_options){.parallel_slots = 1});
    serve(model, 6, a, &h);
    assert_started(&h, (const int[]){5, 2, 4, 0, 3, 1}, 6);
    qn_model_close(&model);
}

/* Who asks for much does not keep others waiting: tenants take turns. */
static void tenants(void **state)
{
    static history h;
    const asked a[] = {{"many", 0}, {"many", 0}, {"many", 0}, {"many", 0},
                       {"few", 0},  {"few", 0},  {"other", 0}};
    qn_model *model = open_model(*state, (qn_model_options){.parallel_slots = 1});
    serve(model, 7, a, &h);
    assert_started(&h, (const int[]){0, 4, 6, 1, 5, 2, 3}, 7);
    qn_model_close(&model);
}

/* A request of higher priority takes a place from one that is running, which goes on later as if nothing had
 * happened. */
static void higher_priority_preempts(void **state)
{
    static int32_t ids[2][20], low[IDS_MAX], low_alone[IDS_MAX], high[IDS_MAX];
    static history h;
    enum { TOKENS = 100 };
    qn_model *model = open_model(*state, (qn_model_options){.parallel_slots = 1});
    listener listeners[2] = {{&h, 0, 0}, {&h, 1, 0}};
    qn_token t;
    for (int i = 0; i < 2; i++) make_ids(ids[i], 20, 70 + (uint64_t)i);
    qn_generation *g =
        open_row(model, ids[0], 20, (qn_generate_options){.max_tokens = TOKENS, .no_prefix_cache = 1});
    assert_int_equal(drain(g, low_alone, IDS_MAX, NULL), TOKENS);
    qn_generation_close(g);
    g = open_row(model, ids[0], 20,
                 (qn_generate_options){.max_tokens = TOKENS, .notify = hear, .notify_user = &listeners[0]});
    for (int i = 0; i < 10; i++) {
        qn_test_ok(qn_generation_next(g, &t));
        low[i] = t.id;
    }
    qn_generation *urgent =
        open_row(model, ids[1], 20,
                 (qn_generate_options){
                     .max_tokens = TOKENS, .priority = 1, .notify = hear, .notify_user = &listeners[1]});
    assert_int_equal(drain(urgent, high, IDS_MAX, NULL), TOKENS);
    assert_int_equal(10 + drain(g, low + 10, TOKENS, NULL), TOKENS);
    assert_memory_equal(low, low_alone, TOKENS * sizeof *low);
    assert_true(stats_of(urgent).queue_ms >= 0);
    qn_generation_close(urgent);
    qn_generation_close(g);
    qn_model_close(&model);
}

/* ---- bounds ---------------------------------------------------------------------------------------------
 */

static void queue_bound(void **state)
{
    static int32_t ids[8];
    make_ids(ids, 8, 1);
    qn_model *model = open_model(*state, (qn_model_options){.parallel_slots = 1, .max_queue = 1});
    const qn_prompt prompt = {.rows = &(qn_ids){ids, 8}, .n_rows = 1};
    const qn_ids three[3] = {{ids, 8}, {ids, 7}, {ids, 6}};
    qn_generate_options o = {.max_tokens = 5, .ignore_eos = 1};
    for (int round = 0; round < 3; round++) {
        qn_generation *g[2], *more = NULL;
        for (int i = 0; i < 2; i++) qn_test_ok(qn_generation_open(model, &prompt, &o, &g[i]));
        assert_int_equal(qn_generation_open(model, &prompt, &o, &more), QN_E_FULL);
        assert_null(more);
        assert_non_null(strstr(qn_last_error(), "queue"));
        for (int i = 0; i < 2; i++) {
            if (round < 2) assert_int_equal(drain(g[i], NULL, 5, NULL), 5);
            qn_generation_close(g[i]);
        }
    }
    qn_generation *g = NULL;
    assert_int_equal(qn_generation_open(model, &(qn_prompt){.rows = three, .n_rows = 3}, &o, &g), QN_E_FULL);
    qn_test_ok(qn_generation_open(model, &(qn_prompt){.rows = three, .n_rows = 2}, &o, &g));
    qn_generation_close(g);
    /* What is for idle times takes nobody's place in the queue, and has a bound of its own. */
    qn_generation *idle[2], *usual[2];
    const qn_generate_options later = {.max_tokens = 1, .priority = QN_PRIORITY_IDLE};
    for (int i = 0; i < 2; i++) qn_test_ok(qn_generation_open(model, &prompt, &later, &idle[i]));
    assert_int_equal(qn_generation_open(model, &prompt, &later, &g), QN_E_FULL);
    for (int i = 0; i < 2; i++) qn_test_ok(qn_generation_open(model, &prompt, &o, &usual[i]));
    assert_int_equal(qn_generation_open(model, &prompt, &o, &g), QN_E_FULL);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(drain(usual[i], NULL, 5, NULL), 5);
        assert_true(stats_of(idle[i]).first_token_ms == 0);
        qn_generation_close(usual[i]);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(drain(idle[i], NULL, 5, NULL), 1);
        qn_generation_close(idle[i]);
    }
    qn_model_close(&model);
}

/* A deadline counts from the opening, waiting included, and ends nobody else. */
static void deadlines(void **state)
{
    static int32_t ids[2][20];
    for (int i = 0; i < 2; i++) make_ids(ids[i], 20, 7 + (uint64_t)i);
    qn_model *model = open_model(*state, (qn_model_options){.parallel_slots = 1, .context_size = 100000});
    qn_generation *first = open_row(model, ids[0], 20, (qn_generate_options){.max_tokens = 300}),
                  *late = open_row(model, ids[1], 20,
                                   (qn_generate_options){.max_tokens = 90000, .deadline_ms = 30}),
                  *last = open_row(model, ids[1], 20, (qn_generate_options){.max_tokens = 10});
    qn_end end;
    assert_int_equal(drain(last, NULL, 10, &end), 10);
    assert_int_equal(end, QN_END_LENGTH);
    drain(late, NULL, 90000, &end);
    assert_int_equal(end, QN_END_DEADLINE);
    assert_int_equal(drain(first, NULL, 300, &end), 300);
    assert_int_equal(end, QN_END_LENGTH);
    qn_generation_close(late);
    qn_generation_close(last);
    qn_generation_close(first);
    qn_model_close(&model);
}

/* A reader that sleeps parks its own request and nobody else's, whatever it is read by later. */
static void slow_reader(void **state)
{
    static int32_t ids[2][20], got[IDS_MAX], alone[IDS_MAX];
    enum { TOKENS = 300 };
    for (int i = 0; i < 2; i++) make_ids(ids[i], 20, 17 + (uint64_t)i);
    for (int32_t slots = 1; slots <= 2; slots++) {
        qn_model *model =
            open_model(*state, (qn_model_options){.parallel_slots = slots, .context_size = 512});
        qn_generate_options o = {.max_tokens = TOKENS};
        qn_generation *slow = open_row(model, ids[0], 20, o), *quick = open_row(model, ids[1], 20, o);
        assert_int_equal(drain(quick, alone, IDS_MAX, NULL), TOKENS);
        assert_int_equal(drain(slow, got, IDS_MAX, NULL), TOKENS);
        qn_generation_close(slow);
        qn_generation_close(quick);
        o.no_prefix_cache = 1;
        slow = open_row(model, ids[0], 20, o);
        assert_int_equal(drain(slow, alone, IDS_MAX, NULL), TOKENS);
        assert_memory_equal(got, alone, TOKENS * sizeof *got);
        qn_generation_close(slow);
        qn_model_close(&model);
    }
}

/* What is for idle times is computed when nobody else is, and is there for who comes then. */
static void idle(void **state)
{
    static int32_t ids[2][200], out[IDS_MAX];
    qn_model *model = open_model(*state, (qn_model_options){.parallel_slots = 2});
    for (int i = 0; i < 2; i++) make_ids(ids[i], 200, 90 + (uint64_t)i);
    qn_generation *ahead =
        open_row(model, ids[0], 200, (qn_generate_options){.max_tokens = 1, .priority = QN_PRIORITY_IDLE});
    qn_generation *g = open_row(model, ids[1], 200, (qn_generate_options){.max_tokens = 20});
    assert_int_equal(drain(g, out, IDS_MAX, NULL), 20);
    assert_true(stats_of(ahead).first_token_ms == 0);
    qn_generation_close(g);
    assert_int_equal(drain(ahead, out, IDS_MAX, NULL), 1);
    qn_generation_close(ahead);
    g = open_row(model, ids[0], 200, (qn_generate_options){.max_tokens = 2});
    assert_int_equal(drain(g, out, IDS_MAX, NULL), 2);
    assert_true(stats_of(g).n_cached_tokens > 0);
    qn_generation_close(g);
    qn_model_close(&model);
}

int main(void)
{
    static const struct {
        const char *name;
        void (*fn)(void **state);
    } each[] = {{"chats", chats},
                {"shared_prefix", shared_prefix},
                {"full_hit", full_hit},
                {"preemption", preemption},
                {"order", order},
                {"priorities", priorities},
                {"tenants", tenants},
                {"higher_priority_preempts", higher_priority_preempts},
                {"queue_bound", queue_bound},
                {"deadlines", deadlines},
                {"slow_reader", slow_reader},
                {"idle", idle}};
    enum { N = sizeof each / sizeof each[0] };
    static struct CMUnitTest tests[3 * N + 1] = {{"chat_of_mock", chat_of_mock, NULL, NULL, NULL}};
    static char names[3 * N][64];
    for (int i = 0; i < 3 * N; i++) {
        void *kind = (void *)(uintptr_t)kinds[i % 3];
        snprintf(names[i], sizeof names[i], "%s of %s", each[i / 3].name, kinds[i % 3] + strlen("models/"));
        tests[1 + i] = (struct CMUnitTest){names[i], each[i / 3].fn, NULL, NULL, kind};
    }
    return _cmocka_run_group_tests("schedule", tests, 3 * N + 1, NULL, NULL);
}
