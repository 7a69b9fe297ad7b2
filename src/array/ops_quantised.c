/* Quantised weights, products with them by indices, and the loss of a head. */
#include <string.h>

#include "array/build.h"
#include "base/mem.h"

/* ---- to block types and back -------------------------------------------------------------------------- */

/* The blocks of n_rows rows of k numbers; NULL and the scope's error where a number cannot be held. */
static char *encoded(qn_scope *s, qn_array *a, qn_dtype dtype, int64_t n_rows, int64_t k, size_t row_bytes)
{
    const int64_t n = n_rows * k;
    float *x = qn_alloc_array((size_t)n, sizeof *x);
    char *blocks = qn_alloc_array((size_t)n_rows, row_bytes);
    qn_status status = x && blocks ? qn_array_read(s, a, QN_DTYPE_F32, x, n) : QN_E_NOMEM;
    for (int64_t r = 0; r < n_rows && status == QN_OK; r++) {
        const int64_t done = qn_dtype_encode(dtype, x + r * k, k, blocks + (size_t)r * row_bytes);
        if (done < k)
            status = qn_fail(QN_E_ARG, "qn_quantise: element %lld of row %lld, %g, cannot be stored in %s",
                             (long long)done, (long long)r, (double)x[r * k + done], qn_dtype_name(dtype));
    }
    qn_free(x);
    if (status == QN_OK) return blocks;
    qn_free(blocks);
    qn_scope_fail(s, status);
    return NULL;
}

/* Matrices of blocks, as the device computes with them. */
static qn_array *imported(qn_scope *s, qn_dtype dtype, const qn_shape *shape, const char *blocks,
                          size_t row_bytes)
{
    const int n = shape->n;
    const int64_t n_parts = n == 3 ? shape->dim[0] : 1, rows = shape->dim[n - 2];
    qn_weight_part *parts = qn_calloc((size_t)n_parts, sizeof *parts);
    if (!parts) return qn_scope_fail(s, QN_E_NOMEM);
    for (int64_t i = 0; i < n_parts; i++) parts[i].data = blocks + (size_t)(i * rows) * row_bytes;
    const qn_weight w = {
        .dtype = dtype, .n_parts = n_parts, .n_out = rows, .n_in = shape->dim[n - 1], .parts = parts};
    qn_buffer *b = NULL;
    const qn_status status = s->device->ops->import_weights(s->device, 1, &w, &b);
    qn_free(parts);
    if (status != QN_OK) return qn_scope_fail(s, status);
    qn_array *a = qn_from_buffer(s, dtype, *shape, b);
    qn_buffer_release(b);
    return a;
}

qn_array *qn_quantise(qn_scope *s, qn_array *a, qn_dtype dtype)
{
    static const char what[] = "qn_quantise";
    if (!a || s->status != QN_OK) return NULL;
    const int n = a->shape.n;
    if ((n != 2 && n != 3) || qn_shape_is_symbolic(&a->shape) || !qn_is_plain(a))
        return qn_bad_call(s, what, a, "takes a matrix of numbers, or several stacked");
    if (dtype < 0 || dtype >= QN_DTYPE_COUNT || !qn_dtype_encode(dtype, NULL, 0, NULL))
        return qn_bad_call(s, what, a, "the type is not a weight type");
    const int64_t k = a->shape.dim[n - 1], rows = qn_shape_elements(&a->shape, NULL) / (k ? k : 1);
    size_t row_bytes;
    if (k < 1 || rows < 1 || !qn_dtype_bytes(dtype, k, &row_bytes))
        return qn_bad_call(s, what, a, "rows are not whole blocks of the type");
    const qn_shape shape = a->shape;
    char *blocks = encoded(s, a, dtype, rows, k, row_bytes);
    if (!blocks) return NULL;
    qn_array *w = imported(s, dtype, &shape, blocks, row_bytes);
    qn_free(blocks);
    return w;
}

qn_array *qn_dequantise(qn_scope *s, qn_array *w)
{
    if (!w || qn_is_plain(w)) return qn_astype(s, w, QN_DTYPE_F32);
    if (w->shape.n != 2) return qn_bad_call(s, "qn_dequantise", w, "takes one matrix");
    return qn_take(s, w, qn_count_up(s, w->shape.dim[0]));
}

/* ---- matrices by indices ------------------------------------------------------------------------------ */

qn_array *qn_gather_mm(qn_scope *s, qn_array *x, qn_array *w, qn_array *indices)
{
    static const char what[] = "qn_gather_mm";
    if (!x || !w || !indices) return NULL;
    if (w->shape.n != 3 || indices->shape.n != 2 || (x->shape.n != 2 && x->shape.n != 3) ||
        qn_shape_is_symbolic(&x->shape))
        return qn_bad_call(s, what, x, "takes x [rows, k] or [rows, top, k], w [matrices, n, k] and indices");
    const int64_t rows = x->shape.dim[0], top = indices->shape.dim[1], k = w->shape.dim[2];
    if (indices->shape.dim[0] != rows || x->shape.dim[x->shape.n - 1] != k ||
        (x->shape.n == 3 && x->shape.dim[1] != top))
        return qn_bad_call(s, what, x, "rows, choices or inner dimensions differ");
    indices = qn_indices(s, what, w, indices, w->shape.dim[0]);
    if (!qn_is_plain(w)) return qn_experts(s, x, w, indices, NULL);
    return qn_gather_plain(s, x, w, indices);
}

/* ---- the loss of a head ------------------------------------------------------------------------------- */

qn_array *qn_cross_entropy(qn_scope *s, qn_array *rows, qn_array *head, qn_array *targets, float softcap)
{
    static const char what[] = "qn_cross_entropy";
    if (!rows || !head || !targets) return NULL;
    if (targets->dtype > QN_DTYPE_I64 || targets->dtype == QN_DTYPE_BOOL)
        return qn_bad_call(s, what, targets, "targets must be integers");
    if (rows->shape.n != targets->shape.n + 1 || rows->shape.n < 2 || head->shape.n != 2 ||
        qn_shape_is_symbolic(&rows->shape) || qn_shape_is_symbolic(&targets->shape) || head->shape.dim[0] < 1)
        return qn_bad_call(s, what, rows, "takes rows [.., k], a head [classes, k] and targets [..]");
    for (int d = 0; d < targets->shape.n; d++)
        if (rows->shape.dim[d] != targets->shape.dim[d])
            return qn_bad_call(s, what, targets, "the numbers of targets and rows differ");
    const qn_shape shape = targets->shape;
    const int64_t n = qn_shape_elements(&shape, NULL), k = rows->shape.dim[rows->shape.n - 1];
    const double last = (double)head->shape.dim[0] - 1;
    targets = qn_reshape(s, qn_astype(s, targets, QN_DTYPE_I64), 2, (int64_t[]){n, 1});
    qn_array *zero = qn_constant(s, QN_DTYPE_I64, 0), *counts = qn_ge(s, targets, zero);
    targets = qn_minimum(s, qn_maximum(s, targets, zero), qn_constant(s, QN_DTYPE_I64, last));
    qn_array *loss = qn_head_loss(s, qn_reshape(s, rows, 2, (int64_t[]){n, k}), head,
                                  qn_astype(s, targets, QN_DTYPE_I32), 1, softcap);
    return loss ? qn_reshape_sym(s, qn_where(s, counts, loss, qn_constant(s, loss->dtype, 0)), shape) : NULL;
}
