/* Numbers of any plain type as numbers of 8 bytes, in which the arithmetic is done: signed integers and bool
 * (as 0 and 1) as int64_t, unsigned ones as uint64_t, floating types as double. What is stored is cut to the
 * type's width, so sums and products of integers wrap around. */
#ifndef QN_DEVICE_CUDA_WIDE_CUH
#define QN_DEVICE_CUDA_WIDE_CUH

#include "device/cuda/kernel.cuh"

enum { QN_WIDE_SIGNED, QN_WIDE_UNSIGNED, QN_WIDE_REAL };

typedef union {
    int64_t i;
    uint64_t u;
    double f;
} qn_wide;

QN_HD int qn_wide_kind(qn_dtype dtype)
{
    switch (dtype) {
    case QN_DTYPE_U8:
    case QN_DTYPE_U16:
    case QN_DTYPE_U32:
    case QN_DTYPE_U64: return QN_WIDE_UNSIGNED;
    case QN_DTYPE_F16:
    case QN_DTYPE_BF16:
    case QN_DTYPE_F32:
    case QN_DTYPE_F64: return QN_WIDE_REAL;
    default: return QN_WIDE_SIGNED;
    }
}

/* Bytes of an element of a plain type. */
QN_HD int qn_wide_bytes(qn_dtype dtype)
{
    switch (dtype) {
    case QN_DTYPE_BOOL:
    case QN_DTYPE_U8:
    case QN_DTYPE_I8: return 1;
    case QN_DTYPE_U16:
    case QN_DTYPE_I16:
    case QN_DTYPE_F16:
    case QN_DTYPE_BF16: return 2;
    case QN_DTYPE_U32:
    case QN_DTYPE_I32:
    case QN_DTYPE_F32: return 4;
    default: return 8;
    }
}

/* Element i behind `data`. */
static __device__ __forceinline__ qn_wide qn_wide_get(qn_dtype dtype, const char *data, int64_t i)
{
    qn_wide w;
    switch (dtype) {
    case QN_DTYPE_BOOL: w.i = data[i] != 0; break;
    case QN_DTYPE_U8: w.u = ((const uint8_t *)data)[i]; break;
    case QN_DTYPE_U16: w.u = ((const uint16_t *)data)[i]; break;
    case QN_DTYPE_U32: w.u = ((const uint32_t *)data)[i]; break;
    case QN_DTYPE_I8: w.i = ((const int8_t *)data)[i]; break;
    case QN_DTYPE_I16: w.i = ((const int16_t *)data)[i]; break;
    case QN_DTYPE_I32: w.i = ((const int32_t *)data)[i]; break;
    case QN_DTYPE_F16: w.f = (double)qn_half_to_float(((const uint16_t *)data)[i]); break;
    case QN_DTYPE_BF16: w.f = (double)qn_bf16_float(((const uint16_t *)data)[i]); break;
    case QN_DTYPE_F32: w.f = (double)((const float *)data)[i]; break;
    default: w.u = ((const uint64_t *)data)[i]; break; /* U64, I64, F64 */
    }
    return w;
}

static __device__ __forceinline__ void qn_wide_put(qn_dtype dtype, char *data, int64_t i, qn_wide w)
{
    switch (dtype) {
    case QN_DTYPE_BOOL: ((uint8_t *)data)[i] = w.i != 0; break;
    case QN_DTYPE_U8:
    case QN_DTYPE_I8: ((uint8_t *)data)[i] = (uint8_t)w.u; break;
    case QN_DTYPE_U16:
    case QN_DTYPE_I16: ((uint16_t *)data)[i] = (uint16_t)w.u; break;
    case QN_DTYPE_U32:
    case QN_DTYPE_I32: ((uint32_t *)data)[i] = (uint32_t)w.u; break;
    case QN_DTYPE_F16: ((uint16_t *)data)[i] = qn_float_to_half((float)w.f); break;
    case QN_DTYPE_BF16: ((uint16_t *)data)[i] = qn_float_bf16((float)w.f); break;
    case QN_DTYPE_F32: ((float *)data)[i] = (float)w.f; break;
    default: ((uint64_t *)data)[i] = w.u; break;
    }
}

/* ---- how two numbers become one ------------------------------------------------------------------------ */

typedef enum { QN_WAY_SUM, QN_WAY_PROD, QN_WAY_MAX, QN_WAY_MIN } qn_way;

/* What joining begins with. */
static __device__ __forceinline__ qn_wide qn_wide_start(qn_way how, qn_dtype dtype)
{
    const int kind = qn_wide_kind(dtype), bits = 8 * qn_wide_bytes(dtype);
    qn_wide w;
    w.u = 0;
    if (kind == QN_WIDE_REAL) {
        w.f = how == QN_WAY_SUM ? 0 : how == QN_WAY_PROD ? 1 : how == QN_WAY_MAX ? -(double)INFINITY : (double)INFINITY;
    } else if (how == QN_WAY_PROD) {
        w.u = 1;
    } else if (how == QN_WAY_MIN) {
        w.u = dtype == QN_DTYPE_BOOL ? 1 : UINT64_MAX >> (64 - bits + (kind == QN_WIDE_SIGNED));
    } else if (how == QN_WAY_MAX && kind == QN_WIDE_SIGNED && dtype != QN_DTYPE_BOOL) {
        w.i = -(int64_t)(UINT64_MAX >> (65 - bits)) - 1;
    }
    return w;
}

/* a, then b. Of extremes the first of equals, and the first NaN where there is one. */
static __device__ __forceinline__ qn_wide qn_wide_join(qn_way how, int kind, qn_wide a, qn_wide b)
{
    switch (how) {
    case QN_WAY_SUM:
        if (kind == QN_WIDE_REAL)
            a.f += b.f;
        else
            a.u += b.u;
        return a;
    case QN_WAY_PROD:
        if (kind == QN_WIDE_REAL)
            a.f *= b.f;
        else
            a.u *= b.u;
        return a;
    case QN_WAY_MAX:
        if (kind == QN_WIDE_REAL) return a.f != a.f ? a : b.f != b.f || b.f > a.f ? b : a;
        return (kind == QN_WIDE_SIGNED ? b.i > a.i : b.u > a.u) ? b : a;
    default:
        if (kind == QN_WIDE_REAL) return a.f != a.f ? a : b.f != b.f || b.f < a.f ? b : a;
        return (kind == QN_WIDE_SIGNED ? b.i < a.i : b.u < a.u) ? b : a;
    }
}

/* ---- lines --------------------------------------------------------------------------------------------- */

/* Where line i of v along `axis` begins, in elements: i counts the elements of v's shape with that axis 1. */
static __device__ __forceinline__ int64_t qn_line_place(const qn_cuda_view &v, int axis, int64_t i)
{
    int64_t at = 0;
    for (int d = v.n - 1; d >= 0; d--) {
        if (d == axis) continue;
        at += i % v.dim[d] * v.stride[d];
        i /= v.dim[d];
    }
    return at;
}

static inline int64_t qn_lines(const qn_cuda_operand *o, int axis)
{
    int64_t n = 1;
    for (int d = 0; d < o->n; d++)
        if (d != axis) n *= o->dim[d];
    return n;
}

#endif
