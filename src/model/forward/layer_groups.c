#include "model/forward/layer_groups.h"

#include "base/mem.h"

enum { LINE = 16 }; /* floats: both parts of a slot begin at one of the cache's lines */

/* All recurrent layers of a model have as large a place. A convolution of one tap keeps nothing, but a slot holds something. */
static void add_recurrent(const qn_model_config *c, int64_t l, qn_layer_groups *g)
{
    int64_t conv, rule;
    qn_layer_state_floats(c, l, &conv, &rule);
    g->recurrent_of[l] = (int32_t)(g->n_recurrent++ - (l < g->border ? 0 : g->n_recurrent_below));
    g->n_recurrent_below += l < g->border;
    conv = (conv + LINE - 1) / LINE * LINE;
    if (g->rule_offset < conv) g->rule_offset = conv;
    if (g->rule_floats < rule) g->rule_floats = rule;
    g->recurrent_floats = g->rule_offset + g->rule_floats;
    if (!g->recurrent_floats) g->recurrent_floats = LINE;
}

/* The group of layers that are kept so; its next place goes to layer l. -1: there are too many. */
static int add_place(qn_layer_groups *g, const qn_layer_group *kept, int64_t l, int32_t *place)
{
    int i = 0;
    while (i < g->n && !(g->group[i].window == kept->window && g->group[i].head_dim == kept->head_dim &&
                         g->group[i].v_head_dim == kept->v_head_dim && g->group[i].v_in_k == kept->v_in_k &&
                         g->group[i].num_key_value_heads == kept->num_key_value_heads &&
                         g->group[i].of_index == kept->of_index))
        i++;
    if (i == QN_LAYER_GROUPS_MAX) return -1;
    if (i == g->n) g->group[g->n++] = *kept;
    *place = (int32_t)(g->group[i].n_layers++ - (l < g->border ? 0 : g->group[i].n_below));
    g->group[i].n_below += l < g->border;
    return i;
}

/* Its keys, and the rows of a block that is not whole. */
static int add_index(const qn_model_config *c, int64_t l, qn_layer_groups *g)
{
    const int64_t dim = c->index.index_head_dim;
    const qn_layer_group keys = {
        .num_key_value_heads = 1, .head_dim = dim, .v_head_dim = dim, .v_in_k = 1, .of_index = 1};
    add_recurrent(c, l, g);
    return g->index_group = add_place(g, &keys, l, &g->index_place[l]);
}

qn_status qn_layer_groups_make(const qn_model_config *c, qn_layer_groups *out)
{
    return qn_layer_groups_split(c, 0, out);
}

int64_t qn_layer_border(const qn_model_config *c, int64_t n)
{
    const int is_one_piece = c->altup_num_inputs || c->hyper.hc_count || c->encoder.both_ways;
    if (is_one_piece && n < c->num_hidden_layers) return 0;
    for (int64_t l = c->num_hidden_layers - 1; l >= n; l--) {
        const qn_layer_config *layer = &c->layers[l];
        const int64_t chosen_by = layer->indexed ? layer->index_layer : l, read = layer->kv_layer,
                      needs = chosen_by < read ? chosen_by : read;
        if (needs >= n) continue;
        n = needs;
        l = c->num_hidden_layers; /* the lower border may be crossed by other layers */
    }
    return n;
}

qn_status qn_layer_groups_split(const qn_model_config *c, int64_t border, qn_layer_groups *out)
{
    qn_layer_groups g = {.border = border, .index_group = -1};
    g.group_of = qn_calloc((size_t)c->num_hidden_layers, sizeof *g.group_of);
    g.index_of = qn_calloc((size_t)c->num_hidden_layers, sizeof *g.index_of);
    g.recurrent_of = qn_calloc((size_t)c->num_hidden_layers, sizeof *g.recurrent_of);
    g.index_place = qn_calloc((size_t)c->num_hidden_layers, sizeof *g.index_place);
    if (!g.group_of || !g.index_of || !g.recurrent_of || !g.index_place) {
        qn_layer_groups_free(&g);
        return QN_E_NOMEM;
    }
    for (int64_t l = 0; l < c->num_hidden_layers; l++) {
        const qn_layer_config *layer = &c->layers[l];
        g.recurrent_of[l] = -1;
        if (qn_layer_recurs(layer)) add_recurrent(c, l, &g);
        if (!qn_layer_attends(layer)) {
            g.group_of[l] = g.index_of[l] = -1;
            continue;
        }
        if (layer->kv_layer != l) {
            g.group_of[l] = g.group_of[layer->kv_layer];
            g.index_of[l] = g.index_of[layer->kv_layer];
            continue;
        }
        const qn_layer_group kept = {.window = layer->window,
                                     .num_key_value_heads = layer->num_key_value_heads,
                                     .head_dim = layer->head_dim,
                                     .v_head_dim = layer->v_head_dim,
                                     .v_in_k = layer->mixer == QN_MIXER_LATENT};
        g.group_of[l] = add_place(&g, &kept, l, &g.index_of[l]);
        const int has_index = layer->indexed && layer->index_layer == l;
        if (g.group_of[l] < 0 || (has_index && add_index(c, l, &g) < 0)) {
            qn_layer_groups_free(&g);
            return qn_fail(QN_E_UNSUPPORTED, "more than %d kinds of attention layers", QN_LAYER_GROUPS_MAX);
        }
    }
    if (c->encoder.both_ways) g.n = 0;
    *out = g;
    return QN_OK;
}

void qn_layer_groups_free(qn_layer_groups *g)
{
    qn_free(g->group_of);
    qn_free(g->index_of);
    qn_free(g->recurrent_of);
    qn_free(g->index_place);
    *g = (qn_layer_groups){0};
}
