#include "constrain/automaton/regex_parse.h"

#include <string.h>

#include "base/utf8.h"
#include "constrain/automaton/regex.h"

typedef struct {
    qn_dfa_work *w;
    const char *text;
    size_t n, at;
    unsigned flags;
    int32_t depth;
    qn_regex_tree *tree;
} parser;

static qn_status fail_at(const parser *p, size_t at, qn_status status, const char *what)
{
    size_t n = p->n - at < 12 ? p->n - at : 12;
    while (n && (p->text[at + n - 1] & 0xc0) == 0x80 && at + n < p->n && (p->text[at + n] & 0xc0) == 0x80)
        n--;
    return qn_fail(status, "at byte %zu of the pattern (\"%.*s\"): %s", at, (int)n, p->text + at, what);
}

static int peek(const parser *p, size_t ahead)
{
    return p->at + ahead < p->n ? (uint8_t)p->text[p->at + ahead] : -1;
}

static int looks_at(const parser *p, const char *s)
{
    size_t n = strlen(s);
    return p->n - p->at >= n && memcmp(p->text + p->at, s, n) == 0;
}

static qn_status add_node(parser *p, qn_regex_node node, int32_t *out)
{
    qn_dfa_array *a = &p->tree->nodes;
    QN_TRY(qn_dfa_array_room(p->w, a, 1, sizeof node));
    ((qn_regex_node *)a->at)[a->n] = node;
    *out = (int32_t)a->n++;
    return QN_OK;
}

static qn_regex_node *node_at(parser *p, int32_t i)
{
    return (qn_regex_node *)p->tree->nodes.at + i;
}

qn_status qn_regex_add_set(qn_dfa_work *w, qn_dfa_rows *sets, const qn_charset *s, int32_t *out)
{
    return qn_dfa_rows_add(w, sets, (const uint32_t *)s->ranges.at, s->ranges.n * 2, out, NULL);
}

static qn_status add_set_node(parser *p, qn_charset *s, int32_t *out)
{
    qn_regex_node node = {.kind = QN_REGEX_SET, .last = -1, .before = -1};
    QN_TRY(qn_regex_add_set(p->w, &p->tree->sets, s, &node.set));
    return add_node(p, node, out);
}

/* --- Sets --- */

static const qn_code_range DIGITS[] = {{'0', '9'}};
static const qn_code_range WORD[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
static const qn_code_range SPACE[] = {{9, 13},          {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680},
                                      {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f},
                                      {0x3000, 0x3000}, {0xfeff, 0xfeff}};
static const qn_code_range LINE_ENDS[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
#define COUNT(a) (sizeof(a) / sizeof *(a))

qn_status qn_regex_word_set(qn_dfa_work *w, qn_charset *s)
{
    return qn_charset_add_ranges(w, s, WORD, COUNT(WORD));
}

static qn_status add_inverted(parser *p, qn_charset *to, qn_charset *s)
{
    QN_TRY(qn_charset_settle(p->w, s));
    if (p->flags & QN_REGEX_IGNORE_CASE) QN_TRY(qn_charset_fold(p->w, s));
    QN_TRY(qn_charset_invert(p->w, s));
    return qn_charset_add_ranges(p->w, to, qn_charset_ranges(s), s->ranges.n);
}

static int hex_value(int c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* n digits at p->at + from. -1: there are fewer. */
static int32_t hex_digits(const parser *p, size_t from, int n)
{
    int32_t value = 0;
    for (int i = 0; i < n; i++) {
        int d = hex_value(peek(p, from + (size_t)i));
        if (d < 0) return -1;
        value = value * 16 + d;
    }
    return value;
}

/* Behind "\u". */
static qn_status parse_u(parser *p, size_t at, uint32_t *out)
{
    if (peek(p, 0) == '{') {
        uint32_t value = 0;
        size_t i = 1;
        for (; hex_value(peek(p, i)) >= 0; i++) {
            value = value * 16 + (uint32_t)hex_value(peek(p, i));
            if (value > QN_CODE_MAX) return fail_at(p, at, QN_E_FORMAT, "no such code point");
        }
        if (i == 1 || peek(p, i) != '}')
            return fail_at(p, at, QN_E_FORMAT, "\\u{...} needs digits of base 16");
        p->at += i + 1;
        *out = value;
        return QN_OK;
    }
    int32_t value = hex_digits(p, 0, 4);
    if (value < 0) return fail_at(p, at, QN_E_FORMAT, "\\u needs four digits of base 16");
    p->at += 4;
    if (value >= 0xd800 && value <= 0xdbff && peek(p, 0) == '\\' && peek(p, 1) == 'u') {
        int32_t low = hex_digits(p, 2, 4);
        if (low >= 0xdc00 && low <= 0xdfff) {
            value = 0x10000 + ((value - 0xd800) << 10) + (low - 0xdc00);
            p->at += 6;
        }
    }
    *out = (uint32_t)value;
    return QN_OK;
}

/* Behind "\p" or "\P". */
static qn_status parse_property(parser *p, size_t at, int is_negated, qn_charset *to)
{
    size_t begin = p->at + 1, end = begin;
    if (peek(p, 0) != '{') return fail_at(p, at, QN_E_FORMAT, "\\p needs a name in braces");
    while (end < p->n && p->text[end] != '}') end++;
    if (end == p->n) return fail_at(p, at, QN_E_FORMAT, "the brace of \\p{ is not closed");
    p->at = end + 1;
    qn_charset s = {0};
    qn_status status = qn_charset_add_property(p->w, &s, p->text + begin, end - begin);
    if (status != QN_OK) return qn_fail_prefix(status, "at byte %zu of the pattern", at);
    if (is_negated) return add_inverted(p, to, &s);
    return qn_charset_add_ranges(p->w, to, qn_charset_ranges(&s), s.ranges.n);
}

/* A backslash and what follows: *is_set says whether it was added to `to`, else *code is the character. */
static qn_status parse_escape(parser *p, int in_class, qn_charset *to, int *is_set, uint32_t *code)
{
    size_t at = p->at++;
    int c = peek(p, 0);
    *is_set = 0;
    if (c < 0) return fail_at(p, at, QN_E_FORMAT, "a backslash at the end");
    size_t length = qn_utf8_decode(p->text + p->at, p->n - p->at, code);
    p->at += length;
    qn_charset s = {0};
    switch (c) {
    case 'd':
    case 'D':
        QN_TRY(qn_charset_add_ranges(p->w, &s, DIGITS, COUNT(DIGITS)));
        break;
    case 'w':
    case 'W':
        QN_TRY(qn_charset_add_ranges(p->w, &s, WORD, COUNT(WORD)));
        break;
    case 's':
    case 'S':
        QN_TRY(qn_charset_add_ranges(p->w, &s, SPACE, COUNT(SPACE)));
        break;
    case 'p':
    case 'P':
        *is_set = 1;
        return parse_property(p, at, c == 'P', to);
    case 't':
        *code = '\t';
        return QN_OK;
    case 'n':
        *code = '\n';
        return QN_OK;
    case 'r':
        *code = '\r';
        return QN_OK;
    case 'v':
        *code = '\v';
        return QN_OK;
    case 'f':
        *code = '\f';
        return QN_OK;
    case 'b':
        if (!in_class) break;
        *code = '\b';
        return QN_OK;
    case 'c': {
        int letter = peek(p, 0);
        if ((letter | 32) < 'a' || (letter | 32) > 'z')
            return fail_at(p, at, QN_E_FORMAT, "\\c needs a letter");
        p->at++;
        *code = (uint32_t)letter & 31;
        return QN_OK;
    }
    case 'x': {
        int32_t value = hex_digits(p, 0, 2);
        if (value < 0) return fail_at(p, at, QN_E_FORMAT, "\\x needs two digits of base 16");
        p->at += 2;
        *code = (uint32_t)value;
        return QN_OK;
    }
    case 'u':
        return parse_u(p, at, code);
    case '0':
        if (peek(p, 0) >= '0' && peek(p, 0) <= '9')
            return fail_at(p, at, QN_E_FORMAT, "an octal escape is none of ECMA-262 with the flag u");
        *code = 0;
        return QN_OK;
    case 'k':
        return fail_at(p, at, QN_E_UNSUPPORTED, "back references are not regular");
    default:
        if (c >= '1' && c <= '9')
            return fail_at(p, at, in_class ? QN_E_FORMAT : QN_E_UNSUPPORTED,
                           in_class ? "an octal escape is none of ECMA-262 with the flag u"
                                    : "back references are not regular");
        /* Annex B has letters stand for themselves too; who writes \A or \Z means another dialect's. */
        if ((c | 32) >= 'a' && (c | 32) <= 'z') return fail_at(p, at, QN_E_FORMAT, "no escape of ECMA-262");
        return QN_OK;
    }
    *is_set = 1;
    if (c >= 'A' && c <= 'Z') return add_inverted(p, to, &s);
    return qn_charset_add_ranges(p->w, to, qn_charset_ranges(&s), s.ranges.n);
}

static qn_status next_code(parser *p, uint32_t *code)
{
    size_t n = qn_utf8_decode(p->text + p->at, p->n - p->at, code);
    p->at += n;
    return QN_OK;
}

/* One character of a class or a set (\d), which is added. */
static qn_status parse_class_atom(parser *p, qn_charset *s, int *is_set, uint32_t *code)
{
    *is_set = 0;
    if (peek(p, 0) == '\\') return parse_escape(p, 1, s, is_set, code);
    return next_code(p, code);
}

static qn_status parse_class(parser *p, int32_t *out)
{
    size_t at = p->at++;
    int is_negated = peek(p, 0) == '^';
    p->at += (size_t)is_negated;
    qn_charset s = {0};
    while (peek(p, 0) != ']') {
        size_t from = p->at;
        int is_set, is_set_too;
        uint32_t lo, hi;
        if (peek(p, 0) < 0) return fail_at(p, at, QN_E_FORMAT, "the class is not closed");
        QN_TRY(qn_dfa_work_steps(p->w, 1));
        QN_TRY(parse_class_atom(p, &s, &is_set, &lo));
        if (peek(p, 0) != '-' || peek(p, 1) == ']' || peek(p, 1) < 0) {
            if (!is_set) QN_TRY(qn_charset_add(p->w, &s, lo, lo));
            continue;
        }
        p->at++;
        QN_TRY(parse_class_atom(p, &s, &is_set_too, &hi));
        if (is_set || is_set_too) { /* [\w-.]: the hyphen stands for itself (Annex B) */
            QN_TRY(qn_charset_add(p->w, &s, '-', '-'));
            if (!is_set) QN_TRY(qn_charset_add(p->w, &s, lo, lo));
            if (!is_set_too) QN_TRY(qn_charset_add(p->w, &s, hi, hi));
            continue;
        }
        if (lo > hi) return fail_at(p, from, QN_E_FORMAT, "the range's end lies before its begin");
        QN_TRY(qn_charset_add(p->w, &s, lo, hi));
    }
    p->at++;
    QN_TRY(qn_charset_settle(p->w, &s));
    if (p->flags & QN_REGEX_IGNORE_CASE) QN_TRY(qn_charset_fold(p->w, &s));
    if (is_negated) QN_TRY(qn_charset_invert(p->w, &s));
    return add_set_node(p, &s, out);
}

/* --- Terms --- */

/* "{m}", "{m,}", "{m,n}" at p->at + from: its length, else 0. Numbers are cut at INT32_MAX. */
static size_t read_braces(const parser *p, int32_t *min, int32_t *max)
{
    size_t i = 1;
    int64_t value[2] = {0, -1};
    if (peek(p, 0) != '{' || peek(p, 1) < '0' || peek(p, 1) > '9') return 0;
    for (int k = 0; k < 2; k++) {
        if (peek(p, i) >= '0' && peek(p, i) <= '9') {
            value[k] = 0;
            for (; peek(p, i) >= '0' && peek(p, i) <= '9'; i++) {
                value[k] = value[k] * 10 + peek(p, i) - '0';
                if (value[k] > INT32_MAX) value[k] = INT32_MAX;
            }
        }
        if (k == 0) {
            if (peek(p, i) == '}') {
                value[1] = value[0];
                break;
            }
            if (peek(p, i++) != ',') return 0;
        }
    }
    if (peek(p, i) != '}') return 0;
    *min = (int32_t)value[0];
    *max = (int32_t)value[1];
    return i + 1;
}

static qn_status parse_quantifiers(parser *p, int can_repeat, int32_t *term)
{
    int32_t min, max;
    size_t at = p->at, n = 1;
    switch (peek(p, 0)) {
    case '*':
        min = 0, max = -1;
        break;
    case '+':
        min = 1, max = -1;
        break;
    case '?':
        min = 0, max = 1;
        break;
    default:
        n = read_braces(p, &min, &max);
        break;
    }
    if (!n) return QN_OK;
    if (!can_repeat) return fail_at(p, at, QN_E_FORMAT, "nothing that could be repeated stands before it");
    if (max >= 0 && max < min) return fail_at(p, at, QN_E_FORMAT, "the upper count is below the lower one");
    if (min > p->w->states_max || max > p->w->states_max) {
        qn_fail(QN_E_UNSUPPORTED, "repeated too often: the limit states_max is %d", p->w->states_max);
        return qn_fail_prefix(QN_E_UNSUPPORTED, "at byte %zu of the pattern", at);
    }
    p->at += n;
    if (peek(p, 0) == '?') p->at++; /* lazy: the same texts */
    if (strchr("*+?", peek(p, 0) > 0 ? peek(p, 0) : 'x') || read_braces(p, &(int32_t){0}, &(int32_t){0}))
        return fail_at(p, p->at, QN_E_FORMAT, "nothing that could be repeated stands before it");
    qn_regex_node node = {.kind = QN_REGEX_REPEAT, .last = *term, .before = -1, .min = min, .max = max};
    return add_node(p, node, term);
}

static qn_status parse_alternatives(parser *p, int32_t *out);

/* Behind the bracket that opens a group. */
static qn_status parse_group(parser *p, int32_t *out, int *can_repeat)
{
    size_t at = p->at++;
    qn_regex_node node = {.kind = QN_REGEX_EMPTY, .last = -1, .before = -1};
    *can_repeat = 1;
    if (peek(p, 0) == '?') {
        if (looks_at(p, "?:")) {
            p->at += 2;
        } else if (looks_at(p, "?=") || looks_at(p, "?!")) {
            node.kind = QN_REGEX_AHEAD;
            node.is_negated = peek(p, 1) == '!';
            p->at += 2;
        } else if (looks_at(p, "?<=") || looks_at(p, "?<!")) {
            node.kind = QN_REGEX_BEHIND;
            node.is_negated = peek(p, 2) == '!';
            *can_repeat = 0;
            p->at += 3;
        } else if (looks_at(p, "?<")) {
            p->at += 2;
            size_t begin = p->at;
            while (p->at < p->n && p->text[p->at] != '>' && p->text[p->at] != ')') p->at++;
            int is_digit = p->at > begin && p->text[begin] >= '0' && p->text[begin] <= '9';
            if (peek(p, 0) != '>' || p->at == begin || is_digit)
                return fail_at(p, at, QN_E_FORMAT, "the group's name is wrong");
            p->at++;
        } else {
            return fail_at(p, at, QN_E_FORMAT, "no group of ECMA-262");
        }
    }
    if (++p->depth > p->w->depth_max) {
        qn_fail(QN_E_UNSUPPORTED, "groups too deep: the limit depth_max is %d", p->w->depth_max);
        return qn_fail_prefix(QN_E_UNSUPPORTED, "at byte %zu of the pattern", at);
    }
    QN_TRY(parse_alternatives(p, out));
    p->depth--;
    if (peek(p, 0) != ')') return fail_at(p, at, QN_E_FORMAT, "the group is not closed");
    p->at++;
    if (node.kind == QN_REGEX_EMPTY) return QN_OK;
    node.last = *out;
    return add_node(p, node, out);
}

static qn_status parse_term(parser *p, int32_t *out)
{
    qn_regex_node node = {.kind = QN_REGEX_EMPTY, .last = -1, .before = -1};
    size_t at = p->at;
    int c = peek(p, 0), can_repeat = 1, is_set = 0;
    uint32_t code = 0;
    qn_charset s = {0};
    QN_TRY(qn_dfa_work_steps(p->w, 1));
    switch (c) {
    case '^':
    case '$':
        p->at++;
        node.kind = c == '^' ? QN_REGEX_BEGIN : QN_REGEX_END;
        QN_TRY(add_node(p, node, out));
        return parse_quantifiers(p, 0, out);
    case '(':
        QN_TRY(parse_group(p, out, &can_repeat));
        return parse_quantifiers(p, can_repeat, out);
    case '[':
        QN_TRY(parse_class(p, out));
        return parse_quantifiers(p, 1, out);
    case '*':
    case '+':
    case '?':
        return fail_at(p, at, QN_E_FORMAT, "nothing that could be repeated stands before it");
    case '.':
        p->at++;
        if (!(p->flags & QN_REGEX_DOT_ALL))
            QN_TRY(qn_charset_add_ranges(p->w, &s, LINE_ENDS, COUNT(LINE_ENDS)));
        QN_TRY(qn_charset_invert(p->w, &s));
        QN_TRY(add_set_node(p, &s, out));
        return parse_quantifiers(p, 1, out);
    case '\\':
        if (peek(p, 1) == 'b' || peek(p, 1) == 'B') {
            node.kind = QN_REGEX_WORD_EDGE;
            node.is_negated = peek(p, 1) == 'B';
            p->tree->has_word_edges = 1;
            p->at += 2;
            QN_TRY(add_node(p, node, out));
            return parse_quantifiers(p, 0, out);
        }
        QN_TRY(parse_escape(p, 0, &s, &is_set, &code));
        break;
    default:
        if (c == '{' && read_braces(p, &node.min, &node.max))
            return fail_at(p, at, QN_E_FORMAT, "nothing that could be repeated stands before it");
        QN_TRY(next_code(p, &code));
    }
    if (!is_set) QN_TRY(qn_charset_add(p->w, &s, code, code));
    QN_TRY(qn_charset_settle(p->w, &s));
    if (p->flags & QN_REGEX_IGNORE_CASE && !is_set) QN_TRY(qn_charset_fold(p->w, &s));
    QN_TRY(add_set_node(p, &s, out));
    return parse_quantifiers(p, 1, out);
}

static qn_status parse_sequence(parser *p, int32_t *out)
{
    int32_t last = -1, n = 0;
    while (p->at < p->n && p->text[p->at] != '|' && p->text[p->at] != ')') {
        int32_t term;
        QN_TRY(parse_term(p, &term));
        node_at(p, term)->before = last;
        last = term;
        n++;
    }
    *out = last;
    if (n == 1) return QN_OK;
    qn_regex_node node = {.kind = n ? QN_REGEX_SEQUENCE : QN_REGEX_EMPTY, .last = last, .before = -1};
    return add_node(p, node, out);
}

static qn_status parse_alternatives(parser *p, int32_t *out)
{
    int32_t last;
    QN_TRY(parse_sequence(p, &last));
    *out = last;
    if (peek(p, 0) != '|') return QN_OK;
    while (peek(p, 0) == '|') {
        int32_t next;
        p->at++;
        QN_TRY(parse_sequence(p, &next));
        node_at(p, next)->before = last;
        last = next;
    }
    qn_regex_node node = {.kind = QN_REGEX_ALTERNATIVES, .last = last, .before = -1};
    return add_node(p, node, out);
}

qn_status qn_regex_parse(qn_dfa_work *w, const char *pattern, size_t n, unsigned flags, qn_regex_tree *out)
{
    if (n > w->pattern_bytes_max)
        return qn_fail(QN_E_UNSUPPORTED, "a pattern of %zu bytes: the limit pattern_bytes_max is %zu", n,
                       w->pattern_bytes_max);
    size_t valid = qn_utf8_valid_prefix(pattern, n);
    if (valid != n) return qn_fail(QN_E_FORMAT, "at byte %zu of the pattern: not valid UTF-8", valid);
    memset(out, 0, sizeof *out);
    parser p = {.w = w, .text = pattern, .n = n, .flags = flags, .tree = out};
    QN_TRY(parse_alternatives(&p, &out->root));
    if (p.at < n) return fail_at(&p, p.at, QN_E_FORMAT, "a bracket is closed that was not opened");
    return QN_OK;
}
