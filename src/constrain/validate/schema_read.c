/* From the document to subschemas: which draft, which keywords, whether their values are as the draft says. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "constrain/validate/schema.h"
#include "constrain/validate/uri.h"

enum {
    ALL = QN_DRAFT_4 | QN_DRAFT_6 | QN_DRAFT_7 | QN_DRAFT_2019 | QN_DRAFT_2020 | QN_DRAFT_NONE,
    SINCE_2019 = QN_DRAFT_2019 | QN_DRAFT_2020 | QN_DRAFT_NONE,
    UP_TO_7 = QN_DRAFT_4 | QN_DRAFT_6 | QN_DRAFT_7,
    ENUM_FEW = 16
};

static const struct {
    const char *name;
    qn_shape shape;
    unsigned drafts;
} keywords[] = {
#define KEYWORD(kind, name, shape, drafts) {name, QN_SHAPE_##shape, drafts},
    QN_KEYWORD_LIST(KEYWORD)
#undef KEYWORD
};

/* Members that say nothing about values. */
static const char *const silent[] = {
    "$schema",          "$id",         "id",       "$anchor",   "$dynamicAnchor",
    "$recursiveAnchor", "$vocabulary", "$comment", "title",     "description",
    "default",          "examples",    "readOnly", "writeOnly", "deprecated",
};

static const struct {
    const char *uri, *name;
    qn_draft draft;
} drafts[] = {
    {"json-schema.org/draft-04/schema", "draft 4", QN_DRAFT_4},
    {"json-schema.org/draft-06/schema", "draft 6", QN_DRAFT_6},
    {"json-schema.org/draft-07/schema", "draft 7", QN_DRAFT_7},
    {"json-schema.org/draft/2019-09/schema", "draft 2019-09", QN_DRAFT_2019},
    {"json-schema.org/draft/2020-12/schema", "draft 2020-12", QN_DRAFT_2020},
    {"", "draft 2020-12, with definitions, dependencies and arrays as items", QN_DRAFT_NONE},
};
enum { N_DRAFTS = sizeof drafts / sizeof *drafts };

static const char *draft_name(qn_draft draft)
{
    for (size_t i = 0; i < N_DRAFTS; i++)
        if (drafts[i].draft == draft) return drafts[i].name;
    return "";
}

const char *qn_schema_draft_name(const qn_schema *s)
{
    return draft_name(s->root->resource->draft);
}

const char *qn_schema_keyword(const qn_schema *s, size_t i, size_t *n_uses)
{
    if (i >= QN_KEYWORD_DEFS) return NULL; /* those behind hold schemas that are applied by reference alone */
    *n_uses = 0;
    for (const qn_subschema *of = s->first; of; of = of->next) {
        const qn_keyword_use *u = qn_subschema_get(of, (qn_keyword)i);
        *n_uses += u && (!qn_keyword_is_format((qn_keyword)i) || u->automaton);
    }
    return keywords[i].name;
}

const char *qn_keyword_name(qn_keyword kind)
{
    return keywords[kind].name;
}

const qn_keyword_use *qn_subschema_get(const qn_subschema *s, qn_keyword kind)
{
    for (uint32_t i = 0; i < s->n_uses && s->uses[i].kind <= kind; i++)
        if (s->uses[i].kind == kind) return &s->uses[i];
    return NULL;
}

qn_subschema *qn_schema_find(const qn_schema *s, const qn_value *node)
{
    int64_t found;
    if (!qn_map_get(s->by_node, &node, sizeof node, &found)) return NULL;
    return (qn_subschema *)(intptr_t)found;
}

/* ---- failures and notes -------------------------------------------------------------------------------- */

static const char *name_of(const qn_value *keyword)
{
    while (keyword->parent && !keyword->key) keyword = keyword->parent;
    return keyword->key ? keyword->key : "the schema";
}

qn_status qn_schema_fail(qn_status status, const qn_value *keyword, const char *fmt, ...)
{
    qn_buf pointer = {.limit_bytes = 400};
    va_list arguments;
    char text[512];
    va_start(arguments, fmt);
    vsnprintf(text, sizeof text, fmt, arguments);
    va_end(arguments);
    qn_value_pointer(keyword, &pointer);
    status = qn_fail(status, "%s: %s: %s", pointer.data ? pointer.data : "", name_of(keyword), text);
    qn_buf_free(&pointer);
    return status;
}

qn_status qn_schema_add_note(qn_schema *s, const qn_value *keyword, const char *fmt, ...)
{
    if (s->n_notes == s->notes_room) {
        size_t room = s->notes_room ? 2 * s->notes_room : 16;
        qn_schema_note *notes = qn_realloc(s->notes, room * sizeof *notes);
        if (!notes) return qn_fail_nomem(room * sizeof *notes);
        s->notes = notes;
        s->notes_room = room;
    }
    va_list arguments;
    char text[256];
    va_start(arguments, fmt);
    vsnprintf(text, sizeof text, fmt, arguments);
    va_end(arguments);
    qn_buf pointer = {0};
    qn_value_pointer(keyword, &pointer);
    const char *where = pointer.status != QN_OK
                            ? NULL
                            : qn_arena_strndup(&s->arena, pointer.data ? pointer.data : "", pointer.length);
    const char *message = qn_arena_strndup(&s->arena, text, strlen(text));
    qn_buf_free(&pointer);
    if (!where || !message) return qn_fail_nomem(1);
    s->notes[s->n_notes++] = (qn_schema_note){where, name_of(keyword), message};
    return QN_OK;
}

/* ---- values of keywords -------------------------------------------------------------------------------- */

static qn_status must_be(const qn_value *keyword, const char *what)
{
    qn_buf shown = {0};
    qn_value_show(keyword, 60, &shown);
    qn_status status =
        qn_schema_fail(QN_E_FORMAT, keyword, "is %s, must be %s", shown.data ? shown.data : "?", what);
    qn_buf_free(&shown);
    return status;
}

static int are_strings(const qn_value *v)
{
    if (v->kind != QN_VALUE_ARRAY) return 0;
    for (uint32_t i = 0; i < v->n; i++)
        if (v->children[i].kind != QN_VALUE_STRING) return 0;
    return 1;
}

static uint32_t type_bit(const qn_value *name)
{
    static const struct {
        const char *name;
        uint32_t bit;
    } types[] = {{"null", 1 << QN_VALUE_NULL},     {"boolean", 1 << QN_VALUE_BOOLEAN},
                 {"number", 1 << QN_VALUE_NUMBER}, {"string", 1 << QN_VALUE_STRING},
                 {"array", 1 << QN_VALUE_ARRAY},   {"object", 1 << QN_VALUE_OBJECT},
                 {"integer", QN_TYPE_INTEGER}};
    for (size_t i = 0; name->kind == QN_VALUE_STRING && i < sizeof types / sizeof *types; i++)
        if (!strcmp(types[i].name, name->text)) return types[i].bit;
    return 0;
}

static qn_status read_types(qn_keyword_use *u)
{
    const qn_value *v = u->value;
    const qn_value *names = v->kind == QN_VALUE_ARRAY ? v->children : v;
    uint32_t n = v->kind == QN_VALUE_ARRAY ? v->n : 1;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bit = type_bit(&names[i]);
        if (!bit)
            return must_be(v, "null, boolean, integer, number, string, array, object or an array of these");
        u->types |= bit;
    }
    return n ? QN_OK : must_be(v, "an array with at least one type");
}

static int by_hash(const void *a, const void *b)
{
    uint64_t x = ((const qn_enum_value *)a)->hash, y = ((const qn_enum_value *)b)->hash;
    return (x > y) - (x < y);
}

static qn_status read_enum(qn_schema *s, qn_keyword_use *u)
{
    if (u->value->kind != QN_VALUE_ARRAY) return must_be(u->value, "an array");
    if (u->value->n <= ENUM_FEW) return QN_OK;
    u->sorted = qn_arena_alloc(&s->arena, u->value->n * sizeof *u->sorted);
    if (!u->sorted) return qn_fail_nomem(u->value->n * sizeof *u->sorted);
    int64_t steps = INT64_MAX;
    for (uint32_t i = 0; i < u->value->n; i++)
        u->sorted[i] = (qn_enum_value){qn_value_hash(&u->value->children[i], &steps), i};
    qsort(u->sorted, u->value->n, sizeof *u->sorted, by_hash);
    return QN_OK;
}

static qn_status read_count(qn_keyword_use *u)
{
    const qn_value *v = u->value;
    if (v->kind != QN_VALUE_NUMBER || v->number.is_negative || !qn_decimal_is_integer(&v->number))
        return must_be(v, "an integer of at least 0");
    u->count = qn_decimal_to_int64(&v->number);
    return QN_OK;
}

static int is_schema(const qn_value *v)
{
    return v->kind == QN_VALUE_OBJECT || v->kind == QN_VALUE_BOOLEAN;
}

/* The schemas among the children of a keyword; of dependencies some are names. */
static qn_status read_many(qn_schema *s, qn_keyword_use *u, qn_resource *r, int takes_names)
{
    u->many = qn_arena_calloc(&s->arena, u->value->n + 1, sizeof(qn_subschema *));
    if (!u->many) return qn_fail_nomem(u->value->n);
    for (uint32_t i = 0; i < u->value->n; i++) {
        const qn_value *child = &u->value->children[i];
        if (takes_names && are_strings(child)) continue;
        if (!is_schema(child))
            return must_be(child, takes_names ? "a schema or an array of strings" : "a schema");
        QN_TRY(qn_schema_read_node(s, child, r, &u->many[i]));
    }
    return QN_OK;
}

static qn_status read_patterns(qn_schema *s, qn_keyword_use *u)
{
    u->patterns = qn_arena_calloc(&s->arena, u->value->n + 1, sizeof(qn_dfa *));
    if (!u->patterns) return qn_fail_nomem(u->value->n);
    for (uint32_t i = 0; i < u->value->n; i++) {
        const qn_value *child = &u->value->children[i];
        QN_TRY(
            qn_schema_automaton(s, child, child->key, child->key_bytes, QN_KEYWORD_PATTERN, &u->patterns[i]));
    }
    return QN_OK;
}

/* Booleans are draft 4's form. Without $schema, schemas in the wild have it. */
static qn_status read_bound(const qn_value *v, qn_draft draft)
{
    if (draft == QN_DRAFT_4) return v->kind == QN_VALUE_BOOLEAN ? QN_OK : must_be(v, "a boolean in draft 4");
    if (v->kind == QN_VALUE_BOOLEAN && draft != QN_DRAFT_NONE)
        return must_be(v, "a number (a boolean is draft 4's form: $schema must say so)");
    return v->kind == QN_VALUE_NUMBER || v->kind == QN_VALUE_BOOLEAN ? QN_OK : must_be(v, "a number");
}

static qn_status read_names_by_name(const qn_value *v)
{
    if (v->kind != QN_VALUE_OBJECT) return must_be(v, "an object of arrays of strings");
    for (uint32_t i = 0; i < v->n; i++)
        if (!are_strings(&v->children[i])) return must_be(&v->children[i], "an array of strings");
    return QN_OK;
}

static qn_status read_divisor(const qn_value *v)
{
    if (v->kind != QN_VALUE_NUMBER || v->number.is_negative || !v->number.n_digits)
        return must_be(v, "a number above 0");
    if (v->number.n_digits > QN_DECIMAL_DIVISOR_MAX)
        return qn_schema_fail(QN_E_UNSUPPORTED, v, "has more than %d digits", QN_DECIMAL_DIVISOR_MAX);
    return QN_OK;
}

static qn_status read_use(qn_schema *s, qn_keyword_use *u, qn_resource *r)
{
    const qn_value *v = u->value;
    switch (keywords[u->kind].shape) {
    case QN_SHAPE_REF:
        return v->kind == QN_VALUE_STRING ? QN_OK : must_be(v, "a string");
    case QN_SHAPE_TYPES:
        return read_types(u);
    case QN_SHAPE_VALUES:
        return read_enum(s, u);
    case QN_SHAPE_VALUE:
        return QN_OK;
    case QN_SHAPE_DIVISOR:
        return read_divisor(v);
    case QN_SHAPE_NUMBER:
        return v->kind == QN_VALUE_NUMBER ? QN_OK : must_be(v, "a number");
    case QN_SHAPE_BOUND:
        return read_bound(v, r->draft);
    case QN_SHAPE_COUNT:
        return read_count(u);
    case QN_SHAPE_PATTERN:
    case QN_SHAPE_FORMAT:
        if (v->kind != QN_VALUE_STRING) return must_be(v, "a string");
        return qn_schema_automaton(s, v, v->text, v->n, (qn_keyword)u->kind, &u->automaton);
    case QN_SHAPE_BOOLEAN:
        return v->kind == QN_VALUE_BOOLEAN ? QN_OK : must_be(v, "a boolean");
    case QN_SHAPE_NAMES:
        return are_strings(v) ? QN_OK : must_be(v, "an array of strings");
    case QN_SHAPE_NAMES_BY_NAME:
        return read_names_by_name(v);
    case QN_SHAPE_SCHEMA:
        return is_schema(v) ? qn_schema_read_node(s, v, r, &u->one) : must_be(v, "a schema");
    case QN_SHAPE_ITEMS:
        if (is_schema(v)) return qn_schema_read_node(s, v, r, &u->one);
        if (r->draft == QN_DRAFT_2020) return must_be(v, "a schema (2020-12 has prefixItems for arrays)");
        return v->kind == QN_VALUE_ARRAY ? read_many(s, u, r, 0)
                                         : must_be(v, "a schema or an array of schemas");
    case QN_SHAPE_SCHEMAS:
        if (v->kind != QN_VALUE_ARRAY || !v->n) return must_be(v, "an array of at least one schema");
        return read_many(s, u, r, 0);
    case QN_SHAPE_SCHEMA_BY_NAME:
    case QN_SHAPE_SCHEMA_BY_REGEX:
    case QN_SHAPE_DEPENDENCIES:
        if (v->kind != QN_VALUE_OBJECT) return must_be(v, "an object of schemas");
        QN_TRY(read_many(s, u, r, u->kind == QN_KEYWORD_DEPENDENCIES));
        return u->kind == QN_KEYWORD_PATTERN_PROPERTIES ? read_patterns(s, u) : QN_OK;
    }
    return QN_OK;
}

/* ---- one subschema ------------------------------------------------------------------------------------- */

static const qn_value *get_string(const qn_value *node, const char *key)
{
    const qn_value *v = qn_value_get(node, key, strlen(key));
    return v && v->kind == QN_VALUE_STRING ? v : NULL;
}

/* What $schema says; *out stays if it is not there. */
static qn_status read_draft(const qn_value *node, qn_draft *out)
{
    const qn_value *v = qn_value_get(node, "$schema", 7);
    if (!v) return QN_OK;
    if (v->kind != QN_VALUE_STRING) return must_be(v, "a string");
    const char *uri = v->text;
    uri += !strncmp(uri, "https://", 8) ? 8 : !strncmp(uri, "http://", 7) ? 7 : 0;
    size_t n = qn_uri_fragment(uri, strlen(uri));
    if (uri != v->text && !uri[n + (uri[n] == '#')])
        for (size_t i = 0; i < N_DRAFTS; i++)
            if (n && strlen(drafts[i].uri) == n && !memcmp(drafts[i].uri, uri, n)) {
                *out = drafts[i].draft;
                return QN_OK;
            }
    return qn_schema_fail(QN_E_UNSUPPORTED, v, "%.200s is no draft that is known (4, 6, 7, 2019-09, 2020-12)",
                          v->text);
}

/* The resource that a node belongs to, a new one if it has an $id, and its anchors. */
static qn_status enter(qn_schema *s, qn_subschema *of, qn_resource *r, qn_resource **out)
{
    const qn_value *node = of->node;
    qn_draft draft = r ? r->draft : QN_DRAFT_NONE;
    int is_root = !r;
    if (is_root) QN_TRY(read_draft(node, &draft));
    const qn_value *id = get_string(node, draft == QN_DRAFT_4 ? "id" : "$id");
    const qn_value *anchor = NULL;
    /* In the drafts up to 7 nothing counts beside a $ref. */
    if (id && !is_root && (draft & UP_TO_7) && qn_value_get(node, "$ref", 4)) id = NULL;
    size_t n = id ? qn_uri_fragment(id->text, id->n) : 0;
    if (id && n + 1 < id->n) anchor = id; /* "#name" is an anchor in the drafts up to 7 */
    if (anchor && !(draft & (UP_TO_7 | QN_DRAFT_NONE))) return must_be(id, "a URI without a fragment");
    if (is_root || n) {
        if (!is_root && id) QN_TRY(read_draft(node, &draft));
        QN_TRY(qn_schema_add_resource(s, r ? r->uri : "", id ? id->text : "", n, draft, node, &r));
        r->root = of;
    }
    if (anchor && anchor->text[n + 1] != '/')
        QN_TRY(qn_schema_add_anchor(s, r, anchor, anchor->text + n + 1, anchor->n - n - 1, 0, of));
    if (draft & SINCE_2019) {
        const qn_value *name = get_string(node, "$anchor");
        if (name) QN_TRY(qn_schema_add_anchor(s, r, name, name->text, name->n, 0, of));
        name = draft == QN_DRAFT_2019 ? NULL : get_string(node, "$dynamicAnchor");
        if (name) QN_TRY(qn_schema_add_anchor(s, r, name, name->text, name->n, 1, of));
    }
    const qn_value *recursive = draft == QN_DRAFT_2019 ? qn_value_get(node, "$recursiveAnchor", 16) : NULL;
    if (recursive && r->root == of) r->is_recursive = recursive->is_true;
    *out = r;
    return QN_OK;
}

static int is_silent(const char *name)
{
    for (size_t i = 0; i < sizeof silent / sizeof *silent; i++)
        if (!strcmp(silent[i], name)) return 1;
    return 0;
}

/* -1: no draft has it. */
static int find_keyword(const char *name)
{
    for (int i = 0; i < QN_KEYWORD_COUNT; i++)
        if (!strcmp(keywords[i].name, name)) return i;
    return -1;
}

static qn_status note_idle(qn_schema *s, const qn_subschema *of)
{
    static const struct {
        uint8_t keyword, without;
    } pairs[] = {{QN_KEYWORD_THEN, QN_KEYWORD_IF},
                 {QN_KEYWORD_ELSE, QN_KEYWORD_IF},
                 {QN_KEYWORD_MIN_CONTAINS, QN_KEYWORD_CONTAINS},
                 {QN_KEYWORD_MAX_CONTAINS, QN_KEYWORD_CONTAINS}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const qn_keyword_use *u = qn_subschema_get(of, pairs[i].keyword);
        if (u && !qn_subschema_get(of, pairs[i].without))
            QN_TRY(
                qn_schema_add_note(s, u->value, "says nothing without %s", keywords[pairs[i].without].name));
    }
    return QN_OK;
}

static int by_kind(const void *a, const void *b)
{
    return ((const qn_keyword_use *)a)->kind - ((const qn_keyword_use *)b)->kind;
}

static qn_status read_members(qn_schema *s, qn_subschema *of, qn_resource *r)
{
    const qn_value *node = of->node;
    int ref_alone = (r->draft & UP_TO_7) && qn_value_get(node, "$ref", 4);
    of->uses = qn_arena_calloc(&s->arena, node->n + 1, sizeof *of->uses);
    if (!of->uses) return qn_fail_nomem(node->n);
    for (uint32_t i = 0; i < node->n; i++) {
        const qn_value *v = &node->children[i];
        int kind = find_keyword(v->key);
        if (kind >= 0 && ref_alone && kind != QN_KEYWORD_REF && kind != QN_KEYWORD_DEFINITIONS) {
            QN_TRY(qn_schema_add_note(s, v, "says nothing beside $ref in %s", draft_name(r->draft)));
        } else if (kind >= 0 && (keywords[kind].drafts & r->draft)) {
            if (kind != QN_KEYWORD_DEFINITIONS || !ref_alone)
                of->uses[of->n_uses++] = (qn_keyword_use){.kind = (uint8_t)kind, .value = v};
        } else if (kind >= 0 && kind != QN_KEYWORD_CONTENT_ENCODING &&
                   kind != QN_KEYWORD_CONTENT_MEDIA_TYPE) {
            QN_TRY(qn_schema_add_note(s, v, "is no keyword of %s", draft_name(r->draft)));
        } else if (!strncmp(v->key, "content", 7)) {
            QN_TRY(qn_schema_add_note(s, v, "is an annotation: the content of strings is not looked at"));
        } else if (!is_silent(v->key)) {
            QN_TRY(qn_schema_add_note(s, v, "is no keyword that is known"));
        }
    }
    qsort(of->uses, of->n_uses, sizeof *of->uses, by_kind);
    for (uint32_t i = 0; i < of->n_uses; i++) {
        qn_keyword kind = of->uses[i].kind;
        QN_TRY(read_use(s, &of->uses[i], r));
        if (kind == QN_KEYWORD_UNEVALUATED_ITEMS || kind == QN_KEYWORD_UNEVALUATED_PROPERTIES)
            of->wants_marks = 1, s->has_marks = 1;
    }
    return note_idle(s, of);
}

qn_status qn_schema_read_node(qn_schema *s, const qn_value *node, qn_resource *resource, qn_subschema **out)
{
    qn_subschema *of = qn_schema_find(s, node);
    if (of) {
        *out = of;
        return QN_OK;
    }
    of = qn_arena_calloc(&s->arena, 1, sizeof *of);
    if (!of) return qn_fail_nomem(sizeof *of);
    of->node = node;
    *(s->last ? &s->last->next : &s->first) = of;
    s->last = of;
    QN_TRY(qn_map_set(s->by_node, &of->node, sizeof of->node, (int64_t)(intptr_t)of, NULL, NULL));
    if (node->kind == QN_VALUE_BOOLEAN) {
        of->is_boolean = 1;
        of->accepts = node->is_true;
        if (!resource) QN_TRY(qn_schema_add_resource(s, "", "", 0, QN_DRAFT_NONE, node, &resource));
        if (!resource->root) resource->root = of;
    } else {
        QN_TRY(enter(s, of, resource, &resource));
    }
    of->resource = resource;
    if (!of->is_boolean) QN_TRY(read_members(s, of, resource));
    *out = of;
    return QN_OK;
}
