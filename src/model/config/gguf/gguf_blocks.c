#include "model/config/gguf/gguf_blocks.h"

#include "model/config/gguf/gguf_config.h"

enum { KEY_MAX = 192, LAYERS_MAX = 4096 };

/* Messages name the file and the key. */
typedef struct {
    const char *path, *architecture;
    json_t *root;
    int64_t n_layers; /* without those for drafts */
} reader;

static const char *key_of(const reader *r, const char *name, char text[KEY_MAX])
{
    const char *key = qn_gguf_config_key(name);
    qn_gguf_config_full_key(r->architecture, key ? key : name, text, KEY_MAX);
    return text;
}

static int64_t integer(const reader *r, const char *name)
{
    return (int64_t)json_integer_value(json_object_get(r->root, name));
}

static qn_status set(const reader *r, const char *name, json_t *value)
{
    if (value && json_object_set_new(r->root, name, value) == 0) return QN_OK;
    return qn_fail(QN_E_NOMEM, "%s: out of memory", r->path);
}

static qn_status check_length(const reader *r, const char *name, const json_t *list)
{
    char key[KEY_MAX];
    if (json_array_size(list) >= (size_t)r->n_layers) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: %s has %zu elements, expected one for each of the %lld layers", r->path,
                   key_of(r, name, key), json_array_size(list), (long long)r->n_layers);
}

/* Of each layer how many positions a block has; 0: the layer uses no index. */
static qn_status read_block_sizes(const reader *r)
{
    static const char name[] = "compress_ratios";
    const json_t *said = json_object_get(r->root, name);
    char key[KEY_MAX];
    int64_t size = 0;
    if (json_is_array(said)) QN_TRY(check_length(r, name, said));
    json_t *list = json_array();
    for (int64_t i = 0; list && i < r->n_layers; i++) {
        const int64_t n = json_integer_value(json_is_array(said) ? json_array_get(said, (size_t)i) : said);
        if (size && n && n != size) {
            json_decref(list);
            return qn_fail(QN_E_UNSUPPORTED,
                           "%s: %s differs between layers (%lld, %lld), which is not supported", r->path,
                           key_of(r, name, key), (long long)size, (long long)n);
        }
        if (n) size = n;
        if (json_array_append_new(list, json_boolean(n != 0)) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    QN_TRY(set(r, "indexed_layers", list));
    return size ? set(r, "index_kpool", json_integer(size)) : QN_OK;
}

/* Flags become the names that config.json has. */
static qn_status read_types(const reader *r)
{
    static const char name[] = "indexer_types";
    const json_t *flags = json_object_get(r->root, name);
    if (!flags) return QN_OK;
    QN_TRY(check_length(r, name, flags));
    json_t *list = json_array();
    for (int64_t i = 0; list && i < r->n_layers; i++) {
        const int own = json_integer_value(json_array_get(flags, (size_t)i)) != 0;
        if (json_array_append_new(list, json_string(own ? "full" : "shared")) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return set(r, name, list);
}

/* Experts and other MLPs have a key each, in which 0 says that there is no limit. */
static qn_status read_limits(const reader *r)
{
    static const char name[] = "swiglu_limit", other[] = "shared_swiglu_limit";
    const json_t *a = json_object_get(r->root, name), *b = json_object_get(r->root, other);
    char key[KEY_MAX], other_key[KEY_MAX];
    if (b && json_number_value(a) != json_number_value(b))
        return qn_fail(QN_E_UNSUPPORTED, "%s: %s and %s differ (%g, %g), which is not supported", r->path,
                       key_of(r, name, key), key_of(r, other, other_key), json_number_value(a),
                       json_number_value(b));
    if (a && json_number_value(a) == 0) (void)json_object_del(r->root, name);
    return QN_OK;
}

/* Layers are counted from 0 on here, and the width is that of one head. */
static qn_status read_ngrams(const reader *r)
{
    static const char name[] = "ple_layers", width[] = "hidden_size_per_layer_input";
    enum { WIDTH_MAX = 1 << 20, HEADS_MAX = 1 << 10 };
    const json_t *layers = json_object_get(r->root, name);
    const int64_t each = integer(r, width), sizes = integer(r, "ngram_size") - 1,
                  heads = integer(r, "heads_per_ngram");
    char key[KEY_MAX];
    if (!layers) return QN_OK;
    json_t *list = json_array();
    for (size_t i = 0; list && i < json_array_size(layers); i++) {
        const int64_t layer = json_integer_value(json_array_get(layers, i));
        if (layer >= r->n_layers) {
            json_decref(list);
            return qn_fail(QN_E_FORMAT, "%s: %s[%zu] is %lld, which is not a layer from 0 to %lld", r->path,
                           key_of(r, name, key), i, (long long)layer, (long long)r->n_layers - 1);
        }
        if (json_array_append_new(list, json_integer(layer + 1)) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    QN_TRY(set(r, "ple_layer_ids", list));
    (void)json_object_del(r->root, width);
    if (sizes < 1 || sizes > HEADS_MAX || heads < 1 || heads > HEADS_MAX)
        return QN_OK; /* refused where they are read */
    if (each < 1 || each > WIDTH_MAX)
        return qn_fail(QN_E_FORMAT, "%s: %s is missing or not from 1 to %d", r->path, key_of(r, width, key),
                       WIDTH_MAX);
    return set(r, "ple_embed_dim", json_integer(each * sizes * heads));
}

qn_status qn_gguf_blocks(const char *path, const char *architecture, const qn_family *family, json_t *root)
{
    reader r = {.path = path, .architecture = architecture, .root = root};
    r.n_layers = integer(&r, "num_hidden_layers") - integer(&r, "num_nextn_predict_layers");
    if (r.n_layers < 1 || r.n_layers > LAYERS_MAX) return QN_OK; /* refused where the number is read */
    if (family->index == QN_INDEX_MEAN) QN_TRY(read_block_sizes(&r));
    if (family->index == QN_INDEX_GATED) QN_TRY(read_types(&r));
    if (family->mlp_limit) QN_TRY(read_limits(&r));
    return family->ngrams ? read_ngrams(&r) : QN_OK;
}
