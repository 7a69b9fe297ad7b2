#include "quant/encode.h"

#include <math.h>
#include <string.h>

static void store16(uint8_t *p, uint16_t v)
{
    memcpy(p, &v, sizeof v);
}

/* 1: the scale has a place in f16. */
static int store_f16(uint8_t *p, float x)
{
    const uint16_t h = qn_f32_to_f16(x);
    store16(p, h);
    return isfinite(qn_f16_to_f32(h));
}

/* A number cut to the codes 0..most; what is no number is 0. */
static uint8_t cut_code(double x, int most)
{
    return (uint8_t)(x >= most ? most : x > 0 ? (int)x : 0);
}

int64_t qn_first_not_finite(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return i;
    return n;
}

/* The number of x[0..n) that is farthest from zero, the first of them. */
static int farthest(const float *x, int n)
{
    int at = 0;
    for (int i = 1; i < n; i++)
        if (fabsf(x[i]) > fabsf(x[at])) at = i;
    return at;
}

/* ---- numbers ------------------------------------------------------------------------------------------- */

int64_t qn_encode_f16(const qn_type *type, const float *x, int64_t n, void *blocks)
{
    uint8_t *p = blocks;
    for (int64_t i = 0; i < n; i++)
        if (!store_f16(p + 2 * i, x[i]) && isfinite(x[i])) return i;
    return n;
}

int64_t qn_encode_bf16(const qn_type *type, const float *x, int64_t n, void *blocks)
{
    uint8_t *p = blocks;
    for (int64_t i = 0; i < n; i++) {
        const uint16_t h = qn_f32_to_bf16(x[i]);
        store16(p + 2 * i, h);
        if (isfinite(x[i]) && !isfinite(qn_bf16_to_f32(h))) return i;
    }
    return n;
}

int64_t qn_encode_f32(const qn_type *type, const float *x, int64_t n, void *blocks)
{
    if (n > 0) memcpy(blocks, x, (size_t)n * sizeof *x);
    return n;
}

/* ---- blocks of 32 -------------------------------------------------------------------------------------- */

/* The lower four bits of 32 codes, as decode.c has them; of five, the upper bits as a word. */
static uint32_t store_codes(const uint8_t q[32], uint8_t *nibbles)
{
    uint32_t high = 0;
    for (int j = 0; j < 16; j++) nibbles[j] = (uint8_t)((q[j] & 15) | (q[j + 16] & 15) << 4);
    for (int j = 0; j < 32; j++) high |= (uint32_t)(q[j] >> 4 & 1) << j;
    return high;
}

/* Codes 0..2 * middle - 1 of which `middle` means zero; the number farthest from zero is code 0 exactly.
 * Rounding is that of the sum in double, as the reference does it. 1: the scale has a place in f16. */
static int encode_around_zero(const float *x, int middle, uint8_t *scale, uint8_t q[32])
{
    const float d = x[farthest(x, 32)] / (float)-middle, inverse = d != 0 ? 1 / d : 0;
    for (int j = 0; j < 32; j++)
        q[j] = cut_code((double)x[j] * (double)inverse + (double)middle + 0.5, 2 * middle - 1);
    return store_f16(scale, d);
}

/* Codes 0..most from the smallest number to the largest. 1: scale and minimum have a place in f16. */
static int encode_from_min(const float *x, int most, uint8_t *scale, uint8_t q[32])
{
    float low = x[0], high = x[0];
    for (int j = 1; j < 32; j++) {
        if (x[j] < low) low = x[j];
        if (x[j] > high) high = x[j];
    }
    const float d = (high - low) / (float)most, inverse = d != 0 ? 1 / d : 0;
    for (int j = 0; j < 32; j++) q[j] = cut_code((double)((x[j] - low) * inverse + 0.5f), most);
    return store_f16(scale, d) & store_f16(scale + 2, low);
}

int64_t qn_encode_q4_0(const qn_type *type, const float *x, int64_t n, void *blocks)
{
    uint8_t *b = blocks, q[32];
    const int64_t end = qn_first_not_finite(x, n);
    for (int64_t i = 0; i < n; i += 32, b += 18, x += 32) {
        if (i + 32 > end) return end;
        if (!encode_around_zero(x, 8, b, q)) return i + farthest(x, 32);
        store_codes(q, b + 2);
    }
    return n;
}

int64_t qn_encode_q4_1(const qn_type *type, const float *x, int64_t n, void *blocks)
{
    uint8_t *b = blocks, q[32];
    const int64_t end = qn_first_not_finite(x, n);
    for (int64_t i = 0; i < n; i += 32, b += 20, x += 32) {
        if (i + 32 > end) return end;
        if (!encode_from_min(x, 15, b, q)) return i + farthest(x, 32);
        store_codes(q, b + 4);
    }
    return n;
}

int64_t qn_encode_q5_0(const qn_type *type, const float *x, int64_t n, void *blocks)
{
    uint8_t *b = blocks, q[32];
    const int64_t end = qn_first_not_finite(x, n);
    for (int64_t i = 0; i < n; i += 32, b += 22, x += 32) {
        if (i + 32 > end) return end;
        if (!encode_around_zero(x, 16, b, q)) return i + farthest(x, 32);
        const uint32_t high = store_codes(q, b + 6);
        memcpy(b + 2, &high, sizeof high);
    }
    return n;
}

int64_t qn_encode_q5_1(const qn_type *type, const float *x, int64_t n, void *blocks)
{
    uint8_t *b = blocks, q[32];
    const int64_t end = qn_first_not_finite(x, n);
    for (int64_t i = 0; i < n; i += 32, b += 24, x += 32) {
        if (i + 32 > end) return end;
        if (!encode_from_min(x, 31, b, q)) return i + farthest(x, 32);
        const uint32_t high = store_codes(q, b + 8);
        memcpy(b + 4, &high, sizeof high);
    }
    return n;
}

int64_t qn_encode_q8_0(const qn_type *type, const float *x, int64_t n, void *blocks)
{
    uint8_t *b = blocks;
    const int64_t end = qn_first_not_finite(x, n);
    for (int64_t i = 0; i < n; i += 32, b += 34, x += 32) {
        if (i + 32 > end) return end;
        const float d = fabsf(x[farthest(x, 32)]) / 127, inverse = d != 0 ? 1 / d : 0;
        if (!store_f16(b, d)) return i + farthest(x, 32);
        for (int j = 0; j < 32; j++) {
            const float q = roundf(x[j] * inverse);
            const int8_t code = (int8_t)(q >= 127 ? 127 : q <= -127 ? -127 : (int)q);
            memcpy(b + 2 + j, &code, 1);
        }
    }
    return n;
}

/* ---- MXFP4, NVFP4 -------------------------------------------------------------------------------------- */

/* The code whose value is nearest to x / (2 half); of two the even one. */
static uint8_t nearest_e2m1(float x, float half)
{
    uint8_t best = 0;
    double least = INFINITY;
    for (uint8_t q = 0; q < 8; q++) {
        const double error = fabs(fabs((double)x) - (double)half * (double)qn_e2m1_twice[q]);
        if (error < least || (error == least && !(q & 1))) {
            least = error;
            best = q;
        }
    }
    return (uint8_t)(best | (best && x < 0 ? 8 : 0));
}

/* Codes of n numbers; the sum of squared errors. */
static double encode_with_half(const float *x, int n, float half, uint8_t *q)
{
    double sum = 0;
    for (int j = 0; j < n; j++) {
        q[j] = nearest_e2m1(x[j], half);
        const double error = (double)x[j] - (double)half * (double)qn_e2m1_twice[q[j]];
        sum += error * error;
    }
    return sum;
}

/* The largest number is at most 6 (code 7) with one exponent, and cut to it with the one below: the better
 * one of both. */
int64_t qn_encode_mxfp4(const qn_type *type, const float *x, int64_t n, void *blocks)
{
    uint8_t *b = blocks, q[2][32];
    const int64_t end = qn_first_not_finite(x, n);
    for (int64_t i = 0; i < n; i += 32, b += 17, x += 32) {
        if (i + 32 > end) return end;
        const float most = fabsf(x[farthest(x, 32)]);
        int e = 0;
        while (e < 254 && 12 * qn_e8m0_half((uint8_t)e) < most) e++;
        const int lower = e ? e - 1 : 0;
        const int i_best = encode_with_half(x, 32, qn_e8m0_half((uint8_t)e), q[0]) >
                           encode_with_half(x, 32, qn_e8m0_half((uint8_t)lower), q[1]);
        b[0] = (uint8_t)(i_best ? lower : e);
        for (int j = 0; j < 16; j++) b[1 + j] = (uint8_t)(q[i_best][j] | q[i_best][j + 16] << 4);
    }
    return n;
}

/* A group of 16: of the scale with which the largest number is at most 6 and those below it, down to where it
 * would be 8, the best one. Numbers beyond 6 * 448 do not go in. */
static int encode_nv_group(const float *x, uint8_t *scale, uint8_t q[16])
{
    const float most = fabsf(x[farthest(x, 16)]);
    uint8_t other[16];
    int s = 0;
    while (s < 0x7e && 12 * qn_e4m3_half((uint8_t)s) < most) s++;
    if (12 * qn_e4m3_half((uint8_t)s) < most) return 0;
    double least = encode_with_half(x, 16, qn_e4m3_half((uint8_t)s), q);
    *scale = (uint8_t)s;
    while (s-- > 0 && 16 * qn_e4m3_half((uint8_t)s) >= most) {
        const double error = encode_with_half(x, 16, qn_e4m3_half((uint8_t)s), other);
        if (error >= least) continue;
        least = error;
        *scale = (uint8_t)s;
        memcpy(q, other, sizeof other);
    }
    return 1;
}

int64_t qn_encode_nvfp4(const qn_type *type, const float *x, int64_t n, void *blocks)
{
    uint8_t *b = blocks, q[2][16];
    const int64_t end = qn_first_not_finite(x, n);
    for (int64_t i = 0; i < n; i += 32, b += 18, x += 32) {
        if (i + 32 > end) return end;
        for (int h = 0; h < 2; h++)
            if (!encode_nv_group(x + 16 * h, &b[h], q[h])) return i + 16 * h + farthest(x + 16 * h, 16);
        for (int j = 0; j < 16; j++) b[2 + j] = (uint8_t)(q[0][j] | q[1][j] << 4);
    }
    return n;
}

/* ---- affine (MLX) -------------------------------------------------------------------------------------- */

/* Rounds v to the type of scales and stores it; the value stored is returned. */
static float store_scale(qn_dtype type, float v, uint8_t *p)
{
    if (type == QN_DTYPE_F32) {
        memcpy(p, &v, sizeof v);
        return v;
    }
    const uint16_t h = type == QN_DTYPE_F16 ? qn_f32_to_f16(v) : qn_f32_to_bf16(v);
    store16(p, h);
    return type == QN_DTYPE_F16 ? qn_f16_to_f32(h) : qn_bf16_to_f32(h);
}

static void pack_bits(const uint8_t q[8], int bits, uint8_t *p)
{
    uint64_t v = 0;
    for (int i = 0; i < 8; i++) v |= (uint64_t)q[i] << bits * i;
    for (int i = 0; i < bits; i++) p[i] = (uint8_t)(v >> 8 * i);
}

/* Scale and bias of a group in two ways. 0: from the end of the range that is farther from zero in steps of
 * which a whole number reaches zero, as MLX chooses them; 1: from the lowest number to the highest. */
static void affine_range(const float *x, int n, int most, int way, float *scale, float *bias)
{
    float low = x[0], high = x[0];
    for (int j = 1; j < n; j++) {
        if (x[j] < low) low = x[j];
        if (x[j] > high) high = x[j];
    }
    const int from_low = way || fabsf(low) > fabsf(high);
    const float edge = from_low ? low : high, width = (float)(((double)high - (double)low) / most);
    float s = width > 1e-7f ? width : 1e-7f;
    if (!from_low) s = -s;
    const float steps = way ? 0 : roundf(edge / s);
    *scale = steps != 0 ? edge / steps : s;
    *bias = way || steps != 0 ? edge : 0;
}

/* Stores scale and bias at b and gives the group's codes; the sum of squared errors, infinite where scale or
 * bias is too large for its type. */
static double encode_group(const float *x, const qn_affine *a, int way, uint8_t *b, uint8_t *q)
{
    const int most = (1 << a->bits) - 1;
    float scale, bias;
    double sum = 0;
    affine_range(x, a->group, most, way, &scale, &bias);
    scale = store_scale(a->scale, scale, b);
    bias = store_scale(a->scale, bias, b + (a->scale == QN_DTYPE_F32 ? 4 : 2));
    if (!isfinite(scale) || !isfinite(bias)) return INFINITY;
    for (int j = 0; j < a->group; j++) {
        q[j] = cut_code(((double)x[j] - (double)bias) / (double)scale + 0.5, most);
        const double error = (double)scale * q[j] + (double)bias - (double)x[j];
        sum += error * error;
    }
    return sum;
}

int64_t qn_encode_affine(const qn_type *type, const float *x, int64_t n, void *blocks)
{
    enum { GROUP_MAX = 128, SCALES_MAX = 8 };
    const qn_affine a = qn_affine_of(type->dtype);
    const size_t scale_bytes = a.scale == QN_DTYPE_F32 ? 4 : 2;
    const int64_t end = qn_first_not_finite(x, n);
    uint8_t *b = blocks, q[2][GROUP_MAX], scales[2][SCALES_MAX];
    for (int64_t i = 0; i < n; i += a.group, b += type->block_bytes, x += a.group) {
        if (i + a.group > end) return end;
        const double first = encode_group(x, &a, 0, scales[0], q[0]),
                     second = encode_group(x, &a, 1, scales[1], q[1]);
        const int way = second < first;
        if (!isfinite(way ? second : first)) return i + farthest(x, a.group);
        memcpy(b, scales[way], 2 * scale_bytes);
        for (int j = 0; j < a.group; j += 8)
            pack_bits(q[way] + j, a.bits, b + 2 * scale_bytes + j / 8 * a.bits);
    }
    return n;
}
