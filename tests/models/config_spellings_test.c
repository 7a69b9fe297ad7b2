/* One model said in many ways: whatever config.json's spelling (keys of transformers 4 and 5, defaults said
 * or left out) and wherever the decoder's tensors lie, the logits keep their bits; and a change that means
 * something moves them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/model_dir.h"

enum { N_IDS = 40 }; /* longer than the fixtures' windows */

static uint64_t hash_of(const char *dir)
{
    int32_t ids[N_IDS];
    for (int i = 0; i < N_IDS; i++) ids[i] = 3 + (i * 37) % 300;
    qn_engine *e = qn_test_engine(
        dir, NULL, (qn_engine_options){.precision = QN_PRECISION_EXACT, .max_rows = 64, .n_threads = 1});
    uint64_t hash = qn_test_last_hash(e, ids, N_IDS, N_IDS);
    qn_engine_close(e);
    return hash;
}

/* A merge patch: null deletes a key, "null" sets null. */
typedef struct {
    const char *fixture, *patch;
} spelling;

static const spelling same[] = {
    {"llama", "{\"model_type\": null}"},
    {"llama", "{\"architectures\": null}"},
    {"llama", "{\"num_key_value_heads\": null}"},
    {"llama", "{\"num_key_value_heads\": \"null\", \"head_dim\": \"null\"}"},
    {"llama", "{\"head_dim\": 16}"},
    {"llama", "{\"rope_theta\": null, \"rope_scaling\": null,"
              " \"rope_parameters\": {\"rope_theta\": 500000, \"rope_type\": \"default\"}}"},
    {"llama", "{\"rope_parameters\": {}, \"rope_scaling\": {}}"},
    {"llama", "{\"rope_parameters\": \"null\", \"rope_scaling\": \"null\"}"},
    {"llama", "{\"rope_parameters\": {\"rope_type\": \"default\"}}"},
    {"llama", "{\"rope_scaling\": {\"type\": \"default\"}}"},
    {"llama", "{\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 4.0}}"},
    {"llama", "{\"attention_bias\": null, \"mlp_bias\": null, \"hidden_act\": null}"},
    {"llama", "{\"hidden_act\": \"swish\", \"tie_word_embeddings\": null}"},
    {"llama", "{\"torch_dtype\": null, \"dtype\": \"bfloat16\", \"eos_token_id\": [1, 2]}"},
    {"llama_rope3_tied", "{\"tie_word_embeddings\": null, \"head_dim\": null}"},
    {"llama_rope3_tied",
     "{\"rope_theta\": null, \"rope_scaling\": null, \"rope_parameters\": {\"rope_theta\": 500000.0,"
     " \"factor\": 8.0, \"high_freq_factor\": 4.0, \"low_freq_factor\": 1.0,"
     " \"original_max_position_embeddings\": 64, \"rope_type\": \"llama3\"}}"},
    {"llama_rope3_tied", "{\"rope_scaling\": {\"rope_type\": null, \"type\": \"llama3\", \"factor\": 8}}"},
    {"llama_rope3_tied", "{\"rope_scaling\": {\"original_max_position_embeddings\": null},"
                         " \"original_max_position_embeddings\": 64}"},
    {"llama_rope3_tied", "{\"rope_scaling\": {\"original_max_position_embeddings\": 77},"
                         " \"original_max_position_embeddings\": 64}"},
    {"llama_rope3_tied", "{\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 500000}}"},
    {"llama_head_dim", "{\"head_dim\": null, \"num_key_value_heads\": null}"},
    {"mistral", "{\"model_type\": null}"},
    {"mistral", "{\"head_dim\": 16, \"num_key_value_heads\": null}"},
    {"mistral", "{\"use_sliding_window\": false}"},
    {"mistral", "{\"model_type\": \"llava\", \"architectures\": [\"LlavaForConditionalGeneration\"],"
                " \"text_config\": {\"model_type\": \"mistral\"}}"},
    {"mistral", "{\"layer_types\": [\"sliding_attention\", \"sliding_attention\", \"sliding_attention\","
                " \"sliding_attention\"]}"},
    {"qwen2", "{\"use_sliding_window\": null, \"sliding_window\": null, \"max_window_layers\": null}"},
    {"qwen2", "{\"sliding_window\": \"null\", \"layer_types\": [\"full_attention\", \"full_attention\","
              " \"full_attention\", \"attention\"]}"},
    {"qwen2", "{\"model_type\": null, \"architectures\": null}"},
    {"qwen2", "{\"use_sliding_window\": true, \"max_window_layers\": null}"}, /* 28 by default */
    {"qwen2", "{\"attention_bias\": false, \"num_key_value_heads\": null}"},
    {"qwen2_yarn", "{\"rope_scaling\": {\"type\": null, \"rope_type\": \"yarn\"}}"},
    {"qwen2_yarn", "{\"rope_scaling\": {\"original_max_position_embeddings\": null}}"},
    {"qwen2_yarn", "{\"rope_scaling\": {\"beta_fast\": 32, \"beta_slow\": 1.0, \"truncate\": true,"
                   " \"mscale\": 0, \"attention_factor\": \"null\"}}"},
    {"qwen2_yarn", "{\"rope_scaling\": {\"beta_fast\": \"null\", \"beta_slow\": 0,"
                   " \"attention_factor\": 1.1386294361119891}}"},
    {"qwen2_yarn", "{\"rope_scaling\": {\"factor\": \"null\"}, \"max_position_embeddings\": 4096}"},
    {"qwen2_yarn", "{\"rope_theta\": null, \"rope_scaling\": null, \"rope_parameters\": {\"rope_theta\": 1e4,"
                   " \"rope_type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 1024}}"},
    {"qwen2_window", "{\"max_window_layers\": null, \"layer_types\": [\"full_attention\", \"full_attention\","
                     " \"full_attention\", \"sliding_attention\", \"sliding_attention\"]}"},
    {"qwen2_window", "{\"model_type\": null, \"architectures\": null}"},
    {"deepseek_r1_distill", "{\"use_mrope\": null, \"sliding_window\": 8, \"rope_scaling\": \"null\"}"},
    {"qwen3", "{\"head_dim\": null, \"num_key_value_heads\": null}"},
    {"qwen3", "{\"model_type\": null, \"architectures\": null}"},
    {"gemma", "{\"model_type\": null}"},
    {"gemma", "{\"head_dim\": null, \"num_key_value_heads\": null}"},
    {"gemma", "{\"hidden_act\": \"gelu\", \"hidden_activation\": \"null\"}"},
    {"gemma", "{\"hidden_act\": null, \"hidden_activation\": null}"},
    {"gemma", "{\"hidden_act\": null}"},
    {"gemma", "{\"tie_word_embeddings\": true, \"rms_norm_eps\": null, \"rope_theta\": null}"},
    {"gemma2", "{\"hidden_act\": null, \"hidden_activation\": null, \"sliding_window_size\": null}"},
    {"gemma2", "{\"hidden_act\": \"gelu\"}"}, /* hidden_activation counts */
    {"gemma2", "{\"head_dim\": null, \"num_key_value_heads\": null, \"rope_theta\": null}"},
    {"gemma2", "{\"query_pre_attn_scalar\": 20.0, \"layer_types\": [\"sliding_attention\","
               " \"full_attention\", \"sliding_attention\", \"full_attention\"]}"},
    {"gemma2", "{\"rope_theta\": null, \"rope_parameters\": {\"rope_theta\": 10000.0}}"},
    {"gemma3_text",
     "{\"sliding_window_pattern\": null, \"layer_types\": [\"sliding_attention\", \"sliding_attention\","
     " \"sliding_attention\", \"sliding_attention\", \"sliding_attention\", \"full_attention\","
     " \"sliding_attention\"]}"},
    {"gemma3_text",
     "{\"sliding_window_pattern\": null, \"rope_theta\": null, \"rope_local_base_freq\": null}"},
    {"gemma3_text", "{\"rope_theta\": null, \"rope_local_base_freq\": null, \"rope_scaling\": null,"
                    " \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1000000.0,"
                    " \"rope_type\": \"default\"}, \"sliding_attention\": {\"rope_theta\": 10000.0}}}"},
    {"gemma3", "{\"text_config\": {\"model_type\": null}}"},
    {"gemma3", "{\"text_config\": {\"head_dim\": null, \"num_key_value_heads\": null}}"},
    {"gemma3", "{\"text_config\": {\"rope_scaling\": null, \"rope_parameters\": {\"full_attention\":"
               " {\"rope_type\": \"linear\", \"factor\": 8.0}}}}"},
    {"smollm3", "{\"no_rope_layers\": null, \"layer_types\": null, \"rms_norm_eps\": null}"},
    {"smollm3", "{\"no_rope_layers\": \"null\", \"no_rope_layer_interval\": null, \"attention_bias\": null}"},
    {"smollm3", "{\"no_rope_layer_interval\": 2, \"rope_theta\": null, \"rope_parameters\":"
                " {\"rope_theta\": 5000000.0, \"rope_type\": \"default\"}}"},
    {"smollm3", "{\"model_type\": null, \"use_sliding_window\": null, \"sliding_window\": 4}"},
    {"olmo2", "{\"model_type\": null, \"head_dim\": 16, \"num_key_value_heads\": null}"},
    {"olmo2", "{\"rope_theta\": null, \"rope_parameters\": {\"rope_theta\": 500000.0}}"},
    {"qwen3_next", "{\"full_attention_interval\": null, \"partial_rotary_factor\": null}"},
    {"qwen3_next", "{\"mlp_only_layers\": null, \"decoder_sparse_step\": null, \"norm_topk_prob\": null}"},
    {"qwen3_next", "{\"rope_theta\": null, \"rope_parameters\": {\"rope_theta\": 10000000,"
                   " \"partial_rotary_factor\": 0.25, \"rope_type\": \"default\"}}"},
    {"deepseek_v3", "{\"rope_interleave\": true, \"moe_layer_freq\": null, \"norm_topk_prob\": null}"},
    {"deepseek_v3", "{\"scoring_func\": null, \"topk_method\": null}"},
    {"deepseek_v3", "{\"num_key_value_heads\": null, \"head_dim\": 8, \"num_nextn_predict_layers\": 1}"},
    {"deepseek_v3", "{\"rope_theta\": null, \"rope_scaling\": null, \"rope_parameters\":"
                    " {\"rope_theta\": 10000, \"rope_type\": \"yarn\", \"factor\": 4, \"beta_fast\": 32,"
                    " \"beta_slow\": 1, \"mscale\": 1, \"mscale_all_dim\": 1,"
                    " \"original_max_position_embeddings\": 128}}"},
    {"qwen3_5", "{\"full_attention_interval\": null, \"attn_output_gate\": true, \"head_dim\": 32}"},
    {"qwen3_5", "{\"layer_types\": [\"linear_attention\", \"linear_attention\", \"linear_attention\","
                " \"full_attention\"], \"full_attention_interval\": 1, \"linear_conv_kernel_dim\": null}"},
    {"qwen3_5", "{\"model_type\": \"qwen3_5\", \"architectures\": [\"Qwen3_5ForConditionalGeneration\"],"
                " \"text_config\": {\"model_type\": \"qwen3_5_text\"}}"},
    {"qwen3_5", "{\"rope_parameters\": {\"partial_rotary_factor\": null, \"mrope_section\": null}}"},
    {"lfm2",
     "{\"model_type\": null, \"norm_eps\": null, \"conv_L_cache\": null, \"tie_word_embeddings\": null}"},
    {"lfm2",
     "{\"layer_types\": null, \"full_attn_idxs\": [2, 4], \"block_ff_dim\": 150, \"intermediate_size\": 99}"},
    {"lfm2", "{\"rope_parameters\": null, \"rope_theta\": null, \"block_ffn_dim_multiplier\": 1.0}"},
    {"lfm2_moe", "{\"use_expert_bias\": null, \"norm_topk_prob\": null, \"num_dense_layers\": null}"},
    {"lfm3", "{\"use_sandwich_norm\": null, \"use_attention_gate\": null, \"rope_parameters\": null}"},
    {"phi3", "{\"model_type\": null, \"num_key_value_heads\": null, \"rms_norm_eps\": null}"},
    {"seed_oss", "{\"attention_bias\": null, \"head_dim\": null, \"attention_out_bias\": null}"},
    {"seed_oss", "{\"rope_parameters\": null, \"rope_theta\": 10000000.0}"},
    {"glm4_moe", "{\"num_nextn_predict_layers\": 1, \"head_dim\": null, \"first_k_dense_replace\": null}"},
    {"glm4_moe", "{\"rope_parameters\": {\"partial_rotary_factor\": null}, \"norm_topk_prob\": null}"},
    {"glm4_moe_lite", "{\"mlp_layer_types\": null, \"rope_interleave\": null, \"topk_method\": null}"},
    {"glm4_moe_lite", "{\"mlp_layer_types\": null, \"first_k_dense_replace\": 2}"},
    {"minimax_m2", "{\"rope_parameters\": {\"partial_rotary_factor\": null}}"},
    {"minimax_m2", "{\"rotary_dim\": 8}"},
    {"exaone4", "{\"layer_types\": null, \"sliding_window_pattern\": 4}"},
    {"exaone4", "{\"layer_types\": null, \"sliding_window_pattern\": null}"},
    {"olmo3", "{\"layer_types\": null}"},
    {"olmo3", "{\"rope_parameters\": {\"sliding_attention\": null}}"},
    {"ministral3", "{\"rope_parameters\": {\"type\": null, \"beta_slow\": null}}"},
    {"mistral4", "{\"rope_parameters\": {\"partial_rotary_factor\": null}, \"norm_topk_prob\": null, "
                 "\"n_group\": \"null\"}"},
    {"glm4", "{\"rope_parameters\": {\"partial_rotary_factor\": null}, \"attention_bias\": null}"},
    {"hunyuan_v1_dense", "{\"rope_parameters\": {\"rope_type\": null, \"factor\": null}}"},
    {"deepseek_v2", "{\"norm_topk_prob\": true, \"rope_parameters\": {\"rope_type\": null}}"},
    {"apertus", "{\"hidden_act\": null, \"rms_norm_eps\": null, \"mlp_bias\": null}"},
    {"starcoder2", "{\"use_bias\": null, \"norm_epsilon\": null, \"hidden_act\": null}"},
    {"phi2", "{\"layer_norm_eps\": null, \"hidden_act\": null, \"rope_parameters\": "
             "{\"partial_rotary_factor\": null}}"},
    {"cohere2", "{\"layer_types\": null, \"head_dim\": null}"},
    {"cohere2", "{\"layer_types\": null, \"sliding_window_pattern\": null, \"layer_norm_eps\": null}"},
    {"llama4", "{\"text_config\": {\"layer_types\": null, \"moe_layers\": null, \"use_qk_norm\": null}}"},
    {"llama4", "{\"text_config\": {\"no_rope_layers\": null, \"interleave_moe_layer_step\": null}}"},
    {"llama4", "{\"text_config\": {\"no_rope_layers\": [], \"attn_scale\": null, \"head_dim\": 16}}"},
    {"llama4", "{\"text_config\": {\"attn_temperature_tuning\": 4, \"rms_norm_eps\": null}}"},
    {"muse_glimmer", "{\"text_config\": {\"layer_types\": null, \"layer_rope_theta\": null}}"},
    {"muse_glimmer", "{\"text_config\": {\"layer_types\": null, \"layer_rope_theta\": [1, 7, -2, 0]}}"},
    {"muse_glimmer",
     "{\"text_config\": {\"post_norm_eps\": null, \"qk_scale_factor\": null, \"rms_norm_eps\": null}}"},
    {"glm5_next", "{\"text_config\": {\"layer_types\": null, \"hc_sinkhorn_iters\": null, \"hc_eps\": null, "
                  "\"indexer_types\": null, \"rms_norm_eps\": null}}"},
    {"glm5_next", "{\"text_config\": {\"layer_types\": [\"linear_attention\", \"linear_attention\", "
                  "\"linear_attention\", \"full_attention\"], \"linear_lower_bound\": null}}"},
    {"glm5_next",
     "{\"text_config\": {\"linear_lower_bound\": \"null\", \"linear_attn_config\": {\"head_dim\": 16, "
     "\"num_heads\": 3, \"short_conv_kernel_size\": 4}}}"},
    {"glm5_next",
     "{\"text_config\": {\"linear_attn_config\": {\"gate_lower_bound\": -5.0}, \"linear_num_heads\": 3, "
     "\"norm_topk_prob\": null, \"index_kpool_always_select_tail\": null}}"},
    {"granite", "{\"model_type\": null, \"rms_norm_eps\": 1.0e-5, \"num_key_value_heads\": null}"},
    {"granite", "{\"tie_word_embeddings\": null, \"rope_theta\": null, \"mlp_bias\": null}"},
    {"qwen2_vl", "{\"rope_scaling\": {\"rope_type\": null}}"}, /* as published: mrope */
    {"qwen2_vl", "{\"rope_scaling\": null, \"rope_theta\": null}"},
    {"qwen2_vl",
     "{\"tie_word_embeddings\": null, \"max_window_layers\": null, \"use_sliding_window\": null}"},
    {"qwen2_vl", "{\"model_type\": null}"},
    {"phi3_longrope", "{\"rope_scaling\": {\"rope_type\": null, \"type\": \"su\"}}"},
    {"phi3_longrope", "{\"rope_scaling\": {\"rope_type\": \"yarn\"}}"},
    {"phi3_longrope", "{\"rope_scaling\": {\"type\": null, \"factor\": 4.0}}"},
    {"phi3_longrope", "{\"rope_scaling\": {\"original_max_position_embeddings\": 39}}"},
    {"phi3_longrope", "{\"partial_rotary_factor\": 0.5}"},
    {"phi3", "{\"partial_rotary_factor\": 1.0, \"original_max_position_embeddings\": null}"},
    {"gemma4_text", "{\"model_type\": null, \"head_dim\": null, \"global_head_dim\": null}"},
    {"gemma4_text", "{\"rope_parameters\": null, \"num_global_key_value_heads\": 1}"},
    {"gemma4_text", "{\"use_bidirectional_attention\": \"vision\", \"attention_k_eq_v\": null}"},
    {"qwen3_moe", "{\"num_experts\": null, \"num_local_experts\": 8, \"mlp_only_layers\": null}"},
    {"qwen3_moe", "{\"decoder_sparse_step\": null, \"head_dim\": null, \"model_type\": null}"},
    {"qwen3_moe",
     "{\"n_group\": 1, \"topk_group\": 1, \"routed_scaling_factor\": 1, \"n_shared_experts\": 0}"},
    {"mixtral", "{\"model_type\": null, \"num_experts_per_tok\": null, \"rms_norm_eps\": null}"},
    {"mixtral", "{\"rope_theta\": null, \"norm_topk_prob\": false}"}, /* the class knows no such field */
    {"gpt_oss", "{\"layer_types\": null, \"swiglu_limit\": null, \"attention_bias\": null}"},
    {"gpt_oss", "{\"model_type\": null, \"num_experts_per_tok\": null, \"truncate\": true}"},
    {"gemma4_moe", "{\"model_type\": null, \"num_experts_per_tok\": \"null\", \"norm_topk_prob\": false}"},
    {"gemma4", "{\"text_config\": {\"model_type\": null}}"},
    {"gemma4", "{\"model_type\": null, \"architectures\": null, \"tie_word_embeddings\": null}"},
};

static const spelling different[] = {
    {"llama", "{\"rope_theta\": 10000}"},
    {"llama", "{\"rope_parameters\": {\"rope_theta\": 10000}}"},
    {"llama", "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}"},
    {"llama", "{\"hidden_act\": \"gelu\"}"},
    {"llama", "{\"rms_norm_eps\": 1e-4}"},
    {"llama_rope3_tied", "{\"rope_scaling\": \"null\"}"},
    {"llama_rope3_tied", "{\"rope_scaling\": {\"low_freq_factor\": 2.0}}"},
    {"llama_rope3_tied", "{\"rope_scaling\": {\"original_max_position_embeddings\": null}}"},
    {"mistral", "{\"sliding_window\": \"null\"}"},
    {"mistral", "{\"sliding_window\": null}"}, /* 4096 by default */
    {"mistral", "{\"sliding_window\": 17}"},
    {"mistral", "{\"layer_types\": [\"full_attention\", \"sliding_attention\", \"full_attention\","
                " \"sliding_attention\"]}"},
    {"qwen2", "{\"use_sliding_window\": true}"},
    {"qwen2_window", "{\"use_sliding_window\": false}"},
    {"qwen2_window", "{\"max_window_layers\": 4}"},
    {"qwen2_yarn", "{\"rope_scaling\": {\"beta_fast\": 16}}"},
    {"qwen2_yarn", "{\"rope_scaling\": {\"attention_factor\": 1.0}}"},
    {"qwen2_yarn", "{\"rope_scaling\": {\"mscale\": 1.0, \"mscale_all_dim\": 0.5}}"},
    {"qwen2_yarn", "{\"rope_scaling\": {\"truncate\": false}}"},
    {"qwen2_yarn", "{\"rope_scaling\": {\"original_max_position_embeddings\": 256}}"},
    {"gemma", "{\"hidden_act\": \"silu\"}"},
    {"gemma2", "{\"hidden_activation\": \"gelu\"}"},
    {"gemma2", "{\"attn_logit_softcapping\": \"null\"}"},
    {"gemma2", "{\"final_logit_softcapping\": \"null\"}"},
    {"gemma2", "{\"attn_logit_softcapping\": null}"}, /* 50 by default */
    {"gemma2", "{\"final_logit_softcapping\": null}"},
    {"gemma2", "{\"query_pre_attn_scalar\": null}"},
    {"gemma2", "{\"sliding_window\": null}"},
    {"gemma3", "{\"text_config\": {\"rope_scaling\": null}}"},
    {"gemma4_text", "{\"rope_parameters\": {\"full_attention\": {\"partial_rotary_factor\": 0.5}}}"},
    {"gemma4_text", "{\"rope_parameters\": {\"full_attention\": {\"factor\": 2.0}}}"},
    {"gemma4_text", "{\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\"}}}"},
    {"gemma4_text", "{\"rope_parameters\": {\"sliding_attention\": {\"rope_theta\": 20000}}}"},
    {"gemma4_text", "{\"sliding_window\": 17}"},
    {"gemma4_text", "{\"final_logit_softcapping\": null}"},
    {"gemma4_text", "{\"attention_scale\": 0.25}"},
    {"qwen3_moe", "{\"n_group\": 4}"},
    {"qwen3_moe", "{\"routed_scaling_factor\": 2}"},
    {"qwen3_moe", "{\"num_experts_per_tok\": 3}"},
    {"mixtral", "{\"routed_scaling_factor\": 2}"},
    {"gpt_oss", "{\"swiglu_limit\": 1}"},
    {"gpt_oss", "{\"rope_scaling\": {\"truncate\": true}}"},
    {"gemma4_moe", "{\"top_k_experts\": 3}"},
    {"smollm3", "{\"no_rope_layers\": null, \"no_rope_layer_interval\": 1000}"},
    {"smollm3", "{\"no_rope_layers\": [1, 1, 0, 1, 1]}"},
    {"smollm3", "{\"layer_types\": null, \"use_sliding_window\": true, \"sliding_window\": 8}"},
    {"smollm3", "{\"rope_theta\": null}"}, /* 2000000 by default */
    {"llama4", "{\"text_config\": {\"layer_types\": null, \"attention_chunk_size\": \"null\"}}"},
    {"llama4", "{\"text_config\": {\"attention_chunk_size\": null}}"}, /* 8192 by default */
    {"llama4", "{\"text_config\": {\"floor_scale\": null}}"},
    {"llama4", "{\"text_config\": {\"attn_temperature_tuning\": 0}}"},
    {"glm5_next", "{\"text_config\": {\"linear_attn_config\": {\"gate_lower_bound\": -2.0}}}"},
    {"glm5_next",
     "{\"text_config\": {\"linear_lower_bound\": \"null\", \"linear_attn_config\": {\"safe_gate\": false}}}"},
    {"glm5_next", "{\"text_config\": {\"swiglu_limit\": null}}"},         /* 10 by default */
    {"muse_glimmer", "{\"text_config\": {\"output_multiplier\": null}}"}, /* 0.196 by default */
    {"muse_glimmer", "{\"text_config\": {\"sliding_window\": null}}"},    /* 2048 by default */
    {"muse_glimmer", "{\"text_config\": {\"rope_parameters\": null}}"},
    {"olmo2", "{\"rms_norm_eps\": 1e-3}"},
    {"olmo2", "{\"rope_theta\": 10000}"},
    {"phi3_longrope", "{\"original_max_position_embeddings\": 39}"}, /* one token less than the text */
    {"phi3_longrope", "{\"original_max_position_embeddings\": 64}"}, /* another multiplier */
    {"phi3_longrope", "{\"rope_scaling\": {\"factor\": 8}}"},
    {"phi3_longrope", "{\"rope_scaling\": {\"attention_factor\": 1}}"},
    {"qwen3_next", "{\"partial_rotary_factor\": 0.5}"},
    {"qwen3_next", "{\"norm_topk_prob\": false}"},
    {"qwen3_next", "{\"num_experts_per_tok\": 3}"},
    {"deepseek_v3", "{\"rope_interleave\": false}"},
    {"deepseek_v3", "{\"rope_scaling\": {\"mscale_all_dim\": 0.5}}"},
    {"deepseek_v3", "{\"rope_scaling\": {\"factor\": 2}}"},
    {"deepseek_v3", "{\"routed_scaling_factor\": 1}"},
    {"deepseek_v3", "{\"topk_group\": 1}"},
    {"deepseek_v3", "{\"n_group\": 1, \"topk_group\": 1}"},
    {"deepseek_v3", "{\"norm_topk_prob\": false}"},
    {"qwen3_5", "{\"rope_parameters\": {\"partial_rotary_factor\": 0.5}}"},
    {"qwen3_5", "{\"rope_parameters\": {\"rope_theta\": 10000}}"},
    {"qwen3_5", "{\"rms_norm_eps\": 1e-4}"},
    {"phi3", "{\"sliding_window\": \"null\"}"},
    {"phi3", "{\"sliding_window\": 25}"},
    {"phi3", "{\"partial_rotary_factor\": 0.5}"},
};

/* The hash of a copy with a patch, or of the fixture as it is. */
static uint64_t hash_patched(const char *fixture, const char *patch)
{
    char relative[96], dir[QN_TEST_DIR_MAX];
    snprintf(relative, sizeof relative, "models/%s", fixture);
    const char *from = qn_test_fixture(relative);
    if (!from) return 0;
    if (!patch) return hash_of(from);
    qn_test_model_copy(from, patch, NULL, dir);
    uint64_t hash = hash_of(dir);
    qn_test_model_remove(dir);
    return hash;
}

static void compare(const spelling *cases, size_t n, int alike)
{
    const char *last = "";
    uint64_t plain = 0;
    int seen = 0;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(cases[i].fixture, last) != 0) plain = hash_patched(last = cases[i].fixture, NULL);
        if (!plain) continue;
        seen++;
        if ((hash_patched(cases[i].fixture, cases[i].patch) == plain) != alike)
            fail_msg("%s with %s: the logits are %s", cases[i].fixture, cases[i].patch,
                     alike ? "others" : "the same");
    }
    if (!seen) qn_test_leave_out("no fixture of models is there (QUERN_FIXTURES)");
}

static void test_same(void **state)
{
    compare(same, sizeof same / sizeof same[0], 1);
}

static void test_different(void **state)
{
    compare(different, sizeof different / sizeof different[0], 0);
}

/* ---- where the decoder lies ---- */

enum { TENSORS_MAX = 128, NAME_MAX_BYTES = 128 };

/* Every tensor once under another name: "model." becomes `decoder`, the head's name begins with `head`. */
static void copy_renamed(const char *from, const char *decoder, const char *head, char *dir)
{
    static char names[TENSORS_MAX][NAME_MAX_BYTES];
    qn_test_tensor_edit edits[2 * TENSORS_MAX + 1] = {{0}};
    qn_source *src;
    int n = 0;
    qn_test_ok(qn_source_open(from, NULL, &src));
    assert_true(qn_source_count(src) <= TENSORS_MAX);
    for (int64_t i = 0; i < qn_source_count(src); i++) {
        const char *name = qn_source_get(src, i)->name;
        int inner = strncmp(name, "model.", 6) == 0;
        snprintf(names[i], sizeof names[i], "%s%s", inner ? decoder : head, name + (inner ? 6 : 0));
        if (strcmp(names[i], name) == 0) continue;
        edits[n++] = (qn_test_tensor_edit){name, QN_TEST_DROP, NULL};
        edits[n++] = (qn_test_tensor_edit){name, QN_TEST_COPY, names[i]};
    }
    qn_test_model_copy(from, NULL, edits, dir);
    qn_source_close(src);
}

static void test_prefixes(void **state)
{
    static const struct {
        const char *decoder, *head;
    } places[] = {{"model.", ""},
                  {"", ""},
                  {"language_model.", "language_model."},
                  {"language_model.", ""},
                  {"language_model.model.", "language_model."},
                  {"model.language_model.", ""}};
    static const char *const fixtures[] = {"llama", "qwen2_window", "gemma2", NULL};
    char relative[96], dir[QN_TEST_DIR_MAX];
    int n = 0;
    for (int f = 0; fixtures[f]; f++) {
        snprintf(relative, sizeof relative, "models/%s", fixtures[f]);
        const char *from = qn_test_fixture(relative);
        if (!from) continue;
        n++;
        uint64_t plain = hash_of(from);
        for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
            copy_renamed(from, places[i].decoder, places[i].head, dir);
            uint64_t hash = hash_of(dir);
            qn_test_model_remove(dir);
            if (hash != plain)
                fail_msg("%s below \"%s\", head below \"%s\": the logits are others", fixtures[f],
                         places[i].decoder, places[i].head);
        }
    }
    if (!n) qn_test_leave_out("no fixture of models is there (QUERN_FIXTURES)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same),
        cmocka_unit_test(test_different),
        cmocka_unit_test(test_prefixes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
