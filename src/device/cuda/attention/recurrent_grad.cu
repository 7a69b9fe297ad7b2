/* Gradients of the recurrent primitives over whole sequences that start from zero. */
#include "device/cuda/elements/math.cuh"

#ifdef QN_CUDA_HOST
#define UNROLL
#else
#define UNROLL _Pragma("unroll")
#endif

/* ---- the short convolution ----------------------------------------------------------------------------- */

/* out[r] = sum over t of w[t] x[r + t - kept], kept = kernel - 1, so dx[r] = sum over t of w[t] d_out[r - t +
 * kept] and dw[t] = sum over r of d_out[r] x[r + t - kept], of rows of the same sequence. */
typedef struct {
    const float *x, *w, *d_out;
    const int32_t *row_begin;
    float *out;
    int64_t x_stride, d_stride, channels, n; /* n: elements of the output */
    int n_sequences, kernel;
} conv_grad;

enum { CONV_BLOCK = 128 };

/* The sequence of a row, -1: none. */
static __device__ __forceinline__ int sequence_of(const int32_t *row_begin, int n, int64_t row)
{
    int low = 0, high = n; /* row_begin[low] <= row < row_begin[high] */
    if (n < 1 || row < row_begin[0] || row >= row_begin[n]) return -1;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (row_begin[middle] <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static __global__ void conv_dx(const conv_grad a)
{
    const int64_t at = (int64_t)blockIdx.x * CONV_BLOCK + threadIdx.x;
    if (at >= a.n) return;
    const int64_t r = at / a.channels, c = at % a.channels;
    const int i = sequence_of(a.row_begin, a.n_sequences, r);
    float sum = 0;
    for (int t = 0; i >= 0 && t < a.kernel; t++) {
        const int64_t from = r - t + a.kernel - 1;
        if (from >= a.row_begin[i] && from < a.row_begin[i + 1])
            sum = fmaf(a.w[t * a.channels + c], a.d_out[from * a.d_stride + c], sum);
    }
    a.out[at] = sum;
}

/* One chain over all rows in rising order. */
static __global__ void conv_dw(const conv_grad a)
{
    const int64_t at = (int64_t)blockIdx.x * CONV_BLOCK + threadIdx.x;
    if (at >= a.n) return;
    const int64_t c = at % a.channels, back = a.kernel - 1 - at / a.channels;
    float sum = 0;
    for (int i = 0; i < a.n_sequences; i++) {
        const int64_t end = a.row_begin[i + 1];
        for (int64_t r = a.row_begin[i] + back; r < end; r++)
            sum = fmaf(a.d_out[r * a.d_stride + c], a.x[(r - back) * a.x_stride + c], sum);
    }
    a.out[at] = sum;
}

static qn_status conv_launch(qn_cuda_context *c, const qn_cuda_step *s)
{
    const qn_cuda_operand *x = &s->in[0], *w = &s->in[1];
    conv_grad a;
    a.x = (const float *)x->data, a.x_stride = x->stride[0];
    a.w = (const float *)w->data;
    a.d_out = (const float *)s->in[3].data, a.d_stride = s->in[3].stride[0];
    a.row_begin = (const int32_t *)s->in[2].data;
    a.n_sequences = (int)s->in[2].dim[0] - 1;
    a.out = (float *)s->out.data;
    a.channels = x->dim[1];
    a.kernel = (int)w->dim[0];
    a.n = qn_elements(&s->out);
    return qn_cuda_begin(c, s->params->recurrent.which ? conv_dw : conv_dx, qn_blocks(a.n, CONV_BLOCK),
                         CONV_BLOCK, 0, a);
}

extern const qn_cuda_prim qn_cuda_prim_SHORT_CONV_GRAD;
const qn_cuda_prim qn_cuda_prim_SHORT_CONV_GRAD = {conv_launch, NULL};

/* ---- the gated delta rule ------------------------------------------------------------------------------ */

/* A block computes the heads of a sequence that share a key head, one behind the other, so that every sum has one
 * owner. The state S [dk, dv] and its gradient lie in registers: warp w holds rows w + 16 e, lane l columns l + 32
 * c. The states of CHUNK rows are kept in memory, and the ones at the beginning of each such piece; the rest is
 * computed again. WORKERS: blocks that run at once, which limits the memory. */
enum { WARPS = 16, BLOCK = 32 * WARPS, CHUNK = 32, WORKERS = 132, WIDTH_MOST = 256 };

typedef struct {
    const float *q, *k, *v, *g, *beta, *d_out;
    const int32_t *row_begin;
    float *out, *states, *begins; /* states [workers][CHUNK][dk][dv], begins [chunks][key_heads][dk][dv] */
    int64_t q_stride, k_stride, v_stride, g_stride, beta_stride, d_stride, width; /* width: a row's of out */
    int n_items, n_workers, key_heads, heads, dk, dv;
    int by_channel, additive; /* g: a decay of each row of the state; delta is beta v */
} delta_grad;

/* One head of one sequence, from its first row on. */
typedef struct {
    const float *q, *k, *v, *g, *beta, *d_out;
    float *dq, *dk, *dv, *dg, *dbeta, *states, *begins;
    int64_t begin_stride; /* from a chunk's begin to the next one's */
    int n_rows, is_first; /* is_first: dq and dk are set, not added to */
} grad_head;

/* Shared memory: what sums over warps pass through, and u of a chunk's rows. */
template <int C> struct shared_sums {
    float by_warp[WARPS][32 * C], total[32 * C], decays[WARPS];
    float u[CHUNK][32 * C];
};

/* What a row's kernels need of it: k of this warp's rows, delta of this lane's columns. */
template <int E, int C> struct row_parts {
    float k[E], error[C], delta[C]; /* error = v - exp(g) u, delta = beta * error */
    float own[E];             /* the decay of each row of the state, beside the one of all; 1: it has none */
    float decay, beta, taken; /* taken: beta, or 0 where nothing of what the state held is taken off */
};

static __device__ __forceinline__ int warp_of(void)
{
    return (int)threadIdx.x / 32;
}

static __device__ __forceinline__ int lane_of(void)
{
    return (int)threadIdx.x % 32;
}

/* Sums over warps, in their order, of what each has for the columns. */
template <int C> static __device__ __forceinline__ void over_warps(shared_sums<C> *shared, float x[C])
{
    UNROLL
    for (int c = 0; c < C; c++) shared->by_warp[warp_of()][lane_of() + 32 * c] = x[c];
    __syncthreads();
    if (threadIdx.x < 32 * C) {
        float sum = 0;
        UNROLL
        for (int w = 0; w < WARPS; w++) sum += shared->by_warp[w][threadIdx.x];
        shared->total[threadIdx.x] = sum;
    }
    __syncthreads();
    UNROLL
    for (int c = 0; c < C; c++) x[c] = shared->total[lane_of() + 32 * c];
}

/* The warp's elements of a vector [dk], or the lane's of one [dv]. */
template <int E> static __device__ __forceinline__ void load_rows(const float *from, int dk, float x[E])
{
    UNROLL
    for (int e = 0; e < E; e++) x[e] = warp_of() + WARPS * e < dk ? from[warp_of() + WARPS * e] : 0;
}

template <int C> static __device__ __forceinline__ void load_columns(const float *from, int dv, float x[C])
{
    UNROLL
    for (int c = 0; c < C; c++) x[c] = lane_of() + 32 * c < dv ? from[lane_of() + 32 * c] : 0;
}

template <int E, int C>
static __device__ __forceinline__ void load_state(const delta_grad &a, const float *from, float s[E][C])
{
    UNROLL
    for (int e = 0; e < E; e++) {
        const int i = warp_of() + WARPS * e;
        UNROLL
        for (int c = 0; c < C; c++)
            s[e][c] = i < a.dk && lane_of() + 32 * c < a.dv ? from[i * a.dv + lane_of() + 32 * c] : 0;
    }
}

template <int E, int C>
static __device__ __forceinline__ void store_state(const delta_grad &a, float *to, const float s[E][C])
{
    UNROLL
    for (int e = 0; e < E; e++) {
        const int i = warp_of() + WARPS * e;
        UNROLL
        for (int c = 0; c < C; c++)
            if (i < a.dk && lane_of() + 32 * c < a.dv) to[i * a.dv + lane_of() + 32 * c] = s[e][c];
    }
}

/* What row r adds to the state, by u = S^T k; S is the state before the row. */
template <int E, int C>
static __device__ __forceinline__ void load_errors(const delta_grad &a, const grad_head &h, int r,
                                                   const float u[C], row_parts<E, C> *row)
{
    load_columns<C>(h.v + r * a.v_stride, a.dv, row->error);
    UNROLL
    for (int c = 0; c < C; c++) {
        if (!a.additive) row->error[c] = fmaf(-row->decay, u[c], row->error[c]);
        row->delta[c] = row->beta * row->error[c];
    }
}

template <int E, int C>
static __device__ __forceinline__ void begin_row(const delta_grad &a, const grad_head &h, int r,
                                                 row_parts<E, C> *row)
{
    load_rows<E>(h.k + r * a.k_stride, a.dk, row->k);
    const float *g = h.g + r * a.g_stride;
    UNROLL
    for (int e = 0; e < E; e++) row->own[e] = 1;
    if (a.by_channel) load_rows<E>(g, a.dk, row->own);
    row->decay = a.by_channel ? 1 : v_exp(*g);
    row->beta = h.beta[r * a.beta_stride];
    row->taken = a.additive ? 0 : row->beta;
}

/* S = exp(g) S + k delta^T. u: where u of the row is kept for the way back. */
template <int E, int C>
static __device__ __forceinline__ void advance(const delta_grad &a, const grad_head &h, int r,
                                               shared_sums<C> *shared, float *u, float s[E][C])
{
    row_parts<E, C> row;
    float x[C];
    begin_row<E, C>(a, h, r, &row);
    UNROLL
    for (int c = 0; c < C; c++) {
        x[c] = 0;
        UNROLL
        for (int e = 0; e < E; e++) x[c] = fmaf(row.k[e] * row.own[e], s[e][c], x[c]);
    }
    over_warps<C>(shared, x);
    UNROLL
    for (int c = 0; c < C; c++)
        if (warp_of() == 0) u[lane_of() + 32 * c] = x[c];
    load_errors<E, C>(a, h, r, x, &row);
    UNROLL
    for (int e = 0; e < E; e++) {
        UNROLL
        for (int c = 0; c < C; c++) s[e][c] = fmaf(row.k[e], row.delta[c], row.decay * row.own[e] * s[e][c]);
    }
}

/* dv, dbeta and dg of row r. by_decay: this thread's share of the sum of S d, d being the gradient of S. */
template <int E, int C>
static __device__ __forceinline__ void put_values(const delta_grad &a, const grad_head &h, int r,
                                                  shared_sums<C> *shared, const row_parts<E, C> &row,
                                                  const float d_delta[C], float by_decay)
{
    float by_beta = 0;
    UNROLL
    for (int c = 0; c < C; c++) {
        const int j = lane_of() + 32 * c;
        by_beta = fmaf(d_delta[c], row.error[c], by_beta);
        if (warp_of() == 0 && j < a.dv) h.dv[r * a.width + j] = row.beta * d_delta[c];
    }
    by_beta = qn_warp_sum(by_beta);
    by_decay = qn_warp_sum(by_decay);
    if (lane_of() == 0) shared->decays[warp_of()] = by_decay;
    __syncthreads();
    if (threadIdx.x == 0) {
        double sum = 0;
        for (int w = 0; w < WARPS; w++) sum += shared->decays[w];
        if (!a.by_channel) h.dg[r * a.width] = (float)sum;
        h.dbeta[r * a.width] = by_beta;
    }
}

static __device__ __forceinline__ void put_or_add(float *to, float x, int is_first)
{
    *to = is_first ? x : *to + x;
}

/* Row r, going back: d is the gradient of the state after it, and becomes that of the state S before. With n = exp(g)
 * S + k delta^T: dq = n d_out; d += q d_out^T; dk = d delta - beta exp(g) S d_delta, d_delta = d^T k. The gradient
 * of g is the sum of S times the new d; of a decay by channel, that of its row before the new d fades. */
template <int E, int C>
static __device__ __forceinline__ void step_back(const delta_grad &a, const grad_head &h, int r,
                                                 const float *state, const float *u, shared_sums<C> *shared,
                                                 float d[E][C])
{
    row_parts<E, C> row;
    float s[E][C], q[E], d_out[C], x[C], by_q[E], by_k[E], by_decay = 0;
    load_state<E, C>(a, state, s);
    begin_row<E, C>(a, h, r, &row);
    load_rows<E>(h.q + r * a.q_stride, a.dk, q);
    load_columns<C>(h.d_out + r * a.d_stride, a.dv, d_out);
    UNROLL
    for (int c = 0; c < C; c++) x[c] = u[lane_of() + 32 * c];
    load_errors<E, C>(a, h, r, x, &row);
    UNROLL
    for (int c = 0; c < C; c++) x[c] = 0;
    UNROLL
    for (int e = 0; e < E; e++) {
        by_q[e] = by_k[e] = 0;
        UNROLL
        for (int c = 0; c < C; c++) {
            by_q[e] = fmaf(fmaf(row.k[e], row.delta[c], row.decay * row.own[e] * s[e][c]), d_out[c], by_q[e]);
            d[e][c] = fmaf(q[e], d_out[c], d[e][c]);
            by_k[e] = fmaf(d[e][c], row.delta[c], by_k[e]);
            x[c] = fmaf(d[e][c], row.k[e], x[c]);
        }
    }
    over_warps<C>(shared, x);
    UNROLL
    for (int e = 0; e < E; e++) {
        const int i = warp_of() + WARPS * e;
        float by_s = 0, by_own = 0;
        UNROLL
        for (int c = 0; c < C; c++) {
            const float rest = fmaf(-row.taken * row.k[e], x[c], d[e][c]);
            by_s = fmaf(s[e][c], x[c], by_s);
            by_own = fmaf(s[e][c], rest, by_own);
            d[e][c] = row.decay * row.own[e] * rest;
            by_decay = fmaf(s[e][c], d[e][c], by_decay);
        }
        const float dq = qn_warp_sum(by_q[e]),
                    dk = qn_warp_sum(fmaf(-row.taken * row.decay * row.own[e], by_s, by_k[e]));
        by_own = qn_warp_sum(by_own);
        if (lane_of() == 0 && i < a.dk && a.by_channel) h.dg[r * a.width + i] = by_own;
        if (lane_of() == 0 && i < a.dk) {
            put_or_add(&h.dq[r * a.width + i], dq, h.is_first);
            put_or_add(&h.dk[r * a.width + i], dk, h.is_first);
        }
    }
    put_values<E, C>(a, h, r, shared, row, x, by_decay);
}

template <int E, int C>
static __device__ __forceinline__ void head_back(const delta_grad &a, const grad_head &h,
                                                 shared_sums<C> *shared)
{
    const int n_chunks = (h.n_rows + CHUNK - 1) / CHUNK;
    const int64_t size = (int64_t)a.dk * a.dv;
    float s[E][C] = {}, d[E][C] = {};
    for (int chunk = 0; chunk < n_chunks; chunk++) {
        store_state<E, C>(a, h.begins + chunk * h.begin_stride, s);
        for (int r = chunk * CHUNK; chunk + 1 < n_chunks && r < (chunk + 1) * CHUNK; r++)
            advance<E, C>(a, h, r, shared, shared->u[0], s);
    }
    for (int chunk = n_chunks - 1; chunk >= 0; chunk--) {
        const int first = chunk * CHUNK, end = h.n_rows < first + CHUNK ? h.n_rows : first + CHUNK;
        load_state<E, C>(a, h.begins + chunk * h.begin_stride, s);
        for (int r = first; r < end; r++) {
            store_state<E, C>(a, h.states + (r - first) * size, s);
            advance<E, C>(a, h, r, shared, shared->u[r - first], s);
        }
        __syncthreads(); /* u is complete */
        for (int r = end - 1; r >= first; r--)
            step_back<E, C>(a, h, r, h.states + (r - first) * size, shared->u[r - first], shared, d);
        __syncthreads(); /* all have read u */
    }
}

/* A row of the output: dq and dk [key heads, dk], dv [heads, dv], dg [heads] or [heads, dk], dbeta [heads]. A sequence's begins are
 * behind those of the sequences before it: they have at most row_begin / CHUNK + 1 for each. */
template <int E, int C> static __global__ void __launch_bounds__(BLOCK) delta_back(const delta_grad a)
{
    QN_SHARED(memory);
    shared_sums<C> *shared = (shared_sums<C> *)(void *)memory;
    const int n_shared = a.heads / a.key_heads, decays = a.by_channel ? a.dk : 1;
    const int64_t size = (int64_t)a.dk * a.dv;
    for (int item = (int)blockIdx.x; item < a.n_items; item += a.n_workers) {
        const int i = item / a.key_heads, key = item % a.key_heads;
        const int64_t row = a.row_begin[i];
        float *out = a.out + row * a.width, *values = out + 2 * (int64_t)a.key_heads * a.dk;
        for (int j = key * n_shared; j < (key + 1) * n_shared; j++) {
            grad_head h;
            h.q = a.q + row * a.q_stride + (int64_t)key * a.dk;
            h.k = a.k + row * a.k_stride + (int64_t)key * a.dk;
            h.v = a.v + row * a.v_stride + (int64_t)j * a.dv;
            h.g = a.g + row * a.g_stride + (int64_t)j * decays;
            h.beta = a.beta + row * a.beta_stride + j;
            h.d_out = a.d_out + row * a.d_stride + (int64_t)j * a.dv;
            h.dq = out + (int64_t)key * a.dk;
            h.dk = out + (int64_t)(a.key_heads + key) * a.dk;
            h.dv = values + (int64_t)j * a.dv;
            h.dg = values + (int64_t)a.heads * a.dv + (int64_t)j * decays;
            h.dbeta = values + (int64_t)a.heads * (a.dv + decays) + j;
            h.states = a.states + (int64_t)blockIdx.x * CHUNK * size;
            h.begins = a.begins + ((row / CHUNK + i) * a.key_heads + key) * size;
            h.begin_stride = a.key_heads * size;
            h.n_rows = a.row_begin[i + 1] - (int)row;
            h.is_first = j == key * n_shared;
            head_back<E, C>(a, h, shared);
        }
    }
}

static int workers_of(const qn_cuda_step *s)
{
    const int64_t n = (s->in[5].dim[0] - 1) * s->in[0].dim[1];
    return n < WORKERS ? (int)n : (int)WORKERS;
}

template <int E, int C> static qn_status begin_back(qn_cuda_context *c, const delta_grad &a)
{
    return qn_cuda_begin(c, delta_back<E, C>, a.n_workers, BLOCK, sizeof(shared_sums<C>), a);
}

static qn_status delta_launch(qn_cuda_context *c, const qn_cuda_step *s)
{
    const qn_cuda_operand *in = s->in;
    delta_grad a;
    a.q = (const float *)in[0].data, a.q_stride = in[0].stride[0];
    a.k = (const float *)in[1].data, a.k_stride = in[1].stride[0];
    a.v = (const float *)in[2].data, a.v_stride = in[2].stride[0];
    a.g = (const float *)in[3].data, a.g_stride = in[3].stride[0];
    a.beta = (const float *)in[4].data, a.beta_stride = in[4].stride[0];
    a.d_out = (const float *)in[6].data, a.d_stride = in[6].stride[0];
    a.row_begin = (const int32_t *)in[5].data;
    a.key_heads = (int)in[0].dim[1], a.heads = (int)in[2].dim[1];
    a.dk = (int)in[0].dim[2], a.dv = (int)in[2].dim[2];
    a.n_items = (int)(in[5].dim[0] - 1) * a.key_heads;
    a.n_workers = workers_of(s);
    a.out = (float *)s->out.data;
    a.width = s->out.dim[1];
    a.by_channel = in[3].n == 3;
    a.additive = s->params->recurrent.additive;
    a.states = (float *)s->scratch;
    a.begins = a.states + (int64_t)a.n_workers * CHUNK * a.dk * a.dv;
    if (a.dk > WIDTH_MOST || a.dv > WIDTH_MOST)
        return qn_cuda_fail(QN_E_UNSUPPORTED,
                            "device cuda: the gradient of GATED_DELTA takes heads of at most %d, not "
                            "%d and %d",
                            WIDTH_MOST, a.dk, a.dv);
    if (a.dk <= 32 && a.dv <= 32) return begin_back<2, 1>(c, a);
    if (a.dk <= 64 && a.dv <= 64) return begin_back<4, 2>(c, a);
    if (a.dk <= 128 && a.dv <= 128) return begin_back<8, 4>(c, a);
    return begin_back<16, 8>(c, a);
}

static size_t delta_scratch(const qn_cuda_step *s)
{
    const int64_t begins = (s->in[5].dim[0] + s->in[0].dim[0] / CHUNK) * s->in[0].dim[1];
    return (size_t)((workers_of(s) * CHUNK + begins) * s->in[0].dim[2] * s->in[2].dim[2]) * sizeof(float);
}

extern const qn_cuda_prim qn_cuda_prim_GATED_DELTA_GRAD;
const qn_cuda_prim qn_cuda_prim_GATED_DELTA_GRAD = {delta_launch, delta_scratch};
