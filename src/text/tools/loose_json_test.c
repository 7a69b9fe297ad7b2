/* Values that are nearly JSON. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "text/tools/loose_json.h"

static void expect_loose(const char *text, const char *want)
{
    qn_buf out = {0};
    size_t at = 0;
    qn_status status = qn_loose_json(text, strlen(text), &at, &out);
    if (want) {
        assert_int_equal(status, QN_OK);
        assert_int_equal(at, strlen(text));
        assert_string_equal(out.data, want);
    } else {
        assert_true(status != QN_OK || at != strlen(text));
    }
    qn_buf_free(&out);
}

static void test_loose_json(void **state)
{
    expect_loose("{'a': 'b\\'\\x41\\u00e9\\ud83d\\ude00', 'c': ()}",
                 "{\"a\": \"b'A\xc3\xa9\xf0\x9f\x98\x80\", \"c\": []}");
    expect_loose(" [1, -2.5e3, True, None,]", "[1, -2.5e3, true, null]");
    expect_loose("{a:<|\"|>\"'\\<|\"|>,b.c:{}}", "{\"a\": \"\\\"'\\\\\", \"b.c\": {}}");
    expect_loose("\"x\n\"", "\"x\\n\"");
    const char *bad[] = {"",      "{",         "[1 2]", "{'a'}", "{'a': }", "01",     "1.",     "nan", "'a",
                         "'\\q'", "'\\ud800'", "x",     "[,]",   "{,}",     "'\\x4'", "<|\"|>", "--1", "1e"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) expect_loose(bad[i], NULL);
    expect_loose("'\\x\x12\x13'", NULL); /* control characters are no digits */
    qn_buf out = {0};
    size_t at = 0;
    assert_int_not_equal(qn_loose_json("[\0 1]", 5, &at, &out), QN_OK); /* nor is a NUL white space */
    qn_buf_free(&out);
    char deep[4001];
    memset(deep, '[', 4000);
    deep[4000] = 0;
    expect_loose(deep, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loose_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
