/* What it takes for a schema not to hold: one of its keywords must fail, so a denial is a fork. */
#include <string.h>

#include "base/mem.h"
#include "constrain/json/compiler.h"

typedef struct {
    qn_compiler *k;
    qn_case *c;
    const json_t *s;
    const qn_fact **options;
    uint32_t n, room;
} denial;

static qn_status put(denial *d, const qn_fact *list)
{
    if (d->n == d->room) {
        uint32_t more = d->room ? 2 * d->room : 8;
        const qn_fact **p = qn_arena_alloc(&d->k->arena, more * sizeof *p);
        if (!p) return QN_E_NOMEM;
        if (d->n) memcpy(p, d->options, d->n * sizeof *p);
        d->options = p;
        d->room = more;
    }
    d->options[d->n++] = list;
    return QN_OK;
}

static qn_fact *fact(denial *d, const qn_fact *before, qn_fact_kind kind)
{
    return qn_fact_before(d->k, before, kind, d->s);
}

/* Puts the option "a value of these types, and the facts of the list". */
static qn_status put_typed(denial *d, uint32_t types, const qn_fact *list)
{
    if (!(d->c->types & types)) return QN_OK;
    qn_fact *f = fact(d, list, QN_FACT_TYPES);
    if (!f) return QN_E_NOMEM;
    f->min = types;
    return put(d, f);
}

static qn_status put_schema(denial *d, const json_t *schema, int is_denied)
{
    int32_t conjunct;
    QN_TRY(qn_conjunct_of(d->k, schema, is_denied, &conjunct));
    if (conjunct == QN_CONJUNCT_FALSE) return QN_OK;
    qn_fact *f = fact(d, NULL, QN_FACT_CONJUNCT);
    if (!f) return QN_E_NOMEM;
    f->conjunct = conjunct;
    return put(d, f);
}

static int has(const json_t *s, const char *keyword)
{
    return json_object_get(s, keyword) != NULL;
}

/* ---- numbers and strings ------------------------------------------------------------------------------- */

static qn_status put_number(denial *d, qn_number_bounds b, int32_t dfa)
{
    qn_fact *f = fact(d, NULL, QN_FACT_NUMBERS);
    qn_number_fact *x = qn_arena_calloc(&d->k->arena, 1, sizeof *x);
    if (!f || !x) return QN_E_NOMEM;
    *x = (qn_number_fact){b, dfa};
    f->number = x;
    return put_typed(d, QN_TYPE_NUMBER, f);
}

static qn_status deny_numbers(denial *d)
{
    static const char *const keywords[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
                                           "multipleOf"};
    for (int i = 0; i < 5; i++) {
        const json_t *v = json_object_get(d->s, keywords[i]);
        if (!v || json_is_boolean(v)) continue;
        if (!json_is_number(v)) return qn_compiler_refuse(d->k, d->s, keywords[i], "is no number");
        const char *text = qn_decimal_of(d->k, v);
        if (!text) return QN_E_NOMEM;
        qn_number_bounds b = {0};
        int32_t dfa = QN_NONE;
        switch (i) {
        case 0:
            if (json_is_true(json_object_get(d->s, "exclusiveMinimum")))
                b.maximum = text;
            else
                b.exclusive_maximum = text;
            break;
        case 1:
            if (json_is_true(json_object_get(d->s, "exclusiveMaximum")))
                b.minimum = text;
            else
                b.exclusive_minimum = text;
            break;
        case 2:
            b.maximum = text;
            break;
        case 3:
            b.minimum = text;
            break;
        default:
            b.multiple_of = text;
            QN_TRY(qn_number_dfa(d->k, &b, &dfa));
            QN_TRY(qn_number_deny(d->k, dfa, &dfa));
        }
        QN_TRY(put_number(d, b, dfa));
    }
    return QN_OK;
}

static qn_status put_bounds(denial *d, uint32_t type, qn_fact_kind kind, const char *least, const char *most)
{
    int64_t n;
    int there;
    QN_TRY(qn_count_of(d->k, d->s, least, &n, &there));
    if (there && n > 0) {
        qn_fact *f = fact(d, NULL, kind);
        if (!f) return QN_E_NOMEM;
        f->max = n - 1;
        QN_TRY(put_typed(d, type, f));
    }
    QN_TRY(qn_count_of(d->k, d->s, most, &n, &there));
    if (!there) return QN_OK;
    qn_fact *f = fact(d, NULL, kind);
    if (!f) return QN_E_NOMEM;
    f->min = n + 1;
    return put_typed(d, type, f);
}

static qn_status deny_strings(denial *d)
{
    static const char *const keywords[] = {"pattern", "format", "contentEncoding", "contentMediaType"};
    QN_TRY(put_bounds(d, QN_TYPE_STRING, QN_FACT_LENGTH, "minLength", "maxLength"));
    for (int i = 0; i < (d->k->doc.draft == QN_DRAFT_7 ? 4 : 2); i++) {
        const char *pattern = json_string_value(json_object_get(d->s, keywords[i]));
        if (!pattern) continue;
        int32_t dfa;
        QN_TRY(qn_pattern_dfa(d->k, d->s, keywords[i], pattern, &dfa));
        if (dfa == QN_NONE) continue;
        qn_fact *f = fact(d, NULL, QN_FACT_TEXTS);
        if (!f) return QN_E_NOMEM;
        QN_TRY(qn_dfa_without(d->k, d->k->p->all, dfa, &f->dfa));
        QN_TRY(put_typed(d, QN_TYPE_STRING, f));
    }
    return QN_OK;
}

/* ---- objects ------------------------------------------------------------------------------------------- */

static qn_status put_name(denial *d, qn_fact_kind kind, const char *name, const qn_fact *before)
{
    qn_fact *f = fact(d, before, kind);
    if (!f) return QN_E_NOMEM;
    f->name = name;
    return put_typed(d, QN_TYPE_OBJECT, f);
}

/* A member that is there and breaks the schema. */
static qn_status put_member(denial *d, const char *name, const json_t *schema)
{
    int32_t conjunct;
    QN_TRY(qn_conjunct_of(d->k, schema, 1, &conjunct));
    if (conjunct == QN_CONJUNCT_FALSE) return QN_OK;
    qn_fact *f = fact(d, NULL, QN_FACT_PROPERTY);
    if (!f) return QN_E_NOMEM;
    f->name = name;
    f->conjunct = conjunct;
    return put_name(d, QN_FACT_REQUIRED, name, f);
}

static qn_status deny_dependencies(denial *d, const char *keyword)
{
    const json_t *x = json_object_get(d->s, keyword);
    for (void *it = json_object_iter((json_t *)x); it; it = json_object_iter_next((json_t *)x, it)) {
        const char *name = json_object_iter_key(it);
        const json_t *on = json_object_iter_value(it);
        qn_fact *there = fact(d, NULL, QN_FACT_REQUIRED);
        if (!there) return QN_E_NOMEM;
        there->name = name;
        if (json_is_array(on)) {
            for (size_t i = 0; i < json_array_size(on); i++) {
                const char *other = json_string_value(json_array_get(on, i));
                if (!other) return qn_compiler_refuse(d->k, d->s, keyword, "holds no list of names");
                QN_TRY(put_name(d, QN_FACT_FORBIDDEN, other, there));
            }
            continue;
        }
        qn_fact *f = fact(d, there, QN_FACT_CONJUNCT);
        if (!f) return QN_E_NOMEM;
        QN_TRY(qn_conjunct_of(d->k, on, 1, &f->conjunct));
        QN_TRY(put_typed(d, QN_TYPE_OBJECT, f));
    }
    return QN_OK;
}

/* Some member has a key of dfa and a value that breaks the schema; schema NULL: any value. */
static qn_status put_some(denial *d, int32_t dfa, const json_t *schema)
{
    int32_t conjunct = QN_CONJUNCT_TRUE;
    if (schema) QN_TRY(qn_conjunct_of(d->k, schema, 1, &conjunct));
    if (conjunct == QN_CONJUNCT_FALSE || qn_dfa_is_empty(d->k->p->dfas[dfa])) return QN_OK;
    qn_fact *f = fact(d, NULL, QN_FACT_SOME);
    if (!f) return QN_E_NOMEM;
    f->dfa = dfa;
    f->conjunct = conjunct;
    return put_typed(d, QN_TYPE_OBJECT, f);
}

/* The names that are none of a schema's own properties. */
static qn_status without_properties(denial *d, int32_t *dfa)
{
    const json_t *x = json_object_get(d->s, "properties");
    size_t n = 0;
    qn_text_ref *names = qn_arena_alloc(&d->k->arena, (json_object_size(x) + 1) * sizeof *names);
    if (!names) return QN_E_NOMEM;
    for (void *it = json_object_iter((json_t *)x); it; it = json_object_iter_next((json_t *)x, it))
        names[n++] = (qn_text_ref){json_object_iter_key(it), strlen(json_object_iter_key(it))};
    if (n == 0) return QN_OK;
    qn_dfa *texts;
    int32_t own;
    QN_TRY(qn_dfa_texts(names, n, &d->k->p->dfa_limits, &texts));
    QN_TRY(qn_program_add_dfa(d->k->p, texts, &own));
    return qn_dfa_without(d->k, *dfa, own, dfa);
}

static qn_status deny_other_members(denial *d)
{
    const json_t *patterns = json_object_get(d->s, "patternProperties"),
                 *additional = json_object_get(d->s, "additionalProperties"),
                 *names = json_object_get(d->s, "propertyNames");
    int32_t others = d->k->p->all, dfa;
    for (void *it = json_object_iter((json_t *)patterns); it;
         it = json_object_iter_next((json_t *)patterns, it)) {
        QN_TRY(qn_pattern_dfa(d->k, d->s, "patternProperties", json_object_iter_key(it), &dfa));
        QN_TRY(put_some(d, dfa, json_object_iter_value(it)));
        if (additional) QN_TRY(qn_dfa_without(d->k, others, dfa, &others));
    }
    if (additional && !json_is_true(additional)) {
        QN_TRY(without_properties(d, &others));
        QN_TRY(put_some(d, others, additional));
    }
    if (!names || d->k->doc.draft == QN_DRAFT_4) return QN_OK;
    int32_t conjunct, value;
    QN_TRY(qn_conjunct_of(d->k, names, 0, &conjunct));
    QN_TRY(qn_value_of(d->k, &conjunct, 1, &value));
    QN_TRY(qn_value_texts(d->k, d->s, value, &dfa));
    if (dfa == QN_NONE) return put_some(d, d->k->p->all, NULL);
    QN_TRY(qn_dfa_without(d->k, d->k->p->all, dfa, &dfa));
    return put_some(d, dfa, NULL);
}

static qn_status deny_objects(denial *d)
{
    const json_t *s = d->s, *x = json_object_get(s, "required");
    qn_draft draft = d->k->doc.draft;
    if (!(d->c->types & QN_TYPE_OBJECT)) return QN_OK;
    for (size_t i = 0; i < json_array_size(x); i++) {
        const char *name = json_string_value(json_array_get(x, i));
        if (!name) return qn_compiler_refuse(d->k, s, "required", "is no list of names");
        QN_TRY(put_name(d, QN_FACT_FORBIDDEN, name, NULL));
    }
    x = json_object_get(s, "properties");
    for (void *it = json_object_iter((json_t *)x); it; it = json_object_iter_next((json_t *)x, it))
        QN_TRY(put_member(d, json_object_iter_key(it), json_object_iter_value(it)));
    QN_TRY(put_bounds(d, QN_TYPE_OBJECT, QN_FACT_MEMBERS, "minProperties", "maxProperties"));
    QN_TRY(deny_dependencies(d, "dependencies"));
    if (draft >= QN_DRAFT_2019) {
        QN_TRY(deny_dependencies(d, "dependentRequired"));
        QN_TRY(deny_dependencies(d, "dependentSchemas"));
    }
    QN_TRY(deny_other_members(d));
    if (draft < QN_DRAFT_2019 || !has(s, "unevaluatedProperties")) return QN_OK;
    qn_fact *f = fact(d, NULL, QN_FACT_BROKEN);
    if (!f) return QN_E_NOMEM;
    f->name = "unevaluatedProperties";
    return put_typed(d, QN_TYPE_OBJECT, f);
}

/* ---- arrays -------------------------------------------------------------------------------------------- */

/* An item at or behind an index that breaks the schema. */
static qn_status put_item(denial *d, int64_t index, const json_t *schema, int is_rest)
{
    int32_t conjunct;
    QN_TRY(qn_conjunct_of(d->k, schema, 1, &conjunct));
    if (conjunct == QN_CONJUNCT_FALSE) return QN_OK;
    qn_fact *f;
    if (is_rest && conjunct != QN_CONJUNCT_TRUE) {
        f = fact(d, NULL, QN_FACT_CONTAINS);
        if (!f) return QN_E_NOMEM;
        f->min = 1;
        f->conjunct = conjunct;
        f->from = index;
        return put_typed(d, QN_TYPE_ARRAY, f);
    }
    qn_fact *count = fact(d, NULL, QN_FACT_COUNT);
    if (!count) return QN_E_NOMEM;
    count->min = index + 1;
    if (is_rest) return put_typed(d, QN_TYPE_ARRAY, count);
    f = fact(d, count, QN_FACT_ITEM);
    if (!f) return QN_E_NOMEM;
    f->min = index;
    f->conjunct = conjunct;
    return put_typed(d, QN_TYPE_ARRAY, f);
}

static qn_status deny_arrays(denial *d)
{
    const json_t *s = d->s, *prefix, *rest;
    qn_draft draft = d->k->doc.draft;
    if (!(d->c->types & QN_TYPE_ARRAY)) return QN_OK;
    qn_items_of(d->k, s, &prefix, &rest);
    int64_t n = (int64_t)json_array_size(prefix);
    for (int64_t i = 0; i < n; i++) QN_TRY(put_item(d, i, json_array_get(prefix, (size_t)i), 0));
    if (rest) QN_TRY(put_item(d, n, rest, 1));
    QN_TRY(put_bounds(d, QN_TYPE_ARRAY, QN_FACT_COUNT, "minItems", "maxItems"));
    if (has(s, "contains") && draft != QN_DRAFT_4) {
        int64_t min = 1, max = -1;
        int there;
        qn_fact *f = fact(d, NULL, QN_FACT_CONTAINS);
        if (!f) return QN_E_NOMEM;
        QN_TRY(qn_conjunct_of(d->k, json_object_get(s, "contains"), 0, &f->conjunct));
        if (draft >= QN_DRAFT_2019) {
            QN_TRY(qn_count_of(d->k, s, "minContains", &min, &there));
            if (!there) min = 1;
            QN_TRY(qn_count_of(d->k, s, "maxContains", &max, &there));
            if (!there) max = -1;
        }
        if (max >= 0) {
            qn_fact *more = fact(d, NULL, QN_FACT_CONTAINS);
            if (!more) return QN_E_NOMEM;
            more->conjunct = f->conjunct;
            more->min = max + 1;
            QN_TRY(put_typed(d, QN_TYPE_ARRAY, more));
        }
        f->max = min - 1;
        if (min > 0) QN_TRY(put_typed(d, QN_TYPE_ARRAY, f));
    }
    if (json_is_true(json_object_get(s, "uniqueItems")) ||
        (has(s, "unevaluatedItems") && draft >= QN_DRAFT_2019)) {
        qn_fact *f = fact(d, NULL, QN_FACT_BROKEN);
        if (!f) return QN_E_NOMEM;
        f->name = has(s, "uniqueItems") ? "uniqueItems" : "unevaluatedItems";
        QN_TRY(put_typed(d, QN_TYPE_ARRAY, f));
    }
    return QN_OK;
}

/* ---- schemas of schemas -------------------------------------------------------------------------------- */

static qn_status deny_list(denial *d, const char *keyword, int is_any)
{
    const json_t *list = json_object_get(d->s, keyword);
    if (!list) return QN_OK;
    const qn_fact *all = NULL;
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (!is_any) {
            QN_TRY(put_schema(d, json_array_get(list, i), 1));
            continue;
        }
        qn_fact *f = fact(d, all, QN_FACT_CONJUNCT);
        if (!f) return QN_E_NOMEM;
        QN_TRY(qn_conjunct_of(d->k, json_array_get(list, i), 1, &f->conjunct));
        all = f;
    }
    return is_any ? put(d, all) : QN_OK;
}

static qn_status put_both(denial *d, const json_t *a, int a_denied, const json_t *b, int b_denied)
{
    qn_fact *f = fact(d, NULL, QN_FACT_CONJUNCT), *g = f ? fact(d, f, QN_FACT_CONJUNCT) : NULL;
    if (!g) return QN_E_NOMEM;
    QN_TRY(qn_conjunct_of(d->k, a, a_denied, &f->conjunct));
    QN_TRY(qn_conjunct_of(d->k, b, b_denied, &g->conjunct));
    return put(d, g);
}

/* None of them, or two. */
static qn_status deny_one(denial *d)
{
    const json_t *list = json_object_get(d->s, "oneOf");
    if (!list) return QN_OK;
    QN_TRY(deny_list(d, "oneOf", 1));
    for (size_t i = 0; i < json_array_size(list); i++)
        for (size_t j = i + 1; j < json_array_size(list); j++)
            QN_TRY(put_both(d, json_array_get(list, i), 0, json_array_get(list, j), 0));
    return QN_OK;
}

static qn_status deny_schemas(denial *d)
{
    const json_t *s = d->s, *x = json_object_get(s, "if"), *target;
    static const char *const references[] = {"$ref", "$dynamicRef", "$recursiveRef"};
    for (int i = 0; i < 3; i++) {
        const char *ref = json_string_value(json_object_get(s, references[i]));
        if (!ref || (i == 1 && d->k->doc.draft < QN_DRAFT_2020) ||
            (i == 2 && d->k->doc.draft != QN_DRAFT_2019))
            continue;
        qn_status status =
            (i == 0 ? qn_document_resolve : qn_document_resolve_dynamic)(&d->k->doc, s, ref, &target);
        if (status != QN_OK) return qn_compiler_refuse_as(d->k, status, s, references[i]);
        QN_TRY(put_schema(d, target, 1));
        if (i == 0 && qn_document_ref_is_alone(&d->k->doc)) return QN_OK;
    }
    QN_TRY(deny_list(d, "allOf", 0));
    QN_TRY(deny_list(d, "anyOf", 1));
    QN_TRY(deny_one(d));
    if (has(s, "not")) QN_TRY(put_schema(d, json_object_get(s, "not"), 0));
    if (x && d->k->doc.draft != QN_DRAFT_4 && d->k->doc.draft != QN_DRAFT_6) {
        if (has(s, "then")) QN_TRY(put_both(d, x, 0, json_object_get(s, "then"), 1));
        if (has(s, "else")) QN_TRY(put_both(d, x, 1, json_object_get(s, "else"), 1));
    }
    return QN_OK;
}

static qn_status deny_type(denial *d)
{
    const json_t *type = json_object_get(d->s, "type");
    uint32_t mask;
    int integer;
    if (!type) return QN_OK;
    QN_TRY(qn_types_of(d->k, d->s, type, &mask, &integer));
    QN_TRY(put_typed(d, ~mask & QN_TYPE_ALL, NULL));
    if (!integer) return QN_OK;
    int32_t dfa;
    QN_TRY(qn_number_dfa(d->k, &(qn_number_bounds){.integer = 1}, &dfa));
    QN_TRY(qn_number_deny(d->k, dfa, &dfa));
    return put_number(d, (qn_number_bounds){0}, dfa);
}

/* Denied values are one option, put together in a case of its own that is only read for its facts. */
static qn_status deny_values(denial *d, const json_t *values)
{
    qn_case c = {.types = d->c->types};
    QN_TRY(qn_enum_deny(d->k, &c, d->s, values));
    if (c.is_dead || c.types == 0) return QN_OK;
    return put_typed(d, c.types, c.due);
}

qn_status qn_schema_deny(qn_compiler *k, qn_case *c, const json_t *s)
{
    denial d = {.k = k, .c = c, .s = s};
    int ref_alone = has(s, "$ref") && qn_document_ref_is_alone(&k->doc);
    if (!ref_alone) {
        QN_TRY(deny_type(&d));
        if (json_is_array(json_object_get(s, "enum"))) QN_TRY(deny_values(&d, json_object_get(s, "enum")));
        if (has(s, "const") && k->doc.draft != QN_DRAFT_4) {
            json_t *one = json_pack("[O]", json_object_get(s, "const"));
            if (!one || json_array_append_new(k->made, one)) return qn_fail_nomem(0);
            QN_TRY(deny_values(&d, one));
        }
        QN_TRY(deny_numbers(&d));
        QN_TRY(deny_strings(&d));
        QN_TRY(deny_objects(&d));
        QN_TRY(deny_arrays(&d));
    }
    QN_TRY(deny_schemas(&d));
    return qn_case_fork(k, c, s, d.options, d.n);
}
