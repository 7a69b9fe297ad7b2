#include "constrain/machine/machine.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Frames are compared and hashed as bytes. */
_Static_assert(sizeof(qn_frame) == 32, "a frame has no padding");

static void fail(qn_machine *m, qn_status status)
{
    if (m->status == QN_OK) m->status = status;
}

static int grow(qn_machine *m, void **table, uint32_t n, uint32_t more, uint32_t *room, size_t size)
{
    if (n + more <= *room) return 1;
    if (n > UINT32_MAX / 4) {
        fail(m, qn_fail(QN_E_FULL, "the constraint has too many states"));
        return 0;
    }
    uint32_t target = *room ? *room : 64;
    while (target < n + more) target *= 2;
    void *p = qn_realloc(*table, (size_t)target * size);
    if (!p) {
        fail(m, QN_E_NOMEM);
        return 0;
    }
    *table = p;
    *room = target;
    return 1;
}

/* ---- hash indexes -------------------------------------------------------------------------------------- */

static uint32_t mix(uint64_t h)
{
    h ^= h >> 32;
    h *= UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(h >> 32);
}

static uint32_t hash_words(const void *bytes, size_t n_words)
{
    uint64_t h = UINT64_C(0x243f6a8885a308d3), w;
    for (size_t i = 0; i < n_words; i++) {
        memcpy(&w, (const char *)bytes + 8 * i, 8);
        h = (h ^ w) * UINT64_C(0xff51afd7ed558ccd);
        h ^= h >> 29;
    }
    return mix(h);
}

typedef uint32_t hash_of(const qn_machine *m, uint32_t number);

static uint32_t frame_hash(const qn_machine *m, uint32_t i)
{
    return hash_words(&m->frames[i], 4);
}

static uint32_t link_hash(const qn_machine *m, uint32_t i)
{
    return hash_words(&m->links[i], 1);
}

static uint32_t state_hash(const qn_machine *m, uint32_t i)
{
    return m->states[i].hash;
}

static int index_room(qn_machine *m, qn_intern_index *x, hash_of *hash, uint32_t first)
{
    if ((x->n + 1) * 4 <= x->n_slots * 3) return 1;
    uint32_t n_slots = x->n_slots ? 2 * x->n_slots : 128;
    uint32_t *slots = qn_calloc(n_slots, sizeof *slots);
    if (!slots) {
        fail(m, QN_E_NOMEM);
        return 0;
    }
    for (uint32_t i = first; i < first + x->n; i++) {
        uint32_t at = hash(m, i) & (n_slots - 1);
        while (slots[at]) at = (at + 1) & (n_slots - 1);
        slots[at] = i + 1;
    }
    qn_free(x->slots);
    x->slots = slots;
    x->n_slots = n_slots;
    return 1;
}

/* ---- interning ----------------------------------------------------------------------------------------- */

uint32_t qn_machine_stack(qn_machine *m, const qn_frame *f)
{
    if (m->status != QN_OK || !index_room(m, &m->frame_index, frame_hash, 1)) return 0;
    uint32_t mask = m->frame_index.n_slots - 1, at = hash_words(f, 4) & mask;
    for (; m->frame_index.slots[at]; at = (at + 1) & mask) {
        uint32_t i = m->frame_index.slots[at] - 1;
        if (memcmp(&m->frames[i], f, sizeof *f) == 0) return i;
    }
    qn_frame copy = *f;
    if (!grow(m, (void **)&m->frames, m->n_frames, 1, &m->frames_room, sizeof *m->frames)) return 0;
    m->frames[m->n_frames] = copy;
    m->frame_index.slots[at] = m->n_frames + 1;
    m->frame_index.n++;
    return m->n_frames++;
}

uint32_t qn_machine_link(qn_machine *m, uint32_t parent, uint32_t value)
{
    if (m->status != QN_OK || !index_room(m, &m->link_index, link_hash, 1)) return 0;
    qn_link l = {parent, value};
    uint32_t mask = m->link_index.n_slots - 1, at = hash_words(&l, 1) & mask;
    for (; m->link_index.slots[at]; at = (at + 1) & mask) {
        uint32_t i = m->link_index.slots[at] - 1;
        if (m->links[i].parent == parent && m->links[i].value == value) return i;
    }
    if (!grow(m, (void **)&m->links, m->n_links, 1, &m->links_room, sizeof *m->links)) return 0;
    m->links[m->n_links] = l;
    m->link_index.slots[at] = m->n_links + 1;
    m->link_index.n++;
    return m->n_links++;
}

static int by_number(const void *x, const void *y)
{
    uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;
    return a < b ? -1 : a > b;
}

static uint32_t sort_unique(uint32_t *stacks, uint32_t n)
{
    if (n < 2) return n;
    if (n <= 12) {
        for (uint32_t i = 1; i < n; i++) {
            uint32_t x = stacks[i], k = i;
            for (; k && stacks[k - 1] > x; k--) stacks[k] = stacks[k - 1];
            stacks[k] = x;
        }
    } else {
        qsort(stacks, n, sizeof *stacks, by_number);
    }
    uint32_t kept = 1;
    for (uint32_t i = 1; i < n; i++)
        if (stacks[i] != stacks[kept - 1]) stacks[kept++] = stacks[i];
    return kept;
}

uint32_t qn_machine_state(qn_machine *m, uint32_t *stacks, uint32_t n)
{
    if (m->status != QN_OK || n == 0) return 0;
    n = sort_unique(stacks, n);
    uint64_t h = n;
    for (uint32_t i = 0; i < n; i++) h = (h ^ stacks[i]) * UINT64_C(0xff51afd7ed558ccd) + (h >> 31);
    uint32_t hash = mix(h);
    if (!index_room(m, &m->state_index, state_hash, 1)) return 0;
    uint32_t mask = m->state_index.n_slots - 1, at = hash & mask;
    for (; m->state_index.slots[at]; at = (at + 1) & mask) {
        uint32_t i = m->state_index.slots[at] - 1;
        const qn_state *s = &m->states[i];
        if (s->hash == hash && s->n == n && memcmp(m->stacks + s->begin, stacks, n * sizeof *stacks) == 0)
            return i;
    }
    if (!grow(m, (void **)&m->states, m->n_states, 1, &m->states_room, sizeof *m->states) ||
        !grow(m, (void **)&m->stacks, m->n_stacks, n, &m->stacks_room, sizeof *m->stacks))
        return 0;
    memcpy(m->stacks + m->n_stacks, stacks, n * sizeof *stacks);
    m->states[m->n_states] = (qn_state){.begin = m->n_stacks, .n = n, .hash = hash, .mask = -1};
    m->n_stacks += n;
    m->state_index.slots[at] = m->n_states + 1;
    m->state_index.n++;
    return m->n_states++;
}

/* ---- the machine --------------------------------------------------------------------------------------- */

enum { MOVES_FIRST = 1 << 10, MOVES_MAX = 1 << 16 };

static qn_status begin(qn_machine *m)
{
    m->frames = qn_calloc(64, sizeof *m->frames);
    m->states = qn_calloc(64, sizeof *m->states);
    m->links = qn_calloc(64, sizeof *m->links);
    m->moves = qn_calloc(MOVES_FIRST, sizeof *m->moves);
    m->frames_room = m->states_room = m->links_room = 64;
    m->n_frames = m->n_states = m->n_links = 1;
    m->n_moves = MOVES_FIRST;
    return m->frames && m->states && m->links && m->moves ? QN_OK : QN_E_NOMEM;
}

qn_status qn_machine_init(qn_machine *m, qn_program *p)
{
    *m = (qn_machine){.program = p, .steps_max = INT64_MAX, .n_steps = INT64_MAX};
    return begin(m);
}

void qn_machine_clear(qn_machine *m)
{
    qn_free(m->frames);
    qn_free(m->frame_index.slots);
    qn_free(m->stacks);
    qn_free(m->states);
    qn_free(m->state_index.slots);
    qn_free(m->links);
    qn_free(m->link_index.slots);
    qn_free(m->moves);
    qn_free(m->out);
    *m = (qn_machine){.program = m->program, .steps_max = m->steps_max};
}

size_t qn_machine_bytes(const qn_machine *m)
{
    return m->frames_room * sizeof *m->frames + m->stacks_room * sizeof *m->stacks +
           m->states_room * sizeof *m->states + m->links_room * sizeof *m->links +
           m->n_moves * sizeof *m->moves + m->out_room * sizeof *m->out +
           (m->frame_index.n_slots + m->state_index.n_slots + m->link_index.n_slots) * sizeof(uint32_t);
}

static uint32_t copy_link(qn_machine *to, const qn_machine *from, uint32_t link, uint32_t *seen)
{
    if (link == 0 || seen[link]) return link ? seen[link] : 0;
    /* Chains are as long as texts: they are copied from their beginning, without recursion. */
    uint32_t n = 0;
    for (uint32_t i = link; i && !seen[i]; i = from->links[i].parent) n++;
    for (; n; n--) {
        uint32_t i = link;
        for (uint32_t k = 1; k < n; k++) i = from->links[i].parent;
        uint32_t parent = from->links[i].parent;
        seen[i] = qn_machine_link(to, parent ? seen[parent] : 0, from->links[i].value);
        if (to->status != QN_OK) return 0;
    }
    return seen[link];
}

/* Lists of keys hold texts as values. */
static uint32_t copy_keys(qn_machine *to, const qn_machine *from, uint32_t keys, uint32_t *seen,
                          uint32_t *seen_keys)
{
    uint32_t chain = 0, n = 0;
    for (uint32_t i = keys; i && !seen_keys[i]; i = from->links[i].parent) n++;
    for (; n; n--) {
        uint32_t i = keys;
        for (uint32_t k = 1; k < n; k++) i = from->links[i].parent;
        uint32_t parent = from->links[i].parent;
        uint32_t text = copy_link(to, from, from->links[i].value, seen);
        chain = qn_machine_link(to, parent ? seen_keys[parent] : 0, text);
        if (to->status != QN_OK) return 0;
        seen_keys[i] = chain;
    }
    return keys ? seen_keys[keys] : 0;
}

/* Forgets states of the grammar that no frame of a kept state is in; moved [n_frames] gets their new numbers.
 * Such frames are on top of their stacks. */
static qn_status sweep_grammar(qn_machine *m, uint32_t **keep, size_t n, uint32_t *moved)
{
    size_t n_all = 0, k = 0;
    if (!m->program->grammar) return QN_OK;
    for (size_t i = 0; i < n; i++) n_all += m->states[*keep[i]].n;
    uint32_t **list = qn_alloc_array(n_all + 1, sizeof *list);
    if (!list) return QN_E_NOMEM;
    for (size_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < m->states[*keep[i]].n; j++) {
            uint32_t top = m->stacks[m->states[*keep[i]].begin + j];
            if (m->frames[top].kind != QN_FRAME_GRAMMAR || moved[top]) continue;
            moved[top] = m->frames[top].a;
            list[k++] = &moved[top];
        }
    qn_status status = qn_grammar_run_sweep(m->program->grammar, list, k);
    qn_free(list);
    return status;
}

qn_status qn_machine_sweep(qn_machine *m, uint32_t **keep, size_t n)
{
    qn_machine fresh = *m;
    fresh.frames = NULL, fresh.stacks = NULL, fresh.states = NULL, fresh.links = NULL, fresh.moves = NULL;
    fresh.out = NULL;
    fresh.n_frames = fresh.n_stacks = fresh.n_states = fresh.n_links = fresh.n_out = 0;
    fresh.stacks_room = fresh.out_room = 0;
    fresh.frame_index = fresh.state_index = fresh.link_index = (qn_intern_index){0};
    fresh.status = QN_OK;
    qn_status status = begin(&fresh);
    uint32_t *seen_frames = qn_calloc(m->n_frames, sizeof *seen_frames);
    uint32_t *seen = qn_calloc(m->n_links, sizeof *seen);
    uint32_t *seen_keys = qn_calloc(m->n_links, sizeof *seen_keys);
    uint32_t *states = qn_calloc(n ? n : 1, sizeof *states);
    uint32_t *moved = qn_calloc(m->n_frames, sizeof *moved);
    uint32_t *list = qn_calloc(m->n_stacks + 1, sizeof *list);
    if (!seen_frames || !seen || !seen_keys || !states || !list || !moved) status = QN_E_NOMEM;
    if (status == QN_OK) status = sweep_grammar(m, keep, n, moved);
    for (size_t i = 0; status == QN_OK && i < n; i++) {
        const qn_state *s = &m->states[*keep[i]];
        for (uint32_t k = 0; k < s->n && fresh.status == QN_OK; k++) {
            /* A frame's number is above its parent's, so a pass upwards over the chain suffices. */
            uint32_t depth = 0, top = m->stacks[s->begin + k];
            for (uint32_t x = top; x && !seen_frames[x]; x = m->frames[x].parent) depth++;
            for (; depth; depth--) {
                uint32_t x = top;
                for (uint32_t j = 1; j < depth; j++) x = m->frames[x].parent;
                qn_frame f = m->frames[x];
                f.parent = f.parent ? seen_frames[f.parent] : 0;
                if (f.kind == QN_FRAME_GRAMMAR) f.a = moved[x];
                if (f.kind == QN_FRAME_OBJECT) f.d = copy_keys(&fresh, m, f.d, seen, seen_keys);
                if (f.kind == QN_FRAME_ARRAY) f.d = copy_keys(&fresh, m, f.d, seen, seen_keys);
                if (f.kind == QN_FRAME_OTHER_KEY || f.kind == QN_FRAME_ITEM || f.kind == QN_FRAME_NUMBER)
                    f.d = copy_link(&fresh, m, f.d, seen);
                seen_frames[x] = qn_machine_stack(&fresh, &f);
            }
            list[k] = top ? seen_frames[top] : 0;
        }
        states[i] = qn_machine_state(&fresh, list, s->n);
        status = fresh.status;
    }
    /* The grammar's states have moved: frames that are left know the old numbers. */
    m->is_broken = status != QN_OK && m->program->grammar;
    if (status == QN_OK) {
        for (size_t i = 0; i < n; i++) *keep[i] = states[i];
        qn_machine old = *m;
        *m = fresh;
        fresh = old;
    }
    qn_free(seen_frames);
    qn_free(seen);
    qn_free(seen_keys);
    qn_free(states);
    qn_free(list);
    qn_free(moved);
    qn_machine_clear(&fresh);
    return status;
}

/* ---- steps --------------------------------------------------------------------------------------------- */

void qn_step_give(qn_machine *m, uint32_t stack)
{
    if (m->status != QN_OK) return;
    if (!grow(m, (void **)&m->out, m->n_out, 1, &m->out_room, sizeof *m->out)) return;
    m->out[m->n_out++] = stack;
}

uint32_t qn_machine_start(qn_machine *m)
{
    qn_frame f = {.kind = QN_FRAME_GRAPH, .a = m->program->start};
    uint32_t stack = qn_machine_stack(m, &f);
    return m->status == QN_OK ? qn_machine_state(m, &stack, 1) : 0;
}

static void remember(qn_machine *m, uint64_t key, uint32_t to)
{
    if (m->n_moves < MOVES_MAX && m->n_states > m->n_moves / 4) {
        uint32_t n = 4 * m->n_moves;
        qn_move *moves = qn_calloc(n, sizeof *moves);
        if (moves) {
            for (uint32_t i = 0; i < m->n_moves; i++)
                if (m->moves[i].key) moves[mix(m->moves[i].key) & (n - 1)] = m->moves[i];
            qn_free(m->moves);
            m->moves = moves;
            m->n_moves = n;
        }
    }
    m->moves[mix(key) & (m->n_moves - 1)] = (qn_move){key, to};
}

uint32_t qn_machine_step(qn_machine *m, uint32_t state, uint8_t byte)
{
    if (state == 0 || m->status != QN_OK) return 0;
    /* Loose and recorded steps differ. */
    uint64_t key = ((uint64_t)state << 9 | (uint64_t)(m->is_loose != 0) << 8 | byte) + 1;
    const qn_move *known = &m->moves[mix(key) & (m->n_moves - 1)];
    if (known->key == key) return known->to;
    if (--m->n_steps < 0) {
        fail(m, qn_fail(QN_E_UNSUPPORTED, "the constraint needs too many steps"));
        return 0;
    }
    m->n_out = 0;
    int was_suspect = m->is_suspect;
    m->is_suspect = 0;
    for (uint32_t i = 0; i < m->states[state].n; i++)
        qn_step_stack(m, m->stacks[m->states[state].begin + i], byte);
    uint32_t to = qn_machine_state(m, m->out, m->n_out);
    if (m->status == QN_OK && !m->is_suspect) remember(m, key, to);
    m->is_suspect |= was_suspect;
    return to;
}

static int stack_may_end(const qn_machine *m, uint32_t stack);

static int node_may_end(const qn_machine *m, uint32_t node, uint32_t below)
{
    for (;;) {
        const qn_graph_node *g = &m->program->graph[node];
        switch (g->kind) {
        case QN_GRAPH_END:
            return stack_may_end(m, below);
        case QN_GRAPH_TEXT: {
            const qn_dfa *d = m->program->dfas[g->what];
            if (!(d->flags[d->start] & QN_DFA_ACCEPTS)) return 0;
            node = g->next;
            break;
        }
        case QN_GRAPH_CHOICE:
            if (node_may_end(m, g->other, below)) return 1;
            node = g->next;
            break;
        case QN_GRAPH_FREE:
            return g->may_end;
        case QN_GRAPH_GRAMMAR: {
            const qn_grammar_run *r = m->program->grammar;
            return qn_grammar_run_may_end(r, qn_grammar_run_start(r));
        }
        default:
            return 0;
        }
    }
}

static int stack_may_end(const qn_machine *m, uint32_t stack)
{
    while (stack) {
        const qn_frame *f = &m->frames[stack];
        if (f->kind == QN_FRAME_GRAPH) return node_may_end(m, f->a, f->parent);
        if (f->kind == QN_FRAME_FREE && f->e) return 1;
        if (f->kind == QN_FRAME_GRAMMAR) return qn_grammar_run_may_end(m->program->grammar, f->a);
        if (f->kind != QN_FRAME_TEXT || !qn_lex_accepts(m, f)) return 0;
        stack = f->parent;
    }
    return 1;
}

int qn_machine_may_end(const qn_machine *m, uint32_t state)
{
    const qn_state *s = &m->states[state];
    for (uint32_t i = 0; i < s->n; i++)
        if (stack_may_end(m, m->stacks[s->begin + i])) return 1;
    return 0;
}
