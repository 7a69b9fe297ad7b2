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
    DIM_HEAD_GATE,
    DIM_NOPE,
    DIM_VD,
    DIM_O,

    DIM_3H,
    DIM_3,
    DIM_HYPER,
    DIM_HYPER_IN,
    DIM_STREAMS,
    DIM_PAIRS,
    DIM_LAUREL,
    DIM_DECAYS,
    DIM_SSM_IN,
    DIM_SSM_HEADS,
    DIM_INNER,
    DIM_NV_DV,
    DIM_2NV,
    DIM_V2,
    DIM_P,
    DIM_LP,
    DIM_E,
    DIM_M,
    DIM_S,
    DIM_POSITIONS,
    DIM_TYPES,
    DIM_OUTPUT,
    DIM_LABELS,
    DIM_INDEX_Q,
    DIM_INDEX_FROM,
    DIM_INDEX_HEADS,
    DIM_INDEX_D,
    DIM_INDEX_PLACES,
    DIM_HYPER_STREAMS,
    DIM_HYPER_RANK,
    DIM_NGRAM_ROWS,
    DIM_NGRAM_HEAD,
    DIM_NGRAM,
    DIM_NGRAM_KERNEL,
} dim;

/* When a tensor must be there. The norms are there by the config alone; a bias that is in the file is taken
 * in any case. */
typedef enum {
    ALWAYS,
    IF_FINAL_NORM,
    IF_EMBED_NORM,
    IF_EMBED_NORM_BIAS,
    IF_POSITIONS,
    IF_TYPES,
    IF_OUTPUT_PROJ,
    IF_CLASSIFIER,
    IF_CLASSIFY_DENSE,
    IF_CLASSIFY_DENSE_BIAS,
    IF_CLASSIFY_NORM,
    IF_CLASSIFY_NORM_BIAS,
    IF_LAYER_INPUT_TABLE,
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
    IF_DELTA_Z,
    IF_DELTA_BY_HEAD,
    IF_DELTA_QKVZ,
    IF_CONV,
    IF_CONV_BIAS,
    IF_STREAM,
    IF_ALTUP,
    IF_SINKHORN,
    IF_LAUREL,
    IF_CHANNEL_DELTA,
    IF_DELTA_B,
    IF_RULE,
    IF_SSM,
    IF_SSM_IN_BIAS,
    IF_SSM_OUT_BIAS,
    IF_SSM_NORM,
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
    IF_EXPERTS_GATE,
    IF_SHARED,
    IF_SHARED_MLP_GATE,
    IF_SHARED_GATE,
    IF_SINKS,
    IF_INDEX,
    IF_INDEX_MEAN,
    IF_INDEX_GATED,
    IF_LOW_RANK_END,
    IF_LOW_RANK_ATTN,
    IF_LOW_RANK_FFN,
    IF_NGRAMS
} need;

static const struct {
    dim shape[QN_WEIGHT_DIMS_MAX];
    need need;
    unsigned norm; /* IF_NORM, IF_NORM_BIAS: the bit of the config; 0: always */
} roles[QN_WEIGHT_ROLE_COUNT] = {
    [QN_WEIGHT_EMBED] = {{DIM_V, DIM_H}, ALWAYS, 0},
    [QN_WEIGHT_FINAL_NORM] = {{DIM_H}, IF_FINAL_NORM, 0},
    [QN_WEIGHT_FINAL_NORM_BIAS] = {{DIM_H}, IF_NORM_BIAS, 0},
    [QN_WEIGHT_POSITION_EMBED] = {{DIM_POSITIONS, DIM_H}, IF_POSITIONS, 0},
    [QN_WEIGHT_TYPE_EMBED] = {{DIM_TYPES, DIM_H}, IF_TYPES, 0},
    [QN_WEIGHT_EMBED_NORM] = {{DIM_H}, IF_EMBED_NORM, 0},
    [QN_WEIGHT_EMBED_NORM_BIAS] = {{DIM_H}, IF_EMBED_NORM_BIAS, 0},
    [QN_WEIGHT_OUTPUT_PROJ] = {{DIM_OUTPUT, DIM_H}, IF_OUTPUT_PROJ, 0},
    [QN_WEIGHT_CLASSIFY_DENSE] = {{DIM_H, DIM_H}, IF_CLASSIFY_DENSE, 0},
    [QN_WEIGHT_CLASSIFY_DENSE_BIAS] = {{DIM_H}, IF_CLASSIFY_DENSE_BIAS, 0},
    [QN_WEIGHT_CLASSIFY_NORM] = {{DIM_H}, IF_CLASSIFY_NORM, 0},
    [QN_WEIGHT_CLASSIFY_NORM_BIAS] = {{DIM_H}, IF_CLASSIFY_NORM_BIAS, 0},
    [QN_WEIGHT_CLASSIFY_OUT] = {{DIM_LABELS, DIM_H}, IF_CLASSIFIER, 0},
    [QN_WEIGHT_CLASSIFY_OUT_BIAS] = {{DIM_LABELS}, IF_CLASSIFIER, 0},
    [QN_WEIGHT_LM_HEAD_BIAS] = {{DIM_V}, IF_HEAD_BIAS, 0},
    [QN_WEIGHT_LM_HEAD] = {{DIM_V, DIM_H}, IF_UNTIED, 0},
    [QN_WEIGHT_LAYER_INPUT_EMBED] = {{DIM_V2, DIM_LP}, IF_LAYER_INPUT_TABLE, 0},
    [QN_WEIGHT_LAYER_INPUT_PROJ] = {{DIM_LP, DIM_H}, IF_LAYER_INPUT, 0},
    [QN_WEIGHT_LAYER_INPUT_NORM] = {{DIM_P}, IF_LAYER_INPUT, 0},
    [QN_WEIGHT_ALTUP_IN + 0] = {{DIM_H, DIM_H}, IF_STREAM, 0},
    [QN_WEIGHT_ALTUP_IN + 1] = {{DIM_H, DIM_H}, IF_STREAM, 0},
    [QN_WEIGHT_ALTUP_IN + 2] = {{DIM_H, DIM_H}, IF_STREAM, 0},
    [QN_WEIGHT_ALTUP_IN + 3] = {{DIM_H, DIM_H}, IF_STREAM, 0},
    [QN_WEIGHT_ALTUP_IN + 4] = {{DIM_H, DIM_H}, IF_STREAM, 0},
    [QN_WEIGHT_ALTUP_IN + 5] = {{DIM_H, DIM_H}, IF_STREAM, 0},
    [QN_WEIGHT_ALTUP_IN + 6] = {{DIM_H, DIM_H}, IF_STREAM, 0},
    [QN_WEIGHT_ALTUP_OUT + 0] = {{DIM_H, DIM_H}, IF_STREAM, 0},
    [QN_WEIGHT_ALTUP_OUT + 1] = {{DIM_H, DIM_H}, IF_STREAM, 0},
    [QN_WEIGHT_ALTUP_OUT + 2] = {{DIM_H, DIM_H}, IF_STREAM, 0},
    [QN_WEIGHT_ALTUP_OUT + 3] = {{DIM_H, DIM_H}, IF_STREAM, 0},
    [QN_WEIGHT_ALTUP_OUT + 4] = {{DIM_H, DIM_H}, IF_STREAM, 0},
    [QN_WEIGHT_ALTUP_OUT + 5] = {{DIM_H, DIM_H}, IF_STREAM, 0},
    [QN_WEIGHT_ALTUP_OUT + 6] = {{DIM_H, DIM_H}, IF_STREAM, 0},
    [QN_WEIGHT_ALTUP_ROUTER_NORM] = {{DIM_H}, IF_ALTUP, 0},
    [QN_WEIGHT_ALTUP_ROUTER] = {{DIM_STREAMS, DIM_H}, IF_ALTUP, 0},
    [QN_WEIGHT_ALTUP_PREDICT] = {{DIM_PAIRS, DIM_STREAMS}, IF_ALTUP, 0},
    [QN_WEIGHT_ALTUP_CORRECT] = {{DIM_STREAMS, DIM_STREAMS}, IF_ALTUP, 0},
    [QN_WEIGHT_ALTUP_SCALE] = {{DIM_H}, IF_ALTUP, 0},
    [QN_WEIGHT_LAUREL_LEFT] = {{DIM_LAUREL, DIM_H}, IF_LAUREL, 0},
    [QN_WEIGHT_LAUREL_RIGHT] = {{DIM_H, DIM_LAUREL}, IF_LAUREL, 0},
    [QN_WEIGHT_LAUREL_NORM] = {{DIM_H}, IF_LAUREL, 0},
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
    [QN_WEIGHT_HEAD_GATE] = {{DIM_HEAD_GATE, DIM_H}, IF_HEAD_GATE, 0},
    [QN_WEIGHT_POST_ATTN_NORM] = {{DIM_H}, IF_NORM, QN_NORM_POST_ATTN},
    [QN_WEIGHT_SUM_ATTN_NORM] = {{DIM_H}, IF_NORM, QN_NORM_SUM_ATTN},
    [QN_WEIGHT_SUM_ATTN_NORM_BIAS] = {{DIM_H}, IF_NORM_BIAS, QN_NORM_SUM_ATTN},
    [QN_WEIGHT_SUM_FFN_NORM] = {{DIM_H}, IF_NORM, QN_NORM_SUM_FFN},
    [QN_WEIGHT_SUM_FFN_NORM_BIAS] = {{DIM_H}, IF_NORM_BIAS, QN_NORM_SUM_FFN},
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
    [QN_WEIGHT_INDEX_Q] = {{DIM_INDEX_Q, DIM_INDEX_FROM}, IF_INDEX, 0},
    [QN_WEIGHT_INDEX_K] = {{DIM_INDEX_D, DIM_H}, IF_INDEX, 0},
    [QN_WEIGHT_INDEX_Q_NORM] = {{DIM_INDEX_D}, IF_INDEX_MEAN, 0},
    [QN_WEIGHT_INDEX_K_NORM] = {{DIM_INDEX_D}, IF_INDEX, 0},
    [QN_WEIGHT_INDEX_K_NORM_BIAS] = {{DIM_INDEX_D}, IF_INDEX_GATED, 0},
    [QN_WEIGHT_INDEX_HEADS] = {{DIM_INDEX_HEADS, DIM_H}, IF_INDEX_GATED, 0},
    [QN_WEIGHT_INDEX_GATE] = {{DIM_INDEX_D, DIM_H}, IF_INDEX_GATED, 0},
    [QN_WEIGHT_INDEX_PLACES] = {{DIM_INDEX_PLACES, DIM_INDEX_D}, IF_INDEX_GATED, 0},
    [QN_WEIGHT_DELTA_QKV] = {{DIM_CHANNELS, DIM_H}, IF_DELTA_Z, 0},
    [QN_WEIGHT_DELTA_Z] = {{DIM_NV_DV, DIM_H}, IF_DELTA_Z, 0},
    [QN_WEIGHT_DELTA_A] = {{DIM_NV, DIM_H}, IF_DELTA_SPLIT, 0},
    [QN_WEIGHT_DELTA_B] = {{DIM_NV, DIM_H}, IF_DELTA_B, 0},
    [QN_WEIGHT_DELTA_QKVZ] = {{DIM_QKVZ, DIM_H}, IF_DELTA_QKVZ, 0},
    [QN_WEIGHT_DELTA_BA] = {{DIM_2NV, DIM_H}, IF_DELTA_BY_HEAD, 0},
    [QN_WEIGHT_CONV] = {{DIM_CHANNELS, DIM_ONE, DIM_KERNEL}, IF_CONV, 0},
    [QN_WEIGHT_CONV_Q] = {{DIM_NV_DV, DIM_ONE, DIM_KERNEL}, IF_CHANNEL_DELTA, 0},
    [QN_WEIGHT_CONV_K] = {{DIM_NV_DV, DIM_ONE, DIM_KERNEL}, IF_CHANNEL_DELTA, 0},
    [QN_WEIGHT_CONV_V] = {{DIM_NV_DV, DIM_ONE, DIM_KERNEL}, IF_CHANNEL_DELTA, 0},
    [QN_WEIGHT_DECAY_A] = {{DIM_DV, DIM_H}, IF_CHANNEL_DELTA, 0},
    [QN_WEIGHT_DECAY_B] = {{DIM_NV_DV, DIM_DV}, IF_CHANNEL_DELTA, 0},
    [QN_WEIGHT_OUT_GATE_A] = {{DIM_DV, DIM_H}, IF_CHANNEL_DELTA, 0},
    [QN_WEIGHT_OUT_GATE_B] = {{DIM_NV_DV, DIM_DV}, IF_CHANNEL_DELTA, 0},
    [QN_WEIGHT_CONV_BIAS] = {{DIM_CHANNELS}, IF_CONV_BIAS, 0},
    [QN_WEIGHT_SSM_IN] = {{DIM_SSM_IN, DIM_H}, IF_SSM, 0},
    [QN_WEIGHT_SSM_IN_BIAS] = {{DIM_SSM_IN}, IF_SSM_IN_BIAS, 0},
    [QN_WEIGHT_SSM_DT_BIAS] = {{DIM_SSM_HEADS}, IF_SSM, 0},
    [QN_WEIGHT_SSM_A_LOG] = {{DIM_SSM_HEADS}, IF_SSM, 0},
    [QN_WEIGHT_SSM_D] = {{DIM_SSM_HEADS}, IF_SSM, 0},
    [QN_WEIGHT_SSM_NORM] = {{DIM_INNER}, IF_SSM_NORM, 0},
    [QN_WEIGHT_SSM_OUT] = {{DIM_H, DIM_INNER}, IF_SSM, 0},
    [QN_WEIGHT_SSM_OUT_BIAS] = {{DIM_H}, IF_SSM_OUT_BIAS, 0},
    [QN_WEIGHT_SHORT_IN] = {{DIM_3H, DIM_H}, IF_SHORT, 0},
    [QN_WEIGHT_SHORT_IN_BIAS] = {{DIM_3H}, IF_SHORT_BIAS, 0},
    [QN_WEIGHT_SHORT_OUT] = {{DIM_H, DIM_H}, IF_SHORT, 0},
    [QN_WEIGHT_SHORT_OUT_BIAS] = {{DIM_H}, IF_SHORT_BIAS, 0},
    [QN_WEIGHT_DELTA_DT_BIAS] = {{DIM_DECAYS}, IF_RULE, 0},
    [QN_WEIGHT_DELTA_A_LOG] = {{DIM_NV}, IF_RULE, 0},
    [QN_WEIGHT_DELTA_NORM] = {{DIM_DV}, IF_RULE, 0},
    [QN_WEIGHT_DELTA_OUT] = {{DIM_H, DIM_NV_DV}, IF_DELTA, 0},
    [QN_WEIGHT_ROUTER] = {{DIM_E, DIM_H}, IF_EXPERTS, 0},
    [QN_WEIGHT_ROUTER_BIAS] = {{DIM_E}, IF_EXPERT_BIAS, 0},
    [QN_WEIGHT_ROUTER_CORRECTION] = {{DIM_E}, IF_CORRECTION, 0},
    [QN_WEIGHT_EXPERT_GATE] = {{DIM_E, DIM_M, DIM_H}, IF_EXPERTS_GATE, 0},
    [QN_WEIGHT_EXPERT_UP] = {{DIM_E, DIM_M, DIM_H}, IF_EXPERTS, 0},
    [QN_WEIGHT_EXPERT_DOWN] = {{DIM_E, DIM_H, DIM_M}, IF_EXPERTS, 0},
    [QN_WEIGHT_EXPERT_GATE_BIAS] = {{DIM_E, DIM_M}, IF_EXPERT_BIAS, 0},
    [QN_WEIGHT_EXPERT_UP_BIAS] = {{DIM_E, DIM_M}, IF_EXPERT_BIAS, 0},
    [QN_WEIGHT_EXPERT_DOWN_BIAS] = {{DIM_E, DIM_H}, IF_EXPERT_BIAS, 0},
    [QN_WEIGHT_SHARED_GATE] = {{DIM_S, DIM_H}, IF_SHARED_MLP_GATE, 0},
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
    [QN_WEIGHT_HYPER_END_NORM] = {{DIM_HYPER_IN}, IF_LOW_RANK_END, 0},
    [QN_WEIGHT_HYPER_END_DOWN] = {{DIM_HYPER_RANK, DIM_HYPER_IN}, IF_LOW_RANK_END, 0},
    [QN_WEIGHT_HYPER_END_UP] = {{DIM_HYPER_IN, DIM_HYPER_RANK}, IF_LOW_RANK_END, 0},
    [QN_WEIGHT_HYPER_ATTN_NORM] = {{DIM_HYPER_IN}, IF_LOW_RANK_ATTN, 0},
    [QN_WEIGHT_HYPER_ATTN_DOWN] = {{DIM_HYPER_RANK, DIM_HYPER_IN}, IF_LOW_RANK_ATTN, 0},
    [QN_WEIGHT_HYPER_ATTN_UP] = {{DIM_HYPER_IN, DIM_HYPER_RANK}, IF_LOW_RANK_ATTN, 0},
    [QN_WEIGHT_HYPER_ATTN_INJECT] = {{DIM_HYPER_STREAMS, DIM_HYPER_IN}, IF_LOW_RANK_ATTN, 0},
    [QN_WEIGHT_HYPER_FFN_NORM] = {{DIM_HYPER_IN}, IF_LOW_RANK_FFN, 0},
    [QN_WEIGHT_HYPER_FFN_DOWN] = {{DIM_HYPER_RANK, DIM_HYPER_IN}, IF_LOW_RANK_FFN, 0},
    [QN_WEIGHT_HYPER_FFN_UP] = {{DIM_HYPER_IN, DIM_HYPER_RANK}, IF_LOW_RANK_FFN, 0},
    [QN_WEIGHT_HYPER_FFN_INJECT] = {{DIM_HYPER_STREAMS, DIM_HYPER_IN}, IF_LOW_RANK_FFN, 0},
    [QN_WEIGHT_NGRAM_EMBED] = {{DIM_NGRAM_ROWS, DIM_NGRAM_HEAD}, IF_NGRAMS, 0},
    [QN_WEIGHT_NGRAM_KEY] = {{DIM_HYPER_IN, DIM_NGRAM}, IF_NGRAMS, 0},
    [QN_WEIGHT_NGRAM_VALUE] = {{DIM_H, DIM_NGRAM}, IF_NGRAMS, 0},
    [QN_WEIGHT_NGRAM_KEY_NORM] = {{DIM_HYPER_IN}, IF_NGRAMS, 0},
    [QN_WEIGHT_NGRAM_QUERY_NORM] = {{DIM_HYPER_IN}, IF_NGRAMS, 0},
    [QN_WEIGHT_NGRAM_CONV_NORM] = {{DIM_HYPER_IN}, IF_NGRAMS, 0},
    [QN_WEIGHT_NGRAM_CONV] = {{DIM_HYPER_IN, DIM_ONE, DIM_NGRAM_KERNEL}, IF_NGRAMS, 0},
    [QN_WEIGHT_LAYER_SCALE] = {{DIM_ONE}, IF_LAYER_SCALE, 0},
    [QN_WEIGHT_HYPER_ATTN] = {{DIM_HYPER, DIM_HYPER_IN}, IF_SINKHORN, 0},
    [QN_WEIGHT_HYPER_ATTN_BASE] = {{DIM_HYPER}, IF_SINKHORN, 0},
    [QN_WEIGHT_HYPER_ATTN_SCALE] = {{DIM_3}, IF_SINKHORN, 0},
    [QN_WEIGHT_HYPER_FFN] = {{DIM_HYPER, DIM_HYPER_IN}, IF_SINKHORN, 0},
    [QN_WEIGHT_HYPER_FFN_BASE] = {{DIM_HYPER}, IF_SINKHORN, 0},
    [QN_WEIGHT_HYPER_FFN_SCALE] = {{DIM_3}, IF_SINKHORN, 0},
};

static int64_t dim_size(const qn_model_config *c, const qn_layer_config *l, dim d)
{
    const qn_delta_config *delta = &c->delta;
    const qn_latent_config *latent = &c->latent;
    const qn_state_space_config *ssm = &c->state_space;
    const int by_channel = l->mixer == QN_MIXER_CHANNEL_DELTA;
    const int64_t inner = ssm->mamba_n_heads * ssm->mamba_d_head,
                  shared = ssm->mamba_n_groups * ssm->mamba_d_state;
    const int64_t nk_dk = delta->linear_num_key_heads * delta->linear_key_head_dim,
                  nv_dv = delta->linear_num_value_heads * delta->linear_value_head_dim;
    switch (d) {
    case DIM_V:
        return c->vocab_size;
    case DIM_H:
        return c->hidden_size;
    case DIM_Q:
        if (by_channel) return nk_dk;
        return c->num_attention_heads * l->head_dim;
    case DIM_K:
        if (by_channel) return nk_dk;
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
        if (by_channel) return nv_dv;
        return c->num_attention_heads * (l->mixer == QN_MIXER_LATENT ? latent->v_head_dim : l->head_dim);
    case DIM_Q_RANK:
        return latent->q_lora_rank;
    case DIM_KV_RANK:
        return latent->kv_lora_rank;
    case DIM_KV_A:
        return latent->kv_lora_rank + latent->qk_rope_head_dim;
    case DIM_Q_B:
        return c->num_attention_heads * (latent->qk_nope_head_dim + latent->qk_rope_head_dim);
    case DIM_HEAD_GATE:
        return c->num_attention_heads * (c->attn_channel_gate ? l->head_dim : 1);
    case DIM_HEADS:
        return c->num_attention_heads;
    case DIM_NOPE:
        return latent->qk_nope_head_dim;
    case DIM_VD:
        return latent->v_head_dim;
    case DIM_ONE:
        return 1;
    case DIM_CHANNELS:
        if (qn_layer_has_state_space(l)) return inner + 2 * shared;
        return l->mixer == QN_MIXER_SHORT_CONV ? c->hidden_size : 2 * nk_dk + nv_dv;
    case DIM_KERNEL:
        if (qn_layer_has_state_space(l)) return ssm->mamba_d_conv;
        return l->mixer == QN_MIXER_SHORT_CONV ? c->short_conv.conv_L_cache : delta->linear_conv_kernel_dim;
    case DIM_DECAYS:
        return by_channel ? nv_dv : delta->linear_num_value_heads;
    case DIM_STREAMS:
        return c->altup_num_inputs;
    case DIM_PAIRS:
        return c->altup_num_inputs * c->altup_num_inputs;
    case DIM_3:
        return 3;
    case DIM_HYPER:
        return c->hyper.hc_count * (2 + c->hyper.hc_count);
    case DIM_HYPER_IN:
        return c->hyper.hc_count * c->hidden_size;
    case DIM_LAUREL:
        return c->laurel_rank;
    case DIM_SSM_IN:
        return 2 * inner + 2 * shared + ssm->mamba_n_heads;
    case DIM_SSM_HEADS:
        return ssm->mamba_n_heads;
    case DIM_INNER:
        return inner;
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
    case DIM_POSITIONS:
        return c->encoder.position_rows;
    case DIM_TYPES:
        return c->encoder.type_vocab_size;
    case DIM_OUTPUT:
        return c->encoder.embedding_dim;
    case DIM_LABELS:
        return c->encoder.num_labels;
    case DIM_INDEX_Q:
        return c->index.index_n_heads * c->index.index_head_dim;
    case DIM_INDEX_FROM:
        return l->mixer == QN_MIXER_LATENT && latent->q_lora_rank ? latent->q_lora_rank : c->hidden_size;
    case DIM_INDEX_HEADS:
        return c->index.index_n_heads;
    case DIM_INDEX_D:
        return c->index.index_head_dim;
    case DIM_INDEX_PLACES:
        return c->index.index_kpool;
    case DIM_HYPER_STREAMS:
        return c->hyper.hc_count;
    case DIM_HYPER_RANK:
        return c->hyper.hc_lowrank;
    case DIM_NGRAM_ROWS:
        return l->ngrams ? c->ngram.n_rows[l->ngrams - 1] : 0;
    case DIM_NGRAM_HEAD:
        return c->ngram.n_heads ? c->ngram.ple_embed_dim / c->ngram.n_heads : 0;
    case DIM_NGRAM:
        return c->ngram.ple_embed_dim;
    case DIM_NGRAM_KERNEL:
        return c->ngram.ple_conv_kernel_size;
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

int qn_weight_has_offset(qn_weight_role role)
{
    static const qn_weight_role norms[] = {QN_WEIGHT_FINAL_NORM,
                                           QN_WEIGHT_LAYER_INPUT_NORM,
                                           QN_WEIGHT_ATTN_NORM,
                                           QN_WEIGHT_Q_NORM,
                                           QN_WEIGHT_K_NORM,
                                           QN_WEIGHT_POST_ATTN_NORM,
                                           QN_WEIGHT_FFN_NORM,
                                           QN_WEIGHT_POST_FFN_NORM,
                                           QN_WEIGHT_POST_MLP_NORM,
                                           QN_WEIGHT_EXPERTS_NORM,
                                           QN_WEIGHT_POST_EXPERTS_NORM,
                                           QN_WEIGHT_POST_LAYER_INPUT_NORM,
                                           QN_WEIGHT_HYPER_END_NORM,
                                           QN_WEIGHT_HYPER_ATTN_NORM,
                                           QN_WEIGHT_HYPER_FFN_NORM,
                                           QN_WEIGHT_NGRAM_KEY_NORM,
                                           QN_WEIGHT_NGRAM_QUERY_NORM,
                                           QN_WEIGHT_NGRAM_CONV_NORM,
                                           QN_WEIGHT_INDEX_Q_NORM,
                                           QN_WEIGHT_INDEX_K_NORM};
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++)
        if (norms[i] == role) return 1;
    return 0;
}

int64_t qn_weight_taps(const qn_model_config *c, int64_t layer, qn_weight_role role)
{
    const dim taps = roles[role].shape[2];
    return taps == DIM_KERNEL || taps == DIM_NGRAM_KERNEL ? dim_size(c, &c->layers[layer], taps) : 0;
}

int qn_weight_gguf_shape(const qn_model_config *c, int64_t layer, qn_weight_role role,
                         int64_t shape[QN_WEIGHT_DIMS_MAX])
{
    int n_dims = qn_weight_shape(c, layer, role, shape);
    const int by_channel = c->layers[layer].mixer == QN_MIXER_CHANNEL_DELTA;
    if (by_channel && qn_weight_taps(c, layer, role)) return n_dims; /* [channels, 1, kernel] */
    if (by_channel && role == QN_WEIGHT_DELTA_A_LOG) {
        shape[1] = 1;
        n_dims = 2;
    } else if (qn_weight_taps(c, layer, role)) {
        shape[1] = shape[2];
        n_dims = 2;
    } else if (role == QN_WEIGHT_SSM_NORM && c->state_space.mamba_n_groups) {
        shape[1] = shape[0] / c->state_space.mamba_n_groups;
        shape[0] = c->state_space.mamba_n_groups;
        n_dims = 2;
    } else if (role == QN_WEIGHT_SSM_A_LOG || role == QN_WEIGHT_SSM_D) {
        shape[1] = 1;
        n_dims = 2;
    }
    return n_dims;
}

static int norms_by_weight(const qn_model_config *c)
{
    return c->qk_norm == QN_QK_NORM_HEAD || c->qk_norm == QN_QK_NORM_WHOLE;
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

static int is_of_index(qn_weight_role role)
{
    return roles[role].need == IF_INDEX || roles[role].need == IF_INDEX_MEAN ||
           roles[role].need == IF_INDEX_GATED;
}

/* 1: the layer has the block before or behind which the norm stands. */
static int has_block(const qn_layer_config *l, unsigned norm)
{
    if (norm & (QN_NORM_PRE_ATTN | QN_NORM_POST_ATTN | QN_NORM_SUM_ATTN)) return l->mixer != QN_MIXER_NONE;
    return l->has_mlp || l->has_experts || !norm;
}

/* 1: the layer does without a norm that the others have. */
static int is_left_out(const qn_model_config *c, int64_t layer, unsigned norm)
{
    return c->first_unnormed && layer == 0 && norm == QN_NORM_PRE_ATTN;
}

qn_weight_presence qn_weight_expected(const qn_model_config *c, int64_t layer, qn_weight_role role)
{
    const qn_layer_config *l = &c->layers[layer];
    const int attends = l->mixer == QN_MIXER_ATTENTION, latent = l->mixer == QN_MIXER_LATENT,
              recurs = l->mixer == QN_MIXER_DELTA, convolves = l->mixer == QN_MIXER_SHORT_CONV,
              has_state_space = qn_layer_has_state_space(l), by_channel = l->mixer == QN_MIXER_CHANNEL_DELTA,
              has_index = l->indexed && l->index_layer == layer;
    if (l->kv_layer != layer && (is_of_key(role) || is_of_value(role))) return QN_WEIGHT_UNUSED;
    if (c->index.pool && !has_index && qn_layer_attends(l) && is_of_index(role)) return QN_WEIGHT_UNUSED;
    if (l->value_is_key && is_of_value(role)) return QN_WEIGHT_NEVER;
    switch (roles[role].need) {
    case ALWAYS:
        return QN_WEIGHT_NEEDED;
    case IF_UNTIED:
        return c->encoder.both_ways ? QN_WEIGHT_NEVER : loosely(!c->tie_word_embeddings);
    case IF_NORM:
        return strictly((c->norms & roles[role].norm) != 0 && has_block(l, roles[role].norm) &&
                        !is_left_out(c, layer, roles[role].norm));
    case IF_NORM_BIAS:
        if (!roles[role].norm) return strictly(c->norm_bias && !c->no_final_norm);
        return strictly(c->norm_bias && (c->norms & roles[role].norm) &&
                        !is_left_out(c, layer, roles[role].norm));
    case IF_FINAL_NORM:
        return strictly(!c->no_final_norm);
    case IF_EMBED_NORM:
        return strictly(c->encoder.embed_norm);
    case IF_EMBED_NORM_BIAS:
        return strictly(c->encoder.embed_norm && c->norm_bias);
    case IF_POSITIONS:
        return strictly(c->encoder.position_rows > 0);
    case IF_TYPES:
        return strictly(c->encoder.type_vocab_size > 0);
    case IF_OUTPUT_PROJ:
        return strictly(c->encoder.embedding_dim > 0);
    case IF_CLASSIFIER:
        return strictly(c->encoder.num_labels > 0);
    case IF_CLASSIFY_DENSE:
        return strictly(c->encoder.num_labels > 0 && c->encoder.classify_dense);
    case IF_CLASSIFY_DENSE_BIAS:
        return strictly(c->encoder.num_labels > 0 && c->encoder.classify_bias);
    case IF_CLASSIFY_NORM:
        return strictly(c->encoder.num_labels > 0 && c->encoder.classify_norm);
    case IF_CLASSIFY_NORM_BIAS:
        return strictly(c->encoder.num_labels > 0 && c->encoder.classify_norm && c->norm_bias);
    case IF_QK_NORM_BIAS:
        return strictly(attends && c->norm_bias && norms_by_weight(c));
    case IF_HEAD_BIAS:
        return c->encoder.both_ways ? QN_WEIGHT_NEVER : loosely(c->head_bias);
    case IF_QK_NORM:
        return strictly(attends && norms_by_weight(c));
    case IF_QKV_BIAS:
        return attends ? loosely(c->attention_bias) : QN_WEIGHT_NEVER;
    case IF_O_BIAS:
        return attends || latent ? loosely(c->attention_output_bias) : QN_WEIGHT_NEVER;
    case IF_O:
        return strictly(attends || latent || by_channel);
    case IF_STREAM:
        return strictly((role - QN_WEIGHT_ALTUP_IN) % (QN_ALTUP_INPUTS_MAX - 1) + 1 < c->altup_num_inputs);
    case IF_ALTUP:
        return strictly(c->altup_num_inputs > 0);
    case IF_SINKHORN:
        return strictly(c->hyper.kind == QN_HYPER_SINKHORN);
    case IF_LAUREL:
        return strictly(c->laurel_rank > 0);
    case IF_CHANNEL_DELTA:
        return strictly(by_channel);
    case IF_DELTA_B:
        return strictly(by_channel || (recurs && !c->delta.by_head));
    case IF_RULE:
        return strictly(by_channel || recurs);
    case IF_HEAD_GATE:
        return strictly(attends && (c->attn_head_gate || c->attn_channel_gate));
    case IF_CONV:
        return strictly(recurs || convolves || has_state_space);
    case IF_CONV_BIAS:
        return strictly((convolves && c->short_conv.conv_bias) ||
                        (has_state_space && c->state_space.conv_bias));
    case IF_SSM:
        return strictly(has_state_space);
    case IF_SSM_IN_BIAS:
        return strictly(has_state_space && c->state_space.in_bias);
    case IF_SSM_OUT_BIAS:
        return strictly(has_state_space && c->state_space.out_bias);
    case IF_SSM_NORM:
        return strictly(has_state_space && c->state_space.norm != QN_SSM_NORM_NONE);
    case IF_SHORT:
        return strictly(convolves);
    case IF_SHORT_BIAS:
        return strictly(convolves && c->short_conv.conv_bias);
    case IF_Q:
        return strictly(attends || by_channel || (latent && !c->latent.q_lora_rank));
    case IF_LATENT:
        return strictly(latent);
    case IF_Q_RANK:
        return strictly(latent && c->latent.q_lora_rank);
    case IF_Q_RANK_BIAS:
        return latent && c->latent.q_lora_rank ? loosely(c->attention_bias) : QN_WEIGHT_NEVER;
    case IF_KV_A_BIAS:
        return latent ? loosely(c->attention_bias) : QN_WEIGHT_NEVER;
    case IF_ATTENTION:
        return strictly(attends || by_channel);
    case IF_DELTA:
        return strictly(recurs);
    case IF_DELTA_SPLIT:
        return strictly(recurs && !c->delta.by_head);
    case IF_DELTA_Z:
        return strictly(recurs && (!c->delta.by_head || c->delta.z_apart));
    case IF_DELTA_BY_HEAD:
        return strictly(recurs && c->delta.by_head);
    case IF_DELTA_QKVZ:
        return strictly(recurs && c->delta.by_head && !c->delta.z_apart);
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
    case IF_EXPERTS_GATE:
        return strictly(l->has_experts && !c->plain_mlp);
    case IF_SHARED_MLP_GATE:
        return strictly(l->has_experts && !c->plain_mlp && c->experts.shared_intermediate_size > 0);
    case IF_SHARED:
        return strictly(l->has_experts && c->experts.shared_intermediate_size > 0);
    case IF_SHARED_GATE:
        return strictly(l->has_experts && c->experts.shared_gate);
    case IF_SINKS:
        return strictly(attends && c->attention_sinks);
    case IF_INDEX:
        return strictly(has_index);
    case IF_INDEX_MEAN:
        return strictly(has_index && c->index.pool == QN_INDEX_MEAN);
    case IF_INDEX_GATED:
        return strictly(has_index && c->index.pool == QN_INDEX_GATED);
    case IF_LAYER_INPUT_TABLE:
        return strictly(c->vocab_size_per_layer_input > 0);
    case IF_LAYER_INPUT:
        return strictly(c->hidden_size_per_layer_input > 0);
    case IF_LOW_RANK_END:
        return strictly(c->hyper.kind == QN_HYPER_LOW_RANK);
    case IF_LOW_RANK_ATTN:
        return strictly(c->hyper.kind == QN_HYPER_LOW_RANK && l->mixer != QN_MIXER_NONE);
    case IF_LOW_RANK_FFN:
        return strictly(c->hyper.kind == QN_HYPER_LOW_RANK && (l->has_mlp || l->has_experts));
    case IF_NGRAMS:
        return strictly(l->ngrams != 0);
    case IF_LAYER_SCALE:
        return c->layer_scale ? QN_WEIGHT_MAYBE : QN_WEIGHT_NEVER;
    }
    return QN_WEIGHT_NEVER;
}
