#include "constrain/tools.h"

#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "base/json/json_value.h"
#include "base/mem.h"
#include "constrain/json/any.h"
#include "constrain/tools_parts.h"

enum { TOOLS_MAX = 1000 };

/* ---- calls as JSON ------------------------------------------------------------------------------------- */

static qn_status text_value(qn_program *p, const char *text, int32_t *out)
{
    qn_dfa *d;
    int32_t dfa, string;
    QN_TRY(qn_dfa_texts(&(qn_text_ref){text, strlen(text)}, 1, &p->dfa_limits, &d));
    QN_TRY(qn_program_add_dfa(p, d, &dfa));
    QN_TRY(qn_program_add_string(p, &(qn_string_rule){.dfa = dfa, .max = -1}, &string));
    QN_TRY(qn_program_add_value(p, out));
    qn_value v = {.is_expanded = 1, .possible = 1, .number = QN_NONE, .n_strings = 1};
    v.strings = qn_program_numbers(p, &string, 1);
    if (!v.strings) return QN_E_NOMEM;
    p->values[*out] = v;
    return QN_OK;
}

/* {"name": NAME, "arguments": {...}}, or {NAME: {...}} */
static qn_status call_object(qn_program *p, const qn_tool *t, const char *name_key, const char *arguments_key,
                             int32_t *object)
{
    qn_member members[2];
    uint32_t n = 0;
    memset(members, 0, sizeof members);
    if (name_key) {
        members[n].name = name_key;
        QN_TRY(text_value(p, t->name, &members[n].value));
        n++;
    }
    members[n].name = name_key ? arguments_key : t->name;
    members[n++].value = t->arguments;
    qn_object_rule o = {.n_members = n, .n_ordered = n, .max = -1};
    o.members = qn_arena_calloc(&p->arena, n, sizeof *o.members);
    o.sorted = qn_arena_calloc(&p->arena, n, sizeof *o.sorted);
    if (!o.members || !o.sorted) return QN_E_NOMEM;
    for (uint32_t i = 0; i < n; i++) {
        o.members[i] = members[i];
        o.members[i].name = qn_arena_strndup(&p->arena, members[i].name, strlen(members[i].name));
        if (!o.members[i].name) return QN_E_NOMEM;
        o.members[i].n = (uint32_t)strlen(members[i].name);
        o.members[i].is_required = 1;
        o.members[i].marked = QN_NONE;
        o.sorted[i] = i;
    }
    if (n == 2 && strcmp(members[0].name, members[1].name) > 0) o.sorted[0] = 1, o.sorted[1] = 0;
    return qn_program_add_object(p, &o, object);
}

/* A call of one of the tools, in an array if the family writes one. */
static qn_status calls_value(qn_tools *k, int is_array, int is_one, int32_t *out)
{
    qn_program *p = &k->c->program;
    const char *name_key = k->f->name_key ? k->f->name_key : "name";
    const char *arguments_key = k->f->arguments_key ? k->f->arguments_key : "arguments";
    if (k->f->body == QN_CALL_KEYED) name_key = NULL;
    int32_t *objects = qn_arena_calloc(&p->arena, k->n_tools, sizeof *objects);
    if (!objects) return QN_E_NOMEM;
    for (size_t i = 0; i < k->n_tools; i++)
        QN_TRY(call_object(p, &k->tools[i], name_key, arguments_key, &objects[i]));
    QN_TRY(qn_program_add_value(p, out));
    p->values[*out] = (qn_value){.is_expanded = 1,
                                 .possible = 1,
                                 .number = QN_NONE,
                                 .objects = objects,
                                 .n_objects = (uint32_t)k->n_tools};
    if (!is_array) return QN_OK;
    int32_t array, item = *out;
    qn_array_rule a = {.items = qn_program_numbers(p, &item, 1), .min = 1, .max = is_one ? 1 : -1};
    a.counted_max = -1;
    if (!a.items) return QN_E_NOMEM;
    QN_TRY(qn_program_add_array(p, &a, &array));
    QN_TRY(qn_program_add_value(p, out));
    qn_value v = {.is_expanded = 1, .possible = 1, .number = QN_NONE, .n_arrays = 1};
    v.arrays = qn_program_numbers(p, &array, 1);
    if (!v.arrays) return QN_E_NOMEM;
    p->values[*out] = v;
    return QN_OK;
}

/* ---- calls ---------------------------------------------------------------------------------------------- */

/* One call of any tool, behind what opens it. */
static qn_status put_call(qn_tools *k, uint32_t next, uint32_t *out)
{
    int32_t value;
    uint32_t some = 0;
    if (k->f->body == QN_CALL_JSON || k->f->body == QN_CALL_KEYED) {
        QN_TRY(calls_value(k, 0, 1, &value));
        return qn_put_value(k->c, value, next, out);
    }
    for (size_t i = 0; i < k->n_tools; i++) {
        uint32_t one;
        QN_TRY(k->f->body == QN_CALL_LOOSE ? qn_put_loose_call(k, &k->tools[i], next, &one)
                                           : qn_put_marked_call(k, &k->tools[i], next, &one));
        QN_TRY(qn_put_other(k->c, one, &some));
    }
    *out = some;
    return QN_OK;
}

/* ---- answers ------------------------------------------------------------------------------------------- */

/* Behind an opening mark: the calls, closed, and more of them where that is allowed. with_open: the
 * opening mark comes first. */
static qn_status put_calls(qn_tools *k, int is_one, int with_open, uint32_t *out)
{
    qn_constraint *c = k->c;
    const qn_call_format *f = k->f;
    /* Where calls have no mark, `open` is a part of the first call. */
    const char *open = f->is_bare && (f->body == QN_CALL_JSON || f->body == QN_CALL_PYTHON) ? "" : f->open;
    uint32_t end = 0, again = 0, node = 0;
    if (f->body == QN_CALL_PYTHON) {
        if (f->close) QN_TRY(qn_put_text(c, f->close, 0, &node));
        QN_TRY(qn_put_python_calls(k, is_one, node, &node));
        *out = node;
        return with_open ? qn_put_text(c, open, node, out) : QN_OK;
    }
    int is_inside = f->body == QN_CALL_TAGS || f->body == QN_CALL_NAMED;
    int repeats = !is_one && !f->is_bare && f->close;
    /* The way back is a choice whose second half is set when the first call's node is known. */
    if (repeats) {
        QN_TRY(qn_put_choice(c, 0, 0, &again));
        end = again;
    }
    int32_t value;
    if (f->close && !f->is_bare) {
        QN_TRY(qn_put_text(c, f->close, is_inside ? 0 : end, &node));
    } else if (f->close && f->body == QN_CALL_TAGS) {
        QN_TRY(qn_put_text(c, f->close, 0, &node));
    } else {
        node = 0;
    }
    if (is_inside && repeats) {
        c->program.graph[again].next = node;
        node = again;
    }
    if (f->writes_array) {
        QN_TRY(calls_value(k, 1, is_one, &value));
        QN_TRY(qn_put_line_end(c, node, &node));
        QN_TRY(qn_put_value(c, value, node, &node));
        QN_TRY(qn_put_line_end(c, node, &node));
        if (repeats) c->program.graph[again].other = 0, c->program.graph[again].next = 0;
    } else {
        uint32_t call;
        QN_TRY(qn_put_line_end(c, node, &node));
        QN_TRY(put_call(k, node, &call));
        QN_TRY(qn_put_line_end(c, call, &node));
        if (repeats) {
            uint32_t more;
            if (is_inside)
                more = node;
            else
                QN_TRY(qn_put_text(c, open, node, &more));
            if (!is_inside) QN_TRY(qn_put_line_end(c, more, &more));
            c->program.graph[again].other = more;
        }
    }
    if (with_open) QN_TRY(qn_put_text(c, open, node, &node));
    *out = node;
    return QN_OK;
}

static qn_status put_answer(qn_tools *k, const qn_constraint_source *s, uint32_t *out)
{
    const qn_call_format *f = k->f;
    int is_free = s->tools.mode == QN_TOOL_CALLS_AUTO;
    k->is_one = s->tools.is_one_call || s->tools.mode == QN_TOOL_CALLS_NAMED;
    if (f->header.open) return qn_put_messages(k, is_free, s->tools.in_text, out);
    if (!is_free) return put_calls(k, k->is_one, 1, out);
    uint32_t calls;
    if (!f->is_bare) {
        qn_marks marks = {.n = 0};
        qn_marks_add(k->c, &marks, f->open, QN_SCAN_END);
        QN_TRY(put_calls(k, k->is_one, 0, &calls));
        return qn_put_free(k->c, &marks, QN_FREE_MAY_END, calls, out);
    }
    /* A bare call counts at the begin of an answer alone: what begins otherwise is text. */
    uint32_t text;
    QN_TRY(put_calls(k, k->is_one, 1, &calls));
    QN_TRY(qn_put_regex(k->c, f->body == QN_CALL_PYTHON ? "[^\\[<][\\s\\S]*" : "[^{<][\\s\\S]*", 0, &text));
    return qn_put_choice(k->c, calls, text, out);
}

/* ---- tools --------------------------------------------------------------------------------------------- */

static qn_status objects_of(qn_program *p, int32_t value, int32_t *out)
{
    qn_value v = p->values[value];
    if (v.n_objects == 0) return qn_fail(QN_E_UNSUPPORTED, "#: type: arguments are objects");
    v.n_strings = v.n_arrays = v.literals = 0;
    v.number = QN_NONE;
    QN_TRY(qn_program_add_value(p, out));
    p->values[*out] = v;
    return QN_OK;
}

static qn_status read_tool(qn_tools *k, const qn_constraint_source *s, const json_t *item, size_t i)
{
    const json_t *function = json_object_get(item, "function");
    if (!function) function = item;
    qn_tool *t = &k->tools[k->n_tools];
    t->name = json_string_value(json_object_get(function, "name"));
    if (!t->name || !*t->name) return qn_fail(QN_E_FORMAT, "tools[%zu]: it has no name", i);
    if (s->tools.mode == QN_TOOL_CALLS_NAMED && (!s->tools.name || strcmp(t->name, s->tools.name) != 0))
        return QN_OK;
    k->n_tools++;
    const json_t *parameters = json_object_get(function, "parameters");
    if (!parameters || json_is_null(parameters)) return qn_any_object(&k->c->program, &t->arguments);
    int32_t value;
    qn_buf text = {0};
    qn_json_write_value(&text, parameters);
    qn_status status = text.status;
    if (status == QN_OK) status = qn_constraint_compile_schema(k->c, text.data, text.length, &value);
    if (status == QN_OK) status = objects_of(&k->c->program, value, &t->arguments);
    if (status == QN_OK) t->parameters = parameters;
    qn_buf_free(&text);
    if (status == QN_OK || status == QN_E_NOMEM) return status;
    if (s->tools.strict_by_all || json_is_true(json_object_get(function, "strict")))
        return qn_fail_prefix(status, "tools[%zu].function.parameters", i);
    char pointer[64];
    snprintf(pointer, sizeof pointer, "/%zu/function/parameters", i);
    QN_TRY(qn_constraint_add_note(k->c, pointer, "parameters", qn_last_error()));
    return qn_any_object(&k->c->program, &t->arguments);
}

static qn_status compile(qn_tools *k, const qn_constraint_source *s, const json_t *list, uint32_t *node)
{
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n == 0)
        return qn_fail(QN_E_FORMAT, "tools: expected a list that is not empty");
    if (n > TOOLS_MAX)
        return qn_fail(QN_E_UNSUPPORTED, "tools: %zu of them, at most %d are taken", n, TOOLS_MAX);
    k->tools = qn_calloc(n, sizeof *k->tools);
    if (!k->tools) return QN_E_NOMEM;
    for (size_t i = 0; i < n; i++) QN_TRY(read_tool(k, s, json_array_get(list, i), i));
    if (k->n_tools == 0)
        return qn_fail(QN_E_ARG, "tools: there is no tool \"%.60s\"", s->tools.name ? s->tools.name : "");
    return put_answer(k, s, node);
}

qn_status qn_tools_compile(qn_constraint *c, const qn_constraint_source *s, uint32_t *node)
{
    qn_tools k = {.c = c, .f = s->tools.format.calls};
    json_t *list;
    if (!k.f) return qn_fail(QN_E_UNSUPPORTED, "tools: the model's template shows no format of calls");
    QN_TRY(qn_json_parse_exact("tools", s->text, s->n, &list));
    qn_status status = compile(&k, s, list, node);
    qn_free(k.tools);
    qn_free(k.parts);
    json_decref(list);
    return status;
}
