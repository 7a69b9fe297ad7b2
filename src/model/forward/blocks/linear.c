#include <stdio.h>

#include "model/forward/blocks/blocks.h"

/* How traces call the products. */
static const char *const names[QN_WEIGHT_ROLE_COUNT] = {[QN_WEIGHT_Q] = "q",
                                                        [QN_WEIGHT_K] = "k",
                                                        [QN_WEIGHT_V] = "v",
                                                        [QN_WEIGHT_O] = "o",
                                                        [QN_WEIGHT_GATE] = "gate",
                                                        [QN_WEIGHT_UP] = "up",
                                                        [QN_WEIGHT_DOWN] = "down",
                                                        [QN_WEIGHT_OUTPUT_PROJ] = "output_proj",
                                                        [QN_WEIGHT_CLASSIFY_DENSE] = "classify_dense",
                                                        [QN_WEIGHT_CLASSIFY_OUT] = "classify_out",
                                                        [QN_WEIGHT_LATENT_Q_A] = "q_a",
                                                        [QN_WEIGHT_LATENT_Q_B] = "q_b",
                                                        [QN_WEIGHT_LATENT_KV_A] = "kv_a",
                                                        [QN_WEIGHT_DELTA_QKV] = "qkv",
                                                        [QN_WEIGHT_DELTA_Z] = "z",
                                                        [QN_WEIGHT_DELTA_A] = "a",
                                                        [QN_WEIGHT_DELTA_B] = "b",
                                                        [QN_WEIGHT_DELTA_QKVZ] = "qkvz",
                                                        [QN_WEIGHT_DELTA_BA] = "ba",
                                                        [QN_WEIGHT_DELTA_OUT] = "o",
                                                        [QN_WEIGHT_HEAD_GATE] = "head_gate",
                                                        [QN_WEIGHT_DECAY_A] = "decay_a",
                                                        [QN_WEIGHT_DECAY_B] = "decay_b",
                                                        [QN_WEIGHT_OUT_GATE_A] = "gate_a",
                                                        [QN_WEIGHT_OUT_GATE_B] = "gate_b",
                                                        [QN_WEIGHT_ALTUP_ROUTER] = "altup_router",
                                                        [QN_WEIGHT_ALTUP_PREDICT] = "altup_predict",
                                                        [QN_WEIGHT_ALTUP_CORRECT] = "altup_correct",
                                                        [QN_WEIGHT_LAUREL_LEFT] = "laurel_left",
                                                        [QN_WEIGHT_LAUREL_RIGHT] = "laurel_right",
                                                        [QN_WEIGHT_SSM_IN] = "zxbcdt",
                                                        [QN_WEIGHT_SSM_OUT] = "ssm_out",
                                                        [QN_WEIGHT_SHORT_IN] = "bcx",
                                                        [QN_WEIGHT_SHORT_OUT] = "o",
                                                        [QN_WEIGHT_ROUTER] = "router",
                                                        [QN_WEIGHT_SHARED_ROUTER] = "shared_router",
                                                        [QN_WEIGHT_SHARED_GATE] = "shared_gate",
                                                        [QN_WEIGHT_SHARED_UP] = "shared_up",
                                                        [QN_WEIGHT_SHARED_DOWN] = "shared_down",
                                                        [QN_WEIGHT_LAYER_INPUT_PROJ] = "input_proj",
                                                        [QN_WEIGHT_LAYER_INPUT_GATE] = "input_gate",
                                                        [QN_WEIGHT_LAYER_INPUT_OUT] = "input_out"};

qn_array *qn_block_adapted(qn_scope *s, const qn_forward *f, qn_array *x, qn_array *y, qn_weight_role weight,
                           int64_t layer)
{
    char label[32];
    const qn_trained_matrix *m = qn_trained_get(f->trained, weight, layer);
    if (m) y = qn_trained_linear(s, m, x, qn_forward_weight(f, weight, layer), y);
    const qn_lora_pair *pairs = f->adapters ? qn_adapters_pairs(f->adapters, weight, layer) : NULL;
    if (!pairs) return y;
    y = qn_lora(s, &(qn_params_lora){pairs, QN_ADAPTERS_MAX}, x, y, f->row_adapters);
    snprintf(label, sizeof label, "%s.lora", names[weight] ? names[weight] : "product");
    return qn_label(s, y, label);
}

qn_array *qn_block_adapted_experts(qn_scope *s, const qn_forward *f, qn_array *x, qn_array *y, qn_array *ids,
                                   qn_array *share, qn_weight_role weight, int64_t layer)
{
    const qn_trained_matrix *m = qn_trained_get(f->trained, weight, layer);
    if (m) y = qn_trained_experts(s, m, x, ids, share, y);
    const qn_lora_pair *pairs = f->adapters ? qn_adapters_pairs(f->adapters, weight, layer) : NULL;
    if (!pairs) return y;
    const qn_params_lora p = {pairs, QN_ADAPTERS_MAX};
    y = qn_experts_lora(s, &p, f->config->experts.num_experts, x, y, ids, f->row_adapters, share);
    return qn_label(s, y, share ? "experts.down.lora" : "experts.lora");
}

qn_array *qn_block_linear(qn_scope *s, const qn_forward *f, qn_array *x, qn_weight_role weight,
                          qn_weight_role bias, int64_t layer)
{
    qn_array *w = qn_forward_weight(f, weight, layer), *y = qn_linear(s, x, w),
             *b = bias == QN_WEIGHT_ROLE_COUNT ? NULL : qn_forward_weight(f, bias, layer);
    if (names[weight]) y = qn_label(s, y, names[weight]);
    y = qn_block_adapted(s, f, x, y, weight, layer);
    return b ? qn_add(s, y, b) : y;
}

/* 0, which is no bias: the norm has none. */
static const qn_weight_role norm_biases[QN_WEIGHT_ROLE_COUNT] = {
    [QN_WEIGHT_FINAL_NORM] = QN_WEIGHT_FINAL_NORM_BIAS,
    [QN_WEIGHT_EMBED_NORM] = QN_WEIGHT_EMBED_NORM_BIAS,
    [QN_WEIGHT_CLASSIFY_NORM] = QN_WEIGHT_CLASSIFY_NORM_BIAS,
    [QN_WEIGHT_SUM_ATTN_NORM] = QN_WEIGHT_SUM_ATTN_NORM_BIAS,
    [QN_WEIGHT_SUM_FFN_NORM] = QN_WEIGHT_SUM_FFN_NORM_BIAS,
    [QN_WEIGHT_ATTN_NORM] = QN_WEIGHT_ATTN_NORM_BIAS,
    [QN_WEIGHT_FFN_NORM] = QN_WEIGHT_FFN_NORM_BIAS,
    [QN_WEIGHT_Q_NORM] = QN_WEIGHT_Q_NORM_BIAS,
    [QN_WEIGHT_K_NORM] = QN_WEIGHT_K_NORM_BIAS};

qn_array *qn_block_norm(qn_scope *s, const qn_forward *f, qn_array *x, qn_weight_role weight, int64_t layer)
{
    const qn_model_config *c = f->config;
    qn_array *w = qn_forward_weight(f, weight, layer);
    if (!w) return x;
    if (!c->layer_norm) return qn_rms_norm(s, x, w, c->rms_norm_eps, c->norm_offset);
    const qn_weight_role bias = norm_biases[weight];
    return qn_layer_norm(s, x, w, bias ? qn_forward_weight(f, bias, layer) : NULL, c->rms_norm_eps);
}

qn_array *qn_block_softcap(qn_scope *s, qn_array *x, float cap)
{
    return cap > 0 ? qn_scale(s, qn_unary(s, QN_PRIM_TANH, qn_scale(s, x, 1 / cap)), cap) : x;
}
