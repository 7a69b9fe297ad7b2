/* JSON through jansson: limits, what is refused, whose fault it is said to be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/json/json.h"
#include "base/json/json_value.h"
#include "base/mem.h"

static qn_status parse(const char *text, size_t n)
{
    json_t *value = NULL;
    qn_status status = qn_json_parse("x.json", text, n, &value);
    assert_int_equal(status == QN_OK, value != NULL);
    json_decref(value);
    return status;
}

static void test_accepted(void **state)
{
    static const char *const texts[] = {
        "2",
        " null ",
        "\"\"",
        "[]",
        "{\"a\":[1,2.5e3,-0,true,\"\\u0000\\ud83d\\ude00\"],\"b\":{}}",
        "\t\r\n[1]\n",
        "9223372036854775807",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (parse(texts[i], strlen(texts[i])) != QN_OK) fail_msg("%s: %s", texts[i], qn_last_error());
    json_t *value = NULL;
    assert_int_equal(qn_json_parse("x", "\"a\\u0000b\"", 10, &value), QN_OK);
    assert_int_equal(json_string_length(value), 3);
    json_decref(value);
    assert_int_equal(parse("[1]x", 3), QN_OK); /* n counts, not a NUL */
}

static void test_refused(void **state)
{
    static const char *const texts[] = {
        "",
        " ",
        "[",
        "[1,]",
        "{\"a\":1,}",
        "{\"a\":1,\"a\":2}",
        "{a:1}",
        "'a'",
        "NaN",
        "Infinity",
        "-",
        "01",
        "1.",
        "+1",
        ".5",
        "1e",
        "1e999",
        "\"\n\"",
        "\"\\x\"",
        "\"\\ud800\"",
        "\"\xff\"",
        "\"\xed\xa0\x80\"",
        "\xef\xbb\xbf{}",
        "1 2",
        "{} {}",
        "[]]",
        "2x",
        "// c\n1",
        "nul",
        "True",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (parse(texts[i], strlen(texts[i])) != QN_E_FORMAT) fail_msg("accepted: %s", texts[i]);
}

/* Of members with one key the last counts, where the first was; all else is as strict as ever. */
static void test_lenient(void **state)
{
    static const char text[] = "{\"a\":1,\"b\":2,\"a\":{\"c\":1,\"c\":3}}";
    json_t *value = NULL;
    (void)state;
    assert_int_equal(qn_json_parse("test", text, strlen(text), &value), QN_E_FORMAT);
    assert_int_equal(qn_json_parse_lenient("test", text, strlen(text), &value), QN_OK);
    char *written = json_dumps(value, JSON_COMPACT);
    assert_string_equal(written, "{\"a\":{\"c\":3},\"b\":2}");
    free(written); /* foreign: jansson's */
    json_decref(value);
    static const char *const bad[] = {"{\"a\":NaN}", "{\"a\":1e999}", "{\"a\":1,}", "{}{}", "", "{'a':1}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(qn_json_parse_lenient("test", bad[i], strlen(bad[i]), &value), QN_E_FORMAT);
}

/* What Python's json module writes and reads. */
static void test_python_words(void **state)
{
    static const struct {
        const char *text, *want; /* NULL: refused */
    } rows[] = {
        {"{\"a\":NaN,\"b\":[Infinity,-Infinity ]}", "{\"a\":\"NaN\",\"b\":[\"Infinity\",\"-Infinity\"]}"},
        {"{\"NaN\":\"x Infinity\",\"b\":1}", "{\"NaN\":\"x Infinity\",\"b\":1}"},
        {"{\"a\\\"NaN\":\n NaN\n}", "{\"a\\\"NaN\":\"NaN\"}"},
        {"NaN", "\"NaN\""},
        {"[NaNa]", NULL},
        {"[1NaN]", NULL},
        {"[-NaN]", NULL},
        {"[- Infinity]", NULL},
        {"[Infinity0]", NULL},
        {"[+Infinity]", NULL},
        {"[NaN,]", NULL},
        {"[\"NaN", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *value = NULL;
        qn_status status = qn_json_parse_python("test", rows[i].text, strlen(rows[i].text), &value);
        if (status != (rows[i].want ? QN_OK : QN_E_FORMAT)) fail_msg("%s: %s", rows[i].text, qn_last_error());
        if (!rows[i].want) continue;
        char *written = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
        assert_string_equal(written, rows[i].want);
        free(written); /* foreign: jansson's */
        json_decref(value);
    }
}

static void test_python_words_back(void **state)
{
    char text[] =
        "{\"NaN\": \"NaN\", \"a\": [\"Infinity\", \"-Infinity\", \"x\\\"NaN\", \"\"], \"Infinity\": 1}";
    (void)state;
    qn_json_unquote_python(text);
    assert_string_equal(text,
                        "{\"NaN\": NaN, \"a\": [Infinity, -Infinity, \"x\\\"NaN\", \"\"], \"Infinity\": 1}");
}

/* jansson alone takes the NUL after a number or a word for nothing. */
static void test_nul_is_refused(void **state)
{
    static const struct {
        const char *text;
        size_t n;
    } cases[] = {{"2\0", 2},
                 {"true\0", 5},
                 {"[1\0]", 4},
                 {"[true\0,2]", 9},
                 {"\0"
                  "1",
                  2},
                 {"{\"a\":1.5\0}", 9},
                 {"[]\0", 3},
                 {"\"a\0b\"", 5},
                 {"\0", 1},
                 {"2 \0 3", 5}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (parse(cases[i].text, cases[i].n) != QN_E_FORMAT) fail_msg("accepted: case %zu", i);
    parse("[1\0]", 4);
    assert_string_equal(qn_last_error(), "x.json: NUL byte at offset 2");
}

/* As Python writes int(1e30); strings that look so stay as they are. */
static void test_integers_beyond_64_bits(void **state)
{
    static const char text[] =
        "{\"model_max_length\": 1000000000000000019884624838656, \"9223372036854775808\": "
        "[9223372036854775807, -9223372036854775808, 9223372036854775808,-9223372036854775809, "
        "\"1000000000000000019884624838656 \\\" 99999999999999999999\", 1.5e3, true, -12]}";
    json_t *v = NULL;
    assert_int_equal(qn_json_parse("x.json", text, sizeof text - 1, &v), QN_OK);
    assert_true(json_real_value(json_object_get(v, "model_max_length")) == 1e30);
    const json_t *a = json_object_get(v, "9223372036854775808");
    assert_true(json_integer_value(json_array_get(a, 0)) == INT64_MAX);
    assert_true(json_integer_value(json_array_get(a, 1)) == INT64_MIN);
    assert_true(json_real_value(json_array_get(a, 2)) == 0x1p63);
    assert_true(json_real_value(json_array_get(a, 3)) == -0x1p63);
    assert_string_equal(json_string_value(json_array_get(a, 4)),
                        "1000000000000000019884624838656 \" 99999999999999999999");
    assert_true(json_real_value(json_array_get(a, 5)) == 1500);
    assert_true(json_integer_value(json_array_get(a, 7)) == -12);
    json_decref(v);
    assert_int_equal(parse("[1e400]", 7), QN_E_FORMAT);
    assert_int_equal(parse("[99999999999999999999, \"", 24), QN_E_FORMAT);
    for (int nth = 1; nth < 4; nth++) {
        size_t blocks = qn_mem_live_blocks();
        qn_mem_fail_nth(nth);
        qn_status status = qn_json_parse("x.json", text, sizeof text - 1, &v);
        qn_mem_fail_nth(0);
        if (status == QN_OK) json_decref(v);
        assert_true(status == QN_OK || status == QN_E_NOMEM);
        assert_int_equal(qn_mem_live_blocks(), blocks);
    }
}

/* Read and written with all of their digits; what is no JSON for qn_json_parse is none here. */
static void test_exact_integers(void **state)
{
    static const char *const texts[] = {
        "9223372036854775808",
        "-9223372036854775809",
        "[9223372036854775807,-9223372036854775808,9223372036854775808,1.5,\"99999999999999999999\"]",
        "{\"99999999999999999999\":{\"a\":[100000000000000000000000,[null,\"1\"]]},\"b\":\"\\\"\"}",
    };
    static const char *const bad[] = {
        "{99999999999999999999:1}", "099999999999999999999",        "[99999999999999999999 1]",
        "99999999999999999999\"\"", "[1e999,99999999999999999999]", "{\"a\":99999999999999999999,\"a\":1}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        json_t *value = NULL;
        qn_buf out = {0};
        assert_int_equal(qn_json_parse_exact("x", texts[i], strlen(texts[i]), &value), QN_OK);
        qn_json_write_value(&out, value);
        assert_string_equal(out.data, texts[i]);
        qn_buf_free(&out);
        json_decref(value);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *value = NULL;
        if (qn_json_parse_exact("x", bad[i], strlen(bad[i]), &value) != QN_E_FORMAT)
            fail_msg("accepted: %s", bad[i]);
    }
    json_t *value = NULL;
    static const char twice[] = "{\"a\":99999999999999999999,\"b\":1,\"a\":-88888888888888888888}";
    assert_int_equal(qn_json_parse_lenient("x", twice, strlen(twice), &value), QN_OK);
    assert_string_equal(qn_json_digits(json_object_get(value, "a")), "-88888888888888888888");
    assert_null(qn_json_digits(json_object_get(value, "b")));
    json_decref(value);
}

static void test_exact_integers_have_a_limit(void **state)
{
    char text[QN_JSON_DIGITS_MAX + 3];
    json_t *value = NULL;
    (void)state;
    memset(text, '7', sizeof text);
    text[0] = '[';
    text[QN_JSON_DIGITS_MAX + 1] = ']';
    assert_int_equal(qn_json_parse_exact("x", text, QN_JSON_DIGITS_MAX + 2, &value), QN_OK);
    assert_int_equal(strlen(qn_json_digits(json_array_get(value, 0))), QN_JSON_DIGITS_MAX);
    json_decref(value);
    text[QN_JSON_DIGITS_MAX + 1] = '7';
    text[QN_JSON_DIGITS_MAX + 2] = ']';
    assert_int_equal(qn_json_parse_line("x", text, sizeof text, &value), QN_E_FORMAT);
    assert_non_null(strstr(qn_last_error(), "an integer has more than 4300 digits"));
}

static void test_exact_integers_without_memory(void **state)
{
    static const char text[] = "{\"a\":[99999999999999999999,{\"b\":-99999999999999999999}]}";
    const int64_t blocks = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    (void)state;
    for (int nth = 1; nth < 500 && status != QN_OK; nth++) {
        json_t *value = NULL;
        qn_mem_fail_nth(nth);
        status = qn_json_parse_exact("x", text, strlen(text), &value);
        qn_mem_fail_nth(0);
        assert_true(status == QN_OK || status == QN_E_NOMEM);
        json_decref(value);
        assert_int_equal(qn_mem_live_blocks(), blocks);
    }
    assert_int_equal(status, QN_OK);
}

static void test_messages(void **state)
{
    assert_int_equal(parse("{\n \"a\": tru }", 13), QN_E_FORMAT);
    assert_true(strstr(qn_last_error(), "x.json: line 2 column ") == qn_last_error());
    assert_int_equal(parse("{\"a\n\x1b[2J\": 1}", 14), QN_E_FORMAT);
    for (const char *p = qn_last_error(); *p; p++) assert_true(*p >= ' ');
}

static void test_depth(void **state)
{
    enum { MANY = 3000000 };
    char *text = qn_alloc(MANY);
    for (int depth = QN_JSON_DEPTH_MAX - 1; depth <= QN_JSON_DEPTH_MAX + 1; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        assert_int_equal(parse(text, (size_t)depth * 2), depth <= QN_JSON_DEPTH_MAX ? QN_OK : QN_E_FORMAT);
    }
    assert_string_equal(qn_last_error(), "x.json: JSON nested deeper than 96");
    memset(text, '[', MANY);
    assert_int_equal(parse(text, MANY), QN_E_FORMAT);
    for (int i = 0; i < MANY - 5; i += 5) memcpy(text + i, "{\"\":[", 5);
    assert_int_equal(parse(text, MANY), QN_E_FORMAT);
    memset(text, ']', MANY); /* closing what is not open buys no depth */
    memset(text + MANY / 2, '[', MANY / 2);
    assert_false(qn_json_depth_ok(text, MANY, QN_JSON_DEPTH_MAX));
    qn_free(text);

    assert_true(qn_json_depth_ok("[[]]", 4, 2));
    assert_false(qn_json_depth_ok("[[]]", 4, 1));
    assert_true(qn_json_depth_ok("[\"[[[\\\"[[\\\\\"]", 13, 1)); /* brackets in a string are text */
    assert_true(qn_json_depth_ok("\"\\", 2, 0));                 /* ends behind a backslash */
    assert_true(qn_json_depth_ok("[][][]{}", 8, 1));
    assert_true(qn_json_depth_ok("", 0, 0));
}

/* Whatever allocation fails, a text is whole or refused. */
static void test_written_when_memory_runs_out(void **state)
{
    static const char text[] =
        "{\"first\":[1,2.5,{\"a key that is long enough to make the buffer grow\":null,"
        "\"another\":\"\\u00e9 and so on and so on\"}],\"second\":{\"third\":[true,false]}}";
    json_t *value;
    int n = 0;
    qn_status status = QN_E_NOMEM;
    assert_int_equal(qn_json_parse("x.json", text, strlen(text), &value), QN_OK);
    while (status == QN_E_NOMEM) {
        qn_buf out = {0};
        qn_mem_fail_nth(++n);
        status = qn_json_write(&out, value, JSON_COMPACT | JSON_ENSURE_ASCII);
        qn_mem_fail_nth(0);
        if (status == QN_OK)
            assert_string_equal(out.data, "{\"first\":[1,2.5,{\"a key that is long enough to make the "
                                          "buffer grow\":null,\"another\":\"\\u00E9 and so on and so "
                                          "on\"}],\"second\":{\"third\":[true,false]}}");
        qn_buf_free(&out);
    }
    assert_int_equal(status, QN_OK);
    assert_true(n > 5);
    json_decref(value);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepted),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_lenient),
        cmocka_unit_test(test_python_words),
        cmocka_unit_test(test_python_words_back),
        cmocka_unit_test(test_nul_is_refused),
        cmocka_unit_test(test_integers_beyond_64_bits),
        cmocka_unit_test(test_exact_integers),
        cmocka_unit_test(test_exact_integers_have_a_limit),
        cmocka_unit_test(test_exact_integers_without_memory),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_written_when_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
