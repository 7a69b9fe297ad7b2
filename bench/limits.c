/* What this machine can do at most: bytes read from memory per second and multiply-adds per second, for each
 * number of threads and each instruction set that it has. The speed of a model is judged against these
 * figures.
 *
 * usage: limits [--json] [--mib N] [--repeats N] [--threads N]
 * Without --threads each number of threads up to the cores' is measured.
 *
 * Reading: a buffer far larger than the caches, in order, each thread its share. Multiply-adds: operands in
 * registers, enough independent sums to hide latency. Best and median of the repeats; the best is the limit.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/threads.h"
#include "bench/peaks.h"

enum { REPEATS_MAX = 99, THREADS_MAX = 1024 };

typedef struct {
    char *buffer;
    size_t n_bytes;
    peak_read_fn *read; /* or NULL: */
    peak_mac_fn *mac;
    int64_t n_rounds;
    volatile uint64_t sink;
} work;

static void fill_share(void *arg, int thread, int n_threads)
{
    work *w = arg;
    int64_t begin, end;
    qn_pool_share((int64_t)w->n_bytes, PEAK_CHUNK, thread, n_threads, &begin, &end);
    memset(w->buffer + begin, 1 + thread, (size_t)(end - begin));
}

static void do_share(void *arg, int thread, int n_threads)
{
    work *w = arg;
    if (w->mac) {
        w->sink = w->mac(w->n_rounds);
        return;
    }
    int64_t begin, end;
    qn_pool_share((int64_t)w->n_bytes, PEAK_CHUNK, thread, n_threads, &begin, &end);
    w->sink = w->read(w->buffer + begin, (size_t)(end - begin));
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of `repeats` runs, sorted. */
static void measure(qn_pool *pool, work *w, int repeats, double *seconds)
{
    qn_pool_run(pool, do_share, w);
    for (int r = 0; r < repeats; r++) {
        int64_t start = qn_clock_ns();
        qn_pool_run(pool, do_share, w);
        seconds[r] = (double)(qn_clock_ns() - start) * 1e-9;
    }
    qsort(seconds, (size_t)repeats, sizeof *seconds, by_value);
}

/* As many rounds as fill about 20 ms. */
static int64_t rounds_for(qn_pool *pool, work *w)
{
    for (w->n_rounds = 1000;; w->n_rounds *= 2) {
        int64_t start = qn_clock_ns();
        qn_pool_run(pool, do_share, w);
        if (qn_clock_ns() - start > 20000000) return w->n_rounds;
    }
}

/* One line, or one member of a JSON list. amount: bytes or multiply-adds of a run. */
static void show(int json, int *first, const char *type, const char *set, int n_threads, double amount,
                 const double *seconds, int repeats)
{
    double best = amount / seconds[0] * 1e-9, median = amount / seconds[repeats / 2] * 1e-9;
    if (json)
        printf("%s\n  {\"type\": \"%s\", \"set\": \"%s\", \"threads\": %d, \"best\": %.2f, \"median\": %.2f}",
               *first ? "" : ",", type, set, n_threads, best, median);
    else
        printf("%-6s %-8s %7d %10.2f %10.2f\n", type, set, n_threads, best, median);
    *first = 0;
    fflush(stdout);
}

static int run(int json, int64_t mib, int repeats, int threads)
{
    int n_max = threads ? threads : qn_threads_default(), n_min = threads ? threads : 1, first = 1, rc = 1;
    double seconds[REPEATS_MAX];
    qn_pool *pool = NULL;
    work w = {.n_bytes = (size_t)mib << 20};
    w.buffer = qn_alloc(w.n_bytes + 4096); /* prefetching looks a little ahead */
    if (!w.buffer) goto out;
    madvise((void *)(((uintptr_t)w.buffer + 4095) & ~(uintptr_t)4095), w.n_bytes, MADV_HUGEPAGE);

    if (json)
        printf("{\"threads\": %d, \"buffer_mib\": %lld, \"repeats\": %d,\n \"read_gb_per_sec\": [", n_max,
               (long long)mib, repeats);
    else
        printf("reading %lld MiB\n%-6s %-8s %7s %10s %10s\n", (long long)mib, "", "set", "threads",
               "best GB/s", "median");
    for (int n_threads = n_min; n_threads <= n_max; n_threads++) {
        if (qn_pool_new(n_threads, &pool) != QN_OK) goto out;
        qn_pool_run(pool, fill_share, &w);
        for (size_t i = 0; i < sizeof peak_readers / sizeof *peak_readers; i++) {
            if (!peak_readers[i].usable()) continue;
            w.read = peak_readers[i].read;
            measure(pool, &w, repeats, seconds);
            show(json, &first, "read", peak_readers[i].set, n_threads, (double)w.n_bytes, seconds, repeats);
        }
        qn_pool_free(pool);
        pool = NULL;
    }
    if (json)
        printf("\n ],\n \"gmac_per_sec\": [");
    else
        printf("multiply-adds\n%-6s %-8s %7s %10s %10s\n", "type", "set", "threads", "best G/s", "median");
    first = 1;
    for (int n_threads = n_min; n_threads <= n_max; n_threads++) {
        if (qn_pool_new(n_threads, &pool) != QN_OK) goto out;
        for (size_t i = 0; i < sizeof peak_arithmetic / sizeof *peak_arithmetic; i++) {
            if (!peak_arithmetic[i].usable()) continue;
            w.mac = peak_arithmetic[i].run;
            double macs =
                (double)peak_arithmetic[i].macs_per_round * (double)rounds_for(pool, &w) * n_threads;
            measure(pool, &w, repeats, seconds);
            show(json, &first, peak_arithmetic[i].type, peak_arithmetic[i].set, n_threads, macs, seconds,
                 repeats);
        }
        qn_pool_free(pool);
        pool = NULL;
    }
    if (json) printf("\n ]}\n");
    rc = 0;
out:
    if (rc) fprintf(stderr, "limits: %s\n", qn_last_error());
    qn_pool_free(pool);
    qn_free(w.buffer);
    return rc;
}

int main(int argc, char **argv)
{
    int json = 0;
    int64_t mib = 512, repeats = 9, threads = 0;
    for (int i = 1; i < argc; i++) {
        int64_t *number = strcmp(argv[i], "--mib") == 0       ? &mib
                          : strcmp(argv[i], "--repeats") == 0 ? &repeats
                          : strcmp(argv[i], "--threads") == 0 ? &threads
                                                              : NULL;
        char *end = NULL;
        if (number && i + 1 < argc) *number = strtoll(argv[++i], &end, 10);
        if (strcmp(argv[i], "--json") == 0) {
            json = 1;
        } else if (!end || *end || mib < 1 || mib > 1 << 20 || repeats < 1 || repeats > REPEATS_MAX ||
                   threads < 0 || threads > THREADS_MAX) {
            fprintf(stderr, "usage: limits [--json] [--mib N] [--repeats 1..%d] [--threads 1..%d]\n",
                    REPEATS_MAX, THREADS_MAX);
            return 2;
        }
    }
    return run(json, mib, (int)repeats, (int)threads);
}
