/* Operations element by element: arithmetic, functions, comparison, logic and choice. */
#include <math.h>

#include "array/build.h"

/* ---- of two ------------------------------------------------------------------------------------------- */

qn_array *qn_add(qn_scope *s, qn_array *a, qn_array *b)
{
    return qn_binary(s, QN_PRIM_ADD, a, b);
}

qn_array *qn_sub(qn_scope *s, qn_array *a, qn_array *b)
{
    return qn_binary(s, QN_PRIM_SUB, a, b);
}

qn_array *qn_mul(qn_scope *s, qn_array *a, qn_array *b)
{
    return qn_binary(s, QN_PRIM_MUL, a, b);
}

static int both_whole(const qn_array *a, const qn_array *b)
{
    return a && b && !qn_dtype_is_float(a->dtype) && !qn_dtype_is_float(b->dtype);
}

qn_array *qn_div(qn_scope *s, qn_array *a, qn_array *b)
{
    return qn_binary(s, QN_PRIM_DIV, both_whole(a, b) ? qn_real(s, a) : a, b);
}

qn_array *qn_floor_divide(qn_scope *s, qn_array *a, qn_array *b)
{
    qn_array *q = qn_binary(s, QN_PRIM_DIV, a, b); /* of integers rounded down */
    return both_whole(a, b) ? q : qn_floor(s, q);
}

qn_array *qn_remainder(qn_scope *s, qn_array *a, qn_array *b)
{
    return qn_sub(s, a, qn_mul(s, b, qn_floor_divide(s, a, b)));
}

qn_array *qn_pow(qn_scope *s, qn_array *a, qn_array *b)
{
    return qn_binary(s, QN_PRIM_POW, a, b);
}

qn_array *qn_maximum(qn_scope *s, qn_array *a, qn_array *b)
{
    return qn_binary(s, QN_PRIM_MAXIMUM, a, b);
}

qn_array *qn_minimum(qn_scope *s, qn_array *a, qn_array *b)
{
    return qn_binary(s, QN_PRIM_MINIMUM, a, b);
}

qn_array *qn_number_like(qn_scope *s, const qn_array *a, double value)
{
    return a && a->dtype == QN_DTYPE_F64 ? qn_constant(s, QN_DTYPE_F64, value) : qn_scalar(s, (float)value);
}

qn_array *qn_scale(qn_scope *s, qn_array *a, double factor)
{
    return factor == 1 ? a : qn_mul(s, a, qn_number_like(s, a, factor));
}

/* A bound as the array's own type holds it; of integers the nearest that does not cut off more. */
static qn_array *bound(qn_scope *s, const qn_array *a, double value)
{
    return a && qn_is_plain(a) && !qn_dtype_is_float(a->dtype) ? qn_constant(s, a->dtype, value)
                                                               : qn_number_like(s, a, value);
}

qn_array *qn_clip(qn_scope *s, qn_array *a, double low, double high)
{
    if (!a) return NULL;
    const int whole = !qn_dtype_is_float(a->dtype);
    a = qn_maximum(s, a, bound(s, a, whole ? ceil(low) : low));
    return qn_minimum(s, a, bound(s, a, whole ? floor(high) : high));
}

/* ---- of one ------------------------------------------------------------------------------------------- */

qn_array *qn_neg(qn_scope *s, qn_array *a)
{
    return qn_unary(s, QN_PRIM_NEG, a);
}

qn_array *qn_abs(qn_scope *s, qn_array *a)
{
    return qn_unary(s, QN_PRIM_ABS, a);
}

qn_array *qn_sign(qn_scope *s, qn_array *a)
{
    if (!a) return NULL;
    const qn_dtype t = a->dtype;
    if (t == QN_DTYPE_BOOL) return qn_astype(s, a, QN_DTYPE_I32);
    qn_array *zero = qn_constant(s, t, 0);
    qn_array *below = qn_lt(s, a, zero), *above = qn_lt(s, zero, a);
    qn_array *rest = qn_dtype_is_float(t) ? qn_where(s, qn_isnan(s, a), qn_constant(s, t, NAN), zero) : zero;
    qn_array *least = t >= QN_DTYPE_U8 && t <= QN_DTYPE_U64 ? zero : qn_constant(s, t, -1);
    return qn_where(s, above, qn_constant(s, t, 1), qn_where(s, below, least, rest));
}

qn_array *qn_square(qn_scope *s, qn_array *a)
{
    return qn_unary(s, QN_PRIM_SQUARE, a);
}

qn_array *qn_sqrt(qn_scope *s, qn_array *a)
{
    return qn_unary(s, QN_PRIM_SQRT, a);
}

qn_array *qn_rsqrt(qn_scope *s, qn_array *a)
{
    return qn_unary(s, QN_PRIM_RSQRT, a);
}

qn_array *qn_reciprocal(qn_scope *s, qn_array *a)
{
    return qn_unary(s, QN_PRIM_RECIP, a);
}

qn_array *qn_exp(qn_scope *s, qn_array *a)
{
    return qn_unary(s, QN_PRIM_EXP, a);
}

qn_array *qn_expm1(qn_scope *s, qn_array *a)
{
    return qn_unary(s, QN_PRIM_EXPM1, a);
}

qn_array *qn_log1p(qn_scope *s, qn_array *a)
{
    return qn_unary(s, QN_PRIM_LOG1P, a);
}

qn_array *qn_ln(qn_scope *s, qn_array *a)
{
    return qn_unary(s, QN_PRIM_LOG, a);
}

qn_array *qn_sin(qn_scope *s, qn_array *a)
{
    return qn_unary(s, QN_PRIM_SIN, a);
}

qn_array *qn_cos(qn_scope *s, qn_array *a)
{
    return qn_unary(s, QN_PRIM_COS, a);
}

qn_array *qn_tanh(qn_scope *s, qn_array *a)
{
    return qn_unary(s, QN_PRIM_TANH, a);
}

qn_array *qn_erf(qn_scope *s, qn_array *a)
{
    return qn_unary(s, QN_PRIM_ERF, a);
}

qn_array *qn_floor(qn_scope *s, qn_array *a)
{
    return qn_unary(s, QN_PRIM_FLOOR, a);
}

qn_array *qn_ceil(qn_scope *s, qn_array *a)
{
    return a && qn_dtype_is_float(a->dtype) ? qn_neg(s, qn_floor(s, qn_neg(s, a))) : qn_floor(s, a);
}

qn_array *qn_round(qn_scope *s, qn_array *a)
{
    return qn_unary(s, QN_PRIM_ROUND, a);
}

qn_array *qn_relu(qn_scope *s, qn_array *a)
{
    return qn_unary(s, QN_PRIM_RELU, a);
}

qn_array *qn_sigmoid(qn_scope *s, qn_array *a)
{
    return qn_unary(s, QN_PRIM_SIGMOID, a);
}

qn_array *qn_softplus(qn_scope *s, qn_array *a)
{
    return qn_unary(s, QN_PRIM_SOFTPLUS, a);
}

qn_array *qn_silu(qn_scope *s, qn_array *a)
{
    return qn_unary(s, QN_PRIM_SILU, a);
}

qn_array *qn_gelu(qn_scope *s, qn_array *a)
{
    return qn_unary(s, QN_PRIM_GELU, a);
}

qn_array *qn_gelu_tanh(qn_scope *s, qn_array *a)
{
    return qn_unary(s, QN_PRIM_GELU_TANH, a);
}

/* ---- comparison and logic ----------------------------------------------------------------------------- */

static qn_array *compare(qn_scope *s, qn_comparison which, qn_array *a, qn_array *b)
{
    const qn_params p = {.compare = {which}};
    return qn_apply(s, QN_PRIM_COMPARE, &p, 2, (qn_array *[]){a, b}, NULL, QN_DTYPE_BOOL);
}

qn_array *qn_eq(qn_scope *s, qn_array *a, qn_array *b)
{
    return compare(s, QN_COMPARE_EQ, a, b);
}

qn_array *qn_ne(qn_scope *s, qn_array *a, qn_array *b)
{
    return compare(s, QN_COMPARE_NE, a, b);
}

qn_array *qn_lt(qn_scope *s, qn_array *a, qn_array *b)
{
    return compare(s, QN_COMPARE_LT, a, b);
}

qn_array *qn_le(qn_scope *s, qn_array *a, qn_array *b)
{
    return compare(s, QN_COMPARE_LE, a, b);
}

qn_array *qn_gt(qn_scope *s, qn_array *a, qn_array *b)
{
    return compare(s, QN_COMPARE_LT, b, a);
}

qn_array *qn_ge(qn_scope *s, qn_array *a, qn_array *b)
{
    return compare(s, QN_COMPARE_LE, b, a);
}

qn_array *qn_logical_and(qn_scope *s, qn_array *a, qn_array *b)
{
    return qn_where(s, a, qn_astype(s, b, QN_DTYPE_BOOL), qn_constant(s, QN_DTYPE_BOOL, 0));
}

qn_array *qn_logical_or(qn_scope *s, qn_array *a, qn_array *b)
{
    return qn_where(s, a, qn_constant(s, QN_DTYPE_BOOL, 1), qn_astype(s, b, QN_DTYPE_BOOL));
}

qn_array *qn_logical_not(qn_scope *s, qn_array *a)
{
    return qn_eq(s, qn_astype(s, a, QN_DTYPE_BOOL), qn_constant(s, QN_DTYPE_BOOL, 0));
}

qn_array *qn_isnan(qn_scope *s, qn_array *a)
{
    return qn_ne(s, a, a);
}

/* Of integers, too: they never are. */
qn_array *qn_isinf(qn_scope *s, qn_array *a)
{
    a = qn_real(s, a);
    return qn_eq(s, qn_abs(s, a), qn_number_like(s, a, INFINITY));
}

qn_array *qn_isfinite(qn_scope *s, qn_array *a)
{
    a = qn_real(s, a);
    return qn_lt(s, qn_abs(s, a), qn_number_like(s, a, INFINITY));
}

qn_array *qn_where(qn_scope *s, qn_array *condition, qn_array *a, qn_array *b)
{
    qn_array *in[3] = {qn_astype(s, condition, QN_DTYPE_BOOL), a, b};
    return qn_apply(s, QN_PRIM_SELECT, NULL, 3, in, NULL, QN_DTYPE_F32);
}
