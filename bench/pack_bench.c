/* Speed of packing, beside plain copies of the same bytes in the same run: what memory allows.
 *
 * usage: pack_bench [--dtype NAME] [--threads N] [--repeats N] [--cols N] [--mib N]
 *
 * GB/s counts the bytes of the file's rows. Best of the repeats, packing and copying in turn (the machine may
 * be shared). Source and result were touched before: what the system takes to hand out fresh pages, which a
 * start pays as well, is the last column: a copy into memory that is new. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/threads.h"
#include "device/cpu/kernels/kernels.h"
#include "quant/types.h"

typedef struct {
    const qn_kernels *kernels;
    qn_dtype dtype;
    int64_t n_in, n_out;
    const uint8_t *rows;
    uint8_t *panels;
    size_t row_bytes;
} job;

static void run_pack(void *arg, int thread, int n_threads)
{
    const job *j = arg;
    int64_t begin, end;
    qn_pool_share(j->n_out / QN_PANEL, 1, thread, n_threads, &begin, &end);
    j->kernels->pack(j->dtype, j->n_in, j->n_out, j->rows, begin, end, j->panels);
}

static void run_copy(void *arg, int thread, int n_threads)
{
    const job *j = arg;
    int64_t begin, end;
    qn_pool_share(j->n_out / QN_PANEL, 1, thread, n_threads, &begin, &end);
    size_t panel = QN_PANEL * j->row_bytes;
    memcpy(j->panels + (size_t)begin * panel, j->rows + (size_t)begin * panel, (size_t)(end - begin) * panel);
}

static double seconds(qn_pool *pool, qn_pool_fn *fn, job *j)
{
    int64_t start = qn_clock_ns();
    qn_pool_run(pool, fn, j);
    return 1e-9 * (double)(qn_clock_ns() - start);
}

static uint8_t *map(size_t size_bytes)
{
    uint8_t *p = qn_alloc_mapped(size_bytes);
    if (p) madvise(p, size_bytes, MADV_HUGEPAGE);
    return p;
}

/* The copy's time when the result's pages are new. */
static double fresh_seconds(qn_pool *pool, job j, size_t size_bytes)
{
    double t = 0;
    j.panels = map(size_bytes);
    if (j.panels) t = seconds(pool, run_copy, &j);
    qn_free_mapped(j.panels, size_bytes);
    return t;
}

static int measure(const qn_kernels *k, qn_pool *pool, qn_dtype dtype, int64_t n_in, size_t bytes,
                   int repeats)
{
    job j = {.kernels = k, .dtype = dtype, .n_in = n_in};
    size_t panel = qn_pack_panel_bytes(dtype, n_in);
    if (!panel || !qn_type_bytes(dtype, n_in, &j.row_bytes)) return 1;
    j.n_out = (int64_t)(bytes / j.row_bytes / QN_PANEL * QN_PANEL);
    if (!j.n_out) return 1;
    size_t from = (size_t)j.n_out * j.row_bytes, to = (size_t)j.n_out / QN_PANEL * panel;
    to = to > from ? to : from;
    uint8_t *rows = map(from);
    j.rows = rows;
    j.panels = map(to);
    int ok = rows && j.panels;
    if (ok) {
        double pack = 1e9, copy = 1e9, fresh = 1e9;
        for (size_t i = 0; i + 8 <= from; i += 8) {
            uint64_t v = qn_random_bits(1, i);
            memcpy(rows + i, &v, 8);
        }
        for (int i = 0; i <= repeats; i++) {
            double p = seconds(pool, run_pack, &j), c = seconds(pool, run_copy, &j),
                   f = fresh_seconds(pool, j, to);
            if (!i) continue; /* touches the pages */
            pack = p < pack ? p : pack;
            copy = c < copy ? c : copy;
            fresh = f < fresh ? f : fresh;
        }
        double n = 1e-9 * (double)from;
        printf("%-16s %d threads  pack %6.2f GB/s, %3.0f%% of a copy's %6.2f; a copy into new pages %6.2f\n",
               qn_dtype_name(dtype), qn_pool_threads(pool), n / pack, 100 * copy / pack, n / copy, n / fresh);
        fflush(stdout);
    }
    qn_free_mapped(rows, from);
    qn_free_mapped(j.panels, to);
    return ok;
}

int main(int argc, char **argv)
{
    const qn_kernels *k = NULL;
    const char *dtype = NULL;
    int threads = 0, repeats = 5;
    int64_t n_in = 2048, mib = 64;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--dtype") == 0) dtype = argv[i + 1];
        if (strcmp(argv[i], "--threads") == 0) threads = (int)strtol(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--repeats") == 0) repeats = (int)strtol(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--cols") == 0) n_in = strtoll(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--mib") == 0) mib = strtoll(argv[i + 1], NULL, 10);
    }
    qn_pool *pool = NULL;
    if (repeats < 1 || n_in < 1 || mib < 1 || mib > 65536 || qn_kernels_get(&k) != QN_OK ||
        qn_pool_new(threads, &pool) != QN_OK)
        return 2;
    int ok = 1;
    for (int t = 0; t < QN_DTYPE_COUNT && ok; t++) {
        qn_affine a = qn_affine_of((qn_dtype)t); /* unless one is named, those that MLX writes by default */
        int wanted = dtype ? strcmp(dtype, qn_dtype_name((qn_dtype)t)) == 0
                           : !a.bits || (a.group == 64 && a.scale == QN_DTYPE_BF16);
        if (wanted) ok = measure(k, pool, (qn_dtype)t, n_in, (size_t)mib << 20, repeats);
    }
    qn_pool_free(pool);
    if (!ok) fprintf(stderr, "pack_bench: out of memory\n");
    return !ok;
}
