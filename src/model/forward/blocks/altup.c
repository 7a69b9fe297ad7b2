/* Alternating updates (Baykal et al. 2023) as Gemma 3n has them: the residual stream is several of them, of which a
 * layer computes with one, the active one. Before it all streams are predicted from all, with coefficients that a
 * small router makes of the active one; behind it all are corrected by what the layer changed. */
#include <math.h>

#include "model/forward/blocks/blocks.h"

static const qn_weight_role none = QN_WEIGHT_ROLE_COUNT;

/* sqrt(max(mean(x^2), least)) of each row, [R, 1]. */
static qn_array *magnitude(qn_scope *s, const qn_forward *f, qn_array *x, float least)
{
    x = qn_scale(s, qn_sum(s, qn_unary(s, QN_PRIM_SQUARE, x), 1), 1 / (float)f->config->hidden_size);
    if (least > 0) x = qn_binary(s, QN_PRIM_MAXIMUM, x, qn_scalar(s, least));
    return qn_unary(s, QN_PRIM_SQRT, x);
}

/* A projection of x as long as `as` is. */
static qn_array *projected(qn_scope *s, const qn_forward *f, qn_array *x, qn_array *as, qn_weight_role weight)
{
    qn_array *y = qn_block_linear(s, f, x, weight, none, 0);
    return qn_div(s, qn_mul(s, y, as), magnitude(s, f, y, 1e-5f));
}

void qn_block_altup_begin(qn_scope *s, const qn_forward *f, qn_array *x, qn_array **streams)
{
    qn_array *length = magnitude(s, f, x, 0);
    streams[0] = x;
    for (int64_t i = 1; i < f->config->altup_num_inputs; i++)
        streams[i] = projected(s, f, x, length, (qn_weight_role)(QN_WEIGHT_ALTUP_IN + i - 1));
}

qn_array *qn_block_altup_end(qn_scope *s, const qn_forward *f, qn_array *const *streams)
{
    qn_array *length = magnitude(s, f, streams[0], 0), *sum = streams[0];
    for (int64_t i = 1; i < f->config->altup_num_inputs; i++)
        sum = qn_add(s, sum,
                     projected(s, f, streams[i], length, (qn_weight_role)(QN_WEIGHT_ALTUP_OUT + i - 1)));
    return qn_scale(s, sum, 1 / (float)f->config->altup_num_inputs);
}

/* What the router makes of the active stream, [R, altup_num_inputs]. */
static qn_array *routed(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer)
{
    x = qn_block_norm(s, f, x, QN_WEIGHT_ALTUP_ROUTER_NORM, layer);
    x = qn_scale(s, x, 1 / (float)f->config->hidden_size);
    return qn_unary(s, QN_PRIM_TANH, qn_block_linear(s, f, x, QN_WEIGHT_ALTUP_ROUTER, none, layer));
}

void qn_block_altup_predict(qn_scope *s, const qn_forward *f, qn_array *const *streams, qn_array **predicted,
                            int64_t layer)
{
    const int64_t n = f->config->altup_num_inputs;
    qn_array *by = routed(s, f, streams[f->config->altup_active_idx], layer);
    by = qn_block_linear(s, f, by, QN_WEIGHT_ALTUP_PREDICT, none, layer);
    for (int64_t j = 0; j < n; j++) {
        qn_array *sum = qn_mul(s, streams[0], qn_slice_last(s, by, j * n, 1));
        for (int64_t p = 1; p < n; p++)
            sum = qn_add(s, sum, qn_mul(s, streams[p], qn_slice_last(s, by, j * n + p, 1)));
        predicted[j] = qn_add(s, sum, streams[j]);
    }
}

void qn_block_altup_correct(qn_scope *s, const qn_forward *f, qn_array *const *predicted, qn_array *x,
                            qn_array *layer_inputs, qn_array **streams, int64_t layer)
{
    const qn_model_config *c = f->config;
    qn_array *by = routed(s, f, x, layer), *change = qn_sub(s, x, predicted[c->altup_active_idx]);
    by = qn_add(s, qn_block_linear(s, f, by, QN_WEIGHT_ALTUP_CORRECT, none, layer), qn_scalar(s, 1));
    for (int64_t j = 0; j < c->altup_num_inputs; j++)
        streams[j] = qn_add(s, qn_mul(s, change, qn_slice_last(s, by, j, 1)), predicted[j]);
    if (!layer_inputs) return;
    qn_array *active = streams[c->altup_active_idx],
             *scale = qn_forward_weight(f, QN_WEIGHT_ALTUP_SCALE, layer);
    if (scale && c->altup_correct_scale) active = qn_mul(s, active, scale);
    qn_array *own = qn_block_layer_input(s, f, active, layer_inputs, layer);
    for (int64_t j = 1; j < c->altup_num_inputs; j++) streams[j] = qn_add(s, streams[j], own);
}

qn_array *qn_block_laurel(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer)
{
    qn_array *y = qn_block_linear(s, f, x, QN_WEIGHT_LAUREL_LEFT, none, layer);
    y = qn_block_linear(s, f, y, QN_WEIGHT_LAUREL_RIGHT, none, layer);
    return qn_add(s, x, qn_block_norm(s, f, y, QN_WEIGHT_LAUREL_NORM, layer));
}
