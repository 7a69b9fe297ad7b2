#include "model/config/gguf/gguf_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "model/config/gguf/gguf_blocks.h"
#include "model/config/gguf/gguf_keys.h"
#include "model/config/gguf/gguf_layers.h"
#include "model/config/gguf/gguf_recurrent.h"

enum { PER_LAYER_MAX = 4096, KEY_MAX = 192 };

const char *qn_gguf_config_key(const char *name)
{
    /* As read_pattern and qn_gguf_layers give them. */
    static const struct {
        const char *given, *read;
    } others[] = {{"layer_types", "sliding_window_pattern"},
                  {"global_head_dim", "head_dim"},
                  {"linear_value_head_dim", "mamba_d_ssm"},
                  {"ple_layer_ids", "ple_layers"},
                  {"ple_embed_dim", "hidden_size_per_layer_input"},
                  {"linear_num_heads", "linear_num_value_heads"},
                  {"num_global_key_value_heads", "num_key_value_heads"},
                  {"rope_parameters.full_attention.rotary_dim", "rotary_dim"},
                  {"rope_parameters.sliding_attention.rotary_dim", "swa_rotary_dim"}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(others[i].given, name) == 0) name = others[i].read;
    for (int i = 0; i < qn_gguf_key_count; i++)
        if (strcmp(qn_gguf_keys[i].name, name) == 0) return qn_gguf_keys[i].key;
    return NULL;
}

void qn_gguf_config_full_key(const char *architecture, const char *key, char *text, size_t size)
{
    const int is_whole = strncmp(key, "tokenizer.", strlen("tokenizer.")) == 0;
    snprintf(text, size, "%s%s%s", is_whole ? "" : architecture, is_whole ? "" : ".", key);
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
 * QN_GGUF_KEY_PER_LAYER: they may differ, and are an array then. */
static qn_status read_integer(const qn_gguf *g, const char *key, const qn_gguf_value *v,
                              qn_gguf_key_kind kind, json_t **out)
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
            if (all[i] != all[0] && kind != QN_GGUF_KEY_PER_LAYER)
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
    if (v->type != QN_GGUF_ARRAY) return read_integer(g, key, v, QN_GGUF_KEY_INTEGER, out);
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

static qn_status read_list(const qn_gguf *g, const char *key, const qn_gguf_value *v, int64_t max,
                           int64_t most, json_t **out)
{
    if (v->type != QN_GGUF_ARRAY || v->count < 1 || v->count > most)
        return qn_fail(QN_E_FORMAT, "%s: %s: expected a list of 1 to %lld numbers", qn_gguf_path(g), key,
                       (long long)most);
    int64_t *all = qn_alloc_array((size_t)v->count, sizeof *all);
    if (!all) return QN_E_NOMEM;
    const qn_status status = qn_gguf_get_i64s(g, key, 0, max, v->count, all);
    if (status == QN_OK) *out = numbers(all, v->count);
    qn_free(all);
    return status;
}

static qn_status read_number(const qn_gguf *g, const char *key, json_t **out)
{
    double number = 0;
    QN_TRY(qn_gguf_get_f64(g, key, -HUGE_VAL, HUGE_VAL, &number));
    *out = json_real(number);
    return QN_OK;
}

static qn_status read_numbers(const qn_gguf *g, const char *key, const qn_gguf_value *v, json_t **out)
{
    if (v->type != QN_GGUF_ARRAY || v->element_type != QN_GGUF_F32 || v->count < 1 ||
        v->count > PER_LAYER_MAX)
        return qn_fail(QN_E_FORMAT, "%s: %s: expected a list of 1 to %d numbers (f32)", qn_gguf_path(g), key,
                       PER_LAYER_MAX);
    json_t *array = json_array();
    for (int64_t i = 0; array && i < v->count; i++) {
        float x;
        memcpy(&x, v->data + (size_t)i * sizeof x, sizeof x);
        if (json_array_append_new(array, isfinite(x) ? json_real((double)x) : json_null()) != 0) {
            json_decref(array);
            array = NULL;
        }
    }
    *out = array;
    return QN_OK;
}

static qn_status read_equal_numbers(const qn_gguf *g, const char *key, const qn_gguf_value *v, json_t **out)
{
    json_t *all = NULL;
    if (v->type != QN_GGUF_ARRAY) return read_number(g, key, out);
    QN_TRY(read_numbers(g, key, v, &all));
    if (!all) return QN_OK;
    qn_status status = QN_OK;
    for (size_t i = 1; i < json_array_size(all); i++)
        if (!json_equal(json_array_get(all, i), json_array_get(all, 0)))
            status = qn_fail(QN_E_UNSUPPORTED, "%s: %s differs between layers, which is not supported",
                             qn_gguf_path(g), key);
    if (status == QN_OK) *out = json_incref(json_array_get(all, 0));
    json_decref(all);
    return status;
}

/* The fourth place is for a kind of position that no model here has. */
static qn_status read_sections(const qn_gguf *g, const char *key, const qn_gguf_value *v, json_t **out)
{
    enum { SECTIONS = 3, PLACES = 4 };
    QN_TRY(read_list(g, key, v, INT32_MAX, PLACES, out));
    const json_int_t rest = json_integer_value(json_array_get(*out, SECTIONS));
    if (rest) {
        json_decref(*out);
        *out = NULL;
        return qn_fail(QN_E_UNSUPPORTED, "%s: %s has a fourth section (%lld), which is not supported",
                       qn_gguf_path(g), key, (long long)rest);
    }
    if (*out && json_array_size(*out) == PLACES) json_array_remove(*out, SECTIONS);
    return QN_OK;
}

static qn_status read_value(const qn_gguf *g, const char *key, qn_gguf_key_kind kind, const char **name,
                            json_t **out)
{
    const qn_gguf_value *v = qn_gguf_value_find(g, key);
    if (!v) return QN_E_NOT_FOUND;
    *out = NULL;
    if (kind == QN_GGUF_KEY_INTEGER || kind == QN_GGUF_KEY_PER_LAYER) {
        QN_TRY(read_integer(g, key, v, kind, out));
    } else if (kind == QN_GGUF_KEY_PATTERN) {
        QN_TRY(read_pattern(g, key, v, name, out));
    } else if (kind == QN_GGUF_KEY_FLAGS) {
        QN_TRY(read_list(g, key, v, 1, PER_LAYER_MAX, out));
    } else if (kind == QN_GGUF_KEY_INTEGERS) {
        QN_TRY(read_list(g, key, v, INT64_MAX, PER_LAYER_MAX, out));
    } else if (kind == QN_GGUF_KEY_NUMBERS) {
        QN_TRY(read_numbers(g, key, v, out));
    } else if (kind == QN_GGUF_KEY_SECTIONS) {
        QN_TRY(read_sections(g, key, v, out));
    } else if (kind == QN_GGUF_KEY_BOOL) {
        int flag = 0;
        QN_TRY(qn_gguf_get_bool(g, key, &flag));
        *out = json_boolean(flag);
    } else if (kind == QN_GGUF_KEY_NUMBER) {
        QN_TRY(read_number(g, key, out));
    } else if (kind == QN_GGUF_KEY_EQUAL_NUMBERS) {
        QN_TRY(read_equal_numbers(g, key, v, out));
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

qn_status qn_gguf_config(const qn_source *src, const char *architecture, const qn_family *family,
                         json_t **out)
{
    const qn_gguf *g = qn_source_gguf(src);
    qn_status status = QN_OK;
    json_t *root = json_object();
    if (!root) return qn_fail(QN_E_NOMEM, "%s: out of memory", qn_gguf_path(g));
    for (int i = 0; i < qn_gguf_key_count && status == QN_OK; i++) {
        char key[KEY_MAX];
        const char *name = qn_gguf_keys[i].name;
        json_t *value = NULL;
        if (json_object_get(root, name)) continue; /* by a key before */
        qn_gguf_config_full_key(architecture, qn_gguf_keys[i].key, key, sizeof key);
        status = qn_gguf_optional(read_value(g, key, qn_gguf_keys[i].kind, &name, &value));
        if (value && !put(root, name, value))
            status = qn_fail(QN_E_NOMEM, "%s: out of memory", qn_gguf_path(g));
    }
    if (status == QN_OK && (family->recurrent != QN_MIXER_ATTENTION || family->altup))
        status = qn_gguf_recurrent(src, architecture, family, root);
    if (status == QN_OK) status = qn_gguf_blocks(qn_gguf_path(g), architecture, family, root);
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
