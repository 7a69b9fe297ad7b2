/* Files that are fetched in pieces: order, sums, going on after any end, and tables that are none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "hub/store/partial.h"
#include "tests/support/scratch.h"

enum { SIZE = (40 << 20) + 5, N_PIECES = 3, BLOCK = 1 << 20 };

static unsigned char *make_bytes(void)
{
    unsigned char *bytes = qn_alloc(SIZE);
    assert_non_null(bytes);
    for (size_t i = 0; i < SIZE; i++) bytes[i] = (unsigned char)(i * 2654435761u >> 24);
    return bytes;
}

static qn_partial *open_at(const char *path)
{
    qn_partial *p = NULL;
    assert_int_equal(qn_partial_open(path, SIZE, QN_SUM_SHA256, &p), QN_OK);
    assert_int_equal(qn_partial_pieces(p), N_PIECES);
    return p;
}

/* Puts up to n bytes of piece i, from where it is. */
static void put(qn_partial *p, const unsigned char *bytes, int64_t i, int64_t n)
{
    while (n > 0) {
        const int64_t from = qn_partial_begin(p, i) + qn_partial_done(p, i),
                      left = qn_partial_end(p, i) - from;
        int64_t part = n < BLOCK ? n : BLOCK;
        if (part > left) part = left;
        if (!part) return;
        assert_int_equal(qn_partial_write(p, i, bytes + from, (size_t)part), QN_OK);
        n -= part;
    }
}

static void sum_of(const unsigned char *bytes, char *hex)
{
    qn_digest d;
    qn_digest_begin(&d, QN_SUM_SHA256, SIZE);
    qn_digest_put(&d, bytes, SIZE);
    qn_digest_end(&d, hex);
}

static void finish(qn_partial *p, const char *path, const unsigned char *bytes)
{
    char hex[QN_SUM_HEX_MAX], want[QN_SUM_HEX_MAX];
    struct stat info;
    int at_end = 0;
    for (int64_t i = 0; i < N_PIECES; i++) put(p, bytes, i, SIZE);
    assert_int_equal(qn_partial_total(p), SIZE);
    while (!at_end) assert_int_equal(qn_partial_hash(p, 3 << 20, &at_end), QN_OK);
    qn_partial_sum(p, hex);
    sum_of(bytes, want);
    assert_string_equal(hex, want);
    assert_int_equal(qn_partial_finish(p), QN_OK);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_size, SIZE);
    qn_partial_close(p);
}

static void test_pieces_in_any_order(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "blob");
    unsigned char *bytes = make_bytes();
    int at_end = 1;
    qn_partial *p = open_at(path);
    put(p, bytes, 2, 100);
    assert_int_equal(qn_partial_hash(p, SIZE, &at_end), QN_OK);
    assert_true(!at_end && qn_partial_hashed(p) == 0);
    put(p, bytes, 0, SIZE);
    put(p, bytes, 1, 5);
    assert_int_equal(qn_partial_hash(p, SIZE, &at_end), QN_OK);
    assert_int_equal(qn_partial_hashed(p), qn_partial_end(p, 0) + 5);
    finish(p, path, bytes);
    assert_int_equal(qn_test_count_files(folder), 1);
    qn_free(bytes);
    qn_test_remove(folder);
}

static void test_it_goes_on_after_a_close(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "blob");
    unsigned char *bytes = make_bytes();
    for (int i = 0; i < 5; i++) {
        qn_partial *p = open_at(path);
        assert_int_equal(qn_partial_was_resumed(p), i > 0);
        assert_int_equal(qn_partial_total(p), i * 300);
        put(p, bytes, 0, 100);
        put(p, bytes, 1, 100);
        put(p, bytes, 2, 100);
        qn_partial_close(p);
    }
    finish(open_at(path), path, bytes);
    qn_free(bytes);
    qn_test_remove(folder);
}

static void test_an_end_between_cutting_and_renaming(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "blob");
    unsigned char *bytes = make_bytes();
    qn_test_write(folder, "blob.quern.incomplete", bytes, SIZE);
    qn_partial *p = open_at(path);
    assert_int_equal(qn_partial_total(p), SIZE);
    finish(p, path, bytes);
    qn_free(bytes);
    qn_test_remove(folder);
}

static void test_what_is_dropped_comes_again(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "blob");
    unsigned char *bytes = make_bytes(), *other = make_bytes();
    int at_end;
    memset(other, 7, 1000);
    qn_partial *p = open_at(path);
    put(p, other, 0, 1000);
    assert_int_equal(qn_partial_hash(p, SIZE, &at_end), QN_OK);
    assert_int_equal(qn_partial_drop_piece(p, 0), QN_OK);
    put(p, other, 1, 1000);
    assert_int_equal(qn_partial_restart(p, 0), QN_OK);
    assert_true(qn_partial_total(p) == 0 && qn_partial_hashed(p) == 0);
    finish(p, path, bytes);
    p = open_at(path);
    assert_int_equal(qn_partial_restart(p, 1), QN_OK);
    assert_int_equal(qn_partial_pieces(p), 1);
    qn_partial_remove(p);
    qn_partial_close(p);
    assert_int_equal(qn_test_count_files(folder), 1);
    qn_free(bytes);
    qn_free(other);
    qn_test_remove(folder);
}

static void test_beyond_the_end_of_a_piece(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "blob");
    unsigned char *bytes = make_bytes();
    qn_partial *p = open_at(path);
    put(p, bytes, 2, SIZE);
    assert_int_equal(qn_partial_write(p, 2, bytes, 1), QN_E_INTERNAL);
    assert_false(qn_partial_has_magic(p, (const char *)bytes));
    put(p, bytes, 0, 4);
    assert_true(qn_partial_has_magic(p, (const char *)bytes));
    qn_partial_close(p);
    qn_free(bytes);
    qn_test_remove(folder);
}

static void test_an_empty_file(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "blob");
    char hex[QN_SUM_HEX_MAX];
    qn_partial *p = NULL;
    int at_end = 0;
    assert_int_equal(qn_partial_open(path, 0, QN_SUM_GIT_SHA1, &p), QN_OK);
    assert_int_equal(qn_partial_pieces(p), 0);
    assert_int_equal(qn_partial_hash(p, 1, &at_end), QN_OK);
    qn_partial_sum(p, hex);
    assert_true(at_end);
    assert_string_equal(hex, "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
    assert_int_equal(qn_partial_finish(p), QN_OK);
    qn_partial_close(p);
    qn_test_remove(folder);
}

static void test_memory_runs_out(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "blob");
    for (int n = 1;; n++) {
        qn_partial *p = NULL;
        const int64_t live = qn_mem_live_blocks();
        qn_mem_fail_nth(n);
        qn_status status = qn_partial_open(path, 1000, QN_SUM_SHA256, &p);
        if (status == QN_OK) status = qn_partial_restart(p, 1);
        qn_mem_fail_nth(0);
        qn_partial_close(p);
        assert_int_equal(qn_mem_live_blocks(), live);
        if (status == QN_OK) break;
        assert_int_equal(status, QN_E_NOMEM);
        assert_true(n < 2000);
    }
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_in_any_order),
        cmocka_unit_test(test_it_goes_on_after_a_close),
        cmocka_unit_test(test_an_end_between_cutting_and_renaming),
        cmocka_unit_test(test_what_is_dropped_comes_again),
        cmocka_unit_test(test_beyond_the_end_of_a_piece),
        cmocka_unit_test(test_an_empty_file),
        cmocka_unit_test(test_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
