/* What a byte makes of a stack. */
#include "constrain/machine/machine.h"

enum { DEPTH_MAX = 90, INDENT = 8 }; /* brackets inside brackets; spaces for each at a line's begin */

static void push(qn_machine *m, const qn_frame *f)
{
    uint32_t stack = qn_machine_stack(m, f);
    if (stack) qn_step_give(m, stack);
}

static void step_lexeme(qn_machine *m, const qn_frame *f, uint8_t byte)
{
    qn_frame to = *f;
    switch (qn_lex_step(m, &to, byte)) {
    case QN_LEX_DEAD:
        break;
    case QN_LEX_IN:
        push(m, &to);
        break;
    case QN_LEX_CLOSE:
        qn_step_close(m, &to);
        break;
    }
    if (qn_lex_accepts(m, f)) qn_step_stack(m, f->parent, byte);
}

void qn_step_value(qn_machine *m, const qn_frame *f, uint8_t byte)
{
    const qn_value *v;
    if (m->status == QN_OK) m->status = qn_program_value(m->program, (int32_t)f->a, &v);
    if (m->status != QN_OK) return;
    /* Copied: what is pushed may move the tables. */
    qn_value value = *v;
    qn_frame to = {.parent = f->parent, .depth = f->depth};
    switch (byte) {
    case '"':
        to.kind = f->flags & QN_FLAG_UNIQUE ? QN_FRAME_ITEM : QN_FRAME_STRING;
        /* Texts of strings begin with a quote, so none is that of a number or literal. */
        if (to.kind == QN_FRAME_ITEM) to.d = qn_machine_link(m, 0, '"');
        for (uint32_t i = 0; i < value.n_strings; i++) {
            to.a = (uint32_t)value.strings[i];
            to.b = (uint32_t)m->program->dfas[m->program->strings[to.a].dfa]->start;
            if (to.kind == QN_FRAME_STRING || qn_other_key_begins(m, &to)) push(m, &to);
        }
        break;
    case '{':
    case '[':
        to.kind = byte == '{' ? QN_FRAME_OBJECT : QN_FRAME_ARRAY;
        to.depth = (uint16_t)(f->depth + 1);
        if (to.depth > DEPTH_MAX) break;
        for (uint32_t i = 0; i < (byte == '{' ? value.n_objects : value.n_arrays); i++) {
            to.a = (uint32_t)(byte == '{' ? value.objects[i] : value.arrays[i]);
            push(m, &to);
        }
        break;
    case 'n':
    case 't':
    case 'f':
        to.kind = QN_FRAME_LITERAL;
        to.a = byte == 'n' ? QN_LITERAL_NULL : byte == 't' ? QN_LITERAL_TRUE : QN_LITERAL_FALSE;
        to.b = 1;
        if (!(value.literals >> to.a & 1)) break;
        if (f->flags & QN_FLAG_UNIQUE) to.parent = qn_literal_item(m, f->parent, (qn_literal)to.a);
        if (to.parent || !(f->flags & QN_FLAG_UNIQUE)) push(m, &to);
        break;
    default:
        if (value.number == QN_NONE || (byte != '-' && (byte < '0' || byte > '9'))) break;
        if (f->flags & QN_FLAG_UNIQUE) {
            to.kind = QN_FRAME_NUMBER;
            to.a = (uint32_t)m->program->arrays[m->frames[f->parent].a].unique_numbers;
            to.b = (uint32_t)m->program->dfas[to.a]->start;
            qn_step_number_item(m, &to, byte);
            break;
        }
        to.kind = QN_FRAME_TEXT;
        to.a = (uint32_t)value.number;
        to.b = (uint32_t)qn_dfa_step(m->program->dfas[to.a], m->program->dfas[to.a]->start, byte);
        if (to.b) push(m, &to);
    }
}

int qn_step_space(qn_machine *m, const qn_frame *f, uint8_t byte)
{
    if (byte != ' ' && byte != '\n') return 0;
    qn_frame to = *f;
    if (byte == '\n') {
        if (f->space != QN_SPACE_NONE) return 1;
        to.space = QN_SPACE_LINE;
    } else {
        if (f->space == QN_SPACE_ONE || f->space >= QN_SPACE_LINE + INDENT * f->depth) return 1;
        to.space++;
        if (f->space == QN_SPACE_NONE) to.space = QN_SPACE_ONE;
    }
    push(m, &to);
    return 1;
}

static void step_graph(qn_machine *m, uint32_t node, uint32_t below, uint8_t byte)
{
    const qn_graph_node *g = &m->program->graph[node];
    if (m->status != QN_OK) return;
    uint16_t depth = m->frames[below].depth;
    qn_frame next = {.parent = below, .kind = QN_FRAME_GRAPH, .depth = depth, .a = g->next};
    qn_frame to = {.depth = depth, .a = (uint32_t)g->what};
    switch (g->kind) {
    case QN_GRAPH_END:
        qn_step_stack(m, below, byte);
        return;
    case QN_GRAPH_CHOICE:
        step_graph(m, g->next, below, byte);
        step_graph(m, m->program->graph[node].other, below, byte);
        return;
    case QN_GRAPH_TEXT:
        to.kind = QN_FRAME_TEXT;
        break;
    case QN_GRAPH_FREE:
        to.kind = QN_FRAME_FREE;
        to.b = m->program->scans[g->what].start;
        to.e = (uint32_t)g->may_end;
        break;
    case QN_GRAPH_MARK:
        to.kind = QN_FRAME_MARK;
        break;
    case QN_GRAPH_PART:
        next.depth++;
        if (depth >= DEPTH_MAX && (byte == '{' || byte == '[')) return;
        break;
    case QN_GRAPH_GRAMMAR:
        to.kind = QN_FRAME_GRAMMAR;
        to.a = qn_grammar_run_start(m->program->grammar);
        break;
    default:
        to.kind = QN_FRAME_VALUE;
    }
    /* The end needs no frame below. */
    to.parent = m->program->graph[next.a].kind == QN_GRAPH_END ? below : qn_machine_stack(m, &next);
    if (g->kind == QN_GRAPH_PART) {
        step_graph(m, to.a, to.parent, byte);
        return;
    }
    if (to.kind == QN_FRAME_TEXT) to.b = (uint32_t)m->program->dfas[to.a]->start;
    if (to.kind == QN_FRAME_VALUE)
        qn_step_value(m, &to, byte);
    else
        step_lexeme(m, &to, byte);
}

void qn_step_stack(qn_machine *m, uint32_t stack, uint8_t byte)
{
    if (stack == 0 || m->status != QN_OK) return;
    qn_frame f = m->frames[stack];
    switch (f.kind) {
    case QN_FRAME_VALUE:
        if (f.phase == 1 && byte == ' ') {
            f.phase = 0;
            push(m, &f);
        } else {
            qn_step_value(m, &f, byte);
        }
        break;
    case QN_FRAME_COLON:
        if (byte == ':') {
            f.kind = QN_FRAME_VALUE;
            f.phase = 1;
            push(m, &f);
        }
        break;
    case QN_FRAME_OBJECT:
        qn_step_object(m, &f, byte);
        break;
    case QN_FRAME_ARRAY:
        qn_step_array(m, &f, byte);
        break;
    case QN_FRAME_NUMBER:
        qn_step_number_item(m, &f, byte);
        break;
    case QN_FRAME_GRAPH:
        step_graph(m, f.a, f.parent, byte);
        break;
    default:
        step_lexeme(m, &f, byte);
    }
}
