/* NAME(key=value, ...), as Python has it, one call after the other or in [...], made JSON while it is written.
 * Values are those of tool_reader_loose.c. Templates write texts in quotes without escaping the quotes inside,
 * so a quote ends a text only where Python could go on behind it: before a comma, a colon or a bracket. */
#include <string.h>

#include "base/utf8.h"
#include "text/tools/loose_json.h"
#include "text/tools/tool_reader_steps.h"
#include "text/tools/tool_types.h"

static qn_step go(qn_call_reader *r, int step)
{
    r->step = step;
    return QN_STEP_ON;
}

int qn_read_is_in_call(const qn_call_reader *r)
{
    return r->format->body == QN_CALL_PYTHON && r->depth == 1;
}

/* ---- calls ---------------------------------------------------------------------------------------------- */

/* The first byte behind n bytes and white space; r->n: it is not there, and what was looked at is kept. */
static size_t skip_space(qn_call_reader *r, size_t n)
{
    size_t i = r->at + (r->scanned ? r->scanned : n);
    while (i < r->n && r->text[i] && strchr(" \n\t\r", r->text[i])) i++;
    r->scanned = i < r->n ? 0 : i - r->at;
    return i;
}

/* The first of the calls: in a list or not, or objects of JSON instead. */
static qn_step read_first(qn_call_reader *r)
{
    qn_step step = qn_read_space(r);
    if (step != QN_STEP_ON) return step;
    int is_list = r->text[r->at] == '[';
    size_t i = is_list ? skip_space(r, 1) : r->at;
    if (i == r->n) return r->is_final ? QN_STEP_BAD : QN_STEP_WAIT;
    if (r->text[i] == '{') return go(r, QN_READ_NEXT);
    r->in_array = is_list;
    r->at = i;
    return go(r, QN_READ_PYTHON_NEXT);
}

/* NAME and its bracket. Where calls have no mark, only a tool's name begins one. */
static qn_step read_name(qn_call_reader *r)
{
    size_t i = r->at + r->scanned;
    while (i < r->n && qn_loose_is_word(r->text[i])) i++;
    r->scanned = i < r->n ? 0 : i - r->at;
    if (i == r->n) return r->is_final ? QN_STEP_BAD : QN_STEP_WAIT;
    if (r->text[i] != '(') return QN_STEP_BAD;
    qn_slice name = {r->text + r->at, i - r->at};
    if (r->format->is_bare && !qn_call_is_tool(r->tools, name.p, name.n)) return QN_STEP_BAD;
    qn_step step = qn_read_set_name(r, name);
    if (step != QN_STEP_ON) return step;
    r->at = i + 1;
    r->depth = 1;
    r->closers[0] = ')';
    r->after = QN_READ_PYTHON_CALLED;
    qn_buf_putc(&r->piece, '{');
    return go(r, QN_READ_LOOSE_FIRST);
}

static qn_step read_called(qn_call_reader *r)
{
    r->step = QN_READ_PYTHON_NEXT;
    return qn_read_call_end(r);
}

/* Before a call, or behind the last one. */
static qn_step read_next(qn_call_reader *r)
{
    qn_step step = qn_read_space(r);
    if (step != QN_STEP_ON && !r->is_final) return step;
    step = qn_read_end(r);
    if (step != QN_STEP_BAD) return step == QN_STEP_ON ? (r->n_ended ? QN_STEP_END : QN_STEP_BAD) : step;
    char c = r->text[r->at];
    if (c == ']' && r->in_array) {
        r->at++;
        if (!r->n_ended) return QN_STEP_BAD;
        return r->format->close ? go(r, QN_READ_PYTHON_END) : QN_STEP_END;
    }
    if ((c == ',' || c == ';') && r->n_ended) {
        r->at++;
        return QN_STEP_ON;
    }
    return read_name(r);
}

/* Behind the list. */
static qn_step read_end(qn_call_reader *r)
{
    qn_step step = qn_read_space(r);
    if (step != QN_STEP_ON && !r->is_final) return step;
    step = qn_read_end(r);
    return step == QN_STEP_ON ? QN_STEP_END : step;
}

/* ---- texts ---------------------------------------------------------------------------------------------- */

/* Which quotes begin the text at `at`: one, or three. "" is a whole text. */
static qn_step begin_text(qn_call_reader *r)
{
    const char *three = r->text[r->at] == '"' ? "\"\"\"" : "'''";
    qn_step step = qn_read_looks_at(r, r->at, three);
    if (step == QN_STEP_WAIT) return step;
    r->quote = three[0];
    r->n_quotes = step == QN_STEP_ON ? 3 : 1;
    r->at += (size_t)r->n_quotes;
    qn_buf_putc(&r->piece, '"');
    return QN_STEP_ON;
}

/* ON: the quote at `at` ends the text. BAD: it is part of it. */
static qn_step is_end_quote(qn_call_reader *r)
{
    if (r->n_quotes == 3 && !r->scanned) {
        qn_step step = qn_read_looks_at(r, r->at, r->quote == '"' ? "\"\"\"" : "'''");
        if (step != QN_STEP_ON) return step;
    }
    size_t i = skip_space(r, (size_t)r->n_quotes);
    if (i == r->n && r->is_final) r->scanned = 0;
    if (i == r->n) return r->is_final ? QN_STEP_ON : QN_STEP_WAIT;
    return r->text[i] && strchr(",)]}:", r->text[i]) ? QN_STEP_ON : QN_STEP_BAD;
}

static int is_octal(char c)
{
    return c >= '0' && c <= '7';
}

/* Bytes of the escape that begins with text; more than n: its end is to come. */
static size_t escape_length(const char *text, size_t n)
{
    size_t length = 2;
    if (n < 2) return 2;
    if (text[1] == 'x') return 4;
    if (text[1] == 'U') return 10;
    if (text[1] == 'u') {
        if (n < 4) return 6;
        /* Two code units make a character. */
        int is_high = (text[2] | 0x20) == 'd' && text[3] && strchr("89abAB", text[3]);
        return is_high ? 12 : 6;
    }
    while (is_octal(text[1]) && length < 4 && (length >= n || is_octal(text[length]))) length++;
    return length;
}

/* The character of the escape, to r->piece. 0: there is no such escape. */
static int put_escape(qn_call_reader *r, const char *text, size_t n)
{
    char quoted[16] = "\"", character[4];
    size_t at = 0, start = r->piece.length;
    if (n > 1 && is_octal(text[1])) {
        uint32_t code = 0;
        for (size_t i = 1; i < n; i++) code = code * 8 + (uint32_t)(text[i] - '0');
        return qn_read_put_escaped(r, character, qn_utf8_encode(code, character)) == QN_STEP_ON;
    }
    memcpy(quoted + 1, text, n);
    quoted[1 + n] = '"';
    if (qn_loose_json(quoted, n + 2, &at, &r->piece) != QN_OK || at != n + 2) {
        r->piece.length = start;
        return 0;
    }
    r->piece.length -= 2; /* its quotes */
    memmove(r->piece.data + start, r->piece.data + start + 1, r->piece.length - start);
    return 1;
}

/* The escape at `at`. A backslash before anything else stands for itself. */
static qn_step read_escape(qn_call_reader *r)
{
    size_t there = r->n - r->at, n = escape_length(r->text + r->at, there);
    if (there < n && !r->is_final) return QN_STEP_WAIT;
    int is_whole = there >= n && put_escape(r, r->text + r->at, n);
    if (r->piece.status != QN_OK) return QN_STEP_NOMEM;
    r->at += is_whole ? n : 1;
    return is_whole ? QN_STEP_ON : qn_read_put_escaped(r, "\\", 1);
}

static qn_step read_text_part(qn_call_reader *r)
{
    if (!r->n_quotes) {
        qn_step step = begin_text(r);
        if (step != QN_STEP_ON) return step;
    }
    size_t before = r->at;
    qn_step step = QN_STEP_ON;
    while (step == QN_STEP_ON && r->at < r->n) {
        if (r->text[r->at] == r->quote) {
            step = is_end_quote(r);
            if (step == QN_STEP_WAIT) break;
            if (step == QN_STEP_ON) {
                r->at += (size_t)r->n_quotes;
                r->n_quotes = 0;
                qn_buf_putc(&r->piece, '"');
                return qn_read_loose_end_value(r);
            }
        }
        if (r->text[r->at] == '\\') {
            step = read_escape(r);
            continue;
        }
        size_t start = r->at, n = qn_read_character(r);
        if (!n) break;
        r->at += n;
        step = qn_read_put_escaped(r, r->text + start, n);
    }
    if (step == QN_STEP_NOMEM) return step;
    if (r->at > before && qn_read_say(r) == QN_STEP_NOMEM) return QN_STEP_NOMEM;
    return QN_STEP_WAIT;
}

qn_step qn_read_python(qn_call_reader *r)
{
    switch (r->step) {
    case QN_READ_PYTHON_FIRST:
        return read_first(r);
    case QN_READ_PYTHON_NEXT:
        return read_next(r);
    case QN_READ_PYTHON_TEXT:
        return read_text_part(r);
    case QN_READ_PYTHON_CALLED:
        return read_called(r);
    default:
        return read_end(r);
    }
}
