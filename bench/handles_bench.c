/* What handles cost over the bare passes. usage: handles_bench [MODEL [TOKENS [THREADS]]]
 *
 * N callers (1 to 16), each with a handle of its own behind a beginning of TOKENS tokens (128), decode by
 * qn_forward_with_cache and qn_cache_free, all at once, each coming back as soon as it has its logits.
 * Beside them, on the same engine and in the same rounds, one thread computes the same passes bare:
 * qn_engine_step with the logits copied out, all N sequences in each step ("together"), and one sequence
 * alone. Shown are microseconds of wall-clock time for a pass, which is the time of all divided by the passes
 * of all, medians of rounds in which all take turns.
 *
 * What the calls add is the difference to the passes together: callers who share steps owe the gain of a
 * shared step to the engine, and a difference to passes alone would set that gain off against the cost of the
 * call. No caller can do better than "together": it has all N passes at hand all the time, and no thread to
 * wait for. With fewer than N in a step (some callers are on their way back) part of what is added is the
 * engine's own.
 *
 * Also shown, from when all callers have warmed up (each holding two handles, the most that it ever holds) to
 * the end: allocations, and how often a thread of the process went to sleep, for a pass.
 *
 * The engine has THREADS threads (1), which leaves a core to the callers where there are two. Without MODEL:
 * a tiny one of the tests, whose pass is so short that nothing hides behind it. */
#include <pthread.h>
#include <quern/quern.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "api/handles.h"
#include "backend/native/native_parts.h"
#include "base/clock.h"
#include "base/mem.h"
#include "engine/machine/engine.h"

enum { ROUNDS = 21, WARM = 32, STEPS = 224, CALLERS_MAX = 16, WAYS = 5 };

static const int way_callers[WAYS] = {1, 2, 4, 8, 16};

typedef struct {
    qn_engine *engine;
    qn_model *model;
    int64_t vocab_size, n_tokens;
    int32_t *ids;
    float *logits[CALLERS_MAX];
} bench;

/* Of one round. */
typedef struct {
    double ns; /* of a pass */
    double allocations, sleeps;
} result;

static void check(qn_status status)
{
    if (status == QN_OK) return;
    fprintf(stderr, "handles_bench: %s\n", qn_last_error());
    exit(1);
}

static void open_model(bench *b, const char *path, int n_threads)
{
    qn_model_info info;
    const int64_t context = b->n_tokens + WARM + STEPS;
    const qn_model_options o = {
        .n_threads = n_threads, .parallel_slots = CALLERS_MAX, .context_size = context, .no_prefix_cache = 1};
    check(qn_model_open(path, &o, &b->model));
    check(qn_model_get_info(b->model, &info));
    b->engine = ((native_model *)b->model->object)->engine; /* the same weights, at the same place */
    b->vocab_size = info.vocab_size;
    b->ids = qn_alloc_array((size_t)context, sizeof *b->ids);
    if (!b->ids) check(QN_E_NOMEM);
    for (int64_t i = 0; i < context; i++) b->ids[i] = (int32_t)(i * 7919 % b->vocab_size);
    for (int i = 0; i < CALLERS_MAX; i++)
        if (!(b->logits[i] = qn_alloc_array((size_t)b->vocab_size, sizeof(float)))) check(QN_E_NOMEM);
}

/* ---- bare --------------------------------------------------------------------------------------------- */

static qn_status copy_logits(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    const bench *b = user;
    memcpy(b->logits[feed], logits, (size_t)b->vocab_size * sizeof *logits);
    return QN_OK;
}

/* Nanoseconds of a pass of n sequences together. */
static double run_bare(bench *b, int n)
{
    qn_sequence *s[CALLERS_MAX];
    qn_feed feeds[CALLERS_MAX];
    int64_t begin = 0;
    for (int k = 0; k < n; k++) {
        check(qn_sequence_new(b->engine, &s[k]));
        feeds[0] = (qn_feed){s[k], b->ids, b->n_tokens, QN_LOGITS_LAST};
        check(qn_engine_step(b->engine, 1, feeds, copy_logits, NULL, b));
    }
    for (int i = 0; i < WARM + STEPS; i++) {
        if (i == WARM) begin = qn_clock_ns();
        for (int k = 0; k < n; k++) feeds[k] = (qn_feed){s[k], b->ids + b->n_tokens + i, 1, QN_LOGITS_LAST};
        check(qn_engine_step(b->engine, n, feeds, copy_logits, NULL, b));
    }
    double ns = (double)(qn_clock_ns() - begin) / STEPS / n;
    for (int k = 0; k < n; k++) qn_sequence_free(s[k]);
    return ns;
}

/* ---- handles ------------------------------------------------------------------------------------------ */

typedef struct {
    bench *b;
    int number;
    pthread_barrier_t *warm;
    int64_t begin, end;
} caller;

static void *call(void *arg)
{
    caller *c = arg;
    const bench *b = c->b;
    qn_cache *at = NULL, *next = NULL;
    float *logits = b->logits[c->number];
    check(qn_forward_with_cache(b->model, b->ids, b->n_tokens, NULL, logits, b->vocab_size, &at));
    for (int i = 0; i < WARM + STEPS; i++) {
        check(qn_forward_with_cache(b->model, b->ids + b->n_tokens + i, 1, at, logits, b->vocab_size, &next));
        if (i == WARM - 1) {
            pthread_barrier_wait(c->warm);
            pthread_barrier_wait(c->warm); /* the figures so far are taken */
            c->begin = qn_clock_ns();
        }
        qn_cache_free(at);
        at = next;
    }
    c->end = qn_clock_ns();
    qn_cache_free(at);
    return NULL;
}

static int64_t count_sleeps(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_nvcsw : 0;
}

static result run_handles(bench *b, int n)
{
    pthread_t threads[CALLERS_MAX];
    caller callers[CALLERS_MAX];
    pthread_barrier_t warm;
    pthread_barrier_init(&warm, NULL, (unsigned)n + 1);
    for (int i = 0; i < n; i++) {
        callers[i] = (caller){.b = b, .number = i, .warm = &warm};
        if (pthread_create(&threads[i], NULL, call, &callers[i])) check(QN_E_NOMEM);
    }
    pthread_barrier_wait(&warm);
    int64_t allocations = qn_mem_allocations(), sleeps = count_sleeps();
    pthread_barrier_wait(&warm);
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
    allocations = qn_mem_allocations() - allocations;
    sleeps = count_sleeps() - sleeps;
    pthread_barrier_destroy(&warm);
    int64_t begin = callers[0].begin, end = callers[0].end;
    for (int i = 1; i < n; i++) {
        if (callers[i].begin < begin) begin = callers[i].begin;
        if (callers[i].end > end) end = callers[i].end;
    }
    double passes = (double)STEPS * n;
    return (result){(double)(end - begin) / passes, (double)allocations / passes, (double)sleeps / passes};
}

/* ---- figures ------------------------------------------------------------------------------------------ */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x)
{
    qsort(x, ROUNDS, sizeof *x, by_value);
    return x[ROUNDS / 2];
}

int main(int argc, char **argv)
{
    static double alone[WAYS][ROUNDS], together[WAYS][ROUNDS], ns[WAYS][ROUNDS];
    static double to_alone[WAYS][ROUNDS], to_together[WAYS][ROUNDS];
    static double allocations[WAYS][ROUNDS], sleeps[WAYS][ROUNDS];
    bench b = {.n_tokens = argc > 2 ? strtol(argv[2], NULL, 10) : 128};
    int n_threads = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 1;
    if (b.n_tokens < 1) b.n_tokens = 1;
    open_model(&b, argc > 1 ? argv[1] : "tests/golden/models/llama", n_threads);
    for (int r = 0; r < ROUNDS; r++) {
        for (int w = 0; w < WAYS; w++) {
            alone[w][r] = run_bare(&b, 1);
            together[w][r] = run_bare(&b, way_callers[w]);
            result x = run_handles(&b, way_callers[w]);
            ns[w][r] = x.ns;
            to_alone[w][r] = x.ns - alone[w][r];
            to_together[w][r] = x.ns - together[w][r];
            allocations[w][r] = x.allocations;
            sleeps[w][r] = x.sleeps;
        }
    }
    printf("%lld tokens, vocabulary of %lld, %d threads; microseconds of a pass\n"
           "callers  handles  bare alone: added        bare together: added    allocations  sleeps\n",
           (long long)b.n_tokens, (long long)b.vocab_size, n_threads);
    for (int w = 0; w < WAYS; w++)
        printf("%7d %8.2f %11.2f %+7.2f %17.2f %+7.2f %14.4f %7.2f\n", way_callers[w], median(ns[w]) * 1e-3,
               median(alone[w]) * 1e-3, median(to_alone[w]) * 1e-3, median(together[w]) * 1e-3,
               median(to_together[w]) * 1e-3, median(allocations[w]), median(sleeps[w]));
    for (int i = 0; i < CALLERS_MAX; i++) qn_free(b.logits[i]);
    qn_free(b.ids);
    qn_model_close(&b.model);
    return 0;
}
