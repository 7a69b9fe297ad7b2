/* Exact numbers, URI references, and values with their pointers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "constrain/validate/uri.h"
#include "constrain/validate/value.h"

static qn_decimal number(const char *text)
{
    size_t n = strlen(text);
    assert_int_equal(qn_decimal_length(text, n), n);
    return qn_decimal_read(text, n);
}

static void test_numbers_are_spelled_as_json(void **state)
{
    static const struct {
        const char *text;
        size_t length;
    } cases[] = {{"0", 1},    {"-0", 2},   {"01", 0},  {"1.5e3x", 5},    {"1.", 1},
                 {"1.e5", 1}, {"1e", 1},   {"1e+", 1}, {"1e+05", 5},     {"-", 0},
                 {"", 0},     {"+1", 0},   {".5", 0},  {"-1.25E-7,", 8}, {"10]", 2},
                 {"0.0", 3},  {"00.5", 0}, {"abc", 0}, {"-01", 0},       {"1.2.3", 3}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (qn_decimal_length(cases[i].text, strlen(cases[i].text)) != cases[i].length)
            fail_msg("%s", cases[i].text);
}

/* In rising order; "=" stands before one that equals the number before it. */
static void test_numbers_compare_exactly(void **state)
{
    static const char *const rising[] = {"-1e400",
                                         "-972783798187987123879878123.18878137",
                                         "-972783798187987123879878123.18878136",
                                         "-12.5",
                                         "=-0.125e2",
                                         "-1",
                                         "-0.001",
                                         "0",
                                         "=-0.00e7",
                                         "=0e999999999999999999999",
                                         "1e-999999999999999999999",
                                         "0.1",
                                         "=1e-1",
                                         "=0.10000",
                                         "0.30000000000000001",
                                         "1",
                                         "=1.0",
                                         "=100e-2",
                                         "9.99",
                                         "10",
                                         "18446744073709551615",
                                         "18446744073709551616",
                                         "=18446744073709551616.000",
                                         "1e308",
                                         "1e400"};
    (void)state;
    for (size_t i = 1; i < sizeof rising / sizeof *rising; i++) {
        const char *text = rising[i] + (*rising[i] == '='), *before = rising[i - 1] + (*rising[i - 1] == '=');
        qn_decimal a = number(before), b = number(text);
        int equal = *rising[i] == '=';
        if ((qn_decimal_compare(&a, &b) == 0) != equal || qn_decimal_compare(&a, &b) > 0 ||
            qn_decimal_compare(&b, &a) < 0)
            fail_msg("%s, %s", before, text);
        if (equal) assert_true(qn_decimal_hash(&a) == qn_decimal_hash(&b));
    }
}

static void test_multiples(void **state)
{
    static const struct {
        const char *a, *b;
        int is_multiple;
    } cases[] = {{"10", "2", 1},
                 {"7", "2", 0},
                 {"0", "0.37", 1},
                 {"4.5", "1.5", 1},
                 {"35", "1.5", 0},
                 {"0.0075", "0.0001", 1},
                 {"0.00751", "0.0001", 0},
                 {"19.99", "0.01", 1},
                 {"-19.99", "0.01", 1},
                 {"1e308", "0.123456789", 0},
                 {"1e308", "0.5", 1},
                 {"12391239123", "1e-8", 1},
                 {"1e1000000000000", "7", 0},
                 {"1e1000000000000", "1024", 1},
                 {"1e-5", "1", 0},
                 {"3e2", "1e3", 0},
                 {"1000000000000000000000000000007", "1000000000000000000000000000007", 1},
                 {"3000000000000000000000000000021", "1000000000000000000000000000007", 1},
                 {"3000000000000000000000000000022", "1000000000000000000000000000007", 0},
                 {"1e40", "1.6777216000000000000000000000001", 0},
                 {"100000000000000000000000000000000000", "3.0517578125", 1}};
    int64_t steps = 0;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_decimal a = number(cases[i].a), b = number(cases[i].b);
        if (qn_decimal_is_multiple(&a, &b, &steps) != cases[i].is_multiple)
            fail_msg("%s of %s", cases[i].a, cases[i].b);
    }
    assert_true(steps > 0);
}

/* k * b is a multiple of b, and k * b + 1 is none, for b of all lengths. */
static void test_multiples_of_long_numbers(void **state)
{
    char a[QN_DECIMAL_DIVISOR_MAX + 20], b[QN_DECIMAL_DIVISOR_MAX + 1];
    (void)state;
    for (int n = 2; n <= QN_DECIMAL_DIVISOR_MAX; n += 7) {
        memset(b, '1', (size_t)n);
        b[n - 1] = '3';
        b[n] = 0;
        /* 3 times 11...13 is 33...39. */
        memset(a, '3', (size_t)n);
        a[n - 1] = '9';
        a[n] = 0;
        int64_t steps = 0;
        qn_decimal x = number(a), y = number(b);
        assert_true(qn_decimal_is_multiple(&x, &y, &steps));
        a[n - 1] = '8';
        x = number(a);
        assert_false(qn_decimal_is_multiple(&x, &y, &steps));
    }
}

static void test_integers(void **state)
{
    static const struct {
        const char *text;
        int is_integer;
        int64_t value;
    } cases[] = {{"0", 1, 0},
                 {"1.0", 1, 1},
                 {"1.5", 0, 0},
                 {"15e-1", 0, 0},
                 {"1500e-2", 1, 15},
                 {"1e3", 1, 1000},
                 {"-9223372036854775808", 1, INT64_MIN},
                 {"-9223372036854775809", 1, INT64_MIN},
                 {"9223372036854775807", 1, INT64_MAX},
                 {"9223372036854775808", 1, INT64_MAX},
                 {"1e400", 1, INT64_MAX}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_decimal d = number(cases[i].text);
        assert_int_equal(qn_decimal_is_integer(&d), cases[i].is_integer);
        if (cases[i].is_integer) assert_true(qn_decimal_to_int64(&d) == cases[i].value);
    }
}

/* RFC 3986, sections 5.4.1 and 5.4.2, without the fragments. */
static void test_uris(void **state)
{
    static const char base[] = "http://a/b/c/d;p?q";
    static const struct {
        const char *reference, *means;
    } cases[] = {{"g:h", "g:h"},
                 {"g", "http://a/b/c/g"},
                 {"./g", "http://a/b/c/g"},
                 {"g/", "http://a/b/c/g/"},
                 {"/g", "http://a/g"},
                 {"//g", "http://g"},
                 {"?y", "http://a/b/c/d;p?y"},
                 {"g?y", "http://a/b/c/g?y"},
                 {"#s", "http://a/b/c/d;p?q"},
                 {"g?y#s", "http://a/b/c/g?y"},
                 {";x", "http://a/b/c/;x"},
                 {"", "http://a/b/c/d;p?q"},
                 {".", "http://a/b/c/"},
                 {"./", "http://a/b/c/"},
                 {"..", "http://a/b/"},
                 {"../", "http://a/b/"},
                 {"../g", "http://a/b/g"},
                 {"../..", "http://a/"},
                 {"../../g", "http://a/g"},
                 {"../../../g", "http://a/g"},
                 {"/./g", "http://a/g"},
                 {"/../g", "http://a/g"},
                 {"g.", "http://a/b/c/g."},
                 {"..g", "http://a/b/c/..g"},
                 {"./../g", "http://a/b/g"},
                 {"./g/.", "http://a/b/c/g/"},
                 {"g/./h", "http://a/b/c/g/h"},
                 {"g/../h", "http://a/b/c/h"},
                 {"g;x=1/../y", "http://a/b/c/y"},
                 {"g?y/../x", "http://a/b/c/g?y/../x"},
                 {"urn:uuid:1#x", "urn:uuid:1"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_buf out = {0};
        qn_uri_resolve(base, cases[i].reference, strlen(cases[i].reference), &out);
        assert_string_equal(out.data, cases[i].means);
        qn_buf_free(&out);
    }
    qn_buf out = {0};
    qn_uri_resolve("", "x/../y.json#/a", 14, &out);
    qn_uri_decode("%25%2f%zz%4", 11, &out);
    assert_string_equal(out.data, "x/../y.json%/%zz%4");
    qn_buf_free(&out);
}

static const qn_value *read(qn_arena *arena, const char *text)
{
    const qn_value *v = NULL;
    if (qn_value_read(arena, "test", text, strlen(text), &v) != QN_OK)
        fail_msg("%s: %s", text, qn_last_error());
    return v;
}

static void test_pointers(void **state)
{
    static const char text[] =
        "{\"a/b\": [1, {\"~\": 2, \"\": {\"00\": 3}}], \"0\": 4, \"c\": \"x\\u0000y\"}";
    static const char *const pointers[] = {"", "/a~1b", "/a~1b/0", "/a~1b/1/~0", "/a~1b/1//00", "/0", "/c"};
    static const char *const none[] = {"a",        "/",    "/a~1b/00",         "/a~1b/2", "/a~1b/-",
                                       "/a~1b/-1", "/c/0", "/a~1b/4294967296", "/a~2b"};
    qn_arena arena = {0};
    const qn_value *root = read(&arena, text);
    (void)state;
    for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++) {
        qn_buf back = {0};
        const qn_value *v = qn_value_at(root, pointers[i], strlen(pointers[i]));
        assert_non_null(v);
        qn_buf_puts(&back, "");
        qn_value_pointer(v, &back);
        assert_string_equal(back.data, pointers[i]);
        qn_buf_free(&back);
    }
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_null(qn_value_at(root, none[i], strlen(none[i])));
    assert_int_equal(qn_value_get(root, "c", 1)->n, 3);
    qn_arena_clear(&arena);
}

static void test_equal(void **state)
{
    static const struct {
        const char *a, *b;
        int equal;
    } cases[] = {{"1", "1.0", 1},
                 {"1", "true", 0},
                 {"0", "false", 0},
                 {"0", "-0.0", 1},
                 {"null", "null", 1},
                 {"\"a\"", "\"\\u0061\"", 1},
                 {"\"a\"", "\"a\\u0000\"", 0},
                 {"[1,[2]]", "[1.0,[2e0]]", 1},
                 {"[1,2]", "[2,1]", 0},
                 {"{\"a\":1,\"b\":[]}", "{\"b\":[],\"a\":1.0}", 1},
                 {"{\"a\":1}", "{\"a\":1,\"b\":2}", 0},
                 {"{\"a\":1}", "{\"b\":1}", 0},
                 {"12345678901234567890.1", "12345678901234567890.2", 0},
                 {"1e400", "10e399", 1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_arena arena = {0};
        int64_t steps = 1000;
        const qn_value *a = read(&arena, cases[i].a), *b = read(&arena, cases[i].b);
        if (qn_value_equal(a, b, &steps) != cases[i].equal) fail_msg("%s, %s", cases[i].a, cases[i].b);
        if (cases[i].equal) assert_true(qn_value_hash(a, &steps) == qn_value_hash(b, &steps));
        steps = 0;
        assert_false(qn_value_equal(a, b, &steps));
        qn_arena_clear(&arena);
    }
}

/* Objects of any size find their members. */
static void test_many_members(void **state)
{
    (void)state;
    for (int n = 0; n < 300; n += 7) {
        qn_arena arena = {0};
        qn_buf text = {0};
        char key[16];
        qn_buf_putc(&text, '{');
        for (int i = 0; i < n; i++) qn_buf_printf(&text, "%s\"k%d\":%d", i ? "," : "", i * 37 % 300, i);
        qn_buf_putc(&text, '}');
        const qn_value *v = read(&arena, text.data);
        assert_int_equal(v->n, n);
        for (int i = 0; i < n; i++) {
            int length = snprintf(key, sizeof key, "k%d", i * 37 % 300);
            const qn_value *child = qn_value_get(v, key, (size_t)length);
            assert_non_null(child);
            assert_int_equal(child->index, i);
        }
        assert_null(qn_value_get(v, "k", 1));
        assert_null(qn_value_get(v, "k1x", 3));
        qn_buf_free(&text);
        qn_arena_clear(&arena);
    }
}

static void test_refused(void **state)
{
    static const char *const texts[] = {"",
                                        "01",
                                        "-",
                                        "1.",
                                        "[1,]",
                                        "1e",
                                        "0x1",
                                        "1 2",
                                        "1-2",
                                        "-01",
                                        "00",
                                        "1.e3",
                                        "{\"a\":1,\"a\":2}",
                                        "NaN",
                                        "\"\\ud800\"",
                                        "1.2.3",
                                        "--1",
                                        "[1 2]",
                                        "0 0"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        qn_arena arena = {0};
        const qn_value *v = NULL;
        if (qn_value_read(&arena, "test", texts[i], strlen(texts[i]), &v) != QN_E_FORMAT)
            fail_msg("accepted: %s", texts[i]);
        qn_arena_clear(&arena);
    }
}

/* A value that was read before has the numbers that it was written with. */
static void test_of_json(void **state)
{
    static const char text[] = "[0.1, 19.99, -1e-7, 123456789012, 1e300, true, null, {\"a\": [\"b\"]}]";
    qn_arena arena = {0};
    int64_t steps = 1000;
    const qn_value *v = NULL;
    json_t *json = json_loads(text, 0, NULL);
    (void)state;
    assert_int_equal(qn_value_of_json(&arena, json, &v), QN_OK);
    assert_true(qn_value_equal(v, read(&arena, text), &steps));
    json_decref(json);
    qn_arena_clear(&arena);
}

static void test_show(void **state)
{
    static const char text[] = "{\"a\": [1.50, -2e7, null, true], \"b\": \"\\n\xc3\xa9\"}";
    qn_arena arena = {0};
    (void)state;
    for (size_t n = 0; n < sizeof text + 3; n++) {
        qn_buf out = {0};
        qn_value_show(read(&arena, text), n, &out);
        assert_true(out.length <= n + 3);
        if (out.length > 3) assert_memory_equal(out.data, text, out.length - 3);
        qn_buf_free(&out);
    }
    qn_arena_clear(&arena);
}

static void test_runs_out_of_memory(void **state)
{
    static const char text[] =
        "{\"a\": [1, 2.5, \"x\", {\"b\": null}], \"c\": 1, \"d\": 1, \"e\": 1, \"f\": 1, \"g\": 1, \"h\": 1, "
        "\"i\": 1, \"j\": 1, \"k\": 1}";
    (void)state;
    for (int64_t nth = 1; nth < 2000; nth++) {
        int64_t blocks = qn_mem_live_blocks();
        qn_arena arena = {0};
        const qn_value *v = NULL;
        qn_mem_fail_nth(nth);
        qn_status status = qn_value_read(&arena, "test", text, strlen(text), &v);
        qn_mem_fail_nth(0);
        qn_arena_clear(&arena);
        assert_int_equal(qn_mem_live_blocks(), blocks);
        if (status == QN_OK) return;
        assert_int_equal(status, QN_E_NOMEM);
    }
    fail();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_are_spelled_as_json),
        cmocka_unit_test(test_numbers_compare_exactly),
        cmocka_unit_test(test_multiples),
        cmocka_unit_test(test_multiples_of_long_numbers),
        cmocka_unit_test(test_integers),
        cmocka_unit_test(test_uris),
        cmocka_unit_test(test_pointers),
        cmocka_unit_test(test_equal),
        cmocka_unit_test(test_many_members),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_of_json),
        cmocka_unit_test(test_show),
        cmocka_unit_test(test_runs_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
