/* Lark's grammars: rules in lower case, terminals in upper case, "name: ..." up to the end of the line (or further,
 * where the next line begins with | or a bracket is open), directives with %.
 *
 * What is ignored may stand before each terminal that a rule uses, and at the end of the text; inside of terminals
 * it may not. Names of alternatives (-> name), priorities and the marks ? ! _ shape trees, not the language. */
#include <string.h>

#include "base/utf8.h"
#include "constrain/automaton/charset.h"
#include "constrain/automaton/lower.h"
#include "constrain/automaton/regex.h"
#include "constrain/grammar/tree.h"

typedef struct {
    qn_tree *t;
    qn_tree_reader r;
    int32_t depth;
    int in_terminal; /* the body of a terminal: nothing is ignored inside */

    int32_t last_ignored;
} parser;

static const char IGNORE[] = "%ignore", START[] = "%start"; /* rules with names that no grammar can write */

static const struct {
    const char *name, *pattern;
} COMMON[] = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[a-fA-F0-9]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
    {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
    {"SIGNED_FLOAT", "[+-]?(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"},
    {"NUMBER", "(?:[0-9]+(?:\\.[0-9]*)?|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER", "[+-]?(?:[0-9]+(?:\\.[0-9]*)?|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
    {"ESCAPED_STRING", "\"(?:[^\"\\\\\\n]|\\\\[^\\n])*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[a-zA-Z]"},
    {"WORD", "[a-zA-Z]+"},
    {"CNAME", "[_a-zA-Z][_a-zA-Z0-9]*"},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
    {"NEWLINE", "(?:\\r?\\n)+"},
    {"SH_COMMENT", "#[^\\n]*"},
    {"CPP_COMMENT", "//[^\\n]*"},
    {"C_COMMENT", "/\\*(?:[^*]|\\*+[^*/])*\\*+/"},
    {"SQL_COMMENT", "--[^\\n]*"},
};

static qn_status fail(const parser *p, size_t at, const char *what)
{
    return qn_tree_fail(&p->r, at, QN_E_FORMAT, what);
}

static qn_status refuse(const parser *p, size_t at, const char *what)
{
    return qn_tree_fail(&p->r, at, QN_E_UNSUPPORTED, what);
}

static int peek(const parser *p, size_t ahead)
{
    return qn_tree_peek(&p->r, ahead);
}

static int looks_at(const parser *p, const char *s)
{
    size_t n = strlen(s);
    return p->r.n - p->r.at >= n && memcmp(p->r.text + p->r.at, s, n) == 0;
}

static void skip_comment(qn_tree_reader *r)
{
    while (r->at < r->n && r->text[r->at] != '\n') r->at++;
}

/* Space and comments; line ends too if across is not 0. */
static void skip_space(parser *p, int across)
{
    qn_tree_reader *r = &p->r;
    while (r->at < r->n) {
        char c = r->text[r->at];
        if (c == ' ' || c == '\t' || c == '\r') {
            r->at++;
        } else if (c == '#' || (c == '/' && qn_tree_peek(r, 1) == '/')) {
            skip_comment(r);
        } else if (c == '\n' && across) {
            r->at++;
            r->line++;
            r->line_begin = r->at;
        } else {
            return;
        }
    }
}

/* As above; lines are left behind also where the next one goes on with |. */
static void skip_inside(parser *p)
{
    skip_space(p, p->depth > 0);
    if (p->depth || peek(p, 0) != '\n') return;
    parser ahead = *p;
    skip_space(&ahead, 1);
    if (peek(&ahead, 0) == '|') p->r = ahead.r;
}

static int is_lower(int c)
{
    return c >= 'a' && c <= 'z';
}
static int is_upper(int c)
{
    return c >= 'A' && c <= 'Z';
}
static int is_digit(int c)
{
    return c >= '0' && c <= '9';
}

/* The length of a name here, 0 if none is. */
static size_t name_length(const parser *p, int *is_terminal)
{
    size_t n = 0;
    while (peek(p, n) == '_') n++;
    *is_terminal = is_upper(peek(p, n));
    if (!*is_terminal && !is_lower(peek(p, n))) return 0;
    for (int c; (c = peek(p, n)) == '_' || is_digit(c) || (*is_terminal ? is_upper(c) : is_lower(c));) n++;
    return n;
}

static qn_status use_rule(parser *p, const char *name, size_t n, size_t at, int32_t *out)
{
    qn_tree_node node = {.kind = QN_TREE_RULE,
                         .last = -1,
                         .before = -1,
                         .line = p->r.line,
                         .column = qn_tree_column(&p->r, at)};
    QN_TRY(qn_tree_rule_named(p->t, name, n, node.line, node.column, &node.index));
    return qn_tree_add(p->t, node, out);
}

/* In rules, what is ignored may come before a terminal. */
static qn_status after_ignored(parser *p, int32_t *term)
{
    if (p->in_terminal) return QN_OK;
    int32_t ignored;
    QN_TRY(use_rule(p, IGNORE, strlen(IGNORE), p->r.at, &ignored));
    qn_tree_at(p->t, *term)->before = ignored;
    return qn_tree_join(p->t, QN_TREE_SEQUENCE, *term, term);
}

/* --- Literals --- */

static int hex_value(int c)
{
    return is_digit(c) ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

static qn_status parse_char(parser *p, uint32_t *out)
{
    static const char names[] = "nrtfvab0\\\"'", codes[] = "\n\r\t\f\v\a\b\0\\\"'";
    size_t at = p->r.at;
    if (peek(p, 0) != '\\') {
        p->r.at += qn_utf8_decode(p->r.text + at, p->r.n - at, out);
        return QN_OK;
    }
    int c = peek(p, 1), n_digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    p->r.at += 2;
    const char *known = c > 0 ? strchr(names, c) : NULL;
    if (known) {
        *out = (uint8_t)codes[known - names];
        return QN_OK;
    }
    uint32_t value = 0;
    for (int i = 0; i < n_digits; i++, p->r.at++) {
        int d = hex_value(peek(p, 0));
        if (d < 0) return fail(p, at, "too few digits of base 16 in an escape");
        value = value * 16 + (uint32_t)d;
    }
    if (!n_digits) return fail(p, at, "an unknown escape");
    if (value > QN_CODE_MAX || (value >= 0xd800 && value <= 0xdfff))
        return fail(p, at, "an escape for what is no character");
    *out = value;
    return QN_OK;
}

/* The bytes of a text in quotes, in the arena. */
static qn_status read_text(parser *p, char **out, size_t *n_out)
{
    size_t at = p->r.at++, n = 0;
    char *text =
        qn_arena_alloc(&p->t->w.arena, p->r.n - at + 4); /* no character is longer than what is written */
    if (!text) return QN_E_NOMEM;
    while (peek(p, 0) != '"') {
        uint32_t code;
        if (peek(p, 0) < 0 || peek(p, 0) == '\n') return fail(p, at, "the text is not closed");
        QN_TRY(parse_char(p, &code));
        n += qn_utf8_encode(code, text + n);
        QN_TRY(qn_dfa_work_steps(&p->t->w, 1));
    }
    p->r.at++;
    *out = qn_arena_strndup(&p->t->w.arena, text, n);
    *n_out = n;
    return *out ? QN_OK : QN_E_NOMEM;
}

static qn_status add_regex(parser *p, const char *pattern, size_t n, unsigned flags, size_t at, int32_t *out)
{
    qn_dfa_limits limits = qn_dfa_work_limits(&p->t->w);
    qn_dfa *d;
    QN_TRY(qn_dfa_work_steps(&p->t->w, 100 + (int64_t)n * 10));
    qn_status s = qn_dfa_regex(pattern, n, flags | QN_REGEX_WHOLE, &limits, &d);
    if (s != QN_OK) return qn_fail_prefix(s, "line %d, column %d", p->r.line, qn_tree_column(&p->r, at));
    s = qn_dfa_work_steps(&p->t->w, (int64_t)d->n_states * d->n_classes);
    if (s != QN_OK) {
        qn_dfa_release(d);
        return s;
    }
    return qn_tree_add_dfa(p->t, d, p->r.line, qn_tree_column(&p->r, at), out);
}

/* "text" as a pattern, for the flag i. */
static qn_status add_folded(parser *p, const char *text, size_t n, size_t at, int32_t *out)
{
    char *pattern = qn_arena_alloc(&p->t->w.arena, 2 * n + 1);
    size_t m = 0;
    if (!pattern) return QN_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        if (strchr("^$\\.*+?()[]{}|/", text[i]) && text[i]) pattern[m++] = '\\';
        pattern[m++] = text[i];
    }
    return add_regex(p, pattern, m, QN_REGEX_IGNORE_CASE, at, out);
}

static qn_status parse_text(parser *p, int32_t *out)
{
    size_t at = p->r.at, n, n_last;
    char *text, *last;
    QN_TRY(read_text(p, &text, &n));
    if (peek(p, 0) == '.' && peek(p, 1) == '.') { /* "a".."z" */
        uint32_t lo, hi;
        p->r.at += 2;
        if (peek(p, 0) != '"') return fail(p, at, "the range has no end");
        QN_TRY(read_text(p, &last, &n_last));
        if (qn_utf8_decode(text, n, &lo) != n || qn_utf8_decode(last, n_last, &hi) != n_last || !n ||
            !n_last || lo > hi)
            return fail(p, at, "a range needs two characters, the lower one first");
        qn_charset s = {0};
        qn_dfa *d;
        QN_TRY(qn_charset_add(&p->t->w, &s, lo, hi));
        QN_TRY(qn_charset_settle(&p->t->w, &s));
        QN_TRY(qn_dfa_of_charset(&p->t->w, &s, &d));
        return qn_tree_add_dfa(p->t, d, p->r.line, qn_tree_column(&p->r, at), out);
    }
    if (peek(p, 0) == 'i') {
        p->r.at++;
        return add_folded(p, text, n, at, out);
    }
    qn_tree_node node = {.kind = QN_TREE_TEXT,
                         .last = -1,
                         .before = -1,
                         .text = text,
                         .n = n,
                         .line = p->r.line,
                         .column = qn_tree_column(&p->r, at)};
    return qn_tree_add(p->t, node, out);
}

static qn_status parse_regex(parser *p, int32_t *out)
{
    size_t at = p->r.at++, begin = p->r.at;
    for (; peek(p, 0) != '/'; p->r.at++) {
        if (peek(p, 0) == '\\' && peek(p, 1) >= 0) p->r.at++;
        if (peek(p, 0) < 0 || peek(p, 0) == '\n') return fail(p, at, "the regular expression is not closed");
    }
    size_t n = p->r.at++ - begin;
    unsigned flags = 0;
    for (int c; (c = peek(p, 0)), is_lower(c); p->r.at++) {
        if (c == 'i') {
            flags |= QN_REGEX_IGNORE_CASE;
        } else if (c == 's') {
            flags |= QN_REGEX_DOT_ALL;
        } else if (c != 'u') {
            return refuse(p, p->r.at, "of the flags of regular expressions, i, s and u are supported");
        }
    }
    return add_regex(p, p->r.text + begin, n, flags, at, out);
}

/* --- Expressions --- */

static qn_status parse_alternatives(parser *p, int32_t *out);

static qn_status repeat(parser *p, size_t at, int32_t min, int32_t max, int32_t *term)
{
    if (max >= 0 && max < min) return fail(p, at, "the upper count is below the lower one");
    if (min > p->t->limits.symbols_max || max > p->t->limits.symbols_max)
        return refuse(p, at, "repeated more often than the limit symbols_max");
    qn_tree_node node = {.kind = QN_TREE_REPEAT, .last = *term, .before = -1, .min = min, .max = max};
    return qn_tree_add(p->t, node, term);
}

/* "~ 3", "~ 3..5"; "{3}", "{3,}", "{,5}", "{3,5}". */
static qn_status parse_counts(parser *p, int32_t *term)
{
    size_t at = p->r.at;
    int is_brace = peek(p, 0) == '{';
    int32_t min, max;
    p->r.at++;
    skip_space(p, 0);
    min = qn_tree_number(&p->r);
    if (min < 0 && !(is_brace && peek(p, 0) == ',')) return fail(p, at, "a count is missing");
    skip_space(p, 0);
    max = min;
    if (is_brace) {
        if (peek(p, 0) == ',') {
            p->r.at++;
            skip_space(p, 0);
            max = qn_tree_number(&p->r);
            skip_space(p, 0);
        }
        if (peek(p, 0) != '}') return fail(p, at, "the braces are not closed");
        p->r.at++;
    } else if (peek(p, 0) == '.' && peek(p, 1) == '.') {
        p->r.at += 2;
        skip_space(p, 0);
        max = qn_tree_number(&p->r);
        if (max < 0) return fail(p, at, "a count is missing");
    }
    return repeat(p, at, min < 0 ? 0 : min, max, term);
}

static qn_status parse_group(parser *p, int32_t *out)
{
    size_t at = p->r.at;
    int is_optional = peek(p, 0) == '[';
    if (++p->depth > p->t->limits.depth_max)
        return refuse(p, at, "brackets too deep: see the limit depth_max");
    p->r.at++;
    QN_TRY(parse_alternatives(p, out));
    if (peek(p, 0) != (is_optional ? ']' : ')')) return fail(p, at, "the bracket is not closed");
    p->r.at++;
    p->depth--;
    return is_optional ? repeat(p, at, 0, 1, out) : QN_OK;
}

static qn_status parse_atom(parser *p, int32_t *out)
{
    size_t at = p->r.at;
    int c = peek(p, 0), is_terminal;
    if (c == '(' || c == '[') return parse_group(p, out);
    if (c == '"') {
        QN_TRY(parse_text(p, out));
        return after_ignored(p, out);
    }
    if (c == '/') {
        QN_TRY(parse_regex(p, out));
        return after_ignored(p, out);
    }
    if (c == '<') return refuse(p, at, "special tokens (<...>) are not supported");
    if (c == '%') return refuse(p, at, "%json, %regex and the like inside of rules are not supported");
    if (c == '$') return refuse(p, at, "$END is not supported");
    size_t n = name_length(p, &is_terminal);
    if (!n) return fail(p, at, "a name, a text, a regular expression or a bracket should stand here");
    if (p->in_terminal && !is_terminal) return fail(p, at, "a terminal cannot use a rule");
    p->r.at += n;
    if (peek(p, 0) == '{' && !is_digit(peek(p, 1)) && peek(p, 1) != ',')
        return refuse(p, at, "templates are not supported");
    QN_TRY(use_rule(p, p->r.text + at, n, at, out));
    return is_terminal ? after_ignored(p, out) : QN_OK;
}

static qn_status parse_term(parser *p, int32_t *out)
{
    QN_TRY(parse_atom(p, out));
    for (int n = 0;; n++) {
        skip_space(p, p->depth > 0);
        size_t at = p->r.at;
        int c = peek(p, 0);
        if (!strchr("*+?~{", c > 0 ? c : 'x')) return QN_OK;
        if (n >= QN_TREE_QUANTIFIERS_MAX) return fail(p, at, "too many quantifiers in a row");
        if (c == '~' || c == '{') {
            QN_TRY(parse_counts(p, out));
        } else {
            p->r.at++;
            QN_TRY(repeat(p, at, c == '+', c == '?' ? 1 : -1, out));
        }
    }
}

static qn_status parse_sequence(parser *p, int32_t *out)
{
    int32_t last = -1;
    int is_terminal;
    for (;;) {
        skip_inside(p);
        int c = peek(p, 0);
        if (c < 0 || c == '|' || c == ')' || c == ']' || c == '\n') break;
        if (looks_at(p, "->")) { /* the alternative's name in the tree */
            p->r.at += 2;
            skip_space(p, 0);
            size_t n = name_length(p, &is_terminal);
            if (!n) return fail(p, p->r.at, "a name should stand behind ->");
            p->r.at += n;
            skip_inside(p);
            c = peek(p, 0);
            if (c >= 0 && c != '|' && c != ')' && c != ']' && c != '\n')
                return fail(p, p->r.at, "the alternative should end behind its name");
            break;
        }
        int32_t term;
        QN_TRY(parse_term(p, &term));
        qn_tree_at(p->t, term)->before = last;
        last = term;
    }
    return qn_tree_join(p->t, QN_TREE_SEQUENCE, last, out);
}

static qn_status parse_alternatives(parser *p, int32_t *out)
{
    int32_t last = -1;
    for (;;) {
        int32_t one;
        QN_TRY(parse_sequence(p, &one));
        qn_tree_at(p->t, one)->before = last;
        last = one;
        if (peek(p, 0) != '|') break;
        p->r.at++;
    }
    return qn_tree_join(p->t, QN_TREE_ALTERNATIVES, last, out);
}

/* --- Statements --- */

static qn_status write_rule(parser *p, const char *name, size_t n, size_t at, int32_t body)
{
    int32_t rule;
    QN_TRY(qn_tree_rule_named(p->t, name, n, p->r.line, qn_tree_column(&p->r, at), &rule));
    if (qn_tree_rule_at(p->t, rule)->body >= 0) return fail(p, at, "the name was defined before");
    qn_tree_rule_at(p->t, rule)->body = body;
    return QN_OK;
}

static qn_status parse_definition(parser *p)
{
    while (peek(p, 0) == '?' || peek(p, 0) == '!') p->r.at++;
    size_t at = p->r.at;
    int is_terminal;
    size_t n = name_length(p, &is_terminal);
    int32_t body;
    if (!n) return fail(p, at, "a rule, a terminal or a directive should begin here");
    p->r.at += n;
    if (peek(p, 0) == '{') return refuse(p, at, "templates are not supported");
    if (peek(p, 0) == '[') return refuse(p, at, "attributes of rules are not supported");
    if (peek(p, 0) == '.') { /* a priority */
        p->r.at++;
        if (peek(p, 0) == '-') p->r.at++;
        if (qn_tree_number(&p->r) < 0) return fail(p, p->r.at, "a priority is a number");
    }
    skip_space(p, 0);
    if (peek(p, 0) != ':') return fail(p, p->r.at, "a colon should stand here");
    p->r.at++;
    p->in_terminal = is_terminal;
    QN_TRY(parse_alternatives(p, &body));
    if (peek(p, 0) == ')' || peek(p, 0) == ']')
        return fail(p, p->r.at, "a bracket is closed that was not opened");
    return write_rule(p, p->r.text + at, n, at, body);
}

static qn_status import_one(parser *p, size_t at, const char *name, size_t n, const char *as, size_t n_as)
{
    for (size_t i = 0; i < sizeof COMMON / sizeof *COMMON; i++) {
        if (strlen(COMMON[i].name) != n || memcmp(COMMON[i].name, name, n)) continue;
        int32_t body;
        QN_TRY(add_regex(p, COMMON[i].pattern, strlen(COMMON[i].pattern), 0, at, &body));
        return write_rule(p, as, n_as, at, body);
    }
    return refuse(p, at, "of the imports, the terminals of common are supported");
}

static qn_status parse_import(parser *p)
{
    size_t at = p->r.at;
    int is_terminal;
    if (!looks_at(p, "common")) return refuse(p, at, "of the imports, the terminals of common are supported");
    p->r.at += strlen("common");
    skip_space(p, 0);
    if (peek(p, 0) == '(') {
        p->r.at++;
        for (;;) {
            skip_space(p, 1);
            size_t from = p->r.at, n = name_length(p, &is_terminal);
            if (!n) return fail(p, from, "a name should stand here");
            p->r.at += n;
            QN_TRY(import_one(p, from, p->r.text + from, n, p->r.text + from, n));
            skip_space(p, 1);
            if (peek(p, 0) == ')') break;
            if (peek(p, 0) != ',') return fail(p, p->r.at, "a comma or a closing bracket should stand here");
            p->r.at++;
        }
        p->r.at++;
        return QN_OK;
    }
    if (peek(p, 0) != '.') return fail(p, p->r.at, "a dot and a name should stand here");
    p->r.at++;
    size_t from = p->r.at, n = name_length(p, &is_terminal), as = from, n_as = n;
    if (!n) return fail(p, from, "a name should stand here");
    p->r.at += n;
    skip_space(p, 0);
    if (looks_at(p, "->")) {
        p->r.at += 2;
        skip_space(p, 0);
        as = p->r.at;
        n_as = name_length(p, &is_terminal);
        if (!n_as || !is_terminal) return fail(p, as, "the name of a terminal should stand here");
        p->r.at += n_as;
    }
    return import_one(p, from, p->r.text + from, n, p->r.text + as, n_as);
}

static qn_status parse_directive(parser *p)
{
    size_t at = p->r.at++;
    if (looks_at(p, "ignore")) {
        int32_t body;
        p->r.at += strlen("ignore");
        p->in_terminal = 1;
        QN_TRY(parse_alternatives(p, &body));
        qn_tree_at(p->t, body)->before = p->last_ignored;
        p->last_ignored = body;
        return QN_OK;
    }
    if (looks_at(p, "import")) {
        p->r.at += strlen("import");
        skip_space(p, 0);
        return parse_import(p);
    }
    return refuse(p, at, "of the directives, %ignore and %import are supported");
}

static qn_status finish(parser *p, qn_grammar **out)
{
    int32_t start, body, ignored, rule;
    /* %ignore: (one | another)* */
    QN_TRY(qn_tree_join(p->t, QN_TREE_ALTERNATIVES, p->last_ignored, &ignored));
    if (p->last_ignored >= 0) QN_TRY(repeat(p, 0, 0, -1, &ignored));
    QN_TRY(write_rule(p, IGNORE, strlen(IGNORE), 0, ignored));
    QN_TRY(use_rule(p, "start", 5, 0, &start));
    if (qn_tree_rule_at(p->t, qn_tree_at(p->t, start)->index)->body < 0)
        return qn_fail(QN_E_FORMAT, "the grammar has no rule \"start\"");
    QN_TRY(use_rule(p, IGNORE, strlen(IGNORE), 0, &body));
    qn_tree_at(p->t, body)->before = start;
    QN_TRY(qn_tree_join(p->t, QN_TREE_SEQUENCE, body, &body));
    QN_TRY(write_rule(p, START, strlen(START), 0, body));
    QN_TRY(qn_tree_rule_named(p->t, START, strlen(START), 0, 0, &rule));
    return qn_tree_finish(p->t, rule, out);
}

static qn_status parse(qn_tree *t, const char *text, size_t n, qn_grammar **out)
{
    if (n > t->limits.bytes_max)
        return qn_fail(QN_E_UNSUPPORTED, "a grammar of %zu bytes: the limit bytes_max is %zu", n,
                       t->limits.bytes_max);
    if (qn_utf8_valid_prefix(text, n) != n) return qn_fail(QN_E_FORMAT, "the grammar is not valid UTF-8");
    parser p = {.t = t, .r = {.text = text, .n = n, .line = 1}, .last_ignored = -1};
    for (skip_space(&p, 1); p.r.at < n; skip_space(&p, 1)) {
        QN_TRY(peek(&p, 0) == '%' ? parse_directive(&p) : parse_definition(&p));
        skip_space(&p, 0);
        if (p.r.at < n && peek(&p, 0) != '\n') return fail(&p, p.r.at, "the line should end here");
    }
    return finish(&p, out);
}

qn_status qn_grammar_lark(const char *text, size_t n, const qn_grammar_limits *limits, qn_grammar **out)
{
    qn_tree t;
    qn_tree_begin(&t, limits);
    qn_status s = parse(&t, text, n, out);
    qn_tree_end(&t);
    return s;
}
