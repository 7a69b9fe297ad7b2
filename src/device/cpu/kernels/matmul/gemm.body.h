/* gemm_f32 over tile.body.h. Blocks of b are copied to the stack when they are not a run of whole vectors, or
 * when enough rows use them, blocks of a when enough columns do; no choice changes bits. */
#ifndef QN_DEVICE_CPU_KERNELS_MATMUL_GEMM_BODY_H
#define QN_DEVICE_CPU_KERNELS_MATMUL_GEMM_BODY_H

#include "device/cpu/kernels/matmul/tile.body.h"

enum { GEMM_K = 128, GEMM_VECS = 4, GEMM_COLUMNS = 16 * GEMM_VECS, GEMM_ROWS = 128, GEMM_LINE = 128 + 16 };

/* 16 x 16: four times, row i and row i + 8 become the zipped rows 2 i and 2 i + 1. */
static void transpose(float *out, int64_t out_row, const float *x, int64_t x_row)
{
    vf a[16], b[16];
    for (int i = 0; i < 16; i++) a[i] = v_load(x + i * x_row);
    for (int stage = 0; stage < 2; stage++) {
        for (int i = 0; i < 8; i++) v_zip(a[i], a[i + 8], &b[2 * i], &b[2 * i + 1]);
        for (int i = 0; i < 8; i++) v_zip(b[i], b[i + 8], &a[2 * i], &a[2 * i + 1]);
    }
    for (int i = 0; i < 16; i++) v_store(out + i * out_row, a[i]);
}

static void gemm_pack(float *out, const float *b, int64_t b_row, int64_t b_col, int64_t n_k, int64_t n)
{
    if (b_col == 1) {
        for (int64_t k = 0; k < n_k; k++) {
            for (int64_t j = 0; j < GEMM_COLUMNS; j += 16) /* the next block's: rows may lie in a page each */
                __builtin_prefetch(b + k * b_row + GEMM_COLUMNS + j, 0, 2);
            memcpy(out + k * GEMM_COLUMNS, b + k * b_row, (size_t)n * sizeof *b);
            memset(out + k * GEMM_COLUMNS + n, 0, (size_t)(GEMM_COLUMNS - n) * sizeof *b);
        }
        return;
    }
    if (n < GEMM_COLUMNS) memset(out, 0, (size_t)(n_k * GEMM_COLUMNS) * sizeof *out);
    int64_t j = 0;
    for (; b_row == 1 && j + 16 <= n; j += 16) {
        int64_t k = 0;
        for (; k + 16 <= n_k; k += 16)
            transpose(out + k * GEMM_COLUMNS + j, GEMM_COLUMNS, b + k + j * b_col, b_col);
        for (; k < n_k; k++) {
            for (int64_t c = j; c < j + 16; c++) out[k * GEMM_COLUMNS + c] = b[k + c * b_col];
        }
    }
    for (; j < n; j++) {
        for (int64_t k = 0; k < n_k; k++) out[k * GEMM_COLUMNS + j] = b[k * b_row + j * b_col];
    }
}

static void gemm_tile(const tile_args *t, int rows, int64_t n_vecs)
{
    tile_any(t, rows, n_vecs, 0);
}

/* The last columns of out are not a whole vector: they go through a copy. */
static void gemm_tile_edge(const tile_args *t, int rows, int64_t n)
{
    float edge[8 * GEMM_COLUMNS] = {0};
    tile_args e = *t;
    e.c = edge;
    e.c_row = GEMM_COLUMNS;
    for (int r = 0; r < rows && !t->from_zero; r++) {
        memcpy(edge + r * GEMM_COLUMNS, t->c + r * t->c_row, (size_t)n * sizeof *edge);
    }
    gemm_tile(&e, rows, (n + 15) / 16);
    for (int r = 0; r < rows; r++) {
        memcpy(t->c + r * t->c_row, edge + r * GEMM_COLUMNS, (size_t)n * sizeof *edge);
    }
}

/* n rows and n_k columns of a from x on into `out`, as they lie there: row by row, or column by column. */
static void gemm_copy(float *out, const float *x, int64_t x_row, int64_t x_k, int64_t n, int64_t n_k)
{
    const int64_t lines = x_k == 1 ? n : n_k, length = x_k == 1 ? n_k : n, apart = x_k == 1 ? x_row : x_k;
    for (int64_t i = 0; i < lines; i++)
        memcpy(out + i * GEMM_LINE, x + i * apart, (size_t)length * sizeof *out);
}

/* n < 16 columns would leave lanes empty: here rows of a are the lanes, and b is what is broadcast. The
 * chains of multiply-adds are the same. */
static void gemm_narrow(float *out, int64_t out_stride, const float *a, int64_t a_row, int64_t a_col,
                        const float *b, int64_t b_row, int64_t b_col, int64_t n, int64_t k, int64_t begin,
                        int64_t end, int accumulate)
{
    float packed[GEMM_K * GEMM_COLUMNS], turned[16 * GEMM_COLUMNS] = {0};
    for (int64_t i = begin; i < end; i += GEMM_COLUMNS) {
        const int64_t rows = end - i < GEMM_COLUMNS ? end - i : GEMM_COLUMNS;
        for (int64_t r = 0; r < rows && accumulate; r++)
            for (int64_t j = 0; j < n; j++) turned[j * GEMM_COLUMNS + r] = out[(i + r) * out_stride + j];
        for (int64_t k0 = 0; k0 < k; k0 += GEMM_K) {
            tile_args t = {.c_row = GEMM_COLUMNS,
                           .a_row = b_col,
                           .a_k = b_row,
                           .b = packed,
                           .b_k = GEMM_COLUMNS,
                           .n_k = k - k0 < GEMM_K ? k - k0 : GEMM_K,
                           .from_zero = k0 == 0 && !accumulate};
            gemm_pack(packed, a + i * a_row + k0 * a_col, a_col, a_row, t.n_k, rows);
            for (int64_t j = 0; j < n; j += V_TILE_ROWS) {
                t.c = turned + j * GEMM_COLUMNS;
                t.a = b + k0 * b_row + j * b_col;
                gemm_tile(&t, (int)(n - j < V_TILE_ROWS ? n - j : V_TILE_ROWS), GEMM_VECS);
            }
        }
        for (int64_t r = 0; r < rows; r++)
            for (int64_t j = 0; j < n; j++) out[(i + r) * out_stride + j] = turned[j * GEMM_COLUMNS + r];
    }
}

static void gemm_f32(float *out, int64_t out_stride, const float *a, int64_t a_row, int64_t a_col,
                     const float *b, int64_t b_row, int64_t b_col, int64_t n, int64_t k, int64_t begin,
                     int64_t end, int accumulate)
{
    float packed[GEMM_K * GEMM_COLUMNS], lines[GEMM_K * GEMM_LINE];
    /* Rows that pass over several blocks of b are copied, too: far apart they would fall on each other in the
     * first-level cache. */
    const int copies = end - begin > 2 * V_TILE_ROWS && n > 2 * GEMM_COLUMNS && (a_row == 1 || a_col == 1);
    const int64_t most = copies ? GEMM_ROWS : end - begin;
    for (int64_t i = begin; i < end && k <= 0 && !accumulate; i++)
        memset(out + i * out_stride, 0, (size_t)n * sizeof *out);
    if (n < 16 && k > 0 && end - begin >= GEMM_COLUMNS) {
        gemm_narrow(out, out_stride, a, a_row, a_col, b, b_row, b_col, n, k, begin, end, accumulate);
        return;
    }
    for (int64_t first = begin; first < end; first += most) {
        const int64_t last = end - first < most ? end : first + most;
        for (int64_t k0 = 0; k0 < k; k0 += GEMM_K) {
            const int64_t n_k = k - k0 < GEMM_K ? k - k0 : GEMM_K;
            const float *x = a + first * a_row + k0 * a_col;
            int64_t x_row = a_row, x_k = a_col;
            if (copies) {
                gemm_copy(lines, x, a_row, a_col, last - first, n_k);
                x = lines;
                x_row = a_col == 1 ? GEMM_LINE : 1;
                x_k = a_col == 1 ? 1 : GEMM_LINE;
            }
            for (int64_t j = 0; j < n; j += GEMM_COLUMNS) {
                int64_t columns = n - j < GEMM_COLUMNS ? n - j : GEMM_COLUMNS;
                tile_args t = {.c_row = out_stride,
                               .a_row = x_row,
                               .a_k = x_k,
                               .b_k = GEMM_COLUMNS,
                               .b = packed,
                               .n_k = n_k,
                               .from_zero = k0 == 0 && !accumulate};
                if (b_col == 1 && columns % 16 == 0 &&
                    (b_row == GEMM_COLUMNS || end - begin <= 2 * V_TILE_ROWS)) {
                    t.b = b + k0 * b_row + j;
                    t.b_k = b_row;
                } else {
                    gemm_pack(packed, b + k0 * b_row + j * b_col, b_row, b_col, n_k, columns);
                }
                for (int64_t i = first; i < last; i += V_TILE_ROWS) {
                    int rows = (int)(last - i < V_TILE_ROWS ? last - i : V_TILE_ROWS);
                    t.c = out + i * out_stride + j;
                    t.a = x + (i - first) * x_row;
                    if (columns % 16)
                        gemm_tile_edge(&t, rows, columns);
                    else
                        gemm_tile(&t, rows, columns / 16);
                }
            }
        }
    }
}

static void panel_rows(const float *panel, int64_t n, float *out, int64_t out_row)
{
    int64_t j = 0;
    for (; j + 16 <= n; j += 16) transpose(out + j, out_row, panel + j * QN_PANEL, QN_PANEL);
    for (; j < n; j++) {
        for (int64_t i = 0; i < QN_PANEL; i++) out[i * out_row + j] = panel[j * QN_PANEL + i];
    }
}

#endif
