#include "constrain/automaton/dfa.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "constrain/automaton/work.h"

qn_dfa *qn_dfa_retain(qn_dfa *d)
{
    __atomic_fetch_add(&d->n_references, 1, __ATOMIC_RELAXED);
    return d;
}

void qn_dfa_release(qn_dfa *d)
{
    if (d && __atomic_sub_fetch(&d->n_references, 1, __ATOMIC_ACQ_REL) == 0) qn_free(d);
}

int qn_dfa_accepts(const qn_dfa *d, const char *text, size_t n)
{
    int32_t s = d->start;
    for (size_t i = 0; i < n && s; i++) s = qn_dfa_step(d, s, (uint8_t)text[i]);
    return d->flags[s] & QN_DFA_ACCEPTS;
}

int qn_dfa_equal(const qn_dfa *a, const qn_dfa *b)
{
    if (a == b) return 1;
    size_t cells = (size_t)a->n_states * (size_t)a->n_classes;
    return a->n_states == b->n_states && a->n_classes == b->n_classes && a->start == b->start &&
           memcmp(a->class_of, b->class_of, sizeof a->class_of) == 0 &&
           memcmp(a->flags, b->flags, (size_t)a->n_states) == 0 &&
           memcmp(a->next, b->next, cells * sizeof *a->next) == 0;
}

uint64_t qn_dfa_hash(const qn_dfa *d)
{
    uint64_t h = 0x9e3779b97f4a7c15u ^ (uint32_t)d->start;
    for (int i = 0; i < 256; i++) h = (h ^ d->class_of[i]) * 0xff51afd7ed558ccdu;
    for (int32_t s = 0; s < d->n_states; s++) {
        h = (h ^ d->flags[s]) * 0xff51afd7ed558ccdu;
        for (int32_t c = 0; c < d->n_classes; c++) {
            h = (h ^ (uint32_t)d->next[(size_t)s * (size_t)d->n_classes + (size_t)c]) * 0xff51afd7ed558ccdu;
            h ^= h >> 32;
        }
    }
    return h;
}

qn_status qn_dfa_none(qn_dfa **out)
{
    static const int32_t next[1] = {0};
    static const uint8_t accepts[1] = {0};
    qn_dfa_work w;
    qn_dfa_work_begin(&w, NULL);
    qn_dfa_draft d = {.n_states = 1, .n_classes = 1, .next = next, .accepts = accepts};
    qn_status s = qn_dfa_finish(&w, &d, 1, out);
    qn_dfa_work_end(&w);
    return s;
}

/* Classes of bytes by their place in UTF-8. */
enum {
    ASCII,
    CONT_8,
    CONT_9,
    CONT_A,
    LEAD_2,
    LEAD_E0,
    LEAD_3,
    LEAD_ED,
    LEAD_F0,
    LEAD_4,
    LEAD_F4,
    NEVER,
    N_UTF8
};
/* States of a character that has begun, counted from the one for its end. */
enum { LAST = 1, LAST_TWO, AFTER_E0, AFTER_ED, LAST_THREE, AFTER_F0, AFTER_F4, N_INSIDE = 7 };

static void utf8_classes(uint8_t class_of[256])
{
    for (int b = 0; b < 256; b++) {
        class_of[b] = b < 0x80    ? ASCII
                      : b < 0x90  ? CONT_8
                      : b < 0xa0  ? CONT_9
                      : b < 0xc0  ? CONT_A
                      : b < 0xc2  ? NEVER
                      : b < 0xe0  ? LEAD_2
                      : b == 0xe0 ? LEAD_E0
                      : b == 0xed ? LEAD_ED
                      : b < 0xf0  ? LEAD_3
                      : b == 0xf0 ? LEAD_F0
                      : b < 0xf4  ? LEAD_4
                      : b == 0xf4 ? LEAD_F4
                                  : NEVER;
    }
}

/* The rows of a state at a character's begin that a character leads to `end`, and of the states inside of the
 * character, which begin at state `inside`. */
static void character_rows(int32_t *row, int32_t *rows_inside, int32_t inside, int32_t end)
{
    int32_t in = inside - 1;
    row[ASCII] = end;
    row[LEAD_2] = in + LAST;
    row[LEAD_E0] = in + AFTER_E0;
    row[LEAD_3] = in + LAST_TWO;
    row[LEAD_ED] = in + AFTER_ED;
    row[LEAD_F0] = in + AFTER_F0;
    row[LEAD_4] = in + LAST_THREE;
    row[LEAD_F4] = in + AFTER_F4;
    int32_t *at = rows_inside - N_UTF8;
#define CELL(state, class) at[(state)*N_UTF8 + (class)]
    for (int c = CONT_8; c <= CONT_A; c++) {
        CELL(LAST, c) = end;
        CELL(LAST_TWO, c) = in + LAST;
        CELL(LAST_THREE, c) = in + LAST_TWO;
    }
    CELL(AFTER_E0, CONT_A) = in + LAST;
    CELL(AFTER_ED, CONT_8) = CELL(AFTER_ED, CONT_9) = in + LAST;
    CELL(AFTER_F0, CONT_9) = CELL(AFTER_F0, CONT_A) = in + LAST_TWO;
    CELL(AFTER_F4, CONT_8) = in + LAST_TWO;
#undef CELL
}

qn_status qn_dfa_length(int64_t min_chars, int64_t max_chars, const qn_dfa_limits *limits, qn_dfa **out)
{
    if (min_chars < 0) min_chars = 0;
    if (max_chars >= 0 && max_chars < min_chars) return qn_dfa_none(out);
    qn_dfa_work w;
    qn_dfa_work_begin(&w, limits);
    int64_t n_begins = (max_chars >= 0 ? max_chars : min_chars) + 1; /* states at a character's begin */
    int64_t n_insides = max_chars >= 0 ? max_chars
                        : min_chars    ? min_chars
                                       : 1; /* groups of states inside of one */
    qn_status s = QN_OK;
    if (n_begins > w.states_max || 1 + n_begins + n_insides * N_INSIDE > w.states_max) {
        s = qn_fail(QN_E_UNSUPPORTED, "length of %lld characters: the limit states_max is %d",
                    (long long)(n_begins - 1), w.states_max);
        goto out;
    }
    int32_t n = (int32_t)(1 + n_begins + n_insides * N_INSIDE);
    int32_t *next = qn_arena_calloc(&w.arena, (size_t)n * N_UTF8, sizeof *next);
    uint8_t *accepts = qn_arena_calloc(&w.arena, (size_t)n, 1);
    if (!next || !accepts) {
        s = QN_E_NOMEM;
        goto out;
    }
    for (int32_t i = 0; i < n_begins; i++) {
        accepts[1 + i] = i >= min_chars;
        if (i == max_chars) continue;
        int32_t end = i + 1 < n_begins ? i + 2 : i + 1;
        /* States inside of characters that lead to the same end are the same. */
        int32_t inside = (int32_t)(1 + n_begins + (int64_t)(end - 2 > 0 ? end - 2 : 0) * N_INSIDE);
        character_rows(next + (size_t)(1 + i) * N_UTF8, next + (size_t)inside * N_UTF8, inside, end);
    }
    qn_dfa_draft d = {.n_states = n, .n_classes = N_UTF8, .next = next, .accepts = accepts, .start = 1};
    utf8_classes(d.class_of);
    s = qn_dfa_finish(&w, &d, 1, out);
out:
    qn_dfa_work_end(&w);
    return s;
}

qn_status qn_dfa_all(qn_dfa **out)
{
    return qn_dfa_length(0, -1, NULL, out);
}

qn_status qn_dfa_new(int32_t n_states, int32_t n_classes, const uint8_t class_of[256], const int32_t *next,
                     const uint8_t *accepts, int32_t start, const qn_dfa_limits *limits, qn_dfa **out)
{
    if (n_states <= 0) return qn_dfa_none(out);
    qn_dfa_work w;
    qn_dfa_work_begin(&w, limits);
    qn_status s = qn_dfa_work_states(&w, n_states);
    if (s != QN_OK) goto out;
    size_t k = (size_t)n_classes, n = (size_t)n_states;
    int32_t *moved = qn_arena_calloc(&w.arena, (n + 1) * k, sizeof *moved);
    uint8_t *ends = qn_arena_calloc(&w.arena, n + 1, 1);
    if (!moved || !ends) {
        s = QN_E_NOMEM;
        goto out;
    }
    for (size_t i = 0; i < n * k; i++) moved[k + i] = next[i] + 1;
    memcpy(ends + 1, accepts, n);
    qn_dfa_draft d = {
        .n_states = n_states + 1, .n_classes = n_classes, .next = moved, .accepts = ends, .start = start + 1};
    memcpy(d.class_of, class_of, sizeof d.class_of);
    s = qn_dfa_finish(&w, &d, 0, out);
out:
    qn_dfa_work_end(&w);
    return s;
}

/* --- Finite sets: the texts come in order, so what the last one leaves behind its common begin with the next
 * never changes again and is given the number of an equal state at once. --- */

typedef struct {
    uint32_t byte;
    int32_t target;
} edge;

typedef struct {
    qn_dfa_array edges; /* of the states on the way that are not numbered yet, one after another */
    size_t n_nodes;
    struct node {
        size_t first_edge;
        int accepts;
    } * nodes;        /* the way of the last text */
    qn_dfa_rows rows; /* accepts, then byte and target of each edge; the row's number + 1 is the state */
} text_set;

static int compare_texts(const void *a, const void *b)
{
    const qn_text_ref *x = a, *y = b;
    size_t n = x->n < y->n ? x->n : y->n;
    int c = n ? memcmp(x->text, y->text, n) : 0;
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

/* Numbers the states of the way behind the first `keep`. */
static qn_status close_nodes(qn_dfa_work *w, text_set *t, size_t keep)
{
    while (t->n_nodes > keep) {
        struct node *node = &t->nodes[t->n_nodes - 1];
        edge *edges = (edge *)t->edges.at + node->first_edge;
        size_t n = t->edges.n - node->first_edge;
        uint32_t row[1 + 2 * 256];
        row[0] = (uint32_t)node->accepts;
        for (size_t i = 0; i < n; i++) {
            row[1 + 2 * i] = edges[i].byte;
            row[2 + 2 * i] = (uint32_t)edges[i].target;
        }
        int32_t id;
        QN_TRY(qn_dfa_rows_add(w, &t->rows, row, 1 + 2 * n, &id, NULL));
        t->edges.n = node->first_edge;
        if (--t->n_nodes) ((edge *)t->edges.at)[t->edges.n - 1].target = id + 1;
    }
    return qn_dfa_work_states(w, qn_dfa_rows_count(&t->rows));
}

static qn_status add_text(qn_dfa_work *w, text_set *t, const qn_text_ref *text, size_t n_common)
{
    QN_TRY(close_nodes(w, t, n_common + 1));
    QN_TRY(qn_dfa_work_steps(w, (int64_t)text->n + 1));
    for (size_t i = n_common; i < text->n; i++) {
        QN_TRY(qn_dfa_array_room(w, &t->edges, 1, sizeof(edge)));
        ((edge *)t->edges.at)[t->edges.n++] = (edge){(uint8_t)text->text[i], 0};
        t->nodes[t->n_nodes++] = (struct node){t->edges.n, 0};
    }
    t->nodes[t->n_nodes - 1].accepts = 1;
    return QN_OK;
}

static qn_status texts_draft(qn_dfa_work *w, text_set *t, qn_dfa_draft *d)
{
    int32_t n = qn_dfa_rows_count(&t->rows) + 1, k = 1;
    uint8_t is_used[256] = {0};
    for (int32_t s = 1; s < n; s++) {
        size_t m;
        const uint32_t *row = qn_dfa_rows_get(&t->rows, s - 1, &m);
        for (size_t i = 1; i < m; i += 2) is_used[row[i]] = 1;
    }
    for (int b = 0; b < 256; b++) d->class_of[b] = is_used[b] ? (uint8_t)k++ : 0;
    int32_t *next = qn_arena_calloc(&w->arena, (size_t)n * (size_t)k, sizeof *next);
    uint8_t *accepts = qn_arena_calloc(&w->arena, (size_t)n, 1);
    if (!next || !accepts) return QN_E_NOMEM;
    for (int32_t s = 1; s < n; s++) {
        size_t m;
        const uint32_t *row = qn_dfa_rows_get(&t->rows, s - 1, &m);
        accepts[s] = (uint8_t)row[0];
        for (size_t i = 1; i < m; i += 2)
            next[(size_t)s * (size_t)k + d->class_of[row[i]]] = (int32_t)row[i + 1];
    }
    d->n_states = n;
    d->n_classes = k;
    d->next = next;
    d->accepts = accepts;
    d->start = n - 1; /* the root is closed last, and no other state accepts as much */
    return QN_OK;
}

static qn_status build_texts(qn_dfa_work *w, const qn_text_ref *texts, size_t n, qn_dfa **out)
{
    qn_text_ref *sorted = qn_arena_alloc(&w->arena, sizeof *sorted * n);
    if (!sorted) return QN_E_NOMEM;
    size_t longest = 0;
    for (size_t i = 0; i < n; i++) {
        sorted[i] = texts[i];
        if (texts[i].n > longest) longest = texts[i].n;
        if (qn_utf8_valid_prefix(texts[i].text, texts[i].n) != texts[i].n)
            return qn_fail(QN_E_FORMAT, "text %zu of a set is not valid UTF-8", i);
    }
    QN_TRY(qn_dfa_work_steps(w, (int64_t)n));
    if (longest > (size_t)w->states_max)
        return qn_fail(QN_E_UNSUPPORTED, "a text of %zu bytes: the limit states_max is %d", longest,
                       w->states_max);
    qsort(sorted, n, sizeof *sorted, compare_texts);
    text_set t = {.nodes = qn_arena_alloc(&w->arena, sizeof *t.nodes * (longest + 1)), .n_nodes = 1};
    if (!t.nodes) return QN_E_NOMEM;
    QN_TRY(qn_dfa_array_room(w, &t.edges, 1, sizeof(edge))); /* never NULL, even without an edge */
    t.nodes[0] = (struct node){0, 0};
    for (size_t i = 0; i < n; i++) {
        size_t common = 0;
        if (i) {
            const qn_text_ref *a = &sorted[i - 1], *b = &sorted[i];
            while (common < a->n && common < b->n && a->text[common] == b->text[common]) common++;
        }
        QN_TRY(add_text(w, &t, &sorted[i], common));
    }
    QN_TRY(close_nodes(w, &t, 0));
    qn_dfa_draft d;
    QN_TRY(texts_draft(w, &t, &d));
    return qn_dfa_finish(w, &d, 1, out);
}

qn_status qn_dfa_texts(const qn_text_ref *texts, size_t n, const qn_dfa_limits *limits, qn_dfa **out)
{
    if (n == 0) return qn_dfa_none(out);
    qn_dfa_work w;
    qn_dfa_work_begin(&w, limits);
    qn_status s = build_texts(&w, texts, n, out);
    qn_dfa_work_end(&w);
    return s;
}
