/* Elements by indices: taken, put, scattered. */
#include <string.h>

#include "array/build.h"

/* ---- indices ------------------------------------------------------------------------------------------ */

/* Indices that are data: checked now, and counted from the front. */
static qn_array *checked(qn_scope *s, const char *what, const qn_array *a, const qn_array *ids,
                         const char *from, int64_t n)
{
    const int64_t count = qn_shape_elements(&ids->shape, NULL);
    const size_t width = (size_t)qn_dtype_width(ids->dtype);
    void *data;
    qn_array *out = qn_array_alloc(s, what, QN_DTYPE_I32, ids->shape.n, ids->shape.dim, &data);
    for (int64_t i = 0; out && i < count; i++) {
        int64_t at;
        qn_convert(ids->dtype, from + (size_t)i * width, QN_DTYPE_I64, &at, 1);
        if (at < -n || at >= n) {
            char text[96];
            return qn_scope_fail(s, qn_fail(QN_E_ARG, "%s: index %lld of an axis of size %lld (array %s)",
                                            what, (long long)at, (long long)n,
                                            qn_shape_text(&a->shape, text, sizeof text)));
        }
        ((int32_t *)data)[i] = (int32_t)(at < 0 ? at + n : at);
    }
    return out;
}

qn_array *qn_indices(qn_scope *s, const char *what, const qn_array *a, qn_array *ids, int64_t n)
{
    if (!a || !ids) return NULL;
    if (ids->dtype > QN_DTYPE_I64 || ids->dtype == QN_DTYPE_BOOL)
        return qn_bad_call(s, what, ids, "indices must be integers");
    if (qn_shape_is_symbolic(&a->shape) || qn_shape_is_symbolic(&ids->shape) || n > INT32_MAX)
        return qn_bad_call(s, what, a, "the size of the axis is too large or not yet known");
    if (n == 0 && qn_shape_elements(&ids->shape, NULL) > 0)
        return qn_bad_call(s, what, a, "the axis has no elements");
    const qn_array *data = ids->prim == QN_PRIM_RESHAPE ? ids->in[0] : ids; /* in another shape */
    if (data->prim == QN_PRIM_DATA) return checked(s, what, a, ids, qn_array_data(data), n);
    const int has_sign = ids->dtype >= QN_DTYPE_I8;
    if (has_sign) {
        ids = qn_astype(s, ids, QN_DTYPE_I64);
        qn_array *size = qn_constant(s, QN_DTYPE_I64, (double)n), *zero = qn_constant(s, QN_DTYPE_I64, 0);
        ids = qn_maximum(s, qn_where(s, qn_lt(s, ids, zero), qn_add(s, ids, size), ids), zero);
    } else {
        ids = qn_astype(s, ids, QN_DTYPE_U64);
    }
    if (!ids) return NULL;
    return qn_astype(s, qn_minimum(s, ids, qn_constant(s, ids->dtype, (double)n - 1)), QN_DTYPE_I32);
}

/* ---- along an axis ------------------------------------------------------------------------------------ */

/* [outer, n, inner] -> [n, outer, inner] and back. */
static qn_array *turned(qn_scope *s, qn_array *a)
{
    return a && a->shape.dim[0] != 1 ? qn_swap_axes(s, a, 0, 1)
           : a                       ? qn_reshape(s, a, 3, (int64_t[]){a->shape.dim[1], 1, a->shape.dim[2]})
                                     : NULL;
}

static qn_array *back(qn_scope *s, qn_array *a)
{
    return a && a->shape.dim[1] != 1 ? qn_swap_axes(s, a, 0, 1)
           : a                       ? qn_reshape(s, a, 3, (int64_t[]){1, a->shape.dim[0], a->shape.dim[2]})
                                     : NULL;
}

/* a as [n, outer, inner] by its axis. */
static qn_array *by_axis(qn_scope *s, qn_array *a, int axis)
{
    if (!a) return NULL;
    int64_t dims[3] = {1, a->shape.dim[axis], 1};
    for (int d = 0; d < axis; d++) dims[0] *= a->shape.dim[d];
    for (int d = axis + 1; d < a->shape.n; d++) dims[2] *= a->shape.dim[d];
    return turned(s, qn_reshape(s, a, 3, dims));
}

qn_array *qn_take_axis(qn_scope *s, qn_array *a, qn_array *ids, int axis)
{
    static const char what[] = "qn_take_axis";
    axis = qn_axis(s, what, a, axis);
    if (axis < 0 || !ids) return NULL;
    const int n_ids = ids->shape.n;
    qn_shape shape = {.n = a->shape.n - 1 + n_ids};
    if (shape.n > QN_MAX_DIMS) return qn_bad_call(s, what, a, "the result would have more than 6 dimensions");
    if (qn_shape_is_symbolic(&ids->shape))
        return qn_bad_call(s, what, ids, "the number of indices is unknown");
    memcpy(shape.dim, a->shape.dim, (size_t)axis * sizeof *shape.dim);
    memcpy(shape.dim + axis, ids->shape.dim, (size_t)n_ids * sizeof *shape.dim);
    memcpy(shape.dim + axis + n_ids, a->shape.dim + axis + 1,
           (size_t)(a->shape.n - axis - 1) * sizeof *shape.dim);
    const qn_dtype dtype = a->dtype;
    ids = qn_reshape(s, qn_indices(s, what, a, ids, a->shape.dim[axis]), 1, (int64_t[]){-1});
    if (!ids) return NULL;
    if (!qn_is_plain(a)) { /* rows of a quantised matrix, as f32 */
        if (axis != 0) return qn_bad_call(s, what, a, "only whole rows of a quantised array can be taken");
        return qn_reshape_sym(s, qn_take(s, a, ids), shape);
    }
    a = back(s, qn_take(s, by_axis(s, a, axis), ids));
    return qn_reshape_sym(s, qn_astype(s, a, dtype), shape);
}

/* a and indices with the axis last, broadcast to each other but for it, as lines. */
static int as_lines(qn_scope *s, const char *what, qn_array **a, qn_array **ids, qn_array **values, int axis,
                    qn_shape *shape)
{
    qn_shape x = (*a)->shape, y = (*ids)->shape, batch;
    char from[96], to[96];
    x.dim[axis] = y.dim[axis] = 1;
    if (qn_shape_broadcast(&x, &y, &batch) != QN_OK || batch.n != x.n ||
        (values && !qn_shape_equal(&batch, &x))) {
        qn_scope_fail(s, qn_fail(QN_E_ARG, "%s: arrays %s and indices %s do not match", what,
                                 qn_shape_text(&(*a)->shape, from, sizeof from),
                                 qn_shape_text(&(*ids)->shape, to, sizeof to)));
        return 0;
    }
    const int64_t n = (*a)->shape.dim[axis], k = (*ids)->shape.dim[axis];
    const int64_t lines = qn_shape_elements(&batch, NULL);
    qn_shape wide = batch;
    wide.dim[axis] = n;
    *a = qn_axis_last(s, qn_broadcast_sym(s, *a, wide), axis);
    wide.dim[axis] = k;
    *ids = qn_axis_last(s, qn_broadcast_sym(s, *ids, wide), axis);
    if (values) *values = qn_axis_last(s, qn_broadcast_sym(s, *values, wide), axis);
    if (!*a || !*ids || (values && !*values)) return 0;
    *shape = values ? (*a)->shape : (*ids)->shape;
    *a = qn_reshape(s, *a, 2, (int64_t[]){lines, n});
    *ids = qn_reshape(s, *ids, 2, (int64_t[]){lines, k});
    if (values) *values = qn_reshape(s, *values, 2, (int64_t[]){lines, k});
    return s->status == QN_OK;
}

qn_array *qn_take_along_axis(qn_scope *s, qn_array *a, qn_array *ids, int axis)
{
    static const char what[] = "qn_take_along_axis";
    axis = qn_axis(s, what, a, axis);
    if (axis < 0 || !ids) return NULL;
    if (a->shape.n != ids->shape.n) return qn_bad_call(s, what, ids, "the numbers of dimensions differ");
    ids = qn_indices(s, what, a, ids, a->shape.dim[axis]);
    qn_shape shape;
    if (!ids || !as_lines(s, what, &a, &ids, NULL, axis, &shape)) return NULL;
    return qn_axis_last(s, qn_reshape_sym(s, qn_take_along(s, a, ids), shape), axis);
}

/* For each of n places the last of the indices [lines, k] that names it, and whether one does. */
static qn_array *writers(qn_scope *s, qn_array *ids, int64_t n, qn_array **is_written)
{
    const qn_params p = {.scatter = {.n = n}};
    qn_array *w = qn_apply(s, QN_PRIM_LAST_WRITER, &p, 1, &ids, NULL, QN_DTYPE_I32);
    qn_array *zero = qn_constant(s, QN_DTYPE_I32, 0);
    *is_written = qn_ge(s, w, zero);
    return qn_maximum(s, w, zero);
}

qn_array *qn_put_along_axis(qn_scope *s, qn_array *a, qn_array *ids, qn_array *values, int axis)
{
    static const char what[] = "qn_put_along_axis";
    axis = qn_axis(s, what, a, axis);
    if (axis < 0 || !ids || !values) return NULL;
    if (a->shape.n != ids->shape.n) return qn_bad_call(s, what, ids, "the numbers of dimensions differ");
    ids = qn_indices(s, what, a, ids, a->shape.dim[axis]);
    if (ids && ids->shape.dim[axis] == 0) return a;
    values = qn_astype(s, values, a->dtype);
    qn_shape shape;
    if (!ids || !values || !as_lines(s, what, &a, &ids, &values, axis, &shape)) return NULL;
    qn_array *is_written, *from = writers(s, ids, a->shape.dim[1], &is_written);
    a = qn_where(s, is_written, qn_take_along(s, values, from), a);
    return qn_axis_last(s, qn_reshape_sym(s, a, shape), axis);
}

/* ---- whole slices ------------------------------------------------------------------------------------- */

static qn_array *scatter(qn_scope *s, const char *what, qn_array *a, qn_array *ids, qn_array *updates,
                         int axis, int add)
{
    axis = qn_axis(s, what, a, axis);
    if (axis < 0 || !ids || !updates) return NULL;
    if (ids->shape.n != 1) return qn_bad_call(s, what, ids, "indices must be a vector");
    const int64_t n = a->shape.dim[axis];
    ids = qn_indices(s, what, a, ids, n);
    if (!ids) return NULL;
    const qn_shape shape = a->shape;
    const int64_t k = ids->shape.dim[0];
    if (k == 0) return a;
    qn_shape wide = shape;
    wide.dim[axis] = k;
    updates = by_axis(s, qn_broadcast_sym(s, qn_astype(s, updates, a->dtype), wide), axis);
    a = by_axis(s, a, axis);
    if (!a || !updates) return NULL;
    if (add) {
        const qn_params p = {.scatter = {.n = n}};
        updates = qn_apply(s, QN_PRIM_SCATTER_ADD, &p, 2, (qn_array *[]){updates, ids}, NULL, a->dtype);
        a = qn_astype(s, qn_add(s, a, updates), a->dtype);
    } else {
        qn_array *is_written, *from = writers(s, qn_expand_dims(s, ids, 0), n, &is_written);
        qn_array *taken = qn_astype(s, qn_take(s, updates, qn_reshape(s, from, 1, &n)), a->dtype);
        a = qn_where(s, qn_reshape(s, is_written, 3, (int64_t[]){n, 1, 1}), taken, a);
    }
    return qn_reshape_sym(s, back(s, a), shape);
}

qn_array *qn_scatter(qn_scope *s, qn_array *a, qn_array *ids, qn_array *updates, int axis)
{
    return scatter(s, "qn_scatter", a, ids, updates, axis, 0);
}

qn_array *qn_scatter_add(qn_scope *s, qn_array *a, qn_array *ids, qn_array *updates, int axis)
{
    return scatter(s, "qn_scatter_add", a, ids, updates, axis, 1);
}
