#include "text/tools/loose_json.h"

#include <string.h>

#include "base/json/json.h"
#include "base/utf8.h"

const char qn_loose_quote[] = "<|\"|>";

typedef struct {
    const char *text;
    size_t n, at;
    qn_buf *out;
    int depth;
} reader;

static qn_status bad(const reader *r)
{
    return qn_fail(QN_E_FORMAT, "byte %zu: not a value", r->at);
}

static int looking_at(const reader *r, const char *what)
{
    size_t m = strlen(what);
    return r->n - r->at >= m && memcmp(r->text + r->at, what, m) == 0;
}

static char peek(reader *r)
{
    while (r->at < r->n && r->text[r->at] && strchr(" \t\r\n", r->text[r->at])) r->at++;
    return r->at < r->n ? r->text[r->at] : 0;
}

static int hex(const char *s, size_t n, uint32_t *out)
{
    *out = 0;
    for (size_t i = 0; i < n; i++) {
        static const char digits[] = "0123456789abcdef0123456789ABCDEF";
        const char *found = s[i] ? strchr(digits, s[i]) : NULL;
        if (!found) return 0;
        *out = *out * 16 + (uint32_t)(found - digits) % 16;
    }
    return 1;
}

/* What stands behind a backslash. */
static qn_status read_escape(reader *r, qn_buf *to)
{
    static const char from[] = "ntrbf0\\/'\"", into[] = "\n\t\r\b\f\0\\/'\"";
    if (r->at >= r->n) return bad(r);
    char c = r->text[r->at++];
    const char *known = c ? strchr(from, c) : NULL;
    size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    uint32_t code = 0, low = 0;
    if (known) {
        qn_buf_putc(to, into[known - from]);
    } else if (digits) {
        char bytes[4];
        if (r->n - r->at < digits || !hex(r->text + r->at, digits, &code)) return bad(r);
        r->at += digits;
        if (code - 0xd800 < 0x400 && r->n - r->at >= 6 && looking_at(r, "\\u") &&
            hex(r->text + r->at + 2, 4, &low) && low - 0xdc00 < 0x400) {
            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
            r->at += 6;
        }
        if (code > 0x10ffff || code - 0xd800 < 0x800) return bad(r);
        qn_buf_append(to, bytes, qn_utf8_encode(code, bytes));
    } else {
        return bad(r);
    }
    return QN_OK;
}

static qn_status read_string(reader *r)
{
    qn_buf text = {0};
    qn_status status = QN_OK;
    if (looking_at(r, qn_loose_quote)) {
        r->at += strlen(qn_loose_quote);
        size_t start = r->at;
        while (r->at < r->n && !looking_at(r, qn_loose_quote)) r->at++;
        if (r->at >= r->n) return bad(r);
        qn_buf_json_string(r->out, r->text + start, r->at - start);
        r->at += strlen(qn_loose_quote);
        return QN_OK;
    }
    char quote = r->text[r->at++];
    while (status == QN_OK) {
        if (r->at >= r->n) {
            status = bad(r);
            break;
        }
        char c = r->text[r->at++];
        if (c == quote) break;
        if (c == '\\')
            status = read_escape(r, &text);
        else
            qn_buf_putc(&text, c);
    }
    if (status == QN_OK) status = text.status;
    if (status == QN_OK) qn_buf_json_string(r->out, text.data, text.length);
    qn_buf_free(&text);
    return status;
}

int qn_loose_is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.' || c == '+' || c == '$' || (unsigned char)c >= 0x80;
}

/* -?(0|[1-9][0-9]*)(.[0-9]+)?([eE][+-]?[0-9]+)? */
static int is_number(const char *s, size_t n)
{
    size_t i = 0, start;
    if (i < n && s[i] == '-') i++;
    start = i;
    while (i < n && s[i] >= '0' && s[i] <= '9') i++;
    if (i == start || (s[start] == '0' && i - start > 1)) return 0;
    if (i < n && s[i] == '.') {
        start = ++i;
        while (i < n && s[i] >= '0' && s[i] <= '9') i++;
        if (i == start) return 0;
    }
    if (i < n && (s[i] | 0x20) == 'e') {
        i++;
        if (i < n && (s[i] == '+' || s[i] == '-')) i++;
        start = i;
        while (i < n && s[i] >= '0' && s[i] <= '9') i++;
        if (i == start) return 0;
    }
    return i == n;
}

static qn_status read_word(reader *r, int is_key)
{
    static const char *const words[][2] = {{"true", "true"},   {"True", "true"}, {"false", "false"},
                                           {"False", "false"}, {"null", "null"}, {"None", "null"}};
    size_t start = r->at;
    while (r->at < r->n && qn_loose_is_word(r->text[r->at])) r->at++;
    const char *word = r->text + start;
    size_t n = r->at - start;
    if (n == 0) return bad(r);
    if (is_key) {
        qn_buf_json_string(r->out, word, n);
        return QN_OK;
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strlen(words[i][0]) != n || memcmp(words[i][0], word, n) != 0) continue;
        qn_buf_puts(r->out, words[i][1]);
        return QN_OK;
    }
    if (!is_number(word, n)) return bad(r);
    qn_buf_append(r->out, word, n);
    return QN_OK;
}

static int at_string(const reader *r, char c)
{
    return c == '"' || c == '\'' || (c == '<' && looking_at(r, qn_loose_quote));
}

static qn_status read_key(reader *r)
{
    return at_string(r, peek(r)) ? read_string(r) : read_word(r, 1);
}

static qn_status read_value(reader *r);

static qn_status read_members(reader *r, char open)
{
    char close = open == '{' ? '}' : open == '[' ? ']' : ')';
    int more = 0;
    r->at++;
    qn_buf_putc(r->out, open == '{' ? '{' : '[');
    for (char c = peek(r); c != close; c = peek(r)) {
        if (more) {
            if (c != ',') return bad(r);
            r->at++;
            if (peek(r) == close) break;
            qn_buf_puts(r->out, ", ");
        }
        if (open == '{') {
            QN_TRY(read_key(r));
            if (peek(r) != ':') return bad(r);
            r->at++;
            qn_buf_puts(r->out, ": ");
        }
        QN_TRY(read_value(r));
        more = 1;
    }
    r->at++;
    qn_buf_putc(r->out, open == '{' ? '}' : ']');
    return QN_OK;
}

static qn_status read_value(reader *r)
{
    char c = peek(r);
    if (!c) return bad(r);
    if (at_string(r, c)) return read_string(r);
    if (c != '{' && c != '[' && c != '(') return read_word(r, 0);
    if (++r->depth > QN_JSON_DEPTH_MAX) return bad(r);
    QN_TRY(read_members(r, c));
    r->depth--;
    return QN_OK;
}

static qn_status read_with(qn_status (*read)(reader *), const char *text, size_t n, size_t *at, qn_buf *out)
{
    reader r = {text, n, *at, out, 0};
    qn_status status = read(&r);
    *at = r.at;
    return status == QN_OK ? out->status : status;
}

qn_status qn_loose_json(const char *text, size_t n, size_t *at, qn_buf *out)
{
    return read_with(read_value, text, n, at, out);
}

qn_status qn_loose_key(const char *text, size_t n, size_t *at, qn_buf *out)
{
    return read_with(read_key, text, n, at, out);
}
