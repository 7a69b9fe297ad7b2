/* JSON as Python's json.dumps writes it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "cli/constrain/instance_text.h"

static void expect(const char *text, int indent, const char *written)
{
    qn_arena arena = {0};
    qn_buf out = {0};
    const qn_value *v = NULL;
    if (qn_value_read(&arena, "test", text, strlen(text), &v) != QN_OK)
        fail_msg("%s: %s", text, qn_last_error());
    qn_instance_write(v, indent, &out);
    assert_int_equal(out.status, QN_OK);
    assert_string_equal(out.data, written);
    qn_buf_free(&out);
    qn_arena_clear(&arena);
}

/* Right sides are what Python 3 prints for json.dumps(json.loads(left), ensure_ascii=False). */
static void test_numbers(void **state)
{
    static const char *const cases[][2] = {
        {"0", "0"},
        {"-0", "0"},
        {"-0.0", "-0.0"},
        {"1.0", "1.0"},
        {"1e0", "1.0"},
        {"1.50", "1.5"},
        {"-12.25", "-12.25"},
        {"0.1", "0.1"},
        {"1E2", "100.0"},
        {"0.0001", "0.0001"},
        {"0.00001", "1e-05"},
        {"1.5e-7", "1.5e-07"},
        {"123456789012345678901234567890", "123456789012345678901234567890"},
        {"9007199254740993.0", "9007199254740992.0"},
        {"1e15", "1000000000000000.0"},
        {"1e16", "1e+16"},
        {"1.25e100", "1.25e+100"},
        {"5e-324", "5e-324"},
        {"1.7976931348623157e308", "1.7976931348623157e+308"},
        {"1e400", "Infinity"},
        {"0.30000000000000004", "0.30000000000000004"},
        {"123.0e-1", "12.3"},
        {"10.0", "10.0"},
        {"100.5", "100.5"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) expect(cases[i][0], -1, cases[i][1]);
}

static void test_strings(void **state)
{
    (void)state;
    expect("\"a\\u00e9\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\\u007f\\ud83d\\ude00\"", -1,
           "\"a\xc3\xa9\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\xf0\x9f\x98\x80\"");
}

static void test_layout(void **state)
{
    static const char text[] = "{\"a\":[1,{\"b\":[]},{}],\"c\":null,\"d\":{\"e\":true}}";
    (void)state;
    expect(text, -1, "{\"a\": [1, {\"b\": []}, {}], \"c\": null, \"d\": {\"e\": true}}");
    expect(text, 2,
           "{\n  \"a\": [\n    1,\n    {\n      \"b\": []\n    },\n    {}\n  ],\n  \"c\": null,\n  \"d\": "
           "{\n    \"e\": true\n  }\n}");
    expect("[]", 4, "[]");
    expect("[[0]]", 4, "[\n    [\n        0\n    ]\n]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_layout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
