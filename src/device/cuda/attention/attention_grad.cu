/* Gradients of attention over k and v of the same rows (ragged.cu).
 *
 * Everything is made of products of tiles of 64 x 64 elements: 64 rows of a sequence by 64 of its positions. A
 * first kernel takes 64 rows of one head through their positions twice: for the softmax, which it leaves in memory,
 * and for dq. A second kernel takes 64 positions of a key head through all rows that see them, for dk and dv. Tiles
 * begin at multiples of 64 from a sequence's first row. Inside a tile sums are chains of multiply-adds, and the sums
 * of tiles are added in rising order, so a sequence's gradients do not depend on what is beside it. */
#include "device/cuda/attention/sequences.cuh"

enum { TILE = 64, STEP = 32, LINE = TILE + 4, THREADS = 256 };

typedef struct {
    const float *q, *k, *v, *out, *d_out, *sinks;
    int64_t q_row, k_row, v_row, out_row, d_row;
    float *result; /* rows of dq, dk, dv, `row` apart */
    int64_t row, keys, values;
    const int32_t *positions, *row_begin;
    int64_t n_rows, n_sequences, window, chunk;
    int whole, n_heads, kv_heads, shared, dim, v_dim;
    const int32_t *chosen; /* with block > 0: [row][top] */
    int64_t block, top, chosen_row;
    int no_tail;
    float scale, cap, inverse_cap;
    float *stats; /* [row][head][4]: largest score, total, dout . out */
} gradient;

/* Element (i, k) lies at x[i * row + k * column]; outside of n_rows x n_columns it is 0. */
typedef struct {
    const float *x;
    int64_t row, column;
    int n_rows, n_columns;
} matrix;

typedef struct {
    float a[STEP * LINE], b[STEP * LINE]; /* [k][i]: what a product multiplies at the moment */
    float p[TILE * LINE], slopes[TILE * LINE];
    float largest[TILE], total[TILE], mean[TILE];
    uint16_t chosen[TILE * TILE / 16]; /* bits of 16 positions each */
} shared_memory;

/* ---- products ------------------------------------------------------------------------------------------ */

/* Columns [k, k + STEP) of 64 rows. Neighbouring threads read neighbours in memory and write to all banks. */
static __device__ __forceinline__ void load_tile(float *to, const matrix &m, int k)
{
#pragma unroll
    for (int n = 0; n < TILE * STEP / THREADS; n++) {
        const int e = threadIdx.x + THREADS * n;
        int i = e % TILE, j = e / TILE;
        if (m.column == 1) {
            j = e % 8 + e / 32 % 4 * 8;
            i = e / 8 % 4 + e / 128 * 4;
        }
        const int is_inside = i < m.n_rows && k + j < m.n_columns;
        to[j * LINE + i] = is_inside ? m.x[i * m.row + (k + j) * m.column] : 0.0f;
    }
}

/* c[i][j] = sum over k of a(i, k) b(j, k), of the rows 4 * (thread / 16) of a and 4 * (thread % 16) of b. Begins
 * after all threads are done with what was before, and ends before they are done reading. */
static __device__ __forceinline__ void multiply(shared_memory *s, const matrix &a, const matrix &b,
                                                float (&c)[4][4])
{
    const int row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
#pragma unroll
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) c[i][j] = 0;
    for (int k = 0; k < a.n_columns; k += STEP) {
        __syncthreads();
        load_tile(s->a, a, k);
        load_tile(s->b, b, k);
        __syncthreads();
#pragma unroll 8
        for (int n = 0; n < STEP; n++) {
            float x[4], y[4];
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] = s->a[n * LINE + row + i], y[i] = s->b[n * LINE + column + i];
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) c[i][j] = fmaf(x[i], y[j], c[i][j]);
        }
    }
}

/* out [n_rows][width] (+)= a(i, k) b(k, d), where b's rows lie b_row apart. */
static __device__ void multiply_into(shared_memory *s, float *out, int64_t out_row, int adds, const matrix &a,
                                     const float *b, int64_t b_row, int width)
{
    for (int d = 0; d < width; d += TILE) {
        const matrix part = {b + d, 1, b_row, width - d, a.n_columns};
        float c[4][4];
        multiply(s, a, part, c);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = threadIdx.x / 16 * 4 + i;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int column = d + threadIdx.x % 16 * 4 + j;
                if (row >= a.n_rows || column >= width) continue;
                float *to = out + row * out_row + column;
                *to = adds ? *to + c[i][j] : c[i][j];
            }
        }
    }
}

/* ---- a tile of rows and positions ---------------------------------------------------------------------- */

/* Rows [row, row + n_rows) of the step and [key, key + n_keys), of one sequence; a head and its key head. */
typedef struct {
    int64_t row, key, begin; /* begin: of the sequence */
    int n_rows, n_keys, head, kv;
} place;

/* Of rows behind the last one, any answer will do. */
static __device__ __forceinline__ int sees(const gradient &a, int64_t row, int64_t key)
{
    return (a.whole || key <= row) && (!a.window || (key > row - a.window && key < row + a.window)) &&
           (!a.chunk || (row < a.n_rows && row - key <= a.positions[row] % a.chunk));
}

/* Over chosen blocks: which positions of a tile lie in a block that their row chose, or in its tail; 4 threads a row.
 * Begins after all threads are done with the tile before. */
static __device__ __forceinline__ void mark_chosen(const gradient &a, shared_memory *s, const place &at)
{
    if (!a.block) return;
    const int64_t row = at.row + threadIdx.x / 4, key = at.key - at.begin + threadIdx.x % 4 * 16,
                  whole = (row - at.begin + 1) / a.block;
    const int32_t *chosen = a.chosen + row * a.chosen_row;
    unsigned bits = 0;
#pragma unroll 1
    for (int i = 0; i < 16; i++) {
        const int64_t number = (key + i) / a.block;
        int is_chosen = number >= whole && !a.no_tail;
        if (number < whole && row < a.n_rows) {
#pragma unroll 1
            for (int64_t n = 0; n < a.top; n++) is_chosen |= chosen[n] == number;
        }
        bits |= (unsigned)is_chosen << i;
    }
    __syncthreads();
    s->chosen[threadIdx.x] = (uint16_t)bits;
}

/* Row and key of the tile. */
static __device__ __forceinline__ int sees_in(const gradient &a, const shared_memory *s, const place &at,
                                              int row, int key)
{
    if (a.block && !(s->chosen[row * 4 + key / 16] >> key % 16 & 1)) return 0;
    return sees(a, at.row + row, at.key + key);
}

static __device__ __forceinline__ matrix rows_of(const float *x, int64_t stride, int64_t row, int n, int head,
                                                 int dim)
{
    const matrix m = {x + row * stride + (int64_t)head * dim, stride, 1, n, dim};
    return m;
}

/* The score that the softmax takes; *tangent: tanh under a cap. */
static __device__ __forceinline__ float score_of(const gradient &a, float product, float *tangent)
{
    const float x = product * a.scale;
    *tangent = 0;
    if (!(a.cap > 0)) return x;
    *tangent = tanhf(x * a.inverse_cap);
    return *tangent * a.cap;
}

static __device__ __forceinline__ void multiply_keys(const gradient &a, shared_memory *s, const place &at,
                                                     float (&c)[4][4])
{
    multiply(s, rows_of(a.q, a.q_row, at.row, at.n_rows, at.head, a.dim),
             rows_of(a.k, a.k_row, at.key, at.n_keys, at.kv, a.dim), c);
}

/* Probabilities and slopes (the gradient by q . k) into shared memory, 0 where a row does not look. */
static __device__ __forceinline__ void tile_slopes(const gradient &a, shared_memory *s, const place &at)
{
    float c[4][4], dp[4][4];
    mark_chosen(a, s, at);
    multiply_keys(a, s, at, c);
    multiply(s, rows_of(a.d_out, a.d_row, at.row, at.n_rows, at.head, a.v_dim),
             rows_of(a.v, a.v_row, at.key, at.n_keys, at.kv, a.v_dim), dp);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int row = threadIdx.x / 16 * 4 + i, key = threadIdx.x % 16 * 4 + j;
            float p = 0, slope = 0;
            if (row < at.n_rows && key < at.n_keys && sees_in(a, s, at, row, key)) {
                float tangent;
                p = expf(score_of(a, c[i][j], &tangent) - s->largest[row]) / s->total[row];
                slope = (dp[i][j] - s->mean[row]) * p;
                if (a.cap > 0) slope -= tangent * tangent * slope;
                slope *= a.scale;
            }
            s->p[row * LINE + key] = p;
            s->slopes[row * LINE + key] = slope;
        }
    }
}

/* ---- rows ---------------------------------------------------------------------------------------------- */

/* Of 4 neighbouring lanes, which get the result. */
static __device__ __forceinline__ float sum_of_4(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

static __device__ __forceinline__ float largest_of_4(float x)
{
    x = qn_larger(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return qn_larger(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* The scores of a tile join the softmax of their rows, 4 threads a row. */
static __device__ __forceinline__ void add_scores(const gradient &a, shared_memory *s, const place &at,
                                                  float *largest, float *total)
{
    float c[4][4], tangent;
    mark_chosen(a, s, at);
    multiply_keys(a, s, at, c);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            s->p[(threadIdx.x / 16 * 4 + i) * LINE + threadIdx.x % 16 * 4 + j] =
                score_of(a, c[i][j], &tangent);
    __syncthreads();
    const int row = threadIdx.x / 4;
    const float *x = s->p + row * LINE;
    float m = -INFINITY, sum = 0;
    int n = 0;
    for (int key = threadIdx.x % 4; key < at.n_keys; key += 4) {
        if (!sees_in(a, s, at, row, key)) continue;
        m = qn_larger(x[key], m);
        n++;
    }
    m = largest_of_4(m);
    const float now = qn_larger(m, *largest);
    for (int key = threadIdx.x % 4; key < at.n_keys; key += 4)
        if (sees_in(a, s, at, row, key)) sum += expf(x[key] - now);
    sum = sum_of_4(sum);
    if (sum_of_4((float)n) > 0) {
        *total = *largest == -INFINITY ? sum : *total * expf(*largest - now) + sum;
        *largest = now;
    }
}

static __device__ __forceinline__ float mean_of(const gradient &a, const place &at)
{
    const int64_t row = at.row + threadIdx.x / 4;
    float sum = 0;
    if (threadIdx.x / 4 < at.n_rows) {
        const float *x = a.d_out + row * a.d_row + (int64_t)at.head * a.v_dim,
                    *y = a.out + row * a.out_row + (int64_t)at.head * a.v_dim;
        for (int d = threadIdx.x % 4; d < a.v_dim; d += 4) sum = fmaf(x[d], y[d], sum);
    }
    return sum_of_4(sum);
}

/* The softmax of the tile's rows, for this kernel and the next one. */
static __device__ __forceinline__ void keep_softmax(const gradient &a, shared_memory *s, const place &at,
                                                    float largest, float total)
{
    const int i = threadIdx.x / 4;
    const float mean = mean_of(a, at);
    if (a.sinks) {
        const float sink = a.sinks[at.head], m = qn_larger(sink, largest);
        total = total * expf(largest - m) + expf(sink - m);
        largest = m;
    }
    if (threadIdx.x % 4 == 0) {
        s->largest[i] = largest;
        s->total[i] = total;
        s->mean[i] = mean;
        if (i < at.n_rows) {
            float *to = a.stats + ((at.row + i) * a.n_heads + at.head) * 4;
            to[0] = largest;
            to[1] = total;
            to[2] = mean;
        }
    }
    __syncthreads();
}

/* Positions [*low, *high) of the step that a tile's rows see, from a multiple of 64 of the sequence on. */
static __device__ __forceinline__ void keys_of(const gradient &a, const qn_row_tile &t, int64_t *low,
                                               int64_t *high)
{
    *low = t.begin;
    if (a.window && t.row - a.window + 1 > t.begin) *low += (t.row - a.window + 1 - t.begin) / TILE * TILE;
    if (a.chunk) {
        const int64_t own = t.row - a.positions[t.row] % a.chunk;
        if (own > *low) *low += (own - *low) / TILE * TILE;
    }
    *high = a.whole ? t.end : t.row + t.n;
    if (a.whole && a.window && t.row + t.n - 1 + a.window < t.end) *high = t.row + t.n - 1 + a.window;
}

static __global__ void grad_rows(gradient a)
{
    QN_SHARED(memory);
    shared_memory *s = (shared_memory *)memory;
    qn_row_tile t;
    if (!qn_find_tile(a.row_begin, a.n_sequences, 0, a.n_rows, TILE, blockIdx.x / a.n_heads, &t)) return;
    place at = {t.row, 0, t.begin, (int)t.n, 0, (int)(blockIdx.x % a.n_heads)};
    at.kv = at.head / a.shared;
    int64_t low, high;
    keys_of(a, t, &low, &high);
    float largest = -INFINITY, total = 0;
    for (at.key = low; at.key < high; at.key += TILE) {
        at.n_keys = (int)(high - at.key < TILE ? high - at.key : TILE);
        add_scores(a, s, at, &largest, &total);
    }
    keep_softmax(a, s, at, largest, total);
    float *own = a.result + t.row * a.row + (int64_t)at.head * a.dim;
    for (at.key = low; at.key < high; at.key += TILE) {
        at.n_keys = (int)(high - at.key < TILE ? high - at.key : TILE);
        tile_slopes(a, s, at);
        const matrix slopes = {s->slopes, LINE, 1, at.n_rows, at.n_keys};
        multiply_into(s, own, a.row, at.key > low, slopes, a.k + at.key * a.k_row + (int64_t)at.kv * a.dim,
                      a.k_row, a.dim);
    }
}

/* ---- positions ----------------------------------------------------------------------------------------- */

static __global__ void grad_keys(gradient a)
{
    QN_SHARED(memory);
    shared_memory *s = (shared_memory *)memory;
    qn_row_tile t;
    if (!qn_find_tile(a.row_begin, a.n_sequences, 0, a.n_rows, TILE, blockIdx.x / a.kv_heads, &t)) return;
    place at = {0, t.row, t.begin, 0, (int)t.n, 0, (int)(blockIdx.x % a.kv_heads)};
    int64_t low = t.row, high = t.end;
    if (a.whole) {
        low = t.begin;
        if (a.window && t.row - a.window + 1 > t.begin) low += (t.row - a.window + 1 - t.begin) / TILE * TILE;
    }
    if (a.window && t.row + t.n - 1 + a.window < high) high = t.row + t.n - 1 + a.window;
    if (a.chunk) {
        const int64_t last = t.row + t.n - 1, next = last + a.chunk - a.positions[last] % a.chunk;
        if (next < high) high = next;
    }
    float *keys = a.result + t.row * a.row + a.keys + (int64_t)at.kv * a.dim,
          *values = a.result + t.row * a.row + a.values + (int64_t)at.kv * a.v_dim;
    int adds = 0;
    for (at.row = low; at.row < high; at.row += TILE) {
        /* a tile has all its rows: those behind high see nothing here */
        at.n_rows = (int)(t.end - at.row < TILE ? t.end - at.row : TILE);
        for (at.head = at.kv * a.shared; at.head < (at.kv + 1) * a.shared; at.head++, adds = 1) {
            __syncthreads();
            if (threadIdx.x < at.n_rows) {
                const float *from = a.stats + ((at.row + threadIdx.x) * a.n_heads + at.head) * 4;
                s->largest[threadIdx.x] = from[0];
                s->total[threadIdx.x] = from[1];
                s->mean[threadIdx.x] = from[2];
            }
            tile_slopes(a, s, at);
            const matrix p = {s->p, 1, LINE, at.n_keys, at.n_rows},
                         slopes = {s->slopes, 1, LINE, at.n_keys, at.n_rows};
            multiply_into(s, values, a.row, adds, p, a.d_out + at.row * a.d_row + (int64_t)at.head * a.v_dim,
                          a.d_row, a.v_dim);
            multiply_into(s, keys, a.row, adds, slopes, a.q + at.row * a.q_row + (int64_t)at.head * a.dim,
                          a.q_row, a.dim);
        }
    }
}

/* ---- the primitive ------------------------------------------------------------------------------------- */

static size_t scratch_bytes(const qn_cuda_step *s)
{
    return (size_t)(s->in[0].dim[0] * s->in[0].dim[1]) * 4 * sizeof(float);
}

static gradient gradient_of(const qn_cuda_step *s)
{
    const qn_params_attend *p = &s->params->attend;
    const qn_cuda_operand *in = s->in;
    gradient a = {};
    a.q = (const float *)in[0].data;
    a.k = (const float *)in[1].data;
    a.v = (const float *)in[2].data;
    a.positions = (const int32_t *)in[3].data;
    a.row_begin = (const int32_t *)in[4].data;
    a.out = (const float *)in[5].data;
    a.d_out = (const float *)in[6].data;
    a.sinks = p->has_sinks ? (const float *)in[7].data : NULL;
    if (p->block) {
        const qn_cuda_operand *chosen = &in[s->n_in - 1];
        a.chosen = (const int32_t *)chosen->data;
        a.top = chosen->dim[1];
        a.chosen_row = chosen->stride[0];
        a.block = p->block;
        a.no_tail = p->no_tail;
    }
    a.q_row = in[0].stride[0];
    a.k_row = in[1].stride[0];
    a.v_row = in[2].stride[0];
    a.out_row = in[5].stride[0];
    a.d_row = in[6].stride[0];
    a.n_rows = in[0].dim[0];
    a.n_sequences = in[4].dim[0] - 1;
    a.n_heads = (int)in[0].dim[1];
    a.kv_heads = (int)in[1].dim[1];
    a.shared = a.n_heads / a.kv_heads;
    a.dim = (int)in[0].dim[2];
    a.v_dim = (int)in[2].dim[2];
    a.result = (float *)s->out.data;
    a.row = s->out.dim[1];
    a.keys = (int64_t)a.n_heads * a.dim;
    a.values = a.keys + (int64_t)a.kv_heads * a.dim;
    a.window = p->window;
    a.chunk = p->chunk;
    a.whole = p->whole;
    a.scale = p->scale;
    a.cap = p->softcap;
    a.inverse_cap = p->softcap > 0 ? 1 / p->softcap : 0;
    a.stats = (float *)s->scratch;
    return a;
}

static qn_status launch(qn_cuda_context *c, const qn_cuda_step *s)
{
    const gradient a = gradient_of(s);
    if (!a.n_rows || a.n_sequences < 1) return QN_OK;
    const int64_t n_tiles = qn_most_tiles(a.n_rows, a.n_sequences, TILE);
    const qn_status status =
        qn_cuda_begin(c, grad_rows, n_tiles * a.n_heads, THREADS, sizeof(shared_memory), a);
    if (status != QN_OK) return status;
    return qn_cuda_begin(c, grad_keys, n_tiles * a.kv_heads, THREADS, sizeof(shared_memory), a);
}

extern const qn_cuda_prim qn_cuda_prim_ATTEND_GRAD;
const qn_cuda_prim qn_cuda_prim_ATTEND_GRAD = {launch, scratch_bytes};
