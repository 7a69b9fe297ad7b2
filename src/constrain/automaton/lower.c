/* The classes of code points form a tree whose edges are bytes: a leading byte gives a node of level 1, 2 or 3,
 * which has 64 children by continuation byte, at level 1 the classes themselves. Equal nodes are one. A state of
 * the automaton and a node make a state over bytes; its row says all about it, and equal rows are one. The
 * result is minimal if the automaton over code points is: states at a character's begin differ as before, and
 * those inside of a character differ by row, bottom up. */
#include "constrain/automaton/lower.h"

#include <string.h>

#include "base/mem.h"

enum { NONE = -1, LEVELS = 3, N_CHILDREN = 64 };

typedef struct {
    qn_dfa_work *w;
    const qn_code_classes *classes;
    qn_dfa_rows nodes;            /* level, then the children; children come before their parents */
    int32_t *uniform[LEVELS + 1]; /* the node of a level below which all is of one class; -1: none yet */
} tree;

static int32_t interval_of(const qn_code_classes *c, uint32_t code)
{
    int32_t lo = 0, hi = c->n - 1;
    while (lo < hi) {
        int32_t mid = (lo + hi + 1) / 2;
        if (c->begins[mid] <= code) {
            lo = mid;
        } else {
            hi = mid - 1;
        }
    }
    return lo;
}

static qn_status add_node(tree *t, int level, const int32_t children[N_CHILDREN], int32_t *out)
{
    uint32_t row[1 + N_CHILDREN] = {(uint32_t)level};
    int is_alive = 0;
    for (int i = 0; i < N_CHILDREN; i++) {
        row[1 + i] = (uint32_t)children[i];
        is_alive |= children[i] != NONE;
    }
    if (!is_alive) {
        *out = NONE;
        return QN_OK;
    }
    return qn_dfa_rows_add(t->w, &t->nodes, row, 1 + N_CHILDREN, out, NULL);
}

static qn_status uniform_node(tree *t, int level, int32_t class, int32_t *out)
{
    int32_t node = class;
    for (int l = 1; l <= level && class != NONE; l++) {
        int32_t *known = &t->uniform[l][class];
        if (*known == NONE) {
            int32_t children[N_CHILDREN];
            for (int i = 0; i < N_CHILDREN; i++) children[i] = node;
            QN_TRY(add_node(t, l, children, known));
        }
        node = *known;
    }
    *out = node;
    return QN_OK;
}

/* The node of the code points [base, base + 64^level), of which those below min and above the last are none.
 * Recurses to level 0. */
static qn_status build_node(tree *t, int level, uint32_t base, uint32_t min, int32_t *out)
{
    uint32_t size = 1u << (6 * level);
    if (base + size <= min || base >= 0x110000) {
        *out = NONE;
        return QN_OK;
    }
    int32_t i = interval_of(t->classes, base);
    if (base >= min && base + size <= t->classes->begins[i + 1])
        return uniform_node(t, level, t->classes->classes[i], out);
    int32_t children[N_CHILDREN];
    QN_TRY(qn_dfa_work_steps(t->w, N_CHILDREN));
    for (int c = 0; c < N_CHILDREN; c++)
        QN_TRY(build_node(t, level - 1, base + ((uint32_t)c << (6 * (level - 1))), min, &children[c]));
    return add_node(t, level, children, out);
}

/* What the bytes lead to: a class for ASCII, a node for leading bytes. */
static qn_status build_roots(tree *t, int32_t roots[256])
{
    for (int b = 0; b < 256; b++) {
        roots[b] = NONE;
        if (b < 0x80) {
            roots[b] = t->classes->classes[interval_of(t->classes, (uint32_t)b)];
        } else if (b >= 0xc2 && b < 0xe0) {
            QN_TRY(build_node(t, 1, (uint32_t)(b & 0x1f) << 6, 0x80, &roots[b]));
        } else if (b >= 0xe0 && b < 0xf0) {
            QN_TRY(build_node(t, 2, (uint32_t)(b & 0xf) << 12, 0x800, &roots[b]));
        } else if (b >= 0xf0 && b < 0xf5) {
            QN_TRY(build_node(t, 3, (uint32_t)(b & 7) << 18, 0x10000, &roots[b]));
        }
    }
    return QN_OK;
}

/* Classes of bytes: 0 for what leads nowhere, then those of ASCII, of leading bytes, of continuations. */
typedef struct {
    int32_t n, first_inside; /* classes of continuations are [first_inside, n) */
    uint8_t class_of[256];
    uint8_t byte_of[256]; /* one byte of each class */
} byte_classes;

static int continues_alike(const tree *t, int a, int b)
{
    for (int32_t i = 0; i < qn_dfa_rows_count(&t->nodes); i++) {
        size_t n;
        const uint32_t *row = qn_dfa_rows_get(&t->nodes, i, &n);
        if (row[1 + (a & 63)] != row[1 + (b & 63)]) return 0;
    }
    return 1;
}

static void class_bytes(const tree *t, const int32_t roots[256], byte_classes *bc)
{
    memset(bc, 0, sizeof *bc);
    bc->n = 1;
    for (int pass = 0; pass < 2; pass++) {
        if (pass) bc->first_inside = bc->n;
        int32_t first = bc->n;
        for (int b = 0; b < 256; b++) {
            int is_inside = b >= 0x80 && b < 0xc0;
            if (is_inside != pass || (!pass && roots[b] == NONE)) continue;
            int32_t c = first;
            for (; c < bc->n; c++) {
                int other = bc->byte_of[c];
                if (pass ? continues_alike(t, b, other)
                         : (b < 0x80) == (other < 0x80) && roots[b] == roots[other])
                    break;
            }
            if (c == bc->n) bc->byte_of[bc->n++] = (uint8_t)b;
            bc->class_of[b] = (uint8_t)c;
        }
    }
}

/* The states over bytes that stand for each node in one state of the automaton. */
static qn_status lower_nodes(tree *t, const byte_classes *bc, const int32_t *row_of_state, int32_t n_states,
                             qn_dfa_rows *inside, int32_t *value)
{
    int32_t n_inside = bc->n - bc->first_inside;
    uint32_t row[N_CHILDREN];
    for (int32_t i = 0; i < qn_dfa_rows_count(&t->nodes); i++) {
        size_t n;
        const uint32_t *node = qn_dfa_rows_get(&t->nodes, i, &n);
        uint32_t any = 0;
        for (int32_t c = 0; c < n_inside; c++) {
            int32_t child = (int32_t)node[1 + (bc->byte_of[bc->first_inside + c] & 63)];
            row[c] = child == NONE ? 0 : (uint32_t)(node[0] == 1 ? row_of_state[child] : value[child]);
            any |= row[c];
        }
        value[i] = 0;
        if (!any) continue;
        QN_TRY(qn_dfa_rows_add(t->w, inside, row, (size_t)n_inside, &value[i], NULL));
        value[i] += n_states;
    }
    return qn_dfa_work_steps(t->w, (int64_t)qn_dfa_rows_count(&t->nodes) * n_inside / 4);
}

qn_status qn_dfa_lower(qn_dfa_work *w, const qn_code_classes *classes, int32_t n_states, const int32_t *next,
                       const uint8_t *accepts, int32_t start, qn_dfa **out)
{
    tree t = {.w = w, .classes = classes};
    for (int l = 1; l <= LEVELS; l++) {
        t.uniform[l] = qn_arena_alloc(&w->arena, sizeof(int32_t) * ((size_t)classes->n_classes + 1));
        if (!t.uniform[l]) return QN_E_NOMEM;
        memset(t.uniform[l], -1, sizeof(int32_t) * (size_t)classes->n_classes);
    }
    int32_t roots[256];
    QN_TRY(build_roots(&t, roots));
    byte_classes bc;
    class_bytes(&t, roots, &bc);
    qn_dfa_rows inside = {0};
    int32_t *value = qn_arena_alloc(&w->arena, sizeof *value * ((size_t)qn_dfa_rows_count(&t.nodes) + 1));
    size_t n_leads = (size_t)bc.first_inside, k = (size_t)bc.n;
    int32_t *begins = qn_arena_calloc(&w->arena, (size_t)n_states * n_leads, sizeof *begins);
    if (!value || !begins) return QN_E_NOMEM;
    for (int32_t s = 1; s < n_states; s++) {
        const int32_t *row = next + (size_t)s * (size_t)classes->n_classes;
        QN_TRY(lower_nodes(&t, &bc, row, n_states, &inside, value));
        for (size_t c = 1; c < n_leads; c++) {
            int byte = bc.byte_of[c];
            begins[(size_t)s * n_leads + c] = byte < 0x80 ? row[roots[byte]] : value[roots[byte]];
        }
        QN_TRY(qn_dfa_work_states(w, (int64_t)n_states + qn_dfa_rows_count(&inside)));
    }
    int32_t n = n_states + qn_dfa_rows_count(&inside);
    int32_t *to = qn_arena_calloc(&w->arena, (size_t)n * k, sizeof *to);
    uint8_t *ends = qn_arena_calloc(&w->arena, (size_t)n, 1);
    if (!to || !ends) return QN_E_NOMEM;
    for (int32_t s = 1; s < n_states; s++) {
        memcpy(to + (size_t)s * k, begins + (size_t)s * n_leads, n_leads * sizeof *to);
        ends[s] = accepts[s];
    }
    for (int32_t i = 0; i < n - n_states; i++) {
        size_t m;
        const uint32_t *row = qn_dfa_rows_get(&inside, i, &m);
        memcpy(to + (size_t)(n_states + i) * k + n_leads, row, m * sizeof *to);
    }
    qn_dfa_draft d = {.n_states = n, .n_classes = bc.n, .next = to, .accepts = ends, .start = start};
    memcpy(d.class_of, bc.class_of, sizeof d.class_of);
    return qn_dfa_finish(w, &d, 1, out);
}

qn_status qn_dfa_of_charset(qn_dfa_work *w, const qn_charset *s, qn_dfa **out)
{
    const qn_code_range *ranges = qn_charset_ranges(s);
    size_t n_max = 2 * s->ranges.n + 4;
    qn_code_classes c = {.n_classes = 2,
                         .begins = qn_arena_alloc(&w->arena, n_max * sizeof *c.begins),
                         .classes = qn_arena_alloc(&w->arena, n_max * sizeof *c.classes)};
    if (!c.begins || !c.classes) return QN_E_NOMEM;
    if (s->ranges.n == 0) return qn_dfa_none(out);
    uint32_t from = 0;
    for (size_t i = 0; i < s->ranges.n; i++) { /* class 1 is the set; surrogates in class 0 do no harm */
        if (ranges[i].lo > from) c.begins[c.n] = from, c.classes[c.n++] = 0;
        c.begins[c.n] = ranges[i].lo;
        c.classes[c.n++] = 1;
        from = ranges[i].hi + 1;
    }
    if (from <= QN_CODE_MAX) c.begins[c.n] = from, c.classes[c.n++] = 0;
    c.begins[c.n] = QN_CODE_MAX + 1;
    static const int32_t next[3][2] = {{0, 0}, {0, 2}, {0, 0}};
    static const uint8_t accepts[3] = {0, 0, 1};
    return qn_dfa_lower(w, &c, 3, *next, accepts, 1, out);
}
