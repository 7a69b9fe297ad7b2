#include "text/jinja/lex.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/c_locale.h"
#include "base/utf8.h"

typedef struct {
    qn_jheap *heap;
    const char *s; /* line ends are \n */
    size_t n, at;
    uint32_t line;
    int line_starting; /* the last match ended with a newline, or this is the start */
    qn_jtoken *tokens;
    size_t n_tokens, capacity;
    char brackets[256]; /* closers that are open */
    size_t n_brackets;
} lexer;

static qn_status add(lexer *x, qn_jtoken token)
{
    if (x->n_tokens == x->capacity) {
        size_t capacity = x->capacity ? x->capacity * 2 : 256;
        qn_jtoken *tokens = qn_jheap_alloc(x->heap, capacity, sizeof *tokens);
        if (!tokens) return x->heap->status;
        if (x->n_tokens) memcpy(tokens, x->tokens, x->n_tokens * sizeof *tokens);
        x->tokens = tokens;
        x->capacity = capacity;
    }
    token.line = token.line ? token.line : x->line;
    x->tokens[x->n_tokens++] = token;
    return QN_OK;
}

static qn_status fail(const lexer *x, const char *what)
{
    return qn_fail(QN_E_FORMAT, "line %u: %s", x->line, what);
}

/* Moves to `to`, counting lines. */
static void advance(lexer *x, size_t to)
{
    for (size_t i = x->at; i < to; i++) x->line += x->s[i] == '\n';
    x->at = to;
}

static size_t space_at(const lexer *x, size_t i)
{
    uint32_t c;
    size_t length = i < x->n ? qn_utf8_decode(x->s + i, x->n - i, &c) : 0;
    return length && qn_jspace(c) ? length : 0;
}

static size_t skip_space(const lexer *x, size_t i)
{
    for (size_t length; (length = space_at(x, i)) != 0;) i += length;
    return i;
}

/* End of text[from, to) without the white space before it. */
static size_t strip_right(const lexer *x, size_t from, size_t to)
{
    while (to > from) {
        size_t start = to - 1;
        while (start > from && ((unsigned char)x->s[start] & 0xC0) == 0x80) start--;
        if (start + space_at(x, start) != to) break;
        to = start;
    }
    return to;
}

/* lstrip_blocks: when only white space stands between the line's start and the tag at `to`, the data ends at
 * the start. */
static size_t strip_line(const lexer *x, size_t from, size_t to)
{
    size_t start = to;
    while (start > from && x->s[start - 1] != '\n') start--;
    if ((start > from || x->line_starting) && start < to && skip_space(x, start) >= to) return start;
    return to;
}

static qn_status add_data(lexer *x, size_t from, size_t to, char sign, int is_print)
{
    size_t end = to;
    if (sign == '-')
        end = strip_right(x, from, to);
    else if (sign != '+' && !is_print)
        end = strip_line(x, from, to);
    if (end > from) QN_TRY(add(x, (qn_jtoken){.kind = QN_JTOKEN_DATA, .text = x->s + from, .n = end - from}));
    return QN_OK;
}

static int looking_at(const lexer *x, size_t i, const char *text)
{
    size_t n = strlen(text);
    return n <= x->n - i && memcmp(x->s + i, text, n) == 0;
}

static void end_match(lexer *x, size_t to)
{
    advance(x, to);
    x->line_starting = to > 0 && x->s[to - 1] == '\n';
}

/* A tag's end at i (its sign included): where the text goes on, or 0. closer: "%}", "#}" or "}}". */
static size_t tag_end(const lexer *x, size_t i, const char *closer, int is_print)
{
    if (i < x->n && x->s[i] == '-' && looking_at(x, i + 1, closer)) return skip_space(x, i + 3);
    if (!is_print && i < x->n && x->s[i] == '+' && looking_at(x, i + 1, closer)) return i + 3;
    if (!looking_at(x, i, closer)) return 0;
    i += 2;
    return !is_print && i < x->n && x->s[i] == '\n' ? i + 1 : i;
}

/* `raw` between the tag's sign and its end, at i: the end of the tag, or 0. */
static size_t raw_tag(const lexer *x, size_t i, const char *word)
{
    i = skip_space(x, i);
    if (!looking_at(x, i, word)) return 0;
    return skip_space(x, i + strlen(word));
}

static qn_status lex_raw(lexer *x)
{
    size_t from = x->at;
    for (size_t i = from; i + 1 < x->n; i++) {
        if (!looking_at(x, i, "{%")) continue;
        size_t j = i + 2;
        char sign = j < x->n && (x->s[j] == '-' || x->s[j] == '+') ? x->s[j] : 0;
        size_t end = raw_tag(x, j + (sign != 0), "endraw");
        end = end ? tag_end(x, end, "%}", 0) : 0;
        if (!end) continue;
        QN_TRY(add_data(x, from, i, sign, 0));
        end_match(x, end);
        return QN_OK;
    }
    return fail(x, "missing end of raw directive");
}

static qn_status lex_comment(lexer *x)
{
    size_t from = x->at;
    for (size_t i = from; i + 1 < x->n; i++) {
        if (!looking_at(x, i, "#}")) continue;
        size_t at = i > from && (x->s[i - 1] == '-' || x->s[i - 1] == '+') ? i - 1 : i;
        end_match(x, tag_end(x, at, "#}", 0));
        return QN_OK;
    }
    return fail(x, "missing end of comment tag");
}

/* Literals and operators. */

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int digit_value(char c)
{
    if (is_digit(c)) return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : 99;
}

/* Digits with single underscores between them, from i on. */
static size_t skip_digits(const lexer *x, size_t i, int base)
{
    while (i < x->n && (digit_value(x->s[i]) < base ||
                        (x->s[i] == '_' && i + 1 < x->n && digit_value(x->s[i + 1]) < base)))
        i++;
    return i;
}

static qn_status lex_float(lexer *x, size_t end)
{
    char digits[64];
    size_t n = 0;
    for (size_t i = x->at; i < end; i++) {
        if (x->s[i] == '_') continue;
        if (n == sizeof digits - 1) return fail(x, "a number has too many digits");
        digits[n++] = x->s[i];
    }
    digits[n] = 0;
    QN_TRY(add(x, (qn_jtoken){.kind = QN_JTOKEN_FLOAT, .f = qn_parse_real(digits, NULL)}));
    end_match(x, end);
    return QN_OK;
}

static qn_status lex_number(lexer *x)
{
    size_t i = skip_digits(x, x->at, 10);
    /* After a dot digits are an attribute (x.0.1), never a fraction. */
    int after_dot = x->at > 0 && x->s[x->at - 1] == '.';
    if (!after_dot) {
        size_t end = i;
        if (end + 1 < x->n && x->s[end] == '.' && is_digit(x->s[end + 1])) end = skip_digits(x, end + 1, 10);
        if (end < x->n && (x->s[end] | 0x20) == 'e') {
            size_t j = end + 1;
            if (j < x->n && (x->s[j] == '+' || x->s[j] == '-')) j++;
            if (j < x->n && is_digit(x->s[j])) end = skip_digits(x, j, 10);
        }
        if (end > i) return lex_float(x, end);
    }
    int base = 10;
    size_t from = x->at;
    if (x->s[from] == '0' && from + 1 < x->n) {
        char c = (char)(x->s[from + 1] | 0x20);
        int wanted = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
        size_t digits = from + 2 + (from + 2 < x->n && x->s[from + 2] == '_');
        if (wanted != 10 && digits < x->n && digit_value(x->s[digits]) < wanted) {
            base = wanted;
            from = digits;
            i = skip_digits(x, from, base);
        }
    }
    int64_t value = 0;
    for (size_t j = from; j < i; j++) {
        if (x->s[j] == '_') continue;
        if (__builtin_mul_overflow(value, base, &value) ||
            __builtin_add_overflow(value, digit_value(x->s[j]), &value)) {
            QN_TRY(add(
                x,
                (qn_jtoken){.kind = QN_JTOKEN_BIG, .op = (uint8_t)base, .text = x->s + from, .n = i - from}));
            end_match(x, i);
            return QN_OK;
        }
    }
    QN_TRY(add(x, (qn_jtoken){.kind = QN_JTOKEN_INT, .i = value}));
    end_match(x, i);
    return QN_OK;
}

static int is_word(uint32_t c)
{
    if (c < 128) return c == '_' || is_digit((char)c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NO;
}

static qn_status lex_name(lexer *x)
{
    size_t i = x->at;
    for (uint32_t c; i < x->n;) {
        size_t length = qn_utf8_decode(x->s + i, x->n - i, &c);
        if (!length || !is_word(c)) break;
        i += length;
    }
    if (i == x->at) return QN_OK;
    QN_TRY(add(x, (qn_jtoken){.kind = QN_JTOKEN_NAME, .text = x->s + x->at, .n = i - x->at}));
    end_match(x, i);
    return QN_OK;
}

static int hex_run(const char *s, size_t n, size_t count, uint32_t *value)
{
    if (n < count) return 0;
    *value = 0;
    for (size_t i = 0; i < count; i++) {
        int d = digit_value(s[i]);
        if (d > 15) return 0;
        *value = *value * 16 + (uint32_t)d;
    }
    return 1;
}

/* One escape after the backslash at s[0]: writes into out, returns the bytes read, 0 for a bad one. */
static size_t unescape(const char *s, size_t n, char *out, size_t *written)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    *written = 0;
    if (n < 2) return 0;
    const char *plain = memchr(from, s[1], sizeof from - 1);
    if (plain) {
        out[(*written)++] = to[plain - from];
        return 2;
    }
    if (s[1] == '\n') return 2;
    uint32_t c = 0, low;
    size_t used = 0;
    if (s[1] >= '0' && s[1] <= '7') {
        for (used = 1; used < 4 && used < n && s[used] >= '0' && s[used] <= '7'; used++)
            c = c * 8 + (uint32_t)(s[used] - '0');
    } else if (s[1] == 'x' || s[1] == 'u' || s[1] == 'U') {
        size_t count = s[1] == 'x' ? 2 : s[1] == 'u' ? 4 : 8;
        if (!hex_run(s + 2, n - 2, count, &c)) return 0;
        used = 2 + count;
        if (c >= 0xD800 && c < 0xDC00 && n - used >= 6 && s[used] == '\\' && s[used + 1] == 'u' &&
            hex_run(s + used + 2, 4, 4, &low) && low >= 0xDC00 && low < 0xE000) {
            c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
            used += 6;
        }
        if (c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) return 0;
    } else if (s[1] == 'N') {
        return 0;
    } else { /* an unknown escape stays as it is */
        out[(*written)++] = '\\';
        return 1;
    }
    *written = qn_utf8_encode(c, out);
    return used;
}

static qn_status lex_string(lexer *x)
{
    char quote = x->s[x->at];
    size_t end = x->at + 1;
    while (end < x->n && x->s[end] != quote) end += x->s[end] == '\\' ? 2 : 1;
    if (end >= x->n) return fail(x, "a string is not closed");
    const char *s = x->s + x->at + 1;
    size_t n = end - x->at - 1, length = 0;
    char *text = qn_jheap_alloc(x->heap, n + 4, 1); /* an escape is never shorter than what it writes */
    if (!text) return x->heap->status;
    for (size_t i = 0; i < n;) {
        if (s[i] != '\\') {
            text[length++] = s[i++];
            continue;
        }
        size_t written, used = unescape(s + i, n - i, text + length, &written);
        if (!used) return fail(x, "a string has an invalid escape sequence");
        length += written;
        i += used;
    }
    QN_TRY(add(x, (qn_jtoken){.kind = QN_JTOKEN_STRING, .text = text, .n = length}));
    end_match(x, end + 1);
    return QN_OK;
}

static qn_status balance(lexer *x, char c)
{
    if (c == '(' || c == '[' || c == '{') {
        if (x->n_brackets == sizeof x->brackets) return fail(x, "brackets nest too deeply");
        x->brackets[x->n_brackets++] = c == '(' ? ')' : c == '[' ? ']' : '}';
        return QN_OK;
    }
    if (c != ')' && c != ']' && c != '}') return QN_OK;
    if (x->n_brackets && x->brackets[x->n_brackets - 1] == c) {
        x->n_brackets--;
        return QN_OK;
    }
    return qn_fail(QN_E_FORMAT, "line %u: unexpected '%c'", x->line, c);
}

static qn_status lex_operator(lexer *x)
{
    static const struct {
        const char *text;
        int op;
    } pairs[] = {{"==", QN_JOP_EQ}, {"!=", QN_JOP_NE},       {"<=", QN_JOP_LE},
                 {">=", QN_JOP_GE}, {"//", QN_JOP_FLOORDIV}, {"**", QN_JOP_POW}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        if (!looking_at(x, x->at, pairs[i].text)) continue;
        QN_TRY(add(x, (qn_jtoken){.kind = QN_JTOKEN_OPERATOR, .op = (uint8_t)pairs[i].op}));
        end_match(x, x->at + 2);
        return QN_OK;
    }
    char c = x->s[x->at];
    if (!c || !strchr("+-*/%~[](){}<>=.:|,;", c))
        return qn_fail(QN_E_FORMAT, "line %u: unexpected character '%c'", x->line, c);
    QN_TRY(balance(x, c));
    QN_TRY(add(x, (qn_jtoken){.kind = QN_JTOKEN_OPERATOR, .op = (uint8_t)c}));
    end_match(x, x->at + 1);
    return QN_OK;
}

/* The inside of {% %} or {{ }}. */
static qn_status lex_tag(lexer *x, int is_print)
{
    const char *closer = is_print ? "}}" : "%}";
    x->n_brackets = 0;
    while (x->at < x->n) {
        size_t end = x->n_brackets ? 0 : tag_end(x, x->at, closer, is_print);
        if (end) {
            QN_TRY(add(x, (qn_jtoken){.kind = is_print ? QN_JTOKEN_PRINT_END : QN_JTOKEN_BLOCK_END}));
            end_match(x, end);
            return QN_OK;
        }
        end = skip_space(x, x->at);
        if (end > x->at) {
            end_match(x, end);
            continue;
        }
        char c = x->s[x->at];
        if (is_digit(c)) {
            QN_TRY(lex_number(x));
        } else if (c == '\'' || c == '"') {
            QN_TRY(lex_string(x));
        } else {
            size_t before = x->at;
            QN_TRY(lex_name(x));
            if (x->at == before) QN_TRY(lex_operator(x));
        }
    }
    return fail(x, "a tag is not closed");
}

static qn_status lex_root(lexer *x)
{
    while (x->at < x->n) {
        size_t from = x->at, i = from;
        while (i + 1 < x->n &&
               !(x->s[i] == '{' && (x->s[i + 1] == '%' || x->s[i + 1] == '{' || x->s[i + 1] == '#')))
            i++;
        if (i + 1 >= x->n) {
            QN_TRY(add(x, (qn_jtoken){.kind = QN_JTOKEN_DATA, .text = x->s + from, .n = x->n - from}));
            advance(x, x->n);
            break;
        }
        char type = x->s[i + 1];
        size_t after = i + 2;
        char sign = after < x->n && (x->s[after] == '-' || x->s[after] == '+') ? x->s[after] : 0;
        after += sign != 0;
        QN_TRY(add_data(x, from, i, sign, type == '{'));
        if (type == '%') { /* unlike other tags, {% raw %} keeps the newline after it */
            size_t end = raw_tag(x, after, "raw");
            if (end && end < x->n && x->s[end] == '-' && looking_at(x, end + 1, "%}"))
                end = skip_space(x, end + 3);
            else
                end = end && looking_at(x, end, "%}") ? end + 2 : 0;
            if (end) {
                end_match(x, end);
                QN_TRY(lex_raw(x));
                continue;
            }
        }
        end_match(x, after);
        if (type == '#') {
            QN_TRY(lex_comment(x));
            continue;
        }
        QN_TRY(add(x, (qn_jtoken){.kind = type == '{' ? QN_JTOKEN_PRINT_BEGIN : QN_JTOKEN_BLOCK_BEGIN}));
        QN_TRY(lex_tag(x, type == '{'));
    }
    return add(x, (qn_jtoken){.kind = QN_JTOKEN_END});
}

qn_status qn_jlex(qn_jheap *h, const char *text, size_t n, qn_jtoken **tokens, size_t *n_tokens)
{
    if (qn_utf8_valid_prefix(text, n) != n) return qn_fail(QN_E_FORMAT, "the template is not valid UTF-8");
    char *s = qn_jheap_alloc(h, n + 1, 1);
    if (!s) return h->status;
    size_t length = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\r') {
            s[length++] = '\n';
            i += i + 1 < n && text[i + 1] == '\n';
        } else {
            s[length++] = text[i];
        }
    }
    if (length && s[length - 1] == '\n') length--;
    lexer x = {.heap = h, .s = s, .n = length, .line = 1, .line_starting = 1};
    QN_TRY(lex_root(&x));
    *tokens = x.tokens;
    *n_tokens = x.n_tokens;
    return QN_OK;
}
