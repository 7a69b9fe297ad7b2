/* Lines of an array along one axis, and how two numbers of a line become one. */
#ifndef QN_DEVICE_CUDA_ELEMENTS_LINES_CUH
#define QN_DEVICE_CUDA_ELEMENTS_LINES_CUH

#include "device/cuda/elements/wide.cuh"

/* ---- how two numbers become one ------------------------------------------------------------------------ */

typedef enum { QN_WAY_SUM, QN_WAY_PROD, QN_WAY_MAX, QN_WAY_MIN } qn_way;

/* What joining begins with. */
static __device__ __forceinline__ qn_wide qn_wide_start(qn_way how, qn_dtype dtype)
{
    const int kind = qn_wide_kind_of(dtype), bits = 8 * qn_plain_bytes(dtype);
    qn_wide w;
    w.u = 0;
    if (kind == QN_WIDE_REAL) {
        w.f = how == QN_WAY_SUM    ? 0
              : how == QN_WAY_PROD ? 1
              : how == QN_WAY_MAX  ? -(double)INFINITY
                                   : (double)INFINITY;
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
