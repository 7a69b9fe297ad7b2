#include "constrain/json/schema.h"

#include <string.h>

#include "base/mem.h"
#include "constrain/json/compiler.h"

static void clear(qn_compiler *k)
{
    qn_document_close(&k->doc);
    json_decref(k->made);
    qn_free(k->conjuncts);
    qn_free(k->sets);
    qn_free(k->scopes);
    qn_map_free(k->conjunct_of);
    qn_map_free(k->value_of);
    qn_map_free(k->dfa_of);
    qn_arena_clear(&k->arena);
    k->p->expand = NULL;
    k->p->possible = NULL;
    k->p->compiler = NULL;
}

typedef struct {
    qn_compiler *k;
    uint8_t *seen; /* [room] of values */
    int32_t *stack;
    uint32_t n, room;
} reach;

static qn_status visit(reach *r, int32_t value)
{
    enum { VALUES_MAX = 50000 };
    if (value == QN_NONE || r->k->p->values[value].possible == 0) return QN_OK;
    if (value >= VALUES_MAX)
        return qn_fail(QN_E_UNSUPPORTED, "the schema has more than %d different values", VALUES_MAX);
    if ((uint32_t)value >= r->room) {
        uint32_t more = r->room ? r->room : 64;
        while (more <= (uint32_t)value) more *= 2;
        uint8_t *seen = qn_realloc(r->seen, more);
        if (!seen) return QN_E_NOMEM;
        r->seen = seen;
        memset(seen + r->room, 0, more - r->room);
        int32_t *stack = qn_realloc(r->stack, more * sizeof *stack);
        if (!stack) return QN_E_NOMEM;
        r->stack = stack;
        r->room = more;
    }
    if (r->seen[value]) return QN_OK;
    r->seen[value] = 1;
    r->stack[r->n++] = value;
    return QN_OK;
}

static qn_status visit_parts(reach *r, int32_t value)
{
    qn_program *p = r->k->p;
    QN_TRY(qn_compiler_expand(p, value));
    qn_value v = p->values[value];
    for (uint32_t i = 0; i < v.n_objects; i++) {
        const qn_object_rule *o;
        QN_TRY(qn_program_prepare(p, v.objects[i], &o));
        qn_object_rule copy = *o;
        for (uint32_t j = 0; j < copy.n_members; j++)
            if (copy.members[j].is_possible) {
                QN_TRY(visit(r, copy.members[j].value));
                if (copy.members[j].is_marked_possible) QN_TRY(visit(r, copy.members[j].marked));
            }
        for (uint32_t j = 0; j < copy.n_classes; j++) {
            QN_TRY(visit(r, copy.classes[j].value));
            if (copy.classes[j].is_marked_possible) QN_TRY(visit(r, copy.classes[j].marked));
        }
    }
    for (uint32_t i = 0; i < v.n_arrays; i++) {
        const qn_array_rule *a;
        QN_TRY(qn_program_prepare_array(p, v.arrays[i], &a));
        qn_array_rule copy = *a;
        for (uint32_t j = 0; j <= copy.n_prefix; j++) {
            QN_TRY(visit(r, copy.items[j]));
            if (copy.counted) QN_TRY(visit(r, copy.counted[j]));
            for (uint32_t set = 1; set <= copy.due; set++) QN_TRY(visit(r, copy.meeting[set][j]));
        }
    }
    return QN_OK;
}

/* Expands all that can be reached, so that what cannot be enforced shows now. */
static qn_status expand_all(qn_compiler *k, int32_t root)
{
    reach r = {.k = k};
    qn_status status = visit(&r, root);
    while (status == QN_OK && r.n) status = visit_parts(&r, r.stack[--r.n]);
    qn_free(r.seen);
    qn_free(r.stack);
    return status;
}

static qn_status compile(qn_compiler *k, const char *text, size_t n, int32_t *value)
{
    QN_TRY(qn_document_open(&k->doc, text, n, k->options->depth_max));
    k->made = json_array();
    k->conjunct_of = qn_map_new(64);
    k->value_of = qn_map_new(64);
    k->dfa_of = qn_map_new(16);
    if (!k->made || !k->conjunct_of || !k->value_of || !k->dfa_of) return qn_fail_nomem(0);
    k->scopes = qn_calloc(64, sizeof *k->scopes);
    if (!k->scopes) return QN_E_NOMEM;
    k->scopes_room = 64;
    k->n_scopes = 1;
    k->p->compiler = k;
    k->p->expand = qn_compiler_expand;
    k->p->possible = qn_compiler_possible;
    int32_t root, made;
    int possible;
    QN_TRY(qn_conjunct_of(k, k->doc.root, 0, &root));
    QN_TRY(qn_value_of(k, &root, 1, &made));
    QN_TRY(qn_compiler_expand(k->p, made));
    QN_TRY(qn_compiler_possible(k->p, made, &possible));
    if (!possible) return qn_fail(QN_E_UNSUPPORTED, "#: schema: no value satisfies it");
    QN_TRY(expand_all(k, made));
    *value = made;
    return QN_OK;
}

qn_status qn_schema_compile(qn_program *p, const char *text, size_t n, const qn_schema_options *options,
                            int32_t *value)
{
    qn_compiler k = {.p = p, .options = options, .plain_numbers = {QN_NONE, QN_NONE}};
    k.steps_left = options->steps_max;
    qn_status status = compile(&k, text, n, value);
    clear(&k);
    return status;
}
