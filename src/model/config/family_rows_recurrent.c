/* The rows of families.h whose layers recur, or some of them: constant data. */
#include <stddef.h>

#include "model/config/families.h"

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

enum {
    NORMS_PRE = QN_NORM_PRE_ATTN | QN_NORM_PRE_FFN,
    NORMS_BOTH = QN_NORM_PRE_ATTN | QN_NORM_POST_ATTN | QN_NORM_PRE_FFN | QN_NORM_POST_FFN
};

/* Of families whose activation no field names. */
static const char *const no_keys[] = {NULL};

static const qn_field_default lfm2_defaults[] = {{"vocab_size", 65536, 0},
                                                 {"hidden_size", 2560, 0},
                                                 {"intermediate_size", 12288, 0},
                                                 {"num_hidden_layers", 32, 0},
                                                 {"num_attention_heads", 32, 0},
                                                 {"num_key_value_heads", 8, 0},
                                                 {"rms_norm_eps", 1e-5, 0},
                                                 {"rope_theta", 1000000, 0},
                                                 {"max_position_embeddings", 128000, 0},
                                                 {"conv_L_cache", 3, 0},
                                                 {"block_multiple_of", 256, 0},
                                                 {"block_ffn_dim_multiplier", 1, 0},
                                                 {NULL, 0, 0}};
static const qn_field_spelling lfm2_spelled[] = {{"rms_norm_eps", "norm_eps"},
                                                 {"intermediate_size", "block_ff_dim"},
                                                 {"tie_word_embeddings", "tie_embedding"},
                                                 {NULL, NULL}};
static const qn_field_default lfm2_moe_defaults[] = {{"vocab_size", 65536, 0},
                                                     {"hidden_size", 2048, 0},
                                                     {"intermediate_size", 7168, 0},
                                                     {"num_hidden_layers", 32, 0},
                                                     {"num_attention_heads", 32, 0},
                                                     {"num_key_value_heads", 8, 0},
                                                     {"rms_norm_eps", 1e-5, 0},
                                                     {"rope_theta", 1000000, 0},
                                                     {"max_position_embeddings", 128000, 0},
                                                     {"conv_L_cache", 3, 0},
                                                     {"num_experts", 32, 0},
                                                     {"num_experts_per_tok", 4, 0},
                                                     {"moe_intermediate_size", 1792, 0},
                                                     {"first_k_dense_replace", 2, 0},
                                                     {"norm_topk_prob", 1, 0},
                                                     {"use_expert_bias", 1, 0},
                                                     {NULL, 0, 0}};
static const qn_field_spelling lfm2_moe_spelled[] = {{"rms_norm_eps", "norm_eps"},
                                                     {"tie_word_embeddings", "tie_embedding"},
                                                     {"first_k_dense_replace", "num_dense_layers"},
                                                     {NULL, NULL}};
static const qn_field_default lfm3_defaults[] = {{"vocab_size", 128000, 0},
                                                 {"hidden_size", 2048, 0},
                                                 {"intermediate_size", 7680, 0},
                                                 {"num_hidden_layers", 24, 0},
                                                 {"num_attention_heads", 16, 0},
                                                 {"num_key_value_heads", 4, 0},
                                                 {"head_dim", 128, 0},
                                                 {"rms_norm_eps", 1e-5, 0},
                                                 {"rope_theta", 1000000, 0},
                                                 {"max_position_embeddings", 128000, 0},
                                                 {"conv_L_cache", 7, 0},
                                                 {"sliding_window", 256, 0},
                                                 {NULL, 0, 0}};
static const qn_field_spelling lfm3_spelled[] = {
    {"rms_norm_eps", "norm_eps"}, {"tie_word_embeddings", "tie_embedding"}, {NULL, NULL}};
static const char lfm3_rope[] =
    "{\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0},"
    " \"full_attention\": {\"rope_type\": \"proportional\", \"partial_rotary_factor\": 0.5,"
    " \"rope_theta\": 1000000.0}}";

static const qn_family_experts lfm2_moe_experts = {.names = qn_expert_lfm2_names,
                                                   .score = QN_SCORE_SIGMOID,
                                                   .correction_bias = 1,
                                                   .bias_key = "use_expert_bias",
                                                   .topk_norm_eps = 1e-6f};

static const qn_renamed_weight lfm2_names[] = {
    {QN_WEIGHT_FINAL_NORM, "embedding_norm.weight"},
    {QN_WEIGHT_CONV, "layers.#.conv.conv.weight"},
    {QN_WEIGHT_CONV_BIAS, "layers.#.conv.conv.bias"},
    {QN_WEIGHT_ATTN_NORM, "layers.#.operator_norm.weight"},
    {QN_WEIGHT_FFN_NORM, "layers.#.ffn_norm.weight"},
    {QN_WEIGHT_Q_NORM, "layers.#.self_attn.q_layernorm.weight"},
    {QN_WEIGHT_K_NORM, "layers.#.self_attn.k_layernorm.weight"},
    {QN_WEIGHT_O, "layers.#.self_attn.out_proj.weight"},
    {QN_WEIGHT_GATE, "layers.#.feed_forward.w1.weight"},
    {QN_WEIGHT_UP, "layers.#.feed_forward.w3.weight"},
    {QN_WEIGHT_DOWN, "layers.#.feed_forward.w2.weight"},
    {QN_WEIGHT_ROUTER, "layers.#.feed_forward.gate.weight"},
    {QN_WEIGHT_ROUTER_CORRECTION, "layers.#.feed_forward.expert_bias"},
    {QN_WEIGHT_ROLE_COUNT, NULL}};
static const qn_renamed_weight lfm3_names[] = {
    {QN_WEIGHT_FINAL_NORM, "embedding_norm.weight"},
    {QN_WEIGHT_CONV, "layers.#.conv.conv.weight"},
    {QN_WEIGHT_CONV_BIAS, "layers.#.conv.conv.bias"},
    {QN_WEIGHT_ATTN_NORM, "layers.#.operator_norm.weight"},
    {QN_WEIGHT_POST_ATTN_NORM, "layers.#.post_operator_norm.weight"},
    {QN_WEIGHT_FFN_NORM, "layers.#.ffn_norm.weight"},
    {QN_WEIGHT_POST_FFN_NORM, "layers.#.post_ffn_norm.weight"},
    {QN_WEIGHT_GATE, "layers.#.feed_forward.w1.weight"},
    {QN_WEIGHT_UP, "layers.#.feed_forward.w3.weight"},
    {QN_WEIGHT_DOWN, "layers.#.feed_forward.w2.weight"},
    {QN_WEIGHT_ROLE_COUNT, NULL}};
const qn_family qn_family_recurrent_rows[] = {
    {
        .model_types = LIST("lfm2"),
        .architectures = LIST("Lfm2ForCausalLM"),
        .defaults = lfm2_defaults,
        .spelled = lfm2_spelled,
        .renamed = lfm2_names,
        .stop_tokens = LIST("<|im_end|>", "<|endoftext|>"),
        .hidden_act_keys = no_keys,
        .norms = NORMS_PRE,
        .qk_norm = QN_QK_NORM_HEAD,
        .recurrent = QN_MIXER_SHORT_CONV,
        .recur = QN_RECUR_INDEXED,
        .adjusted_ffn = 1,
    },
    {
        .model_types = LIST("lfm2_moe"),
        .architectures = LIST("Lfm2MoeForCausalLM"),
        .defaults = lfm2_moe_defaults,
        .spelled = lfm2_moe_spelled,
        .renamed = lfm2_names,
        .experts = &lfm2_moe_experts,
        .stop_tokens = LIST("<|im_end|>", "<|endoftext|>"),
        .hidden_act_keys = no_keys,
        .norms = NORMS_PRE,
        .qk_norm = QN_QK_NORM_HEAD,
        .recurrent = QN_MIXER_SHORT_CONV,
        .recur = QN_RECUR_LISTED,
    },
    {
        .model_types = LIST("lfm3"),
        .architectures = LIST("Lfm3ForCausalLM"),
        .defaults = lfm3_defaults,
        .spelled = lfm3_spelled,
        .renamed = lfm3_names,
        .stop_tokens = LIST("<|im_end|>", "<|endoftext|>"),
        .hidden_act_keys = no_keys,
        .norms = NORMS_BOTH,
        .sandwich_norm = 1,
        .qk_norm = QN_QK_NORM_HEAD,
        .head_gate = 1,
        .recurrent = QN_MIXER_SHORT_CONV,
        .recur = QN_RECUR_TURNS,
        .rope_parameters = lfm3_rope,
    },
};
const int qn_family_recurrent_count = sizeof qn_family_recurrent_rows / sizeof qn_family_recurrent_rows[0];
