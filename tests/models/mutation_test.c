/* A golden model proves something only if it would notice a mistake: one key of config.json at a time says
 * something else - a window, a cap, a scale, RoPE, epsilon, routing - and then the logits must leave the
 * golden ones by ten times the tolerance, or, where the tensors tell, the model must be refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/golden_states.h"
#include "tests/support/models/model_dir.h"

/* change: "+1", "-3" and "x2" of the number that is there; "not" of the truth value; "ones" for all
 * numbers of the list; else JSON. */
typedef struct {
    const char *path, *change; /* path: "rope_scaling.factor"; NULL: no more */
} mutated_key;

enum { KEYS_MAX = 3, PROMPTS = 3, TIMES = 10 };

typedef struct {
    const char *kind;
    mutated_key keys[KEYS_MAX];
} mutation;

static const mutation moving[] = {
    {"llama", {{"rope_theta", "x3"}}},
    {"llama", {{"rms_norm_eps", "x1000"}}},
    {"llama", {{"hidden_act", "\"gelu\""}}},
    {"llama_rope3_tied", {{"rope_scaling", "null"}}},
    {"llama_rope3_tied", {{"rope_scaling.low_freq_factor", "x2"}}},
    {"llama_rope3_tied", {{"rope_scaling.high_freq_factor", "x2"}}},
    {"llama_rope3_tied", {{"rope_scaling.factor", "x2"}}},
    {"llama_rope3_tied", {{"rope_scaling.original_max_position_embeddings", "x2"}}},
    {"llama_head_dim", {{"rope_theta", "x3"}}},
    {"llama_head_dim", {{"rms_norm_eps", "x1000"}}},
    {"mistral", {{"sliding_window", "null"}}},
    {"mistral", {{"sliding_window", "+1"}}},
    {"mistral", {{"sliding_window", "-1"}}},
    {"mistral", {{"rope_theta", "x3"}}},
    {"qwen2", {{"use_sliding_window", "true"}, {"max_window_layers", "0"}}},
    {"qwen2", {{"rope_theta", "x3"}}},
    {"qwen2", {{"rms_norm_eps", "x10000"}}},
    {"qwen2_window", {{"use_sliding_window", "false"}}},
    {"qwen2_window", {{"max_window_layers", "+1"}}},
    {"qwen2_window", {{"max_window_layers", "-1"}}},
    {"qwen2_window", {{"sliding_window", "+1"}}},
    {"qwen2_yarn", {{"rope_scaling", "null"}}},
    {"qwen2_yarn", {{"rope_scaling.attention_factor", "1.0"}}},
    {"qwen2_yarn", {{"rope_scaling.beta_fast", "16.0"}}},
    {"qwen2_yarn", {{"rope_scaling.factor", "x2"}}},
    {"deepseek_r1_distill", {{"rope_theta", "x3"}}},
    {"deepseek_r1_distill", {{"rms_norm_eps", "x10000"}}},
    {"qwen3", {{"rope_theta", "x3"}}},
    {"qwen3", {{"rms_norm_eps", "x10000"}}},
    {"qwen3_tied", {{"rope_parameters.rope_theta", "x3"}}},
    {"qwen3_tied", {{"rms_norm_eps", "x10000"}}},
    {"qwen3_no_model_type", {{"rope_theta", "x3"}}},
    {"gemma", {{"rope_theta", "x3"}}},
    {"gemma", {{"hidden_activation", "\"silu\""}, {"hidden_act", "\"silu\""}}},
    {"gemma", {{"model_type", "\"llama\""}, {"hidden_act", "\"gelu_pytorch_tanh\""}}},
    {"gemma2", {{"attn_logit_softcapping", "null"}}},
    {"gemma2", {{"final_logit_softcapping", "null"}}},
    {"gemma2", {{"query_pre_attn_scalar", "+4"}}},
    {"gemma2", {{"sliding_window", "x256"}}},
    {"gemma2", {{"sliding_window", "+1"}}},
    {"gemma3_text", {{"rope_local_base_freq", "x100"}}},
    {"gemma3_text", {{"sliding_window", "+1"}}},
    {"gemma3_text", {{"rope_theta", "x0.01"}}},
    {"gemma3_text", {{"sliding_window_pattern", "+1"}}},
    {"gemma3", {{"text_config.rope_scaling", "null"}}},
    {"gemma3", {{"text_config.rope_scaling.factor", "x2"}}},
    {"gemma3", {{"text_config.query_pre_attn_scalar", "x2"}}},
    {"gemma3", {{"text_config.sliding_window", "+1"}}},
    {"gemma4_text", {{"rope_parameters.full_attention.partial_rotary_factor", "1.0"}}},
    {"gemma4_text", {{"rope_parameters.full_attention.rope_type", "\"default\""}}},
    {"gemma4_text", {{"rope_parameters.sliding_attention.rope_theta", "x100"}}},
    {"gemma4_text", {{"sliding_window", "+1"}}},
    {"gemma4_text", {{"final_logit_softcapping", "null"}}},
    {"gemma4", {{"text_config.sliding_window", "+1"}}},
    {"gemma4", {{"text_config.rope_parameters.full_attention.partial_rotary_factor", "1.0"}}},
    {"gemma4_k_eq_v", {{"sliding_window", "+1"}}},
    {"gemma4_k_eq_v", {{"rope_parameters.full_attention.rope_theta", "x0.01"}}},
    {"gemma4_moe", {{"top_k_experts", "+1"}}},
    {"gemma4_moe", {{"sliding_window", "+1"}}},
    {"qwen3_moe", {{"norm_topk_prob", "not"}}},
    {"qwen3_moe", {{"num_experts_per_tok", "+1"}}},
    {"qwen3_moe", {{"num_experts_per_tok", "-1"}}},
    {"qwen3_moe", {{"rope_theta", "x3"}}},
    {"mixtral", {{"num_experts_per_tok", "-1"}}},
    {"mixtral", {{"num_experts_per_tok", "+1"}}},
    {"mixtral", {{"sliding_window", "8"}}},
    {"mixtral", {{"rope_theta", "x3"}}},
    {"gpt_oss", {{"sliding_window", "x256"}}},
    {"gpt_oss", {{"sliding_window", "+1"}}},
    {"gpt_oss", {{"rope_scaling.truncate", "not"}}},
    {"gpt_oss", {{"rope_scaling.factor", "x2"}}},
    {"gpt_oss", {{"num_experts_per_tok", "-1"}, {"experts_per_token", "-1"}}},
    {"gpt_oss", {{"swiglu_limit", "0.5"}}},
    {"deepseek_v3", {{"routed_scaling_factor", "1.0"}}},
    {"deepseek_v3", {{"n_group", "1"}, {"topk_group", "1"}}},
    {"deepseek_v3", {{"rope_scaling.mscale_all_dim", "0.0"}}},
    {"deepseek_v3", {{"num_experts_per_tok", "+1"}}},
    {"deepseek_v3", {{"norm_topk_prob", "not"}}},
    {"qwen3_next", {{"partial_rotary_factor", "x2"}}},
    {"qwen3_next", {{"num_experts_per_tok", "+1"}}},
    {"qwen3_next", {{"norm_topk_prob", "not"}}},
    {"qwen3_5",
     {{"rope_parameters.partial_rotary_factor", "0.5"}, {"rope_parameters.mrope_section", "null"}}},
    {"qwen3_5", {{"rope_parameters.rope_theta", "x0.001"}}},
    {"qwen2_vl", {{"rope_theta", "x3"}, {"rope_scaling.rope_theta", "x3"}}},
    {"qwen2_vl", {{"rms_norm_eps", "x10000"}}},
    {"qwen2_vl", {{"use_sliding_window", "true"}, {"max_window_layers", "0"}}},
    {"phi3", {{"sliding_window", "null"}}},
    {"phi3", {{"sliding_window", "+1"}}},
    {"phi3", {{"partial_rotary_factor", "0.25"}}},
    {"phi3_longrope", {{"original_max_position_embeddings", "400"}}},
    {"phi3_longrope", {{"rope_scaling.long_factor", "ones"}}},
    {"phi3_longrope", {{"rope_scaling.attention_factor", "1.0"}}},
    {"smollm3", {{"no_rope_layers", "null"}, {"no_rope_layer_interval", "1000"}}},
    {"smollm3", {{"no_rope_layers", "null"}, {"no_rope_layer_interval", "2"}}},
    {"smollm3", {{"rope_theta", "x0.01"}}},
    {"olmo2", {{"rope_theta", "x3"}}},
    {"olmo2", {{"rms_norm_eps", "x10000"}}},
    {"lfm2", {{"rope_parameters.rope_theta", "x0.001"}}},
    {"lfm2", {{"norm_eps", "x10000"}}},
    {"granitemoehybrid", {{"position_embedding_type", "\"nope\""}}},
    {"granitemoehybrid", {{"attention_multiplier", "x2"}}},
    {"granitemoehybrid", {{"time_step_limit", "[0.5, 0.6]"}}},
    {"granitemoehybrid", {{"num_experts_per_tok", "-1"}}},
    {"nemotron_h", {{"time_step_min", "0.5"}}},
    {"nemotron_h", {{"routed_scaling_factor", "1.0"}}},
    {"nemotron_h", {{"mlp_hidden_act", "\"silu\""}}},
    {"falcon_h1", {{"ssm_multipliers", "ones"}}},
    {"falcon_h1", {{"mlp_multipliers", "ones"}}},
    {"falcon_h1", {{"key_multiplier", "x2"}}},
    {"falcon_h1", {{"attention_in_multiplier", "x2"}}},
    {"falcon_h1", {{"attention_out_multiplier", "x2"}}},
    {"falcon_h1", {{"ssm_in_multiplier", "x2"}}},
    {"falcon_h1", {{"ssm_out_multiplier", "x2"}}},
    {"falcon_h1", {{"lm_head_multiplier", "x2"}}},
    {"falcon_h1", {{"mamba_norm_before_gate", "not"}}},
    {"kimi_linear", {{"moe_renormalize", "not"}}},
    {"kimi_linear", {{"routed_scaling_factor", "1.0"}}},
    {"glm5_next", {{"text_config.hc_sinkhorn_iters", "1"}}},
    {"glm5_next", {{"text_config.hc_eps", "0.1"}}},
    {"glm5_next", {{"text_config.swiglu_limit", "0.5"}}},
    {"glm5_next", {{"text_config.linear_lower_bound", "-1.0"}}},
    {"glm5_next", {{"text_config.linear_lower_bound", "null"}}},
    {"glm5_next", {{"text_config.index_topk", "8"}}},
    {"glm5_next", {{"text_config.index_topk", "512"}}},
    {"glm5_next", {{"text_config.norm_topk_prob", "not"}}},
    {"glm5_next", {{"text_config.routed_scaling_factor", "1.0"}}},
    {"glm5_next", {{"text_config.rms_norm_eps", "x10000"}}},
    {"gemma3n", {{"altup_active_idx", "+1"}}},
    {"gemma3n", {{"altup_correct_scale", "not"}}},
    {"gemma3n", {{"activation_sparsity_pattern", "[0.5, 0.0, 0.0, 0.0, 0.0]"}}},
    {"gemma3n", {{"sliding_window", "8"}}},
    {"qwen4_exp", {{"text_config.output_gate_type", "null"}}},
    {"qwen4_exp", {{"text_config.eos_token_id", "198"}}},
    {"qwen4_exp", {{"text_config.norm_topk_prob", "not"}}},
    {"qwen4_exp", {{"text_config.indexer_budget", "8"}}},
    {"qwen4_exp", {{"text_config.indexer_compress_ratio", "8"}}},
    {"qwen4_exp", {{"text_config.rope_parameters.rope_theta", "x3"}}},
    {"qwen4_exp", {{"text_config.rms_norm_eps", "x1000"}}},
    {"lfm2_moe", {{"norm_topk_prob", "not"}}},
    {"lfm2_moe", {{"routed_scaling_factor", "1.0"}}},
    {"lfm2_moe", {{"num_experts_per_tok", "+1"}}},
    {"lfm3", {{"sliding_window", "8"}}},
    {"lfm3", {{"rope_parameters.full_attention.partial_rotary_factor", "1.0"}}},
    {"lfm3", {{"rope_parameters.sliding_attention.rope_theta", "x0.01"}}},
    {"granite", {{"embedding_multiplier", "x1.1"}}},
    {"granite", {{"attention_multiplier", "x1.1"}}},
    {"granite", {{"residual_multiplier", "x1.1"}}},
    {"granite", {{"logits_scaling", "x1.1"}}},
    {"granite", {{"embedding_multiplier", "null"}}},
    {"granite", {{"residual_multiplier", "null"}}},
    {"granite", {{"rope_theta", "x3"}}},
    {"granite", {{"model_type", "\"llama\""}}},
    {"seed_oss", {{"rope_parameters.rope_theta", "1000.0"}}},
    {"seed_oss", {{"rms_norm_eps", "x1000"}}},
    {"seed_oss", {{"hidden_act", "\"gelu\""}}},
    {"glm4_moe", {{"rope_parameters.partial_rotary_factor", "0.25"}}},
    {"glm4_moe", {{"n_group", "1"}, {"topk_group", "1"}}},
    {"glm4_moe", {{"topk_group", "2"}}},
    {"glm4_moe", {{"routed_scaling_factor", "1.0"}}},
    {"glm4_moe", {{"norm_topk_prob", "not"}}},
    {"glm4_moe", {{"num_experts_per_tok", "+1"}}},
    {"glm4_moe_lite", {{"rope_interleave", "not"}}},
    {"glm4_moe_lite", {{"routed_scaling_factor", "1.0"}}},
    {"glm4_moe_lite", {{"rope_parameters.rope_theta", "1000.0"}}},
    {"minimax_m2", {{"rope_parameters.partial_rotary_factor", "1.0"}}},
    {"minimax_m2", {{"num_experts_per_tok", "+1"}}},
    {"exaone4",
     {{"layer_types",
       "[\"sliding_attention\",\"sliding_attention\",\"full_attention\",\"full_attention\"]"}}},
    {"exaone4", {{"sliding_window", "+1"}}},
    {"exaone4", {{"sliding_window", "-1"}}},
    {"exaone4", {{"rope_parameters.factor", "x2"}}},
    {"olmo3",
     {{"layer_types",
       "[\"sliding_attention\",\"sliding_attention\",\"full_attention\",\"full_attention\"]"}}},
    {"olmo3", {{"sliding_window", "+1"}}},
    {"olmo3", {{"rope_parameters.full_attention.attention_factor", "1.0"}}},
    {"olmo3", {{"rope_parameters.full_attention.factor", "x2"}}},
    {"olmo3", {{"rope_parameters.sliding_attention.rope_theta", "10000.0"}}},
    {"ministral3", {{"rope_parameters.llama_4_scaling_beta", "0.2"}}},
    {"ministral3", {{"rope_parameters.original_max_position_embeddings", "65"}}},
    {"ministral3", {{"rope_parameters.mscale", "2.0"}}},
    {"ministral3", {{"sliding_window", "20"}}},
    {"mistral4", {{"rope_parameters.llama_4_scaling_beta", "0.2"}}},
    {"mistral4", {{"rope_parameters.mscale_all_dim", "0.5"}}},
    {"mistral4", {{"norm_topk_prob", "not"}}},
    {"mistral4", {{"n_group", "3"}, {"topk_group", "2"}}},
    {"mistral4", {{"rope_interleave", "not"}}},
    {"glm4", {{"rope_parameters.partial_rotary_factor", "1.0"}}},
    {"glm4", {{"rms_norm_eps", "x10000"}}},
    {"hunyuan_v1_dense", {{"rope_parameters.alpha", "x2"}}},
    {"hunyuan_v1_dense", {{"rope_parameters.alpha", "0"}}},
    {"hunyuan_v1_dense", {{"rope_parameters.rope_theta", "x3"}}},
    {"deepseek_v2", {{"topk_method", "\"greedy\""}}},
    {"deepseek_v2", {{"topk_group", "1"}, {"num_experts_per_tok", "2"}}},
    {"deepseek_v2", {{"topk_group", "1"}, {"num_experts_per_tok", "2"}, {"n_group", "2"}}},
    {"deepseek_v2", {{"routed_scaling_factor", "1.0"}}},
    {"deepseek_v2", {{"rope_parameters.mscale", "1.0"}}},
    {"deepseek_v2", {{"rope_parameters.mscale_all_dim", "1.0"}}},
    {"apertus", {{"rope_parameters.low_freq_factor", "x2"}}},
    {"apertus", {{"rms_norm_eps", "x1000"}}},
    {"starcoder2", {{"norm_epsilon", "x10000"}}},
    {"starcoder2", {{"sliding_window", "null"}}},
    {"starcoder2", {{"sliding_window", "+1"}}},
    {"starcoder2", {{"hidden_act", "\"silu\""}}},
    {"phi2", {{"layer_norm_eps", "x10000"}}},
    {"phi2", {{"rope_parameters.partial_rotary_factor", "1.0"}}},
    {"phi2", {{"hidden_act", "\"silu\""}}},
    {"cohere2", {{"logit_scale", "x1.1"}}},
    {"cohere2", {{"layer_norm_eps", "x10000"}}},
    {"cohere2",
     {{"layer_types",
       "[\"sliding_attention\",\"sliding_attention\",\"full_attention\",\"full_attention\"]"}}},
    {"cohere2", {{"sliding_window", "+1"}}},
    {"cohere2", {{"rope_parameters.rope_theta", "x3"}}},
    {"llama4", {{"text_config.attention_chunk_size", "+1"}}},
    {"llama4", {{"text_config.attention_chunk_size", "-1"}}},
    {"llama4",
     {{"text_config.layer_types",
       "[\"chunked_attention\",\"full_attention\",\"chunked_attention\",\"full_attention\"]"}}},
    {"llama4", {{"text_config.no_rope_layers", "[1,1,0,0]"}}},
    {"llama4", {{"text_config.attn_temperature_tuning", "not"}}},
    {"llama4", {{"text_config.attn_scale", "x2"}}},
    {"llama4", {{"text_config.floor_scale", "-1"}}},
    {"llama4", {{"text_config.floor_scale", "+1"}}},
    {"llama4", {{"text_config.use_qk_norm", "not"}}},
    {"llama4", {{"text_config.num_experts_per_tok", "+1"}}},
    {"llama4", {{"text_config.rms_norm_eps", "x1000"}}},
    {"llama4", {{"text_config.rope_parameters.factor", "x2"}}},
    {"muse_glimmer", {{"text_config.layer_rope_theta", "[1,1,0,0]"}}},
    {"muse_glimmer", {{"text_config.layer_rope_theta", "[1,1,1,1]"}}},
    {"muse_glimmer",
     {{"text_config.layer_types",
       "[\"sliding_attention\",\"full_attention\",\"sliding_attention\",\"full_attention\"]"}}},
    {"muse_glimmer", {{"text_config.sliding_window", "+1"}}},
    {"muse_glimmer", {{"text_config.sliding_window", "-1"}}},
    {"muse_glimmer", {{"text_config.qk_scale_factor", "x1.1"}}},
    {"muse_glimmer", {{"text_config.output_multiplier", "x1.1"}}},
    {"muse_glimmer", {{"text_config.post_norm_eps", "0.01"}}},
    {"muse_glimmer", {{"text_config.rms_norm_eps", "x1000"}}},
    {"muse_glimmer", {{"text_config.final_logit_softcapping", "10.0"}}},
    {"muse_glimmer", {{"text_config.rope_parameters.rope_theta", "1000.0"}}},
    {"muse_glimmer", {{"text_config.hidden_activation", "\"gelu\""}}},
};

/* Where the tensors do not fit what the config says then. */
static const mutation refused[] = {
    {"seed_oss", {{"attention_out_bias", "true"}}},
    {"seed_oss", {{"mlp_bias", "true"}}},
    {"glm4_moe", {{"use_qk_norm", "false"}}},
    {"glm4_moe", {{"first_k_dense_replace", "+1"}}},
    {"glm4_moe_lite", {{"mlp_layer_types", "[\"dense\",\"dense\",\"sparse\"]"}}},
    {"glm4_moe_lite", {{"mlp_layer_types", "[\"dense\",\"sparse\",\"thin\"]"}}},
    {"glm4_moe_lite", {{"scoring_func", "\"softmax\""}}},
    {"minimax_m2", {{"scoring_func", "\"softmax\""}}},
    {"deepseek_v2", {{"topk_method", "\"noaux_tc\""}}},
    {"deepseek_v2", {{"num_experts_per_tok", "5"}}},
    {"starcoder2", {{"hidden_act", "\"relu3\""}}},
    {"phi2", {{"qk_layernorm", "true"}}},
    {"cohere2", {{"logit_scale", "0"}}},
    {"llama4", {{"text_config.moe_layers", "[3]"}}},
    {"llama4", {{"text_config.moe_layers", "[1,4]"}}},
    {"llama4", {{"text_config.intermediate_size", "+1"}}},
    {"llama4", {{"text_config.intermediate_size_mlp", "+1"}}},
    {"llama4",
     {{"text_config.layer_types",
       "[\"sliding_attention\",\"full_attention\",\"chunked_attention\",\"full_attention\"]"}}},
    {"muse_glimmer", {{"text_config.head_dim", "+4"}}},
    {"muse_glimmer", {{"text_config.layer_rope_theta", "[1,1]"}}},
    {"muse_glimmer", {{"text_config.layer_rope_theta", "[1,1,\"1\",0]"}}},
    {"llama", {{"num_key_value_heads", "x2"}}},
    {"llama_head_dim", {{"head_dim", "x2"}}},
    {"qwen3", {{"head_dim", "x2"}}},
    {"qwen3", {{"model_type", "\"llama\""}}},
    {"gemma4_text", {{"num_kv_shared_layers", "-1"}}},
    {"gemma4_text", {{"use_double_wide_mlp", "false"}}},
    {"gemma4_text", {{"hidden_size_per_layer_input", "0"}}},
    {"gemma4", {{"text_config.num_kv_shared_layers", "-1"}}},
    {"gemma4_k_eq_v", {{"attention_k_eq_v", "false"}}},
    {"gemma4_k_eq_v", {{"num_global_key_value_heads", "x2"}}},
    {"gemma4_moe", {{"num_experts", "-1"}}},
    {"gemma4_moe", {{"enable_moe_block", "false"}}},
    {"qwen3_moe", {{"num_experts", "-1"}}},
    {"qwen3_moe", {{"mlp_only_layers", "[0]"}}},
    {"deepseek_v3", {{"first_k_dense_replace", "0"}}},
    {"qwen3_next", {{"full_attention_interval", "-1"}}},
    {"qwen3_next", {{"linear_num_key_heads", "x2"}}},
    {"qwen3_5", {{"full_attention_interval", "-1"}}},
    {"qwen3_5", {{"linear_conv_kernel_dim", "-1"}}},
    {"lfm2", {{"conv_L_cache", "+1"}}},
    {"lfm2", {{"conv_bias", "not"}}},
    {"granitemoehybrid", {{"mamba_n_groups", "+2"}}},
    {"granitemoehybrid", {{"num_local_experts", "0"}}},
    {"granitemoehybrid", {{"mamba_conv_bias", "not"}}},
    {"nemotron_h", {{"moe_latent_size", "16"}}},
    {"nemotron_h", {{"use_bias", "not"}}},
    {"falcon_h1", {{"mamba_rms_norm", "not"}}},
    {"falcon_h1", {{"projectors_bias", "not"}}},
    {"kimi_linear", {{"linear_attn_config.num_heads", "+1"}}},
    {"glm5_next", {{"text_config.hc_mult", "+1"}}},
    {"glm5_next", {{"text_config.index_kpool", "x2"}}},
    {"glm5_next", {{"text_config.index_n_heads", "+1"}}},
    {"glm5_next", {{"text_config.index_topk", "+1"}}},
    {"glm5_next", {{"text_config.qk_rope_head_dim", "4"}}},
    {"glm5_next", {{"text_config.hidden_act", "\"gelu\""}}},
    {"glm5_next", {{"text_config.layer_types", "null"}, {"text_config.linear_num_heads", "+1"}}},
    {"gemma3n", {{"altup_num_inputs", "+1"}}},
    {"gemma3n", {{"laurel_rank", "+1"}}},
    {"qwen4_exp", {{"text_config.hc_count", "+1"}}},
    {"qwen4_exp", {{"text_config.hc_lowrank", "+1"}}},
    {"qwen4_exp", {{"text_config.ple_layer_ids", "[2]"}}},
    {"qwen4_exp", {{"text_config.ple_layer_ids", "[]"}}},
    {"qwen4_exp", {{"text_config.ple_embed_dim", "x2"}}},
    {"qwen4_exp", {{"text_config.ple_conv_kernel_size", "+1"}}},
    {"qwen4_exp", {{"text_config.ngram_size", "+1"}}},
    {"qwen4_exp", {{"text_config.heads_per_ngram", "x2"}}},
    {"qwen4_exp", {{"text_config.ngram_vocab_size_base", "x2"}}},
    {"qwen4_exp", {{"text_config.indexer_n_heads", "+1"}}},
    {"qwen4_exp", {{"text_config.indexer_head_dim", "+2"}}},
    {"qwen4_exp", {{"text_config.linear_num_value_heads", "x2"}}},
    {"lfm2", {{"block_ffn_dim_multiplier", "x2"}}},
    {"lfm2", {{"block_auto_adjust_ff_dim", "not"}}},
    {"lfm2", {{"layer_types", "null"}}},
    {"lfm2_moe", {{"num_dense_layers", "-1"}}},
    {"lfm2_moe", {{"use_expert_bias", "not"}}},
    {"lfm2_moe", {{"layer_types", "null"}}},
    {"lfm3", {{"use_sandwich_norm", "not"}}},
    {"lfm3", {{"use_attention_gate", "not"}}},
    {"lfm3", {{"attention_bias", "not"}}},
    {"phi3", {{"num_key_value_heads", "-2"}}},
    {"phi3_longrope", {{"rope_scaling.partial_rotary_factor", "1.0"}}},
    {"olmo2", {{"model_type", "\"llama\""}}},
};

enum { N_MOVING = sizeof moving / sizeof *moving, N_REFUSED = sizeof refused / sizeof *refused };

/* ---- a changed config.json ---------------------------------------------------------------------------- */

static json_t *changed(const json_t *old, const char *change)
{
    char *end;
    double by = strtod(change + 1, &end), number = json_number_value(old);
    if (strcmp(change, "ones") == 0) {
        json_t *list = json_array();
        for (size_t i = 0; i < json_array_size(old); i++) json_array_append_new(list, json_real(1));
        return list;
    }
    if (strcmp(change, "not") == 0) return json_boolean(!json_is_true(old));
    if ((*change != '+' && *change != '-' && *change != 'x') || *end)
        return strcmp(change, "null") == 0 ? json_string("null") : json_loads(change, JSON_DECODE_ANY, NULL);
    number = *change == 'x' ? number * by : *change == '+' ? number + by : number - by;
    return json_is_integer(old) && number == (double)(json_int_t)number ? json_integer((json_int_t)number)
                                                                        : json_real(number);
}

/* Puts the changed value into the merge patch, in the same place as in the config. */
static void put(const json_t *config, json_t *patch, const char *path, const char *change)
{
    const char *dot = strchr(path, '.');
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)(dot ? dot - path : (ptrdiff_t)strlen(path)), path);
    if (!dot) {
        json_t *value = changed(json_object_get(config, name), change);
        assert_non_null(value);
        assert_int_equal(json_object_set_new(patch, name, value), 0);
        return;
    }
    if (!json_object_get(patch, name)) json_object_set_new(patch, name, json_object());
    put(json_object_get(config, name), json_object_get(patch, name), dot + 1, change);
}

enum { PATCH_BYTES = 512 };

static void patch_of(const char *dir, const mutation *m, char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/config.json", dir);
    json_t *config = json_load_file(path, 0, NULL), *patch = json_object();
    assert_non_null(config);
    for (int i = 0; i < KEYS_MAX && m->keys[i].path; i++)
        put(config, patch, m->keys[i].path, m->keys[i].change);
    size_t n = json_dumpb(patch, text, PATCH_BYTES - 1, 0);
    assert_true(n < PATCH_BYTES);
    text[n] = '\0';
    json_decref(config);
    json_decref(patch);
}

/* ---- what comes of it --------------------------------------------------------------------------------- */

/* The largest difference from the golden logits; a negative number: refused. */
static double difference(const char *dir, const qn_safetensors *st)
{
    double worst = 0;
    qn_engine *e = NULL;
    qn_engine_options o = {.precision = QN_PRECISION_EXACT, .max_rows = 64, .n_threads = 2};
    qn_status status = qn_test_engine_try(dir, &o, &e);
    if (status == QN_E_FORMAT || status == QN_E_UNSUPPORTED) return -1;
    qn_test_ok(status);
    for (int i = 0; i < PROMPTS; i++) {
        double d = qn_golden_logits(e, st, i, NULL);
        if (!(d <= worst)) worst = d;
    }
    qn_engine_close(e);
    return worst;
}

static double try_one(const char *from, const qn_safetensors *st, const mutation *m)
{
    char dir[QN_TEST_DIR_MAX], patch[PATCH_BYTES];
    patch_of(from, m, patch);
    qn_test_model_copy(from, patch, NULL, dir);
    double d = difference(dir, st);
    qn_test_model_remove(dir);
    return d;
}

static void test_kind(void **state)
{
    const char *kind = *state;
    char relative[128];
    qn_safetensors *st;
    snprintf(relative, sizeof relative, "models/%s/expected.safetensors", kind);
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture(relative), &st));
    snprintf(relative, sizeof relative, "models/%s", kind);
    const char *from = qn_test_need_fixture(relative);
    double limit = TIMES * qn_golden_tolerance(kind);
    double unchanged = difference(from, st);
    if (unchanged < 0) fail_msg("%s", qn_last_error());
    assert_true(unchanged <= limit / TIMES);
    for (size_t i = 0; i < N_MOVING; i++) {
        if (strcmp(moving[i].kind, kind) != 0) continue;
        double d = try_one(from, st, &moving[i]);
        if (d < 0) fail_msg("%s: %s: %s", kind, moving[i].keys[0].path, qn_last_error());
        if (d <= limit) fail_msg("%s: %s: the logits differ by %.1e only", kind, moving[i].keys[0].path, d);
    }
    for (size_t i = 0; i < N_REFUSED; i++)
        if (strcmp(refused[i].kind, kind) == 0 && try_one(from, st, &refused[i]) >= 0)
            fail_msg("%s: %s: taken", kind, refused[i].keys[0].path);
    qn_safetensors_close(st);
}

int main(int argc, char **argv)
{
    static struct CMUnitTest tests[N_MOVING];
    size_t n = 0;
    for (size_t i = 0; i < N_MOVING; i++) {
        const char *kind = moving[i].kind;
        if (i && strcmp(moving[i - 1].kind, kind) == 0) continue;
        tests[n++] = (struct CMUnitTest){kind, test_kind, NULL, NULL, (void *)(uintptr_t)kind};
    }
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return _cmocka_run_group_tests("mutations", tests, n, NULL, NULL);
}
