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

static qn_status add_tail(tail_list *l, int32_t id, uint32_t depth, uint32_t chars)
{
    if (l->n_tails == l->room) {
        size_t more = l->room ? 2 * l->room : 256;
        tail *p = qn_realloc(l->tails, more * sizeof *p);
        if (!p) return QN_E_NOMEM;
        l->tails = p;
        l->room = more;
    }
    size_t n;
    const char *text = qn_vocabulary_text(l->v, id, &n);
    l->tails[l->n_tails++] = (tail){(const unsigned char *)text + depth, (uint32_t)(n - depth), id, chars};
    return QN_OK;
}

static qn_status add_tails(tail_list *l, uint32_t node, uint32_t chars)
{
    const qn_trie_node *nodes = l->v->nodes;
    for (uint32_t i = node; i < nodes[node].end; i++)
        for (int32_t id = nodes[i].id; id >= 0; id = l->v->same[id])
            QN_TRY(add_tail(l, id, nodes[node].depth, chars));
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
    qn_free(s->nodes);
    qn_free(s->having);
    qn_free(s);
}

static qn_status find_having(const qn_vocabulary *v, qn_free_strings *s)
{
    s->having = qn_calloc(64 * (v->n_words + 1), sizeof *s->having);
    if (!s->having) return QN_E_NOMEM;
    for (size_t i = 0; i < v->n_ids; i++) {
        size_t n;
        const char *text = qn_vocabulary_text(v, (int32_t)i, &n);
        if (!(s->mask.inside[i >> 5] >> (i & 31) & 1)) continue;
        for (size_t k = 0; k < n; k++)
            s->having[(size_t)qn_kind_of((uint8_t)text[k]) * v->n_words + (i >> 5)] |= UINT32_C(1)
                                                                                       << (i & 31);
    }
    return QN_OK;
}

static qn_status make_free(const qn_vocabulary *v, qn_free_strings *s)
{
    QN_TRY(qn_dfa_all(&s->all));
    s->chars = qn_calloc(v->n_ids + 1, 1);
    if (!s->chars) return QN_E_NOMEM;
    QN_TRY(make_whole(v, s->all, s->all->start, s->chars, &s->mask));
    s->nodes = qn_calloc(v->n_nodes / 64 + 1, sizeof *s->nodes);
    if (!s->nodes) return QN_E_NOMEM;
    for (size_t i = 0; i < v->n_nodes; i++) {
        int32_t id = v->nodes[i].id;
        if (id >= 0 && s->mask.inside[id >> 5] >> (id & 31) & 1) s->nodes[i / 64] |= UINT64_C(1) << i % 64;
    }
    QN_TRY(find_having(v, s));
    s->due[2] = qn_dfa_step(s->all, qn_dfa_step(s->all, s->all->start, 0xf1), 0x80);
    s->due[1] = qn_dfa_step(s->all, s->due[2], 0x80);
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
    qn_string_facts *facts;
    uint64_t without;      /* kinds of bytes that may not come at the begin, or of which one may not */
    const uint16_t *plain; /* plain text without them; NULL: not known */
    int is_flat;           /* plain text may come exactly if it has none of them */
    uint64_t *inside;  /* [n_nodes] bits of nodes inside of the string, if they are inside of a free one */
    uint32_t *closing; /* [n_words] */
    place *places;
} picking;

static void take_nodes(picking *p, uint32_t begin, uint32_t end)
{
    uint32_t w = begin / 64, last = (end - 1) / 64;
    uint64_t head = ~UINT64_C(0) << begin % 64, tail = ~UINT64_C(0) >> (63 - (end - 1) % 64);
    if (w == last) {
        p->inside[w] |= head & tail;
        return;
    }
    p->inside[w++] |= head;
    while (w < last) p->inside[w++] = ~UINT64_C(0);
    p->inside[w] |= tail;
}

/* 1: all text below a node that free strings take as it is may come. from: before the node's byte; at: behind it. */
static int passes(const picking *p, uint32_t node, const place *from, const place *at)
{
    const qn_dfa *d = p->d, *all = p->free->all;
    const uint64_t kinds = p->v->nodes[node].below;
    if (kinds >> QN_KIND_CONTROL || at->escape > 3) return 0;
    if (p->plain && p->v->nodes[node].height <= p->plain[at->state] && !(kinds & p->without)) return 1;
    int32_t home = at->state;
    if (at->escape) {
        int32_t beside =
            from->escape ? p->free->due[at->escape] : qn_dfa_step(all, all->start, p->v->nodes[node].byte);
        home = beside ? qn_string_home(p->facts, d, all, at->state, beside) : 0;
        if (!home) return 0;
    }
    return d->flags[home] & QN_DFA_ALL || !(kinds & qn_string_changes(p->facts, d, all, home));
}

/* 1: all below a node, and itself, is plain text, of a string where that needs no look. */
static inline int is_flat(const picking *p, const qn_trie_node *node, const place *from)
{
    return p->is_flat && from->escape <= 3 &&
           !((node->below | UINT64_C(1) << qn_kind_of(node->byte)) >> QN_KIND_CONTROL);
}

static void pick(picking *p, int32_t state)
{
    const qn_trie_node *nodes = p->v->nodes;
    const qn_dfa *d = p->d;
    p->places[0] = (place){.state = state};
    for (uint32_t i = 1; i < nodes[0].end;) {
        const qn_trie_node *node = &nodes[i];
        const place *from = &p->places[node->depth - 1];
        place at = *from;
        if (is_flat(p, node, from)) {
            i = node->end;
            continue;
        }
        qn_escape_result r = qn_escape_step(d, &at.state, &at.escape, node->byte);
        if (r == QN_ESCAPE_DEAD || r == QN_ESCAPE_CLOSE) {
            if (r == QN_ESCAPE_CLOSE && (d->flags[at.state] & QN_DFA_ACCEPTS))
                for (uint32_t k = i; k < node->end; k++) qn_trie_mark(p->v, &nodes[k], p->closing);
            i = node->end;
            continue;
        }
        p->places[node->depth] = at;
        uint32_t end = node->end > i + 1 && passes(p, i, from, &at) ? node->end : i + 1;
        take_nodes(p, i, end);
        i = end;
    }
}

static void flip_tokens(const picking *p, uint64_t flip, uint32_t *inside)
{
    const qn_vocabulary *v = p->v;
    for (size_t w = 0; w <= v->n_nodes / 64; w++) {
        for (uint64_t bits = (p->inside[w] ^ flip) & p->free->nodes[w]; bits; bits &= bits - 1) {
            int32_t id = v->nodes[w * 64 + (size_t)__builtin_ctzll(bits)].id;
            inside[id >> 5] ^= UINT32_C(1) << (id & 31);
        }
    }
}

/* The bits of the nodes' tokens, from none or from those of free strings, whichever are nearer. */
static void list_inside(const picking *p, uint32_t *inside)
{
    size_t n_in = 0, n_free = 0;
    for (size_t w = 0; w <= p->v->n_nodes / 64; w++) {
        n_in += (size_t)__builtin_popcountll(p->inside[w] & p->free->nodes[w]);
        n_free += (size_t)__builtin_popcountll(p->free->nodes[w]);
    }
    int is_dense = n_in > n_free / 2;
    if (is_dense) memcpy(inside, p->free->mask.inside, p->v->n_words * sizeof *inside);
    flip_tokens(p, is_dense ? ~UINT64_C(0) : 0, inside);
}

/* Tokens of plain text without some kinds, and those that the walk found. The walk took tokens of plain text, too,
 * where others with an escape begin like them. */
static void list_flat(const picking *p, uint32_t *inside)
{
    size_t n = p->v->n_words;
    uint32_t *escaped = inside;
    const uint32_t *having = p->free->having + (size_t)QN_KIND_ESCAPE * n;
    flip_tokens(p, 0, escaped);
    for (size_t i = 0; i < n; i++)
        inside[i] = (escaped[i] & having[i]) | (p->free->mask.inside[i] & ~having[i]);
    for (int kind = 0; kind < QN_KIND_CONTROL; kind++) {
        if (!(p->without >> kind & 1)) continue;
        const uint32_t *of_kind = p->free->having + (size_t)kind * n;
        for (size_t i = 0; i < n; i++) inside[i] &= ~of_kind[i] | having[i];
    }
}

/* What plain text may come. */
static qn_status ask_plain(picking *p, int32_t state)
{
    const qn_dfa *d = p->d, *all = p->free->all;
    p->without = qn_string_dead(d, all, state);
    QN_TRY(qn_string_plain(p->facts, d, all, p->without, &p->plain));
    p->is_flat = p->plain && p->plain[state] == QN_PLAIN_ANY &&
                 qn_string_is_closed(p->facts, d, all, p->without, state);
    return QN_OK;
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
                              qn_string_facts *facts, int32_t state, qn_string_mask *out)
{
    size_t n = v->n_words + 1;
    picking p = {.v = v, .free = free, .d = d, .facts = facts};
    qn_string_mask made = {.inside = qn_calloc(n, sizeof *made.inside)};
    p.inside = qn_calloc(v->n_nodes / 64 + 1, sizeof *p.inside);
    p.closing = qn_calloc(n, sizeof *p.closing);
    p.places = qn_alloc_array(v->depth_max + 1, sizeof *p.places);
    qn_status status = made.inside && p.inside && p.closing && p.places ? QN_OK : QN_E_NOMEM;
    if (status == QN_OK) status = ask_plain(&p, state);
    if (status == QN_OK) {
        pick(&p, state);
        (p.is_flat ? list_flat : list_inside)(&p, made.inside);
        qn_trie_spread(v, made.inside);
        status = pick_tails(&p, &made);
    }
    qn_free(p.inside);
    qn_free(p.closing);
    qn_free(p.places);
    if (status != QN_OK) {
        qn_string_mask_clear(&made);
        return status;
    }
    *out = made;
    return QN_OK;
}
