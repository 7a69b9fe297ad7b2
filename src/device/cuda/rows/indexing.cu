/* Moves by ids and places: CONCAT, TAKE, SCATTER_ADD, TAKE_ALONG, SCATTER_ALONG, LAST_WRITER, HASH_IDS, UPDATE. A thread an
 * element of the output, and what is added to one element is added by one thread, in rising order. Ids are checked
 * before they get here. */
#include "device/cuda/elements/lines.cuh"
#include "device/cuda/rows/take.cuh"

enum { BLOCK = 256 };

static __device__ __forceinline__ int64_t own_element(void)
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

/* The kernel for elements of so many bytes. */
#define OF_BYTES(kernel, dtype)                      \
    (qn_plain_bytes(dtype) == 1   ? kernel<uint8_t>  \
     : qn_plain_bytes(dtype) == 2 ? kernel<uint16_t> \
     : qn_plain_bytes(dtype) == 4 ? kernel<uint32_t> \
                                  : kernel<uint64_t>)

/* ---- CONCAT -------------------------------------------------------------------------------------------- */

typedef struct {
    const char *in[QN_MAX_INPUTS];
    char *out;
    int64_t stride[QN_MAX_INPUTS], end[QN_MAX_INPUTS]; /* of a row; the column behind input i's */
    int64_t n, lines, width;                           /* elements; lines of a row */
} concat_work;

template <class T> static __global__ void concat(concat_work w)
{
    const int64_t i = own_element();
    if (i >= w.n) return;
    const int64_t column = i % w.width, line = i / w.width % w.lines, row = i / w.width / w.lines;
    const T *from = NULL;
    int64_t begin = 0;
    QN_UNROLL
    for (int k = 0; k < QN_MAX_INPUTS; k++) {
        if (from) continue;
        if (column < w.end[k])
            from = (const T *)w.in[k] + row * w.stride[k] + line * (w.end[k] - begin) + column - begin;
        begin = w.end[k];
    }
    ((T *)w.out)[i] = *from;
}

static qn_status launch_concat(qn_cuda_context *c, const qn_cuda_step *s)
{
    const qn_cuda_operand *o = &s->out;
    concat_work w = {};
    int64_t end = 0;
    w.out = (char *)o->data;
    w.n = qn_elements(o);
    w.width = o->dim[o->n - 1];
    w.lines = 1;
    for (int d = 1; d < o->n - 1; d++) w.lines *= o->dim[d];
    for (int k = 0; k < QN_MAX_INPUTS; k++) {
        if (k < s->n_in) {
            end += s->in[k].dim[o->n - 1];
            w.in[k] = (const char *)s->in[k].data;
            w.stride[k] = o->n > 1 ? s->in[k].stride[0] : 0;
        }
        w.end[k] = end;
    }
    return qn_cuda_begin(c, OF_BYTES(concat, o->dtype), qn_blocks(w.n, BLOCK), BLOCK, 0, w);
}

/* ---- TAKE ---------------------------------------------------------------------------------------------- */

typedef struct {
    const char *table;
    char *out;
    const int32_t *ids;
    int64_t n, row, stride; /* elements; of a row; from a row of the table to the next */
    qn_dtype dtype;         /* of the table */
} take_work;

template <class T> static __global__ void take(take_work w)
{
    const int64_t i = own_element();
    if (i < w.n) ((T *)w.out)[i] = ((const T *)w.table)[w.ids[i / w.row] * w.stride + i % w.row];
}

/* f16 and bf16 become f32. */
static __global__ void take_halves(take_work w)
{
    const int64_t i = own_element();
    if (i >= w.n) return;
    const uint16_t h = ((const uint16_t *)w.table)[w.ids[i / w.row] * w.stride + i % w.row];
    ((float *)w.out)[i] = w.dtype == QN_DTYPE_F16 ? qn_half_to_float(h) : qn_bf16_float(h);
}

static qn_status launch_take(qn_cuda_context *c, const qn_cuda_step *s)
{
    const qn_cuda_operand *t = &s->in[0];
    take_work w = {(const char *)t->data,
                   (char *)s->out.data,
                   (const int32_t *)s->in[1].data,
                   qn_elements(&s->out),
                   1,
                   t->n > 1 ? t->stride[0] : 1,
                   t->dtype};
    for (int d = 1; d < t->n; d++) w.row *= t->dim[d];
    const int64_t blocks = qn_blocks(w.n, BLOCK);
    if (t->weight) {
        const qn_take_packed::work packed = {*t->weight, w.ids, (float *)s->out.data, w.n, w.row};
        return qn_cuda_begin_body<qn_take_packed>(c, qn_blocks(w.n, qn_take_packed::BLOCK),
                                                  qn_take_packed::BLOCK, 0, packed);
    }
    if (t->dtype > QN_DTYPE_F64)
        return qn_cuda_fail(QN_E_UNSUPPORTED, "device cuda: take from rows of blocks");
    if (t->dtype != s->out.dtype) return qn_cuda_begin(c, take_halves, blocks, BLOCK, 0, w);
    return qn_cuda_begin(c, OF_BYTES(take, t->dtype), blocks, BLOCK, 0, w);
}

/* ---- TAKE_ALONG, SCATTER_ALONG, LAST_WRITER ------------------------------------------------------------ */

typedef struct {
    const char *x;
    char *out;
    const int32_t *ids;
    int64_t n, width, k, x_stride, ids_stride; /* elements; of a row of the output; ids of a row */
    qn_dtype dtype;
} along_work;

template <class T> static __global__ void take_along(along_work w)
{
    const int64_t i = own_element(), row = i / w.width;
    if (i < w.n)
        ((T *)w.out)[i] = ((const T *)w.x)[row * w.x_stride + w.ids[row * w.ids_stride + i % w.width]];
}

/* out[ids[j]] += x[j] for all j of a row. */
static __global__ void scatter_along(along_work w)
{
    const int64_t i = own_element(), row = i / w.width, column = i % w.width;
    if (i >= w.n) return;
    const int32_t *ids = w.ids + row * w.ids_stride;
    qn_wide sum;
    float single = 0;
    sum.u = 0;
    for (int64_t j = 0; j < w.k; j++) {
        if (ids[j] != column) continue;
        if (w.dtype == QN_DTYPE_F32)
            single += ((const float *)w.x)[row * w.x_stride + j];
        else
            sum = qn_wide_join(QN_WAY_SUM, qn_wide_kind_of(w.dtype), sum,
                               qn_wide_get(w.dtype, w.x, row * w.x_stride + j));
    }
    if (w.dtype == QN_DTYPE_F32)
        ((float *)w.out)[i] = single;
    else
        qn_wide_put(w.dtype, sum, w.out, i);
}

static qn_status launch_take_along(qn_cuda_context *c, const qn_cuda_step *s)
{
    const int64_t width = s->out.dim[1];
    const along_work w = {(const char *)s->in[0].data,
                          (char *)s->out.data,
                          (const int32_t *)s->in[1].data,
                          qn_elements(&s->out),
                          width,
                          width,
                          s->in[0].stride[0],
                          s->in[1].stride[0],
                          s->out.dtype};
    return qn_cuda_begin(c, OF_BYTES(take_along, w.dtype), qn_blocks(w.n, BLOCK), BLOCK, 0, w);
}

static qn_status launch_scatter_along(qn_cuda_context *c, const qn_cuda_step *s)
{
    const along_work w = {(const char *)s->in[0].data, (char *)s->out.data, (const int32_t *)s->in[1].data,
                          qn_elements(&s->out),        s->out.dim[1],       s->in[0].dim[1],
                          s->in[0].stride[0],          s->in[1].stride[0],  s->out.dtype};
    return qn_cuda_begin(c, scatter_along, qn_blocks(w.n, BLOCK), BLOCK, 0, w);
}

static __global__ void no_writer(along_work w)
{
    const int64_t i = own_element();
    if (i < w.n) ((int32_t *)w.out)[i] = -1;
}

static __global__ void find_last_writer(along_work w, int64_t n_ids)
{
    const int64_t i = own_element(), row = i / w.k, j = i % w.k;
    if (i >= n_ids) return;
    const int32_t id = w.ids[row * w.ids_stride + j];
    if (id >= 0 && id < w.width) atomicMax((int *)w.out + row * w.width + id, (int)j);
}

static qn_status launch_last_writer(qn_cuda_context *c, const qn_cuda_step *s)
{
    const qn_cuda_operand *ids = &s->in[0];
    const along_work w = {NULL,
                          (char *)s->out.data,
                          (const int32_t *)ids->data,
                          qn_elements(&s->out),
                          s->out.dim[1],
                          ids->dim[1],
                          0,
                          ids->stride[0],
                          QN_DTYPE_I32};
    const int64_t n_ids = ids->dim[0] * ids->dim[1];
    const qn_status status = qn_cuda_begin(c, no_writer, qn_blocks(w.n, BLOCK), BLOCK, 0, w);
    if (status != QN_OK || w.n == 0) return status;
    return qn_cuda_begin(c, find_last_writer, qn_blocks(n_ids, BLOCK), BLOCK, 0, w, n_ids);
}

/* ---- HASH_IDS ------------------------------------------------------------------------------------------ */

typedef struct {
    const int32_t *tokens, *sizes, *offsets;
    const uint64_t *by;
    int32_t *out;
    int64_t n_out, stride, heads, each; /* elements; of a row of tokens; of a row of the output; of each n */
    int32_t end;
} hash_work;

static __global__ void hash_ids(hash_work w)
{
    const int64_t i = own_element(), row = i / w.heads, h = i % w.heads;
    if (i >= w.n_out) return;
    const int32_t *tokens = w.tokens + row * w.stride;
    uint64_t hash = (uint64_t)tokens[0] * w.by[0];
    bool is_cut = false;
    for (int64_t k = 1; k <= 1 + h / w.each; k++) {
        is_cut = is_cut || tokens[k] == w.end;
        hash ^= (uint64_t)(is_cut ? w.end : tokens[k]) * w.by[k];
    }
    w.out[i] = w.offsets[h] + (int32_t)(hash % (uint64_t)w.sizes[h]);
}

static qn_status launch_hash_ids(qn_cuda_context *c, const qn_cuda_step *s)
{
    const qn_cuda_operand *tokens = &s->in[0];
    const int64_t heads = s->out.dim[1];
    const hash_work w = {(const int32_t *)tokens->data,
                         (const int32_t *)s->in[2].data,
                         (const int32_t *)s->in[3].data,
                         (const uint64_t *)s->in[1].data,
                         (int32_t *)s->out.data,
                         qn_elements(&s->out),
                         tokens->stride[0],
                         heads,
                         heads / (tokens->dim[1] - 1),
                         s->params->hash_ids.end};
    return qn_cuda_begin(c, hash_ids, qn_blocks(w.n_out, BLOCK), BLOCK, 0, w);
}

/* ---- UPDATE -------------------------------------------------------------------------------------------- */

typedef struct {
    qn_cuda_view x, update;
    char *out;
    int64_t n, begin[QN_MAX_DIMS], step[QN_MAX_DIMS];
} update_work;

template <class T> static __global__ void update(update_work w)
{
    const int64_t i = own_element();
    if (i >= w.n) return;
    int64_t rest = i, from = 0, at = 0;
    bool is_in = true;
    for (int d = w.x.n - 1; d >= 0; d--) {
        const int64_t place = rest % w.x.dim[d], step = w.step[d];
        const int64_t t = step < 0 ? w.begin[d] - place : place - w.begin[d], size = step < 0 ? -step : step;
        rest /= w.x.dim[d];
        at += place * w.x.stride[d];
        from += t / size * w.update.stride[d];
        is_in = is_in && t >= 0 && t % size == 0 && t / size < w.update.dim[d];
    }
    ((T *)w.out)[i] = is_in ? ((const T *)w.update.data)[from] : ((const T *)w.x.data)[at];
}

static qn_status launch_update(qn_cuda_context *c, const qn_cuda_step *s)
{
    update_work w = {};
    w.x = qn_cuda_view_of(&s->in[0]);
    w.update = qn_cuda_view_of(&s->in[1]);
    w.out = (char *)s->out.data;
    w.n = qn_elements(&s->out);
    for (int d = 0; d < w.x.n; d++) {
        w.begin[d] = s->params->slice.begin[d];
        w.step[d] = s->params->slice.step[d] ? s->params->slice.step[d] : 1;
    }
    return qn_cuda_begin(c, OF_BYTES(update, s->out.dtype), qn_blocks(w.n, BLOCK), BLOCK, 0, w);
}

/* ---- SCATTER_ADD --------------------------------------------------------------------------------------- */

typedef struct {
    const char *x;
    char *out;
    const int32_t *ids;
    int64_t n_ids, n_out, row, stride, n_tiles; /* of a row; from a row of x to the next; blocks of a row */
    qn_dtype dtype;
    int by_ids; /* 1: a block computes the row that its id names, if it is the first of its like; 0: row i */
} scatter_work;

static __global__ void clear(scatter_work w)
{
    const int64_t i = own_element();
    qn_wide zero;
    zero.u = 0;
    if (i < w.n_out * w.row) qn_wide_put(w.dtype, zero, w.out, i);
}

static __global__ void scatter_add(scatter_work w)
{
    __shared__ int32_t ids[BLOCK];
    __shared__ int found[2]; /* in this tile; set by turns */
    const int64_t item = blockIdx.x / w.n_tiles, column = blockIdx.x % w.n_tiles * BLOCK + threadIdx.x;
    const int64_t row = w.by_ids ? w.ids[item] : item;
    const int kind = qn_wide_kind_of(w.dtype);
    qn_wide sum;
    float single = 0;
    sum.u = 0;
    if (threadIdx.x < 2) found[threadIdx.x] = 0;
    __syncthreads();
    int turn = 0, is_first = 1;
    for (int64_t begin = 0; begin < w.n_ids && is_first; begin += BLOCK, turn ^= 1) {
        const int64_t i = begin + threadIdx.x;
        ids[threadIdx.x] = i < w.n_ids ? w.ids[i] : -1;
        if (ids[threadIdx.x] == row) found[turn] = 1;
        __syncthreads();
        if (found[turn])
            for (int k = 0; k < BLOCK && begin + k < w.n_ids; k++) {
                if (ids[k] != row) continue;
                if (w.by_ids && begin + k < item) is_first = 0; /* another block has the row */
                if (!is_first || column >= w.row) break;
                const int64_t at = (begin + k) * w.stride + column;
                if (w.dtype == QN_DTYPE_F32)
                    single += ((const float *)w.x)[at];
                else
                    sum = qn_wide_join(QN_WAY_SUM, kind, sum, qn_wide_get(w.dtype, w.x, at));
            }
        if (threadIdx.x == 0) found[turn ^ 1] = 0;
        __syncthreads();
    }
    if (!is_first || column >= w.row || row < 0 || row >= w.n_out) return;
    if (w.dtype == QN_DTYPE_F32)
        ((float *)w.out)[row * w.row + column] = single;
    else
        qn_wide_put(w.dtype, sum, w.out, row * w.row + column);
}

/* By rows where they are few, else by ids behind zeros: either way a block looks at all ids. */
static qn_status launch_scatter_add(qn_cuda_context *c, const qn_cuda_step *s)
{
    const qn_cuda_operand *x = &s->in[0];
    scatter_work w = {(const char *)x->data,
                      (char *)s->out.data,
                      (const int32_t *)s->in[1].data,
                      x->dim[0],
                      s->out.dim[0],
                      1,
                      x->n > 1 ? x->stride[0] : 1};
    for (int d = 1; d < x->n; d++) w.row *= x->dim[d];
    w.n_tiles = qn_blocks(w.row, BLOCK);
    w.dtype = x->dtype;
    w.by_ids = w.n_out > w.n_ids;
    qn_status status = QN_OK;
    if (w.by_ids) status = qn_cuda_begin(c, clear, qn_blocks(w.n_out * w.row, BLOCK), BLOCK, 0, w);
    if (status != QN_OK) return status;
    return qn_cuda_begin(c, scatter_add, (w.by_ids ? w.n_ids : w.n_out) * w.n_tiles, BLOCK, 0, w);
}

extern const qn_cuda_prim qn_cuda_prim_CONCAT, qn_cuda_prim_TAKE, qn_cuda_prim_TAKE_ALONG,
    qn_cuda_prim_SCATTER_ALONG, qn_cuda_prim_LAST_WRITER, qn_cuda_prim_HASH_IDS, qn_cuda_prim_UPDATE,
    qn_cuda_prim_SCATTER_ADD;
const qn_cuda_prim qn_cuda_prim_CONCAT = {launch_concat, NULL};
const qn_cuda_prim qn_cuda_prim_TAKE = {launch_take, NULL};
const qn_cuda_prim qn_cuda_prim_TAKE_ALONG = {launch_take_along, NULL};
const qn_cuda_prim qn_cuda_prim_SCATTER_ALONG = {launch_scatter_along, NULL};
const qn_cuda_prim qn_cuda_prim_LAST_WRITER = {launch_last_writer, NULL};
const qn_cuda_prim qn_cuda_prim_HASH_IDS = {launch_hash_ids, NULL};
const qn_cuda_prim qn_cuda_prim_UPDATE = {launch_update, NULL};
const qn_cuda_prim qn_cuda_prim_SCATTER_ADD = {launch_scatter_add, NULL};
