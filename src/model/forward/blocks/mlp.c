#include <math.h>

#include "model/forward/blocks/blocks.h"

static float softplus(float x)
{
    return x > 20 ? x : (float)log1p(exp((double)x));
}

static qn_array *xielu(qn_scope *s, qn_array *x, const qn_xielu *p)
{
    qn_array *rest =
        qn_sub(s, qn_unary(s, QN_PRIM_EXPM1, qn_binary(s, QN_PRIM_MINIMUM, x, qn_scalar(s, p->eps))), x);
    qn_array *curved =
        qn_where(s, qn_gt(s, x, qn_scalar(s, 0)), qn_scale(s, qn_mul(s, x, x), softplus(p->alpha_p)),
                 qn_scale(s, rest, p->beta + softplus(p->alpha_n)));
    return qn_add(s, curved, qn_scale(s, x, p->beta));
}

qn_array *qn_block_activation(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer)
{
    static const qn_prim activation[] = {[QN_HIDDEN_SILU] = QN_PRIM_SILU,
                                         [QN_HIDDEN_GELU_TANH] = QN_PRIM_GELU_TANH,
                                         [QN_HIDDEN_GELU] = QN_PRIM_GELU};
    const qn_hidden_act act = f->config->hidden_act;
    if (act == QN_HIDDEN_RELU2) return qn_unary(s, QN_PRIM_SQUARE, qn_unary(s, QN_PRIM_RELU, x));
    return act == QN_HIDDEN_XIELU ? xielu(s, x, &f->config->layers[layer].xielu)
                                  : qn_unary(s, activation[act], x);
}

/* What of each row is more than mean + cutoff * deviation, less that. */
static qn_array *sparse(qn_scope *s, qn_array *x, float cutoff, int64_t n)
{
    qn_array *mean = qn_scale(s, qn_sum(s, x, 1), 1 / (float)n), *rest = qn_sub(s, x, mean);
    qn_array *deviation = qn_scale(s, qn_sum(s, qn_unary(s, QN_PRIM_SQUARE, rest), 1), 1 / (float)n);
    deviation = qn_scale(s, qn_unary(s, QN_PRIM_SQRT, deviation), cutoff);
    return qn_unary(s, QN_PRIM_RELU, qn_sub(s, x, qn_add(s, mean, deviation)));
}

qn_array *qn_block_gated(qn_scope *s, const qn_forward *f, qn_array *gate, qn_array *up, int64_t layer)
{
    const float limit = f->config->mlp_limit;
    if (limit > 0) {
        gate = qn_binary(s, QN_PRIM_MINIMUM, gate, qn_scalar(s, limit));
        up = qn_binary(s, QN_PRIM_MINIMUM, up, qn_scalar(s, limit));
        up = qn_binary(s, QN_PRIM_MAXIMUM, up, qn_scalar(s, -limit));
    }
    return qn_mul(s, qn_block_activation(s, f, gate, layer), up);
}

qn_array *qn_block_mlp(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer)
{
    qn_array *gate = NULL, *h;
    if (!f->config->plain_mlp) gate = qn_block_linear(s, f, x, QN_WEIGHT_GATE, QN_WEIGHT_GATE_BIAS, layer);
    const qn_layer_config *l = &f->config->layers[layer];
    if (gate && l->gate_sparsity > 0) gate = sparse(s, gate, l->gate_cutoff, l->intermediate_size);
    qn_array *up = qn_block_linear(s, f, x, QN_WEIGHT_UP, QN_WEIGHT_UP_BIAS, layer);
    if (f->config->plain_mlp)
        h = qn_block_activation(s, f, up, layer);
    else
        h = qn_block_gated(s, f, qn_scale(s, gate, f->config->gate_scale), up, layer);
    qn_array *out = qn_block_linear(s, f, h, QN_WEIGHT_DOWN, QN_WEIGHT_DOWN_BIAS, layer);
    out = qn_scale(s, out, f->config->mlp_out_scale);
    /* Between gate, up and here a gradient needs two wide arrays that cost one element-wise step: they are
     * made again rather than kept, and the product with down is not. */
    return f->trained ? qn_checkpoint_from(s, up, out) : out;
}
