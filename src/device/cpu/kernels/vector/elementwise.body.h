/* Element-wise operations on f32, one function each, over the names of a vec_<set>.h and math.body.h. Every
 * set of the CPU includes this file, and so does the device cuda (cuda/math.cuh). */
#ifndef QN_DEVICE_CPU_KERNELS_VECTOR_ELEMENTWISE_BODY_H
#define QN_DEVICE_CPU_KERNELS_VECTOR_ELEMENTWISE_BODY_H

#include "device/cpu/kernels/math.body.h"

static inline vf op_COPY(vf a, vf b)
{
    return a;
}
static inline vf op_NEG(vf a, vf b)
{
    return v_neg(a);
}
static inline vf op_ABS(vf a, vf b)
{
    return v_abs(a);
}
static inline vf op_EXP(vf a, vf b)
{
    return v_exp(a);
}
static inline vf op_LOG(vf a, vf b)
{
    return v_log(a);
}
static inline vf op_SQRT(vf a, vf b)
{
    return v_sqrt(a);
}
static inline vf op_RSQRT(vf a, vf b)
{
    return v_div(v_set1(1.0f), v_sqrt(a));
}
static inline vf op_SQUARE(vf a, vf b)
{
    return v_mul(a, a);
}
static inline vf op_RECIP(vf a, vf b)
{
    return v_div(v_set1(1.0f), a);
}
static inline vf op_SIN(vf a, vf b)
{
    return v_sin(a);
}
static inline vf op_COS(vf a, vf b)
{
    return v_cos(a);
}
static inline vf op_TANH(vf a, vf b)
{
    return v_tanh(a);
}
static inline vf op_ERF(vf a, vf b)
{
    return v_erf(a);
}
static inline vf op_SIGMOID(vf a, vf b)
{
    return v_sigmoid(a);
}
static inline vf op_SOFTPLUS(vf a, vf b)
{
    return v_softplus(a);
}
static inline vf op_SILU(vf a, vf b)
{
    return v_div(a, v_add(v_set1(1.0f), v_exp(v_neg(a))));
}
/* x / 2 (1 + erf(x / sqrt 2)); absolute error below 1e-7 |x|, as the formula has it in f32. */
static inline vf op_GELU(vf a, vf b)
{
    vf e = v_erf(v_mul(a, v_set1(0.707106781f)));
    return v_mul(v_mul(a, v_set1(0.5f)), v_add(v_set1(1.0f), e));
}
/* x / 2 (1 + tanh(u)) = x sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3) */
static inline vf op_GELU_TANH(vf a, vf b)
{
    vf u = v_mul(a, v_fma(v_mul(a, a), v_set1(0.0713548163f), v_set1(1.59576912f)));
    return v_div(a, v_add(v_set1(1.0f), v_exp(v_neg(u))));
}
static inline vf op_RELU(vf a, vf b)
{
    return v_max(v_set1(0), a);
}
/* To the nearest integer, ties to even; from 2^23 on all numbers are whole. */
static inline vf op_ROUND(vf a, vf b)
{
    const vf whole = v_set1(0x1p23f), t = v_abs(a);
    return v_select(v_lt(t, whole), v_copysign(v_sub(v_add(t, whole), whole), a), a);
}
static inline vf op_FLOOR(vf a, vf b)
{
    vf r = op_ROUND(a, b);
    return v_select(v_lt(a, r), v_sub(r, v_set1(1.0f)), r);
}
/* What 1 + x loses of x is made good by a factor (Kahan). */
static inline vf op_LOG1P(vf a, vf b)
{
    const vf one = v_set1(1.0f), u = v_add(one, a), d = v_sub(u, one), log = v_log(u);
    vf r = v_select(v_lt(u, v_set1(INFINITY)), v_mul(log, v_div(a, d)), log);
    return v_select(v_eq(u, one), a, r);
}
static inline vf op_EXPM1(vf a, vf b)
{
    const vf one = v_set1(1.0f), u = v_exp(a), d = v_sub(u, one);
    vf r = v_select(v_lt(u, v_set1(INFINITY)), v_mul(d, v_div(a, v_log(u))), u);
    r = v_select(v_eq(d, v_set1(-1.0f)), d, r);
    return v_select(v_eq(u, one), a, r);
}
static inline vf op_ADD(vf a, vf b)
{
    return v_add(a, b);
}
static inline vf op_SUB(vf a, vf b)
{
    return v_sub(a, b);
}
static inline vf op_MUL(vf a, vf b)
{
    return v_mul(a, b);
}
static inline vf op_DIV(vf a, vf b)
{
    return v_div(a, b);
}
/* NaN if one is NaN, as in NumPy and PyTorch. */
static inline vf v_max_or_nan(vf a, vf b)
{
    return v_select(v_is_nan(a), a, v_max(a, b));
}
static inline vf op_MAXIMUM(vf a, vf b)
{
    return v_max_or_nan(a, b);
}
static inline vf op_MINIMUM(vf a, vf b)
{
    return v_select(v_is_nan(a), a, v_min(a, b));
}
static inline vf op_POW(vf a, vf b)
{
    return v_pow(a, b);
}

#endif
