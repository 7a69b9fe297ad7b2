/* Products of two matrices in f32 by whatever reads their elements: for the steps that are trained with and no hot
 * paths of generation.
 *
 * A block of 256 threads computes 64 rows by 256 columns. Each sum is one chain of multiply-adds in rising order
 * of what is summed over, whatever lies beside it. A warp holds 8 rows, its lane l the columns l, l + 32, ... */
#ifndef QN_DEVICE_CUDA_PRODUCT_TILE_CUH
#define QN_DEVICE_CUDA_PRODUCT_TILE_CUH

#include "device/cuda/kernel.cuh"

enum { QN_TILE_ROWS = 64, QN_TILE_COLUMNS = 256, QN_TILE_THREADS = 256, QN_TILE_DEPTH = 16 };

typedef struct {
    float x[8][8]; /* [row of the warp's 8][column of the lane's 8] */
} qn_tile_sums;

/* Where sum (r, c) of this thread belongs in the tile. */
static __device__ __forceinline__ int qn_tile_row(int r)
{
    return (int)threadIdx.x / 32 * 8 + r;
}

static __device__ __forceinline__ int qn_tile_column(int c)
{
    return (int)threadIdx.x % 32 + 32 * c;
}

typedef struct {
    float a[QN_TILE_DEPTH][QN_TILE_ROWS + 1], b[QN_TILE_DEPTH][QN_TILE_COLUMNS + 1];
} qn_tile_shared;

/* One operand's part of `to` for depth [p, p + DEPTH): from(i, p) for i < n; ALONG: its neighbours in memory are
 * those of p, else those of i. */
template <int WIDTH, bool ALONG, class F>
static __device__ __forceinline__ void qn_tile_load(float (*to)[WIDTH + 1], F from, int64_t n, int64_t p,
                                                    int64_t depth)
{
    for (int t = threadIdx.x; t < WIDTH * QN_TILE_DEPTH; t += QN_TILE_THREADS) {
        const int i = ALONG ? t / QN_TILE_DEPTH : t % WIDTH, q = ALONG ? t % QN_TILE_DEPTH : t / WIDTH;
        to[q][i] = i < n && p + q < depth ? from(i, p + q) : 0.0f;
    }
}

/* sums += a(row, p) * b(column, p) over p in [0, depth). */
template <bool A_ALONG, bool B_ALONG, class A, class B>
static __device__ __forceinline__ void qn_tile_multiply(qn_tile_shared &shared, A a, int64_t n_rows, B b,
                                                        int64_t n_columns, int64_t depth, qn_tile_sums &sums)
{
    for (int64_t p = 0; p < depth; p += QN_TILE_DEPTH) {
        __syncthreads();
        qn_tile_load<QN_TILE_ROWS, A_ALONG>(shared.a, a, n_rows, p, depth);
        qn_tile_load<QN_TILE_COLUMNS, B_ALONG>(shared.b, b, n_columns, p, depth);
        __syncthreads();
        for (int q = 0; q < QN_TILE_DEPTH; q++) {
            float x[8], y[8];
            for (int r = 0; r < 8; r++) x[r] = shared.a[q][qn_tile_row(r)];
            for (int c = 0; c < 8; c++) y[c] = shared.b[q][qn_tile_column(c)];
            for (int r = 0; r < 8; r++)
                for (int c = 0; c < 8; c++) sums.x[r][c] = fmaf(x[r], y[c], sums.x[r][c]);
        }
    }
}

#endif
