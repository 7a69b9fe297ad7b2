#include "model/forward/blocks/blocks.h"

int64_t qn_block_window(const qn_forward *f, int64_t layer)
{
    int64_t window = f->config->layers[layer].window;
    if (f->config->encoder.both_ways) return window;
    return f->context_size > 0 && (window == 0 || f->context_size < window) ? f->context_size : window;
}

/* Each head by itself. */
static qn_array *normed_heads(qn_scope *s, const qn_forward *f, qn_array *x, qn_qk_norm how,
                              qn_weight_role norm, int64_t layer)
{
    if (how == QN_QK_NORM_PLAIN) return qn_rms_norm(s, x, NULL, f->config->rms_norm_eps, 0);
    return how == QN_QK_NORM_HEAD ? qn_block_norm(s, f, x, norm, layer) : x;
}

/* Queries or keys [R, heads, head_dim] of their projection: normed and rotated. The bias where the projection has
 * one. */
static qn_array *turned_heads(qn_scope *s, const qn_forward *f, qn_array *x, qn_array *table, int64_t n_heads,
                              qn_weight_role norm, qn_weight_role bias, int64_t layer)
{
    const qn_model_config *c = f->config;
    const qn_layer_config *l = &c->layers[layer];
    const int is_skipped = c->qk_norm_with_rope && l->rope == QN_ROPE_NONE;
    const qn_qk_norm how = is_skipped ? QN_QK_NORM_NONE : c->qk_norm;
    /* Nothing else is done to them: a step that only shows rows as heads has no label. */
    if (l->rope == QN_ROPE_NONE && how == QN_QK_NORM_NONE && qn_forward_weight(f, bias, layer))
        x = qn_label(s, x, norm == QN_WEIGHT_Q_NORM ? "queries" : "keys");
    if (how == QN_QK_NORM_WHOLE) x = qn_block_norm(s, f, x, norm, layer);
    x = qn_reshape_rows(s, x, 2, (int64_t[]){n_heads, l->head_dim});
    if (!c->qk_norm_after_rope) x = normed_heads(s, f, x, how, norm, layer);
    if (l->rope != QN_ROPE_NONE) x = qn_rope(s, x, table, c->rope_interleaved);
    return c->qk_norm_after_rope ? normed_heads(s, f, x, how, norm, layer) : x;
}

qn_array *qn_block_attention(qn_scope *s, const qn_forward *f, qn_array *x, const qn_block_positions *at,
                             qn_block_kv *kv, int64_t layer)
{
    const qn_model_config *c = f->config;
    const qn_layer_config *l = &c->layers[layer];
    int64_t kv_heads = l->num_key_value_heads;
    int group = f->groups->group_of[layer], has_own = l->kv_layer == layer;
    qn_array *q = qn_block_linear(s, f, x, QN_WEIGHT_Q, QN_WEIGHT_Q_BIAS, layer), *gate = NULL, *k = NULL,
             *v = NULL;
    if (c->attn_output_gate) { /* rows of each head: its queries, then its gate */
        q = qn_reshape_rows(s, q, 2, (int64_t[]){c->num_attention_heads, 2 * l->head_dim});
        gate = qn_slice_last(s, q, l->head_dim, l->head_dim);
        q = qn_slice_last(s, q, 0, l->head_dim);
    }
    if (has_own) k = v = qn_block_linear(s, f, x, QN_WEIGHT_K, QN_WEIGHT_K_BIAS, layer);
    if (has_own && !l->value_is_key) v = qn_block_linear(s, f, x, QN_WEIGHT_V, QN_WEIGHT_V_BIAS, layer);
    q = turned_heads(s, f, q, at->table, c->num_attention_heads, QN_WEIGHT_Q_NORM, QN_WEIGHT_Q_BIAS, layer);
    if (at->query_scale) q = qn_mul(s, q, at->query_scale);
    q = qn_label(s, q, "queries");
    if (has_own) {
        kv->k = qn_label(s,
                         turned_heads(s, f, qn_scale(s, k, c->key_scale), at->table, kv_heads,
                                      QN_WEIGHT_K_NORM, QN_WEIGHT_K_BIAS, layer),
                         "keys");
        kv->v = qn_reshape_rows(s, v, 2, (int64_t[]){kv_heads, l->head_dim});
        if (c->value_norm) kv->v = qn_rms_norm(s, kv->v, NULL, c->rms_norm_eps, 0);
    }
    qn_params_attend p = {.state = f->state[group],
                          .layer = f->groups->index_of[layer],
                          .is_written = !has_own,
                          .whole = c->encoder.both_ways,
                          .window = qn_block_window(f, layer),
                          .chunk = l->chunk,
                          .scale = c->attention_scale,
                          .softcap = c->attn_logit_softcapping,
                          .has_sinks = c->attention_sinks};
    qn_array *sinks = qn_forward_weight(f, QN_WEIGHT_SINKS, layer);
    qn_block_choose(s, f, x, x, at, kv, &p, layer);
    qn_array *o = qn_block_attend(s, f, &p, group, q, kv->k, kv->v, sinks, kv->chosen);
    if (gate) o = qn_mul(s, o, qn_unary(s, QN_PRIM_SIGMOID, gate));
    if (c->attn_head_gate || c->attn_channel_gate) { /* a logit of each head, or of each of its channels */
        gate = qn_block_linear(s, f, x, QN_WEIGHT_HEAD_GATE, QN_WEIGHT_ROLE_COUNT, layer);
        gate = qn_reshape_rows(s, gate, 2,
                               (int64_t[]){c->num_attention_heads, c->attn_channel_gate ? l->head_dim : 1});
        o = qn_mul(s, o, qn_unary(s, QN_PRIM_SIGMOID, gate));
    }
    o = qn_reshape_rows(s, o, 1, (int64_t[]){c->num_attention_heads * l->head_dim});
    return qn_block_linear(s, f, o, QN_WEIGHT_O, QN_WEIGHT_O_BIAS, layer);
}
