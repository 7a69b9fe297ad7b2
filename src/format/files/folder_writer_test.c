/* Files and folders that appear whole: onto nothing, onto an empty folder, onto a full one, where the system
 * can change names in one step and where it cannot; and what is left when the writing stops. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "format/files/folder_writer.h"
#include "format/files/mmap.h"
#include "tests/support/engine_help.h"
#include "tests/support/scratch.h"

static int can_exchange = 1;

int __real_renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags);
int __wrap_renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags);

int __wrap_renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags)
{
    if (can_exchange) return __real_renameat2(from_folder, from, to_folder, to, flags);
    errno = EINVAL;
    return -1;
}

static void expect_text(const char *folder, const char *name, const char *want)
{
    char *text = NULL;
    size_t n;
    const qn_status status = qn_file_read(qn_test_path(folder, name), 1000, &text, &n);
    if (want ? status != QN_OK || strcmp(text, want) != 0 : status != QN_E_NOT_FOUND)
        fail_msg("%s is %s, expected %s", name, status == QN_OK ? text : "not there",
                 want ? want : "nothing");
    qn_free(text);
}

static qn_status write_pair(const char *path, const char *text, int finish)
{
    qn_folder_writer *w;
    QN_TRY(qn_folder_writer_new(path, &w));
    qn_folder_writer_drop(w, "c");
    const char *file = qn_folder_writer_path(w, "a");
    qn_status status = file ? qn_file_write(file, text, strlen(text)) : QN_E_NOMEM;
    if (status == QN_OK)
        status =
            (file = qn_folder_writer_path(w, "b")) ? qn_file_write(file, text, strlen(text)) : QN_E_NOMEM;
    if (status == QN_OK && finish) status = qn_folder_writer_finish(w);
    qn_folder_writer_free(w);
    return status;
}

static void one_file(void **state)
{
    const char *scratch = qn_test_scratch();
    qn_test_ok(qn_file_write(qn_test_path(scratch, "x"), "one", 3));
    expect_text(scratch, "x", "one");
    qn_test_ok(qn_file_write(qn_test_path(scratch, "x"), "", 0));
    expect_text(scratch, "x", "");
    assert_int_equal(qn_file_write(qn_test_path(scratch, "no/x"), "one", 3), QN_E_IO);
    assert_int_equal(qn_file_write(scratch, "one", 3), QN_E_IO); /* a folder is there */
    assert_int_equal(qn_test_count_files(scratch), 1);
    qn_test_remove(scratch);
}

static void folders(void **state)
{
    const char *scratch = qn_test_scratch();
    for (can_exchange = 0; can_exchange < 2; can_exchange++) {
        char path[512], other[512];
        snprintf(path, sizeof path, "%s/to%d", scratch, can_exchange);
        snprintf(other, sizeof other, "%s/link%d", scratch, can_exchange);
        qn_test_ok(write_pair(path, "one", 1));
        expect_text(path, "a", "one");

        mkdir(qn_test_path(path, "sub"), 0777);
        qn_test_write_text(path, "sub/deep", "deep");
        qn_test_write_text(path, "c", "dropped");
        qn_test_write_text(path, "d", "kept");
        qn_test_ok(write_pair(path, "two", 0));
        expect_text(path, "b", "one");
        expect_text(path, "c", "dropped");
        assert_int_equal(symlink(path, other), 0);
        qn_test_ok(write_pair(other, "three", 1));
        expect_text(path, "a", "three");
        expect_text(path, "b", "three");
        expect_text(path, "c", NULL);
        expect_text(path, "d", "kept");
        expect_text(path, "sub/deep", "deep");
        assert_int_equal(qn_test_count_files(path), 4);

        snprintf(path, sizeof path, "%s/empty%d/", scratch, can_exchange);
        mkdir(path, 0777);
        qn_test_ok(write_pair(path, "four", 1));
        expect_text(path, "a", "four");
        assert_int_equal(qn_test_count_files(scratch), 3 * (can_exchange + 1));
    }
    can_exchange = 1;
    qn_test_write_text(scratch, "file", "x");
    assert_int_equal(write_pair(qn_test_path(scratch, "file"), "five", 1), QN_E_IO);
    assert_non_null(strstr(qn_last_error(), "is not a folder"));
    assert_int_equal(write_pair(qn_test_path(scratch, "no/such"), "five", 1), QN_E_IO);
    assert_int_equal(qn_test_count_files(scratch), 7);
    qn_test_remove(scratch);
}

static void out_of_memory(void **state)
{
    const char *scratch = qn_test_scratch();
    char path[512];
    snprintf(path, sizeof path, "%s/to", scratch);
    for (can_exchange = 0; can_exchange < 2; can_exchange++) {
        const int64_t live = qn_mem_live_blocks();
        qn_test_ok(write_pair(path, "old", 1));
        qn_test_write_text(path, "d", "kept");
        for (int64_t n = 1;; n++) {
            const int64_t made = qn_mem_allocations();
            qn_mem_fail_nth(n);
            const qn_status status = write_pair(path, "new", 1);
            qn_mem_fail_nth(0);
            const int reached = qn_mem_allocations() - made >= n;
            if (status != (reached ? QN_E_NOMEM : QN_OK))
                fail_msg("allocation %d: %s, %s", (int)n, qn_status_name(status), qn_last_error());
            expect_text(path, "a", reached ? "old" : "new");
            expect_text(path, "b", reached ? "old" : "new");
            expect_text(path, "d", "kept");
            assert_int_equal(qn_test_count_files(scratch), 1);
            assert_int_equal(qn_mem_live_blocks(), live);
            if (!reached) break;
        }
    }
    can_exchange = 1;
    qn_test_remove(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_file), cmocka_unit_test(folders),
                                       cmocka_unit_test(out_of_memory)};
    return cmocka_run_group_tests_name("folder_writer", tests, NULL, NULL);
}
