/* Blocks of GGUF files as affine groups, as MLX has them: codes with one scale and one bias, value = scale *
 * code + bias; 32 of them in a group, of Q6_K 16, which MLX has not. Nothing is rounded: where scale or bias
 * is no f16 it comes as f32, and in f32 the value is that of the block's own decoder, bit for bit but for the
 * sign of 0. Any thread. */
#ifndef QN_QUANT_AFFINE_H
#define QN_QUANT_AFFINE_H

#include "quant/types.h"

/* What a block type becomes; bits 0: it has no such form (MXFP4 has no integers). */
qn_affine qn_affine_of_blocks(qn_dtype dtype);
/* n_in columns, whole blocks of the type: codes as one little-endian stream of bits (n_in * bits / 8 bytes),
 * n_in / group scales and biases of the type that qn_affine_of_blocks says. 0 returned: a scale or bias is
 * not finite, or too large for that type; what was written is of no use then. */
int qn_affine_from_blocks(qn_dtype dtype, int64_t n_in, const void *blocks, void *codes, void *scales,
                          void *biases);

#endif
