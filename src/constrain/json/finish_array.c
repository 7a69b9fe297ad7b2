/* Cases become rules: arrays. */
#include <string.h>

#include "base/mem.h"
#include "constrain/automaton/regex.h"
#include "constrain/json/compiler.h"

enum { PREFIX_MAX = 64 /* items that have a schema each, where several contains hold */ };

void qn_items_of(const qn_compiler *k, const json_t *s, const json_t **prefix, const json_t **rest)
{
    const json_t *items = json_object_get(s, "items"), *first = json_object_get(s, "prefixItems");
    *prefix = *rest = NULL;
    if (json_is_array(first) && k->doc.draft >= QN_DRAFT_2020) {
        *prefix = first;
        *rest = items;
    } else if (json_is_array(items) && k->doc.draft != QN_DRAFT_2020) {
        *prefix = items;
        *rest = json_object_get(s, "additionalItems");
    } else {
        *rest = items;
    }
}

static int is_inside(const qn_compiler *k, uint32_t scope, uint32_t around)
{
    while (scope && scope != around) scope = k->scopes[scope];
    return scope == around;
}

/* unevaluatedItems: items behind those that a schema of its scope looks at. -1: all are looked at. */
static int64_t evaluated_by(qn_compiler *k, const qn_case *c, const qn_fact *u)
{
    int64_t n = 0;
    for (const qn_fact *f = c->facts; f; f = f->next) {
        if (f == u || !is_inside(k, f->scope, u->scope)) continue;
        if (f->kind == QN_FACT_UNEVALUATED_ITEMS) return -1;
        if (f->kind != QN_FACT_ITEMS) continue;
        const json_t *prefix, *rest;
        qn_items_of(k, f->schema, &prefix, &rest);
        if (rest) return -1;
        if ((int64_t)json_array_size(prefix) > n) n = (int64_t)json_array_size(prefix);
    }
    return n;
}

/* No item is one that it contains. */
static int is_denial(const qn_fact *f)
{
    return f->kind == QN_FACT_CONTAINS && f->min <= 0 && f->max == 0;
}

/* The conjuncts of the item at i; i of n_prefix: those behind. */
static qn_status rules_of_item(qn_compiler *k, const qn_case *c, uint32_t i, int32_t *set, uint32_t *n)
{
    *n = 0;
    for (const qn_fact *f = c->facts; f; f = f->next) {
        if (f->kind == QN_FACT_ITEMS) {
            const json_t *prefix, *rest;
            qn_items_of(k, f->schema, &prefix, &rest);
            const json_t *own = i < json_array_size(prefix) ? json_array_get(prefix, i) : rest;
            if (own) QN_TRY(qn_conjunct_of(k, own, 0, &set[(*n)++]));
        } else if (f->kind == QN_FACT_ITEM && f->min == i) {
            set[(*n)++] = f->conjunct;
        } else if (f->kind == QN_FACT_UNEVALUATED_ITEMS) {
            int64_t evaluated = evaluated_by(k, c, f);
            if (evaluated >= 0 && i >= evaluated) set[(*n)++] = f->conjunct;
        } else if (is_denial(f) && i >= f->from) {
            QN_TRY(qn_conjunct_deny(k, f->conjunct, &set[(*n)++]));
        }
    }
    return QN_OK;
}

/* What some items of an array must be, or how many: contains, one entry for equal ones. */
typedef struct {
    const qn_fact *facts[QN_DUE_BITS_MAX];
    uint32_t n;
    int has_counts; /* one asks for more than one item, or has an upper bound */
} contained;

static qn_status add_contained(qn_compiler *k, const qn_fact *f, contained *all)
{
    uint32_t i = 0;
    all->has_counts |= f->min > 1 || f->max >= 0;
    while (i < all->n && (all->facts[i]->conjunct != f->conjunct || all->facts[i]->from != f->from)) i++;
    if (i < all->n) return QN_OK;
    if (all->n == QN_DUE_BITS_MAX)
        return qn_compiler_refuse(k, f->schema, "contains", "more than three hold for one array");
    all->facts[all->n++] = f;
    if (all->n > 1 && all->has_counts)
        return qn_compiler_refuse(k, f->schema, "contains", "two of them hold for one array, and one counts");
    return QN_OK;
}

static qn_status check(qn_compiler *k, const qn_case *c, uint32_t *n_prefix, uint32_t *n_facts,
                       contained *all)
{
    int64_t n = 0;
    *n_facts = 0;
    *all = (contained){.n = 0};
    for (const qn_fact *f = c->facts; f; f = f->next) {
        (*n_facts)++;
        if (f->kind == QN_FACT_BROKEN)
            return qn_compiler_refuse(k, f->schema, f->name, "cannot be enforced where it must not hold");
        if (f->kind == QN_FACT_ITEMS) {
            const json_t *prefix, *rest;
            qn_items_of(k, f->schema, &prefix, &rest);
            if ((int64_t)json_array_size(prefix) > n) n = (int64_t)json_array_size(prefix);
        }
        if (f->kind == QN_FACT_ITEM && f->min + 1 > n) n = f->min + 1;
        if (f->kind == QN_FACT_UNEVALUATED_ITEMS) {
            int64_t evaluated = evaluated_by(k, c, f);
            if (evaluated > n) n = evaluated;
            for (const qn_fact *g = c->facts; g; g = g->next)
                if (g->kind == QN_FACT_CONTAINS && k->doc.draft >= QN_DRAFT_2020)
                    return qn_compiler_refuse(k, f->schema, "unevaluatedItems",
                                              "beside contains it depends on items that may come later");
        }
        if (f->kind != QN_FACT_CONTAINS || (f->min <= 0 && f->max < 0)) continue;
        if (f->from > n) n = f->from;
        if (!is_denial(f)) QN_TRY(add_contained(k, f, all));
    }
    if (n > 10000) return qn_compiler_refuse(k, NULL, "prefixItems", "more than 10000 items have schemas");
    if (n > PREFIX_MAX && all->n > 1)
        return qn_compiler_refuse(k, all->facts[0]->schema, "contains",
                                  "two of them hold for one array of many schemas");
    *n_prefix = (uint32_t)n;
    return QN_OK;
}

/* Values for each set of contains that an item may be chosen for. */
static qn_status add_due(qn_compiler *k, const qn_case *c, const contained *all, int32_t *set,
                         qn_array_rule *a)
{
    a->due = (UINT32_C(1) << all->n) - 1;
    for (uint32_t which = 1; which <= a->due; which++) {
        a->meeting[which] = qn_arena_calloc(&k->p->arena, (size_t)a->n_prefix + 1, sizeof *a->meeting[which]);
        if (!a->meeting[which]) return QN_E_NOMEM;
        for (uint32_t i = 0; i <= a->n_prefix; i++) {
            uint32_t n;
            int comes = 1;
            QN_TRY(rules_of_item(k, c, i, set, &n));
            for (uint32_t j = 0; j < all->n; j++) {
                if (!(which >> j & 1)) continue;
                comes &= i >= all->facts[j]->from;
                set[n++] = all->facts[j]->conjunct;
            }
            a->meeting[which][i] = QN_NONE;
            if (comes) QN_TRY(qn_value_of(k, set, n, &a->meeting[which][i]));
        }
    }
    return QN_OK;
}

static qn_status add_contains(qn_compiler *k, const qn_case *c, const qn_fact *contains, int32_t *set,
                              qn_array_rule *a)
{
    a->counted = qn_arena_calloc(&k->p->arena, (size_t)a->n_prefix + 1, sizeof *a->counted);
    if (!a->counted) return QN_E_NOMEM;
    for (const qn_fact *f = c->facts; f; f = f->next) {
        if (f->kind != QN_FACT_CONTAINS || f->conjunct != contains->conjunct || is_denial(f)) continue;
        if (f->min > a->counted_min) a->counted_min = f->min;
        if (f->max >= 0 && (a->counted_max < 0 || f->max < a->counted_max)) a->counted_max = f->max;
    }
    int32_t denied;
    QN_TRY(qn_conjunct_deny(k, contains->conjunct, &denied));
    for (uint32_t i = 0; i <= a->n_prefix; i++) {
        uint32_t n;
        a->counted[i] = QN_NONE;
        if (i < contains->from) continue;
        QN_TRY(rules_of_item(k, c, i, set, &n));
        set[n++] = contains->conjunct;
        QN_TRY(qn_value_of(k, set, n, &a->counted[i]));
        /* Only an upper bound asks whether an item does not count. */
        if (a->counted_max < 0) continue;
        QN_TRY(rules_of_item(k, c, i, set, &n));
        set[n++] = denied;
        QN_TRY(qn_value_of(k, set, n, &a->items[i]));
    }
    return QN_OK;
}

/* Numbers in spellings that tell them apart: no exponent, no zero at a fraction's end but that of ".0". */
static qn_status tell_apart(qn_compiler *k, int32_t numbers, int32_t *out)
{
    static const char pattern[] = "-?(0|[1-9][0-9]*)(\\.0|\\.[0-9]*[1-9])?";
    qn_dfa *d;
    int32_t plain;
    QN_TRY(qn_dfa_regex(pattern, sizeof pattern - 1, QN_REGEX_WHOLE, &k->p->dfa_limits, &d));
    QN_TRY(qn_program_add_dfa(k->p, d, &plain));
    return qn_dfa_both(k, plain, numbers, out);
}

/* Adds how many texts an automaton takes. */
static qn_status add_count(qn_compiler *k, int32_t dfa, int64_t share, int64_t *sum)
{
    int64_t count;
    QN_TRY(qn_dfa_count(k->p->dfas[dfa], &count));
    *sum += count < 0 || count > INT32_MAX ? INT32_MAX : count / share;
    return QN_OK;
}

/* Items of unique arrays are strings, numbers and literals, whose texts are kept, or there is one at most. */
static qn_status make_unique(qn_compiler *k, const qn_case *c, qn_array_rule *a)
{
    const json_t *at = NULL;
    if (a->max >= 0 && a->max <= 1) return QN_OK;
    for (const qn_fact *f = c->facts; f; f = f->next)
        if (f->kind == QN_FACT_CONJUNCT &&
            json_is_true(json_object_get(k->conjuncts[f->conjunct].schema, "uniqueItems")))
            at = k->conjuncts[f->conjunct].schema;
    if (a->n_prefix || a->counted || a->due)
        return qn_compiler_refuse(k, at, "uniqueItems", "beside prefixItems or contains");
    QN_TRY(qn_compiler_expand(k->p, a->items[0]));
    qn_value v = k->p->values[a->items[0]];
    if (v.n_objects || v.n_arrays)
        return qn_compiler_refuse(k, at, "uniqueItems",
                                  "is not enforced for items that may be objects or arrays");
    a->is_unique = 1;
    if (v.number != QN_NONE) QN_TRY(tell_apart(k, v.number, &a->unique_numbers));
    if (a->min <= 1) return QN_OK;
    /* So many different items must exist. A number has up to four spellings. */
    int64_t count = 0;
    for (int i = 0; i < QN_LITERAL_COUNT; i++) count += v.literals >> i & 1;
    for (uint32_t i = 0; i < v.n_strings; i++)
        QN_TRY(add_count(k, k->p->strings[v.strings[i]].dfa, v.n_strings, &count));
    if (v.number != QN_NONE) QN_TRY(add_count(k, a->unique_numbers, 4, &count));
    if (count >= a->min) return QN_OK;
    return qn_compiler_refuse(k, at, "uniqueItems", "beside minItems it may need more values than there are");
}

qn_status qn_case_finish_array(qn_compiler *k, const qn_case *c, qn_union *u)
{
    uint32_t n_prefix = 0, n_facts = 0, n;
    contained all;
    QN_TRY(check(k, c, &n_prefix, &n_facts, &all));
    qn_array_rule a = {.n_prefix = n_prefix,
                       .min = c->items_min,
                       .max = c->items_max,
                       .counted_max = -1,
                       .unique_numbers = QN_NONE};
    if (a.max >= 0 && a.n_prefix > a.max) a.n_prefix = (uint32_t)a.max;
    int32_t *set = qn_arena_alloc(&k->arena, (n_facts + 2 + QN_DUE_BITS_MAX) * sizeof *set);
    a.items = qn_arena_calloc(&k->p->arena, (size_t)a.n_prefix + 1, sizeof *a.items);
    if (!set || !a.items) return QN_E_NOMEM;
    for (uint32_t i = 0; i <= a.n_prefix; i++) {
        QN_TRY(rules_of_item(k, c, i, set, &n));
        QN_TRY(qn_value_of(k, set, n, &a.items[i]));
    }
    if (all.n == 1) QN_TRY(add_contains(k, c, all.facts[0], set, &a));
    if (all.n > 1) QN_TRY(add_due(k, c, &all, set, &a));
    if (c->is_unique) {
        QN_TRY(make_unique(k, c, &a));
    }
    int32_t array;
    QN_TRY(qn_program_add_array(k->p, &a, &array));
    return qn_union_add(&u->arrays, &u->n_arrays, &u->arrays_room, array);
}
