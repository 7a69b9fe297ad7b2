/* Cases become rules: objects. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "constrain/json/compiler.h"

enum { SOME_MAX = 12, FLOATING_MAX = 32 - SOME_MAX };

/* Conjuncts of one key's value. */
typedef struct {
    int32_t *list;
    uint32_t n, room;
} set;

typedef struct {
    qn_compiler *k;
    const qn_case *c;
    const qn_fact **groups; /* in their order */
    uint32_t n_groups;
    qn_member *members;
    uint32_t n_members, members_room;
    qn_map *member_of;
    qn_key_class *classes;
    set *class_sets;
    uint64_t *class_matches; /* groups of which some pattern matches */
    uint32_t n_classes, classes_room;
    int32_t names; /* dfa that all names are of; QN_NONE: any */
    int no_names;
    const qn_fact *some[SOME_MAX]; /* what some member must be: bit i is some[i] */
    uint32_t n_some;
    const qn_fact *marked; /* the one of them that asks for a value; NULL: none */
    uint32_t marked_bit;
} building;

static qn_status add_to(qn_compiler *k, set *s, int32_t conjunct)
{
    if (conjunct == QN_CONJUNCT_TRUE) return QN_OK;
    if (s->n == s->room) {
        uint32_t more = s->room ? 2 * s->room : 4;
        int32_t *p = qn_arena_alloc(&k->arena, more * sizeof *p);
        if (!p) return QN_E_NOMEM;
        if (s->n) memcpy(p, s->list, s->n * sizeof *p);
        s->list = p;
        s->room = more;
    }
    s->list[s->n++] = conjunct;
    return QN_OK;
}

static qn_status copy_set(qn_compiler *k, const set *from, set *to)
{
    *to = (set){0};
    for (uint32_t i = 0; i < from->n; i++) QN_TRY(add_to(k, to, from->list[i]));
    return QN_OK;
}

/* ---- groups -------------------------------------------------------------------------------------------- */

static int is_inside(const qn_compiler *k, uint32_t scope, uint32_t around)
{
    while (scope && scope != around) scope = k->scopes[scope];
    return scope == around;
}

/* What the other members of a group must be; NULL: anything, of no interest. */
static const json_t *additional_of(const qn_fact *g)
{
    return json_object_get(g->schema, "additionalProperties");
}

/* Groups whose keys an unevaluatedProperties leaves out. */
static int counts_for(const building *b, const qn_fact *unevaluated, const qn_fact *g)
{
    return g->kind == QN_FACT_GROUP ? is_inside(b->k, g->scope, unevaluated->scope)
                                    : g != unevaluated && is_inside(b->k, g->scope, unevaluated->scope);
}

/* 1: the group evaluates every key. */
static int evaluates_all(const qn_fact *g)
{
    return g->kind == QN_FACT_UNEVALUATED_MEMBERS || additional_of(g) != NULL;
}

/* Adds what unevaluatedProperties ask for of a key: matched says of each group whether it names the key. */
static qn_status add_unevaluated(building *b, uint64_t matched, set *s)
{
    for (uint32_t i = 0; i < b->n_groups; i++) {
        const qn_fact *u = b->groups[i];
        if (u->kind != QN_FACT_UNEVALUATED_MEMBERS) continue;
        int is_evaluated = 0;
        for (uint32_t j = 0; j < b->n_groups && !is_evaluated; j++)
            is_evaluated =
                counts_for(b, u, b->groups[j]) && (matched >> j & 1 || evaluates_all(b->groups[j]));
        if (!is_evaluated) QN_TRY(add_to(b->k, s, u->conjunct));
    }
    return QN_OK;
}

static qn_status pattern_of(building *b, const qn_fact *g, const char *pattern, int32_t *dfa)
{
    return qn_pattern_dfa(b->k, g->schema, "patternProperties", pattern, dfa);
}

/* All that a key's value must satisfy by the groups. */
static qn_status rules_of_name(building *b, const char *name, set *s)
{
    uint64_t matched = 0;
    for (uint32_t i = 0; i < b->n_groups; i++) {
        const qn_fact *g = b->groups[i];
        if (g->kind != QN_FACT_GROUP) continue;
        int32_t conjunct;
        const json_t *own = json_object_get(json_object_get(g->schema, "properties"), name);
        if (own) {
            QN_TRY(qn_conjunct_of(b->k, own, 0, &conjunct));
            QN_TRY(add_to(b->k, s, conjunct));
            matched |= UINT64_C(1) << i;
        }
        const json_t *patterns = json_object_get(g->schema, "patternProperties");
        for (void *it = json_object_iter((json_t *)patterns); it;
             it = json_object_iter_next((json_t *)patterns, it)) {
            int32_t dfa;
            QN_TRY(pattern_of(b, g, json_object_iter_key(it), &dfa));
            if (!qn_dfa_accepts(b->k->p->dfas[dfa], name, strlen(name))) continue;
            QN_TRY(qn_conjunct_of(b->k, json_object_iter_value(it), 0, &conjunct));
            QN_TRY(add_to(b->k, s, conjunct));
            matched |= UINT64_C(1) << i;
        }
        if (!(matched >> i & 1) && additional_of(g)) {
            QN_TRY(qn_conjunct_of(b->k, additional_of(g), 0, &conjunct));
            QN_TRY(add_to(b->k, s, conjunct));
        }
    }
    for (const qn_fact *f = b->c->facts; f; f = f->next)
        if (f->kind == QN_FACT_PROPERTY && strcmp(f->name, name) == 0) QN_TRY(add_to(b->k, s, f->conjunct));
    if (b->no_names || (b->names != QN_NONE && !qn_dfa_accepts(b->k->p->dfas[b->names], name, strlen(name))))
        QN_TRY(add_to(b->k, s, QN_CONJUNCT_FALSE));
    return add_unevaluated(b, matched, s);
}

/* ---- members ------------------------------------------------------------------------------------------- */

/* The value that also is what some member must be. */
static qn_status marked_value(building *b, const set *s, int32_t *value)
{
    set more;
    QN_TRY(copy_set(b->k, s, &more));
    QN_TRY(add_to(b->k, &more, b->marked->conjunct));
    return qn_value_of(b->k, more.list, more.n, value);
}

static qn_status add_member(building *b, const char *name, int64_t *index)
{
    size_t n = strlen(name);
    if (qn_map_get(b->member_of, name, n, index)) return QN_OK;
    if (b->n_members == b->members_room) {
        uint32_t more = b->members_room ? 2 * b->members_room : 16;
        qn_member *p = qn_arena_alloc(&b->k->p->arena, more * sizeof *p);
        if (!p) return QN_E_NOMEM;
        if (b->n_members) memcpy(p, b->members, b->n_members * sizeof *p);
        b->members = p;
        b->members_room = more;
    }
    const char *copy = qn_arena_strndup(&b->k->p->arena, name, n);
    if (!copy) return QN_E_NOMEM;
    set s = {0};
    QN_TRY(rules_of_name(b, name, &s));
    qn_member x = {.name = copy, .n = (uint32_t)n, .marked = QN_NONE};
    for (uint32_t i = 0; i < b->n_some; i++) {
        if (!qn_dfa_accepts(b->k->p->dfas[b->some[i]->dfa], name, n)) continue;
        if (b->some[i] == b->marked)
            QN_TRY(marked_value(b, &s, &x.marked));
        else
            x.meets |= UINT32_C(1) << i;
    }
    QN_TRY(qn_value_of(b->k, s.list, s.n, &x.value));
    *index = b->n_members;
    QN_TRY(qn_map_set(b->member_of, copy, n, *index, NULL, NULL));
    b->members[b->n_members++] = x;
    return QN_OK;
}

static qn_status forbid(building *b, const char *name)
{
    int64_t i;
    int32_t never = QN_CONJUNCT_FALSE;
    QN_TRY(add_member(b, name, &i));
    b->members[i].marked = QN_NONE;
    return qn_value_of(b->k, &never, 1, &b->members[i].value);
}

/* ---- other keys ---------------------------------------------------------------------------------------- */

static qn_status add_class(building *b, int32_t dfa, const set *s, uint64_t matches)
{
    enum { CLASSES_MAX = 256 };
    if (dfa != QN_NONE && qn_dfa_is_empty(b->k->p->dfas[dfa])) return QN_OK;
    if (b->n_classes >= CLASSES_MAX)
        return qn_compiler_refuse(b->k, b->n_groups ? b->groups[0]->schema : NULL, "patternProperties",
                                  "the patterns cut the names into more than %d classes", CLASSES_MAX);
    if (b->n_classes == b->classes_room) {
        uint32_t more = b->classes_room ? 2 * b->classes_room : 4;
        qn_key_class *p = qn_arena_alloc(&b->k->p->arena, more * sizeof *p);
        set *q = qn_arena_alloc(&b->k->arena, more * sizeof *q);
        uint64_t *r = qn_arena_alloc(&b->k->arena, more * sizeof *r);
        if (!p || !q || !r) return QN_E_NOMEM;
        if (b->n_classes) {
            memcpy(p, b->classes, b->n_classes * sizeof *p);
            memcpy(q, b->class_sets, b->n_classes * sizeof *q);
            memcpy(r, b->class_matches, b->n_classes * sizeof *r);
        }
        b->classes = p;
        b->class_sets = q;
        b->class_matches = r;
        b->classes_room = more;
    }
    b->classes[b->n_classes] = (qn_key_class){.dfa = dfa, .marked = QN_NONE};
    QN_TRY(copy_set(b->k, s, &b->class_sets[b->n_classes]));
    b->class_matches[b->n_classes++] = matches;
    return QN_OK;
}

/* Cuts each class into the keys that match a pattern and those that do not. schema NULL: the pattern is none of
 * a group. */
static qn_status cut(building *b, int32_t pattern, uint32_t group, const json_t *schema)
{
    int32_t conjunct = QN_CONJUNCT_TRUE;
    uint64_t match = group < b->n_groups ? UINT64_C(1) << group : 0;
    const json_t *at = group < b->n_groups ? b->groups[group]->schema : NULL;
    if (schema) QN_TRY(qn_conjunct_of(b->k, schema, 0, &conjunct));
    uint32_t n = b->n_classes;
    qn_key_class *classes = b->classes;
    set *sets = b->class_sets;
    uint64_t *matches = b->class_matches;
    b->n_classes = b->classes_room = 0;
    for (uint32_t i = 0; i < n; i++) {
        int32_t in = pattern, out;
        int32_t all = classes[i].dfa == QN_NONE ? b->k->p->all : classes[i].dfa;
        qn_status status = qn_dfa_both(b->k, pattern, all, &in);
        if (status == QN_OK) status = qn_dfa_without(b->k, all, pattern, &out);
        if (status != QN_OK) return qn_compiler_refuse_as(b->k, status, at, "patternProperties");
        set more;
        QN_TRY(copy_set(b->k, &sets[i], &more));
        QN_TRY(add_to(b->k, &more, conjunct));
        QN_TRY(add_class(b, in, &more, matches[i] | match));
        QN_TRY(add_class(b, out, &sets[i], matches[i]));
    }
    return QN_OK;
}

/* A class lies inside the keys of what some member must be, or outside. */
static qn_status class_meets(building *b, qn_key_class *k, const set *s)
{
    for (uint32_t i = 0; i < b->n_some; i++) {
        int32_t both, dfa = k->dfa == QN_NONE ? b->k->p->all : k->dfa;
        QN_TRY(qn_dfa_both(b->k, b->some[i]->dfa, dfa, &both));
        if (qn_dfa_is_empty(b->k->p->dfas[both])) continue;
        if (b->some[i] == b->marked)
            QN_TRY(marked_value(b, s, &k->marked));
        else
            k->meets |= UINT32_C(1) << i;
    }
    return QN_OK;
}

static qn_status make_classes(building *b)
{
    set none = {0};
    if (b->no_names) return QN_OK;
    QN_TRY(add_class(b, b->names, &none, 0));
    for (uint32_t i = 0; i < b->n_groups; i++) {
        const json_t *patterns = json_object_get(b->groups[i]->schema, "patternProperties");
        if (b->groups[i]->kind != QN_FACT_GROUP) continue;
        for (void *it = json_object_iter((json_t *)patterns); it;
             it = json_object_iter_next((json_t *)patterns, it)) {
            int32_t dfa;
            QN_TRY(pattern_of(b, b->groups[i], json_object_iter_key(it), &dfa));
            QN_TRY(cut(b, dfa, i, json_object_iter_value(it)));
        }
    }
    for (uint32_t i = 0; i < b->n_some; i++) QN_TRY(cut(b, b->some[i]->dfa, b->n_groups, NULL));
    uint32_t n = 0;
    for (uint32_t c = 0; c < b->n_classes; c++) {
        set *s = &b->class_sets[c];
        for (uint32_t i = 0; i < b->n_groups; i++) {
            int32_t conjunct;
            if (b->groups[i]->kind != QN_FACT_GROUP || b->class_matches[c] >> i & 1) continue;
            if (!additional_of(b->groups[i])) continue;
            QN_TRY(qn_conjunct_of(b->k, additional_of(b->groups[i]), 0, &conjunct));
            QN_TRY(add_to(b->k, s, conjunct));
        }
        QN_TRY(add_unevaluated(b, b->class_matches[c], s));
        QN_TRY(class_meets(b, &b->classes[c], s));
        QN_TRY(qn_value_of(b->k, s->list, s->n, &b->classes[c].value));
        if (s->n && s->list[0] == QN_CONJUNCT_FALSE) continue;
        b->classes[n++] = b->classes[c];
    }
    b->n_classes = n;
    return QN_OK;
}

/* Names of a few texts become members; the rest of them stay classes. */
typedef struct {
    building *b;
} listing;

static qn_status list_name(void *context, const char *text, size_t n)
{
    listing *l = context;
    int64_t i;
    char *name = qn_arena_strndup(&l->b->k->arena, text, n);
    if (!name) return QN_E_NOMEM;
    if (memchr(name, 0, n)) return QN_OK; /* a class keeps it */
    return add_member(l->b, name, &i);
}

static qn_status list_small_classes(building *b)
{
    enum { FEW = 24 };
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n_classes; i++) {
        const qn_dfa *d = b->classes[i].dfa == QN_NONE ? NULL : b->k->p->dfas[b->classes[i].dfa];
        int64_t count = -1;
        if (d && qn_dfa_is_finite(d)) QN_TRY(qn_dfa_count(d, &count));
        if (count >= 0 && count <= FEW && !qn_dfa_accepts(d, "", 1)) {
            listing l = {b};
            QN_TRY(qn_dfa_list(d, FEW + 1, list_name, &l));
        } else {
            b->classes[n++] = b->classes[i];
        }
    }
    b->n_classes = n;
    return QN_OK;
}

/* ---- the rule ------------------------------------------------------------------------------------------ */

static int by_name(const void *x, const void *y)
{
    const qn_member *a = *(const qn_member *const *)x, *b = *(const qn_member *const *)y;
    int c = memcmp(a->name, b->name, a->n < b->n ? a->n : b->n);
    return c ? c : a->n < b->n ? -1 : a->n > b->n;
}

static qn_status sort_members(building *b, qn_object_rule *o)
{
    const qn_member **list = qn_arena_alloc(&b->k->arena, (b->n_members + 1) * sizeof *list);
    o->sorted = qn_arena_alloc(&b->k->p->arena, (b->n_members + 1) * sizeof *o->sorted);
    if (!list || !o->sorted) return QN_E_NOMEM;
    for (uint32_t i = 0; i < b->n_members; i++) list[i] = &b->members[i];
    if (b->n_members) qsort(list, b->n_members, sizeof *list, by_name);
    for (uint32_t i = 0; i < b->n_members; i++) o->sorted[i] = (uint32_t)(list[i] - b->members);
    return QN_OK;
}

/* What some member must be. One of them may ask for a value: for more, the values would have to be looked at
 * together. */
static qn_status gather_some(building *b)
{
    for (const qn_fact *f = b->c->facts; f; f = f->next) {
        if (f->kind != QN_FACT_SOME) continue;
        if (b->n_some == SOME_MAX || (f->conjunct != QN_CONJUNCT_TRUE && b->marked) || b->c->members_max >= 0)
            return qn_compiler_refuse(b->k, f->schema, "not",
                                      "too much must hold of some member of one object at once");
        if (f->conjunct != QN_CONJUNCT_TRUE) {
            b->marked = f;
            b->marked_bit = UINT32_C(1) << b->n_some;
        }
        b->some[b->n_some++] = f;
    }
    return QN_OK;
}

static qn_status gather(building *b)
{
    const qn_case *c = b->c;
    uint32_t n = 0;
    for (const qn_fact *f = c->facts; f; f = f->next) {
        n += f->kind == QN_FACT_GROUP || f->kind == QN_FACT_UNEVALUATED_MEMBERS;
        if (f->kind == QN_FACT_BROKEN)
            return qn_compiler_refuse(b->k, f->schema, f->name, "cannot be enforced where it must not hold");
    }
    QN_TRY(gather_some(b));
    if (n > 64) return qn_compiler_refuse(b->k, NULL, "allOf", "more than 64 objects at once");
    b->groups = qn_arena_calloc(&b->k->arena, n + 1, sizeof *b->groups);
    if (!b->groups) return QN_E_NOMEM;
    b->n_groups = n;
    for (const qn_fact *f = c->facts; f; f = f->next)
        if (f->kind == QN_FACT_GROUP || f->kind == QN_FACT_UNEVALUATED_MEMBERS) b->groups[--n] = f;
    b->names = QN_NONE;
    for (const qn_fact *f = c->facts; f; f = f->next) {
        if (f->kind != QN_FACT_NAMES) continue;
        int32_t value, dfa, conjunct = f->conjunct;
        QN_TRY(qn_value_of(b->k, &conjunct, 1, &value));
        QN_TRY(qn_value_texts(b->k, f->schema, value, &dfa));
        if (dfa == QN_NONE)
            b->no_names = 1;
        else if (b->names == QN_NONE)
            b->names = dfa;
        else
            QN_TRY(qn_dfa_both(b->k, b->names, dfa, &b->names));
    }
    if (b->names != QN_NONE && qn_dfa_is_all(b->k->p->dfas[b->names])) b->names = QN_NONE;
    return QN_OK;
}

static qn_status add_members(building *b, uint32_t *n_ordered)
{
    int64_t at;
    for (uint32_t i = 0; i < b->n_groups; i++) {
        if (b->groups[i]->kind != QN_FACT_GROUP) continue;
        const json_t *properties = json_object_get(b->groups[i]->schema, "properties");
        for (void *it = json_object_iter((json_t *)properties); it;
             it = json_object_iter_next((json_t *)properties, it))
            QN_TRY(add_member(b, json_object_iter_key(it), &at));
    }
    *n_ordered = b->n_members;
    for (int pass = 0; pass < 2; pass++)
        for (const qn_fact *f = b->c->facts; f; f = f->next) {
            if (f->kind == QN_FACT_PROPERTY || f->kind == QN_FACT_REQUIRED) {
                QN_TRY(add_member(b, f->name, &at));
                if (f->kind == QN_FACT_REQUIRED) b->members[at].is_required = 1;
            }
            if (pass == 1 && f->kind == QN_FACT_FORBIDDEN) QN_TRY(forbid(b, f->name));
        }
    return list_small_classes(b);
}

static qn_status build(building *b, qn_union *u)
{
    const qn_case *c = b->c;
    QN_TRY(gather(b));
    QN_TRY(make_classes(b));
    qn_object_rule o = {.min = c->members_min, .max = c->members_max};
    QN_TRY(add_members(b, &o.n_ordered));
    o.n_members = b->n_members;
    if (o.n_members - o.n_ordered > FLOATING_MAX) o.n_ordered = o.n_members;
    for (uint32_t i = o.n_ordered; i < o.n_members; i++)
        b->members[i].marks = UINT32_C(1) << (SOME_MAX + i - o.n_ordered);
    o.members = b->members;
    o.classes = b->classes;
    o.n_classes = b->n_classes;
    o.due = (UINT32_C(1) << b->n_some) - 1;
    o.marked_bit = b->marked_bit;
    for (uint32_t i = 0; i < o.n_members; i++)
        if (o.members[i].is_required && b->k->p->values[o.members[i].value].possible == 0) return QN_OK;
    QN_TRY(sort_members(b, &o));
    int32_t object;
    QN_TRY(qn_program_add_object(b->k->p, &o, &object));
    return qn_union_add(&u->objects, &u->n_objects, &u->objects_room, object);
}

qn_status qn_case_finish_object(qn_compiler *k, const qn_case *c, qn_union *u)
{
    building b = {.k = k, .c = c, .member_of = qn_map_new(16)};
    qn_status status = b.member_of ? build(&b, u) : QN_E_NOMEM;
    qn_map_free(b.member_of);
    return status;
}
