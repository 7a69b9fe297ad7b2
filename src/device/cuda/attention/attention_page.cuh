/* One page of f16 keys and values beside up to 16 pairs of row and head, by the tensor cores of one warp. Pairs are
 * the 16 rows of operand A. The sums of a page, for a pair:
 *
 *     s[t] = q.k[t]               q is scaled by a power of two and split into two f16: q = high + low. One chain of
 *                                 steps over head_dim; each step adds high, then low
 *     m = max s, p[t] = 2^(s[t] - m)
 *     acc[d] = sum p[t] v[t][d]   p is split like q; one chain of two steps over the page's 32 tokens
 *     l = sum p[t]                the same chain with ones in place of values
 *
 * Which element is which k of a step is chosen so that lanes read 16 bytes of keys and values as they lie, and so
 * that a lane's scores are its own part of operand A for the values. A tensor core's sum does not depend on the other
 * rows of A, so a pair's bits depend on its own data alone. */
#ifndef QN_DEVICE_CUDA_ATTENTION_ATTENTION_PAGE_CUH
#define QN_DEVICE_CUDA_ATTENTION_ATTENTION_PAGE_CUH

#include "device/cuda/attention/attention.cuh"
#include "device/cuda/product/half2.cuh"
#include "device/cuda/product/mma.cuh"
#include "device/cuda/product/product.h"

enum { QN_TILE_PAIRS = 16, QN_KEYS = 4 /* 32-column pieces of keys that a warp loads at once */ };

/* D, a kernel's head_dim: 64, 128 or 256, and zeros behind the model's own. */
static __host__ __device__ inline int qn_attend_dim(const qn_cuda_attention *a)
{
    const int dim = a->k.dim > a->v.dim ? a->k.dim : a->v.dim;
    return dim <= 64 ? 64 : dim <= 128 ? 128 : 256;
}

/* 1: pages of this kind go through tensor cores. */
static inline int qn_can_attend_pages(const qn_cuda_attention *a, qn_dtype dtype)
{
    return dtype == QN_DTYPE_F16 && a->blocks && a->k.dim <= 256 && a->v.dim <= 256 && a->k.dim % 8 == 0 &&
           a->v.dim % 8 == 0;
}

/* Queries in shared memory. Rows are 64 bytes longer than 2 D, so that lanes read from all banks. */
template <int D> struct alignas(16) qn_queries {
    uint16_t high[QN_TILE_PAIRS][D + 32], low[QN_TILE_PAIRS][D + 32];
    float scale[QN_TILE_PAIRS]; /* what scores are multiplied by */
};

/* By a warp: q [dim], times factor, becomes pair number `pair`; NULL: zeros. */
template <int D>
static __device__ __forceinline__ void qn_set_query(qn_queries<D> *to, int pair, const float *q, int dim,
                                                    float factor)
{
    const int lane = threadIdx.x % 32;
    float x[D / 32], most = 0;
    QN_UNROLL
    for (int i = 0; i < D / 32; i++) {
        const int d = i * 32 + lane;
        x[i] = q && d < dim ? q[d] * factor : 0;
        const float size = fabsf(x[i]);
        most = size > most ? size : most; /* NaN is passed over: the scores show it */
    }
    const int e = qn_cuda_row_exponent(qn_warp_max(most));
    const float down = qn_cuda_power_of_two(-e);
    QN_UNROLL
    for (int i = 0; i < D / 32; i++) {
        const float scaled = x[i] * down;
        const uint16_t high = qn_float_to_half(scaled);
        to->high[pair][i * 32 + lane] = high;
        to->low[pair][i * 32 + lane] = qn_float_to_half(scaled - qn_half_to_float(high));
    }
    if (lane == 0) to->scale[pair] = qn_cuda_power_of_two(e);
}

/* ---- scores -------------------------------------------------------------------------------------------- */

/* The page's token that is column n of tile number `tile` of scores. */
static __device__ __forceinline__ int qn_token_of(int tile, int n)
{
    return tile / 2 * 16 + n / 2 * 4 + tile % 2 * 2 + n % 2;
}

/* A lane's part of the keys of all tokens, columns [32 first, 32 (first + N)). What is not seen may be NaN. */
template <int N> struct qn_keys {
    uint4 at[4][N];
};

template <int N>
static __device__ __forceinline__ void qn_load_keys(const qn_cuda_attention &a, const qn_page &page,
                                                    int first, qn_keys<N> *k)
{
    const int lane = threadIdx.x % 32;
    QN_UNROLL
    for (int tile = 0; tile < 4; tile++) {
        const char *row = page.k + qn_token_of(tile, lane / 4) * (int)a.k.token;
        QN_UNROLL
        for (int j = 0; j < N; j++) {
            const int d = (first + j) * 32 + lane % 4 * 8;
            k->at[tile][j] = make_uint4(0, 0, 0, 0);
            if (d < a.k.dim) k->at[tile][j] = *(const uint4 *)(row + d * 2);
        }
    }
}

/* s += q.k over the columns of k. FULL: more than 8 pairs. */
template <int D, int N, int FULL>
static __device__ __forceinline__ void qn_add_scores(const qn_queries<D> &q, const qn_keys<N> &k, int first,
                                                     float (&s)[4][4])
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    QN_UNROLL
    for (int j = 0; j < N; j++) {
        const int d = (first + j) * 32 + t * 8;
        const uint4 none = make_uint4(0, 0, 0, 0), high_0 = *(const uint4 *)&q.high[g][d],
                    low_0 = *(const uint4 *)&q.low[g][d],
                    high_1 = FULL ? *(const uint4 *)&q.high[g + 8][d] : none,
                    low_1 = FULL ? *(const uint4 *)&q.low[g + 8][d] : none;
        const uint32_t high[2][4] = {{high_0.x, high_1.x, high_0.y, high_1.y},
                                     {high_0.z, high_1.z, high_0.w, high_1.w}},
                       low[2][4] = {{low_0.x, low_1.x, low_0.y, low_1.y},
                                    {low_0.z, low_1.z, low_0.w, low_1.w}};
        QN_UNROLL
        for (int half = 0; half < 2; half++) {
            QN_UNROLL
            for (int tile = 0; tile < 4; tile++) {
                const uint4 &w = k.at[tile][j];
                const uint32_t b[2] = {half ? w.z : w.x, half ? w.w : w.y};
                qn_mma_f16(s[tile], high[half], b);
            }
            QN_UNROLL
            for (int tile = 0; tile < 4; tile++) {
                const uint4 &w = k.at[tile][j];
                const uint32_t b[2] = {half ? w.z : w.x, half ? w.w : w.y};
                qn_mma_f16(s[tile], low[half], b);
            }
        }
    }
}

/* ---- probabilities ------------------------------------------------------------------------------------- */

/* Of rows lane / 4 and lane / 4 + 8. */
typedef struct {
    int from[2], to[2]; /* the page's tokens that a pair sees */
} qn_page_sight;

typedef struct {
    uint32_t high[2][4], low[2][4]; /* operands A of both steps */
    float largest[2], total[2];     /* total: -1 where nothing is seen */
} qn_page_weights;

static __device__ __noinline__ float qn_soft_cap(float cap, float x)
{
    return cap * tanhf(x);
}

/* s becomes p. */
static __device__ __forceinline__ void qn_find_weights(const qn_cuda_attention &a, const qn_page_sight &sight,
                                                       const float (&scale)[2], float (&s)[4][4],
                                                       qn_page_weights *w)
{
    const int t = threadIdx.x % 4;
    float m[2] = {-INFINITY, -INFINITY};
    QN_UNROLL
    for (int tile = 0; tile < 4; tile++) {
        QN_UNROLL
        for (int i = 0; i < 4; i++) {
            const int row = i / 2, token = qn_token_of(tile, 2 * t + i % 2);
            float x = s[tile][i] * scale[row];
            if (a.cap != 0) x = qn_soft_cap(a.cap, x);
            s[tile][i] = x;
            if (token >= sight.from[row] && token < sight.to[row]) m[row] = fmaxf(m[row], x);
        }
    }
    QN_UNROLL
    for (int row = 0; row < 2; row++) {
        m[row] = fmaxf(m[row], __shfl_xor_sync(0xffffffffu, m[row], 1));
        m[row] = fmaxf(m[row], __shfl_xor_sync(0xffffffffu, m[row], 2));
    }
    QN_UNROLL
    for (int tile = 0; tile < 4; tile++) {
        float low[4];
        uint16_t high[4];
        QN_UNROLL
        for (int i = 0; i < 4; i++) {
            const int row = i / 2, token = qn_token_of(tile, 2 * t + i % 2);
            const float p = qn_power_of_2(s[tile][i] - m[row]);
            s[tile][i] = token >= sight.from[row] && token < sight.to[row] ? p : 0;
            high[i] = qn_float_to_half(s[tile][i]);
            low[i] = s[tile][i] - qn_half_to_float(high[i]);
        }
        QN_UNROLL
        for (int row = 0; row < 2; row++) {
            w->high[tile / 2][tile % 2 * 2 + row] = high[2 * row] | (uint32_t)high[2 * row + 1] << 16;
            w->low[tile / 2][tile % 2 * 2 + row] = qn_half2_pack(low[2 * row], low[2 * row + 1]);
        }
    }
    float sum[4] = {0, 0, 0, 0};
    const uint32_t ones[2] = {0x3c003c00u, 0x3c003c00u};
    QN_UNROLL
    for (int step = 0; step < 2; step++) {
        qn_mma_f16(sum, w->high[step], ones);
        qn_mma_f16(sum, w->low[step], ones);
    }
    QN_UNROLL
    for (int row = 0; row < 2; row++) {
        w->largest[row] = m[row];
        w->total[row] = sight.from[row] < sight.to[row] ? sum[2 * row] : -1.0f;
    }
}

/* ---- values -------------------------------------------------------------------------------------------- */

/* A lane's part of the values of all tokens, columns [64 piece, 64 piece + 64). */
typedef struct {
    uint4 at[2][4];
} qn_values;

static __device__ __forceinline__ void qn_load_values(const qn_cuda_attention &a, const qn_page &page,
                                                      int piece, qn_values *v)
{
    const int lane = threadIdx.x % 32, d = piece * 64 + lane / 4 * 8;
    QN_UNROLL
    for (int step = 0; step < 2; step++) {
        QN_UNROLL
        for (int i = 0; i < 4; i++) {
            const int token = step * 16 + lane % 4 * 4 + i;
            v->at[step][i] = make_uint4(0, 0, 0, 0);
            if (token >= page.from && token < page.to && d < a.v.dim)
                v->at[step][i] = *(const uint4 *)(page.v + token * (int)a.v.token + d * 2);
        }
    }
}

static __device__ __forceinline__ uint32_t qn_word(const uint4 &x, int i)
{
    return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

/* Column 64 piece + 8 n + i, n the column of operand B: sum[0], sum[1] are columns 64 piece + 16 (lane % 4) + i and 8
 * further of row lane / 4; sum[2], sum[3] of row lane / 4 + 8. */
static __device__ __forceinline__ void qn_weigh_values(const qn_values &v, const qn_page_weights &w, int i,
                                                       float (&sum)[4])
{
    QN_UNROLL
    for (int n = 0; n < 4; n++) sum[n] = 0;
    QN_UNROLL
    for (int step = 0; step < 2; step++) {
        uint32_t b[2];
        QN_UNROLL
        for (int n = 0; n < 2; n++) {
            const uint32_t even = qn_word(v.at[step][2 * n], i / 2),
                           odd = qn_word(v.at[step][2 * n + 1], i / 2);
            b[n] = i % 2 ? even >> 16 | (odd & 0xffff0000u) : (even & 0xffffu) | odd << 16;
        }
        qn_mma_f16(sum, w.high[step], b);
        qn_mma_f16(sum, w.low[step], b);
    }
}

/* The part of a page that a pair sees, of positions [lo, hi). */
static __device__ __forceinline__ void qn_see_page(qn_page_sight *sight, int row, const qn_seen &s,
                                                   int64_t at)
{
    const int64_t from = s.lo - at, to = s.hi - at;
    sight->from[row] = from < 0 ? 0 : from > QN_PAGE_TOKENS ? (int)QN_PAGE_TOKENS : (int)from;
    sight->to[row] = to < 0 ? 0 : to > QN_PAGE_TOKENS ? (int)QN_PAGE_TOKENS : (int)to;
}

#endif
