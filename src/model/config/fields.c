#include "model/config/fields.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/c_locale.h"
#include "model/config/gguf/gguf_config.h"

enum { LABEL_MAX = 160 };

static const json_t *value_of(const qn_fields *f, const char *name)
{
    const json_t *value = json_object_get(f->object, name);
    if (!value && f->outer) value = json_object_get(f->outer, name);
    return value;
}

/* The name by which the description has a field: of the family's spellings the first that is there, else ours if it
 * is there, else the first spelling. */
static const char *spelling_of(const qn_fields *f, const char *name)
{
    const qn_field_spelling *first = NULL;
    for (const qn_field_spelling *s = f->gguf_architecture ? NULL : f->spelled; s && s->name; s++) {
        if (strcmp(s->name, name) != 0) continue;
        if (value_of(f, s->spelled)) return s->spelled;
        if (!first) first = s;
    }
    return first && !value_of(f, name) ? first->spelled : name;
}

const json_t *qn_fields_get(const qn_fields *f, const char *name)
{
    return value_of(f, spelling_of(f, name));
}

const char *qn_fields_label(const qn_fields *f, const char *name, char *text, size_t size)
{
    if (f->gguf_architecture) {
        char full[LABEL_MAX];
        snprintf(full, sizeof full, "%s%s", f->path, name);
        const char *key = qn_gguf_config_key(full);
        qn_gguf_config_full_key(f->gguf_architecture, key ? key : full, text, size);
    } else {
        name = spelling_of(f, name);
        int nested = !f->outer || json_object_get(f->object, name);
        snprintf(text, size, "%s%s", nested ? f->path : "", name);
    }
    return text;
}

static const qn_field_default *default_of(const qn_fields *f, const char *name)
{
    for (const qn_field_default *d = f->defaults; d && d->name; d++)
        if (strcmp(d->name, name) == 0 && (!f->gguf_architecture || d->also_gguf)) return d;
    return NULL;
}

static const char *kind_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    default:
        return "null";
    }
}

static qn_status wrong_type(const qn_fields *f, const char *name, const json_t *value, const char *expected)
{
    char label[LABEL_MAX];
    return qn_fail(QN_E_FORMAT, "%s: %s is %s, expected %s", f->file,
                   qn_fields_label(f, name, label, sizeof label), kind_of(value), expected);
}

static void set_found(int *found, int value)
{
    if (found) *found = value;
}

/* Numbers beyond this are not exact in a double; every limit of a field lies below. */
static const double exact_max = 9007199254740992.0;

qn_status qn_fields_int(const qn_fields *f, const char *name, int64_t min, int64_t max, int64_t *out,
                        int *found)
{
    const json_t *value = qn_fields_get(f, name);
    char label[LABEL_MAX];
    int64_t number;
    if (!value) {
        const qn_field_default *d = default_of(f, name);
        set_found(found, d != NULL);
        if (d) *out = (int64_t)d->value;
        return QN_OK;
    }
    if (json_is_null(value)) {
        set_found(found, 0);
        return QN_OK;
    }
    if (json_is_integer(value)) {
        number = json_integer_value(value);
    } else if (json_is_real(value)) {
        double real = json_real_value(value);
        if (!(fabs(real) <= exact_max) || real != floor(real))
            return qn_fail(QN_E_FORMAT, "%s: %s is %.9g, expected an integer", f->file,
                           qn_fields_label(f, name, label, sizeof label), real);
        number = (int64_t)real;
    } else {
        return wrong_type(f, name, value, "an integer");
    }
    if (number < min || number > max)
        return qn_fail(QN_E_FORMAT, "%s: %s is %lld, expected %lld to %lld", f->file,
                       qn_fields_label(f, name, label, sizeof label), (long long)number, (long long)min,
                       (long long)max);
    *out = number;
    set_found(found, 1);
    return QN_OK;
}

qn_status qn_fields_required_int(const qn_fields *f, const char *name, int64_t min, int64_t max, int64_t *out)
{
    int found = 0;
    char label[LABEL_MAX];
    QN_TRY(qn_fields_int(f, name, min, max, out, &found));
    if (found) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: %s is missing", f->file, qn_fields_label(f, name, label, sizeof label));
}

qn_status qn_fields_number(const qn_fields *f, const char *name, double min, double max, double *out,
                           int *found)
{
    const json_t *value = qn_fields_get(f, name);
    char label[LABEL_MAX];
    if (!value) {
        const qn_field_default *d = default_of(f, name);
        set_found(found, d != NULL);
        if (d) *out = d->value;
        return QN_OK;
    }
    if (json_is_null(value)) {
        set_found(found, 0);
        return QN_OK;
    }
    if (!json_is_number(value)) return wrong_type(f, name, value, "a number");
    double number = json_number_value(value);
    if (!(number >= min && number <= max))
        return qn_fail(QN_E_FORMAT, "%s: %s is %.9g, expected %.9g to %.9g", f->file,
                       qn_fields_label(f, name, label, sizeof label), number, min, max);
    *out = number;
    set_found(found, 1);
    return QN_OK;
}

qn_status qn_fields_spelt_number(const qn_fields *f, const char *name, double min, double max, double *out,
                                 int *found)
{
    const char *text = json_string_value(qn_fields_get(f, name));
    char label[LABEL_MAX], *end = NULL;
    if (!text) return qn_fields_number(f, name, min, max, out, found);
    const double number = qn_parse_real(text, &end);
    if (!*text || *end || !(number >= min && number <= max))
        return qn_fail(QN_E_FORMAT, "%s: %s is \"%.40s\", expected a number from %.9g to %.9g", f->file,
                       qn_fields_label(f, name, label, sizeof label), text, min, max);
    *out = number;
    set_found(found, 1);
    return QN_OK;
}

qn_status qn_fields_bool(const qn_fields *f, const char *name, int *out, int *found)
{
    const json_t *value = qn_fields_get(f, name);
    const qn_field_default *d = value ? NULL : default_of(f, name);
    set_found(found, d != NULL);
    if (d) *out = d->value != 0;
    if (!value || json_is_null(value)) return QN_OK;
    if (!json_is_boolean(value)) return wrong_type(f, name, value, "true or false");
    *out = json_is_true(value);
    set_found(found, 1);
    return QN_OK;
}

qn_status qn_fields_string(const qn_fields *f, const char *name, const char **out, int *found)
{
    const json_t *value = qn_fields_get(f, name);
    set_found(found, 0);
    if (!value || json_is_null(value)) return QN_OK;
    if (!json_is_string(value)) return wrong_type(f, name, value, "a string");
    *out = json_string_value(value);
    set_found(found, 1);
    return QN_OK;
}

qn_status qn_fields_object(const qn_fields *f, const char *name, const char *path, qn_fields *out, int *found)
{
    const json_t *value = qn_fields_get(f, name);
    set_found(found, 0);
    if (!value || json_is_null(value)) return QN_OK;
    if (!json_is_object(value)) return wrong_type(f, name, value, "an object");
    *out = (qn_fields){
        .file = f->file, .object = value, .path = path, .gguf_architecture = f->gguf_architecture};
    set_found(found, 1);
    return QN_OK;
}
