#include "model/sentence/sentence.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "format/files/mmap.h"
#include "format/safetensors/safetensors.h"

enum { PATH_MAX_BYTES = 4096, FILE_MAX = 16 << 20, WIDTH_MAX = 1 << 20, TOKENS_MAX = 1 << 30 };

typedef enum { ACT_NONE, ACT_TANH, ACT_RELU, ACT_GELU, ACT_SIGMOID, ACT_SILU } dense_act;

typedef struct {
    int64_t n_in, n_out;
    dense_act act;
    float *weight, *bias; /* [n_out, n_in], [n_out]; bias NULL: none */
} dense;

struct qn_sentence {
    qn_sentence_info info;
    dense layers[QN_SENTENCE_DENSE_MAX];
    int64_t widest;
    char **names, **texts; /* [n_prompts] */
};

/* ---- files -------------------------------------------------------------------------------------------- */

static void join(char path[PATH_MAX_BYTES], const char *folder, const char *module, const char *name)
{
    snprintf(path, PATH_MAX_BYTES, "%s/%s%s%s", folder, module, *module ? "/" : "", name);
}

/* *out NULL: there is no such file. */
static qn_status read_json(const char *path, json_t **out)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = fopen(path, "r");
    *out = NULL;
    if (!f) return QN_OK;
    fclose(f);
    QN_TRY(qn_file_read(path, FILE_MAX, &text, &n));
    qn_status status = qn_json_parse_python(path, text, n, out);
    qn_free(text);
    return status;
}

static qn_status need_object(const char *path, json_t **out)
{
    QN_TRY(read_json(path, out));
    if (json_is_object(*out)) return QN_OK;
    const int is_there = *out != NULL;
    json_decref(*out);
    *out = NULL;
    return qn_fail(is_there ? QN_E_FORMAT : QN_E_NOT_FOUND, "%s: %s", path,
                   is_there ? "expected a JSON object" : "the file is missing");
}

/* ---- pooling ------------------------------------------------------------------------------------------ */

static const struct {
    const char *field, *name; /* older and newer files */
    unsigned bit;
} poolings[] = {{"pooling_mode_cls_token", "cls", QN_SENTENCE_CLS},
                {"pooling_mode_max_tokens", "max", QN_SENTENCE_MAX},
                {"pooling_mode_mean_tokens", "mean", QN_SENTENCE_MEAN},
                {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", QN_SENTENCE_MEAN_SQRT},
                {"pooling_mode_weightedmean_tokens", "weightedmean", QN_SENTENCE_WEIGHTED_MEAN},
                {"pooling_mode_lasttoken", "lasttoken", QN_SENTENCE_LAST}};
enum { POOLINGS = sizeof poolings / sizeof *poolings };

static qn_status add_named(const char *path, const json_t *name, unsigned *bits)
{
    const char *text = json_string_value(name);
    for (int i = 0; text && i < POOLINGS; i++)
        if (strcmp(poolings[i].name, text) == 0) {
            *bits |= poolings[i].bit;
            return QN_OK;
        }
    return qn_fail(QN_E_UNSUPPORTED, "%s: pooling_mode is \"%.40s\", which is not supported", path,
                   text ? text : "no text");
}

static qn_status read_bits(const char *path, const json_t *config, unsigned *bits)
{
    const json_t *mode = json_object_get(config, "pooling_mode");
    for (int i = 0; i < POOLINGS; i++) {
        const json_t *value = json_object_get(config, poolings[i].field);
        if (value && !json_is_boolean(value))
            return qn_fail(QN_E_FORMAT, "%s: %s is neither true nor false", path, poolings[i].field);
        if (json_is_true(value)) *bits |= poolings[i].bit;
    }
    if (json_is_string(mode)) QN_TRY(add_named(path, mode, bits));
    for (size_t i = 0; json_is_array(mode) && i < json_array_size(mode); i++)
        QN_TRY(add_named(path, json_array_get(mode, i), bits));
    if (*bits) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED, "%s: no pooling is switched on", path);
}

static qn_status read_pooling(qn_sentence *s, const char *folder, const char *module, int64_t *width)
{
    char path[PATH_MAX_BYTES];
    json_t *config;
    qn_sentence_info *info = &s->info;
    join(path, folder, module, "config.json");
    if (info->poolings || info->n_dense)
        return qn_fail(QN_E_UNSUPPORTED, "%s: a Pooling behind another module of modules.json", path);
    QN_TRY(need_object(path, &config));
    qn_status status = read_bits(path, config, &info->poolings);
    info->leaves_prompt_out = json_is_false(json_object_get(config, "include_prompt"));
    json_decref(config);
    for (int i = 0; i < POOLINGS; i++) info->n_poolings += (info->poolings & poolings[i].bit) != 0;
    *width *= info->n_poolings;
    return status;
}

/* ---- linear layers ------------------------------------------------------------------------------------ */

static qn_status read_act(const char *path, const json_t *config, dense_act *out)
{
    static const struct {
        const char *name;
        dense_act act;
    } acts[] = {{"Identity", ACT_NONE}, {"Tanh", ACT_TANH},       {"ReLU", ACT_RELU},
                {"GELU", ACT_GELU},     {"Sigmoid", ACT_SIGMOID}, {"SiLU", ACT_SILU}};
    const json_t *said = json_object_get(config, "activation_function");
    const char *name = json_string_value(said), *dot = name ? strrchr(name, '.') : NULL;
    *out = ACT_TANH; /* what the class takes without the field */
    if (!said) return QN_OK;
    for (size_t i = 0; name && i < sizeof acts / sizeof *acts; i++)
        if (strcmp(acts[i].name, dot ? dot + 1 : name) == 0) {
            *out = acts[i].act;
            return QN_OK;
        }
    return qn_fail(QN_E_UNSUPPORTED, "%s: activation_function is \"%.80s\", which is not supported", path,
                   name ? name : "no text");
}

static qn_status read_tensor(const qn_safetensors *st, const char *name, int n_dims, const int64_t *shape,
                             float **out)
{
    const qn_tensor_view *v;
    char text[64];
    QN_TRY(qn_safetensors_tensor(st, name, &v));
    int fits = v->n_dims == n_dims;
    for (int i = 0; fits && i < n_dims; i++) fits = v->shape[i] == shape[i];
    if (!fits)
        return qn_fail(QN_E_FORMAT, "%s: tensor %s: shape %s does not fit config.json beside it",
                       qn_safetensors_path(st), name, qn_view_shape_text(v, text, sizeof text));
    *out = qn_alloc_array((size_t)v->n_elements, sizeof **out);
    return *out ? qn_view_floats(v, 0, v->n_elements, *out) : QN_E_NOMEM;
}

static qn_status read_weights(const char *folder, const char *module, int has_bias, dense *d)
{
    char path[PATH_MAX_BYTES];
    qn_safetensors *st;
    join(path, folder, module, "model.safetensors");
    QN_TRY(qn_safetensors_open(path, &st));
    qn_status status = read_tensor(st, "linear.weight", 2, (int64_t[]){d->n_out, d->n_in}, &d->weight);
    if (status == QN_OK && has_bias)
        status = read_tensor(st, "linear.bias", 1, (int64_t[]){d->n_out}, &d->bias);
    qn_safetensors_close(st);
    return status;
}

static qn_status read_size(const char *path, const json_t *config, const char *name, int64_t *out)
{
    const json_t *value = json_object_get(config, name);
    *out = json_integer_value(value);
    if (json_is_integer(value) && *out >= 1 && *out <= WIDTH_MAX) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: %s: expected an integer from 1 to %d", path, name, (int)WIDTH_MAX);
}

static qn_status read_dense(qn_sentence *s, const char *folder, const char *module, int64_t *width)
{
    char path[PATH_MAX_BYTES];
    json_t *config;
    join(path, folder, module, "config.json");
    if (s->info.n_dense == QN_SENTENCE_DENSE_MAX)
        return qn_fail(QN_E_UNSUPPORTED, "%s: more than %d Dense modules", path, (int)QN_SENTENCE_DENSE_MAX);
    if (!s->info.poolings) return qn_fail(QN_E_UNSUPPORTED, "%s: a Dense module before the Pooling", path);
    QN_TRY(need_object(path, &config));
    dense *d = &s->layers[s->info.n_dense++];
    qn_status status = read_size(path, config, "in_features", &d->n_in);
    if (status == QN_OK) status = read_size(path, config, "out_features", &d->n_out);
    if (status == QN_OK) status = read_act(path, config, &d->act);
    const int has_bias = !json_is_false(json_object_get(config, "bias"));
    json_decref(config);
    QN_TRY(status);
    if (d->n_in != *width)
        return qn_fail(QN_E_FORMAT, "%s: in_features is %lld, but what comes before gives %lld numbers", path,
                       (long long)d->n_in, (long long)*width);
    if (d->n_out > s->widest) s->widest = d->n_out;
    *width = d->n_out;
    return read_weights(folder, module, has_bias, d);
}

/* ---- modules ------------------------------------------------------------------------------------------ */

static qn_status read_module(qn_sentence *s, const char *folder, const char *file, const json_t *module,
                             int64_t *width)
{
    const char *type = json_string_value(json_object_get(module, "type")),
               *path = json_string_value(json_object_get(module, "path"));
    if (!type || !path || strstr(path, "..") || *path == '/')
        return qn_fail(QN_E_FORMAT, "%s: a module without type and path, or whose path leads elsewhere",
                       file);
    const char *dot = strrchr(type, '.'), *name = dot ? dot + 1 : type;
    if (strcmp(name, "Transformer") == 0) return QN_OK;
    if (strcmp(name, "Pooling") == 0) return read_pooling(s, folder, path, width);
    if (strcmp(name, "Dense") == 0) return read_dense(s, folder, path, width);
    if (strcmp(name, "Normalize") != 0)
        return qn_fail(QN_E_UNSUPPORTED, "%s: the module \"%.80s\" is not supported", file, type);
    s->info.normalises = 1;
    return QN_OK;
}

static qn_status read_modules(qn_sentence *s, const char *file, const char *folder, const json_t *modules,
                              int64_t width)
{
    if (!json_is_array(modules)) return qn_fail(QN_E_FORMAT, "%s: expected an array of modules", file);
    s->widest = width;
    for (size_t i = 0; i < json_array_size(modules); i++) {
        if (s->info.normalises) return qn_fail(QN_E_UNSUPPORTED, "%s: a module behind Normalize", file);
        QN_TRY(read_module(s, folder, file, json_array_get(modules, i), &width));
        if (s->info.poolings && !s->info.n_in) s->info.n_in = width;
    }
    s->info.n_out = width;
    if (s->widest < s->info.n_in) s->widest = s->info.n_in;
    return QN_OK;
}

static qn_status add_prompts(qn_sentence *s, const char *path, const json_t *prompts, const char *chosen)
{
    const size_t n = json_object_size(prompts);
    const char *name;
    json_t *value;
    if (n > QN_SENTENCE_PROMPTS_MAX)
        return qn_fail(QN_E_UNSUPPORTED, "%s: more than %d prompts", path, (int)QN_SENTENCE_PROMPTS_MAX);
    s->names = qn_calloc(n + 1, sizeof *s->names);
    s->texts = qn_calloc(n + 1, sizeof *s->texts);
    if (!s->names || !s->texts) return QN_E_NOMEM;
    json_object_foreach((json_t *)prompts, name, value)
    {
        const size_t i = s->info.n_prompts;
        if (!json_is_string(value))
            return qn_fail(QN_E_FORMAT, "%s: prompts.%.40s is not a string", path, name);
        s->info.n_prompts++;
        s->names[i] = qn_strdup(name);
        s->texts[i] = qn_strdup(json_string_value(value));
        if (!s->names[i] || !s->texts[i]) return QN_E_NOMEM;
        if (chosen && strcmp(chosen, name) == 0) s->info.default_prompt = s->names[i];
    }
    s->info.prompt_names = (const char *const *)s->names;
    s->info.prompts = (const char *const *)s->texts;
    if (!chosen || s->info.default_prompt) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: default_prompt_name is \"%.40s\", which is none of the prompts", path,
                   chosen);
}

static qn_status read_prompts(qn_sentence *s, const char *folder)
{
    char path[PATH_MAX_BYTES];
    json_t *config;
    join(path, folder, "", "config_sentence_transformers.json");
    QN_TRY(read_json(path, &config));
    const json_t *prompts = json_object_get(config, "prompts");
    qn_status status = QN_OK;
    if (json_is_object(prompts))
        status =
            add_prompts(s, path, prompts, json_string_value(json_object_get(config, "default_prompt_name")));
    json_decref(config);
    return status;
}

static qn_status read_limit(qn_sentence *s, const char *folder)
{
    char path[PATH_MAX_BYTES];
    json_t *config;
    join(path, folder, "", "sentence_bert_config.json");
    QN_TRY(read_json(path, &config));
    const json_t *most = json_object_get(config, "max_seq_length");
    const int64_t n = json_integer_value(most);
    qn_status status = QN_OK;
    if (json_is_integer(most) && (n < 1 || n > TOKENS_MAX))
        status = qn_fail(QN_E_FORMAT, "%s: max_seq_length is %lld", path, (long long)n);
    if (json_is_integer(most)) s->info.max_tokens = n;
    json_decref(config);
    return status;
}

qn_status qn_sentence_read(const char *folder, int64_t width, qn_sentence **out)
{
    char path[PATH_MAX_BYTES];
    json_t *modules;
    *out = NULL;
    join(path, folder, "", "modules.json");
    QN_TRY(read_json(path, &modules));
    if (!modules) return QN_OK;
    qn_sentence *s = qn_calloc(1, sizeof *s);
    qn_status status = s ? read_modules(s, path, folder, modules, width) : QN_E_NOMEM;
    json_decref(modules);
    if (status == QN_OK) status = read_prompts(s, folder);
    if (status == QN_OK) status = read_limit(s, folder);
    if (status == QN_OK)
        *out = s;
    else
        qn_sentence_free(s);
    return status;
}

/* ---- GGUF --------------------------------------------------------------------------------------------- */

/* As llama.cpp numbers them. */
static qn_status read_gguf_pooling(const qn_gguf *g, unsigned *bits)
{
    enum { NONE, MEAN, CLS, LAST, RANK };
    static const unsigned known[] = {[NONE] = 0,
                                     [MEAN] = QN_SENTENCE_MEAN,
                                     [CLS] = QN_SENTENCE_CLS,
                                     [LAST] = QN_SENTENCE_LAST,
                                     [RANK] = 0};
    char key[128];
    qn_gguf_string name;
    int64_t type = NONE;
    *bits = 0;
    QN_TRY(qn_gguf_get_string(g, "general.architecture", &name));
    snprintf(key, sizeof key, "%.*s.pooling_type", (int)(name.length < 64 ? name.length : 64), name.data);
    QN_TRY(qn_gguf_optional(qn_gguf_get_i64(g, key, INT32_MIN, INT32_MAX, &type)));
    if (type < NONE || type > RANK)
        return qn_fail(QN_E_UNSUPPORTED, "%s: %s is %lld, which is not supported", qn_gguf_path(g), key,
                       (long long)type);
    *bits = known[type];
    return QN_OK;
}

static qn_status read_gguf_dense(qn_sentence *s, const qn_gguf *g, const qn_tensor_view *v, int64_t *width)
{
    char text[64];
    dense *d = &s->layers[s->info.n_dense++];
    if (v->n_dims != 2 || v->shape[1] != *width || v->shape[0] < 1 || v->shape[0] > WIDTH_MAX)
        return qn_fail(QN_E_FORMAT, "%s: tensor %s: shape %s, expected rows of %lld numbers", qn_gguf_path(g),
                       v->name, qn_view_shape_text(v, text, sizeof text), (long long)*width);
    d->n_in = *width;
    *width = d->n_out = v->shape[0];
    if (d->n_out > s->widest) s->widest = d->n_out;
    d->weight = qn_alloc_array((size_t)v->n_elements, sizeof *d->weight);
    return d->weight ? qn_view_floats(v, 0, v->n_elements, d->weight) : QN_E_NOMEM;
}

qn_status qn_sentence_read_gguf(const qn_source *source, int64_t width, qn_sentence **out)
{
    static const char *const layers[] = {"dense_2.weight", "dense_3.weight"};
    const qn_gguf *g = qn_source_gguf(source);
    unsigned bits;
    *out = NULL;
    QN_TRY(read_gguf_pooling(g, &bits));
    if (!bits) return QN_OK;
    qn_sentence *s = qn_calloc(1, sizeof *s);
    if (!s) return QN_E_NOMEM;
    s->info.poolings = bits;
    s->info.n_poolings = 1;
    s->info.n_in = s->widest = width;
    qn_status status = QN_OK;
    for (size_t i = 0; i < sizeof layers / sizeof *layers && status == QN_OK; i++) {
        const qn_tensor_view *v = qn_source_find(source, layers[i]);
        if (v) status = read_gguf_dense(s, g, v, &width);
    }
    s->info.n_out = width;
    if (status == QN_OK)
        *out = s;
    else
        qn_sentence_free(s);
    return status;
}

void qn_sentence_free(qn_sentence *s)
{
    if (!s) return;
    for (int i = 0; i < QN_SENTENCE_DENSE_MAX; i++) {
        qn_free(s->layers[i].weight);
        qn_free(s->layers[i].bias);
    }
    for (size_t i = 0; i < s->info.n_prompts; i++) {
        qn_free(s->names[i]);
        qn_free(s->texts[i]);
    }
    qn_free(s->names);
    qn_free(s->texts);
    qn_free(s);
}

const qn_sentence_info *qn_sentence_get(const qn_sentence *s)
{
    return &s->info;
}

/* ---- projection --------------------------------------------------------------------------------------- */

/* In eight sums, which a compiler computes side by side. */
static float dot(const float *a, const float *b, int64_t n)
{
    float sums[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++) sums[k] += a[i + k] * b[i + k];
    for (; i < n; i++) sums[0] += a[i] * b[i];
    return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

static float activate(float x, dense_act act)
{
    switch (act) {
    case ACT_TANH:
        return tanhf(x);
    case ACT_RELU:
        return x > 0 ? x : 0;
    case ACT_GELU:
        return 0.5f * x * (1 + erff(x * 0.70710678f));
    case ACT_SIGMOID:
        return 1 / (1 + expf(-x));
    case ACT_SILU:
        return x / (1 + expf(-x));
    case ACT_NONE:
        break;
    }
    return x;
}

size_t qn_sentence_scratch(const qn_sentence *s)
{
    return 2 * (size_t)s->widest;
}

void qn_sentence_project(const qn_sentence *s, const float *x, float *scratch, float *out)
{
    for (int i = 0; i < s->info.n_dense; i++) {
        const dense *d = &s->layers[i];
        float *to = i + 1 == s->info.n_dense ? out : scratch + (i & 1) * s->widest;
        for (int64_t k = 0; k < d->n_out; k++)
            to[k] = activate(dot(d->weight + k * d->n_in, x, d->n_in) + (d->bias ? d->bias[k] : 0), d->act);
        x = to;
    }
    if (!s->info.n_dense) memcpy(out, x, (size_t)s->info.n_out * sizeof *out);
}
