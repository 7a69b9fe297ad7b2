/* Conjuncts and the values they make. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "constrain/json/any.h"
#include "constrain/json/compiler.h"

/* ---- failures ------------------------------------------------------------------------------------------ */

qn_status qn_compiler_refuse_as(qn_compiler *k, qn_status status, const json_t *at, const char *keyword)
{
    if (status == QN_E_NOMEM) return status;
    qn_buf b = {0};
    qn_document_pointer(&k->doc, at, &b);
    status = qn_fail_prefix(status, "%.300s: %s", b.data ? b.data : "", keyword);
    qn_buf_free(&b);
    return status;
}

qn_status qn_compiler_refuse(qn_compiler *k, const json_t *at, const char *keyword, const char *fmt, ...)
{
    char text[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return qn_compiler_refuse_as(k, qn_fail(QN_E_UNSUPPORTED, "%s", text), at, keyword);
}

qn_status qn_compiler_note(qn_compiler *k, const json_t *at, const char *keyword, const char *message)
{
    qn_buf b = {0};
    qn_document_pointer(&k->doc, at, &b);
    qn_status status = b.status;
    if (status == QN_OK) status = k->options->note(k->options->context, b.data, keyword, message);
    qn_buf_free(&b);
    return status;
}

qn_status qn_compiler_step(qn_compiler *k)
{
    if (--k->steps_left >= 0) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED, "the schema needs too many steps to compile");
}

/* ---- conjuncts ----------------------------------------------------------------------------------------- */

/* 1: nothing but $ref counts in the schema. */
static int is_ref_alone(const qn_compiler *k, const json_t *s)
{
    static const char *const no_rules[] = {"$ref", "title", "description", "default", "examples", "$comment"};
    if (!json_is_string(json_object_get(s, "$ref"))) return 0;
    if (qn_document_ref_is_alone(&k->doc)) return 1;
    for (void *it = json_object_iter((json_t *)s); it; it = json_object_iter_next((json_t *)s, it)) {
        size_t i = 0, n = sizeof no_rules / sizeof no_rules[0];
        while (i < n && strcmp(no_rules[i], json_object_iter_key(it)) != 0) i++;
        if (i == n) return 0;
    }
    return 1;
}

qn_status qn_conjunct_of(qn_compiler *k, const json_t *s, int is_denied, int32_t *out)
{
    for (int hops = 0; json_is_object(s) && is_ref_alone(k, s); hops++) {
        const json_t *target;
        if (hops > 64) return qn_compiler_refuse(k, s, "$ref", "leads in a circle");
        qn_status status =
            qn_document_resolve(&k->doc, s, json_string_value(json_object_get(s, "$ref")), &target);
        if (status != QN_OK) return qn_compiler_refuse_as(k, status, s, "$ref");
        s = target;
    }
    if (json_is_boolean(s)) {
        *out = json_is_true(s) != is_denied ? QN_CONJUNCT_TRUE : QN_CONJUNCT_FALSE;
        return QN_OK;
    }
    if (!json_is_object(s)) return qn_compiler_refuse(k, s, "schema", "is no object and no boolean");
    struct {
        const json_t *schema;
        int64_t is_denied;
    } key = {s, is_denied}, *kept;
    int64_t known;
    if (qn_map_get(k->conjunct_of, &key, sizeof key, &known)) {
        *out = (int32_t)known;
        return QN_OK;
    }
    if (k->n_conjuncts == k->conjuncts_room) {
        uint32_t more = k->conjuncts_room ? 2 * k->conjuncts_room : 32;
        qn_conjunct *p = qn_realloc(k->conjuncts, more * sizeof *p);
        if (!p) return QN_E_NOMEM;
        k->conjuncts = p;
        k->conjuncts_room = more;
    }
    kept = qn_arena_alloc(&k->arena, sizeof *kept);
    if (!kept) return QN_E_NOMEM;
    *kept = key;
    QN_TRY(qn_map_set(k->conjunct_of, kept, sizeof *kept, k->n_conjuncts, NULL, NULL));
    k->conjuncts[k->n_conjuncts] = (qn_conjunct){s, is_denied};
    *out = (int32_t)k->n_conjuncts++;
    return QN_OK;
}

qn_status qn_conjunct_deny(qn_compiler *k, int32_t conjunct, int32_t *out)
{
    if (conjunct < 0) {
        *out = conjunct == QN_CONJUNCT_TRUE ? QN_CONJUNCT_FALSE : QN_CONJUNCT_TRUE;
        return QN_OK;
    }
    return qn_conjunct_of(k, k->conjuncts[conjunct].schema, !k->conjuncts[conjunct].is_denied, out);
}

/* ---- values -------------------------------------------------------------------------------------------- */

static int by_number(const void *x, const void *y)
{
    int32_t a = *(const int32_t *)x, b = *(const int32_t *)y;
    return a < b ? -1 : a > b;
}

qn_status qn_value_of(qn_compiler *k, int32_t *conjuncts, uint32_t n, int32_t *out)
{
    uint32_t kept = 0;
    if (n > 1) qsort(conjuncts, n, sizeof *conjuncts, by_number);
    if (n && conjuncts[0] == QN_CONJUNCT_FALSE) {
        conjuncts[0] = QN_CONJUNCT_FALSE;
        kept = 1;
    } else {
        for (uint32_t i = 0; i < n; i++)
            if (conjuncts[i] != QN_CONJUNCT_TRUE && (kept == 0 || conjuncts[i] != conjuncts[kept - 1]))
                conjuncts[kept++] = conjuncts[i];
    }
    if (kept == 0) return qn_any_value(k->p, out);
    int64_t known;
    if (qn_map_get(k->value_of, conjuncts, kept * sizeof *conjuncts, &known)) {
        *out = (int32_t)known;
        return QN_OK;
    }
    int32_t *copy = qn_arena_alloc(&k->arena, kept * sizeof *copy);
    if (!copy) return QN_E_NOMEM;
    memcpy(copy, conjuncts, kept * sizeof *copy);
    int32_t value;
    QN_TRY(qn_program_add_value(k->p, &value));
    if ((uint32_t)value >= k->sets_room) {
        uint32_t more = k->sets_room ? 2 * k->sets_room : 64;
        while (more <= (uint32_t)value) more *= 2;
        qn_conjunct_set *p = qn_realloc(k->sets, more * sizeof *p);
        if (!p) return QN_E_NOMEM;
        k->sets = p;
        k->sets_room = more;
    }
    k->sets[value] = (qn_conjunct_set){copy, kept};
    QN_TRY(qn_map_set(k->value_of, copy, kept * sizeof *copy, value, NULL, NULL));
    if (copy[0] == QN_CONJUNCT_FALSE) {
        k->p->values[value].is_expanded = 1;
        k->p->values[value].possible = 0;
    }
    *out = value;
    return QN_OK;
}

/* ---- is it possible ------------------------------------------------------------------------------------ */

/* Adds to *met what a key with this value, and this marked one, meets. */
static qn_status add_met(qn_compiler *k, const qn_object_rule *o, int32_t value, uint32_t meets,
                         int32_t marked, uint32_t *met)
{
    int possible;
    if (meets & ~*met) {
        QN_TRY(qn_compiler_possible(k->p, value, &possible));
        if (possible) *met |= meets;
    }
    if ((o->marked_bit & ~*met) && marked != QN_NONE) {
        QN_TRY(qn_compiler_possible(k->p, marked, &possible));
        if (possible) *met |= o->marked_bit;
    }
    return QN_OK;
}

/* 1: all that some member must be, some member can be. */
static qn_status meets_due(qn_compiler *k, const qn_object_rule *o, int *out)
{
    uint32_t met = 0;
    for (uint32_t i = 0; i < o->n_members; i++)
        QN_TRY(add_met(k, o, o->members[i].value, o->members[i].meets, o->members[i].marked, &met));
    for (uint32_t i = 0; i < o->n_classes; i++)
        QN_TRY(add_met(k, o, o->classes[i].value, o->classes[i].meets, o->classes[i].marked, &met));
    *out = (o->due & ~met) == 0;
    return QN_OK;
}

static qn_status object_is_possible(qn_compiler *k, int32_t object, int *out)
{
    qn_object_rule o = k->p->objects[object];
    int64_t n_possible = 0, n_required = 0;
    *out = 0;
    for (uint32_t i = 0; i < o.n_members; i++) {
        if (!o.members[i].is_required) continue;
        int possible;
        QN_TRY(qn_compiler_possible(k->p, o.members[i].value, &possible));
        if (!possible) return QN_OK;
        n_required++;
    }
    if (o.max >= 0 && n_required > o.max) return QN_OK;
    n_possible = n_required;
    for (uint32_t i = 0; i < o.n_members && n_possible < o.min; i++) {
        int possible = 0;
        if (!o.members[i].is_required) QN_TRY(qn_compiler_possible(k->p, o.members[i].value, &possible));
        n_possible += possible;
    }
    for (uint32_t i = 0; i < o.n_classes && n_possible < o.min; i++) {
        int possible;
        QN_TRY(qn_compiler_possible(k->p, o.classes[i].value, &possible));
        if (!possible) continue;
        int64_t count = -1;
        if (o.classes[i].dfa != QN_NONE) QN_TRY(qn_dfa_count(k->p->dfas[o.classes[i].dfa], &count));
        n_possible = count < 0 || count > INT32_MAX ? INT64_MAX / 2 : n_possible + count;
    }
    if (n_possible < o.min) return QN_OK;
    return meets_due(k, &o, out);
}

/* Some items meet all that is due. */
static qn_status array_meets_due(qn_compiler *k, const qn_array_rule *rule, int *out)
{
    qn_array_rule a = *rule;
    uint32_t n_sets = a.due + 1, n_slots = a.n_prefix + 1;
    int32_t *values = qn_alloc_array((size_t)n_slots * n_sets, sizeof *values);
    uint32_t *table = qn_alloc_array((size_t)n_slots * n_sets, sizeof *table);
    qn_status status = values && table ? QN_OK : QN_E_NOMEM;
    for (uint32_t set = 0; status == QN_OK && set < n_sets; set++) {
        int32_t *own = values + (size_t)set * n_slots;
        for (uint32_t i = 0; status == QN_OK && i < n_slots; i++) {
            int possible = 0;
            own[i] = set ? rule->meeting[set][i] : rule->items[i];
            if (own[i] != QN_NONE) status = qn_compiler_possible(k->p, own[i], &possible);
            if (!possible) own[i] = QN_NONE;
        }
        if (set)
            a.meeting[set] = own;
        else
            a.items = own;
    }
    if (status == QN_OK) {
        qn_array_fill_due(&a, table);
        *out = table[a.due] < UINT32_MAX && (a.max < 0 || table[a.due] <= a.max);
    }
    qn_free(values);
    qn_free(table);
    return status;
}

static qn_status array_is_possible(qn_compiler *k, int32_t array, int *out)
{
    qn_array_rule a = k->p->arrays[array];
    int64_t counted = 0;
    *out = 1;
    if (a.due) QN_TRY(array_meets_due(k, &a, out));
    if (!*out) return QN_OK;
    *out = 0;
    if (a.counted && a.counted_max >= 0 && a.counted_max < a.counted_min) return QN_OK;
    for (int64_t i = 0; i < a.min || (a.counted && counted < a.counted_min); i++) {
        int64_t slot = i < a.n_prefix ? i : a.n_prefix;
        if (a.max >= 0 && i >= a.max) return QN_OK;
        int possible = 0;
        if (a.counted && counted < a.counted_min && a.counted[slot] != QN_NONE)
            QN_TRY(qn_compiler_possible(k->p, a.counted[slot], &possible));
        if (possible) {
            counted++;
        } else {
            if (a.items[slot] == QN_NONE) return QN_OK;
            QN_TRY(qn_compiler_possible(k->p, a.items[slot], &possible));
            if (!possible) return QN_OK;
        }
        /* Behind the prefix all items are alike. */
        if (i >= a.n_prefix && !a.counted) break;
        if (i >= a.n_prefix && counted == 0 && a.counted_min > 0 && a.counted[slot] == QN_NONE) return QN_OK;
        if (i >= a.n_prefix + 1000) break;
    }
    *out = 1;
    return QN_OK;
}

static qn_status look(qn_compiler *k, int32_t value, int *out)
{
    QN_TRY(qn_compiler_expand(k->p, value));
    qn_value v = k->p->values[value];
    *out = v.literals || v.number != QN_NONE || v.n_strings;
    for (uint32_t i = 0; i < v.n_arrays && !*out; i++) QN_TRY(array_is_possible(k, v.arrays[i], out));
    for (uint32_t i = 0; i < v.n_objects && !*out; i++) QN_TRY(object_is_possible(k, v.objects[i], out));
    return QN_OK;
}

/* The least answer that is consistent: a value that is being looked at counts as impossible, one that is being
 * expanded as possible; an answer that such a guess may have changed is not kept. */
qn_status qn_compiler_possible(qn_program *p, int32_t value, int *possible)
{
    enum { DEPTH_MAX = 200, LOOKING = -2 };
    qn_compiler *k = p->compiler;
    qn_value *v = &p->values[value];
    if (v->possible >= 0) {
        *possible = v->possible;
        return QN_OK;
    }
    if (v->possible == LOOKING) {
        k->assumed_not = 1;
        *possible = 0;
        return QN_OK;
    }
    if (v->is_expanding) {
        k->assumed_possible = 1;
        *possible = 1;
        return QN_OK;
    }
    QN_TRY(qn_compiler_step(k));
    if (k->depth >= DEPTH_MAX) return qn_fail(QN_E_UNSUPPORTED, "the schema's parts are nested too deeply");
    int outer_possible = k->assumed_possible, outer_not = k->assumed_not, is_outermost = k->depth == 0;
    k->assumed_possible = k->assumed_not = 0;
    k->depth++;
    v->possible = LOOKING;
    int found = 0;
    qn_status status = look(k, value, &found);
    k->depth--;
    v = &p->values[value];
    v->possible = -1;
    if (status != QN_OK) return status;
    if (found ? !k->assumed_possible : !k->assumed_not || is_outermost) v->possible = (int8_t)found;
    if (v->possible >= 0) {
        k->assumed_possible = outer_possible;
        k->assumed_not = outer_not;
    } else {
        k->assumed_possible |= outer_possible;
        k->assumed_not |= outer_not;
    }
    *possible = found;
    return QN_OK;
}
