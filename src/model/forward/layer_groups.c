#include "model/forward/layer_groups.h"

#include "base/mem.h"

enum { LINE = 16 }; /* floats: both parts of a slot begin at one of the cache's lines */

qn_status qn_layer_groups_make(const qn_model_config *c, qn_layer_groups *out)
{
    qn_layer_groups g = {0};
    g.group_of = qn_calloc((size_t)c->num_hidden_layers, sizeof *g.group_of);
    g.index_of = qn_calloc((size_t)c->num_hidden_layers, sizeof *g.index_of);
    if (!g.group_of || !g.index_of) {
        qn_layer_groups_free(&g);
        return QN_E_NOMEM;
    }
    for (int64_t l = 0; l < c->num_hidden_layers; l++) {
        const qn_layer_config *layer = &c->layers[l];
        if (layer->kv_layer != l) {
            g.group_of[l] = g.group_of[layer->kv_layer];
            g.index_of[l] = g.index_of[layer->kv_layer];
            continue;
        }
        int i = 0, v_in_k = layer->mixer == QN_MIXER_LATENT;
        if (layer->mixer == QN_MIXER_DELTA) {
            g.group_of[l] = -1;
            g.index_of[l] = (int32_t)g.n_recurrent++;
            continue;
        }
        while (i < g.n && !(g.group[i].window == layer->window && g.group[i].head_dim == layer->head_dim &&
                            g.group[i].v_head_dim == layer->v_head_dim && g.group[i].v_in_k == v_in_k &&
                            g.group[i].num_key_value_heads == layer->num_key_value_heads))
            i++;
        if (i == QN_LAYER_GROUPS_MAX) {
            qn_layer_groups_free(&g);
            return qn_fail(QN_E_UNSUPPORTED, "more than %d kinds of attention layers", QN_LAYER_GROUPS_MAX);
        }
        if (i == g.n)
            g.group[g.n++] = (qn_layer_group){
                layer->window, layer->num_key_value_heads, layer->head_dim, layer->v_head_dim, v_in_k, 0};
        g.group_of[l] = i;
        g.index_of[l] = (int32_t)g.group[i].n_layers++;
    }
    if (g.n_recurrent) {
        const qn_delta_config *d = &c->delta;
        int64_t k = d->linear_num_key_heads * d->linear_key_head_dim,
                v = d->linear_num_value_heads * d->linear_value_head_dim;
        g.delta_offset = ((d->linear_conv_kernel_dim - 1) * (2 * k + v) + LINE - 1) / LINE * LINE;
        g.recurrent_floats = g.delta_offset + d->linear_key_head_dim * v;
    }
    *out = g;
    return QN_OK;
}

void qn_layer_groups_free(qn_layer_groups *g)
{
    qn_free(g->group_of);
    qn_free(g->index_of);
    *g = (qn_layer_groups){0};
}
