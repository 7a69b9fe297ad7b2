#include "constrain/machine/taken.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "constrain/machine/escape.h"

static size_t length_of(const qn_machine *m, uint32_t text)
{
    size_t n = 0;
    for (; text; text = m->links[text].parent) n++;
    return n;
}

static void spell(const qn_machine *m, uint32_t text, char *out, size_t n)
{
    for (; n > 0; text = m->links[text].parent) out[--n] = (char)m->links[text].value;
}

static int by_text(const void *x, const void *y)
{
    const qn_text_ref *a = x, *b = y;
    int c = memcmp(a->text, b->text, a->n < b->n ? a->n : b->n);
    return c ? c : a->n < b->n ? -1 : a->n > b->n;
}

qn_status qn_taken_list(const qn_machine *m, const qn_frame *f, qn_taken *out)
{
    const qn_frame *below = &m->frames[f->parent];
    const qn_object_rule *o = f->kind == QN_FRAME_OTHER_KEY ? &m->program->objects[below->a] : NULL;
    size_t n_prefix = length_of(m, f->d), n_bytes = n_prefix, n = o ? o->n_members : 0;
    for (uint32_t i = below->d; i; i = m->links[i].parent, n++) n_bytes += length_of(m, m->links[i].value);
    qn_taken t = {.texts = qn_alloc_array(n + 1, sizeof *t.texts),
                  .bytes = qn_alloc(n_bytes + 1),
                  .n_prefix = n_prefix};
    if (!t.texts || !t.bytes) {
        qn_taken_free(&t);
        return QN_E_NOMEM;
    }
    spell(m, f->d, t.bytes, n_prefix);
    char *at = t.bytes + n_prefix;
    for (uint32_t i = below->d; i; i = m->links[i].parent) {
        size_t length = length_of(m, m->links[i].value);
        spell(m, m->links[i].value, at, length);
        if (length >= n_prefix && memcmp(at, t.bytes, n_prefix) == 0)
            t.texts[t.n++] = (qn_text_ref){at, length};
        at += length;
    }
    for (uint32_t i = 0; o && i < o->n_members; i++)
        if (o->members[i].n >= n_prefix && memcmp(o->members[i].name, t.bytes, n_prefix) == 0)
            t.texts[t.n++] = (qn_text_ref){o->members[i].name, o->members[i].n};
    if (t.n) qsort(t.texts, t.n, sizeof *t.texts, by_text);
    *out = t;
    return QN_OK;
}

void qn_taken_free(qn_taken *t)
{
    qn_free(t->texts);
    qn_free(t->bytes);
    *t = (qn_taken){0};
}

int32_t qn_taken_dfa(const qn_machine *m, const qn_frame *f)
{
    if (f->kind == QN_FRAME_NUMBER) return (int32_t)f->a;
    if (f->kind != QN_FRAME_OTHER_KEY) return m->program->strings[f->a].dfa;
    int32_t dfa = m->program->objects[m->frames[f->parent].a].classes[f->a].dfa;
    return dfa == QN_NONE ? m->program->all : dfa;
}

int qn_taken_leaves_some(const qn_taken *t, const qn_taken_place *at, const qn_dfa *d, const uint32_t *counts)
{
    const int inside = at->escape > 3;
    uint32_t n = 0;
    if (!inside && counts[at->state] > at->end - at->begin) return 1;
    for (uint32_t i = at->begin; i < at->end; i++) {
        const qn_text_ref *text = &t->texts[i];
        int32_t s = at->state;
        if (inside && !qn_escape_may_begin(at->escape, text->text + at->depth, text->n - at->depth)) continue;
        for (size_t k = at->depth; k < text->n && s; k++) s = qn_dfa_step(d, s, (uint8_t)text->text[k]);
        n += (d->flags[s] & QN_DFA_ACCEPTS) != 0;
    }
    return inside ? qn_escape_leaves_more(d, counts, at->state, at->escape, n) : counts[at->state] > n;
}

/* ---- steps --------------------------------------------------------------------------------------------- */

static int text_is(const qn_machine *m, uint32_t text, const char *name, uint32_t n)
{
    while (n && text && m->links[text].value == (uint8_t)name[n - 1]) {
        n--;
        text = m->links[text].parent;
    }
    return n == 0 && text == 0;
}

int qn_other_key_is_taken(qn_machine *m, const qn_frame *f)
{
    const qn_frame *below = &m->frames[f->parent];
    for (uint32_t i = below->d; i; i = m->links[i].parent)
        if (m->links[i].value == f->d) return 1;
    if (f->kind != QN_FRAME_OTHER_KEY) return 0;
    const qn_object_rule *o = &m->program->objects[below->a];
    for (uint32_t i = 0; i < o->n_members; i++)
        if (text_is(m, f->d, o->members[i].name, o->members[i].n)) return 1;
    return 0;
}

int qn_other_key_alive(qn_machine *m, const qn_frame *f)
{
    int32_t dfa = qn_taken_dfa(m, f);
    const qn_dfa *d = m->program->dfas[dfa];
    if (m->is_loose || d->flags[f->b] & QN_DFA_ALL) return 1;
    const uint32_t *counts;
    if (m->status == QN_OK) m->status = qn_program_counts(m->program, dfa, &counts);
    if (m->status != QN_OK) return 0;
    const uint32_t escape = f->kind == QN_FRAME_NUMBER ? 0 : f->c;
    if (escape <= 3 && counts[f->b] == UINT32_MAX) return 1;
    qn_taken t;
    m->status = qn_taken_list(m, f, &t);
    if (m->status != QN_OK) return 0;
    const qn_taken_place at = {.end = t.n, .depth = t.n_prefix, .state = (int32_t)f->b, .escape = escape};
    int alive = qn_taken_leaves_some(&t, &at, d, counts);
    qn_taken_free(&t);
    return alive;
}

int qn_other_key_begins(qn_machine *m, const qn_frame *f)
{
    int32_t dfa = qn_taken_dfa(m, f);
    if (m->program->dfas[dfa]->flags[f->b] & QN_DFA_ALL || qn_texts_never_end(m, dfa)) return 1;
    if (m->frames[f->parent].flags & QN_FLAG_UNRECORDED) {
        m->is_suspect = 1;
        return 0;
    }
    int was_loose = m->is_loose;
    m->is_loose = 0;
    int alive = qn_other_key_alive(m, f);
    m->is_loose = was_loose;
    return alive;
}

int qn_texts_never_end(qn_machine *m, int32_t dfa)
{
    const uint32_t *counts;
    if (m->status == QN_OK) m->status = qn_program_counts(m->program, dfa, &counts);
    return m->status == QN_OK && counts[m->program->dfas[dfa]->start] == UINT32_MAX;
}
