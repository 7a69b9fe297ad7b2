#include "model/forward/blocks/blocks.h"

qn_array *qn_block_activation(qn_scope *s, const qn_forward *f, qn_array *x)
{
    static const qn_prim activation[] = {[QN_HIDDEN_SILU] = QN_PRIM_SILU,
                                         [QN_HIDDEN_GELU_TANH] = QN_PRIM_GELU_TANH,
                                         [QN_HIDDEN_GELU] = QN_PRIM_GELU};
    return qn_unary(s, activation[f->config->hidden_act], x);
}

qn_array *qn_block_mlp(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer)
{
    qn_array *gate = qn_block_linear(s, f, x, QN_WEIGHT_GATE, QN_WEIGHT_GATE_BIAS, layer);
    qn_array *up = qn_block_linear(s, f, x, QN_WEIGHT_UP, QN_WEIGHT_UP_BIAS, layer);
    qn_array *h = qn_mul(s, qn_block_activation(s, f, gate), up);
    qn_array *out = qn_block_linear(s, f, h, QN_WEIGHT_DOWN, QN_WEIGHT_DOWN_BIAS, layer);
    /* Between gate, up and here a gradient needs two wide arrays that cost one element-wise step: they are
     * made again rather than kept, and the product with down is not. */
    return f->trained ? qn_checkpoint_from(s, up, out) : out;
}
