/* The gated short convolution (LFM2): of three projections b, c and x of each row, b * x goes through a causal
 * convolution of a few rows, and c gates what comes out. */
#include "model/forward/blocks/blocks.h"

qn_array *qn_block_short_conv(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer)
{
    const int64_t n = f->config->hidden_size;
    qn_array *in = qn_block_linear(s, f, x, QN_WEIGHT_SHORT_IN, QN_WEIGHT_SHORT_IN_BIAS, layer);
    qn_array *b = qn_slice_last(s, in, 0, n), *c = qn_slice_last(s, in, n, n),
             *y = qn_slice_last(s, in, 2 * n, n);
    y = qn_block_conv(s, f, qn_mul(s, b, y), QN_WEIGHT_CONV, QN_WEIGHT_CONV_BIAS, 0, layer);
    y = qn_mul(s, c, qn_label(s, y, "conv"));
    return qn_block_linear(s, f, y, QN_WEIGHT_SHORT_OUT, QN_WEIGHT_SHORT_OUT_BIAS, layer);
}
