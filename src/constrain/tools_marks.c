/* Calls whose arguments stand between marks, one by one or as one JSON object. What is offered for a parameter is
 * what the reader of calls (text/tools/tool_reader_tags.c) makes the same value of. */
#include <stdio.h>
#include <string.h>

#include "constrain/automaton/regex.h"
#include "constrain/tools_parts.h"
#include "text/tools/tool_types.h"

typedef struct {
    qn_tools *k;
    const qn_tool *tool;
    const char *end; /* of the value, with its line end */
    qn_call_reading reading;
    uint32_t next;
} parameter;

/* ---- values -------------------------------------------------------------------------------------------- */

/* Takes the texts of a pattern out of d, which is taken over, also on failure. */
static qn_status leave_out(const qn_constraint *c, qn_dfa *d, const char *pattern, qn_dfa **out)
{
    qn_dfa *some = NULL;
    qn_status status = qn_dfa_regex(pattern, strlen(pattern), QN_REGEX_WHOLE, &c->program.dfa_limits, &some);
    if (status == QN_OK) status = qn_dfa_subtract(d, some, &c->program.dfa_limits, out);
    qn_dfa_release(some);
    qn_dfa_release(d);
    return status;
}

/* The texts of a string that the reader takes for that string. */
static qn_status spelt_dfa(const parameter *x, int32_t string, qn_dfa **out)
{
    static const char cdata[] = "<!\\[CDATA\\[[\\s\\S]*", null[] = "[ \\t\\r\\n]*null[ \\t\\r\\n]*",
                      brackets[] = "[ \\t\\r\\n]*([{\\[(]|<\\|)[\\s\\S]*",
                      words[] =
                          "[ \\t\\r\\n]*([tT]rue|[fF]alse|null|None|-?[0-9]+(\\.[0-9]+)?([eE][-+]?[0-9]+)?)"
                          "[ \\t\\r\\n]*";
    qn_constraint *c = x->k->c;
    qn_dfa *d = NULL;
    QN_TRY(qn_string_dfa(c, string, &d));
    QN_TRY(qn_without(c, d, x->k->f->marks.parameter_close, &d));
    QN_TRY(qn_without(c, d, x->k->f->close, &d));
    if (!x->k->f->marks.value_lines) QN_TRY(leave_out(c, d, cdata, &d));
    if (x->reading == QN_READS_TEXT_OR_NULL) QN_TRY(leave_out(c, d, null, &d));
    if (x->reading == QN_READS_GUESS) {
        QN_TRY(leave_out(c, d, brackets, &d));
        QN_TRY(leave_out(c, d, words, &d));
    }
    *out = d;
    return QN_OK;
}

static qn_status put_free_string(const parameter *x, uint32_t *out)
{
    const qn_constraint *c = x->k->c;
    const qn_call_marks *m = &x->k->f->marks;
    qn_marks marks = {.n = 0};
    qn_marks_add(c, &marks, x->end, QN_SCAN_END);
    if (m->value_lines) qn_marks_add(c, &marks, m->parameter_close, QN_SCAN_BAD);
    qn_marks_add(c, &marks, x->k->f->close, QN_SCAN_BAD);
    if (!m->value_lines) qn_marks_add(c, &marks, "<![CDATA[", QN_SCAN_BAD_FIRST);
    return qn_put_free(x->k->c, &marks, QN_FREE_TEXT, x->next, out);
}

static qn_status put_string(const parameter *x, int32_t string, uint32_t closed, uint32_t *some)
{
    const qn_string_rule *r = &x->k->c->program.strings[string];
    uint32_t node;
    if (x->reading == QN_READS_TEXT && r->dfa == x->k->c->program.all && r->min == 0 && r->max < 0) {
        QN_TRY(put_free_string(x, &node));
        return qn_put_other(x->k->c, node, some);
    }
    qn_dfa *d;
    QN_TRY(spelt_dfa(x, string, &d));
    if (qn_dfa_is_empty(d)) {
        qn_dfa_release(d);
        return QN_OK;
    }
    QN_TRY(qn_put_dfa(x->k->c, d, closed, &node));
    return qn_put_other(x->k->c, node, some);
}

/* A parameter's text: strings as they are, everything else as JSON. *out 0: no text is read as its value. */
static qn_status put_parameter_value(const parameter *x, int32_t value, uint32_t *out)
{
    qn_constraint *c = x->k->c;
    const qn_value *expanded;
    uint32_t closed, node;
    *out = 0;
    QN_TRY(qn_put_text(c, x->end, x->next, &closed));
    QN_TRY(qn_program_value(&c->program, value, &expanded));
    qn_value v = *expanded;
    for (uint32_t i = 0; i < v.n_strings; i++) QN_TRY(put_string(x, v.strings[i], closed, out));
    if (x->reading == QN_READS_TEXT_OR_NULL && (v.literals >> QN_LITERAL_NULL & 1)) {
        QN_TRY(qn_put_text(c, "null", closed, &node));
        QN_TRY(qn_put_other(c, node, out));
    }
    if (x->reading != QN_READS_GUESS) return QN_OK;
    if (v.literals || v.number != QN_NONE || v.n_objects || v.n_arrays) {
        int32_t rest;
        v.n_strings = 0;
        QN_TRY(qn_program_add_value(&c->program, &rest));
        c->program.values[rest] = v;
        QN_TRY(qn_put_value(c, rest, closed, &node));
        QN_TRY(qn_put_other(c, node, out));
    }
    return QN_OK;
}

/* ---- parameters ---------------------------------------------------------------------------------------- */

/* What stands before a parameter's value, in two halves around its name, and behind it. */
typedef struct {
    char before[200], after[200], end[200];
} frame;

static qn_status frame_of(const qn_call_format *f, frame *w)
{
    const qn_call_marks *m = &f->marks;
    int is_keys = f->body == QN_CALL_KEYS, is_quoted = !is_keys && m->parameter_name_end[0] == '"';
    int n[3];
    n[0] = snprintf(w->before, sizeof w->before, "%s", is_keys ? m->key_open : m->parameter_open);
    n[1] = is_keys ? snprintf(w->after, sizeof w->after, "%s\n%s", m->key_close, m->parameter_open)
                   : snprintf(w->after, sizeof w->after, "%s%s%s", m->parameter_name_end,
                              is_quoted ? ">" : "", m->value_lines ? "\n" : "");
    n[2] = snprintf(w->end, sizeof w->end, "%s%s", m->value_lines ? "\n" : "", m->parameter_close);
    for (int i = 0; i < 3; i++)
        if (n[i] < 0 || n[i] >= (int)sizeof w->end)
            return qn_fail(QN_E_UNSUPPORTED, "tools: the marks of the family %s are too long", f->name);
    return QN_OK;
}

/* Parameters of any names, each before `next`, if an object has no others; *out is then where they begin. */
static qn_status put_any_parameters(qn_tools *k, const qn_tool *t, const frame *w, const qn_object_rule *o,
                                    uint32_t next, uint32_t *out)
{
    static const char name[] = "[A-Za-z0-9_.\\-]{1,64}";
    qn_constraint *c = k->c;
    uint32_t again, some = next;
    QN_TRY(qn_put_choice(c, next, next, &again));
    for (uint32_t i = 0; i < o->n_classes; i++) {
        parameter x = {.k = k, .tool = t, .end = w->end, .next = again};
        uint32_t value, node;
        qn_dfa *d;
        QN_TRY(put_parameter_value(&x, o->classes[i].value, &value));
        if (!value) continue;
        QN_TRY(qn_names_dfa(c, name, o->classes[i].dfa, &d));
        if (!d) continue;
        QN_TRY(qn_put_text(c, w->after, value, &node));
        QN_TRY(qn_put_dfa(c, d, node, &node));
        QN_TRY(qn_put_text(c, w->before, node, &node));
        QN_TRY(qn_put_line_end(c, node, &node));
        QN_TRY(qn_put_choice(c, node, some, &some));
    }
    c->program.graph[again].other = some;
    *out = again;
    return QN_OK;
}

static qn_status put_member(qn_tools *k, const qn_tool *t, const frame *w, const qn_member *m, uint32_t *at)
{
    qn_constraint *c = k->c;
    parameter x = {.k = k, .tool = t, .end = w->end, .reading = qn_call_reads(t->parameters, m->name, m->n)};
    uint32_t node;
    QN_TRY(qn_put_line_end(c, *at, &x.next));
    QN_TRY(put_parameter_value(&x, m->value, &node));
    if (!node && m->is_required)
        return qn_fail(QN_E_UNSUPPORTED,
                       "tools: no text in a call of \"%.64s\" is read as a value of its parameter \"%.64s\"",
                       t->name, m->name);
    if (!node) return QN_OK;
    QN_TRY(qn_put_text(c, w->after, node, &node));
    QN_TRY(qn_put_bytes(c, m->name, m->n, node, &node));
    QN_TRY(qn_put_text(c, w->before, node, &node));
    if (m->is_required)
        *at = node;
    else
        QN_TRY(qn_put_choice(c, node, *at, at));
    return QN_OK;
}

/* The parameters of one form of the arguments in their order, each required one, then the end of the call. */
static qn_status put_object(qn_tools *k, const qn_tool *t, const frame *w, int32_t object, uint32_t next,
                            uint32_t *out)
{
    const qn_object_rule *prepared;
    QN_TRY(qn_program_prepare(&k->c->program, object, &prepared));
    qn_object_rule o = *prepared;
    int64_t n_required = 0, n_possible = 0;
    for (uint32_t i = 0; i < o.n_members; i++)
        n_required += o.members[i].is_required, n_possible += o.members[i].is_possible;
    if (o.due || o.min > n_required || (o.max >= 0 && o.max < (o.n_members ? n_possible : INT64_MAX)))
        return qn_fail(
            QN_E_UNSUPPORTED,
            "tools: which arguments of \"%.64s\" there are depends on others, or on how many: that is "
            "not enforced in calls as the family %s writes them",
            t->name, k->f->name);
    *out = next;
    if (o.n_members == 0) return put_any_parameters(k, t, w, &o, next, out);
    for (uint32_t i = o.n_members; i-- > 0;)
        if (o.members[i].is_possible) QN_TRY(put_member(k, t, w, &o.members[i], out));
    return QN_OK;
}

static qn_status put_parameters(qn_tools *k, const qn_tool *t, uint32_t next, uint32_t *out)
{
    frame w;
    qn_value v = k->c->program.values[t->arguments];
    uint32_t some = 0;
    QN_TRY(frame_of(k->f, &w));
    for (uint32_t i = 0; i < v.n_objects; i++) {
        uint32_t node;
        QN_TRY(put_object(k, t, &w, v.objects[i], next, &node));
        QN_TRY(qn_put_other(k->c, node, &some));
    }
    *out = some;
    return QN_OK;
}

/* ---- calls --------------------------------------------------------------------------------------------- */

qn_status qn_put_marked_call(qn_tools *k, const qn_tool *t, uint32_t next, uint32_t *out)
{
    const qn_call_marks *m = &k->f->marks;
    qn_buf begin = {0};
    uint32_t node = next;
    qn_status status = QN_OK;
    if (k->f->body == QN_CALL_NAMED) {
        qn_buf_printf(&begin, "%s%s%s", m->call_open ? m->call_open : "", t->name, m->name_end);
        if (m->call_close) status = qn_put_text(k->c, m->call_close, next, &node);
        if (status == QN_OK) status = qn_put_value(k->c, t->arguments, node, &node);
    } else if (k->f->body == QN_CALL_KEYS) {
        qn_buf_printf(&begin, "%s", t->name);
        status = put_parameters(k, t, next, &node);
        if (status == QN_OK) status = qn_put_line_end(k->c, node, &node);
    } else {
        qn_buf_printf(&begin, "%s%s%s%s", k->f->is_bare ? "" : m->call_open, t->name, m->name_end,
                      m->name_end[0] == '"' ? ">" : "");
        if (!k->f->is_bare) status = qn_put_text(k->c, m->call_close, next, &node);
        if (status == QN_OK) status = put_parameters(k, t, node, &node);
        if (status == QN_OK) status = qn_put_line_end(k->c, node, &node);
    }
    if (status == QN_OK) status = begin.status;
    if (status == QN_OK) status = qn_put_text(k->c, begin.data, node, out);
    qn_buf_free(&begin);
    return status;
}
