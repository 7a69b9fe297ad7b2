/* Packed weights and packed activations: where every byte lies. Known to kernels/ alone.
 *
 * A panel holds 16 output rows of a weight (a vector lane is a row); panels follow each other without gaps.
 *   F32    [n_in][16] f32
 *   F16    [n_in][16] f16
 *   BF16   [ceil(n_in / 2)][16][2] bf16: pairs along k; the last one of an odd n_in is filled with 0
 *   others chunks of 8 blocks of 32 along k (the last of a panel may have fewer), by their layout (layout.h):
 *
 *     chunk  = header, then the codes of its blocks
 *     header = SYM4 SYM5 SYM8: [block] d f16[16]
 *              MIN4 MIN5:      [block] (d f16[16], m f16[16])
 *              GROUP*:         [group of 32, 64 or 128] (scale[16], bias[16]), f16, bf16 or f32
 *              E2M1_BLOCK:     [block] e u8[16]
 *              E2M1_HALF:      [block] s e4m3 [half block][16]
 *              K4 K5:          d f16[16], dmin f16[16],
 *                              the 12 bytes of 6-bit scales and mins as in the file [12][16]
 *              SUB6:           d f16[16], 32 bytes of padding, scales i8 [16 half blocks][16]
 *     codes  = by their number of bits (layouts.def) these parts, in this order:
 *              4, 5, 6:  four vectors of 64 bytes; byte (lane, j) of vector i has the low bits of
 *                        k = 4 i + j in its low nibble, those of k = 16 + 4 i + j in its high one
 *              2, 3, 6:  two vectors; bits 2 i, 2 i + 1 of byte (lane, j) of vector h belong to
 *                        k = 16 h + 4 i + j: all of its bits, the low ones, the high ones
 *              3, 5:     one vector; bit g of byte (lane, j) is the highest bit of k = 4 g + j
 *              8:        eight vectors; byte (lane, j) of vector g is k = 4 g + j (SYM8: plus 128)
 *
 * Nothing is lost and only SUB6 grows (by 1%). weight = scale * (code - zero) + min, see qn_layout_*.
 * A row of activations is a row of blocks qn_act_i8 / qn_act_i8x2, or plain f32, or bf16 (an even number of
 * them). */
#ifndef QN_DEVICE_CPU_KERNELS_MATMUL_PACK_H
#define QN_DEVICE_CPU_KERNELS_MATMUL_PACK_H

#include <quern/dtype.h>
#include <stddef.h>
#include <stdint.h>

#include "device/cpu/kernels/kernels.h"
#include "device/cpu/kernels/matmul/layout.h"
#include "quant/types.h"

/* Of everything that is drawn above: it is raised whenever a byte of any layout moves (pack_test.c knows), so
 * that packed files of before are not taken for those of now. */
enum { QN_LAYOUT_VERSION = 1 };

/* One block of 32 activations: x = scale * q, or scale * (128 hi + lo). zero[0] = -128 times the sum of the
 * integers, zero[1] of those of the second half alone: the start value of a dot product with codes whose zero
 * is 128 (shift it right for a smaller one). sum = scale * the sum of all integers, for mins. |q|, |hi| <=
 * 127, |lo| <= 64. A block that holds NaN or an infinity has NaN as scale and sum, so that every output of
 * its row is NaN; one whose values are all below QN_ACT_TINY is zero. */
typedef struct {
    int8_t q[QN_BLOCK];
    float scale, sum;
    int32_t zero[2];
} qn_act_i8;
typedef struct {
    int8_t hi[QN_BLOCK], lo[QN_BLOCK];
    float scale, sum;
    int32_t zero[2];
} qn_act_i8x2;
#define QN_ACT_TINY 0x1p-112f
enum { QN_ACT_I8_MAX = 127, QN_ACT_I8X2_MAX = 127 * 128 };

/* The fields of qn_kernels that are the same for every set. */
void qn_pack(qn_dtype dtype, int64_t n_in, int64_t n_out, const void *rows, int64_t begin, int64_t end,
             void *dst);
void qn_unpack_row(qn_dtype dtype, int64_t n_in, const void *panels, int64_t row, float *out);

/* The 32 codes of one lane of a block, as they are multiplied. */
void qn_lane_codes(qn_layout layout, const uint8_t *codes, int lane, uint8_t q[QN_BLOCK]);
/* Scales of one lane of block i_block of a chunk of n_blocks: weight = d * (code - zero) + m, for
 * types by halves d or, in the second half block, m * (code - zero). d and m are exact products. */
typedef struct {
    float d, m;
} qn_lane_scale;
qn_lane_scale qn_lane_scales(qn_dtype dtype, const uint8_t *header, int i_block, int lane);

#endif
