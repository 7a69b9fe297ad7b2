/* Texts that break off at every place: what comes out is JSON, and grows into the whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
/* cmocka wants these before it */
#include <cmocka.h>

#include "base/json/json.h"
#include "base/json/partial_json.h"
#include "base/mem.h"

static void expect(const char *text, size_t n, const char *want)
{
    qn_buf out = {0};
    qn_partial_json_close(text, n, &out);
    assert_int_equal(out.status, QN_OK);
    assert_string_equal(out.data, want);
    qn_buf_free(&out);
}

static void test_examples(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"", "{}"},
        {" ", "{}"},
        {"x", "{}"},
        {"\"a\"", "{}"},
        {"{", "{}"},
        {" {\"a\"", " {}"},
        {"{\"a\":", "{}"},
        {"{\"a\": tru", "{}"},
        {"{\"a\": true", "{\"a\": true}"},
        {"{\"a\": 1", "{}"},
        {"{\"a\": 1,", "{\"a\": 1}"},
        {"{\"a\": 1, \"b\": \"x", "{\"a\": 1}"},
        {"{\"a\": 1, \"b\": \"x\\\"", "{\"a\": 1}"},
        {"{\"a\": 1, \"b\": \"x\\\"\"", "{\"a\": 1, \"b\": \"x\\\"\"}"},
        {"{\"a\": [1, {\"b\": [", "{\"a\": [1, {\"b\": []}]}"},
        {"{\"a\": [1, {\"b\": [2, 3", "{\"a\": [1, {\"b\": [2]}]}"},
        {"{\"a\": {\"b\": null", "{\"a\": {\"b\": null}}"},
        {"{\"a\": \"}\"}", "{\"a\": \"}\"}"},
        {"{\"a\": 1} more", "{\"a\": 1}"},
        {"{\"a\": 1]", "{\"a\": 1}"},
        {"[1, 2", "[1]"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect(cases[i].text, strlen(cases[i].text), cases[i].want);
}

static void test_every_end(void **state)
{
    static const char text[] = "{\"city\": \"Z\\u00fcrich\", \"days\": [1, 2.5, -3e4], \"at\": {\"x\": null, "
                               "\"y\": {}, \"z\": [[]]}, "
                               "\"ok\": true, \"none\": false}";
    json_t *value = NULL, *whole = NULL;
    (void)state;
    assert_int_equal(qn_json_parse("text", text, strlen(text), &whole), QN_OK);
    for (size_t n = 1; n <= strlen(text); n++) {
        qn_buf out = {0};
        qn_partial_json_close(text, n, &out);
        if (qn_json_parse("text", out.data, out.length, &value) != QN_OK) fail_msg("%s", out.data);
        assert_true(json_is_object(value));
        if (n == strlen(text)) assert_true(json_equal(value, whole));
        json_decref(value);
        qn_buf_free(&out);
    }
    json_decref(whole);
}

static void test_depth(void **state)
{
    char text[QN_PARTIAL_JSON_DEPTH_MAX + 2];
    qn_buf out = {0};
    (void)state;
    memset(text, '[', sizeof text);
    qn_partial_json_close(text, sizeof text, &out);
    assert_int_equal(out.length, 2 * QN_PARTIAL_JSON_DEPTH_MAX);
    qn_buf_free(&out);
}

static void test_memory_runs_out(void **state)
{
    static const char text[] = "{\"a\": [1, 2";
    const int64_t live = qn_mem_live_blocks();
    int done = 0;
    (void)state;
    for (int64_t nth = 1; !done && nth < 100; nth++) {
        qn_buf out = {0};
        qn_mem_fail_nth(nth);
        qn_partial_json_close(text, strlen(text), &out);
        qn_mem_fail_nth(0);
        done = out.status == QN_OK;
        qn_buf_free(&out);
        assert_int_equal(qn_mem_live_blocks(), live);
    }
    assert_true(done);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples),
        cmocka_unit_test(test_every_end),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
