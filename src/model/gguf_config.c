#include "model/gguf_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "model/gguf_layers.h"

enum { PER_LAYER_MAX = 4096, KEY_MAX = 192 };

typedef enum { INTEGER, PER_LAYER, NUMBER, STRING, PATTERN } value_kind;

/* A dot in the name: field of an object inside. */
static const struct {
    const char *key, *name;
    value_kind kind;
} keys[] = {
    {"vocab_size", "vocab_size", INTEGER},
    {"embedding_length", "hidden_size", INTEGER},
    {"block_count", "num_hidden_layers", INTEGER},
    {"context_length", "max_position_embeddings", INTEGER},
    {"feed_forward_length", "intermediate_size", PER_LAYER},
    {"expert_count", "num_experts", INTEGER},
    {"expert_used_count", "num_experts_per_tok", INTEGER},
    {"expert_feed_forward_length", "moe_intermediate_size", INTEGER},
    {"expert_shared_count", "n_shared_experts", INTEGER},
    {"expert_shared_feed_forward_length", "shared_expert_intermediate_size", INTEGER},
    {"expert_group_count", "n_group", INTEGER},
    {"expert_group_used_count", "topk_group", INTEGER},
    {"expert_weights_scale", "routed_scaling_factor", NUMBER},
    {"leading_dense_block_count", "first_k_dense_replace", INTEGER},
    {"attention.head_count", "num_attention_heads", INTEGER},
    {"attention.head_count_kv", "num_key_value_heads", PER_LAYER},
    {"attention.key_length", "head_dim", INTEGER},
    {"attention.value_length", "v_head_dim", INTEGER},
    {"attention.key_length_swa", "swa_head_dim", INTEGER},
    {"attention.value_length_swa", "swa_v_head_dim", INTEGER},
    {"attention.shared_kv_layers", "num_kv_shared_layers", INTEGER},
    {"embedding_length_per_layer_input", "hidden_size_per_layer_input", INTEGER},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", NUMBER},
    {"attention.sliding_window", "sliding_window", INTEGER},
    {"attention.sliding_window_pattern", "sliding_window_pattern", PATTERN},
    {"attention.scale", "attention_scale", NUMBER},
    {"embedding_scale", "embedding_multiplier", NUMBER},
    {"residual_scale", "residual_multiplier", NUMBER},
    {"logit_scale", "logits_scaling", NUMBER},
    {"attn_logit_softcapping", "attn_logit_softcapping", NUMBER},
    {"final_logit_softcapping", "final_logit_softcapping", NUMBER},
    {"rope.dimension_count", "rotary_dim", INTEGER},
    {"rope.dimension_count_swa", "swa_rotary_dim", INTEGER},
    {"rope.freq_base", "rope_theta", NUMBER},
    {"rope.freq_base_swa", "rope_local_base_freq", NUMBER},
    {"rope.scaling.type", "rope_scaling.rope_type", STRING},
    {"rope.scaling.factor", "rope_scaling.factor", NUMBER},
    {"rope.scaling.original_context_length", "rope_scaling.original_max_position_embeddings", INTEGER},
    {"rope.scaling.attn_factor", "rope_scaling.yarn_attn_factor", NUMBER},
    {"rope.scaling.yarn_beta_fast", "rope_scaling.beta_fast", NUMBER},
    {"rope.scaling.yarn_beta_slow", "rope_scaling.beta_slow", NUMBER},
};
enum { N_KEYS = sizeof keys / sizeof keys[0] };

const char *qn_gguf_config_key(const char *name)
{
    /* As read_pattern and qn_gguf_layers give them. */
    static const struct {
        const char *given, *read;
    } others[] = {{"layer_types", "sliding_window_pattern"},
                  {"global_head_dim", "head_dim"},
                  {"num_global_key_value_heads", "num_key_value_heads"},
                  {"rope_parameters.full_attention.rotary_dim", "rotary_dim"},
                  {"rope_parameters.sliding_attention.rotary_dim", "swa_rotary_dim"}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(others[i].given, name) == 0) name = others[i].read;
    for (int i = 0; i < N_KEYS; i++)
        if (strcmp(keys[i].name, name) == 0) return keys[i].key;
    return NULL;
}

/* Numbers, one per layer, as an array. */
static json_t *numbers(const int64_t *all, int64_t n)
{
    json_t *array = json_array();
    for (int64_t i = 0; array && i < n; i++)
        if (json_array_append_new(array, json_integer(all[i])) != 0) {
            json_decref(array);
            return NULL;
        }
    return array;
}

/* The value of an integer key; an array of equal numbers, one per layer, stands for the number. kind
 * PER_LAYER: they may differ, and are an array then. */
static qn_status read_integer(const qn_gguf *g, const char *key, const qn_gguf_value *v, value_kind kind,
                              json_t **out)
{
    int64_t value = 0, n_others = 0;
    if (v->type != QN_GGUF_ARRAY) {
        QN_TRY(qn_gguf_get_i64(g, key, INT64_MIN, INT64_MAX, &value));
    } else {
        if (v->count < 1 || v->count > PER_LAYER_MAX)
            return qn_fail(QN_E_FORMAT, "%s: %s has %lld elements, expected one per layer, 1 to %d",
                           qn_gguf_path(g), key, (long long)v->count, PER_LAYER_MAX);
        int64_t *all = qn_alloc_array((size_t)v->count, sizeof *all);
        if (!all) return QN_E_NOMEM;
        qn_status status = qn_gguf_get_i64s(g, key, INT64_MIN, INT64_MAX, v->count, all);
        for (int64_t i = 1; status == QN_OK && i < v->count; i++) {
            n_others += all[i] != all[0];
            if (all[i] != all[0] && kind != PER_LAYER)
                status = qn_fail(QN_E_UNSUPPORTED,
                                 "%s: %s differs between layers (%lld, %lld), which is not supported",
                                 qn_gguf_path(g), key, (long long)all[0], (long long)all[i]);
        }
        if (status == QN_OK) value = all[0];
        if (status == QN_OK && n_others) *out = numbers(all, v->count);
        qn_free(all);
        QN_TRY(status);
    }
    if (!n_others) *out = json_integer(value);
    return QN_OK;
}

/* As an array it says of each layer whether it slides: config.json's layer_types. As a number it is the
 * period. */
static qn_status read_pattern(const qn_gguf *g, const char *key, const qn_gguf_value *v, const char **name,
                              json_t **out)
{
    if (v->type != QN_GGUF_ARRAY) return read_integer(g, key, v, INTEGER, out);
    if (v->count < 1 || v->count > PER_LAYER_MAX)
        return qn_fail(QN_E_FORMAT, "%s: %s has %lld elements, expected one per layer, 1 to %d",
                       qn_gguf_path(g), key, (long long)v->count, PER_LAYER_MAX);
    int64_t *slides = qn_alloc_array((size_t)v->count, sizeof *slides);
    if (!slides) return QN_E_NOMEM;
    qn_status status = qn_gguf_get_i64s(g, key, 0, 1, v->count, slides);
    json_t *types = status == QN_OK ? json_array() : NULL;
    for (int64_t i = 0; types && i < v->count; i++)
        if (json_array_append_new(types, json_string(slides[i] ? "sliding_attention" : "full_attention")) !=
            0) {
            json_decref(types);
            types = NULL;
        }
    qn_free(slides);
    QN_TRY(status);
    *name = "layer_types";
    *out = types;
    return QN_OK;
}

static qn_status read_value(const qn_gguf *g, const char *key, value_kind kind, const char **name,
                            json_t **out)
{
    const qn_gguf_value *v = qn_gguf_value_find(g, key);
    if (!v) return QN_E_NOT_FOUND;
    *out = NULL;
    if (kind == INTEGER || kind == PER_LAYER) {
        QN_TRY(read_integer(g, key, v, kind, out));
    } else if (kind == PATTERN) {
        QN_TRY(read_pattern(g, key, v, name, out));
    } else if (kind == NUMBER) {
        double number = 0;
        QN_TRY(qn_gguf_get_f64(g, key, -HUGE_VAL, HUGE_VAL, &number));
        *out = json_real(number);
    } else {
        qn_gguf_string text;
        QN_TRY(qn_gguf_get_string(g, key, &text));
        *out = json_stringn(text.data, text.length);
        if (!*out) return qn_fail(QN_E_FORMAT, "%s: %s is not valid UTF-8", qn_gguf_path(g), key);
    }
    return *out ? QN_OK : qn_fail(QN_E_NOMEM, "%s: out of memory", qn_gguf_path(g));
}

/* Steals value. */
static int put(json_t *root, const char *name, json_t *value)
{
    const char *dot = strchr(name, '.');
    if (!dot) return json_object_set_new(root, name, value) == 0;
    char group[64];
    snprintf(group, sizeof group, "%.*s", (int)(dot - name), name);
    json_t *object = json_object_get(root, group);
    if (!object) {
        object = json_object();
        if (!object || json_object_set_new(root, group, object) != 0) {
            json_decref(value);
            return 0;
        }
    }
    return json_object_set_new(object, dot + 1, value) == 0;
}

qn_status qn_gguf_config(const qn_gguf *g, const char *architecture, json_t **out)
{
    qn_status status = QN_OK;
    json_t *root = json_object();
    if (!root) return qn_fail(QN_E_NOMEM, "%s: out of memory", qn_gguf_path(g));
    for (int i = 0; i < N_KEYS && status == QN_OK; i++) {
        char key[KEY_MAX];
        const char *name = keys[i].name;
        json_t *value = NULL;
        snprintf(key, sizeof key, "%s.%s", architecture, keys[i].key);
        status = qn_gguf_optional(read_value(g, key, keys[i].kind, &name, &value));
        if (value && !put(root, name, value))
            status = qn_fail(QN_E_NOMEM, "%s: out of memory", qn_gguf_path(g));
    }
    if (status == QN_OK) status = qn_gguf_layers(qn_gguf_path(g), architecture, root);
    if (status == QN_OK)
        *out = root;
    else
        json_decref(root);
    return status;
}

int qn_gguf_file_type_bits(int64_t file_type)
{
    /* llama.cpp's LLAMA_FTYPE numbers. */
    static const struct {
        int first, last, bits;
    } types[] = {{2, 3, 4},   {7, 7, 8},   {8, 9, 5},   {10, 10, 2}, {11, 13, 3}, {14, 15, 4},
                 {16, 17, 5}, {18, 18, 6}, {19, 20, 2}, {21, 23, 3}, {24, 24, 1}, {25, 25, 4},
                 {26, 27, 3}, {28, 29, 2}, {30, 30, 4}, {31, 31, 1}, {38, 38, 4}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (file_type >= types[i].first && file_type <= types[i].last) return types[i].bits;
    return 0;
}
