/* Handles through the public API: what they give, and every handle that is none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <quern/quern.h>
#include <stdatomic.h>
#include <string.h>

#include "api/tickets.h"
#include "base/mem.h"
#include "base/random.h"
#include "tests/support/fixtures.h"

enum { VOCABULARY_MAX = 1 << 15, N_IDS = 50 };

static float logits[VOCABULARY_MAX], expected[VOCABULARY_MAX];

static qn_model *open_model(const char *fixture, int64_t *vocabulary)
{
    qn_model *model = NULL;
    qn_model_info info;
    const qn_model_options o = {.context_size = 256, .parallel_slots = 8, .n_threads = 1};
    if (qn_model_open(qn_test_need_fixture(fixture), &o, &model) != QN_OK) fail_msg("%s", qn_last_error());
    assert_int_equal(qn_model_get_info(model, &info), QN_OK);
    assert_true(info.vocab_size <= VOCABULARY_MAX);
    *vocabulary = info.vocab_size;
    return model;
}

static void ok(qn_status status)
{
    if (status != QN_OK) fail_msg("%s: %s", qn_status_name(status), qn_last_error());
}

static void refused(qn_status got, qn_status want, const char *words)
{
    assert_int_equal(got, want);
    if (!strstr(qn_last_error(), words)) fail_msg("'%s' is not in: %s", words, qn_last_error());
}

static void fill_ids(int32_t *ids)
{
    for (int i = 0; i < N_IDS; i++) ids[i] = 3 + i * 7 % 200;
}

static qn_status take_last(void *user, int64_t row, int64_t position, int64_t n, const float *values)
{
    int64_t vocabulary = *(const int64_t *)user;
    memcpy(expected, values + (n - 1) * vocabulary, (size_t)vocabulary * sizeof *values);
    return QN_OK;
}

static void expect_logits(qn_model *model, int64_t vocabulary, const int32_t *ids, int64_t n)
{
    const qn_logits_options o = {.last_only = 1};
    ok(qn_model_logits(model, &(qn_ids){ids, n}, 1, &o, take_last, &vocabulary));
    assert_memory_equal(logits, expected, (size_t)vocabulary * sizeof *logits);
}

static void pass(qn_model *model, int64_t vocabulary, const int32_t *ids, int64_t n, const qn_cache *from,
                 qn_cache **out)
{
    memset(logits, 0, sizeof logits);
    ok(qn_forward_with_cache(model, ids, n, from, logits, vocabulary, out));
    assert_true(logits[vocabulary] == 0); /* nothing behind the vocabulary is written */
}

static void same_logits(void **state)
{
    static const char *const fixtures[] = {"models/llama", "models/gemma3_text", "models/qwen3_5"};
    for (int f = 0; f < 3; f++) {
        int64_t vocabulary, n;
        qn_model *model = open_model(fixtures[f], &vocabulary);
        qn_cache *first = NULL, *second = NULL, *cut = NULL, *fork = NULL;
        int32_t ids[N_IDS];
        fill_ids(ids);
        pass(model, vocabulary, ids, 40, NULL, &first);
        expect_logits(model, vocabulary, ids, 40);
        pass(model, vocabulary, ids + 40, 10, first, &second);
        expect_logits(model, vocabulary, ids, 50);
        ok(qn_cache_slice(second, 20, &cut));
        pass(model, vocabulary, ids + 20, 5, cut, &fork);
        expect_logits(model, vocabulary, ids, 25);
        ok(qn_cache_get_length(second, &n));
        assert_int_equal(n, 50);
        ok(qn_cache_get_length(cut, &n));
        assert_int_equal(n, 20);
        qn_cache_free(second);
        qn_cache_free(fork);
        pass(model, vocabulary, ids + 40, 1, first, &second); /* the old one goes on */
        expect_logits(model, vocabulary, ids, 41);
        qn_cache_free(first);
        qn_model_close(&model); /* the others end with it */
        refused(qn_cache_get_length(second, &n), QN_E_ARG, "closed");
        qn_cache_free(second);
    }
}

static void wrong_calls(void **state)
{
    int64_t vocabulary, n = 7;
    qn_model *model = open_model("models/llama", &vocabulary);
    qn_cache *one = NULL, *out = NULL;
    int32_t ids[N_IDS];
    fill_ids(ids);
    pass(model, vocabulary, ids, 10, NULL, &one);
    refused(qn_forward_with_cache(NULL, ids, 1, one, logits, vocabulary, &out), QN_E_ARG, "model");
    refused(qn_forward_with_cache(model, NULL, 1, one, logits, vocabulary, &out), QN_E_ARG, "no token ids");
    refused(qn_forward_with_cache(model, ids, 0, one, logits, vocabulary, &out), QN_E_ARG, "no token ids");
    refused(qn_forward_with_cache(model, ids, -1, one, logits, vocabulary, &out), QN_E_ARG, "no token ids");
    refused(qn_forward_with_cache(model, ids, 1, one, NULL, vocabulary, &out), QN_E_ARG, "logits");
    refused(qn_forward_with_cache(model, ids, 1, one, logits, vocabulary - 1, &out), QN_E_ARG, "room for");
    refused(qn_forward_with_cache(model, ids, 1, one, logits, -1, &out), QN_E_ARG, "room for -1");
    refused(qn_forward_with_cache(model, ids, 1, one, logits, vocabulary, NULL), QN_E_ARG, "out");
    refused(qn_forward_with_cache(model, ids, INT64_MAX, one, logits, vocabulary, &out), QN_E_ARG, "context");
    refused(qn_cache_slice(NULL, 1, &out), QN_E_ARG, "NULL");
    refused(qn_cache_slice(one, -3, &out), QN_E_ARG, "-3 tokens");
    refused(qn_cache_slice(one, 11, &out), QN_E_ARG, "11 tokens");
    refused(qn_cache_slice(one, INT64_MIN, &out), QN_E_ARG, "tokens");
    refused(qn_cache_slice(one, 1, NULL), QN_E_ARG, "out is NULL");
    refused(qn_cache_get_length(one, NULL), QN_E_ARG, "out is NULL");
    refused(qn_cache_get_length(NULL, &n), QN_E_ARG, "NULL");
    qn_cache_free(NULL);
    assert_null(out);
    assert_int_equal(n, 7);
    pass(model, vocabulary, ids + 10, 1, one, &out);
    expect_logits(model, vocabulary, ids, 11);
    qn_model_close(&model);
}

/* Freed, of another model, of a closed model, made up: errors, whatever the bits. */
static void handles_that_are_none(void **state)
{
    int64_t vocabulary, other_vocabulary, n;
    qn_model *model = open_model("models/llama", &vocabulary);
    qn_model *other = open_model("models/llama", &other_vocabulary);
    qn_cache *one = NULL, *foreign = NULL, *out = NULL;
    int32_t ids[N_IDS];
    fill_ids(ids);
    pass(model, vocabulary, ids, 10, NULL, &one);
    pass(other, other_vocabulary, ids, 10, NULL, &foreign);
    refused(qn_forward_with_cache(model, ids, 1, foreign, logits, vocabulary, &out), QN_E_ARG,
            "another model");
    qn_cache *stale = one;
    qn_cache_free(one);
    qn_cache_free(one);
    refused(qn_forward_with_cache(model, ids, 1, stale, logits, vocabulary, &out), QN_E_ARG,
            "does not exist");
    pass(model, vocabulary, ids, 10, NULL, &one); /* the same place, used again */
    assert_ptr_not_equal(one, stale);
    refused(qn_cache_slice(stale, 1, &out), QN_E_ARG, "does not exist");
    refused(qn_cache_get_length(stale, &n), QN_E_ARG, "does not exist");
    for (uint64_t i = 0; i < 20000; i++) {
        uint64_t bits = qn_random_bits(3, i);
        if (i % 4 == 1) bits = (uint64_t)(uintptr_t)one ^ 1ull << i % 64;
        if (i % 4 == 2) bits &= 0xfffff;
        if (i % 4 == 3) bits = (uint64_t)(uintptr_t)&bits + i;
        qn_cache *made_up = (qn_cache *)(uintptr_t)bits;
        if (!bits || made_up == one || made_up == foreign) continue;
        assert_int_equal(qn_cache_get_length(made_up, &n), QN_E_ARG);
        assert_int_equal(qn_forward_with_cache(model, ids, 1, made_up, logits, vocabulary, &out), QN_E_ARG);
        qn_cache_free(made_up);
    }
    qn_model_close(&other);
    refused(qn_forward_with_cache(model, ids, 1, foreign, logits, vocabulary, &out), QN_E_ARG, "closed");
    qn_cache_free(foreign);
    assert_null(out);
    pass(model, vocabulary, ids + 10, 1, one, &out);
    expect_logits(model, vocabulary, ids, 11);
    qn_model_close(&model);
}

/* A backend without handles. */
static qn_status none_open(const char *path, const qn_model_options *options, void **model)
{
    static int object;
    *model = &object;
    return QN_OK;
}

static void none_close(void *model)
{
}

static void backend_without_handles(void **state)
{
    static const qn_backend none = {.name = "none", .open = none_open, .close = none_close};
    qn_model *model = NULL;
    qn_cache *out = NULL;
    qn_cache_counters counters;
    qn_cache_miss miss;
    const int32_t id = 1;
    const qn_prompt prompt = {.rows = &(qn_ids){&id, 1}, .n_rows = 1};
    ok(qn_backend_register(&none));
    ok(qn_model_open("x", &(qn_model_options){.backend = "none"}, &model));
    refused(qn_forward_with_cache(model, &id, 1, NULL, logits, 9, &out), QN_E_UNSUPPORTED, "none does not");
    refused(qn_cache_get_counters(model, &counters), QN_E_UNSUPPORTED, "none does not");
    refused(qn_cache_explain(model, &prompt, &miss), QN_E_UNSUPPORTED, "none does not");
    refused(qn_cache_explain(model, &prompt, NULL), QN_E_ARG, "out");
    qn_model_close(&model);
}

/* ---- tickets ------------------------------------------------------------------------------------------ */

static atomic_int n_freed;

static void count_free(qn_model *model, void *object)
{
    atomic_fetch_add(&n_freed, 1);
}

static void many_tickets(void **state)
{
    enum { N = 3000 };
    qn_model model = {.object = NULL};
    qn_ticket *tickets = test_calloc(N, sizeof *tickets);
    qn_ticket_use use;
    pthread_mutex_init(&model.lock, NULL);
    n_freed = 0;
    for (intptr_t i = 0; i < N; i++) ok(qn_ticket_new(&model, (void *)(i + 1), count_free, &tickets[i]));
    for (int i = 0; i < N; i += 3) qn_ticket_free(tickets[i]);
    assert_int_equal(n_freed, N / 3);
    for (intptr_t i = 0; i < N; i++) {
        qn_status status = qn_ticket_begin(tickets[i], &model, &use);
        assert_int_equal(status, i % 3 ? QN_OK : QN_E_ARG);
        if (status != QN_OK) continue;
        assert_ptr_equal(use.object, (void *)(i + 1));
        qn_ticket_free(tickets[i]); /* the object lives until its use ends */
        assert_int_equal(qn_ticket_begin(tickets[i], &model, &(qn_ticket_use){NULL}), QN_E_ARG);
        int before = n_freed;
        qn_ticket_end(&use);
        assert_int_equal(n_freed, before + 1);
    }
    ok(qn_ticket_new(&model, (void *)1, count_free, &tickets[0]));
    qn_tickets_end_all(&model);
    assert_int_equal(n_freed, N + 1);
    qn_tickets_end_all(&model);
    pthread_mutex_destroy(&model.lock);
    test_free(tickets);
}

/* Each place taken; one that comes free is taken again. */
static void most_tickets(void **state)
{
    enum { MOST = 1 << 20 };
    qn_model model = {.object = NULL};
    qn_ticket ticket = 0, last = 0;
    int64_t n = 0;
    pthread_mutex_init(&model.lock, NULL);
    for (; qn_ticket_new(&model, &model, count_free, &ticket) == QN_OK; n++) last = ticket;
    assert_int_equal(n, MOST);
    refused(qn_ticket_new(&model, &model, count_free, &ticket), QN_E_FULL, "1048576 cache handles");
    qn_ticket_free(last);
    ok(qn_ticket_new(&model, &model, count_free, &ticket));
    assert_true(ticket != last);
    refused(qn_ticket_new(&model, &model, count_free, &ticket), QN_E_FULL, "handles");
    qn_tickets_end_all(&model);
    pthread_mutex_destroy(&model.lock);
}

/* So many models that their numbers come round. */
static void many_models(void **state)
{
    enum { N = 300 };
    qn_model *models = test_calloc(N, sizeof *models);
    qn_ticket ticket;
    int n = 0;
    for (; n < N; n++) {
        pthread_mutex_init(&models[n].lock, NULL);
        if (qn_ticket_new(&models[n], &models[n], count_free, &ticket) != QN_OK) break;
    }
    assert_in_range(n, 200, 256);
    refused(qn_ticket_new(&models[n], &models[n], count_free, &ticket), QN_E_FULL, "models");
    qn_tickets_end_all(&models[17]);
    ok(qn_ticket_new(&models[n], &models[n], count_free, &ticket));
    for (int i = 0; i <= n; i++) {
        qn_tickets_end_all(&models[i]);
        pthread_mutex_destroy(&models[i].lock);
    }
    test_free(models);
}

static void out_of_memory(void **state)
{
    qn_model model = {.object = NULL};
    pthread_mutex_init(&model.lock, NULL);
    qn_status status = QN_E_NOMEM;
    int64_t blocks = qn_mem_live_blocks();
    for (int64_t nth = 1; status != QN_OK && nth < 100; nth++) {
        qn_ticket ticket;
        qn_mem_fail_nth(nth);
        for (int i = 0; i < 40; i++) {
            status = qn_ticket_new(&model, &model, count_free, &ticket);
            if (status != QN_OK) break;
        }
        qn_mem_fail_nth(0);
        if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
        qn_tickets_end_all(&model);
        assert_int_equal(qn_mem_live_blocks(), blocks);
    }
    assert_int_equal(status, QN_OK);
    pthread_mutex_destroy(&model.lock);
}

/* The same of a model's first call: it fails, or gets along without what it was refused. */
static void first_call_out_of_memory(void **state)
{
    int64_t vocabulary, made = INT64_MAX, blocks = qn_mem_live_blocks();
    int n_failed = 0;
    int32_t ids[N_IDS];
    fill_ids(ids);
    for (int64_t nth = 1; made >= nth - 1 && nth < 2000; nth++) {
        qn_model *model = open_model("models/llama", &vocabulary);
        qn_cache *one = NULL;
        made = qn_mem_allocations();
        qn_mem_fail_nth(nth);
        qn_status status = qn_forward_with_cache(model, ids, 10, NULL, logits, vocabulary, &one);
        qn_mem_fail_nth(0);
        made = qn_mem_allocations() - made;
        if (status == QN_OK) {
            expect_logits(model, vocabulary, ids, 10);
        } else {
            assert_int_equal(status, QN_E_NOMEM);
            assert_null(one);
            n_failed++;
        }
        qn_model_close(&model);
    }
    assert_true(n_failed > 2 && made < 2000);
    assert_int_equal(qn_mem_live_blocks(), blocks);
}

typedef struct {
    qn_model *model;
    int64_t vocabulary;
    const qn_cache *root;
    int thread;
    atomic_int *failures;
} job;

static void *work(void *arg)
{
    job *j = arg;
    float *own = qn_alloc((size_t)j->vocabulary * sizeof *own);
    for (int32_t round = 0; own && round < 30; round++) {
        qn_cache *cut = NULL, *next = NULL;
        const int32_t ids[2] = {round + 1, j->thread + 1};
        if (qn_cache_slice(j->root, 1 + round % 10, &cut) != QN_OK ||
            qn_forward_with_cache(j->model, ids, 2, cut, own, j->vocabulary, &next) != QN_OK)
            atomic_fetch_add(j->failures, 1);
        qn_cache_free(cut);
        qn_cache_free(next);
    }
    qn_free(own);
    return NULL;
}

static void threads(void **state)
{
    enum { N = 6 };
    int64_t vocabulary;
    qn_model *model = open_model("models/llama", &vocabulary);
    qn_cache *root = NULL;
    atomic_int failures = 0;
    int32_t ids[N_IDS];
    pthread_t started[N];
    job jobs[N];
    fill_ids(ids);
    pass(model, vocabulary, ids, 10, NULL, &root);
    for (int i = 0; i < N; i++) {
        jobs[i] = (job){model, vocabulary, root, i, &failures};
        assert_int_equal(pthread_create(&started[i], NULL, work, &jobs[i]), 0);
    }
    for (int i = 0; i < N; i++) pthread_join(started[i], NULL);
    assert_int_equal(failures, 0);
    qn_model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_logits),
                                       cmocka_unit_test(wrong_calls),
                                       cmocka_unit_test(handles_that_are_none),
                                       cmocka_unit_test(backend_without_handles),
                                       cmocka_unit_test(many_tickets),
                                       cmocka_unit_test(most_tickets),
                                       cmocka_unit_test(many_models),
                                       cmocka_unit_test(out_of_memory),
                                       cmocka_unit_test(first_call_out_of_memory),
                                       cmocka_unit_test(threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
