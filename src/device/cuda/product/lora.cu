/* Low-rank additions of adapters to a product (LORA) and to products with chosen experts (EXPERTS_LORA): y plus
 * scale (x A^T) B of the pair that a row's adapter names.
 *
 * Two kernels: scale (x A^T) of every choice into scratch, then the chain that begins at y. LORA is the case of one
 * choice and one expert. Rows of one adapter may pass over its matrices together; a sum's order is the same
 * then. */
#include "device/cuda/kernel.cuh"

#ifdef QN_CUDA_HOST
#define UNROLL
#define UNROLL_4
#else
#define UNROLL _Pragma("unroll")
#define UNROLL_4 _Pragma("unroll 4")
#endif

/* MANY: rows from which on tiles of TILE choices are worth it. SCRATCH: choices for which there is room at the
 * largest rank; more of them take several rounds. */
enum { BLOCK = 256, WARPS = BLOCK / 32, TILE = 8, TILE_RANKS = 4, MANY = 32, SCRATCH = 4096 };

typedef struct {
    const float *x, *y, *shares;
    const int32_t *adapters, *ids; /* ids NULL: LORA */
    const qn_cuda_lora *pairs;
    float *out, *h; /* h [choices of the round][max_rank] */
    int64_t x_row, x_choice, y_row, ids_row, share_row;
    int64_t n_in, n_out, first, n_lines;  /* lines of y of this round */
    int n_pairs, max_rank, top, per_line; /* per_line: choices that add to a line, top (with shares) or 1 */
    int rank_tiles, pieces;               /* blocks over the ranks, over the columns */
} lora_step;

/* The matrices that a choice takes. */
typedef struct {
    const float *a, *b, *gain;
    float scale;
    int rank; /* 0: nothing is added */
} matrices;

/* choice: row * top + its place among the row's. */
static __device__ __forceinline__ matrices matrices_of(const lora_step &l, int64_t choice)
{
    matrices m = {NULL, NULL, NULL, 0, 0};
    const int64_t row = choice / l.top, i = choice % l.top;
    const int32_t adapter = l.adapters[row];
    if (adapter < 0 || adapter >= l.n_pairs || !l.pairs[adapter].a) return m;
    const qn_cuda_lora &p = l.pairs[adapter];
    const int64_t expert = l.ids ? l.ids[row * l.ids_row + i] : 0;
    m.rank = p.rank;
    m.a = p.a + expert * p.rank * l.n_in;
    m.b = p.b + expert * p.rank * l.n_out;
    m.gain = p.gain;
    m.scale = l.shares ? p.scale * l.shares[row * l.share_row + i] : p.scale;
    return m;
}

/* LORA only: the rows [row, row + TILE) exist and take one pair. */
static __device__ __forceinline__ int is_alike(const lora_step &l, int64_t row)
{
    if (row + TILE > l.first + l.n_lines) return 0;
    for (int i = 1; i < TILE; i++)
        if (l.adapters[row + i] != l.adapters[row]) return 0;
    return 1;
}

/* ---- scale (x A^T) ------------------------------------------------------------------------------------- */

/* Ranks [rank, rank + K) of N choices that take the same matrices. Thread t sums the elements t + BLOCK i in rising
 * order; lanes are added by a tree, warps in their order. partial: [WARPS][N * K]. */
template <int N, int K>
static __device__ __forceinline__ void products(const lora_step &l, int64_t choice, int rank, float *partial)
{
    const matrices m = matrices_of(l, choice);
    if (rank >= m.rank) return;
    const float *x = l.x + choice / l.top * l.x_row + choice % l.top * l.x_choice, *a = m.a + rank * l.n_in;
    float sum[N][K] = {};
    UNROLL_4
    for (int64_t i = threadIdx.x; i < l.n_in; i += BLOCK) {
        float w[K];
        UNROLL
        for (int k = 0; k < K; k++) w[k] = rank + k < m.rank ? a[k * l.n_in + i] : 0;
        UNROLL
        for (int n = 0; n < N; n++) {
            const float value = x[n * l.x_row + i];
            UNROLL
            for (int k = 0; k < K; k++) sum[n][k] = fmaf(value, w[k], sum[n][k]);
        }
    }
    UNROLL
    for (int at = 0; at < N * K; at++) {
        const float of_warp = qn_warp_sum(sum[at / K][at % K]);
        if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32 * (N * K) + at] = of_warp;
    }
    __syncthreads();
    const int n = (int)threadIdx.x / K, k = (int)threadIdx.x % K;
    if (n < N && rank + k < m.rank) {
        float total = 0;
        for (int w = 0; w < WARPS; w++) total += partial[w * (N * K) + threadIdx.x];
        l.h[(choice + n - l.first * l.per_line) * l.max_rank + rank + k] = m.scale * total;
    }
    __syncthreads();
}

/* A block for N choices and K ranks. N is TILE for LORA alone. */
template <int N, int K> static __global__ void lora_down(const lora_step l)
{
    __shared__ float partial[WARPS * N * K];
    const int rank = (int)(blockIdx.x % (unsigned)l.rank_tiles) * K;
    const int64_t begin = l.first * l.per_line,
                  at = begin + (int64_t)(blockIdx.x / (unsigned)l.rank_tiles) * N;
    if (N > 1 && is_alike(l, at)) {
        products<N, K>(l, at, rank, partial);
        return;
    }
    const int64_t last = begin + l.n_lines * l.per_line;
    for (int64_t i = at; i < at + N && i < last; i++) products<1, K>(l, i, rank, partial);
}

/* ---- the chain that begins at y ------------------------------------------------------------------------ */

/* Column j of N lines; N > 1: rows that take the same pair. */
template <int N> static __device__ __forceinline__ void add(const lora_step &l, int64_t line, int64_t j)
{
    const int lines = l.top / l.per_line; /* of a row */
    float sum[N];
    UNROLL
    for (int n = 0; n < N; n++) sum[n] = l.y[(line + n) / lines * l.y_row + (line + n) % lines * l.n_out + j];
    for (int i = 0; i < l.per_line; i++) {
        const int64_t choice = line * l.per_line + i;
        const matrices m = matrices_of(l, choice);
        const float *h = l.h + (choice - l.first * l.per_line) * l.max_rank;
        UNROLL_4
        for (int k = 0; k < m.rank; k++) {
            const float b = m.b[k * l.n_out + j];
            UNROLL
            for (int n = 0; n < N; n++) sum[n] = fmaf(h[n * l.max_rank + k], b, sum[n]);
        }
        if (m.gain) {
            UNROLL
            for (int n = 0; n < N; n++) sum[n] *= m.gain[j];
        }
    }
    UNROLL
    for (int n = 0; n < N; n++) l.out[(line + n) * l.n_out + j] = sum[n];
}

template <int N> static __global__ void lora_up(const lora_step l)
{
    const int64_t j = (int64_t)(blockIdx.x % (unsigned)l.pieces) * BLOCK + threadIdx.x;
    const int64_t at = l.first + (int64_t)(blockIdx.x / (unsigned)l.pieces) * N, last = l.first + l.n_lines;
    if (j >= l.n_out) return;
    if (N > 1 && is_alike(l, at)) {
        add<N>(l, at, j);
        return;
    }
    for (int64_t line = at; line < at + N && line < last; line++) add<1>(l, line, j);
}

/* ---- launching ----------------------------------------------------------------------------------------- */

static qn_status begin_down(qn_cuda_context *c, lora_step *l, int is_tiled)
{
    const int64_t choices = l->n_lines * l->per_line;
    const int by_four = is_tiled || choices * l->max_rank > 4096;
    l->rank_tiles = (int)qn_blocks(l->max_rank, by_four ? TILE_RANKS : 1);
    if (is_tiled)
        return qn_cuda_begin(c, lora_down<TILE, TILE_RANKS>, qn_blocks(choices, TILE) * l->rank_tiles, BLOCK,
                             0, *l);
    if (by_four) return qn_cuda_begin(c, lora_down<1, TILE_RANKS>, choices * l->rank_tiles, BLOCK, 0, *l);
    return qn_cuda_begin(c, lora_down<1, 1>, choices * l->rank_tiles, BLOCK, 0, *l);
}

static int64_t room_of(int64_t choices)
{
    return (choices < SCRATCH ? choices : (int64_t)SCRATCH) * QN_LORA_RANK_MAX;
}

static qn_status begin_all(qn_cuda_context *c, const qn_cuda_step *s, lora_step *l, int64_t rows)
{
    const int is_tiled = !l->ids && rows >= MANY, lines = l->top / l->per_line;
    int64_t most = rows; /* of a round */
    l->h = (float *)s->scratch;
    l->pairs = s->lora;
    l->max_rank = s->max_rank;
    l->n_pairs = s->max_rank ? s->n_lora : 0;
    l->pieces = (int)qn_blocks(l->n_out, BLOCK);
    if (l->max_rank && room_of(rows * l->top) / l->max_rank / l->top < most)
        most = room_of(rows * l->top) / l->max_rank / l->top;
    if (rows && !most)
        return qn_cuda_fail(QN_E_UNSUPPORTED, "device cuda: EXPERTS_LORA of %d choices", l->top);
    qn_status status = QN_OK;
    for (int64_t row = 0; row < rows && status == QN_OK; row += most) {
        l->first = row * lines;
        l->n_lines = (rows - row < most ? rows - row : most) * lines;
        if (l->max_rank) status = begin_down(c, l, is_tiled);
        const int64_t tiles = is_tiled ? qn_blocks(l->n_lines, TILE) : l->n_lines;
        if (status == QN_OK)
            status = qn_cuda_begin(c, is_tiled ? lora_up<TILE> : lora_up<1>, tiles * l->pieces, BLOCK, 0, *l);
    }
    return status;
}

static lora_step common(const qn_cuda_step *s, int adapters)
{
    const qn_cuda_operand *x = &s->in[0];
    lora_step l = {};
    l.x = (const float *)x->data, l.x_row = x->stride[0];
    l.y = (const float *)s->in[1].data, l.y_row = s->in[1].stride[0];
    l.adapters = (const int32_t *)s->in[adapters].data;
    l.out = (float *)s->out.data;
    l.n_in = x->dim[x->n - 1];
    l.n_out = s->out.dim[s->out.n - 1];
    l.top = l.per_line = 1;
    return l;
}

static qn_status lora_launch(qn_cuda_context *c, const qn_cuda_step *s)
{
    lora_step l = common(s, 2);
    return begin_all(c, s, &l, s->out.dim[0]);
}

static size_t lora_scratch(const qn_cuda_step *s)
{
    return (size_t)room_of(s->out.dim[0]) * sizeof(float);
}

extern const qn_cuda_prim qn_cuda_prim_LORA;
const qn_cuda_prim qn_cuda_prim_LORA = {lora_launch, lora_scratch};

static qn_status experts_lora_launch(qn_cuda_context *c, const qn_cuda_step *s)
{
    const qn_cuda_operand *x = &s->in[0], *ids = &s->in[2];
    lora_step l = common(s, 3);
    l.x_choice = x->n == 3 ? x->stride[1] : 0;
    l.ids = (const int32_t *)ids->data, l.ids_row = ids->stride[0];
    l.top = (int)ids->dim[1];
    if (s->params->experts_lora.has_share) {
        l.shares = (const float *)s->in[4].data, l.share_row = s->in[4].stride[0];
        l.per_line = l.top;
    }
    if (!l.top) return QN_OK;
    return begin_all(c, s, &l, s->out.dim[0]);
}

static size_t experts_lora_scratch(const qn_cuda_step *s)
{
    return (size_t)room_of(s->in[2].dim[0] * s->in[2].dim[1]) * sizeof(float);
}

extern const qn_cuda_prim qn_cuda_prim_EXPERTS_LORA;
const qn_cuda_prim qn_cuda_prim_EXPERTS_LORA = {experts_lora_launch, experts_lora_scratch};
