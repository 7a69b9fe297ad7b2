/* JSON byte by byte, against jansson. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/buf.h"
#include "base/json/json_steps.h"
#include "base/random.h"

static int is_json_by_steps(const char *text, size_t n)
{
    qn_json_steps s = {0};
    qn_json_step_result result = QN_JSON_MORE;
    size_t i = 0;
    while (i < n && result == QN_JSON_MORE) result = qn_json_step(&s, text[i++]);
    if (result == QN_JSON_MORE) return qn_json_step(&s, ' ') == QN_JSON_PAST;
    if (result == QN_JSON_PAST) i--;
    while (i < n && strchr(" \t\r\n", text[i]) && text[i]) i++;
    return i == n && result != QN_JSON_BAD;
}

static void test_json_steps(void **state)
{
    static const char *const pieces[] = {
        "{",           "}",           "[",           "]",       ",",
        ":",           "\"a\"",       "\"b\"",       "\"\\n\"", "\"\\ud83d\\ude00\"",
        "\"\\ud83d\"", "\"\\ude00\"", "\"\\u00E9\"", "\"\\x\"", "true",
        "false",       "null",        "nul",         "0",       "-1",
        "01",          "1.5",         "1.",          "2e+3",    "2e",
        "-",           " ",           "\n",          "\"",      "\\",
        "\xc3\xa9"};
    enum { N = sizeof pieces / sizeof *pieces };
    int n_good = 0;
    for (uint64_t round = 1; round <= 200000; round++) {
        qn_buf b = {0};
        size_t n = qn_random_bits(round, 0) % 8 + 1;
        for (size_t i = 0; i < n; i++) qn_buf_puts(&b, pieces[qn_random_bits(round, i + 1) % N]);
        const char *text = b.data;
        json_error_t error;
        json_t *json = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
        int is_too_large = !json && json_error_code(&error) == json_error_numeric_overflow;
        if (!is_too_large && !!json != is_json_by_steps(text, b.length))
            fail_msg("%s: %s", text, json ? "JSON" : error.text);
        n_good += json != NULL;
        json_decref(json);
        qn_buf_free(&b);
    }
    assert_true(n_good > 1000);
    char deep[2 * QN_JSON_DEPTH_MAX + 3];
    for (int depth = QN_JSON_DEPTH_MAX; depth <= QN_JSON_DEPTH_MAX + 1; depth++) {
        memset(deep, '[', (size_t)depth);
        memset(deep + depth, ']', (size_t)depth);
        assert_int_equal(is_json_by_steps(deep, 2 * (size_t)depth), depth <= QN_JSON_DEPTH_MAX);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
