/* Where blocks of weights and activations lie in what is packed, and how a product is cut into parts: what
 * the integer products of all sets share. */
#ifndef QN_DEVICE_CPU_KERNELS_MATMUL_BLOCKS_H
#define QN_DEVICE_CPU_KERNELS_MATMUL_BLOCKS_H

#include "device/cpu/kernels/matmul/pack.h"

INLINE size_t act_block_bytes(int planes)
{
    return planes == 1 ? sizeof(qn_act_i8) : sizeof(qn_act_i8x2);
}

/* Rows as a tile reads them. */
typedef struct {
    const uint8_t *p;
    size_t row_bytes;
} tile_rows;

/* n in equal parts of at most `most`, each (but the last) a multiple of unit, of which most is one, too. */
INLINE int64_t equal_parts(int64_t n, int64_t most, int64_t unit)
{
    int64_t parts = (n + most - 1) / most, part = (n + parts - 1) / parts;
    return (part + unit - 1) / unit * unit;
}

/* Bytes of a panel before block b, which begins a chunk. */
INLINE size_t bytes_before(qn_layout layout, qn_dtype own, int64_t b)
{
    return (size_t)(b / QN_CHUNK) *
           (qn_layout_header_bytes(layout, own, QN_CHUNK) + QN_CHUNK * qn_layout_code_bytes(layout));
}

#endif
