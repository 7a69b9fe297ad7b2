/* Answers taken apart: what comes out when, at every cut, within bounds and without memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/random.h"
#include "tests/support/answer_text.h"
#include "text/tools/tool_calls.h"

static void test_without_tools_nothing_is_a_call(void **state)
{
    qn_answer_options o = qn_test_answer_options(qn_test_format_of("<tool_call></think>"), "<think>");
    o.tools = NULL;
    qn_test_expect_answer(&o, "a</think> <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
                          "think:a|<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>");
}

static void test_comes_out_as_soon_as_it_can(void **state)
{
    qn_answer_options o = qn_test_answer_options(qn_test_format_of("<tool_call>"), NULL);
    qn_answer *a = NULL;
    size_t n;
    assert_int_equal(qn_answer_new(&o, &a), QN_OK);
    assert_int_equal(qn_answer_feed(a, "Hello <to", 9), QN_OK);
    const qn_answer_event *e = qn_answer_get_events(a, &n);
    assert_int_equal(n, 1);
    assert_memory_equal(e[0].text, "Hello", 5);
    assert_int_equal(e[0].n, 5);
    assert_int_equal(qn_answer_feed(a, "p>", 2), QN_OK);
    e = qn_answer_get_events(a, &n);
    assert_memory_equal(e[0].text, " <top>", 6);
    assert_int_equal(qn_answer_feed(a, "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", 50),
                     QN_OK);
    e = qn_answer_get_events(a, &n);
    assert_int_equal(n, 3);
    assert_int_equal(qn_answer_count_calls(a), 1);
    assert_int_equal(qn_answer_count_malformed(a), 0);
    qn_answer_free(a);
}

static char *run_bounded(const char *head, const char *tail, uint64_t seed)
{
    qn_answer_options o = qn_test_answer_options(qn_test_format_of("<tool_call>"), NULL);
    qn_buf text = {0};
    o.limit_bytes = 500;
    qn_buf_puts(&text, head);
    for (int i = 0; i < 1000; i++) qn_buf_puts(&text, "<tool_call>");
    qn_buf_puts(&text, tail);
    char *got = qn_test_answer(&o, text.data, text.length, seed);
    qn_buf_free(&text);
    return got;
}

/* Arguments that leave as they come need no memory; those that wait for a name do. */
static void test_memory_is_bounded(void **state)
{
    for (uint64_t seed = 0; seed < 5; seed++) {
        char *got =
            run_bounded("<tool_call>{\"arguments\": {\"a\": \"", "\"}, \"name\": \"f\"}</tool_call>", seed);
        char *whole =
            run_bounded("<tool_call>{\"arguments\": {\"a\": \"", "\"}, \"name\": \"f\"}</tool_call>", 0);
        assert_string_equal(got, whole);
        assert_non_null(strstr(got, "bad:"));
        assert_null(strstr(got, "call 0"));
        qn_free(got);
        qn_free(whole);
        got = run_bounded("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"", "\"}}</tool_call>", seed);
        assert_int_equal(strlen(got), strlen("call 0 f  {\"a\": \"\"}") + 11000);
        assert_null(strstr(got, "bad:"));
        qn_free(got);
    }
}

/* ---- random answers ---- */

/* Pieces of marks, calls and text in any order: no cut of them may matter, and without calls nothing but
 * white space may be lost. */
static void test_random(void **state)
{
    static const char *const evidence[] = {"<tool_call></think>",
                                           "<tool_call><function=",
                                           "<tool_call><arg_key>",
                                           "[TOOL_CALLS]",
                                           ">>>all",
                                           "<|start_header_id|> \"parameters\":",
                                           "<|channel|>commentary functions.",
                                           "<|tool_call><tool_call|>",
                                           "<function name=\" <param name=\"",
                                           "<｜tool▁calls▁begin｜>",
                                           "<|tool_call_start|>",
                                           "<function_calls>",
                                           "[func_name1("};
    static const char *const pieces[] = {
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"\\\"<tool_call>\"}}</tool_call>",
        "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}]",
        "<tool_call><function=f><parameter=a>[1]</parameter></function></tool_call>",
        "<tool_call>f<arg_key>k</arg_key><arg_value>1</arg_value></tool_call>",
        "<|start|>assistant to=functions.f<|message|>{}<|call|>",
        ">>>f\n{}",
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "{\"name\": \"f\", \"arguments\": {\"a\": \"",
        "\"}}",
        "{\"name\": \"f\", \"parameters\": {}}",
        " ",
        "\n",
        "text",
        "\"",
        "<",
        "{",
        "}",
        "[",
        "]",
        "<function=f>",
        "</function>",
        "<parameter=a>",
        "</parameter>",
        "f",
        "<arg_key>k</arg_key>",
        "<arg_value>1</arg_value>",
        "[TOOL_CALLS]",
        ">>>",
        ">>>f\n",
        "<|start|>",
        "<|message|>",
        "<|call|>",
        "<|channel|>commentary to=functions.f<|message|>",
        "<|tool_call>call:f{a:",
        "1}<tool_call|>",
        "<function name=\"f\">",
        "<param name=\"a\">1</param>",
        "\\",
        "\xc3\xa9",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
        "<|tool_call_start|>[",
        "]<|tool_call_end|>",
        "<function_calls>",
        "</function_calls>",
        "look(",
        "look(city='x', days=[1, {'a': \"b\"}])",
        "city=",
        "days=1",
        "'",
        "'''",
        ")",
        ", ",
        ";"};
    enum { N_PIECES = sizeof pieces / sizeof *pieces, N_EVIDENCE = sizeof evidence / sizeof *evidence };
    int64_t n_calls = 0, n_bad = 0;
    for (uint64_t round = 1; round <= 5200; round++) {
        qn_buf text = {0};
        size_t n = qn_random_bits(round, 0) % 24;
        for (size_t i = 0; i < n; i++) qn_buf_puts(&text, pieces[qn_random_bits(round, i + 1) % N_PIECES]);
        if (!text.data) qn_buf_puts(&text, "");
        qn_answer_options o = qn_test_answer_options(qn_test_format_of(evidence[round % N_EVIDENCE]), "x");
        if (round % 5 == 0) o.limit_bytes = 40;
        char *want = qn_test_answer(&o, text.data, text.length, 0);
        for (uint64_t seed = 1; seed < 8; seed++) {
            char *got = qn_test_answer(&o, text.data, text.length, seed + round);
            assert_string_equal(got, want);
            qn_free(got);
        }
        n_calls += strstr(want, "call 0 ") != NULL;
        n_bad += strstr(want, "bad:") != NULL;
        qn_free(want);
        qn_buf_free(&text);
    }
    assert_true(n_calls > 100 && n_bad > 100);
}

/* Arguments leave before their call is whole. */
static void test_arguments_come_as_they_are_written(void **state)
{
    static const struct {
        const char *evidence, *begin, *want;
    } rows[] = {
        {"<tool_call>", "<tool_call>{\"name\": \"look\", \"arguments\": {\"city\": \"Ro", "{\"city\": \"Ro"},
        {"<tool_call>", "<tool_call>{\"name\": \"look\", \"arguments\": \"{\\\"city\\\": \\\"Ro",
         "{\"city\": \"Ro"},
        {"[TOOL_CALLS]", "[TOOL_CALLS][{\"name\": \"look\", \"arguments\": {\"n\": 1", "{\"n\": 1"},
        {"<|start_header_id|> \"parameters\":", "{\"name\": \"look\", \"parameters\": {\"city\": \"Ro",
         "{\"city\": \"Ro"},
        {"<tool_call><function=", "<tool_call><function=look><parameter=city>\nRo", "{\"city\": \"Ro"},
        {"<tool_call><function=", "<tool_call><function=look><parameter=days>3</parameter>", "{\"days\": 3"},
        {"<tool_call><arg_key>", "<tool_call>look<arg_key>city</arg_key><arg_value>Ro", "{\"city\": \"Ro"},
        {"<|tool_call><tool_call|>", "<|tool_call>call:look{city:<|\"|>Ro", "{\"city\": \"Ro"},
        {"<|tool_call_start|>", "<|tool_call_start|>[look(city='Ro", "{\"city\": \"Ro"},
        {"<function_calls>", "<function_calls>\nlook(days=3, city=\"\"\"Ro", "{\"days\": 3, \"city\": \"Ro"},
        {"[func_name1(", "[look(city=[{'a': 'Ro", "{\"city\": [{\"a\": \"Ro"},
        {"<|tools_prefix|>", "<|tools_prefix|>[{\"look\": {\"city\": \"Ro", "{\"city\": \"Ro"},
        {"<|tool_calls_section_begin|>",
         "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{\"a\"",
         "{\"a\""},
        {"<｜tool▁calls▁begin｜>",
         "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n{\"a\"", "{\"a\""},
        {"<|channel|>commentary functions.",
         "<|start|>assistant<|channel|>commentary to=functions.look<|message|>{\"a\"", "{\"a\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        qn_answer_options o = qn_test_answer_options(qn_test_format_of(rows[i].evidence), "x");
        qn_answer *a = NULL;
        qn_buf got = {0};
        size_t n;
        assert_int_equal(qn_answer_new(&o, &a), QN_OK);
        assert_int_equal(qn_answer_feed(a, rows[i].begin, strlen(rows[i].begin)), QN_OK);
        const qn_answer_event *e = qn_answer_get_events(a, &n);
        assert_int_equal(n, 2);
        assert_int_equal(e[0].kind, QN_ANSWER_CALL_BEGIN);
        assert_string_equal(e[0].text, "look");
        assert_int_equal(e[1].kind, QN_ANSWER_CALL_ARGUMENTS);
        qn_buf_append(&got, e[1].text, e[1].n);
        assert_string_equal(got.data, rows[i].want);
        qn_buf_free(&got);
        qn_answer_free(a);
    }
}

/* ---- memory ---- */

static void run_out_of_memory(const char *evidence, const char *text)
{
    qn_answer_options o = qn_test_answer_options(qn_test_format_of(evidence), "x");
    for (uint64_t nth = 1; nth < 2000; nth++) {
        int64_t blocks = qn_mem_live_blocks();
        qn_answer *a = NULL;
        qn_mem_fail_nth(nth);
        qn_status status = qn_answer_new(&o, &a);
        if (status == QN_OK) status = qn_answer_feed(a, text, 30);
        if (status == QN_OK) status = qn_answer_feed(a, text + 30, strlen(text) - 30);
        if (status == QN_OK) status = qn_answer_finish(a);
        qn_mem_fail_nth(0);
        qn_answer_free(a);
        assert_int_equal(qn_mem_live_blocks(), blocks);
        if (status == QN_OK) return;
        assert_int_equal(status, QN_E_NOMEM);
    }
    fail();
}

static void test_runs_out_of_memory(void **state)
{
    (void)state;
    run_out_of_memory("<tool_call><function=</think>",
                      "<think>Hm.</think>So:<tool_call><function=look><parameter=city>\nx\n</parameter>\n"
                      "<parameter=b>{'a': 1}</parameter></function></tool_call><tool_call>{</tool_call>");
    run_out_of_memory(
        "<|tool_call_start|></think>",
        "<think>Hm.</think>So:<|tool_call_start|>[look(city='it's \\n \\d', b={'a': [1, None]}), "
        "f()]<|tool_call_end|><|tool_call_start|>[f(</tool_call>");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_tools_nothing_is_a_call),
        cmocka_unit_test(test_comes_out_as_soon_as_it_can),
        cmocka_unit_test(test_memory_is_bounded),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_arguments_come_as_they_are_written),
        cmocka_unit_test(test_runs_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
