/* Inputs that a layer has for itself: per token P numbers of a second embedding, which has a row for each
 * token and in it P numbers for each layer, plus P of a projection of the first (Gemma 3n and 4). */
#include <math.h>

#include "model/forward/blocks/blocks.h"

qn_array *qn_block_layer_inputs(qn_scope *s, const qn_forward *f, qn_array *x)
{
    const qn_model_config *c = f->config;
    int64_t n = c->hidden_size_per_layer_input, width = c->num_hidden_layers * n;
    if (!n) return NULL;
    qn_array *ids = f->ids, *own = NULL;
    if (c->vocab_size_per_layer_input &&
        c->vocab_size_per_layer_input < c->vocab_size) { /* ids beyond read the first row */
        qn_array *end = qn_full(s, QN_DTYPE_I32, 0, NULL, (double)c->vocab_size_per_layer_input);
        ids = qn_where(s, qn_lt(s, ids, end), ids, qn_full(s, QN_DTYPE_I32, 0, NULL, 0));
    }
    if (c->vocab_size_per_layer_input)
        own = qn_scale(s, qn_take(s, qn_forward_weight(f, QN_WEIGHT_LAYER_INPUT_EMBED, 0), ids),
                       sqrtf((float)n));
    qn_array *projected = qn_block_linear(s, f, x, QN_WEIGHT_LAYER_INPUT_PROJ, QN_WEIGHT_ROLE_COUNT, 0);
    projected = qn_scale(s, projected, 1 / sqrtf((float)c->hidden_size));
    projected = qn_reshape_rows(s, projected, 2, (int64_t[]){c->num_hidden_layers, n});
    projected = qn_block_norm(s, f, projected, QN_WEIGHT_LAYER_INPUT_NORM, 0);
    projected = qn_reshape_rows(s, projected, 1, &width);
    if (own) projected = qn_scale(s, qn_add(s, projected, own), sqrtf(0.5f));
    return qn_label(s, projected, "layer_inputs");
}

qn_array *qn_block_layer_input(qn_scope *s, const qn_forward *f, qn_array *x, qn_array *inputs, int64_t layer)
{
    int64_t n = f->config->hidden_size_per_layer_input;
    qn_array *h = qn_block_linear(s, f, x, QN_WEIGHT_LAYER_INPUT_GATE, QN_WEIGHT_ROLE_COUNT, layer);
    h = qn_mul(s, qn_block_activation(s, f, h, layer), qn_slice_last(s, inputs, layer * n, n));
    h = qn_block_linear(s, f, h, QN_WEIGHT_LAYER_INPUT_OUT, QN_WEIGHT_ROLE_COUNT, layer);
    return qn_block_norm(s, f, h, QN_WEIGHT_POST_LAYER_INPUT_NORM, layer);
}
