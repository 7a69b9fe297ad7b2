#include "device/cpu/kernels/matmul/layout.h"

/* Kernels make what stands for a zero from that of 128, by a shift of 8 - bits. */
#define LAYOUT(name, codes, bits, zero, scale, number, block, header) \
    _Static_assert((zero) == 0 || (zero) == 1 << ((QN_CODES_##codes ? 8 : (bits)) - 1), #name);
#include "device/cpu/kernels/matmul/layouts.def"

/* Types of equal bits share a layout: kernels look up their groups and scales once a chunk. */
#define AFFINE(bits, group, scale, text) [QN_DTYPE_AFFINE##bits##_G##group##_##scale] = QN_LAYOUT_GROUP##bits,

/* One row a type of weights that has a layout. */
static const uint8_t layouts[QN_DTYPE_COUNT] = {[QN_DTYPE_Q4_0] = QN_LAYOUT_SYM4,
                                                [QN_DTYPE_Q4_1] = QN_LAYOUT_MIN4,
                                                [QN_DTYPE_Q5_0] = QN_LAYOUT_SYM5,
                                                [QN_DTYPE_Q5_1] = QN_LAYOUT_MIN5,
                                                [QN_DTYPE_Q8_0] = QN_LAYOUT_SYM8,
                                                [QN_DTYPE_Q4_K] = QN_LAYOUT_K4,
                                                [QN_DTYPE_Q5_K] = QN_LAYOUT_K5,
                                                [QN_DTYPE_Q6_K] = QN_LAYOUT_SUB6,
                                                [QN_DTYPE_MXFP4] = QN_LAYOUT_E2M1_BLOCK,
                                                [QN_DTYPE_NVFP4] = QN_LAYOUT_E2M1_HALF,
                                                QN_AFFINE_LIST(AFFINE)};

qn_layout qn_layout_of(qn_dtype dtype)
{
    return (unsigned)dtype < QN_DTYPE_COUNT ? (qn_layout)layouts[dtype] : QN_LAYOUT_NONE;
}
