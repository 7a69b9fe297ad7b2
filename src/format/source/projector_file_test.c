/* Which vision tower beside a model is taken, by names alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "format/source/projector_file.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"

enum { FILES_MAX = 5 };

/* The files lie in a folder; want: the one that is taken, NULL: none; why: in the sentence, "": there is none. */
static void expect(const char *const files[FILES_MAX], const char *model, const char *want, const char *why)
{
    const char *folder = qn_test_scratch();
    char path[512];
    qn_buf found = {0}, said = {0};
    for (int i = 0; i < FILES_MAX && files[i]; i++) qn_test_write_text(folder, files[i], "");
    assert_int_equal(qn_projector_find(folder, model, &found, &said), QN_OK);
    snprintf(path, sizeof path, "%s/%s", folder, want ? want : "");
    if (want)
        assert_string_equal(found.data, path);
    else
        assert_int_equal(found.length, 0);
    if (*why)
        assert_non_null(strstr(said.data, why));
    else
        assert_int_equal(said.length, 0);
    qn_test_remove(folder);
    qn_buf_free(&found);
    qn_buf_free(&said);
}
#define FILES(...) ((const char *const[FILES_MAX]){__VA_ARGS__})

static void test_names(void **state)
{
    assert_true(qn_projector_is_name("mmproj-model-f16.gguf"));
    assert_true(qn_projector_is_name("SmolVLM.mmproj-Q8_0.GGUF"));
    assert_false(qn_projector_is_name("model.gguf"));
    assert_false(qn_projector_is_name("mmproj.safetensors"));
}

static void test_one(void **state)
{
    expect(FILES("m-Q4_0.gguf"), "m-Q4_0.gguf", NULL, "");
    expect(FILES("m-Q4_0.gguf", "mmproj-other.gguf"), "m-Q4_0.gguf", "mmproj-other.gguf", "");
    expect(FILES("m-Q4_0.gguf", ".mmproj-hidden.gguf"), "m-Q4_0.gguf", NULL, "");
}

static void test_types(void **state)
{
    expect(FILES("mmproj-F32.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-Q8_0.gguf"), "m.gguf",
           "mmproj-F16.gguf", "");
    expect(FILES("mmproj-m-f32.gguf", "mmproj-m-bf16.gguf"), "m-Q8_0.gguf", "mmproj-m-bf16.gguf", "");
    expect(FILES("mmproj-m-f32.gguf", "m-mmproj-q8_0.gguf"), "m-Q8_0.gguf", "mmproj-m-f32.gguf", "");
}

static void test_several(void **state)
{
    expect(FILES("mmproj-small-f16.gguf", "mmproj-large-f16.gguf"), "large-Q4_0.gguf",
           "mmproj-large-f16.gguf", "");
    expect(FILES("mmproj-small-f16.gguf", "mmproj-large-f32.gguf"), "x.gguf", NULL,
           "2 vision towers lie beside the model, and none is taken (mmproj-large-f32.gguf, "
           "mmproj-small-f16.gguf)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_names), cmocka_unit_test(test_one),
                                       cmocka_unit_test(test_types), cmocka_unit_test(test_several)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
