/* The kernel of product.h for 9 to 64 tokens: a tile of 32 tokens, by mma.sync. Memory is what it waits for, so that
 * many warps are under way: a warp sums up chunks of two panels by all tokens of the tile; warps of a block share
 * out a panel's chunks. Tokens lie as lanes read them (qn_lane_place), 16 bytes at a time. */
#ifndef QN_DEVICE_CUDA_PRODUCT_PRODUCT_SOME_CUH
#define QN_DEVICE_CUDA_PRODUCT_PRODUCT_SOME_CUH

#include "device/cuda/product/panel.cuh"
#include "device/cuda/product/tokens.cuh"

enum {
    QN_SOME_WARPS = 8,
    QN_SOME_PANELS = 2,  /* of a warp */
    QN_SOME_WIDE = 1024, /* panels from which two warps share what they read of tokens */
    QN_SOME_ROWS = QN_SOME_PANELS * QN_CUDA_PANEL
};

/* Warps beside each other that have neighbouring panels and the same chunks. */
static __host__ __device__ __forceinline__ int qn_some_width(const qn_cuda_weight &w)
{
    return w.n_panels >= QN_SOME_WIDE ? 2 : 1;
}

static inline int64_t qn_some_blocks(const qn_cuda_weight &w)
{
    return qn_blocks(w.n_panels, QN_SOME_PANELS * qn_some_width(w));
}

/* acc += a chunk [begin, end) of two panels; N: tiles of 8 tokens. */
template <int FORM, int BITS, int N>
static __device__ __forceinline__ void
qn_some_chunk(const qn_cuda_product &p, const char *const (&units)[2], const float (&inverse)[2][2],
              const uint16_t *x, int n_tokens, int64_t begin, int64_t end, float (&acc)[2][N][4])
{
    const int lane = threadIdx.x % 32;
#pragma unroll 2
    for (int64_t k = begin; k < end; k += QN_CUDA_TILE_K) {
        uint32_t b[N][8];
        QN_UNROLL
        for (int j = 0; j < N; j++) {
            uint4 low = make_uint4(0, 0, 0, 0), high = low;
            if (j * 8 + lane / 4 < n_tokens) {
                const uint4 *from =
                    (const uint4 *)(x + k * p.x_tiled + (j * 8 + lane / 4) * 64 + lane % 4 * 16);
                low = from[0], high = from[1];
            }
            b[j][0] = low.x, b[j][1] = low.y, b[j][2] = low.z, b[j][3] = low.w;
            b[j][4] = high.x, b[j][5] = high.y, b[j][6] = high.z, b[j][7] = high.w;
        }
        const size_t unit = (size_t)(k / p.w.unit_k) * (size_t)p.w.unit_bytes;
        const int tile = (int)(k % p.w.unit_k) / QN_CUDA_TILE_K;
        QN_UNROLL
        for (int panel = 0; panel < QN_SOME_PANELS; panel++) {
            uint32_t a[16];
            qn_tile_halves<FORM, BITS>(p.w, units[panel] + unit, tile, lane, inverse[panel], a);
            QN_UNROLL
            for (int s = 0; s < 4; s++) {
                QN_UNROLL
                for (int j = 0; j < N; j++) qn_mma_f16(acc[panel][j], a + 4 * s, b[j] + 2 * s);
            }
        }
    }
}

template <int FORM, int BITS, int N>
static __global__ void __launch_bounds__(32 * QN_SOME_WARPS, 2)
    qn_product_some(qn_cuda_product p, int64_t n_blocks)
{
    enum { SUMS = QN_SOME_ROWS * N * 8, EACH = SUMS / (32 * QN_SOME_WARPS), MOST_WIDTH = 2 };
    __shared__ float sums[QN_SOME_WARPS][SUMS]; /* of a warp's chunk: [token][row] */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, width = qn_some_width(p.w);
    const int64_t quad = blockIdx.x % n_blocks;
    const qn_cuda_tokens t = qn_tokens_of(p, blockIdx.x / n_blocks, QN_CUDA_SOME);
    const int64_t first = (quad * width + warp % width) * QN_SOME_PANELS;
    const int64_t padded = p.w.n_units * p.w.unit_k, chunks = (padded + QN_CUDA_CHUNK - 1) / QN_CUDA_CHUNK;
    const char *units[QN_SOME_PANELS];
    float inverse[QN_SOME_PANELS][2], total[MOST_WIDTH][EACH];
    QN_UNROLL
    for (int i = 0; i < QN_SOME_PANELS; i++) {
        const int64_t panel = first + i < p.w.n_panels ? first + i : p.w.n_panels - 1;
        qn_row_factors(p.w, panel, lane, inverse[i]);
        units[i] = p.w.data + (size_t)(panel * p.w.n_units) * (size_t)p.w.unit_bytes;
    }
    QN_UNROLL
    for (int i = 0; i < MOST_WIDTH * EACH; i++) total[i / EACH][i % EACH] = 0;
    const int step = QN_SOME_WARPS / width; /* chunks that are computed together */
    for (int64_t round = 0; round < chunks; round += step) {
        const int64_t chunk = round + warp / width;
        if (chunk < chunks) {
            float acc[QN_SOME_PANELS][N][4];
            QN_UNROLL
            for (int i = 0; i < QN_SOME_PANELS * N; i++) {
                QN_UNROLL
                for (int n = 0; n < 4; n++) acc[i / N][i % N][n] = 0;
            }
            const int64_t begin = chunk * QN_CUDA_CHUNK,
                          end = begin + QN_CUDA_CHUNK < padded ? begin + QN_CUDA_CHUNK : padded;
            qn_some_chunk<FORM, BITS, N>(p, units, inverse, p.x + t.first * 64, (int)t.n, begin, end, acc);
            QN_UNROLL
            for (int i = 0; i < QN_SOME_PANELS * N; i++) {
                QN_UNROLL
                for (int n = 0; n < 4; n++)
                    sums[warp][(i % N * 8 + lane % 4 * 2 + n % 2) * QN_SOME_ROWS + i / N * QN_CUDA_PANEL +
                               lane / 4 + n / 2 * 8] = acc[i / N][i % N][n];
            }
        }
        __syncthreads();
        const int n_sums = chunks - round < step ? (int)(chunks - round) : step;
        QN_UNROLL
        for (int column = 0; column < MOST_WIDTH; column++) {
            if (column >= width) break;
            for (int i = 0; i < n_sums; i++) {
                QN_UNROLL
                for (int e = 0; e < EACH; e++)
                    total[column][e] += sums[i * width + column][e * 32 * QN_SOME_WARPS + threadIdx.x];
            }
        }
        __syncthreads();
    }
    QN_UNROLL
    for (int i = 0; i < MOST_WIDTH * EACH; i++) {
        const int column = i / EACH, at = i % EACH * 32 * QN_SOME_WARPS + threadIdx.x;
        const int64_t row = (quad * width + column) * QN_SOME_ROWS + at % QN_SOME_ROWS,
                      token = at / QN_SOME_ROWS;
        if (column < width && token < t.n && row < p.w.n_out)
            qn_store_product(p, t, row, token, total[column][i % EACH]);
    }
}

#endif
