#include "array/build.h"

#include "base/status.h"

int qn_axis(qn_scope *s, const char *what, const qn_array *a, int axis)
{
    if (!a || s->status != QN_OK) return -1;
    const int at = axis < 0 ? axis + a->shape.n : axis;
    if (at >= 0 && at < a->shape.n) return at;
    char text[96];
    qn_scope_fail(s, qn_fail(QN_E_ARG, "%s: axis %d of an array %s", what, axis,
                             qn_shape_text(&a->shape, text, sizeof text)));
    return -1;
}

qn_array *qn_bad_call(qn_scope *s, const char *what, const qn_array *a, const char *why)
{
    char text[96] = "NULL";
    if (a) qn_shape_text(&a->shape, text, sizeof text);
    return qn_scope_fail(s, qn_fail(QN_E_ARG, "%s: %s (array %s)", what, why, text));
}

qn_array *qn_real(qn_scope *s, qn_array *a)
{
    return a && qn_is_plain(a) && !qn_dtype_is_float(a->dtype) ? qn_astype(s, a, QN_DTYPE_F32) : a;
}

qn_array *qn_widened(qn_scope *s, qn_array *a)
{
    const int half = a && (a->dtype == QN_DTYPE_F16 || a->dtype == QN_DTYPE_BF16) && qn_is_plain(a);
    return half ? qn_astype(s, a, QN_DTYPE_F32) : a;
}

qn_array *qn_range(qn_scope *s, qn_array *a, int axis, int64_t begin, int64_t length)
{
    if (!a) return NULL;
    qn_params p = {0};
    qn_shape shape = a->shape;
    if (begin == 0 && length == shape.dim[axis]) return a;
    p.slice.begin[axis] = begin;
    shape.dim[axis] = length;
    return qn_apply(s, QN_PRIM_SLICE, &p, 1, &a, &shape, QN_DTYPE_F32);
}

qn_array *qn_axis_last(qn_scope *s, qn_array *a, int axis)
{
    return a && axis != a->shape.n - 1 ? qn_swap_axes(s, a, axis, a->shape.n - 1) : a;
}

qn_array *qn_constant(qn_scope *s, qn_dtype dtype, double value)
{
    return qn_full(s, dtype, 0, NULL, value);
}

qn_array *qn_over_axis(qn_scope *s, qn_prim prim, qn_array *a, int axis)
{
    const qn_params p = {.reduce = {.axis = axis}};
    return qn_apply(s, prim, &p, 1, &a, NULL, QN_DTYPE_F32);
}

qn_array *qn_count_up(qn_scope *s, int64_t n)
{
    void *data;
    if (n > INT32_MAX) return qn_bad_call(s, "indices", NULL, "too many");
    qn_array *a = qn_array_alloc(s, "indices", QN_DTYPE_I32, 1, &n, &data);
    for (int64_t i = 0; a && i < n; i++) ((int32_t *)data)[i] = (int32_t)i;
    return a;
}
