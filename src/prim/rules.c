#include "prim/rules.h"

#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "prim/dtype.h"

#define NEED(condition, why) \
    if (!(condition)) return qn_rule_bad(c, why)

qn_status qn_rule_bad(const qn_prim_call *c, const char *why)
{
    char text[QN_MAX_INPUTS * 64], *at = text;
    *at = 0;
    for (int i = 0; i < c->n_in && i < 4; i++) {
        if (i) *at++ = ' ';
        qn_shape_text(c->shape[i], at, 60);
        at += strlen(at);
    }
    return qn_fail(QN_E_ARG, "%s: %s (inputs %s)", qn_prim_get(c->prim)->name, why, text);
}

qn_status qn_rule_STRIDED(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    NEED(c->n_in == 1 && !qn_shape_is_symbolic(c->shape[0]) && !qn_shape_is_symbolic(shape),
         "takes an array without symbols");
    const int64_t total = qn_shape_elements(c->shape[0], NULL);
    int64_t low = c->params->strided.offset, high = low, all = 1;
    NEED(low >= 0, "begins before the array's first element");
    for (int d = 0; d < shape->n; d++) {
        int64_t reach;
        NEED(shape->dim[d] >= 0 && qn_mul_i64(all, shape->dim[d], &all), "the sizes are invalid");
        if (shape->dim[d] == 0) continue;
        const int64_t stride = c->params->strided.stride[d];
        NEED(stride > INT64_MIN && qn_mul_i64(shape->dim[d] - 1, stride < 0 ? -stride : stride, &reach),
             "strides are too large");
        NEED(stride >= 0 || reach <= low, "reaches before the array's first element");
        NEED(stride < 0 || qn_add_i64(high, reach, &high), "strides are too large");
        if (stride < 0) low -= reach;
    }
    NEED(all == 0 || (low >= 0 && high < total),
         "reaches past the array's last element, or before its first");
    *dtype = c->dtype[0];
    return QN_OK;
}

static int is_number(qn_dtype d)
{
    return d <= QN_DTYPE_F64 && d != QN_DTYPE_F16 && d != QN_DTYPE_BF16;
}

qn_status qn_rule_COMPARE(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    NEED(c->n_in == 2 && c->dtype[0] == c->dtype[1] && is_number(c->dtype[0]),
         "takes two arrays of one type, not f16 or bf16");
    NEED(c->params->compare.which >= QN_COMPARE_EQ && c->params->compare.which <= QN_COMPARE_LE,
         "the comparison does not exist");
    qn_shape s;
    QN_TRY(qn_shape_broadcast(c->shape[0], c->shape[1], &s));
    *shape = s;
    *dtype = QN_DTYPE_BOOL;
    return QN_OK;
}

qn_status qn_rule_SELECT(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    NEED(c->n_in == 3 && c->dtype[0] == QN_DTYPE_BOOL && c->dtype[1] == c->dtype[2] &&
             qn_dtype_is_plain(c->dtype[1]),
         "takes a condition of bool and two arrays of one type");
    qn_shape s;
    QN_TRY(qn_shape_broadcast(c->shape[1], c->shape[2], &s));
    QN_TRY(qn_shape_broadcast(c->shape[0], &s, &s));
    *shape = s;
    *dtype = c->dtype[1];
    return QN_OK;
}

qn_status qn_rule_ARG_MAX(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    const int axis = c->params->reduce.axis;
    NEED(c->n_in == 1 && is_number(c->dtype[0]) && axis >= 0 && axis < c->shape[0]->n,
         "the axis or type does not exist");
    NEED((axis == 0 && qn_shape_is_symbolic(c->shape[0])) ||
             (c->shape[0]->dim[axis] > 0 && c->shape[0]->dim[axis] <= INT32_MAX),
         "the axis has no elements, or too many");
    *shape = *c->shape[0];
    shape->dim[axis] = 1;
    if (axis == 0) memset(shape->sym, 0, sizeof shape->sym);
    *dtype = QN_DTYPE_I32;
    return QN_OK;
}

qn_status qn_rule_SCAN(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    const int axis = c->params->scan.axis, how = c->params->scan.how;
    NEED(c->n_in == 1 && is_number(c->dtype[0]) && axis >= 0 && axis < c->shape[0]->n && how >= QN_SCAN_SUM &&
             how <= QN_SCAN_MIN,
         "the axis, type or operation does not exist");
    *shape = *c->shape[0];
    *dtype = c->dtype[0];
    return QN_OK;
}

qn_status qn_rule_ARG_SORT(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    NEED(c->n_in == 1 && is_number(c->dtype[0]) && c->shape[0]->n > 0 &&
             c->shape[0]->dim[c->shape[0]->n - 1] <= INT32_MAX,
         "takes an array with a last dimension");
    *shape = *c->shape[0];
    *dtype = QN_DTYPE_I32;
    return QN_OK;
}

qn_status qn_rule_LAST_WRITER(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    NEED(c->n_in == 1 && c->dtype[0] == QN_DTYPE_I32 && c->shape[0]->n == 2 && c->params->scatter.n >= 0,
         "takes ids [R, k] i32");
    *shape = *c->shape[0];
    shape->dim[1] = c->params->scatter.n;
    *dtype = QN_DTYPE_I32;
    return QN_OK;
}

qn_status qn_rule_HASH_IDS(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    NEED(c->n_in == 4, "takes 4 inputs");
    const qn_shape *tokens = c->shape[0], *by = c->shape[1], *sizes = c->shape[2], *offsets = c->shape[3];
    NEED(c->dtype[0] == QN_DTYPE_I32 && c->dtype[1] == QN_DTYPE_I64 && c->dtype[2] == QN_DTYPE_I32 &&
             c->dtype[3] == QN_DTYPE_I32 && tokens->n == 2 && tokens->dim[1] >= 2 && by->n == 1 &&
             sizes->n == 1 && offsets->n == 1 && !qn_shape_is_symbolic(by) && !qn_shape_is_symbolic(sizes) &&
             by->dim[0] == tokens->dim[1] && sizes->dim[0] == offsets->dim[0] &&
             sizes->dim[0] % (tokens->dim[1] - 1) == 0,
         "takes tokens [R, n] i32, multipliers [n] i64, sizes and offsets [heads] i32, as many heads for "
         "each of "
         "2 to n");
    *shape = *tokens;
    shape->dim[1] = sizes->dim[0];
    *dtype = QN_DTYPE_I32;
    return QN_OK;
}

qn_status qn_rule_UPDATE(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    const qn_shape *x = c->shape[0], *u = c->shape[1];
    NEED(c->n_in == 2 && c->dtype[0] == c->dtype[1] && qn_dtype_is_plain(c->dtype[0]) && x->n == u->n,
         "takes two arrays of one type with as many dimensions");
    for (int d = 0; d < x->n; d++) {
        const int64_t first = c->params->slice.begin[d], step = c->params->slice.step[d];
        int64_t last;
        if (d == 0 && qn_shape_is_symbolic(x)) {
            NEED(first == 0 && step <= 1 && step >= 0 && x->dim[0] == u->dim[0] &&
                     memcmp(x->sym, u->sym, sizeof x->sym) == 0,
                 "a symbolic dimension must be replaced whole");
            continue;
        }
        if (u->dim[d] == 0) continue;
        NEED(qn_mul_i64(u->dim[d] - 1, step > 0 ? step : -step, &last) && first >= 0 && first < x->dim[d],
             "the range is outside the array");
        NEED(step < 0 ? last <= first : last < x->dim[d] - first || u->dim[d] == 1 || step == 0,
             "the range is outside the array");
        NEED(step != 0 || u->dim[d] - 1 < x->dim[d] - first, "the range is outside the array");
    }
    *shape = *x;
    *dtype = c->dtype[0];
    return QN_OK;
}

qn_status qn_rule_RANDOM(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    NEED(c->n_in == 1 && c->dtype[0] == QN_DTYPE_U32 && c->shape[0]->n == 1 && c->shape[0]->dim[0] == 2,
         "takes a key [2] u32");
    NEED(!qn_shape_is_symbolic(shape) && (*dtype == QN_DTYPE_U32 || *dtype == QN_DTYPE_F32),
         "gives u32 or f32 of a shape without symbols");
    int64_t all = 1;
    for (int d = 0; d < shape->n; d++)
        NEED(shape->dim[d] >= 0 && qn_mul_i64(all, shape->dim[d], &all), "the sizes are invalid");
    return QN_OK;
}
