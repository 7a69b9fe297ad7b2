/* The rows of families.h whose models see in both directions: constant data. */
#include <stddef.h>

#include "model/config/families.h"

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

enum { NORMS_SUM = QN_NORM_SUM_ATTN | QN_NORM_SUM_FFN };

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

static const qn_field_spelling bert_spelled[] = {{"rms_norm_eps", "layer_norm_eps"}, {NULL, NULL}};

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

const qn_family qn_family_encoder_rows[] = {
    {
        .model_types = LIST("bert"),
        .architectures = LIST("BertModel", "BertForSequenceClassification", "BertForMaskedLM"),
        .defaults = bert_defaults,
        .spelled = bert_spelled,
        .renamed = bert_names,
        .layers = "encoder.layer.",
        .stop_tokens = (const char *const[]){NULL},
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
        .stop_tokens = (const char *const[]){NULL},
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
};
const int qn_family_encoder_count = sizeof qn_family_encoder_rows / sizeof qn_family_encoder_rows[0];
