/* Reading rows of pages (pages.h): a few neighbouring elements as they lie, and later the same in f32. A load and
 * its conversion are apart so that loads can be begun early. */
#ifndef QN_DEVICE_CUDA_ATTENTION_PAGES_CUH
#define QN_DEVICE_CUDA_ATTENTION_PAGES_CUH

#include "device/cuda/attention/pages.h"
#include "device/cuda/kernel.cuh"
#include "prim/blocks.h"

/* qn_blocks_before of the first column of a block table. */
static __device__ __forceinline__ int32_t qn_pages_before(int32_t first_column)
{
    return first_column & ~(QN_BLOCKS_WHOLE | QN_BLOCKS_BACK);
}

/* Words that are loaded and stored together. */
template <int N> struct alignas(N >= 4 ? 16 : 4 * N) qn_words {
    uint32_t w[N];
};

struct alignas(16) qn_float4 {
    float x[4];
};

/* N (4 or 8) elements. Q8_0 and Q4_0: words of codes, and the scale in the last word. */
template <qn_dtype D, int N> struct qn_some {
    static constexpr int plain = D == QN_DTYPE_F32 ? N : N / 2;
    static constexpr int is_blocks = D == QN_DTYPE_Q8_0 || D == QN_DTYPE_Q4_0;
    uint32_t w[is_blocks ? N / 4 + 1 : plain];
};

/* Elements d (a multiple of N) and behind of a row of dim elements; zeros behind the row. is_loose: a row of f32
 * that is not padded or not aligned. Rows of blocks end with their last block: of a turned one all 32 count. */
template <qn_dtype D, int N>
static __device__ __forceinline__ qn_some<D, N> qn_load_some(const char *row, int d, int dim, int is_loose)
{
    qn_some<D, N> r = {};
    if (d >= (qn_some<D, N>::is_blocks ? (dim + 31) / 32 * 32 : dim)) return r;
    if constexpr (qn_some<D, N>::is_blocks) {
        const int bytes = D == QN_DTYPE_Q8_0 ? 34 : 18, first = D == QN_DTYPE_Q8_0 ? d % 32 : d % 16;
        const uint16_t *p = (const uint16_t *)(row + d / 32 * bytes);
        for (int i = 0; i < N / 4; i++)
            r.w[i] = p[1 + first / 2 + 2 * i] | (uint32_t)p[2 + first / 2 + 2 * i] << 16;
        r.w[N / 4] = p[0];
    } else if constexpr (D == QN_DTYPE_F32) {
        const uint32_t *p = (const uint32_t *)row + d;
        for (int i = 0; i < N; i += 4) {
            if (is_loose) {
                for (int j = 0; j < 4; j++) r.w[i + j] = d + i + j < dim ? p[i + j] : 0;
            } else if (d + i < dim) {
                const qn_words<4> four = *(const qn_words<4> *)(p + i);
                for (int j = 0; j < 4; j++) r.w[i + j] = four.w[j];
            }
        }
    } else {
        const qn_words<N / 2> halves = *(const qn_words<N / 2> *)((const uint16_t *)row + d);
        for (int i = 0; i < N / 2; i++) r.w[i] = halves.w[i];
    }
    return r;
}

/* In f32; d as above. */
template <qn_dtype D, int N>
static __device__ __forceinline__ void qn_widen_some(const qn_some<D, N> &r, int d, float (&out)[N])
{
    if constexpr (qn_some<D, N>::is_blocks) {
        const float scale = qn_half_to_float((uint16_t)r.w[N / 4]);
        for (int i = 0; i < N; i++) {
            const uint32_t byte = r.w[i / 4] >> 8 * (i % 4) & 255u;
            if constexpr (D == QN_DTYPE_Q8_0)
                out[i] = scale * (float)(int8_t)byte;
            else
                out[i] = scale * (float)((int)(d % 32 < 16 ? byte & 15u : byte >> 4) - 8);
        }
    } else if constexpr (D == QN_DTYPE_F32) {
        for (int i = 0; i < N; i++) out[i] = qn_cuda_bits_float(r.w[i]);
    } else {
        for (int i = 0; i < N; i++) {
            const uint16_t h = (uint16_t)(r.w[i / 2] >> 16 * (i % 2));
            out[i] = D == QN_DTYPE_F16 ? qn_half_to_float(h) : qn_bf16_float(h);
        }
    }
}

/* Blocks of 32 are turned by H, lane i holding element i: H H is 32 times the identity, and keys and values are
 * multiplied by H / 4, queries and what was gathered of values by H / 8. All lanes of a warp take part. */
static __device__ __forceinline__ float qn_turn_block(float x, float factor)
{
    const int lane = threadIdx.x % 32;
    for (int d = 1; d < 32; d *= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, x, d);
        x = lane & d ? other - x : x + other;
    }
    return x * factor;
}

#endif
