/* Lines of plain and gzip files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

#include "base/buf.h"
#include "cli/constrain/json_lines.h"
#include "tests/support/scratch.h"

static qn_status collect(void *user, const char *text, size_t n)
{
    qn_buf_append(user, text, n);
    qn_buf_putc(user, '|');
    return n == 3 && !memcmp(text, "bad", 3) ? qn_fail(QN_E_FORMAT, "is bad") : QN_OK;
}

static const char *write_gzip(const char *folder, const char *text, size_t n_cut)
{
    const char *path = qn_test_write_text(folder, "x.gz", "");
    gzFile f = gzopen(path, "wb");
    assert_int_equal(gzwrite(f, text, (unsigned)strlen(text)), strlen(text));
    assert_int_equal(gzclose(f), Z_OK);
    if (n_cut) {
        char bytes[4096];
        FILE *in = fopen(path, "rb");
        size_t n = fread(bytes, 1, sizeof bytes, in);
        fclose(in);
        qn_test_write(folder, "x.gz", bytes, n - n_cut);
    }
    return path;
}

static void test_lines(void **state)
{
    static const struct {
        const char *text, *lines;
    } cases[] = {{"", ""}, {"a", "a|"}, {"a\n", "a|"}, {"a\n\nbc\nd", "a|bc|d|"}, {"\n\n", ""}};
    const char *folder = qn_test_scratch();
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int zipped = 0; zipped < 2; zipped++) {
            qn_buf got = {0};
            const char *path = zipped ? write_gzip(folder, cases[i].text, 0)
                                      : qn_test_write_text(folder, "x", cases[i].text);
            qn_buf_puts(&got, "");
            assert_int_equal(qn_json_lines_read(path, collect, &got), QN_OK);
            assert_string_equal(got.data, cases[i].lines);
            qn_buf_free(&got);
        }
    qn_test_remove(folder);
}

/* Longer than the parts that are read. */
static void test_long_lines(void **state)
{
    const char *folder = qn_test_scratch();
    qn_buf text = {0}, got = {0};
    (void)state;
    for (int i = 0; i < 200000; i++) qn_buf_putc(&text, (char)('a' + i % 26));
    qn_buf_puts(&text, "\nz\n");
    assert_int_equal(qn_json_lines_read(qn_test_write(folder, "x", text.data, text.length), collect, &got),
                     QN_OK);
    assert_int_equal(got.length, text.length);
    assert_memory_equal(got.data, text.data, 200000);
    qn_buf_free(&text);
    qn_buf_free(&got);
    qn_test_remove(folder);
}

static void test_failures(void **state)
{
    const char *folder = qn_test_scratch();
    qn_buf got = {0};
    (void)state;
    assert_int_equal(qn_json_lines_read(qn_test_path(folder, "none"), collect, &got), QN_E_IO);
    assert_int_equal(qn_json_lines_read(qn_test_write_text(folder, "x", "a\n\nbad\nc"), collect, &got),
                     QN_E_FORMAT);
    assert_non_null(strstr(qn_last_error(), "x: line 3: is bad"));
    assert_string_equal(got.data, "a|bad|");
    assert_int_equal(qn_json_lines_read(write_gzip(folder, "a\nb\nc\n", 6), collect, &got), QN_E_IO);
    qn_buf_free(&got);
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_long_lines),
        cmocka_unit_test(test_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
