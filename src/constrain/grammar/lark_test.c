#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "constrain/grammar/grammar.h"
#include "constrain/grammar/run.h"

/* Texts behind "+" are of the language, those behind "-" are not. */
static void expect(const char *grammar, const char *const *texts)
{
    qn_grammar *g = NULL;
    qn_grammar_run *r = NULL;
    if (qn_grammar_lark(grammar, strlen(grammar), NULL, &g) != QN_OK)
        fail_msg("%s\n%s", qn_last_error(), grammar);
    assert_int_equal(qn_grammar_run_new(g, NULL, &r), QN_OK);
    for (; *texts; texts++) {
        uint32_t s = qn_grammar_run_start(r);
        for (const char *p = *texts + 1; *p && s; p++)
            assert_int_equal(qn_grammar_run_step(r, s, (uint8_t)*p, &s), QN_OK);
        if (qn_grammar_run_may_end(r, s) != (**texts == '+'))
            fail_msg("%s\nand \"%s\": expected %c", grammar, *texts + 1, **texts);
    }
    qn_grammar_run_free(r);
    qn_grammar_release(g);
}
#define EXPECT(grammar, ...) expect(grammar, (const char *const[]){__VA_ARGS__, NULL})

static const char CALC[] = "// arithmetic\n"
                           "?start: sum\n"
                           "?sum: product\n"
                           "    | sum \"+\" product   -> add\n"
                           "    | sum \"-\" product   -> sub\n"
                           "\n"
                           "?product: atom\n"
                           "    | product \"*\" atom  -> mul\n"
                           "    | product \"/\" atom  -> div\n"
                           "?atom: NUMBER           -> number\n"
                           "     | \"-\" atom         -> neg\n"
                           "     | \"(\" sum \")\"\n"
                           "%import common.NUMBER\n"
                           "%import common.WS_INLINE\n"
                           "%ignore WS_INLINE # anywhere\n";

static void test_language(void **state)
{
    EXPECT(CALC, "+1+2*3", "+ ( 1.5 - -2 ) / 3 ", "-1+", "-(1", "-1 2 +", "-1\n+2");
    EXPECT("start: (\"a\" | B)~2..3 [C]\nB: \"b\"i\nC: /c+/i\n", "+aB", "+bbbCc", "-a", "-aaaa", "-aac c");
    EXPECT("start: \"x\"~3 y{1,2}\ny: \"0\"..\"9\"", "+xxx1", "+xxx12", "-xx1", "-xxx123");
    EXPECT("start: pair (\",\" pair)*\npair: KEY \"=\" VALUE\nKEY.2: /[a-z]+/\nVALUE: /[^,\\/]*/ | "
           "ESCAPED_STRING\n"
           "%import common (ESCAPED_STRING, WS)\n%ignore WS",
           "+a=1, b = 2", "+a=\"x\\\"y\"", "-a", "-a=/");
    EXPECT("start: A+\n_A2: \"x\"\nA: _A2 \"y\"?\n%ignore \" \"", "+xyx", "+ x xy", "-x y", "-", "-y");
    EXPECT("start: (\n  \"a\"\n  | \"b\"\n)+\n", "+ab", "-c");
    EXPECT(
        "start: object\nobject: \"{\" [member (\",\" member)*] \"}\"\nmember: STRING \":\" (object | INT)\n"
        "%import common.ESCAPED_STRING -> STRING\n%import common.INT\n%ignore /\\s+/\n%ignore /#[^\\n]*\\n/",
        "+{\"a\": {\"b\" : 1}, # note\n\"c\":2}", "-{\"a\"}", "-{\"a\":1,}");
    EXPECT("start: \"\\u00e9\\n\" | /(?=[a-z])[^aeiou]/s", "+\xc3\xa9\n", "+b", "-a");
}

static void test_refusals(void **state)
{
    static const struct {
        const char *grammar;
        qn_status status;
        const char *part;
    } cases[] = {
        {"", QN_E_FORMAT, "start"},
        {"start: a", QN_E_FORMAT, "line 1, column 8"},
        {"start: \"a\nb: \"c\"", QN_E_FORMAT, "line 1, column 8: the text"},
        {"start: (\"a\"", QN_E_FORMAT, "bracket"},
        {"start: \"a\")", QN_E_FORMAT, "bracket"},
        {"start: \"a\"\n\nx = 1", QN_E_FORMAT, "line 3, column 3"},
        {"start: A\nA: b\nb: \"x\"", QN_E_FORMAT, "line 2, column 4"},
        {"start: /a(/", QN_E_FORMAT, "line 1, column 8"},
        {"start: /a", QN_E_FORMAT, "closed"},
        {"start: /a/x", QN_E_UNSUPPORTED, "flags"},
        {"start: /(a)\\1/", QN_E_UNSUPPORTED, "back references"},
        {"start: \"ab\"..\"z\"", QN_E_FORMAT, "range"},
        {"start: \"a\"~", QN_E_FORMAT, "count"},
        {"start: \"a\"~3..2", QN_E_FORMAT, "count"},
        {"start: \"a\"\nstart: \"b\"", QN_E_FORMAT, "before"},
        {"start: x{\"a\"}\nx{y}: y", QN_E_UNSUPPORTED, "template"},
        {"start[capture]: \"a\"", QN_E_UNSUPPORTED, "attribute"},
        {"start: <|end|>", QN_E_UNSUPPORTED, "special tokens"},
        {"start: %json {}", QN_E_UNSUPPORTED, "%json"},
        {"%declare X\nstart: X", QN_E_UNSUPPORTED, "directives"},
        {"%import python.NAME\nstart: NAME", QN_E_UNSUPPORTED, "common"},
        {"%import common.NOTHING\nstart: NOTHING", QN_E_UNSUPPORTED, "common"},
        {"start: \"a\" start", QN_E_FORMAT, "never ends"},
        {"start: \"\\q\"", QN_E_FORMAT, "escape"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_grammar *g = NULL;
        qn_status s = qn_grammar_lark(cases[i].grammar, strlen(cases[i].grammar), NULL, &g);
        if (s != cases[i].status)
            fail_msg("%s: %s: %s", cases[i].grammar, qn_status_name(s), qn_last_error());
        if (!strstr(qn_last_error(), cases[i].part)) fail_msg("%s: %s", cases[i].grammar, qn_last_error());
        assert_null(g);
    }
}

static void test_allocations(void **state)
{
    int64_t blocks = qn_mem_live_blocks();
    for (int64_t n = 1; n < 2000; n++) {
        qn_grammar *g = NULL;
        qn_mem_fail_nth(n);
        qn_status s = qn_grammar_lark(CALC, strlen(CALC), NULL, &g);
        qn_mem_fail_nth(0);
        qn_grammar_release(g);
        assert_int_equal(qn_mem_live_blocks(), blocks);
        if (s == QN_OK) break;
        assert_int_equal(s, QN_E_NOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_language),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
