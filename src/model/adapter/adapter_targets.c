#include "model/adapter/adapter_targets.h"

#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "model/adapter/name_pattern.h"

enum { NAMES_MAX = 65536, PATTERNS_MAX = 64 };

/* A field that is a regular expression or a list of names. */
typedef struct {
    qn_name_pattern *pattern; /* NULL: names */
    const json_t *names;      /* NULL: the field is not there */
} choice;

typedef struct {
    qn_name_pattern **list;
    size_t n;
} patterns;

struct qn_adapter_targets {
    const char *file;
    choice targets, excluded;
    int all_linear;
    const json_t *saved, *layers; /* NULL: not there */
    patterns saved_patterns, layer_patterns;
};

/* ---- reading ------------------------------------------------------------------------------------------- */

/* *out NULL: the field is missing or null. */
static qn_status read_names(const qn_fields *f, const char *field, const json_t **out)
{
    const json_t *value = qn_fields_get(f, field), *name;
    size_t i;
    *out = NULL;
    if (!value || json_is_null(value)) return QN_OK;
    if (!json_is_array(value))
        return qn_fail(QN_E_FORMAT, "%s: %s is neither a text nor a list of names", f->file, field);
    if (json_array_size(value) > NAMES_MAX)
        return qn_fail(QN_E_UNSUPPORTED, "%s: %s has %zu names, at most %d are allowed", f->file, field,
                       json_array_size(value), NAMES_MAX);
    json_array_foreach(value, i, name) if (!json_is_string(name)) return qn_fail(
        QN_E_FORMAT, "%s: %s: element %zu is not a name", f->file, field, i);
    *out = value;
    return QN_OK;
}

static qn_status make_pattern(const qn_fields *f, const char *field, const char *before, const char *key,
                              const char *after, qn_name_pattern **out)
{
    const qn_status status = qn_name_pattern_between(before, key, after, out);
    return status == QN_OK ? QN_OK : qn_fail_prefix(status, "%s: %s", f->file, field);
}

static qn_status read_choice(const qn_fields *f, const char *field, choice *out)
{
    const json_t *value = qn_fields_get(f, field);
    if (!json_is_string(value)) return read_names(f, field, &out->names);
    return make_pattern(f, field, "(?:", json_string_value(value), ")\\z", &out->pattern);
}

/* An expression for each name, the names being expressions themselves. */
static qn_status read_patterns(const qn_fields *f, const char *field, const json_t *names, const char *before,
                               const char *after, patterns *out)
{
    const size_t n = json_array_size(names);
    if (n > PATTERNS_MAX)
        return qn_fail(QN_E_UNSUPPORTED, "%s: %s has %zu names, at most %d are allowed", f->file, field, n,
                       PATTERNS_MAX);
    out->list = qn_calloc(n + 1, sizeof *out->list);
    if (!out->list) return QN_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        const char *name = json_string_value(json_array_get(names, i));
        QN_TRY(make_pattern(f, field, before, name, after, &out->list[i]));
        out->n++;
    }
    return QN_OK;
}

/* Without a pattern any name may stand before the first number. */
static qn_status read_layers_pattern(const qn_fields *f, qn_adapter_targets *t)
{
    static const char field[] = "layers_pattern", digits[] = "\\.(?<idx>\\d+)\\.", begin[] = "(?:^|.*?\\.)";
    const json_t *value = qn_fields_get(f, field), *names = NULL;
    const int is_text = json_is_string(value) && json_string_length(value) > 0;
    if (!json_is_string(value)) QN_TRY(read_names(f, field, &names));
    if ((is_text || json_array_size(names) > 0) && !t->layers)
        return qn_fail(QN_E_FORMAT, "%s: layers_pattern needs layers_to_transform, which is not there",
                       f->file);
    if (json_array_size(names) > 0) return read_patterns(f, field, names, begin, digits, &t->layer_patterns);
    t->layer_patterns.list = qn_calloc(1, sizeof *t->layer_patterns.list);
    if (!t->layer_patterns.list) return QN_E_NOMEM;
    QN_TRY(make_pattern(f, field, is_text ? begin : ".*?\\.", is_text ? json_string_value(value) : "[^.]*",
                        digits, t->layer_patterns.list));
    t->layer_patterns.n = 1;
    return QN_OK;
}

static qn_status read_layers(const qn_fields *f, qn_adapter_targets *t)
{
    const json_t *layers = qn_fields_get(f, "layers_to_transform"), *layer;
    size_t i;
    if (json_is_array(layers) ? json_array_size(layers) > 0 : json_is_integer(layers)) t->layers = layers;
    if (layers && !json_is_null(layers) && !json_is_integer(layers) && !json_is_array(layers))
        return qn_fail(QN_E_FORMAT, "%s: layers_to_transform is neither a number nor a list", f->file);
    if (json_is_array(layers)) {
        json_array_foreach(layers, i, layer) if (!json_is_integer(layer)) return qn_fail(
            QN_E_FORMAT, "%s: layers_to_transform: element %zu is not a whole number", f->file, i);
    }
    if (t->layers && t->targets.pattern)
        return qn_fail(QN_E_FORMAT,
                       "%s: layers_to_transform cannot be used where target_modules is a regular expression",
                       f->file);
    return read_layers_pattern(f, t);
}

static qn_status read_fields(const qn_fields *f, qn_adapter_targets *t)
{
    const json_t *targets = qn_fields_get(f, "target_modules");
    t->all_linear = json_is_string(targets) && strcasecmp(json_string_value(targets), "all-linear") == 0;
    if (!t->all_linear) QN_TRY(read_choice(f, "target_modules", &t->targets));
    QN_TRY(read_choice(f, "exclude_modules", &t->excluded));
    QN_TRY(read_names(f, "modules_to_save", &t->saved));
    QN_TRY(
        read_patterns(f, "modules_to_save", t->saved, "(?:^|.*\\.)(?:", ")(?:$|\\..*)", &t->saved_patterns));
    return read_layers(f, t);
}

qn_status qn_adapter_targets_read(const qn_fields *f, qn_adapter_targets **out)
{
    qn_adapter_targets *t = qn_calloc(1, sizeof *t);
    if (!t) return QN_E_NOMEM;
    t->file = f->file;
    const qn_status status = read_fields(f, t);
    if (status == QN_OK)
        *out = t;
    else
        qn_adapter_targets_free(t);
    return status;
}

static void free_patterns(patterns *p)
{
    for (size_t i = 0; i < p->n; i++) qn_name_pattern_free(p->list[i]);
    qn_free(p->list);
}

void qn_adapter_targets_free(qn_adapter_targets *t)
{
    if (!t) return;
    qn_name_pattern_free(t->targets.pattern);
    qn_name_pattern_free(t->excluded.pattern);
    free_patterns(&t->saved_patterns);
    free_patterns(&t->layer_patterns);
    qn_free(t);
}

/* ---- asking -------------------------------------------------------------------------------------------- */

/* 1: the module's whole name; 2: the end of its path. */
static qn_status chosen(const choice *c, const char *module, int *how)
{
    const json_t *name;
    const size_t n = strlen(module);
    size_t i;
    *how = 0;
    if (c->pattern) return qn_name_pattern_match(c->pattern, module, how);
    json_array_foreach(c->names, i, name)
    {
        const size_t m = json_string_length(name);
        if (m > n || strcmp(module + n - m, json_string_value(name)) != 0) continue;
        if (m == n) *how = 1;
        if (m < n && module[n - m - 1] == '.' && !*how) *how = 2;
    }
    return QN_OK;
}

static qn_status has_layer(const qn_adapter_targets *t, const char *module, int *out)
{
    const json_t *one;
    int64_t layer = -1;
    size_t i;
    *out = 0;
    for (i = 0; i < t->layer_patterns.n && layer < 0; i++)
        QN_TRY(qn_name_pattern_number(t->layer_patterns.list[i], module, &layer));
    if (layer < 0) return QN_OK;
    if (json_is_integer(t->layers)) *out = json_integer_value(t->layers) == layer;
    json_array_foreach(t->layers, i, one) if (json_integer_value(one) == layer) *out = 1;
    return QN_OK;
}

qn_status qn_adapter_targets_check(const qn_adapter_targets *t, const char *module, int is_linear,
                                   const char **field)
{
    int how = 0, matches = 0;
    *field = NULL;
    QN_TRY(chosen(&t->excluded, module, &how));
    if (how) *field = "exclude_modules";
    for (size_t i = 0; i < t->saved_patterns.n && !*field; i++) {
        QN_TRY(qn_name_pattern_match(t->saved_patterns.list[i], module, &matches));
        if (matches) *field = "modules_to_save";
    }
    if (*field) return QN_OK;
    const int is_free = !t->all_linear && !t->targets.pattern && !t->targets.names;
    if (!t->all_linear) QN_TRY(chosen(&t->targets, module, &how));
    if (!is_free && !(t->all_linear ? is_linear : how)) {
        *field = "target_modules";
        return QN_OK;
    }
    if (!t->layers || how == 1) return QN_OK;
    QN_TRY(has_layer(t, module, &matches));
    return matches ? QN_OK
                   : qn_fail(QN_E_FORMAT, "%s: layers_to_transform does not name the layer of %.100s",
                             t->file, module);
}

int qn_adapter_targets_saves(const qn_adapter_targets *t, const char *module)
{
    const char *name;
    for (size_t i = 0; (name = qn_adapter_targets_saved(t, i)); i++) {
        const size_t n = strlen(name);
        for (const char *at = module; n && (at = strstr(at, name)); at++)
            if (!at[n] || at[n] == '.') return 1;
    }
    return 0;
}

const char *qn_adapter_targets_saved(const qn_adapter_targets *t, size_t i)
{
    return json_string_value(json_array_get(t->saved, i));
}
