#include "constrain/machine/mask.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "constrain/machine/taken.h"

enum { KEPT_MAX = 4096 }; /* masks of states */

/* ---- walks --------------------------------------------------------------------------------------------- */

/* A walk goes over the vocabulary's trie, or over the tails of a string's mask. */
typedef struct {
    qn_masks *k;
    const qn_trie_node *nodes;
    const qn_string_mask *tails; /* NULL: the vocabulary */
    uint32_t least, most;        /* characters before the quote of tokens that count */
    qn_frame *places;
    uint8_t *path; /* the bytes to a node of a lexeme that is walked, by their depth */
    uint32_t *bits;
    int is_noting;       /* tokens of tails are noted in k->noted */
    int has_free_inside; /* bits has all tokens inside of free strings */
} walk;

static void push_id(qn_masks *k, qn_id_list *l, int32_t id)
{
    if (l->n == l->room) {
        uint32_t more = l->room ? 2 * l->room : 64;
        int32_t *p = qn_realloc(l->ids, more * sizeof *p);
        if (!p) {
            k->m->status = QN_E_NOMEM;
            return;
        }
        l->ids = p;
        l->room = more;
    }
    l->ids[l->n++] = id;
}

static void mark(const walk *w, const qn_trie_node *node)
{
    if (node->id < 0) return;
    if (!w->tails) {
        qn_trie_mark(w->k->v, node, w->bits);
        return;
    }
    const qn_tail_token *t = w->tails->tokens + w->tails->lists[node->id];
    const qn_tail_token *end = w->tails->tokens + w->tails->lists[node->id + 1];
    for (; t < end; t++) {
        if (t->chars < w->least || t->chars > w->most) continue;
        w->bits[t->id >> 5] |= UINT32_C(1) << (t->id & 31);
        if (w->is_noting) push_id(w->k, &w->k->noted, t->id);
    }
}

/* Tokens of a subtree that need a step by step look. */
static void suspect(const walk *w, uint32_t node)
{
    for (uint32_t i = node; i < w->nodes[node].end; i++) {
        int32_t id = w->nodes[i].id;
        if (id < 0) continue;
        if (!w->tails) {
            for (; id >= 0; id = w->k->v->same[id]) push_id(w->k, &w->k->suspects, id);
            continue;
        }
        for (uint32_t t = w->tails->lists[id]; t < w->tails->lists[id + 1]; t++)
            push_id(w->k, &w->k->suspects, w->tails->tokens[t].id);
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

/* What comes behind a lexeme: the state of what is below it, or behind a key. */
typedef struct {
    uint32_t state;
    int is_suspect; /* tokens that close it need a look, too */
    uint64_t taken
        [4]; /* first bytes of texts that it may not be, where it began inside of a token; '"': no text */
} after;

static void add_byte(uint64_t set[4], uint8_t byte)
{
    set[byte / 64] |= UINT64_C(1) << byte % 64;
}

static int has_byte(const uint64_t set[4], uint8_t byte)
{
    return set[byte / 64] >> byte % 64 & 1;
}

/* The first bytes of the texts that an other key or a unique item may not be. Those of items begin with a quote. */
static void list_taken_bytes(const qn_machine *m, const qn_frame *f, uint64_t bytes[4])
{
    const qn_frame *below = &m->frames[f->parent];
    for (uint32_t i = below->d; i; i = m->links[i].parent) {
        uint32_t text = m->links[i].value, first = 0;
        for (; text && (f->kind == QN_FRAME_OTHER_KEY || m->links[text].parent); text = m->links[text].parent)
            first = text;
        add_byte(bytes, first ? (uint8_t)m->links[first].value : '"');
    }
    if (f->kind != QN_FRAME_OTHER_KEY) return;
    const qn_object_rule *o = &m->program->objects[below->a];
    for (uint32_t i = 0; i < o->n_members; i++)
        add_byte(bytes, o->members[i].n ? (uint8_t)o->members[i].name[0] : '"');
}

/* 1: the text of a key or an item that lies whole between two nodes' depths may be taken. */
static int may_be_taken(const walk *w, const after *behind, uint32_t begin, uint32_t end)
{
    uint8_t text[4] = {'"'};
    uint32_t escape = 0;
    int n = 0;
    for (uint32_t i = begin + 1; i < end && n == 0; i++) qn_escape_decode(&escape, w->path[i], text, &n);
    return has_byte(behind->taken, text[0]);
}

/* A closed lexeme: what comes behind it. */
static uint32_t state_behind(qn_machine *m, const qn_frame *f, uint32_t behind)
{
    if (f->kind != QN_FRAME_NAMED_KEY && f->kind != QN_FRAME_ITEM) return behind;
    m->n_out = 0;
    qn_step_close(m, f);
    return qn_machine_state(m, m->out, m->n_out);
}

/* The bytes that may come next inside of the names of a key, and perhaps some that may not. */
static void list_key_bytes(qn_machine *m, const qn_frame *f, uint64_t bytes[4])
{
    const qn_object_rule *o = &m->program->objects[m->frames[f->parent].a];
    add_byte(bytes, '"');
    add_byte(bytes, '\\');
    for (uint32_t k = f->a; k < f->b; k++) {
        const qn_member *x = &o->members[o->sorted[k]];
        if (x->n > f->d) add_byte(bytes, (uint8_t)x->name[f->d]);
    }
}

/* 0: the byte may not come next in a key of few names. */
static int may_key_take(const qn_machine *m, const qn_frame *f, uint8_t byte)
{
    enum { FEW = 4 };
    if (f->c > 3 || f->b - f->a > FEW || byte == '"' || byte == '\\') return 1;
    const qn_object_rule *o = &m->program->objects[m->frames[f->parent].a];
    for (uint32_t k = f->a; k < f->b; k++) {
        const qn_member *x = &o->members[o->sorted[k]];
        if (x->n > f->d && (uint8_t)x->name[f->d] == byte) return 1;
    }
    return 0;
}

/* A lexeme over the subtree of a node, frame by frame. */
static void walk_lexeme(walk *w, const qn_frame *f, after behind, uint32_t node)
{
    qn_machine *m = w->k->m;
    uint32_t end = w->nodes[node].end, depth = w->nodes[node].depth;
    uint64_t bytes[4] = {0};
    int is_key = f->kind == QN_FRAME_NAMED_KEY && f->c <= 3;
    if (is_key) list_key_bytes(m, f, bytes);
    w->places[depth] = *f;
    for (uint32_t i = node + 1; i < end && m->status == QN_OK;) {
        const qn_trie_node *n = &w->nodes[i];
        qn_frame *at = &w->places[n->depth];
        const qn_frame *from = at - 1;
        if (is_key && (n->depth == depth + 1 ? !has_byte(bytes, n->byte) : !may_key_take(m, from, n->byte))) {
            i = n->end;
            continue;
        }
        if (qn_lex_accepts(m, from)) {
            uint32_t to = qn_machine_step(m, behind.state, n->byte);
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
        w->path[n->depth] = n->byte;
        switch (qn_lex_step(m, at, n->byte)) {
        case QN_LEX_DEAD:
            i = n->end;
            break;
        case QN_LEX_IN:
            mark(w, n);
            i++;
            break;
        case QN_LEX_CLOSE: {
            if (may_be_taken(w, &behind, depth, n->depth)) {
                suspect(w, i);
                i = n->end;
                break;
            }
            uint32_t to = state_behind(m, at, behind.state);
            if (m->is_suspect || behind.is_suspect) {
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

static int32_t key_dfa(const qn_machine *m, const qn_frame *f)
{
    int32_t dfa = m->program->objects[m->frames[f->parent].a].classes[f->a].dfa;
    return dfa == QN_NONE ? m->program->all : dfa;
}

/* What comes behind the other keys that are at the same place as stacks[i]: those of all alternatives, whose stacks
 * are taken out. In loose walks such keys differ in nothing but that. */
static after take_keys(qn_machine *m, uint32_t *stacks, uint32_t n, uint32_t i)
{
    const qn_frame f = m->frames[stacks[i]];
    after behind = {0};
    m->n_out = 0;
    for (uint32_t j = i; j < n; j++) {
        if (!stacks[j]) continue;
        const qn_frame g = m->frames[stacks[j]];
        if (g.kind != f.kind || g.b != f.b || g.c != f.c || key_dfa(m, &g) != key_dfa(m, &f)) continue;
        qn_step_close(m, &g);
        list_taken_bytes(m, &g, behind.taken);
        if (j != i) stacks[j] = 0;
    }
    behind.is_suspect = m->is_suspect;
    m->is_suspect = 0;
    behind.state = qn_machine_state(m, m->out, m->n_out);
    return behind;
}

typedef void on_lexeme(walk *w, const qn_frame *f, after behind, uint32_t node);

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
        after behind = {0};
        if (f.kind <= QN_FRAME_STRING) behind.state = take_group(m, stacks, n, i, below);
        if (f.kind == QN_FRAME_OTHER_KEY && lexeme == walk_lexeme) behind = take_keys(m, stacks, n, i);
        if (f.kind == QN_FRAME_ITEM && lexeme == walk_lexeme) list_taken_bytes(m, &f, behind.taken);
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

static void forget_strings(qn_masks *k)
{
    for (uint32_t i = 0; i < k->n_strings; i++) qn_string_mask_clear(&k->strings[i].mask);
    for (uint32_t i = 0; i < k->n_facts; i++) qn_string_facts_clear(&k->facts[i].facts);
    k->n_strings = k->n_facts = 0;
    k->string_bytes = 0;
}

/* Borrowed until the next call. NULL: memory is out. */
static qn_string_facts *facts_of(qn_masks *k, int32_t dfa)
{
    for (uint32_t i = 0; i < k->n_facts; i++)
        if (k->facts[i].dfa == dfa) return &k->facts[i].facts;
    if (k->n_facts == k->facts_room) {
        uint32_t more = k->facts_room ? 2 * k->facts_room : 4;
        qn_kept_facts *p = qn_realloc(k->facts, more * sizeof *p);
        if (!p) return NULL;
        k->facts = p;
        k->facts_room = more;
    }
    qn_kept_facts *f = &k->facts[k->n_facts];
    *f = (qn_kept_facts){.dfa = dfa};
    if (qn_string_facts_init(&f->facts, k->m->program->dfas[dfa]) != QN_OK) {
        qn_string_facts_clear(&f->facts);
        return NULL;
    }
    k->n_facts++;
    k->string_bytes += f->facts.n_bytes;
    return &f->facts;
}

static qn_status make_string(qn_masks *k, qn_kept_string *s)
{
    const qn_dfa *d = k->m->program->dfas[s->dfa];
    qn_string_facts *f = facts_of(k, s->dfa);
    if (!f) return QN_E_NOMEM;
    size_t before = f->n_bytes;
    qn_status status = qn_string_mask_make(k->v, k->free, d, f, s->state, &s->mask);
    k->string_bytes += f->n_bytes - before;
    return status;
}

static const qn_string_mask *string_mask(qn_masks *k, int32_t dfa, int32_t state)
{
    const qn_dfa *d = k->m->program->dfas[dfa];
    if (d->flags[state] & QN_DFA_ALL) return &k->free->mask;
    for (uint32_t i = 0; i < k->n_strings; i++)
        if (k->strings[i].dfa == dfa && k->strings[i].state == state) return &k->strings[i].mask;
    if (k->string_bytes > k->bytes_max) forget_strings(k);
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
    k->m->status = make_string(k, s);
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
    walk t = {.k = w->k,
              .nodes = s->nodes,
              .tails = s,
              .least = least,
              .most = most,
              .bits = w->bits,
              .is_noting = w->is_noting};
    t.places = qn_alloc_array((size_t)s->depth_max + 2, sizeof *t.places + 1);
    if (!t.places) {
        w->k->m->status = QN_E_NOMEM;
        return;
    }
    t.path = (uint8_t *)(t.places + s->depth_max + 2);
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

/* Clears the tokens that close one of the texts of a place, or after which nothing but such texts is left. */
static void clear_taken(const clearing *c, qn_taken_place from, uint32_t node)
{
    const qn_vocabulary *v = c->w->k->v;
    const qn_text_ref *texts = c->list->texts;
    for (uint32_t i = node + 1; i < v->nodes[node].end; i = v->nodes[i].end) {
        uint8_t text[4];
        int n;
        qn_taken_place at = from;
        qn_escape_result r = qn_escape_decode(&at.escape, v->nodes[i].byte, text, &n);
        if (r == QN_ESCAPE_DEAD) continue;
        if (r == QN_ESCAPE_CLOSE) {
            if (texts[at.begin].n == at.depth) clear_subtree(c->w, i);
            continue;
        }
        for (int x = 0; x < n; x++, at.depth++) {
            while (at.begin < at.end &&
                   (texts[at.begin].n <= at.depth || (uint8_t)texts[at.begin].text[at.depth] < text[x]))
                at.begin++;
            uint32_t last = at.begin;
            while (last < at.end && (uint8_t)texts[last].text[at.depth] == text[x]) last++;
            at.end = last;
            at.state = qn_dfa_step(c->dfa, at.state, text[x]);
        }
        if (at.begin >= at.end || at.state == 0) continue;
        if (c->counts && !qn_taken_leaves_some(c->list, &at, c->dfa, c->counts))
            clear_subtree(c->w, i);
        else
            clear_taken(c, at, i);
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
    const qn_taken_place all = {
        .end = list.n, .depth = list.n_prefix, .state = (int32_t)f->b, .escape = f->c};
    if (list.n && m->status == QN_OK) clear_taken(&c, all, 0);
    qn_taken_free(&list);
}

/* A key or an item that may be any text, at a character's begin, of need to room more characters. Only tokens that
 * close it can be those of a taken text: the others need no look. */
static void add_any_kept(walk *w, const qn_frame *f, uint32_t behind, int64_t need, int64_t room)
{
    qn_masks *k = w->k;
    uint32_t *all = w->bits;
    if (room >= 0 || !w->has_free_inside) add_string(w, qn_taken_dfa(k->m, f), (int32_t)f->b, 0, need, room);
    w->has_free_inside |= room < 0;
    w->bits = k->spare;
    w->is_noting = 1;
    k->noted.n = 0;
    walk_tails(w, &k->free->mask, behind, (uint32_t)(need > 0 ? need : 0),
               room >= 0 ? (uint32_t)room : UINT32_MAX);
    clear_all_taken(w, f);
    w->bits = all;
    w->is_noting = 0;
    for (uint32_t i = 0; i < k->noted.n; i++) {
        uint32_t word = (uint32_t)k->noted.ids[i] >> 5, bit = UINT32_C(1) << (k->noted.ids[i] & 31);
        w->bits[word] |= k->spare[word] & bit;
        k->spare[word] &= ~bit;
    }
}

static void root_kept(walk *w, const qn_frame *f)
{
    qn_masks *k = w->k;
    qn_machine *m = k->m;
    int32_t dfa = qn_taken_dfa(m, f);
    int64_t need = 0, room = -1;
    after behind = {0};
    if (f->kind == QN_FRAME_ITEM) {
        const qn_string_rule *rule = &m->program->strings[f->a];
        need = rule->min - f->e;
        if (rule->max >= 0) room = rule->max - f->e;
    }
    m->n_out = 0;
    qn_step_close(m, f);
    behind.is_suspect = m->is_suspect;
    m->is_suspect = 0;
    behind.state = qn_machine_state(m, m->out, m->n_out);
    if (m->status != QN_OK) return;
    if (f->c == 0 && m->program->dfas[dfa]->flags[f->b] & QN_DFA_ALL) {
        add_any_kept(w, f, behind.state, need, room);
        return;
    }
    uint32_t *all = w->bits;
    w->bits = k->spare;
    if (f->c == 0)
        add_string(w, dfa, (int32_t)f->b, behind.state, need, room);
    else
        walk_lexeme(w, f, behind, 0);
    clear_all_taken(w, f);
    w->bits = all;
    if (m->status == QN_OK) unite(w->bits, k->spare, k->v->n_words);
    memset(k->spare, 0, k->v->n_words * sizeof *k->spare);
}

static void root_lexeme(walk *w, const qn_frame *f, after behind, uint32_t node)
{
    if (f->kind == QN_FRAME_OTHER_KEY || f->kind == QN_FRAME_ITEM)
        root_kept(w, f);
    else if (f->kind == QN_FRAME_STRING && f->c == 0)
        root_string(w, f, behind.state);
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
    k->suspects.n = 0;
    m->is_loose = 1;
    m->is_suspect = 0;
    walk w = {.k = k, .nodes = k->v->nodes, .places = k->places, .path = k->path, .bits = bits};
    walk_parts(&w, state, 0, root_lexeme);
    m->is_loose = 0;
    m->is_suspect = 0;
    for (uint32_t i = 0; i < k->suspects.n && m->status == QN_OK; i++) {
        int32_t id = k->suspects.ids[i];
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
        memcpy(bits, k->kept[slot], n);
        return QN_OK;
    }
    QN_TRY(make(k, state, bits));
    if (k->kept_next == k->n_kept && k->n_kept < k->kept_room) {
        uint32_t *p = qn_alloc(n + 1);
        if (!p) return QN_OK; /* it is made again when it is wanted again */
        k->kept[k->n_kept++] = p;
    }
    if (k->n_kept == 0) return QN_OK;
    if (k->kept_next >= k->n_kept) k->kept_next = 0;
    slot = (int32_t)k->kept_next++;
    memcpy(k->kept[slot], bits, n);
    k->kept_state[slot] = state;
    k->m->states[state].mask = slot;
    return QN_OK;
}

qn_status qn_masks_init(qn_masks *k, qn_vocabulary *v, qn_machine *m, size_t bytes_max)
{
    *k = (qn_masks){.v = v, .m = m, .bytes_max = bytes_max / 2};
    QN_TRY(qn_vocabulary_strings(v, &k->free));
    const size_t room = bytes_max / 2 / (v->n_words * sizeof(uint32_t) + 1);
    k->kept_room = (uint32_t)(room < KEPT_MAX ? room : KEPT_MAX);
    k->kept = qn_alloc_array((size_t)k->kept_room + 1, sizeof *k->kept);
    k->kept_state = qn_alloc_array((size_t)k->kept_room + 1, sizeof *k->kept_state);
    k->places = qn_alloc_array(v->depth_max + 2, sizeof *k->places);
    k->path = qn_alloc(v->depth_max + 2);
    k->spare = qn_calloc(v->n_words + 1, sizeof *k->spare);
    return k->kept && k->kept_state && k->places && k->path && k->spare ? QN_OK : QN_E_NOMEM;
}

void qn_masks_clear(qn_masks *k)
{
    forget_strings(k);
    qn_free(k->strings);
    qn_free(k->facts);
    for (uint32_t i = 0; i < k->n_kept; i++) qn_free(k->kept[i]);
    qn_free(k->kept);
    qn_free(k->kept_state);
    qn_free(k->places);
    qn_free(k->path);
    qn_free(k->spare);
    qn_free(k->suspects.ids);
    qn_free(k->noted.ids);
    *k = (qn_masks){0};
}

size_t qn_masks_bytes(const qn_masks *k)
{
    return k->n_kept * k->v->n_words * sizeof **k->kept +
           k->kept_room * (sizeof *k->kept + sizeof *k->kept_state) + k->string_bytes +
           k->strings_room * sizeof *k->strings + k->facts_room * sizeof *k->facts +
           (k->suspects.room + k->noted.room) * sizeof *k->noted.ids +
           (k->v->depth_max + 2) * (sizeof *k->places + 1) + k->v->n_words * sizeof *k->spare;
}

void qn_masks_forget(qn_masks *k)
{
    for (uint32_t i = 0; i < k->n_kept; i++) k->kept_state[i] = 0;
    k->kept_next = 0;
}
