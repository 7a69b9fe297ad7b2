/* Plain products beside the peaks of the same run: gemm_f32, and gemm_bf16 where the set has it. usage:
 * gemm_bench [--threads N] [M N K]...
 *
 * [M, K] x [K, N], rows shared by the threads; without shapes those of a square product and of factors of
 * rank
 * 8. Each turn measures the peak, then the product; shown are the best of all turns and their ratio. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/threads.h"
#include "bench/peaks.h"
#include "device/cpu/kernels/kernels.h"

enum { TURNS = 5, ROUNDS = 4000000, SHAPES_MAX = 16 };

typedef struct {
    const qn_kernels *k;
    peak_mac_fn *peak; /* NULL: the product */
    int bf16, transposed;
    int64_t m, n, depth, repeats;
    float *a, *b, *out;
    volatile uint64_t sink;
} work;

static void share(void *arg, int thread, int n_threads)
{
    work *w = arg;
    int64_t begin, end;
    if (w->peak) {
        w->sink = w->peak(ROUNDS);
        return;
    }
    qn_pool_share(w->m, 1, thread, n_threads, &begin, &end);
    for (int64_t i = 0; i < w->repeats; i++) {
        if (w->bf16)
            w->k->gemm_bf16(w->out, w->n, (const uint16_t *)w->a, w->depth, (const uint32_t *)w->b, w->n,
                            w->n, w->depth, begin, end, 0);
        else
            w->k->gemm_f32(w->out, w->n, w->a, w->depth, 1, w->b, w->transposed ? 1 : w->n,
                           w->transposed ? w->depth : 1, w->n, w->depth, begin, end, 0);
    }
}

/* Multiply-adds a second, best of some. */
static double speed(qn_pool *pool, work *w, double macs)
{
    int64_t start = qn_clock_ns();
    qn_pool_run(pool, share, w);
    return macs / (double)(qn_clock_ns() - start);
}

static const char *const type_of[2] = {"f32", "bf16"};

static void measure(qn_pool *pool, work *w)
{
    double peak = 0, product = 0;
    peak_mac_fn *fn = NULL;
    int64_t round = 0;
    for (size_t i = 0; i < sizeof peak_arithmetic / sizeof *peak_arithmetic; i++)
        if (peak_arithmetic[i].usable() && strcmp(peak_arithmetic[i].type, type_of[w->bf16]) == 0) {
            fn = peak_arithmetic[i].run;
            round = peak_arithmetic[i].macs_per_round;
        }
    const double macs = (double)w->m * (double)w->n * (double)w->depth;
    w->repeats = 1 + (int64_t)(4e9 / macs);
    for (int i = 0; i < TURNS && fn; i++) {
        w->peak = fn;
        double now = speed(pool, w, (double)round * ROUNDS * qn_pool_threads(pool));
        if (now > peak) peak = now;
        w->peak = NULL;
        now = speed(pool, w, macs * (double)w->repeats);
        if (now > product) product = now;
    }
    printf("%-4s%-3s [%lld, %lld] x [%lld, %lld]: %.1f G multiply-adds/s, %.0f%% of %.1f\n", type_of[w->bf16],
           w->transposed ? "^T" : "", (long long)w->m, (long long)w->depth, (long long)w->depth,
           (long long)w->n, product, 100 * product / peak, peak);
}

static int run(int n_threads, int n_shapes, int64_t shapes[][3])
{
    qn_pool *pool = NULL;
    work w = {.k = NULL};
    if (qn_kernels_get(&w.k) != QN_OK || qn_pool_new(n_threads, &pool) != QN_OK) return 1;
    for (int i = 0; i < n_shapes; i++) {
        w.m = shapes[i][0];
        w.n = shapes[i][1];
        w.depth = shapes[i][2];
        w.a = qn_calloc((size_t)(w.m * w.depth), sizeof *w.a);
        w.b = qn_calloc((size_t)(w.depth * w.n), sizeof *w.b);
        w.out = qn_calloc((size_t)(w.m * w.n), sizeof *w.out);
        if (!w.a || !w.b || !w.out) break;
        for (w.transposed = 0; w.transposed < 2; w.transposed++) measure(pool, &w);
        w.transposed = 0;
        w.bf16 = 1;
        if (w.k->gemm_bf16) measure(pool, &w);
        w.bf16 = 0;
        qn_free(w.a);
        qn_free(w.b);
        qn_free(w.out);
        w.a = w.b = w.out = NULL;
    }
    qn_free(w.a);
    qn_free(w.b);
    qn_free(w.out);
    qn_pool_free(pool);
    return 0;
}

int main(int argc, char **argv)
{
    int64_t shapes[SHAPES_MAX][3] = {{2048, 2048, 2048}, {1024, 8, 576}, {1024, 576, 8}, {1024, 576, 1536}};
    int threads = qn_threads_default(), n = 4, i = 1;
    if (i + 1 < argc && strcmp(argv[i], "--threads") == 0) {
        threads = (int)strtol(argv[i + 1], NULL, 10);
        i += 2;
    }
    if (i < argc) n = 0;
    for (; i + 2 < argc && n < SHAPES_MAX; i += 3, n++)
        for (int d = 0; d < 3; d++) shapes[n][d] = strtoll(argv[i + d], NULL, 10);
    for (int s = 0; s < n; s++)
        if (shapes[s][0] < 1 || shapes[s][1] < 1 || shapes[s][2] < 1 || shapes[s][0] > 1 << 16 ||
            shapes[s][1] > 1 << 16 || shapes[s][2] > 1 << 16)
            i = 0;
    if (i != argc || threads < 1 || threads > 1024) {
        fprintf(stderr, "usage: gemm_bench [--threads N] [M N K]...\n");
        return 2;
    }
    return run(threads, n, shapes);
}
