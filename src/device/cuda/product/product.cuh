/* Two kernels of product.h, for one form of weights, and which of the four begins. A panel of 16 rows is operand A, tokens are operand B. */
#ifndef QN_DEVICE_CUDA_PRODUCT_PRODUCT_CUH
#define QN_DEVICE_CUDA_PRODUCT_PRODUCT_CUH

#include "device/cuda/product/product_some.cuh"
#include "device/cuda/product/product_wide.cuh"

/* Up to 8 tokens: a block a panel, whose warps share the chunks. */
template <int FORM, int BITS> static __global__ void __launch_bounds__(256) qn_product_few(qn_cuda_product p)
{
    QN_SHARED(shared); /* [chunks][8 tokens][16 rows] */
    float *sums = (float *)shared;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
    const int64_t panel = blockIdx.x % p.w.n_panels;
    const qn_cuda_tokens t = qn_tokens_of(p, blockIdx.x / p.w.n_panels, QN_CUDA_FEW);
    const int64_t padded = p.w.n_units * p.w.unit_k, chunks = (padded + QN_CUDA_CHUNK - 1) / QN_CUDA_CHUNK;
    const int64_t whole_panel = t.part * p.w.n_panels + panel;
    if (t.n) {
        float inverse[2];
        qn_row_factors(p.w, whole_panel, lane, inverse);
        const int has_token = lane / 4 < t.n;
        const uint32_t *x =
            (const uint32_t *)(p.x + (has_token ? qn_token_in(t, lane / 4) : 0) * p.x_stride) + lane % 4;
        const char *units = p.w.data + (size_t)(whole_panel * p.w.n_units) * (size_t)p.w.unit_bytes;
        for (int64_t chunk = warp; chunk < chunks; chunk += n_warps) {
            float acc[4] = {0, 0, 0, 0};
            const int64_t begin = chunk * QN_CUDA_CHUNK,
                          end = begin + QN_CUDA_CHUNK < padded ? begin + QN_CUDA_CHUNK : padded;
#pragma unroll 2
            for (int64_t k = begin; k < end; k += QN_CUDA_TILE_K) {
                uint32_t a[16], b[8];
#pragma unroll
                for (int i = 0; i < 8; i++) b[i] = has_token ? x[k / 2 + 4 * i] : 0;
                qn_tile_halves<FORM, BITS>(p.w, units + (size_t)(k / p.w.unit_k) * (size_t)p.w.unit_bytes,
                                           (int)(k % p.w.unit_k) / QN_CUDA_TILE_K, lane, inverse, a);
#pragma unroll
                for (int s = 0; s < 4; s++) qn_mma_f16(acc, a + 4 * s, b + 2 * s);
            }
            float *to = sums + chunk * 128 + lane % 4 * 32 + lane / 4;
            to[0] = acc[0], to[16] = acc[1], to[8] = acc[2], to[24] = acc[3];
        }
    }
    __syncthreads();
    const int row = threadIdx.x % 16, token = threadIdx.x / 16;
    if (threadIdx.x < 128 && token < t.n && panel * QN_CUDA_PANEL + row < p.w.n_out) {
        float sum = 0;
        for (int64_t chunk = 0; chunk < chunks; chunk++) sum += sums[chunk * 128 + threadIdx.x];
        qn_store_product(p, t, panel * QN_CUDA_PANEL + row, token, sum);
    }
}

/* Up to 64 tokens and 4 panels: each warp a panel, tokens through shared memory. */
enum {
    QN_TOKEN_STRIDE = 72
}; /* halves of a token's 64 columns: rows of 16 bytes fall into different banks */

static __device__ __forceinline__ void qn_fetch_tokens(const qn_cuda_product &p, const qn_cuda_tokens &t,
                                                       uint16_t *to, int64_t k)
{
#pragma unroll
    for (int i = 0; i < 4; i++) { /* 128 threads, 512 pieces of 16 bytes */
        const int piece = i * 128 + threadIdx.x, token = piece / 8;
        const int is_there = token < t.n;
        const uint16_t *from = p.x + (is_there ? qn_token_in(t, token) : 0) * p.x_stride + k + piece % 8 * 8;
        qn_copy_async16(to + token * QN_TOKEN_STRIDE + piece % 8 * 8, from, is_there ? 16 : 0);
    }
    qn_copy_async_commit();
}

template <int FORM, int BITS> static __global__ void __launch_bounds__(128) qn_product_many(qn_cuda_product p)
{
    __shared__ __align__(16) uint16_t tokens[2][QN_CUDA_MANY * QN_TOKEN_STRIDE];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t quads = (p.w.n_panels + 3) / 4, tiles = gridDim.x / quads;
    const qn_cuda_tokens t = qn_tokens_of(p, blockIdx.x % tiles, QN_CUDA_MANY);
    const int64_t panel = blockIdx.x / tiles * 4 + warp;
    if (!t.n) return;
    const int has_panel = panel < p.w.n_panels;
    const int64_t whole_panel = t.part * p.w.n_panels + (has_panel ? panel : 0);
    const int64_t padded = p.w.n_units * p.w.unit_k;
    const char *units = p.w.data + (size_t)(whole_panel * p.w.n_units) * (size_t)p.w.unit_bytes;
    float inverse[2], acc[8][4], total[8][4];
    qn_row_factors(p.w, whole_panel, lane, inverse);
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) acc[j][i] = total[j][i] = 0;
    qn_fetch_tokens(p, t, tokens[0], 0);
    for (int64_t k = 0, turn = 0; k < padded; k += QN_CUDA_TILE_K, turn ^= 1) {
        const int has_next = k + QN_CUDA_TILE_K < padded;
        uint32_t a[16];
        if (has_next) qn_fetch_tokens(p, t, tokens[turn ^ 1], k + QN_CUDA_TILE_K);
        qn_tile_halves<FORM, BITS>(p.w, units + (size_t)(k / p.w.unit_k) * (size_t)p.w.unit_bytes,
                                   (int)(k % p.w.unit_k) / QN_CUDA_TILE_K, lane, inverse, a);
        if (has_next)
            qn_copy_async_wait<1>();
        else
            qn_copy_async_wait<0>();
        __syncthreads();
#pragma unroll
        for (int j = 0; j < 8; j++) {
            /* 8 tokens x 64 columns: four 8 x 8 matrices at a time are two steps' operands */
            const uint16_t *from = tokens[turn] + (j * 8 + lane % 8) * QN_TOKEN_STRIDE + lane / 8 * 8;
            uint32_t b[8];
            qn_ldmatrix_x4(b, from);
            qn_ldmatrix_x4(b + 4, from + 32);
#pragma unroll
            for (int s = 0; s < 4; s++) qn_mma_f16(acc[j], a + 4 * s, b + 2 * s);
        }
        __syncthreads();
        if ((k + QN_CUDA_TILE_K) % QN_CUDA_CHUNK == 0 || !has_next) {
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) total[j][i] += acc[j][i], acc[j][i] = 0;
        }
    }
    if (!has_panel) return;
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int64_t row = panel * QN_CUDA_PANEL + lane / 4 + i / 2 * 8,
                          token = j * 8 + lane % 4 * 2 + i % 2;
            if (token < t.n && row < p.w.n_out) qn_store_product(p, t, row, token, total[j][i]);
        }
}

template <int FORM, int BITS>
static qn_status qn_product_launch(qn_cuda_context *c, const qn_cuda_product *p, int per_tile)
{
    const int64_t tiles = p->groups ? p->n_groups : qn_blocks(p->n_tokens, per_tile);
    if (per_tile == QN_CUDA_WIDE) {
        const int64_t works = qn_wide_works(*p, tiles);
        return qn_cuda_launch(c, qn_product_wide<FORM, BITS>, works < c->n_sm ? works : c->n_sm,
                              QN_WIDE_THREADS, qn_wide_shared_bytes<FORM>(p->w), *p, tiles);
    }
    if (per_tile == QN_CUDA_SOME) {
        const int64_t blocks = qn_some_blocks(p->w);
        if (p->n_tokens <= 16)
            return qn_cuda_launch(c, qn_product_some<FORM, BITS, 2>, tiles * blocks, 32 * QN_SOME_WARPS, 0,
                                  *p, blocks);
        return qn_cuda_launch(c, qn_product_some<FORM, BITS, QN_CUDA_SOME / 8>, tiles * blocks,
                              32 * QN_SOME_WARPS, 0, *p, blocks);
    }
    if (per_tile == QN_CUDA_MANY)
        return qn_cuda_launch(c, qn_product_many<FORM, BITS>, tiles * qn_blocks(p->w.n_panels, 4), 128, 0,
                              *p);
    const size_t shared = (size_t)qn_blocks(qn_cuda_padded(&p->w), QN_CUDA_CHUNK) * 128 * sizeof(float);
    return qn_cuda_launch(c, qn_product_few<FORM, BITS>, tiles * p->w.n_panels, 256, shared, *p);
}

#endif
