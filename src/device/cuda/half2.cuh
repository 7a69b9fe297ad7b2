/* Pairs of f16 numbers in one register. Every operation rounds once, to nearest even, on a card and on the host
 * alike. */
#ifndef QN_DEVICE_CUDA_HALF2_CUH
#define QN_DEVICE_CUDA_HALF2_CUH

#include "device/cuda/kernel.cuh"

#ifdef QN_CUDA_HOST

static inline uint16_t qn_double_to_half(double x)
{
    const uint16_t sign = signbit(x) ? 0x8000u : 0;
    const double a = fabs(x);
    if (a != a) return (uint16_t)(sign | 0x7e00u);
    if (a >= 65520) return (uint16_t)(sign | 0x7c00u);
    if (a < 0x1p-14) return (uint16_t)(sign | (uint16_t)rint(a * 0x1p24));
    int e;
    const double m = rint(frexp(a, &e) * 2048); /* [1024, 2048] */
    return (uint16_t)(sign | (((unsigned)(e + 13) << 10) + (unsigned)m));
}

static inline double qn_half_of(uint32_t h, int i)
{
    return qn_cuda_half_value((uint16_t)(h >> 16 * i));
}

#define QN_EACH_HALF(expression)                                                          \
    uint32_t out = 0;                                                                     \
    for (int i = 0; i < 2; i++) out |= (uint32_t)qn_double_to_half(expression) << 16 * i; \
    return out

static inline uint32_t qn_h2_mul(uint32_t a, uint32_t b)
{
    QN_EACH_HALF(qn_half_of(a, i) * qn_half_of(b, i));
}
static inline uint32_t qn_h2_sub(uint32_t a, uint32_t b)
{
    QN_EACH_HALF(qn_half_of(a, i) - qn_half_of(b, i));
}
/* The product is exact in double, and so is the sum for all but hopelessly different sizes. */
static inline uint32_t qn_h2_fma(uint32_t a, uint32_t b, uint32_t c)
{
    QN_EACH_HALF(qn_half_of(a, i) * qn_half_of(b, i) + qn_half_of(c, i));
}

#else

static __device__ __forceinline__ __half2 qn_as_half2(uint32_t x)
{
    return *reinterpret_cast<const __half2 *>(&x);
}
static __device__ __forceinline__ uint32_t qn_from_half2(__half2 x)
{
    return *reinterpret_cast<const uint32_t *>(&x);
}
static __device__ __forceinline__ uint32_t qn_h2_mul(uint32_t a, uint32_t b)
{
    return qn_from_half2(__hmul2_rn(qn_as_half2(a), qn_as_half2(b)));
}
static __device__ __forceinline__ uint32_t qn_h2_sub(uint32_t a, uint32_t b)
{
    return qn_from_half2(__hsub2_rn(qn_as_half2(a), qn_as_half2(b)));
}
static __device__ __forceinline__ uint32_t qn_h2_fma(uint32_t a, uint32_t b, uint32_t c)
{
    return qn_from_half2(__hfma2(qn_as_half2(a), qn_as_half2(b), qn_as_half2(c)));
}

#endif

/* The same number twice. */
static __device__ __forceinline__ uint32_t qn_h2_twice(uint16_t h)
{
    return (uint32_t)h | (uint32_t)h << 16;
}
static __device__ __forceinline__ uint32_t qn_h2_neg(uint32_t a)
{
    return a ^ 0x80008000u;
}

#endif
