/* Types, counts, numbers, patterns, formats, constants. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/c_locale.h"
#include "base/mem.h"
#include "constrain/automaton/formats.h"
#include "constrain/automaton/regex.h"
#include "constrain/json/any.h"
#include "constrain/json/compiler.h"

/* ---- types and counts ---------------------------------------------------------------------------------- */

static uint32_t type_mask(const char *name)
{
    static const struct {
        const char *name;
        uint32_t mask;
    } types[] = {{"null", QN_TYPE_NULL},     {"boolean", QN_TYPE_TRUE | QN_TYPE_FALSE},
                 {"number", QN_TYPE_NUMBER}, {"integer", QN_TYPE_NUMBER},
                 {"string", QN_TYPE_STRING}, {"object", QN_TYPE_OBJECT},
                 {"array", QN_TYPE_ARRAY},   {"any", QN_TYPE_ALL}};
    for (size_t i = 0; name && i < sizeof types / sizeof types[0]; i++)
        if (strcmp(types[i].name, name) == 0) return types[i].mask;
    return 0;
}

qn_status qn_types_of(qn_compiler *k, const json_t *at, const json_t *type, uint32_t *mask, int *integer)
{
    uint32_t m = 0;
    int has_number = 0, has_integer = 0;
    size_t n = json_is_array(type) ? json_array_size(type) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *t = json_is_array(type) ? json_array_get(type, i) : type;
        const char *name = json_string_value(t);
        uint32_t one = type_mask(name);
        if (!one) {
            if (name) return qn_compiler_refuse(k, at, "type", "\"%.40s\" is no type", name);
            return qn_compiler_refuse(k, at, "type", "is no name of a type and no list of names");
        }
        if (strcmp(name, "integer") == 0)
            has_integer = 1;
        else if (one & QN_TYPE_NUMBER)
            has_number = 1;
        m |= one;
    }
    *mask = m;
    *integer = has_integer && !has_number;
    return QN_OK;
}

qn_status qn_count_of(qn_compiler *k, const json_t *s, const char *keyword, int64_t *value, int *has)
{
    const json_t *v = json_object_get(s, keyword);
    *has = 0;
    if (!v) return QN_OK;
    double real = json_number_value(v);
    if (!json_is_number(v) || real < 0 || real != floor(real))
        return qn_compiler_refuse(k, s, keyword, "is no whole number of at least 0");
    *value = real < INT32_MAX / 2 ? (int64_t)real : INT32_MAX / 2;
    *has = 1;
    return QN_OK;
}

/* ---- numbers ------------------------------------------------------------------------------------------- */

const char *qn_decimal_of(qn_compiler *k, const json_t *number)
{
    char text[64];
    if (json_is_integer(number)) {
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(number));
    } else {
        double x = json_real_value(number);
        locale_t before = qn_c_locale_enter();
        for (int digits = 15; digits <= 17; digits++) {
            snprintf(text, sizeof text, "%.*g", digits, x);
            if (qn_parse_real(text, NULL) == x) break;
        }
        qn_c_locale_leave(before);
    }
    return qn_arena_strndup(&k->arena, text, strlen(text));
}

/* Results are kept by what they were made of: the same automata are wanted again and again. */
static int known(const qn_compiler *k, const void *key, size_t n, int32_t *out)
{
    int64_t value;
    if (!qn_map_get(k->dfa_of, key, n, &value)) return 0;
    *out = (int32_t)value;
    return 1;
}

static qn_status keep(qn_compiler *k, const void *key, size_t n, int32_t value)
{
    char *copy = qn_arena_alloc(&k->arena, n);
    if (!copy) return QN_E_NOMEM;
    memcpy(copy, key, n);
    return qn_map_set(k->dfa_of, copy, n, value, NULL, NULL);
}

static qn_status make_number_dfa(qn_compiler *k, const qn_number_bounds *b, int32_t *out)
{
    qn_dfa *d;
    QN_TRY(qn_dfa_number(b, &k->p->dfa_limits, &d));
    QN_TRY(qn_program_add_dfa(k->p, d, out));
    int is_bounded = (b->minimum || b->exclusive_minimum) && (b->maximum || b->exclusive_maximum);
    int is_whole = b->integer && k->doc.draft == QN_DRAFT_4;
    if (is_bounded && !is_whole) return QN_OK;
    int32_t narrower;
    QN_TRY(qn_plain_numbers(k, is_whole ? QN_NUMBERS_WHOLE : QN_NUMBERS_ANY, &narrower));
    return qn_dfa_both(k, *out, narrower, out);
}

qn_status qn_number_dfa(qn_compiler *k, const qn_number_bounds *b, int32_t *out)
{
    const char *const bounds[] = {b->minimum, b->maximum, b->exclusive_minimum, b->exclusive_maximum,
                                  b->multiple_of};
    qn_buf key = {0};
    qn_buf_puts(&key, b->integer ? "ni" : "nn");
    for (int i = 0; i < 5; i++) {
        qn_buf_putc(&key, '|');
        if (bounds[i]) qn_buf_puts(&key, bounds[i]);
    }
    qn_status status = key.status;
    if (status == QN_OK && !known(k, key.data, key.length, out)) {
        status = make_number_dfa(k, b, out);
        if (status == QN_OK) status = keep(k, key.data, key.length, *out);
    }
    qn_buf_free(&key);
    return status;
}

qn_status qn_plain_numbers(qn_compiler *k, qn_number_spelling spelling, int32_t *out)
{
    static const char *const patterns[] = {"-?(0|[1-9][0-9]*)(\\.[0-9]+)?", "-?(0|[1-9][0-9]*)"};
    if (spelling == QN_NUMBERS_ANY) {
        int32_t any;
        QN_TRY(qn_any_value(k->p, &any));
        *out = k->p->values[any].number;
        return QN_OK;
    }
    if (k->plain_numbers[spelling] == QN_NONE) {
        const char *pattern = patterns[spelling];
        qn_dfa *p;
        QN_TRY(qn_dfa_regex(pattern, strlen(pattern), QN_REGEX_WHOLE, &k->p->dfa_limits, &p));
        QN_TRY(qn_program_add_dfa(k->p, p, &k->plain_numbers[spelling]));
    }
    *out = k->plain_numbers[spelling];
    return QN_OK;
}

qn_status qn_number_deny(qn_compiler *k, int32_t d, int32_t *out)
{
    int32_t plain;
    QN_TRY(qn_plain_numbers(k, QN_NUMBERS_PLAIN, &plain));
    return qn_dfa_without(k, plain, d, out);
}

/* ---- automata ------------------------------------------------------------------------------------------ */

typedef qn_status operation(qn_dfa *a, qn_dfa *b, const qn_dfa_limits *limits, qn_dfa **out);

static qn_status operate(qn_compiler *k, operation *made, char name, int32_t a, int32_t b, int32_t *out)
{
    int32_t key[3] = {name, a, b};
    if (known(k, key, sizeof key, out)) return QN_OK;
    qn_dfa *d;
    QN_TRY(made(k->p->dfas[a], k->p->dfas[b], &k->p->dfa_limits, &d));
    QN_TRY(qn_program_add_dfa(k->p, d, out));
    return keep(k, key, sizeof key, *out);
}

qn_status qn_dfa_both(qn_compiler *k, int32_t a, int32_t b, int32_t *out)
{
    if (a == b || b == k->p->all) {
        *out = a;
        return QN_OK;
    }
    return operate(k, qn_dfa_intersect, '&', a < b ? a : b, a < b ? b : a, out);
}

qn_status qn_dfa_either(qn_compiler *k, int32_t a, int32_t b, int32_t *out)
{
    if (a == b) {
        *out = a;
        return QN_OK;
    }
    return operate(k, qn_dfa_unite, '|', a < b ? a : b, a < b ? b : a, out);
}

qn_status qn_dfa_without(qn_compiler *k, int32_t a, int32_t b, int32_t *out)
{
    return operate(k, qn_dfa_subtract, '-', a, b, out);
}

qn_status qn_pattern_dfa(qn_compiler *k, const json_t *at, const char *keyword, const char *pattern,
                         int32_t *out)
{
    int is_format = strcmp(keyword, "format") == 0, is_content = strncmp(keyword, "content", 7) == 0;
    size_t n = strlen(pattern);
    char *key = qn_arena_alloc(&k->arena, n + 2);
    if (!key) return QN_E_NOMEM;
    key[0] = is_format ? 'f' : is_content ? keyword[7] : 'p'; /* E or M */
    memcpy(key + 1, pattern, n + 1);
    int64_t known;
    if (qn_map_get(k->dfa_of, key, n + 1, &known)) {
        *out = (int32_t)known;
        return QN_OK;
    }
    qn_dfa *d;
    qn_status status = is_format    ? qn_dfa_format(pattern, &k->p->dfa_limits, &d)
                       : is_content ? qn_dfa_content(keyword, pattern, &k->p->dfa_limits, &d)
                                    : qn_dfa_regex(pattern, n, QN_REGEX_SEARCH, &k->p->dfa_limits, &d);
    if (status == QN_E_NOT_FOUND) {
        *out = QN_NONE;
        QN_TRY(qn_compiler_note(k, at, keyword,
                                is_content ? "is an annotation" : "no format of the drafts: not enforced"));
    } else if (status != QN_OK) {
        return qn_compiler_refuse_as(k, status, at, keyword);
    } else {
        QN_TRY(qn_program_add_dfa(k->p, d, out));
    }
    return qn_map_set(k->dfa_of, key, n + 1, *out, NULL, NULL);
}

/* ---- constants ----------------------------------------------------------------------------------------- */

/* A schema that takes nothing but this object or array. Borrowed from k->made. */
static qn_status constant_schema(qn_compiler *k, const json_t *value, const json_t **out)
{
    json_t *s = json_object();
    int failed = !s;
    if (s && json_is_object(value)) {
        json_t *properties = json_object(), *required = json_array();
        for (void *it = json_object_iter((json_t *)value); it && !failed;
             it = json_object_iter_next((json_t *)value, it)) {
            const char *name = json_object_iter_key(it);
            json_t *one = json_pack("{s:[O]}", "enum", json_object_iter_value(it));
            failed = !one || json_object_set_new(properties, name, one) ||
                     json_array_append_new(required, json_string(name));
        }
        failed |= json_object_set_new(s, "type", json_string("object"));
        failed |= json_object_set_new(s, "properties", properties);
        failed |= json_object_set_new(s, "required", required);
        failed |= json_object_set_new(s, "additionalProperties", json_false());
    } else if (s) {
        json_t *items = json_array();
        for (size_t i = 0; i < json_array_size(value) && !failed; i++) {
            json_t *one = json_pack("{s:[O]}", "enum", json_array_get(value, i));
            failed = !one || json_array_append_new(items, one);
        }
        json_int_t n = (json_int_t)json_array_size(value);
        failed |= json_object_set_new(s, "type", json_string("array"));
        failed |= json_object_set_new(s, k->doc.draft == QN_DRAFT_2020 ? "prefixItems" : "items", items);
        failed |= json_object_set_new(s, "minItems", json_integer(n));
        failed |= json_object_set_new(s, "maxItems", json_integer(n));
    }
    if (failed || json_array_append_new(k->made, s)) {
        if (failed) json_decref(s);
        return qn_fail_nomem(0);
    }
    *out = s;
    return QN_OK;
}

/* Schemas of constants are made once for each value. */
static qn_status constant(qn_compiler *k, const json_t *value, int is_denied, int32_t *conjunct)
{
    int64_t known;
    const json_t *s = NULL;
    if (qn_map_get(k->dfa_of, &value, sizeof value, &known)) {
        s = json_array_get(k->made, (size_t)known);
    } else {
        const json_t **key = qn_arena_alloc(&k->arena, sizeof *key);
        if (!key) return QN_E_NOMEM;
        *key = value;
        QN_TRY(constant_schema(k, value, &s));
        QN_TRY(qn_map_set(k->dfa_of, key, sizeof *key, (int64_t)json_array_size(k->made) - 1, NULL, NULL));
    }
    return qn_conjunct_of(k, s, is_denied, conjunct);
}

static uint32_t mask_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_NULL:
        return QN_TYPE_NULL;
    case JSON_TRUE:
        return QN_TYPE_TRUE;
    case JSON_FALSE:
        return QN_TYPE_FALSE;
    case JSON_STRING:
        return QN_TYPE_STRING;
    case JSON_OBJECT:
        return QN_TYPE_OBJECT;
    case JSON_ARRAY:
        return QN_TYPE_ARRAY;
    default:
        return QN_TYPE_NUMBER;
    }
}

/* The strings, and the numbers, of a list of values; QN_NONE: none. */
static qn_status make_scalars(qn_compiler *k, const json_t *values, int32_t *texts, int32_t *numbers)
{
    size_t n = json_array_size(values), n_texts = 0;
    *texts = *numbers = QN_NONE;
    qn_text_ref *list = qn_arena_alloc(&k->arena, (n + 1) * sizeof *list);
    if (!list) return QN_E_NOMEM;
    qn_dfa *all_numbers = NULL;
    qn_status status = QN_OK;
    for (size_t i = 0; i < n && status == QN_OK; i++) {
        const json_t *v = json_array_get(values, i);
        if (json_is_string(v)) list[n_texts++] = (qn_text_ref){json_string_value(v), json_string_length(v)};
        if (!json_is_number(v)) continue;
        const char *text = qn_decimal_of(k, v);
        qn_dfa *one = NULL, *both = NULL;
        status = text ? qn_dfa_number(&(qn_number_bounds){.minimum = text, .maximum = text},
                                      &k->p->dfa_limits, &one)
                      : QN_E_NOMEM;
        if (status == QN_OK && all_numbers) {
            status = qn_dfa_unite(all_numbers, one, &k->p->dfa_limits, &both);
            qn_dfa_release(one);
            one = both;
        }
        if (status != QN_OK) break;
        qn_dfa_release(all_numbers);
        all_numbers = one;
    }
    if (status == QN_OK && all_numbers) {
        status = qn_program_add_dfa(k->p, all_numbers, numbers);
        all_numbers = NULL;
    }
    qn_dfa_release(all_numbers);
    if (status == QN_OK && n_texts) {
        qn_dfa *d;
        status = qn_dfa_texts(list, n_texts, &k->p->dfa_limits, &d);
        if (status == QN_OK) status = qn_program_add_dfa(k->p, d, texts);
    }
    return status;
}

/* Kept by the address of the values; a list of one by that of its value, for constants have lists made anew. */
static qn_status scalars(qn_compiler *k, const json_t *values, int32_t *texts, int32_t *numbers)
{
    struct {
        const json_t *at;
        int64_t what;
    } key = {json_array_size(values) == 1 ? json_array_get(values, 0) : values, 0}, other = {key.at, 1};
    if (known(k, &key, sizeof key, texts) && known(k, &other, sizeof other, numbers)) return QN_OK;
    QN_TRY(make_scalars(k, values, texts, numbers));
    QN_TRY(keep(k, &key, sizeof key, *texts));
    return keep(k, &other, sizeof other, *numbers);
}

static qn_status put_dfas(qn_compiler *k, qn_case *c, const json_t *at, int32_t texts, int32_t numbers)
{
    if (texts != QN_NONE) {
        qn_fact *f = qn_fact_before(k, c->due, QN_FACT_TEXTS, at);
        if (!f) return QN_E_NOMEM;
        f->dfa = texts;
        c->due = f;
    }
    if (numbers != QN_NONE) {
        qn_fact *f = qn_fact_before(k, c->due, QN_FACT_NUMBERS, at);
        qn_number_fact *x = qn_arena_calloc(&k->arena, 1, sizeof *x);
        if (!f || !x) return QN_E_NOMEM;
        x->dfa = numbers;
        f->number = x;
        c->due = f;
    }
    return QN_OK;
}

qn_status qn_enum_assert(qn_compiler *k, qn_case *c, const json_t *at, const json_t *values, uint32_t scope)
{
    const uint32_t complex = QN_TYPE_OBJECT | QN_TYPE_ARRAY;
    size_t n = json_array_size(values);
    uint32_t mask = 0, n_complex = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t one = mask_of(json_array_get(values, i));
        mask |= one;
        n_complex += (one & c->types & complex) != 0;
    }
    c->types &= mask;
    int32_t texts, numbers;
    QN_TRY(scalars(k, values, &texts, &numbers));
    QN_TRY(put_dfas(k, c, at, texts, numbers));
    if (n_complex == 0) {
        c->types &= ~complex;
        return QN_OK;
    }
    /* One of the objects and arrays, or what is neither. */
    const qn_fact **options = qn_arena_calloc(&k->arena, n_complex + 1, sizeof *options);
    if (!options) return QN_E_NOMEM;
    uint32_t n_options = 0;
    if (mask & ~complex) {
        qn_fact *f = qn_fact_before(k, NULL, QN_FACT_TYPES, at);
        if (!f) return QN_E_NOMEM;
        f->min = ~complex & QN_TYPE_ALL;
        options[n_options++] = f;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(values, i);
        if (!(mask_of(v) & c->types & complex)) continue;
        qn_fact *f = qn_fact_before(k, NULL, QN_FACT_CONJUNCT, at);
        if (!f) return QN_E_NOMEM;
        f->scope = scope;
        QN_TRY(constant(k, v, 0, &f->conjunct));
        options[n_options++] = f;
    }
    return qn_case_fork(k, c, at, options, n_options);
}

qn_status qn_enum_deny(qn_compiler *k, qn_case *c, const json_t *at, const json_t *values)
{
    int32_t texts, numbers;
    for (size_t i = 0; i < json_array_size(values); i++) {
        const json_t *v = json_array_get(values, i);
        uint32_t mask = mask_of(v);
        if (mask & (QN_TYPE_NULL | QN_TYPE_TRUE | QN_TYPE_FALSE)) {
            c->types &= ~mask;
        } else if (mask & c->types & (QN_TYPE_OBJECT | QN_TYPE_ARRAY)) {
            int32_t conjunct;
            QN_TRY(constant(k, v, 1, &conjunct));
            QN_TRY(qn_case_add(k, c, conjunct, at, 0));
        }
    }
    QN_TRY(scalars(k, values, &texts, &numbers));
    if (texts != QN_NONE) QN_TRY(qn_dfa_without(k, k->p->all, texts, &texts));
    if (numbers != QN_NONE) QN_TRY(qn_number_deny(k, numbers, &numbers));
    return put_dfas(k, c, at, texts, numbers);
}
