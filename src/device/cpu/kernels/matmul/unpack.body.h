/* unpack_blocks, which float.body.h asks for: a panel of any quantised type as f32, for sets of vectors. The
 * including file defines unpack_layout(layout, own, n_in, p, out), whose layout is a constant. */
#ifndef QN_DEVICE_CPU_KERNELS_MATMUL_UNPACK_BODY_H
#define QN_DEVICE_CPU_KERNELS_MATMUL_UNPACK_BODY_H

static void unpack_blocks(qn_dtype dtype, int64_t n_in, const uint8_t *p, float *out)
{
    switch (qn_layout_of(dtype)) {
#define LAYOUT(name, ...)                                     \
    case QN_LAYOUT_##name:                                    \
        unpack_layout(QN_LAYOUT_##name, dtype, n_in, p, out); \
        break;
#include "device/cpu/kernels/matmul/layouts.def"
    default:
        break;
    }
}

#endif
