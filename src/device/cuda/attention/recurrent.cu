/* Recurrent layers: the short causal convolution and the gated delta rule over the rows of each sequence, with
 * state carried in slots.
 *
 * A sum belongs to one channel, or to one column of a head's state. Rows follow one another, so splitting a
 * sequence over runs gives the same bits. */
#include "device/cuda/elements/math.cuh"

#ifdef QN_CUDA_HOST
#define UNROLL
#else
#define UNROLL _Pragma("unroll")
#endif

/* Where the sequences of a step lie, and their state. */
typedef struct {
    const int32_t *row_begin, *slots, *reset; /* slots and reset: with a state only */
    char *state;                              /* of slot 0 for this primitive; NULL: none */
    size_t unit_bytes;
    int n;
} sequences;

/* i: which input row_begin is. */
static sequences sequences_of(const qn_cuda_step *s, int i)
{
    sequences q = {(const int32_t *)s->in[i].data, NULL, NULL, NULL, 0, (int)s->in[i].dim[0] - 1};
    if (!s->state.base) return q;
    q.slots = (const int32_t *)s->in[i + 1].data;
    q.reset = (const int32_t *)s->in[i + 2].data;
    q.state = s->state.base + s->params->recurrent.offset * (int64_t)sizeof(float);
    q.unit_bytes = s->state.unit_bytes;
    return q;
}

static __device__ __forceinline__ float *state_of(const sequences &q, int i)
{
    return q.state ? (float *)(q.state + q.slots[i] * (int64_t)q.unit_bytes) : NULL;
}

/* ---- the short convolution ----------------------------------------------------------------------------- */

/* A thread computes one channel of CONV_ROWS rows. CONV_MOST: the longest kernel in registers. */
enum { CONV_BLOCK = 128, CONV_ROWS = 16, CONV_MOST = 4 };

typedef struct {
    sequences q;
    const float *x, *w;
    float *out;
    int64_t x_stride, channels;
    int kernel, pieces; /* blocks over the channels */
} conv;

/* The rows before a sequence's first: row -1 is the state's last one. NULL: zeros. */
typedef struct {
    const float *x, *state;
    int64_t x_stride, channels;
    int kept;
} history;

static __device__ __forceinline__ float value_at(const history &h, int row)
{
    if (row >= 0) return h.x[row * h.x_stride];
    return h.state ? h.state[(row + h.kept) * h.channels] : 0;
}

/* Each sequence has a tile for CONV_ROWS rows begun, and at least one. Returns the sequence of a tile, -1: there
 * are not so many; *first is the tile's first row in it. */
static __device__ __forceinline__ int sequence_of_tile(const sequences &q, int tile, int *first)
{
    for (int i = 0; i < q.n; i++) {
        const int n_rows = q.row_begin[i + 1] - q.row_begin[i];
        const int tiles = n_rows > CONV_ROWS ? (n_rows + CONV_ROWS - 1) / CONV_ROWS : 1;
        *first = tile * CONV_ROWS;
        if (tile < tiles) return i;
        tile -= tiles;
    }
    return -1;
}

/* Rows [first, first + n) by a kernel of K. All is loaded before anything is stored. */
template <int K>
static __device__ __forceinline__ void conv_rows(const conv &a, const history &h, int64_t c, int first, int n,
                                                 float *out)
{
    float w[K], x[K - 1 + CONV_ROWS];
    UNROLL
    for (int t = 0; t < K; t++) w[t] = a.w[t * a.channels + c];
    UNROLL
    for (int r = 0; r < K - 1 + CONV_ROWS; r++) x[r] = r < n + K - 1 ? value_at(h, first + r - (K - 1)) : 0;
    UNROLL
    for (int r = 0; r < CONV_ROWS; r++) {
        float sum = 0;
        UNROLL
        for (int t = 0; t < K; t++) sum = fmaf(x[r + t], w[t], sum);
        if (r < n) out[r * a.channels] = sum;
    }
}

static __device__ __forceinline__ void conv_rows_any(const conv &a, const history &h, int64_t c, int first,
                                                     int n, float *out)
{
    for (int r = 0; r < n; r++) {
        float sum = 0;
        for (int t = 0; t < a.kernel; t++)
            sum = fmaf(value_at(h, first + r + t - h.kept), a.w[t * a.channels + c], sum);
        out[r * a.channels] = sum;
    }
}

/* The last rows of a sequence become its state, in rising order: a row is read before it is overwritten. */
static __device__ __forceinline__ void keep(const history &h, int n_rows, float *state)
{
    float next[CONV_MOST - 1];
    const int n = h.kept < CONV_MOST ? h.kept : 0;
    UNROLL
    for (int t = 0; t < CONV_MOST - 1; t++) next[t] = t < n ? value_at(h, n_rows + t - h.kept) : 0;
    UNROLL
    for (int t = 0; t < CONV_MOST - 1; t++)
        if (t < n) state[t * h.channels] = next[t];
    for (int t = n; t < h.kept; t++) state[t * h.channels] = value_at(h, n_rows + t - h.kept);
}

/* K 0: any kernel. The block of a sequence's first tile also keeps the state, after it has read the old one; the
 * other tiles do not read it as long as kernels are shorter than a tile. */
template <int K> static __global__ void conv_tile(const conv a)
{
    const int64_t c = (int64_t)(blockIdx.x % (unsigned)a.pieces) * CONV_BLOCK + threadIdx.x;
    int first;
    const int i = sequence_of_tile(a.q, (int)(blockIdx.x / (unsigned)a.pieces), &first);
    if (i < 0 || c >= a.channels) return;
    const int begin = a.q.row_begin[i], n_rows = a.q.row_begin[i + 1] - begin;
    float *state = state_of(a.q, i);
    const history h = {a.x + begin * a.x_stride + c, state && !a.q.reset[i] ? state + c : NULL, a.x_stride,
                       a.channels, (K ? K : a.kernel) - 1};
    const int is_whole = !K && h.kept > CONV_ROWS; /* then the first tile's block computes all rows */
    if (is_whole && first) return;
    const int left = n_rows - first, n = left < CONV_ROWS || is_whole ? left : CONV_ROWS;
    float *out = a.out + (begin + first) * a.channels + c;
    if (K)
        conv_rows<K ? K : 1>(a, h, c, first, n, out);
    else
        conv_rows_any(a, h, c, first, n, out);
    if (state && first == 0) keep(h, n_rows, state + c);
}

static qn_status conv_launch(qn_cuda_context *c, const qn_cuda_step *s)
{
    const qn_cuda_operand *x = &s->in[0];
    conv a = {sequences_of(s, 2),
              (const float *)x->data,
              (const float *)s->in[1].data,
              (float *)s->out.data,
              x->stride[0],
              x->dim[1],
              (int)s->in[1].dim[0],
              (int)qn_blocks(x->dim[1], CONV_BLOCK)};
    const int64_t grid = (a.q.n + x->dim[0] / CONV_ROWS) * a.pieces;
    switch (a.kernel) {
    case 2:
        return qn_cuda_begin(c, conv_tile<2>, grid, CONV_BLOCK, 0, a);
    case 3:
        return qn_cuda_begin(c, conv_tile<3>, grid, CONV_BLOCK, 0, a);
    case 4:
        return qn_cuda_begin(c, conv_tile<4>, grid, CONV_BLOCK, 0, a);
    default:
        return qn_cuda_begin(c, conv_tile<0>, grid, CONV_BLOCK, 0, a);
    }
}

extern const qn_cuda_prim qn_cuda_prim_SHORT_CONV;
const qn_cuda_prim qn_cuda_prim_SHORT_CONV = {conv_launch, NULL};

/* ---- the gated delta rule ------------------------------------------------------------------------------ */

/* A block takes 32 columns of a head's state, a warp 8 of them. Lane l holds column l % 8 of the rows of part l /
 * 8: 4 of each 16 rows, so that a load of k is 16 bytes of a lane. They stay in registers over all rows of the
 * sequence, of which q, k, v, exp(g) and beta come through shared memory, DELTA_ROWS at a time. */
enum { DELTA_BLOCK = 128, DELTA_COLUMNS = 32, DELTA_ROWS = 8, DELTA_WIDTH_MOST = 256 };

typedef struct {
    sequences q;
    const float *query, *key, *value, *gate, *beta;
    float *out, *scratch; /* scratch: state of what has none, of delta_wide */
    int64_t q_stride, k_stride, v_stride, g_stride, beta_stride;
    int heads, shared, dk, dv, pieces; /* heads that share a key head; blocks over a head's columns */
    int by_channel, additive;          /* gate: a decay of each row of the state; d is beta v */
} delta;

typedef struct alignas(16) {
    float x[4];
} four;

/* R: rows of the state that a lane holds; 4 R of them in all, the ones behind dk are zero. H: 1 where each has a
 * decay of its own, then `decay` is 1. */
template <int R, int H> struct alignas(16) delta_rows {
    float q[DELTA_ROWS][4 * R], k[DELTA_ROWS][4 * R], own[H ? DELTA_ROWS : 1][H ? 4 * R : 4];
    float v[DELTA_ROWS][DELTA_COLUMNS], decay[DELTA_ROWS], beta[DELTA_ROWS];
};

/* What a thread has loaded of the next rows. */
template <int R> struct delta_ahead {
    float q[R / 4], k[R / 4], own[R / 4], v[2], gate;
};

/* Which head of which sequence a block computes. */
typedef struct {
    const float *q, *k, *v, *g, *beta; /* of the first row */
    float *out, *state;
    int n_rows, from_zero, column; /* column: the block's first */
} delta_head;

static __device__ __forceinline__ delta_head head_of(const delta &a, unsigned block)
{
    const int piece = (int)(block % (unsigned)a.pieces),
              h = (int)(block / (unsigned)a.pieces % (unsigned)a.heads),
              i = (int)(block / (unsigned)a.pieces / (unsigned)a.heads);
    const int64_t row = a.q.row_begin[i], key = h / a.shared * a.dk, value = (int64_t)h * a.dv;
    float *state = state_of(a.q, i);
    delta_head x;
    x.q = a.query + row * a.q_stride + key;
    x.k = a.key + row * a.k_stride + key;
    x.v = a.value + row * a.v_stride + value;
    x.g = a.gate + row * a.g_stride + (int64_t)h * (a.by_channel ? a.dk : 1);
    x.beta = a.beta + row * a.beta_stride + h;
    x.out = a.out + row * a.heads * a.dv + value;
    x.state = state ? state + value * a.dk : NULL;
    x.n_rows = a.q.row_begin[i + 1] - (int)row;
    x.from_zero = !state || a.q.reset[i];
    x.column = piece * DELTA_COLUMNS;
    return x;
}

/* Rows [first, first + DELTA_ROWS), as far as there are. */
template <int R, int H>
static __device__ __forceinline__ void fetch(const delta &a, const delta_head &x, int first,
                                             delta_ahead<R> *to)
{
    const int t = (int)threadIdx.x, n = x.n_rows - first;
    UNROLL
    for (int m = 0; m < R / 4; m++) {
        const int at = t + DELTA_BLOCK * m, r = at / (4 * R), i = at % (4 * R);
        const int is_there = r < n && i < a.dk;
        to->q[m] = is_there ? x.q[(first + r) * a.q_stride + i] : 0;
        to->k[m] = is_there ? x.k[(first + r) * a.k_stride + i] : 0;
        if (H) to->own[m] = is_there ? x.g[(first + r) * a.g_stride + i] : 0;
    }
    UNROLL
    for (int m = 0; m < 2; m++) {
        const int at = t + DELTA_BLOCK * m, r = at / DELTA_COLUMNS, j = x.column + at % DELTA_COLUMNS;
        to->v[m] = r < n && j < a.dv ? x.v[(first + r) * a.v_stride + j] : 0;
    }
    to->gate = 0;
    const int r = t % DELTA_ROWS;
    if (t < 2 * DELTA_ROWS && r < n)
        to->gate = t >= DELTA_ROWS ? x.beta[(first + r) * a.beta_stride]
                   : H             ? 0
                                   : x.g[(first + r) * a.g_stride];
}

template <int R, int H>
static __device__ __forceinline__ void stage(const delta_ahead<R> &from, delta_rows<R, H> *to)
{
    const int t = (int)threadIdx.x;
    UNROLL
    for (int m = 0; m < R / 4; m++) {
        const int at = t + DELTA_BLOCK * m;
        to->q[at / (4 * R)][at % (4 * R)] = from.q[m];
        to->k[at / (4 * R)][at % (4 * R)] = from.k[m];
        if (H) to->own[at / (4 * R)][at % (4 * R)] = from.own[m];
    }
    UNROLL
    for (int m = 0; m < 2; m++) {
        const int at = t + DELTA_BLOCK * m;
        to->v[at / DELTA_COLUMNS][at % DELTA_COLUMNS] = from.v[m];
    }
    if (t < DELTA_ROWS)
        to->decay[t] = v_exp(from.gate);
    else if (t < 2 * DELTA_ROWS)
        to->beta[t - DELTA_ROWS] = from.gate;
}

/* The sum over the parts of a column: the four sums of each lane, then lanes 8 and 16 apart. */
static __device__ __forceinline__ float over_parts(const float sum[4])
{
    float x = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    x += __shfl_xor_sync(0xffffffffu, x, 8);
    return x + __shfl_xor_sync(0xffffffffu, x, 16);
}

/* Row r of those in shared memory: the state s goes on by one row, and sum is a lane's share of the output.
 * Returns the output of the row before, whose shares came in sum: the two sums over lanes wait together. */
template <int R, int H>
static __device__ __forceinline__ float delta_step(const delta_rows<R, H> &rows, int additive, int r,
                                                   int part, int column, float s[R], float sum[4])
{
    const four *k = (const four *)(const void *)&rows.k[r][4 * part],
               *q = (const four *)(const void *)&rows.q[r][4 * part],
               *own = (const four *)(const void *)&rows.own[H ? r : 0][H ? 4 * part : 0];
    const float decay = rows.decay[r];
    float found[4] = {0, 0, 0, 0};
    UNROLL
    for (int i = 0; i < R / 4 && H; i++) {
        const four fade = own[4 * i];
        UNROLL
        for (int e = 0; e < 4; e++) s[4 * i + e] *= fade.x[e];
    }
    UNROLL
    for (int i = 0; i < R / 4; i++) {
        const four ki = k[4 * i];
        UNROLL
        for (int e = 0; e < 4; e++) found[e] = fmaf(ki.x[e], s[4 * i + e], found[e]);
    }
    const float before = over_parts(sum), u = over_parts(found);
    const float d = rows.beta[r] * (additive ? rows.v[r][column] : fmaf(-decay, u, rows.v[r][column]));
    UNROLL
    for (int e = 0; e < 4; e++) sum[e] = 0;
    UNROLL
    for (int i = 0; i < R / 4; i++) {
        const four ki = k[4 * i], qi = q[4 * i];
        UNROLL
        for (int e = 0; e < 4; e++) {
            s[4 * i + e] = fmaf(ki.x[e], d, decay * s[4 * i + e]);
            sum[e] = fmaf(qi.x[e], s[4 * i + e], sum[e]);
        }
    }
    return before;
}

template <int R, int H> static __global__ void delta_columns(const delta a)
{
    __shared__ delta_rows<R, H> rows[2];
    const delta_head x = head_of(a, blockIdx.x);
    const int lane = (int)threadIdx.x % 32, part = lane / 8, column = (int)threadIdx.x / 32 * 8 + lane % 8;
    const int j = x.column + column, is_writer = part == 0 && j < a.dv;
    float s[R], sum[4] = {0, 0, 0, 0};
    delta_ahead<R> ahead;
    fetch<R, H>(a, x, 0, &ahead);
    UNROLL
    for (int e = 0; e < R; e++) {
        const int i = e / 4 * 16 + 4 * part + e % 4;
        s[e] = !x.from_zero && i < a.dk && j < a.dv ? x.state[(int64_t)i * a.dv + j] : 0;
    }
    stage<R, H>(ahead, &rows[0]);
    const int64_t width = (int64_t)a.heads * a.dv;
    for (int first = 0; first < x.n_rows; first += DELTA_ROWS) {
        const int next = first + DELTA_ROWS, n = next < x.n_rows ? DELTA_ROWS : x.n_rows - first;
        const delta_rows<R, H> &now = rows[first / DELTA_ROWS % 2];
        __syncthreads(); /* now is filled; all have left the other one */
        if (next < x.n_rows) fetch<R, H>(a, x, next, &ahead);
        for (int r = 0; r < n; r++) {
            const float before = delta_step<R, H>(now, a.additive, r, part, column, s, sum);
            if (is_writer && first + r) x.out[(first + r - 1) * width + j] = before;
        }
        if (next < x.n_rows) stage<R, H>(ahead, &rows[next / DELTA_ROWS % 2]);
    }
    const float last = over_parts(sum);
    if (is_writer && x.n_rows) x.out[(x.n_rows - 1) * width + j] = last;
    UNROLL
    for (int e = 0; e < R; e++) {
        const int i = e / 4 * 16 + 4 * part + e % 4;
        if (x.state && i < a.dk && j < a.dv) x.state[(int64_t)i * a.dv + j] = s[e];
    }
}

/* States with more than width_most rows stay in memory; a thread takes a column. No model has them. */
static __global__ void delta_wide(const delta a)
{
    const delta_head x = head_of(a, blockIdx.x);
    const int j = x.column + (int)threadIdx.x;
    if (j >= a.dv) return;
    const int64_t all = (int64_t)(blockIdx.x / (unsigned)a.pieces) * a.dk * a.dv,
                  width = (int64_t)a.heads * a.dv;
    float *s = (x.state ? x.state : a.scratch + all) + j;
    for (int64_t i = 0; i < a.dk && x.from_zero; i++) s[i * a.dv] = 0;
    for (int r = 0; r < x.n_rows; r++) {
        const float *q = x.q + r * a.q_stride, *k = x.k + r * a.k_stride;
        const float *g = x.g + r * a.g_stride, decay = a.by_channel ? 1 : v_exp(*g);
        float u = 0, sum = 0;
        for (int64_t i = 0; i < a.dk; i++) {
            if (a.by_channel) s[i * a.dv] *= g[i];
            u = fmaf(k[i], s[i * a.dv], u);
        }
        const float v = x.v[r * a.v_stride + j];
        const float d = x.beta[r * a.beta_stride] * (a.additive ? v : fmaf(-decay, u, v));
        for (int64_t i = 0; i < a.dk; i++) {
            const float next = fmaf(k[i], d, decay * s[i * a.dv]);
            s[i * a.dv] = next;
            sum = fmaf(q[i], next, sum);
        }
        x.out[r * width + j] = sum;
    }
}

/* Rows of a state that fit, with decays of their own in shared memory beside q and k or without. */
static int64_t width_most(const qn_cuda_step *s)
{
    return s->in[3].n == 3 ? DELTA_WIDTH_MOST / 2 : DELTA_WIDTH_MOST;
}

static qn_status delta_launch(qn_cuda_context *c, const qn_cuda_step *s)
{
    const qn_cuda_operand *in = s->in;
    delta a;
    a.q = sequences_of(s, 5);
    a.query = (const float *)in[0].data, a.q_stride = in[0].stride[0];
    a.key = (const float *)in[1].data, a.k_stride = in[1].stride[0];
    a.value = (const float *)in[2].data, a.v_stride = in[2].stride[0];
    a.gate = (const float *)in[3].data, a.g_stride = in[3].stride[0];
    a.beta = (const float *)in[4].data, a.beta_stride = in[4].stride[0];
    a.out = (float *)s->out.data;
    a.scratch = (float *)s->scratch;
    a.heads = (int)in[2].dim[1];
    a.shared = (int)(in[2].dim[1] / in[0].dim[1]);
    a.dk = (int)in[0].dim[2];
    a.dv = (int)in[2].dim[2];
    a.pieces = (int)qn_blocks(a.dv, DELTA_COLUMNS);
    a.by_channel = in[3].n == 3;
    a.additive = s->params->recurrent.additive;
    const int64_t grid = (int64_t)a.q.n * a.heads * a.pieces;
    const int h = a.by_channel;
    if (a.dk <= 32)
        return qn_cuda_begin(c, h ? delta_columns<8, 1> : delta_columns<8, 0>, grid, DELTA_BLOCK, 0, a);
    if (a.dk <= 64)
        return qn_cuda_begin(c, h ? delta_columns<16, 1> : delta_columns<16, 0>, grid, DELTA_BLOCK, 0, a);
    if (a.dk <= 128)
        return qn_cuda_begin(c, h ? delta_columns<32, 1> : delta_columns<32, 0>, grid, DELTA_BLOCK, 0, a);
    if (a.dk <= width_most(s)) return qn_cuda_begin(c, delta_columns<64, 0>, grid, DELTA_BLOCK, 0, a);
    return qn_cuda_begin(c, delta_wide, grid, DELTA_COLUMNS, 0, a);
}

static size_t delta_scratch(const qn_cuda_step *s)
{
    const int64_t dk = s->in[0].dim[2], heads = s->in[2].dim[1], dv = s->in[2].dim[2];
    if (s->params->recurrent.state || dk <= width_most(s)) return 0;
    return (size_t)((s->in[5].dim[0] - 1) * heads * dk * dv) * sizeof(float);
}

extern const qn_cuda_prim qn_cuda_prim_GATED_DELTA;
const qn_cuda_prim qn_cuda_prim_GATED_DELTA = {delta_launch, delta_scratch};
