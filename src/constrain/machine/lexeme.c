/* Lexemes: strings, keys, literals, texts, byte by byte. */
#include <string.h>

#include "constrain/machine/escape.h"
#include "constrain/machine/machine.h"

static const char *const literals[QN_LITERAL_COUNT] = {"null", "true", "false"};

const char *qn_literal_text(qn_literal which)
{
    return literals[which];
}

static qn_lex_result step_free(qn_machine *m, qn_frame *f, uint8_t byte)
{
    const qn_scan *s = &m->program->scans[f->a];
    f->b = s->next[f->b * s->n_classes + s->class_of[byte]];
    return f->b == QN_SCAN_CLOSED ? QN_LEX_CLOSE : f->b == QN_SCAN_DEAD ? QN_LEX_DEAD : QN_LEX_IN;
}

static qn_lex_result step_string(qn_machine *m, qn_frame *f, uint8_t byte)
{
    const qn_string_rule *rule = &m->program->strings[f->a];
    const qn_dfa *d = m->program->dfas[rule->dfa];
    int32_t state = (int32_t)f->b;
    uint32_t escape = f->c;
    switch (qn_escape_step(d, &state, &escape, byte)) {
    case QN_ESCAPE_DEAD:
        return QN_LEX_DEAD;
    case QN_ESCAPE_CLOSE:
        return (d->flags[state] & QN_DFA_ACCEPTS) && f->d >= rule->min ? QN_LEX_CLOSE : QN_LEX_DEAD;
    case QN_ESCAPE_IN:
        /* An escape that begins is a character to come. */
        if (f->c == 0 && rule->max >= 0 && f->d >= rule->max) return QN_LEX_DEAD;
        break;
    default:
        if (rule->max >= 0 && f->d >= rule->max) return QN_LEX_DEAD;
        if (rule->max >= 0 || f->d < rule->min) f->d++;
    }
    f->b = (uint32_t)state;
    f->c = escape;
    return QN_LEX_IN;
}

static qn_lex_result step_named(qn_machine *m, qn_frame *f, uint8_t byte)
{
    const qn_object_rule *o = &m->program->objects[m->frames[f->parent].a];
    uint8_t text[4];
    int n;
    uint32_t escape = f->c;
    qn_escape_result r = qn_escape_decode(&escape, byte, text, &n);
    if (r == QN_ESCAPE_DEAD) return QN_LEX_DEAD;
    if (r == QN_ESCAPE_CLOSE) return qn_named_key_closes(m, f) ? QN_LEX_CLOSE : QN_LEX_DEAD;
    for (int i = 0; i < n; i++) {
        /* The names of the range share f->d bytes and are sorted: a byte more takes a part of it. */
        while (f->a < f->b) {
            const qn_member *x = &o->members[o->sorted[f->a]];
            if (x->n > f->d && (uint8_t)x->name[f->d] >= text[i]) break;
            f->a++;
        }
        uint32_t end = f->a;
        while (end < f->b && (uint8_t)o->members[o->sorted[end]].name[f->d] == text[i]) end++;
        f->b = end;
        f->d++;
    }
    f->c = escape;
    return f->a < f->b && qn_named_key_alive(m, f) ? QN_LEX_IN : QN_LEX_DEAD;
}

/* Keys and items whose text is kept. */
static qn_lex_result step_kept(qn_machine *m, qn_frame *f, int32_t dfa, uint8_t byte)
{
    const qn_dfa *d = m->program->dfas[dfa];
    int32_t state = (int32_t)f->b;
    uint32_t escape = f->c;
    qn_escape_result r = qn_escape_step(d, &state, &escape, byte);
    if (r == QN_ESCAPE_DEAD) return QN_LEX_DEAD;
    if (f->kind == QN_FRAME_ITEM) {
        const qn_string_rule *rule = &m->program->strings[f->a];
        if (r == QN_ESCAPE_CLOSE ? f->e < rule->min : rule->max >= 0 && f->c == 0 && f->e >= rule->max)
            return QN_LEX_DEAD;
        if (r == QN_ESCAPE_BEGUN || r == QN_ESCAPE_CHAR) f->e += rule->max >= 0 || f->e < rule->min;
    }
    if (r == QN_ESCAPE_CLOSE) {
        if (!(d->flags[state] & QN_DFA_ACCEPTS)) return QN_LEX_DEAD;
        return !m->is_loose && qn_other_key_is_taken(m, f) ? QN_LEX_DEAD : QN_LEX_CLOSE;
    }
    if (!m->is_loose) {
        uint8_t text[4];
        int n;
        uint32_t old = f->c;
        qn_escape_decode(&old, byte, text, &n);
        for (int i = 0; i < n; i++) f->d = qn_machine_link(m, f->d, text[i]);
    }
    f->b = (uint32_t)state;
    f->c = escape;
    return qn_other_key_alive(m, f) ? QN_LEX_IN : QN_LEX_DEAD;
}

qn_lex_result qn_lex_step(qn_machine *m, qn_frame *f, uint8_t byte)
{
    switch (f->kind) {
    case QN_FRAME_TEXT: {
        int32_t to = qn_dfa_step(m->program->dfas[f->a], (int32_t)f->b, byte);
        if (to == 0) return QN_LEX_DEAD;
        f->b = (uint32_t)to;
        return QN_LEX_IN;
    }
    case QN_FRAME_GRAMMAR: {
        uint32_t to = 0;
        if (m->status == QN_OK) m->status = qn_grammar_run_step(m->program->grammar, f->a, byte, &to);
        f->a = to;
        return to && m->status == QN_OK ? QN_LEX_IN : QN_LEX_DEAD;
    }
    case QN_FRAME_FREE:
        return step_free(m, f, byte);
    case QN_FRAME_MARK: {
        const qn_marker *k = &m->program->markers[f->a];
        if ((uint8_t)k->text[f->b] != byte) return QN_LEX_DEAD;
        return ++f->b == k->n ? QN_LEX_CLOSE : QN_LEX_IN;
    }
    case QN_FRAME_LITERAL: {
        const char *text = literals[f->a];
        if ((uint8_t)text[f->b] != byte) return QN_LEX_DEAD;
        f->b++;
        return text[f->b] ? QN_LEX_IN : QN_LEX_CLOSE;
    }
    case QN_FRAME_STRING:
        return step_string(m, f, byte);
    case QN_FRAME_NAMED_KEY:
        return step_named(m, f, byte);
    case QN_FRAME_OTHER_KEY: {
        const qn_object_rule *o = &m->program->objects[m->frames[f->parent].a];
        int32_t dfa = o->classes[f->a].dfa;
        return step_kept(m, f, dfa == QN_NONE ? m->program->all : dfa, byte);
    }
    default:
        return step_kept(m, f, m->program->strings[f->a].dfa, byte);
    }
}

int qn_lex_accepts(const qn_machine *m, const qn_frame *f)
{
    return f->kind == QN_FRAME_TEXT && (m->program->dfas[f->a]->flags[f->b] & QN_DFA_ACCEPTS) != 0;
}

void qn_step_close(qn_machine *m, const qn_frame *f)
{
    if (f->kind == QN_FRAME_NAMED_KEY || f->kind == QN_FRAME_OTHER_KEY)
        qn_close_key(m, f);
    else if (f->kind == QN_FRAME_ITEM)
        qn_close_item(m, f);
    else
        qn_step_give(m, f->parent);
}
