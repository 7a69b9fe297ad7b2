/* The pull parser's walk over strings: what ends or stops one is found at every place, since eight bytes are looked at
 * in one step; and the count of what is skipped. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <stdio.h>
#include <string.h>

#include "base/json/json_pull.h"

enum { PLACES = 24, TEXT = 64 };

/* A string of n letters, `what`, and some more letters. */
static size_t put(char *text, int n, const char *what)
{
    return (size_t)snprintf(text, TEXT, "\"%.*s%sxyz\"", n, "abcdefghijklmnopqrstuvwxyz", what);
}

static void test_every_place(void **state)
{
    static const struct {
        const char *what, *means, *says;
    } rows[] = {
        {"", "", NULL},
        {"\\n", "\n", NULL},
        {"\\\"", "\"", NULL},
        {"\\\\", "\\", NULL},
        {"\xc3\xa9", "\xc3\xa9", NULL},
        {"\x7f", "\x7f", NULL},
        {"\x1f", NULL, "control character"},
        {"\x01", NULL, "control character"},
        {"\xff", NULL, "invalid UTF-8"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int n = 0; n < PLACES; n++) {
            char text[TEXT], want[TEXT];
            const size_t length = put(text, n, rows[i].what);
            qn_json_pull p;
            qn_json_text s;
            qn_json_pull_init(&p, "x", text, length);
            qn_status status = qn_json_pull_string(&p, &s);
            if (rows[i].says) {
                assert_int_equal(status, QN_E_FORMAT);
                assert_non_null(strstr(qn_last_error(), rows[i].says));
            } else {
                const size_t m = put(want, n, rows[i].means) - 2;
                assert_int_equal(status, QN_OK);
                assert_int_equal(s.n, m);
                assert_memory_equal(s.data, want + 1, m);
                assert_int_equal(p.at, length);
            }
            qn_json_pull_free(&p);
            qn_json_pull_init(&p, "x", text, length);
            assert_int_equal(qn_json_pull_skip(&p, &s), QN_OK); /* only quotes and backslashes count there */
            assert_int_equal(s.n, length);
            qn_json_pull_init(&p, "x", text, length - 1);
            assert_int_equal(qn_json_pull_skip(&p, &s), QN_E_FORMAT);
            qn_json_pull_init(&p, "x", text, length - 1);
            assert_int_equal(qn_json_pull_string(&p, &s), QN_E_FORMAT);
            qn_json_pull_free(&p);
        }
}

static void test_counts(void **state)
{
    static const struct {
        const char *text;
        size_t count;
    } rows[] = {
        {"[1]", 1}, {"[1,2,[3,4],{\"a\":5,\"b\":6}]", 4}, {"{\"a,b\":1,\"c\":\",\"}", 2}, {"\"a,b\"", 1},
        {"12", 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        qn_json_pull p;
        qn_json_text s;
        size_t count = 0;
        qn_json_pull_init(&p, "x", rows[i].text, strlen(rows[i].text));
        assert_int_equal(qn_json_pull_skip_counted(&p, &s, &count), QN_OK);
        assert_int_equal(count, rows[i].count);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_place), cmocka_unit_test(test_counts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
