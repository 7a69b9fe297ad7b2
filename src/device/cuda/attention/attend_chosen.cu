/* Attention over chosen blocks: a block of threads takes a row and a head through what it sees, 128 positions at a
 * time. A thread scores one of them, and then gathers some dimensions of values. The positions are counted block by
 * block in the order of the choice, the tail last, so a row's bits depend on its own choice alone. */
#include "device/cuda/attention/attention.cuh"

enum { THREADS = 128 };

typedef struct {
    qn_cuda_attention a;
    const int32_t *chosen;
    int64_t top, chosen_row, block;
    int no_tail;
} work;

/* The i-th position of a row at `position`; -1: it does not see it. before: positions before what it counts. */
static __device__ __forceinline__ int64_t position_of(const work &w, const int32_t *chosen, int64_t position,
                                                      int64_t first, int64_t i)
{
    const int64_t entry = i / w.block, whole = (position + 1) / w.block;
    int64_t number = whole;
    if (entry < w.top) {
        number = chosen[entry];
        if (number < 0 || number >= whole) return -1;
    } else if (w.no_tail) {
        return -1;
    }
    const int64_t at = number * w.block + i % w.block;
    return at < first || at > position ? -1 : at;
}

typedef struct {
    const int32_t *table; /* NULL: keys are the rows' own */
    int64_t begin, before;
} keys_at;

static __device__ __forceinline__ const char *row_at(const work &w, const qn_kv_rows &rows, const keys_at &k,
                                                     int64_t at, int kv)
{
    if (!k.table) return rows.base + (k.begin + at) * rows.token + kv * rows.head;
    at -= k.before;
    return rows.base + k.table[at / QN_PAGE_TOKENS] * rows.page + kv * rows.head +
           at % QN_PAGE_TOKENS * rows.token;
}

/* Of all threads; room [THREADS]. */
static __device__ __forceinline__ float over_all(float x, float *room, int is_sum)
{
    __syncthreads();
    room[threadIdx.x] = x;
    for (int step = THREADS / 2; step; step /= 2) {
        __syncthreads();
        if (threadIdx.x < step) {
            const float y = room[threadIdx.x + step], z = room[threadIdx.x];
            room[threadIdx.x] = is_sum ? z + y : z < y ? y : z;
        }
    }
    __syncthreads();
    return room[0];
}

template <qn_dtype D> static __global__ void attend(work w)
{
    QN_SHARED(memory);
    __shared__ float room[THREADS], p[THREADS];
    __shared__ int64_t places[THREADS];
    const qn_cuda_attention &a = w.a;
    const int k_pad = qn_padded(a.k.dim), v_pad = qn_padded(a.v.dim), lane = threadIdx.x % 32;
    float *q = (float *)memory, *gathered = q + k_pad;
    const int64_t row = blockIdx.x / a.n_heads, sequence = qn_sequence_of(a.row_begin, a.n_sequences, row);
    const int head = (int)(blockIdx.x % a.n_heads), kv = head / a.shared;
    const int32_t *chosen = w.chosen + row * w.chosen_row;
    keys_at k = {NULL, a.row_begin[sequence], 0};
    int64_t position = row - k.begin;
    if (a.blocks) {
        k.table = a.blocks + sequence * a.table_row + 1;
        k.before = (int64_t)qn_pages_before(k.table[-1]) * QN_PAGE_TOKENS;
        position = a.positions[row];
    }
    int64_t first = a.window && position >= a.window ? position - a.window + 1 : 0;
    if (first < k.before) first = k.before;
    for (int d = threadIdx.x; d < k_pad; d += THREADS) {
        float x = d < a.k.dim ? a.q[row * a.q_row + (int64_t)head * a.k.dim + d] * a.factor : 0.0f;
        if constexpr (D == QN_DTYPE_Q4_0) x = qn_turn_block(x, 0.125f);
        q[d] = x;
    }
    for (int d = threadIdx.x; d < v_pad; d += THREADS) gathered[d] = 0;
    qn_softmax all = {-INFINITY, 0};
    const int64_t n = w.top * w.block + (position + 1) % w.block;
    for (int64_t from = 0; from < n; from += THREADS) {
        const int64_t i = from + threadIdx.x, at = i < n ? position_of(w, chosen, position, first, i) : -1;
        float score = -INFINITY;
        __syncthreads();
        places[threadIdx.x] = at;
        if (at >= 0) {
            const char *key = row_at(w, a.k, k, at, kv);
            float x = 0;
            for (int d = 0; d < a.k.dim; d += 4) {
                float y[4];
                qn_widen_some<D, 4>(qn_load_some<D, 4>(key, d, a.k.dim, a.is_loose), d, y);
                for (int j = 0; j < 4; j++) x = fmaf(q[d + j], y[j], x);
            }
            if constexpr (D == QN_DTYPE_Q4_0) {
                /* of a turned block all 32 count */
                for (int d = (a.k.dim + 3) / 4 * 4; d < k_pad; d += 4) {
                    float y[4];
                    qn_widen_some<D, 4>(qn_load_some<D, 4>(key, d, a.k.dim, a.is_loose), d, y);
                    for (int j = 0; j < 4; j++) x = fmaf(q[d + j], y[j], x);
                }
            }
            score = a.cap != 0 ? a.cap * tanhf(x) : x;
        }
        const float largest = over_all(score, room, 0);
        if (largest == -INFINITY) continue;
        const float m = largest < all.largest ? all.largest : largest, keep = qn_power_of_2(all.largest - m);
        p[threadIdx.x] = at >= 0 ? qn_power_of_2(score - m) : 0.0f;
        all.total = fmaf(all.total, keep, over_all(p[threadIdx.x], room, 1));
        all.largest = m;
        for (int d = 4 * threadIdx.x; d < v_pad; d += 4 * THREADS) {
            float x[4];
            for (int j = 0; j < 4; j++) x[j] = gathered[d + j] * keep;
            for (int t = 0; t < THREADS; t++) {
                if (places[t] < 0) continue;
                float y[4];
                qn_widen_some<D, 4>(
                    qn_load_some<D, 4>(row_at(w, a.v, k, places[t], kv), d, a.v.dim, a.is_loose), d, y);
                for (int j = 0; j < 4; j++) x[j] = fmaf(p[t], y[j], x[j]);
            }
            for (int j = 0; j < 4; j++) gathered[d + j] = x[j];
        }
    }
    __syncthreads();
    float *out = a.out + (row * a.n_heads + head) * a.v.dim;
    for (int d = threadIdx.x - lane; d < v_pad; d += THREADS) {
        float x = 0;
        if (all.largest > -INFINITY)
            x = qn_close_softmax(all, gathered[d + lane], a.sinks ? a.sinks + head : NULL,
                                 D == QN_DTYPE_Q4_0);
        if (d + lane < a.v.dim) out[d + lane] = x;
    }
}

qn_status qn_cuda_attend_chosen(qn_cuda_context *c, const qn_cuda_step *s, const qn_cuda_attention *a,
                                qn_dtype dtype)
{
    const qn_params_attend *p = &s->params->attend;
    const qn_cuda_operand *chosen = &s->in[s->n_in - 1];
    work w = {*a, (const int32_t *)chosen->data, chosen->dim[1], chosen->stride[0], p->block, p->no_tail};
    const int64_t grid = a->past * a->n_heads;
    const size_t bytes = (size_t)(qn_padded(a->k.dim) + qn_padded(a->v.dim)) * sizeof(float);
    switch (dtype) {
    case QN_DTYPE_F32:
        return qn_cuda_begin(c, attend<QN_DTYPE_F32>, grid, THREADS, bytes, w);
    case QN_DTYPE_F16:
        return qn_cuda_begin(c, attend<QN_DTYPE_F16>, grid, THREADS, bytes, w);
    case QN_DTYPE_BF16:
        return qn_cuda_begin(c, attend<QN_DTYPE_BF16>, grid, THREADS, bytes, w);
    case QN_DTYPE_Q8_0:
        return qn_cuda_begin(c, attend<QN_DTYPE_Q8_0>, grid, THREADS, bytes, w);
    default:
        return qn_cuda_begin(c, attend<QN_DTYPE_Q4_0>, grid, THREADS, bytes, w);
    }
}
