/* Mamba-2 (Dao and Gu 2024): one projection gives a gate z, inputs x, B and C, and a step of each head; x, B and C
 * go through a short causal convolution, and each head keeps a matrix S from row to row:
 *     S = exp(-exp(A_log) step) S + B (step x)^T,  y = C S + D x
 * with B and C of a group of heads. What heads give is gated by silu(z), and normed group by group. */
#include <math.h>

#include "model/forward/blocks/blocks.h"

enum { PART_Z, PART_X, PART_B, PART_C, PART_STEP };

/* Part `which` of the projection, `n` wide from `begin` on, times its multiplier. */
static qn_array *part(qn_scope *s, const qn_forward *f, qn_array *in, int which, int64_t begin, int64_t n)
{
    return qn_scale(s, qn_slice_last(s, in, begin, n), f->config->state_space.part_scale[which]);
}

/* x, B and C beside each other, after the convolution. */
static qn_array *convolved(qn_scope *s, const qn_forward *f, qn_array *in, int64_t layer)
{
    const qn_state_space_config *c = &f->config->state_space;
    const float *by = c->part_scale;
    const int64_t inner = c->mamba_n_heads * c->mamba_d_head, shared = c->mamba_n_groups * c->mamba_d_state;
    qn_array *x;
    if (by[PART_X] == by[PART_B] && by[PART_X] == by[PART_C]) {
        x = part(s, f, in, PART_X, inner, inner + 2 * shared);
    } else {
        qn_array *parts[3] = {part(s, f, in, PART_X, inner, inner), part(s, f, in, PART_B, 2 * inner, shared),
                              part(s, f, in, PART_C, 2 * inner + shared, shared)};
        x = qn_concat(s, 3, parts);
    }
    x = qn_block_conv(s, f, x, QN_WEIGHT_CONV, QN_WEIGHT_CONV_BIAS, 0, layer);
    return qn_label(s, qn_unary(s, QN_PRIM_SILU, x), "conv");
}

/* softplus(step + bias) [R, heads], within its limits. */
static qn_array *steps(qn_scope *s, const qn_forward *f, qn_array *step, int64_t layer)
{
    const qn_state_space_config *c = &f->config->state_space;
    step = qn_unary(s, QN_PRIM_SOFTPLUS, qn_add(s, step, qn_forward_weight(f, QN_WEIGHT_SSM_DT_BIAS, layer)));
    if (c->step_min > 0) step = qn_binary(s, QN_PRIM_MAXIMUM, step, qn_scalar(s, c->step_min));
    if (c->step_max < INFINITY) step = qn_binary(s, QN_PRIM_MINIMUM, step, qn_scalar(s, c->step_max));
    return step;
}

/* y [R, inner] gated by silu(z) and normed. */
static qn_array *gated(qn_scope *s, const qn_forward *f, qn_array *y, qn_array *z, int64_t layer)
{
    const qn_state_space_config *c = &f->config->state_space;
    const int64_t inner = c->mamba_n_heads * c->mamba_d_head;
    z = qn_unary(s, QN_PRIM_SILU, z);
    if (c->norm != QN_SSM_NORM_BEFORE_GATE) y = qn_mul(s, y, z);
    if (c->norm == QN_SSM_NORM_NONE) return y;
    y = qn_reshape_rows(s, y, 2, (int64_t[]){c->mamba_n_groups, inner / c->mamba_n_groups});
    y = qn_reshape_rows(s, qn_rms_norm(s, y, NULL, f->config->rms_norm_eps, 0), 1, &inner);
    y = qn_mul(s, y, qn_forward_weight(f, QN_WEIGHT_SSM_NORM, layer));
    return c->norm == QN_SSM_NORM_BEFORE_GATE ? qn_mul(s, y, z) : y;
}

qn_array *qn_block_state_space(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer)
{
    const qn_state_space_config *c = &f->config->state_space;
    const int64_t heads = c->mamba_n_heads, dim = c->mamba_d_head, inner = heads * dim,
                  groups = c->mamba_n_groups, n = c->mamba_d_state;
    qn_array *in =
        qn_block_linear(s, f, qn_scale(s, x, c->in_scale), QN_WEIGHT_SSM_IN, QN_WEIGHT_SSM_IN_BIAS, layer);
    qn_array *z = part(s, f, in, PART_Z, 0, inner), *mixed = convolved(s, f, in, layer);
    qn_array *step = steps(s, f, part(s, f, in, PART_STEP, 2 * inner + 2 * groups * n, heads), layer);

    qn_array *rate = qn_block_rates(s, f, QN_WEIGHT_SSM_A_LOG, 0, step, layer);
    qn_array *v = qn_reshape_rows(s, qn_slice_last(s, mixed, 0, inner), 2, (int64_t[]){heads, dim});
    qn_array *rule[8] = {
        qn_reshape_rows(s, qn_slice_last(s, mixed, inner + groups * n, groups * n), 2,
                        (int64_t[]){groups, n}),
        qn_reshape_rows(s, qn_slice_last(s, mixed, inner, groups * n), 2, (int64_t[]){groups, n}), v,
        qn_unary(s, QN_PRIM_NEG, qn_mul(s, rate, step)), step};
    qn_array *y = qn_block_recurrent(s, f, QN_PRIM_GATED_DELTA,
                                     (qn_params_recurrent){.offset = f->groups->rule_offset, .additive = 1},
                                     5, rule, layer);
    qn_array *d = qn_forward_weight(f, QN_WEIGHT_SSM_D, layer);
    d = d ? qn_reshape_sym(s, d, qn_shape_make(2, (int64_t[]){heads, 1})) : NULL;
    y = qn_reshape_rows(s, qn_add(s, qn_label(s, y, "state_space"), qn_mul(s, v, d)), 1, &inner);
    y = qn_block_linear(s, f, gated(s, f, y, z, layer), QN_WEIGHT_SSM_OUT, QN_WEIGHT_SSM_OUT_BIAS, layer);
    return qn_scale(s, y, c->out_scale);
}
