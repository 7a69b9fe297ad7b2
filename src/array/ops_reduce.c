/* Operations along axes: reductions, running sums, sorting, softmax. */
#include <math.h>

#include "array/build.h"

/* ---- one axis, which is kept -------------------------------------------------------------------------- */

static qn_array *over(qn_scope *s, const char *what, qn_prim prim, qn_array *a, int axis)
{
    axis = qn_axis(s, what, a, axis);
    return axis < 0 ? NULL : qn_over_axis(s, prim, a, axis);
}

qn_array *qn_sum(qn_scope *s, qn_array *a, int axis)
{
    return over(s, "qn_sum", QN_PRIM_SUM, a, axis);
}

qn_array *qn_max(qn_scope *s, qn_array *a, int axis)
{
    return over(s, "qn_max", QN_PRIM_MAX, a, axis);
}

qn_array *qn_min(qn_scope *s, qn_array *a, int axis)
{
    return over(s, "qn_min", QN_PRIM_MIN, a, axis);
}

qn_array *qn_mean(qn_scope *s, qn_array *a, int axis)
{
    return qn_reduce(s, QN_REDUCE_MEAN, a, 1, &axis, 1);
}

/* log(sum(exp(a))): the largest is taken out, where it is a number. */
static qn_array *logsumexp(qn_scope *s, qn_array *a, int axis)
{
    qn_array *top = qn_over_axis(s, QN_PRIM_MAX, a, axis);
    top = qn_where(s, qn_isfinite(s, top), top, qn_number_like(s, a, 0));
    return qn_add(s, qn_ln(s, qn_over_axis(s, QN_PRIM_SUM, qn_exp(s, qn_sub(s, a, top)), axis)), top);
}

/* Whether any element is, or all are, not 0; of none: 0, 1. */
static qn_array *any_or_all(qn_scope *s, qn_array *a, int axis, int all)
{
    if (!a || a->shape.dim[axis] != 0 || (axis == 0 && qn_shape_is_symbolic(&a->shape)))
        return qn_over_axis(s, all ? QN_PRIM_MIN : QN_PRIM_MAX, a, axis);
    qn_shape shape = a->shape;
    shape.dim[axis] = 1;
    return qn_broadcast_sym(s, qn_constant(s, QN_DTYPE_BOOL, all), shape);
}

/* ---- any axes ----------------------------------------------------------------------------------------- */

/* Bit i for axis i; 0 and the scope's error where one is wrong or comes twice. *ok says which. */
static unsigned axes_of(qn_scope *s, const qn_array *a, int n_axes, const int *axes, int *ok)
{
    unsigned set = 0;
    *ok = 0;
    if (!a || s->status != QN_OK) return 0;
    for (int i = 0; i < (axes ? n_axes : a->shape.n); i++) {
        const int axis = axes ? qn_axis(s, "qn_reduce", a, axes[i]) : i;
        if (axis < 0) return 0;
        if (set >> axis & 1) {
            qn_bad_call(s, "qn_reduce", a, "an axis is given twice");
            return 0;
        }
        set |= 1u << axis;
    }
    *ok = 1;
    return set;
}

static qn_array *without(qn_scope *s, qn_array *a, unsigned axes)
{
    if (!a || !axes) return a;
    qn_shape shape = {0};
    for (int d = 0; d < a->shape.n; d++) {
        if (axes >> d & 1) continue;
        if (d == 0) {
            for (int k = 0; k < QN_SYM_COUNT; k++) shape.sym[k] = a->shape.sym[k];
        }
        shape.dim[shape.n++] = a->shape.dim[d];
    }
    return qn_reshape_sym(s, a, shape);
}

static qn_array *over_all(qn_scope *s, qn_prim prim, qn_array *a, unsigned axes)
{
    for (int d = a ? a->shape.n - 1 : -1; a && d >= 0; d--)
        if (axes >> d & 1) a = qn_over_axis(s, prim, a, d);
    return a;
}

/* sum, divided by the number of elements of a along the axes less ddof. Rows whose number is not known are
 * counted when it is. */
static qn_array *per_element(qn_scope *s, qn_array *sum, const qn_array *a, unsigned axes, int ddof)
{
    if (!a || !sum) return NULL;
    const int counts_rows = (axes & 1) && qn_shape_is_symbolic(&a->shape);
    double n = 1;
    for (int d = counts_rows; d < a->shape.n; d++)
        if (axes >> d & 1) n *= (double)a->shape.dim[d];
    if (!counts_rows) return qn_scale(s, sum, 1 / (n - ddof));
    qn_shape rows = a->shape;
    rows.n = 1;
    qn_array *number = qn_over_axis(s, QN_PRIM_SUM, qn_broadcast_sym(s, qn_scalar(s, (float)n), rows), 0);
    return qn_div(s, sum, qn_sub(s, number, qn_scalar(s, (float)ddof)));
}

static qn_array *variance(qn_scope *s, qn_array *a, unsigned axes, int ddof)
{
    qn_array *mean = per_element(s, over_all(s, QN_PRIM_SUM, a, axes), a, axes, 0);
    qn_array *squares = over_all(s, QN_PRIM_SUM, qn_square(s, qn_sub(s, a, mean)), axes);
    return per_element(s, squares, a, axes, ddof);
}

qn_array *qn_reduce(qn_scope *s, qn_reduction how, qn_array *a, int n_axes, const int *axes, int keepdims)
{
    static const qn_prim prims[] = {[QN_REDUCE_SUM] = QN_PRIM_SUM,
                                    [QN_REDUCE_PROD] = QN_PRIM_PROD,
                                    [QN_REDUCE_MAX] = QN_PRIM_MAX,
                                    [QN_REDUCE_MIN] = QN_PRIM_MIN};
    int ok;
    const unsigned set = axes_of(s, a, n_axes, axes, &ok);
    if (!ok) return NULL;
    const qn_dtype back = a->dtype;
    const int half = back == QN_DTYPE_F16 || back == QN_DTYPE_BF16;
    qn_array *x = qn_widened(s, a), *r = NULL;
    switch (how) {
    case QN_REDUCE_SUM:
    case QN_REDUCE_PROD:
        r = over_all(s, prims[how], x && x->dtype == QN_DTYPE_BOOL ? qn_astype(s, x, QN_DTYPE_I32) : x, set);
        break;
    case QN_REDUCE_MAX:
    case QN_REDUCE_MIN:
        r = over_all(s, prims[how], x, set);
        break;
    case QN_REDUCE_MEAN:
        r = per_element(s, over_all(s, QN_PRIM_SUM, qn_real(s, x), set), a, set, 0);
        break;
    case QN_REDUCE_VAR:
        r = variance(s, qn_real(s, x), set, 0);
        break;
    case QN_REDUCE_STD:
        r = qn_sqrt(s, variance(s, qn_real(s, x), set, 0));
        break;
    case QN_REDUCE_LOGSUMEXP:
        r = qn_real(s, x);
        for (int d = a->shape.n - 1; r && d >= 0; d--)
            if (set >> d & 1) r = logsumexp(s, r, d);
        break;
    case QN_REDUCE_ANY:
    case QN_REDUCE_ALL:
        r = qn_astype(s, a, QN_DTYPE_BOOL);
        for (int d = a->shape.n - 1; r && d >= 0; d--)
            if (set >> d & 1) r = any_or_all(s, r, d, how == QN_REDUCE_ALL);
        return keepdims ? r : without(s, r, set);
    default:
        return qn_bad_call(s, "qn_reduce", a, "the reduction does not exist");
    }
    if (half) r = qn_astype(s, r, back);
    return keepdims ? r : without(s, r, set);
}

qn_array *qn_var(qn_scope *s, qn_array *a, int axis, int ddof)
{
    axis = qn_axis(s, "qn_var", a, axis);
    if (axis < 0) return NULL;
    qn_array *r = variance(s, qn_real(s, qn_widened(s, a)), 1u << axis, ddof);
    return qn_dtype_is_float(a->dtype) ? qn_astype(s, r, a->dtype) : r;
}

static qn_array *arg(qn_scope *s, const char *what, qn_array *a, int axis, int least, int keepdims)
{
    axis = qn_axis(s, what, a, axis);
    if (axis < 0) return NULL;
    const qn_params p = {.reduce = {.axis = axis, .least = least}};
    qn_array *r = qn_apply(s, QN_PRIM_ARG_MAX, &p, 1, &a, NULL, QN_DTYPE_I32);
    return keepdims ? r : without(s, r, 1u << axis);
}

qn_array *qn_argmax(qn_scope *s, qn_array *a, int axis, int keepdims)
{
    return arg(s, "qn_argmax", a, axis, 0, keepdims);
}

qn_array *qn_argmin(qn_scope *s, qn_array *a, int axis, int keepdims)
{
    return arg(s, "qn_argmin", a, axis, 1, keepdims);
}

/* ---- every element of a line -------------------------------------------------------------------------- */

qn_array *qn_cumulate(qn_scope *s, qn_cumulation how, qn_array *a, int axis, int reverse, int exclusive)
{
    static const qn_scan_how ways[] = {[QN_CUMSUM] = QN_SCAN_SUM,
                                       [QN_CUMPROD] = QN_SCAN_PROD,
                                       [QN_CUMMAX] = QN_SCAN_MAX,
                                       [QN_CUMMIN] = QN_SCAN_MIN};
    axis = qn_axis(s, "qn_cumulate", a, axis);
    if (axis < 0) return NULL;
    if (how < QN_CUMSUM || how > QN_CUMMIN)
        return qn_bad_call(s, "qn_cumulate", a, "the operation does not exist");
    const qn_params p = {
        .scan = {.axis = axis, .how = ways[how], .reverse = reverse != 0, .exclusive = exclusive != 0}};
    return qn_apply(s, QN_PRIM_SCAN, &p, 1, &a, NULL, QN_DTYPE_F32);
}

/* Indices along the last axis. */
static qn_array *order(qn_scope *s, qn_array *a, int falling)
{
    const qn_params p = {.sort = {falling != 0}};
    return qn_apply(s, QN_PRIM_ARG_SORT, &p, 1, &a, NULL, QN_DTYPE_I32);
}

qn_array *qn_argsort(qn_scope *s, qn_array *a, int axis, int falling)
{
    axis = qn_axis(s, "qn_argsort", a, axis);
    return axis < 0 ? NULL : qn_axis_last(s, order(s, qn_axis_last(s, a, axis), falling), axis);
}

/* Elements of the last dimension by indices of the same rows. */
static qn_array *pick(qn_scope *s, qn_array *a, qn_array *ids)
{
    if (!a || !ids) return NULL;
    const int last = a->shape.n - 1;
    const int64_t n = a->shape.dim[last], k = ids->shape.dim[last];
    int64_t lines = 1;
    for (int d = 0; d < last; d++) lines *= a->shape.dim[d];
    a = qn_reshape(s, a, 2, (int64_t[]){lines, n});
    const qn_shape shape = ids->shape;
    return qn_reshape_sym(s, qn_take_along(s, a, qn_reshape(s, ids, 2, (int64_t[]){lines, k})), shape);
}

qn_array *qn_sort(qn_scope *s, qn_array *a, int axis, int falling)
{
    axis = qn_axis(s, "qn_sort", a, axis);
    if (axis < 0) return NULL;
    a = qn_axis_last(s, a, axis);
    return qn_axis_last(s, pick(s, a, order(s, a, falling)), axis);
}

qn_array *qn_topk(qn_scope *s, qn_array *a, int64_t k, int axis, qn_array **indices)
{
    axis = qn_axis(s, "qn_topk", a, axis);
    if (axis < 0) return NULL;
    if (k < 1 || k > a->shape.dim[axis])
        return qn_bad_call(s, "qn_topk", a, "k is not in the range of the axis");
    a = qn_axis_last(s, a, axis);
    qn_array *ids = qn_range(s, order(s, a, 1), a ? a->shape.n - 1 : 0, 0, k);
    if (indices) *indices = qn_axis_last(s, ids, axis);
    return qn_axis_last(s, pick(s, a, ids), axis);
}

/* ---- softmax ------------------------------------------------------------------------------------------ */

qn_array *qn_softmax(qn_scope *s, qn_array *a)
{
    return qn_unary(s, QN_PRIM_SOFTMAX, a);
}

qn_array *qn_softmax_axis(qn_scope *s, qn_array *a, int axis)
{
    axis = qn_axis(s, "qn_softmax_axis", a, axis);
    return axis < 0 ? NULL : qn_axis_last(s, qn_softmax(s, qn_axis_last(s, a, axis)), axis);
}

qn_array *qn_log_softmax(qn_scope *s, qn_array *a, int axis)
{
    axis = qn_axis(s, "qn_log_softmax", a, axis);
    if (axis < 0) return NULL;
    qn_array *x = qn_real(s, qn_widened(s, a));
    x = qn_sub(s, x, logsumexp(s, x, axis));
    return qn_dtype_is_float(a->dtype) ? qn_astype(s, x, a->dtype) : x;
}
