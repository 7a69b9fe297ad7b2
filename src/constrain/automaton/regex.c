/* From the tree of a regular expression to an automaton. All of it speaks of classes of code points; bytes come
 * last (lower.h).
 *
 * The tree becomes a graph of nodes (Thompson), of which sets of threads are followed (subset construction). What
 * a position demands of the text before it is known when a thread comes there: ^, look-behind and the left side
 * of \b are decided at once. What it demands of the text behind it goes along with the thread: flags for the
 * next character ($, \b), and obligations, pairs of a machine (the automaton of a look-ahead) and its state. A
 * thread counts if all its obligations are met at the text's end, so sets of threads stand for alternatives of
 * conjunctions, and the result is exact. Machines of look-around are built before those that use them. */
#include "constrain/automaton/regex.h"

#include <stdlib.h>
#include <string.h>

#include "constrain/automaton/regex_graph.h"

typedef qn_regex_step node_kind;
typedef qn_regex_place node;
typedef qn_regex_machine machine;
typedef qn_regex_compiler compiler;

/* --- Threads --- */

enum {
    FLAG_END = 1,
    FLAG_WORD = 2,
    FLAG_NO_WORD = 4
}; /* the text ends; a word's character follows; none does */

typedef struct {
    uint32_t place; /* node * 8 + flags */
    int32_t duties;
} thread;

typedef struct {
    compiler *c;
    machine *m;
    thread *threads; /* of the state that is being made */
    size_t n, capacity;
    thread *stack;
    size_t n_stack, stack_capacity;
    uint32_t *seen; /* [n_nodes], of threads without flags and duties */
    uint32_t stamp;
    qn_dfa_rows states; /* states of trackers, then threads sorted */
    int32_t tracked[TRACKERS_MAX];
    qn_dfa_array accepts; /* of each state */
} run;

/* An obligation: 0: can never be met; 1: always is; 2: depends on the text. */
static int judge(const compiler *c, uint32_t key, int32_t state)
{
    const machine *m = qn_regex_machine_of(c, (int32_t)(key >> 1));
    int is_negated = key & 1;
    if (state == 0) return is_negated;
    if (state == m->all) return !is_negated;
    return 2;
}

/* Duties sorted, without repetition, as a number. */
static qn_status number_duties(compiler *c, uint32_t *pairs, size_t n, int32_t *out)
{
    for (size_t i = 1; i < n; i++) {
        for (size_t j = i; j > 0; j--) {
            uint32_t *a = pairs + 2 * (j - 1), *b = pairs + 2 * j;
            if (a[0] < b[0] || (a[0] == b[0] && a[1] <= b[1])) break;
            uint32_t t0 = a[0], t1 = a[1];
            a[0] = b[0], a[1] = b[1];
            b[0] = t0, b[1] = t1;
        }
    }
    size_t n_out = 0;
    for (size_t i = 0; i < n; i++) {
        if (n_out && pairs[2 * n_out - 2] == pairs[2 * i] && pairs[2 * n_out - 1] == pairs[2 * i + 1])
            continue;
        pairs[2 * n_out] = pairs[2 * i];
        pairs[2 * n_out + 1] = pairs[2 * i + 1];
        n_out++;
    }
    QN_TRY(qn_dfa_work_steps(c->w, (int64_t)n));
    return qn_dfa_rows_add(c->w, &c->duties, pairs, n_out * 2, out, NULL);
}

enum { DUTIES_MAX = 256 };

/* One more obligation. *out is -1 if it cannot be met. */
static qn_status add_duty(compiler *c, int32_t duties, uint32_t key, int32_t state, int32_t *out)
{
    int verdict = judge(c, key, state);
    if (verdict < 2) {
        *out = verdict ? duties : -1;
        return QN_OK;
    }
    uint32_t pairs[2 * DUTIES_MAX];
    size_t n;
    const uint32_t *row = qn_dfa_rows_get(&c->duties, duties, &n);
    if (n / 2 + 1 >= DUTIES_MAX) return qn_fail(QN_E_UNSUPPORTED, "too much look-ahead at once");
    if (n) memcpy(pairs, row, n * sizeof *row);
    pairs[n] = key;
    pairs[n + 1] = (uint32_t)state;
    return number_duties(c, pairs, n / 2 + 1, out);
}

/* The obligations after a character of the class; -1: one cannot be met any more. */
static qn_status step_duties(compiler *c, int32_t duties, int32_t class, int32_t *out)
{
    if (duties == 0) {
        *out = 0;
        return QN_OK;
    }
    uint32_t pairs[2 * DUTIES_MAX];
    size_t n, n_out = 0;
    const uint32_t *row = qn_dfa_rows_get(&c->duties, duties, &n);
    for (size_t i = 0; i < n; i += 2) {
        const machine *m = qn_regex_machine_of(c, (int32_t)(row[i] >> 1));
        int32_t state = m->next[(size_t)row[i + 1] * (size_t)c->classes.n_classes + (size_t) class];
        int verdict = judge(c, row[i], state);
        if (verdict == 0) {
            *out = -1;
            return QN_OK;
        }
        if (verdict == 1) continue;
        pairs[n_out++] = row[i];
        pairs[n_out++] = (uint32_t)state;
    }
    return number_duties(c, pairs, n_out / 2, out);
}

static int duties_met_at_end(const compiler *c, int32_t duties)
{
    size_t n;
    const uint32_t *row = qn_dfa_rows_get(&c->duties, duties, &n);
    for (size_t i = 0; i < n; i += 2) {
        const machine *m = qn_regex_machine_of(c, (int32_t)(row[i] >> 1));
        if (m->accepts[row[i + 1]] == (row[i] & 1)) return 0;
    }
    return 1;
}

static qn_status push(run *r, int32_t node_index, uint32_t flags, int32_t duties)
{
    if (r->n_stack == r->stack_capacity) {
        qn_dfa_array a = {r->stack, r->n_stack, r->stack_capacity};
        QN_TRY(qn_dfa_array_room(r->c->w, &a, 1, sizeof(thread)));
        r->stack = a.at;
        r->stack_capacity = a.capacity;
    }
    r->stack[r->n_stack++] = (thread){(uint32_t)node_index * 8 + flags, duties};
    return QN_OK;
}

/* Was the thread met in this closure? Threads with flags or duties are few: they stand in r->threads, with the
 * nodes that only pass on, which go at the end. */
static qn_status is_seen(run *r, thread t, int *out)
{
    node *n = qn_regex_place_of(r->c, (int32_t)(t.place >> 3));
    *out = 1;
    uint32_t *seen = &r->seen[t.place >> 3];
    if (*seen == r->stamp) return QN_OK; /* without any condition, which says more than with one */
    if ((t.place & 7) == 0 && t.duties == 0) {
        *seen = r->stamp;
    } else {
        for (size_t i = 0; i < r->n; i++) {
            if (r->threads[i].place == t.place && r->threads[i].duties == t.duties) return QN_OK;
        }
        QN_TRY(qn_dfa_work_steps(r->c->w, (int64_t)(r->n / 8)));
    }
    *out = 0;
    int is_kept = n->kind == NODE_SET || n->kind == NODE_ANY || n->kind == NODE_MATCH || n->kind == NODE_ALL;
    if (!is_kept && (t.place & 7) == 0 && t.duties == 0) return QN_OK;
    if (r->n == r->capacity) {
        qn_dfa_array a = {r->threads, r->n, r->capacity};
        QN_TRY(qn_dfa_array_room(r->c->w, &a, 1, sizeof t));
        r->threads = a.at;
        r->capacity = a.capacity;
    }
    r->threads[r->n++] = t;
    return QN_OK;
}

/* Follows all that needs no character from a node. The states of trackers are those after what came before. */
static qn_status follow(run *r, int32_t from, uint32_t from_flags, int32_t from_duties, int context)
{
    compiler *c = r->c;
    QN_TRY(push(r, from, from_flags, from_duties));
    while (r->n_stack) {
        thread t = r->stack[--r->n_stack];
        int seen;
        QN_TRY(is_seen(r, t, &seen));
        QN_TRY(qn_dfa_work_steps(c->w, 1));
        if (seen) continue;
        node n = *qn_regex_place_of(c, (int32_t)(t.place >> 3));
        uint32_t flags = t.place & 7;
        int32_t duties = t.duties;
        switch (n.kind) {
        case NODE_SPLIT:
            QN_TRY(push(r, n.other, flags, duties));
            break;
        case NODE_BEGIN:
            if (context != AT_BEGIN) continue;
            break;
        case NODE_END:
            flags |= FLAG_END;
            break;
        case NODE_EDGE:
            flags |= (context == AFTER_WORD) == n.is_negated ? FLAG_WORD : FLAG_NO_WORD;
            break;
        case NODE_AHEAD: {
            const machine *m = qn_regex_machine_of(c, n.other);
            uint32_t key = (uint32_t)n.other * 2 + (uint32_t)n.is_negated;
            QN_TRY(add_duty(c, duties, key, m->starts[context], &duties));
            if (duties < 0) continue;
            break;
        }
        case NODE_BEHIND: {
            int32_t i = 0;
            while (r->m->trackers[i] != n.other) i++;
            if (qn_regex_machine_of(c, n.other)->accepts[r->tracked[i]] == n.is_negated) continue;
            break;
        }
        default:
            continue;
        }
        if ((flags & FLAG_WORD) && (flags & (FLAG_NO_WORD | FLAG_END))) continue; /* cannot be met */
        QN_TRY(push(r, n.out, flags, duties));
    }
    return QN_OK;
}

static int compare_threads(const void *a, const void *b)
{
    const thread *x = a, *y = b;
    if (x->place != y->place) return x->place < y->place ? -1 : 1;
    return (x->duties > y->duties) - (x->duties < y->duties);
}

/* Drops what only passed on, and what says less than another; sorts. */
static void settle(run *r)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n; i++) {
        thread t = r->threads[i];
        node_kind kind = qn_regex_place_of(r->c, (int32_t)(t.place >> 3))->kind;
        if (kind != NODE_SET && kind != NODE_ANY && kind != NODE_MATCH && kind != NODE_ALL) continue;
        int is_free = (t.place & 7) == 0 && t.duties == 0;
        if (!is_free && r->seen[t.place >> 3] == r->stamp) continue;
        if (kind == NODE_ALL && is_free) { /* everything is accepted from here */
            r->threads[0] = t;
            r->n = 1;
            return;
        }
        r->threads[n++] = t;
    }
    r->n = n;
    if (n < 48) {
        for (size_t i = 1; i < n; i++) {
            thread t = r->threads[i];
            size_t j = i;
            for (; j > 0 && compare_threads(&r->threads[j - 1], &t) > 0; j--)
                r->threads[j] = r->threads[j - 1];
            r->threads[j] = t;
        }
    } else {
        qsort(r->threads, n, sizeof *r->threads, compare_threads);
    }
}

static int accepts_now(const run *r)
{
    for (size_t i = 0; i < r->n; i++) {
        thread t = r->threads[i];
        node_kind kind = qn_regex_place_of(r->c, (int32_t)(t.place >> 3))->kind;
        if (kind != NODE_MATCH && kind != NODE_ALL) continue;
        if (!(t.place & FLAG_WORD) && duties_met_at_end(r->c, t.duties)) return 1;
    }
    return 0;
}

/* The number of the state of the threads; 0 if there are none. */
static qn_status number_state(run *r, int32_t *out)
{
    settle(r);
    if (r->n == 0) {
        *out = 0;
        return QN_OK;
    }
    node_kind first = qn_regex_place_of(r->c, (int32_t)(r->threads[0].place >> 3))->kind;
    int is_all =
        r->n == 1 && first == NODE_ALL && (r->threads[0].place & 7) == 0 && r->threads[0].duties == 0;
    size_t n_tracked = is_all ? 0 : (size_t)r->m->n_trackers, n = n_tracked + 2 * r->n;
    uint32_t small[128], *row = small;
    if (n > 128) {
        row = qn_arena_alloc(&r->c->w->arena, n * sizeof *row);
        if (!row) return QN_E_NOMEM;
    }
    for (size_t i = 0; i < n_tracked; i++) row[i] = (uint32_t)r->tracked[i];
    for (size_t i = 0; i < r->n; i++) {
        row[n_tracked + 2 * i] = r->threads[i].place;
        row[n_tracked + 2 * i + 1] = (uint32_t)r->threads[i].duties;
    }
    int is_new;
    QN_TRY(qn_dfa_rows_add(r->c->w, &r->states, row, n, out, &is_new));
    if (!is_new) return QN_OK;
    QN_TRY(qn_dfa_work_states(r->c->w, *out));
    QN_TRY(qn_dfa_array_room(r->c->w, &r->accepts, 1, 1));
    ((uint8_t *)r->accepts.at)[r->accepts.n++] = (uint8_t)accepts_now(r);
    return QN_OK;
}

static qn_status start_state(run *r, int context, int32_t *out)
{
    r->n = 0;
    r->stamp++;
    for (int32_t i = 0; i < r->m->n_trackers; i++)
        r->tracked[i] = qn_regex_machine_of(r->c, r->m->trackers[i])->starts[AT_BEGIN];
    QN_TRY(follow(r, r->m->entry, 0, 0, context));
    return number_state(r, out);
}

/* Which threads of a state a class of characters moves: lists by class, one after another. */
typedef struct {
    int32_t *begins; /* [n_classes + 1] */
    int32_t *items;  /* places in the state's row */
    size_t capacity;
} buckets;

static qn_status sort_threads(run *r, const uint32_t *row, size_t n, size_t n_tracked, buckets *b)
{
    compiler *c = r->c;
    int32_t n_classes = c->classes.n_classes;
    size_t total = 0;
    memset(b->begins, 0, sizeof *b->begins * (size_t)(n_classes + 1));
    for (int fill = 0; fill < 2; fill++) {
        for (size_t i = n_tracked; i < n; i += 2) {
            const node *at = qn_regex_place_of(c, (int32_t)(row[i] >> 3));
            if (at->kind == NODE_MATCH || row[i] & FLAG_END) continue;
            int is_any = at->kind == NODE_ANY || at->kind == NODE_ALL;
            const int32_t *list = is_any ? NULL : c->lists + c->list_begins[at->set];
            int32_t n_list = is_any ? n_classes : c->list_begins[at->set + 1] - c->list_begins[at->set];
            for (int32_t k = 0; k < n_list; k++) {
                int32_t *at_class = &b->begins[list ? list[k] : k];
                if (fill) b->items[*at_class] = (int32_t)i;
                ++*at_class;
            }
            total += (size_t)n_list;
        }
        if (fill) break;
        int32_t sum = 0;
        for (int32_t k = 0; k <= n_classes; k++) { /* from counts to begins */
            int32_t m = b->begins[k];
            b->begins[k] = sum;
            sum += m;
        }
        if (total > b->capacity) {
            b->capacity = total * 2;
            b->items = qn_arena_alloc(&c->w->arena, b->capacity * sizeof *b->items);
            if (!b->items) return QN_E_NOMEM;
        }
    }
    memmove(b->begins + 1, b->begins, sizeof *b->begins * (size_t)n_classes); /* filling moved them to ends */
    b->begins[0] = 0;
    return qn_dfa_work_steps(c->w, 1 + (int64_t)(total / 8));
}

static qn_status step_state(run *r, const uint32_t *row, size_t n_tracked, const buckets *b, int32_t class,
                            int32_t *out)
{
    compiler *c = r->c;
    size_t n_classes = (size_t)c->classes.n_classes;
    int context = c->is_word[class] ? AFTER_WORD : AFTER_OTHER;
    for (size_t i = 0; i < n_tracked; i++)
        r->tracked[i] = qn_regex_machine_of(c, r->m->trackers[i])->next[row[i] * n_classes + (size_t) class];
    r->n = 0;
    r->stamp++;
    for (int32_t k = b->begins[class]; k < b->begins[class + 1]; k++) {
        const uint32_t *t = row + b->items[k];
        const node *at = qn_regex_place_of(c, (int32_t)(t[0] >> 3));
        if (t[0] & (c->is_word[class] ? FLAG_NO_WORD : FLAG_WORD)) continue;
        int32_t duties, to = at->kind == NODE_ALL ? (int32_t)(t[0] >> 3) : at->out;
        QN_TRY(step_duties(c, (int32_t)t[1], class, &duties));
        if (duties >= 0) QN_TRY(follow(r, to, 0, duties, context));
    }
    return number_state(r, out);
}

/* Builds the machine's states and makes them minimal. */
static qn_status determinise(compiler *c, machine *m)
{
    run r = {.c = c, .m = m, .seen = qn_arena_calloc(&c->w->arena, c->nodes.n, sizeof *r.seen)};
    buckets b = {.begins =
                     qn_arena_alloc(&c->w->arena, sizeof *b.begins * ((size_t)c->classes.n_classes + 2))};
    if (!r.seen || !b.begins) return QN_E_NOMEM;
    qn_dfa_array next = {0};
    int32_t starts[N_CONTEXTS] = {0}, id;
    size_t n_classes = (size_t)c->classes.n_classes;
    QN_TRY(qn_dfa_rows_add(c->w, &r.states, NULL, 0, &id, NULL)); /* no threads: dead */
    QN_TRY(qn_dfa_array_room(c->w, &r.accepts, 1, 1));
    ((uint8_t *)r.accepts.at)[r.accepts.n++] = 0;
    for (int i = 0; i < N_CONTEXTS; i++) {
        starts[i] = starts[AT_BEGIN];
        if (i == AT_BEGIN || m->is_ahead) QN_TRY(start_state(&r, i, &starts[i]));
    }
    uint32_t *row = NULL;
    size_t capacity = 0;
    for (int32_t s = 0; s < qn_dfa_rows_count(&r.states); s++) {
        size_t n;
        const uint32_t *stored = qn_dfa_rows_get(&r.states, s, &n);
        if (n > capacity) {
            capacity = n * 2;
            row = qn_arena_alloc(&c->w->arena, capacity * sizeof *row);
            if (!row) return QN_E_NOMEM;
        }
        if (n) memcpy(row, stored, n * sizeof *row);
        QN_TRY(qn_dfa_array_room(c->w, &next, n_classes, sizeof(int32_t)));
        int32_t *to = (int32_t *)next.at + next.n;
        next.n += n_classes;
        memset(to, 0, n_classes * sizeof *to);
        if (!s) continue;
        /* The state from which all is accepted has no trackers: it is one thread alone. */
        size_t n_tracked = n == 2 ? 0 : (size_t)m->n_trackers;
        QN_TRY(sort_threads(&r, row, n, n_tracked, &b));
        for (size_t k = 0; k < n_classes; k++) {
            if (b.begins[k] < b.begins[k + 1]) QN_TRY(step_state(&r, row, n_tracked, &b, (int32_t)k, &to[k]));
        }
    }
    int32_t n_states = qn_dfa_rows_count(&r.states), n_blocks;
    int32_t *block = qn_arena_alloc(&c->w->arena, sizeof *block * (size_t)n_states);
    if (!block) return QN_E_NOMEM;
    QN_TRY(qn_dfa_minimise(c->w, n_states, (int32_t)n_classes, next.at, r.accepts.at, starts, N_CONTEXTS,
                           block, &n_blocks));
    int32_t *small = qn_arena_calloc(&c->w->arena, (size_t)n_blocks * n_classes, sizeof *small);
    uint8_t *accepts = qn_arena_calloc(&c->w->arena, (size_t)n_blocks, 1);
    if (!small || !accepts) return QN_E_NOMEM;
    for (int32_t s = 0; s < n_states; s++) {
        if (!block[s]) continue;
        accepts[block[s]] = ((uint8_t *)r.accepts.at)[s];
        for (size_t k = 0; k < n_classes; k++)
            small[(size_t)block[s] * n_classes + k] = block[((int32_t *)next.at)[(size_t)s * n_classes + k]];
    }
    m->n_states = n_blocks;
    m->next = small;
    m->accepts = accepts;
    for (int i = 0; i < N_CONTEXTS; i++) m->starts[i] = block[starts[i]];
    for (int32_t s = 1; s < n_blocks; s++) {
        size_t k = 0;
        while (k < n_classes && small[(size_t)s * n_classes + k] == s) k++;
        if (accepts[s] && k == n_classes) m->all = s;
    }
    return QN_OK;
}

/* --- All together --- */

static qn_status compile(compiler *c, const char *pattern, size_t n, unsigned flags, qn_dfa **out)
{
    machine main;
    int32_t id;
    QN_TRY(qn_regex_parse(c->w, pattern, n, flags, &c->tree));
    QN_TRY(qn_regex_build(c, flags & QN_REGEX_WHOLE, &main));
    QN_TRY(qn_regex_find_classes(c));
    QN_TRY(qn_dfa_rows_add(c->w, &c->duties, NULL, 0, &id, NULL));
    for (size_t i = 0; i < c->machines.n; i++) QN_TRY(determinise(c, (machine *)c->machines.at + i));
    QN_TRY(determinise(c, &main));
    return qn_dfa_lower(c->w, &c->classes, main.n_states, main.next, main.accepts, main.starts[AT_BEGIN],
                        out);
}

qn_status qn_dfa_regex(const char *pattern, size_t n, unsigned flags, const qn_dfa_limits *limits,
                       qn_dfa **out)
{
    qn_dfa_work w;
    qn_dfa_work_begin(&w, limits);
    compiler c = {.w = &w};
    qn_status s = compile(&c, pattern, n, flags, out);
    qn_dfa_work_end(&w);
    return s;
}
