/* The rows of families.h whose models see in both directions: constant data. */
#include <stddef.h>

#include "model/config/families.h"

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

enum {
    NORMS_SUM = QN_NORM_SUM_ATTN | QN_NORM_SUM_FFN,
    NORMS_PRE = QN_NORM_PRE_ATTN | QN_NORM_PRE_FFN,
    NORMS_BOTH = QN_NORM_PRE_ATTN | QN_NORM_POST_ATTN | QN_NORM_PRE_FFN | QN_NORM_POST_FFN
};

static const qn_field_default bert_defaults[] = {{"vocab_size", 30522, 0},
                                                 {"hidden_size", 768, 0},
                                                 {"intermediate_size", 3072, 0},
                                                 {"num_hidden_layers", 12, 0},
                                                 {"num_attention_heads", 12, 0},
                                                 {"rms_norm_eps", 1e-12, 0},
                                                 {"max_position_embeddings", 512, 0},
                                                 {"type_vocab_size", 2, 0},
                                                 {"pad_token_id", 0, 0},
                                                 {"rope_theta", 10000, 1},
                                                 {NULL, 0, 0}};
static const qn_field_default roberta_defaults[] = {{"vocab_size", 30522, 0},
                                                    {"hidden_size", 768, 0},
                                                    {"intermediate_size", 3072, 0},
                                                    {"num_hidden_layers", 12, 0},
                                                    {"num_attention_heads", 12, 0},
                                                    {"rms_norm_eps", 1e-12, 0},
                                                    {"max_position_embeddings", 512, 0},
                                                    {"type_vocab_size", 2, 0},
                                                    {"pad_token_id", 1, 0},
                                                    {"rope_theta", 10000, 1},
                                                    {NULL, 0, 0}};

static const qn_field_default nomic_bert_defaults[] = {{"vocab_size", 30528, 0},
                                                       {"hidden_size", 768, 0},
                                                       {"intermediate_size", 3072, 0},
                                                       {"num_hidden_layers", 12, 0},
                                                       {"num_attention_heads", 12, 0},
                                                       {"rms_norm_eps", 1e-12, 0},
                                                       {"max_position_embeddings", 2048, 0},
                                                       {"type_vocab_size", 2, 0},
                                                       {"pad_token_id", 0, 0},
                                                       {"rope_theta", 1000, 1},
                                                       {NULL, 0, 0}};
static const qn_field_default modernbert_defaults[] = {{"vocab_size", 50368, 0},
                                                       {"hidden_size", 768, 0},
                                                       {"intermediate_size", 1152, 0},
                                                       {"num_hidden_layers", 22, 0},
                                                       {"num_attention_heads", 12, 0},
                                                       {"rms_norm_eps", 1e-5, 0},
                                                       {"max_position_embeddings", 8192, 0},
                                                       {"sliding_window", 128, 0},
                                                       {"sliding_window_pattern", 3, 1},
                                                       {"rope_theta", 160000, 1},
                                                       {"rope_local_base_freq", 10000, 1},
                                                       {NULL, 0, 0}};
static const qn_field_default embedding_gemma2_defaults[] = {{"vocab_size", 262144, 0},
                                                             {"hidden_size", 512, 0},
                                                             {"intermediate_size", 2048, 0},
                                                             {"num_hidden_layers", 24, 0},
                                                             {"num_attention_heads", 4, 0},
                                                             {"num_key_value_heads", 2, 0},
                                                             {"head_dim", 256, 0},
                                                             {"global_head_dim", 512, 0},
                                                             {"num_global_key_value_heads", 1, 0},
                                                             {"rms_norm_eps", 1e-6, 0},
                                                             {"max_position_embeddings", 262144, 0},
                                                             {"attention_scale", 1, 1},
                                                             {"sliding_window", 512, 0},
                                                             {"sliding_window_pattern", 6, 0},
                                                             {"hidden_size_per_layer_input", 512, 0},
                                                             {"embedding_dim", 768, 0},
                                                             {NULL, 0, 0}};
static const char embedding_gemma2_rope[] =
    "{\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0},"
    " \"full_attention\": {\"rope_type\": \"default\", \"rope_theta\": 1000000.0}}";

/* Published files of nomic_bert have GPT-2's names. */
static const qn_field_spelling nomic_bert_spelled[] = {{"rms_norm_eps", "layer_norm_eps"},
                                                       {"rms_norm_eps", "layer_norm_epsilon"},
                                                       {"hidden_size", "n_embd"},
                                                       {"num_hidden_layers", "n_layer"},
                                                       {"num_attention_heads", "n_head"},
                                                       {"intermediate_size", "n_inner"},
                                                       {"max_position_embeddings", "n_positions"},
                                                       {"rope_theta", "rotary_emb_base"},
                                                       {NULL, NULL}};
static const qn_field_spelling modernbert_spelled[] = {
    {"rms_norm_eps", "norm_eps"},
    {"sliding_window", "local_attention"},
    {"rope_theta", "global_rope_theta"},
    {"sliding_window_pattern", "global_attn_every_n_layers"},
    {"rope_local_base_freq", "local_rope_theta"},
    {NULL, NULL}};
static const qn_field_spelling bert_spelled[] = {{"rms_norm_eps", "layer_norm_eps"}, {NULL, NULL}};

static const char *const no_tokens[] = {NULL};

#define BERT_NAMES                                                         \
    {QN_WEIGHT_EMBED, "embeddings.word_embeddings.weight"},                \
        {QN_WEIGHT_Q, "encoder.layer.#.attention.self.query.weight"},      \
        {QN_WEIGHT_Q_BIAS, "encoder.layer.#.attention.self.query.bias"},   \
        {QN_WEIGHT_K, "encoder.layer.#.attention.self.key.weight"},        \
        {QN_WEIGHT_K_BIAS, "encoder.layer.#.attention.self.key.bias"},     \
        {QN_WEIGHT_V, "encoder.layer.#.attention.self.value.weight"},      \
        {QN_WEIGHT_V_BIAS, "encoder.layer.#.attention.self.value.bias"},   \
        {QN_WEIGHT_O, "encoder.layer.#.attention.output.dense.weight"},    \
        {QN_WEIGHT_O_BIAS, "encoder.layer.#.attention.output.dense.bias"}, \
        {QN_WEIGHT_UP, "encoder.layer.#.intermediate.dense.weight"},       \
        {QN_WEIGHT_UP_BIAS, "encoder.layer.#.intermediate.dense.bias"},    \
        {QN_WEIGHT_DOWN, "encoder.layer.#.output.dense.weight"},           \
    {                                                                      \
        QN_WEIGHT_DOWN_BIAS, "encoder.layer.#.output.dense.bias"           \
    }

static const qn_renamed_weight bert_names[] = {BERT_NAMES, {QN_WEIGHT_ROLE_COUNT, NULL}};
static const qn_renamed_weight roberta_names[] = {BERT_NAMES,
                                                  {QN_WEIGHT_CLASSIFY_DENSE, "classifier.dense.weight"},
                                                  {QN_WEIGHT_CLASSIFY_DENSE_BIAS, "classifier.dense.bias"},
                                                  {QN_WEIGHT_CLASSIFY_OUT, "classifier.out_proj.weight"},
                                                  {QN_WEIGHT_CLASSIFY_OUT_BIAS, "classifier.out_proj.bias"},
                                                  {QN_WEIGHT_ROLE_COUNT, NULL}};

static const qn_renamed_weight nomic_bert_names[] = {
    {QN_WEIGHT_EMBED, "embeddings.word_embeddings.weight"},
    {QN_WEIGHT_EMBED_NORM, "emb_ln.weight"},
    {QN_WEIGHT_EMBED_NORM_BIAS, "emb_ln.bias"},
    {QN_WEIGHT_O, "encoder.layers.#.attn.out_proj.weight"},
    {QN_WEIGHT_UP, "encoder.layers.#.mlp.fc11.weight"},
    {QN_WEIGHT_GATE, "encoder.layers.#.mlp.fc12.weight"},
    {QN_WEIGHT_DOWN, "encoder.layers.#.mlp.fc2.weight"},
    {QN_WEIGHT_SUM_ATTN_NORM, "encoder.layers.#.norm1.weight"},
    {QN_WEIGHT_SUM_ATTN_NORM_BIAS, "encoder.layers.#.norm1.bias"},
    {QN_WEIGHT_SUM_FFN_NORM, "encoder.layers.#.norm2.weight"},
    {QN_WEIGHT_SUM_FFN_NORM_BIAS, "encoder.layers.#.norm2.bias"},
    {QN_WEIGHT_ROLE_COUNT, NULL}};
static const qn_renamed_weight modernbert_names[] = {
    {QN_WEIGHT_EMBED, "embeddings.tok_embeddings.weight"}, {QN_WEIGHT_EMBED_NORM, "embeddings.norm.weight"},
    {QN_WEIGHT_EMBED_NORM_BIAS, "embeddings.norm.bias"},   {QN_WEIGHT_FINAL_NORM, "final_norm.weight"},
    {QN_WEIGHT_FINAL_NORM_BIAS, "final_norm.bias"},        {QN_WEIGHT_ATTN_NORM, "layers.#.attn_norm.weight"},
    {QN_WEIGHT_ATTN_NORM_BIAS, "layers.#.attn_norm.bias"}, {QN_WEIGHT_O, "layers.#.attn.Wo.weight"},
    {QN_WEIGHT_O_BIAS, "layers.#.attn.Wo.bias"},           {QN_WEIGHT_FFN_NORM, "layers.#.mlp_norm.weight"},
    {QN_WEIGHT_FFN_NORM_BIAS, "layers.#.mlp_norm.bias"},   {QN_WEIGHT_DOWN, "layers.#.mlp.Wo.weight"},
    {QN_WEIGHT_DOWN_BIAS, "layers.#.mlp.Wo.bias"},         {QN_WEIGHT_CLASSIFY_DENSE, "head.dense.weight"},
    {QN_WEIGHT_CLASSIFY_DENSE_BIAS, "head.dense.bias"},    {QN_WEIGHT_ROLE_COUNT, NULL}};
static const qn_renamed_weight embedding_gemma2_names[] = {
    {QN_WEIGHT_FFN_NORM, "layers.#.pre_feedforward_layernorm.weight"},
    {QN_WEIGHT_LAYER_INPUT_PROJ, "ple.per_layer_model_projection.weight"},
    {QN_WEIGHT_LAYER_INPUT_NORM, "ple.per_layer_projection_norm.weight"},
    {QN_WEIGHT_LAYER_INPUT_GATE, "layers.#.ple_block.per_layer_input_gate.weight"},
    {QN_WEIGHT_LAYER_INPUT_OUT, "layers.#.ple_block.per_layer_projection.weight"},
    {QN_WEIGHT_POST_LAYER_INPUT_NORM, "layers.#.ple_block.post_per_layer_input_norm.weight"},
    {QN_WEIGHT_ROLE_COUNT, NULL}};

/* Files of transformers have them apart, and so have most in GGUF. */
static const qn_shared_tensor bert_shared[] = {
    {NULL, "blk.#.attn_qkv.weight", {QN_WEIGHT_Q, QN_WEIGHT_K, QN_WEIGHT_V}},
    {NULL, "blk.#.attn_qkv.bias", {QN_WEIGHT_Q_BIAS, QN_WEIGHT_K_BIAS, QN_WEIGHT_V_BIAS}},
    {NULL, NULL, {QN_WEIGHT_ROLE_COUNT}}};
static const qn_shared_tensor nomic_bert_shared[] = {
    {"encoder.layers.#.attn.Wqkv.weight", "blk.#.attn_qkv.weight", {QN_WEIGHT_Q, QN_WEIGHT_K, QN_WEIGHT_V}},
    {NULL, NULL, {QN_WEIGHT_ROLE_COUNT}}};
static const qn_shared_tensor modernbert_shared[] = {
    {"layers.#.attn.Wqkv.weight", "blk.#.attn_qkv.weight", {QN_WEIGHT_Q, QN_WEIGHT_K, QN_WEIGHT_V}},
    {"layers.#.attn.Wqkv.bias",
     "blk.#.attn_qkv.bias",
     {QN_WEIGHT_Q_BIAS, QN_WEIGHT_K_BIAS, QN_WEIGHT_V_BIAS}},
    {"layers.#.mlp.Wi.weight", "blk.#.ffn_up.weight", {QN_WEIGHT_GATE, QN_WEIGHT_UP, QN_WEIGHT_ROLE_COUNT}},
    {"layers.#.mlp.Wi.bias",
     "blk.#.ffn_up.bias",
     {QN_WEIGHT_GATE_BIAS, QN_WEIGHT_UP_BIAS, QN_WEIGHT_ROLE_COUNT}},
    {NULL, NULL, {QN_WEIGHT_ROLE_COUNT}}};

const qn_family qn_family_encoder_rows[] = {
    {
        .model_types = LIST("bert"),
        .architectures = LIST("BertModel", "BertForSequenceClassification", "BertForMaskedLM"),
        .gguf_architecture = "bert", /* of the next row too, without the positions up to pad_token_id */
        .defaults = bert_defaults,
        .spelled = bert_spelled,
        .renamed = bert_names,
        .shared = bert_shared,
        .layers = "encoder.layer.",
        .stop_tokens = no_tokens,
        .hidden_act_keys = LIST("hidden_act"),
        .hidden_act = QN_HIDDEN_GELU,
        .both_ways = QN_BOTH_HALF,
        .norms = NORMS_SUM,
        .layer_norm = 1,
        .norm_bias = 1,
        .no_final_norm = 1,
        .embed_norm = 1,
        .learned_positions = QN_POSITIONS_FROM_0,
        .token_types = 1,
        .no_rope = 1,
        .plain_mlp = 1,
        .biases = QN_BIASES_LAYERS,
        .classifier = QN_CLASSIFIER_TANH,
    },
    {
        .model_types = LIST("xlm-roberta", "roberta"),
        .architectures =
            LIST("XLMRobertaModel", "XLMRobertaForSequenceClassification", "XLMRobertaForMaskedLM",
                 "RobertaModel", "RobertaForSequenceClassification", "RobertaForMaskedLM"),
        .defaults = roberta_defaults,
        .spelled = bert_spelled,
        .renamed = roberta_names,
        .layers = "encoder.layer.",
        .stop_tokens = no_tokens,
        .hidden_act_keys = LIST("hidden_act"),
        .hidden_act = QN_HIDDEN_GELU,
        .both_ways = QN_BOTH_HALF,
        .norms = NORMS_SUM,
        .layer_norm = 1,
        .norm_bias = 1,
        .no_final_norm = 1,
        .embed_norm = 1,
        .learned_positions = QN_POSITIONS_BEHIND_PAD,
        .token_types = 1,
        .no_rope = 1,
        .plain_mlp = 1,
        .biases = QN_BIASES_LAYERS,
        .classifier = QN_CLASSIFIER_TANH,
    },
    {
        .model_types = LIST("nomic_bert"),
        .architectures = LIST("NomicBertModel"),
        .gguf_architecture = "nomic-bert",
        .defaults = nomic_bert_defaults,
        .spelled = nomic_bert_spelled,
        .renamed = nomic_bert_names,
        .shared = nomic_bert_shared,
        .layers = "encoder.layers.",
        .stop_tokens = no_tokens,
        .hidden_act_keys = LIST("hidden_act", "activation_function"),
        .both_ways = QN_BOTH_HALF,
        .norms = NORMS_SUM,
        .layer_norm = 1,
        .norm_bias = 1,
        .no_final_norm = 1,
        .embed_norm = 1,
        .token_types = 1,
    },
    {
        .model_types = LIST("modernbert"),
        .architectures =
            LIST("ModernBertModel", "ModernBertForSequenceClassification", "ModernBertForMaskedLM"),
        .gguf_architecture = "modern-bert",
        .defaults = modernbert_defaults,
        .spelled = modernbert_spelled,
        .renamed = modernbert_names,
        .shared = modernbert_shared,
        .stop_tokens = no_tokens,
        .hidden_act_keys = LIST("hidden_activation"),
        .hidden_act = QN_HIDDEN_GELU,
        .both_ways = QN_BOTH_HALF,
        .norms = NORMS_PRE,
        .layer_norm = 1,
        .said_norm_bias = 1,
        .first_unnormed = 1,
        .embed_norm = 1,
        .slide = QN_SLIDE_BEHIND,
        .classifier = QN_CLASSIFIER_SAID,
    },
    {
        .model_types = LIST("embedding_gemma2_text", "embedding_gemma2"),
        .architectures = LIST("EmbeddingGemma2Model", "EmbeddingGemma2TextModel"),
        .defaults = embedding_gemma2_defaults,
        .renamed = embedding_gemma2_names,
        .stop_tokens = no_tokens,
        .hidden_act_keys = LIST("hidden_activation"),
        .hidden_act = QN_HIDDEN_GELU_TANH,
        .both_ways = QN_BOTH_RADIUS,
        .norms = NORMS_BOTH,
        .qk_norm = QN_QK_NORM_HEAD,
        .value_norm = 1,
        .layer_scale = 1,
        .slide = QN_SLIDE_PERIOD,
        .last_is_full = 1,
        .rope_parameters = embedding_gemma2_rope,
        .scaled_embedding = 1,
        .layer_input_alone = 1,
        .layer_heads = 1,
        .output_proj = 1,
    },
};
const int qn_family_encoder_count = sizeof qn_family_encoder_rows / sizeof qn_family_encoder_rows[0];
