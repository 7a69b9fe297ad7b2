#include "format/safetensors/json_scan.h"

#include <string.h>

#include "base/utf8.h"

int qn_scan_fail(qn_json_scan *s, const char *text)
{
    if (s->status == QN_OK)
        s->status = qn_fail(QN_E_FORMAT, "%s: byte %zu: %s", s->what, (size_t)(s->at - s->begin), text);
    return 0;
}

/* The next character that is not white space; 0 at the end or after a failure (a NUL in the text fits nowhere
 * either). */
static char peek(qn_json_scan *s)
{
    if (s->status != QN_OK) return 0;
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\t' || *s->at == '\r')) s->at++;
    return s->at < s->end ? *s->at : 0;
}

int qn_scan_begin(qn_json_scan *s, char open)
{
    if (peek(s) != open) return qn_scan_fail(s, open == '{' ? "expected an object" : "expected an array");
    s->at++;
    return 1;
}

int qn_scan_null(qn_json_scan *s)
{
    if (peek(s) != 'n' || s->end - s->at < 4 || memcmp(s->at, "null", 4) != 0) return 0;
    s->at += 4;
    return 1;
}

/* Between members: 1 when another one follows, 0 when `close` was eaten or on failure. */
static int more(qn_json_scan *s, int *first, char close)
{
    char c = peek(s);
    if (s->status != QN_OK) return 0;
    if (c == close) {
        s->at++;
        return 0;
    }
    if (!*first) {
        if (c != ',') return qn_scan_fail(s, close == '}' ? "expected ',' or '}'" : "expected ',' or ']'");
        s->at++;
    }
    *first = 0;
    return 1;
}

int qn_scan_key(qn_json_scan *s, int *first, char **key, size_t *n)
{
    if (!more(s, first, '}') || !qn_scan_string(s, key, n)) return 0;
    if (peek(s) != ':') return qn_scan_fail(s, "expected ':' after a key");
    s->at++;
    return 1;
}

int qn_scan_element(qn_json_scan *s, int *first)
{
    return more(s, first, ']');
}

static int hex4(const char *p, uint32_t *out)
{
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        uint32_t d = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                     : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                     : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                            : 16;
        if (d > 15) return 0;
        v = v << 4 | d;
    }
    *out = v;
    return 1;
}

/* Unescapes [p, end) into out, which has room for as many bytes. 0: a bad escape. */
static int unescape(const char *p, const char *end, char *out, size_t *n)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    size_t k = 0;
    while (p < end) {
        if (*p != '\\') {
            out[k++] = *p++;
            continue;
        }
        if (end - p < 2) return 0;
        if (p[1] != 'u') {
            const char *hit = memchr(from, p[1], sizeof from - 1);
            if (!hit) return 0;
            out[k++] = to[hit - from];
            p += 2;
            continue;
        }
        uint32_t cp, low;
        if (end - p < 6 || !hex4(p + 2, &cp)) return 0;
        p += 6;
        if (cp >= 0xd800 && cp < 0xdc00) {
            if (end - p < 6 || p[0] != '\\' || p[1] != 'u' || !hex4(p + 2, &low)) return 0;
            if (low < 0xdc00 || low > 0xdfff) return 0;
            cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
            p += 6;
        }
        if (cp == 0 || (cp >= 0xd800 && cp < 0xe000)) return 0;
        k += qn_utf8_encode(cp, out + k);
    }
    *n = k;
    return 1;
}

int qn_scan_string(qn_json_scan *s, char **text, size_t *n)
{
    if (peek(s) != '"') return qn_scan_fail(s, "expected a string");
    const char *from = s->at + 1, *p = from;
    int escaped = 0;
    while (p < s->end && *p != '"') {
        if ((unsigned char)*p < 0x20) return qn_scan_fail(s, "control character in a string");
        if (*p == '\\') {
            escaped = 1;
            if (++p == s->end) break;
        }
        p++;
    }
    if (p >= s->end) return qn_scan_fail(s, "a string does not end");
    size_t length = (size_t)(p - from);
    if (qn_utf8_valid_prefix(from, length) != length) return qn_scan_fail(s, "invalid UTF-8 in a string");
    char *copy = qn_arena_strndup(s->arena, from, length);
    if (!copy) {
        s->status = QN_E_NOMEM;
        return 0;
    }
    if (escaped) {
        if (!unescape(from, p, copy, &length)) return qn_scan_fail(s, "bad escape in a string");
        copy[length] = 0;
    }
    s->at = p + 1;
    *text = copy;
    *n = length;
    return 1;
}

int qn_scan_count(qn_json_scan *s, int64_t *out)
{
    char c = peek(s);
    if (c < '0' || c > '9') return qn_scan_fail(s, "expected a count (an integer that is not negative)");
    const char *p = s->at;
    int64_t v = 0;
    for (; p < s->end && *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *p - '0', &v))
            return qn_scan_fail(s, "the number is too large");
    if (p - s->at > 1 && c == '0') return qn_scan_fail(s, "a number has a leading zero");
    if (p < s->end && (*p == '.' || *p == 'e' || *p == 'E')) return qn_scan_fail(s, "expected an integer");
    s->at = p;
    *out = v;
    return 1;
}

/* Eats a literal or number: the letters, digits and signs that may stand in one. What they spell does not
 * matter to the formats, which ignore the value. */
static int skip_word(qn_json_scan *s)
{
    const char *p = s->at;
    while (p < s->end && ((*p >= '0' && *p <= '9') || (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
                          *p == '-' || *p == '+' || *p == '.'))
        p++;
    if (p == s->at) return qn_scan_fail(s, "expected a value");
    s->at = p;
    return 1;
}

static int skip_string(qn_json_scan *s)
{
    const char *p = s->at + 1;
    while (p < s->end && *p != '"') p += *p == '\\' ? 2 : 1;
    if (p >= s->end) return qn_scan_fail(s, "a string does not end");
    s->at = p + 1;
    return 1;
}

int qn_scan_skip(qn_json_scan *s)
{
    char closers[QN_SCAN_DEPTH_MAX]; /* what ends each open level */
    int depth = 0, first = 1;
    for (;;) {
        if (depth) {
            int again = more(s, &first, closers[depth - 1]);
            if (s->status != QN_OK) return 0;
            if (!again) {
                first = 0;
                if (!--depth) return 1;
                continue;
            }
            if (closers[depth - 1] == '}') {
                if (peek(s) != '"') return qn_scan_fail(s, "expected a key");
                if (!skip_string(s)) return 0;
                if (peek(s) != ':') return qn_scan_fail(s, "expected ':' after a key");
                s->at++;
            }
        }
        char c = peek(s);
        if (c == '{' || c == '[') {
            if (depth == QN_SCAN_DEPTH_MAX) return qn_scan_fail(s, "JSON is nested too deeply");
            closers[depth++] = c == '{' ? '}' : ']';
            first = 1;
            s->at++;
            continue;
        }
        if (c == '"' ? !skip_string(s) : !skip_word(s)) return 0;
        if (!depth) return 1;
    }
}

int qn_scan_end(qn_json_scan *s)
{
    peek(s);
    if (s->status != QN_OK) return 0;
    return s->at == s->end ? 1 : qn_scan_fail(s, "more text after the end of the JSON");
}
