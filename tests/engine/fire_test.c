/* The same bits, under fire: many requests of all kinds at once, from several threads, each of which must
 * give what the same request gives alone on a fresh engine. None has images: a draft model sees none.
 * QUERN_FIRE_SEEDS=N runs N seeds (`make soak`), QUERN_FIRE_FIRST=S begins at seed S; an argument picks tests
 * by name ('*sliding*'). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "tests/engine/requests.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/adapter_dir.h"
#include "tests/support/models/model_dir.h"
#include "tests/support/scratch.h"

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

/* A fixture, and one that may guess for it, NULL: itself. Recurrent layers cannot take tokens back, so they
 * never guess, whoever would do it for them. */
typedef struct {
    const char *name, *fixture, *draft;
    int never_guesses;
} kind;

/* How the model of one seed is pressed. */
typedef struct {
    qn_model_options o;
    unsigned how;
    size_t room_bytes; /* for all that is computed, beyond what an idle model holds; 0: as much as it likes */
    int fails;         /* allocations fail now and then */
    int meddles;       /* somebody clears caches, sets limits, loads adapters and states */
    int restores;      /* it begins with the prefixes that the first model of the seed has left */
} pressure;

typedef struct {
    const pressure *p;
    const char *third; /* adapter */
    const char *state; /* file */
    qn_model *model;
    atomic_int next; /* request that nobody has taken yet */
    atomic_int is_over;
    atomic_llong n_cached, n_failed_rows;
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
        if (!qn_test_request_run(s->model, &requests[i], s->p->how, &got, &why) ||
            !qn_test_answer_agrees(&requests[i], &expected[i], &got, &why))
            note_failure(s, i, why.data);
        atomic_fetch_add(&s->n_cached, got.n_cached);
        for (int j = 0; j < QN_TEST_REQUEST_ROWS; j++)
            atomic_fetch_add(&s->n_failed_rows, got.rows[j].end == QN_END_ERROR);
        qn_buf_free(&why);
    }
    return NULL;
}

static void *meddle(void *user)
{
    storm *s = user;
    qn_test_draws d = {.seed = 5};
    while (!atomic_load(&s->is_over)) {
        qn_memory memory;
        qn_adapter_info adapter;
        if (s->p->fails) qn_mem_fail_nth(1 + qn_test_draw(&d, 40));
        switch (s->p->meddles ? qn_test_draw(&d, 9) : -1) {
        case 0:
            qn_model_clear_cache(s->model);
            break;
        case 1:
            qn_model_set_cache_limit(s->model, (size_t)qn_test_draw(&d, 3) << 16, NULL);
            break;
        case 2:
            qn_model_set_cache_limit(s->model, (size_t)1 << 28, NULL);
            break;
        case 3:
            qn_model_get_memory(s->model, &memory);
            qn_adapter_get_info(s->model, 1, &adapter);
            break;
        case 4:
            if (qn_adapter_load(s->model, &(qn_adapter_options){"three", s->third, 2}) == QN_OK)
                qn_adapter_unload(s->model, "three");
            break;
        case 5:
            qn_model_load_state(s->model, s->state);
            break;
        case 6:
            qn_model_save_state(s->model, s->state);
            break;
        case 7:
            qn_model_warm(s->model, &(qn_prompt){.rows = requests[3].rows, .n_rows = 1}, "kept");
            break;
        case 8:
            qn_model_unwarm(s->model, "kept");
            break;
        }
        usleep(300);
    }
    qn_mem_fail_nth(0);
    return NULL;
}

/* Nobody computes any more: no page is lost. */
static void check_nothing_held(qn_model *model)
{
    qn_memory memory;
    qn_figures f;
    qn_model_unwarm(model, "kept");
    qn_test_ok(qn_model_get_memory(model, &memory));
    assert_int_equal(memory.kv_bytes, 0);
    qn_test_ok(qn_model_clear_cache(model));
    qn_test_ok(qn_model_get_memory(model, &memory));
    assert_int_equal(memory.cache_memory_bytes, 0);
    qn_test_ok(qn_model_get_figures(model, &f));
    if (f.n_active || f.n_queued || f.pages_used || f.pages_kept)
        fail_msg("%d rows active, %d queued, %d pages in use, %d kept", (int)f.n_active, (int)f.n_queued,
                 (int)f.pages_used, (int)f.pages_kept);
}

/* Of all seeds of a fixture: what must have come about. Guesses: [1] where a draft model makes some. */
static struct {
    int64_t n_requests, n_preemptions, n_restarts, n_hits, n_cached, n_restored, n_failed;
    int64_t n_drafted[2], n_accepted[2];
} totals;

static void add_up(storm *s)
{
    qn_figures f;
    int by_model = s->p->o.draft_model != NULL;
    qn_test_ok(qn_model_get_figures(s->model, &f));
    totals.n_requests += REQUESTS;
    totals.n_preemptions += f.n_preemptions;
    totals.n_restarts += f.n_restarts;
    totals.n_hits += f.prefix_hits;
    totals.n_cached += atomic_load(&s->n_cached);
    totals.n_drafted[by_model] += f.n_drafted;
    totals.n_accepted[by_model] += f.n_accepted;
    totals.n_failed += atomic_load(&s->n_failed_rows);
}

/* Prefixes that another model has left: all that is found of them now was restored. */
static void restore(storm *s, const char *path)
{
    qn_cache_counters counters;
    qn_test_ok(qn_model_load_state(s->model, path));
    qn_test_ok(qn_cache_get_counters(s->model, &counters));
    totals.n_restored += counters.n_tokens;
}

static void rage(const qn_test_world *w, const pressure *p, const char *state, uint64_t seed)
{
    storm s = {.p = p, .third = w->adapters[0], .state = state};
    pthread_t threads[CALLERS], meddler;
    qn_memory memory;
    pthread_mutex_init(&s.lock, NULL);
    qn_test_ok(qn_test_world_open(w, &p->o, &s.model));
    qn_test_ok(qn_model_get_memory(s.model, &memory));
    if (p->restores) restore(&s, state);
    if (p->room_bytes)
        qn_test_ok(qn_model_set_memory_limit(s.model, memory.active_memory_bytes + p->room_bytes, NULL));
    for (int i = 0; i < CALLERS; i++) assert_int_equal(pthread_create(&threads[i], NULL, call, &s), 0);
    if (p->fails || p->meddles) assert_int_equal(pthread_create(&meddler, NULL, meddle, &s), 0);
    for (int i = 0; i < CALLERS; i++) pthread_join(threads[i], NULL);
    atomic_store(&s.is_over, 1);
    if (p->fails || p->meddles) pthread_join(meddler, NULL);
    if (s.n_failed)
        fail_msg("%s, seed %d: %d of %d requests: %s", w->path, (int)seed, s.n_failed, REQUESTS, s.why.data);
    add_up(&s);
    if (!p->room_bytes) qn_test_ok(qn_model_save_state(s.model, state));
    check_nothing_held(s.model);
    if (!p->room_bytes) assert_true(atomic_load(&s.n_cached) > 0);
    qn_model_close(&s.model);
    pthread_mutex_destroy(&s.lock);
    qn_buf_free(&s.why);
}

/* What each request gives alone on a fresh engine, nobody ending it. Returns the most memory that one took
 * beyond what the idle model held. */
static size_t ask_alone(const qn_test_world *w, uint64_t seed)
{
    int64_t n_tokens = 0;
    size_t most = 0;
    for (int i = 0; i < REQUESTS; i++) {
        qn_model *model = NULL;
        qn_buf why = {0};
        qn_memory before, after;
        qn_test_request_make(w, seed * REQUESTS + (uint64_t)i, requests, expected, i, &requests[i]);
        qn_test_request calm = requests[i];
        calm.end_after = -1;
        calm.o.deadline_ms = 0;
        calm.o.n_draft = 0;
        qn_test_ok(qn_test_world_open(w, &(qn_model_options){.n_threads = 1}, &model));
        qn_test_ok(qn_model_get_memory(model, &before));
        qn_test_ok(qn_model_reset_peak_memory(model));
        if (!qn_test_request_run(model, &calm, 0, &expected[i], &why))
            fail_msg("%s, seed %d, request %d alone: %s", w->path, (int)seed, i, why.data);
        qn_test_ok(qn_model_get_memory(model, &after));
        size_t took = after.peak_memory_bytes - before.active_memory_bytes;
        if (took > most) most = took;
        qn_model_close(&model);
        for (int j = 0; j < QN_TEST_REQUEST_ROWS; j++) n_tokens += expected[i].rows[j].n;
    }
    assert_true(n_tokens > 5 * REQUESTS);
    return most;
}

/* draft: a model that guesses in two of three runs, for those requests that want guesses; NULL: there is
 * none.
 */
static void one_seed(const char *path, const char *draft, const char *const *adapters, const char *state,
                     uint64_t seed)
{
    static const qn_precision precisions[] = {QN_PRECISION_HIGH, QN_PRECISION_FAST, QN_PRECISION_EXACT};
    static const int32_t slots[] = {1, 2, 5, 16}, chunks[] = {0, 5, 16, 64};
    qn_test_draws d = {.seed = seed + 77};
    qn_test_world w = {.path = path,
                       .precision = precisions[qn_test_draw(&d, 3)],
                       .kv_type = (qn_kv_type)qn_test_draw(&d, QN_KV_Q4_0 + 1),
                       .context_size = 320,
                       .id_end = 400,
                       .adapters = {adapters[0], adapters[1]}};
    size_t most = ask_alone(&w, seed);
    pressure p = {.o = {.n_threads = 1 + (int32_t)qn_test_draw(&d, 3),
                        .parallel_slots = slots[qn_test_draw(&d, 4)],
                        .prefill_chunk = chunks[qn_test_draw(&d, 4)],
                        .background = (int)qn_test_draw(&d, 2)}};
    if (p.o.background) p.how |= QN_TEST_BACKGROUND;
    p.o.draft_model = seed % 3 != 0 ? draft : NULL;
    rage(&w, &p, state, seed); /* with all the memory it likes */
    p.room_bytes = most + most / 2;
    p.how |= QN_TEST_MAY_FAIL; /* to open one, when others hold all there is */
    p.o.parallel_slots = 16;
    p.restores = 1;
    p.o.draft_model = seed % 3 != 2 ? draft : NULL;
    rage(&w, &p, state, seed);
    p.meddles = 1;
    p.fails = (int)(seed % 2);
    p.o.draft_model = seed % 3 != 1 ? draft : NULL;
    rage(&w, &p, state, seed);
}

/* Whether the one may guess for the other: in other sets of fixtures their tokens may differ. */
static int may_guess(const char *path, const char *draft)
{
    qn_model *model = NULL;
    qn_status status = qn_model_open(path, &(qn_model_options){.n_threads = 1, .draft_model = draft}, &model);
    if (status != QN_E_ARG) qn_test_ok(status);
    qn_model_close(&model);
    return status == QN_OK;
}

static void check_totals(const kind *k, int n_seeds)
{
    print_message(
        "%s: %d seeds, %lld requests: %lld preemptions, %lld restarts, %lld prefixes found (%lld "
        "tokens), %lld tokens restored, %lld rows out of memory; guesses that came true: %lld of %lld, "
        "beside a draft model %lld of %lld\n",
        k->name, n_seeds, (long long)totals.n_requests, (long long)totals.n_preemptions,
        (long long)totals.n_restarts, (long long)totals.n_hits, (long long)totals.n_cached,
        (long long)totals.n_restored, (long long)totals.n_failed, (long long)totals.n_accepted[0],
        (long long)totals.n_drafted[0], (long long)totals.n_accepted[1], (long long)totals.n_drafted[1]);
    assert_true(totals.n_cached > 0 && totals.n_restored > 0);
    if (k->never_guesses) assert_int_equal(totals.n_drafted[0] + totals.n_drafted[1], 0);
    if (n_seeds < 3) return; /* few requests need not meet with the rest */
    assert_true(totals.n_preemptions > 0);
    if (!k->never_guesses) assert_true(totals.n_accepted[0] > 0 && totals.n_accepted[1] > 0);
}

static void under_fire(void **state)
{
    const kind *k = *state;
    char path[4096], drafter[4096], adapters[2][4096], file[4096];
    snprintf(path, sizeof path, "%s", qn_test_need_fixture(k->fixture));
    snprintf(drafter, sizeof drafter, "%s", qn_test_need_fixture(k->draft ? k->draft : k->fixture));
    const char *draft = may_guess(path, drafter) ? drafter : NULL;
    const char *first = getenv("QUERN_FIRE_FIRST"), *many = getenv("QUERN_FIRE_SEEDS");
    uint64_t seed = first ? strtoull(first, NULL, 10) : 1;
    int n_seeds = many ? (int)strtol(many, NULL, 10) : SEEDS;
    const char *folder = qn_test_scratch();
    snprintf(adapters[0], sizeof adapters[0], "%s", make_adapter(path, folder, "one", 1));
    snprintf(adapters[1], sizeof adapters[1], "%s", make_adapter(path, folder, "two", 1000));
    const char *const folders[2] = {adapters[0], adapters[1]};
    snprintf(file, sizeof file, "%s", qn_test_path(folder, "state"));
    int64_t blocks = qn_mem_live_blocks();
    memset(&totals, 0, sizeof totals);
    for (int i = 0; i < n_seeds; i++) {
        one_seed(path, draft, folders, file, seed + (uint64_t)i);
        assert_int_equal(qn_mem_live_blocks(), blocks);
        if (many && i % 20 == 19) print_message("%s: %d seeds\n", k->name, i + 1);
    }
    check_totals(k, n_seeds);
    qn_test_remove(folder);
}

int main(int argc, char **argv)
{
    static kind kinds[] = {{"full attention", "models/llama", NULL, 0},
                           {"sliding windows", "models/gemma3_text", NULL, 0},
                           {"recurrent layers", "models/qwen3_5", "models/qwen3", 1}};
    struct CMUnitTest tests[3];
    for (int i = 0; i < 3; i++)
        tests[i] = (struct CMUnitTest){kinds[i].name, under_fire, NULL, NULL, &kinds[i]};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return _cmocka_run_group_tests("fire", tests, 3, NULL, NULL);
}
