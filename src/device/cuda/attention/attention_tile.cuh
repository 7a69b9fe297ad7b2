/* The kernel of attention (attention.cuh): a block takes a tile of rows and the heads that share a key head, up to
 * P pairs of row and head, through groups of positions. A warp has a page of each group to itself: its lanes are
 * the page's tokens when scores are computed, and dimensions when values are gathered. */
#ifndef QN_DEVICE_CUDA_ATTENTION_ATTENTION_TILE_CUH
#define QN_DEVICE_CUDA_ATTENTION_ATTENTION_TILE_CUH

#include "device/cuda/attention/attention.cuh"
#include "device/cuda/step/step.h"

#ifdef QN_CUDA_HOST
#ifndef __launch_bounds__
#define __launch_bounds__(...)
#endif
#endif

/* Columns of keys that are staged at once, and floats from one token to the next there (16 bytes more, so that
 * lanes read from all banks); columns of values that a warp gathers at once; pairs whose sums meet at once. */
enum { QN_STAGE = 32, QN_STAGE_ROW = QN_STAGE + 4, QN_COLUMNS = 128, QN_MEET = 8 };
enum { QN_STAGE_FLOATS = QN_PAGE_TOKENS * QN_STAGE_ROW, QN_ATTEND_THREADS = 32 * QN_GROUP_PAGES };

static inline size_t qn_attend_shared_bytes(int pairs, int dim, int v_dim, int is_split)
{
    const size_t floats = QN_GROUP_PAGES * QN_STAGE_FLOATS +
                          (size_t)pairs * (size_t)(qn_padded(dim) + QN_GROUP) +
                          (is_split ? 0 : (size_t)pairs * (size_t)qn_padded(v_dim));
    return floats * sizeof(float);
}

/* What a block knows of its pairs. */
typedef struct {
    int64_t lo[16], hi[16]; /* positions [lo, hi) are seen */
    qn_softmax softmax[16];
    float keep[16], add[16];
} qn_pairs;

/* What a block holds in shared memory. */
typedef struct {
    float *stage;  /* [warp][token][QN_STAGE_ROW]; later [warp][QN_MEET][QN_COLUMNS] */
    float *q;      /* [head_dim / 4][P][4], zeros behind head_dim */
    float *scores; /* [P][QN_GROUP] */
    float *merged; /* [P][v_pad] */
    qn_pairs *pairs;
} qn_block;

/* ---- queries ------------------------------------------------------------------------------------------- */

template <qn_dtype D, int P>
static __device__ void load_queries(const qn_cuda_attention &a, const qn_row_tile &t, int head, int n_heads,
                                    int n_pairs, float *q)
{
    const int lane = threadIdx.x % 32, n_blocks = qn_padded(a.k.dim) / 32;
    for (int i = threadIdx.x / 32; i < P * n_blocks; i += QN_GROUP_PAGES) {
        const int pair = i / n_blocks, d = i % n_blocks * 32 + lane;
        float x = 0;
        if (pair < n_pairs && d < a.k.dim)
            x = a.q[(t.row + pair / n_heads) * a.q_row + (int64_t)(head + pair % n_heads) * a.k.dim + d];
        if (D == QN_DTYPE_Q4_0) x = qn_turn_block(x, 0.125f);
        q[(d / 4 * P + pair) * 4 + d % 4] = x * a.factor;
    }
}

/* ---- scores -------------------------------------------------------------------------------------------- */

template <qn_dtype D>
static __device__ __forceinline__ void fetch_keys(const qn_cuda_attention &a, const qn_page &page, int d,
                                                  qn_some<D, 8> (&out)[4])
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int token = 8 * i + lane / 4;
        out[i] = {};
        if (token >= page.from && token < page.to)
            out[i] = qn_load_some<D, 8>(page.k + token * a.k.token, d + lane % 4 * 8, a.k.dim, a.is_loose);
    }
}

/* Scores of the page's tokens, a lane each, before what a cap makes of them. */
template <qn_dtype D, int P>
static __device__ __forceinline__ void score_page(const qn_cuda_attention &a, const qn_page &page,
                                                  float *stage, const float *q, float *scores)
{
    const int lane = threadIdx.x % 32;
    float sum[P];
    qn_some<D, 8> next[4];
#pragma unroll
    for (int p = 0; p < P; p++) sum[p] = 0;
    fetch_keys<D>(a, page, 0, next);
    for (int d = 0; d < a.k.dim; d += QN_STAGE) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float x[8];
            qn_widen_some<D, 8>(next[i], d + lane % 4 * 8, x);
            qn_float4 *to = (qn_float4 *)(stage + (8 * i + lane / 4) * QN_STAGE_ROW + lane % 4 * 8);
            to[0] = {{x[0], x[1], x[2], x[3]}};
            to[1] = {{x[4], x[5], x[6], x[7]}};
        }
        __syncwarp();
        if (d + QN_STAGE < a.k.dim) fetch_keys<D>(a, page, d + QN_STAGE, next);
#pragma unroll
        for (int j = 0; j < QN_STAGE; j += 4) {
            const qn_float4 k = *(const qn_float4 *)(stage + lane * QN_STAGE_ROW + j);
#pragma unroll
            for (int p = 0; p < P; p++) {
                const qn_float4 x = *(const qn_float4 *)(q + ((d + j) * P + 4 * p));
#pragma unroll
                for (int i = 0; i < 4; i++) sum[p] = fmaf(x.x[i], k.x[i], sum[p]);
            }
        }
        __syncwarp();
    }
#pragma unroll
    for (int p = 0; p < P; p++) scores[p * QN_GROUP] = sum[p];
}

/* ---- softmax ------------------------------------------------------------------------------------------- */

/* A pair's scores in a group to probabilities, -1 where the pair does not look, by one warp. */
static __device__ __forceinline__ void group_softmax(const qn_cuda_attention &a, float *x, int64_t lo,
                                                     int64_t hi, float *largest, float *total)
{
    enum { N = QN_GROUP / 32 };
    const int lane = threadIdx.x % 32;
    float s[N], m = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int t = 32 * i + lane;
        s[i] = -INFINITY;
        if (t < lo || t >= hi) continue;
        s[i] = a.cap != 0 ? a.cap * tanhf(x[t]) : x[t];
        m = fmaxf(m, s[i]);
    }
    m = qn_warp_max(m);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int t = 32 * i + lane, sees = t >= lo && t < hi;
        const float p = qn_power_of_2(s[i] - m);
        if (sees) sum += p;
        x[t] = sees ? p : -1.0f;
    }
    *largest = m;
    *total = lo < hi ? qn_warp_sum(sum) : -1.0f;
}

/* ---- values -------------------------------------------------------------------------------------------- */

template <qn_dtype D, int B>
static __device__ __forceinline__ void fetch_values(const qn_cuda_attention &a, const qn_page &page, int t,
                                                    int d, qn_some<D, 4> (&out)[B])
{
#pragma unroll
    for (int i = 0; i < B; i++) {
        out[i] = {};
        if (t + i >= page.from && t + i < page.to)
            out[i] = qn_load_some<D, 4>(page.v + (t + i) * a.v.token, d, a.v.dim, a.is_loose);
    }
}

/* Four columns of the page's values, from d on, by the probabilities of its tokens. */
template <qn_dtype D, int P>
static __device__ __forceinline__ void weigh_page(const qn_cuda_attention &a, const qn_page &page,
                                                  const float *probabilities, int d, float (&sum)[P][4])
{
    constexpr int B = P <= 4 ? 8 : 4; /* tokens that are loaded together */
    qn_some<D, 4> next[B];
#pragma unroll
    for (int p = 0; p < P; p++)
        for (int i = 0; i < 4; i++) sum[p][i] = 0;
    const int begin = page.from / B * B;
    fetch_values<D, B>(a, page, begin, d, next);
    for (int t = begin; t < page.to; t += B) {
        float v[B][4];
#pragma unroll
        for (int i = 0; i < B; i++) qn_widen_some<D, 4>(next[i], d, v[i]);
        if (t + B < page.to) fetch_values<D, B>(a, page, t + B, d, next);
#pragma unroll
        for (int p = 0; p < P; p++) {
#pragma unroll
            for (int j = 0; j < B; j += 4) {
                const qn_float4 w = *(const qn_float4 *)(probabilities + p * QN_GROUP + t + j);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    if (w.x[i] < 0) continue;
#pragma unroll
                    for (int n = 0; n < 4; n++) sum[p][n] = fmaf(w.x[i], v[j + i][n], sum[p][n]);
                }
            }
        }
    }
}

/* ---- a group ------------------------------------------------------------------------------------------- */

/* Where a block leaves the sums of a group. */
typedef struct {
    float *acc;
    int64_t row, head; /* floats from row to row, from head to head */
} qn_part;

/* The sums of warps [begin, end), which are pages, of pairs [first, first + QN_MEET) and columns from d on. */
static __device__ __forceinline__ void meet(const qn_cuda_attention &a, const qn_block &b, int begin, int end,
                                            int first, int n_pairs, int d, const qn_part &part, int n_heads)
{
    const int v_pad = qn_padded(a.v.dim);
    for (int i = threadIdx.x; i < QN_MEET * QN_COLUMNS; i += QN_ATTEND_THREADS) {
        const int pair = first + i / QN_COLUMNS, column = d + i % QN_COLUMNS;
        if (pair >= n_pairs || column >= v_pad) continue;
        float x = b.stage[begin * QN_MEET * QN_COLUMNS + i];
        for (int w = begin + 1; w < end; w++) x += b.stage[w * QN_MEET * QN_COLUMNS + i];
        if (part.acc) {
            part.acc[pair / n_heads * part.row + pair % n_heads * part.head + column] = x;
        } else {
            float *to = b.merged + pair * v_pad + column;
            *to = fmaf(*to, b.pairs->keep[pair], x * b.pairs->add[pair]);
        }
    }
}

template <qn_dtype D, int P>
static __device__ __forceinline__ void gather_values(const qn_cuda_attention &a, const qn_block &b,
                                                     const qn_page &page, int begin, int end, int n_pairs,
                                                     const qn_part &part, int n_heads)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, mine = warp >= begin && warp < end;
    for (int d = 0; d < a.v.dim; d += QN_COLUMNS) {
        float sum[P][4];
        if (mine) weigh_page<D, P>(a, page, b.scores + warp * QN_PAGE_TOKENS, d + 4 * lane, sum);
#pragma unroll
        for (int first = 0; first < P; first += QN_MEET) {
#pragma unroll
            for (int p = 0; p < QN_MEET && p + first < P; p++) {
                float *to = b.stage + (warp * QN_MEET + p) * QN_COLUMNS + 4 * lane;
                if (mine)
                    *(qn_float4 *)to = {
                        {sum[p + first][0], sum[p + first][1], sum[p + first][2], sum[p + first][3]}};
            }
            qn_barrier(2, QN_ATTEND_THREADS);
            meet(a, b, begin, end, first, n_pairs, d, part, n_heads);
            qn_barrier(2, QN_ATTEND_THREADS);
        }
    }
}

/* Results of a block that saw all groups. */
template <qn_dtype D>
static __device__ void close_pairs(const qn_cuda_attention &a, const qn_block &b, const qn_row_tile &t,
                                   int head, int n_heads, int n_pairs)
{
    const int lane = threadIdx.x % 32, n_blocks = qn_padded(a.v.dim) / 32;
    for (int i = threadIdx.x / 32; i < n_pairs * n_blocks; i += QN_GROUP_PAGES) {
        const int pair = i / n_blocks, d = i % n_blocks * 32 + lane, h = head + pair % n_heads;
        const float x = qn_close_softmax(b.pairs->softmax[pair], b.merged[pair * n_blocks * 32 + d],
                                         a.sinks ? a.sinks + h : NULL, D == QN_DTYPE_Q4_0);
        if (d < a.v.dim) a.out[((t.row + pair / n_heads) * a.n_heads + h) * a.v.dim + d] = x;
    }
}

template <qn_dtype D, int P>
static __device__ __forceinline__ void qn_attend_tile(const qn_cuda_attention &a, int64_t at, char *memory)
{
    __shared__ qn_pairs pairs;
    qn_block b = {(float *)memory};
    b.q = b.stage + QN_GROUP_PAGES * QN_STAGE_FLOATS;
    b.scores = b.q + P * qn_padded(a.k.dim);
    b.merged = b.scores + P * QN_GROUP;
    b.pairs = &pairs;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, v_pad = qn_padded(a.v.dim);
    const int n_splits = a.n_splits ? a.n_splits : 1;
    const int split = (int)(at % n_splits);
    at /= n_splits;
    qn_row_tile t;
    int kv, head, n_heads;
    if (!qn_find_pairs(a, at, &t, &kv, &head, &n_heads)) return;
    const int n_pairs = (int)t.n * n_heads;
    const int64_t lowest = qn_sight(a, t.sequence, t.begin, t.end, t.row).lo,
                  past = qn_sight(a, t.sequence, t.begin, t.end, t.row + t.n - 1).hi;
    if (threadIdx.x < P) {
        const int pair = threadIdx.x;
        qn_seen s = {0, 0};
        if (pair < n_pairs) s = qn_sight(a, t.sequence, t.begin, t.end, t.row + pair / n_heads);
        pairs.lo[pair] = s.lo;
        pairs.hi[pair] = s.hi;
        pairs.softmax[pair] = {-INFINITY, 0};
    }
    load_queries<D, P>(a, t, head, n_heads, n_pairs, b.q);
    for (int i = threadIdx.x; i < P * v_pad && !a.n_splits; i += QN_ATTEND_THREADS) b.merged[i] = 0;
    qn_barrier(2, QN_ATTEND_THREADS);
    for (int64_t g = lowest / QN_GROUP + split; g * QN_GROUP < past; g += n_splits) {
        const int64_t group = g * QN_GROUP, low = lowest > group ? lowest : group,
                      high = past < group + QN_GROUP ? past : group + QN_GROUP;
        const int begin = (int)(low - group) / QN_PAGE_TOKENS,
                  end = (int)(high - group + QN_PAGE_TOKENS - 1) / QN_PAGE_TOKENS;
        const qn_page page = qn_page_at(a, t, kv, group + warp * QN_PAGE_TOKENS, low, high);
        if (page.to)
            score_page<D, P>(a, page, b.stage + warp * QN_STAGE_FLOATS, b.q,
                             b.scores + warp * QN_PAGE_TOKENS + lane);
        qn_barrier(2, QN_ATTEND_THREADS);
        qn_part part = {};
        const int64_t group_floats = a.n_groups * v_pad;
        if (a.n_splits) {
            part = {a.parts, a.n_heads * group_floats, group_floats};
            part.acc += (t.row - a.first) * part.row + head * part.head + g * v_pad;
        }
        for (int pair = warp; pair < n_pairs; pair += QN_GROUP_PAGES) {
            const int64_t lo = pairs.lo[pair] > group ? pairs.lo[pair] - group : 0,
                          hi = pairs.hi[pair] < group + QN_GROUP ? pairs.hi[pair] - group : (int)QN_GROUP;
            float largest, total;
            group_softmax(a, b.scores + pair * QN_GROUP, lo, hi, &largest, &total);
            if (lane) continue;
            if (a.n_splits) {
                float *ml = a.parts + (a.past - a.first) * a.n_heads * group_floats;
                ml += (((t.row - a.first + pair / n_heads) * a.n_heads + head + pair % n_heads) * a.n_groups +
                       g) *
                      2;
                ml[0] = largest;
                ml[1] = total;
            } else {
                qn_add_group(&pairs.softmax[pair], largest, total, &pairs.keep[pair], &pairs.add[pair]);
            }
        }
        qn_barrier(2, QN_ATTEND_THREADS);
        gather_values<D, P>(a, b, page, begin, end, n_pairs, part, n_heads);
    }
    if (!a.n_splits) close_pairs<D>(a, b, t, head, n_heads, n_pairs);
}

template <qn_dtype D, int P>
static __global__ void __launch_bounds__(QN_ATTEND_THREADS, 2) attend_tiles(qn_cuda_attention a)
{
    QN_SHARED(memory);
    qn_attend_tile<D, P>(a, blockIdx.x, memory);
}

#endif
