/* Attention of many rows over pages of f16 (attention_page.cuh): each of a block's 4 warps has up to 16 pairs of one
 * key head to itself, and goes through all pages that they see. Pages are merged into their group in registers,
 * groups into the result in shared memory, in the order of attention_few.cuh. */
#ifndef QN_DEVICE_CUDA_ATTENTION_ATTENTION_MANY_CUH
#define QN_DEVICE_CUDA_ATTENTION_ATTENTION_MANY_CUH

#include "device/cuda/attention/attention_page.cuh"

enum { QN_MANY_WARPS = 4 };

/* A warp's shared memory. */
template <int D> struct qn_many_warp {
    qn_queries<D> q;
    float merged[QN_TILE_PAIRS][D + 4];
};

/* A lane's part of what a group has gathered: [piece][i] as qn_weigh_values gives them. */
template <int D> struct qn_gathered {
    float at[D / 64][8][4];
    qn_softmax softmax[2];
};

template <int D> static __device__ __forceinline__ void qn_clear(qn_gathered<D> *x)
{
    QN_UNROLL
    for (int piece = 0; piece < D / 64; piece++) {
        QN_UNROLL
        for (int i = 0; i < 8; i++) {
            QN_UNROLL
            for (int n = 0; n < 4; n++) x->at[piece][i][n] = 0;
        }
    }
    x->softmax[0] = x->softmax[1] = {-INFINITY, 0};
}

template <int D>
static __device__ __forceinline__ void qn_many_page(const qn_cuda_attention &a, const qn_page &page,
                                                    const qn_page_sight &sight, const qn_queries<D> &q,
                                                    qn_gathered<D> *group)
{
    constexpr int N = 2;
    const int g = threadIdx.x % 32 / 4;
    float s[4][4];
    QN_UNROLL
    for (int tile = 0; tile < 4; tile++)
        for (int i = 0; i < 4; i++) s[tile][i] = 0;
    QN_UNROLL
    for (int first = 0; first < D / 32; first += N) {
        qn_keys<N> keys;
        qn_load_keys<N>(a, page, first, &keys);
        qn_add_scores<D, N, 1>(q, keys, first, s);
    }
    const float scale[2] = {q.scale[g], q.scale[g + 8]};
    qn_page_weights w;
    qn_find_weights(a, sight, scale, s, &w);
    float keep[2], add[2];
    QN_UNROLL
    for (int row = 0; row < 2; row++)
        qn_add_group(&group->softmax[row], w.largest[row], w.total[row], &keep[row], &add[row]);
    QN_UNROLL
    for (int piece = 0; piece < D / 64; piece++) {
        qn_values v;
        qn_load_values(a, page, piece, &v);
        QN_UNROLL
        for (int i = 0; i < 8; i++) {
            float sum[4];
            qn_weigh_values(v, w, i, sum);
            QN_UNROLL
            for (int n = 0; n < 4; n++) {
                float *to = &group->at[piece][i][n];
                *to = fmaf(*to, keep[n / 2], sum[n] * add[n / 2]);
            }
        }
    }
}

/* Which of a lane's columns: [piece][i][n]. */
static __device__ __forceinline__ int qn_column_of(int piece, int i, int n)
{
    return piece * 64 + threadIdx.x % 4 * 16 + n % 2 * 8 + i;
}

/* The group's result to where blocks leave groups. at: of the pairs' softmaxes, -1: no such pair. */
template <int D>
static __device__ __forceinline__ void qn_many_leave(const qn_cuda_attention &a, const qn_gathered<D> &group,
                                                     const int64_t (&at)[2], int64_t g)
{
    const int v_pad = qn_padded(a.v.dim);
    const int64_t group_floats = a.n_groups * v_pad;
    QN_UNROLL
    for (int row = 0; row < 2; row++) {
        if (at[row] < 0) continue;
        float *const acc = a.parts + at[row] * group_floats + g * v_pad;
        QN_UNROLL
        for (int piece = 0; piece < D / 64; piece++) {
            QN_UNROLL
            for (int i = 0; i < 8; i++) {
                QN_UNROLL
                for (int n = 0; n < 2; n++) {
                    const int d = qn_column_of(piece, i, n);
                    if (d < v_pad) acc[d] = group.at[piece][i][2 * row + n];
                }
            }
        }
        if (threadIdx.x % 4) continue;
        float *to = a.parts + (a.past - a.first) * a.n_heads * group_floats + (at[row] * a.n_groups + g) * 2;
        to[0] = group.softmax[row].largest;
        to[1] = qn_group_total(group.softmax[row]);
    }
}

/* The group's result added to what groups before it have gathered. */
template <int D>
static __device__ __forceinline__ void qn_many_add(const qn_gathered<D> &group, qn_softmax (&softmax)[2],
                                                   float (*merged)[D + 4])
{
    const int g = threadIdx.x % 32 / 4;
    QN_UNROLL
    for (int row = 0; row < 2; row++) {
        float keep, add;
        qn_add_group(&softmax[row], group.softmax[row].largest, qn_group_total(group.softmax[row]), &keep,
                     &add);
        QN_UNROLL
        for (int piece = 0; piece < D / 64; piece++) {
            QN_UNROLL
            for (int i = 0; i < 8; i++) {
                QN_UNROLL
                for (int n = 0; n < 2; n++) {
                    float *to = &merged[g + 8 * row][qn_column_of(piece, i, n)];
                    *to = fmaf(*to, keep, group.at[piece][i][2 * row + n] * add);
                }
            }
        }
    }
}

template <int D>
static __global__ void __launch_bounds__(32 * QN_MANY_WARPS, D <= 128 ? 3 : 1)
    attend_many(qn_cuda_attention a)
{
    QN_SHARED(memory);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_splits = a.n_splits ? a.n_splits : 1;
    qn_many_warp<D> *const b = (qn_many_warp<D> *)memory + warp;
    qn_row_tile t;
    int kv, head, n_heads;
    if (!qn_find_pairs(a, blockIdx.x / n_splits, &t, &kv, &head, &n_heads)) return;
    /* the warp's own rows */
    const int rows = (int)(a.tile_rows / QN_MANY_WARPS), before = warp * rows;
    if (before >= t.n) return;
    t.row += before;
    t.n = t.n - before < rows ? t.n - before : rows;
    const int n_pairs = (int)t.n * n_heads;
    const int64_t lowest = qn_sight(a, t.sequence, t.begin, t.end, t.row).lo,
                  past = qn_sight(a, t.sequence, t.begin, t.end, t.row + t.n - 1).hi;
    for (int pair = 0; pair < QN_TILE_PAIRS; pair++) {
        const float *q =
            a.q + (t.row + pair / n_heads) * a.q_row + (int64_t)(head + pair % n_heads) * a.k.dim;
        qn_set_query<D>(&b->q, pair, pair < n_pairs ? q : NULL, a.k.dim, a.factor);
        for (int d = lane; d < D; d += 32) b->merged[pair][d] = 0;
    }
    __syncwarp();
    qn_seen seen[2] = {};
    int64_t at[2] = {-1, -1};
    QN_UNROLL
    for (int row = 0; row < 2; row++) {
        const int pair = lane / 4 + 8 * row;
        if (pair >= n_pairs) continue;
        seen[row] = qn_sight(a, t.sequence, t.begin, t.end, t.row + pair / n_heads);
        at[row] = (t.row - a.first + pair / n_heads) * a.n_heads + head + pair % n_heads;
    }
    qn_softmax softmax[2] = {{-INFINITY, 0}, {-INFINITY, 0}};
    for (int64_t g = lowest / QN_GROUP + blockIdx.x % n_splits; g * QN_GROUP < past; g += n_splits) {
        qn_gathered<D> group;
        qn_clear(&group);
#pragma unroll 1
        for (int i = 0; i < QN_GROUP_PAGES; i++) {
            const int64_t place = g * QN_GROUP + i * QN_PAGE_TOKENS;
            const qn_page page = qn_page_at(a, t, kv, place, lowest, past);
            if (!page.to) continue;
            qn_page_sight sight;
            qn_see_page(&sight, 0, seen[0], place);
            qn_see_page(&sight, 1, seen[1], place);
            qn_many_page<D>(a, page, sight, b->q, &group);
        }
        if (a.n_splits)
            qn_many_leave<D>(a, group, at, g);
        else
            qn_many_add<D>(group, softmax, b->merged);
    }
    if (a.n_splits) return;
    __syncwarp();
    for (int pair = 0; pair < n_pairs; pair++) {
        const int h = head + pair % n_heads, row = pair / 8, from = pair % 8 * 4;
        const qn_softmax s = {__shfl_sync(0xffffffffu, row ? softmax[1].largest : softmax[0].largest, from),
                              __shfl_sync(0xffffffffu, row ? softmax[1].total : softmax[0].total, from)};
        for (int d = lane; d < a.v.dim; d += 32)
            a.out[((t.row + pair / n_heads) * a.n_heads + h) * a.v.dim + d] =
                qn_close_softmax(s, b->merged[pair][d], a.sinks ? a.sinks + h : NULL, 0);
    }
}

#endif
