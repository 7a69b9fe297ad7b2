/* What a tensor core computes in one step of k, as a plain function: for the host's emulation (host/tensor.cpp),
 * and to be compared with a card (tools/cuda/tensor_step_check.cu).
 *
 * The model is that of MMA-Sim (arXiv 2511.10909): products of f16 are exact; they and the addend are aligned to
 * the largest exponent among them and cut after some bits; the sum of these integers is exact; it is cut to f32.
 * Exponents are those of the operands as they are: that of a product is the sum of both, though its significand
 * may be 2 or more. Plain C that cc and nvcc compile alike. */
#ifndef QN_DEVICE_CUDA_PRODUCT_TENSOR_STEP_H
#define QN_DEVICE_CUDA_PRODUCT_TENSOR_STEP_H

#include "device/cuda/layout.h"

/* What differs between generations of cards, or is not known. */
typedef struct {
    int extra_bits;           /* that are kept behind the 23 of a f32 with the largest exponent */
    int n_products;           /* of one aligned sum: 16, or 8 for two sums one after the other */
    int aligns_down;          /* 1: cut towards minus infinity when aligned, 0: towards zero */
    int rounds_nearest;       /* 1: the sum is rounded to nearest even, 0: cut towards zero */
    int zeros_have_exponents; /* 1: a product that is 0 takes part in the largest exponent */
} qn_tensor_model;

/* Hopper's (sm_90). */
enum { QN_TENSOR_EXTRA_BITS = 2, QN_TENSOR_PRODUCTS = 16 };

/* sum * 2^exponent as f32. */
QN_HD float qn_tensor_round(int64_t sum, int exponent, int rounds_nearest)
{
    const uint32_t sign = sum < 0 ? 0x80000000u : 0;
    uint64_t m = sum < 0 ? 0 - (uint64_t)sum : (uint64_t)sum;
    int n_bits = 0;
    while (n_bits < 64 && m >> n_bits) n_bits++;
    if (!n_bits) return 0;
    int drop = n_bits - 24; /* a f32 has 24 bits, and none below 2^-149 */
    if (drop < -149 - exponent) drop = -149 - exponent;
    if (drop > 63) return qn_cuda_bits_float(sign);
    if (drop > 0) {
        const uint64_t rest = m & (((uint64_t)1 << drop) - 1), half = (uint64_t)1 << (drop - 1);
        m >>= drop;
        if (rounds_nearest && (rest > half || (rest == half && (m & 1)))) m++;
    } else {
        m <<= -drop;
    }
    exponent += drop; /* the value is m * 2^exponent, m <= 2^24 */
    if (m >> 24) m >>= 1, exponent++;
    if (!(m >> 23)) return qn_cuda_bits_float(sign | (uint32_t)m); /* subnormal: exponent is -149 */
    if (exponent + 23 > 127) return qn_cuda_bits_float(sign | 0x7f800000u);
    return qn_cuda_bits_float(sign | (uint32_t)(exponent + 23 + 127) << 23 | ((uint32_t)m & 0x7fffffu));
}

/* m * 2^-right, cut. */
QN_HD int64_t qn_tensor_align(int64_t m, int is_negative, int right, int aligns_down)
{
    if (!m) return 0;
    if (right <= 0) {
        m = (int64_t)((uint64_t)m << -right);
        return is_negative ? -m : m;
    }
    const int64_t cut = right > 62 ? 0 : m >> right;
    if (!is_negative) return cut;
    const int64_t lost = right > 62 ? m : m & (((int64_t)1 << right) - 1);
    return -cut - (aligns_down && lost ? 1 : 0);
}

/* The sum if an operand is infinite or no number: 1, and *out. */
QN_HD int qn_tensor_special(float c, const uint16_t *a, const uint16_t *b, int n, float *out)
{
    const uint32_t u = qn_cuda_float_bits(c);
    int is_nan = (u & 0x7fffffffu) > 0x7f800000u, n_plus = u == 0x7f800000u, n_minus = u == 0xff800000u;
    for (int i = 0; i < n; i++) {
        const unsigned x = a[i] & 0x7fffu, y = b[i] & 0x7fffu;
        if (x < 0x7c00u && y < 0x7c00u) continue;
        if (x > 0x7c00u || y > 0x7c00u || !x || !y)
            is_nan = 1;
        else if ((a[i] ^ b[i]) & 0x8000u)
            n_minus = 1;
        else
            n_plus = 1;
    }
    if (!is_nan && !n_plus && !n_minus) return 0;
    *out = qn_cuda_bits_float(is_nan || (n_plus && n_minus) ? 0x7fffffffu
                              : n_plus                      ? 0x7f800000u
                                                            : 0xff800000u);
    return 1;
}

/* One aligned sum of n products. */
QN_HD float qn_tensor_sum(const qn_tensor_model *model, float c, const uint16_t *a, const uint16_t *b, int n)
{
    float special;
    if (qn_tensor_special(c, a, b, n, &special)) return special;
    const uint32_t u = qn_cuda_float_bits(c);
    const int c_field = (int)(u >> 23 & 255), c_exponent = c_field ? c_field - 127 : -126;
    const int64_t c_m = (int64_t)(u & 0x7fffffu) | (c_field ? 0x800000 : 0);
    int largest = c_m || model->zeros_have_exponents ? c_exponent : -1000, is_any = c_m != 0;
    for (int i = 0; i < n; i++) {
        const int x = a[i] >> 10 & 31, y = b[i] >> 10 & 31, e = (x ? x : 1) + (y ? y : 1) - 30;
        const int is_zero = !(a[i] & 0x7fffu) || !(b[i] & 0x7fffu);
        if (!is_zero) is_any = 1;
        if ((!is_zero || model->zeros_have_exponents) && e > largest) largest = e;
    }
    if (!is_any) largest = 0;
    const int fraction = 23 + model->extra_bits;
    int64_t sum =
        qn_tensor_align(c_m, (int)(u >> 31), largest - c_exponent + 23 - fraction, model->aligns_down);
    for (int i = 0; i < n; i++) {
        const int x = a[i] >> 10 & 31, y = b[i] >> 10 & 31, e = (x ? x : 1) + (y ? y : 1) - 30;
        const int64_t m =
            (int64_t)((a[i] & 0x3ffu) | (x ? 0x400u : 0)) * ((b[i] & 0x3ffu) | (y ? 0x400u : 0));
        sum += qn_tensor_align(m, (a[i] ^ b[i]) >> 15 & 1, largest - e + 20 - fraction, model->aligns_down);
    }
    return qn_tensor_round(sum, largest - fraction, model->rounds_nearest);
}

QN_HD float qn_tensor_step_of(const qn_tensor_model *model, float c, const uint16_t *a, const uint16_t *b)
{
    for (int i = 0; i < 16; i += model->n_products)
        c = qn_tensor_sum(model, c, a + i, b + i, model->n_products);
    return c;
}

/* One step of 16 on the card that the emulation stands for: c + a[0] b[0] + ... + a[15] b[15], elements are f16. */
QN_HD float qn_tensor_step(float c, const uint16_t a[16], const uint16_t b[16])
{
    const qn_tensor_model model = {QN_TENSOR_EXTRA_BITS, QN_TENSOR_PRODUCTS, 0, 0, 0};
    return qn_tensor_step_of(&model, c, a, b);
}

#endif
