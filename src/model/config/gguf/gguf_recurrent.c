#include "model/config/gguf/gguf_recurrent.h"

#include <stdio.h>
#include <string.h>

#include "model/config/gguf/gguf_config.h"
#include "model/config/layer_list.h"

enum { LAYERS_MAX = 4096, LABEL_MAX = 192 };

/* Messages name the file and the key. */
typedef struct {
    const qn_source *src;
    const char *architecture;
    const qn_family *family;
    json_t *root;
    int64_t n_layers; /* without those for drafts */
} reader;

static const char kv_heads[] = "num_key_value_heads", width[] = "intermediate_size";

static int64_t integer(const reader *r, const char *name)
{
    return (int64_t)json_integer_value(json_object_get(r->root, name));
}

static qn_status set(const reader *r, const char *name, json_t *value)
{
    if (value && json_object_set_new(r->root, name, value) == 0) return QN_OK;
    return qn_fail(QN_E_NOMEM, "%s: out of memory", qn_source_path(r->src));
}

/* The layer's number, of a list or of a number that stands for all. */
static int64_t of_layer(const reader *r, const char *name, int64_t layer)
{
    const json_t *value = json_object_get(r->root, name);
    if (json_is_array(value)) value = json_array_get(value, (size_t)layer);
    return (int64_t)json_integer_value(value);
}

static const qn_tensor_view *find(const reader *r, qn_weight_role role, int64_t layer)
{
    return qn_family_find_weight(r->family, r->src, role, layer, NULL);
}

static qn_status check_length(const reader *r, const char *name)
{
    char key[LABEL_MAX];
    const json_t *list = json_object_get(r->root, name);
    const char *short_key = qn_gguf_config_key(name);
    if (!json_is_array(list) || json_array_size(list) >= (size_t)r->n_layers) return QN_OK;
    qn_gguf_config_full_key(r->architecture, short_key ? short_key : name, key, sizeof key);
    return qn_fail(QN_E_FORMAT, "%s: %s has %zu elements, expected one for each of the %lld layers",
                   qn_source_path(r->src), key, json_array_size(list), (long long)r->n_layers);
}

/* One number of a list in which the layers without such a block have 0. */
static qn_status join(const reader *r, const char *name)
{
    char key[LABEL_MAX];
    const json_t *list = json_object_get(r->root, name);
    const char *short_key = qn_gguf_config_key(name);
    int64_t one = 0;
    if (!json_is_array(list)) return QN_OK;
    for (int64_t i = 0; i < r->n_layers; i++) {
        const int64_t n = of_layer(r, name, i);
        if (one && n && n != one) {
            qn_gguf_config_full_key(r->architecture, short_key ? short_key : name, key, sizeof key);
            return qn_fail(QN_E_UNSUPPORTED,
                           "%s: %s differs between layers (%lld, %lld), which is not supported",
                           qn_source_path(r->src), key, (long long)one, (long long)n);
        }
        if (n) one = n;
    }
    if (one) return set(r, name, json_integer(one));
    (void)json_object_del(r->root, name);
    return QN_OK;
}

/* What a layer is in the words of layer_types. */
static const char *name_of(const reader *r, int64_t layer)
{
    const json_t *recurs = json_object_get(r->root, "recurrent_layers");
    const char *recurrent = qn_layer_list_recurrent(r->family);
    if (recurs) return of_layer(r, "recurrent_layers", layer) ? recurrent : "full_attention";
    if (of_layer(r, kv_heads, layer) > 0) return "full_attention";
    if (!r->family->single_blocks) return recurrent;
    /* Files of models with experts say of plain MLPs that they are nothing. */
    if (find(r, QN_WEIGHT_ROUTER, layer)) return "moe";
    return find(r, QN_WEIGHT_UP, layer) ? "mlp" : recurrent;
}

static qn_status list_layers(const reader *r)
{
    json_t *types = json_array();
    for (int64_t i = 0; types && i < r->n_layers; i++)
        if (json_array_append_new(types, json_string(name_of(r, i))) != 0) {
            json_decref(types);
            types = NULL;
        }
    return set(r, "layer_types", types);
}

/* Where a number of the metadata is that of experts, or of layers that are not there. */
static qn_status read_mlp_width(const reader *r)
{
    for (int64_t i = 0; r->family->single_blocks && i < r->n_layers; i++) {
        const qn_tensor_view *up = find(r, QN_WEIGHT_UP, i);
        if (up && up->n_dims == 2 && up->shape[0] >= 1 && up->shape[0] <= INT32_MAX)
            return set(r, width, json_integer(up->shape[0]));
    }
    return QN_OK;
}

/* Of delta nets the file says the sum of all heads' values; of Kimi's not how many heads there are. */
static qn_status read_heads(const reader *r)
{
    const int64_t inner = integer(r, "mamba_d_ssm"), heads = integer(r, "linear_num_value_heads");
    if (r->family->recurrent == QN_MIXER_DELTA && heads > 0 && inner % heads == 0)
        return set(r, "linear_value_head_dim", json_integer(inner / heads));
    if (r->family->recurrent != QN_MIXER_CHANNEL_DELTA) return QN_OK;
    for (int64_t i = 0; i < r->n_layers; i++) {
        const qn_tensor_view *a = find(r, QN_WEIGHT_DELTA_A_LOG, i);
        if (a && a->n_elements <= INT32_MAX) return set(r, "linear_num_heads", json_integer(a->n_elements));
    }
    return QN_OK;
}

/* No key has it. */
static qn_status read_rank(const reader *r)
{
    const qn_tensor_view *left = find(r, QN_WEIGHT_LAUREL_LEFT, 0);
    if (!left || left->n_dims != 2) return QN_OK;
    return set(r, "laurel_rank", json_integer(left->shape[0]));
}

qn_status qn_gguf_recurrent(const qn_source *src, const char *architecture, const qn_family *family,
                            json_t *root)
{
    reader r = {.src = src, .architecture = architecture, .family = family, .root = root};
    r.n_layers = integer(&r, "num_hidden_layers") - integer(&r, "num_nextn_predict_layers");
    if (family->altup) return read_rank(&r);
    if (r.n_layers < 1 || r.n_layers > LAYERS_MAX) return QN_OK; /* refused where the number is read */
    QN_TRY(check_length(&r, kv_heads));
    QN_TRY(check_length(&r, width));
    QN_TRY(check_length(&r, "recurrent_layers"));
    const int by_heads = (family->recur != QN_RECUR_INTERVAL && family->recur != QN_RECUR_BESIDE) ||
                         family->recurrent == QN_MIXER_CHANNEL_DELTA;
    if (by_heads || json_object_get(root, "recurrent_layers")) QN_TRY(list_layers(&r));
    QN_TRY(join(&r, kv_heads));
    QN_TRY(join(&r, width));
    QN_TRY(read_mlp_width(&r));
    return read_heads(&r);
}
