/* unpack_blocks, which float.body.h asks for: a panel of any quantised type as f32, for sets of vectors. The
 * including file defines unpack_type(dtype, own, n_in, p, out), dtype being the constant that stands for the
 * weight's own. */
#ifndef QN_KERNELS_UNPACK_BODY_H
#define QN_KERNELS_UNPACK_BODY_H

static void unpack_blocks(qn_dtype dtype, int64_t n_in, const uint8_t *p, float *out)
{
    switch (qn_layout_type(dtype)) {
#define UNPACK_CASE(t)                                  \
    case QN_DTYPE_##t:                                  \
        unpack_type(QN_DTYPE_##t, dtype, n_in, p, out); \
        break;
        QN_BLOCK_TYPES(UNPACK_CASE)
    default:
        break;
    }
}

#endif
