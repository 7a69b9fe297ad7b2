/* Speed of the packed matmuls, beside what memory and the integer units can do at this moment.
 *
 * usage: kernels_bench [--set NAME] [--dtype NAME] [--threads N] [--repeats N] [--rows N,N,...] [--cols N]
 *
 * For each weight type and form of activations: GB/s of file bytes with a matrix far larger than the caches
 * and few rows, and G multiply-adds/s with a small matrix and many. Best of the repeats, which alternate with
 * a plain read of the same memory (the machine may be shared). */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/threads.h"
#include "kernels/kernels.h"
#include "quant/types.h"

enum { FEW_ROWS = 8, ROWS_MAX = 1024, BIG_BYTES = 96 << 20, SMALL_OUT = 1024 };

typedef uint64_t vector __attribute__((vector_size(16)));

typedef struct {
    const qn_kernels *kernels;
    qn_matmul_args args;
    uint8_t *scratch;
    size_t scratch_bytes; /* of one thread */
    size_t bytes;         /* of the packed weight */
    uint64_t sink;
} job;

static void run_matmul(void *arg, int thread, int n_threads)
{
    job *j = arg;
    int64_t begin, end;
    qn_pool_share((j->args.n_out + QN_PANEL - 1) / QN_PANEL, 1, thread, n_threads, &begin, &end);
    j->kernels->matmul(&j->args, begin, end, j->scratch + (size_t)thread * j->scratch_bytes);
}

static void run_read(void *arg, int thread, int n_threads)
{
    job *j = arg;
    int64_t begin, end;
    qn_pool_share((int64_t)(j->bytes / sizeof(vector)), 4, thread, n_threads, &begin, &end);
    end = end / 4 * 4;
    vector sum[4] = {{0}};
    const vector *p = (const vector *)j->args.panels;
    for (int64_t i = begin; i < end; i += 4) {
        __builtin_prefetch((const char *)(p + i) + 4096);
        for (int k = 0; k < 4; k++) sum[k] ^= p[i + k];
    }
    sum[0] ^= sum[1] ^ sum[2] ^ sum[3];
    __atomic_fetch_add(&j->sink, sum[0][0] ^ sum[0][1], __ATOMIC_RELAXED);
}

static double seconds(qn_pool *pool, qn_pool_fn *fn, job *j)
{
    int64_t start = qn_clock_ns();
    qn_pool_run(pool, fn, j);
    return 1e-9 * (double)(qn_clock_ns() - start);
}

static void fill_weight(qn_dtype dtype, uint8_t *p, size_t n)
{
    for (size_t i = 0; i + 8 <= n; i += 8) {
        uint64_t v = qn_random_bits(1, i) & 0x3bff3bff3bff3bff; /* small finite numbers in every format */
        memcpy(p + i, &v, 8);
    }
}

static int measure(const qn_kernels *k, qn_pool *pool, qn_dtype dtype, qn_act act, int64_t n_in,
                   int64_t n_rows, int repeats)
{
    static const char *const ACTS[] = {"f32", "bf16", "i8", "i8x2"};
    size_t panel_bytes = qn_pack_panel_bytes(dtype, n_in), file_row;
    if (!panel_bytes || !qn_type_bytes(dtype, n_in, &file_row)) return 0;
    int64_t n_out = n_rows <= FEW_ROWS ? (int64_t)(BIG_BYTES / panel_bytes) * QN_PANEL : SMALL_OUT;
    size_t x_row = qn_act_row_bytes(act, n_in);
    job j = {.kernels = k, .bytes = panel_bytes * (size_t)(n_out / QN_PANEL)};
    j.scratch_bytes = (qn_matmul_scratch_bytes(dtype, act, n_in) + 63) / 64 * 64;
    uint8_t *panels = qn_alloc(j.bytes), *x = qn_calloc((size_t)n_rows, x_row);
    float *row = qn_alloc_array((size_t)n_in, sizeof *row),
          *out = qn_calloc((size_t)(n_rows * n_out), sizeof *out);
    j.scratch = qn_alloc(j.scratch_bytes * (size_t)qn_pool_threads(pool));
    int ok = panels && x && row && out && j.scratch;
    if (ok) {
        fill_weight(dtype, panels, j.bytes);
        for (int64_t i = 0; i < n_in; i++) row[i] = (float)(qn_random_unit(2, (uint64_t)i) - 0.5);
        for (int64_t r = 0; r < n_rows; r++) k->act_pack(act, n_in, row, x + (size_t)r * x_row);
        j.args = (qn_matmul_args){dtype, act, n_in, n_out, panels, x, n_rows, out, n_out};
        double best = 1e9, read = 1e9;
        for (int i = 0; i < repeats; i++) {
            double t = seconds(pool, run_matmul, &j), r = seconds(pool, run_read, &j);
            best = t < best ? t : best;
            read = r < read ? r : read;
        }
        double gb = 1e-9 * (double)file_row * (double)n_out / best, read_gb = 1e-9 * (double)j.bytes / read;
        double macs = 1e-9 * (double)n_in * (double)n_out * (double)n_rows / best;
        printf("%-7s %-16s %-5s %5lld rows  %7.1f GB/s (read %5.1f, %3.0f%%)  %7.1f G multiply-adds/s\n",
               k->name, qn_dtype_name(dtype), ACTS[act], (long long)n_rows, gb, read_gb, 100 * gb / read_gb,
               macs);
        fflush(stdout);
    }
    qn_free(panels);
    qn_free(x);
    qn_free(row);
    qn_free(out);
    qn_free(j.scratch);
    return ok;
}

int main(int argc, char **argv)
{
    const qn_kernels *k = NULL;
    const char *set = NULL, *dtype = NULL, *rows = "1,4,8,128";
    int threads = 0, repeats = 10;
    int64_t n_in = 2048;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--set") == 0) set = argv[i + 1];
        if (strcmp(argv[i], "--dtype") == 0) dtype = argv[i + 1];
        if (strcmp(argv[i], "--threads") == 0) threads = (int)strtol(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--repeats") == 0) repeats = (int)strtol(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--rows") == 0) rows = argv[i + 1];
        if (strcmp(argv[i], "--cols") == 0) n_in = strtoll(argv[i + 1], NULL, 10);
    }
    if (set) k = qn_kernels_by_name(set);
    if (!set && qn_kernels_get(&k) != QN_OK) fprintf(stderr, "kernels_bench: %s\n", qn_last_error());
    qn_pool *pool = NULL;
    if (!k || repeats < 1 || n_in < 1 || qn_pool_new(threads, &pool) != QN_OK) return 2;
    int failed = 0;
    for (int t = 0; t < QN_DTYPE_COUNT && !failed; t++) {
        qn_affine a = qn_affine_of((qn_dtype)t); /* unless one is named, those that MLX writes by default */
        int wanted = dtype ? strcmp(dtype, qn_dtype_name((qn_dtype)t)) == 0
                           : !a.bits || (a.group == 64 && a.scale == QN_DTYPE_BF16);
        if (!wanted || !qn_pack_panel_bytes((qn_dtype)t, n_in)) continue;
        for (int act = 0; act < QN_ACT_COUNT && !failed; act++) {
            int used = 0;
            for (int p = 0; p < 3; p++) used |= qn_matmul_act((qn_dtype)t, (qn_precision)p) == (qn_act)act;
            for (const char *r = rows; used && r && *r && !failed;
                 r = strchr(r, ',') ? strchr(r, ',') + 1 : NULL) {
                int64_t n = strtoll(r, NULL, 10);
                if (n >= 1 && n <= ROWS_MAX)
                    failed = !measure(k, pool, (qn_dtype)t, (qn_act)act, n_in, n, repeats);
            }
        }
    }
    qn_pool_free(pool);
    if (failed) fprintf(stderr, "kernels_bench: out of memory\n");
    return failed;
}
