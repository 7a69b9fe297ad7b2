/* Numbers of any plain type as numbers of 8 bytes, in which arithmetic is done: signed integers (and bool as 0
 * and 1) as int64_t, unsigned ones as uint64_t, floating types as double. A number that is stored is cut to its
 * type's width, so integers wrap around. The same as device/cpu/wide.h. */
#ifndef QN_DEVICE_CUDA_ELEMENTS_WIDE_CUH
#define QN_DEVICE_CUDA_ELEMENTS_WIDE_CUH

#include "device/cuda/kernel.cuh"

enum { QN_WIDE_SIGNED, QN_WIDE_UNSIGNED, QN_WIDE_REAL };

typedef union {
    int64_t i;
    uint64_t u;
    double f;
} qn_wide;

static __host__ __device__ constexpr int qn_wide_kind_of(int dtype)
{
    return dtype >= QN_DTYPE_U8 && dtype <= QN_DTYPE_U64    ? QN_WIDE_UNSIGNED
           : dtype >= QN_DTYPE_F16 && dtype <= QN_DTYPE_F64 ? QN_WIDE_REAL
                                                            : QN_WIDE_SIGNED;
}

/* Of a plain type; 0 of any other. */
static __host__ __device__ constexpr int qn_plain_bytes(int dtype)
{
    switch (dtype) {
    case QN_DTYPE_BOOL:
    case QN_DTYPE_U8:
    case QN_DTYPE_I8:
        return 1;
    case QN_DTYPE_U16:
    case QN_DTYPE_I16:
    case QN_DTYPE_F16:
    case QN_DTYPE_BF16:
        return 2;
    case QN_DTYPE_U32:
    case QN_DTYPE_I32:
    case QN_DTYPE_F32:
        return 4;
    case QN_DTYPE_U64:
    case QN_DTYPE_I64:
    case QN_DTYPE_F64:
        return 8;
    default:
        return 0;
    }
}

/* Element i. */
static __device__ __forceinline__ qn_wide qn_wide_get(int dtype, const void *from, int64_t i)
{
    qn_wide w;
    switch (dtype) {
    case QN_DTYPE_BOOL:
        w.i = ((const uint8_t *)from)[i] != 0;
        break;
    case QN_DTYPE_U8:
        w.u = ((const uint8_t *)from)[i];
        break;
    case QN_DTYPE_U16:
        w.u = ((const uint16_t *)from)[i];
        break;
    case QN_DTYPE_U32:
        w.u = ((const uint32_t *)from)[i];
        break;
    case QN_DTYPE_I8:
        w.i = ((const int8_t *)from)[i];
        break;
    case QN_DTYPE_I16:
        w.i = ((const int16_t *)from)[i];
        break;
    case QN_DTYPE_I32:
        w.i = ((const int32_t *)from)[i];
        break;
    case QN_DTYPE_F16:
        w.f = (double)qn_half_to_float(((const uint16_t *)from)[i]);
        break;
    case QN_DTYPE_BF16:
        w.f = (double)qn_bf16_float(((const uint16_t *)from)[i]);
        break;
    case QN_DTYPE_F32:
        w.f = (double)((const float *)from)[i];
        break;
    default: /* U64, I64, F64 */
        w.u = ((const uint64_t *)from)[i];
        break;
    }
    return w;
}

/* Makes w element i. A double that is no float is rounded. */
static __device__ __forceinline__ void qn_wide_put(int dtype, qn_wide w, void *to, int64_t i)
{
    switch (dtype) {
    case QN_DTYPE_BOOL:
        ((uint8_t *)to)[i] = w.i != 0;
        break;
    case QN_DTYPE_U8:
    case QN_DTYPE_I8:
        ((uint8_t *)to)[i] = (uint8_t)w.u;
        break;
    case QN_DTYPE_U16:
    case QN_DTYPE_I16:
        ((uint16_t *)to)[i] = (uint16_t)w.u;
        break;
    case QN_DTYPE_U32:
    case QN_DTYPE_I32:
        ((uint32_t *)to)[i] = (uint32_t)w.u;
        break;
    case QN_DTYPE_F16:
        ((uint16_t *)to)[i] = qn_float_to_half((float)w.f);
        break;
    case QN_DTYPE_BF16:
        ((uint16_t *)to)[i] = qn_float_bf16((float)w.f);
        break;
    case QN_DTYPE_F32:
        ((float *)to)[i] = (float)w.f;
        break;
    default: /* U64, I64, F64 */
        ((uint64_t *)to)[i] = w.u;
        break;
    }
}

#endif
