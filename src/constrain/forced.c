/* Text that must come next, and the tokenizer's own tokens for it. */
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "constrain/constraint_parts.h"

enum { FORCED_BYTES_MAX = 4096, NOTHING = -1 };

/* ---- the byte that must come --------------------------------------------------------------------------- */

/* Spelling is not free here: no escape and no space where none is needed. Every function gives the byte that
 * each way on begins with, or NOTHING if there are several or the text may end. */
static int stack_byte(qn_machine *m, uint32_t stack, int has_lines);

static void meet(int *byte, int other, int *is_first)
{
    *byte = *is_first ? other : *byte == other ? other : NOTHING;
    *is_first = 0;
}

static int dfa_byte(const qn_dfa *d, int32_t state, int *is_leaf)
{
    int byte = NOTHING, n = 0;
    for (int b = 0; b < 256 && n < 2; b++)
        if (qn_dfa_step(d, state, (uint8_t)b)) byte = b, n++;
    *is_leaf = n == 0;
    return n == 1 ? byte : NOTHING;
}

static int string_byte(const qn_dfa *d, int32_t state, uint32_t escape, int is_full)
{
    if (escape > 3) return NOTHING;
    int is_leaf, accepts = (d->flags[state] & QN_DFA_ACCEPTS) != 0;
    if (is_full) return accepts && escape == 0 ? '"' : NOTHING;
    int byte = dfa_byte(d, state, &is_leaf);
    if (is_leaf) return '"';
    if (accepts || byte < 0x20 || byte == '"' || byte == '\\') return NOTHING;
    return byte;
}

static int value_byte(qn_machine *m, int32_t value)
{
    const qn_value *v;
    if (m->status == QN_OK) m->status = qn_program_value(m->program, value, &v);
    if (m->status != QN_OK) return NOTHING;
    int byte = NOTHING, is_first = 1, is_leaf;
    if (v->n_strings) meet(&byte, '"', &is_first);
    if (v->n_objects) meet(&byte, '{', &is_first);
    if (v->n_arrays) meet(&byte, '[', &is_first);
    if (v->literals >> QN_LITERAL_NULL & 1) meet(&byte, 'n', &is_first);
    if (v->literals >> QN_LITERAL_TRUE & 1) meet(&byte, 't', &is_first);
    if (v->literals >> QN_LITERAL_FALSE & 1) meet(&byte, 'f', &is_first);
    if (v->number != QN_NONE) {
        const qn_dfa *d = m->program->dfas[v->number];
        meet(&byte, dfa_byte(d, d->start, &is_leaf), &is_first);
    }
    return byte;
}

static int node_byte(qn_machine *m, uint32_t node, uint32_t below, int has_lines)
{
    const qn_graph_node *g = &m->program->graph[node];
    switch (g->kind) {
    case QN_GRAPH_END:
        return stack_byte(m, below, has_lines);
    case QN_GRAPH_VALUE:
        return value_byte(m, g->what);
    case QN_GRAPH_PART:
        return node_byte(m, (uint32_t)g->what, 0, has_lines);
    case QN_GRAPH_MARK:
        return (uint8_t)m->program->markers[g->what].text[0];
    case QN_GRAPH_TEXT: {
        const qn_dfa *d = m->program->dfas[g->what];
        int is_leaf;
        return d->flags[d->start] & QN_DFA_ACCEPTS ? NOTHING : dfa_byte(d, d->start, &is_leaf);
    }
    case QN_GRAPH_CHOICE: {
        uint32_t other = g->other;
        int byte = node_byte(m, g->next, below, has_lines);
        return byte != NOTHING && byte == node_byte(m, other, below, has_lines) ? byte : NOTHING;
    }
    default:
        return NOTHING;
    }
}

static int stack_byte(qn_machine *m, uint32_t stack, int has_lines)
{
    if (stack == 0) return NOTHING;
    qn_frame f = m->frames[stack];
    const qn_program *p = m->program;
    int is_leaf;
    switch (f.kind) {
    case QN_FRAME_TEXT: {
        const qn_dfa *d = p->dfas[f.a];
        int byte = dfa_byte(d, (int32_t)f.b, &is_leaf);
        if (!(d->flags[f.b] & QN_DFA_ACCEPTS)) return byte;
        return is_leaf ? stack_byte(m, f.parent, has_lines) : NOTHING;
    }
    case QN_FRAME_MARK:
        return (uint8_t)p->markers[f.a].text[f.b];
    case QN_FRAME_LITERAL:
        return qn_literal_text((qn_literal)f.a)[f.b];
    case QN_FRAME_STRING: {
        const qn_string_rule *r = &p->strings[f.a];
        return string_byte(p->dfas[r->dfa], (int32_t)f.b, f.c, r->max >= 0 && f.d >= r->max);
    }
    case QN_FRAME_VALUE:
        return value_byte(m, (int32_t)f.a);
    case QN_FRAME_COLON:
        return ':';
    case QN_FRAME_OBJECT:
        return f.space > QN_SPACE_ONE ? NOTHING : qn_object_byte(m, &f, has_lines);
    case QN_FRAME_ARRAY: {
        if (f.space > QN_SPACE_ONE) return NOTHING;
        int32_t value;
        int byte = qn_array_byte(m, &f, has_lines, &value);
        return value == QN_NONE ? byte : value_byte(m, value);
    }
    case QN_FRAME_NAMED_KEY:
        return qn_named_key_byte(m, &f);
    case QN_FRAME_OTHER_KEY: {
        int32_t dfa = p->objects[m->frames[f.parent].a].classes[f.a].dfa;
        if (dfa == QN_NONE) return NOTHING;
        return string_byte(p->dfas[dfa], (int32_t)f.b, f.c, 0);
    }
    case QN_FRAME_GRAPH:
        return node_byte(m, f.a, f.parent, has_lines);
    default:
        return NOTHING;
    }
}

static int state_byte(qn_machine *m, uint32_t state, int has_lines)
{
    int byte = NOTHING, is_first = 1;
    for (uint32_t i = 0; i < m->states[state].n; i++) {
        meet(&byte, stack_byte(m, m->stacks[m->states[state].begin + i], has_lines), &is_first);
        if (byte == NOTHING) return NOTHING;
    }
    return byte;
}

static qn_status forced_text(qn_constraint *c, uint32_t state, int has_lines, qn_buf *out)
{
    qn_machine *m = &c->machine;
    while (out->length < FORCED_BYTES_MAX) {
        int byte = state_byte(m, state, has_lines);
        if (m->status != QN_OK) return m->status;
        if (byte == NOTHING) break;
        state = qn_machine_step(m, state, (uint8_t)byte);
        if (!state) break;
        qn_buf_putc(out, (char)byte);
    }
    return out->status;
}

/* ---- its tokens ---------------------------------------------------------------------------------------- */

/* The tokenizer's ids of text and a tail, in the middle of a text. */
static qn_status encode(const qn_vocabulary *v, const qn_buf *text, const char *tail, int32_t **ids,
                        size_t *n, size_t *at)
{
    const qn_text_segment parts[] = {
        {.text = "x", .n = 1}, {.text = text->data, .n = text->length}, {.text = tail, .n = strlen(tail)}};
    const size_t cut = 1;
    return qn_tokenizer_encode_cut(v->tokenizer, parts, 3, 0, &cut, 1, at, ids, n);
}

/* How many of the ids of a text stay whatever comes: those that are the same before each of many tails. */
static qn_status keep_certain(const qn_vocabulary *v, const qn_buf *text, int32_t *ids, size_t *n)
{
    static const char *const tails[] = {"a",   "A",   "1", " ",    " a", "\n",       "\n\n",        "\"",
                                        "\",", "\":", ":", ": \"", ",",  ", \"",     "}",           "]",
                                        "},",  "-",   "_", ".",    "'",  "\xc3\xa9", "\xe4\xb8\xad"};
    for (size_t i = 0; i < sizeof tails / sizeof tails[0] && *n; i++) {
        int32_t *others;
        size_t n_others, at, k = 0;
        QN_TRY(encode(v, text, tails[i], &others, &n_others, &at));
        while (k < *n && at + k < n_others && ids[k] == others[at + k]) k++;
        *n = k;
        qn_free(others);
    }
    return QN_OK;
}

static int is_plain(const qn_vocabulary *v, int32_t id)
{
    size_t n;
    const char *text = qn_vocabulary_text(v, id, &n);
    return n > 0 && (uint8_t)text[0] != QN_VOCABULARY_SPECIAL;
}

qn_status qn_matcher_forced(qn_matcher *m, int32_t *ids, size_t n_max, size_t *n_ids)
{
    qn_constraint *c = m->c;
    qn_buf text = {0};
    size_t kept = 0;
    if (m->has_ended || n_max == 0) {
        *n_ids = 0;
        return QN_OK;
    }
    pthread_mutex_lock(&c->lock);
    c->machine.status = QN_OK;
    c->machine.is_loose = 0;
    c->machine.n_steps = c->machine.steps_max;
    qn_status status = forced_text(c, m->state, m->has_lines, &text);
    pthread_mutex_unlock(&c->lock);
    if (status == QN_OK && text.length && qn_utf8_valid_prefix(text.data, text.length) == text.length &&
        (uint8_t)text.data[0] != QN_VOCABULARY_SPECIAL) {
        int32_t *all = NULL;
        size_t n = 0, at = 0;
        status = encode(c->v, &text, "", &all, &n, &at);
        if (status == QN_OK) {
            size_t n_certain = n - at;
            status = keep_certain(c->v, &text, all + at, &n_certain);
            while (kept < n_certain && kept < n_max && is_plain(c->v, all[at + kept])) kept++;
            if (status == QN_OK) memcpy(ids, all + at, kept * sizeof *ids);
        }
        qn_free(all);
    }
    qn_buf_free(&text);
    if (status == QN_OK) *n_ids = kept;
    return status;
}
