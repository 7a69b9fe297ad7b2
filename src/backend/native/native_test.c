/* The native backend through the public API, on a tiny model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <quern/quern.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/clock.h"
#include "tests/support/fixtures.h"

enum { TOKENS_MAX = 2048, ROWS_MAX = 8 };

/* What a generation gave, per row. */
typedef struct {
    int32_t ids[TOKENS_MAX];
    int64_t n;
    qn_buf text;
    qn_end end;
    int32_t stop;
    qn_status status;
} result;

static const int32_t prompt_ids[] = {3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26};

static qn_model *open_model(const qn_model_options *options)
{
    qn_model *model = NULL;
    qn_status status = qn_model_open(qn_test_need_fixture("models/llama"), options, &model);
    if (status != QN_OK) fail_msg("%s", qn_last_error());
    return model;
}

static int64_t vocabulary_of(const qn_model *model)
{
    qn_model_info info;
    assert_int_equal(qn_model_get_info(model, &info), QN_OK);
    return info.vocab_size;
}

static void collect(qn_generation *g, int64_t n_rows, result *out)
{
    memset(out, 0, (size_t)n_rows * sizeof *out);
    for (int64_t n_open = n_rows; n_open > 0;) {
        qn_token t;
        qn_status status = qn_generation_next(g, &t);
        assert_true(t.row >= 0 && t.row < n_rows);
        result *r = &out[t.row];
        assert_int_equal(r->end, QN_END_NONE);
        r->status = status;
        qn_buf_append(&r->text, t.text, t.text_bytes);
        assert_int_equal(t.text[t.text_bytes], 0);
        if (t.id >= 0) r->ids[r->n++] = t.id;
        r->end = t.end;
        r->stop = t.stop;
        n_open -= t.end != QN_END_NONE;
    }
}

static void run(qn_model *model, const qn_prompt *prompt, const qn_generate_options *o, result *out)
{
    qn_generation *g = NULL;
    if (qn_generation_open(model, prompt, o, &g) != QN_OK) fail_msg("%s", qn_last_error());
    collect(g, prompt->rows ? prompt->n_rows : 1, out);
    qn_generation_close(g);
}

static void end_results(result *r, int64_t n)
{
    for (int64_t i = 0; i < n; i++) qn_buf_free(&r[i].text);
}

/* The first n ids, as one row. */
#define ROW(n)        \
    &(qn_ids)         \
    {                 \
        prompt_ids, n \
    }

static void test_text_is_the_ids_text(void **state)
{
    static result r;
    qn_model *model = open_model(NULL);
    for (uint64_t seed = 1; seed <= 6; seed++) {
        qn_generate_options o = {
            .max_tokens = 100, .temperature = seed > 1 ? 1.2f : 0, .seed = seed, .ignore_eos = 1};
        run(model, &(qn_prompt){.text = "The mill", .special = 1}, &o, &r);
        char *text;
        size_t n;
        assert_int_equal(r.end, QN_END_LENGTH);
        assert_int_equal(r.n, 100);
        assert_int_equal(qn_model_decode(model, r.ids, r.n, NULL, &text, &n), QN_OK);
        assert_int_equal(n, r.text.length);
        assert_memory_equal(text, r.text.data, n);
        qn_buffer_free(text);
        end_results(&r, 1);
    }
    qn_model_close(&model);
}

static void test_rows_do_not_depend_on_company(void **state)
{
    static result together[ROWS_MAX], alone;
    qn_ids rows[ROWS_MAX];
    for (int i = 0; i < ROWS_MAX; i++) rows[i] = (qn_ids){prompt_ids + i, 12 - i};
    for (int32_t slots = 1; slots <= 8; slots += slots == 1 ? 2 : 5) { /* 1, 3, 8 */
        qn_model *model =
            open_model(&(qn_model_options){.parallel_slots = slots, .prefill_chunk = slots == 3 ? 5 : 0});
        for (int sampled = 0; sampled < 2; sampled++) {
            qn_generate_options o = {.max_tokens = 30,
                                     .temperature = sampled ? 0.9f : 0,
                                     .top_p = 0.9f,
                                     .repeat_penalty = 1.1f,
                                     .seed = 7};
            run(model, &(qn_prompt){.rows = rows, .n_rows = ROWS_MAX}, &o, together);
            for (int i = 0; i < ROWS_MAX; i++) {
                run(model, &(qn_prompt){.rows = &rows[i], .n_rows = 1}, &o, &alone);
                assert_int_equal(alone.n, together[i].n);
                assert_memory_equal(alone.ids, together[i].ids, (size_t)alone.n * sizeof(int32_t));
                assert_int_equal(alone.end, together[i].end);
                end_results(&alone, 1);
            }
            end_results(together, ROWS_MAX);
        }
        qn_model_close(&model);
    }
}

static void test_ends(void **state)
{
    static result whole, r;
    qn_model *model = open_model(NULL);
    const qn_prompt prompt = {.rows = ROW(12), .n_rows = 1};
    run(model, &prompt, &(qn_generate_options){.max_tokens = 40, .ignore_eos = 1}, &whole);

    run(model, &prompt,
        &(qn_generate_options){.max_tokens = 40, .ignore_eos = 1, .stop_ids = &whole.ids[5], .n_stop_ids = 1},
        &r);
    assert_int_equal(r.end, QN_END_STOP);
    assert_int_equal(r.stop, whole.ids[5] + 1);
    assert_true(r.n <= 5);
    assert_memory_equal(r.ids, whole.ids, (size_t)r.n * sizeof(int32_t));
    const int64_t n_before = r.n;
    end_results(&r, 1);

    /* It may not come so early, however tokens are drawn. */
    for (uint64_t seed = 0; seed < 4; seed++) {
        const int64_t n_least = n_before + 3;
        const qn_generate_options o = {.max_tokens = 40,
                                       .min_tokens = n_least,
                                       .ignore_eos = 1,
                                       .seed = seed,
                                       .temperature = seed ? 1 : 0,
                                       .stop_ids = &whole.ids[5],
                                       .n_stop_ids = 1,
                                       .n_draft = seed % 2 ? 4 : 0};
        run(model, &prompt, &o, &r);
        assert_true(r.n >= n_least);
        for (int64_t i = 0; i < r.n; i++) assert_int_not_equal(r.ids[i], whole.ids[5]);
        if (!seed) assert_memory_equal(r.ids, whole.ids, (size_t)n_before * sizeof(int32_t));
        end_results(&r, 1);
    }

    /* Stop strings cut out of the text at several places, of several lengths. */
    for (size_t at = 1; at + 8 < whole.text.length; at += 5) {
        char cut[8] = {0};
        while ((whole.text.data[at] & 0xc0) == 0x80) at++;
        size_t n = 1;
        while (n < 7 && (n < 3 || (whole.text.data[at + n] & 0xc0) == 0x80)) n++;
        while (n > 1 && (whole.text.data[at + n] & 0xc0) == 0x80) n--;
        memcpy(cut, whole.text.data + at, n);
        const char *const stops[] = {"\x01", cut};
        if (strlen(cut) != n) continue;
        run(model, &prompt,
            &(qn_generate_options){
                .max_tokens = 40, .ignore_eos = 1, .stop_strings = stops, .n_stop_strings = 2},
            &r);
        assert_int_equal(r.end, QN_END_STOP_STRING);
        assert_int_equal(r.stop, 2);
        const char *first = strstr(whole.text.data, cut);
        assert_int_equal(r.text.length, first - whole.text.data);
        if (r.text.length) assert_memory_equal(r.text.data, whole.text.data, r.text.length);
        end_results(&r, 1);
    }
    end_results(&whole, 1);
    qn_model_close(&model);
}

static void test_context(void **state)
{
    static result r;
    qn_model *model = open_model(&(qn_model_options){.context_size = 40});
    qn_generation *g = NULL;
    int32_t ids[41] = {1};
    qn_generate_options o = {.ignore_eos = 1};
    run(model, &(qn_prompt){.rows = ROW(12), .n_rows = 1}, &o, &r);
    assert_int_equal(r.end, QN_END_LENGTH);
    assert_int_equal(r.n, 28);
    end_results(&r, 1);
    o = (qn_generate_options){.ignore_eos = 1, .rotate = 1, .max_tokens = 500};
    run(model, &(qn_prompt){.rows = ROW(12), .n_rows = 1}, &o, &r);
    assert_int_equal(r.end, QN_END_LENGTH);
    assert_int_equal(r.n, 500);
    end_results(&r, 1);
    run(model, &(qn_prompt){.rows = &(qn_ids){ids, 40}, .n_rows = 1}, NULL, &r);
    assert_int_equal(r.n, 0);
    assert_int_equal(r.end, QN_END_LENGTH);
    end_results(&r, 1);
    static result both[2]; /* a row that has no room does not touch the other */
    o = (qn_generate_options){.ignore_eos = 1};
    run(model, &(qn_prompt){.rows = (qn_ids[]){{ids, 40}, {ids, 30}}, .n_rows = 2}, &o, both);
    assert_int_equal(both[0].n, 0);
    assert_int_equal(both[0].end, QN_END_LENGTH);
    assert_int_equal(both[1].n, 10);
    end_results(both, 2);
    assert_int_equal(
        qn_generation_open(model, &(qn_prompt){.rows = &(qn_ids){ids, 41}, .n_rows = 1}, NULL, &g), QN_E_ARG);
    assert_string_equal(qn_last_error(), "the prompt has 41 tokens, the context holds 40");
    char message[128];
    ids[3] = (int32_t)vocabulary_of(model);
    snprintf(message, sizeof message, "token id %d at position 3 is outside the vocabulary of %d",
             (int)ids[3], (int)ids[3]);
    assert_int_equal(
        qn_generation_open(model, &(qn_prompt){.rows = &(qn_ids){ids, 4}, .n_rows = 1}, NULL, &g), QN_E_ARG);
    assert_string_equal(qn_last_error(), message);
    qn_model_close(&model);
}

static void *cancel_soon(void *generation)
{
    nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
    qn_generation_cancel(generation);
    return NULL;
}

static void test_cancel_and_deadline(void **state)
{
    static result r;
    qn_model *model = open_model(NULL);
    qn_generation *g = NULL;
    pthread_t thread;
    qn_generate_options o = {.ignore_eos = 1, .rotate = 1};
    assert_int_equal(qn_generation_open(model, &(qn_prompt){.rows = ROW(3), .n_rows = 1}, &o, &g), QN_OK);
    pthread_create(&thread, NULL, cancel_soon, g);
    qn_token t;
    do assert_int_equal(qn_generation_next(g, &t), QN_OK);
    while (t.end == QN_END_NONE);
    assert_int_equal(t.end, QN_END_CANCELLED);
    pthread_join(thread, NULL);
    qn_generation_close(g);

    o.deadline_ms = 30;
    int64_t start = qn_clock_ns();
    assert_int_equal(qn_generation_open(model, &(qn_prompt){.rows = ROW(3), .n_rows = 1}, &o, &g), QN_OK);
    do assert_int_equal(qn_generation_next(g, &t), QN_OK);
    while (t.end == QN_END_NONE);
    assert_int_equal(t.end, QN_END_DEADLINE);
    assert_true(qn_clock_ns() - start >= 30000000);
    qn_generation_close(g);
    o = (qn_generate_options){.max_tokens = 3, .ignore_eos = 1, .deadline_ms = INT64_MAX};
    run(model, &(qn_prompt){.rows = ROW(3), .n_rows = 1}, &o, &r);
    assert_int_equal(r.end, QN_END_LENGTH);
    end_results(&r, 1);
    qn_model_close(&model);
}

typedef struct {
    qn_model *model;
    result r;
} job;

static void *run_job(void *user)
{
    job *j = user;
    qn_generation *g = NULL;
    qn_generate_options o = {.max_tokens = 50, .ignore_eos = 1};
    if (qn_generation_open(j->model, &(qn_prompt){.rows = ROW(5), .n_rows = 1}, &o, &g) == QN_OK) {
        collect(g, 1, &j->r);
        qn_generation_close(g);
    }
    return NULL;
}

static void test_calls_wait_for_their_turn(void **state)
{
    enum { N = 5 };
    static job jobs[N];
    for (int32_t slots = 1; slots <= 2; slots++) {
        qn_model *model = open_model(&(qn_model_options){.parallel_slots = slots});
        pthread_t threads[N];
        for (int i = 0; i < N; i++) {
            jobs[i].model = model;
            pthread_create(&threads[i], NULL, run_job, &jobs[i]);
        }
        for (int i = 0; i < N; i++) pthread_join(threads[i], NULL);
        for (int i = 0; i < N; i++) {
            assert_int_equal(jobs[i].r.n, 50);
            assert_memory_equal(jobs[i].r.ids, jobs[0].r.ids, 50 * sizeof(int32_t));
            end_results(&jobs[i].r, 1);
        }
        qn_model_close(&model);
    }
}

/* One place, and one thread that reads two generations in turn: whoever is read gets it. */
static void test_one_thread_reads_two(void **state)
{
    qn_model *model = open_model(NULL);
    qn_generation *first = NULL, *second = NULL;
    qn_token t;
    const qn_prompt prompt = {.rows = ROW(5), .n_rows = 1};
    const qn_generate_options o = {.max_tokens = 100, .ignore_eos = 1};
    assert_int_equal(qn_generation_open(model, &prompt, &o, &first), QN_OK);
    assert_int_equal(qn_generation_open(model, &prompt, &o, &second), QN_OK);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(qn_generation_next(first, &t), QN_OK);
        int32_t id = t.id;
        assert_int_equal(qn_generation_next(second, &t), QN_OK);
        assert_int_equal(t.id, id);
        assert_true(id >= 0);
    }
    qn_generation_close(second);
    assert_int_equal(qn_generation_next(first, &t), QN_OK);
    assert_int_equal(t.end, QN_END_LENGTH);
    qn_generation_close(first);
    assert_int_equal(qn_generation_open(model, &prompt, NULL, &second), QN_OK);
    assert_int_equal(qn_generation_next(second, &t), QN_OK);
    qn_model_close(&model);
    assert_int_equal(qn_generation_next(second, &t), QN_E_CLOSED);
    qn_generation_close(second);
}

enum { LONG_PROMPT = 3000 };

typedef struct {
    qn_model *model;
    atomic_int began, got_token;
} long_job;

static void *read_long_prompt(void *user)
{
    static int32_t ids[LONG_PROMPT];
    long_job *j = user;
    qn_generation *g = NULL;
    qn_token t;
    for (int i = 0; i < LONG_PROMPT; i++) ids[i] = prompt_ids[i % 12];
    qn_prompt prompt = {.rows = &(qn_ids){ids, LONG_PROMPT}, .n_rows = 1};
    if (qn_generation_open(j->model, &prompt, &(qn_generate_options){.ignore_eos = 1}, &g) != QN_OK)
        return "open failed";
    atomic_store(&j->began, 1);
    qn_status status = qn_generation_next(g, &t);
    atomic_store(&j->got_token, 1);
    qn_generation_close(g);
    return status == QN_OK ? NULL : "next failed";
}

/* The chunks of a long prompt let others have their turns between them. */
static void test_long_prompts_let_others_through(void **state)
{
    static result r;
    long_job j = {.model = open_model(&(qn_model_options){
                      .parallel_slots = 2, .prefill_chunk = 2, .context_size = 2 * LONG_PROMPT})};
    pthread_t thread;
    void *fault;
    pthread_create(&thread, NULL, read_long_prompt, &j);
    while (!atomic_load(&j.began)) sched_yield();
    run(j.model, &(qn_prompt){.rows = ROW(5), .n_rows = 1},
        &(qn_generate_options){.max_tokens = 3, .ignore_eos = 1}, &r);
    int late = atomic_load(&j.got_token);
    pthread_join(thread, &fault);
    if (fault) fail_msg("%s", (const char *)fault);
    assert_int_equal(r.n, 3);
    assert_int_equal(late, 0);
    end_results(&r, 1);
    qn_model_close(&j.model);
}

typedef struct {
    qn_model *model;
    qn_generation *placed, *fresh;
    qn_status logits, placed_next, fresh_next;
} nested;

static qn_status compute_inside(void *user, int64_t row, int64_t position, int64_t n, const float *logits)
{
    nested *c = user;
    qn_token t;
    c->logits = qn_model_logits(c->model, ROW(2), 1, NULL, compute_inside, user);
    c->placed_next = qn_generation_next(c->placed, &t);
    c->fresh_next = qn_generation_next(c->fresh, &t);
    qn_generation_close(c->placed);
    return QN_OK;
}

/* A function that is given logits is refused when it computes, not left to wait for itself. */
static void test_no_computing_inside_logits(void **state)
{
    nested c = {.model = open_model(&(qn_model_options){.parallel_slots = 4})};
    const qn_prompt prompt = {.rows = ROW(5), .n_rows = 1};
    qn_token t;
    assert_int_equal(qn_generation_open(c.model, &prompt, NULL, &c.placed), QN_OK);
    assert_int_equal(qn_generation_next(c.placed, &t), QN_OK);
    assert_int_equal(qn_generation_open(c.model, &prompt, NULL, &c.fresh), QN_OK);
    qn_logits_options last = {.last_only = 1};
    assert_int_equal(qn_model_logits(c.model, ROW(3), 1, &last, compute_inside, &c), QN_OK);
    assert_int_equal(c.logits, QN_E_ARG);
    assert_int_equal(c.placed_next, QN_E_ARG);
    assert_int_equal(c.fresh_next, QN_E_ARG);
    qn_generation_close(c.fresh);
    static result r;
    run(c.model, &prompt, &(qn_generate_options){.max_tokens = 3, .ignore_eos = 1}, &r);
    assert_int_equal(r.n, 3);
    end_results(&r, 1);
    qn_model_close(&c.model);
}

typedef struct {
    float *logits; /* [rows][12][vocabulary] */
    int64_t vocabulary, n;
} logits_log;

static qn_status take_logits(void *user, int64_t row, int64_t position, int64_t n, const float *logits)
{
    logits_log *l = user;
    memcpy(l->logits + (row * 12 + position) * l->vocabulary, logits,
           (size_t)(n * l->vocabulary) * sizeof *logits);
    l->n += n;
    return QN_OK;
}

static qn_status refuse_logits(void *user, int64_t row, int64_t position, int64_t n, const float *logits)
{
    return qn_fail(QN_E_IO, "enough");
}

static void test_logits(void **state)
{
    const qn_ids rows[3] = {{prompt_ids, 12}, {prompt_ids + 2, 7}, {prompt_ids + 5, 1}};
    qn_model *model = open_model(&(qn_model_options){.parallel_slots = 3});
    int64_t vocabulary = vocabulary_of(model);
    size_t bytes = (size_t)(3 * 12 * vocabulary) * sizeof(float);
    float *wide = test_calloc(1, bytes), *narrow = test_calloc(1, bytes);
    logits_log a = {wide, vocabulary, 0}, b = {narrow, vocabulary, 0};
    assert_int_equal(qn_model_logits(model, rows, 3, NULL, take_logits, &a), QN_OK);
    assert_int_equal(a.n, 20);
    qn_model_close(&model);
    model = open_model(&(qn_model_options){.prefill_chunk = 5});
    assert_int_equal(qn_model_logits(model, rows, 3, NULL, take_logits, &b), QN_OK);
    assert_memory_equal(wide, narrow, bytes);
    b.n = 0;
    assert_int_equal(qn_model_logits(model, rows, 3, &(qn_logits_options){.last_only = 1}, take_logits, &b),
                     QN_OK);
    assert_int_equal(b.n, 3);
    assert_memory_equal(wide, narrow, bytes);
    assert_int_equal(qn_model_logits(model, rows, 3, NULL, refuse_logits, NULL), QN_E_IO);
    assert_string_equal(qn_last_error(), "enough");
    assert_int_equal(qn_model_logits(model, rows, 0, NULL, take_logits, &b), QN_E_ARG);
    qn_model_close(&model);
    test_free(wide);
    test_free(narrow);
}

static void test_figures(void **state)
{
    static result r;
    qn_model *model = open_model(NULL);
    qn_model_info info;
    qn_metrics metrics;
    qn_memory memory;
    assert_int_equal(qn_model_get_info(model, &info), QN_OK);
    assert_string_equal(info.architecture, "llama");
    assert_string_equal(info.backend, "native");
    assert_string_equal(info.notes, "");
    assert_true(info.vocab_size > 0 && info.vocab_size < 1 << 20);
    assert_int_equal(info.quant_bits, 16);
    run(model, &(qn_prompt){.rows = ROW(12), .n_rows = 1},
        &(qn_generate_options){.max_tokens = 5, .ignore_eos = 1}, &r);
    end_results(&r, 1);
    assert_int_equal(qn_model_get_metrics(model, &metrics), QN_OK);
    assert_true(metrics.prefill_tokens_per_sec > 0 && metrics.decode_tokens_per_sec > 0 &&
                metrics.load_total_ms > 0);
    assert_int_equal(qn_model_get_memory(model, &memory), QN_OK);
    assert_true(memory.active_memory_bytes > 0 && memory.peak_memory_bytes >= memory.active_memory_bytes);
    assert_int_equal(memory.active_memory_bytes,
                     memory.weights_bytes + memory.kv_bytes + memory.scratch_bytes + memory.other_bytes);
    qn_model_close(&model);
}

/* A poll that is refused changes nothing: the generation goes on by qn_generation_next. */
static void refused_polls(void **state)
{
    qn_model *model = open_model(&(qn_model_options){.n_threads = 1});
    qn_generation *g;
    qn_token t;
    int is_there;
    assert_int_equal(
        qn_generate(model, "The mill", &(qn_generate_options){.max_tokens = 3, .ignore_eos = 1}, &g), QN_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(qn_generation_poll(g, &t, &is_there), QN_E_ARG);
        assert_int_equal(qn_generation_next(g, &t), QN_OK);
        assert_int_equal(t.end, QN_END_NONE);
    }
    assert_int_equal(qn_generation_next(g, &t), QN_OK);
    assert_int_equal(t.end, QN_END_LENGTH);
    qn_generation_close(g);
    qn_model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused_polls),
        cmocka_unit_test(test_text_is_the_ids_text),
        cmocka_unit_test(test_rows_do_not_depend_on_company),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_context),
        cmocka_unit_test(test_cancel_and_deadline),
        cmocka_unit_test(test_calls_wait_for_their_turn),
        cmocka_unit_test(test_one_thread_reads_two),
        cmocka_unit_test(test_long_prompts_let_others_through),
        cmocka_unit_test(test_no_computing_inside_logits),
        cmocka_unit_test(test_logits),
        cmocka_unit_test(test_figures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
