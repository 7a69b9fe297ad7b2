#include <math.h>

#include "model/forward/blocks/blocks.h"

/* Scores of all but the best groups of experts become the least there is: a group is as good as the sum of
 * its group_scores best. */
static qn_array *best_groups(qn_scope *s, const qn_experts_config *c, qn_array *scores)
{
    if (c->n_group == 1 || !scores) return scores;
    int64_t each = c->num_experts / c->n_group;
    /* A row for each group. */
    qn_shape rows = *qn_array_shape(scores);
    rows.dim[0] *= c->n_group;
    for (int i = 0; i < QN_SYM_COUNT; i++) rows.sym[i] *= (int32_t)c->n_group;
    rows.dim[1] = each;
    qn_array *by_group = qn_reshape_sym(s, scores, rows);
    qn_array *value = qn_sum(s, qn_take_along(s, by_group, qn_top_k(s, by_group, (int)c->group_scores)), 1);
    qn_shape one = *qn_array_shape(scores);
    one.dim[1] = c->n_group;
    value = qn_reshape_sym(s, value, one);
    qn_array *ids = qn_top_k_rising(s, value, (int)c->topk_group);
    /* 1 for the best, 0 for the others */
    qn_array *ones = qn_add(s, qn_scale(s, qn_take_along(s, value, ids), 0), qn_scalar(s, 1));
    qn_params p = {.scatter = {.n = c->n_group}};
    qn_array *mask = qn_apply(s, QN_PRIM_SCATTER_ALONG, &p, 2, (qn_array *[]){ones, ids}, NULL, QN_DTYPE_F32);
    mask = qn_reshape_rows(s, mask, 2, (int64_t[]){c->n_group, 1});
    scores = qn_mul(s, qn_reshape_rows(s, scores, 2, (int64_t[]){c->n_group, each}), mask);
    scores = qn_add(s, scores, qn_scale(s, qn_sub(s, mask, qn_scalar(s, 1)), 1e30f));
    return qn_reshape_rows(s, scores, 1, &c->num_experts);
}

void qn_block_route(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer, qn_array **ids,
                    qn_array **share)
{
    const qn_experts_config *c = &f->config->experts;
    int top = (int)c->num_experts_per_tok;
    if (c->router_norm) {
        x = qn_block_norm(s, f, x, QN_WEIGHT_ROUTER_SCALE, layer);
        x = qn_scale(s, x, 1 / sqrtf((float)f->config->hidden_size));
    }
    qn_array *logits = qn_linear_exact(s, x, qn_forward_weight(f, QN_WEIGHT_ROUTER, layer));
    logits = qn_block_adapted(s, f, x, qn_label(s, logits, "router"), QN_WEIGHT_ROUTER, layer);
    if (c->bias) logits = qn_add(s, logits, qn_forward_weight(f, QN_WEIGHT_ROUTER_BIAS, layer));
    if (c->score == QN_SCORE_SOFTMAX_CHOSEN || c->score == QN_SCORE_SIGMOID_CHOSEN) {
        *ids = qn_top_k_rising(s, logits, top);
        *share = qn_take_along(s, logits, *ids);
        *share = c->score == QN_SCORE_SOFTMAX_CHOSEN ? qn_softmax(s, *share)
                                                     : qn_unary(s, QN_PRIM_SIGMOID, *share);
        return;
    }
    qn_array *scores =
        c->score == QN_SCORE_SIGMOID ? qn_unary(s, QN_PRIM_SIGMOID, logits) : qn_softmax(s, logits);
    qn_array *choice = scores;
    if (c->correction_bias)
        choice = qn_add(s, scores, qn_forward_weight(f, QN_WEIGHT_ROUTER_CORRECTION, layer));
    *ids = qn_top_k_rising(s, best_groups(s, c, choice), top);
    *share = qn_take_along(s, scores, *ids);
    if (c->norm_topk_prob) {
        qn_array *sum = qn_sum(s, *share, 1);
        if (c->topk_norm_eps > 0) sum = qn_add(s, sum, qn_scalar(s, c->topk_norm_eps));
        *share = qn_div(s, *share, sum);
    }
    *share = qn_scale(s, *share, c->routed_scaling_factor);
    if (c->expert_scale) {
        qn_array *scale = qn_forward_weight(f, QN_WEIGHT_EXPERT_SCALE, layer);
        scale = logits ? qn_broadcast_sym(s, scale, *qn_array_shape(logits)) : NULL;
        *share = qn_mul(s, *share, qn_take_along(s, scale, *ids));
    }
}

/* Biases of one role, [num_experts, n]; NULL: none. */
static qn_array *bias_of(qn_scope *s, const qn_forward *f, qn_weight_role role, int64_t layer, int64_t n)
{
    qn_array *b = qn_forward_weight(f, role, layer);
    return b ? qn_reshape_sym(s, b, qn_shape_make(2, (int64_t[]){f->config->experts.num_experts, n})) : NULL;
}

/* (clamp(up) + 1) * gate * sigmoid(alpha gate) */
static qn_array *clamped(qn_scope *s, const qn_experts_config *c, qn_array *gate, qn_array *up)
{
    gate = qn_binary(s, QN_PRIM_MINIMUM, gate, qn_scalar(s, c->swiglu_limit));
    up = qn_binary(s, QN_PRIM_MINIMUM, up, qn_scalar(s, c->swiglu_limit));
    up = qn_binary(s, QN_PRIM_MAXIMUM, up, qn_scalar(s, -c->swiglu_limit));
    gate = qn_mul(s, gate, qn_unary(s, QN_PRIM_SIGMOID, qn_scale(s, gate, c->swiglu_alpha)));
    return qn_mul(s, gate, qn_add(s, up, qn_scalar(s, 1)));
}

/* y [R, top, n], what linear matrices make of a row, as they would of the row times its share [R, top]. */
static qn_array *times_share(qn_scope *s, qn_array *y, qn_array *share, int64_t top)
{
    return qn_mul(s, y, qn_reshape_rows(s, share, 2, (int64_t[]){top, 1}));
}

qn_array *qn_block_chosen(qn_scope *s, const qn_forward *f, qn_array *x, qn_array *ids, qn_array *share,
                          int64_t layer)
{
    const qn_experts_config *c = &f->config->experts;
    const qn_parameters *p = f->parameters;
    int64_t width = c->moe_intermediate_size;
    qn_array *gate = NULL, *h;
    if (!f->config->plain_mlp) {
        gate = qn_experts(s, x, qn_parameters_get(p, QN_WEIGHT_EXPERT_GATE, layer), ids,
                          bias_of(s, f, QN_WEIGHT_EXPERT_GATE_BIAS, layer, width));
        gate = qn_label(s, gate, "experts.gate");
        gate = qn_block_adapted_experts(s, f, x, gate, ids, NULL, QN_WEIGHT_EXPERT_GATE, layer);
    }
    qn_array *up = qn_experts(s, x, qn_parameters_get(p, QN_WEIGHT_EXPERT_UP, layer), ids,
                              bias_of(s, f, QN_WEIGHT_EXPERT_UP_BIAS, layer, width));
    up = qn_label(s, up, "experts.up");
    up = qn_block_adapted_experts(s, f, x, up, ids, NULL, QN_WEIGHT_EXPERT_UP, layer);
    if (c->scales_input) {
        if (gate) gate = times_share(s, gate, share, c->num_experts_per_tok);
        up = times_share(s, up, share, c->num_experts_per_tok);
        share = qn_add(s, qn_scale(s, share, 0), qn_scalar(s, 1));
    }
    if (f->config->plain_mlp)
        h = qn_block_activation(s, f, up, layer);
    else
        h = c->swiglu_alpha > 0 ? clamped(s, c, gate, up) : qn_block_gated(s, f, gate, up, layer);
    qn_array *y = qn_experts_sum(s, h, qn_parameters_get(p, QN_WEIGHT_EXPERT_DOWN, layer), ids, share,
                                 bias_of(s, f, QN_WEIGHT_EXPERT_DOWN_BIAS, layer, f->config->hidden_size));
    y = qn_label(s, y, "experts.down");
    return qn_block_adapted_experts(s, f, h, y, ids, share, QN_WEIGHT_EXPERT_DOWN, layer);
}

/* The expert that all rows have. */
static qn_array *shared(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer)
{
    const qn_weight_role none = QN_WEIGHT_ROLE_COUNT;
    qn_array *gate = NULL, *h;
    if (!f->config->plain_mlp) gate = qn_block_linear(s, f, x, QN_WEIGHT_SHARED_GATE, none, layer);
    qn_array *up = qn_block_linear(s, f, x, QN_WEIGHT_SHARED_UP, none, layer);
    if (f->config->plain_mlp)
        h = qn_block_activation(s, f, up, layer);
    else
        h = qn_block_gated(s, f, gate, up, layer);
    qn_array *y = qn_block_linear(s, f, h, QN_WEIGHT_SHARED_DOWN, none, layer);
    if (!f->config->experts.shared_gate) return y;
    qn_array *by = qn_linear_exact(s, x, qn_forward_weight(f, QN_WEIGHT_SHARED_ROUTER, layer));
    by = qn_block_adapted(s, f, x, by, QN_WEIGHT_SHARED_ROUTER, layer);
    return qn_mul(s, y, qn_unary(s, QN_PRIM_SIGMOID, by));
}

qn_array *qn_block_experts(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer)
{
    qn_array *ids, *share;
    qn_block_route(s, f, x, layer, &ids, &share);
    qn_array *y = qn_block_chosen(s, f, x, ids, share, layer);
    return f->config->experts.shared_intermediate_size > 0 ? qn_add(s, y, shared(s, f, x, layer)) : y;
}

qn_array *qn_block_mlp_and_experts(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer)
{
    qn_array *ids, *share;
    qn_array *dense = qn_block_mlp(s, f, qn_block_norm(s, f, x, QN_WEIGHT_FFN_NORM, layer), layer);
    dense = qn_block_norm(s, f, dense, QN_WEIGHT_POST_MLP_NORM, layer);
    qn_block_route(s, f, x, layer, &ids, &share);
    qn_array *h = qn_block_norm(s, f, x, QN_WEIGHT_EXPERTS_NORM, layer);
    h = qn_block_chosen(s, f, h, ids, share, layer);
    return qn_add(s, dense, qn_block_norm(s, f, h, QN_WEIGHT_POST_EXPERTS_NORM, layer));
}
