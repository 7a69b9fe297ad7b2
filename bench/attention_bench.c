/* Speed of the attention kernels on one thread: decode (one row) and prefill (tiles of 8 rows) at several
 * context lengths. usage: attention_bench [set]     the best set by default GB/s counts the bytes of the
 * pages that hold visible tokens, once per call; GFMA/s counts the multiply-adds of q.k and p.v, the last
 * column compares them with gemm_f32 of the same set inside the cache (which reaches 93% of the multiply-add
 * peak on Zen 4, see limits.c). */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "kernels/kernels.h"

typedef struct {
    int64_t heads, kv_heads, head_dim;
} shape;

static void measure(const qn_kernels *k, const shape *s, qn_dtype dtype, int64_t context, int64_t rows,
                    double gemm)
{
    qn_attend_args a = {.kv = {dtype, s->kv_heads, s->head_dim, s->head_dim, NULL, 0}, .n_heads = s->heads};
    int64_t n_pages = (context + QN_PAGE_TOKENS - 1) / QN_PAGE_TOKENS, width = s->heads * s->head_dim;
    size_t element = dtype == QN_DTYPE_F32 ? 4 : 2;
    a.kv.page_stride_bytes = qn_kv_page_bytes(dtype, s->kv_heads, s->head_dim, s->head_dim);
    a.kv.pages = qn_alloc((size_t)n_pages * a.kv.page_stride_bytes);
    int32_t *blocks = qn_alloc_array((size_t)n_pages, sizeof *blocks);
    float *q = qn_alloc_array((size_t)(8 * width), sizeof *q),
          *out = qn_alloc_array((size_t)(8 * width), sizeof *out);
    void *scratch = qn_alloc(qn_attend_scratch_bytes(s->head_dim, s->head_dim));
    if (!a.kv.pages || !blocks || !q || !out || !scratch) {
        fprintf(stderr, "out of memory\n");
        goto out;
    }
    for (int64_t i = 0; i < n_pages; i++) blocks[i] = (int32_t)(i * 7919 % n_pages);
    for (int64_t i = 0; i < 8 * width; i++) q[i] = (float)(i % 17) / 17 - 0.5f;
    for (int64_t t = 0; t < n_pages * QN_PAGE_TOKENS; t++)
        k->kv_write(&a.kv, t / QN_PAGE_TOKENS, t % QN_PAGE_TOKENS, q, q);
    a.q = q;
    a.out = out;
    a.q_stride = a.out_stride = width;
    a.blocks = blocks;
    a.scale = 0.125f;
    a.position = context - rows;
    int64_t group = s->heads / s->kv_heads, calls = 0;
    double best = 1e30;
    for (int round = 0; round < 7; round++) {
        double start = (double)qn_clock_ns();
        calls = 0;
        do {
            for (int64_t h = 0; h < s->heads; h += group) k->attend(&a, rows, h, group, scratch);
            calls++;
        } while ((double)qn_clock_ns() - start < 2e7);
        double each = ((double)qn_clock_ns() - start) / (double)calls;
        if (each < best) best = each;
    }
    double bytes = (double)(context * s->kv_heads * s->head_dim * 2) * (double)element;
    double fma = (double)(rows * s->heads * context * s->head_dim * 2);
    printf("%-7s %2d/%d/%-4d %s  rows %d  context %5d  %9.1f us  %7.2f GB/s  %7.2f GFMA/s  %3.0f%%\n",
           k->name, (int)s->heads, (int)s->kv_heads, (int)s->head_dim, dtype == QN_DTYPE_F32 ? "f32" : "f16",
           (int)rows, (int)context, best / 1e3, bytes / best, fma / best, 100 * fma / best / gemm);
out:
    qn_free(a.kv.pages);
    qn_free(blocks);
    qn_free(q);
    qn_free(out);
    qn_free(scratch);
}

static double gemm_speed(const qn_kernels *k)
{
    enum { N = 128 };
    static float a[N * N], b[N * N], out[N * N];
    double best = 1e30;
    for (int round = 0; round < 20; round++) {
        double start = (double)qn_clock_ns();
        for (int i = 0; i < 10; i++) k->gemm_f32(out, N, a, N, 1, b, N, 1, N, N, 0, N, 0);
        double each = ((double)qn_clock_ns() - start) / 10;
        if (each < best) best = each;
    }
    printf("%-7s gemm_f32 %d x %d x %d %7.2f GFMA/s\n", k->name, N, N, N, (double)N * N * N / best);
    return (double)N * N * N / best;
}

int main(int argc, char **argv)
{
    static const shape shapes[] = {{9, 3, 64}, {4, 1, 256}, {8, 8, 128}};
    static const int64_t contexts[] = {256, 1024, 8192};
    const qn_kernels *k = NULL;
    if (argc > 1 ? !(k = qn_kernels_by_name(argv[1])) : qn_kernels_get(&k) != QN_OK) {
        fprintf(stderr, "no such instruction set here\n");
        return 1;
    }
    double gemm = gemm_speed(k);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int64_t rows = 1; rows <= QN_ATTN_ROWS; rows += QN_ATTN_ROWS - 1) {
            for (size_t c = 0; c < sizeof contexts / sizeof *contexts; c++) {
                measure(k, &shapes[i], QN_DTYPE_F16, contexts[c], rows, gemm);
            }
            measure(k, &shapes[i], QN_DTYPE_F32, 1024, rows, gemm);
        }
    }
    return 0;
}
