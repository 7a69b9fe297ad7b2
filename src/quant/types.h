/* Block formats: one row per type. A row of a matrix is cols / block_elements blocks; a block is block_bytes
 * bytes. Plain numeric types are rows too, with block_elements 1. Decoding follows the GGUF definitions
 * (ggml-quants); f32 arithmetic, `d * q + m` style expressions rounded after each operation (no fused
 * multiply-add). MLX's types lie in files as several tensors; quant/mlx.h joins them into blocks. Compute
 * layouts are not known here (src/device/cpu/kernels). Any thread. */
#ifndef QN_QUANT_TYPES_H
#define QN_QUANT_TYPES_H

#include <quern/dtype.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct qn_type {
    qn_dtype dtype;
    const char *name;    /* "q4_k" */
    int ggml_type;       /* number in GGUF files, -1: none */
    const char *st_name; /* name in safetensors headers ("BF16"), NULL: none */
    int64_t block_elements;
    size_t block_bytes;
    /* Decodes n elements (a multiple of block_elements) to f32; blocks may be of any alignment. NULL: not a
     * type of weights (integers). */
    void (*decode)(const struct qn_type *type, const void *blocks, int64_t n, float *out);
    /* The other way; returns n, or the place of the first number that the type cannot hold (encode.h). NULL:
     * no encoder. */
    int64_t (*encode)(const struct qn_type *type, const float *x, int64_t n, void *blocks);
} qn_type;

/* What an affine type says in its name. */
typedef struct {
    int bits, group; /* of a code; elements of a block */
    qn_dtype scale;  /* type of scale and bias: F16, BF16 or F32 */
} qn_affine;
/* bits 0: not an affine type. */
static inline __attribute__((always_inline)) qn_affine qn_affine_of(qn_dtype dtype)
{
    static const int bits[6] = {2, 3, 4, 5, 6, 8};
    static const qn_dtype scales[3] = {QN_DTYPE_F16, QN_DTYPE_BF16, QN_DTYPE_F32};
    if (dtype < QN_DTYPE_AFFINE2_G32_F16 || dtype > QN_DTYPE_AFFINE8_G128_F32)
        return (qn_affine){0, 0, QN_DTYPE_F32};
    int i = (int)dtype - (int)QN_DTYPE_AFFINE2_G32_F16;
    return (qn_affine){bits[i / 9], 32 << i / 3 % 3, scales[i % 3]};
}
/* The type with these properties; 0 returned when there is none. */
int qn_affine_type(int bits, int group, qn_dtype scale, qn_dtype *out);
/* 8 codes of `bits` bits (1..8) from a little-endian stream of bits: p[0..bits). */
static inline void qn_unpack_bits(const uint8_t *p, int bits, uint8_t q[8])
{
    uint64_t v = 0;
    for (int i = 0; i < bits; i++) v |= (uint64_t)p[i] << 8 * i;
    for (int i = 0; i < 8; i++) q[i] = (uint8_t)(v >> bits * i & ((1u << bits) - 1));
}

/* Never NULL for a valid dtype. */
const qn_type *qn_type_get(qn_dtype dtype);
/* NULL: unknown. */
const qn_type *qn_type_from_ggml(uint32_t ggml_type);
/* The name ggml gives to a type number ("IQ2_XXS"), also for types that are not supported; NULL: no such
 * number. */
const char *qn_ggml_type_name(uint32_t ggml_type);
/* Block size of any type number that ggml gives a name; 0 and nothing written: no such number. */
int qn_ggml_type_layout(uint32_t ggml_type, int64_t *block_elements, size_t *block_bytes);
const qn_type *qn_type_from_safetensors(const char *name, size_t n);
/* 1 for block types (block_elements > 1). */
int qn_type_is_quantised(qn_dtype dtype);
/* Bytes of n elements; 0 returned when n is negative, not a multiple of the block, or too large. */
int qn_type_bytes(qn_dtype dtype, int64_t n, size_t *bytes);

/* f16 and bf16 to f32, exact, and back, rounded to nearest even; NaN stays NaN. Without tables and calls, so
 * that loops over them vectorise on any chip. */
static inline uint32_t qn_float_bits(float f)
{
    union {
        float f;
        uint32_t u;
    } v = {f};
    return v.u;
}

static inline float qn_bits_float(uint32_t u)
{
    union {
        uint32_t u;
        float f;
    } v = {u};
    return v.f;
}

/* MXFP4, NVFP4: twice the value of each code; and half of the scale 2^(e - 127) of a block of MXFP4. */
extern const int8_t qn_e2m1_twice[16];
static inline float qn_e8m0_half(uint8_t e)
{
    return qn_bits_float(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

/* With the sign shifted out, a normal number (or infinity, NaN) is rebased by adding 0xe0 to its exponent and
 * multiplying by 2^-112; a subnormal becomes the low bits of a number in [0.5, 1), from which 0.5 is taken
 * away. Both are exact. */
static inline float qn_f16_to_f32(uint16_t h)
{
    uint32_t w = (uint32_t)h << 16, sign = w & 0x80000000u, twice = w + w;
    float normal = qn_bits_float((twice >> 4) + (0xe0u << 23)) * 0x1p-112f;
    float subnormal = qn_bits_float((twice >> 17) | (126u << 23)) - 0.5f;
    return qn_bits_float(sign | (twice < (1u << 27) ? qn_float_bits(subnormal) : qn_float_bits(normal)));
}

/* Half of an E4M3 number (a scale of NVFP4), exact: it has no infinities, and one NaN of either sign. Its
 * bits are those of an f16 with a smaller bias. */
static inline float qn_e4m3_half(uint8_t s)
{
    const float half = qn_f16_to_f32((uint16_t)((s & 0x80u) << 8 | (s & 0x7fu) << 7)) * 128;
    return (s & 0x7fu) == 0x7fu ? qn_bits_float(0x7fc00000u) : half;
}

static inline uint16_t qn_f32_to_f16(float f)
{
    uint32_t u = qn_float_bits(f), x = u & 0x7fffffffu;
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000u);
    if (x > 0x7f800000u) return sign | 0x7e00u | (uint16_t)(x >> 13 & 0x1ffu); /* NaN, made quiet */
    if (x >= 0x477ff000u) return sign | 0x7c00u; /* 65520 is half-way above the largest, which is odd */
    if (x < 0x38800000u)                         /* the sum's last place is 2^-24, as a subnormal's */
        return sign | (uint16_t)(qn_float_bits(qn_bits_float(x) + 0.5f) - 0x3f000000u);
    return sign | (uint16_t)((x - 0x38000000u + 0xfffu + (x >> 13 & 1)) >> 13);
}

static inline float qn_bf16_to_f32(uint16_t h)
{
    return qn_bits_float((uint32_t)h << 16);
}

static inline uint16_t qn_f32_to_bf16(float f)
{
    uint32_t u = qn_float_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40u); /* NaN, made quiet */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

#endif
