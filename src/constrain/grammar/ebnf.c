/* GBNF (llama.cpp) and EBNF (XGrammar, SGLang): rules with "::=", double-quoted texts, classes in brackets, groups,
 * alternatives, *, +, ? and counts in braces, comments behind #. A rule ends where the next begins. */
#include <string.h>

#include "base/utf8.h"
#include "constrain/automaton/charset.h"
#include "constrain/automaton/lower.h"
#include "constrain/grammar/tree.h"

typedef struct {
    qn_tree *t;
    qn_tree_reader r;
    int is_ebnf;
    int32_t depth;
} parser;

static qn_status fail(const parser *p, size_t at, const char *what)
{
    return qn_tree_fail(&p->r, at, QN_E_FORMAT, what);
}

static int peek(const parser *p, size_t ahead)
{
    return qn_tree_peek(&p->r, ahead);
}

static void skip_space(parser *p)
{
    qn_tree_reader *r = &p->r;
    for (; r->at < r->n; r->at++) {
        char c = r->text[r->at];
        if (c == '#') {
            while (r->at < r->n && r->text[r->at] != '\n') r->at++;
            if (r->at == r->n) return;
            c = '\n';
        }
        if (c == '\n') {
            r->line++;
            r->line_begin = r->at + 1;
        } else if (c != ' ' && c != '\t' && c != '\r') {
            return;
        }
    }
}

static int is_name_char(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
}

/* The length of a name here; 0: none. A dot alone is no name. */
static size_t name_length(const parser *p)
{
    size_t n = 0;
    if (peek(p, 0) == '.') return 0;
    while (is_name_char(peek(p, n)) && (p->is_ebnf || peek(p, n) != '.')) n++;
    return n;
}

/* Does a rule begin here? */
static int at_rule(const parser *p)
{
    parser ahead = *p;
    size_t n = name_length(p);
    ahead.r.at += n;
    skip_space(&ahead);
    return n > 0 && peek(&ahead, 0) == ':' && peek(&ahead, 1) == ':' && peek(&ahead, 2) == '=';
}

static int hex_value(int c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* A character of a text or class, escapes resolved. */
static qn_status parse_char(parser *p, uint32_t *out)
{
    size_t at = p->r.at;
    if (peek(p, 0) != '\\') {
        size_t n = qn_utf8_decode(p->r.text + at, p->r.n - at, out);
        p->r.at += n;
        if (*out == '\n') {
            p->r.line++;
            p->r.line_begin = p->r.at;
        }
        return QN_OK;
    }
    int c = peek(p, 1), n_digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    p->r.at += 2;
    if (n_digits) {
        uint32_t value = 0;
        for (int i = 0; i < n_digits; i++) {
            int d = hex_value(peek(p, 0));
            if (d < 0) return fail(p, at, "too few digits of base 16 in an escape");
            value = value * 16 + (uint32_t)d;
            p->r.at++;
        }
        if (value > QN_CODE_MAX || (value >= 0xd800 && value <= 0xdfff))
            return fail(p, at, "an escape for what is no character");
        *out = value;
        return QN_OK;
    }
    static const char names[] = "nrtbfv0ae", codes[] = "\n\r\t\b\f\v\0\a\x1b";
    const char *known = c > 0 ? strchr(names, c) : NULL;
    if (known && (p->is_ebnf || known - names < 3)) {
        *out = (uint8_t)codes[known - names];
        return QN_OK;
    }
    if (c > ' ' && c < 0x7f && !is_name_char(c)) {
        *out = (uint32_t)c;
        return QN_OK;
    }
    if (c == '-' || c == '.' || c == '_') {
        *out = (uint32_t)c;
        return QN_OK;
    }
    return fail(p, at, "an unknown escape");
}

static qn_status parse_text(parser *p, int32_t *out)
{
    qn_tree_reader *r = &p->r;
    size_t at = r->at++, n = 0;
    int32_t line = r->line, column = qn_tree_column(r, at);
    char quote = r->text[at];
    /* No character is longer than what is written for it. */
    char *text = qn_arena_alloc(&p->t->w.arena, r->n - at + 4);
    if (!text) return QN_E_NOMEM;
    while (peek(p, 0) != quote) {
        uint32_t code;
        if (peek(p, 0) < 0)
            return qn_fail(QN_E_FORMAT, "line %d, column %d: the text is not closed", line, column);
        QN_TRY(parse_char(p, &code));
        n += qn_utf8_encode(code, text + n);
        QN_TRY(qn_dfa_work_steps(&p->t->w, 1));
    }
    r->at++;
    char *kept = qn_arena_strndup(&p->t->w.arena, text, n);
    if (!kept) return QN_E_NOMEM;
    qn_tree_node node = {
        .kind = QN_TREE_TEXT, .last = -1, .before = -1, .text = kept, .n = n, .line = line, .column = column};
    return qn_tree_add(p->t, node, out);
}

static qn_status add_set(parser *p, qn_charset *s, size_t at, int32_t *out)
{
    qn_dfa *d;
    QN_TRY(qn_dfa_of_charset(&p->t->w, s, &d));
    return qn_tree_add_dfa(p->t, d, p->r.line, qn_tree_column(&p->r, at), out);
}

static qn_status parse_class(parser *p, int32_t *out)
{
    qn_dfa_work *w = &p->t->w;
    size_t at = p->r.at++;
    int is_negated = peek(p, 0) == '^';
    p->r.at += (size_t)is_negated;
    qn_charset s = {0};
    while (peek(p, 0) != ']') {
        uint32_t lo, hi;
        size_t from = p->r.at;
        if (peek(p, 0) < 0) return fail(p, at, "the class is not closed");
        QN_TRY(parse_char(p, &lo));
        hi = lo;
        if (peek(p, 0) == '-' && peek(p, 1) != ']' && peek(p, 1) >= 0) {
            p->r.at++;
            QN_TRY(parse_char(p, &hi));
            if (lo > hi) return fail(p, from, "the range's end lies before its begin");
        }
        QN_TRY(qn_charset_add(w, &s, lo, hi));
        QN_TRY(qn_dfa_work_steps(w, 1));
    }
    p->r.at++;
    QN_TRY(qn_charset_settle(w, &s));
    if (is_negated) QN_TRY(qn_charset_invert(w, &s));
    return add_set(p, &s, at, out);
}

static qn_status parse_alternatives(parser *p, int32_t *out);

static qn_status parse_counts(parser *p, int32_t *min, int32_t *max)
{
    size_t at = p->r.at++;
    skip_space(p);
    *min = qn_tree_number(&p->r);
    if (*min < 0 && peek(p, 0) != ',') return fail(p, at, "a count is missing in the braces");
    skip_space(p);
    *max = *min;
    if (peek(p, 0) == ',') {
        p->r.at++;
        skip_space(p);
        *max = qn_tree_number(&p->r);
        skip_space(p);
    }
    if (*min < 0) *min = 0;
    if (peek(p, 0) != '}') return fail(p, at, "the braces are not closed");
    p->r.at++;
    if (*max >= 0 && *max < *min) return fail(p, at, "the upper count is below the lower one");
    return QN_OK;
}

static qn_status parse_quantifiers(parser *p, int32_t *term)
{
    for (int n = 0;; n++) {
        parser ahead = *p; /* of what follows behind spaces, only a quantifier is taken */
        skip_space(&ahead);
        int32_t min = 0, max = -1;
        int c = peek(&ahead, 0);
        size_t at = ahead.r.at;
        if (c != '*' && c != '+' && c != '?' && c != '{') return QN_OK;
        p->r = ahead.r;
        if (n >= QN_TREE_QUANTIFIERS_MAX) return fail(p, at, "too many quantifiers in a row");
        if (c == '{') {
            QN_TRY(parse_counts(p, &min, &max));
        } else {
            p->r.at++;
            min = c == '+';
            max = c == '?' ? 1 : -1;
        }
        if (min > p->t->limits.symbols_max || max > p->t->limits.symbols_max)
            return qn_tree_fail(&p->r, at, QN_E_UNSUPPORTED,
                                "repeated more often than the limit symbols_max");
        qn_tree_node node = {.kind = QN_TREE_REPEAT, .last = *term, .before = -1, .min = min, .max = max};
        QN_TRY(qn_tree_add(p->t, node, term));
    }
}

static qn_status parse_term(parser *p, int32_t *out)
{
    size_t at = p->r.at;
    int c = peek(p, 0);
    if (c == '"' || (c == '\'' && p->is_ebnf)) return parse_text(p, out);
    if (c == '[') return parse_class(p, out);
    if (c == '.') {
        qn_charset all = {0};
        p->r.at++;
        QN_TRY(qn_charset_invert(&p->t->w, &all));
        return add_set(p, &all, at, out);
    }
    if (c == '(') {
        p->r.at++;
        skip_space(p);
        if (peek(p, 0) == '=' && p->is_ebnf)
            return qn_tree_fail(&p->r, at, QN_E_UNSUPPORTED, "look-ahead (= ...) is not supported");
        if (++p->depth > p->t->limits.depth_max)
            return qn_tree_fail(&p->r, at, QN_E_UNSUPPORTED, "brackets too deep: see the limit depth_max");
        QN_TRY(parse_alternatives(p, out));
        p->depth--;
        if (peek(p, 0) != ')') return fail(p, p->r.at, "a closing bracket is missing");
        p->r.at++;
        return QN_OK;
    }
    if (c == '<' || (c == '!' && peek(p, 1) == '<'))
        return qn_tree_fail(&p->r, at, QN_E_UNSUPPORTED, "references to tokens (<...>) are not supported");
    size_t n = name_length(p);
    if (!n) return fail(p, at, "a text, a class, a name or a bracket should stand here");
    p->r.at += n;
    if (p->is_ebnf && peek(p, 0) == '(' && p->r.text[at] >= 'A' && p->r.text[at] <= 'Z')
        return qn_tree_fail(&p->r, at, QN_E_UNSUPPORTED, "macros such as TagDispatch(...) are not supported");
    qn_tree_node node = {.kind = QN_TREE_RULE,
                         .last = -1,
                         .before = -1,
                         .line = p->r.line,
                         .column = qn_tree_column(&p->r, at)};
    QN_TRY(qn_tree_rule_named(p->t, p->r.text + at, n, node.line, node.column, &node.index));
    return qn_tree_add(p->t, node, out);
}

static qn_status parse_sequence(parser *p, int32_t *out)
{
    int32_t last = -1;
    for (;;) {
        skip_space(p);
        int c = peek(p, 0);
        if (c < 0 || c == '|' || c == ')' || (!p->depth && at_rule(p))) break;
        int32_t term;
        QN_TRY(parse_term(p, &term));
        QN_TRY(parse_quantifiers(p, &term));
        qn_tree_at(p->t, term)->before = last;
        last = term;
    }
    return qn_tree_join(p->t, QN_TREE_SEQUENCE, last, out);
}

/* In front of a node that may be shared with nothing: alternatives of alternatives are linked by their own nodes. */
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

static qn_status parse_rule(parser *p)
{
    size_t at = p->r.at, n = name_length(p);
    int32_t rule, body, line = p->r.line;
    if (!at_rule(p)) return fail(p, at, "a rule (name ::= ...) should begin here");
    QN_TRY(qn_tree_rule_named(p->t, p->r.text + at, n, line, qn_tree_column(&p->r, at), &rule));
    if (qn_tree_rule_at(p->t, rule)->body >= 0) return fail(p, at, "the rule was written before");
    qn_tree_rule_at(p->t, rule)->line = line;
    p->r.at += n;
    skip_space(p);
    p->r.at += 3;
    QN_TRY(parse_alternatives(p, &body));
    if (peek(p, 0) == ')') return fail(p, p->r.at, "a bracket is closed that was not opened");
    qn_tree_rule_at(p->t, rule)->body = body;
    return QN_OK;
}

static qn_status parse(qn_tree *t, const char *text, size_t n, int is_ebnf, qn_grammar **out)
{
    if (n > t->limits.bytes_max)
        return qn_fail(QN_E_UNSUPPORTED, "a grammar of %zu bytes: the limit bytes_max is %zu", n,
                       t->limits.bytes_max);
    parser p = {.t = t, .r = {.text = text, .n = n, .line = 1}, .is_ebnf = is_ebnf};
    if (qn_utf8_valid_prefix(text, n) != n) return qn_fail(QN_E_FORMAT, "the grammar is not valid UTF-8");
    for (skip_space(&p); p.r.at < n; skip_space(&p)) QN_TRY(parse_rule(&p));
    int32_t start;
    QN_TRY(qn_tree_rule_named(t, "root", 4, p.r.line, 1, &start));
    if (qn_tree_rule_at(t, start)->body < 0) return qn_fail(QN_E_FORMAT, "the grammar has no rule \"root\"");
    return qn_tree_finish(t, start, out);
}

static qn_status read_grammar(const char *text, size_t n, const qn_grammar_limits *limits, int is_ebnf,
                              qn_grammar **out)
{
    qn_tree t;
    qn_tree_begin(&t, limits);
    qn_status s = parse(&t, text, n, is_ebnf, out);
    qn_tree_end(&t);
    return s;
}

qn_status qn_grammar_gbnf(const char *text, size_t n, const qn_grammar_limits *limits, qn_grammar **out)
{
    return read_grammar(text, n, limits, 0, out);
}

qn_status qn_grammar_ebnf(const char *text, size_t n, const qn_grammar_limits *limits, qn_grammar **out)
{
    return read_grammar(text, n, limits, 1, out);
}
