/* Multi-head latent attention (DeepSeek-V2) in its absorbed form. A row's keys and values of all heads are
 * made of one latent vector c by matrices of each head: k_h = [K_h c, k_rope], v_h = V_h c. As q_h K_h c =
 * (K_h^T q_h) c, heads attend with K_h^T q_h over the latents themselves, and what they gather is a latent,
 * too, of which V_h makes the values. So pages hold a latent and the shared rotated part of the key, and a
 * row costs (kv_lora_rank + qk_rope_head_dim) numbers a layer whatever the number of heads. */
#include "model/forward/blocks/blocks.h"

/* Each head's row of x [R, heads, n] times transpose of its own matrix of weight [heads, m, n]: [R, heads,
 * m].
 */
static qn_array *by_head(qn_scope *s, const qn_forward *f, qn_array *x, qn_weight_role weight, int64_t layer)
{
    qn_array *ids = qn_parameters_heads(f->parameters);
    if (!x) return NULL;
    qn_shape shape = *qn_array_shape(x); /* of the numbers of heads: one for each row and head */
    shape.n = 2;
    ids = qn_broadcast_sym(s, ids, shape);
    return qn_experts(s, x, qn_forward_weight(f, weight, layer), ids, NULL);
}

/* Queries of all heads [R, heads, qk_nope_head_dim + qk_rope_head_dim]; *from: what they are made of. */
static qn_array *queries(qn_scope *s, const qn_forward *f, qn_array *x, qn_array **from, int64_t layer)
{
    const qn_latent_config *l = &f->config->latent;
    qn_array *q;
    *from = x;
    if (l->q_lora_rank) {
        q = qn_block_linear(s, f, x, QN_WEIGHT_LATENT_Q_A, QN_WEIGHT_LATENT_Q_A_BIAS, layer);
        q = qn_rms_norm(s, q, qn_forward_weight(f, QN_WEIGHT_LATENT_Q_A_NORM, layer), l->norm_eps, 0);
        *from = q;
        q = qn_block_linear(s, f, q, QN_WEIGHT_LATENT_Q_B, QN_WEIGHT_ROLE_COUNT, layer);
    } else {
        q = qn_block_linear(s, f, x, QN_WEIGHT_Q, QN_WEIGHT_ROLE_COUNT, layer);
    }
    return qn_reshape_rows(
        s, q, 2, (int64_t[]){f->config->num_attention_heads, l->qk_nope_head_dim + l->qk_rope_head_dim});
}

/* Keys: the latent, and behind it the part of kv that is rotated, where there is one. */
static qn_array *with_turned(qn_scope *s, const qn_model_config *c, qn_array *latent, qn_array *kv,
                             qn_array *table)
{
    const int64_t n = c->latent.qk_rope_head_dim;
    if (!n) return latent;
    qn_array *turned = qn_slice_last(s, kv, c->latent.kv_lora_rank, n);
    turned = qn_reshape_rows(s, turned, 2, (int64_t[]){1, n});
    if (table) turned = qn_rope(s, turned, table, c->rope_interleaved);
    return qn_concat(s, 2, (qn_array *[]){latent, turned});
}

qn_array *qn_block_latent_attention(qn_scope *s, const qn_forward *f, qn_array *x,
                                    const qn_block_positions *at, qn_block_kv *choice, int64_t layer)
{
    const qn_model_config *c = f->config;
    const qn_latent_config *l = &c->latent;
    const int64_t rank = l->kv_lora_rank, turned = l->qk_rope_head_dim;
    const int group = f->groups->group_of[layer];
    qn_array *from, *q = queries(s, f, x, &from, layer);
    qn_array *q_turned = turned ? qn_slice_last(s, q, l->qk_nope_head_dim, turned) : NULL;
    q = by_head(s, f, qn_slice_last(s, q, 0, l->qk_nope_head_dim), QN_WEIGHT_LATENT_K_B, layer);
    if (turned && at->table) q_turned = qn_rope(s, q_turned, at->table, c->rope_interleaved);
    if (turned) q = qn_concat(s, 2, (qn_array *[]){q, q_turned});
    if (at->query_scale) q = qn_mul(s, q, at->query_scale);
    q = qn_label(s, q, "queries");

    qn_array *kv = qn_block_linear(s, f, x, QN_WEIGHT_LATENT_KV_A, QN_WEIGHT_LATENT_KV_A_BIAS, layer);
    qn_array *latent = qn_reshape_rows(s, qn_slice_last(s, kv, 0, rank), 2, (int64_t[]){1, rank});
    latent = qn_rms_norm(s, latent, qn_forward_weight(f, QN_WEIGHT_LATENT_KV_A_NORM, layer), l->norm_eps, 0);
    latent = qn_label(s, latent, "latent");
    qn_array *k = qn_label(s, with_turned(s, c, latent, kv, at->table), "keys");

    qn_params_attend p = {.state = f->state[group],
                          .layer = f->groups->index_of[layer],
                          .window = f->context_size,
                          .scale = c->attention_scale};
    qn_block_choose(s, f, x, from, at, choice, &p, layer);
    qn_array *o = qn_block_attend(s, f, &p, group, q, k, latent, NULL, choice->chosen);
    o = by_head(s, f, o, QN_WEIGHT_LATENT_V_B, layer);
    o = qn_reshape_rows(s, o, 1, (int64_t[]){c->num_attention_heads * l->v_head_dim});
    return qn_block_linear(s, f, o, QN_WEIGHT_O, QN_WEIGHT_O_BIAS, layer);
}
