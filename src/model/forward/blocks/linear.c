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
                                                        [QN_WEIGHT_HYPER_END_DOWN] = "mix_down",
                                                        [QN_WEIGHT_HYPER_END_UP] = "mix_up",
                                                        [QN_WEIGHT_HYPER_ATTN_DOWN] = "mix_down",
                                                        [QN_WEIGHT_HYPER_ATTN_UP] = "mix_up",
                                                        [QN_WEIGHT_HYPER_ATTN_INJECT] = "inject",
                                                        [QN_WEIGHT_HYPER_FFN_DOWN] = "ffn_mix_down",
                                                        [QN_WEIGHT_HYPER_FFN_UP] = "ffn_mix_up",
                                                        [QN_WEIGHT_HYPER_FFN_INJECT] = "ffn_inject",
                                                        [QN_WEIGHT_NGRAM_KEY] = "ngram_key",
                                                        [QN_WEIGHT_NGRAM_VALUE] = "ngram_value",
                                                        [QN_WEIGHT_HYPER_ATTN] = "hyper_attn",
                                                        [QN_WEIGHT_HYPER_FFN] = "hyper_ffn",
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

/* A number for each row, 1 where one is 1 and else 0: [R, 1]. */
static qn_array *of_rows(qn_scope *s, const qn_forward *f, float one)
{
    qn_array *x = qn_scale(s, qn_astype(s, f->row_adapters, QN_DTYPE_F32), 0);
    return qn_reshape_rows(s, qn_add(s, x, qn_scalar(s, one)), 1, (int64_t[]){1});
}

/* y plus what adapters add to the product of x with a tensor that they change as a whole; x NULL: a vector. */
static qn_array *changed(qn_scope *s, const qn_forward *f, qn_array *x, qn_array *y, qn_weight_role role,
                         int64_t layer)
{
    int n = 0;
    const qn_lora_pair *pairs = f->adapters ? qn_adapters_changes(f->adapters, role, layer, &n) : NULL;
    if (!pairs) return y;
    if (!x) x = of_rows(s, f, 1);
    for (int i = 0; i < n; i++)
        y = qn_lora(s, &(qn_params_lora){pairs + i * QN_ADAPTERS_MAX, QN_ADAPTERS_MAX}, x, y,
                    f->row_adapters);
    return qn_label(s, y, "changed");
}

int qn_block_is_changed(const qn_forward *f, qn_weight_role role, int64_t layer)
{
    int n;
    return f->adapters &&
           (qn_adapters_pairs(f->adapters, role, layer) || qn_adapters_changes(f->adapters, role, layer, &n));
}

qn_array *qn_block_embedding(qn_scope *s, const qn_forward *f, qn_array *ids)
{
    const int64_t width = f->config->hidden_size, one[2] = {1, width};
    int n;
    qn_array *x = qn_take(s, qn_forward_weight(f, QN_WEIGHT_EMBED, 0), ids);
    const qn_lora_pair *pairs = f->adapters ? qn_adapters_changes(f->adapters, QN_WEIGHT_EMBED, 0, &n) : NULL;
    if (!pairs) return x;
    const qn_params_lora p = {pairs, QN_ADAPTERS_MAX};
    x = qn_experts_lora(s, &p, f->config->vocab_size, of_rows(s, f, 1), qn_reshape_rows(s, x, 2, one),
                        qn_reshape_rows(s, ids, 1, one), f->row_adapters, NULL);
    return qn_reshape_rows(s, x, 1, &width);
}

qn_array *qn_block_adapted(qn_scope *s, const qn_forward *f, qn_array *x, qn_array *y, qn_weight_role weight,
                           int64_t layer)
{
    char label[32];
    const qn_trained_matrix *m = qn_trained_get(f->trained, weight, layer);
    if (m) y = qn_trained_linear(s, m, x, qn_forward_weight(f, weight, layer), y);
    y = changed(s, f, x, y, weight, layer);
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
    if (b) y = qn_add(s, y, b);
    return bias == QN_WEIGHT_ROLE_COUNT ? y : changed(s, f, NULL, y, bias, layer);
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

static int is_behind_block(qn_weight_role role)
{
    return role == QN_WEIGHT_POST_ATTN_NORM || role == QN_WEIGHT_POST_FFN_NORM;
}

static qn_array *norm_by(qn_scope *s, const qn_model_config *c, qn_weight_role role, qn_array *x, qn_array *w,
                         qn_array *bias, float offset)
{
    const float eps = is_behind_block(role) ? c->post_norm_eps : c->rms_norm_eps;
    return c->layer_norm ? qn_layer_norm(s, x, w, bias, eps) : qn_rms_norm(s, x, w, eps, offset);
}

/* What adapters add to each row's vector of a role, for rows x [R, n] or [R, heads, n]; NULL: nothing. */
static qn_array *added_vector(qn_scope *s, const qn_forward *f, const qn_array *x, qn_weight_role role,
                              int64_t layer)
{
    const qn_shape *shape = qn_array_shape(x);
    const int64_t width = shape->dim[shape->n - 1], of_heads[2] = {1, width};
    int n;
    if (!f->adapters || !qn_adapters_changes(f->adapters, role, layer, &n)) return NULL;
    qn_array *none = qn_add(s, of_rows(s, f, 0), qn_zeros(s, QN_DTYPE_F32, 1, &width));
    qn_array *d = changed(s, f, NULL, none, role, layer);
    return shape->n == 3 ? qn_reshape_rows(s, d, 2, of_heads) : d;
}

qn_array *qn_block_norm(qn_scope *s, const qn_forward *f, qn_array *x, qn_weight_role weight, int64_t layer)
{
    const qn_model_config *c = f->config;
    const qn_weight_role bias = norm_biases[weight];
    qn_array *w = qn_forward_weight(f, weight, layer);
    if (!w || !x) return x;
    const qn_shape *shape = qn_array_shape(x);
    qn_array *y = norm_by(s, c, weight, x, w, bias ? qn_forward_weight(f, bias, layer) : NULL,
                          weight == QN_WEIGHT_FINAL_NORM ? c->final_norm_offset : c->norm_offset);
    qn_array *d = added_vector(s, f, x, weight, layer);
    if (d) {
        qn_array *ones = qn_ones(s, QN_DTYPE_F32, 1, &shape->dim[shape->n - 1]);
        y = qn_add(s, y, qn_mul(s, norm_by(s, c, weight, x, ones, NULL, 0), d));
    }
    d = bias ? added_vector(s, f, x, bias, layer) : NULL;
    return d ? qn_add(s, y, d) : y;
}

qn_array *qn_block_stream_norm(qn_scope *s, const qn_forward *f, qn_array *x, qn_weight_role weight,
                               int64_t layer)
{
    const qn_model_config *c = f->config;
    const int64_t width = c->hidden_size, all = c->hyper.hc_count * width;
    qn_array *w = qn_forward_weight(f, weight, layer);
    if (!w || !x) return NULL;
    qn_array *y = qn_reshape_rows(s, x, 2, (int64_t[]){c->hyper.hc_count, width});
    y = qn_reshape_rows(s, qn_rms_norm(s, y, NULL, c->rms_norm_eps, 0), 1, &all);
    qn_array *d = y ? added_vector(s, f, y, weight, layer) : NULL;
    if (c->norm_offset != 0) w = qn_add(s, w, qn_scalar(s, c->norm_offset));
    return qn_mul(s, y, d ? qn_add(s, w, d) : w);
}

qn_array *qn_block_softcap(qn_scope *s, qn_array *x, float cap)
{
    return cap > 0 ? qn_scale(s, qn_unary(s, QN_PRIM_TANH, qn_scale(s, x, 1 / cap)), cap) : x;
}
