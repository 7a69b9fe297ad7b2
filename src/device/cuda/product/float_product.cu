/* The kernel of float_product.cuh, by tiles of many rows or of few. */
#include "device/cuda/product/float_product.cuh"

enum { COLUMNS = 64, STEP = 16, THREADS = 256 };

static __device__ __forceinline__ float element_of_b(const qn_cuda_float_product &p, const float *b,
                                                     int64_t part, int64_t k, int64_t n)
{
    if (!p.has_weight) return b[k * p.b_row + n * p.b_col];
    return p.straight ? qn_cuda_value(&p.w, part, k, n) : qn_cuda_value(&p.w, part, n, k);
}

/* ROWS x 64 outputs a block; a thread has PER_ROW x PER_COLUMN of them. */
template <int ROWS, int PER_ROW, int PER_COLUMN>
static __global__ void __launch_bounds__(THREADS) float_product(qn_cuda_float_product p)
{
    __shared__ float a_tile[STEP][ROWS + 1], b_tile[STEP][COLUMNS + 1];
    const int64_t tiles_n = (p.n + COLUMNS - 1) / COLUMNS, tiles_m = (p.m + ROWS - 1) / ROWS;
    int64_t tile = blockIdx.x, batch = tile / (tiles_m * tiles_n), a_at = 0, b_at = 0, m = p.m, part = p.part;
    const int64_t out_at = batch * p.m;
    const int32_t *pairs = NULL;
    if (p.groups) {
        const qn_cuda_group g = p.groups[batch];
        pairs = p.pairs + g.first, m = g.n, part = g.part;
    }
    for (int d = p.n_dims - 1; d >= 0; d--) {
        a_at += batch % p.dim[d] * p.a_batch[d];
        b_at += batch % p.dim[d] * p.b_batch[d];
        batch /= p.dim[d];
    }
    const float *a = p.a + a_at, *b = p.b + b_at;
    const int64_t row0 = tile / tiles_n % tiles_m * ROWS, column0 = tile % tiles_n * COLUMNS;
    constexpr int THREADS_N = COLUMNS / PER_COLUMN;
    const int tr = threadIdx.x / THREADS_N * PER_ROW, tc = threadIdx.x % THREADS_N;
    float acc[PER_ROW][PER_COLUMN];
    for (int i = 0; i < PER_ROW; i++)
        for (int j = 0; j < PER_COLUMN; j++) acc[i][j] = 0;
    for (int64_t k0 = 0; k0 < p.k; k0 += STEP) {
        const int by_column = p.a_col == 1 || p.a_col == -1;
        for (int i = threadIdx.x; i < ROWS * STEP; i += THREADS) {
            const int r = by_column ? i / STEP : i % ROWS, k = by_column ? i % STEP : i / ROWS;
            a_tile[k][r] =
                row0 + r < m && k0 + k < p.k
                    ? a[(pairs ? qn_row_begin(p.rows, pairs[row0 + r] / p.x_share) : (row0 + r) * p.a_row) +
                        (k0 + k) * p.a_col]
                    : 0;
        }
        const int along_k = p.has_weight ? !p.straight : p.b_row == 1 || p.b_row == -1;
        for (int i = threadIdx.x; i < COLUMNS * STEP; i += THREADS) {
            const int n = along_k ? i / STEP : i % COLUMNS, k = along_k ? i % STEP : i / COLUMNS;
            b_tile[k][n] =
                column0 + n < p.n && k0 + k < p.k ? element_of_b(p, b, part, k0 + k, column0 + n) : 0;
        }
        __syncthreads();
        const int steps = p.k - k0 < STEP ? (int)(p.k - k0) : STEP;
        for (int k = 0; k < steps; k++) {
            float x[PER_ROW], y[PER_COLUMN];
#pragma unroll
            for (int i = 0; i < PER_ROW; i++) x[i] = a_tile[k][tr + i];
#pragma unroll
            for (int j = 0; j < PER_COLUMN; j++) y[j] = b_tile[k][tc + j * THREADS_N];
#pragma unroll
            for (int i = 0; i < PER_ROW; i++)
#pragma unroll
                for (int j = 0; j < PER_COLUMN; j++) acc[i][j] = fmaf(x[i], y[j], acc[i][j]);
        }
        __syncthreads();
    }
    for (int i = 0; i < PER_ROW; i++)
        for (int j = 0; j < PER_COLUMN; j++) {
            const int64_t r = row0 + tr + i, n = column0 + tc + j * THREADS_N;
            if (r >= m || n >= p.n) continue;
            p.out[(pairs ? pairs[r] : out_at + r) * p.out_row + n] =
                p.bias ? acc[i][j] + p.bias[part * p.n + n] : acc[i][j];
        }
}

qn_status qn_cuda_float_product_begin(qn_cuda_context *c, const qn_cuda_float_product *p)
{
    int64_t batches = p->groups ? p->n_groups : 1;
    for (int d = 0; d < p->n_dims; d++) batches *= p->dim[d];
    const int64_t tiles_n = qn_blocks(p->n, COLUMNS) * batches;
    if (p->m <= 8)
        return qn_cuda_begin(c, float_product<8, 1, 2>, tiles_n * qn_blocks(p->m, 8), THREADS, 0, *p);
    return qn_cuda_begin(c, float_product<64, 4, 4>, tiles_n * qn_blocks(p->m, 64), THREADS, 0, *p);
}
