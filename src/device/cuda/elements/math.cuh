/* exp, log, tanh, erf, sin and all element-wise operations on f32 for kernels: the functions of the CPU's sets
 * (v_exp, v_tanh, op_SILU, ...) over a set whose vf is one float.
 *
 * v_fma rounds once, as on AVX2, AVX-512 and NEON, so results have the bits of those sets. NaN is the exception:
 * a card gives its own. */
#ifndef QN_DEVICE_CUDA_ELEMENTS_MATH_CUH
#define QN_DEVICE_CUDA_ELEMENTS_MATH_CUH

#include <float.h>

#include "device/cuda/kernel.cuh"

/* What is included below has no __device__. `static` stands before each of its functions and tables. */
#define QN_ON_CARD static __device__

typedef float vf;
typedef int vm; /* 1 (chosen) or 0 */
#define V_LANES 1

QN_ON_CARD inline vf v_set1(float x)
{
    return x;
}
QN_ON_CARD inline vf v_load(const float *p)
{
    return *p;
}
QN_ON_CARD inline void v_store(float *p, vf x)
{
    *p = x;
}
QN_ON_CARD inline vf v_add(vf x, vf y)
{
    return x + y;
}
QN_ON_CARD inline vf v_sub(vf x, vf y)
{
    return x - y;
}
QN_ON_CARD inline vf v_mul(vf x, vf y)
{
    return x * y;
}
QN_ON_CARD inline vf v_div(vf x, vf y)
{
    return x / y;
}
/* x * y + z */
QN_ON_CARD inline vf v_fma(vf x, vf y, vf z)
{
    return fmaf(x, y, z);
}
/* z - x * y */
QN_ON_CARD inline vf v_fnma(vf x, vf y, vf z)
{
    return fmaf(-x, y, z);
}
QN_ON_CARD inline vf v_sqrt(vf x)
{
    return sqrtf(x);
}
QN_ON_CARD inline vm v_lt(vf x, vf y)
{
    return x < y;
}
QN_ON_CARD inline vm v_eq(vf x, vf y)
{
    return x == y;
}
QN_ON_CARD inline vm v_is_nan(vf x)
{
    return x != x;
}
QN_ON_CARD inline vm v_or(vm x, vm y)
{
    return x | y;
}
QN_ON_CARD inline vm v_not(vm x)
{
    return !x;
}
QN_ON_CARD inline int v_any(vm m)
{
    return m;
}
/* m ? x : y */
QN_ON_CARD inline vf v_select(vm m, vf x, vf y)
{
    return m ? x : y;
}
/* y is the answer when one of them is NaN. */
QN_ON_CARD inline vf v_max(vf x, vf y)
{
    return x > y ? x : y;
}
QN_ON_CARD inline vf v_min(vf x, vf y)
{
    return x < y ? x : y;
}
QN_ON_CARD inline vf v_neg(vf x)
{
    return qn_cuda_bits_float(qn_cuda_float_bits(x) ^ 0x80000000u);
}
QN_ON_CARD inline vf v_abs(vf x)
{
    return qn_cuda_bits_float(qn_cuda_float_bits(x) & 0x7fffffffu);
}
/* |x| with the sign of y */
QN_ON_CARD inline vf v_copysign(vf x, vf y)
{
    return qn_cuda_bits_float((qn_cuda_float_bits(x) & 0x7fffffffu) | (qn_cuda_float_bits(y) & 0x80000000u));
}
/* To the nearest integer, ties to even; |x| < 2^22. */
QN_ON_CARD inline vf v_round(vf x)
{
    return x + 12582912.0f - 12582912.0f;
}
QN_ON_CARD inline float v_power_of_2(int n)
{
    return qn_cuda_bits_float((uint32_t)(n + 127) << 23);
}
/* x * 2^n for whole n in [-160, 160] and x in [0.5, 2], rounded once: the first step is exact. NaN stays NaN. */
QN_ON_CARD inline vf v_scale(vf x, vf n)
{
    const int i = n == n ? (int)n : 0, half = i >> 1;
    return x * v_power_of_2(half) * v_power_of_2(i - half);
}
/* The same bits where the result is a normal number; NaN stays NaN. */
QN_ON_CARD inline vf v_scale_normal(vf x, vf n)
{
    return x * v_power_of_2(n == n ? (int)n : 0);
}
/* x = m * 2^e with m in [sqrt(1/2), sqrt(2)), for normal x > 0; returns m. */
QN_ON_CARD inline vf v_split(vf x, vf *e)
{
    const uint32_t bits = qn_cuda_float_bits(x) - 0x3f3504f3u; /* sqrt(1/2) */
    *e = (float)((int32_t)bits >> 23);
    return qn_cuda_bits_float((bits & 0x007fffffu) + 0x3f3504f3u);
}

#define static static __device__
#include "device/cpu/kernels/vector/elementwise.body.h"
#undef static

#endif
