#include "constrain/grammar/run.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Where a right side returns: a frame, or, while a state is made, ~rule: whoever called the rule in this state. */
enum { THE_END = 0 };

typedef struct {
    int32_t production;
    int32_t dot; /* the symbol that the thread is in, or that the wait is for: a place in grammar.symbols */
    int32_t dfa_state; /* of a thread; WAIT, PLACE */
    int32_t to;        /* where it returns */
} item;
enum { WAIT = -1, PLACE = -2 };

/* What goes on when a rule has ended that was called in some state. Callers in the same state may wait for each
 * other (left recursion), so a frame is known by all waits that can be reached inside of the state: its row is the
 * rule, then for each group of waits for one rule that rule, their number, and the waits. */
typedef struct {
    uint32_t row, n_row;    /* in words */
    uint32_t wait, n_waits; /* in waits: those for the rule itself, with frames to return to */
    uint32_t hash;
} frame;

typedef struct {
    uint32_t first, n; /* threads in items, sorted */
    uint32_t hash;
    uint32_t next; /* first of n_classes cells in r->next, + 1; 0: none yet */
    uint8_t may_end;
} state;

typedef struct {
    void *at;
    size_t n, room;
} list;

typedef struct {
    uint32_t *slots; /* number + 1; 0: free */
    size_t n;
} table;

typedef struct { /* waits for one rule in the state that is being made */
    int32_t rule, first, n;
    int32_t frame; /* -1: not known yet */
    int is_needed, is_new;
    uint32_t met;
} group;

struct qn_grammar_run {
    qn_grammar *grammar;
    qn_grammar_run_limits limits;
    int32_t n_classes;
    uint8_t class_of[256];
    list items;  /* item, of states */
    list states; /* state */
    list frames; /* frame */
    list words;  /* uint32_t, rows of frames */
    list waits;  /* item, of frames */
    list next;   /* uint32_t [.., n_classes] state + 1; 0: not known yet */
    table state_table, frame_table;
    uint32_t start;
    /* The state that is being made. */
    list made; /* item: threads, waits, places */
    table seen;
    list work;   /* item: places to go on from */
    list groups; /* group, sorted by rule */
    list row;    /* uint32_t */
    list reach;  /* int32_t, groups */
    uint32_t stamp;
    int32_t n_worked; /* places, of this step */
    uint8_t may_end;
};

/* Makes room for n more. */
static qn_status room(list *l, size_t n, size_t size_bytes)
{
    if (l->room - l->n >= n) return QN_OK;
    size_t more = l->room ? l->room * 2 : 64;
    while (more - l->n < n) more *= 2;
    if (more > INT32_MAX) return qn_fail(QN_E_FULL, "too many states of the grammar");
    void *at = qn_realloc(l->at, more * size_bytes);
    if (!at) return QN_E_NOMEM;
    l->at = at;
    l->room = more;
    return QN_OK;
}

static item *items_of(const list *l)
{
    return l->at;
}
static state *state_at(const qn_grammar_run *r, uint32_t i)
{
    return (state *)r->states.at + i;
}
static frame *frame_at(const qn_grammar_run *r, int32_t i)
{
    return (frame *)r->frames.at + i;
}

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0xff51afd7ed558ccdu;
    return h ^ h >> 32;
}

static uint64_t hash_item(const item *i)
{
    uint64_t h = mix(0x9e3779b97f4a7c15u, (uint32_t)i->production | (uint64_t)(uint32_t)i->dot << 32);
    return mix(h, (uint32_t)i->dfa_state | (uint64_t)(uint32_t)i->to << 32);
}

static int compare_items(const void *a, const void *b)
{
    const item *x = a, *y = b;
    if (x->production != y->production) return x->production < y->production ? -1 : 1;
    if (x->dot != y->dot) return x->dot < y->dot ? -1 : 1;
    if (x->dfa_state != y->dfa_state) return x->dfa_state < y->dfa_state ? -1 : 1;
    return (x->to > y->to) - (x->to < y->to);
}

/* Twice the slots. hash_of gives the hash of each number below n. */
static qn_status grow_table(const qn_grammar_run *r, table *t, size_t n,
                            uint32_t (*hash_of)(const qn_grammar_run *, size_t))
{
    size_t n_slots = t->n ? t->n * 2 : 256;
    uint32_t *slots = qn_calloc(n_slots, sizeof *slots);
    if (!slots) return QN_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        size_t at = hash_of(r, i) & (n_slots - 1);
        while (slots[at]) at = (at + 1) & (n_slots - 1);
        slots[at] = (uint32_t)i + 1;
    }
    qn_free(t->slots);
    t->slots = slots;
    t->n = n_slots;
    return QN_OK;
}

static void fill_table(const qn_grammar_run *r, table *t, size_t n,
                       uint32_t (*hash_of)(const qn_grammar_run *, size_t))
{
    if (!t->n) return;
    memset(t->slots, 0, t->n * sizeof *t->slots);
    for (size_t i = 0; i < n; i++) {
        size_t at = hash_of(r, i) & (t->n - 1);
        while (t->slots[at]) at = (at + 1) & (t->n - 1);
        t->slots[at] = (uint32_t)i + 1;
    }
}

static uint32_t hash_of_made(const qn_grammar_run *r, size_t i)
{
    return (uint32_t)hash_item(items_of(&r->made) + i);
}
static uint32_t hash_of_state(const qn_grammar_run *r, size_t i)
{
    return state_at(r, (uint32_t)i)->hash;
}
static uint32_t hash_of_frame(const qn_grammar_run *r, size_t i)
{
    return frame_at(r, (int32_t)i)->hash;
}

/* --- Making a state --- */

static void forget_made(qn_grammar_run *r)
{
    for (size_t i = 0; i < r->made.n;
         i++) { /* cheaper than to clear all, if the last state was a large one */
        size_t at = hash_of_made(r, i) & (r->seen.n - 1);
        while (r->seen.slots[at]) {
            r->seen.slots[at] = 0;
            at = (at + 1) & (r->seen.n - 1);
        }
    }
    r->made.n = r->work.n = 0;
    r->n_worked = 0;
    r->may_end = 0;
}

/* *is_new: the item was not there. */
static qn_status add_item(qn_grammar_run *r, const item *i, int *is_new)
{
    *is_new = 0;
    if (r->made.n * 2 >= r->seen.n) QN_TRY(grow_table(r, &r->seen, r->made.n, hash_of_made));
    size_t at = (uint32_t)hash_item(i) & (r->seen.n - 1);
    for (; r->seen.slots[at]; at = (at + 1) & (r->seen.n - 1)) {
        if (compare_items(items_of(&r->made) + r->seen.slots[at] - 1, i) == 0) return QN_OK;
    }
    if ((int32_t)r->made.n >= r->limits.items_max)
        return qn_fail(QN_E_FULL, "the grammar is too ambiguous: the limit items_max is %d",
                       r->limits.items_max);
    QN_TRY(room(&r->made, 1, sizeof *i));
    items_of(&r->made)[r->made.n++] = *i;
    r->seen.slots[at] = (uint32_t)r->made.n;
    *is_new = 1;
    return QN_OK;
}

/* A place to go on from: the dot is at a symbol that has not begun, or at the end. */
static qn_status push(qn_grammar_run *r, item i)
{
    if (++r->n_worked > r->limits.work_max)
        return qn_fail(QN_E_FULL, "the grammar is too ambiguous: the limit work_max is %d",
                       r->limits.work_max);
    QN_TRY(room(&r->work, 1, sizeof i));
    i.dfa_state = PLACE;
    items_of(&r->work)[r->work.n++] = i;
    return QN_OK;
}

static qn_status call(qn_grammar_run *r, int32_t rule, int32_t to)
{
    const qn_grammar_rule *callee = &r->grammar->rules[rule];
    for (int32_t k = 0; k < callee->n_productions; k++) {
        int32_t p = callee->first_production + k;
        QN_TRY(push(r, (item){p, r->grammar->productions[p].first_symbol, PLACE, to}));
    }
    return QN_OK;
}

/* A right side has ended: those that wait go on. */
static qn_status give_back(qn_grammar_run *r, int32_t to)
{
    if (to == THE_END) r->may_end = 1;
    /* Called in this very state, the rule ended the empty text: its callers went on at once, as it is nullable. */
    if (to <= 0) return QN_OK;
    for (uint32_t k = 0; k < frame_at(r, to)->n_waits; k++) {
        item w = items_of(&r->waits)[frame_at(r, to)->wait + k];
        w.dot++;
        QN_TRY(push(r, w));
    }
    return QN_OK;
}

/* Threads and waits for all places that are to be gone on from. Places stay among the items until the state is
 * numbered, so that none is gone on from twice. */
static qn_status close_state(qn_grammar_run *r)
{
    const qn_grammar *g = r->grammar;
    while (r->work.n) {
        item i = items_of(&r->work)[--r->work.n];
        int is_new;
        QN_TRY(add_item(r, &i, &is_new));
        if (!is_new) continue;
        const qn_grammar_production *p = &g->productions[i.production];
        if (i.dot == p->first_symbol + p->n_symbols) {
            QN_TRY(give_back(r, i.to));
            continue;
        }
        int32_t symbol = g->symbols[i.dot];
        item next = i, begun = i;
        next.dot++;
        if (symbol < 0) {
            const qn_dfa *d = g->terminals[~symbol];
            begun.dfa_state = d->start;
            QN_TRY(add_item(r, &begun, &is_new));
            if (d->flags[d->start] & QN_DFA_ACCEPTS) QN_TRY(push(r, next));
            continue;
        }
        if (next.dot == p->first_symbol + p->n_symbols) { /* at the very end: returns where this one does */
            QN_TRY(call(r, symbol, i.to));
        } else {
            begun.dfa_state = WAIT;
            QN_TRY(add_item(r, &begun, &is_new));
            QN_TRY(call(r, symbol, ~symbol));
        }
        if (g->rules[symbol].is_nullable) QN_TRY(push(r, next));
    }
    return QN_OK;
}

/* --- Frames --- */

static int compare_waits(const item *x, const item *y, const qn_grammar *g)
{
    int32_t a = g->symbols[x->dot], b = g->symbols[y->dot];
    return a != b ? (a < b ? -1 : 1) : compare_items(x, y);
}

/* Sorts waits by rule; those of a state are few. Shell's sort, since qsort's comparison has no context. */
static void sort_waits(item *w, size_t n, const qn_grammar *g)
{
    for (size_t gap = n / 2; gap; gap = gap == 2 ? 1 : gap * 5 / 11) {
        for (size_t i = gap; i < n; i++) {
            item x = w[i];
            size_t j = i;
            for (; j >= gap && compare_waits(&w[j - gap], &x, g) > 0; j -= gap) w[j] = w[j - gap];
            w[j] = x;
        }
    }
}

static group *group_for(const qn_grammar_run *r, int32_t rule)
{
    group *all = r->groups.at;
    size_t lo = 0, hi = r->groups.n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (all[mid].rule < rule) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return &all[lo]; /* whatever was called has a wait */
}

static int compare_numbers(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static qn_status put_word(qn_grammar_run *r, uint32_t word)
{
    QN_TRY(room(&r->row, 1, sizeof word));
    ((uint32_t *)r->row.at)[r->row.n++] = word;
    return QN_OK;
}

/* The row of a group's frame, and the groups that it reaches. */
static qn_status write_row(qn_grammar_run *r, const item *waits, size_t which)
{
    group *all = r->groups.at;
    r->stamp++;
    r->row.n = r->reach.n = 0;
    QN_TRY(room(&r->reach, r->groups.n, sizeof(int32_t)));
    int32_t *reach = r->reach.at;
    reach[r->reach.n++] = (int32_t)which;
    all[which].met = r->stamp;
    for (size_t i = 0; i < r->reach.n; i++) {
        const group *g = &all[reach[i]];
        for (int32_t k = g->first; k < g->first + g->n; k++) {
            if (waits[k].to >= 0) continue;
            group *to = group_for(r, ~waits[k].to);
            if (to->met != r->stamp) reach[r->reach.n++] = (int32_t)(to - all);
            to->met = r->stamp;
        }
    }
    qsort(reach, r->reach.n, sizeof *reach, compare_numbers);
    QN_TRY(put_word(r, (uint32_t)all[which].rule));
    for (size_t i = 0; i < r->reach.n; i++) {
        const group *g = &all[reach[i]];
        QN_TRY(put_word(r, (uint32_t)g->rule));
        QN_TRY(put_word(r, (uint32_t)g->n));
        for (int32_t k = g->first; k < g->first + g->n; k++) {
            QN_TRY(put_word(r, (uint32_t)waits[k].production));
            QN_TRY(put_word(r, (uint32_t)waits[k].dot));
            QN_TRY(put_word(r, (uint32_t)waits[k].to));
        }
    }
    return QN_OK;
}

static uint32_t hash_row(const uint32_t *row, size_t n)
{
    uint64_t h = n;
    for (size_t i = 0; i < n; i++) h = mix(h, row[i]);
    return (uint32_t)h;
}

static qn_status number_frame(qn_grammar_run *r, group *g)
{
    const uint32_t *row = r->row.at;
    size_t n = r->row.n;
    uint32_t hash = hash_row(row, n);
    if (r->frames.n * 2 >= r->frame_table.n)
        QN_TRY(grow_table(r, &r->frame_table, r->frames.n, hash_of_frame));
    size_t at = hash & (r->frame_table.n - 1);
    for (; r->frame_table.slots[at]; at = (at + 1) & (r->frame_table.n - 1)) {
        int32_t id = (int32_t)r->frame_table.slots[at] - 1;
        const frame *f = frame_at(r, id);
        if (f->hash != hash || f->n_row != n ||
            memcmp((uint32_t *)r->words.at + f->row, row, n * sizeof *row))
            continue;
        g->frame = id;
        g->is_new = 0;
        return QN_OK;
    }
    QN_TRY(room(&r->frames, 1, sizeof(frame)));
    QN_TRY(room(&r->words, n, sizeof *row));
    QN_TRY(room(&r->waits, (size_t)g->n, sizeof(item)));
    memcpy((uint32_t *)r->words.at + r->words.n, row, n * sizeof *row);
    *frame_at(r, (int32_t)r->frames.n) = (frame){(uint32_t)r->words.n, (uint32_t)n, 0, 0, hash};
    r->words.n += n;
    r->frame_table.slots[at] = (uint32_t)r->frames.n + 1;
    g->frame = (int32_t)r->frames.n++;
    g->is_new = 1;
    return QN_OK;
}

/* Frames for the rules that threads return from; waits [n] are sorted. */
static qn_status make_frames(qn_grammar_run *r, const item *waits, size_t n, item *threads, size_t n_threads)
{
    const qn_grammar *g = r->grammar;
    r->groups.n = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t rule = g->symbols[waits[i].dot];
        QN_TRY(room(&r->groups, 1, sizeof(group)));
        group *at = (group *)r->groups.at + r->groups.n;
        if (r->groups.n && at[-1].rule == rule) {
            at[-1].n++;
        } else {
            *at = (group){.rule = rule, .first = (int32_t)i, .n = 1, .frame = -1};
            r->groups.n++;
        }
    }
    group *all = r->groups.at;
    for (size_t i = 0; i < n_threads; i++) {
        if (threads[i].to < 0) group_for(r, ~threads[i].to)->is_needed = 1;
    }
    for (int changed = 1; changed;) { /* and what those return to */
        changed = 0;
        for (size_t k = 0; k < r->groups.n; k++) {
            if (all[k].is_needed != 1) continue;
            all[k].is_needed = 2; /* and looked at */
            changed = 1;
            for (int32_t i = all[k].first; i < all[k].first + all[k].n; i++) {
                group *to = waits[i].to < 0 ? group_for(r, ~waits[i].to) : NULL;
                if (to && !to->is_needed) to->is_needed = 1;
            }
        }
    }
    for (size_t k = 0; k < r->groups.n; k++) {
        if (!all[k].is_needed) continue;
        QN_TRY(write_row(r, waits, k));
        QN_TRY(number_frame(r, &all[k]));
    }
    for (size_t k = 0; k < r->groups.n; k++) {
        if (all[k].frame < 0 || !all[k].is_new) continue;
        frame *f = frame_at(r, all[k].frame);
        QN_TRY(room(&r->waits, (size_t)all[k].n, sizeof(item)));
        f->wait = (uint32_t)r->waits.n;
        f->n_waits = (uint32_t)all[k].n;
        for (int32_t i = all[k].first; i < all[k].first + all[k].n; i++) {
            item w = waits[i];
            if (w.to < 0) w.to = group_for(r, ~w.to)->frame;
            items_of(&r->waits)[r->waits.n++] = w;
        }
    }
    for (size_t i = 0; i < n_threads; i++) {
        if (threads[i].to < 0) threads[i].to = group_for(r, ~threads[i].to)->frame;
    }
    return QN_OK;
}

static size_t list_bytes(const list *l, size_t size_bytes)
{
    return l->room * size_bytes;
}

size_t qn_grammar_run_bytes(const qn_grammar_run *r)
{
    return sizeof *r + list_bytes(&r->items, sizeof(item)) + list_bytes(&r->states, sizeof(state)) +
           list_bytes(&r->frames, sizeof(frame)) + list_bytes(&r->words, sizeof(uint32_t)) +
           list_bytes(&r->waits, sizeof(item)) + list_bytes(&r->next, sizeof(uint32_t)) +
           list_bytes(&r->made, sizeof(item)) + list_bytes(&r->work, sizeof(item)) +
           (r->state_table.n + r->frame_table.n + r->seen.n) * sizeof(uint32_t);
}

/* The number of the state that was made. */
static qn_status number_state(qn_grammar_run *r, uint32_t *out)
{
    size_t n_made = r->made.n, n = 0, n_waits = 0;
    uint8_t may_end = r->may_end;
    item *made = r->made.at;
    forget_made(r); /* before items move */
    /* Threads first, then waits: places are dropped. */
    for (size_t i = 0; i < n_made; i++) {
        if (made[i].dfa_state < 0) continue;
        item t = made[i];
        made[i] = made[n];
        made[n++] = t;
    }
    for (size_t i = n; i < n_made; i++) {
        if (made[i].dfa_state == WAIT) made[n + n_waits++] = made[i];
    }
    if (n == 0 && !may_end) {
        *out = 0;
        return QN_OK;
    }
    sort_waits(made + n, n_waits, r->grammar);
    size_t n_frames = r->frames.n, n_words = r->words.n, n_kept = r->waits.n;
    qn_status status = make_frames(r, made + n, n_waits, made, n);
    if (status != QN_OK) { /* frames without their waits must not be found */
        r->frames.n = n_frames;
        r->words.n = n_words;
        r->waits.n = n_kept;
        fill_table(r, &r->frame_table, n_frames, hash_of_frame);
        return status;
    }
    qsort(made, n, sizeof *made, compare_items);
    size_t n_unique = 0; /* threads that return to different groups may have got the same frame */
    for (size_t i = 0; i < n; i++) {
        if (!n_unique || compare_items(&made[n_unique - 1], &made[i])) made[n_unique++] = made[i];
    }
    n = n_unique;
    uint64_t hash = mix(n, may_end);
    for (size_t i = 0; i < n; i++) hash = mix(hash, hash_item(&made[i]));
    if (r->states.n * 2 >= r->state_table.n)
        QN_TRY(grow_table(r, &r->state_table, r->states.n, hash_of_state));
    size_t at = (uint32_t)hash & (r->state_table.n - 1);
    for (; r->state_table.slots[at]; at = (at + 1) & (r->state_table.n - 1)) {
        const state *s = state_at(r, r->state_table.slots[at] - 1);
        if (s->hash != (uint32_t)hash || s->n != n || s->may_end != may_end) continue;
        size_t i = 0;
        while (i < n && compare_items(items_of(&r->items) + s->first + i, &made[i]) == 0) i++;
        if (i < n) continue;
        *out = r->state_table.slots[at] - 1;
        return QN_OK;
    }
    if ((int32_t)r->states.n >= r->limits.states_max)
        return qn_fail(QN_E_FULL, "the text needs more states of the grammar than the limit states_max, %d",
                       r->limits.states_max);
    if (qn_grammar_run_bytes(r) > r->limits.bytes_max)
        return qn_fail(QN_E_FULL, "the grammar's states need more memory than the limit of %zu bytes",
                       r->limits.bytes_max);
    QN_TRY(room(&r->items, n, sizeof *made));
    QN_TRY(room(&r->states, 1, sizeof(state)));
    if (n) memcpy(items_of(&r->items) + r->items.n, made, n * sizeof *made);
    *state_at(r, (uint32_t)r->states.n) =
        (state){.first = (uint32_t)r->items.n, .n = (uint32_t)n, .hash = (uint32_t)hash, .may_end = may_end};
    r->items.n += n;
    r->state_table.slots[at] = (uint32_t)r->states.n + 1;
    *out = (uint32_t)r->states.n++;
    return QN_OK;
}

/* --- The interface --- */

/* Bytes that no terminal tells apart are one class. */
static void find_classes(qn_grammar_run *r)
{
    int32_t n_all = 1;
    for (int32_t t = 0; t < r->grammar->n_terminals; t++) {
        const qn_dfa *d = r->grammar->terminals[t];
        int32_t n = 0;
        uint16_t pairs[256];
        uint8_t fresh[256];
        for (int b = 0; b < 256; b++) {
            uint16_t pair = (uint16_t)(r->class_of[b] << 8 | d->class_of[b]);
            int32_t k = 0;
            while (k < n && pairs[k] != pair) k++;
            if (k == n) pairs[n++] = pair;
            fresh[b] = (uint8_t)k;
        }
        memcpy(r->class_of, fresh, sizeof fresh);
        n_all = n;
    }
    r->n_classes = n_all;
}

qn_status qn_grammar_run_new(qn_grammar *g, const qn_grammar_run_limits *limits, qn_grammar_run **out)
{
    qn_grammar_run *r = qn_calloc(1, sizeof *r);
    if (!r) return QN_E_NOMEM;
    r->grammar = qn_grammar_retain(g);
    if (limits) r->limits = *limits;
    if (r->limits.states_max <= 0) r->limits.states_max = 200000;
    if (r->limits.items_max <= 0) r->limits.items_max = 4000;
    if (r->limits.work_max <= 0) r->limits.work_max = 50000;
    if (!r->limits.bytes_max) r->limits.bytes_max = 256 << 20;
    find_classes(r);
    qn_status s = room(&r->states, 1, sizeof(state));
    if (s == QN_OK) s = room(&r->frames, 1, sizeof(frame));
    if (s == QN_OK)
        s = room(&r->words, 1, sizeof(uint32_t)); /* these are never NULL, even if they stay empty */
    if (s == QN_OK) s = room(&r->waits, 1, sizeof(item));
    if (s == QN_OK) s = room(&r->items, 1, sizeof(item));
    if (s == QN_OK) {
        *state_at(r, 0) = (state){0};
        *frame_at(r, THE_END) = (frame){0};
        r->states.n = r->frames.n = 1;
        s = call(r, g->start, THE_END);
    }
    if (s == QN_OK) s = close_state(r);
    if (s == QN_OK) s = number_state(r, &r->start);
    if (s != QN_OK) {
        qn_grammar_run_free(r);
        return s;
    }
    *out = r;
    return QN_OK;
}

void qn_grammar_run_free(qn_grammar_run *r)
{
    if (!r) return;
    qn_grammar_release(r->grammar);
    list *lists[] = {&r->items, &r->states, &r->frames, &r->words, &r->waits, &r->next,
                     &r->made,  &r->work,   &r->groups, &r->row,   &r->reach};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) qn_free(lists[i]->at);
    qn_free(r->state_table.slots);
    qn_free(r->frame_table.slots);
    qn_free(r->seen.slots);
    qn_free(r);
}

uint32_t qn_grammar_run_start(const qn_grammar_run *r)
{
    return r->start;
}

int qn_grammar_run_may_end(const qn_grammar_run *r, uint32_t s)
{
    return state_at(r, s)->may_end;
}

uint8_t qn_grammar_run_class(const qn_grammar_run *r, uint8_t byte)
{
    return r->class_of[byte];
}

uint32_t qn_grammar_run_states(const qn_grammar_run *r)
{
    return (uint32_t)r->states.n;
}

/* What the byte makes of the state's threads. */
static qn_status make_step(qn_grammar_run *r, uint32_t from, uint8_t byte, uint32_t *out)
{
    const qn_grammar *g = r->grammar;
    for (uint32_t k = 0; k < state_at(r, from)->n; k++) {
        item i = items_of(&r->items)[state_at(r, from)->first + k];
        const qn_dfa *d = g->terminals[~g->symbols[i.dot]];
        int is_new;
        i.dfa_state = qn_dfa_step(d, i.dfa_state, byte);
        if (!i.dfa_state) continue;
        QN_TRY(add_item(r, &i, &is_new));
        if (!is_new || !(d->flags[i.dfa_state] & QN_DFA_ACCEPTS)) continue;
        i.dot++;
        QN_TRY(push(r, i));
    }
    QN_TRY(close_state(r));
    return number_state(r, out);
}

qn_status qn_grammar_run_step(qn_grammar_run *r, uint32_t from, uint8_t byte, uint32_t *out)
{
    if (from == 0) {
        *out = 0;
        return QN_OK;
    }
    size_t n_classes = (size_t)r->n_classes, class = r->class_of[byte];
    if (!state_at(r, from)->next) {
        QN_TRY(room(&r->next, n_classes, sizeof(uint32_t)));
        memset((uint32_t *)r->next.at + r->next.n, 0, n_classes * sizeof(uint32_t));
        state_at(r, from)->next = (uint32_t)r->next.n + 1;
        r->next.n += n_classes;
    }
    uint32_t to = ((uint32_t *)r->next.at)[state_at(r, from)->next - 1 + class];
    if (to) {
        *out = to - 1;
        return QN_OK;
    }
    qn_status s = make_step(r, from, byte, &to);
    if (s != QN_OK) {
        forget_made(r);
        return s;
    }
    ((uint32_t *)r->next.at)[state_at(r, from)->next - 1 + class] = to + 1;
    *out = to;
    return QN_OK;
}

/* --- Forgetting --- */

/* Marks states and frames that are needed; queue [n_frames]. */
static void mark_needed(const qn_grammar_run *r, uint32_t *const *keep, size_t n, uint32_t *of_state,
                        uint32_t *of_frame, int32_t *queue)
{
    size_t n_queue = 0;
    of_state[0] = of_frame[THE_END] = 1;
    for (size_t i = 0; i <= n; i++) {
        uint32_t s = i < n ? *keep[i] : r->start;
        if (of_state[s]) continue;
        of_state[s] = 1;
        for (uint32_t k = 0; k < state_at(r, s)->n; k++) {
            int32_t to = items_of(&r->items)[state_at(r, s)->first + k].to;
            if (!of_frame[to]) of_frame[to] = 1, queue[n_queue++] = to;
        }
    }
    for (size_t q = 0; q < n_queue; q++) {
        const frame *f = frame_at(r, queue[q]);
        const uint32_t *row = (const uint32_t *)r->words.at + f->row;
        for (size_t i = 1; i < f->n_row;) { /* the row names more frames than the waits */
            for (uint32_t k = row[i + 1], at = 0; at < k; at++) {
                int32_t to = (int32_t)row[i + 2 + 3 * at + 2];
                if (to >= 0 && !of_frame[to]) of_frame[to] = 1, queue[n_queue++] = to;
            }
            i += 2 + 3 * row[i + 1];
        }
        for (uint32_t k = 0; k < f->n_waits; k++) {
            int32_t to = items_of(&r->waits)[f->wait + k].to;
            if (!of_frame[to]) of_frame[to] = 1, queue[n_queue++] = to;
        }
    }
}

/* Frames move down in place, with their rows and waits. */
static void move_frames(qn_grammar_run *r, const uint32_t *number)
{
    size_t n_words = 0, n_waits = 0, n_frames = 0;
    uint32_t *words = r->words.at;
    item *waits = r->waits.at;
    for (size_t i = 0; i < r->frames.n; i++) {
        if (number[i] == UINT32_MAX) continue;
        frame f = *frame_at(r, (int32_t)i);
        if (f.n_row) memmove(words + n_words, words + f.row, f.n_row * sizeof *words);
        uint32_t *row = words + n_words;
        for (size_t k = 1; k < f.n_row; k += 2 + 3 * row[k + 1]) {
            for (uint32_t at = 0; at < row[k + 1]; at++) {
                uint32_t *to = &row[k + 2 + 3 * at + 2];
                if ((int32_t)*to >= 0) *to = number[*to];
            }
        }
        if (f.n_waits) memmove(waits + n_waits, waits + f.wait, f.n_waits * sizeof *waits);
        for (uint32_t k = 0; k < f.n_waits; k++)
            waits[n_waits + k].to = (int32_t)number[waits[n_waits + k].to];
        f.row = (uint32_t)n_words;
        f.wait = (uint32_t)n_waits;
        f.hash = f.n_row ? hash_row(row, f.n_row) : 0;
        n_words += f.n_row;
        n_waits += f.n_waits;
        *frame_at(r, (int32_t)n_frames++) = f;
    }
    r->frames.n = n_frames;
    r->words.n = n_words;
    r->waits.n = n_waits;
}

static void move_states(qn_grammar_run *r, const uint32_t *of_state, const uint32_t *of_frame)
{
    size_t n_items = 0, n_states = 0;
    item *items = r->items.at;
    for (size_t i = 0; i < r->states.n; i++) {
        if (of_state[i] == UINT32_MAX) continue;
        state s = *state_at(r, (uint32_t)i);
        uint64_t hash = mix(s.n, s.may_end);
        for (uint32_t k = 0; k < s.n; k++) {
            item t = items[s.first + k];
            t.to = (int32_t)of_frame[t.to]; /* numbers keep their order, so threads stay sorted */
            hash = mix(hash, hash_item(&t));
            items[n_items + k] = t;
        }
        s.first = (uint32_t)n_items;
        s.hash = (uint32_t)hash;
        s.next = 0;
        n_items += s.n;
        *state_at(r, (uint32_t)n_states++) = s;
    }
    r->states.n = n_states;
    r->items.n = n_items;
    r->next.n = 0;
}

qn_status qn_grammar_run_sweep(qn_grammar_run *r, uint32_t *const *keep, size_t n)
{
    uint32_t *of_state = qn_calloc(r->states.n, sizeof *of_state), n_states = 0, n_frames = 0;
    uint32_t *of_frame = qn_calloc(r->frames.n, sizeof *of_frame);
    int32_t *queue = qn_alloc_array(r->frames.n, sizeof *queue);
    qn_status s = of_state && of_frame && queue ? QN_OK : QN_E_NOMEM;
    if (s == QN_OK) {
        mark_needed(r, keep, n, of_state, of_frame, queue);
        for (size_t i = 0; i < r->states.n; i++) of_state[i] = of_state[i] ? n_states++ : UINT32_MAX;
        for (size_t i = 0; i < r->frames.n; i++) of_frame[i] = of_frame[i] ? n_frames++ : UINT32_MAX;
        move_frames(r, of_frame);
        move_states(r, of_state, of_frame);
        fill_table(r, &r->frame_table, r->frames.n, hash_of_frame);
        fill_table(r, &r->state_table, r->states.n, hash_of_state);
        for (size_t i = 0; i < n; i++) *keep[i] = of_state[*keep[i]];
        r->start = of_state[r->start];
    }
    qn_free(of_state);
    qn_free(of_frame);
    qn_free(queue);
    return s;
}
