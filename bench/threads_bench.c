/* What it costs to keep threads together: a barrier inside a run, a whole run of nothing, a piece of work
 * claimed; beside the time in which a cache line goes to another core and back, measured in the same run: a
 * barrier of two cannot take less than about one such round trip.
 *
 * usage: threads_bench [--threads N] [--batches N]   (default: each number of threads up to the cores')
 *
 * Nanoseconds, median and 99th percentile over batches of BATCH, and the median over the round trip's. */
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/threads.h"

enum { BATCH = 16, BATCHES_MAX = 1000000, CLAIM_ITEMS = 64, PAUSES = 100, PAUSE_NS = 3000000 };

typedef struct {
    qn_pool *pool;
    int n_batches;
    double *ns;                    /* [n_batches], of one operation */
    _Alignas(64) atomic_uint ball; /* rises by one at each throw; even: thread 0 throws */
} job;

static void play_ball(void *arg, int thread, int n_threads)
{
    job *j = arg;
    if (thread > 1) return;
    for (int b = 0; b < j->n_batches; b++) {
        int64_t start = qn_clock_ns();
        for (unsigned i = 0; i < BATCH; i++) {
            unsigned mine = 2 * ((unsigned)b * BATCH + i) + (unsigned)thread;
            while (atomic_load_explicit(&j->ball, memory_order_acquire) != mine) continue;
            atomic_store_explicit(&j->ball, mine + 1, memory_order_release);
        }
        if (thread == 0) j->ns[b] = (double)(qn_clock_ns() - start) / BATCH;
    }
}

static void meet(void *arg, int thread, int n_threads)
{
    job *j = arg;
    for (int b = 0; b < j->n_batches; b++) {
        int64_t start = qn_clock_ns();
        for (int i = 0; i < BATCH; i++) qn_pool_barrier(j->pool);
        if (thread == 0) j->ns[b] = (double)(qn_clock_ns() - start) / BATCH;
    }
}

/* All pieces of CLAIM_ITEMS items and no work: the price of sharing out one step. */
static void claim(void *arg, int thread, int n_threads)
{
    job *j = arg;
    int64_t begin, end;
    for (int b = 0; b < j->n_batches; b++) {
        int64_t start = qn_clock_ns();
        for (int i = 0; i < BATCH; i++)
            while (qn_pool_claim(j->pool, thread, CLAIM_ITEMS, &begin, &end)) continue;
        if (thread == 0) j->ns[b] = (double)(qn_clock_ns() - start) / BATCH;
        qn_pool_barrier(j->pool);
    }
}

static void nothing(void *arg, int thread, int n_threads)
{
}

static void run_often(job *j)
{
    for (int b = 0; b < j->n_batches; b++) {
        int64_t start = qn_clock_ns();
        for (int i = 0; i < BATCH; i++) qn_pool_run(j->pool, nothing, j);
        j->ns[b] = (double)(qn_clock_ns() - start) / BATCH;
    }
}

/* Runs after a pause in which the workers went to sleep. */
static void run_asleep(job *j)
{
    for (int b = 0; b < j->n_batches; b++) {
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        int64_t start = qn_clock_ns();
        qn_pool_run(j->pool, nothing, j);
        j->ns[b] = (double)(qn_clock_ns() - start);
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Prints one line; returns the median. */
static double report(const char *what, int threads, job *j, double round_trip)
{
    int n = j->n_batches;
    qsort(j->ns, (size_t)n, sizeof *j->ns, by_value);
    double median = j->ns[n / 2];
    printf("%-10s %7d %9.0f %9.0f", what, threads, median, j->ns[(int64_t)n * 99 / 100]);
    if (round_trip > 0) printf(" %13.2f", median / round_trip);
    putchar('\n');
    return median;
}

static int measure(job *j, int n_threads, double *round_trip)
{
    if (qn_pool_new(n_threads, &j->pool) != QN_OK) {
        fprintf(stderr, "threads_bench: %s\n", qn_last_error());
        return 1;
    }
    if (n_threads == 2) {
        atomic_store(&j->ball, 0);
        qn_pool_run(j->pool, play_ball, j);
        *round_trip = report("round trip", 2, j, 0);
    }
    qn_pool_run(j->pool, meet, j);
    report("barrier", n_threads, j, *round_trip);
    run_often(j);
    report("run", n_threads, j, *round_trip);
    qn_pool_run(j->pool, claim, j);
    report("claims", n_threads, j, *round_trip);
    int n_batches = j->n_batches;
    j->n_batches = n_batches < PAUSES ? n_batches : PAUSES;
    run_asleep(j);
    report("run, woken", n_threads, j, *round_trip);
    j->n_batches = n_batches;
    qn_pool_free(j->pool);
    return 0;
}

int main(int argc, char **argv)
{
    static job j = {.n_batches = 20000};
    int only = 0, most = qn_threads_default();
    for (int i = 1; i < argc; i++) {
        int *to = strcmp(argv[i], "--threads") == 0   ? &only
                  : strcmp(argv[i], "--batches") == 0 ? &j.n_batches
                                                      : NULL;
        long value = to && i + 1 < argc ? strtol(argv[++i], NULL, 10) : 0;
        if (value < 1 || value > BATCHES_MAX) {
            fprintf(stderr, "usage: threads_bench [--threads N] [--batches N]\n");
            return 2;
        }
        *to = (int)value;
    }
    j.ns = qn_alloc_array((size_t)j.n_batches, sizeof *j.ns);
    if (!j.ns) return 1;
    double round_trip = 0;
    int failed = 0;
    printf("%-10s %7s %9s %9s %13s\n", "", "threads", "median ns", "p99 ns", "x round trip");
    if (only)
        failed = measure(&j, only, &round_trip);
    else
        for (int n = most > 1 ? 2 : 1; n <= most && !failed; n++) failed = measure(&j, n, &round_trip);
    qn_free(j.ns);
    return failed;
}
