/* Tensors lie where they were declared, misuse is refused by name, and without a successful finish nothing is
 * left. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include "format/files/new_tensors.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "tests/support/scratch.h"

static void ok(qn_status status)
{
    if (status != QN_OK) fail_msg("%s: %s", qn_status_name(status), qn_last_error());
}

static void refused(qn_status status, const char *words)
{
    if (status != QN_E_ARG || !strstr(qn_last_error(), words))
        fail_msg("%s: %s, expected \"%s\"", qn_status_name(status), qn_last_error(), words);
}

static qn_status add(qn_new_tensors *t, const char *name, qn_dtype dtype, int64_t n, size_t align,
                     int64_t *index)
{
    return qn_new_tensors_add(t, name, qn_type_get(dtype), 1, &n, align, index);
}

/* "HEAD", then "abcd" at 4 + 0, and "xy" behind it at a multiple of 32. */
static qn_status write_all(const char *path)
{
    qn_new_tensors t = {0};
    int64_t first = -1, empty = -1, last = -1;
    qn_status status = qn_new_tensors_init(&t, path);
    if (status == QN_OK) status = add(&t, "a", QN_DTYPE_F32, 1, 32, &first);
    if (status == QN_OK) status = add(&t, "none", QN_DTYPE_F32, 0, 32, &empty);
    if (status == QN_OK) status = add(&t, "b", QN_DTYPE_F16, 1, 1, &last);
    if (status == QN_OK) {
        assert_int_equal(first, 0);
        assert_int_equal(empty, 1);
        assert_int_equal(last, 2);
        assert_int_equal(t.items[2].offset, 32);
        assert_int_equal(t.data_size, 34);
    }
    if (status == QN_OK) status = qn_new_tensors_begin(&t, 0, "HEAD", 4);
    if (status == QN_OK) status = qn_new_tensors_write(&t, last, 0, "xy", 2);
    if (status == QN_OK) status = qn_new_tensors_write(&t, first, 2, "cd", 2);
    if (status == QN_OK) status = qn_new_tensors_write(&t, first, 0, "ab", 2);
    if (status == QN_OK) status = qn_new_tensors_finish(&t);
    qn_new_tensors_free(&t);
    return status;
}

static void places(void **state)
{
    char bytes[64] = "", expected[38] = "HEADabcd";
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "o");
    memcpy(expected + 4 + 32, "xy", 2);
    ok(write_all(path));
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fread(bytes, 1, sizeof bytes, f), sizeof expected);
    fclose(f);
    assert_memory_equal(bytes, expected, sizeof expected);
    qn_test_remove(folder);
}

static void misuse(void **state)
{
    const char *folder = qn_test_scratch();
    const int64_t negative[] = {4, -1}, huge[] = {INT64_MAX, 2}, large[] = {INT64_MAX / 2, 1};
    const qn_type *f32 = qn_type_get(QN_DTYPE_F32), *u8 = qn_type_get(QN_DTYPE_U8);
    qn_new_tensors t = {0};
    ok(qn_new_tensors_init(&t, qn_test_path(folder, "o")));
    refused(qn_new_tensors_write(&t, 0, 0, "", 0), "not open");
    refused(qn_new_tensors_finish(&t), "not open");
    refused(qn_new_tensors_add(&t, "t", f32, 2, negative, 1, NULL), "tensor t: invalid shape");
    refused(qn_new_tensors_add(&t, "t", f32, 2, huge, 1, NULL), "tensor t: invalid shape");
    ok(add(&t, "t", QN_DTYPE_F32, 2, 1, NULL));
    refused(add(&t, "t", QN_DTYPE_F32, 2, 1, NULL), "tensor t is declared twice");
    refused(qn_new_tensors_add(&t, "u", u8, 2, large, 32, NULL), "tensor u: the file would be too large");
    assert_int_equal(t.n, 1);
    assert_int_equal(t.data_size, 8);
    ok(qn_new_tensors_begin(&t, 1, "", 0));
    refused(qn_new_tensors_write(&t, 1, 0, "", 0), "number 1");
    refused(qn_new_tensors_write(&t, -1, 0, "", 0), "number -1");
    refused(qn_new_tensors_write(&t, 0, 4, "12345678", 8), "tensor t: bytes 4 to 12");
    refused(qn_new_tensors_write(&t, 0, SIZE_MAX, "12345678", 8), "tensor t");
    ok(qn_new_tensors_write(&t, 0, 0, "12345678", 6));
    refused(qn_new_tensors_write(&t, 0, 0, "12345678", 4), "6 are written");
    refused(qn_new_tensors_finish(&t), "tensor t: 6 of 8 bytes");
    assert_int_equal(qn_test_count_files(folder), 1); /* under another name */
    qn_new_tensors_free(&t);
    assert_int_equal(qn_test_count_files(folder), 0);
    qn_test_remove(folder);
}

static void no_memory(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "o");
    const int64_t before = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    for (int n = 1; n < 2000 && status != QN_OK; n++) {
        qn_mem_fail_nth(n);
        status = write_all(path);
        qn_mem_fail_nth(0);
        if (status != QN_OK && status != QN_E_NOMEM) fail_msg("allocation %d: %s", n, qn_last_error());
        assert_int_equal(qn_mem_live_blocks(), before);
        assert_int_equal(qn_test_count_files(folder), status == QN_OK);
    }
    assert_int_equal(status, QN_OK);
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(places), cmocka_unit_test(misuse),
                                       cmocka_unit_test(no_memory)};
    return cmocka_run_group_tests_name("new_tensors", tests, NULL, NULL);
}
