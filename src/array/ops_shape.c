/* Shapes, views, and arrays put together of others. */
#include <stdio.h>
#include <string.h>

#include "array/build.h"
#include "base/checked.h"
#include "base/mem.h"

/* ---- shape -------------------------------------------------------------------------------------------- */

static int has_symbols(qn_scope *s, const char *what, const qn_array *a)
{
    if (!qn_shape_is_symbolic(&a->shape)) return 0;
    qn_bad_call(s, what, a, "the number of rows is not known before the program runs");
    return 1;
}

static qn_array *no_room(qn_scope *s, const char *what, const qn_array *a)
{
    return qn_bad_call(s, what, a, "at most 6 dimensions are allowed");
}

qn_array *qn_reshape(qn_scope *s, qn_array *a, int n_dims, const int64_t *dims)
{
    if (!a) return NULL;
    if (n_dims < 0 || n_dims > QN_MAX_DIMS) return no_room(s, "qn_reshape", a);
    qn_shape shape = {.n = n_dims};
    int64_t known = 1, open = -1;
    for (int i = 0; i < n_dims; i++) {
        shape.dim[i] = dims[i];
        if (dims[i] == -1 && open < 0)
            open = i;
        else if (dims[i] < 0 || !qn_mul_i64(known, dims[i], &known))
            return qn_bad_call(s, "qn_reshape", a, "the sizes are invalid");
    }
    const int64_t row = qn_shape_row(&a->shape);
    if (qn_shape_is_symbolic(&a->shape)) { /* the rows stay rows, or become several each */
        if (n_dims < 1) return qn_bad_call(s, "qn_reshape", a, "rows must stay the first dimension");
        int64_t inner = 1;
        for (int i = 1; i < n_dims; i++) inner *= shape.dim[i];
        if (open != 0 || inner <= 0 || row % inner != 0)
            return qn_bad_call(s, "qn_reshape", a,
                               "the first dimension must be -1, because it holds the rows");
        shape.dim[0] = a->shape.dim[0] * (row / inner);
        for (int k = 0; k < QN_SYM_COUNT; k++) shape.sym[k] = a->shape.sym[k] * (int32_t)(row / inner);
        return qn_reshape_sym(s, a, shape);
    }
    const int64_t all = qn_shape_elements(&a->shape, NULL);
    if (open >= 0) {
        if (known == 0 || all % known != 0)
            return qn_bad_call(s, "qn_reshape", a, "no whole number fits the dimension -1");
        shape.dim[open] = all / known;
    } else if (known != all) {
        char from[96], to[96];
        return qn_scope_fail(s, qn_fail(QN_E_ARG, "qn_reshape: %s and %s have different numbers of elements",
                                        qn_shape_text(&a->shape, from, sizeof from),
                                        qn_shape_text(&shape, to, sizeof to)));
    }
    return qn_shape_equal(&shape, &a->shape) ? a : qn_reshape_sym(s, a, shape);
}

qn_array *qn_flatten(qn_scope *s, qn_array *a, int first, int last)
{
    if (a && a->shape.n == 0) return qn_reshape(s, a, 1, (int64_t[]){1});
    first = qn_axis(s, "qn_flatten", a, first);
    last = qn_axis(s, "qn_flatten", a, last);
    if (first < 0 || last < 0) return NULL;
    if (last < first) return qn_bad_call(s, "qn_flatten", a, "the last dimension comes before the first one");
    int64_t dims[QN_MAX_DIMS];
    int n = 0;
    for (int d = 0; d < a->shape.n; d++) {
        if (d > first && d <= last)
            dims[n - 1] *= a->shape.dim[d];
        else
            dims[n++] = a->shape.dim[d];
    }
    if (qn_shape_is_symbolic(&a->shape)) dims[0] = -1;
    return qn_reshape(s, a, n, dims);
}

qn_array *qn_permute(qn_scope *s, qn_array *a, const int32_t *perm)
{
    qn_params p = {0};
    if (a) memcpy(p.transpose.perm, perm, (size_t)a->shape.n * sizeof *perm);
    return qn_apply(s, QN_PRIM_TRANSPOSE, &p, 1, &a, NULL, QN_DTYPE_F32);
}

static qn_array *swapped(qn_scope *s, qn_array *a, int x, int y)
{
    int32_t perm[QN_MAX_DIMS];
    for (int i = 0; i < a->shape.n; i++) perm[i] = i;
    perm[x] = y;
    perm[y] = x;
    return qn_permute(s, a, perm);
}

qn_array *qn_transpose(qn_scope *s, qn_array *a)
{
    if (!a) return NULL;
    return a->shape.n < 2 ? swapped(s, a, 0, 0) : swapped(s, a, a->shape.n - 1, a->shape.n - 2);
}

qn_array *qn_swap_axes(qn_scope *s, qn_array *a, int x, int y)
{
    x = qn_axis(s, "qn_swap_axes", a, x);
    y = qn_axis(s, "qn_swap_axes", a, y);
    if (x < 0 || y < 0) return NULL;
    return x == y ? a : swapped(s, a, x, y);
}

qn_array *qn_expand_dims(qn_scope *s, qn_array *a, int axis)
{
    if (!a) return NULL;
    const int n = a->shape.n + 1, at = axis < 0 ? axis + n : axis;
    if (n > QN_MAX_DIMS) return no_room(s, "qn_expand_dims", a);
    if (at < 0 || at >= n || (at == 0 && qn_shape_is_symbolic(&a->shape)))
        return qn_bad_call(s, "qn_expand_dims", a, "the axis does not exist");
    qn_shape shape = a->shape;
    shape.n = n;
    for (int d = n - 1; d > at; d--) shape.dim[d] = shape.dim[d - 1];
    shape.dim[at] = 1;
    return qn_reshape_sym(s, a, shape);
}

qn_array *qn_squeeze(qn_scope *s, qn_array *a, int axis)
{
    axis = qn_axis(s, "qn_squeeze", a, axis);
    if (axis < 0) return NULL;
    if (a->shape.dim[axis] != 1 || (axis == 0 && qn_shape_is_symbolic(&a->shape)))
        return qn_bad_call(s, "qn_squeeze", a, "the dimension's size is not 1");
    qn_shape shape = a->shape;
    shape.n--;
    for (int d = axis; d < shape.n; d++) shape.dim[d] = shape.dim[d + 1];
    return qn_reshape_sym(s, a, shape);
}

qn_array *qn_broadcast_to(qn_scope *s, qn_array *a, int n_dims, const int64_t *dims)
{
    if (!a) return NULL;
    if (n_dims < 0 || n_dims > QN_MAX_DIMS) return no_room(s, "qn_broadcast_to", a);
    for (int i = 0; i < n_dims; i++)
        if (dims[i] < 0) return qn_bad_call(s, "qn_broadcast_to", a, "the sizes are invalid");
    return qn_broadcast_sym(s, a, qn_shape_make(n_dims, dims));
}

qn_array *qn_as_strided(qn_scope *s, qn_array *a, int n_dims, const int64_t *dims, const int64_t *strides,
                        int64_t offset)
{
    if (!a) return NULL;
    if (n_dims < 0 || n_dims > QN_MAX_DIMS) return no_room(s, "qn_as_strided", a);
    qn_params p = {.strided = {.offset = offset}};
    memcpy(p.strided.stride, strides, (size_t)n_dims * sizeof *strides);
    const qn_shape shape = qn_shape_make(n_dims, dims);
    return qn_apply(s, QN_PRIM_STRIDED, &p, 1, &a, &shape, QN_DTYPE_F32);
}

/* ---- slices ------------------------------------------------------------------------------------------- */

/* NumPy's begin:end:step of a dimension of size n: the first index, and how many. */
static int64_t cut(int64_t n, int64_t *begin, int64_t end, int64_t step)
{
    const int64_t low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n; /* as far as indices go */
    int64_t from = *begin < 0 ? *begin + n : *begin;
    int64_t to = end == QN_TO_END ? (step < 0 ? -1 : n) : end < 0 ? end + n : end;
    from = from < low ? low : from > high ? high : from;
    to = to < low ? low : to > high ? high : to;
    *begin = from;
    if (step > 0) return to > from ? (to - from - 1) / step + 1 : 0;
    return from > to ? (from - to - 1) / -step + 1 : 0;
}

static int cut_all(qn_scope *s, const char *what, const qn_array *a, const int64_t *begin, const int64_t *end,
                   const int64_t *step, qn_params *p, qn_shape *shape)
{
    *shape = a->shape;
    for (int d = 0; d < a->shape.n; d++) {
        const int64_t by = step ? step[d] : 1;
        if (by == 0 || by == INT64_MIN) {
            qn_bad_call(s, what, a, "a step of 0");
            return 0;
        }
        if (d == 0 && qn_shape_is_symbolic(&a->shape)) {
            if (begin[0] == 0 && end[0] == QN_TO_END && by == 1) continue;
            has_symbols(s, what, a);
            return 0;
        }
        p->slice.begin[d] = begin[d];
        p->slice.step[d] = by;
        shape->dim[d] = cut(a->shape.dim[d], &p->slice.begin[d], end[d], by);
        if (shape->dim[d] == 0) p->slice.begin[d] = 0;
    }
    return 1;
}

qn_array *qn_slice(qn_scope *s, qn_array *a, const int64_t *begin, const int64_t *end, const int64_t *step)
{
    qn_params p = {0};
    qn_shape shape;
    if (!a || !cut_all(s, "qn_slice", a, begin, end, step, &p, &shape)) return NULL;
    return qn_apply(s, QN_PRIM_SLICE, &p, 1, &a, &shape, QN_DTYPE_F32);
}

qn_array *qn_slice_update(qn_scope *s, qn_array *a, qn_array *update, const int64_t *begin,
                          const int64_t *end, const int64_t *step)
{
    qn_params p = {0};
    qn_shape shape;
    if (!a || !update || !cut_all(s, "qn_slice_update", a, begin, end, step, &p, &shape)) return NULL;
    update = qn_broadcast_sym(s, qn_astype(s, update, a->dtype), shape);
    return qn_apply(s, QN_PRIM_UPDATE, &p, 2, (qn_array *[]){a, update}, NULL, QN_DTYPE_F32);
}

qn_array *qn_pad(qn_scope *s, qn_array *a, const int64_t *low, const int64_t *high, double value)
{
    if (!a || has_symbols(s, "qn_pad", a)) return NULL;
    qn_params p = {0};
    qn_shape shape = a->shape;
    int any = 0;
    for (int d = 0; d < shape.n; d++) {
        if (low[d] < 0 || high[d] < 0 || !qn_add_i64(shape.dim[d], low[d], &shape.dim[d]) ||
            !qn_add_i64(shape.dim[d], high[d], &shape.dim[d]))
            return qn_bad_call(s, "qn_pad", a, "the sizes are invalid");
        p.slice.begin[d] = a->shape.dim[d] ? low[d] : 0;
        any |= low[d] != 0 || high[d] != 0;
    }
    if (!any) return a;
    qn_array *in[2] = {qn_broadcast_sym(s, qn_constant(s, a->dtype, value), shape), a};
    return qn_apply(s, QN_PRIM_UPDATE, &p, 2, in, NULL, QN_DTYPE_F32);
}

/* ---- several ------------------------------------------------------------------------------------------ */

/* Along the last dimension, as many at a time as the primitive takes. */
static qn_array *join(qn_scope *s, int n, qn_array *const *parts)
{
    qn_array *line[QN_MAX_INPUTS] = {n > 0 ? parts[0] : NULL};
    for (int at = 1; at < n;) {
        int m = 1;
        while (m < QN_MAX_INPUTS && at < n) line[m++] = parts[at++];
        line[0] = qn_concat(s, m, line);
    }
    return line[0];
}

qn_array *qn_concatenate(qn_scope *s, int n, qn_array *const *parts, int axis)
{
    if (n < 1) return qn_bad_call(s, "qn_concatenate", NULL, "no arrays");
    axis = qn_axis(s, "qn_concatenate", parts[0], axis);
    if (axis < 0) return NULL;
    qn_array **turned = qn_calloc((size_t)n, sizeof *turned);
    if (!turned) return qn_scope_fail(s, QN_E_NOMEM);
    for (int i = 0; i < n && s->status == QN_OK; i++) {
        if (!parts[i] || parts[i]->shape.n != parts[0]->shape.n) {
            qn_bad_call(s, "qn_concatenate", parts[i], "the arrays have different numbers of dimensions");
            break;
        }
        turned[i] = qn_axis_last(s, parts[i], axis);
    }
    qn_array *a = s->status == QN_OK ? qn_axis_last(s, join(s, n, turned), axis) : NULL;
    qn_free(turned);
    return a;
}

qn_array *qn_stack(qn_scope *s, int n, qn_array *const *parts, int axis)
{
    if (n < 1) return qn_bad_call(s, "qn_stack", NULL, "no arrays");
    if (!parts[0]) return NULL;
    qn_array **wide = qn_calloc((size_t)n, sizeof *wide);
    if (!wide) return qn_scope_fail(s, QN_E_NOMEM);
    const int at = axis < 0 ? axis + parts[0]->shape.n + 1 : axis;
    for (int i = 0; i < n && s->status == QN_OK; i++) {
        wide[i] = qn_expand_dims(s, parts[i], at);
        if (wide[i] && !qn_shape_equal(&parts[i]->shape, &parts[0]->shape))
            qn_bad_call(s, "qn_stack", parts[i], "the arrays have different shapes");
    }
    qn_array *a = s->status == QN_OK ? qn_concatenate(s, n, wide, at) : NULL;
    qn_free(wide);
    return a;
}

void qn_split(qn_scope *s, qn_array *a, int n, int axis, qn_array **out)
{
    for (int i = 0; i < n; i++) out[i] = NULL;
    axis = qn_axis(s, "qn_split", a, axis);
    if (axis < 0) return;
    if (n < 1 || a->shape.dim[axis] % n != 0 || (axis == 0 && qn_shape_is_symbolic(&a->shape))) {
        qn_bad_call(s, "qn_split", a, "the axis cannot be split into so many equal parts");
        return;
    }
    const int64_t size = a->shape.dim[axis] / n;
    for (int i = 0; i < n; i++) out[i] = qn_range(s, a, axis, i * size, size);
}

/* Dimension d of [outer, dim, inner] `times` times, each element behind itself or the whole behind itself. */
static qn_array *times_over(qn_scope *s, qn_array *a, int d, int64_t times, int each)
{
    if (!a) return NULL;
    int64_t outer = 1, inner = 1, all;
    for (int i = 0; i < d; i++) outer *= a->shape.dim[i];
    for (int i = d + 1; i < a->shape.n; i++) inner *= a->shape.dim[i];
    qn_shape shape = a->shape;
    const int64_t dim = shape.dim[d];
    if (times < 0 || !qn_mul_i64(dim, times, &shape.dim[d]) || !qn_mul_i64(shape.dim[d], inner, &all) ||
        !qn_mul_i64(all, outer, &all))
        return qn_bad_call(s, each ? "qn_repeat" : "qn_tile", a, "the sizes are invalid");
    int64_t dims[3] = {outer, 1, dim * inner};
    if (each) {
        dims[0] = outer * dim;
        dims[2] = inner;
    }
    a = qn_reshape(s, a, 3, dims);
    dims[1] = times;
    return qn_reshape_sym(s, qn_broadcast_to(s, a, 3, dims), shape);
}

qn_array *qn_repeat(qn_scope *s, qn_array *a, int64_t n, int axis)
{
    axis = qn_axis(s, "qn_repeat", a, axis);
    return axis < 0 || has_symbols(s, "qn_repeat", a) ? NULL : times_over(s, a, axis, n, 1);
}

qn_array *qn_tile(qn_scope *s, qn_array *a, const int64_t *times)
{
    if (!a || has_symbols(s, "qn_tile", a)) return NULL;
    const int n = a->shape.n;
    for (int d = n - 1; a && d >= 0; d--)
        if (times[d] != 1) a = times_over(s, a, d, times[d], 0);
    return a;
}
