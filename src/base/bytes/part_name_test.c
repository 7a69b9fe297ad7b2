/* Names of parts: what is one, which belong together, and the names of the others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/bytes/part_name.h"

static void test_names(void **state)
{
    qn_part_name p;
    assert_true(qn_part_name_read("d/m-Q4_K_M-00002-of-00013.gguf", &p));
    assert_int_equal(p.n_prefix, strlen("d/m-Q4_K_M"));
    assert_true(p.part == 1 && p.n_parts == 13);
    assert_true(qn_part_name_read("x-00001-of-00001.GGUF", &p) && p.part == 0 && p.n_parts == 1);
    static const char *const others[] = {"",
                                         "m.gguf",
                                         "-00001-of-00002.gguf",
                                         "d/-00001-of-00002.gguf",
                                         "m-0001-of-00002.gguf",
                                         "m-00001-of-0002.gguf",
                                         "m-000001-of-00002.gguf",
                                         "m-00000-of-00002.gguf",
                                         "m-00003-of-00002.gguf",
                                         "m-00001-of-00000.gguf",
                                         "m-+0001-of-00002.gguf",
                                         "m_00001-of-00002.gguf",
                                         "m-00001-to-00002.gguf",
                                         "m-00001-of-00002.ggufx",
                                         "m-00001-of-00002.safetensors"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        p.n_parts = -7;
        if (qn_part_name_read(others[i], &p)) fail_msg("%s was taken", others[i]);
        assert_int_equal(p.n_parts, -7); /* untouched */
    }
}

static void test_which_belong_together(void **state)
{
    assert_true(qn_part_name_is_same("m-00001-of-00002.gguf", "m-00002-of-00002.gguf"));
    assert_true(qn_part_name_is_same("m-00001-of-00002.gguf", "m-00001-of-00002.gguf"));
    assert_false(qn_part_name_is_same("m-00001-of-00002.gguf", "n-00002-of-00002.gguf"));
    assert_false(qn_part_name_is_same("m-00001-of-00002.gguf", "d/m-00002-of-00002.gguf"));
    assert_false(qn_part_name_is_same("m-00001-of-00002.gguf", "m-00002-of-00003.gguf"));
    assert_false(qn_part_name_is_same("m-00001-of-00002.gguf", "m-00002-of-00002.GGUF"));
    assert_false(qn_part_name_is_same("m.gguf", "m.gguf"));
}

static void test_the_others(void **state)
{
    static const char path[] = "d/m-00002-of-00123.GGUF";
    qn_part_name p;
    qn_buf b = {0};
    assert_true(qn_part_name_read(path, &p));
    qn_part_name_put(&b, path, &p, 0);
    assert_string_equal(b.data, "d/m-00001-of-00123.GGUF");
    qn_buf_reset(&b);
    qn_part_name_put(&b, path, &p, 122);
    assert_string_equal(b.data, "d/m-00123-of-00123.GGUF");
    qn_buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_which_belong_together),
        cmocka_unit_test(test_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
