#include "constrain/automaton/regex_graph.h"

#include <stdlib.h>
#include <string.h>

typedef qn_regex_place node;
typedef qn_regex_machine machine;
typedef qn_regex_compiler compiler;

enum { INSIDE_AHEAD = 1, INSIDE_BEHIND = 2 };

/* --- The graph --- */

static qn_status add(compiler *c, node n, int32_t *out)
{
    QN_TRY(qn_dfa_work_states(c->w, (int64_t)c->nodes.n / 4));
    QN_TRY(qn_dfa_work_steps(c->w, 1));
    QN_TRY(qn_dfa_array_room(c->w, &c->nodes, 1, sizeof n));
    ((node *)c->nodes.at)[c->nodes.n] = n;
    *out = (int32_t)c->nodes.n++;
    return QN_OK;
}

static qn_status build(compiler *c, int32_t at, int32_t next, int32_t *out);

/* Any characters come before the node. */
static qn_status begin_anywhere(compiler *c, int32_t *entry)
{
    int32_t loop, any;
    QN_TRY(add(c, (node){.kind = NODE_SPLIT, .out = -1, .other = *entry}, &loop));
    QN_TRY(add(c, (node){.kind = NODE_ANY, .out = loop}, &any));
    qn_regex_place_of(c, loop)->out = any;
    *entry = loop;
    return QN_OK;
}

static qn_status build_repeat(compiler *c, const qn_regex_node *r, int32_t next, int32_t *out)
{
    int32_t child = r->last, entry = next;
    if (r->max < 0) {
        int32_t loop, body;
        QN_TRY(add(c, (node){.kind = NODE_SPLIT, .out = -1, .other = next}, &loop));
        QN_TRY(build(c, child, loop, &body));
        qn_regex_place_of(c, loop)->out = body;
        entry = loop;
    } else {
        for (int32_t i = r->min; i < r->max; i++) { /* (a(a(a)?)?)? */
            int32_t body;
            QN_TRY(build(c, child, entry, &body));
            QN_TRY(add(c, (node){.kind = NODE_SPLIT, .out = body, .other = next}, &entry));
        }
    }
    for (int32_t i = 0; i < r->min; i++) QN_TRY(build(c, child, entry, &entry));
    *out = entry;
    return QN_OK;
}

/* The machine of a look-around: its nodes first, its place in the list after those of what is inside of it. */
static qn_status build_machine(compiler *c, const qn_regex_node *r, int32_t *out)
{
    int is_ahead = r->kind == QN_REGEX_AHEAD;
    if (!is_ahead && c->inside & INSIDE_AHEAD)
        return qn_fail(QN_E_UNSUPPORTED, "look-behind inside of look-ahead is not supported");
    if (is_ahead && c->inside & INSIDE_BEHIND)
        return qn_fail(QN_E_UNSUPPORTED, "look-ahead inside of look-behind is not supported");
    unsigned outside = c->inside;
    machine m = {.entry = -1, .is_ahead = is_ahead};
    int32_t kept[TRACKERS_MAX], n_kept = c->n_trackers, end;
    memcpy(kept, c->trackers, sizeof kept);
    c->n_trackers = 0;
    c->inside |= is_ahead ? INSIDE_AHEAD : INSIDE_BEHIND;
    QN_TRY(add(c, (node){.kind = is_ahead ? NODE_ALL : NODE_MATCH}, &end));
    QN_TRY(build(c, r->last, end, &m.entry));
    if (!is_ahead) QN_TRY(begin_anywhere(c, &m.entry));
    memcpy(m.trackers, c->trackers, sizeof kept);
    m.n_trackers = c->n_trackers;
    memcpy(c->trackers, kept, sizeof kept);
    c->n_trackers = n_kept;
    c->inside = outside;
    QN_TRY(qn_dfa_array_room(c->w, &c->machines, 1, sizeof m));
    *out = (int32_t)c->machines.n;
    ((machine *)c->machines.at)[c->machines.n++] = m;
    return QN_OK;
}

static qn_status build_around(compiler *c, qn_regex_node *r, int32_t next, int32_t *out)
{
    int32_t i = 0;
    if (!r->machine) { /* repetitions share it */
        int32_t index = -1;
        QN_TRY(build_machine(c, r, &index));
        r->machine = index + 1;
    }
    node n = {.kind = NODE_AHEAD, .out = next, .other = r->machine - 1, .is_negated = r->is_negated};
    if (r->kind == QN_REGEX_BEHIND) {
        n.kind = NODE_BEHIND;
        while (i < c->n_trackers && c->trackers[i] != n.other) i++;
        if (i == TRACKERS_MAX) return qn_fail(QN_E_UNSUPPORTED, "more than %d look-behinds", TRACKERS_MAX);
        c->trackers[i] = n.other;
        if (i == c->n_trackers) c->n_trackers++;
    }
    return add(c, n, out);
}

/* --- Alternatives: what several begin with in common is there once (words of a list). --- */

typedef struct {
    int32_t set, child, sibling; /* the last child and the sibling before; -1: none */
    int32_t entry;               /* of what follows the set; -1: nothing yet */
} branch;

/* Both ways: *entry becomes a node that leads to what it was and to `to`. */
static qn_status add_way(compiler *c, int32_t *entry, int32_t to)
{
    if (*entry >= 0) return add(c, (node){.kind = NODE_SPLIT, .out = to, .other = *entry}, entry);
    *entry = to;
    return QN_OK;
}

/* Goes from branch *at to the one for the set below it, which is made if it is not there. */
static qn_status descend(compiler *c, qn_dfa_array *branches, int32_t *at, int32_t set)
{
    branch *all = branches->at;
    int32_t i = all[*at].child;
    while (i >= 0 && all[i].set != set) i = all[i].sibling;
    if (i < 0) {
        QN_TRY(qn_dfa_array_room(c->w, branches, 1, sizeof(branch)));
        all = branches->at;
        i = (int32_t)branches->n++;
        all[i] = (branch){set, -1, all[*at].child, -1};
        all[*at].child = i;
    }
    *at = i;
    return qn_dfa_work_steps(c->w, 1);
}

static qn_status build_alternatives(compiler *c, const qn_regex_node *r, int32_t next, int32_t *out)
{
    const qn_regex_node *tree = c->tree.nodes.at;
    qn_dfa_array branches = {0}, items = {0};
    QN_TRY(qn_dfa_array_room(c->w, &branches, 1, sizeof(branch)));
    ((branch *)branches.at)[branches.n++] = (branch){-1, -1, -1, -1};
    for (int32_t i = r->last; i >= 0; i = tree[i].before) {
        int32_t at = 0, is_list = tree[i].kind == QN_REGEX_SEQUENCE, rest = next;
        items.n = 0;
        for (int32_t k = is_list ? tree[i].last : i; k >= 0; k = is_list ? tree[k].before : -1) {
            QN_TRY(qn_dfa_array_room(c->w, &items, 1, sizeof(int32_t)));
            ((int32_t *)items.at)[items.n++] = k;
        }
        size_t n = items.n; /* the items stand from last to first */
        const int32_t *list = items.at;
        for (; n > 0 && tree[list[n - 1]].kind == QN_REGEX_SET; n--)
            QN_TRY(descend(c, &branches, &at, tree[list[n - 1]].set));
        for (size_t k = 0; k < n; k++) QN_TRY(build(c, list[k], rest, &rest));
        QN_TRY(add_way(c, &((branch *)branches.at)[at].entry, rest));
    }
    branch *all = branches.at;
    for (size_t i = branches.n; i-- > 0;) { /* children come behind their parents */
        for (int32_t k = all[i].child; k >= 0; k = all[k].sibling) {
            int32_t one;
            QN_TRY(add(c, (node){.kind = NODE_SET, .out = all[k].entry, .set = all[k].set}, &one));
            QN_TRY(add_way(c, &all[i].entry, one));
        }
    }
    *out = all[0].entry;
    return QN_OK;
}

/* The node from which the tree at `at` and then `next` is matched. Recurses as deep as the tree is. */
static qn_status build(compiler *c, int32_t at, int32_t next, int32_t *out)
{
    qn_regex_node *r = (qn_regex_node *)c->tree.nodes.at + at;
    QN_TRY(qn_dfa_work_steps(c->w, 1));
    switch (r->kind) {
    case QN_REGEX_EMPTY:
        *out = next;
        return QN_OK;
    case QN_REGEX_SET:
        return add(c, (node){.kind = NODE_SET, .out = next, .set = r->set}, out);
    case QN_REGEX_SEQUENCE:
        for (int32_t i = r->last; i >= 0; i = ((const qn_regex_node *)c->tree.nodes.at)[i].before)
            QN_TRY(build(c, i, next, &next));
        *out = next;
        return QN_OK;
    case QN_REGEX_ALTERNATIVES:
        return build_alternatives(c, r, next, out);
    case QN_REGEX_REPEAT:
        return build_repeat(c, r, next, out);
    case QN_REGEX_BEGIN:
        return add(c, (node){.kind = NODE_BEGIN, .out = next}, out);
    case QN_REGEX_END:
    case QN_REGEX_WORD_EDGE:
        if (c->inside & INSIDE_BEHIND)
            return qn_fail(QN_E_UNSUPPORTED, "$ and \\b inside of look-behind are not supported");
        return add(c,
                   (node){.kind = r->kind == QN_REGEX_END ? NODE_END : NODE_EDGE,
                          .out = next,
                          .is_negated = r->is_negated},
                   out);
    case QN_REGEX_AHEAD:
    case QN_REGEX_BEHIND:
        return build_around(c, r, next, out);
    }
    return qn_fail(QN_E_INTERNAL, "a node of an unknown kind");
}

qn_status qn_regex_build(qn_regex_compiler *c, int is_whole, qn_regex_machine *out)
{
    int32_t end;
    machine m = {0};
    QN_TRY(add(c, (node){.kind = is_whole ? NODE_MATCH : NODE_ALL}, &end));
    QN_TRY(build(c, c->tree.root, end, &m.entry));
    if (!is_whole) QN_TRY(begin_anywhere(c, &m.entry));
    memcpy(m.trackers, c->trackers, sizeof m.trackers);
    m.n_trackers = c->n_trackers;
    *out = m;
    return QN_OK;
}

/* --- Classes of code points --- */

static int compare_codes(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* The elementary intervals: those between all the ends of ranges. */
static qn_status find_intervals(compiler *c)
{
    const qn_dfa_rows *sets = &c->tree.sets;
    size_t n = 4 + (sets->words.n);
    uint32_t *begins = qn_arena_alloc(&c->w->arena, sizeof *begins * n);
    if (!begins) return QN_E_NOMEM;
    const uint32_t *words = sets->words.at;
    for (size_t i = 0; i < sets->words.n; i++) begins[i] = words[i] + (i & 1);
    memcpy(begins + sets->words.n, (uint32_t[]){0, 0xd800, 0xe000, QN_CODE_MAX + 1}, 4 * sizeof *begins);
    QN_TRY(qn_dfa_work_steps(c->w, (int64_t)n));
    qsort(begins, n, sizeof *begins, compare_codes);
    size_t n_unique = 0;
    for (size_t i = 0; i < n; i++) {
        if (!n_unique || begins[n_unique - 1] != begins[i]) begins[n_unique++] = begins[i];
    }
    c->classes.n = (int32_t)n_unique - 1;
    c->classes.begins = begins;
    return QN_OK;
}

/* The classes that each set holds. */
static qn_status list_classes(compiler *c)
{
    const qn_code_classes *k = &c->classes;
    int32_t n_sets = qn_dfa_rows_count(&c->tree.sets);
    qn_dfa_array lists = {0};
    int32_t *met = qn_arena_calloc(&c->w->arena, (size_t)k->n_classes, sizeof *met);
    c->list_begins = qn_arena_alloc(&c->w->arena, sizeof *c->list_begins * (size_t)(n_sets + 1));
    c->is_word = qn_arena_calloc(&c->w->arena, (size_t)k->n_classes, 1);
    if (!met || !c->list_begins || !c->is_word) return QN_E_NOMEM;
    QN_TRY(qn_dfa_array_room(c->w, &lists, 1, sizeof(int32_t))); /* never NULL, even if all sets are empty */
    for (int32_t s = 0; s < n_sets; s++) {
        size_t m;
        const uint32_t *row = qn_dfa_rows_get(&c->tree.sets, s, &m);
        c->list_begins[s] = (int32_t)lists.n;
        int32_t i = 0;
        for (size_t r = 0; r < m; r += 2) {
            while (k->begins[i] < row[r]) i++;
            for (; k->begins[i] <= row[r + 1]; i++) {
                if (k->classes[i] < 0 || met[k->classes[i]] == s + 1) continue;
                met[k->classes[i]] = s + 1;
                QN_TRY(qn_dfa_array_room(c->w, &lists, 1, sizeof(int32_t)));
                ((int32_t *)lists.at)[lists.n++] = k->classes[i];
            }
        }
        QN_TRY(qn_dfa_work_steps(c->w, i));
    }
    c->list_begins[n_sets] = (int32_t)lists.n;
    c->lists = lists.at;
    return QN_OK;
}

/* Each set splits the classes that it cuts. Then classes are numbered without gaps. */
static qn_status split_classes(compiler *c)
{
    qn_code_classes *k = &c->classes;
    int32_t n_sets = qn_dfa_rows_count(&c->tree.sets), n = k->n;
    int32_t *class = qn_arena_calloc(&c->w->arena, (size_t)n, sizeof *class);
    int32_t *split_to = qn_arena_alloc(&c->w->arena, sizeof *split_to * (size_t)(n + 2));
    int32_t *number = qn_arena_alloc(&c->w->arena, sizeof *number * (size_t)(2 * n + 2));
    int32_t *touched = qn_arena_alloc(&c->w->arena, sizeof *touched * (size_t)(n + 2));
    if (!class || !split_to || !number || !touched) return QN_E_NOMEM;
    int32_t n_classes = 1;
    for (int32_t i = 0; i < n; i++) {
        if (k->begins[i] == 0xd800) class[i] = -1;
    }
    memset(split_to, -1, sizeof *split_to * (size_t)(n + 2));
    for (int32_t s = 0; s < n_sets; s++) {
        size_t m;
        const uint32_t *row = qn_dfa_rows_get(&c->tree.sets, s, &m);
        int32_t i = 0, n_touched = 0;
        for (size_t r = 0; r < m; r += 2) {
            while (k->begins[i] < row[r]) i++;
            for (; k->begins[i] <= row[r + 1]; i++) {
                if (class[i] < 0) continue;
                int32_t old = class[i];
                if (split_to[old] < 0) {
                    split_to[old] = n_classes + n_touched;
                    touched[n_touched++] = old;
                }
                class[i] = split_to[old];
            }
        }
        for (int32_t t = 0; t < n_touched; t++) split_to[touched[t]] = -1;
        QN_TRY(qn_dfa_work_steps(c->w, n));
        memset(number, -1, sizeof *number * (size_t)(n_classes + n_touched));
        int32_t n_used = 0; /* a class of which all was touched is empty: numbers without gaps again */
        for (int32_t j = 0; j < n; j++) {
            if (class[j] < 0) continue;
            if (number[class[j]] < 0) number[class[j]] = n_used++;
            class[j] = number[class[j]];
        }
        n_classes = n_used;
    }
    k->classes = class;
    k->n_classes = n_classes;
    return list_classes(c);
}

qn_status qn_regex_find_classes(qn_regex_compiler *c)
{
    int32_t word = -1;
    if (c->tree.has_word_edges) {
        qn_charset s = {0};
        QN_TRY(qn_regex_word_set(c->w, &s));
        QN_TRY(qn_regex_add_set(c->w, &c->tree.sets, &s, &word));
    }
    QN_TRY(find_intervals(c));
    QN_TRY(split_classes(c));
    if (word < 0) return QN_OK;
    for (int32_t i = c->list_begins[word]; i < c->list_begins[word + 1]; i++) c->is_word[c->lists[i]] = 1;
    return QN_OK;
}
