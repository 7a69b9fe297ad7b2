/* What is told of devices: by index and by name, and why one cannot be used. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <quern/backend.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect_same(const qn_device_info *a, const qn_device_info *b)
{
    assert_string_equal(a->name, b->name);
    assert_string_equal(a->description, b->description);
    assert_string_equal(a->set, b->set);
    assert_string_equal(a->sets, b->sets);
    assert_int_equal(a->n_threads, b->n_threads);
    assert_int_equal(a->memory_bytes, b->memory_bytes);
}

static void by_name(void **state)
{
    qn_device_info first, found;
    assert_int_equal(qn_device_get_info(0, &first), QN_OK);
    assert_string_equal(first.name, "cpu");
    assert_int_equal(qn_device_find("cpu", &found), QN_OK);
    expect_same(&first, &found);
    memset(&found, 0, sizeof found);
    assert_int_equal(qn_device_find(NULL, &found), QN_OK);
    expect_same(&first, &found);
}

static void names_are_listed(void **state)
{
    qn_device_info out = {.n_threads = -7};
    assert_int_equal(qn_device_find("abacus", &out), QN_E_NOT_FOUND);
    assert_string_equal(qn_last_error(), "there is no device 'abacus'; there are: auto, cpu, cuda, mlx");
    assert_int_equal(qn_device_find("", &out), QN_E_NOT_FOUND);
    assert_int_equal(qn_device_find("cp", &out), QN_E_NOT_FOUND);
    assert_int_equal(qn_device_get_info(3, &out), QN_E_NOT_FOUND);
    assert_int_equal(out.n_threads, -7);
    assert_int_equal(qn_device_find("cpu", NULL), QN_E_ARG);
    assert_int_equal(qn_device_find("abacus", NULL), QN_E_ARG);
}

/* The variable names a file that is not there, so that the device cannot be used on any machine. */
static void expect_refused(const char *name, const char *variable)
{
    qn_device_info out = {.n_threads = -7};
    char begin[32];
    snprintf(begin, sizeof begin, "device %s: ", name);
    setenv(variable, "nowhere/library.so", 1);
    assert_int_equal(qn_device_find(name, &out), QN_E_UNSUPPORTED);
    assert_non_null(strstr(qn_last_error(), begin));
    assert_non_null(strstr(qn_last_error(), "nowhere/library.so"));
    assert_int_equal(out.n_threads, -7);
}

static void why_not(void **state)
{
    qn_device_info out = {.n_threads = -7};
    expect_refused("mlx", "QUERN_MLX_LIBRARY");
    expect_refused("cuda", "QUERN_CUDA_LIBRARY");
    setenv("QUERN_CPU", "loom", 1);
    assert_int_equal(qn_device_find("cpu", &out), QN_E_UNSUPPORTED);
    assert_non_null(strstr(qn_last_error(), "QUERN_CPU=loom"));
    assert_int_equal(out.n_threads, -7);
    unsetenv("QUERN_CPU");
    assert_int_equal(qn_device_find("cpu", &out), QN_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_name),
        cmocka_unit_test(names_are_listed),
        cmocka_unit_test(why_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
