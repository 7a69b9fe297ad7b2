#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/utf8.h"
#include "constrain/automaton/regex.h"

static qn_dfa *compile(const char *pattern, unsigned flags)
{
    qn_dfa *d = NULL;
    qn_status s = qn_dfa_regex(pattern, strlen(pattern), flags, NULL, &d);
    if (s != QN_OK) fail_msg("%s: %s", pattern, qn_last_error());
    return d;
}

static void expect(const char *pattern, unsigned flags, const char *text, int want)
{
    qn_dfa *d = compile(pattern, flags);
    if (qn_dfa_accepts(d, text, strlen(text)) != want)
        fail_msg("/%s/ and \"%s\": expected %d", pattern, text, want);
    qn_dfa_release(d);
}

static void test_examples(void **state)
{
    static const struct {
        const char *pattern, *text;
        int want;
    } cases[] = {
        {"abc", "xabcx", 1},
        {"^abc$", "xabcx", 0},
        {"^abc$", "abc", 1},
        {"^abc$", "abc\n", 0},
        {"", "anything", 1},
        {"^$", "", 1},
        {"^$", "a", 0},
        {"a|^b", "xb", 0},
        {"a|^b", "b", 1},
        {"(^a|b$)", "ab", 1},
        {"x(^a|b$)", "xb", 1},
        {"^.$", "\n", 0},
        {"^.$", "\xe2\x80\xa8", 0},
        {"^.$", "\xf0\x9f\x98\x80", 1},
        {"^..$", "\xf0\x9f\x98\x80", 0},
        {"^[^]$", "\n", 1},
        {"[]", "a", 0},
        {"^\\u{1F600}$", "\xf0\x9f\x98\x80", 1},
        {"^\\ud83d\\ude00$", "\xf0\x9f\x98\x80", 1},
        {"^\\u00e9\\xe9$", "\xc3\xa9\xc3\xa9", 1},
        {"^\\cJ$", "\n", 1},
        {"^[\\b]$", "\b", 1},
        {"^\\p{L}+$", "a\xc3\xa9\xce\xb1", 1},
        {"^\\p{L}+$", "a1", 0},
        {"^\\P{L}+$", "a", 0},
        {"^\\p{Script=Greek}+$", "\xce\xb1\xce\xb2", 1},
        {"^\\p{sc=Grek}+$", "ab", 0},
        {"^\\p{Lu}\\p{Ll}$", "Ab", 1},
        {"^\\p{gc=Nd}$", "7", 1},
        {"^[\\p{L}\\d_-]+$", "a-1_", 1},
        {"^[\\w-.]+$", "a-.b", 1},
        {"^\\-\\_\\/\\@$", "-_/@", 1},
        {"^a{,2}$", "a{,2}", 1},
        {"^{}$", "{}", 1},
        {"^]$", "]", 1},
        {"^x{2,3}?$", "xx", 1},
        {"^x{2,3}$", "x", 0},
        {"^(?:ab)*$", "abab", 1},
        {"^(?<year>\\d{4})$", "2024", 1},
        {"\\bcat\\b", "a cat!", 1},
        {"\\bcat\\b", "concat", 0},
        {"\\Bcat", "concat", 1},
        {"\\Bcat", "cat", 0},
        {"^(?=.*\\d)(?=.*[a-z]).{4,8}$", "abc1", 1},
        {"^(?=.*\\d)(?=.*[a-z]).{4,8}$", "abcd", 0},
        {"^(?!-)[a-z-]+(?<!-)$", "a-b", 1},
        {"^(?!-)[a-z-]+(?<!-)$", "-ab", 0},
        {"^(?!-)[a-z-]+(?<!-)$", "ab-", 0},
        {"^(?!.*foo).*$", "a food", 0},
        {"^(?!.*foo).*$", "a fod", 1},
        {"^((?!ab)[abc])*$", "acbca", 1},
        {"^((?!ab)[abc])*$", "cab", 0},
        {"(?<=\\$)\\d+$", "a$12", 1},
        {"^\\d+(?<=\\$)", "12", 0},
        {"(?<!\\S)x(?!\\S)", "a x b", 1},
        {"(?<!\\S)x(?!\\S)", "ax b", 0},
        {"^(a(?=b)|b(?!b))*$", "abab", 1},
        {"^(a(?=b)|b(?!b))*$", "abb", 0},
        {"^(?=(?!ab)a)a.$", "ac", 1},
        {"^(?=(?!ab)a)a.$", "ab", 0},
        {"^(?=a)*b$", "b", 1},
        {"^(a*)*$", "aaa", 1},
        {"^(a*)+b$", "b", 1},
        {"^\\S$", "\xef\xbb\xbf", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect(cases[i].pattern, QN_REGEX_SEARCH, cases[i].text, cases[i].want);
    expect("abc|d", QN_REGEX_WHOLE, "abc", 1);
    expect("abc|d", QN_REGEX_WHOLE, "abcd", 0);
    expect("aB[c-d][^x]", QN_REGEX_WHOLE | QN_REGEX_IGNORE_CASE, "AbCz", 1);
    expect("aB[c-d][^x]", QN_REGEX_WHOLE | QN_REGEX_IGNORE_CASE, "AbCX", 0);
    expect(".", QN_REGEX_WHOLE | QN_REGEX_DOT_ALL, "\n", 1);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *pattern;
        qn_status status;
        const char *part;
    } cases[] = {
        {"^(abc]", QN_E_FORMAT, "not closed"},
        {"abc)", QN_E_FORMAT, "not opened"},
        {"*a", QN_E_FORMAT, "repeated"},
        {"a**", QN_E_FORMAT, "repeated"},
        {"(?:+a)", QN_E_FORMAT, "repeated"},
        {"a|{2}", QN_E_FORMAT, "repeated"},
        {"^*", QN_E_FORMAT, "repeated"},
        {"(?<=a)*", QN_E_FORMAT, "repeated"},
        {"a{3,2}", QN_E_FORMAT, "below"},
        {"[a", QN_E_FORMAT, "class"},
        {"[z-a]", QN_E_FORMAT, "range"},
        {"\\", QN_E_FORMAT, "backslash"},
        {"\\Z", QN_E_FORMAT, "escape"},
        {"\\xg1", QN_E_FORMAT, "\\x"},
        {"\\u12", QN_E_FORMAT, "\\u"},
        {"\\u{110000}", QN_E_FORMAT, "code point"},
        {"\\p{Nonsense}", QN_E_FORMAT, "property"},
        {"(?i)abc", QN_E_FORMAT, "group"},
        {"(?P<name>x)", QN_E_FORMAT, "group"},
        {"(?#comment)a", QN_E_FORMAT, "group"},
        {"(a)\\1", QN_E_UNSUPPORTED, "back references"},
        {"(?<n>a)\\k<n>", QN_E_UNSUPPORTED, "back references"},
        {"(?=(?<=a)b)", QN_E_UNSUPPORTED, "look-behind"},
        {"(?<=a(?=b))", QN_E_UNSUPPORTED, "look-ahead"},
        {"(?<=a$)", QN_E_UNSUPPORTED, "look-behind"},
        {"a{99999999}", QN_E_UNSUPPORTED, "states_max"},
        {"((a{1000}){1000}){1000}", QN_E_UNSUPPORTED, "states_max"},
        {"a\xff", QN_E_FORMAT, "UTF-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_dfa *d = NULL;
        qn_status s = qn_dfa_regex(cases[i].pattern, strlen(cases[i].pattern), 0, NULL, &d);
        if (s != cases[i].status) fail_msg("%s: %s", cases[i].pattern, qn_status_name(s));
        if (!strstr(qn_last_error(), cases[i].part)) fail_msg("%s: %s", cases[i].pattern, qn_last_error());
        assert_null(d);
    }
}

/* J2 and J3 of the list of attacks: deep, long, exploding patterns end with a sentence, and soon. */
static void test_hostile(void **state)
{
    qn_dfa *d = NULL;
    size_t n = 3000;
    char *deep = qn_alloc(2 * n + 2);
    memset(deep, '(', n);
    deep[n] = 'a';
    memset(deep + n + 1, ')', n);
    assert_int_equal(qn_dfa_regex(deep, 2 * n + 1, 0, NULL, &d), QN_E_UNSUPPORTED);
    assert_non_null(strstr(qn_last_error(), "depth_max"));
    qn_free(deep);
    char *big = qn_alloc(100000);
    memset(big, 'a', 100000);
    assert_int_equal(qn_dfa_regex(big, 100000, 0, NULL, &d), QN_E_UNSUPPORTED);
    assert_non_null(strstr(qn_last_error(), "pattern_bytes_max"));
    qn_free(big);
    static const char *const exploding[] = {"^.*a.{30}$", "(a|aa)+b{5000,9000}(c{1000}|d){1000}",
                                            "(?=.*a.{20}$)(?=.*b.{21}$)(?!.*c.{22}$)"};
    for (size_t i = 0; i < sizeof exploding / sizeof *exploding; i++) {
        assert_int_equal(qn_dfa_regex(exploding[i], strlen(exploding[i]), 0, NULL, &d), QN_E_UNSUPPORTED);
        assert_non_null(strstr(qn_last_error(), "_max"));
    }
    static const char *const redos[] = {"^(a+)+$", "^(a|a)*$", "^(.*)*$", "^((a*)*)*b$", "(x+x+)+y"};
    for (size_t i = 0; i < sizeof redos / sizeof *redos; i++) {
        d = compile(redos[i], 0);
        assert_true(d->n_states < 20);
        qn_dfa_release(d);
    }
    qn_dfa_limits few = {.steps_max = 100};
    d = NULL;
    assert_int_equal(qn_dfa_regex("^[a-z]{50}$", 11, 0, &few, &d), QN_E_UNSUPPORTED);
    assert_non_null(strstr(qn_last_error(), "steps_max"));
}

/* --- Random patterns beside a matcher that goes back. --- */

typedef struct tree tree;
struct tree {
    enum { CHAR, DOT, CLASS, CAT, ALT, STAR, PLUS, OPT, COUNT, BEGIN, END, EDGE, AHEAD, BEHIND } kind;
    char c;
    int is_negated, min, max;
    tree *a, *b;
};

typedef struct {
    uint64_t seed, n;
    tree nodes[200];
    size_t n_nodes;
} maker;

static const char ALPHABET[] = "ab_- ";

static uint64_t draw(maker *m, uint64_t below)
{
    return qn_random_bits(m->seed, m->n++) % below;
}

static tree *make(maker *m, int depth, int is_inside, int can_repeat)
{
    tree *t = &m->nodes[m->n_nodes++];
    memset(t, 0, sizeof *t);
    uint64_t r = draw(m, depth > 0 && m->n_nodes < 150 ? 24 : 6);
    t->is_negated = (int)draw(m, 2);
    t->c = ALPHABET[draw(m, 5)];
    if (r < 4) {
        t->kind = CHAR;
    } else if (r == 4) {
        t->kind = DOT;
    } else if (r == 5) {
        t->kind = CLASS;
    } else if (r < 12) {
        t->kind = CAT;
    } else if (r < 15) {
        t->kind = ALT;
    } else if (r < 19) {
        t->kind = r == 15 ? STAR : r == 16 ? PLUS : r == 17 ? OPT : COUNT;
        t->min = t->kind == PLUS ? 1 : t->kind == COUNT ? (int)draw(m, 3) : 0;
        t->max = t->kind == OPT ? 1 : t->kind == COUNT ? t->min + (int)draw(m, 2) : -1;
        if (t->max == 0) t->max = 1;
        t->a = make(m, depth - 1, is_inside, 1);
        return t;
    } else if (r == 19) {
        t->kind = is_inside == 2 ? CHAR : BEGIN;
    } else if (r == 20) {
        t->kind = is_inside == 2 ? CHAR : END;
    } else if (r == 21) {
        t->kind = is_inside == 2 ? CHAR : EDGE;
    } else if (r == 22) {
        t->kind = is_inside == 2 ? CHAR : AHEAD;
    } else {
        t->kind = is_inside ? CHAR : BEHIND;
    }
    if (t->kind == CAT || t->kind == ALT) t->b = make(m, depth - 1, is_inside, can_repeat);
    if (t->kind == CAT || t->kind == ALT) t->a = make(m, depth - 1, is_inside, can_repeat);
    if (t->kind == AHEAD) t->a = make(m, depth - 1, is_inside > 1 ? is_inside : 1, can_repeat);
    if (t->kind == BEHIND) t->a = make(m, depth - 1, 2, can_repeat);
    return t;
}

static void print(const tree *t, qn_buf *b)
{
    switch (t->kind) {
    case CHAR:
        qn_buf_putc(b, t->c);
        return;
    case DOT:
        qn_buf_putc(b, '.');
        return;
    case CLASS:
        qn_buf_printf(b, "[%s%c]", t->is_negated ? "^" : "", t->c);
        return;
    case CAT:
        print(t->a, b);
        print(t->b, b);
        return;
    case ALT:
        qn_buf_puts(b, "(");
        print(t->a, b);
        qn_buf_putc(b, '|');
        print(t->b, b);
        qn_buf_putc(b, ')');
        return;
    case BEGIN:
        qn_buf_putc(b, '^');
        return;
    case END:
        qn_buf_putc(b, '$');
        return;
    case EDGE:
        qn_buf_puts(b, t->is_negated ? "\\B" : "\\b");
        return;
    case AHEAD:
    case BEHIND:
        qn_buf_puts(b, t->kind == AHEAD ? t->is_negated ? "(?!" : "(?=" : t->is_negated ? "(?<!" : "(?<=");
        print(t->a, b);
        qn_buf_putc(b, ')');
        return;
    default:
        qn_buf_puts(b, "(?:");
        print(t->a, b);
        qn_buf_puts(b, ")");
        if (t->kind == COUNT)
            qn_buf_printf(b, "{%d,%d}", t->min, t->max);
        else
            qn_buf_putc(b, t->kind == STAR ? '*' : t->kind == PLUS ? '+' : '?');
    }
}

/* Sets of positions, bits of a word: from each position in `from`, where a match of t may end. */
typedef struct {
    const char *text;
    int n;
} subject;

static int is_word_char(const subject *s, int i)
{
    return i >= 0 && i < s->n && (s->text[i] == 'a' || s->text[i] == 'b' || s->text[i] == '_');
}

static uint32_t match(const subject *s, const tree *t, uint32_t from)
{
    uint32_t out = 0;
    switch (t->kind) {
    case CAT:
        return match(s, t->b, match(s, t->a, from));
    case ALT:
        return match(s, t->a, from) | match(s, t->b, from);
    case STAR:
    case PLUS:
    case OPT:
    case COUNT:
        for (int i = 0; i < t->min; i++) from = match(s, t->a, from);
        out = from;
        for (int i = t->min; t->max < 0 ? i < 40 : i < t->max; i++) out |= from = match(s, t->a, from);
        return out;
    default:
        break;
    }
    for (int i = 0; i <= s->n; i++) {
        if (!(from >> i & 1)) continue;
        int ok = 0;
        switch (t->kind) {
        case CHAR:
            ok = i < s->n && s->text[i] == t->c;
            break;
        case DOT:
            ok = i < s->n;
            break;
        case CLASS:
            ok = i < s->n && (s->text[i] == t->c) != t->is_negated;
            break;
        case BEGIN:
            ok = i == 0;
            break;
        case END:
            ok = i == s->n;
            break;
        case EDGE:
            ok = (is_word_char(s, i - 1) != is_word_char(s, i)) != t->is_negated;
            break;
        case AHEAD:
            ok = (match(s, t->a, 1u << i) != 0) != t->is_negated;
            break;
        case BEHIND:
            for (int j = 0; j <= i; j++) ok |= match(s, t->a, 1u << j) >> i & 1;
            ok = ok != t->is_negated;
            break;
        default:
            break;
        }
        if (ok) out |= 1u << (t->kind == CHAR || t->kind == DOT || t->kind == CLASS ? i + 1 : i);
    }
    return out;
}

static void test_random(void **state)
{
    static maker m;
    size_t n_refused = 0, n_accepted = 0, n_all = 0;
    for (uint64_t seed = 1; seed <= 6000; seed++) {
        memset(&m, 0, sizeof m);
        m.seed = seed;
        tree *t = make(&m, 4, 0, 1);
        qn_buf b = {0};
        print(t, &b);
        int whole = (int)draw(&m, 2);
        qn_dfa *d = NULL;
        qn_status st = qn_dfa_regex(b.data, b.length, whole ? QN_REGEX_WHOLE : 0, NULL, &d);
        if (st == QN_E_UNSUPPORTED) {
            n_refused++;
            qn_buf_free(&b);
            continue;
        }
        if (st != QN_OK) fail_msg("%s: %s", b.data, qn_last_error());
        for (int k = 0; k < 60; k++) {
            char text[10];
            int n = (int)draw(&m, 8);
            for (int i = 0; i < n; i++) text[i] = ALPHABET[draw(&m, 5)];
            subject s = {text, n};
            uint32_t ends = match(&s, t, whole ? 1 : (1u << (n + 1)) - 1);
            int want = whole ? (int)(ends >> n & 1) : ends != 0;
            n_accepted += (size_t)want;
            n_all++;
            if (qn_dfa_accepts(d, text, (size_t)n) != want)
                fail_msg("seed %d: /%s/ (whole %d) and \"%.*s\": expected %d", (int)seed, b.data, whole, n,
                         text, want);
        }
        qn_dfa_release(d);
        qn_buf_free(&b);
    }
    assert_true(n_refused < 300);
    assert_true(n_accepted > n_all / 10 && n_accepted < n_all * 9 / 10);
}

static void test_allocations(void **state)
{
    static const char *const patterns[] = {"^\\bab+(?!c)[\\w-]{2,4}(?<=x)\\p{L}$", "a|b|cde"};
    for (size_t i = 0; i < 2; i++) {
        int64_t blocks = qn_mem_live_blocks();
        for (int64_t n = 1; n < 2000; n++) {
            qn_dfa *d = NULL;
            qn_mem_fail_nth(n);
            qn_status s = qn_dfa_regex(patterns[i], strlen(patterns[i]), 0, NULL, &d);
            qn_mem_fail_nth(0);
            qn_dfa_release(d);
            assert_int_equal(qn_mem_live_blocks(), blocks);
            if (s == QN_OK) break;
            assert_int_equal(s, QN_E_NOMEM);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples), cmocka_unit_test(test_refusals),    cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_random),   cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
