/* The blocks that rows attend to: all keys that a row sees of whole blocks are scored, a thread a key, and then a block of
 * threads finds the least key of its row's best, bit by bit from the highest, and writes the best in order. Sums are
 * those of the CPU, so rows choose alike. */
#include "device/cuda/attention/pages.cuh"
#include "device/cuda/attention/sequences.cuh"

enum { THREADS = 256, SCRATCH_FLOATS = 1 << 24 };

typedef struct {
    const float *q, *k, *weights; /* weights NULL: all are 1 */
    int64_t q_row, k_row, weights_row;
    const int32_t *positions, *row_begin, *blocks; /* blocks NULL: without a state */
    int64_t n_rows, n_sequences, table_row;
    char *pages;
    int64_t page_bytes, token_bytes;
    int n_heads, dim, top;
    int64_t block, window, most; /* most: candidates of a row */
    float scale;
    float *scores; /* [rows from first on][most] */
    int64_t first;
    int32_t *out; /* [row][top] */
} work;

/* Blocks [first, first + n) of a row; keys of its sequence, from the first of its rows or of its table on. */
typedef struct {
    int64_t first, n, begin, before;
    const int32_t *table;
} candidates;

static __device__ __forceinline__ candidates candidates_of(const work &w, int64_t row)
{
    candidates c = {};
    const int64_t sequence = qn_sequence_of(w.row_begin, w.n_sequences, row);
    c.begin = w.row_begin[sequence];
    int64_t position = row - c.begin;
    if (w.blocks) {
        c.table = w.blocks + sequence * w.table_row + 1;
        c.before = (int64_t)qn_pages_before(c.table[-1]) * QN_PAGE_TOKENS;
        position = w.positions[row];
    }
    int64_t from = w.window && position >= w.window ? position - w.window + 1 : 0;
    if (from < c.before) from = c.before;
    c.first = (from + w.block - 1) / w.block;
    c.n = (position + 1) / w.block - c.first;
    if (c.n < 0) c.n = 0;
    return c;
}

static __device__ __forceinline__ const float *key_of(const work &w, const candidates &c, int64_t i)
{
    const int64_t at = (c.first + i + 1) * w.block - 1 - c.before;
    if (!c.table) return w.k + (c.begin + at) * w.k_row;
    return (const float *)(w.pages + c.table[at / QN_PAGE_TOKENS] * w.page_bytes +
                           at % QN_PAGE_TOKENS * w.token_bytes);
}

static __global__ void write_keys(work w)
{
    const int64_t row = blockIdx.x, sequence = qn_sequence_of(w.row_begin, w.n_sequences, row);
    const int32_t *table = w.blocks + sequence * w.table_row;
    const int64_t at = w.positions[row] - (int64_t)qn_pages_before(table[0]) * QN_PAGE_TOKENS;
    float *to = (float *)(w.pages + table[1 + at / QN_PAGE_TOKENS] * w.page_bytes +
                          at % QN_PAGE_TOKENS * w.token_bytes);
    const int padded = (int)(w.token_bytes / 4);
    for (int d = threadIdx.x; d < padded; d += blockDim.x) to[d] = d < w.dim ? w.k[row * w.k_row + d] : 0.0f;
}

static __global__ void score_keys(work w)
{
    const int64_t tiles = (w.most + THREADS - 1) / THREADS, row = w.first + blockIdx.x / tiles,
                  i = blockIdx.x % tiles * THREADS + threadIdx.x;
    const candidates c = candidates_of(w, row);
    if (i >= c.n || c.n <= w.top) return;
    const float *key = key_of(w, c, i);
    float sum = 0;
    for (int h = 0; h < w.n_heads; h++) {
        const float *q = w.q + row * w.q_row + (int64_t)h * w.dim;
        float x = 0;
        for (int d = 0; d < w.dim; d++) x = fmaf(q[d], key[d], x);
        x *= w.scale;
        x = x < 0 ? 0.0f : x;
        if (w.weights) x *= w.weights[row * w.weights_row + h];
        sum += x;
    }
    w.scores[(row - w.first) * w.most + i] = sum;
}

/* Rises with the number; NaN is below all numbers, and -0 is 0. */
static __device__ __forceinline__ uint32_t rank_of(float x)
{
    if (x != x) return 0;
    if (x == 0) return 0x80000000u;
    const uint32_t u = qn_cuda_float_bits(x);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The sum of n of all threads, which all get. */
static __device__ __forceinline__ int64_t sum_of_all(int64_t n, int64_t *room)
{
    __syncthreads();
    room[threadIdx.x] = n;
    for (int step = THREADS / 2; step; step /= 2) {
        __syncthreads();
        if (threadIdx.x < step) room[threadIdx.x] += room[threadIdx.x + step];
    }
    __syncthreads();
    return room[0];
}

static __global__ void choose(work w)
{
    __shared__ int64_t room[THREADS], more[THREADS];
    const int64_t row = w.first + blockIdx.x;
    const candidates c = candidates_of(w, row);
    const float *scores = w.scores + blockIdx.x * w.most;
    int32_t *out = w.out + row * w.top;
    if (c.n <= w.top) {
        for (int64_t i = threadIdx.x; i < w.top; i += THREADS) out[i] = i < c.n ? (int32_t)(c.first + i) : -1;
        return;
    }
    uint32_t least = 0;
    for (int bit = 31; bit >= 0; bit--) {
        const uint32_t wish = least | 1u << bit;
        int64_t n = 0;
        for (int64_t i = threadIdx.x; i < c.n; i += THREADS) n += rank_of(scores[i]) >= wish;
        if (sum_of_all(n, room) >= w.top) least = wish;
    }
    /* Each thread has neighbouring candidates: how many of them are above, and how many equal. */
    const int64_t each = (c.n + THREADS - 1) / THREADS, begin = threadIdx.x * each,
                  end = begin + each < c.n ? begin + each : c.n;
    int64_t above = 0, equal = 0;
    for (int64_t i = begin; i < end; i++) {
        const uint32_t rank = rank_of(scores[i]);
        above += rank > least;
        equal += rank == least;
    }
    const int64_t left = w.top - sum_of_all(above, room);
    __syncthreads();
    room[threadIdx.x] = above;
    more[threadIdx.x] = equal;
    __syncthreads();
    int64_t at = 0, taken = 0; /* taken: of the equal ones before */
    for (int i = 0; i < threadIdx.x; i++) {
        at += room[i];
        taken += more[i];
    }
    at += taken < left ? taken : left;
    for (int64_t i = begin; i < end; i++) {
        const uint32_t rank = rank_of(scores[i]);
        if (rank > least || (rank == least && taken++ < left)) out[at++] = (int32_t)(c.first + i);
    }
}

/* ---- the primitive ------------------------------------------------------------------------------------- */

static work work_of(const qn_cuda_step *s)
{
    const qn_params_index *p = &s->params->index;
    const qn_cuda_operand *in = s->in;
    work w = {};
    w.q = (const float *)in[0].data;
    w.k = (const float *)in[1].data;
    w.positions = (const int32_t *)in[2].data;
    w.row_begin = (const int32_t *)in[3].data;
    w.q_row = in[0].stride[0];
    w.k_row = in[1].stride[0];
    w.n_rows = in[0].dim[0];
    w.n_heads = (int)in[0].dim[1];
    w.dim = (int)in[0].dim[2];
    w.n_sequences = in[3].dim[0] - 1;
    w.most = w.n_rows;
    if (p->state) {
        w.blocks = (const int32_t *)in[4].data;
        w.table_row = in[4].stride[0];
        w.most = (in[4].dim[1] - 1) * QN_PAGE_TOKENS;
        w.pages = s->state.base;
        w.page_bytes = (int64_t)s->state.unit_bytes;
        w.token_bytes = (int64_t)qn_cuda_token_bytes(QN_DTYPE_F32, w.dim);
    }
    w.most = w.most / p->block + 1;
    if (p->has_weights) {
        w.weights = (const float *)in[s->n_in - 1].data;
        w.weights_row = in[s->n_in - 1].stride[0];
    }
    w.top = p->top;
    w.block = p->block;
    w.window = p->window;
    w.scale = p->scale;
    w.scores = (float *)s->scratch;
    w.out = (int32_t *)s->out.data;
    return w;
}

/* Rows whose scores are in memory at the same time. */
static int64_t rows_at_once(const work &w)
{
    const int64_t n = SCRATCH_FLOATS / w.most;
    return n < 1 ? 1 : n < w.n_rows ? n : w.n_rows;
}

static size_t scratch_bytes(const qn_cuda_step *s)
{
    const work w = work_of(s);
    return (size_t)(rows_at_once(w) * w.most) * sizeof(float);
}

static qn_status launch(qn_cuda_context *c, const qn_cuda_step *s)
{
    work w = work_of(s);
    if (!w.n_rows || !w.n_sequences) return QN_OK;
    if (s->state.base && (s->state.dtype != QN_DTYPE_F32 || s->state.kv_heads != 1 || !s->state.v_in_k))
        return qn_cuda_fail(QN_E_ARG, "INDEX_BLOCKS takes pages of f32 with one key head alone");
    qn_status status = s->state.base ? qn_cuda_begin(c, write_keys, w.n_rows, 128, 0, w) : QN_OK;
    const int64_t step = rows_at_once(w);
    for (; status == QN_OK && w.first < w.n_rows; w.first += step) {
        const int64_t n = w.n_rows - w.first < step ? w.n_rows - w.first : step;
        status = qn_cuda_begin(c, score_keys, n * qn_blocks(w.most, THREADS), THREADS, 0, w);
        if (status == QN_OK) status = qn_cuda_begin(c, choose, n, THREADS, 0, w);
    }
    return status;
}

extern const qn_cuda_prim qn_cuda_prim_INDEX_BLOCKS;
const qn_cuda_prim qn_cuda_prim_INDEX_BLOCKS = {launch, scratch_bytes};
