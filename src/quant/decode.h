/* The decoders behind qn_type.decode, one per type of weights: n elements (a multiple of the block) to f32.
 * Layouts are the GGUF definitions and quant/mlx.h; each comment at the definition draws the block. Blocks
 * need no alignment. Any thread. */
#ifndef QN_QUANT_DECODE_H
#define QN_QUANT_DECODE_H

#include <stdint.h>

#include "quant/types.h"

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
void qn_decode_affine(const qn_type *type, const void *blocks, int64_t n, float *out);

#endif
