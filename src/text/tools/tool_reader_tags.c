/* Calls whose arguments stand one by one between marks: <parameter=city>Rome</parameter>. */
#include <string.h>

#include "base/json/json.h"
#include "text/tools/loose_json.h"
#include "text/tools/tool_reader_steps.h"
#include "text/tools/tool_types.h"

enum { GUESS, STRING, JSON };

static qn_step go(qn_call_reader *r, int step)
{
    r->step = step;
    return QN_STEP_ON;
}

/* ---- values -------------------------------------------------------------------------------------------- */

/* The schema of a tool's parameters; NULL: the request says nothing of them. */
static const json_t *find_parameters(const json_t *tools, const char *tool_name)
{
    size_t i;
    json_t *tool;
    json_array_foreach((json_t *)tools, i, tool)
    {
        json_t *function = json_object_get(tool, "function");
        if (!function) function = tool;
        const char *name = json_string_value(json_object_get(function, "name"));
        if (name && strcmp(name, tool_name) == 0) return json_object_get(function, "parameters");
    }
    return NULL;
}

/* QN_E_FORMAT: s is not one JSON value. */
static qn_status check_json(qn_slice s)
{
    json_t *json = NULL;
    qn_status status = qn_json_parse("call", s.p, s.n, &json);
    json_decref(json);
    return status;
}

/* A value that a model wrote without saying of what type it is: JSON or a literal of Python's where it is
 * one, else a string. */
static qn_status put_guess(qn_buf *out, qn_slice raw)
{
    qn_slice s = qn_slice_trim(raw);
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

/* The key is known: `{"key": ` or `, "key": `. */
static void put_key(qn_call_reader *r)
{
    qn_buf_puts(&r->piece, r->n_members++ ? ", " : "{");
    qn_buf_json_string(&r->piece, r->key.data, r->key.length);
    qn_buf_puts(&r->piece, ": ");
}

/* Text up to a mark, which is read as well. BAD: the calls end before. */
static qn_step read_up_to(qn_call_reader *r, const char *mark, qn_slice *text)
{
    const char *found;
    qn_step step = qn_read_find(r, mark, r->format->close, text, &found);
    if (step != QN_STEP_ON) return step;
    if (found != mark) return QN_STEP_BAD;
    r->at += text->n + strlen(mark);
    return QN_STEP_ON;
}

/* The key of a member, up to a mark. */
static qn_step read_key_up_to(qn_call_reader *r, const char *mark)
{
    qn_slice key;
    qn_step step = read_up_to(r, mark, &key);
    if (step != QN_STEP_ON) return step;
    key = qn_slice_trim(key);
    if (!key.n) return QN_STEP_BAD;
    qn_buf_reset(&r->key);
    qn_buf_append(&r->key, key.p, key.n);
    return qn_read_memory(r->key.status);
}

static qn_step begin_member(qn_call_reader *r, int type, int then)
{
    r->value_type = type;
    r->after = then;
    return go(r, QN_READ_MEMBER);
}

/* The value begins here. A string leaves while it is written; of other types it is not known what it is
 * before its end. */
static qn_step read_member(qn_call_reader *r)
{
    static const char cdata[] = "<![CDATA[";
    const qn_call_marks *m = &r->format->marks;
    qn_step step = qn_read_looks_at(r, r->at, cdata);
    if (step == QN_STEP_WAIT) return step;
    if (step == QN_STEP_BAD && m->value_lines) {
        if (r->at == r->n) return QN_STEP_WAIT;
        r->at += r->text[r->at] == '\n';
    }
    int may_be_null = 0;
    if (r->value_type == GUESS) {
        qn_call_reading reading =
            qn_call_reads(find_parameters(r->tools, r->name.data), r->key.data, r->key.length);
        if (reading != QN_READS_GUESS) r->value_type = STRING;
        may_be_null = reading == QN_READS_TEXT_OR_NULL;
    }
    if (step == QN_STEP_ON) {
        r->at += strlen(cdata);
        put_key(r);
        qn_buf_putc(&r->piece, '"');
        return go(r, QN_READ_MEMBER_CDATA);
    }
    if (r->value_type != STRING || may_be_null) {
        r->json = (qn_json_steps){0};
        r->stepped = 0;
        r->takes_first = r->value_type == STRING;
        r->has_passed = 0;
        return go(r, QN_READ_MEMBER_WHOLE);
    }
    put_key(r);
    qn_buf_putc(&r->piece, '"');
    return go(r, QN_READ_MEMBER_TEXT);
}

static qn_step end_text(qn_call_reader *r, int then)
{
    qn_buf_putc(&r->piece, '"');
    qn_step step = qn_read_say(r);
    return step == QN_STEP_ON ? go(r, then) : step;
}

/* The text of a string, up to `end`. */
static qn_step read_member_text(qn_call_reader *r, const char *end, const char *bad, int end_line)
{
    size_t before = r->at;
    qn_step step = qn_read_text(r, end, bad, end_line);
    if (step == QN_STEP_NOMEM || step == QN_STEP_ON) return step;
    if (r->at > before && qn_read_say(r) == QN_STEP_NOMEM) return QN_STEP_NOMEM;
    return step;
}

static int is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* 1: the value is the begin of an object or array, and ends inside of a string. */
static int ends_in_string(qn_call_reader *r, qn_slice value)
{
    for (; r->stepped < value.n; r->stepped++) {
        char c = value.p[r->stepped];
        if (((unsigned char)c & 0xc0) == 0x80 || (r->json.depth == 0 && is_blank(c))) continue;
        if (r->json.depth == 0 && c != '{' && c != '[') r->takes_first = 1;
        if (r->takes_first) return 0;
        if (qn_json_step(&r->json, c) != QN_JSON_MORE) r->takes_first = 1;
    }
    return r->json.depth > 0 && qn_json_is_in_string(&r->json);
}

/* A value ends at the first mark that is not inside of a string of JSON; if there is none, at the first mark. */
static qn_step find_value_end(qn_call_reader *r, qn_slice *value, const char **found)
{
    for (;;) {
        qn_step step = qn_read_find(r, r->format->marks.parameter_close, r->format->close, value, found);
        if (step == QN_STEP_BAD && r->has_passed && !r->takes_first) {
            r->takes_first = 1;
            r->scanned = 0;
            continue;
        }
        if (step != QN_STEP_ON || r->takes_first || !ends_in_string(r, *value)) return step;
        r->has_passed = 1;
        r->scanned = value->n + 1;
    }
}

/* A value that is looked at once it is whole. */
static qn_step read_member_whole(qn_call_reader *r)
{
    const qn_call_marks *m = &r->format->marks;
    const char *found;
    qn_slice value;
    qn_step step = find_value_end(r, &value, &found);
    if (step != QN_STEP_ON) return step;
    if (found != m->parameter_close) return QN_STEP_BAD;
    qn_slice text = value, trimmed = qn_slice_trim(value);
    if (m->value_lines && text.n && text.p[text.n - 1] == '\n') text.n--;
    if (r->value_type == JSON) {
        qn_status status = check_json(trimmed);
        if (status != QN_OK) return status == QN_E_NOMEM ? QN_STEP_NOMEM : QN_STEP_BAD;
    }
    put_key(r);
    if (r->value_type == JSON || (r->value_type == STRING && qn_slice_is(trimmed, "null")))
        qn_buf_append(&r->piece, trimmed.p, trimmed.n);
    else if (r->value_type == STRING)
        qn_buf_json_string(&r->piece, text.p, text.n);
    else if (put_guess(&r->piece, text) == QN_E_NOMEM)
        return QN_STEP_NOMEM;
    r->at += value.n + strlen(m->parameter_close);
    step = qn_read_say(r);
    return step == QN_STEP_ON ? go(r, r->after) : step;
}

/* Behind the text of a CDATA section. */
static qn_step read_cdata(qn_call_reader *r)
{
    qn_step step = read_member_text(r, "]]>", NULL, 0);
    if (step != QN_STEP_ON) return step;
    return end_text(r, QN_READ_CDATA_END);
}

static qn_step read_cdata_end(qn_call_reader *r)
{
    qn_step step = qn_read_space(r);
    if (step == QN_STEP_ON) step = qn_read_mark(r, r->format->marks.parameter_close);
    return step == QN_STEP_ON ? go(r, r->after) : step;
}

static qn_step read_member_string(qn_call_reader *r)
{
    const qn_call_marks *m = &r->format->marks;
    qn_step step = read_member_text(r, m->parameter_close, r->format->close, m->value_lines);
    return step == QN_STEP_ON ? end_text(r, r->after) : step;
}

/* ---- <function=NAME> <parameter=KEY> value </parameter> </function> ------------------------------------ */

/* A mark behind white space. */
static qn_step read_next_mark(qn_call_reader *r, const char *mark)
{
    qn_step step = qn_read_space(r);
    return step == QN_STEP_ON ? qn_read_mark(r, mark) : step;
}

static qn_step end_arguments(qn_call_reader *r)
{
    if (r->n_members) {
        qn_buf_putc(&r->piece, '}');
        qn_step step = qn_read_arguments_end(r);
        if (step != QN_STEP_ON) return step;
    }
    return qn_read_call_end(r);
}

static qn_step read_open(qn_call_reader *r)
{
    const qn_call_format *f = r->format;
    qn_step step = qn_read_space(r), end = QN_STEP_BAD;
    if (step != QN_STEP_ON && !r->is_final) return step;
    if (!f->is_bare) end = qn_read_end(r);
    if (end == QN_STEP_ON) return r->n_ended ? QN_STEP_END : QN_STEP_BAD;
    step = qn_read_mark(r, f->marks.call_open);
    if (step == QN_STEP_ON) return go(r, QN_READ_TAG_NAME);
    return end == QN_STEP_WAIT ? end : step;
}

static qn_step read_name(qn_call_reader *r)
{
    const char *mark = r->format->marks.name_end;
    qn_slice name;
    qn_step step = read_up_to(r, mark, &name);
    if (step == QN_STEP_ON) step = qn_read_set_name(r, name);
    if (step != QN_STEP_ON) return step;
    return go(r, strcmp(mark, ">") == 0 ? QN_READ_TAG_NEXT : QN_READ_TAG_NAME_END);
}

/* The next parameter, or the end of the call. */
static qn_step read_next(qn_call_reader *r)
{
    const qn_call_format *f = r->format;
    qn_step parameter = read_next_mark(r, f->marks.parameter_open);
    if (parameter == QN_STEP_ON) return go(r, QN_READ_TAG_KEY);
    qn_step end = read_next_mark(r, f->marks.call_close);
    if (end != QN_STEP_ON) return parameter == QN_STEP_WAIT ? parameter : end;
    qn_step step = end_arguments(r);
    if (step != QN_STEP_ON) return step;
    return f->is_bare ? QN_STEP_END : go(r, QN_READ_TAG_OPEN);
}

static qn_step read_key(qn_call_reader *r)
{
    const char *mark = r->format->marks.parameter_name_end;
    qn_step step = read_key_up_to(r, mark);
    if (step != QN_STEP_ON) return step;
    if (strcmp(mark, ">") != 0) return go(r, QN_READ_TAG_ATTRIBUTES);
    return begin_member(r, GUESS, QN_READ_TAG_NEXT);
}

/* <parameter name="key" string="true"> */
static qn_step read_attributes(qn_call_reader *r)
{
    qn_slice text;
    qn_step step = read_up_to(r, ">", &text);
    if (step != QN_STEP_ON) return step;
    text = qn_slice_trim(text);
    int type = qn_slice_is(text, "string=\"true\"")    ? STRING
               : qn_slice_is(text, "string=\"false\"") ? JSON
                                                       : GUESS;
    return begin_member(r, type, QN_READ_TAG_NEXT);
}

/* ---- NAME <arg_key>KEY</arg_key> <arg_value>value</arg_value> ------------------------------------------ */

static qn_step read_keys_name(qn_call_reader *r)
{
    const qn_call_format *f = r->format;
    const char *found;
    qn_slice name;
    qn_step step = qn_read_find(r, f->marks.key_open, f->close, &name, &found);
    if (step != QN_STEP_ON) return step;
    size_t n = name.n;
    name = qn_slice_trim(name);
    for (size_t i = 0; i < name.n; i++)
        if (strchr(" \t\r\n<{", name.p[i])) return QN_STEP_BAD;
    step = qn_read_set_name(r, name);
    if (step != QN_STEP_ON) return step;
    r->at += n;
    return go(r, QN_READ_KEYS_NEXT);
}

static qn_step read_keys_next(qn_call_reader *r)
{
    qn_step step = qn_read_space(r);
    if (step != QN_STEP_ON && !r->is_final) return step;
    step = qn_read_mark(r, r->format->marks.key_open);
    if (step == QN_STEP_ON) return go(r, QN_READ_KEYS_KEY);
    qn_step end = qn_read_end(r);
    if (end == QN_STEP_ON) {
        step = end_arguments(r);
        return step == QN_STEP_ON ? QN_STEP_END : step;
    }
    return step == QN_STEP_WAIT ? step : end;
}

qn_step qn_read_tags(qn_call_reader *r)
{
    qn_step step;
    switch (r->step) {
    case QN_READ_TAG_OPEN:
        return read_open(r);
    case QN_READ_TAG_NAME:
        return read_name(r);
    case QN_READ_TAG_NAME_END:
        step = read_next_mark(r, ">");
        return step == QN_STEP_ON ? go(r, QN_READ_TAG_NEXT) : step;
    case QN_READ_TAG_NEXT:
        return read_next(r);
    case QN_READ_TAG_KEY:
        return read_key(r);
    case QN_READ_TAG_ATTRIBUTES:
        return read_attributes(r);
    case QN_READ_KEYS_NAME:
        return read_keys_name(r);
    case QN_READ_KEYS_NEXT:
        return read_keys_next(r);
    case QN_READ_KEYS_KEY:
        step = read_key_up_to(r, r->format->marks.key_close);
        return step == QN_STEP_ON ? go(r, QN_READ_KEYS_VALUE) : step;
    case QN_READ_KEYS_VALUE:
        step = read_next_mark(r, r->format->marks.parameter_open);
        return step == QN_STEP_ON ? begin_member(r, GUESS, QN_READ_KEYS_NEXT) : step;
    case QN_READ_MEMBER:
        return read_member(r);
    case QN_READ_MEMBER_TEXT:
        return read_member_string(r);
    case QN_READ_MEMBER_WHOLE:
        return read_member_whole(r);
    case QN_READ_MEMBER_CDATA:
        return read_cdata(r);
    default:
        return read_cdata_end(r);
    }
}
