#include "text/tool_bodies.h"

#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "text/json_pull.h"
#include "text/loose_json.h"

typedef struct {
    qn_call_list *list;
    const qn_call_format *format;
    const json_t *tools;
} body;

static qn_status no_call(void)
{
    return qn_fail(QN_E_FORMAT, "not a call");
}

/* ---- pieces of text ---- */

typedef struct {
    const char *p;
    size_t n;
} slice;

static int is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static slice trim(slice s)
{
    while (s.n && is_space(s.p[0])) s.p++, s.n--;
    while (s.n && is_space(s.p[s.n - 1])) s.n--;
    return s;
}

/* Bytes before the first `what`; s goes on behind it. 0: there is none. */
static int cut(slice *s, const char *what, slice *before)
{
    size_t m = strlen(what);
    for (size_t i = 0; i + m <= s->n; i++) {
        if (memcmp(s->p + i, what, m) != 0) continue;
        *before = (slice){s->p, i};
        *s = (slice){s->p + i + m, s->n - i - m};
        return 1;
    }
    return 0;
}

/* Only white space before the next `what`, which is taken. */
static int expect(slice *s, const char *what)
{
    size_t m = strlen(what);
    slice t = *s;
    while (t.n && is_space(t.p[0])) t.p++, t.n--;
    if (t.n < m || memcmp(t.p, what, m) != 0) return 0;
    *s = (slice){t.p + m, t.n - m};
    return 1;
}

static int is_text(slice s, const char *what)
{
    return s.n == strlen(what) && memcmp(s.p, what, s.n) == 0;
}

/* ---- the list ---- */

static size_t put(qn_call_list *l, slice s)
{
    size_t at = l->text.length;
    qn_buf_append(&l->text, s.p, s.n);
    qn_buf_putc(&l->text, 0);
    return at;
}

/* Its arguments follow. */
static qn_status begin_call(qn_call_list *l, slice name, slice id)
{
    name = trim(name);
    if (name.n == 0 || memchr(name.p, 0, name.n) || (id.n && memchr(id.p, 0, id.n))) return no_call();
    if (l->n_calls == l->capacity) {
        size_t capacity = l->capacity ? 2 * l->capacity : 4;
        qn_call *calls = qn_realloc(l->calls, capacity * sizeof *calls);
        if (!calls) return QN_E_NOMEM;
        l->calls = calls;
        l->capacity = capacity;
    }
    qn_call *c = &l->calls[l->n_calls];
    c->name = put(l, name);
    c->id = put(l, id);
    c->arguments = l->text.length;
    return l->text.status;
}

static qn_status end_call(qn_call_list *l)
{
    qn_call *c = &l->calls[l->n_calls];
    c->arguments_bytes = l->text.length - c->arguments;
    qn_buf_putc(&l->text, 0);
    if (l->text.status == QN_OK) l->n_calls++;
    return l->text.status;
}

/* An object or an array, sound. */
static qn_status check_json(slice s)
{
    json_t *json = NULL;
    qn_status status = qn_json_parse("call", s.p, s.n, &json);
    json_decref(json);
    return status;
}

/* Arguments that were written member by member. */
static qn_status end_checked_call(qn_call_list *l)
{
    const char *arguments = l->text.data + l->calls[l->n_calls].arguments;
    if (l->text.status != QN_OK) return l->text.status;
    if (arguments[0] != '{') return no_call();
    QN_TRY(check_json((slice){arguments, (size_t)(l->text.data + l->text.length - arguments)}));
    return end_call(l);
}

/* Arguments are an object, or a string that holds one, or nothing. */
static qn_status put_arguments(qn_call_list *l, slice s)
{
    s = trim(s);
    if (s.n == 0 || is_text(s, "null")) s = (slice){"{}", 2};
    if (s.p[0] == '{') {
        QN_TRY(check_json(s));
        qn_buf_append(&l->text, s.p, s.n);
    } else if (s.p[0] == '"') {
        qn_json_pull p;
        qn_json_text text;
        qn_json_pull_init(&p, "call", s.p, s.n);
        qn_status status = qn_json_pull_string(&p, &text);
        if (status == QN_OK) status = qn_json_pull_end(&p);
        slice value = status == QN_OK ? trim((slice){text.data, text.n}) : s;
        if (status == QN_OK && (value.n == 0 || value.p[0] != '{')) status = no_call();
        if (status == QN_OK) status = check_json(value);
        if (status == QN_OK) qn_buf_append(&l->text, value.p, value.n);
        qn_json_pull_free(&p);
        QN_TRY(status);
    } else {
        return no_call();
    }
    return end_call(l);
}

/* ---- JSON ---- */

static int is_one_of(qn_json_text key, const char *const *names)
{
    for (; *names; names++)
        if (qn_json_text_is(key, *names)) return 1;
    return 0;
}

static qn_status read_object(body *b, slice object, int depth);

/* {"name": ..., "arguments": {...}} under the names that families have for these. */
static qn_status read_fields(body *b, slice object, int depth, qn_buf *name, qn_buf *id)
{
    static const char *const names[] = {"name", "tool_name", "function", NULL};
    static const char *const ids[] = {"id", "tool_call_id", "call_id", NULL};
    static const char *const arguments[] = {"arguments", "parameters", NULL};
    qn_json_pull p;
    qn_json_text key, value, function = {0}, found = {0};
    int more = 0, has_name = 0;
    qn_json_pull_init(&p, "call", object.p, object.n);
    qn_status status = qn_json_pull_enter(&p, '{');
    while (status == QN_OK && (status = qn_json_pull_key(&p, &more, &key)) == QN_OK && more) {
        int is_name = is_one_of(key, names), is_id = is_one_of(key, ids),
            is_arguments = is_one_of(key, arguments);
        char c = qn_json_pull_peek(&p);
        if (c == '"' && ((is_name && !has_name) || is_id)) {
            qn_buf *to = is_name ? name : id;
            qn_buf_reset(to);
            status = qn_json_pull_string(&p, &value);
            if (status == QN_OK) qn_buf_append(to, value.data, value.n);
            has_name |= is_name;
        } else {
            status = qn_json_pull_skip(&p, &value);
            if (is_arguments) found = value;
            if (is_name && c == '{') function = value;
        }
    }
    qn_json_pull_free(&p);
    if (status == QN_OK) status = name->status != QN_OK ? name->status : id->status;
    QN_TRY(status);
    if (!has_name && function.n && depth == 0)
        return read_object(b, (slice){function.data, function.n}, depth + 1);
    if (!has_name || (b->format->is_bare && !found.n)) return no_call();
    QN_TRY(begin_call(b->list, (slice){name->data, name->length}, (slice){id->data, id->length}));
    return put_arguments(b->list, (slice){found.data, found.n});
}

/* {NAME: {...}} */
static qn_status read_keyed(body *b, slice object, qn_buf *name)
{
    qn_json_pull p;
    qn_json_text key, value = {0};
    int more = 0;
    qn_json_pull_init(&p, "call", object.p, object.n);
    qn_status status = qn_json_pull_enter(&p, '{');
    if (status == QN_OK) status = qn_json_pull_key(&p, &more, &key);
    if (status == QN_OK && more) {
        qn_buf_append(name, key.data, key.n);
        status = qn_json_pull_skip(&p, &value);
        if (status == QN_OK) status = qn_json_pull_key(&p, &more, &key);
        if (status == QN_OK && more) status = no_call();
    }
    qn_json_pull_free(&p);
    if (status == QN_OK) status = name->status;
    QN_TRY(status);
    if (!value.n) return no_call();
    QN_TRY(begin_call(b->list, (slice){name->data, name->length}, (slice){0}));
    return put_arguments(b->list, (slice){value.data, value.n});
}

static qn_status read_object(body *b, slice object, int depth)
{
    qn_buf name = {0}, id = {0};
    qn_status status = b->format->body == QN_CALL_KEYED ? read_keyed(b, object, &name)
                                                        : read_fields(b, object, depth, &name, &id);
    qn_buf_free(&name);
    qn_buf_free(&id);
    return status;
}

static qn_status read_array(body *b, slice array)
{
    qn_json_pull p;
    qn_json_text value;
    int more = 0;
    qn_json_pull_init(&p, "call", array.p, array.n);
    qn_status status = qn_json_pull_enter(&p, '[');
    while (status == QN_OK && (status = qn_json_pull_element(&p, &more)) == QN_OK && more) {
        status = qn_json_pull_peek(&p) == '{' ? qn_json_pull_skip(&p, &value) : no_call();
        if (status == QN_OK) status = read_object(b, (slice){value.data, value.n}, 0);
    }
    qn_json_pull_free(&p);
    return status;
}

static qn_status read_json(body *b, slice s)
{
    for (s = trim(s); s.n; s = trim(s)) {
        qn_json_pull p;
        qn_json_text value;
        if (s.p[0] != '{' && s.p[0] != '[') return no_call();
        qn_json_pull_init(&p, "call", s.p, s.n);
        qn_status status = qn_json_pull_skip(&p, &value);
        size_t at = p.at;
        qn_json_pull_free(&p);
        QN_TRY(status);
        slice one = {value.data, value.n};
        QN_TRY(check_json(one));
        QN_TRY(one.p[0] == '[' ? read_array(b, one) : read_object(b, one, 0));
        s = trim((slice){s.p + at, s.n - at});
        if (s.n && (s.p[0] == ',' || s.p[0] == ';')) s.p++, s.n--;
    }
    return QN_OK;
}

/* ---- parameters one by one ---- */

/* The schema of a parameter; NULL: the request says nothing of it. */
static const json_t *find_schema(const json_t *tools, const char *tool_name, slice key)
{
    size_t i;
    json_t *tool;
    json_array_foreach((json_t *)tools, i, tool)
    {
        json_t *function = json_object_get(tool, "function");
        if (!function) function = tool;
        const char *name = json_string_value(json_object_get(function, "name"));
        if (!name || strcmp(name, tool_name) != 0) continue;
        return json_object_getn(json_object_get(json_object_get(function, "parameters"), "properties"), key.p,
                                key.n);
    }
    return NULL;
}

/* Whether a parameter's type names `type`. */
static int has_type(const json_t *schema, const char *type)
{
    const json_t *value = json_object_get(schema, "type");
    size_t i;
    json_t *each;
    if (json_is_string(value)) return strcmp(json_string_value(value), type) == 0;
    json_array_foreach((json_t *)value, i, each)
    {
        if (json_is_string(each) && strcmp(json_string_value(each), type) == 0) return 1;
    }
    return 0;
}

/* A value that a model wrote without saying of what type it is: JSON or a literal of Python's where it is
 * one, else a string. */
static qn_status put_guess(qn_buf *out, slice raw)
{
    slice s = trim(raw);
    size_t at = 0, before = out->length;
    if (s.n && s.p[0] != '"' && s.p[0] != '\'') {
        qn_status status = strchr("{[", s.p[0]) ? check_json(s) : QN_E_FORMAT;
        if (status == QN_OK) {
            qn_buf_append(out, s.p, s.n);
            return out->status;
        }
        if (status == QN_E_NOMEM) return status;
        status = qn_loose_json(s.p, s.n, &at, out);
        if (status == QN_E_NOMEM || (status == QN_OK && at == s.n)) return status;
        out->length = before;
    }
    qn_buf_json_string(out, raw.p, raw.n);
    return out->status;
}

typedef enum { VALUE_GUESS, VALUE_STRING, VALUE_JSON } value_type;

static qn_status put_member(body *b, slice key, slice value, value_type type)
{
    qn_buf *out = &b->list->text;
    const qn_call *c = &b->list->calls[b->list->n_calls];
    const json_t *schema = NULL;
    if (key.n == 0) return no_call();
    if (out->length - c->arguments > 1) qn_buf_puts(out, ", ");
    if (type == VALUE_GUESS) schema = find_schema(b->tools, out->data + c->name, key);
    if (has_type(schema, "string") && !(has_type(schema, "null") && is_text(trim(value), "null")))
        type = VALUE_STRING;
    qn_buf_json_string(out, key.p, key.n);
    qn_buf_puts(out, ": ");
    if (type == VALUE_GUESS) return put_guess(out, value);
    if (type == VALUE_STRING) {
        qn_buf_json_string(out, value.p, value.n);
        return out->status;
    }
    value = trim(value);
    qn_buf_append(out, value.p, value.n); /* checked with the whole object */
    return value.n ? out->status : no_call();
}

static slice strip_lines(slice value)
{
    if (value.n && value.p[0] == '\n') value.p++, value.n--;
    if (value.n && value.p[value.n - 1] == '\n') value.n--;
    return value;
}

/* <parameter name="key" string="true">value</parameter>; s is behind parameter_open. */
static qn_status read_parameter(body *b, slice *s)
{
    static const char cdata[] = "<![CDATA[", cdata_end[] = "]]>";
    const qn_call_marks *m = &b->format->marks;
    slice key, attributes = {0}, value;
    value_type type = VALUE_GUESS;
    if (!cut(s, m->parameter_name_end, &key)) return no_call();
    if (strcmp(m->parameter_name_end, ">") != 0 && !cut(s, ">", &attributes)) return no_call();
    attributes = trim(attributes);
    if (is_text(attributes, "string=\"true\"")) type = VALUE_STRING;
    if (is_text(attributes, "string=\"false\"")) type = VALUE_JSON;
    if (s->n >= strlen(cdata) && memcmp(s->p, cdata, strlen(cdata)) == 0) {
        *s = (slice){s->p + strlen(cdata), s->n - strlen(cdata)};
        if (!cut(s, cdata_end, &value) || !expect(s, m->parameter_close)) return no_call();
        type = VALUE_STRING;
    } else if (!cut(s, m->parameter_close, &value)) {
        return no_call();
    }
    return put_member(b, trim(key), m->value_lines ? strip_lines(value) : value, type);
}

static qn_status read_tags(body *b, slice s)
{
    const qn_call_marks *m = &b->format->marks;
    for (; trim(s).n;) {
        slice name, rest;
        if (!expect(&s, m->call_open) || !cut(&s, m->name_end, &name)) return no_call();
        if (strcmp(m->name_end, ">") != 0 && !expect(&s, ">")) return no_call();
        QN_TRY(begin_call(b->list, name, (slice){0}));
        qn_buf_putc(&b->list->text, '{');
        while (expect(&s, m->parameter_open)) QN_TRY(read_parameter(b, &s));
        rest = s;
        if (!expect(&rest, m->call_close)) return no_call();
        s = rest;
        qn_buf_putc(&b->list->text, '}');
        QN_TRY(end_checked_call(b->list));
    }
    return QN_OK;
}

static qn_status read_keys(body *b, slice s)
{
    const qn_call_marks *m = &b->format->marks;
    slice name, key, value;
    if (!cut(&s, m->key_open, &name)) {
        name = s;
        s.n = 0;
    }
    name = trim(name);
    for (size_t i = 0; i < name.n; i++)
        if (is_space(name.p[i]) || name.p[i] == '<' || name.p[i] == '{') return no_call();
    QN_TRY(begin_call(b->list, name, (slice){0}));
    qn_buf_putc(&b->list->text, '{');
    for (int more = s.n > 0; more;) {
        if (!cut(&s, m->key_close, &key) || !expect(&s, m->parameter_open) ||
            !cut(&s, m->parameter_close, &value))
            return no_call();
        QN_TRY(put_member(b, trim(key), value, VALUE_GUESS));
        more = expect(&s, m->key_open);
    }
    if (trim(s).n) return no_call();
    qn_buf_putc(&b->list->text, '}');
    return end_checked_call(b->list);
}

/* ---- the rest ---- */

static qn_status read_loose(body *b, slice s)
{
    slice name, before;
    size_t at = 0;
    if (!cut(&s, "call:", &before) || trim(before).n || !memchr(s.p, '{', s.n)) return no_call();
    name = (slice){s.p, (size_t)((const char *)memchr(s.p, '{', s.n) - s.p)};
    s = trim((slice){s.p + name.n, s.n - name.n});
    if (s.n > 3 && s.p[1] == '{' && s.p[s.n - 1] == '}') s = (slice){s.p + 1, s.n - 2}; /* JSON in braces */
    QN_TRY(begin_call(b->list, name, (slice){0}));
    QN_TRY(qn_loose_json(s.p, s.n, &at, &b->list->text));
    if (at != s.n) return no_call();
    return end_checked_call(b->list);
}

/* "functions.NAME:3" is the id of a call of NAME. */
static slice name_of_id(slice id)
{
    static const char prefix[] = "functions.";
    if (id.n <= strlen(prefix) || memcmp(id.p, prefix, strlen(prefix)) != 0) return id;
    slice name = {id.p + strlen(prefix), id.n - strlen(prefix)};
    for (size_t i = name.n; i-- > 0;)
        if (name.p[i] == ':') return (slice){name.p, i};
    return name;
}

/* NAME sep {JSON}, or KIND sep NAME, fence, JSON, fence. */
static qn_status read_named(body *b, slice s)
{
    static const char fence[] = "```";
    const qn_call_marks *m = &b->format->marks;
    while (trim(s).n) {
        slice call, first, second;
        if (!expect(&s, m->call_open) || !cut(&s, m->call_close, &call) || !cut(&call, m->name_end, &first))
            return no_call();
        first = trim(first);
        call = trim(call);
        if (cut(&call, fence, &second)) {
            if (trim(second).n) first = (slice){trim(second).p, trim(second).n};
            slice language = {call.p, 4};
            if (call.n > 4 && is_text(language, "json")) call = (slice){call.p + 4, call.n - 4};
            call = trim(call);
            if (call.n < 3 || memcmp(call.p + call.n - 3, fence, 3) != 0) return no_call();
            call.n -= 3;
        }
        slice name = name_of_id(first);
        QN_TRY(begin_call(b->list, name, name.n == first.n ? (slice){0} : first));
        QN_TRY(put_arguments(b->list, call));
    }
    return QN_OK;
}

static qn_status read_body(body *b, slice s)
{
    switch (b->format->body) {
    case QN_CALL_JSON:
    case QN_CALL_KEYED:
        return read_json(b, s);
    case QN_CALL_TAGS:
        return read_tags(b, s);
    case QN_CALL_KEYS:
        return read_keys(b, s);
    case QN_CALL_LOOSE:
        return read_loose(b, s);
    case QN_CALL_NAMED:
        return read_named(b, s);
    }
    return no_call();
}

void qn_call_list_free(qn_call_list *list)
{
    qn_buf_free(&list->text);
    qn_free(list->calls);
    *list = (qn_call_list){0};
}

qn_status qn_call_list_read(qn_call_list *list, const qn_call_format *format, const json_t *tools,
                            const char *name, const char *text, size_t n)
{
    body b = {list, format, tools};
    slice s = {text, n};
    qn_buf_reset(&list->text);
    list->n_calls = 0;
    if (name) {
        QN_TRY(begin_call(list, (slice){name, strlen(name)}, (slice){0}));
        return put_arguments(list, s);
    }
    QN_TRY(read_body(&b, s));
    return list->n_calls ? QN_OK : no_call();
}
