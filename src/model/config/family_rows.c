/* The rows of families.h: constant data. */
#include "model/config/families.h"

#include <stddef.h>

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

enum {
    NORMS_PRE = QN_NORM_PRE_ATTN | QN_NORM_PRE_FFN,
    NORMS_POST = QN_NORM_POST_ATTN | QN_NORM_POST_FFN,
    NORMS_BOTH = QN_NORM_PRE_ATTN | QN_NORM_POST_ATTN | QN_NORM_PRE_FFN | QN_NORM_POST_FFN
};

/* Defaults are those of transformers' configuration classes; for GGUF, llama.cpp's. */
static const qn_field_default llama_defaults[] = {
    {"rms_norm_eps", 1e-6, 0}, {"rope_theta", 10000, 1}, {"max_position_embeddings", 2048, 0}, {NULL, 0, 0}};
static const qn_field_default mistral_defaults[] = {{"rms_norm_eps", 1e-6, 0},
                                                    {"rope_theta", 10000, 1},
                                                    {"max_position_embeddings", 131072, 0},
                                                    {"sliding_window", 4096, 0},
                                                    {NULL, 0, 0}};
static const qn_field_default qwen_defaults[] = {{"rms_norm_eps", 1e-6, 0},
                                                 {"rope_theta", 10000, 1},
                                                 {"max_position_embeddings", 32768, 0},
                                                 {"sliding_window", 4096, 0},
                                                 {"max_window_layers", 28, 0},
                                                 {"use_sliding_window", 0, 1},
                                                 {NULL, 0, 0}};
static const qn_field_default qwen3_defaults[] = {{"rms_norm_eps", 1e-6, 0},
                                                  {"rope_theta", 10000, 1},
                                                  {"max_position_embeddings", 32768, 0},
                                                  {"sliding_window", 4096, 0},
                                                  {"max_window_layers", 28, 0},
                                                  {"use_sliding_window", 0, 1},
                                                  {"head_dim", 128, 0},
                                                  {NULL, 0, 0}};
static const qn_field_default qwen3_moe_defaults[] = {{"rms_norm_eps", 1e-6, 0},
                                                      {"rope_theta", 10000, 1},
                                                      {"max_position_embeddings", 32768, 0},
                                                      {"sliding_window", 4096, 0},
                                                      {"max_window_layers", 28, 0},
                                                      {"use_sliding_window", 0, 1},
                                                      {"num_experts", 128, 0},
                                                      {"num_experts_per_tok", 8, 0},
                                                      {"moe_intermediate_size", 768, 0},
                                                      {NULL, 0, 0}};
static const qn_field_default mixtral_defaults[] = {
    {"rms_norm_eps", 1e-5, 0},   {"rope_theta", 1000000, 1},    {"max_position_embeddings", 131072, 0},
    {"num_local_experts", 8, 0}, {"num_experts_per_tok", 2, 0}, {NULL, 0, 0}};
static const qn_field_default gpt_oss_defaults[] = {{"rms_norm_eps", 1e-5, 0},
                                                    {"rope_theta", 150000, 1},
                                                    {"max_position_embeddings", 131072, 0},
                                                    {"head_dim", 64, 0},
                                                    {"attention_bias", 1, 1},
                                                    {"sliding_window", 128, 1},
                                                    {"sliding_window_pattern", 2, 1},
                                                    {"num_local_experts", 128, 0},
                                                    {"num_experts_per_tok", 4, 0},
                                                    {"swiglu_limit", 7, 1},
                                                    {"truncate", 0, 1},
                                                    {NULL, 0, 0}};
static const qn_field_default gemma_defaults[] = {{"rms_norm_eps", 1e-6, 0},
                                                  {"rope_theta", 10000, 1},
                                                  {"max_position_embeddings", 8192, 0},
                                                  {"head_dim", 256, 0},
                                                  {NULL, 0, 0}};
static const qn_field_default gemma2_defaults[] = {{"rms_norm_eps", 1e-6, 0},
                                                   {"rope_theta", 10000, 1},
                                                   {"max_position_embeddings", 8192, 0},
                                                   {"head_dim", 256, 0},
                                                   {"query_pre_attn_scalar", 256, 0},
                                                   {"sliding_window", 4096, 1},
                                                   {"sliding_window_pattern", 2, 1},
                                                   {"attn_logit_softcapping", 50, 1},
                                                   {"final_logit_softcapping", 30, 1},
                                                   {NULL, 0, 0}};
static const qn_field_default gemma3_defaults[] = {{"vocab_size", 262208, 0},
                                                   {"hidden_size", 2304, 0},
                                                   {"intermediate_size", 9216, 0},
                                                   {"num_hidden_layers", 26, 0},
                                                   {"num_attention_heads", 8, 0},
                                                   {"num_key_value_heads", 4, 0},
                                                   {"head_dim", 256, 0},
                                                   {"rms_norm_eps", 1e-6, 0},
                                                   {"max_position_embeddings", 131072, 0},
                                                   {"query_pre_attn_scalar", 256, 0},
                                                   {"rope_theta", 1000000, 1},
                                                   {"rope_local_base_freq", 10000, 1},
                                                   {"sliding_window", 4096, 0},
                                                   {"sliding_window_pattern", 6, 1},
                                                   {NULL, 0, 0}};

static const qn_field_default smollm3_defaults[] = {
    {"rms_norm_eps", 1e-6, 0},        {"rope_theta", 2000000, 0},   {"max_position_embeddings", 32768, 0},
    {"no_rope_layer_interval", 4, 1}, {"use_sliding_window", 0, 0}, {NULL, 0, 0}};
static const qn_field_default olmo2_defaults[] = {
    {"rms_norm_eps", 1e-5, 0}, {"rope_theta", 10000, 1}, {"max_position_embeddings", 2048, 0}, {NULL, 0, 0}};
static const qn_field_default gemma4_defaults[] = {{"vocab_size", 262144, 0},
                                                   {"hidden_size", 2304, 0},
                                                   {"intermediate_size", 9216, 0},
                                                   {"num_hidden_layers", 30, 0},
                                                   {"num_attention_heads", 8, 0},
                                                   {"num_key_value_heads", 4, 0},
                                                   {"head_dim", 256, 0},
                                                   {"global_head_dim", 512, 0},
                                                   {"rms_norm_eps", 1e-6, 0},
                                                   {"max_position_embeddings", 131072, 0},
                                                   {"attention_scale", 1, 1},
                                                   {"sliding_window", 512, 0},
                                                   {"sliding_window_pattern", 6, 0},
                                                   {"hidden_size_per_layer_input", 256, 0},
                                                   {"vocab_size_per_layer_input", 262144, 0},
                                                   {NULL, 0, 0}};
static const char gemma4_rope[] =
    "{\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0},"
    " \"full_attention\": {\"rope_type\": \"proportional\", \"partial_rotary_factor\": 0.25,"
    " \"rope_theta\": 1000000.0}}";

static const qn_field_default phi3_defaults[] = {{"rms_norm_eps", 1e-5, 0},
                                                 {"rope_theta", 10000, 1},
                                                 {"max_position_embeddings", 4096, 0},
                                                 {"original_max_position_embeddings", 4096, 0},
                                                 {NULL, 0, 0}};

static const qn_field_default qwen3_next_defaults[] = {{"vocab_size", 151936, 0},
                                                       {"hidden_size", 2048, 0},
                                                       {"intermediate_size", 5632, 0},
                                                       {"num_hidden_layers", 48, 0},
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
                                                       {"num_experts", 512, 0},
                                                       {"num_experts_per_tok", 10, 0},
                                                       {"moe_intermediate_size", 512, 0},
                                                       {"shared_expert_intermediate_size", 512, 0},
                                                       {"norm_topk_prob", 1, 0},
                                                       {NULL, 0, 0}};
static const qn_field_default deepseek_v3_defaults[] = {{"vocab_size", 129280, 0},
                                                        {"hidden_size", 7168, 0},
                                                        {"intermediate_size", 18432, 0},
                                                        {"num_hidden_layers", 61, 0},
                                                        {"num_attention_heads", 128, 0},
                                                        {"rms_norm_eps", 1e-6, 0},
                                                        {"rope_theta", 10000, 0},
                                                        {"max_position_embeddings", 4096, 0},
                                                        {"q_lora_rank", 1536, 0},
                                                        {"kv_lora_rank", 512, 0},
                                                        {"qk_nope_head_dim", 128, 0},
                                                        {"qk_rope_head_dim", 64, 0},
                                                        {"v_head_dim", 128, 0},
                                                        {"n_routed_experts", 256, 0},
                                                        {"num_experts_per_tok", 8, 0},
                                                        {"n_shared_experts", 1, 0},
                                                        {"moe_intermediate_size", 2048, 0},
                                                        {"first_k_dense_replace", 3, 0},
                                                        {"n_group", 8, 0},
                                                        {"topk_group", 4, 0},
                                                        {"routed_scaling_factor", 2.5, 0},
                                                        {"norm_topk_prob", 1, 0},
                                                        {NULL, 0, 0}};
static const qn_field_default qwen3_5_defaults[] = {{"vocab_size", 248320, 0},
                                                    {"hidden_size", 4096, 0},
                                                    {"intermediate_size", 12288, 0},
                                                    {"num_hidden_layers", 32, 0},
                                                    {"num_attention_heads", 16, 0},
                                                    {"num_key_value_heads", 4, 0},
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
                                                    {NULL, 0, 0}};

static const qn_field_default qwen2_vl_defaults[] = {{"rms_norm_eps", 1e-5, 0},
                                                     {"rope_theta", 1000000, 0},
                                                     {"max_position_embeddings", 32768, 0},
                                                     {"sliding_window", 4096, 0},
                                                     {"max_window_layers", 80, 0},
                                                     {"use_sliding_window", 0, 0},
                                                     {NULL, 0, 0}};

static const qn_field_default granite_defaults[] = {
    {"rms_norm_eps", 1e-6, 0}, {"rope_theta", 10000, 1}, {"max_position_embeddings", 2048, 0}, {NULL, 0, 0}};

/* What is neither: Qwen 3 norms queries, Gemma 2 and 3 norm what the blocks give. Without biases too the
 * blocks are llama's, which qwen2 computes as well. */
static const qn_known_by qwen2_known_by[] = {
    {"self_attn.q_proj.bias",
     LIST("self_attn.q_norm.weight", "self_attn.k_norm.weight", "pre_feedforward_layernorm.weight"),
     "self_attn.q_proj.bias exists, self_attn.q_norm does not"},
    {"self_attn.q_proj.weight",
     LIST("self_attn.q_norm.weight", "self_attn.k_norm.weight", "pre_feedforward_layernorm.weight"),
     "there is neither self_attn.q_norm nor a bias"},
    {NULL, NULL, NULL}};
static const qn_known_by qwen3_known_by[] = {
    {"self_attn.q_norm.weight", LIST("pre_feedforward_layernorm.weight"), "self_attn.q_norm exists"},
    {NULL, NULL, NULL}};

static const qn_family_experts qwen3_experts = {.names = qn_expert_names, .gguf_norm_topk_prob = 1};
static const qn_family_experts qwen3_next_experts = {.names = qn_expert_names, .shared_gate = 1};
static const qn_family_experts deepseek_v3_experts = {
    .names = qn_expert_names, .score = QN_SCORE_SIGMOID, .correction_bias = 1};
static const qn_family_experts mixtral_experts = {.names = qn_expert_mixtral_names, .norm_topk_prob = 1};
static const qn_family_experts gpt_oss_experts = {
    .names = qn_expert_gpt_oss_names, .score = QN_SCORE_SOFTMAX_CHOSEN, .bias = 1, .swiglu_alpha = 1.702f};

static const qn_renamed_weight qwen3_next_names[] = {
    {QN_WEIGHT_SHARED_GATE, "layers.#.mlp.shared_expert.gate_proj.weight"},
    {QN_WEIGHT_SHARED_UP, "layers.#.mlp.shared_expert.up_proj.weight"},
    {QN_WEIGHT_SHARED_DOWN, "layers.#.mlp.shared_expert.down_proj.weight"},
    {QN_WEIGHT_ROLE_COUNT, NULL}};
static const qn_renamed_weight mixtral_names[] = {{QN_WEIGHT_ROUTER, "layers.#.block_sparse_moe.gate.weight"},
                                                  {QN_WEIGHT_ROLE_COUNT, NULL}};
static const qn_renamed_weight gpt_oss_names[] = {{QN_WEIGHT_ROUTER, "layers.#.mlp.router.weight"},
                                                  {QN_WEIGHT_ROLE_COUNT, NULL}};
static const qn_renamed_weight gpt_oss_gguf_names[] = {
    {QN_WEIGHT_FFN_NORM, "blk.#.post_attention_norm.weight"}, {QN_WEIGHT_ROLE_COUNT, NULL}};

static const qn_family_experts gemma4_experts = {.names = qn_expert_gemma4_names,
                                                 .only_if = "enable_moe_block",
                                                 .norm_topk_prob = 1,
                                                 .beside_mlp = 1,
                                                 .router_norm = 1,
                                                 .expert_scale = 1};

static const qn_renamed_weight gemma2_names[] = {
    {QN_WEIGHT_FFN_NORM, "layers.#.pre_feedforward_layernorm.weight"}, {QN_WEIGHT_ROLE_COUNT, NULL}};
static const qn_renamed_weight gemma4_names[] = {
    {QN_WEIGHT_FFN_NORM, "layers.#.pre_feedforward_layernorm.weight"},
    {QN_WEIGHT_ROUTER, "layers.#.router.proj.weight"},
    {QN_WEIGHT_ROLE_COUNT, NULL}};

static const qn_shared_tensor phi3_shared[] = {
    {"layers.#.self_attn.qkv_proj.weight", "blk.#.attn_qkv.weight", {QN_WEIGHT_Q, QN_WEIGHT_K, QN_WEIGHT_V}},
    {"layers.#.mlp.gate_up_proj.weight",
     "blk.#.ffn_up.weight",
     {QN_WEIGHT_GATE, QN_WEIGHT_UP, QN_WEIGHT_ROLE_COUNT}},
    {NULL, NULL, {QN_WEIGHT_ROLE_COUNT}}};

const qn_family qn_family_rows[] = {
    {
        .model_types = LIST("llama"),
        .architectures = LIST("LlamaForCausalLM"),
        .gguf_architecture = "llama",
        .defaults = llama_defaults,
        .stop_tokens = LIST("<|eot_id|>", "<|eom_id|>", "<|im_end|>"),
        .hidden_act_keys = LIST("hidden_act"),
        .norms = NORMS_PRE,
        .gguf_rope_interleaved = 1,
    },
    {
        .model_types = LIST("mistral"),
        .architectures = LIST("MistralForCausalLM"),
        .gguf_architecture = "llama",
        .gguf_rope_interleaved = 1,
        .defaults = mistral_defaults,
        .stop_tokens = LIST("<|im_end|>"),
        .hidden_act_keys = LIST("hidden_act"),
        .norms = NORMS_PRE,
        .slide = QN_SLIDE_EVERY,
    },
    {
        .model_types = LIST("qwen2"),
        .architectures = LIST("Qwen2ForCausalLM"),
        .gguf_architecture = "qwen2",
        .known_by = qwen2_known_by,
        .defaults = qwen_defaults,
        .stop_tokens = LIST("<|im_end|>", "<|endoftext|>"),
        .hidden_act_keys = LIST("hidden_act"),
        .norms = NORMS_PRE,
        .slide = QN_SLIDE_FROM,
        .biased_qkv = 1,
    },
    {
        .model_types = LIST("qwen3"),
        .architectures = LIST("Qwen3ForCausalLM"),
        .gguf_architecture = "qwen3",
        .known_by = qwen3_known_by,
        .defaults = qwen3_defaults,
        .stop_tokens = LIST("<|im_end|>", "<|endoftext|>"),
        .hidden_act_keys = LIST("hidden_act"),
        .norms = NORMS_PRE,
        .qk_norm = QN_QK_NORM_HEAD,
        .slide = QN_SLIDE_FROM,
    },
    {
        .model_types = LIST("gemma"),
        .architectures = LIST("GemmaForCausalLM"),
        .gguf_architecture = "gemma",
        .defaults = gemma_defaults,
        .stop_tokens = LIST("<end_of_turn>"),
        .hidden_act_keys = LIST("hidden_act", "hidden_activation"),
        .gelu_is_tanh = 1,
        .hidden_act = QN_HIDDEN_GELU_TANH,
        .norms = NORMS_PRE,
        .norm_offset = 1,
        .scaled_embedding = 1,
    },
    {
        .model_types = LIST("gemma2"),
        .architectures = LIST("Gemma2ForCausalLM"),
        .gguf_architecture = "gemma2",
        .defaults = gemma2_defaults,
        .renamed = gemma2_names,
        .stop_tokens = LIST("<end_of_turn>"),
        .hidden_act_keys = LIST("hidden_activation"),
        .hidden_act = QN_HIDDEN_GELU_TANH,
        .norms = NORMS_BOTH,
        .slide = QN_SLIDE_PERIOD,
        .norm_offset = 1,
        .scaled_embedding = 1,
        .gguf_wide_scale_layers = 46,
    },
    {
        .model_types = LIST("gemma3_text", "gemma3"),
        .architectures = LIST("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
        .gguf_architecture = "gemma3",
        .defaults = gemma3_defaults,
        .renamed = gemma2_names,
        .stop_tokens = LIST("<end_of_turn>"),
        .hidden_act_keys = LIST("hidden_activation"),
        .hidden_act = QN_HIDDEN_GELU_TANH,
        .norms = NORMS_BOTH,
        .qk_norm = QN_QK_NORM_HEAD,
        .slide = QN_SLIDE_PERIOD,
        .norm_offset = 1,
        .scaled_embedding = 1,
        .gguf_wide_scale_layers = 62,
    },
    {
        .model_types = LIST("qwen2_vl", "qwen2_vl_text"),
        .architectures = LIST("Qwen2VLForConditionalGeneration"),
        .defaults = qwen2_vl_defaults,
        .stop_tokens = LIST("<|im_end|>", "<|endoftext|>"),
        .hidden_act_keys = LIST("hidden_act"),
        .norms = NORMS_PRE,
        .slide = QN_SLIDE_FROM,
        .biased_qkv = 1,
        .sees_images = 1,
        .sectioned_rope = 1,
    },
    {
        .model_types = LIST("qwen3_moe"),
        .architectures = LIST("Qwen3MoeForCausalLM"),
        .gguf_architecture = "qwen3moe",
        .defaults = qwen3_moe_defaults,
        .experts = &qwen3_experts,
        .stop_tokens = LIST("<|im_end|>", "<|endoftext|>"),
        .hidden_act_keys = LIST("hidden_act"),
        .norms = NORMS_PRE,
        .qk_norm = QN_QK_NORM_HEAD,
        .slide = QN_SLIDE_FROM,
    },
    {
        .model_types = LIST("mixtral"),
        .architectures = LIST("MixtralForCausalLM"),
        .gguf_architecture = "llama",
        .defaults = mixtral_defaults,
        .renamed = mixtral_names,
        .experts = &mixtral_experts,
        .stop_tokens = LIST("<|im_end|>"),
        .hidden_act_keys = LIST("hidden_act"),
        .norms = NORMS_PRE,
        .slide = QN_SLIDE_EVERY,
        .gguf_rope_interleaved = 1,
    },
    {
        .model_types = LIST("gpt_oss"),
        .architectures = LIST("GptOssForCausalLM"),
        .gguf_architecture = "gpt-oss",
        .defaults = gpt_oss_defaults,
        .renamed = gpt_oss_names,
        .gguf_renamed = gpt_oss_gguf_names,
        .experts = &gpt_oss_experts,
        .stop_tokens = LIST("<|return|>", "<|call|>"),
        .hidden_act_keys = LIST("hidden_act"),
        .norms = NORMS_PRE,
        .slide = QN_SLIDE_PERIOD,
        .sinks = 1,
    },
    {
        .model_types = LIST("smollm3"),
        .architectures = LIST("SmolLM3ForCausalLM"),
        .gguf_architecture = "smollm3",
        .gguf_rope_interleaved = 1,
        .defaults = smollm3_defaults,
        .stop_tokens = LIST("<|im_end|>"),
        .hidden_act_keys = LIST("hidden_act"),
        .norms = NORMS_PRE,
        .slide = QN_SLIDE_NO_ROPE,
        .skips_rope = 1,
    },
    {
        .model_types = LIST("olmo2"),
        .architectures = LIST("Olmo2ForCausalLM"),
        .gguf_architecture = "olmo2",
        .defaults = olmo2_defaults,
        .stop_tokens = LIST("<|endoftext|>", "<|im_end|>"),
        .hidden_act_keys = LIST("hidden_act"),
        .norms = NORMS_POST,
        .qk_norm = QN_QK_NORM_WHOLE,
    },
    {
        .model_types = LIST("phi3"),
        .architectures = LIST("Phi3ForCausalLM"),
        .gguf_architecture = "phi3",
        .defaults = phi3_defaults,
        .shared = phi3_shared,
        .stop_tokens = LIST("<|end|>", "<|endoftext|>"),
        .hidden_act_keys = LIST("hidden_act"),
        .norms = NORMS_PRE,
        .slide = QN_SLIDE_EVERY,
    },
    {
        .model_types = LIST("qwen3_next"),
        .architectures = LIST("Qwen3NextForCausalLM"),
        .defaults = qwen3_next_defaults,
        .experts = &qwen3_next_experts,
        .renamed = qwen3_next_names,
        .stop_tokens = LIST("<|im_end|>", "<|endoftext|>"),
        .hidden_act_keys = LIST("hidden_act"),
        .norms = NORMS_PRE,
        .norm_offset = 1,
        .qk_norm = QN_QK_NORM_HEAD,
        .delta = QN_DELTA_BY_HEAD,
        .gated_attention = 1,
    },
    {
        .model_types = LIST("deepseek_v3"),
        .architectures = LIST("DeepseekV3ForCausalLM"),
        .defaults = deepseek_v3_defaults,
        .experts = &deepseek_v3_experts,
        .stop_tokens = LIST("<\uff5cend\u2581of\u2581sentence\uff5c>"),
        .hidden_act_keys = LIST("hidden_act"),
        .norms = NORMS_PRE,
        .latent = 1,
    },
    {
        .model_types = LIST("qwen3_5_text", "qwen3_5"),
        .architectures = LIST("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
        .defaults = qwen3_5_defaults,
        .stop_tokens = LIST("<|im_end|>", "<|endoftext|>"),
        .hidden_act_keys = LIST("hidden_act"),
        .norms = NORMS_PRE,
        .norm_offset = 1,
        .qk_norm = QN_QK_NORM_HEAD,
        .delta = QN_DELTA_SPLIT,
        .gated_attention = 1,
    },
    {
        .model_types = LIST("gemma4_text", "gemma4"),
        .architectures = LIST("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"),
        .gguf_architecture = "gemma4",
        .defaults = gemma4_defaults,
        .renamed = gemma4_names,
        .experts = &gemma4_experts,
        .stop_tokens = LIST("<end_of_turn>", "<turn|>"),
        .hidden_act_keys = LIST("hidden_activation"),
        .hidden_act = QN_HIDDEN_GELU_TANH,
        .norms = NORMS_BOTH,
        .qk_norm = QN_QK_NORM_HEAD,
        .value_norm = 1,
        .layer_scale = 1,
        .slide = QN_SLIDE_PERIOD,
        .last_is_full = 1,
        .rope_parameters = gemma4_rope,
        .scaled_embedding = 1,
    },
    {
        .model_types = LIST("granite"),
        .architectures = LIST("GraniteForCausalLM"),
        .gguf_architecture = "granite",
        .gguf_rope_interleaved = 1,
        .defaults = granite_defaults,
        .stop_tokens = LIST("<|end_of_text|>"),
        .hidden_act_keys = LIST("hidden_act"),
        .norms = NORMS_PRE,
        .multiplied = 1,
    },
};
const int qn_family_count = sizeof qn_family_rows / sizeof qn_family_rows[0];
