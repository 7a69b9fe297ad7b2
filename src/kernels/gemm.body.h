/* gemm_f32 over tile.body.h. Blocks of b are copied to the stack when they are not a run of whole vectors, or
 * when enough rows use them; neither choice changes bits. */
#ifndef QN_KERNELS_GEMM_BODY_H
#define QN_KERNELS_GEMM_BODY_H

#include "kernels/tile.body.h"

enum { GEMM_K = 128, GEMM_VECS = 4, GEMM_COLUMNS = 16 * GEMM_VECS };

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

static void gemm_f32(float *out, int64_t out_stride, const float *a, int64_t a_row, int64_t a_col,
                     const float *b, int64_t b_row, int64_t b_col, int64_t n, int64_t k, int64_t begin,
                     int64_t end, int accumulate)
{
    float packed[GEMM_K * GEMM_COLUMNS];
    if (k <= 0) {
        for (int64_t i = begin; i < end && !accumulate; i++)
            memset(out + i * out_stride, 0, (size_t)n * sizeof *out);
        return;
    }
    for (int64_t j = 0; j < n; j += GEMM_COLUMNS) {
        int64_t columns = n - j < GEMM_COLUMNS ? n - j : GEMM_COLUMNS;
        int direct =
            b_col == 1 && columns % 16 == 0 && (b_row == GEMM_COLUMNS || end - begin <= 2 * V_TILE_ROWS);
        for (int64_t k0 = 0; k0 < k; k0 += GEMM_K) {
            tile_args t = {
                .c_row = out_stride, .a_row = a_row, .a_k = a_col, .b_k = GEMM_COLUMNS, .b = packed};
            t.n_k = k - k0 < GEMM_K ? k - k0 : GEMM_K;
            t.from_zero = k0 == 0 && !accumulate;
            if (direct) {
                t.b = b + k0 * b_row + j;
                t.b_k = b_row;
            } else {
                gemm_pack(packed, b + k0 * b_row + j * b_col, b_row, b_col, t.n_k, columns);
            }
            for (int64_t i = begin; i < end; i += V_TILE_ROWS) {
                int rows = (int)(end - i < V_TILE_ROWS ? end - i : V_TILE_ROWS);
                t.c = out + i * out_stride + j;
                t.a = a + i * a_row + k0 * a_col;
                if (columns % 16)
                    gemm_tile_edge(&t, rows, columns);
                else
                    gemm_tile(&t, rows, columns / 16);
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
