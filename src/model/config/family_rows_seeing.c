/* The rows of families.h that came with a vision tower (blocks/vision_family.c): constant data. */
#include <stddef.h>

#include "model/config/families.h"

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

enum { NORMS_PRE = QN_NORM_PRE_ATTN | QN_NORM_PRE_FFN };

static const qn_field_default qwen2_vl_defaults[] = {{"rms_norm_eps", 1e-5, 0},
                                                     {"rope_theta", 1000000, 0},
                                                     {"max_position_embeddings", 32768, 0},
                                                     {"sliding_window", 4096, 0},
                                                     {"max_window_layers", 80, 0},
                                                     {"use_sliding_window", 0, 0},
                                                     {NULL, 0, 0}};
static const qn_field_default qwen3_vl_defaults[] = {{"vocab_size", 151936, 0},
                                                     {"hidden_size", 4096, 0},
                                                     {"intermediate_size", 22016, 0},
                                                     {"num_hidden_layers", 32, 0},
                                                     {"num_attention_heads", 32, 0},
                                                     {"num_key_value_heads", 32, 0},
                                                     {"head_dim", 128, 0},
                                                     {"rms_norm_eps", 1e-6, 0},
                                                     {"rope_theta", 500000, 0},
                                                     {"max_position_embeddings", 128000, 0},
                                                     {NULL, 0, 0}};
static const qn_field_default qwen3_vl_moe_defaults[] = {{"vocab_size", 151936, 0},
                                                         {"hidden_size", 2048, 0},
                                                         {"intermediate_size", 5632, 0},
                                                         {"num_hidden_layers", 24, 0},
                                                         {"num_attention_heads", 16, 0},
                                                         {"num_key_value_heads", 16, 0},
                                                         {"rms_norm_eps", 1e-6, 0},
                                                         {"rope_theta", 500000, 0},
                                                         {"max_position_embeddings", 128000, 0},
                                                         {"num_experts", 60, 0},
                                                         {"num_experts_per_tok", 4, 0},
                                                         {"moe_intermediate_size", 1408, 0},
                                                         {NULL, 0, 0}};
static const qn_field_default qwen3_5_moe_defaults[] = {{"vocab_size", 248320, 0},
                                                        {"hidden_size", 2048, 0},
                                                        {"intermediate_size", 512, 0},
                                                        {"num_hidden_layers", 40, 0},
                                                        {"num_attention_heads", 16, 0},
                                                        {"num_key_value_heads", 2, 0},
                                                        {"head_dim", 256, 0},
                                                        {"rms_norm_eps", 1e-6, 0},
                                                        {"rope_theta", 10000, 0},
                                                        {"partial_rotary_factor", 0.25, 0},
                                                        {"max_position_embeddings", 32768, 0},
                                                        {"full_attention_interval", 4, 0},
                                                        {"linear_conv_kernel_dim", 4, 0},
                                                        {"linear_key_head_dim", 128, 0},
                                                        {"linear_value_head_dim", 128, 0},
                                                        {"linear_num_key_heads", 16, 0},
                                                        {"linear_num_value_heads", 32, 0},
                                                        {"num_experts", 256, 0},
                                                        {"num_experts_per_tok", 8, 0},
                                                        {"moe_intermediate_size", 512, 0},
                                                        {"shared_expert_intermediate_size", 512, 0},
                                                        {NULL, 0, 0}};

static const qn_family_experts qwen3_vl_experts = {.names = qn_expert_transposed_names, .norm_topk_prob = 1};
static const qn_family_experts qwen3_5_experts = {
    .names = qn_expert_joined_names, .shared_gate = 1, .norm_topk_prob = 1};

static const qn_renamed_weight qwen3_5_moe_names[] = {
    {QN_WEIGHT_SHARED_GATE, "layers.#.mlp.shared_expert.gate_proj.weight"},
    {QN_WEIGHT_SHARED_UP, "layers.#.mlp.shared_expert.up_proj.weight"},
    {QN_WEIGHT_SHARED_DOWN, "layers.#.mlp.shared_expert.down_proj.weight"},
    {QN_WEIGHT_ROLE_COUNT, NULL}};

const qn_family qn_family_seeing_rows[] = {
    {
        .model_types = LIST("qwen2_vl", "qwen2_vl_text"),
        .architectures = LIST("Qwen2VLForConditionalGeneration"),
        .defaults = qwen2_vl_defaults,
        .stop_tokens = LIST("<|im_end|>", "<|endoftext|>"),
        .hidden_act_keys = LIST("hidden_act"),
        .norms = NORMS_PRE,
        .slide = QN_SLIDE_FROM,
        .biased_qkv = 1,
        .sectioned_rope = {16, 24, 24},
    },
    {
        .model_types = LIST("qwen2_5_vl", "qwen2_5_vl_text"),
        .architectures = LIST("Qwen2_5_VLForConditionalGeneration"),
        .defaults = qwen2_vl_defaults,
        .stop_tokens = LIST("<|im_end|>", "<|endoftext|>"),
        .hidden_act_keys = LIST("hidden_act"),
        .norms = NORMS_PRE,
        .slide = QN_SLIDE_FROM,
        .biased_qkv = 1,
        .sectioned_rope = {16, 24, 24},
    },
    {
        .model_types = LIST("qwen3_vl", "qwen3_vl_text"),
        .architectures = LIST("Qwen3VLForConditionalGeneration"),
        .defaults = qwen3_vl_defaults,
        .stop_tokens = LIST("<|im_end|>", "<|endoftext|>"),
        .hidden_act_keys = LIST("hidden_act"),
        .norms = NORMS_PRE,
        .qk_norm = QN_QK_NORM_HEAD,
        .sectioned_rope = {24, 20, 20},
        .sections_take_turns = 1,
    },
    {
        .model_types = LIST("qwen3_vl_moe", "qwen3_vl_moe_text"),
        .architectures = LIST("Qwen3VLMoeForConditionalGeneration"),
        .defaults = qwen3_vl_moe_defaults,
        .experts = &qwen3_vl_experts,
        .stop_tokens = LIST("<|im_end|>", "<|endoftext|>"),
        .hidden_act_keys = LIST("hidden_act"),
        .norms = NORMS_PRE,
        .qk_norm = QN_QK_NORM_HEAD,
        .sectioned_rope = {24, 20, 20},
        .sections_take_turns = 1,
    },
    {
        .model_types = LIST("qwen3_5_moe", "qwen3_5_moe_text"),
        .architectures = LIST("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
        .defaults = qwen3_5_moe_defaults,
        .experts = &qwen3_5_experts,
        .renamed = qwen3_5_moe_names,
        .stop_tokens = LIST("<|im_end|>", "<|endoftext|>"),
        .hidden_act_keys = LIST("hidden_act"),
        .norms = NORMS_PRE,
        .norm_offset = 1,
        .qk_norm = QN_QK_NORM_HEAD,
        .delta = QN_DELTA_SPLIT,
        .recurrent = QN_MIXER_DELTA,
        .gated_attention = 1,
        .sectioned_rope = {11, 11, 10},
        .sections_take_turns = 1,
    },
};
const int qn_family_seeing_count = sizeof qn_family_seeing_rows / sizeof qn_family_seeing_rows[0];
