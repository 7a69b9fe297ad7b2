#include "convert/row_writer.h"

#include <math.h>
#include <stdatomic.h>

#include "base/mem.h"
#include "quant/mlx.h"

qn_status qn_tensor_file_write(const qn_tensor_file *f, int64_t index, size_t offset, const void *bytes,
                               size_t n)
{
    return f->gguf ? qn_gguf_writer_write(f->gguf, index, offset, bytes, n)
                   : qn_st_writer_write(f->st, index, offset, bytes, n);
}

static qn_status make_room(uint8_t **bytes, size_t *room, size_t n)
{
    if (n <= *room) return QN_OK;
    qn_free(*bytes);
    *bytes = qn_alloc(n);
    *room = *bytes ? n : 0;
    return *bytes ? QN_OK : QN_E_NOMEM;
}

/* ---- encoding ------------------------------------------------------------------------------------------ */

/* Rows of one range, shared out among threads. */
typedef struct {
    const qn_row_writer *w;
    const float *rows;
    int64_t n;
    size_t row_bytes;
    _Atomic int64_t bad; /* the place of the first number that the type cannot hold; all of them: none */
} encoding;

static void encode_share(void *arg, int thread, int n_threads)
{
    encoding *e = arg;
    const qn_type *type = e->w->type;
    const int64_t n_cols = e->w->n_cols;
    int64_t begin, end;
    qn_pool_share(e->n, 1, thread, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const int64_t n =
            type->encode(type, e->rows + i * n_cols, n_cols, e->w->blocks + (size_t)i * e->row_bytes);
        int64_t place = i * n_cols + n, least = atomic_load(&e->bad);
        if (n == n_cols) continue;
        while (place < least && !atomic_compare_exchange_weak(&e->bad, &least, place)) {
        }
        return;
    }
}

/* Bytes of a row in the tensor that is written; 0: rows end inside a block. */
static size_t bytes_of_row(const qn_row_writer *w)
{
    size_t n = 0;
    if (w->part == QN_ROW_BLOCKS) return qn_type_bytes(w->type->dtype, w->n_cols, &n) ? n : 0;
    const qn_mlx_row_bytes row = qn_mlx_row(w->type->dtype, w->n_cols);
    return w->part == QN_ROW_CODES ? row.data : w->part == QN_ROW_SCALES ? row.scales : row.biases;
}

static qn_status write_blocks(qn_row_writer *w, int64_t n, size_t row_bytes)
{
    const size_t rows = (size_t)n, own = bytes_of_row(w), at = (size_t)w->at * own;
    if (w->part == QN_ROW_BLOCKS)
        return qn_tensor_file_write(&w->to, w->index, at, w->blocks, rows * row_bytes);
    const qn_mlx_row_bytes row = qn_mlx_row(w->type->dtype, w->n_cols);
    QN_TRY(make_room(&w->parts, &w->n_parts, rows * (row.data + row.scales + row.biases)));
    uint8_t *data = w->parts, *scales = data + rows * row.data, *biases = scales + rows * row.scales;
    for (int64_t i = 0; i < n; i++)
        qn_mlx_split(w->type->dtype, w->n_cols, w->blocks + (size_t)i * row_bytes, i, data, scales, biases);
    return qn_tensor_file_write(&w->to, w->index, at,
                                w->part == QN_ROW_CODES    ? data
                                : w->part == QN_ROW_SCALES ? scales
                                                           : biases,
                                rows * own);
}

qn_status qn_row_writer_put(qn_row_writer *w, const float *rows, int64_t n)
{
    encoding e = {.w = w, .rows = rows, .n = n};
    atomic_init(&e.bad, n * w->n_cols);
    if (!qn_type_bytes(w->type->dtype, w->n_cols, &e.row_bytes) || !w->type->encode)
        return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s: rows of %lld numbers cannot be written as %s",
                       w->file, w->name, (long long)w->n_cols, w->type->name);
    QN_TRY(make_room(&w->blocks, &w->n_blocks, (size_t)n * e.row_bytes));
    qn_pool_run(w->pool, encode_share, &e);
    const int64_t bad = atomic_load(&e.bad);
    if (bad < n * w->n_cols && isfinite(rows[bad]))
        return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s: the value %g is too large for %s", w->file, w->name,
                       (double)rows[bad], w->type->name);
    if (bad < n * w->n_cols)
        return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s: element %lld is not finite, which %s cannot hold",
                       w->file, w->name, (long long)(w->at * w->n_cols + bad), w->type->name);
    QN_TRY(write_blocks(w, n, e.row_bytes));
    w->at += n;
    return QN_OK;
}

/* ---- copying ------------------------------------------------------------------------------------------- */

qn_status qn_row_writer_copy(qn_row_writer *w, const qn_tensor_view *v, int64_t first, int64_t n)
{
    const qn_tensor_view *from = w->part == QN_ROW_SCALES   ? v->scales
                                 : w->part == QN_ROW_BIASES ? v->biases
                                                            : v;
    const size_t row = bytes_of_row(w);
    if (!from || !row)
        return qn_fail(QN_E_INTERNAL, "%s: tensor %s: rows end inside a block", w->file, w->name);
    QN_TRY(qn_tensor_file_write(&w->to, w->index, (size_t)w->at * row,
                                (const char *)from->data + (size_t)first * row, (size_t)n * row));
    w->at += n;
    return QN_OK;
}

void qn_row_writer_free(qn_row_writer *w)
{
    qn_free(w->blocks);
    qn_free(w->parts);
    w->blocks = w->parts = NULL;
    w->n_blocks = w->n_parts = 0;
}
