/* What handles cost over the bare pass. usage: handles_bench [MODEL [TOKENS]]
 *
 * Decode steps behind a beginning of TOKENS tokens (128), on one thread of computing: qn_engine_step on a
 * sequence with the logits copied out, beside, on the same engine, qn_forward_with_cache and qn_cache_free by
 * 1 to 16 calling threads, each with a handle of its own. Shown are microseconds of a step and how many the
 * handles add to the bare pass, medians of rounds in which all take turns, and allocations in a step (those
 * of new handles and threads, of all callers, among them). Without MODEL: a tiny one of the tests, whose pass
 * is so short that nothing hides behind it. */
#include <pthread.h>
#include <quern/quern.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/handles.h"
#include "backend/native_parts.h"
#include "base/clock.h"
#include "base/mem.h"
#include "engine/engine.h"

enum { ROUNDS = 9, WARM = 32, STEPS = 224, THREADS_MAX = 16, WAYS = 6, SLOTS = 16 };

static const int way_threads[WAYS] = {0, 1, 2, 4, 8, 16}; /* 0: the bare pass */

typedef struct {
    qn_engine *engine;
    qn_model *model;
    qn_cache *root;
    int64_t vocab_size, n_tokens;
    int32_t *ids;
    float *logits[THREADS_MAX];
} bench;

static void check(qn_status status)
{
    if (status == QN_OK) return;
    fprintf(stderr, "handles_bench: %s\n", qn_last_error());
    exit(1);
}

static qn_status copy_logits(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    const bench *b = user;
    memcpy(b->logits[0], logits, (size_t)b->vocab_size * sizeof *logits);
    return QN_OK;
}

static void open_model(bench *b, const char *path)
{
    qn_model_info info;
    const int64_t context = b->n_tokens + WARM + STEPS;
    const qn_model_options o = {
        .n_threads = 1, .parallel_slots = SLOTS, .context_size = context, .no_prefix_cache = 1};
    check(qn_model_open(path, &o, &b->model));
    check(qn_model_get_info(b->model, &info));
    b->engine = ((native_model *)b->model->object)->engine; /* the same weights, at the same place */
    b->vocab_size = info.vocab_size;
    b->ids = qn_alloc_array((size_t)context, sizeof *b->ids);
    if (!b->ids) check(QN_E_NOMEM);
    for (int64_t i = 0; i < context; i++) b->ids[i] = (int32_t)(i * 7919 % b->vocab_size);
    for (int i = 0; i < THREADS_MAX; i++)
        if (!(b->logits[i] = qn_alloc_array((size_t)b->vocab_size, sizeof(float)))) check(QN_E_NOMEM);
    check(qn_forward_with_cache(b->model, b->ids, b->n_tokens, NULL, b->logits[0], b->vocab_size, &b->root));
}

typedef struct {
    bench *b;
    int thread;
    pthread_barrier_t *start;
    int64_t begin, end; /* of the steps behind the first WARM */
} caller;

static void *call_engine(void *arg)
{
    caller *c = arg;
    bench *b = c->b;
    qn_sequence *s = NULL;
    check(qn_sequence_new(b->engine, &s));
    qn_feed feed = {s, b->ids, b->n_tokens, QN_LOGITS_LAST};
    check(qn_engine_step(b->engine, 1, &feed, copy_logits, NULL, b));
    pthread_barrier_wait(c->start);
    for (int i = 0; i < WARM + STEPS; i++) {
        if (i == WARM) c->begin = qn_clock_ns();
        feed = (qn_feed){s, b->ids + b->n_tokens + i, 1, QN_LOGITS_LAST};
        check(qn_engine_step(b->engine, 1, &feed, copy_logits, NULL, b));
    }
    c->end = qn_clock_ns();
    qn_sequence_free(s);
    return NULL;
}

static void *call_handles(void *arg)
{
    caller *c = arg;
    const bench *b = c->b;
    qn_cache *at = NULL;
    check(qn_cache_slice(b->root, b->n_tokens, &at));
    pthread_barrier_wait(c->start);
    for (int i = 0; i < WARM + STEPS; i++) {
        qn_cache *next = NULL;
        if (i == WARM) c->begin = qn_clock_ns();
        check(qn_forward_with_cache(b->model, b->ids + b->n_tokens + i, 1, at, b->logits[c->thread],
                                    b->vocab_size, &next));
        qn_cache_free(at);
        at = next;
    }
    c->end = qn_clock_ns();
    qn_cache_free(at);
    return NULL;
}

/* Nanoseconds of a step of n callers; 0: of one who needs no handles. */
static double run(bench *b, int n)
{
    pthread_t threads[THREADS_MAX];
    caller callers[THREADS_MAX];
    pthread_barrier_t start;
    int n_threads = n ? n : 1;
    pthread_barrier_init(&start, NULL, (unsigned)n_threads);
    for (int i = 0; i < n_threads; i++) {
        callers[i] = (caller){.b = b, .thread = i, .start = &start};
        if (pthread_create(&threads[i], NULL, n ? call_handles : call_engine, &callers[i])) check(QN_E_NOMEM);
    }
    for (int i = 0; i < n_threads; i++) pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&start);
    int64_t begin = callers[0].begin, end = callers[0].end;
    for (int i = 1; i < n_threads; i++) {
        if (callers[i].begin < begin) begin = callers[i].begin;
        if (callers[i].end > end) end = callers[i].end;
    }
    return (double)(end - begin) / STEPS / n_threads;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    static double ns[WAYS][ROUNDS], added[WAYS][ROUNDS];
    static int64_t allocations[WAYS];
    bench b = {.n_tokens = argc > 2 ? strtol(argv[2], NULL, 10) : 128};
    if (b.n_tokens < 1) b.n_tokens = 1;
    open_model(&b, argc > 1 ? argv[1] : "tests/golden/models/llama");
    for (int r = 0; r < ROUNDS; r++)
        for (int w = 0; w < WAYS; w++) {
            int64_t before = qn_mem_allocations();
            ns[w][r] = run(&b, way_threads[w]);
            added[w][r] = ns[w][r] - ns[0][r];
            allocations[w] = qn_mem_allocations() - before;
        }
    printf("%lld tokens, vocabulary of %lld\n", (long long)b.n_tokens, (long long)b.vocab_size);
    for (int w = 0; w < WAYS; w++) {
        qsort(ns[w], ROUNDS, sizeof **ns, by_value);
        qsort(added[w], ROUNDS, sizeof **added, by_value);
        if (!way_threads[w])
            printf("bare pass           %8.2f us\n", ns[w][ROUNDS / 2] * 1e-3);
        else
            printf("%2d calling threads  %8.2f us a step, %+.2f us, %.2f allocations\n", way_threads[w],
                   ns[w][ROUNDS / 2] * 1e-3, added[w][ROUNDS / 2] * 1e-3,
                   (double)allocations[w] / (WARM + STEPS) / way_threads[w]);
    }
    qn_cache_free(b.root);
    for (int i = 0; i < THREADS_MAX; i++) qn_free(b.logits[i]);
    qn_free(b.ids);
    qn_model_close(&b.model);
    return 0;
}
