#include "quant/decode.h"

#include <string.h>

#include "quant/types.h"

static inline uint16_t load16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint32_t load32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline float load_f16(const uint8_t *p)
{
    return qn_f16_to_f32(load16(p));
}

void qn_decode_f16(const qn_type *type, const void *blocks, int64_t n, float *out)
{
    const uint8_t *p = blocks;
    for (int64_t i = 0; i < n; i++) out[i] = load_f16(p + 2 * i);
}

void qn_decode_bf16(const qn_type *type, const void *blocks, int64_t n, float *out)
{
    const uint8_t *p = blocks;
    for (int64_t i = 0; i < n; i++) out[i] = qn_bf16_to_f32(load16(p + 2 * i));
}

void qn_decode_f32(const qn_type *type, const void *blocks, int64_t n, float *out)
{
    if (n > 0) memcpy(out, blocks, (size_t)n * sizeof *out);
}

void qn_decode_f64(const qn_type *type, const void *blocks, int64_t n, float *out)
{
    const uint8_t *p = blocks;
    for (int64_t i = 0; i < n; i++) {
        double v;
        memcpy(&v, p + 8 * i, sizeof v);
        out[i] = (float)v;
    }
}

/* The legacy types have blocks of 32. Of 16 bytes of nibbles, byte j holds element j low and element j + 16
 * high; a fifth bit comes from bit j (or j + 16) of a 32-bit word. */

/* f16 d | nibbles[16]; d * (q - 8) */
void qn_decode_q4_0(const qn_type *type, const void *blocks, int64_t n, float *out)
{
    const uint8_t *b = blocks;
    for (int64_t i = 0; i < n; i += 32, b += 18, out += 32) {
        float d = load_f16(b);
        const uint8_t *q = b + 2;
        for (int j = 0; j < 16; j++) {
            out[j] = d * (float)((q[j] & 15) - 8);
            out[j + 16] = d * (float)((q[j] >> 4) - 8);
        }
    }
}

/* f16 d, m | nibbles[16]; d * q + m */
void qn_decode_q4_1(const qn_type *type, const void *blocks, int64_t n, float *out)
{
    const uint8_t *b = blocks;
    for (int64_t i = 0; i < n; i += 32, b += 20, out += 32) {
        float d = load_f16(b), m = load_f16(b + 2);
        const uint8_t *q = b + 4;
        for (int j = 0; j < 16; j++) {
            out[j] = d * (float)(q[j] & 15) + m;
            out[j + 16] = d * (float)(q[j] >> 4) + m;
        }
    }
}

/* f16 d | u32 fifth bits | nibbles[16]; d * (q - 16) */
void qn_decode_q5_0(const qn_type *type, const void *blocks, int64_t n, float *out)
{
    const uint8_t *b = blocks;
    for (int64_t i = 0; i < n; i += 32, b += 22, out += 32) {
        float d = load_f16(b);
        uint32_t high = load32(b + 2);
        const uint8_t *q = b + 6;
        for (int j = 0; j < 16; j++) {
            int low_q = (q[j] & 15) | (int)((high >> j) & 1) << 4;
            int high_q = (q[j] >> 4) | (int)((high >> (j + 16)) & 1) << 4;
            out[j] = d * (float)(low_q - 16);
            out[j + 16] = d * (float)(high_q - 16);
        }
    }
}

/* f16 d, m | u32 fifth bits | nibbles[16]; d * q + m */
void qn_decode_q5_1(const qn_type *type, const void *blocks, int64_t n, float *out)
{
    const uint8_t *b = blocks;
    for (int64_t i = 0; i < n; i += 32, b += 24, out += 32) {
        float d = load_f16(b), m = load_f16(b + 2);
        uint32_t high = load32(b + 4);
        const uint8_t *q = b + 8;
        for (int j = 0; j < 16; j++) {
            int low_q = (q[j] & 15) | (int)((high >> j) & 1) << 4;
            int high_q = (q[j] >> 4) | (int)((high >> (j + 16)) & 1) << 4;
            out[j] = d * (float)low_q + m;
            out[j + 16] = d * (float)high_q + m;
        }
    }
}

/* f16 d | i8 q[32]; d * q */
void qn_decode_q8_0(const qn_type *type, const void *blocks, int64_t n, float *out)
{
    const uint8_t *b = blocks;
    for (int64_t i = 0; i < n; i += 32, b += 34, out += 32) {
        float d = load_f16(b);
        const int8_t *q = (const int8_t *)(b + 2);
        for (int j = 0; j < 32; j++) out[j] = d * (float)q[j];
    }
}

/* The K types have super-blocks of 256.
 *
 * f16 d, dmin | scales[12] | nibbles[128]; (d * scale) * q - (dmin * min).
 * Sub-blocks of 32: each 32 bytes of nibbles hold an even one low and the next, odd one high. */
void qn_decode_q4_k(const qn_type *type, const void *blocks, int64_t n, float *out)
{
    const uint8_t *b = blocks;
    for (int64_t i = 0; i < n; i += 256, b += 144) {
        float d = load_f16(b), dmin = load_f16(b + 2);
        for (int k = 0; k < 8; k++, out += 32) {
            int scale, min, shift = 4 * (k & 1);
            qn_k_scale_and_min(b + 4, k, &scale, &min);
            float ds = d * (float)scale, m = dmin * (float)min;
            const uint8_t *q = b + 16 + 32 * (k / 2);
            for (int j = 0; j < 32; j++) out[j] = ds * (float)((q[j] >> shift) & 15) - m;
        }
    }
}

/* f16 d, dmin | scales[12] | fifth bits[32] | nibbles[128]; as Q4_K; bit k of byte j is the fifth of element
 * j in sub-block k. */
void qn_decode_q5_k(const qn_type *type, const void *blocks, int64_t n, float *out)
{
    const uint8_t *b = blocks;
    for (int64_t i = 0; i < n; i += 256, b += 176) {
        float d = load_f16(b), dmin = load_f16(b + 2);
        const uint8_t *high = b + 16;
        for (int k = 0; k < 8; k++, out += 32) {
            int scale, min, shift = 4 * (k & 1);
            qn_k_scale_and_min(b + 4, k, &scale, &min);
            float ds = d * (float)scale, m = dmin * (float)min;
            const uint8_t *q = b + 48 + 32 * (k / 2);
            for (int j = 0; j < 32; j++) {
                int v = ((q[j] >> shift) & 15) | ((high[j] >> k) & 1) << 4;
                out[j] = ds * (float)v - m;
            }
        }
    }
}

/* nibbles[128] | top bits[64] | i8 scales[16] | f16 d; (d * scale) * (q - 32). Halves of 128 elements: 64
 * bytes of nibbles, 32 of top bits, 8 scales. Element 32 g + j of a half: nibble of byte j + 32 (g & 1), low
 * for g < 2; bits 2g of top byte j; one scale per 16. */
void qn_decode_q6_k(const qn_type *type, const void *blocks, int64_t n, float *out)
{
    const uint8_t *b = blocks;
    for (int64_t i = 0; i < n; i += 256, b += 210) {
        float d = load_f16(b + 208);
        for (int half = 0; half < 2; half++) {
            const uint8_t *top = b + 128 + 32 * half;
            const int8_t *scales = (const int8_t *)(b + 192 + 8 * half);
            for (int g = 0; g < 4; g++, out += 32) {
                const uint8_t *low = b + 64 * half + 32 * (g & 1);
                int shift = g < 2 ? 0 : 4;
                for (int part = 0; part < 2; part++) {
                    float ds = d * (float)scales[2 * g + part];
                    for (int j = 16 * part; j < 16 * part + 16; j++) {
                        int v = ((low[j] >> shift) & 15) | ((top[j] >> 2 * g) & 3) << 4;
                        out[j] = ds * (float)(v - 32);
                    }
                }
            }
        }
    }
}

/* u8 e | nibbles[16]; 2^(e - 127) * E2M1 (OCP Microscaling Formats). Halved and doubled: the codes' values
 * are integers then. */
void qn_decode_mxfp4(const qn_type *type, const void *blocks, int64_t n, float *out)
{
    const uint8_t *b = blocks;
    for (int64_t i = 0; i < n; i += 32, b += 17, out += 32) {
        float d = qn_e8m0_half(b[0]);
        for (int j = 0; j < 16; j++) {
            out[j] = d * (float)qn_e2m1_twice[b[1 + j] & 15];
            out[j + 16] = d * (float)qn_e2m1_twice[b[1 + j] >> 4];
        }
    }
}

/* e4m3 s[2] | nibbles[16]; a scale for each half, halved as MXFP4's. Nibbles lie as there: element j is low
 * in byte j, element j + 16 high. */
void qn_decode_nvfp4(const qn_type *type, const void *blocks, int64_t n, float *out)
{
    const uint8_t *b = blocks;
    for (int64_t i = 0; i < n; i += 32, b += 18, out += 32) {
        const float d[2] = {qn_e4m3_half(b[0]), qn_e4m3_half(b[1])};
        for (int j = 0; j < 16; j++) {
            out[j] = d[0] * (float)qn_e2m1_twice[b[2 + j] & 15];
            out[j + 16] = d[1] * (float)qn_e2m1_twice[b[2 + j] >> 4];
        }
    }
}

const int8_t qn_e2m1_twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* scale, bias | codes as one little-endian stream of bits; scale * q + bias */
void qn_decode_affine(const qn_type *type, const void *blocks, int64_t n, float *out)
{
    const uint8_t *b = blocks;
    qn_affine a = qn_affine_of(type->dtype);
    size_t scale_bytes = a.scale == QN_DTYPE_F32 ? 4 : 2;
    for (int64_t i = 0; i < n; i += a.group, b += type->block_bytes, out += a.group) {
        const uint8_t *codes = b + 2 * scale_bytes;
        float v[2];
        for (int j = 0; j < 2; j++) {
            uint16_t half;
            memcpy(&v[j], b + (size_t)j * scale_bytes, scale_bytes);
            memcpy(&half, b + (size_t)j * scale_bytes, sizeof half);
            if (a.scale != QN_DTYPE_F32)
                v[j] = a.scale == QN_DTYPE_F16 ? qn_f16_to_f32(half) : qn_bf16_to_f32(half);
        }
        uint8_t q[8];
        for (int j = 0; j < a.group; j += 8, codes += a.bits) {
            qn_unpack_bits(codes, a.bits, q);
            for (int k = 0; k < 8; k++) out[j + k] = v[0] * (float)q[k] + v[1];
        }
    }
}
