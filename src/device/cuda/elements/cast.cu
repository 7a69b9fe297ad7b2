/* CAST: numbers of any plain type as any other one, with the bits of prim/convert.c. Numbers go through one of
 * three forms: integers of 64 bits, f32 for the floating types up to it, f64. A NaN keeps its upper bits and
 * becomes quiet, which is done by hand: a card's own conversions give one NaN alone. */
#include "device/cuda/elements/places.cuh"
#include "device/cuda/elements/wide.cuh"

enum { BLOCK = 256, WIDE = 4 };

extern const qn_cuda_prim qn_cuda_prim_COPY;

typedef struct {
    uint64_t u; /* an integer's 64 bits */
    float f;
    double d;
} number;

/* ---- floats -------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ uint64_t bits_of_f64(double d)
{
    uint64_t u;
    memcpy(&u, &d, sizeof u);
    return u;
}

static __device__ __forceinline__ float f64_to_f32(double d)
{
    const uint64_t u = bits_of_f64(d);
    if (d == d) return (float)d;
    return qn_cuda_bits_float((uint32_t)(u >> 32 & 0x80000000u) | 0x7fc00000u |
                              (uint32_t)(u >> 29 & 0x3fffffu));
}

static __device__ __forceinline__ double f32_to_f64(float f)
{
    const uint32_t u = qn_cuda_float_bits(f);
    if (f == f) return (double)f;
    const uint64_t wide =
        (uint64_t)(u & 0x80000000u) << 32 | UINT64_C(0x7ff8000000000000) | (uint64_t)(u & 0x3fffffu) << 29;
    double d;
    memcpy(&d, &wide, sizeof d);
    return d;
}

static __device__ __forceinline__ float f16_to_f32(uint16_t h)
{
    const float f = qn_cuda_half_value(h);
    return f == f ? f : qn_cuda_bits_float(qn_cuda_float_bits(f) | 0x00400000u);
}

static __device__ __forceinline__ uint16_t f32_to_f16(float f)
{
    const uint32_t u = qn_cuda_float_bits(f);
    return f == f ? qn_float_to_half(f) : (uint16_t)((u >> 16 & 0x8000u) | 0x7e00u | (u >> 13 & 0x1ffu));
}

/* A number in f32 whose last bit says whether anything was cut off: rounding it once more to a type of fewer
 * bits gives what rounding the first number would. */
static __device__ float cut_f64(double d)
{
    const float f = f64_to_f32(d);
    if ((double)f == d || d != d) return f;
    uint32_t bits = qn_cuda_float_bits(f);
    if (fabs((double)f) > fabs(d)) bits--; /* rounded away from zero: one back */
    return qn_cuda_bits_float(bits | 1);
}

static __device__ float cut_u64(uint64_t u)
{
    int shift = 0;
    uint64_t lost = 0;
    while (u >> 24) {
        lost |= u & 1;
        u >>= 1;
        shift++;
    }
    return (float)(u | lost) * qn_cuda_bits_float((uint32_t)(127 + shift) << 23);
}

/* ---- one number ---------------------------------------------------------------------------------------- */

static __host__ __device__ constexpr int is_narrow_float(int dtype)
{
    return dtype == QN_DTYPE_F16 || dtype == QN_DTYPE_BF16 || dtype == QN_DTYPE_F32;
}

static __device__ __forceinline__ number get(int dtype, const void *from, int64_t i)
{
    number x = {};
    if (dtype == QN_DTYPE_F16)
        x.f = f16_to_f32(((const uint16_t *)from)[i]);
    else if (dtype == QN_DTYPE_BF16)
        x.f = qn_bf16_float(((const uint16_t *)from)[i]);
    else if (dtype == QN_DTYPE_F32)
        x.f = ((const float *)from)[i];
    else if (dtype == QN_DTYPE_F64)
        x.d = ((const double *)from)[i];
    else
        x.u = qn_wide_get(dtype, from, i).u;
    return x;
}

/* As the float that is rounded to f16 or bf16. */
static __device__ __forceinline__ float as_rounded_once(int from, number x)
{
    if (is_narrow_float(from)) return x.f;
    if (from == QN_DTYPE_F64) return cut_f64(x.d);
    if (qn_wide_kind_of(from) == QN_WIDE_SIGNED && (int64_t)x.u < 0) return -cut_u64(0 - x.u);
    return cut_u64(x.u);
}

static __device__ __forceinline__ float as_f32(int from, number x)
{
    return is_narrow_float(from)                       ? x.f
           : from == QN_DTYPE_F64                      ? f64_to_f32(x.d)
           : qn_wide_kind_of(from) == QN_WIDE_UNSIGNED ? (float)x.u
                                                       : (float)(int64_t)x.u;
}

static __device__ __forceinline__ double as_f64(int from, number x)
{
    return is_narrow_float(from)                       ? f32_to_f64(x.f)
           : from == QN_DTYPE_F64                      ? x.d
           : qn_wide_kind_of(from) == QN_WIDE_UNSIGNED ? (double)x.u
                                                       : (double)(int64_t)x.u;
}

/* From a float into [low, high]; the limits of 64 bits are not numbers of f64, so the first ones outside are
 * looked at. */
static __device__ uint64_t as_integer(int to, double d)
{
    const int bits = 8 * qn_plain_bytes(to);
    const double half = (double)(UINT64_C(1) << (bits - 1));
    if (d != d) return 0;
    if (qn_wide_kind_of(to) == QN_WIDE_SIGNED) {
        if (d >= half) return (UINT64_C(1) << (bits - 1)) - 1;
        return d <= -half ? UINT64_C(1) << (bits - 1) : (uint64_t)(int64_t)d;
    }
    if (d >= 2 * half) return bits == 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1;
    return d <= 0 ? 0 : (uint64_t)d;
}

static __device__ __forceinline__ int is_not_0(int from, number x)
{
    return is_narrow_float(from) ? x.f != 0 : from == QN_DTYPE_F64 ? x.d != 0 : x.u != 0;
}

static __device__ __forceinline__ void put(int from, int to, number x, void *out, int64_t i)
{
    switch (to) {
    case QN_DTYPE_F16:
        ((uint16_t *)out)[i] = f32_to_f16(as_rounded_once(from, x));
        break;
    case QN_DTYPE_BF16:
        ((uint16_t *)out)[i] = qn_float_bf16(as_rounded_once(from, x));
        break;
    case QN_DTYPE_F32:
        ((float *)out)[i] = as_f32(from, x);
        break;
    case QN_DTYPE_F64:
        ((double *)out)[i] = as_f64(from, x);
        break;
    default: {
        qn_wide w;
        w.u = to == QN_DTYPE_BOOL                     ? (uint64_t)is_not_0(from, x)
              : qn_wide_kind_of(from) == QN_WIDE_REAL ? as_integer(to, as_f64(from, x))
                                                      : x.u;
        qn_wide_put(to, w, out, i);
    }
    }
}

/* ---- all ----------------------------------------------------------------------------------------------- */

static __global__ void cast_any(void *out, const void *in, qn_places<1> p, int from, int to)
{
    const int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i < p.total) put(from, to, get(from, in, qn_place_in(p, 0, qn_indices_of(p, i))), out, i);
}

/* W neighbours of a type. */
template <int W, int BYTES> struct alignas(W *BYTES) bytes_of {
    char byte[W * BYTES];
};

/* What models cast most: f32 and halves, W neighbours a thread. */
template <int FROM, int TO, int W>
static __global__ void cast_group(void *out, const void *in, qn_places<1> p)
{
    typedef bytes_of<W, qn_plain_bytes(FROM)> source;
    typedef bytes_of<W, qn_plain_bytes(TO)> target;
    const int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= p.total) return;
    const char *at = (const char *)in + qn_place_in(p, 0, qn_indices_of(p, i)) * qn_plain_bytes(FROM);
    const source x = *(const source *)at;
    target y;
    QN_UNROLL
    for (int w = 0; w < W; w++) put(FROM, TO, get(FROM, &x, w), &y, w);
    ((target *)out)[i] = y;
}

typedef void group_kernel(void *out, const void *in, qn_places<1> p);

static group_kernel *find_group(int from, int to)
{
    if (from == QN_DTYPE_F32 && to == QN_DTYPE_F16) return cast_group<QN_DTYPE_F32, QN_DTYPE_F16, WIDE>;
    if (from == QN_DTYPE_F32 && to == QN_DTYPE_BF16) return cast_group<QN_DTYPE_F32, QN_DTYPE_BF16, WIDE>;
    if (from == QN_DTYPE_F16 && to == QN_DTYPE_F32) return cast_group<QN_DTYPE_F16, QN_DTYPE_F32, WIDE>;
    if (from == QN_DTYPE_BF16 && to == QN_DTYPE_F32) return cast_group<QN_DTYPE_BF16, QN_DTYPE_F32, WIDE>;
    return NULL;
}

static qn_status launch(qn_cuda_context *c, const qn_cuda_step *s)
{
    const int from = s->in[0].dtype, to = s->out.dtype;
    if (!qn_plain_bytes(from) || !qn_plain_bytes(to) || s->in[0].weight)
        return qn_cuda_fail(QN_E_UNSUPPORTED, "device cuda: a cast of a packed type");
    if (from == to) return qn_cuda_prim_COPY.launch(c, s);
    qn_places<1> p = qn_places_of<1>(s, 1);
    group_kernel *group = find_group(from, to);
    if (group && p.stride[0][0] == 1 &&
        qn_places_in_groups(p, 0, s->in[0].data, WIDE, qn_plain_bytes(from)) &&
        (uintptr_t)s->out.data % (uintptr_t)(WIDE * qn_plain_bytes(to)) == 0) {
        qn_places_group(&p, WIDE);
        return qn_cuda_begin(c, group, qn_blocks(p.total, BLOCK), BLOCK, 0, s->out.data, s->in[0].data, p);
    }
    return qn_cuda_begin(c, cast_any, qn_blocks(p.total, BLOCK), BLOCK, 0, s->out.data, s->in[0].data, p,
                         from, to);
}

extern const qn_cuda_prim qn_cuda_prim_CAST;
const qn_cuda_prim qn_cuda_prim_CAST = {launch, NULL};
