/* The tile of attention_tile.cuh for a step's few rows over pages of f16 with heads of up to 128: the same sums in
 * the same order, but a warp has all keys of its page under way before it waits for the first, and then all values.
 * Latency, not bandwidth, is what a step of few rows waits for. */
#ifndef QN_DEVICE_CUDA_ATTENTION_ATTENTION_FEW_CUH
#define QN_DEVICE_CUDA_ATTENTION_ATTENTION_FEW_CUH

#include "device/cuda/attention/attention_tile.cuh"

enum { QN_FEW_DIM = 128, QN_FEW_PAIRS = 8 };

static inline size_t qn_attend_few_bytes(int pairs)
{
    return (size_t)pairs * (QN_FEW_DIM + QN_GROUP + QN_GROUP_PAGES * QN_FEW_DIM) * sizeof(float);
}

static inline int qn_can_attend_few(const qn_cuda_attention *a, qn_dtype dtype, int pairs)
{
    return dtype == QN_DTYPE_F16 && a->n_splits && a->k.dim <= QN_FEW_DIM && a->v.dim <= QN_FEW_DIM &&
           a->k.dim % 8 == 0 && a->v.dim % 4 == 0 && pairs <= QN_FEW_PAIRS && a->blocks;
}

/* A lane's token of the page: all of its key. */
static __device__ __forceinline__ void qn_few_keys(const qn_cuda_attention &a, const qn_page &page,
                                                   uint4 (&k)[QN_FEW_DIM / 8])
{
    const int token = threadIdx.x % 32, is_there = token >= page.from && token < page.to;
    const uint4 *from = (const uint4 *)(page.k + token * a.k.token);
    QN_UNROLL
    for (int i = 0; i < QN_FEW_DIM / 8; i++) {
        k[i] = make_uint4(0, 0, 0, 0);
        if (is_there && i * 8 < a.k.dim) k[i] = from[i];
    }
}

/* A lane's four columns of all values of the page. */
static __device__ __forceinline__ void qn_few_values(const qn_cuda_attention &a, const qn_page &page,
                                                     uint2 (&v)[QN_PAGE_TOKENS])
{
    const int column = threadIdx.x % 32 * 4;
    QN_UNROLL
    for (int t = 0; t < QN_PAGE_TOKENS; t++) {
        v[t] = make_uint2(0, 0);
        if (t >= page.from && t < page.to && column < a.v.dim)
            v[t] = *(const uint2 *)(page.v + t * a.v.token + column * 2);
    }
}

static __device__ __forceinline__ void qn_two_halves(uint32_t word, float *out)
{
    out[0] = qn_half_to_float((uint16_t)word);
    out[1] = qn_half_to_float((uint16_t)(word >> 16));
}

/* No branches: a key is zeros behind head_dim, and so are queries; half of the columns is skipped as a whole. */
template <int P, int BEGIN>
static __device__ __forceinline__ void qn_few_half_scores(const uint4 (&k)[QN_FEW_DIM / 8], const float *q,
                                                          float (&sum)[P])
{
    QN_UNROLL
    for (int i = BEGIN; i < BEGIN + QN_FEW_DIM / 16; i++) {
        float x[8];
        qn_two_halves(k[i].x, x);
        qn_two_halves(k[i].y, x + 2);
        qn_two_halves(k[i].z, x + 4);
        qn_two_halves(k[i].w, x + 6);
        QN_UNROLL
        for (int p = 0; p < P; p++) {
            QN_UNROLL
            for (int j = 0; j < 8; j += 4) {
                const float4 y = *(const float4 *)(q + p * QN_FEW_DIM + i * 8 + j);
                sum[p] = fmaf(y.x, x[j], sum[p]);
                sum[p] = fmaf(y.y, x[j + 1], sum[p]);
                sum[p] = fmaf(y.z, x[j + 2], sum[p]);
                sum[p] = fmaf(y.w, x[j + 3], sum[p]);
            }
        }
    }
}

template <int P>
static __device__ __forceinline__ void qn_few_scores(const uint4 (&k)[QN_FEW_DIM / 8], int dim,
                                                     const float *q, float *scores)
{
    float sum[P];
    QN_UNROLL
    for (int p = 0; p < P; p++) sum[p] = 0;
    qn_few_half_scores<P, 0>(k, q, sum);
    if (dim > QN_FEW_DIM / 2) qn_few_half_scores<P, QN_FEW_DIM / 16>(k, q, sum);
    QN_UNROLL
    for (int p = 0; p < P; p++) scores[p * QN_GROUP] = sum[p];
}

/* The page's part of the values' sums, for the lane's columns. What is not seen has a negative probability. */
template <int P>
static __device__ __forceinline__ void qn_few_weigh(const uint2 (&v)[QN_PAGE_TOKENS],
                                                    const float *probabilities, float *to)
{
    float sum[P][4];
    QN_UNROLL
    for (int p = 0; p < P; p++)
        for (int n = 0; n < 4; n++) sum[p][n] = 0;
    QN_UNROLL
    for (int t = 0; t < QN_PAGE_TOKENS; t += 4) {
        float4 w[P];
        QN_UNROLL
        for (int p = 0; p < P; p++) w[p] = *(const float4 *)(probabilities + p * QN_GROUP + t);
        QN_UNROLL
        for (int i = 0; i < 4; i++) {
            float x[4];
            qn_two_halves(v[t + i].x, x);
            qn_two_halves(v[t + i].y, x + 2);
            QN_UNROLL
            for (int p = 0; p < P; p++) {
                const float y = i == 0 ? w[p].x : i == 1 ? w[p].y : i == 2 ? w[p].z : w[p].w;
                QN_UNROLL
                for (int n = 0; n < 4; n++) {
                    const float more = fmaf(y, x[n], sum[p][n]);
                    sum[p][n] = y < 0 ? sum[p][n] : more;
                }
            }
        }
    }
    QN_UNROLL
    for (int p = 0; p < P; p++)
        *(float4 *)(to + p * QN_FEW_DIM) = make_float4(sum[p][0], sum[p][1], sum[p][2], sum[p][3]);
}

/* Tile `at` of attend_tiles' grid, with n_splits in place of the step's. */
template <int P>
static __device__ __forceinline__ void qn_attend_few(const qn_cuda_attention &a, int n_splits, int64_t at,
                                                     char *memory)
{
    __shared__ int64_t low[QN_FEW_PAIRS], past_of[QN_FEW_PAIRS];
    float *q = (float *)memory, *scores = q + P * QN_FEW_DIM, *sums = scores + P * QN_GROUP;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, v_pad = qn_padded(a.v.dim);
    const int split = (int)(at % n_splits);
    at /= n_splits;
    const int chunk = (int)(at % a.n_chunks);
    at /= a.n_chunks;
    const int kv = (int)(at % a.kv_heads);
    qn_row_tile t;
    if (!qn_find_tile(a.row_begin, a.n_sequences, a.first, a.past, a.tile_rows,
                      a.n_tiles - 1 - at / a.kv_heads, &t))
        return;
    const int left = a.shared - chunk * a.heads, n_heads = left < a.heads ? left : a.heads,
              n_pairs = (int)t.n * n_heads, head = kv * a.shared + chunk * a.heads;
    const int64_t lowest = qn_sight(a, t.sequence, t.begin, t.end, t.row).lo,
                  past = qn_sight(a, t.sequence, t.begin, t.end, t.row + t.n - 1).hi;
    const int64_t first = lowest / QN_GROUP + split;
    if (first * QN_GROUP >= past) return;
    const qn_page page_0 =
        page_of(a, t, kv, first * QN_GROUP, lowest > first * QN_GROUP ? lowest : first * QN_GROUP,
                past < (first + 1) * QN_GROUP ? past : (first + 1) * QN_GROUP);
    uint4 keys[QN_FEW_DIM / 8];
    uint2 values[QN_PAGE_TOKENS];
    qn_few_keys(a, page_0, keys);
    qn_barrier(2, QN_ATTEND_THREADS); /* what a tile before this one has left is read */
    if (threadIdx.x < P) {
        qn_seen s = {0, 0};
        if ((int)threadIdx.x < n_pairs)
            s = qn_sight(a, t.sequence, t.begin, t.end, t.row + threadIdx.x / n_heads);
        low[threadIdx.x] = s.lo;
        past_of[threadIdx.x] = s.hi;
    }
    for (int i = threadIdx.x; i < P * QN_FEW_DIM; i += QN_ATTEND_THREADS) {
        const int pair = i / QN_FEW_DIM, d = i % QN_FEW_DIM;
        float x = 0;
        if (pair < n_pairs && d < a.k.dim)
            x = a.q[(t.row + pair / n_heads) * a.q_row + (int64_t)(head + pair % n_heads) * a.k.dim + d];
        q[i] = x * a.factor;
    }
    qn_barrier(2, QN_ATTEND_THREADS);
    for (int64_t g = first; g * QN_GROUP < past; g += n_splits) {
        const int64_t group = g * QN_GROUP, lo = lowest > group ? lowest : group,
                      hi = past < group + QN_GROUP ? past : group + QN_GROUP;
        const int begin = (int)(lo - group) / QN_PAGE_TOKENS,
                  end = (int)(hi - group + QN_PAGE_TOKENS - 1) / QN_PAGE_TOKENS;
        const qn_page page = page_of(a, t, kv, group, lo, hi);
        if (g != first) qn_few_keys(a, page, keys);
        if (page.to) qn_few_scores<P>(keys, a.k.dim, q, scores + warp * QN_PAGE_TOKENS + lane);
        qn_few_values(a, page, values); /* they come while probabilities are found */
        qn_barrier(2, QN_ATTEND_THREADS);
        const int64_t group_floats = a.n_groups * v_pad;
        for (int pair = warp; pair < n_pairs; pair += QN_GROUP_PAGES) {
            const int64_t from = low[pair] > group ? low[pair] - group : 0,
                          to = past_of[pair] < group + QN_GROUP ? past_of[pair] - group : (int)QN_GROUP;
            float largest, total;
            group_softmax(a, scores + pair * QN_GROUP, from, to, &largest, &total);
            if (lane) continue;
            float *ml =
                a.parts + (a.past - a.first) * a.n_heads * group_floats +
                (((t.row - a.first + pair / n_heads) * a.n_heads + head + pair % n_heads) * a.n_groups + g) *
                    2;
            ml[0] = largest;
            ml[1] = total;
        }
        qn_barrier(2, QN_ATTEND_THREADS);
        if (page.to)
            qn_few_weigh<P>(values, scores + warp * QN_PAGE_TOKENS, sums + warp * P * QN_FEW_DIM + lane * 4);
        qn_barrier(2, QN_ATTEND_THREADS);
        for (int i = threadIdx.x; i < n_pairs * QN_FEW_DIM; i += QN_ATTEND_THREADS) {
            const int pair = i / QN_FEW_DIM, column = i % QN_FEW_DIM;
            if (column >= v_pad) continue;
            float x = sums[begin * P * QN_FEW_DIM + i];
            for (int w = begin + 1; w < end; w++) x += sums[w * P * QN_FEW_DIM + i];
            a.parts[((t.row - a.first + pair / n_heads) * a.n_heads + head + pair % n_heads) * group_floats +
                    g * v_pad + column] = x;
        }
        qn_barrier(2, QN_ATTEND_THREADS);
    }
}

#endif
