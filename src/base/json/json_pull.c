#include "base/json/json_pull.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "base/utf8.h"

void qn_json_pull_init(qn_json_pull *p, const char *what, const char *text, size_t n)
{
    *p = (qn_json_pull){.what = what, .text = text, .n = n};
    if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        p->at = 3; /* a byte order mark is no part of the text */
}

void qn_json_pull_free(qn_json_pull *p)
{
    qn_buf_free(&p->scratch);
}

qn_status qn_json_pull_fail(const qn_json_pull *p, const char *fmt, ...)
{
    char text[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    size_t line = 1, start = 0, end = p->at < p->n ? p->at : p->n;
    for (size_t i = 0; i < end; i++) {
        if (p->text[i] != '\n') continue;
        line++;
        start = i + 1;
    }
    return qn_fail(QN_E_FORMAT, "%s: line %zu column %zu: %s", p->what, line, end - start + 1, text);
}

/* ---- eight bytes at a time ----------------------------------------------------------------------------- */

#define EACH_BYTE(b) (0x0101010101010101u * (b))

/* The high bit of the lowest byte that is zero is the lowest set; 0: no byte is. */
static inline uint64_t zero_bytes(uint64_t w)
{
    return (w - EACH_BYTE(1)) & ~w & EACH_BYTE(0x80);
}

/* The same for a quote or a backslash. */
static inline uint64_t string_ends(uint64_t w)
{
    return zero_bytes(w ^ EACH_BYTE('"')) | zero_bytes(w ^ EACH_BYTE('\\'));
}

/* The same for these, control characters and what is not ASCII. */
static inline uint64_t string_stops(uint64_t w)
{
    return string_ends(w) | (((w - EACH_BYTE(0x20)) | w) & EACH_BYTE(0x80));
}

/* From at on, how many bytes come before the first that stops; no more than the text has. */
static inline size_t plain_run(const char *text, size_t n, size_t at, uint64_t stops(uint64_t w))
{
    const size_t start = at;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    for (uint64_t w, found; n - at >= 8; at += 8) {
        memcpy(&w, text + at, 8);
        if ((found = stops(w))) return at - start + (size_t)__builtin_ctzll(found) / 8;
    }
#endif
    for (; at < n && !(stops((uint8_t)text[at] | EACH_BYTE('a') << 8) & 0x80);) at++;
    return at - start;
}

static void skip_space(qn_json_pull *p)
{
    while (p->at < p->n) {
        char c = p->text[p->at];
        if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return;
        p->at++;
    }
}

char qn_json_pull_peek(qn_json_pull *p)
{
    skip_space(p);
    return p->at < p->n ? p->text[p->at] : 0;
}

qn_status qn_json_pull_enter(qn_json_pull *p, char open)
{
    if (qn_json_pull_peek(p) != open)
        return qn_json_pull_fail(p, "expected %s", open == '{' ? "an object" : "an array");
    if (++p->depth > QN_JSON_DEPTH_MAX)
        return qn_json_pull_fail(p, "nested deeper than %d", QN_JSON_DEPTH_MAX);
    p->at++;
    p->fresh = 1;
    return QN_OK;
}

/* Before a member or element: takes the comma, or the closing bracket. */
static qn_status step(qn_json_pull *p, char close, int *more)
{
    char c = qn_json_pull_peek(p);
    if (c == close) {
        p->at++;
        p->depth--;
        p->fresh = 0;
        *more = 0;
        return QN_OK;
    }
    if (!p->fresh) {
        if (c != ',') return qn_json_pull_fail(p, "expected ',' or '%c'", close);
        p->at++;
        skip_space(p);
    }
    p->fresh = 0;
    *more = 1;
    return QN_OK;
}

qn_status qn_json_pull_key(qn_json_pull *p, int *more, qn_json_text *key)
{
    QN_TRY(step(p, '}', more));
    if (!*more) return QN_OK;
    QN_TRY(qn_json_pull_string(p, key));
    if (qn_json_pull_peek(p) != ':') return qn_json_pull_fail(p, "expected ':'");
    p->at++;
    return QN_OK;
}

qn_status qn_json_pull_element(qn_json_pull *p, int *more)
{
    return step(p, ']', more);
}

static int hex4(const char *s, uint32_t *out)
{
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        char c = s[i];
        uint32_t d = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                     : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                     : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                            : 16;
        if (d == 16) return 0;
        v = v << 4 | d;
    }
    *out = v;
    return 1;
}

/* p->at is on the backslash; appends what it stands for. */
static qn_status escape(qn_json_pull *p)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (p->n - p->at < 2) return qn_json_pull_fail(p, "string without end");
    char c = p->text[p->at + 1];
    const char *found = c ? strchr(from, c) : NULL;
    if (found) {
        qn_buf_putc(&p->scratch, to[found - from]);
        p->at += 2;
        return QN_OK;
    }
    uint32_t cp, low;
    if (c != 'u' || p->n - p->at < 6 || !hex4(p->text + p->at + 2, &cp))
        return qn_json_pull_fail(p, "bad escape in a string");
    p->at += 6;
    if (cp >= 0xd800 && cp < 0xe000) {
        if (cp >= 0xdc00 || p->n - p->at < 6 || p->text[p->at] != '\\' || p->text[p->at + 1] != 'u' ||
            !hex4(p->text + p->at + 2, &low) || low < 0xdc00 || low > 0xdfff)
            return qn_json_pull_fail(p, "lone surrogate in a string");
        cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
        p->at += 6;
    }
    char utf8[4];
    qn_buf_append(&p->scratch, utf8, qn_utf8_encode(cp, utf8));
    return QN_OK;
}

qn_status qn_json_pull_string(qn_json_pull *p, qn_json_text *out)
{
    if (qn_json_pull_peek(p) != '"') return qn_json_pull_fail(p, "expected a string");
    size_t start = ++p->at;
    int escaped = 0;
    for (;;) {
        size_t run = p->at;
        while (p->at < p->n) {
            p->at += plain_run(p->text, p->n, p->at, string_stops);
            if (p->at == p->n) break;
            unsigned char c = (unsigned char)p->text[p->at];
            if (c < 0x80) break;
            uint32_t cp;
            size_t used = qn_utf8_decode(p->text + p->at, p->n - p->at, &cp);
            if (!used) return qn_json_pull_fail(p, "invalid UTF-8 in a string");
            p->at += used;
        }
        if (p->at == p->n) return qn_json_pull_fail(p, "string without end");
        if (p->text[p->at] == '"') {
            if (!escaped) {
                *out = (qn_json_text){p->text + start, p->at - start};
            } else {
                qn_buf_append(&p->scratch, p->text + run, p->at - run);
                if (p->scratch.status != QN_OK) return p->scratch.status;
                *out = (qn_json_text){p->scratch.data, p->scratch.length};
            }
            p->at++;
            return QN_OK;
        }
        if (p->text[p->at] != '\\') return qn_json_pull_fail(p, "control character in a string");
        if (!escaped) qn_buf_reset(&p->scratch);
        escaped = 1;
        qn_buf_append(&p->scratch, p->text + run, p->at - run);
        QN_TRY(escape(p));
    }
}

qn_status qn_json_pull_i64(qn_json_pull *p, int64_t min, int64_t max, int64_t *out)
{
    qn_json_pull_peek(p);
    size_t at = p->at;
    int negative = at < p->n && p->text[at] == '-';
    at += (size_t)negative;
    size_t digits = at;
    uint64_t v = 0;
    for (; at < p->n && p->text[at] >= '0' && p->text[at] <= '9'; at++) {
        if (v > (UINT64_MAX - 9) / 10) return qn_json_pull_fail(p, "number out of range");
        v = v * 10 + (uint64_t)(p->text[at] - '0');
    }
    if (at == digits || (p->text[digits] == '0' && at - digits > 1) ||
        (at < p->n && (p->text[at] == '.' || (p->text[at] | 32) == 'e')))
        return qn_json_pull_fail(p, "expected an integer");
    if (v > INT64_MAX) return qn_json_pull_fail(p, "number out of range");
    int64_t value = negative ? -(int64_t)v : (int64_t)v;
    if (value < min || value > max)
        return qn_json_pull_fail(p, "%lld is not in [%lld, %lld]", (long long)value, (long long)min,
                                 (long long)max);
    p->at = at;
    *out = value;
    return QN_OK;
}

static int literal(qn_json_pull *p, const char *word)
{
    size_t n = strlen(word);
    if (p->n - p->at < n || memcmp(p->text + p->at, word, n) != 0) return 0;
    p->at += n;
    return 1;
}

qn_status qn_json_pull_bool(qn_json_pull *p, int *out)
{
    qn_json_pull_peek(p);
    int value = literal(p, "true");
    if (!value && !literal(p, "false")) return qn_json_pull_fail(p, "expected true or false");
    *out = value;
    return QN_OK;
}

static qn_status skip_string(qn_json_pull *p)
{
    for (p->at++; p->at < p->n;) {
        p->at += plain_run(p->text, p->n, p->at, string_ends);
        if (p->at < p->n && p->text[p->at++] == '"') return QN_OK;
        p->at++; /* what the backslash is for */
    }
    return qn_json_pull_fail(p, "string without end");
}

qn_status qn_json_pull_skip(qn_json_pull *p, qn_json_text *out)
{
    size_t count;
    return qn_json_pull_skip_counted(p, out, &count);
}

qn_status qn_json_pull_skip_counted(qn_json_pull *p, qn_json_text *out, size_t *count)
{
    *count = 1;
    char c = qn_json_pull_peek(p);
    size_t start = p->at;
    if (c == '"') {
        QN_TRY(skip_string(p));
    } else if (c == '{' || c == '[') {
        int depth = 0;
        do {
            if (p->at >= p->n) return qn_json_pull_fail(p, "the text ends inside a value");
            c = p->text[p->at];
            if (c == '"') {
                QN_TRY(skip_string(p));
                continue;
            }
            if (c == '{' || c == '[') depth++;
            if (c == '}' || c == ']') depth--;
            *count += c == ',' && depth == 1;
            if (p->depth + depth > QN_JSON_DEPTH_MAX)
                return qn_json_pull_fail(p, "nested deeper than %d", QN_JSON_DEPTH_MAX);
            p->at++;
        } while (depth > 0);
    } else {
        while (p->at < p->n && !strchr(",]} \n\t\r", p->text[p->at])) p->at++;
        if (p->at == start) return qn_json_pull_fail(p, "expected a value");
    }
    if (out) *out = (qn_json_text){p->text + start, p->at - start};
    return QN_OK;
}

qn_status qn_json_pull_end(qn_json_pull *p)
{
    if (qn_json_pull_peek(p)) return qn_json_pull_fail(p, "text after the end");
    return p->at == p->n ? QN_OK : qn_json_pull_fail(p, "text after the end");
}

int qn_json_text_is(qn_json_text s, const char *literal_text)
{
    return s.n == strlen(literal_text) && memcmp(s.data, literal_text, s.n) == 0;
}
