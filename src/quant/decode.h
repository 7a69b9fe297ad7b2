/* The decoders behind qn_type.decode, one per type of weights: n elements (a multiple of the block) to f32.
 * Layouts are the GGUF definitions and quant/mlx.h; each comment at the definition draws the block. Blocks
 * need no alignment. Any thread. */
#ifndef QN_QUANT_DECODE_H
#define QN_QUANT_DECODE_H

#include <stdint.h>

#include "quant/types.h"

/* Number i of the 8 scales and 8 minima of 6 bits that Q4_K and Q5_K hold in 12 bytes: numbers 0..3 in the
 * low 6 bits of bytes 0..3 (scales) and 4..7 (minima); of numbers 4..7 the low nibbles are in bytes 8..11
 * (scale low, minimum high) and the top 2 bits above those of bytes 0..3 and 4..7. */
static inline void qn_k_scale_and_min(const uint8_t *s, int i, int *scale, int *min)
{
    if (i < 4) {
        *scale = s[i] & 63;
        *min = s[i + 4] & 63;
    } else {
        *scale = (s[i + 4] & 15) | (s[i - 4] >> 6) << 4;
        *min = (s[i + 4] >> 4) | (s[i] >> 6) << 4;
    }
}

void qn_decode_f16(const qn_type *type, const void *blocks, int64_t n, float *out);
void qn_decode_bf16(const qn_type *type, const void *blocks, int64_t n, float *out);
void qn_decode_f32(const qn_type *type, const void *blocks, int64_t n, float *out);
void qn_decode_f64(const qn_type *type, const void *blocks, int64_t n, float *out);
void qn_decode_q4_0(const qn_type *type, const void *blocks, int64_t n, float *out);
void qn_decode_q4_1(const qn_type *type, const void *blocks, int64_t n, float *out);
void qn_decode_q5_0(const qn_type *type, const void *blocks, int64_t n, float *out);
void qn_decode_q5_1(const qn_type *type, const void *blocks, int64_t n, float *out);
void qn_decode_q8_0(const qn_type *type, const void *blocks, int64_t n, float *out);
void qn_decode_q4_k(const qn_type *type, const void *blocks, int64_t n, float *out);
void qn_decode_q5_k(const qn_type *type, const void *blocks, int64_t n, float *out);
void qn_decode_q6_k(const qn_type *type, const void *blocks, int64_t n, float *out);
void qn_decode_mxfp4(const qn_type *type, const void *blocks, int64_t n, float *out);
void qn_decode_nvfp4(const qn_type *type, const void *blocks, int64_t n, float *out);
void qn_decode_affine(const qn_type *type, const void *blocks, int64_t n, float *out);

#endif
