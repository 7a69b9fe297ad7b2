/* What the tensors of a role are called in each kind of file. */
#include <stdio.h>
#include <string.h>

#include "model/config/families.h"

const char *const qn_decoder_prefixes[] = {"model.",
                                           "language_model.model.",
                                           "model.language_model.",
                                           "language_model.",
                                           "model.text_model.",
                                           "backbone.",
                                           "bert.",
                                           "roberta.",
                                           "",
                                           NULL};

/* The head lies beside the decoder, not in it: "lm_head." after the first part of these, by the decoder's
 * prefix. */
static const struct {
    const char *decoder, *head;
} head_prefixes[] = {{"model.", ""},
                     {"language_model.model.", "language_model."},
                     {"model.language_model.", ""},
                     {"language_model.", "language_model."},
                     {"model.text_model.", ""},
                     {"backbone.", ""},
                     {"bert.", ""},
                     {"roberta.", ""},
                     {"", ""}};

/* '#' is the layer. */
static const struct {
    const char *safetensors, *gguf;
} names[QN_WEIGHT_ROLE_COUNT] = {
    [QN_WEIGHT_EMBED] = {"embed_tokens.weight", "token_embd.weight"},
    [QN_WEIGHT_FINAL_NORM] = {"norm.weight", "output_norm.weight"},
    [QN_WEIGHT_FINAL_NORM_BIAS] = {"norm.bias", "output_norm.bias"},
    [QN_WEIGHT_LM_HEAD] = {"lm_head.weight", "output.weight"},
    [QN_WEIGHT_LM_HEAD_BIAS] = {"lm_head.bias", "output.bias"},
    [QN_WEIGHT_POSITION_EMBED] = {"embeddings.position_embeddings.weight", "position_embd.weight"},
    [QN_WEIGHT_TYPE_EMBED] = {"embeddings.token_type_embeddings.weight", "token_types.weight"},
    [QN_WEIGHT_EMBED_NORM] = {"embeddings.LayerNorm.weight", "token_embd_norm.weight"},
    [QN_WEIGHT_EMBED_NORM_BIAS] = {"embeddings.LayerNorm.bias", "token_embd_norm.bias"},
    [QN_WEIGHT_OUTPUT_PROJ] = {"embedding_projection.weight", NULL},
    [QN_WEIGHT_CLASSIFY_DENSE] = {"pooler.dense.weight", "cls.weight"},
    [QN_WEIGHT_CLASSIFY_DENSE_BIAS] = {"pooler.dense.bias", "cls.bias"},
    [QN_WEIGHT_CLASSIFY_NORM] = {"head.norm.weight", "cls.norm.weight"},
    [QN_WEIGHT_CLASSIFY_NORM_BIAS] = {"head.norm.bias", "cls.norm.bias"},
    [QN_WEIGHT_CLASSIFY_OUT] = {"classifier.weight", "cls.output.weight"},
    [QN_WEIGHT_CLASSIFY_OUT_BIAS] = {"classifier.bias", "cls.output.bias"},
    [QN_WEIGHT_LAYER_INPUT_EMBED] = {"embed_tokens_per_layer.weight", "per_layer_token_embd.weight"},
    [QN_WEIGHT_LAYER_INPUT_PROJ] = {"per_layer_model_projection.weight", "per_layer_model_proj.weight"},
    [QN_WEIGHT_LAYER_INPUT_NORM] = {"per_layer_projection_norm.weight", "per_layer_proj_norm.weight"},
    [QN_WEIGHT_ALTUP_IN + 0] = {"altup_projections.0.weight", NULL},
    [QN_WEIGHT_ALTUP_IN + 1] = {"altup_projections.1.weight", NULL},
    [QN_WEIGHT_ALTUP_IN + 2] = {"altup_projections.2.weight", NULL},
    [QN_WEIGHT_ALTUP_IN + 3] = {"altup_projections.3.weight", NULL},
    [QN_WEIGHT_ALTUP_IN + 4] = {"altup_projections.4.weight", NULL},
    [QN_WEIGHT_ALTUP_IN + 5] = {"altup_projections.5.weight", NULL},
    [QN_WEIGHT_ALTUP_IN + 6] = {"altup_projections.6.weight", NULL},
    [QN_WEIGHT_ALTUP_OUT + 0] = {"altup_unembed_projections.0.weight", NULL},
    [QN_WEIGHT_ALTUP_OUT + 1] = {"altup_unembed_projections.1.weight", NULL},
    [QN_WEIGHT_ALTUP_OUT + 2] = {"altup_unembed_projections.2.weight", NULL},
    [QN_WEIGHT_ALTUP_OUT + 3] = {"altup_unembed_projections.3.weight", NULL},
    [QN_WEIGHT_ALTUP_OUT + 4] = {"altup_unembed_projections.4.weight", NULL},
    [QN_WEIGHT_ALTUP_OUT + 5] = {"altup_unembed_projections.5.weight", NULL},
    [QN_WEIGHT_ALTUP_OUT + 6] = {"altup_unembed_projections.6.weight", NULL},
    [QN_WEIGHT_HYPER_END_NORM] = {"hyper_connection_mixer.hc_norm.weight", "output_hc_norm.weight"},
    [QN_WEIGHT_HYPER_END_DOWN] = {"hyper_connection_mixer.input_mix_weight_down.weight",
                                  "output_hc_down.weight"},
    [QN_WEIGHT_HYPER_END_UP] = {"hyper_connection_mixer.input_mix_weight_up.weight", "output_hc_up.weight"},
    [QN_WEIGHT_HYPER_ATTN_NORM] = {"layers.#.attn_hyper_connection.hc_norm.weight",
                                   "blk.#.hc_attn_norm.weight"},
    [QN_WEIGHT_HYPER_ATTN_DOWN] = {"layers.#.attn_hyper_connection.input_mix_weight_down.weight",
                                   "blk.#.hc_attn_down.weight"},
    [QN_WEIGHT_HYPER_ATTN_UP] = {"layers.#.attn_hyper_connection.input_mix_weight_up.weight",
                                 "blk.#.hc_attn_up.weight"},
    [QN_WEIGHT_HYPER_ATTN_INJECT] = {"layers.#.attn_hyper_connection.block_inject_weight.weight",
                                     "blk.#.hc_attn_inject.weight"},
    [QN_WEIGHT_HYPER_FFN_NORM] = {"layers.#.mlp_hyper_connection.hc_norm.weight", "blk.#.hc_ffn_norm.weight"},
    [QN_WEIGHT_HYPER_FFN_DOWN] = {"layers.#.mlp_hyper_connection.input_mix_weight_down.weight",
                                  "blk.#.hc_ffn_down.weight"},
    [QN_WEIGHT_HYPER_FFN_UP] = {"layers.#.mlp_hyper_connection.input_mix_weight_up.weight",
                                "blk.#.hc_ffn_up.weight"},
    [QN_WEIGHT_HYPER_FFN_INJECT] = {"layers.#.mlp_hyper_connection.block_inject_weight.weight",
                                    "blk.#.hc_ffn_inject.weight"},
    [QN_WEIGHT_NGRAM_EMBED] = {"layers.#.ple.ple_embedding.ngram_embedding.weight",
                               "per_layer_token_embd.weight"},
    [QN_WEIGHT_NGRAM_KEY] = {"layers.#.ple.key_proj.weight", "blk.#.ple_key.weight"},
    [QN_WEIGHT_NGRAM_VALUE] = {"layers.#.ple.value_proj.weight", "blk.#.ple_value.weight"},
    [QN_WEIGHT_NGRAM_KEY_NORM] = {"layers.#.ple.norm_key.weight", "blk.#.ple_norm_key.weight"},
    [QN_WEIGHT_NGRAM_QUERY_NORM] = {"layers.#.ple.norm_query.weight", "blk.#.ple_norm_query.weight"},
    [QN_WEIGHT_NGRAM_CONV_NORM] = {"layers.#.ple.norm_conv.weight", "blk.#.ple_norm_conv.weight"},
    [QN_WEIGHT_NGRAM_CONV] = {"layers.#.ple.conv1d.weight", "blk.#.ple_conv1d.weight"},
    [QN_WEIGHT_ALTUP_ROUTER_NORM] = {"layers.#.altup.router_norm.weight", "blk.#.altup_router_norm.weight"},
    [QN_WEIGHT_ALTUP_ROUTER] = {"layers.#.altup.modality_router.weight", "blk.#.altup_router.weight"},
    [QN_WEIGHT_ALTUP_PREDICT] = {"layers.#.altup.prediction_coefs.weight", "blk.#.altup_predict_coef.weight"},
    [QN_WEIGHT_ALTUP_CORRECT] = {"layers.#.altup.correction_coefs.weight", "blk.#.altup_correct_coef.weight"},
    [QN_WEIGHT_ALTUP_SCALE] = {"layers.#.altup.correct_output_scale", "blk.#.altup_correct_scale.weight"},
    [QN_WEIGHT_LAUREL_LEFT] = {"layers.#.laurel.linear_left.weight", "blk.#.laurel_l.weight"},
    [QN_WEIGHT_LAUREL_RIGHT] = {"layers.#.laurel.linear_right.weight", "blk.#.laurel_r.weight"},
    [QN_WEIGHT_LAUREL_NORM] = {"layers.#.laurel.post_laurel_norm.weight", "blk.#.laurel_post_norm.weight"},
    [QN_WEIGHT_HYPER_ATTN] = {"layers.#.hc_attn_fn", "blk.#.hc_attn_fn.weight"},
    [QN_WEIGHT_HYPER_ATTN_BASE] = {"layers.#.hc_attn_base", "blk.#.hc_attn_base.weight"},
    [QN_WEIGHT_HYPER_ATTN_SCALE] = {"layers.#.hc_attn_scale", "blk.#.hc_attn_scale.weight"},
    [QN_WEIGHT_HYPER_FFN] = {"layers.#.hc_ffn_fn", "blk.#.hc_ffn_fn.weight"},
    [QN_WEIGHT_HYPER_FFN_BASE] = {"layers.#.hc_ffn_base", "blk.#.hc_ffn_base.weight"},
    [QN_WEIGHT_HYPER_FFN_SCALE] = {"layers.#.hc_ffn_scale", "blk.#.hc_ffn_scale.weight"},
    [QN_WEIGHT_ATTN_NORM] = {"layers.#.input_layernorm.weight", "blk.#.attn_norm.weight"},
    [QN_WEIGHT_ATTN_NORM_BIAS] = {"layers.#.input_layernorm.bias", "blk.#.attn_norm.bias"},
    [QN_WEIGHT_Q] = {"layers.#.self_attn.q_proj.weight", "blk.#.attn_q.weight"},
    [QN_WEIGHT_K] = {"layers.#.self_attn.k_proj.weight", "blk.#.attn_k.weight"},
    [QN_WEIGHT_V] = {"layers.#.self_attn.v_proj.weight", "blk.#.attn_v.weight"},
    [QN_WEIGHT_O] = {"layers.#.self_attn.o_proj.weight", "blk.#.attn_output.weight"},
    [QN_WEIGHT_Q_BIAS] = {"layers.#.self_attn.q_proj.bias", "blk.#.attn_q.bias"},
    [QN_WEIGHT_K_BIAS] = {"layers.#.self_attn.k_proj.bias", "blk.#.attn_k.bias"},
    [QN_WEIGHT_V_BIAS] = {"layers.#.self_attn.v_proj.bias", "blk.#.attn_v.bias"},
    [QN_WEIGHT_O_BIAS] = {"layers.#.self_attn.o_proj.bias", "blk.#.attn_output.bias"},
    [QN_WEIGHT_Q_NORM] = {"layers.#.self_attn.q_norm.weight", "blk.#.attn_q_norm.weight"},
    [QN_WEIGHT_K_NORM] = {"layers.#.self_attn.k_norm.weight", "blk.#.attn_k_norm.weight"},
    [QN_WEIGHT_Q_NORM_BIAS] = {"layers.#.self_attn.q_norm.bias", "blk.#.attn_q_norm.bias"},
    [QN_WEIGHT_K_NORM_BIAS] = {"layers.#.self_attn.k_norm.bias", "blk.#.attn_k_norm.bias"},
    [QN_WEIGHT_HEAD_GATE] = {"layers.#.self_attn.gate_proj.weight", NULL},
    [QN_WEIGHT_POST_ATTN_NORM] = {"layers.#.post_attention_layernorm.weight",
                                  "blk.#.post_attention_norm.weight"},
    [QN_WEIGHT_SUM_ATTN_NORM] = {"encoder.layer.#.attention.output.LayerNorm.weight",
                                 "blk.#.attn_output_norm.weight"},
    [QN_WEIGHT_SUM_ATTN_NORM_BIAS] = {"encoder.layer.#.attention.output.LayerNorm.bias",
                                      "blk.#.attn_output_norm.bias"},
    [QN_WEIGHT_SUM_FFN_NORM] = {"encoder.layer.#.output.LayerNorm.weight", "blk.#.layer_output_norm.weight"},
    [QN_WEIGHT_SUM_FFN_NORM_BIAS] = {"encoder.layer.#.output.LayerNorm.bias", "blk.#.layer_output_norm.bias"},
    [QN_WEIGHT_FFN_NORM] = {"layers.#.post_attention_layernorm.weight", "blk.#.ffn_norm.weight"},
    [QN_WEIGHT_FFN_NORM_BIAS] = {"layers.#.post_attention_layernorm.bias", "blk.#.ffn_norm.bias"},
    [QN_WEIGHT_GATE] = {"layers.#.mlp.gate_proj.weight", "blk.#.ffn_gate.weight"},
    [QN_WEIGHT_UP] = {"layers.#.mlp.up_proj.weight", "blk.#.ffn_up.weight"},
    [QN_WEIGHT_DOWN] = {"layers.#.mlp.down_proj.weight", "blk.#.ffn_down.weight"},
    [QN_WEIGHT_GATE_BIAS] = {"layers.#.mlp.gate_proj.bias", "blk.#.ffn_gate.bias"},
    [QN_WEIGHT_UP_BIAS] = {"layers.#.mlp.up_proj.bias", "blk.#.ffn_up.bias"},
    [QN_WEIGHT_DOWN_BIAS] = {"layers.#.mlp.down_proj.bias", "blk.#.ffn_down.bias"},
    [QN_WEIGHT_LATENT_Q_A] = {"layers.#.self_attn.q_a_proj.weight", "blk.#.attn_q_a.weight"},
    [QN_WEIGHT_LATENT_Q_A_BIAS] = {"layers.#.self_attn.q_a_proj.bias", "blk.#.attn_q_a.bias"},
    [QN_WEIGHT_LATENT_Q_A_NORM] = {"layers.#.self_attn.q_a_layernorm.weight", "blk.#.attn_q_a_norm.weight"},
    [QN_WEIGHT_LATENT_Q_B] = {"layers.#.self_attn.q_b_proj.weight", "blk.#.attn_q_b.weight"},
    [QN_WEIGHT_LATENT_KV_A] = {"layers.#.self_attn.kv_a_proj_with_mqa.weight", "blk.#.attn_kv_a_mqa.weight"},
    [QN_WEIGHT_LATENT_KV_A_BIAS] = {"layers.#.self_attn.kv_a_proj_with_mqa.bias", "blk.#.attn_kv_a_mqa.bias"},
    [QN_WEIGHT_LATENT_KV_A_NORM] = {"layers.#.self_attn.kv_a_layernorm.weight",
                                    "blk.#.attn_kv_a_norm.weight"},
    [QN_WEIGHT_LATENT_K_B] = {"layers.#.self_attn.kv_b_proj.weight", "blk.#.attn_k_b.weight"},
    [QN_WEIGHT_LATENT_V_B] = {"layers.#.self_attn.kv_b_proj.weight", "blk.#.attn_v_b.weight"},
    [QN_WEIGHT_INDEX_Q] = {"layers.#.self_attn.indexer.wq_b.weight", "blk.#.indexer.attn_q_b.weight"},
    [QN_WEIGHT_INDEX_K] = {"layers.#.self_attn.indexer.wk.weight", "blk.#.indexer.attn_k.weight"},
    [QN_WEIGHT_INDEX_Q_NORM] = {"layers.#.self_attn.indexer.q_norm.weight", "blk.#.indexer.q_norm.weight"},
    [QN_WEIGHT_INDEX_K_NORM] = {"layers.#.self_attn.indexer.k_norm.weight", "blk.#.indexer.k_norm.weight"},
    [QN_WEIGHT_INDEX_K_NORM_BIAS] = {"layers.#.self_attn.indexer.k_norm.bias", "blk.#.indexer.k_norm.bias"},
    [QN_WEIGHT_INDEX_HEADS] = {"layers.#.self_attn.indexer.weights_proj.weight", "blk.#.indexer.proj.weight"},
    [QN_WEIGHT_INDEX_GATE] = {"layers.#.self_attn.indexer.index_kpool_compress_gate",
                              "blk.#.indexer_compressor_gate.weight"},
    [QN_WEIGHT_INDEX_PLACES] = {"layers.#.self_attn.indexer.index_kpool_compress_ape",
                                "blk.#.indexer_compressor_ape.weight"},
    [QN_WEIGHT_DELTA_QKV] = {"layers.#.linear_attn.in_proj_qkv.weight", "blk.#.attn_qkv.weight"},
    [QN_WEIGHT_DELTA_Z] = {"layers.#.linear_attn.in_proj_z.weight", "blk.#.attn_gate.weight"},
    [QN_WEIGHT_DELTA_A] = {"layers.#.linear_attn.in_proj_a.weight", "blk.#.ssm_alpha.weight"},
    [QN_WEIGHT_DELTA_B] = {"layers.#.linear_attn.in_proj_b.weight", "blk.#.ssm_beta.weight"},
    [QN_WEIGHT_DELTA_QKVZ] = {"layers.#.linear_attn.in_proj_qkvz.weight", "blk.#.ssm_in.weight"},
    [QN_WEIGHT_DELTA_BA] = {"layers.#.linear_attn.in_proj_ba.weight", "blk.#.ssm_ba.weight"},
    [QN_WEIGHT_CONV] = {"layers.#.linear_attn.conv1d.weight", "blk.#.ssm_conv1d.weight"},
    [QN_WEIGHT_CONV_Q] = {"layers.#.self_attn.q_conv1d.weight", "blk.#.ssm_conv1d_q.weight"},
    [QN_WEIGHT_CONV_K] = {"layers.#.self_attn.k_conv1d.weight", "blk.#.ssm_conv1d_k.weight"},
    [QN_WEIGHT_CONV_V] = {"layers.#.self_attn.v_conv1d.weight", "blk.#.ssm_conv1d_v.weight"},
    [QN_WEIGHT_DECAY_A] = {"layers.#.self_attn.f_a_proj.weight", "blk.#.ssm_f_a.weight"},
    [QN_WEIGHT_DECAY_B] = {"layers.#.self_attn.f_b_proj.weight", "blk.#.ssm_f_b.weight"},
    [QN_WEIGHT_OUT_GATE_A] = {"layers.#.self_attn.g_a_proj.weight", "blk.#.ssm_g_a.weight"},
    [QN_WEIGHT_OUT_GATE_B] = {"layers.#.self_attn.g_b_proj.weight", "blk.#.ssm_g_b.weight"},
    [QN_WEIGHT_CONV_BIAS] = {"layers.#.linear_attn.conv1d.bias", "blk.#.ssm_conv1d.bias"},
    [QN_WEIGHT_SSM_IN] = {"layers.#.mamba.in_proj.weight", "blk.#.ssm_in.weight"},
    [QN_WEIGHT_SSM_IN_BIAS] = {"layers.#.mamba.in_proj.bias", "blk.#.ssm_in.bias"},
    [QN_WEIGHT_SSM_DT_BIAS] = {"layers.#.mamba.dt_bias", "blk.#.ssm_dt.bias"},
    [QN_WEIGHT_SSM_A_LOG] = {"layers.#.mamba.A_log", "blk.#.ssm_a"},
    [QN_WEIGHT_SSM_D] = {"layers.#.mamba.D", "blk.#.ssm_d"},
    [QN_WEIGHT_SSM_NORM] = {"layers.#.mamba.norm.weight", "blk.#.ssm_norm.weight"},
    [QN_WEIGHT_SSM_OUT] = {"layers.#.mamba.out_proj.weight", "blk.#.ssm_out.weight"},
    [QN_WEIGHT_SSM_OUT_BIAS] = {"layers.#.mamba.out_proj.bias", "blk.#.ssm_out.bias"},
    [QN_WEIGHT_SHORT_IN] = {"layers.#.conv.in_proj.weight", "blk.#.shortconv.in_proj.weight"},
    [QN_WEIGHT_SHORT_IN_BIAS] = {"layers.#.conv.in_proj.bias", NULL},
    [QN_WEIGHT_SHORT_OUT] = {"layers.#.conv.out_proj.weight", "blk.#.shortconv.out_proj.weight"},
    [QN_WEIGHT_SHORT_OUT_BIAS] = {"layers.#.conv.out_proj.bias", NULL},
    [QN_WEIGHT_DELTA_DT_BIAS] = {"layers.#.linear_attn.dt_bias", "blk.#.ssm_dt.bias"},
    [QN_WEIGHT_DELTA_A_LOG] = {"layers.#.linear_attn.A_log", "blk.#.ssm_a"},
    [QN_WEIGHT_DELTA_NORM] = {"layers.#.linear_attn.norm.weight", "blk.#.ssm_norm.weight"},
    [QN_WEIGHT_DELTA_OUT] = {"layers.#.linear_attn.out_proj.weight", "blk.#.ssm_out.weight"},
    [QN_WEIGHT_ROUTER] = {"layers.#.mlp.gate.weight", "blk.#.ffn_gate_inp.weight"},
    [QN_WEIGHT_ROUTER_BIAS] = {"layers.#.mlp.router.bias", "blk.#.ffn_gate_inp.bias"},
    [QN_WEIGHT_ROUTER_CORRECTION] = {"layers.#.mlp.gate.e_score_correction_bias", "blk.#.exp_probs_b.bias"},
    [QN_WEIGHT_SHARED_GATE] = {"layers.#.mlp.shared_experts.gate_proj.weight", "blk.#.ffn_gate_shexp.weight"},
    [QN_WEIGHT_SHARED_UP] = {"layers.#.mlp.shared_experts.up_proj.weight", "blk.#.ffn_up_shexp.weight"},
    [QN_WEIGHT_SHARED_DOWN] = {"layers.#.mlp.shared_experts.down_proj.weight", "blk.#.ffn_down_shexp.weight"},
    [QN_WEIGHT_SHARED_ROUTER] = {"layers.#.mlp.shared_expert_gate.weight", "blk.#.ffn_gate_inp_shexp.weight"},
    [QN_WEIGHT_SINKS] = {"layers.#.self_attn.sinks", "blk.#.attn_sinks.weight"},
    [QN_WEIGHT_POST_FFN_NORM] = {"layers.#.post_feedforward_layernorm.weight", "blk.#.post_ffw_norm.weight"},
    [QN_WEIGHT_POST_MLP_NORM] = {"layers.#.post_feedforward_layernorm_1.weight",
                                 "blk.#.post_ffw_norm_1.weight"},
    [QN_WEIGHT_EXPERTS_NORM] = {"layers.#.pre_feedforward_layernorm_2.weight", "blk.#.pre_ffw_norm_2.weight"},
    [QN_WEIGHT_POST_EXPERTS_NORM] = {"layers.#.post_feedforward_layernorm_2.weight",
                                     "blk.#.post_ffw_norm_2.weight"},
    [QN_WEIGHT_ROUTER_SCALE] = {"layers.#.router.scale", "blk.#.ffn_gate_inp.scale"},
    [QN_WEIGHT_EXPERT_SCALE] = {"layers.#.router.per_expert_scale", "blk.#.ffn_down_exps.scale"},
    [QN_WEIGHT_LAYER_INPUT_GATE] = {"layers.#.per_layer_input_gate.weight", "blk.#.inp_gate.weight"},
    [QN_WEIGHT_LAYER_INPUT_OUT] = {"layers.#.per_layer_projection.weight", "blk.#.proj.weight"},
    [QN_WEIGHT_POST_LAYER_INPUT_NORM] = {"layers.#.post_per_layer_input_norm.weight",
                                         "blk.#.post_norm.weight"},
    [QN_WEIGHT_LAYER_SCALE] = {"layers.#.layer_scalar", "blk.#.layer_output_scale.weight"},
};

/* Files of bin_weights (format/source/raw_weights.h). */
static const char *const raw_names[QN_WEIGHT_ROLE_COUNT] = {
    [QN_WEIGHT_EMBED] = "embed_tokens.bin",
    [QN_WEIGHT_FINAL_NORM] = "final_norm.bin",
    [QN_WEIGHT_LM_HEAD] = "lm_head.bin",
    [QN_WEIGHT_ATTN_NORM] = "layer#.input_norm.bin",
    [QN_WEIGHT_Q] = "layer#.attn.q_proj.bin",
    [QN_WEIGHT_K] = "layer#.attn.k_proj.bin",
    [QN_WEIGHT_V] = "layer#.attn.v_proj.bin",
    [QN_WEIGHT_O] = "layer#.attn.o_proj.bin",
    [QN_WEIGHT_Q_BIAS] = "layer#.attn.q_proj.bias.bin",
    [QN_WEIGHT_K_BIAS] = "layer#.attn.k_proj.bias.bin",
    [QN_WEIGHT_V_BIAS] = "layer#.attn.v_proj.bias.bin",
    [QN_WEIGHT_FFN_NORM] = "layer#.post_attn_norm.bin",
    [QN_WEIGHT_GATE] = "layer#.mlp.gate_proj.bin",
    [QN_WEIGHT_UP] = "layer#.mlp.up_proj.bin",
    [QN_WEIGHT_DOWN] = "layer#.mlp.down_proj.bin",
};

static void write_name(const char *prefix, const char *name, int64_t layer, char *text)
{
    const char *hash = strchr(name, '#');
    if (hash)
        snprintf(text, QN_TENSOR_NAME_MAX, "%s%.*s%lld%s", prefix, (int)(hash - name), name, (long long)layer,
                 hash + 1);
    else
        snprintf(text, QN_TENSOR_NAME_MAX, "%s%s", prefix, name);
}

int qn_family_weight_name(const qn_family *family, qn_source_kind kind, const char *prefix,
                          qn_weight_role role, int64_t layer, char *text)
{
    const char *name = kind == QN_SOURCE_RAW ? raw_names[role] : names[role].gguf;
    for (const qn_renamed_weight *r = kind == QN_SOURCE_GGUF ? family->gguf_renamed : NULL;
         r && r->role != QN_WEIGHT_ROLE_COUNT; r++)
        if (r->role == role) name = r->name;
    if (kind == QN_SOURCE_SAFETENSORS) {
        name = names[role].safetensors;
        for (const qn_renamed_weight *r = family->renamed; r && r->role != QN_WEIGHT_ROLE_COUNT; r++)
            if (r->role == role) name = r->name;
        /* A name that begins with "pooler." lies in the decoder, unlike other parts of a head. */
        const int is_head = role == QN_WEIGHT_LM_HEAD || role == QN_WEIGHT_LM_HEAD_BIAS ||
                            (role >= QN_WEIGHT_CLASSIFY_DENSE && role <= QN_WEIGHT_CLASSIFY_OUT_BIAS &&
                             name && strncmp(name, "pooler.", strlen("pooler.")) != 0);
        for (size_t i = 0; is_head && i < sizeof head_prefixes / sizeof head_prefixes[0]; i++)
            if (strcmp(head_prefixes[i].decoder, prefix) == 0) {
                prefix = head_prefixes[i].head;
                break;
            }
    } else {
        prefix = "";
    }
    if (!name) return 0;
    write_name(prefix, name, layer, text);
    return 1;
}

int qn_family_usual_name(const char *prefix, qn_weight_role role, int64_t layer, char *text)
{
    if (!names[role].safetensors) return 0;
    write_name(prefix, names[role].safetensors, layer, text);
    return 1;
}

/* '#' and '@' stand for a number. */
static int fits(const char *pattern, const char *name)
{
    while (*pattern && *name) {
        const size_t digits = *pattern == '#' || *pattern == '@' ? strspn(name, "0123456789") : 0;
        if (!digits && *pattern != *name) return 0;
        name += digits ? digits : 1;
        pattern++;
    }
    return !*pattern && !*name;
}

/* The same behind one of the beginnings that names have. */
static int fits_behind(qn_source_kind kind, const char *pattern, const char *name)
{
    if (!pattern) return 0;
    if (kind != QN_SOURCE_SAFETENSORS) return fits(pattern, name);
    for (const char *const *p = qn_decoder_prefixes; *p; p++)
        if (strncmp(name, *p, strlen(*p)) == 0 && fits(pattern, name + strlen(*p))) return 1;
    return 0;
}

int qn_family_has_name(const qn_family *family, qn_source_kind kind, const char *name)
{
    const int gguf = kind == QN_SOURCE_GGUF;
    const qn_expert_name *experts = gguf              ? qn_expert_gguf_names
                                    : family->experts ? family->experts->names
                                                      : NULL;
    const qn_renamed_weight *renamed = gguf ? family->gguf_renamed : family->renamed;
    if (gguf && !family->gguf_architecture) return 0;
    for (int role = 0; role < QN_WEIGHT_ROLE_COUNT; role++)
        if (fits_behind(kind,
                        kind == QN_SOURCE_RAW ? raw_names[role]
                        : gguf                ? names[role].gguf
                                              : names[role].safetensors,
                        name))
            return 1;
    for (const qn_renamed_weight *r = renamed; r && r->role != QN_WEIGHT_ROLE_COUNT; r++)
        if (fits_behind(kind, r->name, name)) return 1;
    for (const qn_shared_tensor *t = family->shared; t && (t->safetensors || t->gguf); t++)
        if (fits_behind(kind, gguf ? t->gguf : t->safetensors, name)) return 1;
    for (const qn_expert_name *e = experts; e && e->name; e++)
        if (fits_behind(kind, e->name, name)) return 1;
    return 0;
}

int qn_family_shared_name(const qn_family *family, qn_source_kind kind, const char *prefix,
                          qn_weight_role role, int64_t layer, char *text, const qn_shared_tensor **shared)
{
    for (const qn_shared_tensor *t = family->shared; t && (t->safetensors || t->gguf); t++)
        for (int i = 0; i < 3 && t->roles[i] != QN_WEIGHT_ROLE_COUNT; i++) {
            int gguf = kind == QN_SOURCE_GGUF;
            const char *name = gguf ? t->gguf : kind == QN_SOURCE_RAW ? NULL : t->safetensors;
            if (t->roles[i] != role || !name) continue;
            write_name(gguf ? "" : prefix, name, layer, text);
            *shared = t;
            return 1;
        }
    return 0;
}

const qn_tensor_view *qn_family_find_weight(const qn_family *family, const qn_source *src,
                                            qn_weight_role role, int64_t layer, const char **prefix)
{
    char name[QN_TENSOR_NAME_MAX];
    for (const char *const *p = qn_decoder_prefixes; *p; p++) {
        const qn_tensor_view *v =
            qn_family_weight_name(family, qn_source_get_kind(src), *p, role, layer, name)
                ? qn_source_find(src, name)
                : NULL;
        if (!v) continue;
        if (prefix) *prefix = *p;
        return v;
    }
    return NULL;
}
