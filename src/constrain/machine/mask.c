#include "constrain/machine/mask.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "constrain/machine/taken.h"

/* ---- walks --------------------------------------------------------------------------------------------- */

/* A walk goes over the vocabulary's trie, or over the tails of a string's mask. */
typedef struct {
    qn_masks *k;
    const qn_trie_node *nodes;
    const qn_string_mask *tails; /* NULL: the vocabulary */
    uint32_t least, most;        /* characters before the quote of tokens that count */
    qn_frame *places;
    uint32_t *bits;
} walk;

static void mark(const walk *w, const qn_trie_node *node)
{
    if (node->id < 0) return;
    if (!w->tails) {
        qn_trie_mark(w->k->v, node, w->bits);
        return;
    }
    const qn_tail_token *t = w->tails->tokens + w->tails->lists[node->id];
    const qn_tail_token *end = w->tails->tokens + w->tails->lists[node->id + 1];
    for (; t < end; t++)
        if (t->chars >= w->least && t->chars <= w->most) w->bits[t->id >> 5] |= UINT32_C(1) << (t->id & 31);
}

static void suspect_token(qn_masks *k, int32_t id)
{
    if (k->n_suspects == k->suspects_room) {
        uint32_t more = k->suspects_room ? 2 * k->suspects_room : 64;
        uint32_t *p = qn_realloc(k->suspects, more * sizeof *p);
        if (!p) {
            k->m->status = QN_E_NOMEM;
            return;
        }
        k->suspects = p;
        k->suspects_room = more;
    }
    k->suspects[k->n_suspects++] = (uint32_t)id;
}

/* Tokens of a subtree that need a step by step look. */
static void suspect(const walk *w, uint32_t node)
{
    for (uint32_t i = node; i < w->nodes[node].end; i++) {
        int32_t id = w->nodes[i].id;
        if (id < 0) continue;
        if (!w->tails) {
            for (; id >= 0; id = w->k->v->same[id]) suspect_token(w->k, id);
            continue;
        }
        for (uint32_t t = w->tails->lists[id]; t < w->tails->lists[id + 1]; t++)
            suspect_token(w->k, w->tails->tokens[t].id);
    }
}

static void walk_state(walk *w, uint32_t state, uint32_t node);

/* Children of a node, each by a step of the whole state. */
static void walk_steps(walk *w, uint32_t state, uint32_t node)
{
    qn_machine *m = w->k->m;
    uint32_t end = w->nodes[node].end;
    for (uint32_t i = node + 1; i < end; i = w->nodes[i].end) {
        uint32_t to = qn_machine_step(m, state, w->nodes[i].byte);
        if (m->is_suspect) {
            m->is_suspect = 0;
            suspect(w, i);
        }
        if (m->status != QN_OK) return;
        if (!to) continue;
        mark(w, &w->nodes[i]);
        if (w->nodes[i].end > i + 1) walk_state(w, to, i);
    }
}

/* A closed lexeme: what comes behind it. */
static uint32_t state_behind(qn_machine *m, const qn_frame *f, uint32_t behind)
{
    if (f->kind != QN_FRAME_NAMED_KEY && f->kind != QN_FRAME_OTHER_KEY && f->kind != QN_FRAME_ITEM)
        return behind;
    m->n_out = 0;
    qn_step_close(m, f);
    return qn_machine_state(m, m->out, m->n_out);
}

/* A lexeme over the subtree of a node, frame by frame. behind: the state of what is below it. */
static void walk_lexeme(walk *w, const qn_frame *f, uint32_t behind, uint32_t node)
{
    qn_machine *m = w->k->m;
    uint32_t end = w->nodes[node].end;
    w->places[w->nodes[node].depth] = *f;
    for (uint32_t i = node + 1; i < end && m->status == QN_OK;) {
        const qn_trie_node *n = &w->nodes[i];
        qn_frame *at = &w->places[n->depth];
        const qn_frame *from = at - 1;
        if (qn_lex_accepts(m, from)) {
            uint32_t to = qn_machine_step(m, behind, n->byte);
            if (m->is_suspect) {
                m->is_suspect = 0;
                suspect(w, i);
            }
            if (to) {
                mark(w, n);
                if (n->end > i + 1) walk_state(w, to, i);
            }
        }
        *at = *from;
        switch (qn_lex_step(m, at, n->byte)) {
        case QN_LEX_DEAD:
            i = n->end;
            break;
        case QN_LEX_IN:
            mark(w, n);
            i++;
            break;
        case QN_LEX_CLOSE: {
            uint32_t to = state_behind(m, at, behind);
            if (m->is_suspect) {
                m->is_suspect = 0;
                suspect(w, i);
            }
            if (to) {
                mark(w, n);
                if (n->end > i + 1) walk_state(w, to, i);
            }
            i = n->end;
        }
        }
    }
}

static int same_lexeme(const qn_frame *a, const qn_frame *b)
{
    return a->kind == b->kind && a->a == b->a && a->b == b->b && a->c == b->c && a->d == b->d;
}

/* The state of the stacks below lexemes that are equal to that of stacks[i], which are taken out. */
static uint32_t take_group(qn_machine *m, uint32_t *stacks, uint32_t n, uint32_t i, uint32_t *below)
{
    const qn_frame *f = &m->frames[stacks[i]];
    uint32_t n_below = 0;
    for (uint32_t j = i; j < n; j++) {
        if (!stacks[j]) continue;
        const qn_frame *g = &m->frames[stacks[j]];
        if (j != i && !same_lexeme(f, g)) continue;
        below[n_below++] = g->parent;
        if (j != i) stacks[j] = 0;
    }
    return qn_machine_state(m, below, n_below);
}

typedef void on_lexeme(walk *w, const qn_frame *f, uint32_t behind, uint32_t node);

/* Each stack by its kind; stacks without a lexeme go on together. */
static void walk_parts(walk *w, uint32_t state, uint32_t node, on_lexeme *lexeme)
{
    qn_machine *m = w->k->m;
    enum { FEW = 64 };
    uint32_t n = m->states[state].n, few[3 * FEW], *many = NULL;
    int is_plain = 1;
    for (uint32_t i = 0; i < n && is_plain; i++)
        is_plain = !qn_frame_is_lexeme(&m->frames[m->stacks[m->states[state].begin + i]]);
    if (is_plain) {
        walk_steps(w, state, node);
        return;
    }
    if (n > FEW) {
        many = qn_alloc_array(n, 3 * sizeof *many);
        if (!many) {
            m->status = QN_E_NOMEM;
            return;
        }
    }
    uint32_t *stacks = many ? many : few, *below = stacks + n, *rest = below + n, n_rest = 0;
    memcpy(stacks, m->stacks + m->states[state].begin, n * sizeof *stacks);
    for (uint32_t i = 0; i < n && m->status == QN_OK; i++) {
        if (!stacks[i]) continue;
        qn_frame f = m->frames[stacks[i]];
        if (!qn_frame_is_lexeme(&f)) {
            rest[n_rest++] = stacks[i];
            continue;
        }
        uint32_t behind = 0;
        if (f.kind <= QN_FRAME_STRING) behind = take_group(m, stacks, n, i, below);
        if (m->status == QN_OK) lexeme(w, &f, behind, node);
    }
    if (n_rest && m->status == QN_OK) {
        uint32_t part = qn_machine_state(m, rest, n_rest);
        if (part) walk_steps(w, part, node);
    }
    qn_free(many);
}

static void walk_state(walk *w, uint32_t state, uint32_t node)
{
    walk_parts(w, state, node, walk_lexeme);
}

/* ---- strings from the root ----------------------------------------------------------------------------- */

static const qn_string_mask *string_mask(qn_masks *k, int32_t dfa, int32_t state)
{
    const qn_dfa *d = k->m->program->dfas[dfa];
    if (d->flags[state] & QN_DFA_ALL) return &k->free->mask;
    for (uint32_t i = 0; i < k->n_strings; i++)
        if (k->strings[i].dfa == dfa && k->strings[i].state == state) return &k->strings[i].mask;
    if (k->string_bytes > k->bytes_max) {
        for (uint32_t i = 0; i < k->n_strings; i++) qn_string_mask_clear(&k->strings[i].mask);
        k->n_strings = 0;
        k->string_bytes = 0;
    }
    if (k->n_strings == k->strings_room) {
        uint32_t more = k->strings_room ? 2 * k->strings_room : 8;
        qn_kept_string *p = qn_realloc(k->strings, more * sizeof *p);
        if (!p) {
            k->m->status = QN_E_NOMEM;
            return NULL;
        }
        k->strings = p;
        k->strings_room = more;
    }
    qn_kept_string *s = &k->strings[k->n_strings];
    *s = (qn_kept_string){.dfa = dfa, .state = state};
    k->m->status = qn_string_mask_make(k->v, k->free, d, state, &s->mask);
    if (k->m->status != QN_OK) return NULL;
    k->n_strings++;
    k->string_bytes += s->mask.n_bytes;
    return &s->mask;
}

static void unite(uint32_t *to, const uint32_t *from, size_t n)
{
    for (size_t i = 0; i < n; i++) to[i] |= from[i];
}

/* What closes a string and comes behind it. */
static void walk_tails(walk *w, const qn_string_mask *s, uint32_t behind, uint32_t least, uint32_t most)
{
    if (!behind || s->n_nodes == 0) return;
    walk t = {.k = w->k, .nodes = s->nodes, .tails = s, .least = least, .most = most, .bits = w->bits};
    t.places = qn_alloc_array((size_t)s->depth_max + 2, sizeof *t.places);
    if (!t.places) {
        w->k->m->status = QN_E_NOMEM;
        return;
    }
    mark(&t, &s->nodes[0]);
    walk_state(&t, behind, 0);
    qn_free(t.places);
}

/* A string from the root, at a character's begin, of need to room more characters (room -1: any). */
static void add_string(walk *w, int32_t dfa, int32_t state, uint32_t behind, int64_t need, int64_t room)
{
    qn_masks *k = w->k;
    const qn_string_mask *s = string_mask(k, dfa, state);
    if (!s) return;
    const uint32_t *inside = s->inside;
    if (room >= 0 && room < QN_CHARS_MAX) {
        k->m->status = qn_free_strings_within(k->v, k->free, (uint32_t)room, &inside);
        if (k->m->status != QN_OK) return;
    }
    unite(w->bits, inside, k->v->n_words);
    walk_tails(w, s, behind, (uint32_t)(need > 0 ? need : 0), room >= 0 ? (uint32_t)room : UINT32_MAX);
}

static void root_string(walk *w, const qn_frame *f, uint32_t behind)
{
    const qn_string_rule *rule = &w->k->m->program->strings[f->a];
    add_string(w, rule->dfa, (int32_t)f->b, behind, rule->min - f->d, rule->max >= 0 ? rule->max - f->d : -1);
}

/* ---- keys that are taken ------------------------------------------------------------------------------- */

typedef struct {
    walk *w;
    const qn_taken *list;
    const qn_dfa *dfa;
    const uint32_t *counts; /* NULL: texts are never used up */
} clearing;

static void clear_subtree(const walk *w, uint32_t node)
{
    const qn_vocabulary *v = w->k->v;
    for (uint32_t i = node; i < v->nodes[node].end; i++)
        for (int32_t id = v->nodes[i].id; id >= 0; id = v->same[id])
            w->bits[id >> 5] &= ~(UINT32_C(1) << (id & 31));
}

/* Clears the tokens that close one of texts[begin, end), which share `depth` bytes, or after which nothing but
 * such texts is left. */
static void clear_taken(const clearing *c, uint32_t begin, uint32_t end, size_t depth, int32_t state,
                        uint32_t escape, uint32_t node)
{
    const qn_vocabulary *v = c->w->k->v;
    const qn_text_ref *texts = c->list->texts;
    for (uint32_t i = node + 1; i < v->nodes[node].end; i = v->nodes[i].end) {
        uint8_t text[4];
        int n;
        uint32_t e = escape, b = begin, z = end;
        size_t d = depth;
        int32_t s = state;
        qn_escape_result r = qn_escape_decode(&e, v->nodes[i].byte, text, &n);
        if (r == QN_ESCAPE_DEAD) continue;
        if (r == QN_ESCAPE_CLOSE) {
            if (texts[b].n == d) clear_subtree(c->w, i);
            continue;
        }
        for (int x = 0; x < n; x++, d++) {
            while (b < z && (texts[b].n <= d || (uint8_t)texts[b].text[d] < text[x])) b++;
            uint32_t last = b;
            while (last < z && (uint8_t)texts[last].text[d] == text[x]) last++;
            z = last;
            s = qn_dfa_step(c->dfa, s, text[x]);
        }
        if (b >= z || s == 0) continue;
        if (c->counts && e == 0 && !qn_taken_leaves_some(c->list, b, z, d, c->dfa, c->counts, s))
            clear_subtree(c->w, i);
        else
            clear_taken(c, b, z, d, s, e, i);
    }
}

/* Other keys and unique items: tokens that close one that was written are cleared from w->bits. */
static void clear_all_taken(walk *w, const qn_frame *f)
{
    qn_machine *m = w->k->m;
    qn_taken list;
    if (m->status == QN_OK) m->status = qn_taken_list(m, f, &list);
    if (m->status != QN_OK) return;
    int32_t dfa = qn_taken_dfa(m, f);
    clearing c = {.w = w, .list = &list, .dfa = m->program->dfas[dfa]};
    if (!(c.dfa->flags[f->b] & QN_DFA_ALL)) m->status = qn_program_counts(m->program, dfa, &c.counts);
    if (list.n && m->status == QN_OK) clear_taken(&c, 0, list.n, list.n_prefix, (int32_t)f->b, f->c, 0);
    qn_taken_free(&list);
}

static void root_kept(walk *w, const qn_frame *f)
{
    qn_masks *k = w->k;
    qn_machine *m = k->m;
    uint32_t *all = w->bits;
    w->bits = k->spare;
    memset(w->bits, 0, k->v->n_words * sizeof *w->bits);
    int32_t dfa = qn_taken_dfa(m, f);
    int64_t need = 0, room = -1;
    if (f->kind == QN_FRAME_ITEM) {
        const qn_string_rule *rule = &m->program->strings[f->a];
        need = rule->min - f->e;
        if (rule->max >= 0) room = rule->max - f->e;
    }
    if (f->c == 0) {
        uint32_t behind = state_behind(m, f, 0);
        if (m->status == QN_OK) add_string(w, dfa, (int32_t)f->b, behind, need, room);
    } else {
        walk_lexeme(w, f, 0, 0);
    }
    clear_all_taken(w, f);
    w->bits = all;
    if (m->status == QN_OK) unite(w->bits, k->spare, k->v->n_words);
}

static void root_lexeme(walk *w, const qn_frame *f, uint32_t behind, uint32_t node)
{
    if (f->kind == QN_FRAME_OTHER_KEY || f->kind == QN_FRAME_ITEM)
        root_kept(w, f);
    else if (f->kind == QN_FRAME_STRING && f->c == 0)
        root_string(w, f, behind);
    else
        walk_lexeme(w, f, behind, node);
}

/* ---- masks of states ----------------------------------------------------------------------------------- */

static int allows_exactly(qn_masks *k, uint32_t state, int32_t id)
{
    size_t n;
    const char *text = qn_vocabulary_text(k->v, id, &n);
    for (size_t i = 0; i < n && state; i++) state = qn_machine_step(k->m, state, (uint8_t)text[i]);
    return state != 0;
}

static qn_status make(qn_masks *k, uint32_t state, uint32_t *bits)
{
    qn_machine *m = k->m;
    memset(bits, 0, k->v->n_words * sizeof *bits);
    k->n_suspects = 0;
    m->is_loose = 1;
    m->is_suspect = 0;
    walk w = {.k = k, .nodes = k->v->nodes, .places = k->places, .bits = bits};
    walk_parts(&w, state, 0, root_lexeme);
    m->is_loose = 0;
    m->is_suspect = 0;
    for (uint32_t i = 0; i < k->n_suspects && m->status == QN_OK; i++) {
        int32_t id = (int32_t)k->suspects[i];
        if (!(bits[id >> 5] >> (id & 31) & 1) && allows_exactly(k, state, id))
            bits[id >> 5] |= UINT32_C(1) << (id & 31);
    }
    return m->status;
}

qn_status qn_masks_get(qn_masks *k, uint32_t state, uint32_t *bits)
{
    size_t n = k->v->n_words * sizeof *bits;
    int32_t slot = k->m->states[state].mask;
    if (slot >= 0 && k->kept_state[slot] == state) {
        memcpy(bits, k->kept + (size_t)slot * k->v->n_words, n);
        return QN_OK;
    }
    QN_TRY(make(k, state, bits));
    if (k->kept_next == k->n_kept && k->n_kept < k->kept_room) {
        uint32_t more = k->n_kept ? 2 * k->n_kept : 8;
        if (more > k->kept_room) more = k->kept_room;
        uint32_t *p = qn_realloc(k->kept, (size_t)more * n);
        if (p) k->kept = p;
        uint32_t *q = p ? qn_realloc(k->kept_state, more * sizeof *q) : NULL;
        if (!q) return QN_OK; /* it is made again when it is wanted again */
        k->kept_state = q;
        memset(q + k->n_kept, 0, (more - k->n_kept) * sizeof *q);
        k->n_kept = more;
    }
    if (k->n_kept == 0) return QN_OK;
    if (k->kept_next >= k->n_kept) k->kept_next = 0;
    slot = (int32_t)k->kept_next++;
    memcpy(k->kept + (size_t)slot * k->v->n_words, bits, n);
    k->kept_state[slot] = state;
    k->m->states[state].mask = slot;
    return QN_OK;
}

qn_status qn_masks_init(qn_masks *k, qn_vocabulary *v, qn_machine *m, size_t bytes_max)
{
    *k = (qn_masks){.v = v, .m = m, .bytes_max = bytes_max / 2};
    QN_TRY(qn_vocabulary_strings(v, &k->free));
    k->kept_room = (uint32_t)(bytes_max / 2 / (v->n_words * sizeof(uint32_t) + 1));
    k->places = qn_alloc_array(v->depth_max + 2, sizeof *k->places);
    k->spare = qn_alloc_array(v->n_words + 1, sizeof *k->spare);
    return k->places && k->spare ? QN_OK : QN_E_NOMEM;
}

void qn_masks_clear(qn_masks *k)
{
    for (uint32_t i = 0; i < k->n_strings; i++) qn_string_mask_clear(&k->strings[i].mask);
    qn_free(k->strings);
    qn_free(k->kept);
    qn_free(k->kept_state);
    qn_free(k->places);
    qn_free(k->spare);
    qn_free(k->suspects);
    *k = (qn_masks){0};
}

size_t qn_masks_bytes(const qn_masks *k)
{
    return k->n_kept * (k->v->n_words + 1) * sizeof *k->kept + k->string_bytes +
           k->strings_room * sizeof *k->strings + k->suspects_room * sizeof *k->suspects +
           (k->v->depth_max + 2) * sizeof *k->places + k->v->n_words * sizeof *k->spare;
}

void qn_masks_forget(qn_masks *k)
{
    for (uint32_t i = 0; i < k->n_kept; i++) k->kept_state[i] = 0;
    k->kept_next = 0;
}
