/* Keywords about the children of arrays and objects. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "constrain/validate/evaluate.h"

enum { UNIQUE_FEW = 12 };

/* Applies s to the children from first on that are not marked in `among` (QN_NO_MARKS: to each), and marks them. */
static int apply_rest(qn_run *r, const qn_subschema *s, const qn_value *v, uint32_t first, size_t among,
                      size_t marks)
{
    int valid = 1;
    for (uint32_t i = first; i < v->n; i++) {
        if (among != QN_NO_MARKS && r->marks.data[among + i]) continue;
        valid &= qn_run_apply(r, s, &v->children[i], QN_NO_MARKS);
        if (!valid && qn_run_is_over(r)) return 0;
        qn_run_mark(r, marks, i);
    }
    return valid && r->status == QN_OK;
}

/* ---- arrays -------------------------------------------------------------------------------------------- */

typedef struct {
    uint64_t hash;
    uint32_t index;
} item;

static int by_hash(const void *a, const void *b)
{
    const item *x = a, *y = b;
    if (x->hash != y->hash) return x->hash > y->hash ? 1 : -1;
    return (x->index > y->index) - (x->index < y->index);
}

static int fail_unique(qn_run *r, const qn_keyword_use *u, const qn_value *v, uint32_t a, uint32_t b)
{
    return qn_run_fail(r, u, v, "items %u and %u are equal", a, b);
}

static int check_unique(qn_run *r, const qn_keyword_use *u, const qn_value *v)
{
    if (!u->value->is_true) return 1;
    if (v->n <= UNIQUE_FEW) {
        for (uint32_t i = 1; i < v->n; i++)
            for (uint32_t k = 0; k < i; k++)
                if (qn_value_equal(&v->children[k], &v->children[i], &r->steps))
                    return fail_unique(r, u, v, k, i);
        return qn_run_step(r, 0);
    }
    item *items = qn_alloc_array(v->n, sizeof *items);
    if (!items) return qn_run_stop(r, QN_E_NOMEM);
    int valid = 1;
    for (uint32_t i = 0; i < v->n; i++) items[i] = (item){qn_value_hash(&v->children[i], &r->steps), i};
    qsort(items, v->n, sizeof *items, by_hash);
    for (uint32_t i = 1; i < v->n && valid; i++)
        for (uint32_t k = i; k-- > 0 && valid && items[k].hash == items[i].hash;)
            if (qn_value_equal(&v->children[items[k].index], &v->children[items[i].index], &r->steps)) {
                valid = fail_unique(r, u, v, items[k].index, items[i].index);
            } else if (!qn_run_step(r, 0)) {
                valid = 0;
            }
    qn_free(items);
    return qn_run_step(r, 0) && valid;
}

static int check_contains(qn_run *r, const qn_subschema *s, const qn_keyword_use *u, const qn_value *v,
                          size_t marks)
{
    const qn_keyword_use *at_least = qn_subschema_get(s, QN_KEYWORD_MIN_CONTAINS);
    const qn_keyword_use *at_most = qn_subschema_get(s, QN_KEYWORD_MAX_CONTAINS);
    int64_t count = 0, min = at_least ? at_least->count : 1;
    int counts = s->resource->draft == QN_DRAFT_2020 || s->resource->draft == QN_DRAFT_NONE;
    qn_schema_report *report = r->report;
    r->report = NULL;
    for (uint32_t i = 0; i < v->n && r->status == QN_OK; i++) {
        if (!qn_run_apply(r, u->one, &v->children[i], QN_NO_MARKS)) continue;
        count++;
        if (counts) qn_run_mark(r, marks, i);
    }
    r->report = report;
    if (r->status != QN_OK) return 0;
    if (count < min)
        return qn_run_fail(r, at_least ? at_least : u, v,
                           "has %lld items that are valid by contains, must have at least %lld",
                           (long long)count, (long long)min);
    if (at_most && count > at_most->count)
        return qn_run_fail(r, at_most, v, "has %lld items that are valid by contains, must have at most %lld",
                           (long long)count, (long long)at_most->count);
    return 1;
}

static int apply_places(qn_run *r, const qn_keyword_use *u, const qn_value *v, size_t marks)
{
    int valid = 1;
    for (uint32_t i = 0; i < u->value->n && i < v->n; i++) {
        valid &= qn_run_apply(r, u->many[i], &v->children[i], QN_NO_MARKS);
        if (!valid && qn_run_is_over(r)) return 0;
        qn_run_mark(r, marks, i);
    }
    return valid;
}

static int check_array(qn_run *r, const qn_subschema *s, const qn_keyword_use *u, const qn_value *v,
                       size_t marks)
{
    const qn_keyword_use *places;
    switch ((qn_keyword)u->kind) {
    case QN_KEYWORD_MAX_ITEMS:
        return v->n <= u->count ||
               qn_run_fail(r, u, v, "has %u items, must have at most %lld", v->n, (long long)u->count);
    case QN_KEYWORD_MIN_ITEMS:
        return v->n >= u->count ||
               qn_run_fail(r, u, v, "has %u items, must have at least %lld", v->n, (long long)u->count);
    case QN_KEYWORD_UNIQUE_ITEMS:
        return check_unique(r, u, v);
    case QN_KEYWORD_PREFIX_ITEMS:
        return apply_places(r, u, v, marks);
    case QN_KEYWORD_ITEMS:
        if (u->value->kind == QN_VALUE_ARRAY) return apply_places(r, u, v, marks);
        places = qn_subschema_get(s, QN_KEYWORD_PREFIX_ITEMS);
        return apply_rest(r, u->one, v, places ? places->value->n : 0, QN_NO_MARKS, marks);
    case QN_KEYWORD_ADDITIONAL_ITEMS:
        places = qn_subschema_get(s, QN_KEYWORD_ITEMS);
        if (!places || places->value->kind != QN_VALUE_ARRAY) return 1;
        return apply_rest(r, u->one, v, places->value->n, QN_NO_MARKS, marks);
    case QN_KEYWORD_CONTAINS:
        return check_contains(r, s, u, v, marks);
    default:
        return apply_rest(r, u->one, v, 0, marks, marks);
    }
}

/* ---- objects ------------------------------------------------------------------------------------------- */

static int fail_missing(qn_run *r, const qn_keyword_use *u, const qn_value *v, const qn_value *name)
{
    qn_buf shown = {0};
    qn_value_show(name, 80, &shown);
    qn_run_fail(r, u, v, "has no property %s", shown.data ? shown.data : "?");
    qn_buf_free(&shown);
    return 0;
}

/* names: an array of strings that must be properties of v. */
static int check_names(qn_run *r, const qn_keyword_use *u, const qn_value *names, const qn_value *v)
{
    int valid = 1;
    for (uint32_t i = 0; i < names->n; i++) {
        const qn_value *name = &names->children[i];
        if (!qn_run_step(r, 1)) return 0;
        if (!qn_value_get(v, name->text, name->n)) valid = fail_missing(r, u, v, name);
        if (!valid && qn_run_is_over(r)) return 0;
    }
    return valid;
}

static int check_dependent(qn_run *r, const qn_keyword_use *u, const qn_value *v)
{
    int valid = 1;
    for (uint32_t i = 0; i < u->value->n; i++) {
        const qn_value *names = &u->value->children[i];
        if (!qn_run_step(r, 1)) return 0;
        if (names->kind != QN_VALUE_ARRAY || !qn_value_get(v, names->key, names->key_bytes)) continue;
        valid &= check_names(r, u, names, v);
        if (!valid && qn_run_is_over(r)) return 0;
    }
    return valid;
}

static int check_property_names(qn_run *r, const qn_keyword_use *u, const qn_value *v)
{
    int valid = 1;
    for (uint32_t i = 0; i < v->n; i++) {
        qn_value name = v->children[i];
        name.kind = QN_VALUE_STRING;
        name.text = name.key;
        name.n = name.key_bytes;
        valid &= qn_run_apply(r, u->one, &name, QN_NO_MARKS);
        if (!valid && qn_run_is_over(r)) return 0;
    }
    return valid;
}

static int apply_properties(qn_run *r, const qn_keyword_use *u, const qn_value *v, size_t marks)
{
    int valid = 1;
    for (uint32_t i = 0; i < u->value->n; i++) {
        const qn_value *name = &u->value->children[i], *child = qn_value_get(v, name->key, name->key_bytes);
        if (!qn_run_step(r, 1)) return 0;
        if (!child) continue;
        valid &= qn_run_apply(r, u->many[i], child, QN_NO_MARKS);
        if (!valid && qn_run_is_over(r)) return 0;
        qn_run_mark(r, marks, child->index);
    }
    return valid;
}

static int matches(qn_run *r, const qn_keyword_use *u, uint32_t i, const qn_value *child)
{
    return qn_run_step(r, 1 + child->key_bytes / 64) &&
           qn_dfa_accepts(u->patterns[i], child->key, child->key_bytes);
}

static int apply_patterns(qn_run *r, const qn_keyword_use *u, const qn_value *v, size_t marks)
{
    int valid = 1;
    for (uint32_t i = 0; i < u->value->n; i++)
        for (uint32_t k = 0; k < v->n; k++) {
            const qn_value *child = &v->children[k];
            if (!matches(r, u, i, child)) continue;
            valid &= qn_run_apply(r, u->many[i], child, QN_NO_MARKS);
            if (!valid && qn_run_is_over(r)) return 0;
            qn_run_mark(r, marks, k);
        }
    return valid && r->status == QN_OK;
}

static int is_named(qn_run *r, const qn_subschema *s, const qn_value *child)
{
    const qn_keyword_use *properties = qn_subschema_get(s, QN_KEYWORD_PROPERTIES);
    const qn_keyword_use *patterns = qn_subschema_get(s, QN_KEYWORD_PATTERN_PROPERTIES);
    if (properties && qn_value_get(properties->value, child->key, child->key_bytes)) return 1;
    for (uint32_t i = 0; patterns && i < patterns->value->n; i++)
        if (matches(r, patterns, i, child)) return 1;
    return 0;
}

/* A property where the schema is false: the name says more than the schema. */
static int apply_other(qn_run *r, const qn_keyword_use *u, const qn_value *child)
{
    if (u->one->is_boolean && !u->one->accepts)
        return qn_run_fail(r, u, child, "is a property that is not allowed");
    return qn_run_apply(r, u->one, child, QN_NO_MARKS);
}

static int apply_additional(qn_run *r, const qn_subschema *s, const qn_keyword_use *u, const qn_value *v,
                            size_t marks)
{
    int valid = 1;
    for (uint32_t i = 0; i < v->n; i++) {
        const qn_value *child = &v->children[i];
        if (!qn_run_step(r, 1)) return 0;
        if (is_named(r, s, child)) continue;
        valid &= apply_other(r, u, child);
        if (!valid && qn_run_is_over(r)) return 0;
        qn_run_mark(r, marks, i);
    }
    return valid && r->status == QN_OK;
}

static int apply_unevaluated(qn_run *r, const qn_keyword_use *u, const qn_value *v, size_t marks)
{
    int valid = 1;
    for (uint32_t i = 0; i < v->n; i++) {
        if (marks != QN_NO_MARKS && r->marks.data[marks + i]) continue;
        valid &= apply_other(r, u, &v->children[i]);
        if (!valid && qn_run_is_over(r)) return 0;
        qn_run_mark(r, marks, i);
    }
    return valid && r->status == QN_OK;
}

static int check_object(qn_run *r, const qn_subschema *s, const qn_keyword_use *u, const qn_value *v,
                        size_t marks)
{
    switch ((qn_keyword)u->kind) {
    case QN_KEYWORD_MAX_PROPERTIES:
        return v->n <= u->count ||
               qn_run_fail(r, u, v, "has %u properties, must have at most %lld", v->n, (long long)u->count);
    case QN_KEYWORD_MIN_PROPERTIES:
        return v->n >= u->count ||
               qn_run_fail(r, u, v, "has %u properties, must have at least %lld", v->n, (long long)u->count);
    case QN_KEYWORD_REQUIRED:
        return check_names(r, u, u->value, v);
    case QN_KEYWORD_DEPENDENT_REQUIRED:
    case QN_KEYWORD_DEPENDENCIES:
        return check_dependent(r, u, v);
    case QN_KEYWORD_PROPERTY_NAMES:
        return check_property_names(r, u, v);
    case QN_KEYWORD_PROPERTIES:
        return apply_properties(r, u, v, marks);
    case QN_KEYWORD_PATTERN_PROPERTIES:
        return apply_patterns(r, u, v, marks);
    case QN_KEYWORD_ADDITIONAL_PROPERTIES:
        return apply_additional(r, s, u, v, marks);
    default:
        return apply_unevaluated(r, u, v, marks);
    }
}

int qn_run_children(qn_run *r, const qn_subschema *s, const qn_keyword_use *u, const qn_value *v,
                    size_t marks)
{
    switch ((qn_keyword)u->kind) {
    case QN_KEYWORD_MAX_ITEMS:
    case QN_KEYWORD_MIN_ITEMS:
    case QN_KEYWORD_UNIQUE_ITEMS:
    case QN_KEYWORD_PREFIX_ITEMS:
    case QN_KEYWORD_ITEMS:
    case QN_KEYWORD_ADDITIONAL_ITEMS:
    case QN_KEYWORD_CONTAINS:
    case QN_KEYWORD_UNEVALUATED_ITEMS:
        return v->kind != QN_VALUE_ARRAY || check_array(r, s, u, v, marks);
    default:
        return v->kind != QN_VALUE_OBJECT || check_object(r, s, u, v, marks);
    }
}
