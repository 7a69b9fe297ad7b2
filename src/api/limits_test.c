/* Memory through the public API: what is counted, each limit, what happens at it, and after it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <quern/quern.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

enum { MIB = 1 << 20, TOKENS_MAX = 4096 };

static const int32_t prompt_ids[] = {3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26};

static qn_model *open_model(const qn_model_options *o)
{
    qn_model *model = NULL;
    qn_model_options with_one_thread = o ? *o : (qn_model_options){0};
    with_one_thread.n_threads = 1;
    qn_test_ok(qn_model_open(qn_test_need_fixture("models/llama"), &with_one_thread, &model));
    return model;
}

static qn_memory memory_of(qn_model *model)
{
    qn_memory memory;
    qn_test_ok(qn_model_get_memory(model, &memory));
    assert_int_equal(memory.active_memory_bytes,
                     memory.weights_bytes + memory.kv_bytes + memory.scratch_bytes + memory.other_bytes);
    assert_true(memory.peak_memory_bytes >= memory.active_memory_bytes + memory.cache_memory_bytes);
    return memory;
}

/* What equal rows gave. */
typedef struct {
    int64_t n[8];
    int32_t ids[8][TOKENS_MAX];
    qn_end end[8];
    qn_status status[8];
    char message[8][512];
    size_t most_bytes; /* of active and cached memory, looked at after every token */
} result;

static void run(qn_model *model, int64_t n_rows, int64_t max_tokens, result *out)
{
    qn_ids rows[8];
    for (int i = 0; i < 8; i++) rows[i] = (qn_ids){prompt_ids, 12};
    qn_generate_options o = {.max_tokens = max_tokens, .ignore_eos = 1};
    qn_generation *g = NULL;
    memset(out, 0, sizeof *out);
    qn_test_ok(qn_generation_open(model, &(qn_prompt){.rows = rows, .n_rows = n_rows}, &o, &g));
    for (int64_t n_open = n_rows; n_open > 0;) {
        qn_token t;
        qn_status status = qn_generation_next(g, &t);
        assert_int_equal(out->end[t.row], QN_END_NONE);
        if (status != QN_OK) snprintf(out->message[t.row], sizeof out->message[0], "%s", qn_last_error());
        if (t.id >= 0) out->ids[t.row][out->n[t.row]++] = t.id;
        out->end[t.row] = t.end;
        out->status[t.row] = status;
        n_open -= t.end != QN_END_NONE;
        qn_memory now = memory_of(model);
        size_t bytes = now.active_memory_bytes + now.cache_memory_bytes;
        if (bytes > out->most_bytes) out->most_bytes = bytes;
    }
    qn_generation_close(g);
}

/* Limits that are given to qn_model_open are in force at once. */
static void test_at_open(void **state)
{
    qn_model *model =
        open_model(&(qn_model_options){.cache_limit_bytes = 54321, .wired_limit_bytes = 1 << 20});
    qn_memory memory = memory_of(model);
    assert_int_equal(memory.cache_limit_bytes, 54321);
    assert_int_equal(memory.wired_limit_bytes, 1 << 20);
    assert_true(memory.wired_bytes > 0 && memory.wired_bytes <= 1 << 20);
    qn_model_close(&model);
    model = open_model(&(qn_model_options){.cache_limit_bytes = QN_KEEP_NOTHING});
    assert_int_equal(memory_of(model).cache_limit_bytes, 0);
    qn_model_close(&model);
}

enum { ROTATED = 100 };

static int64_t generate_past_context(int in_model, int in_request, int32_t *ids)
{
    qn_model *model = open_model(&(qn_model_options){.context_size = 48, .rotate = in_model});
    const qn_generate_options o = {.max_tokens = ROTATED, .ignore_eos = 1, .rotate = in_request};
    qn_generation *g;
    qn_token t;
    int64_t n = 0;
    qn_test_ok(qn_generate(model, "The mill", &o, &g));
    for (;;) {
        qn_test_ok(qn_generation_next(g, &t));
        if (t.end != QN_END_NONE) break;
        ids[n++] = t.id;
    }
    qn_generation_close(g);
    qn_test_ok(qn_model_close(&model));
    return n;
}

/* A model that rotates does so for requests that do not ask for it. */
static void test_rotates(void **state)
{
    static int32_t by_model[ROTATED], by_request[ROTATED], neither[ROTATED];
    assert_int_equal(generate_past_context(1, 0, by_model), ROTATED);
    assert_int_equal(generate_past_context(0, 1, by_request), ROTATED);
    assert_memory_equal(by_model, by_request, sizeof by_model);
    assert_true(generate_past_context(0, 0, neither) < 48);
}

static void test_setters(void **state)
{
    qn_model *model = open_model(NULL);
    size_t old = 1;
    qn_memory memory = memory_of(model);
    assert_int_equal(memory.limit_bytes, 0);
    assert_int_equal(memory.cache_limit_bytes, 256 * MIB);
    assert_int_equal(memory.wired_limit_bytes, 0);
    assert_true(memory.other_bytes > 100000); /* the tokenizer is the most of it */
    qn_test_ok(qn_model_set_memory_limit(model, 1 << 30, &old));
    assert_int_equal(old, 0);
    qn_test_ok(qn_model_set_memory_limit(model, 0, &old));
    assert_int_equal(old, 1 << 30);
    qn_test_ok(qn_model_set_cache_limit(model, 12345, &old));
    assert_int_equal(old, 256 * MIB);
    assert_int_equal(memory_of(model).cache_limit_bytes, 12345);
    qn_test_ok(qn_model_set_cache_limit(model, 0, &old));
    assert_int_equal(old, 12345);
    qn_test_ok(qn_model_set_wired_limit(model, 1, &old));
    assert_int_equal(old, 0);
    assert_int_equal(memory_of(model).wired_bytes, 0); /* less than a page */
    qn_test_ok(qn_model_set_wired_limit(model, 0, &old));
    assert_int_equal(old, 1);
    qn_test_ok(qn_model_set_wired_limit(model, 0, NULL));
    assert_int_equal(qn_model_set_cache_limit(NULL, 0, &old), QN_E_ARG);
    assert_string_equal(qn_last_error(), "qn_model_set_cache_limit: the model is NULL");
    assert_int_equal(qn_model_clear_cache(NULL), QN_E_ARG);
    qn_model_close(&model);
}

/* Whole contexts of all slots may stay, as far as half of the memory that is left allows. */
static void test_cache_limit_by_context(void **state)
{
    const int n_slots[] = {1, 64, 1024};
    size_t limits[3];
    for (int i = 0; i < 3; i++) {
        qn_model *model = open_model(&(qn_model_options){.parallel_slots = n_slots[i], .context_size = 4000});
        limits[i] = memory_of(model).cache_limit_bytes;
        qn_model_close(&model);
    }
    assert_int_equal(limits[0], 256 * MIB);
    assert_true(limits[1] >= limits[0] && limits[2] > limits[1]);
    qn_model *model = open_model(
        &(qn_model_options){.parallel_slots = 1024, .context_size = 4000, .memory_limit_bytes = 700 * MIB});
    const qn_memory memory = memory_of(model);
    assert_true(memory.cache_limit_bytes > 256 * MIB);
    assert_true(memory.cache_limit_bytes <= (700 * MIB - memory.active_memory_bytes) / 2);
    qn_model_close(&model);
}

static void test_cache(void **state)
{
    static result first, again;
    qn_model *model = open_model(&(qn_model_options){.parallel_slots = 2});
    run(model, 2, 200, &first);
    qn_memory memory = memory_of(model);
    assert_int_equal(memory.kv_bytes, 0);
    size_t cached = memory.cache_memory_bytes;
    assert_true(cached > 0);
    for (int i = 0; i < 3; i++) { /* of the same pages, with what they held before in them */
        run(model, 2, 200, &again);
        assert_memory_equal(first.ids, again.ids, sizeof first.ids);
        memory = memory_of(model);
        if (i == 0) cached = memory.cache_memory_bytes; /* one more end of a sequence is kept */
        assert_int_equal(memory.cache_memory_bytes, cached);
    }

    qn_test_ok(qn_model_clear_cache(model));
    assert_int_equal(memory_of(model).cache_memory_bytes, 0);
    size_t active = memory_of(model).active_memory_bytes;
    assert_true(memory_of(model).peak_memory_bytes >= active + cached);
    qn_test_ok(qn_model_reset_peak_memory(model));
    assert_int_equal(memory_of(model).peak_memory_bytes, active);

    qn_test_ok(qn_model_set_cache_limit(model, cached / 2, NULL));
    run(model, 2, 200, &again);
    assert_memory_equal(first.ids, again.ids, sizeof first.ids);
    assert_true(memory_of(model).cache_memory_bytes > 0);
    assert_true(memory_of(model).cache_memory_bytes <= cached / 2);
    qn_test_ok(qn_model_set_cache_limit(model, 0, NULL));
    assert_int_equal(memory_of(model).cache_memory_bytes, 0); /* at once */
    run(model, 2, 20, &again);
    assert_int_equal(memory_of(model).cache_memory_bytes, 0);
    assert_int_equal(memory_of(model).active_memory_bytes, active);

    /* Pages that are held stay, whatever is cleared. */
    qn_generation *g;
    qn_token t;
    qn_test_ok(qn_model_set_cache_limit(model, MIB, NULL));
    qn_test_ok(qn_generate(model, "The mill", &(qn_generate_options){.max_tokens = 3, .ignore_eos = 1}, &g));
    qn_test_ok(qn_generation_next(g, &t));
    size_t kv = memory_of(model).kv_bytes;
    assert_true(kv > 0);
    qn_test_ok(qn_model_clear_cache(model));
    assert_int_equal(memory_of(model).kv_bytes, kv);
    qn_test_ok(qn_generation_next(g, &t));
    qn_generation_close(g);
    qn_model_close(&model);
}

/* A limit that is set on an open model: what does not fit fails and names the entry, what fits goes on. */
static void test_long_fails_short_works(void **state)
{
    static result r, expected;
    qn_model *model = open_model(&(qn_model_options){.context_size = 4000});
    run(model, 1, 40, &expected);
    qn_test_ok(qn_model_clear_cache(model));
    qn_memory memory = memory_of(model);
    size_t limit = memory.active_memory_bytes + MIB;
    qn_test_ok(qn_model_set_memory_limit(model, limit, NULL));
    qn_test_ok(qn_model_reset_peak_memory(model));
    for (int round = 0; round < 2; round++) {
        run(model, 1, 0, &r);
        assert_int_equal(r.end[0], QN_END_ERROR);
        assert_int_equal(r.status[0], QN_E_NOMEM);
        assert_non_null(strstr(r.message[0], "memory limit: kv needs "));
        assert_non_null(strstr(r.message[0], "held: weights "));
        assert_true(r.n[0] > 500 && r.n[0] < 3900);
        assert_true(r.most_bytes <= limit);
        run(model, 1, 40, &r);
        assert_int_equal(r.end[0], QN_END_LENGTH);
        assert_memory_equal(r.ids[0], expected.ids[0], 40 * sizeof(int32_t));
    }
    assert_true(memory_of(model).peak_memory_bytes <= limit);
    assert_true(memory_of(model).peak_memory_bytes > limit - MIB / 4);
    qn_test_ok(qn_model_set_memory_limit(model, 0, NULL));
    run(model, 1, 1500, &r);
    assert_int_equal(r.end[0], QN_END_LENGTH);
    qn_model_close(&model);
}

/* A model opened under a limit has a context that fits under it, full, whatever scratch takes; several that
 * are full take turns. */
static void test_context_fits(void **state)
{
    static result r;
    qn_model *model = open_model(&(qn_model_options){.parallel_slots = 4, .prefill_chunk = 512});
    size_t base = memory_of(model).active_memory_bytes;
    qn_model_info info;
    qn_test_ok(qn_model_get_info(model, &info));
    int64_t full = info.context_size;
    qn_model_close(&model);
    int n_smaller = 0;
    for (size_t more = MIB / 16; more <= MIB; more += MIB / 16) {
        size_t limit = base + more;
        qn_status status = qn_model_open(
            qn_test_need_fixture("models/llama"),
            &(qn_model_options){
                .n_threads = 1, .parallel_slots = 4, .prefill_chunk = 512, .memory_limit_bytes = limit},
            &model);
        if (status != QN_OK) {
            assert_int_equal(status, QN_E_NOMEM);
            assert_non_null(strstr(qn_last_error(), "for keys, values and sampling"));
            continue;
        }
        qn_test_ok(qn_model_get_info(model, &info));
        if (info.context_size < full) {
            n_smaller++;
            assert_non_null(strstr(info.notes, "there is no memory for more"));
        }
        run(model, 4, 0, &r);
        for (int i = 0; i < 4; i++) {
            if (r.end[i] != QN_END_LENGTH) fail_msg("limit of %zu: %s", limit, r.message[i]);
            assert_int_equal(r.n[i], info.context_size - 12);
        }
        assert_true(memory_of(model).peak_memory_bytes <= limit);
        qn_model_close(&model);
    }
    assert_true(n_smaller > 0);
    assert_int_equal(
        qn_model_open(qn_test_need_fixture("models/llama"),
                      &(qn_model_options){.context_size = 200000, .memory_limit_bytes = 64 * MIB}, &model),
        QN_E_NOMEM);
    assert_non_null(strstr(qn_last_error(), "context size 200000 needs "));
    assert_non_null(strstr(qn_last_error(), " MiB are left"));
}

/* Pages for all rows there are none: some give way to the others and go on later, with the same tokens. */
static void test_rows_give_way(void **state)
{
    static result r, expected;
    enum { ROWS = 4 };
    qn_model *model = open_model(&(qn_model_options){.parallel_slots = ROWS, .context_size = 2000});
    run(model, 1, 600, &expected);
    qn_test_ok(qn_model_clear_cache(model));
    size_t limit = memory_of(model).active_memory_bytes + MIB;
    qn_test_ok(qn_model_set_memory_limit(model, limit, NULL));
    run(model, ROWS, 600, &r);
    for (int i = 0; i < ROWS; i++) {
        assert_int_equal(r.end[i], QN_END_LENGTH);
        assert_int_equal(r.n[i], 600);
        assert_memory_equal(r.ids[i], expected.ids[0], 600 * sizeof(int32_t));
    }
    assert_true(r.most_bytes <= limit);
    qn_model_close(&model);
}

/* The sanitizers take mlock over and let it do nothing. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
static const int mlock_does_nothing = 1;
#else
static const int mlock_does_nothing = 0;
#endif

/* RLIMIT_MEMLOCK binds whoever may not lock as he likes: for root that is given up for a while. */
static void test_wired(void **state)
{
    qn_model *model = open_model(NULL);
    size_t page = (size_t)sysconf(_SC_PAGESIZE), old = 1;
    qn_status status = qn_model_set_wired_limit(model, 10 * page + 5, &old);
    if (status == QN_OK) {
        assert_int_equal(memory_of(model).wired_bytes, 10 * page);
        assert_int_equal(memory_of(model).wired_limit_bytes, 10 * page + 5);
        qn_test_ok(qn_model_set_wired_limit(model, SIZE_MAX, &old)); /* all */
        assert_int_equal(old, 10 * page + 5);
        qn_memory memory = memory_of(model);
        assert_true(memory.wired_bytes > memory.weights_bytes / 2);
        assert_true(memory.wired_bytes <= memory.weights_bytes);
        qn_test_ok(qn_model_set_wired_limit(model, 4 * page, NULL));
        assert_int_equal(memory_of(model).wired_bytes, 4 * page);
    }
    if (mlock_does_nothing) {
        qn_model_close(&model);
        return;
    }
    struct rlimit before, none = {0, 0};
    assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &before), 0);
    none.rlim_max = before.rlim_max;
    int root = geteuid() == 0;
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &none), 0);
    if (root && seteuid(65534) != 0) root = 0;
    status = qn_model_set_wired_limit(model, 8 * page, &old);
    if (root) assert_int_equal(seteuid(0), 0);
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &before), 0);
    assert_int_equal(status, QN_E_NOMEM);
    assert_non_null(strstr(qn_last_error(), "wired limit: the system locked 0 of "));
    assert_non_null(strstr(qn_last_error(), "RLIMIT_MEMLOCK is 0 bytes: raise it (ulimit -l"));
    assert_int_equal(memory_of(model).wired_limit_bytes, old == 1 ? 0 : 4 * page); /* as before */
    qn_model_close(&model);
}

typedef struct {
    qn_model *model;
    atomic_int stop;
} clearing;

static void *keep_clearing(void *user)
{
    clearing *c = user;
    for (size_t i = 0; !atomic_load(&c->stop); i++) {
        qn_memory memory;
        qn_model_set_cache_limit(c->model, i % 3 * 100000, NULL);
        qn_model_clear_cache(c->model);
        qn_model_get_memory(c->model, &memory);
        qn_model_set_memory_limit(c->model, i % 2 ? 0 : 1 << 30, NULL);
        qn_model_set_wired_limit(c->model, i % 2 * 8192, NULL);
        qn_model_reset_peak_memory(c->model);
    }
    return NULL;
}

/* Limits may change while the model answers; no token does. */
static void test_any_thread(void **state)
{
    static result r, expected;
    pthread_t thread;
    clearing c = {.model = open_model(&(qn_model_options){.parallel_slots = 2})};
    run(c.model, 2, 150, &expected);
    assert_int_equal(pthread_create(&thread, NULL, keep_clearing, &c), 0);
    for (int i = 0; i < 3; i++) {
        run(c.model, 2, 150, &r);
        assert_memory_equal(r.ids, expected.ids, sizeof r.ids);
    }
    atomic_store(&c.stop, 1);
    pthread_join(thread, NULL);
    qn_model_close(&c.model);
}

typedef struct {
    int n;
    qn_log_level level;
    char line[200];
} heard;

static void hear(void *user, qn_log_level level, const char *line)
{
    heard *h = user;
    h->n++;
    h->level = level;
    snprintf(h->line, sizeof h->line, "%s", line);
}

/* Fields that mean nothing here: refused by name, or taken and said so, to the log and in the info. */
static void test_options(void **state)
{
    heard h = {0};
    qn_model_info info;
    qn_log_set_sink(hear, &h);
    qn_model *model = open_model(&(qn_model_options){.gpu_layers = 3});
    qn_test_ok(qn_model_get_info(model, &info));
    assert_string_equal(info.notes, "gpu_layers is ignored: the device computes all layers\n");
    assert_int_equal(h.n, 1);
    assert_int_equal(h.level, QN_LOG_WARNING);
    assert_string_equal(h.line, "gpu_layers is ignored: the device computes all layers");
    qn_model_close(&model);
    model = open_model(NULL);
    qn_test_ok(qn_model_get_info(model, &info));
    assert_string_equal(info.notes, "");
    assert_int_equal(h.n, 1);
    qn_model_close(&model);
    qn_log_set_sink(NULL, NULL);
    assert_int_equal(
        qn_model_open(qn_test_need_fixture("models/llama"), &(qn_model_options){.adapter_path = "x"}, &model),
        QN_E_NOT_FOUND);
    assert_non_null(strstr(qn_last_error(), "x"));
    assert_null(model);
    assert_int_equal(qn_model_open(qn_test_need_fixture("models/llama"),
                                   &(qn_model_options){.memory_limit_bytes = 1000}, &model),
                     QN_E_NOMEM);
    assert_non_null(strstr(qn_last_error(), "limit 1000, held: weights 0"));
    assert_null(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_at_open),      cmocka_unit_test(test_rotates),
        cmocka_unit_test(test_setters),      cmocka_unit_test(test_cache_limit_by_context),
        cmocka_unit_test(test_cache),        cmocka_unit_test(test_long_fails_short_works),
        cmocka_unit_test(test_context_fits), cmocka_unit_test(test_rows_give_way),
        cmocka_unit_test(test_wired),        cmocka_unit_test(test_any_thread),
        cmocka_unit_test(test_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
