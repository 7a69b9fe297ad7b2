/* Attention of few rows over pages of f16 (attention_page.cuh): a block has up to 8 pairs of one key head and goes
 * through groups of positions. Each of its 8 warps computes a page of the group; then pages are merged in rising
 * order. Blocks share the groups of a tile; qn_merge_groups closes them. A warp has all keys of its page, and then
 * all values, under way before it waits for the first: latency, not bandwidth, is what a step of few rows waits for. */
#ifndef QN_DEVICE_CUDA_ATTENTION_ATTENTION_FEW_CUH
#define QN_DEVICE_CUDA_ATTENTION_ATTENTION_FEW_CUH

#include "device/cuda/attention/attention_page.cuh"
#include "device/cuda/step/step.h"

enum { QN_FEW_PAIRS = 8, QN_FEW_THREADS = 32 * QN_GROUP_PAGES };

/* What the step kernel is told of it. */
typedef struct {
    qn_cuda_attention a;
    int is_few; /* else the step kernel cannot do it */
} qn_attend_op;

/* What a block holds in shared memory. */
template <int D> struct qn_few_block {
    qn_queries<D> q;
    float largest[QN_GROUP_PAGES][QN_FEW_PAIRS], total[QN_GROUP_PAGES][QN_FEW_PAIRS];
    int64_t lo[QN_FEW_PAIRS], hi[QN_FEW_PAIRS];
    float acc[QN_GROUP_PAGES][QN_FEW_PAIRS][D + 4];
};

static inline size_t qn_attend_few_bytes(int dim)
{
    return dim == 64    ? sizeof(qn_few_block<64>)
           : dim == 128 ? sizeof(qn_few_block<128>)
                        : sizeof(qn_few_block<256>);
}

/* The warp's page beside all pairs. keys: of columns [0, 32 N), loaded before. */
template <int D, int N>
static __device__ __forceinline__ void qn_few_page(const qn_cuda_attention &a, const qn_page &page,
                                                   int64_t at, qn_keys<N> *keys, qn_few_block<D> *b)
{
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    qn_values v;
    float s[4][4];
    QN_UNROLL
    for (int tile = 0; tile < 4; tile++)
        for (int i = 0; i < 4; i++) s[tile][i] = 0;
    QN_UNROLL
    for (int first = 0; first < D / 32; first += N) {
        if (first) qn_load_keys<N>(a, page, first, keys);
        if (first + N == D / 32) qn_load_values(a, page, 0, &v);
        qn_add_scores<D, N, 0>(b->q, *keys, first, s);
    }
    qn_page_sight sight = {{0, 0}, {0, 0}};
    qn_see_page(&sight, 0, {b->lo[g], b->hi[g]}, at);
    const float scale[2] = {b->q.scale[g], 1};
    qn_page_weights w;
    qn_find_weights(a, sight, scale, s, &w);
    if (t == 0) b->largest[warp][g] = w.largest[0], b->total[warp][g] = w.total[0];
    QN_UNROLL
    for (int piece = 0; piece < D / 64; piece++) {
        qn_values next = v;
        if (piece + 1 < D / 64) qn_load_values(a, page, piece + 1, &next);
        float sum[8][4];
        QN_UNROLL
        for (int i = 0; i < 8; i++) qn_weigh_values(v, w, i, sum[i]);
        QN_UNROLL
        for (int n = 0; n < 2; n++) {
            float4 *to = (float4 *)&b->acc[warp][g][piece * 64 + t * 16 + n * 8];
            to[0] = make_float4(sum[0][n], sum[1][n], sum[2][n], sum[3][n]);
            to[1] = make_float4(sum[4][n], sum[5][n], sum[6][n], sum[7][n]);
        }
        v = next;
    }
}

/* Pages [begin, end) of group g, in rising order, to where blocks leave groups. */
template <int D>
static __device__ __forceinline__ void qn_few_merge(const qn_cuda_attention &a, const qn_few_block<D> &b,
                                                    const qn_row_tile &t, int head, int n_heads, int n_pairs,
                                                    int64_t g, int begin, int end)
{
    const int v_pad = qn_padded(a.v.dim), n_fours = v_pad / 4;
    const int64_t group_floats = a.n_groups * v_pad;
    float *const softmaxes = a.parts + (a.past - a.first) * a.n_heads * group_floats;
    for (int i = threadIdx.x; i < n_pairs * n_fours; i += QN_FEW_THREADS) {
        const int pair = i / n_fours, d = i % n_fours * 4;
        const int64_t at = (t.row - a.first + pair / n_heads) * a.n_heads + head + pair % n_heads;
        qn_softmax softmax = {-INFINITY, 0};
        float sum[4] = {0, 0, 0, 0};
#pragma unroll 4
        for (int page = begin; page < end; page++) {
            float keep, add;
            const float4 x = *(const float4 *)&b.acc[page][pair][d];
            qn_add_group(&softmax, b.largest[page][pair], b.total[page][pair], &keep, &add);
            sum[0] = fmaf(sum[0], keep, x.x * add);
            sum[1] = fmaf(sum[1], keep, x.y * add);
            sum[2] = fmaf(sum[2], keep, x.z * add);
            sum[3] = fmaf(sum[3], keep, x.w * add);
        }
        *(float4 *)(a.parts + at * group_floats + g * v_pad + d) =
            make_float4(sum[0], sum[1], sum[2], sum[3]);
        if (d) continue;
        float *to = softmaxes + (at * a.n_groups + g) * 2;
        to[0] = softmax.largest;
        to[1] = qn_group_total(softmax);
    }
}

/* Tile `at` of attend_few's grid, with n_splits in place of the step's. */
template <int D>
static __device__ __forceinline__ void qn_attend_few(const qn_cuda_attention &a, int n_splits, int64_t at,
                                                     char *memory)
{
    constexpr int N = D / 32 < QN_KEYS ? D / 32 : QN_KEYS;
    qn_few_block<D> *const b = (qn_few_block<D> *)memory;
    const int warp = threadIdx.x / 32, split = (int)(at % n_splits);
    qn_row_tile t;
    int kv, head, n_heads;
    if (!qn_find_pairs(a, at / n_splits, &t, &kv, &head, &n_heads)) return;
    const int n_pairs = (int)t.n * n_heads;
    const int64_t lowest = qn_sight(a, t.sequence, t.begin, t.end, t.row).lo,
                  past = qn_sight(a, t.sequence, t.begin, t.end, t.row + t.n - 1).hi;
    const int64_t first = lowest / QN_GROUP + split;
    if (first * QN_GROUP >= past) return;
    int64_t place = first * QN_GROUP + warp * QN_PAGE_TOKENS;
    qn_page page = qn_page_at(a, t, kv, place, lowest, past);
    qn_keys<N> keys;
    if (page.to) qn_load_keys<N>(a, page, 0, &keys);
    qn_barrier(2, QN_FEW_THREADS); /* what a tile before this one has left is read */
    for (int pair = warp; pair < QN_FEW_PAIRS; pair += QN_GROUP_PAGES) {
        const int64_t row = t.row + pair / n_heads;
        qn_set_query<D>(&b->q, pair,
                        pair < n_pairs ? a.q + row * a.q_row + (int64_t)(head + pair % n_heads) * a.k.dim
                                       : NULL,
                        a.k.dim, a.factor);
    }
    if (threadIdx.x < QN_FEW_PAIRS) {
        qn_seen s = {0, 0};
        if ((int)threadIdx.x < n_pairs)
            s = qn_sight(a, t.sequence, t.begin, t.end, t.row + threadIdx.x / n_heads);
        b->lo[threadIdx.x] = s.lo;
        b->hi[threadIdx.x] = s.hi;
    }
    qn_barrier(2, QN_FEW_THREADS);
    for (int64_t g = first;;) {
        if (page.to) qn_few_page<D, N>(a, page, place, &keys, b);
        const int64_t group = g * QN_GROUP, lo = lowest > group ? lowest : group,
                      hi = past < group + QN_GROUP ? past : group + QN_GROUP;
        const int64_t next = g + n_splits;
        if (next * QN_GROUP < past) {
            place = next * QN_GROUP + warp * QN_PAGE_TOKENS;
            page = qn_page_at(a, t, kv, place, lowest, past);
            if (page.to) qn_load_keys<N>(a, page, 0, &keys);
        }
        qn_barrier(2, QN_FEW_THREADS);
        qn_few_merge<D>(a, *b, t, head, n_heads, n_pairs, g, (int)(lo - group) / QN_PAGE_TOKENS,
                        (int)(hi - group + QN_PAGE_TOKENS - 1) / QN_PAGE_TOKENS);
        if (next * QN_GROUP >= past) break;
        g = next;
        qn_barrier(2, QN_FEW_THREADS);
    }
}

template <int D> static __global__ void __launch_bounds__(QN_FEW_THREADS) attend_few(qn_cuda_attention a)
{
    QN_SHARED(memory);
    qn_attend_few<D>(a, a.n_splits, blockIdx.x, memory);
}

#endif
