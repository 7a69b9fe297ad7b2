/* For sets whose tiles read rows as they are packed: what integer.body.h asks of a set beside its arithmetic.
 */
#ifndef QN_DEVICE_CPU_KERNELS_MATMUL_ROWS_AS_PACKED_H
#define QN_DEVICE_CPU_KERNELS_MATMUL_ROWS_AS_PACKED_H

#include "device/cpu/kernels/matmul/blocks.h"

enum { WIDE = 0 };

#define STRETCH2_LAYOUTS STRETCH_LAYOUTS

static tile_rows form_rows(int planes, const uint8_t *x, size_t row_bytes, int64_t n_rows, int64_t n_blocks,
                           uint8_t *room)
{
    return (tile_rows){x, row_bytes};
}

#endif
