/* The same bits, under fire: many requests of all kinds at once, from several threads, each of which must
 * give what the same request gives alone on a fresh engine. QUERN_FIRE_SEEDS=N runs N seeds (`make soak`),
 * QUERN_FIRE_FIRST=S begins at seed S. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tests/adapter_dir.h"
#include "tests/engine_help.h"
#include "tests/fixtures.h"
#include "tests/model_dir.h"
#include "tests/requests.h"
#include "tests/scratch.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { REQUESTS = 24, SEEDS = 1 };
#else
enum { REQUESTS = 64, SEEDS = 3 };
#endif
enum { CALLERS = 6 };

static qn_test_request requests[REQUESTS];
static qn_test_answer expected[REQUESTS];

/* An adapter of both matrices of every layer's feed-forward block. */
static const char *make_adapter(const char *model, const char *folder, const char *name, uint64_t seed)
{
    enum { RANK = 3, LAYERS_MAX = 64 };
    qn_model_config config;
    char module[96];
    qn_test_ok(qn_test_config(model, &config));
    qn_test_adapter *a = qn_test_adapter_new(RANK, RANK);
    for (int i = 0; i < config.num_hidden_layers && i < LAYERS_MAX; i++) {
        int64_t n = config.hidden_size, m = config.intermediate_size;
        snprintf(module, sizeof module, "model.layers.%d.mlp.up_proj", i);
        qn_test_adapter_add(a, module, RANK, n, m, seed + 2 * (uint64_t)i);
        snprintf(module, sizeof module, "model.layers.%d.mlp.down_proj", i);
        qn_test_adapter_add(a, module, RANK, m, n, seed + 2 * (uint64_t)i + 1);
    }
    const char *path = qn_test_adapter_write(a, folder, name, QN_ADAPTER_PEFT);
    qn_test_adapter_free(a);
    qn_config_free(&config);
    return path;
}

/* ---- the storm ---- */

typedef struct {
    qn_model *model;
    atomic_int next; /* request that nobody has taken yet */
    pthread_mutex_t lock;
    int n_failed;
    qn_buf why; /* of the first that failed */
} storm;

static void note_failure(storm *s, int i, const char *why)
{
    pthread_mutex_lock(&s->lock);
    if (s->n_failed++ == 0) qn_buf_printf(&s->why, "request %d: %s", i, why);
    pthread_mutex_unlock(&s->lock);
}

static void *call(void *user)
{
    storm *s = user;
    static _Thread_local qn_test_answer got;
    for (int i; (i = atomic_fetch_add(&s->next, 1)) < REQUESTS;) {
        qn_buf why = {0};
        if (!qn_test_request_run(s->model, &requests[i], &got, &why) ||
            !qn_test_answer_agrees(&requests[i], &expected[i], &got, &why))
            note_failure(s, i, why.data);
        qn_test_answer_clear(&got);
        qn_buf_free(&why);
    }
    return NULL;
}

static void rage(const qn_test_world *w, const qn_model_options *o, uint64_t seed)
{
    storm s = {0};
    pthread_t threads[CALLERS];
    pthread_mutex_init(&s.lock, NULL);
    qn_test_ok(qn_test_world_open(w, o, &s.model));
    for (int i = 0; i < CALLERS; i++) assert_int_equal(pthread_create(&threads[i], NULL, call, &s), 0);
    for (int i = 0; i < CALLERS; i++) pthread_join(threads[i], NULL);
    qn_model_close(&s.model);
    pthread_mutex_destroy(&s.lock);
    if (s.n_failed)
        fail_msg("%s, seed %d: %d of %d requests: %s", w->path, (int)seed, s.n_failed, REQUESTS, s.why.data);
    qn_buf_free(&s.why);
}

/* What each request gives alone on a fresh engine, nobody ending it. */
static void ask_alone(const qn_test_world *w, uint64_t seed)
{
    int64_t n_tokens = 0;
    for (int i = 0; i < REQUESTS; i++) {
        qn_model *model = NULL;
        qn_buf why = {0};
        qn_test_request_make(w, seed * REQUESTS + (uint64_t)i, requests, expected, i, &requests[i]);
        qn_test_request calm = requests[i];
        calm.end_after = -1;
        calm.o.deadline_ms = 0;
        qn_test_ok(qn_test_world_open(w, &(qn_model_options){.n_threads = 1}, &model));
        if (!qn_test_request_run(model, &calm, &expected[i], &why))
            fail_msg("%s, seed %d, request %d alone: %s", w->path, (int)seed, i, why.data);
        qn_model_close(&model);
        for (int j = 0; j < QN_TEST_REQUEST_ROWS; j++) n_tokens += expected[i].rows[j].n;
    }
    assert_true(n_tokens > 5 * REQUESTS);
}

static void one_seed(const char *path, const char *const *adapters, uint64_t seed)
{
    static const qn_precision precisions[] = {QN_PRECISION_HIGH, QN_PRECISION_FAST, QN_PRECISION_EXACT};
    static const int32_t slots[] = {1, 2, 5, 16}, chunks[] = {0, 5, 16, 64};
    qn_test_draws d = {.seed = seed + 77};
    qn_test_world w = {.path = path,
                       .precision = precisions[qn_test_draw(&d, 3)],
                       .kv_type = (qn_kv_type)qn_test_draw(&d, QN_KV_Q8_0 + 1),
                       .context_size = 320,
                       .id_end = 400,
                       .adapters = {adapters[0], adapters[1]}};
    ask_alone(&w, seed);
    qn_model_options o = {.n_threads = 1 + (int32_t)qn_test_draw(&d, 3),
                          .parallel_slots = slots[qn_test_draw(&d, 4)],
                          .prefill_chunk = chunks[qn_test_draw(&d, 4)]};
    rage(&w, &o, seed);
    for (int i = 0; i < REQUESTS; i++) qn_test_answer_clear(&expected[i]);
}

static void under_fire(void **state)
{
    char path[4096];
    snprintf(path, sizeof path, "%s", qn_test_need_fixture(*state));
    const char *first = getenv("QUERN_FIRE_FIRST"), *many = getenv("QUERN_FIRE_SEEDS");
    uint64_t seed = first ? strtoull(first, NULL, 10) : 1;
    int n_seeds = many ? (int)strtol(many, NULL, 10) : SEEDS;
    const char *folder = qn_test_scratch();
    char adapters[2][4096];
    snprintf(adapters[0], sizeof adapters[0], "%s", make_adapter(path, folder, "one", 1));
    snprintf(adapters[1], sizeof adapters[1], "%s", make_adapter(path, folder, "two", 1000));
    const char *const folders[2] = {adapters[0], adapters[1]};
    int64_t blocks = qn_mem_live_blocks();
    for (int i = 0; i < n_seeds; i++) {
        one_seed(path, folders, seed + (uint64_t)i);
        assert_int_equal(qn_mem_live_blocks(), blocks);
        if (many) print_message("%s: seed %d of %d\n", path, i + 1, n_seeds);
    }
    qn_test_remove(folder);
}

int main(void)
{
    static const char *const kinds[][2] = {{"full attention", "models/llama"},
                                           {"sliding windows", "models/gemma3_text"},
                                           {"recurrent layers", "models/qwen3_5"}};
    struct CMUnitTest tests[3];
    for (int i = 0; i < 3; i++) {
        void *path = (void *)(uintptr_t)kinds[i][1];
        tests[i] = (struct CMUnitTest){kinds[i][0], under_fire, NULL, NULL, path};
    }
    return _cmocka_run_group_tests("fire", tests, 3, NULL, NULL);
}
