/* Which rows of activations a tile of a product reads, which rows of results it writes, and what brings rows of
 * weights into the range of f16: for all kernels of product.h. */
#ifndef QN_DEVICE_CUDA_PRODUCT_TOKENS_CUH
#define QN_DEVICE_CUDA_PRODUCT_TOKENS_CUH

#include "device/cuda/product/product.h"

/* What the tokens of a tile are: token t reads row of(t) of x and writes row to(t) of out. */
typedef struct {
    int64_t part, first, n;
    const int32_t *pairs;
    int32_t x_share;
} qn_cuda_tokens;

static __device__ __forceinline__ qn_cuda_tokens qn_tokens_of(const qn_cuda_product &p, int64_t tile,
                                                              int per_tile)
{
    qn_cuda_tokens t = {0, tile * per_tile, 0, p.pairs, p.x_share};
    if (p.groups) {
        const qn_cuda_group g = p.groups[tile];
        t.part = g.part, t.first = g.first, t.n = g.n;
    } else {
        t.n = p.n_tokens - t.first < per_tile ? p.n_tokens - t.first : per_tile;
    }
    return t;
}

static __device__ __forceinline__ int64_t qn_token_out(const qn_cuda_tokens &t, int64_t i)
{
    return t.pairs ? t.pairs[t.first + i] : t.first + i;
}

static __device__ __forceinline__ int64_t qn_token_in(const qn_cuda_tokens &t, int64_t i)
{
    return t.pairs ? t.pairs[t.first + i] / t.x_share : t.first + i;
}

static __device__ __forceinline__ void qn_row_factors(const qn_cuda_weight &w, int64_t panel, int lane,
                                                      float inverse[2])
{
    for (int h = 0; h < 2; h++)
        inverse[h] = w.factor ? 1 / w.factor[panel * QN_CUDA_PANEL + lane / 4 + 8 * h] : 1;
}

static __device__ __forceinline__ void qn_store_product(const qn_cuda_product &p, const qn_cuda_tokens &t,
                                                        int64_t row, int64_t token, float sum)
{
    const int64_t panel_row = t.part * p.w.n_panels * QN_CUDA_PANEL + row;
    float scale = p.x_scale[qn_token_in(t, token)];
    if (p.w.factor) scale *= p.w.factor[panel_row];
    float y = sum * scale;
    if (p.bias) y += p.bias[t.part * p.w.n_out + row];
    p.out[qn_token_out(t, token) * p.out_stride + row] = y;
}

#endif
