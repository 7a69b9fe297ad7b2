#include "constrain/machine/strings.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "constrain/machine/escape.h"

/* ---- one walk over the vocabulary ---------------------------------------------------------------------- */

typedef struct {
    const unsigned char *tail;
    uint32_t n;
    int32_t id;
    uint32_t chars;
} tail;

typedef struct {
    const qn_vocabulary *v;
    tail *tails;
    size_t n_tails, room;
} tail_list;

static qn_status add_tails(tail_list *l, uint32_t node, uint32_t chars)
{
    const qn_trie_node *nodes = l->v->nodes;
    for (uint32_t i = node; i < nodes[node].end; i++) {
        if (nodes[i].id < 0) continue;
        if (l->n_tails == l->room) {
            size_t more = l->room ? 2 * l->room : 256;
            tail *p = qn_realloc(l->tails, more * sizeof *p);
            if (!p) return QN_E_NOMEM;
            l->tails = p;
            l->room = more;
        }
        size_t n;
        const char *text = qn_vocabulary_text(l->v, nodes[i].id, &n);
        l->tails[l->n_tails++] = (tail){(const unsigned char *)text + nodes[node].depth,
                                        (uint32_t)(n - nodes[node].depth), nodes[i].id, chars};
    }
    return QN_OK;
}

typedef struct {
    int32_t state;
    uint32_t escape, chars;
} place;

static qn_status walk(const qn_dfa *d, int32_t state, uint8_t *chars, uint32_t *inside, place *places,
                      tail_list *l)
{
    const qn_trie_node *nodes = l->v->nodes;
    places[0] = (place){.state = state};
    for (uint32_t i = 1; i < nodes[0].end;) {
        const qn_trie_node *node = &nodes[i];
        place p = places[node->depth - 1];
        qn_escape_result r = qn_escape_step(d, &p.state, &p.escape, node->byte);
        if (r == QN_ESCAPE_DEAD || r == QN_ESCAPE_CLOSE) {
            if (r == QN_ESCAPE_CLOSE && (d->flags[p.state] & QN_DFA_ACCEPTS))
                QN_TRY(add_tails(l, i, p.chars));
            i = node->end;
            continue;
        }
        /* An escape counts from its backslash on. */
        if (r == QN_ESCAPE_BEGUN || (r == QN_ESCAPE_IN && node->byte == '\\' && p.escape >> 24 == 1))
            p.chars++;
        places[node->depth] = p;
        for (int32_t id = node->id; id >= 0; id = l->v->same[id]) {
            inside[id >> 5] |= UINT32_C(1) << (id & 31);
            if (chars) chars[id] = (uint8_t)(p.chars < QN_CHARS_MAX ? p.chars : QN_CHARS_MAX);
        }
        i++;
    }
    return QN_OK;
}

/* ---- the trie of tails --------------------------------------------------------------------------------- */

static int by_tail(const void *x, const void *y)
{
    const tail *a = x, *b = y;
    int c = memcmp(a->tail, b->tail, a->n < b->n ? a->n : b->n);
    if (c) return c;
    if (a->n != b->n) return a->n < b->n ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

static uint32_t common(const tail *a, const tail *b)
{
    uint32_t n = a->n < b->n ? a->n : b->n, i = 0;
    while (i < n && a->tail[i] == b->tail[i]) i++;
    return i;
}

static qn_status link_tails(const tail_list *l, qn_string_mask *out)
{
    size_t n_nodes = 1;
    for (size_t i = 0; i < l->n_tails; i++) {
        n_nodes += l->tails[i].n - (i ? common(&l->tails[i - 1], &l->tails[i]) : 0);
        if (l->tails[i].n > out->depth_max) out->depth_max = l->tails[i].n;
    }
    out->nodes = qn_alloc_array(n_nodes, sizeof *out->nodes);
    out->lists = qn_alloc_array(l->n_tails + 2, sizeof *out->lists);
    out->tokens = qn_alloc_array(l->n_tails + 1, sizeof *out->tokens);
    uint32_t *open = qn_alloc_array((size_t)out->depth_max + 1, sizeof *open);
    if (!out->nodes || !out->lists || !out->tokens || !open) {
        qn_free(open);
        return QN_E_NOMEM;
    }
    uint32_t n = 1, depth = 0, n_lists = 0;
    out->nodes[0] = (qn_trie_node){.id = -1};
    open[0] = 0;
    for (size_t i = 0; i < l->n_tails; i++) {
        const tail *t = &l->tails[i];
        uint32_t shared = i ? common(t - 1, t) : 0;
        for (; depth > shared; depth--) out->nodes[open[depth]].end = n;
        for (; depth < t->n; depth++) {
            out->nodes[n] = (qn_trie_node){.id = -1, .depth = (uint16_t)(depth + 1), .byte = t->tail[depth]};
            open[depth + 1] = n++;
        }
        qn_trie_node *node = &out->nodes[open[depth]];
        if (node->id < 0) {
            node->id = (int32_t)n_lists;
            out->lists[n_lists++] = (uint32_t)i;
        }
        out->tokens[i] = (qn_tail_token){t->id, t->chars};
    }
    out->lists[n_lists] = (uint32_t)l->n_tails;
    for (;; depth--) {
        out->nodes[open[depth]].end = n;
        if (depth == 0) break;
    }
    out->n_nodes = n;
    out->n_bytes = n_nodes * sizeof *out->nodes + l->n_tails * (sizeof *out->tokens + sizeof *out->lists) +
                   l->v->n_words * sizeof *out->inside;
    out->n_lists = n_lists;
    qn_free(open);
    return QN_OK;
}

static qn_status make_whole(const qn_vocabulary *v, const qn_dfa *d, int32_t state, uint8_t *chars,
                            qn_string_mask *out)
{
    tail_list l = {.v = v};
    qn_string_mask made = {.inside = qn_calloc(v->n_words + 1, sizeof *made.inside), .has_nodes = 1};
    place *places = qn_alloc_array(v->depth_max + 1, sizeof *places);
    qn_status status = made.inside && places ? QN_OK : QN_E_NOMEM;
    if (status == QN_OK) status = walk(d, state, chars, made.inside, places, &l);
    if (status == QN_OK) {
        if (l.n_tails) qsort(l.tails, l.n_tails, sizeof *l.tails, by_tail);
        status = link_tails(&l, &made);
    }
    qn_free(places);
    qn_free(l.tails);
    if (status != QN_OK) {
        qn_string_mask_clear(&made);
        return status;
    }
    *out = made;
    return QN_OK;
}

void qn_string_mask_clear(qn_string_mask *s)
{
    qn_free(s->inside);
    if (s->has_nodes) qn_free(s->nodes);
    qn_free(s->lists);
    qn_free(s->tokens);
    *s = (qn_string_mask){0};
}

/* ---- free strings -------------------------------------------------------------------------------------- */

static void free_strings(void *context)
{
    qn_free_strings *s = context;
    if (!s) return;
    for (int i = 0; i < QN_CHARS_MAX; i++) qn_free(atomic_load_explicit(&s->within[i], memory_order_relaxed));
    qn_string_mask_clear(&s->mask);
    qn_dfa_release(s->all);
    qn_free(s->chars);
    qn_free(s);
}

static qn_status make_free(const qn_vocabulary *v, qn_free_strings *s)
{
    QN_TRY(qn_dfa_all(&s->all));
    s->chars = qn_calloc(v->n_ids + 1, 1);
    if (!s->chars) return QN_E_NOMEM;
    QN_TRY(make_whole(v, s->all, s->all->start, s->chars, &s->mask));
    for (size_t i = 0; i < v->n_ids; i++)
        if (s->chars[i] > s->chars_max) s->chars_max = s->chars[i];
    return QN_OK;
}

qn_status qn_vocabulary_strings(qn_vocabulary *v, qn_free_strings **out)
{
    qn_free_strings *s = (qn_free_strings *)atomic_load_explicit(&v->shared, memory_order_acquire);
    if (!s) {
        s = qn_calloc(1, sizeof *s);
        if (!s) return QN_E_NOMEM;
        qn_status status = make_free(v, s);
        if (status != QN_OK) {
            free_strings(s);
            return status;
        }
        uintptr_t expected = 0;
        if (!atomic_compare_exchange_strong(&v->shared, &expected, (uintptr_t)s)) {
            free_strings(s);
            s = (qn_free_strings *)expected;
        }
    }
    *out = s;
    return QN_OK;
}

void qn_vocabulary_strings_free(qn_vocabulary *v)
{
    free_strings((void *)atomic_load_explicit(&v->shared, memory_order_relaxed));
}

qn_status qn_free_strings_within(const qn_vocabulary *v, qn_free_strings *s, uint32_t room,
                                 const uint32_t **out)
{
    if (room >= s->chars_max || room >= QN_CHARS_MAX) {
        *out = s->mask.inside;
        return QN_OK;
    }
    uint32_t *bits = atomic_load_explicit(&s->within[room], memory_order_acquire);
    if (!bits) {
        bits = qn_calloc(v->n_words + 1, sizeof *bits);
        if (!bits) return QN_E_NOMEM;
        for (size_t i = 0; i < v->n_ids; i++)
            if (s->chars[i] <= room) bits[i >> 5] |= s->mask.inside[i >> 5] & (UINT32_C(1) << (i & 31));
        uint32_t *expected = NULL;
        if (!atomic_compare_exchange_strong(&s->within[room], &expected, bits)) {
            qn_free(bits);
            bits = expected;
        }
    }
    *out = bits;
    return QN_OK;
}

/* ---- strings of an automaton --------------------------------------------------------------------------- */

/* Tokens of an automaton's strings are a part of those of free strings: whole subtrees are taken over or left
 * out. */
typedef struct {
    const qn_vocabulary *v;
    const qn_free_strings *free;
    const qn_dfa *d;
    uint32_t *inside, *closing; /* [n_words] */
    uint64_t *loops; /* [n_states] kinds of bytes after which a state is as it was; QN_KIND_CONTROL: known */
    place *places;
    int is_dense; /* inside began as that of free strings: what is not of it is cleared */
} picking;

/* Characters above ASCII come back to a state if all do that free strings have: their automaton is walked in
 * step. */
static int all_return(const picking *p, int32_t state, int32_t home, int32_t free_state)
{
    const qn_dfa *all = p->free->all;
    for (int b = 0x7f; b < 0x100; b++) {
        /* Neighbours that both automata take for the same are one. */
        if (b > 0x7f && all->class_of[b] == all->class_of[b - 1] &&
            p->d->class_of[b] == p->d->class_of[b - 1])
            continue;
        int32_t free_to = qn_dfa_step(all, free_state, (uint8_t)b);
        if (!free_to) continue;
        int32_t to = qn_dfa_step(p->d, state, (uint8_t)b);
        if (!to) return 0;
        if (free_to == all->start ? to != home : !all_return(p, to, home, free_to)) return 0;
    }
    return 1;
}

static const uint64_t known = UINT64_C(1) << QN_KIND_CONTROL;

static uint64_t loops_of(picking *p, int32_t state)
{
    if (p->loops[state]) return p->loops[state] & ~known;
    uint64_t changes = 0;
    for (int b = 0x20; b < 0x7f; b++)
        if (qn_dfa_step(p->d, state, (uint8_t)b) != state) changes |= UINT64_C(1) << qn_kind_of((uint8_t)b);
    if (!all_return(p, state, state, p->free->all->start)) changes |= UINT64_C(1) << QN_KIND_HIGH;
    changes |= UINT64_C(1) << QN_KIND_ESCAPE;
    p->loops[state] = ~changes | known;
    return ~changes & ~known;
}

static void clear_subtree(picking *p, uint32_t node)
{
    for (uint32_t i = node; i < p->v->nodes[node].end; i++)
        for (int32_t id = p->v->nodes[i].id; id >= 0; id = p->v->same[id])
            p->inside[id >> 5] &= ~(UINT32_C(1) << (id & 31));
}

static void take_node(picking *p, uint32_t i)
{
    for (int32_t id = p->v->nodes[i].id; id >= 0; id = p->v->same[id])
        p->inside[id >> 5] |= p->free->mask.inside[id >> 5] & (UINT32_C(1) << (id & 31));
}

static void pick(picking *p, int32_t state)
{
    const qn_trie_node *nodes = p->v->nodes;
    const qn_dfa *d = p->d;
    p->places[0] = (place){.state = state};
    for (uint32_t i = 1; i < nodes[0].end;) {
        const qn_trie_node *node = &nodes[i];
        place at = p->places[node->depth - 1];
        qn_escape_result r = qn_escape_step(d, &at.state, &at.escape, node->byte);
        if (r == QN_ESCAPE_DEAD || r == QN_ESCAPE_CLOSE) {
            if (p->is_dense) clear_subtree(p, i);
            if (r == QN_ESCAPE_CLOSE && (d->flags[at.state] & QN_DFA_ACCEPTS))
                for (uint32_t k = i; k < node->end; k++) qn_trie_mark(p->v, &nodes[k], p->closing);
            i = node->end;
            continue;
        }
        p->places[node->depth] = at;
        /* Is all below plain text that changes nothing? */
        int passes = 0;
        if (node->end > i + 1 && at.escape == 0) {
            uint64_t kinds = p->v->below[i];
            if (d->flags[at.state] & QN_DFA_ALL)
                passes = !(kinds >> QN_KIND_CONTROL);
            else
                passes = !(kinds & ~loops_of(p, at.state));
        }
        uint32_t end = passes ? node->end : i + 1;
        if (!p->is_dense)
            for (uint32_t k = i; k < end; k++) take_node(p, k);
        i = end;
    }
}

/* 1: most of the vocabulary's trie stays inside the string. */
static int is_dense(const qn_vocabulary *v, const qn_dfa *d, int32_t state)
{
    size_t in = 0;
    for (uint32_t i = 1; i < v->nodes[0].end; i = v->nodes[i].end)
        if (qn_dfa_step(d, state, v->nodes[i].byte)) in += v->nodes[i].end - i;
    return in > v->n_nodes / 2;
}

/* The tails of free strings, and of their tokens those that close this one. */
static qn_status pick_tails(const picking *p, qn_string_mask *out)
{
    const qn_string_mask *from = &p->free->mask;
    uint32_t n = 0;
    for (uint32_t i = 0; i < from->lists[from->n_lists]; i++) {
        int32_t id = from->tokens[i].id;
        n += p->closing[id >> 5] >> (id & 31) & 1;
    }
    out->nodes = from->nodes;
    out->n_nodes = from->n_nodes;
    out->depth_max = from->depth_max;
    out->n_lists = from->n_lists;
    out->lists = qn_alloc_array((size_t)from->n_lists + 1, sizeof *out->lists);
    out->tokens = qn_alloc_array((size_t)n + 1, sizeof *out->tokens);
    if (!out->lists || !out->tokens) return QN_E_NOMEM;
    n = 0;
    for (uint32_t l = 0; l < from->n_lists; l++) {
        out->lists[l] = n;
        for (uint32_t i = from->lists[l]; i < from->lists[l + 1]; i++) {
            int32_t id = from->tokens[i].id;
            if (p->closing[id >> 5] >> (id & 31) & 1) out->tokens[n++] = from->tokens[i];
        }
    }
    out->lists[from->n_lists] = n;
    out->n_bytes =
        p->v->n_words * sizeof *out->inside + from->n_lists * sizeof *out->lists + n * sizeof *out->tokens;
    return QN_OK;
}

qn_status qn_string_mask_make(const qn_vocabulary *v, const qn_free_strings *free, const qn_dfa *d,
                              int32_t state, qn_string_mask *out)
{
    size_t n = v->n_words + 1;
    picking p = {.v = v, .free = free, .d = d, .is_dense = is_dense(v, d, state)};
    qn_string_mask made = {.inside = p.inside = qn_calloc(n, sizeof *p.inside)};
    p.closing = qn_calloc(n, sizeof *p.closing);
    p.loops = qn_calloc((size_t)d->n_states, sizeof *p.loops);
    p.places = qn_alloc_array(v->depth_max + 1, sizeof *p.places);
    qn_status status = p.inside && p.closing && p.loops && p.places ? QN_OK : QN_E_NOMEM;
    if (status == QN_OK) {
        if (p.is_dense) memcpy(p.inside, free->mask.inside, v->n_words * sizeof *p.inside);
        pick(&p, state);
        status = pick_tails(&p, &made);
    }
    qn_free(p.closing);
    qn_free(p.loops);
    qn_free(p.places);
    if (status != QN_OK) {
        qn_string_mask_clear(&made);
        return status;
    }
    *out = made;
    return QN_OK;
}
