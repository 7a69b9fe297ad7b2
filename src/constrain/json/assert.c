/* What a schema asserts, keyword by keyword. */
#include <string.h>

#include "base/mem.h"
#include "constrain/json/compiler.h"

typedef struct {
    qn_compiler *k;
    qn_case *c;
    const json_t *s;
    uint32_t scope;
} place;

static qn_fact *add(const place *p, qn_fact_kind kind)
{
    qn_fact *f = qn_fact_before(p->k, p->c->due, kind, p->s);
    if (!f) return NULL;
    f->scope = p->scope;
    p->c->due = f;
    return f;
}

static qn_status add_bounds(const place *p, qn_fact_kind kind, const char *least, const char *most)
{
    int64_t min = 0, max = -1;
    int has_min, has_max;
    QN_TRY(qn_count_of(p->k, p->s, least, &min, &has_min));
    QN_TRY(qn_count_of(p->k, p->s, most, &max, &has_max));
    if (!has_min && !has_max) return QN_OK;
    qn_fact *f = add(p, kind);
    if (!f) return QN_E_NOMEM;
    f->min = has_min ? min : 0;
    f->max = has_max ? max : -1;
    return QN_OK;
}

static qn_status add_conjunct(const place *p, const json_t *schema, int is_denied)
{
    int32_t conjunct;
    QN_TRY(qn_conjunct_of(p->k, schema, is_denied, &conjunct));
    return qn_case_add(p->k, p->c, conjunct, p->s, p->scope);
}

/* An option of one conjunct before others. */
static qn_status option(const place *p, const qn_fact *before, const json_t *schema, int is_denied,
                        const qn_fact **out)
{
    qn_fact *f = qn_fact_before(p->k, before, QN_FACT_CONJUNCT, p->s);
    if (!f) return QN_E_NOMEM;
    f->scope = p->scope;
    QN_TRY(qn_conjunct_of(p->k, schema, is_denied, &f->conjunct));
    *out = f;
    return QN_OK;
}

static qn_status option_name(const place *p, qn_fact_kind kind, const char *name, const qn_fact *before,
                             const qn_fact **out)
{
    qn_fact *f = qn_fact_before(p->k, before, kind, p->s);
    if (!f) return QN_E_NOMEM;
    f->name = name;
    *out = f;
    return QN_OK;
}

static const qn_fact **options(const place *p, size_t n)
{
    return qn_arena_calloc(&p->k->arena, n ? n : 1, sizeof(const qn_fact *));
}

/* ---- numbers and strings ------------------------------------------------------------------------------- */

static qn_status read_bound(const place *p, const char *keyword, const char **out, int *has)
{
    const json_t *v = json_object_get(p->s, keyword);
    if (!v) return QN_OK;
    if (!json_is_number(v)) return qn_compiler_refuse(p->k, p->s, keyword, "is no number");
    *out = qn_decimal_of(p->k, v);
    *has = 1;
    return *out ? QN_OK : QN_E_NOMEM;
}

static qn_status assert_numbers(const place *p, int integer)
{
    qn_number_bounds b = {.integer = integer};
    int has = integer;
    QN_TRY(read_bound(p, "minimum", &b.minimum, &has));
    QN_TRY(read_bound(p, "maximum", &b.maximum, &has));
    QN_TRY(read_bound(p, "multipleOf", &b.multiple_of, &has));
    const json_t *below = json_object_get(p->s, "exclusiveMaximum"),
                 *above = json_object_get(p->s, "exclusiveMinimum");
    int is_old = p->k->doc.draft == QN_DRAFT_4 || p->k->doc.draft == QN_DRAFT_ANY;
    if (json_is_boolean(below) && is_old) {
        if (json_is_true(below)) b.exclusive_maximum = b.maximum, b.maximum = NULL;
    } else {
        QN_TRY(read_bound(p, "exclusiveMaximum", &b.exclusive_maximum, &has));
    }
    if (json_is_boolean(above) && is_old) {
        if (json_is_true(above)) b.exclusive_minimum = b.minimum, b.minimum = NULL;
    } else {
        QN_TRY(read_bound(p, "exclusiveMinimum", &b.exclusive_minimum, &has));
    }
    if (!has) return QN_OK;
    qn_fact *f = add(p, QN_FACT_NUMBERS);
    qn_number_fact *x = qn_arena_calloc(&p->k->arena, 1, sizeof *x);
    if (!f || !x) return QN_E_NOMEM;
    *x = (qn_number_fact){b, QN_NONE};
    f->number = x;
    return QN_OK;
}

static qn_status assert_pattern(const place *p, const char *keyword)
{
    const json_t *v = json_object_get(p->s, keyword);
    if (!v) return QN_OK;
    if (!json_is_string(v)) return qn_compiler_refuse(p->k, p->s, keyword, "is no string");
    int32_t dfa;
    QN_TRY(qn_pattern_dfa(p->k, p->s, keyword, json_string_value(v), &dfa));
    if (dfa == QN_NONE) return QN_OK;
    qn_fact *f = add(p, QN_FACT_TEXTS);
    if (!f) return QN_E_NOMEM;
    f->dfa = dfa;
    return QN_OK;
}

/* ---- objects ------------------------------------------------------------------------------------------- */

static qn_status assert_required(const place *p)
{
    const json_t *r = json_object_get(p->s, "required");
    if (!r || json_is_boolean(r)) return QN_OK; /* draft 3's boolean is no keyword of ours */
    if (!json_is_array(r)) return qn_compiler_refuse(p->k, p->s, "required", "is no list of names");
    for (size_t i = json_array_size(r); i-- > 0;) {
        const char *name = json_string_value(json_array_get(r, i));
        if (!name) return qn_compiler_refuse(p->k, p->s, "required", "is no list of names");
        qn_fact *f = add(p, QN_FACT_REQUIRED);
        if (!f) return QN_E_NOMEM;
        f->name = name;
    }
    return QN_OK;
}

/* A member that brings obligations: it is not there, or they hold. */
static qn_status depend(const place *p, const char *name, const json_t *on, const char *keyword)
{
    const qn_fact **o = options(p, 2);
    if (!o) return QN_E_NOMEM;
    QN_TRY(option_name(p, QN_FACT_FORBIDDEN, name, NULL, &o[0]));
    const qn_fact *list = NULL;
    if (json_is_array(on)) {
        for (size_t i = 0; i < json_array_size(on); i++) {
            const char *other = json_string_value(json_array_get(on, i));
            if (!other) return qn_compiler_refuse(p->k, p->s, keyword, "holds no list of names");
            QN_TRY(option_name(p, QN_FACT_REQUIRED, other, list, &list));
        }
        if (!list) return QN_OK;
    } else {
        QN_TRY(option(p, NULL, on, 0, &list));
        if (list->conjunct == QN_CONJUNCT_TRUE) return QN_OK;
    }
    QN_TRY(option_name(p, QN_FACT_REQUIRED, name, list, &list));
    qn_fact *object = qn_fact_before(p->k, list, QN_FACT_TYPES, p->s);
    if (!object) return QN_E_NOMEM;
    object->min = QN_TYPE_OBJECT;
    o[1] = object;
    return qn_case_fork(p->k, p->c, p->s, o, 2);
}

static qn_status assert_dependencies(const place *p, const char *keyword)
{
    const json_t *d = json_object_get(p->s, keyword);
    if (!d) return QN_OK;
    if (!json_is_object(d)) return qn_compiler_refuse(p->k, p->s, keyword, "is no object");
    for (void *it = json_object_iter((json_t *)d); it; it = json_object_iter_next((json_t *)d, it)) {
        const json_t *on = json_object_iter_value(it);
        /* Draft 3's single name. */
        if (json_is_string(on)) return qn_compiler_refuse(p->k, p->s, keyword, "holds no list of names");
        QN_TRY(depend(p, json_object_iter_key(it), on, keyword));
    }
    return QN_OK;
}

static int has(const json_t *s, const char *keyword)
{
    return json_object_get(s, keyword) != NULL;
}

static qn_status assert_object(const place *p)
{
    qn_draft draft = p->k->doc.draft;
    const json_t *s = p->s;
    if (has(s, "properties") || has(s, "patternProperties") || has(s, "additionalProperties")) {
        if (has(s, "properties") && !json_is_object(json_object_get(s, "properties")))
            return qn_compiler_refuse(p->k, s, "properties", "is no object");
        if (has(s, "patternProperties") && !json_is_object(json_object_get(s, "patternProperties")))
            return qn_compiler_refuse(p->k, s, "patternProperties", "is no object");
        if (!add(p, QN_FACT_GROUP)) return QN_E_NOMEM;
    }
    QN_TRY(assert_required(p));
    QN_TRY(add_bounds(p, QN_FACT_MEMBERS, "minProperties", "maxProperties"));
    if (has(s, "propertyNames") && draft != QN_DRAFT_4) {
        qn_fact *f = add(p, QN_FACT_NAMES);
        if (!f) return QN_E_NOMEM;
        QN_TRY(qn_conjunct_of(p->k, json_object_get(s, "propertyNames"), 0, &f->conjunct));
    }
    QN_TRY(assert_dependencies(p, "dependencies"));
    if (draft >= QN_DRAFT_2019) {
        QN_TRY(assert_dependencies(p, "dependentRequired"));
        QN_TRY(assert_dependencies(p, "dependentSchemas"));
    }
    if (draft >= QN_DRAFT_2019 && has(s, "unevaluatedProperties")) {
        qn_fact *f = add(p, QN_FACT_UNEVALUATED_MEMBERS);
        if (!f) return QN_E_NOMEM;
        QN_TRY(qn_conjunct_of(p->k, json_object_get(s, "unevaluatedProperties"), 0, &f->conjunct));
    }
    return QN_OK;
}

/* ---- arrays -------------------------------------------------------------------------------------------- */

static qn_status assert_array(const place *p)
{
    qn_draft draft = p->k->doc.draft;
    const json_t *s = p->s;
    if (has(s, "items") || (has(s, "prefixItems") && draft >= QN_DRAFT_2020))
        if (!add(p, QN_FACT_ITEMS)) return QN_E_NOMEM;
    QN_TRY(add_bounds(p, QN_FACT_COUNT, "minItems", "maxItems"));
    if (json_is_true(json_object_get(s, "uniqueItems")) && !add(p, QN_FACT_UNIQUE)) return QN_E_NOMEM;
    if (has(s, "contains") && draft != QN_DRAFT_4) {
        qn_fact *f = add(p, QN_FACT_CONTAINS);
        if (!f) return QN_E_NOMEM;
        int has_min = 0, has_max = 0;
        f->min = 1;
        if (draft >= QN_DRAFT_2019) {
            QN_TRY(qn_count_of(p->k, s, "minContains", &f->min, &has_min));
            QN_TRY(qn_count_of(p->k, s, "maxContains", &f->max, &has_max));
        }
        QN_TRY(qn_conjunct_of(p->k, json_object_get(s, "contains"), 0, &f->conjunct));
    }
    if (draft >= QN_DRAFT_2019 && has(s, "unevaluatedItems")) {
        qn_fact *f = add(p, QN_FACT_UNEVALUATED_ITEMS);
        if (!f) return QN_E_NOMEM;
        QN_TRY(qn_conjunct_of(p->k, json_object_get(s, "unevaluatedItems"), 0, &f->conjunct));
    }
    return QN_OK;
}

/* ---- schemas of schemas -------------------------------------------------------------------------------- */

static qn_status list_of(const place *p, const char *keyword, const json_t **out)
{
    *out = json_object_get(p->s, keyword);
    if (*out && (!json_is_array(*out) || json_array_size(*out) == 0))
        return qn_compiler_refuse(p->k, p->s, keyword, "is no list of schemas");
    return QN_OK;
}

/* Where what was evaluated counts, each set of branches that hold is a way of its own. */
static qn_status assert_any_tracked(const place *p, const json_t *list)
{
    enum { BRANCHES_MAX = 6 };
    size_t n = json_array_size(list);
    if (n > BRANCHES_MAX)
        return qn_compiler_refuse(p->k, p->s, "anyOf", "has more than %d branches beside unevaluated*",
                                  BRANCHES_MAX);
    const qn_fact **o = options(p, (size_t)1 << n);
    if (!o) return QN_E_NOMEM;
    uint32_t n_options = 0;
    for (uint32_t set = 1; set < UINT32_C(1) << n; set++) {
        const qn_fact *f = NULL;
        for (size_t i = 0; i < n; i++)
            if (set >> i & 1) QN_TRY(option(p, f, json_array_get(list, i), 0, &f));
        o[n_options++] = f;
    }
    return qn_case_fork(p->k, p->c, p->s, o, n_options);
}

static qn_status assert_any(const place *p)
{
    const json_t *list;
    QN_TRY(list_of(p, "anyOf", &list));
    if (!list) return QN_OK;
    if (p->c->tracks_scopes) return assert_any_tracked(p, list);
    size_t n = json_array_size(list);
    const qn_fact **o = options(p, n);
    if (!o) return QN_E_NOMEM;
    for (size_t i = 0; i < n; i++) QN_TRY(option(p, NULL, json_array_get(list, i), 0, &o[i]));
    return qn_case_fork(p->k, p->c, p->s, o, (uint32_t)n);
}

/* Branch i and not j, for all j that i does not exclude by itself. */
static qn_status assert_one(const place *p)
{
    const json_t *list;
    QN_TRY(list_of(p, "oneOf", &list));
    if (!list) return QN_OK;
    size_t n = json_array_size(list);
    const qn_fact **o = options(p, n);
    uint8_t *meet = qn_arena_calloc(&p->k->arena, n * n, 1);
    if (!o || !meet) return QN_E_NOMEM;
    for (size_t i = 0; i < n; i++)
        for (size_t j = i + 1; j < n; j++) {
            int32_t set[2], value;
            int possible;
            QN_TRY(qn_conjunct_of(p->k, json_array_get(list, i), 0, &set[0]));
            QN_TRY(qn_conjunct_of(p->k, json_array_get(list, j), 0, &set[1]));
            QN_TRY(qn_value_of(p->k, set, 2, &value));
            qn_status status = qn_compiler_possible(p->k->p, value, &possible);
            if (status == QN_E_NOMEM) return status;
            /* What cannot be decided here is denied below, or refused there. */
            if (status != QN_OK) possible = 1;
            meet[i * n + j] = meet[j * n + i] = (uint8_t)possible;
        }
    for (size_t i = 0; i < n; i++) {
        for (size_t j = n; j-- > 0;)
            if (j != i && meet[i * n + j]) QN_TRY(option(p, o[i], json_array_get(list, j), 1, &o[i]));
        QN_TRY(option(p, o[i], json_array_get(list, i), 0, &o[i]));
    }
    return qn_case_fork(p->k, p->c, p->s, o, (uint32_t)n);
}

static qn_status assert_if(const place *p)
{
    const json_t *s = p->s, *condition = json_object_get(s, "if"), *then = json_object_get(s, "then"),
                 *otherwise = json_object_get(s, "else");
    if (!condition || p->k->doc.draft == QN_DRAFT_4 || p->k->doc.draft == QN_DRAFT_6) return QN_OK;
    if (!then && !otherwise && !p->c->tracks_scopes) return QN_OK;
    const qn_fact **o = options(p, 2);
    if (!o) return QN_E_NOMEM;
    if (then) QN_TRY(option(p, NULL, then, 0, &o[0]));
    QN_TRY(option(p, o[0], condition, 0, &o[0]));
    if (otherwise) QN_TRY(option(p, NULL, otherwise, 0, &o[1]));
    QN_TRY(option(p, o[1], condition, 1, &o[1]));
    return qn_case_fork(p->k, p->c, s, o, 2);
}

static qn_status assert_references(const place *p)
{
    static const char *const keywords[] = {"$ref", "$dynamicRef", "$recursiveRef"};
    for (int i = 0; i < 3; i++) {
        const json_t *ref = json_object_get(p->s, keywords[i]), *target;
        if (!ref || (i == 1 && p->k->doc.draft < QN_DRAFT_2020) ||
            (i == 2 && p->k->doc.draft != QN_DRAFT_2019))
            continue;
        if (!json_is_string(ref)) return qn_compiler_refuse(p->k, p->s, keywords[i], "is no string");
        qn_status status = (i == 0 ? qn_document_resolve : qn_document_resolve_dynamic)(
            &p->k->doc, p->s, json_string_value(ref), &target);
        if (status != QN_OK) return qn_compiler_refuse_as(p->k, status, p->s, keywords[i]);
        QN_TRY(add_conjunct(p, target, 0));
    }
    return QN_OK;
}

static qn_status assert_schemas(const place *p)
{
    const json_t *list;
    QN_TRY(assert_references(p));
    QN_TRY(list_of(p, "allOf", &list));
    for (size_t i = json_array_size(list); i-- > 0;) QN_TRY(add_conjunct(p, json_array_get(list, i), 0));
    if (has(p->s, "not")) QN_TRY(add_conjunct(p, json_object_get(p->s, "not"), 1));
    QN_TRY(assert_any(p));
    QN_TRY(assert_one(p));
    return assert_if(p);
}

qn_status qn_schema_assert(qn_compiler *k, qn_case *c, const json_t *s, uint32_t scope)
{
    place p = {k, c, s, scope};
    int integer = 0;
    if (has(s, "$ref") && qn_document_ref_is_alone(&k->doc)) return assert_references(&p);
    if (k->doc.draft >= QN_DRAFT_2019 && (has(s, "unevaluatedProperties") || has(s, "unevaluatedItems")))
        c->tracks_scopes = 1;
    if (has(s, "type")) {
        uint32_t mask;
        QN_TRY(qn_types_of(k, s, json_object_get(s, "type"), &mask, &integer));
        c->types &= mask;
        if (!c->types) return QN_OK;
    }
    /* What is added last is taken first: the schema's own properties come before those of its parts. */
    QN_TRY(assert_schemas(&p));
    if (has(s, "enum")) {
        const json_t *values = json_object_get(s, "enum");
        if (!json_is_array(values)) return qn_compiler_refuse(k, s, "enum", "is no list");
        QN_TRY(qn_enum_assert(k, c, s, values, scope));
    }
    if (has(s, "const") && k->doc.draft != QN_DRAFT_4) {
        json_t *one = json_pack("[O]", json_object_get(s, "const"));
        if (!one || json_array_append_new(k->made, one)) return qn_fail_nomem(0);
        QN_TRY(qn_enum_assert(k, c, s, one, scope));
    }
    if (c->types & QN_TYPE_NUMBER) QN_TRY(assert_numbers(&p, integer));
    if (c->types & QN_TYPE_STRING) {
        QN_TRY(add_bounds(&p, QN_FACT_LENGTH, "minLength", "maxLength"));
        QN_TRY(assert_pattern(&p, "pattern"));
        QN_TRY(assert_pattern(&p, "format"));
        /* The suite of draft 7 holds the content of strings to what is said of it; later drafts do not. */
        if (k->doc.draft == QN_DRAFT_7) {
            QN_TRY(assert_pattern(&p, "contentEncoding"));
            QN_TRY(assert_pattern(&p, "contentMediaType"));
        }
    }
    if (c->types & QN_TYPE_OBJECT) QN_TRY(assert_object(&p));
    if (c->types & QN_TYPE_ARRAY) QN_TRY(assert_array(&p));
    return QN_OK;
}
