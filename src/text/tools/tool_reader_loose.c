/* call:NAME{key:<|"|>text<|"|>,...}: nearly JSON, made JSON while it is written. Its values are those of
 * NAME(key=value) too, whose calls and texts tool_reader_python.c reads. */
#include <string.h>

#include "text/tools/loose_json.h"
#include "text/tools/tool_reader_steps.h"

static qn_step go(qn_call_reader *r, int step)
{
    r->step = step;
    return QN_STEP_ON;
}

static qn_step read_name(qn_call_reader *r)
{
    static const char call[] = "call:";
    const char *found;
    qn_slice name;
    qn_step step = qn_read_space(r);
    if (step == QN_STEP_ON) step = qn_read_looks_at(r, r->at, call);
    if (step != QN_STEP_ON) return step;
    step = qn_read_find(r, "{", r->format->close, &name, &found);
    if (step != QN_STEP_ON) return step;
    if (found[0] != '{') return QN_STEP_BAD;
    step = qn_read_set_name(r, (qn_slice){name.p + strlen(call), name.n - strlen(call)});
    if (step != QN_STEP_ON) return step;
    r->at += name.n;
    return go(r, QN_READ_LOOSE_OBJECT);
}

/* {{...}} holds JSON. */
static qn_step read_object(qn_call_reader *r)
{
    qn_step step = qn_read_looks_at(r, r->at, "{{");
    if (step == QN_STEP_WAIT) return step;
    r->is_braced = step == QN_STEP_ON;
    r->at += (size_t)r->is_braced;
    r->after = QN_READ_LOOSE_END;
    return go(r, QN_READ_LOOSE_VALUE);
}

static qn_step open_bracket(qn_call_reader *r, char c)
{
    if (r->depth == QN_JSON_DEPTH_MAX) return QN_STEP_BAD;
    r->at++;
    r->closers[r->depth++] = c == '{' ? '}' : c == '[' ? ']' : ')';
    qn_buf_putc(&r->piece, c == '{' ? '{' : '[');
    return go(r, QN_READ_LOOSE_FIRST);
}

qn_step qn_read_loose_end_value(qn_call_reader *r)
{
    if (r->depth) {
        qn_step step = qn_read_say(r);
        return step == QN_STEP_ON ? go(r, QN_READ_LOOSE_AFTER) : step;
    }
    r->step = r->after;
    return qn_read_arguments_end(r);
}

static qn_step close_bracket(qn_call_reader *r)
{
    r->at++;
    int is_object = qn_read_is_in_call(r) || r->closers[r->depth - 1] == '}';
    r->depth--;
    qn_buf_putc(&r->piece, is_object ? '}' : ']');
    return qn_read_loose_end_value(r);
}

/* Length of the quoted text or word at `at`; 0: it is not whole. */
static size_t whole(qn_call_reader *r)
{
    size_t i = r->at;
    char quote = r->text[i];
    if (quote != '"' && quote != '\'') {
        while (i < r->n && qn_loose_is_word(r->text[i])) i++;
        return i < r->n ? i - r->at : 0;
    }
    for (i += r->scanned ? r->scanned : 1; i < r->n && r->text[i] != quote; i++)
        if (r->text[i] == '\\') i++;
    r->scanned = i < r->n ? 0 : i - r->at;
    return i < r->n ? i + 1 - r->at : 0;
}

typedef qn_status reader(const char *text, size_t n, size_t *at, qn_buf *out);

/* A quoted text, number, constant or key. */
static qn_step read_scalar(qn_call_reader *r, reader *read)
{
    size_t at = 0, n = 0;
    char c = r->text[r->at];
    if (c == '<') { /* a key in Gemma's quotes */
        const char *found;
        qn_slice key;
        qn_step step = qn_read_looks_at(r, r->at, qn_loose_quote);
        if (step != QN_STEP_ON) return step;
        r->at += strlen(qn_loose_quote);
        step = qn_read_find(r, qn_loose_quote, r->format->close, &key, &found);
        r->at -= strlen(qn_loose_quote);
        if (step != QN_STEP_ON) return step;
        n = key.n + 2 * strlen(qn_loose_quote);
    } else {
        if (c != '"' && c != '\'' && !qn_loose_is_word(c)) return QN_STEP_BAD;
        n = whole(r);
    }
    if (!n) return QN_STEP_WAIT;
    size_t before = r->piece.length;
    qn_status status = read(r->text + r->at, n, &at, &r->piece);
    if (status == QN_E_NOMEM) return QN_STEP_NOMEM;
    if (status != QN_OK || at != n) {
        r->piece.length = before;
        return QN_STEP_BAD;
    }
    r->at += n;
    return QN_STEP_ON;
}

static qn_step read_value(qn_call_reader *r)
{
    qn_step step = qn_read_space(r);
    if (step != QN_STEP_ON) return step;
    char c = r->text[r->at];
    if (c == '{' || c == '[' || c == '(') return open_bracket(r, c);
    step = qn_read_mark(r, qn_loose_quote);
    if (step == QN_STEP_WAIT) return step;
    if (step == QN_STEP_ON) {
        qn_buf_putc(&r->piece, '"');
        return go(r, QN_READ_LOOSE_TEXT);
    }
    if (r->format->body == QN_CALL_PYTHON && (c == '"' || c == '\'')) return go(r, QN_READ_PYTHON_TEXT);
    step = read_scalar(r, qn_loose_json);
    return step == QN_STEP_ON ? qn_read_loose_end_value(r) : step;
}

static qn_step read_text(qn_call_reader *r)
{
    size_t before = r->at;
    qn_step step = qn_read_text(r, qn_loose_quote, NULL, 0);
    if (step == QN_STEP_ON) {
        qn_buf_putc(&r->piece, '"');
        return qn_read_loose_end_value(r);
    }
    if (step == QN_STEP_WAIT && r->at > before && qn_read_say(r) == QN_STEP_NOMEM) return QN_STEP_NOMEM;
    return step;
}

/* A member or an element. Behind a comma there may be none. */
static qn_step read_element(qn_call_reader *r)
{
    qn_step step = qn_read_space(r);
    if (step != QN_STEP_ON) return step;
    char closer = r->closers[r->depth - 1];
    if (r->text[r->at] == closer) return close_bracket(r);
    size_t before = r->piece.length;
    if (r->step == QN_READ_LOOSE_ELEMENT) qn_buf_puts(&r->piece, ", ");
    if (closer != '}' && !qn_read_is_in_call(r)) return go(r, QN_READ_LOOSE_VALUE);
    step = read_scalar(r, qn_loose_key);
    if (step != QN_STEP_ON) r->piece.length = before;
    return step == QN_STEP_ON ? go(r, QN_READ_LOOSE_COLON) : step;
}

static qn_step read_mark(qn_call_reader *r, char mark, int then)
{
    qn_step step = qn_read_space(r);
    if (step != QN_STEP_ON) return step;
    if (r->text[r->at] != mark) return QN_STEP_BAD;
    r->at++;
    return go(r, then);
}

static qn_step read_colon(qn_call_reader *r)
{
    qn_step step = read_mark(r, qn_read_is_in_call(r) ? '=' : ':', QN_READ_LOOSE_VALUE);
    if (step == QN_STEP_ON) qn_buf_puts(&r->piece, ": ");
    return step;
}

static qn_step read_after(qn_call_reader *r)
{
    qn_step step = qn_read_space(r);
    if (step != QN_STEP_ON) return step;
    if (r->text[r->at] == r->closers[r->depth - 1]) return close_bracket(r);
    return read_mark(r, ',', QN_READ_LOOSE_ELEMENT);
}

static qn_step read_end(qn_call_reader *r)
{
    if (r->is_braced) {
        qn_step step = read_mark(r, '}', QN_READ_LOOSE_END);
        if (step != QN_STEP_ON) return step;
        r->is_braced = 0;
    }
    qn_step step = qn_read_space(r);
    if (step != QN_STEP_ON && !r->is_final) return step;
    step = qn_read_end(r);
    if (step == QN_STEP_ON) step = qn_read_call_end(r);
    return step == QN_STEP_ON ? QN_STEP_END : step;
}

qn_step qn_read_loose(qn_call_reader *r)
{
    switch (r->step) {
    case QN_READ_LOOSE_NAME:
        return read_name(r);
    case QN_READ_LOOSE_OBJECT:
        return read_object(r);
    case QN_READ_LOOSE_FIRST:
    case QN_READ_LOOSE_ELEMENT:
        return read_element(r);
    case QN_READ_LOOSE_COLON:
        return read_colon(r);
    case QN_READ_LOOSE_VALUE:
        return read_value(r);
    case QN_READ_LOOSE_TEXT:
        return read_text(r);
    case QN_READ_LOOSE_AFTER:
        return read_after(r);
    default:
        return read_end(r);
    }
}
