/* Calls as Python has them: NAME(key=value, key=value), in [...] or one a line. Values are written as JSON, which
 * the reader of calls (text/tools/tool_reader_python.c) takes in any place. */
#include <string.h>

#include "constrain/automaton/regex.h"
#include "constrain/tools_parts.h"
#include "text/tools/loose_json.h"

/* What may stand before the equals sign. */
static const char key_pattern[] = "[A-Za-z0-9_\\u0080-\\uffff][A-Za-z0-9_.$+\\-\\u0080-\\uffff]{0,63}";

/* key=VALUE before `next`. */
static qn_status put_pair(qn_tools *k, const qn_member *m, uint32_t next, uint32_t *out)
{
    QN_TRY(qn_put_value(k->c, m->value, next, out));
    QN_TRY(qn_put_bytes(k->c, "=", 1, *out, out));
    return qn_put_bytes(k->c, m->name, m->n, *out, out);
}

static qn_status is_key(const qn_tools *k, const qn_member *m, int *out)
{
    qn_dfa *keys = NULL, *name = NULL, *both = NULL;
    const qn_dfa_limits *l = &k->c->program.dfa_limits;
    qn_status status = qn_dfa_regex(key_pattern, strlen(key_pattern), QN_REGEX_WHOLE, l, &keys);
    if (status == QN_OK) status = qn_dfa_texts(&(qn_text_ref){m->name, m->n}, 1, l, &name);
    if (status == QN_OK) status = qn_dfa_intersect(keys, name, l, &both);
    if (status == QN_OK) *out = !qn_dfa_is_empty(both);
    qn_dfa_release(keys);
    qn_dfa_release(name);
    qn_dfa_release(both);
    return status;
}

/* Arguments of any names, if the object names none; `more` begins behind a value. *some 0: there are none. */
static qn_status put_any(qn_tools *k, const qn_object_rule *o, uint32_t more, uint32_t *some)
{
    qn_constraint *c = k->c;
    for (uint32_t i = 0; i < o->n_classes; i++) {
        uint32_t node;
        qn_dfa *d;
        QN_TRY(qn_put_value(c, o->classes[i].value, more, &node));
        QN_TRY(qn_put_bytes(c, "=", 1, node, &node));
        QN_TRY(qn_names_dfa(c, key_pattern, o->classes[i].dfa, &d));
        if (!d) continue;
        QN_TRY(qn_put_dfa(c, d, node, &node));
        QN_TRY(qn_put_other(c, node, some));
    }
    return QN_OK;
}

/* The arguments of one form in their order, each required one, behind the opening bracket. */
static qn_status put_object(qn_tools *k, const qn_tool *t, int32_t object, uint32_t next, uint32_t *out)
{
    qn_constraint *c = k->c;
    const qn_object_rule *prepared;
    QN_TRY(qn_program_prepare(&c->program, object, &prepared));
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
    uint32_t close, first, more, any = 0;
    QN_TRY(qn_put_bytes(c, ")", 1, next, &close));
    first = more = close;
    if (o.n_members == 0 && o.n_classes) {
        QN_TRY(qn_put_choice(c, close, close, &more));
        QN_TRY(put_any(k, &o, more, &any));
        if (any) {
            uint32_t comma;
            QN_TRY(qn_put_bytes(c, ", ", 2, any, &comma));
            c->program.graph[more].other = comma;
            QN_TRY(qn_put_choice(c, any, close, &first));
        }
    }
    /* first: the arguments from here on if none came before; more: if some did. */
    for (uint32_t i = o.n_members; i-- > 0;) {
        const qn_member *m = &o.members[i];
        uint32_t node;
        int is_word = 0;
        if (!m->is_possible) continue;
        QN_TRY(is_key(k, m, &is_word));
        if (!is_word && m->is_required)
            return qn_fail(
                QN_E_UNSUPPORTED,
                "tools: the parameter \"%.64s\" of \"%.64s\" is no word, which calls as the family "
                "%s writes them need",
                m->name, t->name, k->f->name);
        if (!is_word) continue;
        QN_TRY(put_pair(k, m, more, &node));
        QN_TRY(qn_put_member(c, m->is_required, node, ", ", &first, &more));
    }
    *out = first;
    return QN_OK;
}

/* A call of any tool before `next`. */
static qn_status put_call(qn_tools *k, uint32_t next, uint32_t *out)
{
    qn_constraint *c = k->c;
    uint32_t some = 0;
    for (size_t i = 0; i < k->n_tools; i++) {
        const qn_tool *t = &k->tools[i];
        qn_value v = c->program.values[t->arguments];
        uint32_t forms = 0, node;
        for (const char *at = t->name; *at; at++)
            if (!qn_loose_is_word(*at))
                return qn_fail(QN_E_UNSUPPORTED,
                               "tools: calls as the family %s writes them have no name \"%.64s\"", k->f->name,
                               t->name);
        for (uint32_t f = 0; f < v.n_objects; f++) {
            QN_TRY(put_object(k, t, v.objects[f], next, &node));
            QN_TRY(qn_put_other(c, node, &forms));
        }
        QN_TRY(qn_put_bytes(c, "(", 1, forms, &node));
        QN_TRY(qn_put_bytes(c, t->name, strlen(t->name), node, &node));
        QN_TRY(qn_put_other(c, node, &some));
    }
    *out = some;
    return QN_OK;
}

qn_status qn_put_python_calls(qn_tools *k, int is_one, uint32_t next, uint32_t *out)
{
    qn_constraint *c = k->c;
    const int is_list = k->f->writes_array;
    uint32_t end = next, again, call = 0, more;
    if (is_list)
        QN_TRY(qn_put_bytes(c, "]", 1, end, &end));
    else
        QN_TRY(qn_put_line_end(c, end, &end));
    again = end;
    if (!is_one) QN_TRY(qn_put_choice(c, end, end, &again));
    QN_TRY(put_call(k, again, &call));
    if (!is_one) {
        QN_TRY(is_list ? qn_put_bytes(c, ", ", 2, call, &more) : qn_put_bytes(c, "\n", 1, call, &more));
        c->program.graph[again].other = more;
    }
    if (is_list) return qn_put_bytes(c, "[", 1, call, out);
    return qn_put_line_end(c, call, out);
}
