/* Packed weights and packed activations: where every byte lies. Known to kernels/ alone.
 *
 * A panel holds 16 output rows of a weight (a vector lane is a row); panels follow each other without gaps.
 *   F32    [n_in][16] f32
 *   F16    [n_in][16] f16
 *   BF16   [ceil(n_in / 2)][16][2] bf16: pairs along k; the last one of an odd n_in is filled with 0
 *   others chunks of 8 blocks of 32 along k (the last chunk of a panel may have fewer):
 *
 *     chunk  = header, then the codes of its blocks
 *     header = Q4_0 Q5_0 Q8_0: [block] d f16[16]
 *              Q4_1 Q5_1:      [block] (d f16[16], m f16[16])
 *              AFFINE*:        [group of 32, 64 or 128] (scale[16], bias[16]), f16, bf16 or f32
 *              MXFP4:          [block] e u8[16]
 *              NVFP4:          [block] s e4m3 [half block][16]
 *              Q4_K Q5_K:      d f16[16], dmin f16[16],
 *                              the 12 bytes of 6-bit scales and mins as in the file [12][16]
 *              Q6_K:           d f16[16], 32 bytes of padding, scales i8 [16 half blocks][16]
 *     codes  = by their number of bits these parts, in this order:
 *              4, 5, 6, MXFP4 and NVFP4:
 *                        four vectors of 64 bytes; byte (lane, j) of vector i has the low bits of
 *                        k = 4 i + j in its low nibble, those of k = 16 + 4 i + j in its high one
 *              2, 3, 6:  two vectors; bits 2 i, 2 i + 1 of byte (lane, j) of vector h belong to
 *                        k = 16 h + 4 i + j: all of its bits, the low ones, the high ones
 *              3, 5:     one vector; bit g of byte (lane, j) is the highest bit of k = 4 g + j
 *              8:        eight vectors; byte (lane, j) of vector g is k = 4 g + j (Q8_0: plus 128)
 *
 * Nothing is lost and only Q6_K grows (by 1%). weight = scale * (code - zero) + min, see qn_layout_*.
 * A row of activations is a row of blocks qn_act_i8 / qn_act_i8x2, or plain f32, or bf16 (an even number of
 * them). */
#ifndef QN_KERNELS_PACK_H
#define QN_KERNELS_PACK_H

#include <quern/dtype.h>
#include <stddef.h>
#include <stdint.h>

#include "device/cpu/kernels/kernels.h"
#include "quant/types.h"

#define INLINE static inline __attribute__((always_inline))

enum { QN_BLOCK = 32, QN_CHUNK = 8 };

/* Of everything that is drawn above: it is raised whenever a byte of any layout moves (pack_test.c knows), so
 * that packed files of before are not taken for those of now. */
enum { QN_LAYOUT_VERSION = 1 };

/* How the integer sum of a block becomes a float. */
typedef enum {
    QN_SCALE_NONE, /* not a block type */
    QN_SCALE_SYM,  /* d (code - zero) */
    QN_SCALE_MIN,  /* d code + m */
    QN_SCALE_K,    /* d sc code - dmin mn; sc, mn of 6 bits per block */
    QN_SCALE_SUB,  /* d sc (code - zero); sc i8 per half block */
    QN_SCALE_HALF, /* d (code - zero); d of each half block */
    QN_SCALE_GROUP /* d code + m; d, m of several blocks */
} qn_scale_kind;

/* The types that kernels are compiled for. The nine affine types of equal bits share one: their groups and
 * scales are looked up once a chunk. */
#define QN_BLOCK_TYPES(X) QN_GGUF_BLOCK_TYPES(X) X(NVFP4) QN_AFFINE_BLOCK_TYPES(X)
#define QN_GGUF_BLOCK_TYPES(X) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(Q4_K) X(Q5_K) X(Q6_K) X(MXFP4)
#define QN_AFFINE_BLOCK_TYPES(X) \
    X(AFFINE2_G64_BF16)          \
    X(AFFINE3_G64_BF16) X(AFFINE4_G64_BF16) X(AFFINE5_G64_BF16) X(AFFINE6_G64_BF16) X(AFFINE8_G64_BF16)

INLINE qn_dtype qn_layout_type(qn_dtype t)
{
    int i = (int)t - (int)QN_DTYPE_AFFINE2_G32_F16,
        same = QN_DTYPE_AFFINE2_G64_BF16 - QN_DTYPE_AFFINE2_G32_F16;
    return qn_affine_of(t).bits ? (qn_dtype)(QN_DTYPE_AFFINE2_G32_F16 + i / 9 * 9 + same) : t;
}

/* The functions below are for constant dtypes: they fold away. Merely `inline`, they were called and their
 * answers looked at for each block, for a compiler gives up in functions as large as a kernel. */
INLINE qn_scale_kind qn_layout_scale(qn_dtype t)
{
    if (qn_affine_of(t).bits) return QN_SCALE_GROUP;
    switch (t) {
    case QN_DTYPE_MXFP4:
    case QN_DTYPE_Q4_0:
    case QN_DTYPE_Q5_0:
    case QN_DTYPE_Q8_0:
        return QN_SCALE_SYM;
    case QN_DTYPE_Q4_1:
    case QN_DTYPE_Q5_1:
        return QN_SCALE_MIN;
    case QN_DTYPE_Q4_K:
    case QN_DTYPE_Q5_K:
        return QN_SCALE_K;
    case QN_DTYPE_Q6_K:
        return QN_SCALE_SUB;
    case QN_DTYPE_NVFP4:
        return QN_SCALE_HALF;
    default:
        return QN_SCALE_NONE;
    }
}

/* 1: the sums of a block's halves have scales of their own. */
INLINE int qn_layout_by_halves(qn_dtype t)
{
    return qn_layout_scale(t) == QN_SCALE_SUB || qn_layout_scale(t) == QN_SCALE_HALF;
}

/* 1: nibbles stand for bytes, by qn_e2m1_twice. */
INLINE int qn_layout_is_fp4(qn_dtype t)
{
    return t == QN_DTYPE_MXFP4 || t == QN_DTYPE_NVFP4;
}

/* 1: there is a min to add; 0: codes are symmetric around their zero. */
INLINE int qn_layout_has_min(qn_dtype t)
{
    qn_scale_kind kind = qn_layout_scale(t);
    return kind == QN_SCALE_MIN || kind == QN_SCALE_K || kind == QN_SCALE_GROUP;
}

/* Of the codes that are multiplied. */
INLINE int qn_layout_bits(qn_dtype t)
{
    if (qn_affine_of(t).bits) return qn_affine_of(t).bits;
    switch (t) {
    case QN_DTYPE_Q4_0:
    case QN_DTYPE_Q4_1:
    case QN_DTYPE_Q4_K:
        return 4;
    case QN_DTYPE_Q5_0:
    case QN_DTYPE_Q5_1:
    case QN_DTYPE_Q5_K:
        return 5;
    case QN_DTYPE_Q6_K:
        return 6;
    default:
        return 8;
    }
}

/* The code that stands for 0 in symmetric types, a power of two. */
INLINE int qn_layout_zero(qn_dtype t)
{
    return qn_layout_has_min(t) ? 0 : 1 << (qn_layout_bits(t) - 1);
}

/* Bytes of the codes of one block of a panel. */
INLINE size_t qn_layout_code_bytes(qn_dtype t)
{
    return qn_layout_is_fp4(t) ? 256 : 64 * (size_t)qn_layout_bits(t);
}

/* Bytes of the header of a chunk of n_blocks. t: the weight's own type, not the one that stands for it. */
INLINE size_t qn_layout_header_bytes(qn_dtype t, int64_t n_blocks)
{
    qn_affine a = qn_affine_of(t);
    switch (qn_layout_scale(t)) {
    case QN_SCALE_GROUP:
        return (size_t)(n_blocks * QN_BLOCK / a.group) * (a.scale == QN_DTYPE_F32 ? 128 : 64);
    case QN_SCALE_SYM:
        return (t == QN_DTYPE_MXFP4 ? 16 : 32) * (size_t)n_blocks;
    case QN_SCALE_HALF:
        return 32 * (size_t)n_blocks;
    case QN_SCALE_MIN:
        return 64 * (size_t)n_blocks;
    case QN_SCALE_K:
        return 256;
    case QN_SCALE_SUB:
        return 320;
    default:
        return 0;
    }
}

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

/* The 32 codes of one lane of a block. */
void qn_lane_codes(qn_dtype dtype, const uint8_t *codes, int lane, uint8_t q[QN_BLOCK]);
/* Scales of one lane of block i_block of a chunk of n_blocks: weight = d * (code - zero) + m, for
 * types by halves d or, in the second half block, m * (code - zero). d and m are exact products. */
typedef struct {
    float d, m;
} qn_lane_scale;
qn_lane_scale qn_lane_scales(qn_dtype dtype, const uint8_t *header, int i_block, int lane);

#endif
