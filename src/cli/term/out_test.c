/* What reaches a terminal: texts of strangers made harmless and cut to columns, sizes, long JSON in pieces.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "cli/term/out.h"

static void check(const char *text, size_t n, int columns_max, const char *shown, int columns)
{
    qn_buf b = {0};
    qn_buf_puts(&b, "|");
    assert_int_equal(qn_out_put_shown(&b, text, n, columns_max), columns);
    assert_string_equal(b.data + 1, shown);
    qn_buf_free(&b);
}

static void test_shown(void **state)
{
    static const struct {
        const char *text, *shown;
        int columns;
    } rows[] = {
        {"plain \\ text", "plain \\ text", 12},
        {"a\nb\r\tc", "a\\nb\\r\\tc", 9},
        {"\x1b[31m\x07\x7f", "\\x1b[31m\\x07\\x7f", 16},
        {"\xc2\x9b"
         "2J",
         "\\u009b2J", 8},
        {"\xe2\x80\xae\xe2\x81\xa6\xef\xbb\xbf\xe2\x80\x8b", "\\u202e\\u2066\\ufeff\\u200b", 24},
        {"\xf3\xa0\x81\x81", "\\ue0041", 7},
        {"\xff\xc3(", "\\xff\\xc3(", 9},
        {"\xe4\xbd\xa0\xe5\xa5\xbd", "\xe4\xbd\xa0\xe5\xa5\xbd", 4},
        {"e\xcc\x81", "e\xcc\x81", 1},
        {"", "", 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check(rows[i].text, strlen(rows[i].text), 0, rows[i].shown, rows[i].columns);
    check("a\0b", 3, 0, "a\\x00b", 6);
}

static void test_cut(void **state)
{
    check("abcdefgh", 8, 8, "abcdefgh", 8);
    check("abcdefghi", 9, 8, "abcde...", 8);
    check("abcdefgh\x1b", 9, 8, "abcde...", 8);
    check("abcde\x1b[2J", 9, 8, "abcde...", 8);
    /* A wide character and an escape are never cut in two. */
    check("\xe4\xbd\xa0\xe4\xbd\xa0\xe4\xbd\xa0\xe4\xbd\xa0", 12, 7, "\xe4\xbd\xa0\xe4\xbd\xa0...", 7);
    check("\xe4\xbd\xa0\xe4\xbd\xa0\xe4\xbd\xa0\xe4\xbd\xa0", 12, 6, "\xe4\xbd\xa0...", 5);
    check("\x1b\x1b\x1b", 3, 8, "\\x1b...", 7);
}

static void test_column(void **state)
{
    qn_buf b = {0};
    qn_out_put_column(&b, "ab", 5);
    qn_out_put_column(&b, "abcdefg", 5);
    qn_out_put_column(&b, "\xe4\xbd\xa0", 3);
    assert_string_equal(b.data, "ab   ab...\xe4\xbd\xa0 ");
    qn_buf_free(&b);
}

static void test_sizes(void **state)
{
    char text[32];
    assert_string_equal(qn_out_size_text(0, text, sizeof text), "0 B");
    assert_string_equal(qn_out_size_text(999, text, sizeof text), "999 B");
    assert_string_equal(qn_out_size_text(1024, text, sizeof text), "1.0 KiB");
    assert_string_equal(qn_out_size_text(653 << 10, text, sizeof text), "653 KiB");
    assert_string_equal(qn_out_size_text((size_t)5 << 30, text, sizeof text), "5.0 GiB");
    assert_string_equal(qn_out_size_text((size_t)12345 << 40, text, sizeof text), "12345 TiB");
}

/* Out of memory sticks in the buffer, wherever it happens. */
static void test_no_memory(void **state)
{
    char text[3000];
    memset(text, '\x1b', sizeof text);
    int64_t before = qn_mem_live_blocks();
    for (int64_t i = 1;; i++) {
        qn_buf b = {0};
        qn_mem_fail_nth(i);
        qn_out_put_shown(&b, text, sizeof text, 0);
        qn_out_put_shown(&b, text, sizeof text, 20);
        qn_mem_fail_nth(0);
        qn_status status = b.status;
        qn_buf_free(&b);
        assert_int_equal(qn_mem_live_blocks(), before);
        if (status == QN_OK) break;
        assert_int_equal(status, QN_E_NOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shown), cmocka_unit_test(test_cut),       cmocka_unit_test(test_column),
        cmocka_unit_test(test_sizes), cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
