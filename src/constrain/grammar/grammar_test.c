#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/random.h"
#include "constrain/grammar/grammar.h"
#include "constrain/grammar/run.h"

typedef qn_status front(const char *text, size_t n, const qn_grammar_limits *limits, qn_grammar **out);

static qn_grammar *read_grammar(front *f, const char *text)
{
    qn_grammar *g = NULL;
    if (f(text, strlen(text), NULL, &g) != QN_OK) fail_msg("%s\n%s", qn_last_error(), text);
    return g;
}

static int accepts(qn_grammar_run *r, const char *text, size_t n)
{
    uint32_t s = qn_grammar_run_start(r);
    for (size_t i = 0; i < n && s; i++) {
        if (qn_grammar_run_step(r, s, (uint8_t)text[i], &s) != QN_OK) fail_msg("%s", qn_last_error());
    }
    return qn_grammar_run_may_end(r, s);
}

/* Texts behind "+" are of the language, those behind "-" are not. */
static void expect(front *f, const char *grammar, const char *const *texts)
{
    qn_grammar *g = read_grammar(f, grammar);
    qn_grammar_run *r = NULL;
    assert_int_equal(qn_grammar_run_new(g, NULL, &r), QN_OK);
    for (; *texts; texts++) {
        if (accepts(r, *texts + 1, strlen(*texts + 1)) != (**texts == '+'))
            fail_msg("%s\nand \"%s\": expected %c", grammar, *texts + 1, **texts);
    }
    qn_grammar_run_free(r);
    qn_grammar_release(g);
}
#define EXPECT(f, grammar, ...) expect(f, grammar, (const char *const[]){__VA_ARGS__, NULL})

static const char JSON[] =
    "# any JSON value\n"
    "root   ::= object\n"
    "value  ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n"
    "object ::= \"{\" ws (\n"
    "            string \":\" ws value\n"
    "    (\",\" ws string \":\" ws value)*\n"
    "  )? \"}\" ws\n"
    "array  ::= \"[\" ws ( value (\",\" ws value)* )? \"]\" ws\n"
    "string ::= \"\\\"\" ( [^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4}) )* "
    "\"\\\"\" ws\n"
    "number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws\n"
    "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n";

static void test_gbnf(void **state)
{
    EXPECT(qn_grammar_gbnf, JSON, "+{}", "+{\"a\": [1, 2.5e7, {\"b\": null}], \"c\":\"\\u00e9\xc3\xa9\"}",
           "-{\"a\" 1}", "-[1]", "-{\"a\":[1,]}", "-{\"a\":[1}", "-{");
    EXPECT(qn_grammar_gbnf, "root ::= \"a\" | \"b\" root", "+a", "+bba", "-b", "-");
    EXPECT(qn_grammar_gbnf, "root ::= [a-c\\]^-]+ \"\\x41\\u00e9\\U0001F600\\n\\\"\"",
           "+a^]-cA\xc3\xa9\xf0\x9f\x98\x80\n\"", "-d");
    EXPECT(qn_grammar_gbnf, "root ::= a{2} b{1,2} c{0,} # end\na ::= \"a\"\nb ::= \"b\"\n\nc ::= \"c\"",
           "+aab", "+aabbccc", "-ab", "-aabbb");
    EXPECT(qn_grammar_gbnf, "root ::= .. \"!\"", "+\xc3\xa9\n!", "-a!");
    EXPECT(qn_grammar_gbnf,
           "root ::= expr\nexpr ::= expr [-+] term | term\nterm ::= [0-9]+ | \"(\" expr \")\"", "+1+2-3",
           "+(1+(2))", "-1+", "-(1", "-1)");
    EXPECT(qn_grammar_gbnf, "root ::= (\"a\" root \"b\")?", "+", "+ab", "+aaabbb", "-aab", "-abb");
    EXPECT(qn_grammar_gbnf, "root ::= x x\nx ::= \"\" | \"a\" y\ny ::= x", "+", "+aaa");
}

static void test_ebnf(void **state)
{
    EXPECT(qn_grammar_ebnf, "root ::= greet_ing \" \" ('x' | \"y\\t\")\ngreet_ing ::= \"hi\" | \"bye\"",
           "+hi x", "+bye y\t", "-hi");
    EXPECT(qn_grammar_ebnf, "root ::= a.b+\na.b ::= \"1\"", "+111", "-");
}

static void test_regular(void **state)
{
    static const char *const regular[] = {
        "root ::= \"x\" list\nlist ::= item | item \",\" list\nitem ::= [a-z]+",
        "root ::= list \"x\"\nlist ::= item | list \",\" item\nitem ::= [a-z]+",
        "root ::= (\"a\" | \"b\" c)* c\nc ::= \"c\"{2,3}",
        "root ::= \"\"",
    };
    for (size_t i = 0; i < sizeof regular / sizeof *regular; i++) {
        qn_grammar *g = read_grammar(qn_grammar_gbnf, regular[i]);
        assert_int_equal(g->n_rules, 1);
        assert_true(g->n_terminals <= 1 && g->n_productions == 1);
        qn_grammar_release(g);
    }
    EXPECT(qn_grammar_gbnf, regular[0], "+xa", "+xa,b", "-x", "-xa,");
    EXPECT(qn_grammar_gbnf, regular[1], "+ax", "+a,bx", "-x", "-,ax");
    qn_grammar *g = read_grammar(qn_grammar_gbnf,
                                 "root ::= a | b\na ::= \"x\" a\nb ::= \"y\" b \"z\" | \"w\"\nc ::= \"q\"");
    for (int32_t i = 0; i < g->n_productions; i++) assert_true(g->productions[i].n_symbols > 0);
    assert_true(g->n_rules <= 2); /* a never ends, c is not used */
    qn_grammar_release(g);
}

/* An automaton that would be too large is taken apart. */
static void test_too_large_together(void **state)
{
    EXPECT(qn_grammar_gbnf, "root ::= .* \"a\" .{20}", "+xxa01234567890123456789",
           "-xxb01234567890123456789");
    EXPECT(qn_grammar_gbnf, "root ::= x | \"(\" root \")\"\nx ::= .* \"a\" .{20} \"!\"",
           "+((a01234567890123456789!))", "-((b01234567890123456789!))");
}

/* What comes again and again needs no more states. */
static void test_states_stay_few(void **state)
{
    qn_grammar *g = read_grammar(qn_grammar_gbnf, JSON);
    qn_grammar_run *r = NULL;
    assert_int_equal(qn_grammar_run_new(g, NULL, &r), QN_OK);
    uint32_t s = qn_grammar_run_start(r), n = 0;
    static const char round[] = "{\"k\":[1,\"x\",{\"a\":true}]},";
    const char *begin = "{\"list\":[";
    for (; *begin; begin++) assert_int_equal(qn_grammar_run_step(r, s, (uint8_t)*begin, &s), QN_OK);
    for (int i = 0; i < 1000; i++) {
        for (const char *p = round; *p; p++)
            assert_int_equal(qn_grammar_run_step(r, s, (uint8_t)*p, &s), QN_OK);
        assert_int_not_equal(s, 0);
        if (i == 2) n = qn_grammar_run_states(r);
    }
    assert_int_equal(qn_grammar_run_states(r), n);
    uint32_t kept = s, *keep[] = {&kept};
    assert_int_equal(qn_grammar_run_sweep(r, keep, 1), QN_OK);
    assert_true(qn_grammar_run_states(r) < n);
    for (const char *p = "1]}"; *p; p++)
        assert_int_equal(qn_grammar_run_step(r, kept, (uint8_t)*p, &kept), QN_OK);
    assert_true(qn_grammar_run_may_end(r, kept));
    assert_true(accepts(r, "{\"a\":[]}", 8));
    qn_grammar_run_free(r);
    qn_grammar_release(g);
}

static void refuse(front *f, const char *grammar, qn_status status, const char *part)
{
    qn_grammar *g = NULL;
    qn_status s = f(grammar, strlen(grammar), NULL, &g);
    if (s != status) fail_msg("%s: %s", grammar, qn_status_name(s));
    if (!strstr(qn_last_error(), part)) fail_msg("%s: %s", grammar, qn_last_error());
    assert_null(g);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *grammar;
        qn_status status;
        const char *part;
    } cases[] = {
        {"", QN_E_FORMAT, "root"},
        {"a ::= \"x\"", QN_E_FORMAT, "root"},
        {"root ::= a", QN_E_FORMAT, "line 1, column 10"},
        {"root ::= \"a\"\n  | \"b", QN_E_FORMAT, "line 2, column 5"},
        {"root ::= [a", QN_E_FORMAT, "class"},
        {"root ::= [z-a]", QN_E_FORMAT, "range"},
        {"root ::= (\"a\"", QN_E_FORMAT, "bracket"},
        {"root ::= \"a\")", QN_E_FORMAT, "bracket"},
        {"root ::= * \"a\"", QN_E_FORMAT, "column 10"},
        {"root ::= \"a\"{3,2}", QN_E_FORMAT, "count"},
        {"root ::= \"a\"{x}", QN_E_FORMAT, "count"},
        {"root ::= \"\\q\"", QN_E_FORMAT, "escape"},
        {"root ::= \"\\ud800\"", QN_E_FORMAT, "escape"},
        {"root = \"a\"", QN_E_FORMAT, "::="},
        {"root ::= \"a\"\nroot ::= \"b\"", QN_E_FORMAT, "line 2, column 1"},
        {"root ::= \"a\" root", QN_E_FORMAT, "never ends"},
        {"root ::= <[1234]>", QN_E_UNSUPPORTED, "token"},
        {"root ::= !<think>", QN_E_UNSUPPORTED, "token"},
        {"root ::= \"a\xff\"", QN_E_FORMAT, "UTF-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuse(qn_grammar_gbnf, cases[i].grammar, cases[i].status, cases[i].part);
    refuse(qn_grammar_ebnf, "root ::= \"a\" (= \"b\")", QN_E_UNSUPPORTED, "look-ahead");
    refuse(qn_grammar_ebnf, "root ::= TagDispatch(\"a\")", QN_E_UNSUPPORTED, "TagDispatch");
}

/* J1 and J2 of the list of attacks. */
static void test_hostile(void **state)
{
    qn_buf b = {0};
    qn_grammar *g = NULL;
    qn_buf_puts(&b, "root ::= ");
    for (int i = 0; i < 5000; i++) qn_buf_putc(&b, '(');
    assert_int_equal(qn_grammar_gbnf(b.data, b.length, NULL, &g), QN_E_UNSUPPORTED);
    qn_buf_reset(&b);
    qn_buf_puts(&b, "root ::= \"a\"");
    for (int i = 0; i < 5000; i++) qn_buf_putc(&b, '*');
    assert_int_equal(qn_grammar_gbnf(b.data, b.length, NULL, &g), QN_E_FORMAT);
    qn_buf_reset(&b);
    for (int i = 0; i < 6000; i++) qn_buf_printf(&b, "r%d ::= \"a\"\n", i);
    assert_int_equal(qn_grammar_gbnf(b.data, b.length, NULL, &g), QN_E_UNSUPPORTED);
    qn_buf_reset(&b);
    for (int i = 0; i < 70000; i++) qn_buf_putc(&b, ' ');
    assert_int_equal(qn_grammar_gbnf(b.data, b.length, NULL, &g), QN_E_UNSUPPORTED);
    qn_buf_reset(&b);
    static const char *const large[] = {
        "root ::= \"a\"{100000000}",
    };
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        qn_status s = qn_grammar_gbnf(large[i], strlen(large[i]), NULL, &g);
        if (s != QN_E_UNSUPPORTED) fail_msg("%s: %s", large[i], qn_status_name(s));
    }
    /* As ambiguous as can be. */
    g = read_grammar(qn_grammar_gbnf, "root ::= root root | root root root | \"a\" | \"\"");
    qn_grammar_run *r = NULL;
    assert_int_equal(qn_grammar_run_new(g, NULL, &r), QN_OK);
    uint32_t s = qn_grammar_run_start(r);
    qn_status st = QN_OK;
    int n_taken = 0;
    for (; n_taken < 5000 && st == QN_OK; n_taken++) st = qn_grammar_run_step(r, s, 'a', &s);
    assert_true(n_taken > 20);
    assert_int_equal(st, QN_E_FULL);
    assert_non_null(strstr(qn_last_error(), "ambiguous"));
    assert_true(qn_grammar_run_may_end(r, s));
    qn_grammar_run_free(r);
    qn_grammar_run_limits few = {.states_max = 20};
    qn_grammar_release(g);
    g = read_grammar(qn_grammar_gbnf, "root ::= \"(\" root \")\" | \"\"");
    assert_int_equal(qn_grammar_run_new(g, &few, &r), QN_OK);
    s = qn_grammar_run_start(r);
    st = QN_OK;
    for (int i = 0; i < 100 && st == QN_OK; i++) st = qn_grammar_run_step(r, s, '(', &s);
    assert_int_equal(st, QN_E_FULL);
    assert_int_equal(qn_grammar_run_step(r, s, ')', &s), QN_E_FULL); /* once more, and no harm is done */
    qn_grammar_run_free(r);
    qn_grammar_release(g);
    qn_buf_free(&b);
}

/* --- Random grammars beside a table of all spans --- */

enum { RULES_MAX = 4, TEXT_MAX = 8 };
typedef struct tree tree;
struct tree {
    enum { LETTER, RULE, CAT, ALT, REPEAT, NOTHING } kind;
    int what, min, max;
    tree *a, *b;
};

static tree nodes[300];
static size_t n_nodes;
static uint64_t seed_now, n_drawn;

static int draw(int below)
{
    return (int)(qn_random_bits(seed_now, n_drawn++) % (uint64_t)below);
}

static tree *make(int depth, int n_rules)
{
    tree *t = &nodes[n_nodes++];
    int r = draw(depth > 0 && n_nodes < 200 ? 12 : 5);
    *t = (tree){.kind = r < 3    ? LETTER
                        : r == 3 ? RULE
                        : r == 4 ? (draw(3) ? LETTER : NOTHING)
                        : r < 9  ? CAT
                        : r < 11 ? ALT
                                 : REPEAT};
    t->what = draw(t->kind == RULE ? n_rules : 3);
    if (t->kind == CAT || t->kind == ALT) t->b = make(depth - 1, n_rules);
    if (t->kind >= CAT && t->kind != NOTHING) t->a = make(depth - 1, n_rules);
    t->min = draw(3);
    t->max = draw(2) ? -1 : t->min + draw(2);
    return t;
}

static void print(const tree *t, qn_buf *b)
{
    switch (t->kind) {
    case LETTER:
        qn_buf_printf(b, "\"%c\" ", 'a' + t->what);
        return;
    case RULE:
        qn_buf_printf(b, t->what ? "r%d " : "root ", t->what);
        return;
    case NOTHING:
        qn_buf_puts(b, "\"\" ");
        return;
    case CAT:
        print(t->a, b);
        print(t->b, b);
        return;
    case ALT:
        qn_buf_puts(b, "(");
        print(t->a, b);
        qn_buf_puts(b, "| ");
        print(t->b, b);
        qn_buf_puts(b, ") ");
        return;
    case REPEAT:
        qn_buf_puts(b, "(");
        print(t->a, b);
        if (t->max < 0)
            qn_buf_printf(b, "){%d,} ", t->min);
        else
            qn_buf_printf(b, "){%d,%d} ", t->min, t->max);
    }
}

static uint32_t ends[RULES_MAX][TEXT_MAX + 1]; /* of each rule from each place, as bits */

static uint32_t match(const tree *t, uint32_t from, const char *text, int n)
{
    uint32_t out = 0;
    if (t->kind == NOTHING) return from;
    if (t->kind == CAT) return match(t->b, match(t->a, from, text, n), text, n);
    if (t->kind == ALT) return match(t->a, from, text, n) | match(t->b, from, text, n);
    if (t->kind == REPEAT) {
        for (int i = 0; i < t->min; i++) from = match(t->a, from, text, n);
        out = from;
        for (int i = t->min; t->max < 0 ? i < 20 : i < t->max; i++) out |= from = match(t->a, from, text, n);
        return out;
    }
    for (int i = 0; i <= n; i++) {
        if (!(from >> i & 1)) continue;
        if (t->kind == RULE)
            out |= ends[t->what][i];
        else if (i < n && text[i] == 'a' + t->what)
            out |= 1u << (i + 1);
    }
    return out;
}

static void test_random(void **state)
{
    size_t n_accepted = 0, n_all = 0, n_endless = 0, n_large = 0;
    for (seed_now = 1; seed_now <= 3000; seed_now++) {
        n_drawn = n_nodes = 0;
        int n_rules = 1 + draw(RULES_MAX);
        tree *rules[RULES_MAX];
        qn_buf b = {0};
        for (int i = 0; i < n_rules; i++) {
            rules[i] = make(3, n_rules);
            qn_buf_printf(&b, i ? "r%d ::= " : "root ::= ", i);
            print(rules[i], &b);
            qn_buf_putc(&b, '\n');
        }
        qn_grammar *g = NULL;
        qn_status st = qn_grammar_gbnf(b.data, b.length, NULL, &g);
        if (st == QN_E_FORMAT && strstr(qn_last_error(), "never ends")) {
            n_endless++;
            qn_buf_free(&b);
            continue;
        }
        if (st != QN_OK) fail_msg("%s\n%s", qn_last_error(), b.data);
        qn_grammar_run *r = NULL;
        assert_int_equal(qn_grammar_run_new(g, NULL, &r), QN_OK);
        n_large += g->n_rules > 1;
        for (int k = 0; k < 40; k++) {
            char text[TEXT_MAX + 1] = "";
            int n = draw(TEXT_MAX + 1);
            uint32_t at = qn_grammar_run_start(r);
            for (int i = 0; i < n; i++) { /* every other text goes on with what may come, if something may */
                for (int tries = 0, is_led = k & 1; tries < (is_led ? 10 : 1); tries++) {
                    uint32_t next = 0;
                    text[i] = (char)('a' + draw(3));
                    assert_int_equal(qn_grammar_run_step(r, at, (uint8_t)text[i], &next), QN_OK);
                    if (next || tries == 9 || !is_led) {
                        at = next;
                        break;
                    }
                }
            }
            memset(ends, 0, sizeof ends);
            for (int changed = 1; changed;) {
                changed = 0;
                for (int i = 0; i < n_rules; i++) {
                    for (int p = 0; p <= n; p++) {
                        uint32_t e = match(rules[i], 1u << p, text, n);
                        changed |= e != ends[i][p];
                        ends[i][p] = e;
                    }
                }
            }
            int want = ends[0][0] >> n & 1;
            n_accepted += (size_t)want;
            n_all++;
            if (accepts(r, text, (size_t)n) != want)
                fail_msg("seed %d: %s\nand \"%s\": expected %d", (int)seed_now, b.data, text, want);
        }
        /* From each state some text leads to an end: the nearest end is found by breadth. */
        if (seed_now % 10 == 0) {
            uint32_t queue[4000];
            size_t n_queue = 0;
            int found = 0;
            queue[n_queue++] = qn_grammar_run_start(r);
            for (int i = 0; i < 5; i++) {
                uint32_t next = 0;
                for (int c = 0; c < 3 && !next; c++) {
                    assert_int_equal(qn_grammar_run_step(r, queue[0], (uint8_t)('a' + (c + i) % 3), &next),
                                     QN_OK);
                }
                if (next) queue[0] = next;
            }
            for (size_t q = 0; q < n_queue && !found; q++) {
                found = qn_grammar_run_may_end(r, queue[q]);
                for (int c = 0; c < 3 && n_queue < 4000; c++) {
                    uint32_t next;
                    assert_int_equal(qn_grammar_run_step(r, queue[q], (uint8_t)('a' + c), &next), QN_OK);
                    size_t k = 0;
                    while (k < n_queue && queue[k] != next) k++;
                    if (next && k == n_queue) queue[n_queue++] = next;
                }
            }
            assert_true(found || n_queue == 4000);
        }
        qn_grammar_run_free(r);
        qn_grammar_release(g);
        qn_buf_free(&b);
    }
    assert_true(n_accepted > n_all / 10 && n_accepted < n_all * 9 / 10 && n_large > 300 && n_endless < 2000);
}

/* A step that fails leaves everything as it was: the same step succeeds afterwards, and finds the same. */
static void test_failed_steps(void **state)
{
    static const char grammar[] =
        "root ::= root \"+\" root | \"(\" root \")\" | x \"*\" root | [0-9]\nx ::= root | \"-\" x";
    static const char text[] = "(1+(-3*2)*4)+(((5))*6+7)";
    qn_grammar *g = read_grammar(qn_grammar_gbnf, grammar);
    for (int64_t n = 1; n < 60; n++) {
        qn_grammar_run *r = NULL, *plain = NULL;
        assert_int_equal(qn_grammar_run_new(g, NULL, &r), QN_OK);
        assert_int_equal(qn_grammar_run_new(g, NULL, &plain), QN_OK);
        uint32_t a = qn_grammar_run_start(r), b = qn_grammar_run_start(plain);
        for (const char *p = text; *p; p++) {
            qn_mem_fail_nth(n);
            qn_status s = qn_grammar_run_step(r, a, (uint8_t)*p, &a);
            qn_mem_fail_nth(0);
            if (s != QN_OK) s = qn_grammar_run_step(r, a, (uint8_t)*p, &a);
            assert_int_equal(s, QN_OK);
            assert_int_equal(qn_grammar_run_step(plain, b, (uint8_t)*p, &b), QN_OK);
            assert_int_equal(a, b);
        }
        assert_true(qn_grammar_run_may_end(r, a));
        qn_grammar_run_free(r);
        qn_grammar_run_free(plain);
    }
    qn_grammar_release(g);
}

static void test_allocations(void **state)
{
    int64_t blocks = qn_mem_live_blocks();
    for (int64_t n = 1; n < 2000; n++) {
        qn_grammar *g = NULL;
        qn_grammar_run *r = NULL;
        uint32_t s = 0;
        qn_mem_fail_nth(n);
        qn_status st = qn_grammar_gbnf(JSON, sizeof JSON - 1, NULL, &g);
        if (st == QN_OK) st = qn_grammar_run_new(g, NULL, &r);
        if (st == QN_OK) s = qn_grammar_run_start(r);
        for (const char *p = "{\"a\":[1,{\"b\":[2]}]}"; *p && st == QN_OK; p++)
            st = qn_grammar_run_step(r, s, (uint8_t)*p, &s);
        uint32_t *keep[] = {&s};
        if (st == QN_OK) st = qn_grammar_run_sweep(r, keep, 1);
        qn_mem_fail_nth(0);
        qn_grammar_run_free(r);
        qn_grammar_release(g);
        assert_int_equal(qn_mem_live_blocks(), blocks);
        if (st == QN_OK) break;
        assert_int_equal(st, QN_E_NOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gbnf),         cmocka_unit_test(test_ebnf),
        cmocka_unit_test(test_regular),      cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_random),       cmocka_unit_test(test_states_stay_few),
        cmocka_unit_test(test_hostile),      cmocka_unit_test(test_too_large_together),
        cmocka_unit_test(test_failed_steps), cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
