#include "constrain/machine/program.h"

#include <string.h>

#include "base/mem.h"

/* Room for one more in a table. */
static qn_status room(void **table, uint32_t n, uint32_t *capacity, size_t size)
{
    if (n < *capacity) return QN_OK;
    if (n >= INT32_MAX / 2) return qn_fail(QN_E_UNSUPPORTED, "the constraint has too many parts");
    uint32_t more = *capacity ? 2 * *capacity : 16;
    void *p = qn_realloc(*table, (size_t)more * size);
    if (!p) return QN_E_NOMEM;
    *table = p;
    *capacity = more;
    return QN_OK;
}
#define ROOM(p, name) room((void **)&(p)->name, (p)->n_##name, &(p)->name##_room, sizeof *(p)->name)

qn_status qn_program_init(qn_program *p, const qn_dfa_limits *limits)
{
    *p = (qn_program){.dfa_limits = *limits, .any = QN_NONE};
    qn_dfa *all;
    QN_TRY(qn_dfa_all(&all));
    QN_TRY(qn_program_add_dfa(p, all, &p->all));
    uint32_t end;
    return qn_program_add_graph(p, &(qn_graph_node){.kind = QN_GRAPH_END}, &end);
}

void qn_program_clear(qn_program *p)
{
    for (uint32_t i = 0; i < p->n_dfas; i++) qn_dfa_release(p->dfas[i]);
    qn_free(p->dfas);
    qn_free(p->counts);
    qn_free(p->strings);
    qn_free(p->objects);
    qn_free(p->arrays);
    qn_free(p->values);
    qn_free(p->graph);
    qn_free(p->markers);
    qn_free(p->scans);
    qn_grammar_run_free(p->grammar);
    qn_arena_clear(&p->arena);
    *p = (qn_program){0};
}

size_t qn_program_held_bytes(const qn_program *p)
{
    size_t n = p->arena.total_bytes + p->dfas_room * sizeof *p->dfas + p->strings_room * sizeof *p->strings +
               p->objects_room * sizeof *p->objects + p->arrays_room * sizeof *p->arrays +
               p->values_room * sizeof *p->values + p->graph_room * sizeof *p->graph +
               p->markers_room * sizeof *p->markers + p->scans_room * sizeof *p->scans;
    for (uint32_t i = 0; i < p->n_dfas; i++) n += p->dfas[i]->size_bytes;
    if (p->grammar) n += qn_grammar_run_bytes(p->grammar);
    return n;
}

qn_status qn_program_add_dfa(qn_program *p, qn_dfa *d, int32_t *out)
{
    for (uint32_t i = 0; i < p->n_dfas; i++)
        if (p->dfas[i] == d || qn_dfa_equal(p->dfas[i], d)) {
            qn_dfa_release(d);
            *out = (int32_t)i;
            return QN_OK;
        }
    uint32_t dfas_room = p->dfas_room;
    qn_status status = room((void **)&p->counts, p->n_dfas, &dfas_room, sizeof *p->counts);
    if (status == QN_OK) status = ROOM(p, dfas);
    if (status != QN_OK) {
        qn_dfa_release(d);
        return status;
    }
    *out = (int32_t)p->n_dfas;
    p->counts[p->n_dfas] = NULL;
    p->dfas[p->n_dfas++] = d;
    return QN_OK;
}

enum { COUNT_STEPS_MAX = 200000000 };

/* States whose ways all lead to counted states are counted, until none is left; those on the way to a cycle
 * stay uncounted. */
qn_status qn_program_counts(qn_program *p, int32_t dfa, const uint32_t **out)
{
    if (!p->counts[dfa]) {
        const qn_dfa *d = p->dfas[dfa];
        size_t n = (size_t)d->n_states, n_classes = (size_t)d->n_classes;
        uint32_t *counts = qn_arena_alloc(&p->arena, n * sizeof *counts), of_class[256] = {0};
        uint8_t *is_counted = qn_calloc(n, 1);
        if (!counts || !is_counted) {
            qn_free(is_counted);
            return QN_E_NOMEM;
        }
        for (int b = 0; b < 256; b++) of_class[d->class_of[b]]++;
        memset(counts, 0xff, n * sizeof *counts);
        counts[0] = 0;
        is_counted[0] = 1;
        int64_t steps_left = COUNT_STEPS_MAX;
        for (int changes = 1; changes;) {
            changes = 0;
            steps_left -= (int64_t)(n * n_classes);
            if (steps_left < 0) {
                qn_free(is_counted);
                return qn_fail(QN_E_UNSUPPORTED,
                               "an automaton of names or items has too many states to count");
            }
            for (size_t s = n - 1; s > 0; s--) {
                if (is_counted[s]) continue;
                const int32_t *next = d->next + s * n_classes;
                uint64_t sum = (d->flags[s] & QN_DFA_ACCEPTS) != 0;
                size_t k = 0;
                for (; k < n_classes && is_counted[next[k]]; k++)
                    if (sum < UINT32_MAX) sum += (uint64_t)counts[next[k]] * of_class[k];
                if (k < n_classes) continue;
                counts[s] = sum < UINT32_MAX ? (uint32_t)sum : UINT32_MAX;
                is_counted[s] = 1;
                changes = 1;
            }
        }
        qn_free(is_counted);
        p->counts[dfa] = counts;
    }
    *out = p->counts[dfa];
    return QN_OK;
}

qn_status qn_program_add_string(qn_program *p, const qn_string_rule *rule, int32_t *out)
{
    for (uint32_t i = 0; i < p->n_strings; i++)
        if (p->strings[i].dfa == rule->dfa && p->strings[i].min == rule->min &&
            p->strings[i].max == rule->max) {
            *out = (int32_t)i;
            return QN_OK;
        }
    QN_TRY(ROOM(p, strings));
    *out = (int32_t)p->n_strings;
    p->strings[p->n_strings++] = *rule;
    return QN_OK;
}

qn_status qn_program_add_object(qn_program *p, const qn_object_rule *rule, int32_t *out)
{
    QN_TRY(ROOM(p, objects));
    *out = (int32_t)p->n_objects;
    p->objects[p->n_objects++] = *rule;
    return QN_OK;
}

qn_status qn_program_add_array(qn_program *p, const qn_array_rule *rule, int32_t *out)
{
    QN_TRY(ROOM(p, arrays));
    *out = (int32_t)p->n_arrays;
    p->arrays[p->n_arrays++] = *rule;
    return QN_OK;
}

qn_status qn_program_add_value(qn_program *p, int32_t *out)
{
    QN_TRY(ROOM(p, values));
    *out = (int32_t)p->n_values;
    p->values[p->n_values++] = (qn_value){.possible = -1, .number = QN_NONE};
    return QN_OK;
}

qn_status qn_program_add_graph(qn_program *p, const qn_graph_node *node, uint32_t *out)
{
    QN_TRY(ROOM(p, graph));
    *out = p->n_graph;
    p->graph[p->n_graph++] = *node;
    return QN_OK;
}

qn_status qn_program_add_marker(qn_program *p, const char *text, size_t n, int32_t *out)
{
    if (n == 0 || n > 4096) return qn_fail(QN_E_ARG, "a marker has 1 to 4096 bytes, this one %zu", n);
    QN_TRY(ROOM(p, markers));
    qn_marker m = {.text = qn_arena_strndup(&p->arena, text, n), .n = (uint32_t)n};
    if (!m.text) return QN_E_NOMEM;
    *out = (int32_t)p->n_markers;
    p->markers[p->n_markers++] = m;
    return QN_OK;
}

qn_status qn_program_room_for_scan(qn_program *p)
{
    return ROOM(p, scans);
}

qn_status qn_program_value(qn_program *p, int32_t value, const qn_value **out)
{
    if (!p->values[value].is_expanded) QN_TRY(p->expand(p, value));
    *out = &p->values[value];
    return QN_OK;
}

static qn_status is_possible(qn_program *p, int32_t value, int *out)
{
    *out = 1;
    if (!p->possible) return QN_OK;
    return p->possible(p, value, out);
}

qn_status qn_program_prepare(qn_program *p, int32_t object, const qn_object_rule **out)
{
    if (!p->objects[object].is_prepared) {
        qn_object_rule o = p->objects[object];
        if (!o.required_from) {
            o.required_from = qn_arena_calloc(&p->arena, 3 * ((size_t)o.n_ordered + 1), sizeof(uint32_t));
            if (!o.required_from) return QN_E_NOMEM;
            o.possible_from = o.required_from + o.n_ordered + 1;
            o.meets_from = o.possible_from + o.n_ordered + 1;
        }
        for (uint32_t i = 0; i < o.n_members; i++) {
            qn_member *x = &o.members[i];
            int possible;
            QN_TRY(is_possible(p, x->value, &possible));
            x->is_possible = (uint8_t)possible;
            possible = 0;
            if (o.marked_bit && x->marked != QN_NONE) QN_TRY(is_possible(p, x->marked, &possible));
            x->is_marked_possible = (uint8_t)possible;
        }
        for (uint32_t i = o.n_ordered; i-- > 0;) {
            const qn_member *x = &o.members[i];
            o.required_from[i] = o.required_from[i + 1] + x->is_required;
            o.possible_from[i] = o.possible_from[i + 1] + x->is_possible;
            o.meets_from[i] = o.meets_from[i + 1] | (x->is_possible ? x->meets : 0) |
                              (x->is_marked_possible ? o.marked_bit : 0);
        }
        uint32_t n = 0;
        o.meets_by_keys = 0;
        for (uint32_t i = 0; i < o.n_classes; i++) {
            qn_key_class k = o.classes[i];
            QN_TRY(is_possible(p, k.value, &k.is_possible));
            k.is_marked_possible = 0;
            if (o.marked_bit && k.marked != QN_NONE) QN_TRY(is_possible(p, k.marked, &k.is_marked_possible));
            if (!k.is_possible) continue;
            o.meets_by_keys |= k.meets | (k.is_marked_possible ? o.marked_bit : 0);
            o.classes[n++] = k;
        }
        o.n_classes = n;
        o.is_prepared = 1;
        p->objects[object] = o;
    }
    *out = &p->objects[object];
    return QN_OK;
}

void qn_array_fill_due(const qn_array_rule *a, uint32_t *table)
{
    uint32_t n_sets = a->due + 1;
    for (uint32_t slot = a->n_prefix + 1; slot-- > 0;) {
        uint32_t *here = table + (size_t)slot * n_sets, *behind = slot < a->n_prefix ? here + n_sets : here;
        here[0] = 0;
        for (uint32_t need = 1; need < n_sets; need++) {
            here[need] = UINT32_MAX;
            /* Set 0: an item that meets nothing; in the prefix it may have to come first. */
            for (uint32_t set = slot == a->n_prefix; set < n_sets; set++) {
                int32_t value = set ? a->meeting[set][slot] : a->items[slot];
                uint32_t left = need & ~set;
                if (value == QN_NONE || (left == need && slot == a->n_prefix)) continue;
                if (behind[left] < UINT32_MAX && behind[left] + 1 < here[need]) here[need] = behind[left] + 1;
            }
        }
    }
}

/* Values that cannot be written become QN_NONE; the array ends before the first such item of the prefix. */
qn_status qn_program_prepare_array(qn_program *p, int32_t array, const qn_array_rule **out)
{
    if (!p->arrays[array].is_prepared) {
        qn_array_rule a = p->arrays[array];
        if (!a.counted_from) {
            a.counted_from = qn_arena_calloc(&p->arena, (size_t)a.n_prefix + 1, sizeof(uint32_t));
            if (!a.counted_from) return QN_E_NOMEM;
        }
        for (uint32_t i = 0; i <= a.n_prefix; i++) {
            int possible = 0;
            if (a.items[i] != QN_NONE) QN_TRY(is_possible(p, a.items[i], &possible));
            if (!possible) a.items[i] = QN_NONE;
            possible = 0;
            if (a.counted && a.counted[i] != QN_NONE) QN_TRY(is_possible(p, a.counted[i], &possible));
            if (a.counted && !possible) a.counted[i] = QN_NONE;
            for (uint32_t set = 1; set <= a.due; set++) {
                possible = 0;
                if (a.meeting[set][i] != QN_NONE) QN_TRY(is_possible(p, a.meeting[set][i], &possible));
                if (!possible) a.meeting[set][i] = QN_NONE;
            }
        }
        if (a.due && !a.due_from) {
            size_t n_due = ((size_t)a.n_prefix + 1) * (a.due + 1);
            a.due_from = qn_arena_alloc(&p->arena, n_due * sizeof *a.due_from);
            if (!a.due_from) return QN_E_NOMEM;
        }
        if (a.due) qn_array_fill_due(&a, a.due_from);
        for (uint32_t i = a.n_prefix; a.counted && i-- > 0;)
            a.counted_from[i] = a.counted_from[i + 1] + (a.counted[i] != QN_NONE);
        a.is_prepared = 1;
        p->arrays[array] = a;
    }
    *out = &p->arrays[array];
    return QN_OK;
}

int32_t *qn_program_numbers(qn_program *p, const int32_t *numbers, uint32_t n)
{
    int32_t *copy = qn_arena_alloc(&p->arena, (n ? n : 1) * sizeof *copy);
    if (copy && n) memcpy(copy, numbers, n * sizeof *copy);
    return copy;
}
