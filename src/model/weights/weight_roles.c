#include "model/weights/weight_roles.h"

/* A dimension of a role's shape, by the letters of weights.h. */
typedef enum {
    DIM_NONE,
    DIM_V,
    DIM_H,
    DIM_Q,
    DIM_K,
    DIM_D,
    DIM_F,
    DIM_Q_NORM,
    DIM_K_NORM,
    DIM_Q_GATED,
    DIM_ONE,
    DIM_CHANNELS,
    DIM_KERNEL,
    DIM_NV,
    DIM_DV,
    DIM_QKVZ,
    DIM_Q_RANK,
    DIM_KV_RANK,
    DIM_KV_A,
    DIM_Q_B,
    DIM_HEADS,
    DIM_NOPE,
    DIM_VD,
    DIM_O,

    DIM_3H,
    DIM_NV_DV,
    DIM_2NV,
    DIM_V2,
    DIM_P,
    DIM_LP,
    DIM_E,
    DIM_M,
    DIM_S,
} dim;

/* When a tensor must be there. The norms are there by the config alone; a bias that is in the file is taken
 * in any case. */
typedef enum {
    ALWAYS,
    IF_UNTIED,
    IF_NORM,
    IF_ATTENTION,
    IF_QK_NORM,
    IF_NORM_BIAS,
    IF_QK_NORM_BIAS,
    IF_HEAD_BIAS,
    IF_QKV_BIAS,
    IF_O_BIAS,
    IF_MLP_BIAS,
    IF_LATENT,
    IF_Q_RANK,
    IF_Q_RANK_BIAS,
    IF_KV_A_BIAS,
    IF_Q,
    IF_O,
    IF_DELTA,
    IF_DELTA_SPLIT,
    IF_DELTA_BY_HEAD,
    IF_CONV,
    IF_CONV_BIAS,
    IF_SHORT,
    IF_SHORT_BIAS,
    IF_HEAD_GATE,
    IF_LAYER_INPUT,
    IF_LAYER_SCALE,
    IF_MLP,
    IF_MLP_GATE,
    IF_MLP_GATE_BIAS,
    IF_EXPERTS,
    IF_EXPERT_BIAS,
    IF_BOTH,
    IF_ROUTER_NORM,
    IF_EXPERT_SCALE,
    IF_CORRECTION,
    IF_SHARED,
    IF_SHARED_GATE,
    IF_SINKS
} need;

static const struct {
    dim shape[QN_WEIGHT_DIMS_MAX];
    need need;
    unsigned norm; /* IF_NORM, IF_NORM_BIAS: the bit of the config; 0: always */
} roles[QN_WEIGHT_ROLE_COUNT] = {
    [QN_WEIGHT_EMBED] = {{DIM_V, DIM_H}, ALWAYS, 0},
    [QN_WEIGHT_FINAL_NORM] = {{DIM_H}, ALWAYS, 0},
    [QN_WEIGHT_FINAL_NORM_BIAS] = {{DIM_H}, IF_NORM_BIAS, 0},
    [QN_WEIGHT_LM_HEAD_BIAS] = {{DIM_V}, IF_HEAD_BIAS, 0},
    [QN_WEIGHT_LM_HEAD] = {{DIM_V, DIM_H}, IF_UNTIED, 0},
    [QN_WEIGHT_LAYER_INPUT_EMBED] = {{DIM_V2, DIM_LP}, IF_LAYER_INPUT, 0},
    [QN_WEIGHT_LAYER_INPUT_PROJ] = {{DIM_LP, DIM_H}, IF_LAYER_INPUT, 0},
    [QN_WEIGHT_LAYER_INPUT_NORM] = {{DIM_P}, IF_LAYER_INPUT, 0},
    [QN_WEIGHT_ATTN_NORM] = {{DIM_H}, IF_NORM, QN_NORM_PRE_ATTN},
    [QN_WEIGHT_ATTN_NORM_BIAS] = {{DIM_H}, IF_NORM_BIAS, QN_NORM_PRE_ATTN},
    [QN_WEIGHT_Q] = {{DIM_Q_GATED, DIM_H}, IF_Q, 0},
    [QN_WEIGHT_K] = {{DIM_K, DIM_H}, IF_ATTENTION, 0},
    [QN_WEIGHT_V] = {{DIM_K, DIM_H}, IF_ATTENTION, 0},
    [QN_WEIGHT_O] = {{DIM_H, DIM_O}, IF_O, 0},
    [QN_WEIGHT_Q_BIAS] = {{DIM_Q_GATED}, IF_QKV_BIAS, 0},
    [QN_WEIGHT_K_BIAS] = {{DIM_K}, IF_QKV_BIAS, 0},
    [QN_WEIGHT_V_BIAS] = {{DIM_K}, IF_QKV_BIAS, 0},
    [QN_WEIGHT_O_BIAS] = {{DIM_H}, IF_O_BIAS, 0},
    [QN_WEIGHT_Q_NORM] = {{DIM_Q_NORM}, IF_QK_NORM, 0},
    [QN_WEIGHT_K_NORM] = {{DIM_K_NORM}, IF_QK_NORM, 0},
    [QN_WEIGHT_Q_NORM_BIAS] = {{DIM_Q_NORM}, IF_QK_NORM_BIAS, 0},
    [QN_WEIGHT_K_NORM_BIAS] = {{DIM_K_NORM}, IF_QK_NORM_BIAS, 0},
    [QN_WEIGHT_HEAD_GATE] = {{DIM_HEADS, DIM_H}, IF_HEAD_GATE, 0},
    [QN_WEIGHT_POST_ATTN_NORM] = {{DIM_H}, IF_NORM, QN_NORM_POST_ATTN},
    [QN_WEIGHT_FFN_NORM] = {{DIM_H}, IF_NORM, QN_NORM_PRE_FFN},
    [QN_WEIGHT_FFN_NORM_BIAS] = {{DIM_H}, IF_NORM_BIAS, QN_NORM_PRE_FFN},
    [QN_WEIGHT_GATE] = {{DIM_F, DIM_H}, IF_MLP_GATE, 0},
    [QN_WEIGHT_UP] = {{DIM_F, DIM_H}, IF_MLP, 0},
    [QN_WEIGHT_DOWN] = {{DIM_H, DIM_F}, IF_MLP, 0},
    [QN_WEIGHT_GATE_BIAS] = {{DIM_F}, IF_MLP_GATE_BIAS, 0},
    [QN_WEIGHT_UP_BIAS] = {{DIM_F}, IF_MLP_BIAS, 0},
    [QN_WEIGHT_DOWN_BIAS] = {{DIM_H}, IF_MLP_BIAS, 0},
    [QN_WEIGHT_LATENT_Q_A] = {{DIM_Q_RANK, DIM_H}, IF_Q_RANK, 0},
    [QN_WEIGHT_LATENT_Q_A_BIAS] = {{DIM_Q_RANK}, IF_Q_RANK_BIAS, 0},
    [QN_WEIGHT_LATENT_Q_A_NORM] = {{DIM_Q_RANK}, IF_Q_RANK, 0},
    [QN_WEIGHT_LATENT_Q_B] = {{DIM_Q_B, DIM_Q_RANK}, IF_Q_RANK, 0},
    [QN_WEIGHT_LATENT_KV_A] = {{DIM_KV_A, DIM_H}, IF_LATENT, 0},
    [QN_WEIGHT_LATENT_KV_A_BIAS] = {{DIM_KV_A}, IF_KV_A_BIAS, 0},
    [QN_WEIGHT_LATENT_KV_A_NORM] = {{DIM_KV_RANK}, IF_LATENT, 0},
    [QN_WEIGHT_LATENT_K_B] = {{DIM_HEADS, DIM_KV_RANK, DIM_NOPE}, IF_LATENT, 0},
    [QN_WEIGHT_LATENT_V_B] = {{DIM_HEADS, DIM_VD, DIM_KV_RANK}, IF_LATENT, 0},
    [QN_WEIGHT_DELTA_QKV] = {{DIM_CHANNELS, DIM_H}, IF_DELTA_SPLIT, 0},
    [QN_WEIGHT_DELTA_Z] = {{DIM_NV_DV, DIM_H}, IF_DELTA_SPLIT, 0},
    [QN_WEIGHT_DELTA_A] = {{DIM_NV, DIM_H}, IF_DELTA_SPLIT, 0},
    [QN_WEIGHT_DELTA_B] = {{DIM_NV, DIM_H}, IF_DELTA_SPLIT, 0},
    [QN_WEIGHT_DELTA_QKVZ] = {{DIM_QKVZ, DIM_H}, IF_DELTA_BY_HEAD, 0},
    [QN_WEIGHT_DELTA_BA] = {{DIM_2NV, DIM_H}, IF_DELTA_BY_HEAD, 0},
    [QN_WEIGHT_CONV] = {{DIM_CHANNELS, DIM_ONE, DIM_KERNEL}, IF_CONV, 0},
    [QN_WEIGHT_CONV_BIAS] = {{DIM_CHANNELS}, IF_CONV_BIAS, 0},
    [QN_WEIGHT_SHORT_IN] = {{DIM_3H, DIM_H}, IF_SHORT, 0},
    [QN_WEIGHT_SHORT_IN_BIAS] = {{DIM_3H}, IF_SHORT_BIAS, 0},
    [QN_WEIGHT_SHORT_OUT] = {{DIM_H, DIM_H}, IF_SHORT, 0},
    [QN_WEIGHT_SHORT_OUT_BIAS] = {{DIM_H}, IF_SHORT_BIAS, 0},
    [QN_WEIGHT_DELTA_DT_BIAS] = {{DIM_NV}, IF_DELTA, 0},
    [QN_WEIGHT_DELTA_A_LOG] = {{DIM_NV}, IF_DELTA, 0},
    [QN_WEIGHT_DELTA_NORM] = {{DIM_DV}, IF_DELTA, 0},
    [QN_WEIGHT_DELTA_OUT] = {{DIM_H, DIM_NV_DV}, IF_DELTA, 0},
    [QN_WEIGHT_ROUTER] = {{DIM_E, DIM_H}, IF_EXPERTS, 0},
    [QN_WEIGHT_ROUTER_BIAS] = {{DIM_E}, IF_EXPERT_BIAS, 0},
    [QN_WEIGHT_ROUTER_CORRECTION] = {{DIM_E}, IF_CORRECTION, 0},
    [QN_WEIGHT_EXPERT_GATE] = {{DIM_E, DIM_M, DIM_H}, IF_EXPERTS, 0},
    [QN_WEIGHT_EXPERT_UP] = {{DIM_E, DIM_M, DIM_H}, IF_EXPERTS, 0},
    [QN_WEIGHT_EXPERT_DOWN] = {{DIM_E, DIM_H, DIM_M}, IF_EXPERTS, 0},
    [QN_WEIGHT_EXPERT_GATE_BIAS] = {{DIM_E, DIM_M}, IF_EXPERT_BIAS, 0},
    [QN_WEIGHT_EXPERT_UP_BIAS] = {{DIM_E, DIM_M}, IF_EXPERT_BIAS, 0},
    [QN_WEIGHT_EXPERT_DOWN_BIAS] = {{DIM_E, DIM_H}, IF_EXPERT_BIAS, 0},
    [QN_WEIGHT_SHARED_GATE] = {{DIM_S, DIM_H}, IF_SHARED, 0},
    [QN_WEIGHT_SHARED_UP] = {{DIM_S, DIM_H}, IF_SHARED, 0},
    [QN_WEIGHT_SHARED_DOWN] = {{DIM_H, DIM_S}, IF_SHARED, 0},
    [QN_WEIGHT_SHARED_ROUTER] = {{DIM_ONE, DIM_H}, IF_SHARED_GATE, 0},
    [QN_WEIGHT_SINKS] = {{DIM_HEADS}, IF_SINKS, 0},
    [QN_WEIGHT_POST_FFN_NORM] = {{DIM_H}, IF_NORM, QN_NORM_POST_FFN},
    [QN_WEIGHT_POST_MLP_NORM] = {{DIM_H}, IF_BOTH, 0},
    [QN_WEIGHT_EXPERTS_NORM] = {{DIM_H}, IF_BOTH, 0},
    [QN_WEIGHT_POST_EXPERTS_NORM] = {{DIM_H}, IF_BOTH, 0},
    [QN_WEIGHT_ROUTER_SCALE] = {{DIM_H}, IF_ROUTER_NORM, 0},
    [QN_WEIGHT_EXPERT_SCALE] = {{DIM_E}, IF_EXPERT_SCALE, 0},
    [QN_WEIGHT_LAYER_INPUT_GATE] = {{DIM_P, DIM_H}, IF_LAYER_INPUT, 0},
    [QN_WEIGHT_LAYER_INPUT_OUT] = {{DIM_H, DIM_P}, IF_LAYER_INPUT, 0},
    [QN_WEIGHT_POST_LAYER_INPUT_NORM] = {{DIM_H}, IF_LAYER_INPUT, 0},
    [QN_WEIGHT_LAYER_SCALE] = {{DIM_ONE}, IF_LAYER_SCALE, 0},
};

static int64_t dim_size(const qn_model_config *c, const qn_layer_config *l, dim d)
{
    const qn_delta_config *delta = &c->delta;
    const qn_latent_config *latent = &c->latent;
    const int64_t nk_dk = delta->linear_num_key_heads * delta->linear_key_head_dim,
                  nv_dv = delta->linear_num_value_heads * delta->linear_value_head_dim;
    switch (d) {
    case DIM_V:
        return c->vocab_size;
    case DIM_H:
        return c->hidden_size;
    case DIM_Q:
        return c->num_attention_heads * l->head_dim;
    case DIM_K:
        return l->num_key_value_heads * l->head_dim;
    case DIM_D:
        return l->head_dim;
    case DIM_F:
        return l->intermediate_size;
    case DIM_Q_NORM:
        return c->qk_norm == QN_QK_NORM_WHOLE ? dim_size(c, l, DIM_Q) : l->head_dim;
    case DIM_K_NORM:
        return c->qk_norm == QN_QK_NORM_WHOLE ? dim_size(c, l, DIM_K) : l->head_dim;
    case DIM_Q_GATED:
        if (l->mixer == QN_MIXER_LATENT) return dim_size(c, l, DIM_Q_B);
        return dim_size(c, l, DIM_Q) * (c->attn_output_gate ? 2 : 1);
    case DIM_O:
        return c->num_attention_heads * (l->mixer == QN_MIXER_LATENT ? latent->v_head_dim : l->head_dim);
    case DIM_Q_RANK:
        return latent->q_lora_rank;
    case DIM_KV_RANK:
        return latent->kv_lora_rank;
    case DIM_KV_A:
        return latent->kv_lora_rank + latent->qk_rope_head_dim;
    case DIM_Q_B:
        return c->num_attention_heads * (latent->qk_nope_head_dim + latent->qk_rope_head_dim);
    case DIM_HEADS:
        return c->num_attention_heads;
    case DIM_NOPE:
        return latent->qk_nope_head_dim;
    case DIM_VD:
        return latent->v_head_dim;
    case DIM_ONE:
        return 1;
    case DIM_CHANNELS:
        return l->mixer == QN_MIXER_SHORT_CONV ? c->hidden_size : 2 * nk_dk + nv_dv;
    case DIM_KERNEL:
        return l->mixer == QN_MIXER_SHORT_CONV ? c->short_conv.conv_L_cache : delta->linear_conv_kernel_dim;
    case DIM_3H:
        return 3 * c->hidden_size;
    case DIM_NV:
        return delta->linear_num_value_heads;
    case DIM_2NV:
        return 2 * delta->linear_num_value_heads;
    case DIM_DV:
        return delta->linear_value_head_dim;
    case DIM_NV_DV:
        return nv_dv;
    case DIM_QKVZ:
        return 2 * nk_dk + 2 * nv_dv;
    case DIM_V2:
        return c->vocab_size_per_layer_input;
    case DIM_P:
        return c->hidden_size_per_layer_input;
    case DIM_LP:
        return c->num_hidden_layers * c->hidden_size_per_layer_input;
    case DIM_E:
        return c->experts.num_experts;
    case DIM_M:
        return c->experts.moe_intermediate_size;
    case DIM_S:
        return c->experts.shared_intermediate_size;
    default:
        return 0;
    }
}

int qn_weight_shape(const qn_model_config *c, int64_t layer, qn_weight_role role,
                    int64_t shape[QN_WEIGHT_DIMS_MAX])
{
    int n = 0;
    for (; n < QN_WEIGHT_DIMS_MAX && roles[role].shape[n] != DIM_NONE; n++)
        shape[n] = dim_size(c, &c->layers[layer], roles[role].shape[n]);
    return n;
}

int64_t qn_weight_taps(const qn_model_config *c, int64_t layer, qn_weight_role role)
{
    return roles[role].shape[2] == DIM_KERNEL ? dim_size(c, &c->layers[layer], DIM_KERNEL) : 0;
}

static qn_weight_presence strictly(int is_there)
{
    return is_there ? QN_WEIGHT_NEEDED : QN_WEIGHT_NEVER;
}

static qn_weight_presence loosely(int is_said)
{
    return is_said ? QN_WEIGHT_NEEDED : QN_WEIGHT_MAYBE;
}

/* Makes a layer's own keys, or its own values. */
static int is_of_key(qn_weight_role role)
{
    return role == QN_WEIGHT_K || role == QN_WEIGHT_K_BIAS || role == QN_WEIGHT_K_NORM;
}

static int is_of_value(qn_weight_role role)
{
    return role == QN_WEIGHT_V || role == QN_WEIGHT_V_BIAS;
}

qn_weight_presence qn_weight_expected(const qn_model_config *c, int64_t layer, qn_weight_role role)
{
    const qn_layer_config *l = &c->layers[layer];
    const int attends = l->mixer == QN_MIXER_ATTENTION, latent = l->mixer == QN_MIXER_LATENT,
              recurs = l->mixer == QN_MIXER_DELTA, convolves = l->mixer == QN_MIXER_SHORT_CONV;
    if (l->kv_layer != layer && (is_of_key(role) || is_of_value(role))) return QN_WEIGHT_UNUSED;
    if (l->value_is_key && is_of_value(role)) return QN_WEIGHT_NEVER;
    switch (roles[role].need) {
    case ALWAYS:
        return QN_WEIGHT_NEEDED;
    case IF_UNTIED:
        return loosely(!c->tie_word_embeddings);
    case IF_NORM:
        return strictly((c->norms & roles[role].norm) != 0);
    case IF_NORM_BIAS:
        return strictly(c->norm_bias && (!roles[role].norm || (c->norms & roles[role].norm)));
    case IF_QK_NORM_BIAS:
        return strictly(attends && c->norm_bias && c->qk_norm != QN_QK_NORM_NONE);
    case IF_HEAD_BIAS:
        return loosely(c->head_bias);
    case IF_QK_NORM:
        return strictly(attends && c->qk_norm != QN_QK_NORM_NONE);
    case IF_QKV_BIAS:
        return attends ? loosely(c->attention_bias) : QN_WEIGHT_NEVER;
    case IF_O_BIAS:
        return attends || latent ? loosely(c->attention_output_bias) : QN_WEIGHT_NEVER;
    case IF_O:
        return strictly(attends || latent);
    case IF_HEAD_GATE:
        return strictly(attends && c->attn_head_gate);
    case IF_CONV:
        return strictly(recurs || convolves);
    case IF_CONV_BIAS:
        return strictly(convolves && c->short_conv.conv_bias);
    case IF_SHORT:
        return strictly(convolves);
    case IF_SHORT_BIAS:
        return strictly(convolves && c->short_conv.conv_bias);
    case IF_Q:
        return strictly(attends || (latent && !c->latent.q_lora_rank));
    case IF_LATENT:
        return strictly(latent);
    case IF_Q_RANK:
        return strictly(latent && c->latent.q_lora_rank);
    case IF_Q_RANK_BIAS:
        return latent && c->latent.q_lora_rank ? loosely(c->attention_bias) : QN_WEIGHT_NEVER;
    case IF_KV_A_BIAS:
        return latent ? loosely(c->attention_bias) : QN_WEIGHT_NEVER;
    case IF_ATTENTION:
        return strictly(attends);
    case IF_DELTA:
        return strictly(recurs);
    case IF_DELTA_SPLIT:
        return strictly(recurs && !c->delta.by_head);
    case IF_DELTA_BY_HEAD:
        return strictly(recurs && c->delta.by_head);
    case IF_MLP:
        return strictly(l->has_mlp);
    case IF_MLP_GATE:
        return strictly(l->has_mlp && !c->plain_mlp);
    case IF_MLP_GATE_BIAS:
        return l->has_mlp && !c->plain_mlp ? loosely(c->mlp_bias) : QN_WEIGHT_NEVER;
    case IF_MLP_BIAS:
        return l->has_mlp ? loosely(c->mlp_bias) : QN_WEIGHT_NEVER;
    case IF_EXPERTS:
        return strictly(l->has_experts);
    case IF_EXPERT_BIAS:
        return strictly(l->has_experts && c->experts.bias);
    case IF_BOTH:
        return strictly(l->has_experts && l->has_mlp);
    case IF_ROUTER_NORM:
        return strictly(l->has_experts && c->experts.router_norm);
    case IF_EXPERT_SCALE:
        return strictly(l->has_experts && c->experts.expert_scale);
    case IF_CORRECTION:
        return strictly(l->has_experts && c->experts.correction_bias);
    case IF_SHARED:
        return strictly(l->has_experts && c->experts.shared_intermediate_size > 0);
    case IF_SHARED_GATE:
        return strictly(l->has_experts && c->experts.shared_gate);
    case IF_SINKS:
        return strictly(attends && c->attention_sinks);
    case IF_LAYER_INPUT:
        return strictly(c->hidden_size_per_layer_input > 0);
    case IF_LAYER_SCALE:
        return c->layer_scale ? QN_WEIGHT_MAYBE : QN_WEIGHT_NEVER;
    }
    return QN_WEIGHT_NEVER;
}
