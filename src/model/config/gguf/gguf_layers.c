#include "model/config/gguf/gguf_layers.h"

#include <string.h>

/* Messages name the file and the key. */
typedef struct {
    const char *path, *architecture;
    json_t *root;
} reader;

static qn_status no_memory(const reader *r)
{
    return qn_fail(QN_E_NOMEM, "%s: out of memory", r->path);
}

static qn_status set(const reader *r, json_t *object, const char *name, json_t *value)
{
    return json_object_set_new(object, name, value) == 0 ? QN_OK : no_memory(r);
}

static qn_status differs(const reader *r, const char *key)
{
    return qn_fail(QN_E_UNSUPPORTED, "%s: %s.%s differs between layers in a way that is not supported",
                   r->path, r->architecture, key);
}

/* Takes a field out of the description; *value keeps its value where there is none. 1: there was one. */
static int take(const reader *r, const char *name, int64_t *value)
{
    const json_t *said = json_object_get(r->root, name);
    if (!json_is_integer(said)) return 0;
    *value = json_integer_value(said);
    json_object_del(r->root, name);
    return 1;
}

static int slides(const json_t *layer_types, size_t i)
{
    const char *type = json_string_value(json_array_get(layer_types, i));
    return type && strcmp(type, "sliding_attention") == 0;
}

/* One number for the layers that slide, one for those that do not. */
static qn_status read_kv_heads(const reader *r)
{
    static const char name[] = "num_key_value_heads", key[] = "attention.head_count_kv";
    json_t *list = json_object_get(r->root, name);
    const json_t *types = json_object_get(r->root, "layer_types");
    int64_t of[2] = {0, 0};
    if (!json_is_array(list)) return QN_OK;
    if (!json_is_array(types) || json_array_size(types) != json_array_size(list)) return differs(r, key);
    for (size_t i = 0; i < json_array_size(list); i++) {
        int64_t n = json_integer_value(json_array_get(list, i)), *one = &of[slides(types, i)];
        if (*one && *one != n) return differs(r, key);
        *one = n;
    }
    QN_TRY(set(r, r->root, name, json_integer(of[1])));
    return set(r, r->root, "num_global_key_value_heads", json_integer(of[0]));
}

/* Twice as many in the layers that read another's keys and values. */
static qn_status read_feed_forward(const reader *r)
{
    static const char name[] = "intermediate_size", key[] = "feed_forward_length";
    json_t *list = json_object_get(r->root, name);
    if (!json_is_array(list)) return QN_OK;
    int64_t n = (int64_t)json_array_size(list), first = json_integer_value(json_array_get(list, 0));
    int64_t shared = json_integer_value(json_object_get(r->root, "num_kv_shared_layers"));
    if (first < 1 || first > INT32_MAX || shared < 1 || shared >= n) return differs(r, key);
    for (int64_t i = 0; i < n; i++)
        if (json_integer_value(json_array_get(list, (size_t)i)) != (i < n - shared ? first : 2 * first))
            return differs(r, key);
    QN_TRY(set(r, r->root, name, json_integer(first)));
    return set(r, r->root, "use_double_wide_mlp", json_true());
}

/* Where sliding layers have sizes of their own the plain keys are the others'. */
static qn_status read_head_sizes(const reader *r)
{
    int64_t keys = 0, values, sliding_keys, sliding_values;
    if (!take(r, "swa_head_dim", &sliding_keys)) return QN_OK;
    if (!take(r, "head_dim", &keys))
        return qn_fail(QN_E_FORMAT, "%s: %s.attention.key_length is missing", r->path, r->architecture);
    values = keys;
    sliding_values = sliding_keys;
    (void)take(r, "v_head_dim", &values);
    (void)take(r, "swa_v_head_dim", &sliding_values);
    if (values != keys || sliding_values != sliding_keys)
        return qn_fail(QN_E_UNSUPPORTED,
                       "%s: %s.attention: full and sliding layers have keys of %lld and %lld and values of "
                       "%lld and %lld: values of another size than keys are not supported",
                       r->path, r->architecture, (long long)keys, (long long)sliding_keys, (long long)values,
                       (long long)sliding_values);
    QN_TRY(set(r, r->root, "global_head_dim", json_integer(keys)));
    return set(r, r->root, "head_dim", json_integer(sliding_keys));
}

/* rotary_dim of rope_parameters.NAME. */
static qn_status put_rotary_dim(const reader *r, const char *name, int64_t rotary_dim)
{
    json_t *params = json_object_get(r->root, "rope_parameters"), *one = json_object();
    if (!one) return no_memory(r);
    if (!params) {
        params = json_object();
        if (!params || json_object_set_new(r->root, "rope_parameters", params) != 0) {
            json_decref(one);
            return no_memory(r);
        }
    }
    QN_TRY(set(r, params, name, one));
    return set(r, one, "rotary_dim", json_integer(rotary_dim));
}

static qn_status read_rotary_dims(const reader *r)
{
    int64_t full, sliding;
    if (!take(r, "swa_rotary_dim", &sliding)) return QN_OK;
    QN_TRY(put_rotary_dim(r, "sliding_attention", sliding));
    return take(r, "rotary_dim", &full) ? put_rotary_dim(r, "full_attention", full) : QN_OK;
}

/* Files of Llama 4 do not say whether queries are normed: all are but in the published model with so many experts. */
static qn_status read_norms(const reader *r)
{
    enum { UNNORMED = 128 };
    if (strcmp(r->architecture, "llama4") != 0) return QN_OK;
    return set(r, r->root, "use_qk_norm",
               json_boolean(json_integer_value(json_object_get(r->root, "num_experts")) != UNNORMED));
}

qn_status qn_gguf_layers(const char *path, const char *architecture, json_t *root)
{
    const reader r = {path, architecture, root};
    QN_TRY(read_norms(&r));
    QN_TRY(read_kv_heads(&r));
    QN_TRY(read_feed_forward(&r));
    QN_TRY(read_head_sizes(&r));
    return read_rotary_dims(&r);
}
