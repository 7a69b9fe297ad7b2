/* Minimal automata: states that no start reaches or that reach no end go, equal ones become one.
 *
 * If no cycle is longer than one state (finite sets, fixed forms, most patterns), states are numbered by their rows
 * when all that they lead to is numbered. Else they are split into classes of equal states (A. Valmari, "Fast
 * brief practical DFA minimization", 2012: the partition of states and the one of transitions refine each other,
 * O(m log n) for m transitions that are not dead). */
#include <string.h>

#include "base/mem.h"
#include "constrain/automaton/work.h"

typedef struct {
    int32_t n_sets;
    int32_t *elements, *location, *set_of, *first, *past; /* a set is elements[first, past) */
} partition;

typedef struct {
    int32_t *marked, *touched, n_touched; /* marked elements of each set; the sets with any */
} marks;

static qn_status partition_new(qn_dfa_work *w, int32_t n, partition *p)
{
    int32_t *all = qn_arena_alloc(&w->arena, sizeof *all * 5 * ((size_t)n + 1));
    if (!all) return QN_E_NOMEM;
    size_t m = (size_t)n + 1;
    *p = (partition){n > 0, all, all + m, all + 2 * m, all + 3 * m, all + 4 * m};
    for (int32_t i = 0; i < n; i++) {
        p->elements[i] = p->location[i] = i;
        p->set_of[i] = 0;
    }
    p->first[0] = 0;
    p->past[0] = n;
    return QN_OK;
}

static void mark(partition *p, marks *m, int32_t e)
{
    int32_t s = p->set_of[e], i = p->location[e], j = p->first[s] + m->marked[s];
    if (i < j) return; /* already */
    p->elements[i] = p->elements[j];
    p->location[p->elements[i]] = i;
    p->elements[j] = e;
    p->location[e] = j;
    if (!m->marked[s]++) m->touched[m->n_touched++] = s;
}

/* Each set with marked elements falls into those and the others; the smaller part is the new set. */
static void split(partition *p, marks *m)
{
    while (m->n_touched) {
        int32_t s = m->touched[--m->n_touched], j = p->first[s] + m->marked[s], z = p->n_sets;
        if (j == p->past[s]) {
            m->marked[s] = 0;
            continue;
        }
        if (m->marked[s] <= p->past[s] - j) {
            p->first[z] = p->first[s];
            p->past[z] = p->first[s] = j;
        } else {
            p->past[z] = p->past[s];
            p->first[z] = p->past[s] = j;
        }
        for (int32_t i = p->first[z]; i < p->past[z]; i++) p->set_of[p->elements[i]] = z;
        m->marked[s] = m->marked[z] = 0;
        p->n_sets++;
    }
}

typedef struct {
    int32_t n_states, n_letters;
    const int32_t *next;
    uint8_t *is_live; /* reached from a start, and reaches an end */
    int32_t n_edges;
    int32_t *tail, *letter, *head; /* of live states alone, sorted by letter */
    int32_t *in_begin, *in;        /* edges into each state */
} graph;

/* Edges into each state, by counting. */
static qn_status index_heads(qn_dfa_work *w, graph *g)
{
    g->in_begin = qn_arena_calloc(&w->arena, (size_t)g->n_states + 2, sizeof *g->in_begin);
    g->in = qn_arena_alloc(&w->arena, sizeof *g->in * (size_t)(g->n_edges + 1));
    if (!g->in_begin || !g->in) return QN_E_NOMEM;
    for (int32_t e = 0; e < g->n_edges; e++) g->in_begin[g->head[e] + 2]++;
    for (int32_t s = 0; s < g->n_states; s++) g->in_begin[s + 2] += g->in_begin[s + 1];
    for (int32_t e = 0; e < g->n_edges; e++) g->in[g->in_begin[g->head[e] + 1]++] = e;
    return QN_OK;
}

/* All edges between states that a start reaches, sorted by letter. */
static qn_status find_edges(qn_dfa_work *w, graph *g, const int32_t *starts, int32_t n_starts)
{
    int32_t *queue = qn_arena_alloc(&w->arena, sizeof *queue * (size_t)g->n_states);
    uint8_t *is_reached = qn_arena_calloc(&w->arena, (size_t)g->n_states, 1);
    int32_t *count = qn_arena_calloc(&w->arena, (size_t)g->n_letters + 1, sizeof *count);
    if (!queue || !is_reached || !count) return QN_E_NOMEM;
    int32_t n = 0;
    int64_t n_edges = 0;
    is_reached[0] = 1;
    for (int32_t i = 0; i < n_starts; i++) {
        if (!is_reached[starts[i]]) queue[n++] = starts[i];
        is_reached[starts[i]] = 1;
    }
    for (int32_t i = 0; i < n; i++) {
        const int32_t *row = g->next + (size_t)queue[i] * (size_t)g->n_letters;
        for (int32_t c = 0; c < g->n_letters; c++) {
            if (!row[c]) continue;
            n_edges++;
            count[c + 1]++;
            if (!is_reached[row[c]]) queue[n++] = row[c];
            is_reached[row[c]] = 1;
        }
    }
    QN_TRY(qn_dfa_work_steps(w, (int64_t)n * g->n_letters));
    if (n_edges > INT32_MAX / 2) return qn_fail(QN_E_UNSUPPORTED, "too many states");
    g->n_edges = (int32_t)n_edges;
    g->tail = qn_arena_alloc(&w->arena, sizeof *g->tail * 3 * (size_t)(n_edges + 1));
    if (!g->tail) return QN_E_NOMEM;
    g->letter = g->tail + n_edges + 1;
    g->head = g->letter + n_edges + 1;
    for (int32_t c = 0; c < g->n_letters; c++) count[c + 1] += count[c];
    for (int32_t i = 0; i < n; i++) {
        const int32_t *row = g->next + (size_t)queue[i] * (size_t)g->n_letters;
        for (int32_t c = 0; c < g->n_letters; c++) {
            if (!row[c]) continue;
            int32_t e = count[c]++;
            g->tail[e] = queue[i];
            g->letter[e] = c;
            g->head[e] = row[c];
        }
    }
    g->is_live = is_reached;
    g->is_live[0] = 0;
    return QN_OK;
}

/* Keeps what reaches an end. */
static qn_status drop_dead(qn_dfa_work *w, graph *g, const uint8_t *accepts)
{
    QN_TRY(index_heads(w, g));
    int32_t *queue = qn_arena_alloc(&w->arena, sizeof *queue * (size_t)g->n_states);
    uint8_t *ends = qn_arena_calloc(&w->arena, (size_t)g->n_states, 1);
    if (!queue || !ends) return QN_E_NOMEM;
    int32_t n = 0, n_reached = 0, n_edges = 0;
    for (int32_t s = 1; s < g->n_states; s++) {
        n_reached += g->is_live[s];
        if (g->is_live[s] && accepts[s]) ends[s] = 1, queue[n++] = s;
    }
    for (int32_t i = 0; i < n; i++) {
        for (int32_t k = g->in_begin[queue[i]]; k < g->in_begin[queue[i] + 1]; k++) {
            int32_t s = g->tail[g->in[k]];
            if (!ends[s]) ends[s] = 1, queue[n++] = s;
        }
    }
    if (n < n_reached) {
        for (int32_t e = 0; e < g->n_edges; e++) {
            if (!ends[g->head[e]]) continue;
            g->tail[n_edges] = g->tail[e];
            g->letter[n_edges] = g->letter[e];
            g->head[n_edges++] = g->head[e];
        }
        g->n_edges = n_edges;
        QN_TRY(index_heads(w, g));
    }
    g->is_live = ends;
    return QN_OK;
}

/* --- Automata whose cycles are loops of one state --- */

enum { UNKNOWN = -1, ON_THE_WAY = -2, SELF = INT32_MAX, GUESSES_MAX = 8 };

typedef struct {
    qn_dfa_work *w;
    int32_t n_letters;
    const int32_t *next;
    const uint8_t *accepts;
    int32_t *block; /* of each state; UNKNOWN, ON_THE_WAY */
    int32_t n_blocks;
    qn_dfa_rows rows;    /* accepts, then the block behind each letter, or SELF */
    qn_dfa_array of_row; /* int32_t: the block that a row says; UNKNOWN: it was asked for in vain */
    uint32_t *row;
} numbering;

/* The block of the row; UNKNOWN if there is none. *id is the row's number. */
static qn_status look_up(numbering *m, int32_t *id, int32_t *out)
{
    int is_new;
    QN_TRY(qn_dfa_rows_add(m->w, &m->rows, m->row, (size_t)m->n_letters + 1, id, &is_new));
    if (is_new) {
        QN_TRY(qn_dfa_array_room(m->w, &m->of_row, 1, sizeof(int32_t)));
        ((int32_t *)m->of_row.at)[m->of_row.n++] = UNKNOWN;
    }
    *out = ((int32_t *)m->of_row.at)[*id];
    return QN_OK;
}

/* A state that loops may be equal to one that it leads to: then its row says the same if it loops there. It may
 * else be equal to a state with the same loops, which has the same row. *out -2: too many to try. */
static qn_status guess_loop(numbering *m, int32_t *out)
{
    uint32_t *row = m->row + 1, guesses[GUESSES_MAX];
    int32_t n_guesses = 0, id;
    uint8_t *is_loop = qn_arena_calloc(&m->w->arena, (size_t)m->n_letters, 1);
    if (!is_loop) return QN_E_NOMEM;
    for (int32_t c = 0; c < m->n_letters; c++) {
        is_loop[c] = row[c] == SELF;
        int32_t k = 0;
        while (k < n_guesses && guesses[k] != row[c]) k++;
        if (row[c] == SELF || row[c] == 0 || k < n_guesses) continue;
        if (n_guesses == GUESSES_MAX) {
            *out = ON_THE_WAY;
            return QN_OK;
        }
        guesses[n_guesses++] = row[c];
    }
    *out = UNKNOWN;
    for (int32_t k = 0; k < n_guesses && *out == UNKNOWN; k++) {
        int32_t block;
        for (int32_t c = 0; c < m->n_letters; c++) row[c] = is_loop[c] ? guesses[k] : row[c];
        QN_TRY(look_up(m, &id, &block));
        if (block == (int32_t)guesses[k]) *out = block;
    }
    for (int32_t c = 0; c < m->n_letters; c++) row[c] = is_loop[c] ? SELF : row[c];
    return QN_OK;
}

/* All that the state leads to is numbered. *is_simple 0: another way must be taken. */
static qn_status number_one(numbering *m, int32_t s, int *is_simple)
{
    const int32_t *next = m->next + (size_t)s * (size_t)m->n_letters;
    int has_loop = 0, is_alive = m->accepts[s];
    m->row[0] = m->accepts[s];
    for (int32_t c = 0; c < m->n_letters; c++) {
        m->row[1 + c] = next[c] == s ? SELF : (uint32_t)m->block[next[c]];
        has_loop |= next[c] == s;
        is_alive |= next[c] != s && m->block[next[c]] != 0;
    }
    m->block[s] = 0;
    if (!is_alive) return QN_OK;
    int32_t id, block = UNKNOWN;
    if (has_loop) {
        QN_TRY(guess_loop(m, &block));
        *is_simple = block != ON_THE_WAY;
        if (!*is_simple) return QN_OK;
    }
    if (block == UNKNOWN) {
        QN_TRY(look_up(m, &id, &block));
        if (block == UNKNOWN) {
            block = m->n_blocks++;
            ((int32_t *)m->of_row.at)[id] = block;
            if (has_loop) { /* states that lead here like this one are the same */
                int32_t known;
                for (int32_t c = 0; c < m->n_letters; c++) {
                    if (m->row[1 + c] == SELF) m->row[1 + c] = (uint32_t)block;
                }
                QN_TRY(look_up(m, &id, &known));
                ((int32_t *)m->of_row.at)[id] = block;
            }
        }
    }
    m->block[s] = block;
    return QN_OK;
}

/* *is_simple 0: there is a longer cycle; block is void then. */
static qn_status number_states(numbering *m, int32_t n_states, const int32_t *starts, int32_t n_starts,
                               int *is_simple)
{
    typedef struct {
        int32_t state, letter;
    } place;
    place *stack = qn_arena_alloc(&m->w->arena, sizeof *stack * (size_t)n_states);
    if (!stack) return QN_E_NOMEM;
    for (int32_t s = 0; s < n_states; s++) m->block[s] = UNKNOWN;
    m->block[0] = 0;
    for (int32_t i = 0; i < n_starts; i++) {
        size_t n = 0;
        if (m->block[starts[i]] != UNKNOWN) continue;
        m->block[starts[i]] = ON_THE_WAY;
        stack[n++] = (place){starts[i], 0};
        while (n) {
            place *top = &stack[n - 1];
            const int32_t *row = m->next + (size_t)top->state * (size_t)m->n_letters;
            int32_t c = top->letter, t = 0;
            for (; c < m->n_letters; c++) {
                t = row[c];
                if (t == top->state || m->block[t] >= 0) continue;
                break;
            }
            if (c < m->n_letters) {
                if (m->block[t] == ON_THE_WAY) {
                    *is_simple = 0;
                    return QN_OK;
                }
                top->letter = c + 1;
                m->block[t] = ON_THE_WAY;
                stack[n++] = (place){t, 0};
                continue;
            }
            QN_TRY(number_one(m, top->state, is_simple));
            if (!*is_simple) return QN_OK;
            QN_TRY(qn_dfa_work_steps(m->w, 1 + m->n_letters / 8));
            n--;
        }
    }
    for (int32_t s = 0; s < n_states; s++) {
        if (m->block[s] == UNKNOWN) m->block[s] = 0;
    }
    return QN_OK;
}

qn_status qn_dfa_minimise(qn_dfa_work *w, int32_t n_states, int32_t n_letters, const int32_t *next,
                          const uint8_t *accepts, const int32_t *starts, int32_t n_starts, int32_t *block,
                          int32_t *n_blocks)
{
    int is_simple = 1;
    numbering by_row = {
        .w = w, .n_letters = n_letters, .next = next, .accepts = accepts, .block = block, .n_blocks = 1};
    by_row.row = qn_arena_alloc(&w->arena, sizeof *by_row.row * ((size_t)n_letters + 1));
    if (!by_row.row) return QN_E_NOMEM;
    QN_TRY(number_states(&by_row, n_states, starts, n_starts, &is_simple));
    if (is_simple) {
        *n_blocks = by_row.n_blocks;
        return QN_OK;
    }
    graph g = {.n_states = n_states, .n_letters = n_letters, .next = next};
    QN_TRY(find_edges(w, &g, starts, n_starts));
    QN_TRY(drop_dead(w, &g, accepts));
    partition states, edges;
    QN_TRY(partition_new(w, n_states, &states));
    QN_TRY(partition_new(w, g.n_edges, &edges));
    size_t n_max = (size_t)(n_states > g.n_edges ? n_states : g.n_edges) + 2;
    marks m = {.marked = qn_arena_calloc(&w->arena, n_max, sizeof(int32_t)),
               .touched = qn_arena_alloc(&w->arena, n_max * sizeof(int32_t))};
    if (!m.marked || !m.touched) return QN_E_NOMEM;
    for (int32_t s = 0; s < n_states; s++) {
        if (!g.is_live[s]) mark(&states, &m, s);
    }
    split(&states, &m);
    for (int32_t s = 0; s < n_states; s++) {
        if (g.is_live[s] && accepts[s]) mark(&states, &m, s);
    }
    split(&states, &m);
    if (g.n_edges) { /* one set of edges for each letter */
        edges.n_sets = 0;
        for (int32_t e = 0; e < g.n_edges; e++) {
            if (e == 0 || g.letter[e] != g.letter[e - 1]) {
                if (e) edges.past[edges.n_sets++] = e;
                edges.first[edges.n_sets] = e;
            }
            edges.set_of[e] = edges.n_sets;
        }
        edges.past[edges.n_sets++] = g.n_edges;
    }
    int32_t dead = states.set_of[0], b = 0;
    int64_t steps = 0;
    for (int32_t c = 0; c < edges.n_sets; c++) {
        /* Splitting states moves elements of `states` alone, so the edges of c stay where they are. */
        steps += edges.past[c] - edges.first[c] + 1;
        for (int32_t i = edges.first[c]; i < edges.past[c]; i++) mark(&states, &m, g.tail[edges.elements[i]]);
        split(&states, &m);
        for (; b < states.n_sets; b++) {
            if (b == dead) continue;
            for (int32_t i = states.first[b]; i < states.past[b]; i++) {
                int32_t s = states.elements[i];
                steps += g.in_begin[s + 1] - g.in_begin[s] + 1;
                for (int32_t k = g.in_begin[s]; k < g.in_begin[s + 1]; k++) mark(&edges, &m, g.in[k]);
            }
            split(&edges, &m);
        }
        if (steps > 1 << 16) {
            QN_TRY(qn_dfa_work_steps(w, steps));
            steps = 0;
        }
    }
    QN_TRY(qn_dfa_work_steps(w, steps));
    for (int32_t s = 0; s < n_states; s++) {
        int32_t set = states.set_of[s];
        block[s] = set == dead ? 0 : set < dead ? set + 1 : set;
    }
    *n_blocks = states.n_sets;
    return QN_OK;
}

/* --- The last step: classes of bytes that no state tells apart become one, and states get their numbers. --- */

typedef struct {
    int32_t n_states, n_classes;
    const int32_t *next;
    uint8_t class_of[256];
} merged;

/* Columns of equal content become one class; classes are numbered by their first byte. */
static qn_status merge_classes(qn_dfa_work *w, const qn_dfa_draft *d, merged *out)
{
    int32_t n = d->n_states, k = d->n_classes;
    uint64_t *hash = qn_arena_calloc(&w->arena, (size_t)k, sizeof *hash);
    int32_t *first_like = qn_arena_alloc(&w->arena, sizeof *first_like * (size_t)k);
    if (!hash || !first_like) return QN_E_NOMEM;
    QN_TRY(qn_dfa_work_steps(w, (int64_t)n * k / 4));
    for (int32_t s = 0; s < n; s++) {
        const int32_t *row = d->next + (size_t)s * (size_t)k;
        for (int32_t c = 0; c < k; c++) hash[c] = (hash[c] ^ (uint32_t)row[c]) * 0xff51afd7ed558ccdu + 1;
    }
    for (int32_t c = 0; c < k; c++) {
        first_like[c] = c;
        for (int32_t o = 0; o < c; o++) {
            if (hash[o] != hash[c] || first_like[o] != o) continue;
            int32_t s = 0;
            while (s < n &&
                   d->next[(size_t)s * (size_t)k + (size_t)o] == d->next[(size_t)s * (size_t)k + (size_t)c])
                s++;
            if (s == n) {
                first_like[c] = o;
                break;
            }
        }
    }
    int32_t number[256], old[256];
    memset(number, -1, sizeof number);
    out->n_states = n;
    out->n_classes = 0;
    for (int byte = 0; byte < 256; byte++) {
        int32_t c = first_like[d->class_of[byte]];
        if (number[c] < 0) {
            old[out->n_classes] = c;
            number[c] = out->n_classes++;
        }
        out->class_of[byte] = (uint8_t)number[c];
    }
    int32_t *next = qn_arena_alloc(&w->arena, sizeof *next * (size_t)n * (size_t)out->n_classes);
    if (!next) return QN_E_NOMEM;
    for (int32_t s = 0; s < n; s++) {
        for (int32_t c = 0; c < out->n_classes; c++)
            next[(size_t)s * (size_t)out->n_classes + (size_t)c] =
                d->next[(size_t)s * (size_t)k + (size_t)old[c]];
    }
    out->next = next;
    return QN_OK;
}

/* Bytes b0 to b1 lead from state s to one state: which, or -1. */
static int32_t same_target(const qn_dfa *d, int32_t s, int b0, int b1)
{
    int32_t t = qn_dfa_step(d, s, (uint8_t)b0);
    for (int b = b0 + 1; b <= b1; b++) {
        if (qn_dfa_step(d, s, (uint8_t)b) != t) return -1;
    }
    return t;
}

/* Do the n bytes after a leading one, the first of them in [b0, b1], lead from t back to s? */
static int continues(const qn_dfa *d, int32_t s, int32_t t, int b0, int b1, int n)
{
    for (; n > 0; n--, b0 = 0x80, b1 = 0xbf) {
        if (t <= 0) return 0;
        t = same_target(d, t, b0, b1);
    }
    return t == s;
}

/* Since the automaton is minimal, a state from which everything is accepted returns to itself. */
static int accepts_all(const qn_dfa *d, int32_t s)
{
    static const struct {
        uint8_t lead_min, lead_max, second_min, second_max, n;
    } forms[] = {{0xc2, 0xdf, 0x80, 0xbf, 1}, {0xe0, 0xe0, 0xa0, 0xbf, 2}, {0xe1, 0xec, 0x80, 0xbf, 2},
                 {0xed, 0xed, 0x80, 0x9f, 2}, {0xee, 0xef, 0x80, 0xbf, 2}, {0xf0, 0xf0, 0x90, 0xbf, 3},
                 {0xf1, 0xf3, 0x80, 0xbf, 3}, {0xf4, 0xf4, 0x80, 0x8f, 3}};
    if (s == 0 || !(d->flags[s] & QN_DFA_ACCEPTS) || qn_dfa_step(d, s, 'a') != s ||
        same_target(d, s, 0, 0x7f) != s)
        return 0;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        int32_t t = same_target(d, s, forms[i].lead_min, forms[i].lead_max);
        if (!continues(d, s, t, forms[i].second_min, forms[i].second_max, forms[i].n)) return 0;
    }
    return 1;
}

qn_status qn_dfa_finish(qn_dfa_work *w, const qn_dfa_draft *draft, int is_minimal, qn_dfa **out)
{
    qn_dfa_draft d = *draft;
    size_t k = (size_t)d.n_classes;
    if (!is_minimal) {
        int32_t *block = qn_arena_alloc(&w->arena, sizeof *block * (size_t)d.n_states), n_blocks;
        if (!block) return QN_E_NOMEM;
        QN_TRY(qn_dfa_minimise(w, d.n_states, d.n_classes, d.next, d.accepts, &d.start, 1, block, &n_blocks));
        int32_t *next = qn_arena_calloc(&w->arena, (size_t)n_blocks * k, sizeof *next);
        uint8_t *accepts = qn_arena_calloc(&w->arena, (size_t)n_blocks, 1);
        if (!next || !accepts) return QN_E_NOMEM;
        for (int32_t s = 0; s < d.n_states; s++) {
            int32_t b = block[s];
            if (!b) continue;
            accepts[b] = draft->accepts[s];
            for (size_t c = 0; c < k; c++) next[(size_t)b * k + c] = block[draft->next[(size_t)s * k + c]];
        }
        d.n_states = n_blocks;
        d.next = next;
        d.accepts = accepts;
        d.start = block[draft->start];
    }
    merged m;
    QN_TRY(merge_classes(w, &d, &m));
    int32_t *number = qn_arena_calloc(&w->arena, (size_t)d.n_states, sizeof *number);
    int32_t *order = qn_arena_alloc(&w->arena, sizeof *order * ((size_t)d.n_states + 1));
    if (!number || !order) return QN_E_NOMEM;
    int32_t n = 1;
    order[0] = 0;
    if (d.start) number[d.start] = n, order[n++] = d.start;
    size_t km = (size_t)m.n_classes;
    for (int32_t i = 1; i < n; i++) {
        for (size_t c = 0; c < km; c++) {
            int32_t t = m.next[(size_t)order[i] * km + c];
            if (t && !number[t]) number[t] = n, order[n++] = t;
        }
    }
    QN_TRY(qn_dfa_work_states(w, n));
    size_t cells = (size_t)n * km, size = sizeof(qn_dfa) + cells * sizeof(int32_t) + (size_t)n;
    if (size > QN_DFA_BYTES_MAX) return qn_fail(QN_E_UNSUPPORTED, "an automaton takes more than 256 MiB");
    qn_dfa *r = qn_alloc(size);
    if (!r) return QN_E_NOMEM;
    int32_t *next = (int32_t *)(r + 1);
    uint8_t *flags = (uint8_t *)(next + cells);
    *r = (qn_dfa){.n_references = 1, .n_states = n, .n_classes = m.n_classes, .start = d.start ? 1 : 0};
    memcpy(r->class_of, m.class_of, sizeof r->class_of);
    r->next = next;
    r->flags = flags;
    r->size_bytes = size;
    for (int32_t i = 0; i < n; i++) {
        flags[i] = i && d.accepts[order[i]] ? QN_DFA_ACCEPTS : 0;
        for (size_t c = 0; c < km; c++)
            next[(size_t)i * km + c] = i ? number[m.next[(size_t)order[i] * km + c]] : 0;
    }
    for (int32_t i = 1; i < n; i++) {
        if (accepts_all(r, i)) flags[i] |= QN_DFA_ALL;
    }
    *out = r;
    return QN_OK;
}
