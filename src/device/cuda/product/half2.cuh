/* Pairs of f16 numbers in one register. Every operation rounds once, to nearest even, on a card and on the host
 * alike. */
#ifndef QN_DEVICE_CUDA_PRODUCT_HALF2_CUH
#define QN_DEVICE_CUDA_PRODUCT_HALF2_CUH

#include "device/cuda/kernel.cuh"

#ifdef QN_CUDA_HOST

uint32_t qn_emulated_half2(char operation, uint32_t a, uint32_t b, uint32_t c); /* host/tensor.cpp */
#define QN_HALF2(operation, instruction, a, b, c) return qn_emulated_half2(operation, a, b, c)

#else

static __device__ __forceinline__ __half2 qn_half2_of(uint32_t u)
{
    return *(const __half2 *)&u;
}

static __device__ __forceinline__ uint32_t qn_half2_word(__half2 h)
{
    return *(const uint32_t *)&h;
}

#define QN_HALF2(operation, instruction, a, b, c) return qn_half2_word(instruction)

#endif

static __device__ __forceinline__ uint32_t qn_h2_mul(uint32_t a, uint32_t b)
{
    QN_HALF2('*', __hmul2_rn(qn_half2_of(a), qn_half2_of(b)), a, b, 0);
}

static __device__ __forceinline__ uint32_t qn_h2_sub(uint32_t a, uint32_t b)
{
    QN_HALF2('-', __hsub2_rn(qn_half2_of(a), qn_half2_of(b)), a, b, 0);
}

/* a * b + c */
static __device__ __forceinline__ uint32_t qn_h2_fma(uint32_t a, uint32_t b, uint32_t c)
{
    QN_HALF2('f', __hfma2(qn_half2_of(a), qn_half2_of(b), qn_half2_of(c)), a, b, c);
}

#undef QN_HALF2

/* low and high rounded to nearest even. */
static __device__ __forceinline__ uint32_t qn_half2_pack(float low, float high)
{
    return qn_float_to_half(low) | (uint32_t)qn_float_to_half(high) << 16;
}

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
