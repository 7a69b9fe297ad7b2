/* Operations: pairs of states for what both automata say at once, sets of states for one text after another. */
#include <string.h>

#include "base/mem.h"
#include "constrain/automaton/dfa.h"
#include "constrain/automaton/work.h"

/* Classes of bytes that neither of two automata tells apart. */
typedef struct {
    int32_t n;
    uint8_t class_of[256], of_a[256], of_b[256]; /* of each joint class, the class in a and in b */
} joint;

static void join_classes(const qn_dfa *a, const qn_dfa *b, joint *j)
{
    j->n = 0;
    for (int byte = 0; byte < 256; byte++) {
        int32_t c = 0;
        while (c < j->n && (j->of_a[c] != a->class_of[byte] || j->of_b[c] != b->class_of[byte])) c++;
        if (c == j->n) {
            j->of_a[c] = a->class_of[byte];
            j->of_b[c] = b->class_of[byte];
            j->n++;
        }
        j->class_of[byte] = (uint8_t)c;
    }
}

typedef enum { BOTH, EITHER, FIRST_ALONE } pairing;

/* A pair of which nothing is accepted is {0, 0}; what cannot matter any more is dropped. */
static void simplify(const qn_dfa *a, const qn_dfa *b, pairing p, uint32_t pair[2])
{
    int all_a = a->flags[pair[0]] & QN_DFA_ALL, all_b = b->flags[pair[1]] & QN_DFA_ALL;
    if (p == BOTH && (!pair[0] || !pair[1])) pair[0] = pair[1] = 0;
    if (p == FIRST_ALONE && (!pair[0] || all_b)) pair[0] = pair[1] = 0;
    if (p == EITHER && all_a) pair[1] = 0;
    if (p == EITHER && all_b && !all_a) pair[0] = 0;
}

static qn_status product(qn_dfa_work *w, const qn_dfa *a, const qn_dfa *b, pairing p, qn_dfa **out)
{
    joint j;
    join_classes(a, b, &j);
    qn_dfa_rows pairs = {0};
    qn_dfa_array next = {0}, accepts = {0};
    uint32_t pair[2] = {0, 0};
    int32_t id, start;
    QN_TRY(qn_dfa_rows_add(w, &pairs, pair, 2, &id, NULL));
    pair[0] = (uint32_t)a->start;
    pair[1] = (uint32_t)b->start;
    simplify(a, b, p, pair);
    QN_TRY(qn_dfa_rows_add(w, &pairs, pair, 2, &start, NULL));
    size_t k = (size_t)j.n;
    for (int32_t s = 0; s < qn_dfa_rows_count(&pairs); s++) {
        QN_TRY(qn_dfa_work_states(w, s));
        size_t n;
        const uint32_t *row = qn_dfa_rows_get(&pairs, s, &n);
        int32_t x = (int32_t)row[0], y = (int32_t)row[1];
        int in_a = a->flags[x] & QN_DFA_ACCEPTS, in_b = b->flags[y] & QN_DFA_ACCEPTS;
        QN_TRY(qn_dfa_array_room(w, &next, k, sizeof(int32_t)));
        QN_TRY(qn_dfa_array_room(w, &accepts, 1, 1));
        ((uint8_t *)accepts.at)[accepts.n++] = p == BOTH     ? in_a && in_b
                                               : p == EITHER ? in_a || in_b
                                                             : in_a && !in_b;
        int32_t *to = (int32_t *)next.at + next.n;
        next.n += k;
        for (size_t c = 0; c < k; c++) {
            pair[0] = (uint32_t)a->next[(size_t)x * (size_t)a->n_classes + j.of_a[c]];
            pair[1] = (uint32_t)b->next[(size_t)y * (size_t)b->n_classes + j.of_b[c]];
            simplify(a, b, p, pair);
            to[c] = 0;
            if (pair[0] | pair[1]) QN_TRY(qn_dfa_rows_add(w, &pairs, pair, 2, &to[c], NULL));
        }
        QN_TRY(qn_dfa_work_steps(w, (int64_t)k));
    }
    qn_dfa_draft d = {.n_states = qn_dfa_rows_count(&pairs),
                      .n_classes = j.n,
                      .next = next.at,
                      .accepts = accepts.at,
                      .start = start};
    memcpy(d.class_of, j.class_of, sizeof d.class_of);
    return qn_dfa_finish(w, &d, 0, out);
}

static qn_status pair_up(const qn_dfa *a, const qn_dfa *b, pairing p, const qn_dfa_limits *limits,
                         qn_dfa **out)
{
    qn_dfa_work w;
    qn_dfa_work_begin(&w, limits);
    qn_status s = product(&w, a, b, p, out);
    qn_dfa_work_end(&w);
    return s;
}

static qn_status give(qn_dfa *d, qn_dfa **out)
{
    *out = qn_dfa_retain(d);
    return QN_OK;
}

qn_status qn_dfa_intersect(qn_dfa *a, qn_dfa *b, const qn_dfa_limits *limits, qn_dfa **out)
{
    if (a == b || qn_dfa_is_empty(a) || qn_dfa_is_all(b)) return give(a, out);
    if (qn_dfa_is_empty(b) || qn_dfa_is_all(a)) return give(b, out);
    return pair_up(a, b, BOTH, limits, out);
}

qn_status qn_dfa_unite(qn_dfa *a, qn_dfa *b, const qn_dfa_limits *limits, qn_dfa **out)
{
    if (a == b || qn_dfa_is_empty(b) || qn_dfa_is_all(a)) return give(a, out);
    if (qn_dfa_is_empty(a) || qn_dfa_is_all(b)) return give(b, out);
    return pair_up(a, b, EITHER, limits, out);
}

qn_status qn_dfa_subtract(qn_dfa *a, qn_dfa *b, const qn_dfa_limits *limits, qn_dfa **out)
{
    if (qn_dfa_is_empty(a) || qn_dfa_is_empty(b)) return give(a, out);
    if (a == b || qn_dfa_is_all(b)) return qn_dfa_none(out);
    return pair_up(a, b, FIRST_ALONE, limits, out);
}

qn_status qn_dfa_complement(qn_dfa *a, const qn_dfa_limits *limits, qn_dfa **out)
{
    qn_dfa *all;
    QN_TRY(qn_dfa_all(&all));
    qn_status s = qn_dfa_subtract(all, a, limits, out);
    qn_dfa_release(all);
    return s;
}

/* --- One text after another: a chain of automata, of which each begins where the one before it may end. --- */

typedef struct {
    qn_dfa *const *parts; /* [n_parts] */
    int64_t n_parts;
    int64_t offset_step; /* all parts are parts[0] if above 0 */
    const int64_t *offsets;
    int64_t n_optional; /* the last parts, which need not come */
    int is_endless;     /* the last part may come again and again */
} chain;

static const qn_dfa *part_of(const chain *c, int64_t i)
{
    return c->offset_step ? c->parts[0] : c->parts[i];
}

static int64_t offset_of(const chain *c, int64_t i)
{
    return c->offset_step ? i * c->offset_step : c->offsets[i];
}

typedef struct {
    uint32_t *items; /* states of parts, offsets added, sorted */
    size_t n, capacity;
} item_set;

static qn_status put(qn_dfa_work *w, item_set *set, uint32_t item)
{
    size_t at = set->n;
    while (at > 0 && set->items[at - 1] > item) at--;
    if (at > 0 && set->items[at - 1] == item) return QN_OK;
    if (set->n == set->capacity) {
        qn_dfa_array a = {set->items, set->n, set->capacity};
        QN_TRY(qn_dfa_array_room(w, &a, 1, sizeof item));
        set->items = a.at;
        set->capacity = a.capacity;
    }
    QN_TRY(qn_dfa_work_steps(w, 1 + (int64_t)((set->n - at) >> 3)));
    memmove(set->items + at + 1, set->items + at, (set->n - at) * sizeof item);
    set->items[at] = item;
    set->n++;
    return QN_OK;
}

/* State s of part i, and the begin of the next part if s accepts, and so on. */
static qn_status enter(qn_dfa_work *w, const chain *c, item_set *set, int64_t i, int32_t s)
{
    while (s) {
        QN_TRY(put(w, set, (uint32_t)(offset_of(c, i) + s)));
        if (!(part_of(c, i)->flags[s] & QN_DFA_ACCEPTS)) return QN_OK;
        if (i + 1 == c->n_parts) {
            if (!c->is_endless || s == part_of(c, i)->start) return QN_OK;
        } else {
            i++;
        }
        s = part_of(c, i)->start;
    }
    return QN_OK;
}

static int64_t part_at(const chain *c, uint32_t item)
{
    if (c->offset_step) return (item - 1) / c->offset_step;
    int64_t i = 0;
    while (i + 1 < c->n_parts && c->offsets[i + 1] < (int64_t)item) i++;
    return i;
}

static qn_status chain_classes(const chain *c, qn_dfa_draft *d, uint8_t *first_byte)
{
    memset(d->class_of, 0, sizeof d->class_of);
    d->n_classes = 1;
    for (int64_t i = 0; i < (c->offset_step ? 1 : c->n_parts); i++) {
        if (i && c->parts[i] == c->parts[i - 1]) continue;
        int32_t n = 0;
        uint16_t pairs[256];
        uint8_t fresh[256];
        for (int byte = 0; byte < 256; byte++) {
            uint16_t pair = (uint16_t)(d->class_of[byte] << 8 | c->parts[i]->class_of[byte]);
            int32_t k = 0;
            while (k < n && pairs[k] != pair) k++;
            if (k == n) pairs[n++] = pair;
            fresh[byte] = (uint8_t)k;
        }
        memcpy(d->class_of, fresh, sizeof fresh);
        d->n_classes = n;
    }
    for (int byte = 255; byte >= 0; byte--) first_byte[d->class_of[byte]] = (uint8_t)byte;
    return QN_OK;
}

static int set_accepts(const chain *c, const uint32_t *row, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int64_t p = part_at(c, row[i]);
        if (p + 1 < c->n_parts - c->n_optional) continue;
        if (part_of(c, p)->flags[row[i] - offset_of(c, p)] & QN_DFA_ACCEPTS) return 1;
    }
    return 0;
}

static qn_status run_chain(qn_dfa_work *w, const chain *c, qn_dfa **out)
{
    uint8_t first_byte[256];
    qn_dfa_draft d = {0};
    QN_TRY(chain_classes(c, &d, first_byte));
    qn_dfa_rows sets = {0};
    qn_dfa_array next = {0}, accepts = {0};
    item_set set = {0};
    int32_t id;
    QN_TRY(qn_dfa_rows_add(w, &sets, NULL, 0, &id, NULL)); /* the empty set is state 0, dead */
    QN_TRY(enter(w, c, &set, 0, part_of(c, 0)->start));
    int accepts_nothing = c->n_optional == c->n_parts;
    if (accepts_nothing) QN_TRY(put(w, &set, UINT32_MAX)); /* so that no other state is taken for the start */
    QN_TRY(qn_dfa_rows_add(w, &sets, set.items, set.n, &d.start, NULL));
    size_t k = (size_t)d.n_classes;
    uint32_t *row = NULL;
    size_t row_capacity = 0;
    for (int32_t s = 0; s < qn_dfa_rows_count(&sets); s++) {
        QN_TRY(qn_dfa_work_states(w, s));
        size_t n;
        const uint32_t *stored = qn_dfa_rows_get(&sets, s, &n);
        if (n > row_capacity) {
            row_capacity = n * 2;
            row = qn_arena_alloc(&w->arena, row_capacity * sizeof *row);
            if (!row) return QN_E_NOMEM;
        }
        if (n) memcpy(row, stored, n * sizeof *row);
        int is_start = n && row[n - 1] == UINT32_MAX;
        if (is_start) n--;
        QN_TRY(qn_dfa_array_room(w, &next, k, sizeof(int32_t)));
        QN_TRY(qn_dfa_array_room(w, &accepts, 1, 1));
        ((uint8_t *)accepts.at)[accepts.n++] = (uint8_t)(is_start || set_accepts(c, row, n));
        int32_t *to = (int32_t *)next.at + next.n;
        next.n += k;
        for (size_t b = 0; b < k; b++) {
            set.n = 0;
            for (size_t i = 0; i < n; i++) {
                int64_t p = part_at(c, row[i]);
                const qn_dfa *a = part_of(c, p);
                QN_TRY(
                    enter(w, c, &set, p, qn_dfa_step(a, (int32_t)(row[i] - offset_of(c, p)), first_byte[b])));
            }
            QN_TRY(qn_dfa_rows_add(w, &sets, set.items, set.n, &to[b], NULL));
            QN_TRY(qn_dfa_work_steps(w, 1 + (int64_t)n));
        }
    }
    d.n_states = qn_dfa_rows_count(&sets);
    d.next = next.at;
    d.accepts = accepts.at;
    return qn_dfa_finish(w, &d, 0, out);
}

static int is_empty_text(const qn_dfa *d)
{
    return d->n_states == 2 && d->n_classes == 1 && d->start == 1 && d->next[1] == 0;
}

qn_status qn_dfa_concatenate_all(qn_dfa *const *parts, size_t n, const qn_dfa_limits *limits, qn_dfa **out)
{
    qn_dfa_work w;
    qn_dfa_work_begin(&w, limits);
    qn_status s = QN_OK;
    int64_t *offsets = qn_arena_alloc(&w.arena, sizeof *offsets * (n + 1)), total = 0;
    qn_dfa **kept = qn_arena_alloc(&w.arena, sizeof *kept * (n + 1));
    if (!offsets || !kept) {
        s = QN_E_NOMEM;
        goto out;
    }
    int64_t n_kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (qn_dfa_is_empty(parts[i])) {
            s = give(parts[i], out);
            goto out;
        }
        if (is_empty_text(parts[i])) continue;
        kept[n_kept] = parts[i];
        offsets[n_kept++] = total;
        total += parts[i]->n_states;
        if ((s = qn_dfa_work_states(&w, total / 2)) != QN_OK) goto out;
    }
    if (n_kept == 0) {
        s = n ? give(parts[0], out) : qn_dfa_texts(&(qn_text_ref){"", 0}, 1, NULL, out);
        goto out;
    }
    if (n_kept == 1) {
        s = give(kept[0], out);
        goto out;
    }
    chain c = {.parts = kept, .n_parts = n_kept, .offsets = offsets};
    s = run_chain(&w, &c, out);
out:
    qn_dfa_work_end(&w);
    return s;
}

qn_status qn_dfa_concatenate(qn_dfa *a, qn_dfa *b, const qn_dfa_limits *limits, qn_dfa **out)
{
    qn_dfa *parts[2] = {a, b};
    return qn_dfa_concatenate_all(parts, 2, limits, out);
}

qn_status qn_dfa_repeat(qn_dfa *a, int64_t min, int64_t max, const qn_dfa_limits *limits, qn_dfa **out)
{
    if (min < 0) min = 0;
    if (max >= 0 && max < min) return qn_dfa_none(out);
    if (max == 0 || is_empty_text(a) || (min == 0 && qn_dfa_is_empty(a)))
        return qn_dfa_texts(&(qn_text_ref){"", 0}, 1, NULL, out);
    if (qn_dfa_is_empty(a) || (min == 1 && max == 1) || qn_dfa_is_all(a)) return give(a, out);
    qn_dfa_work w;
    qn_dfa_work_begin(&w, limits);
    int64_t n_parts = max >= 0 ? max : min ? min : 1;
    qn_status s = QN_OK;
    if (n_parts > w.states_max || n_parts * a->n_states > 2 * (int64_t)w.states_max) {
        s = qn_fail(QN_E_UNSUPPORTED, "%lld repetitions of %d states: the limit states_max is %d",
                    (long long)n_parts, a->n_states, w.states_max);
    } else {
        chain c = {.parts = &a,
                   .n_parts = n_parts,
                   .offset_step = a->n_states,
                   .n_optional = n_parts - min,
                   .is_endless = max < 0};
        s = run_chain(&w, &c, out);
    }
    qn_dfa_work_end(&w);
    return s;
}
