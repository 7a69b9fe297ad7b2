/* Compute layouts: what the kernels have to know about packed weights, without the type that the weights have
 * in a file. A type names its layout (qn_layout_of); several types may share one. Known to kernels/ alone.
 * Any thread.
 *
 * The order of input columns is not part of a layout. A type that stores its columns in another order (GPTQ
 * with desc_act) is packed in that stored order, so that a group's scale lies beside its codes. Its product
 * permutes the columns of x before it packs the activations; panels and kernels are those of any other type.
 * The permutation belongs to the one weight, beside its panels, and costs a gather of a row of x. */
#ifndef QN_DEVICE_CPU_KERNELS_MATMUL_LAYOUT_H
#define QN_DEVICE_CPU_KERNELS_MATMUL_LAYOUT_H

#include <quern/dtype.h>
#include <stddef.h>
#include <stdint.h>

#include "quant/types.h"

#define INLINE static inline __attribute__((always_inline))

enum { QN_BLOCK = 32, QN_CHUNK = 8 };

/* QN_LAYOUT_NONE: not packed into blocks. */
typedef enum {
    QN_LAYOUT_NONE,
#define LAYOUT(name, codes, bits, zero, scale, number, block, header) QN_LAYOUT_##name,
#include "device/cpu/kernels/matmul/layouts.def"
    QN_LAYOUT_COUNT
} qn_layout;

/* What a stored code stands for. */
typedef enum {
    QN_CODES_PLAIN, /* itself */
    QN_CODES_E2M1   /* a byte of qn_e2m1_twice, plus 128 */
} qn_codes;

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

/* As what scales lie in a header. E8M0 and E4M3 are bytes; the product takes half of them, since the table of
 * codes has twice the values. */
typedef enum {
    QN_NUMBER_F16,
    QN_NUMBER_E8M0,
    QN_NUMBER_E4M3,
    QN_NUMBER_OWN /* f16, bf16 or f32, as the weight's type says */
} qn_number;

typedef struct {
    qn_codes codes;
    qn_scale_kind scale;
    qn_number number;
    int bits, zero, block, header; /* layouts.def */
} qn_layout_row;

/* The layout of a type; QN_LAYOUT_NONE for plain numbers and types without one. */
qn_layout qn_layout_of(qn_dtype dtype);

/* The functions below are for constant layouts: they fold away. Merely `inline`, they were called and their
 * answers looked at for each block, for a compiler gives up in functions as large as a kernel. */
INLINE const qn_layout_row *qn_layout_row_of(qn_layout layout)
{
    static const qn_layout_row rows[QN_LAYOUT_COUNT] = {
#define LAYOUT(name, codes, bits, zero, scale, number, block, header) \
    [QN_LAYOUT_##name] = {QN_CODES_##codes, QN_SCALE_##scale, QN_NUMBER_##number, bits, zero, block, header},
#include "device/cpu/kernels/matmul/layouts.def"
    };
    return &rows[layout];
}

INLINE qn_scale_kind qn_layout_scale(qn_layout layout)
{
    return qn_layout_row_of(layout)->scale;
}

INLINE qn_number qn_layout_number(qn_layout layout)
{
    return qn_layout_row_of(layout)->number;
}

/* 1: the sums of a block's halves have separate scales. */
INLINE int qn_layout_by_halves(qn_layout layout)
{
    return qn_layout_scale(layout) == QN_SCALE_SUB || qn_layout_scale(layout) == QN_SCALE_HALF;
}

/* 1: there is a min to add; 0: codes are symmetric around their zero. */
INLINE int qn_layout_has_min(qn_layout layout)
{
    qn_scale_kind kind = qn_layout_scale(layout);
    return kind == QN_SCALE_MIN || kind == QN_SCALE_K || kind == QN_SCALE_GROUP;
}

/* The 16 values that nibbles stand for, to which 128 is added; NULL: codes stand for themselves. */
INLINE const int8_t *qn_layout_table(qn_layout layout)
{
    return qn_layout_row_of(layout)->codes == QN_CODES_E2M1 ? qn_e2m1_twice : NULL;
}

/* Of the codes that are multiplied: bytes where a table gives them. */
INLINE int qn_layout_bits(qn_layout layout)
{
    return qn_layout_row_of(layout)->codes == QN_CODES_PLAIN ? qn_layout_row_of(layout)->bits : 8;
}

/* The code that stands for 0 in symmetric layouts, a power of two; 0 in those with a min. */
INLINE int qn_layout_zero(qn_layout layout)
{
    return qn_layout_row_of(layout)->zero;
}

/* Bytes of the codes of one block of a panel. */
INLINE size_t qn_layout_code_bytes(qn_layout layout)
{
    return 64 * (size_t)qn_layout_row_of(layout)->bits;
}

/* Bytes of the header of a chunk of n_blocks. own: the weight's type, which says how large groups and their
 * scales are; only QN_SCALE_GROUP looks at it. */
INLINE size_t qn_layout_header_bytes(qn_layout layout, qn_dtype own, int64_t n_blocks)
{
    const qn_layout_row *row = qn_layout_row_of(layout);
    if (row->scale == QN_SCALE_GROUP) {
        qn_affine a = qn_affine_of(own);
        return (size_t)(n_blocks * QN_BLOCK / a.group) * (a.scale == QN_DTYPE_F32 ? 128 : 64);
    }
    return (size_t)row->header * (row->block == QN_BLOCK * QN_CHUNK ? 1 : (size_t)n_blocks);
}

#endif
