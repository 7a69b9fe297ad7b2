/* Kimi delta attention (Kimi Linear, 2025): the gated delta rule of gated_delta.c whose state decays by channel.
 * Queries, keys and values have a projection and a convolution each; a decay of each row of a head's state comes of a
 * projection of low rank, as the gate of the output does:
 *     S = diag(exp(g)) S;  S = S + k (beta (v - k S))^T;  out = q S / sqrt(dk)
 *     g = -exp(A_log) softplus(f + dt_bias),  beta = sigmoid(b)
 * or, with lower_bound, g = lower_bound sigmoid(exp(A_log) (f + dt_bias)). */
#include <math.h>

#include "model/forward/blocks/blocks.h"

static const qn_weight_role none = QN_WEIGHT_ROLE_COUNT;

/* A projection behind its convolution, which is the i-th of the layer. */
static qn_array *convolved(qn_scope *s, const qn_forward *f, qn_array *x, qn_weight_role weight,
                           qn_weight_role conv, int i, int64_t layer)
{
    const qn_delta_config *d = &f->config->delta;
    const int64_t width = d->linear_num_key_heads * d->linear_key_head_dim;
    x = qn_block_linear(s, f, x, weight, none, layer);
    x = qn_block_conv(s, f, x, conv, QN_WEIGHT_CONV_BIAS, i * (d->linear_conv_kernel_dim - 1) * width, layer);
    return qn_unary(s, QN_PRIM_SILU, x);
}

/* What a row leaves of each row of the state, [R, heads, dk]. */
static qn_array *decays(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer)
{
    const qn_delta_config *d = &f->config->delta;
    const int64_t heads = d->linear_num_value_heads, dk = d->linear_key_head_dim;
    qn_array *g = qn_block_linear(s, f, x, QN_WEIGHT_DECAY_A, none, layer);
    g = qn_block_linear(s, f, g, QN_WEIGHT_DECAY_B, none, layer);
    g = qn_add(s, g, qn_forward_weight(f, QN_WEIGHT_DELTA_DT_BIAS, layer));
    g = qn_reshape_rows(s, g, 2, (int64_t[]){heads, dk});
    if (d->lower_bound == 0) g = qn_unary(s, QN_PRIM_SOFTPLUS, g);
    g = qn_mul(s, qn_block_rates(s, f, QN_WEIGHT_DELTA_A_LOG, heads, g, layer), g);
    g = d->lower_bound == 0 ? qn_unary(s, QN_PRIM_NEG, g)
                            : qn_scale(s, qn_unary(s, QN_PRIM_SIGMOID, g), d->lower_bound);
    return qn_unary(s, QN_PRIM_EXP, g);
}

qn_array *qn_block_channel_delta(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer)
{
    const qn_delta_config *d = &f->config->delta;
    const int64_t heads = d->linear_num_value_heads, dim = d->linear_key_head_dim, width = heads * dim,
                  by_head[2] = {heads, dim};
    qn_array *q = convolved(s, f, x, QN_WEIGHT_Q, QN_WEIGHT_CONV_Q, 0, layer);
    qn_array *k = convolved(s, f, x, QN_WEIGHT_K, QN_WEIGHT_CONV_K, 1, layer);
    qn_array *v = convolved(s, f, x, QN_WEIGHT_V, QN_WEIGHT_CONV_V, 2, layer);
    qn_array *beta = qn_unary(s, QN_PRIM_SIGMOID, qn_block_linear(s, f, x, QN_WEIGHT_DELTA_B, none, layer));
    qn_array *rule[8] = {qn_block_unit_heads(s, q, 0, heads, dim, 1 / sqrtf((float)dim)),
                         qn_block_unit_heads(s, k, 0, heads, dim, 1), qn_reshape_rows(s, v, 2, by_head),
                         decays(s, f, x, layer), beta};
    qn_array *o = qn_block_recurrent(s, f, QN_PRIM_GATED_DELTA,
                                     (qn_params_recurrent){.offset = f->groups->rule_offset}, 5, rule, layer);
    o = qn_label(s, o, "delta");
    o = qn_rms_norm(s, o, qn_forward_weight(f, QN_WEIGHT_DELTA_NORM, layer), f->config->rms_norm_eps, 0);
    qn_array *gate = qn_block_linear(s, f, x, QN_WEIGHT_OUT_GATE_A, none, layer);
    gate = qn_block_linear(s, f, gate, QN_WEIGHT_OUT_GATE_B, none, layer);
    o = qn_mul(s, qn_reshape_rows(s, o, 1, &width), qn_unary(s, QN_PRIM_SIGMOID, gate));
    return qn_block_linear(s, f, o, QN_WEIGHT_O, none, layer);
}
