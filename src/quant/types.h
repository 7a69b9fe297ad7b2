/* Block formats: one row per type. A row of a matrix is cols / block_elements blocks; a block is block_bytes
 * bytes. Plain numeric types are rows too, with block_elements 1. Decoding follows the GGUF definitions
 * (ggml-quants); f32 arithmetic, `d * q + m` style expressions rounded after each operation (no fused
 * multiply-add). Compute layouts are not known here (src/kernels). Any thread. */
#ifndef QN_QUANT_TYPES_H
#define QN_QUANT_TYPES_H

#include <quern/dtype.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct {
    qn_dtype dtype;
    const char *name;    /* "q4_k" */
    int ggml_type;       /* number in GGUF files, -1: none */
    const char *st_name; /* name in safetensors headers ("BF16"), NULL: none */
    int64_t block_elements;
    size_t block_bytes;
    /* Decodes n elements (a multiple of block_elements) to f32. NULL: not a type of weights (integers). */
    void (*decode)(const void *blocks, int64_t n, float *out);
} qn_type;

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

/* f16/bf16 <-> f32; conversions to 16 bits round to nearest even. */
float qn_f16_to_f32(uint16_t h);
uint16_t qn_f32_to_f16(float f);
static inline float qn_bf16_to_f32(uint16_t h)
{
    union {
        uint32_t u;
        float f;
    } v = {(uint32_t)h << 16};
    return v.f;
}
uint16_t qn_f32_to_bf16(float f);

#endif
