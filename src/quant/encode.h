/* The encoders behind qn_type.encode, one per type of weights: n f32 numbers (a multiple of the block) to
 * blocks of which decode.h gives them back as nearly as the type's form allows. The bytes depend on the
 * numbers alone. Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 are those of the GGUF reference quantiser; the K types and
 * MXFP4 search for the scales that leave the smallest error. Blocks need no alignment. Any thread.
 *
 * All return how many numbers were encoded: n, or the place of the first that the type cannot hold: in a type
 * of blocks one that is not finite, or a block that is too large for its scale; in f16 and bf16 a finite one
 * that would become infinite (what is not finite stays so there). */
#ifndef QN_QUANT_ENCODE_H
#define QN_QUANT_ENCODE_H

#include <stdint.h>

#include "quant/types.h"

int64_t qn_encode_f16(const qn_type *type, const float *x, int64_t n, void *blocks);
int64_t qn_encode_bf16(const qn_type *type, const float *x, int64_t n, void *blocks);
int64_t qn_encode_f32(const qn_type *type, const float *x, int64_t n, void *blocks);
int64_t qn_encode_q4_0(const qn_type *type, const float *x, int64_t n, void *blocks);
int64_t qn_encode_q4_1(const qn_type *type, const float *x, int64_t n, void *blocks);
int64_t qn_encode_q5_0(const qn_type *type, const float *x, int64_t n, void *blocks);
int64_t qn_encode_q5_1(const qn_type *type, const float *x, int64_t n, void *blocks);
int64_t qn_encode_q8_0(const qn_type *type, const float *x, int64_t n, void *blocks);
int64_t qn_encode_q4_k(const qn_type *type, const float *x, int64_t n, void *blocks);
int64_t qn_encode_q5_k(const qn_type *type, const float *x, int64_t n, void *blocks);
int64_t qn_encode_q6_k(const qn_type *type, const float *x, int64_t n, void *blocks);
int64_t qn_encode_mxfp4(const qn_type *type, const float *x, int64_t n, void *blocks);
int64_t qn_encode_nvfp4(const qn_type *type, const float *x, int64_t n, void *blocks);
int64_t qn_encode_affine(const qn_type *type, const float *x, int64_t n, void *blocks);

/* The place in x[0..n) of the first number that is not finite; n: all are. */
int64_t qn_first_not_finite(const float *x, int64_t n);

#endif
