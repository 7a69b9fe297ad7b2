/* Ways through the forks of a value's conjuncts. */
#include <string.h>

#include "base/mem.h"
#include "constrain/json/compiler.h"

qn_fact *qn_fact_before(qn_compiler *k, const qn_fact *list, qn_fact_kind kind, const json_t *at)
{
    qn_fact *f = qn_arena_calloc(&k->arena, 1, sizeof *f);
    if (!f) return NULL;
    f->next = list;
    f->kind = kind;
    f->schema = at;
    f->dfa = QN_NONE;
    f->max = -1;
    return f;
}

qn_status qn_case_add(qn_compiler *k, qn_case *c, int32_t conjunct, const json_t *at, uint32_t scope)
{
    if (conjunct == QN_CONJUNCT_TRUE) return QN_OK;
    if (conjunct == QN_CONJUNCT_FALSE) {
        c->is_dead = 1;
        return QN_OK;
    }
    qn_fact *f = qn_fact_before(k, c->due, QN_FACT_CONJUNCT, at);
    if (!f) return QN_E_NOMEM;
    f->conjunct = conjunct;
    f->scope = scope;
    c->due = f;
    return QN_OK;
}

qn_status qn_case_fork(qn_compiler *k, qn_case *c, const json_t *at, const qn_fact **options, uint32_t n)
{
    if (n == 0) {
        c->is_dead = 1;
        return QN_OK;
    }
    qn_fork *f = qn_arena_calloc(&k->arena, 1, sizeof *f);
    if (!f) return QN_E_NOMEM;
    *f = (qn_fork){.next = c->forks, .schema = at, .n = n, .options = options};
    c->forks = f;
    return QN_OK;
}

/* ---- facts --------------------------------------------------------------------------------------------- */

static qn_status new_scope(qn_compiler *k, uint32_t around, uint32_t *out)
{
    if (k->n_scopes == k->scopes_room) {
        uint32_t more = k->scopes_room ? 2 * k->scopes_room : 64;
        uint32_t *p = qn_realloc(k->scopes, more * sizeof *p);
        if (!p) return QN_E_NOMEM;
        k->scopes = p;
        k->scopes_room = more;
    }
    k->scopes[k->n_scopes] = around;
    *out = k->n_scopes++;
    return QN_OK;
}

static qn_status take_conjunct(qn_compiler *k, qn_case *c, const qn_fact *f)
{
    if (f->conjunct < 0) {
        c->is_dead |= f->conjunct == QN_CONJUNCT_FALSE;
        return QN_OK;
    }
    for (const qn_fact *g = c->facts; g; g = g->next)
        if (g->kind == QN_FACT_CONJUNCT && g->conjunct == f->conjunct) {
            /* Once is enough, unless what it evaluates counts elsewhere, too. */
            if (!c->tracks_scopes || g->scope == f->scope) return QN_OK;
        }
    qn_fact *kept = qn_fact_before(k, c->facts, QN_FACT_CONJUNCT, f->schema);
    if (!kept) return QN_E_NOMEM;
    kept->conjunct = f->conjunct;
    kept->scope = f->scope;
    c->facts = kept;
    qn_conjunct x = k->conjuncts[f->conjunct];
    if (x.is_denied) return qn_schema_deny(k, c, x.schema);
    uint32_t scope;
    QN_TRY(new_scope(k, f->scope, &scope));
    return qn_schema_assert(k, c, x.schema, scope);
}

static void narrow(int64_t *min, int64_t *max, const qn_fact *f)
{
    if (f->min > *min) *min = f->min;
    if (f->max >= 0 && (*max < 0 || f->max < *max)) *max = f->max;
}

qn_status qn_case_take(qn_compiler *k, qn_case *c, const qn_fact *f)
{
    switch (f->kind) {
    case QN_FACT_CONJUNCT:
        return take_conjunct(k, c, f);
    case QN_FACT_TYPES:
        c->types &= (uint32_t)f->min;
        return QN_OK;
    case QN_FACT_LENGTH:
        narrow(&c->length_min, &c->length_max, f);
        if (c->length_max >= 0 && c->length_min > c->length_max) c->types &= ~(uint32_t)QN_TYPE_STRING;
        return QN_OK;
    case QN_FACT_MEMBERS:
        narrow(&c->members_min, &c->members_max, f);
        if (c->members_max >= 0 && c->members_min > c->members_max) c->types &= ~(uint32_t)QN_TYPE_OBJECT;
        return QN_OK;
    case QN_FACT_COUNT:
        narrow(&c->items_min, &c->items_max, f);
        if (c->items_max >= 0 && c->items_min > c->items_max) c->types &= ~(uint32_t)QN_TYPE_ARRAY;
        return QN_OK;
    case QN_FACT_UNIQUE:
        c->is_unique = 1;
        return QN_OK;
    default: {
        qn_fact *kept = qn_arena_alloc(&k->arena, sizeof *kept);
        if (!kept) return QN_E_NOMEM;
        *kept = *f;
        kept->next = c->facts;
        c->facts = kept;
        if (f->kind == QN_FACT_REQUIRED || f->kind == QN_FACT_FORBIDDEN)
            for (const qn_fact *g = kept->next; g; g = g->next)
                if (g->kind != f->kind && (g->kind == QN_FACT_REQUIRED || g->kind == QN_FACT_FORBIDDEN) &&
                    strcmp(f->name, g->name) == 0)
                    c->types &= ~(uint32_t)QN_TYPE_OBJECT;
        return QN_OK;
    }
    }
}

/* ---- ways ---------------------------------------------------------------------------------------------- */

/* Before a fork is taken: does a required member still have a value? A cheap look that leaves most ways out. */
static qn_status check_members(qn_compiler *k, qn_case *c)
{
    if (!(c->types & QN_TYPE_OBJECT)) return QN_OK;
    for (const qn_fact *f = c->facts; f; f = f->next) {
        if (f->kind != QN_FACT_REQUIRED) continue;
        int32_t set[64];
        uint32_t n = 0;
        for (const qn_fact *g = c->facts; g && n < 64; g = g->next) {
            if (g->kind == QN_FACT_PROPERTY && strcmp(g->name, f->name) == 0) set[n++] = g->conjunct;
            if (g->kind != QN_FACT_GROUP) continue;
            const json_t *s = json_object_get(json_object_get(g->schema, "properties"), f->name);
            if (s) QN_TRY(qn_conjunct_of(k, s, 0, &set[n++]));
        }
        if (n < 2) continue;
        int32_t value;
        int possible;
        QN_TRY(qn_value_of(k, set, n, &value));
        QN_TRY(qn_compiler_possible(k->p, value, &possible));
        if (!possible) {
            c->types &= ~(uint32_t)QN_TYPE_OBJECT;
            return QN_OK;
        }
    }
    return QN_OK;
}

static qn_status run(qn_compiler *k, qn_case *c, qn_union *u, int depth)
{
    enum { FORKS_MAX = 1000 };
    QN_TRY(qn_compiler_step(k));
    while (c->due && !c->is_dead && c->types) {
        const qn_fact *f = c->due;
        c->due = f->next;
        QN_TRY(qn_case_take(k, c, f));
    }
    if (c->is_dead || !c->types) return QN_OK;
    if (!c->forks) return qn_case_finish(k, c, u);
    if (depth) QN_TRY(check_members(k, c));
    if (!c->types) return QN_OK;
    if (k->n_open_forks > FORKS_MAX)
        return qn_fail(QN_E_UNSUPPORTED, "too many alternatives inside each other");
    /* The fork with the fewest options first: single ones cost nothing. */
    const qn_fork *least = c->forks;
    for (const qn_fork *f = c->forks; f; f = f->next)
        if (f->n <= least->n) least = f;
    const qn_fork *rest = NULL;
    for (const qn_fork *f = c->forks; f; f = f->next) {
        if (f == least) continue;
        qn_fork *copy = qn_arena_alloc(&k->arena, sizeof *copy);
        if (!copy) return QN_E_NOMEM;
        *copy = *f;
        copy->next = rest;
        rest = copy;
    }
    for (uint32_t i = 0; i < least->n; i++) {
        qn_case way = *c;
        way.forks = rest;
        way.due = least->options[i];
        k->n_open_forks++;
        qn_status status = run(k, &way, u, depth + 1);
        k->n_open_forks--;
        if (status != QN_OK) return status;
    }
    return QN_OK;
}

static qn_status add_number(qn_compiler *k, qn_value *v, const qn_union *u)
{
    v->number = u->number != QN_NONE && !qn_dfa_is_empty(k->p->dfas[u->number]) ? u->number : QN_NONE;
    return QN_OK;
}

static qn_status settle(qn_compiler *k, int32_t value, qn_union *u)
{
    if (u->text != QN_NONE && !qn_dfa_is_empty(k->p->dfas[u->text])) {
        int32_t string;
        QN_TRY(qn_program_add_string(k->p, &(qn_string_rule){.dfa = u->text, .max = -1}, &string));
        /* All strings hold counted ones as well. */
        if (qn_dfa_is_all(k->p->dfas[u->text])) u->n_strings = 0;
        QN_TRY(qn_union_add(&u->strings, &u->n_strings, &u->strings_room, string));
    }
    qn_value v = k->p->values[value];
    v.literals = (uint8_t)u->literals;
    QN_TRY(add_number(k, &v, u));
    v.n_strings = u->n_strings;
    v.n_objects = u->n_objects;
    v.n_arrays = u->n_arrays;
    v.strings = qn_program_numbers(k->p, u->strings, u->n_strings);
    v.objects = qn_program_numbers(k->p, u->objects, u->n_objects);
    v.arrays = qn_program_numbers(k->p, u->arrays, u->n_arrays);
    if (!v.strings || !v.objects || !v.arrays) return QN_E_NOMEM;
    v.is_expanded = 1;
    k->p->values[value] = v;
    return QN_OK;
}

qn_status qn_union_add(int32_t **list, uint32_t *n, uint32_t *room, int32_t number)
{
    for (uint32_t i = 0; i < *n; i++)
        if ((*list)[i] == number) return QN_OK;
    if (*n == *room) {
        uint32_t more = *room ? 2 * *room : 4;
        int32_t *p = qn_realloc(*list, more * sizeof *p);
        if (!p) return QN_E_NOMEM;
        *list = p;
        *room = more;
    }
    (*list)[(*n)++] = number;
    return QN_OK;
}

qn_status qn_compiler_expand(qn_program *p, int32_t value)
{
    enum { DEPTH_MAX = 200 };
    qn_compiler *k = p->compiler;
    if (p->values[value].is_expanded) return QN_OK;
    if (p->values[value].is_expanding) return qn_fail(QN_E_UNSUPPORTED, "the schema is defined by itself");
    if (k->depth >= DEPTH_MAX) return qn_fail(QN_E_UNSUPPORTED, "the schema's parts are nested too deeply");
    qn_union u = {.number = QN_NONE, .text = QN_NONE};
    qn_case c = {.types = QN_TYPE_ALL, .length_max = -1, .members_max = -1, .items_max = -1};
    qn_conjunct_set set = k->sets[value];
    qn_status status = QN_OK;
    for (uint32_t i = set.n; i-- > 0 && status == QN_OK;)
        status = qn_case_add(k, &c, set.conjuncts[i], NULL, 0);
    p->values[value].is_expanding = 1;
    k->depth++;
    if (status == QN_OK) status = run(k, &c, &u, 0);
    k->depth--;
    p->values[value].is_expanding = 0;
    if (status == QN_OK) status = settle(k, value, &u);
    qn_free(u.strings);
    qn_free(u.objects);
    qn_free(u.arrays);
    return status;
}
