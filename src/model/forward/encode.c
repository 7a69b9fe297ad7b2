/* The ends of an encoder's graph: vectors of all rows, and scores of sequences. */
#include "model/forward/blocks/blocks.h"

qn_array *qn_forward_encode(qn_scope *s, const qn_forward *f)
{
    qn_array *x = qn_block_norm(s, f, qn_forward_body(s, f), QN_WEIGHT_FINAL_NORM, 0);
    qn_scope_prefix(s, "%s", "");
    if (f->config->encoder.embedding_dim > 0)
        x = qn_block_linear(s, f, x, QN_WEIGHT_OUTPUT_PROJ, QN_WEIGHT_ROLE_COUNT, 0);
    return qn_label(s, x, "encoded");
}

qn_array *qn_forward_classify(qn_scope *s, const qn_forward *f, qn_array *x)
{
    static const qn_prim activation[] = {[QN_CLASSIFY_TANH] = QN_PRIM_TANH,
                                         [QN_CLASSIFY_GELU] = QN_PRIM_GELU,
                                         [QN_CLASSIFY_GELU_TANH] = QN_PRIM_GELU_TANH,
                                         [QN_CLASSIFY_SILU] = QN_PRIM_SILU};
    if (f->config->encoder.classify_dense) {
        x = qn_block_linear(s, f, x, QN_WEIGHT_CLASSIFY_DENSE, QN_WEIGHT_CLASSIFY_DENSE_BIAS, 0);
        x = qn_unary(s, activation[f->config->encoder.classify_act], x);
        x = qn_block_norm(s, f, x, QN_WEIGHT_CLASSIFY_NORM, 0);
    }
    x = qn_block_linear(s, f, x, QN_WEIGHT_CLASSIFY_OUT, QN_WEIGHT_CLASSIFY_OUT_BIAS, 0);
    return qn_label(s, x, "scores");
}
