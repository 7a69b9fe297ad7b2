#include "text/tools/tool_reader.h"

#include <string.h>

#include "base/json/json_pull.h"
#include "base/utf8.h"
#include "text/tools/tool_reader_steps.h"

/* ---- items ---- */

static int is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

qn_slice qn_slice_trim(qn_slice s)
{
    while (s.n && is_space(s.p[0])) s.p++, s.n--;
    while (s.n && is_space(s.p[s.n - 1])) s.n--;
    return s;
}

int qn_slice_is(qn_slice s, const char *text)
{
    return s.n == strlen(text) && memcmp(s.p, text, s.n) == 0;
}

qn_step qn_read_memory(qn_status status)
{
    return status == QN_OK ? QN_STEP_ON : QN_STEP_NOMEM;
}

qn_step qn_read_space(qn_call_reader *r)
{
    while (r->at < r->n && is_space(r->text[r->at])) r->at++;
    return r->at < r->n ? QN_STEP_ON : QN_STEP_WAIT;
}

qn_step qn_read_looks_at(const qn_call_reader *r, size_t at, const char *mark)
{
    size_t there = r->n - at, m = mark ? strlen(mark) : 0;
    if (!m) return QN_STEP_BAD;
    if (there >= m) return memcmp(r->text + at, mark, m) == 0 ? QN_STEP_ON : QN_STEP_BAD;
    return r->is_final || memcmp(r->text + at, mark, there) != 0 ? QN_STEP_BAD : QN_STEP_WAIT;
}

qn_step qn_read_mark(qn_call_reader *r, const char *mark)
{
    qn_step step = qn_read_looks_at(r, r->at, mark);
    if (step == QN_STEP_ON) r->at += strlen(mark);
    return step;
}

qn_step qn_read_find(qn_call_reader *r, const char *mark, const char *other, qn_slice *before,
                     const char **found)
{
    for (; r->at + r->scanned < r->n; r->scanned++) {
        size_t at = r->at + r->scanned;
        qn_step first = qn_read_looks_at(r, at, mark);
        qn_step second = first == QN_STEP_BAD ? qn_read_looks_at(r, at, other) : QN_STEP_BAD;
        if (first == QN_STEP_WAIT || second == QN_STEP_WAIT) return QN_STEP_WAIT;
        if (first == QN_STEP_BAD && second == QN_STEP_BAD) continue;
        *before = (qn_slice){r->text + r->at, r->scanned};
        *found = first == QN_STEP_ON ? mark : other;
        r->scanned = 0;
        return QN_STEP_ON;
    }
    return r->is_final ? QN_STEP_BAD : QN_STEP_WAIT;
}

qn_step qn_read_end(qn_call_reader *r)
{
    const qn_call_format *f = r->format;
    const char *const ends[] = {r->has_header ? f->header.open : f->close, r->has_header ? f->drop[0] : NULL,
                                r->has_header ? f->drop[1] : NULL, r->has_header ? f->drop[2] : NULL};
    int waits = 0;
    if (r->is_final && r->at == r->n) return QN_STEP_ON;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        qn_step step = qn_read_looks_at(r, r->at, ends[i]);
        waits |= step == QN_STEP_WAIT;
        if (step != QN_STEP_ON) continue;
        if (!(r->has_header && i == 0)) r->at += strlen(ends[i]); /* else the next header begins here */
        return QN_STEP_ON;
    }
    return waits ? QN_STEP_WAIT : QN_STEP_BAD;
}

size_t qn_read_character(const qn_call_reader *r)
{
    uint32_t code;
    int incomplete;
    if (r->at == r->n) return 0;
    size_t n = qn_utf8_decode(r->text + r->at, r->n - r->at, &code);
    if (n) return n;
    n = qn_utf8_invalid_length(r->text + r->at, r->n - r->at, &incomplete);
    return incomplete && !r->is_final ? 0 : n;
}

qn_step qn_read_put_escaped(qn_call_reader *r, const char *text, size_t n)
{
    size_t start = r->piece.length;
    qn_buf_json_string(&r->piece, text, n);
    if (r->piece.status != QN_OK) return QN_STEP_NOMEM;
    r->piece.length -= 2; /* its quotes */
    memmove(r->piece.data + start, r->piece.data + start + 1, r->piece.length - start);
    return QN_STEP_ON;
}

qn_step qn_read_text(qn_call_reader *r, const char *end, const char *bad, int end_line)
{
    size_t start = r->at;
    qn_step step = QN_STEP_WAIT;
    size_t behind = 0;
    while (r->at < r->n) {
        int is_line = end_line && r->text[r->at] == '\n';
        step = qn_read_looks_at(r, r->at, end);
        if (step == QN_STEP_ON) behind = strlen(end);
        if (step == QN_STEP_BAD && is_line) {
            step = r->at + 1 < r->n ? qn_read_looks_at(r, r->at + 1, end)
                   : r->is_final    ? QN_STEP_BAD
                                    : QN_STEP_WAIT;
            if (step == QN_STEP_ON) behind = 1 + strlen(end);
        }
        if (step != QN_STEP_BAD) break;
        step = qn_read_looks_at(r, r->at, bad);
        if (step != QN_STEP_BAD) {
            if (step == QN_STEP_ON) step = QN_STEP_BAD;
            break;
        }
        step = QN_STEP_WAIT;
        size_t n = qn_read_character(r);
        if (!n) break;
        r->at += n;
    }
    if (r->at > start && qn_read_put_escaped(r, r->text + start, r->at - start) != QN_STEP_ON)
        return QN_STEP_NOMEM;
    r->at += behind;
    return step;
}

/* ---- the call ---- */

static void begin_call(qn_call_reader *r)
{
    qn_buf_reset(&r->name);
    qn_buf_reset(&r->id);
    qn_buf_reset(&r->kept);
    qn_buf_reset(&r->piece);
    r->is_announced = r->is_ended = r->n_members = 0;
}

static qn_step put(qn_call_reader *r, qn_answer_kind kind, const char *text, size_t n, const char *id)
{
    r->has_said = 1;
    r->said_at = r->at;
    return qn_read_memory(r->put(r->user, kind, text, n, id));
}

static qn_step announce(qn_call_reader *r)
{
    qn_buf_append(&r->id, "", 0); /* a string, even where the model says none */
    if (r->id.status != QN_OK) return QN_STEP_NOMEM;
    r->is_announced = 1;
    return put(r, QN_ANSWER_CALL_BEGIN, r->name.data, r->name.length, r->id.data);
}

qn_step qn_read_set_name(qn_call_reader *r, qn_slice name)
{
    name = qn_slice_trim(name);
    if (!name.n || memchr(name.p, 0, name.n)) return QN_STEP_BAD;
    qn_buf_reset(&r->name);
    qn_buf_append(&r->name, name.p, name.n);
    return qn_read_memory(r->name.status);
}

qn_step qn_read_say(qn_call_reader *r)
{
    qn_step step = QN_STEP_ON;
    if (r->piece.status != QN_OK) return QN_STEP_NOMEM;
    if (!r->piece.length) return QN_STEP_ON;
    if (!r->name.length) {
        qn_buf_append(&r->kept, r->piece.data, r->piece.length);
        step = qn_read_memory(r->kept.status);
    } else {
        if (!r->is_announced) step = announce(r);
        if (step == QN_STEP_ON) step = put(r, QN_ANSWER_CALL_ARGUMENTS, r->piece.data, r->piece.length, NULL);
    }
    qn_buf_reset(&r->piece);
    return step;
}

static qn_step end_announced(qn_call_reader *r)
{
    r->is_ended = 1;
    r->n_ended++;
    return put(r, QN_ANSWER_CALL_END, "", 0, NULL);
}

qn_step qn_read_arguments_end(qn_call_reader *r)
{
    qn_step step = qn_read_say(r);
    return step == QN_STEP_ON && r->is_announced ? end_announced(r) : step;
}

qn_step qn_read_call_end(qn_call_reader *r)
{
    qn_step step = QN_STEP_ON;
    if (!r->name.length) return QN_STEP_BAD;
    if (!r->is_ended) {
        /* Kept from before the name, or none. */
        if (r->kept.length)
            qn_buf_append(&r->piece, r->kept.data, r->kept.length);
        else if (!r->is_announced)
            qn_buf_puts(&r->piece, "{}");
        step = qn_read_arguments_end(r);
    }
    begin_call(r);
    return step;
}

qn_status qn_call_reader_cut(qn_call_reader *r)
{
    if (!r->is_announced || r->is_ended) return QN_OK;
    return end_announced(r) == QN_STEP_ON ? QN_OK : QN_E_NOMEM;
}

/* ---- arguments as JSON ---- */

/* One character of the object, p[0..n). A raw control character in a string, which models write and JSON does
 * not have, is escaped. */
static qn_json_step_result take_character(qn_call_reader *r, const char *p, size_t n)
{
    if (qn_json_is_in_string(&r->json) && (unsigned char)p[0] < 0x20) {
        qn_read_put_escaped(r, p, 1);
        return QN_JSON_MORE;
    }
    qn_json_step_result result = qn_json_step(&r->json, p[0]);
    if (result != QN_JSON_BAD) qn_buf_append(&r->piece, p, n);
    return result;
}

qn_step qn_read_begin_arguments(qn_call_reader *r, int then)
{
    r->after = then;
    r->step = QN_READ_ARGUMENTS;
    return QN_STEP_ON;
}

static qn_step read_arguments(qn_call_reader *r)
{
    qn_step step = qn_read_space(r);
    if (step != QN_STEP_ON) return step;
    r->json = (qn_json_steps){0};
    switch (r->text[r->at]) {
    case '{':
        r->step = QN_READ_OBJECT;
        return QN_STEP_ON;
    case '"':
        r->at++;
        r->step = QN_READ_TEXT_OBJECT;
        return QN_STEP_ON;
    default:
        step = qn_read_mark(r, "null");
        if (step != QN_STEP_ON) return step;
        qn_buf_puts(&r->piece, "{}");
        r->step = r->after;
        return qn_read_arguments_end(r);
    }
}

static qn_step read_object(qn_call_reader *r)
{
    qn_json_step_result result = QN_JSON_MORE;
    size_t n, before = r->at;
    uint32_t code;
    while (result == QN_JSON_MORE && (n = qn_read_character(r)) > 0) {
        if (!qn_utf8_decode(r->text + r->at, n, &code)) result = QN_JSON_BAD;
        if (result == QN_JSON_MORE) result = take_character(r, r->text + r->at, n);
        if (result != QN_JSON_BAD) r->at += n;
    }
    if (result == QN_JSON_LAST) {
        r->step = r->after;
        return qn_read_arguments_end(r);
    }
    qn_step step = r->at > before ? qn_read_say(r) : QN_STEP_ON;
    if (step != QN_STEP_ON) return step;
    return result == QN_JSON_BAD ? QN_STEP_BAD : QN_STEP_WAIT;
}

/* The escape at `at`, which is a backslash; *n: its bytes in out. */
static qn_step read_escape(qn_call_reader *r, char out[4], size_t *n)
{
    char quoted[16] = "\"";
    size_t length = 2, there = r->n - r->at;
    if (there >= 2 && r->text[r->at + 1] == 'u') length = 6;
    if (length == 6 && there >= 4 && (r->text[r->at + 2] | 0x20) == 'd' &&
        strchr("89abAB", r->text[r->at + 3]) && r->text[r->at + 3])
        length = 12; /* two code units make a character */
    if (there < length) return QN_STEP_WAIT;
    memcpy(quoted + 1, r->text + r->at, length);
    quoted[1 + length] = '"';
    qn_json_pull p;
    qn_json_text text;
    qn_json_pull_init(&p, "call", quoted, length + 2);
    qn_status status = qn_json_pull_string(&p, &text);
    if (status == QN_OK && p.at == length + 2 && text.n <= 4) {
        memcpy(out, text.data, text.n);
        *n = text.n;
    } else if (status == QN_OK) {
        status = QN_E_FORMAT;
    }
    qn_json_pull_free(&p);
    if (status == QN_E_NOMEM) return QN_STEP_NOMEM;
    if (status != QN_OK) return QN_STEP_BAD;
    r->at += length;
    return QN_STEP_ON;
}

/* One character of the string, decoded. */
static qn_step read_decoded(qn_call_reader *r, char out[4], size_t *n)
{
    uint32_t code;
    char c = r->text[r->at];
    if (c == '\\') return read_escape(r, out, n);
    *n = qn_read_character(r);
    if (!*n) return QN_STEP_WAIT;
    if ((unsigned char)c < 0x20 || !qn_utf8_decode(r->text + r->at, *n, &code)) return QN_STEP_BAD;
    memcpy(out, r->text + r->at, *n);
    r->at += *n;
    return QN_STEP_ON;
}

static qn_step read_text_object(qn_call_reader *r)
{
    qn_json_step_result result = QN_JSON_MORE;
    qn_step step = QN_STEP_ON;
    size_t before = r->at;
    while (step == QN_STEP_ON && result == QN_JSON_MORE && r->at < r->n) {
        char c[4];
        size_t n, start = r->at;
        step = r->text[r->at] == '"' ? QN_STEP_BAD : read_decoded(r, c, &n);
        if (step != QN_STEP_ON) break;
        int is_first = r->json.depth == 0;
        if (is_first && is_space(c[0])) continue;
        result = is_first && c[0] != '{' ? QN_JSON_BAD : take_character(r, c, n);
        if (result == QN_JSON_BAD) r->at = start;
    }
    if (result == QN_JSON_LAST) {
        r->step = QN_READ_TEXT_END;
        return qn_read_arguments_end(r);
    }
    qn_step said = r->at > before ? qn_read_say(r) : QN_STEP_ON;
    if (said != QN_STEP_ON) return said;
    if (result == QN_JSON_BAD) return QN_STEP_BAD;
    return step == QN_STEP_ON ? QN_STEP_WAIT : step;
}

/* White space and the quote behind the object. */
static qn_step read_text_end(qn_call_reader *r)
{
    while (r->at < r->n) {
        char c[4];
        size_t n;
        if (r->text[r->at] == '"') {
            r->at++;
            r->step = r->after;
            return QN_STEP_ON;
        }
        qn_step step = read_decoded(r, c, &n);
        if (step == QN_STEP_ON && !is_space(c[0])) step = QN_STEP_BAD;
        if (step != QN_STEP_ON) return step;
    }
    return QN_STEP_WAIT;
}

/* ---- a text ---- */

/* The text behind a header is the arguments; nothing means none. */
static qn_step read_header_body(qn_call_reader *r)
{
    qn_step step = qn_read_space(r);
    qn_step end = step == QN_STEP_ON || r->is_final ? qn_read_end(r) : step;
    if (end == QN_STEP_BAD) return qn_read_begin_arguments(r, QN_READ_HEADER_END);
    if (end != QN_STEP_ON) return end;
    step = qn_read_call_end(r);
    return step == QN_STEP_ON ? QN_STEP_END : step;
}

static qn_step read_header_end(qn_call_reader *r)
{
    qn_step step = qn_read_space(r);
    if (step != QN_STEP_ON && !r->is_final) return step;
    step = qn_read_end(r);
    if (step == QN_STEP_ON) step = qn_read_call_end(r);
    return step == QN_STEP_ON ? QN_STEP_END : step;
}

static qn_step read_item(qn_call_reader *r)
{
    switch (r->step) {
    case QN_READ_HEADER_BODY:
        return read_header_body(r);
    case QN_READ_HEADER_END:
        return read_header_end(r);
    case QN_READ_ARGUMENTS:
        return read_arguments(r);
    case QN_READ_OBJECT:
        return read_object(r);
    case QN_READ_TEXT_OBJECT:
        return read_text_object(r);
    case QN_READ_TEXT_END:
        return read_text_end(r);
    default:
        if (r->step < QN_READ_TAG_OPEN) return qn_read_json(r);
        if (r->step < QN_READ_LOOSE_NAME) return qn_read_tags(r);
        return r->step < QN_READ_PYTHON_FIRST ? qn_read_loose(r) : qn_read_python(r);
    }
}

qn_status qn_call_reader_begin(qn_call_reader *r, const qn_call_format *format, const json_t *tools,
                               const char *name)
{
    static const int first[] = {[QN_CALL_JSON] = QN_READ_NEXT,        [QN_CALL_KEYED] = QN_READ_NEXT,
                                [QN_CALL_TAGS] = QN_READ_TAG_OPEN,    [QN_CALL_KEYS] = QN_READ_KEYS_NAME,
                                [QN_CALL_LOOSE] = QN_READ_LOOSE_NAME, [QN_CALL_PYTHON] = QN_READ_PYTHON_FIRST,
                                [QN_CALL_NAMED] = QN_READ_NAMED_OPEN};
    begin_call(r);
    r->format = format;
    r->tools = tools;
    r->has_header = name != NULL;
    r->step = name ? QN_READ_HEADER_BODY : first[format->body];
    r->n_ended = r->in_array = r->is_nested = r->is_fenced = r->is_braced = r->depth = r->n_quotes = 0;
    r->scanned = r->held = 0;
    if (r->step == QN_READ_NAMED_OPEN && !format->marks.call_open) r->step = QN_READ_NAMED_NAME;
    if (name) qn_buf_puts(&r->name, name);
    return r->name.status;
}

void qn_call_reader_free(qn_call_reader *r)
{
    qn_buf_free(&r->name);
    qn_buf_free(&r->id);
    qn_buf_free(&r->key);
    qn_buf_free(&r->kept);
    qn_buf_free(&r->piece);
}

/* As far as the text may be read before something is said: what is held back is bounded. */
static size_t end_of_view(const qn_call_reader *r, size_t n)
{
    size_t end = r->has_said ? r->said_at + r->limit_bytes : r->limit_bytes - r->held;
    return end < n ? end : n;
}

qn_status qn_call_reader_read(qn_call_reader *r, const char *text, size_t n, int is_final,
                              qn_calls_result *result, size_t *used, int64_t *said)
{
    qn_step step;
    r->text = text;
    r->at = 0;
    r->has_said = 0;
    do {
        r->n = end_of_view(r, n);
        r->is_final = is_final && r->n == n;
        step = read_item(r);
    } while (step == QN_STEP_ON || (step == QN_STEP_WAIT && end_of_view(r, n) > r->n));
    if (step == QN_STEP_WAIT && r->n < n) step = QN_STEP_BAD;
    r->held = r->has_said ? r->at - r->said_at : r->held + r->at;
    *used = r->at;
    *said = r->has_said ? (int64_t)r->said_at : -1;
    *result = step == QN_STEP_WAIT ? QN_CALLS_MORE : step == QN_STEP_END ? QN_CALLS_END : QN_CALLS_BAD;
    return step == QN_STEP_NOMEM ? QN_E_NOMEM : QN_OK;
}
