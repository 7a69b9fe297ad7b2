/* Base64: the vectors of RFC 4648, what other writers do, and what is no base64. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/bytes/base64.h"

static const struct {
    const char *bytes, *text;
} vectors[] = {{"", ""},
               {"f", "Zg=="},
               {"fo", "Zm8="},
               {"foo", "Zm9v"},
               {"foob", "Zm9vYg=="},
               {"fooba", "Zm9vYmE="},
               {"foobar", "Zm9vYmFy"},
               {"\xfb\xff\xbe", "+/++"}};

static void expect(const char *text, const char *bytes)
{
    qn_buf out = {0};
    assert_int_equal(qn_base64_decode(text, strlen(text), &out), QN_OK);
    assert_int_equal(out.length, strlen(bytes));
    if (out.length) assert_memory_equal(out.data, bytes, out.length);
    qn_buf_free(&out);
}

static void test_vectors(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        qn_buf out = {0};
        qn_base64_encode(vectors[i].bytes, strlen(vectors[i].bytes), &out);
        assert_int_equal(out.status, QN_OK);
        assert_int_equal(out.length, strlen(vectors[i].text));
        if (out.length) assert_memory_equal(out.data, vectors[i].text, out.length);
        qn_buf_free(&out);
        expect(vectors[i].text, vectors[i].bytes);
    }
}

static void test_other_writers(void **state)
{
    (void)state;
    expect("Zm9\r\nvYm Fy\n", "foobar");
    expect("Zm9vYg", "foob");
    expect("-_--", "\xfb\xff\xbe");
}

static void test_refusals(void **state)
{
    static const char *const wrong[] = {
        "Z", "Zm9vY", "Zm9v=", "Zg=", "Zg===", "=", "====", "Zm8=Zm9v", "Zm9v!", "data:"};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        qn_buf out = {0};
        assert_int_equal(qn_base64_decode(wrong[i], strlen(wrong[i]), &out), QN_E_FORMAT);
        qn_buf_free(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_vectors), cmocka_unit_test(test_other_writers),
                                       cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
