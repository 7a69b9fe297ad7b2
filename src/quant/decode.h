/* The decoders behind qn_type.decode, one per type of weights: n elements (a multiple of the block) to f32.
 * Layouts are the GGUF definitions; each comment at the definition draws the block. Blocks need no alignment.
 * Any thread. */
#ifndef QN_QUANT_DECODE_H
#define QN_QUANT_DECODE_H

#include <stdint.h>

void qn_decode_f16(const void *blocks, int64_t n, float *out);
void qn_decode_bf16(const void *blocks, int64_t n, float *out);
void qn_decode_f32(const void *blocks, int64_t n, float *out);
void qn_decode_f64(const void *blocks, int64_t n, float *out);
void qn_decode_q4_0(const void *blocks, int64_t n, float *out);
void qn_decode_q4_1(const void *blocks, int64_t n, float *out);
void qn_decode_q5_0(const void *blocks, int64_t n, float *out);
void qn_decode_q5_1(const void *blocks, int64_t n, float *out);
void qn_decode_q8_0(const void *blocks, int64_t n, float *out);
void qn_decode_q4_k(const void *blocks, int64_t n, float *out);
void qn_decode_q5_k(const void *blocks, int64_t n, float *out);
void qn_decode_q6_k(const void *blocks, int64_t n, float *out);

#endif
