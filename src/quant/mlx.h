/* MLX's quantised matrices. In files a matrix [rows, cols] is up to three tensors (mlx.core.quantize):
 *   weight  U32 [rows, cols * bits / 32], a row being one little-endian stream of bits
 *   scales  [rows, cols / group], F16, BF16 or F32; U8 for mxfp4, where s means 2^(s - 127), and for nvfp4,
 *           where it is an E4M3 number for 16 columns
 *   biases  as scales; none for mxfp4 and nvfp4
 * This file joins a row of them into the blocks of its dtype, and takes them apart: AFFINE*: scale, bias,
 * codes as in the stream; MXFP4: the block of GGUF files; NVFP4: two scales and MXFP4's nibbles. Any thread.
 */
#ifndef QN_QUANT_MLX_H
#define QN_QUANT_MLX_H

#include "quant/types.h"

/* Bytes that a row of a matrix with n_in columns takes in each of the three. */
typedef struct {
    size_t data, scales, biases;
} qn_mlx_row_bytes;
qn_mlx_row_bytes qn_mlx_row(qn_dtype dtype, int64_t n_in);

/* Row i as blocks: qn_type_bytes(dtype, n_in) bytes. dtype: AFFINE*, MXFP4 or NVFP4; n_in: a multiple of its
 * block; the three: of the whole matrix, of any alignment. */
void qn_mlx_join(qn_dtype dtype, int64_t n_in, const void *weight, const void *scales, const void *biases,
                 int64_t i, void *out);

/* The other way: row i of the three from its blocks. */
void qn_mlx_split(qn_dtype dtype, int64_t n_in, const void *blocks, int64_t i, void *weight, void *scales,
                  void *biases);

#endif
