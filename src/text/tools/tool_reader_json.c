/* Calls as JSON: objects one after the other or in an array, and calls between marks whose arguments are
 * JSON. */
#include <string.h>

#include "base/json/json_pull.h"
#include "text/tools/tool_reader_steps.h"

/* What a key's value is. */
enum { VALUE_OTHER, VALUE_NAME, VALUE_ID, VALUE_ARGUMENTS };

static qn_step go(qn_call_reader *r, int step)
{
    r->step = step;
    return QN_STEP_ON;
}

/* The next byte; 0: none is there. */
static char peek(qn_call_reader *r)
{
    return qn_read_space(r) == QN_STEP_ON ? r->text[r->at] : 0;
}

static qn_step take(qn_call_reader *r, int step)
{
    r->at++;
    return go(r, step);
}

/* A whole string at `at`, decoded into *to. */
static qn_step read_string(qn_call_reader *r, qn_buf *to)
{
    qn_json_step_result result = QN_JSON_MORE;
    if (!r->scanned) r->json = (qn_json_steps){0};
    while (result == QN_JSON_MORE && r->at + r->scanned < r->n)
        result = qn_json_step(&r->json, r->text[r->at + r->scanned++]);
    if (result == QN_JSON_MORE) return QN_STEP_WAIT;
    size_t n = r->scanned;
    r->scanned = 0;
    if (result == QN_JSON_BAD) return QN_STEP_BAD;
    qn_json_pull p;
    qn_json_text text;
    qn_json_pull_init(&p, "call", r->text + r->at, n);
    qn_status status = qn_json_pull_string(&p, &text);
    qn_buf_reset(to);
    if (status == QN_OK) qn_buf_append(to, text.data, text.n);
    qn_json_pull_free(&p);
    if (status == QN_E_NOMEM || to->status != QN_OK) return QN_STEP_NOMEM;
    if (status != QN_OK) return QN_STEP_BAD;
    r->at += n;
    return QN_STEP_ON;
}

/* ---- objects ------------------------------------------------------------------------------------------- */

/* Between the values of a text. Models part them by white space, a comma or a semicolon. */
static qn_step read_next(qn_call_reader *r)
{
    char c = peek(r);
    if (!c && !r->is_final) return QN_STEP_WAIT;
    qn_step end = qn_read_end(r);
    if (end == QN_STEP_ON) return r->n_ended ? QN_STEP_END : QN_STEP_BAD;
    if (end == QN_STEP_WAIT) return end;
    if ((c == ',' || c == ';') && r->n_ended && r->step == QN_READ_NEXT) return take(r, QN_READ_SEPARATED);
    if (c == '[') {
        r->in_array = 1;
        return take(r, QN_READ_ARRAY_FIRST);
    }
    return c == '{' ? take(r, QN_READ_FIRST_KEY) : QN_STEP_BAD;
}

/* A value ends. If no mark ends the calls of this format, the text ends with it. */
static qn_step end_value(qn_call_reader *r)
{
    r->in_array = 0;
    if (r->format->close) return go(r, QN_READ_NEXT);
    return r->n_ended ? QN_STEP_END : QN_STEP_BAD;
}

static qn_step read_array(qn_call_reader *r)
{
    char c = peek(r);
    if (!c) return QN_STEP_WAIT;
    if (c == ']' && r->step != QN_READ_ARRAY_ELEMENT) {
        r->at++;
        return end_value(r);
    }
    if (r->step == QN_READ_ARRAY_AFTER) return c == ',' ? take(r, QN_READ_ARRAY_ELEMENT) : QN_STEP_BAD;
    return c == '{' ? take(r, QN_READ_FIRST_KEY) : QN_STEP_BAD;
}

static qn_step end_object(qn_call_reader *r)
{
    r->at++;
    if (r->is_nested) {
        r->is_nested = 0;
        return go(r, QN_READ_AFTER_VALUE);
    }
    /* Where calls have no mark, an object without arguments is none. */
    if (r->format->is_bare && !r->is_ended && !r->kept.length) return QN_STEP_BAD;
    qn_step step = qn_read_call_end(r);
    if (step != QN_STEP_ON) return step;
    return r->in_array ? go(r, QN_READ_ARRAY_AFTER) : end_value(r);
}

static int is_one_of(const qn_buf *key, const char *const *names)
{
    for (; *names; names++)
        if (qn_slice_is((qn_slice){key->data, key->length}, *names)) return 1;
    return 0;
}

/* The names that families have for the parts of a call. */
static int value_of(const qn_buf *key)
{
    static const char *const names[] = {"name", "tool_name", "function", NULL};
    static const char *const ids[] = {"id", "tool_call_id", "call_id", NULL};
    static const char *const arguments[] = {"arguments", "parameters", NULL};
    return is_one_of(key, names)       ? VALUE_NAME
           : is_one_of(key, ids)       ? VALUE_ID
           : is_one_of(key, arguments) ? VALUE_ARGUMENTS
                                       : VALUE_OTHER;
}

static qn_step read_key(qn_call_reader *r)
{
    char c = peek(r);
    if (!c) return QN_STEP_WAIT;
    if (c == '}' && r->step == QN_READ_FIRST_KEY) return end_object(r);
    if (c != '"') return QN_STEP_BAD;
    qn_step step = read_string(r, &r->key);
    if (step != QN_STEP_ON) return step;
    qn_slice key = {r->key.data, r->key.length};
    if (r->format->body == QN_CALL_KEYED) {
        r->is_key_text = VALUE_ARGUMENTS;
        step = qn_read_set_name(r, key);
    } else {
        r->is_key_text = value_of(&r->key);
    }
    return step == QN_STEP_ON ? go(r, QN_READ_COLON) : step;
}

static qn_step skip_value(qn_call_reader *r)
{
    r->json = (qn_json_steps){0};
    return go(r, QN_READ_SKIPPED);
}

static qn_step read_value(qn_call_reader *r)
{
    qn_step step;
    char c = peek(r);
    if (!c) return QN_STEP_WAIT;
    switch (r->is_key_text) {
    case VALUE_NAME:
        if (r->name.length) return skip_value(r);
        if (c == '{' && !r->is_nested) {
            r->is_nested = 1;
            return take(r, QN_READ_FIRST_KEY);
        }
        if (c != '"') return QN_STEP_BAD;
        step = read_string(r, &r->key);
        if (step == QN_STEP_ON) step = qn_read_set_name(r, (qn_slice){r->key.data, r->key.length});
        break;
    case VALUE_ID:
        if (c != '"' || r->is_announced) return skip_value(r);
        step = read_string(r, &r->id);
        if (step == QN_STEP_ON && memchr(r->id.data, 0, r->id.length)) step = QN_STEP_BAD;
        break;
    case VALUE_ARGUMENTS:
        if (r->is_ended || r->kept.length) return skip_value(r);
        return qn_read_begin_arguments(r, QN_READ_AFTER_VALUE);
    default:
        return skip_value(r);
    }
    return step == QN_STEP_ON ? go(r, QN_READ_AFTER_VALUE) : step;
}

static qn_step read_skipped(qn_call_reader *r)
{
    while (r->at < r->n) {
        qn_json_step_result result = qn_json_step(&r->json, r->text[r->at]);
        if (result == QN_JSON_BAD) return QN_STEP_BAD;
        r->at += result != QN_JSON_PAST;
        if (result != QN_JSON_MORE) return go(r, QN_READ_AFTER_VALUE);
    }
    return QN_STEP_WAIT;
}

static qn_step read_after_value(qn_call_reader *r)
{
    char c = peek(r);
    if (!c) return QN_STEP_WAIT;
    if (c == '}') return end_object(r);
    if (c != ',' || r->format->body == QN_CALL_KEYED) return QN_STEP_BAD;
    return take(r, QN_READ_KEY);
}

/* ---- NAME mark {JSON}, or KIND mark NAME, fence, JSON, fence ------------------------------------------- */

static const char fence[] = "```";

static qn_step read_named_open(qn_call_reader *r)
{
    qn_step step = qn_read_space(r);
    if (step != QN_STEP_ON && !r->is_final) return step;
    step = qn_read_end(r);
    if (step == QN_STEP_ON) return r->n_ended ? QN_STEP_END : QN_STEP_BAD;
    qn_step open = qn_read_mark(r, r->format->marks.call_open);
    if (open == QN_STEP_ON) return go(r, QN_READ_NAMED_NAME);
    return step == QN_STEP_WAIT ? step : open;
}

/* "functions.NAME:3" is the id of a call of NAME. */
static qn_slice name_of_id(qn_slice id)
{
    static const char prefix[] = "functions.";
    if (id.n <= strlen(prefix) || memcmp(id.p, prefix, strlen(prefix)) != 0) return id;
    qn_slice name = {id.p + strlen(prefix), id.n - strlen(prefix)};
    for (size_t i = name.n; i-- > 0;)
        if (name.p[i] == ':') return (qn_slice){name.p, i};
    return name;
}

/* NAME, NAME id_open ID, or an id that has the name in it. */
static qn_step read_named_name(qn_call_reader *r)
{
    const qn_call_marks *m = &r->format->marks;
    const char *found;
    qn_slice text, name, id = {0};
    qn_step step = qn_read_find(r, m->name_end, m->call_close, &text, &found);
    if (step != QN_STEP_ON) return step;
    if (found != m->name_end) return QN_STEP_BAD;
    r->at += text.n + strlen(found);
    name = text = qn_slice_trim(text);
    for (size_t i = 0, n = m->id_open ? strlen(m->id_open) : text.n + 1; i + n <= text.n && !id.n; i++) {
        if (memcmp(text.p + i, m->id_open, n) != 0) continue;
        name.n = i;
        id = qn_slice_trim((qn_slice){text.p + i + n, text.n - i - n});
    }
    if (!m->id_open) {
        name = name_of_id(text);
        if (name.n != text.n) id = text;
    }
    if (id.n && memchr(id.p, 0, id.n)) return QN_STEP_BAD;
    qn_buf_append(&r->id, id.p, id.n);
    if (r->id.status != QN_OK) return QN_STEP_NOMEM;
    step = qn_read_set_name(r, name);
    return step == QN_STEP_ON ? go(r, QN_READ_NAMED_BODY) : step;
}

static qn_step read_named_body(qn_call_reader *r)
{
    const char *found;
    qn_slice name;
    char c = peek(r);
    if (!c) return QN_STEP_WAIT;
    r->is_fenced = 0;
    if (c == '{' || c == '"' || !r->format->marks.call_close)
        return qn_read_begin_arguments(r, QN_READ_NAMED_AFTER);
    qn_step step = qn_read_looks_at(r, r->at, r->format->marks.call_close);
    if (step == QN_STEP_ON) return go(r, QN_READ_NAMED_AFTER);
    if (step == QN_STEP_WAIT) return step;
    step = qn_read_find(r, fence, r->format->marks.call_close, &name, &found);
    if (step != QN_STEP_ON) return step;
    if (found != fence) /* null, or nothing that arguments begin with */
        return qn_read_begin_arguments(r, QN_READ_NAMED_AFTER);
    r->at += name.n + strlen(fence);
    r->is_fenced = 1;
    if (qn_slice_trim(name).n) step = qn_read_set_name(r, name);
    return step == QN_STEP_ON ? go(r, QN_READ_NAMED_LANGUAGE) : step;
}

static qn_step read_named_language(qn_call_reader *r)
{
    qn_step step = qn_read_mark(r, "json");
    if (step == QN_STEP_WAIT) return step;
    return qn_read_begin_arguments(r, QN_READ_NAMED_AFTER);
}

static qn_step read_named_after(qn_call_reader *r)
{
    qn_step step;
    if (!r->format->marks.call_close) {
        step = qn_read_call_end(r);
        return step == QN_STEP_ON ? QN_STEP_END : step;
    }
    step = qn_read_space(r);
    if (step == QN_STEP_ON && r->is_fenced) {
        step = qn_read_mark(r, fence);
        if (step != QN_STEP_ON) return step;
        r->is_fenced = 0;
        step = qn_read_space(r);
    }
    if (step == QN_STEP_ON) step = qn_read_mark(r, r->format->marks.call_close);
    if (step == QN_STEP_ON) step = qn_read_call_end(r);
    return step == QN_STEP_ON ? go(r, QN_READ_NAMED_OPEN) : step;
}

qn_step qn_read_json(qn_call_reader *r)
{
    switch (r->step) {
    case QN_READ_NEXT:
    case QN_READ_SEPARATED:
        return read_next(r);
    case QN_READ_ARRAY_FIRST:
    case QN_READ_ARRAY_ELEMENT:
    case QN_READ_ARRAY_AFTER:
        return read_array(r);
    case QN_READ_FIRST_KEY:
    case QN_READ_KEY:
        return read_key(r);
    case QN_READ_COLON:
        if (!peek(r)) return QN_STEP_WAIT;
        return r->text[r->at] == ':' ? take(r, QN_READ_VALUE) : QN_STEP_BAD;
    case QN_READ_VALUE:
        return read_value(r);
    case QN_READ_SKIPPED:
        return read_skipped(r);
    case QN_READ_AFTER_VALUE:
        return read_after_value(r);
    case QN_READ_NAMED_OPEN:
        return read_named_open(r);
    case QN_READ_NAMED_NAME:
        return read_named_name(r);
    case QN_READ_NAMED_BODY:
        return read_named_body(r);
    case QN_READ_NAMED_LANGUAGE:
        return read_named_language(r);
    default:
        return read_named_after(r);
    }
}
