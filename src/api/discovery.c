#include "api/discovery.h"

#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "base/utf8.h"
#include "engine/machine/engine.h"
#include "engine/machine/examine.h"
#include "text/tokenizer/tokenizer_source.h"

/* The texts that a qn_discovery points to. */
typedef struct {
    char name[512], model_type[128], quant[64], error[QN_ERROR_TEXT_MAX];
} texts;

/* llama.cpp's LLAMA_FTYPE numbers, as its file names spell them. */
static const char *const file_types[] = {
    [0] = "F32",     [1] = "F16",     [2] = "Q4_0",       [3] = "Q4_1",    [7] = "Q8_0",     [8] = "Q5_0",
    [9] = "Q5_1",    [10] = "Q2_K",   [11] = "Q3_K_S",    [12] = "Q3_K_M", [13] = "Q3_K_L",  [14] = "Q4_K_S",
    [15] = "Q4_K_M", [16] = "Q5_K_S", [17] = "Q5_K_M",    [18] = "Q6_K",   [19] = "IQ2_XXS", [20] = "IQ2_XS",
    [21] = "Q2_K_S", [22] = "IQ3_XS", [23] = "IQ3_XXS",   [24] = "IQ1_S",  [25] = "IQ4_NL",  [26] = "IQ3_S",
    [27] = "IQ3_M",  [28] = "IQ2_S",  [29] = "IQ2_M",     [30] = "IQ4_XS", [31] = "IQ1_M",   [32] = "BF16",
    [36] = "TQ1_0",  [37] = "TQ2_0",  [38] = "MXFP4_MOE",
};
enum { N_FILE_TYPES = sizeof file_types / sizeof *file_types };

/* Copies text[0..n), cut between characters when it is too long. */
static void copy(char *to, size_t size, const char *text, size_t n)
{
    if (n >= size) n = qn_utf8_valid_prefix(text, size - 1);
    memcpy(to, text, n);
    to[n] = 0;
}

/* The cache of Hugging Face keeps a model in models--ORG--NAME/snapshots/HASH. */
static void make_name(const char *path, texts *t)
{
    static const char mark[] = "models--";
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    const char *snapshots = strstr(path, "/snapshots/"), *from = NULL;
    for (const char *p = path; snapshots && (p = strstr(p, mark)) && p < snapshots; p++)
        if (p == path || p[-1] == '/') from = p + sizeof mark - 1;
    if (from && !memchr(from, '/', (size_t)(snapshots - from))) {
        copy(t->name, sizeof t->name, from, (size_t)(snapshots - from));
        char *dashes = strstr(t->name, "--");
        if (!dashes) return;
        *dashes = '/';
        memmove(dashes + 1, dashes + 2, strlen(dashes + 2) + 1);
        return;
    }
    size_t begin = n;
    while (begin && path[begin - 1] != '/') begin--;
    copy(t->name, sizeof t->name, path + begin, n - begin);
}

static void take_text(char *to, size_t size, const json_t *value)
{
    if (json_is_string(value) && !to[0]) copy(to, size, json_string_value(value), json_string_length(value));
}

static int take_count(const json_t *object, const char *key)
{
    json_int_t value = json_integer_value(json_object_get(object, key));
    return value > 0 && value < 100000 ? (int)value : 0;
}

/* MLX writes "quantization"; others say in "quantization_config" by what method. */
static void read_quantisation(const json_t *root, qn_discovery *d, texts *t)
{
    const json_t *q = json_object_get(root, "quantization");
    if (!json_is_object(q)) q = json_object_get(root, "quantization_config");
    if (!json_is_object(q)) return;
    const json_t *method = json_object_get(q, "quant_method"), *mode = json_object_get(q, "mode");
    int bits = take_count(q, "bits"), group = take_count(q, "group_size");
    d->quant_bits = bits <= 64 ? bits : 0;
    if (json_is_string(method)) {
        snprintf(t->quant, sizeof t->quant, bits ? "%.32s %d" : "%.32s", json_string_value(method), bits);
        return;
    }
    if (!bits || !group) return; /* MLX gives both; what else this is, the tensors' type has to say */
    const char *name = json_is_string(mode) ? json_string_value(mode) : "affine";
    if (strcmp(name, "affine") == 0) /* the names of the others say how many bits */
        snprintf(t->quant, sizeof t->quant, "mlx affine %d g%d", bits, group);
    else
        snprintf(t->quant, sizeof t->quant, "mlx %.24s g%d", name, group);
}

/* What config.json says, whether or not this library can compute it: faults in it are found by who reads all
 * of it. QN_E_NOMEM. */
static qn_status read_config(qn_source *s, qn_discovery *d, texts *t)
{
    const char *text;
    size_t n;
    json_t *root = NULL;
    if (!qn_source_side_path(s, QN_SIDE_CONFIG)) return QN_OK;
    qn_status status = qn_source_side_text(s, QN_SIDE_CONFIG, &text, &n);
    if (status == QN_OK) status = qn_json_parse_python("config.json", text, n, &root);
    if (status != QN_OK) return status == QN_E_NOMEM ? status : QN_OK;
    const json_t *inner = json_object_get(root, "text_config");
    take_text(t->model_type, sizeof t->model_type, json_object_get(root, "model_type"));
    take_text(t->model_type, sizeof t->model_type, json_object_get(inner, "model_type"));
    take_text(t->model_type, sizeof t->model_type, json_array_get(json_object_get(root, "architectures"), 0));
    read_quantisation(root, d, t);
    if (!t->quant[0]) read_quantisation(inner, d, t);
    json_decref(root);
    return QN_OK;
}

static void read_gguf(const qn_gguf *g, texts *t)
{
    qn_gguf_string name;
    int64_t type = -1;
    if (qn_gguf_value_find(g, "general.architecture") && !t->model_type[0] &&
        qn_gguf_get_string(g, "general.architecture", &name) == QN_OK)
        copy(t->model_type, sizeof t->model_type, name.data, name.length);
    if (qn_gguf_value_find(g, "general.file_type") &&
        qn_gguf_get_i64(g, "general.file_type", 0, N_FILE_TYPES - 1, &type) == QN_OK && file_types[type])
        copy(t->quant, sizeof t->quant, file_types[type], strlen(file_types[type]));
}

static void count_files(const qn_source *s, qn_discovery *d)
{
    d->n_files = 0;
    d->size_bytes = 0;
    for (int64_t i = 0; i < qn_source_file_count(s); i++, d->n_files++)
        d->size_bytes += qn_source_file_bytes(s, i);
}

/* Everything that can be known of a source that opened; the first fault is returned. */
static qn_status read_source(qn_source *s, qn_discovery *d, texts *t)
{
    qn_model_config c = {0};
    qn_examination e = {.type_name = ""};
    d->format = qn_source_gguf(s)                        ? "gguf"
                : qn_source_get_kind(s) == QN_SOURCE_RAW ? "bin_weights"
                                                         : "safetensors";
    QN_TRY(read_config(s, d, t));
    if (qn_source_gguf(s))
        read_gguf(qn_source_gguf(s), t);
    else
        count_files(s, d);
    qn_status status = qn_config_read(s, &c);
    if (status == QN_OK) {
        if (!t->model_type[0])
            copy(t->model_type, sizeof t->model_type, c.architecture, strlen(c.architecture));
        status = qn_examine_weights(s, &c, &e);
    }
    qn_config_free(&c);
    /* Of models whose weights are not understood, the type of all that is there. */
    const char *type = e.type_name[0] ? e.type_name : qn_examine_type(s);
    /* Mixtures are called by what they are meant to be, though an embedding of 8 bits may be most of a file.
     */
    if (!d->quant_bits) d->quant_bits = qn_examine_bits(qn_source_gguf(s) && t->quant[0] ? t->quant : type);
    if (!t->quant[0]) {
        copy(t->quant, sizeof t->quant, type, strlen(type));
        /* Headers of safetensors write "BF16"; everyone says bf16. */
        for (char *p = t->quant; !qn_source_gguf(s) && *p; p++)
            if (*p >= 'A' && *p <= 'Z') *p += 'a' - 'A';
    }
    return status;
}

qn_status qn_discovery_report(qn_discovery *d, qn_discover_fn *fn, void *user)
{
    texts t = {.name = ""};
    qn_source *s = NULL;
    make_name(d->path, &t);
    qn_status status = qn_source_open(d->path, &(qn_source_options){.as_stored = 1}, &s);
    if (status == QN_OK) {
        status = read_source(s, d, &t);
    } else if (status != QN_E_NOMEM) {
        copy(t.error, sizeof t.error, qn_last_error(), strlen(qn_last_error()));
        /* The weights are at fault; what config.json says may still be shown. */
        qn_status again = qn_source_open(d->path, &(qn_source_options){.text_only = 1}, &s);
        if (again == QN_OK) again = read_config(s, d, &t);
        if (again == QN_E_NOMEM) status = again;
    }
    if (status == QN_E_NOMEM) {
        qn_source_close(s);
        return status;
    }
    if (d->status != QN_OK)
        copy(t.error, sizeof t.error, d->error, strlen(d->error));
    else if (status != QN_OK && !t.error[0])
        copy(t.error, sizeof t.error, qn_last_error(), strlen(qn_last_error()));
    qn_source_close(s);
    if (d->status == QN_OK) d->status = status;
    d->name = t.name;
    d->model_type = t.model_type;
    d->quant = t.quant;
    d->error = t.error;
    return fn(user, d);
}
