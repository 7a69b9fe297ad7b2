#include "format/files/mmap.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "tests/support/scratch.h"

static void test_map(void **state)
{
    const char *folder = qn_test_scratch();
    size_t n = 300000;
    uint8_t *bytes = qn_alloc(n);
    for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)(i * 7 + i / 256);
    const char *path = qn_test_write(folder, "a.bin", bytes, n);
    qn_mapping *m;
    assert_int_equal(qn_mapping_open(path, &m), QN_OK);
    assert_int_equal(qn_mapping_size(m), n);
    assert_string_equal(qn_mapping_path(m), path);
    assert_memory_equal(qn_mapping_data(m), bytes, n);
    static const size_t ranges[][2] = {{0, 1},        {5000, 100000}, {299999, 1},
                                       {0, SIZE_MAX}, {300000, 5},    {SIZE_MAX, 9}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        qn_mapping_drop(m, ranges[i][0], ranges[i][1]);
    assert_memory_equal(qn_mapping_data(m), bytes, n);
    qn_mapping_close(m);
    qn_mapping_close(NULL);
    qn_free(bytes);
    qn_test_remove(folder);
}

static void expect_failure(const char *path, qn_status status, const char *part)
{
    qn_mapping *m = NULL;
    assert_int_equal(qn_mapping_open(path, &m), status);
    assert_null(m);
    assert_ptr_equal(strstr(qn_last_error(), path), qn_last_error());
    if (!strstr(qn_last_error(), part)) fail_msg("\"%s\" does not say \"%s\"", qn_last_error(), part);
}

static void test_what_cannot_be_mapped(void **state)
{
    const char *folder = qn_test_scratch();
    const char *fifo = qn_test_path(folder, "fifo");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    expect_failure(fifo, QN_E_IO, "not a regular file");
    expect_failure(folder, QN_E_IO, "is a directory");
    expect_failure(qn_test_path(folder, "absent"), QN_E_IO, "No such file");
    expect_failure(qn_test_write(folder, "empty", "", 0), QN_E_FORMAT, "empty");
    qn_test_remove(folder);
}

static void test_read_whole(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_write_text(folder, "t", "twelve bytes");
    char *text = NULL;
    size_t n = 0;
    assert_int_equal(qn_file_read(path, 12, &text, &n), QN_OK);
    assert_int_equal(n, 12);
    assert_string_equal(text, "twelve bytes");
    qn_free(text);
    text = NULL;
    assert_int_equal(qn_file_read(path, 11, &text, &n), QN_E_FORMAT);
    assert_int_equal(qn_file_read(qn_test_path(folder, "absent"), 11, &text, &n), QN_E_NOT_FOUND);
    assert_int_equal(qn_file_read(folder, 11, &text, &n), QN_E_IO);
    assert_null(text);
    assert_int_equal(qn_file_read(qn_test_write(folder, "empty", "", 0), 0, &text, &n), QN_OK);
    assert_string_equal(text, "");
    qn_free(text);
    qn_test_remove(folder);
}

static void test_no_memory(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_write_text(folder, "t", "text");
    int64_t before = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    for (int n = 1; n < 2000 && status != QN_OK; n++) {
        qn_mapping *m = NULL;
        char *text = NULL;
        size_t size;
        qn_mem_fail_nth(n);
        status = qn_mapping_open(path, &m);
        if (status == QN_OK) status = qn_file_read(path, 9, &text, &size);
        qn_mem_fail_nth(0);
        assert_true(status == QN_OK || status == QN_E_NOMEM);
        qn_mapping_close(m);
        qn_free(text);
        assert_int_equal(qn_mem_live_blocks(), before);
    }
    assert_int_equal(status, QN_OK);
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_map),
        cmocka_unit_test(test_what_cannot_be_mapped),
        cmocka_unit_test(test_read_whole),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
