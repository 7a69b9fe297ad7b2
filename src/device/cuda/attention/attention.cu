/* Attention: rows are written to their pages, then blocks go through the pages (attention.cuh says which). Where few
 * blocks would have work, several of them share a tile's groups: each leaves a group's result in memory, and a
 * second kernel merges a row's groups. */
#include "device/cuda/attention/attention_few.cuh"
#include "device/cuda/attention/attention_many.cuh"
#include "device/cuda/attention/attention_merge.cuh"
#include "device/cuda/attention/attention_tile.cuh"

/* ---- cutting ------------------------------------------------------------------------------------------- */

/* Pairs of row and head up to which blocks share tiles; bytes that what they leave behind may take; shared memory
 * of a block that every card has; blocks that keep a large card busy. Found by thinking, not yet by measuring. */
enum { SPLIT_PAIRS = 4096, SHARED_BYTES = 96 << 10, BUSY_BLOCKS = 1024, MOST_SPLITS = 64, PAIRS_MAX = 16 };
static const size_t SPLIT_BYTES = (size_t)256 << 20;

/* Rows whose parts are in memory at the same time. */
static int64_t split_rows(const qn_cuda_attention *a, size_t *row_bytes)
{
    *row_bytes = (size_t)(a->n_heads * a->n_groups) * (size_t)(qn_padded(a->v.dim) + 2) * sizeof(float);
    int64_t n = (int64_t)(SPLIT_BYTES / *row_bytes);
    if (n > SPLIT_PAIRS / a->n_heads) n = SPLIT_PAIRS / a->n_heads;
    return n > 0 ? n : 1;
}

/* Blocks share the tiles of steps of few rows. */
static int is_split(const qn_cuda_attention *a)
{
    return a->past == 1 || a->past * a->n_heads <= SPLIT_PAIRS;
}

size_t qn_cuda_attend_scratch(const qn_cuda_attention *a)
{
    size_t row_bytes;
    const int64_t n = split_rows(a, &row_bytes);
    return (size_t)(a->past < n ? a->past : n) * row_bytes;
}

/* Pairs of a block: as many as one of the kernels takes and shared memory holds. */
static int pairs_for(const qn_cuda_attention *a, int64_t wish, int split)
{
    static const int sizes[] = {1, 4, 8, PAIRS_MAX};
    int i = 0;
    while (i < 3 && sizes[i] < wish) i++;
    while (i > 0 && qn_attend_shared_bytes(sizes[i], a->k.dim, a->v.dim, split) > SHARED_BYTES) i--;
    return sizes[i];
}

/* Which kernel, and its tiles. */
typedef struct {
    qn_dtype dtype;
    int is_few, is_many; /* else attend_tiles of so many pairs */
    int pairs;
} choice;

/* The heads of a key head that go together, and as many rows as sequences have on average and as fit beside them. */
static void cut_pages(qn_cuda_attention *a, choice *o, int split)
{
    const int64_t rows = qn_blocks(a->past, a->n_sequences);
    o->is_few = split && (rows * a->shared <= QN_FEW_PAIRS || a->past <= QN_STEP_ROWS);
    o->is_many = !o->is_few;
    const int most = o->is_few ? (int)QN_FEW_PAIRS : (int)QN_TILE_PAIRS;
    a->heads = a->shared < most ? a->shared : most;
    a->n_chunks = (int)qn_blocks(a->shared, a->heads);
    a->tile_rows = most / a->heads;
    if (o->is_many)
        a->tile_rows *= QN_MANY_WARPS;
    else if (rows < a->tile_rows)
        a->tile_rows = rows;
}

static int cut_tiles(qn_cuda_attention *a, int split)
{
    const int64_t rows = qn_blocks(a->past, a->n_sequences);
    const int most = pairs_for(a, rows * a->shared, split);
    a->heads = a->shared < most ? a->shared : most;
    a->n_chunks = (int)qn_blocks(a->shared, a->heads);
    a->tile_rows = rows < most / a->heads ? rows : most / a->heads;
    return pairs_for(a, a->tile_rows * a->heads, split);
}

/* ---- launches ------------------------------------------------------------------------------------------ */

typedef void attend_kernel(qn_cuda_attention);

template <qn_dtype D> static attend_kernel *kernel_of(int pairs)
{
    switch (pairs) {
    case 1:
        return attend_tiles<D, 1>;
    case 4:
        return attend_tiles<D, 4>;
    case 8:
        return attend_tiles<D, 8>;
    default:
        return attend_tiles<D, PAIRS_MAX>;
    }
}

static attend_kernel *kernel_for(qn_dtype dtype, int pairs)
{
    switch (dtype) {
    case QN_DTYPE_F32:
        return kernel_of<QN_DTYPE_F32>(pairs);
    case QN_DTYPE_F16:
        return kernel_of<QN_DTYPE_F16>(pairs);
    case QN_DTYPE_BF16:
        return kernel_of<QN_DTYPE_BF16>(pairs);
    case QN_DTYPE_Q8_0:
        return kernel_of<QN_DTYPE_Q8_0>(pairs);
    case QN_DTYPE_Q4_0:
        return kernel_of<QN_DTYPE_Q4_0>(pairs);
    default:
        return NULL;
    }
}

template <int D>
static qn_status begin_pages(qn_cuda_context *c, const qn_cuda_attention &a, const choice &o, int64_t grid)
{
    if (o.is_few) return qn_cuda_launch(c, attend_few<D>, grid, QN_FEW_THREADS, sizeof(qn_few_block<D>), a);
    return qn_cuda_launch(c, attend_many<D>, grid, 32 * QN_MANY_WARPS,
                          QN_MANY_WARPS * sizeof(qn_many_warp<D>), a);
}

static qn_status begin(qn_cuda_context *c, const qn_cuda_attention &a, const choice &o, int64_t grid)
{
    if (!o.is_few && !o.is_many)
        return qn_cuda_launch(c, kernel_for(o.dtype, o.pairs), grid, QN_ATTEND_THREADS,
                              qn_attend_shared_bytes(o.pairs, a.k.dim, a.v.dim, a.n_splits), a);
    switch (qn_attend_dim(&a)) {
    case 64:
        return begin_pages<64>(c, a, o, grid);
    case 128:
        return begin_pages<128>(c, a, o, grid);
    default:
        return begin_pages<256>(c, a, o, grid);
    }
}

/* Rows [first, past). */
static qn_status attend_some(qn_cuda_context *c, qn_cuda_attention a, const choice &o, int split)
{
    a.n_tiles = qn_most_tiles(a.past - a.first, a.n_sequences, a.tile_rows);
    const int64_t blocks = a.n_tiles * a.kv_heads * a.n_chunks;
    if (split) {
        const int64_t wish = qn_blocks(BUSY_BLOCKS, blocks),
                      most = a.n_groups < MOST_SPLITS ? a.n_groups : MOST_SPLITS;
        a.n_splits = (int)(wish < most ? wish : most);
    }
    const int64_t grid = blocks * (split ? a.n_splits : 1);
    const qn_attend_op op = {a, o.is_few};
    qn_cuda_note_op(c, QN_OP_ATTEND, grid, QN_FEW_THREADS, 0, &op, sizeof op);
    qn_status status = begin(c, a, o, grid);
    if (status != QN_OK || !split) return status;
    const int threads = qn_padded(a.v.dim) < 128 ? qn_padded(a.v.dim) : 128;
    return qn_cuda_begin_body<qn_merge_groups>(c, (a.past - a.first) * a.n_heads, threads, 0,
                                               {a, o.dtype == QN_DTYPE_Q4_0});
}

qn_status qn_cuda_attend(qn_cuda_context *c, qn_cuda_attention *a, qn_dtype dtype, void *scratch)
{
    const int64_t n_rows = a->past;
    if (!n_rows) return QN_OK;
    const int split = scratch && is_split(a);
    choice o = {dtype, 0, 0, 0};
    if (qn_can_attend_pages(a, dtype))
        cut_pages(a, &o, split);
    else
        o.pairs = cut_tiles(a, split);
    size_t row_bytes;
    const int64_t step = split ? split_rows(a, &row_bytes) : n_rows;
    a->parts = (float *)scratch;
    for (a->first = 0; a->first < n_rows; a->first = a->past) {
        a->past = a->first + step < n_rows ? a->first + step : n_rows;
        const qn_status status = attend_some(c, *a, o, split);
        if (status != QN_OK) return status;
    }
    return QN_OK;
}

/* ---- the primitive ------------------------------------------------------------------------------------- */

qn_cuda_attention qn_cuda_attention_of(const qn_cuda_step *s, int sinks)
{
    const qn_params_attend *p = &s->params->attend;
    const qn_cuda_operand *q = &s->in[0], *k = &s->in[1], *v = &s->in[2];
    qn_cuda_attention a = {(const float *)q->data, q->stride[0], (float *)s->out.data};
    a.positions = (const int32_t *)s->in[3].data;
    a.row_begin = (const int32_t *)s->in[4].data;
    a.n_sequences = s->in[4].dim[0] - 1;
    a.n_heads = (int)q->dim[1];
    a.kv_heads = (int)k->dim[1];
    a.shared = a.n_heads / a.kv_heads;
    a.k.dim = (int)k->dim[2];
    a.v.dim = (int)v->dim[2];
    a.window = p->window;
    a.chunk = p->chunk && p->chunk < UINT32_MAX ? (uint32_t)p->chunk : UINT32_MAX;
    a.reach = !p->whole ? 1 : p->window && p->window < INT32_MAX ? (int)p->window : INT32_MAX;
    a.factor = p->softcap != 0 ? p->scale / p->softcap : p->scale * 1.44269504f;
    a.cap = p->softcap * 1.44269504f;
    a.sinks = p->has_sinks ? (const float *)s->in[sinks].data : NULL;
    a.past = q->dim[0];
    return a;
}

static qn_cuda_attention over_pages(const qn_cuda_step *s)
{
    const qn_cuda_state *p = &s->state;
    qn_cuda_attention a = qn_cuda_attention_of(s, 6);
    a.blocks = (const int32_t *)s->in[5].data;
    a.table_row = s->in[5].stride[0];
    a.n_groups = qn_blocks(s->in[5].dim[1] - 1, QN_GROUP_PAGES);
    a.k.base = p->base;
    a.k.page = (int64_t)p->unit_bytes;
    a.k.token = (int64_t)qn_cuda_token_bytes(p->dtype, p->head_dim);
    a.k.head = a.k.token * QN_PAGE_TOKENS;
    const int v_dim = a.v.dim;
    a.v = a.k;
    a.v.dim = v_dim;
    if (p->v_in_k) return a;
    a.v.base += a.k.head * p->kv_heads;
    a.v.token = (int64_t)qn_cuda_token_bytes(p->dtype, p->v_dim);
    a.v.head = a.v.token * QN_PAGE_TOKENS;
    return a;
}

static qn_status launch(qn_cuda_context *c, const qn_cuda_step *s)
{
    if (!s->state.base) return qn_cuda_attend_ragged(c, s);
    qn_cuda_attention a = over_pages(s);
    if (!a.past || !a.n_sequences) return QN_OK;
    if (!s->params->attend.is_written) {
        const qn_status status = qn_cuda_write_pages(c, s);
        if (status != QN_OK) return status;
    }
    if (s->params->attend.block) return qn_cuda_attend_chosen(c, s, &a, s->state.dtype);
    return qn_cuda_attend(c, &a, s->state.dtype, s->scratch);
}

static size_t scratch_bytes(const qn_cuda_step *s)
{
    if (!s->params->attend.state || s->params->attend.block) return 0;
    const qn_cuda_attention a = over_pages(s);
    return qn_cuda_attend_scratch(&a);
}

extern const qn_cuda_prim qn_cuda_prim_ATTEND;
const qn_cuda_prim qn_cuda_prim_ATTEND = {launch, scratch_bytes};
