#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <jansson.h>
#include <string.h>

#include "base/mem.h"
#include "constrain/automaton/formats.h"
#include "constrain/automaton/regex.h"
#include "tests/support/fixtures.h"

static qn_dfa *format(const char *name)
{
    qn_dfa *d = NULL;
    if (qn_dfa_format(name, NULL, &d) != QN_OK) fail_msg("%s: %s", name, qn_last_error());
    return d;
}

static int is_leap_year(int y)
{
    return (y % 4 == 0 && y % 100 != 0) || y % 400 == 0;
}

static void test_every_date(void **state)
{
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    qn_dfa *d = format("date");
    for (int y = 0; y < 10000; y += y >= 1880 && y < 2120 ? 1 : 7) {
        for (int m = 0; m < 14; m++) {
            for (int day = 0; day < 33; day++) {
                char text[40];
                int n = snprintf(text, sizeof text, "%04d-%02d-%02d", y, m, day);
                int last = m < 1 || m > 12 ? 0 : days[m - 1] + (m == 2 && is_leap_year(y));
                assert_int_equal(qn_dfa_accepts(d, text, (size_t)n), day >= 1 && day <= last);
            }
        }
    }
    qn_dfa_release(d);
}

static void test_every_time(void **state)
{
    qn_dfa *d = format("time");
    char text[60];
    int n;
    for (int h = 0; h < 26; h++) {
        for (int m = 0; m < 62; m++) {
            for (int s = 0; s < 63; s++) {
                n = snprintf(text, sizeof text, "%02d:%02d:%02dZ", h, m, s);
                int want = h < 24 && m < 60 && (s < 60 || (s == 60 && h == 23 && m == 59));
                assert_int_equal(qn_dfa_accepts(d, text, (size_t)n), want);
            }
        }
    }
    for (int local = 0; local < 24 * 60; local++) {
        for (int offset = 0; offset < 25 * 60; offset += 5) {
            for (int sign = -1; sign <= 1; sign += 2) {
                n = snprintf(text, sizeof text, "%02d:%02d:60.5%c%02d:%02d", local / 60, local % 60,
                             sign > 0 ? '+' : '-', offset / 60, offset % 60);
                int utc = (local - sign * offset + 2 * 24 * 60) % (24 * 60);
                /* Offsets that are no multiple of 15 minutes are in use nowhere: not taken, as the header says. */
                int want = offset < 24 * 60 && utc == 23 * 60 + 59 && offset % 15 == 0;
                if (qn_dfa_accepts(d, text, (size_t)n) != want) fail_msg("%s: expected %d", text, want);
                memcpy(text + 6, "59", 2);
                assert_int_equal(qn_dfa_accepts(d, text, (size_t)n), offset < 24 * 60);
            }
        }
    }
    qn_dfa_release(d);
}

/* The automaton of addresses is that of RFC 4291's nine forms as RFC 3986 writes them down. */
static void test_every_address(void **state)
{
#define OCTET "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define H16 "[\\dA-Fa-f]{1,4}"
#define LS32 "(?:" H16 ":" H16 "|" OCTET "(?:\\." OCTET "){3})"
    static const char nine[] =
        "(?:" H16 ":){6}" LS32 "|::(?:" H16 ":){5}" LS32 "|(?:" H16 ")?::(?:" H16 ":){4}" LS32 "|(?:(?:" H16
        ":){0,1}" H16 ")?::(?:" H16 ":){3}" LS32 "|(?:(?:" H16 ":){0,2}" H16 ")?::(?:" H16 ":){2}" LS32
        "|(?:(?:" H16 ":){0,3}" H16 ")?::" H16 ":" LS32 "|(?:(?:" H16 ":){0,4}" H16 ")?::" LS32 "|(?:(?:" H16
        ":){0,5}" H16 ")?::" H16 "|(?:(?:" H16 ":){0,6}" H16 ")?::";
    qn_dfa *a = NULL, *b = format("ipv6");
    assert_int_equal(qn_dfa_regex(nine, sizeof nine - 1, QN_REGEX_WHOLE, NULL, &a), QN_OK);
    assert_true(qn_dfa_equal(a, b));
    qn_dfa_release(a);
    qn_dfa_release(b);
    static const struct {
        const char *name, *before, *behind;
    } places[] = {{"uri", "a://u@[", "]:8/p"},
                  {"uri-reference", "//[", "]"},
                  {"iri", "a://[", "]/\xc3\xa9"},
                  {"email", "a@[IPv6:", "]"}};
    static const char *const inside[] = {
        "::1", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4", "1::2::3", ":::", "1:2", "\x01", ""};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        qn_dfa *d = format(places[i].name);
        for (size_t k = 0; k < sizeof inside / sizeof *inside; k++) {
            char text[100];
            int n = snprintf(text, sizeof text, "%s%s%s", places[i].before, inside[k], places[i].behind);
            if (qn_dfa_accepts(d, text, (size_t)n) != (k < 3)) fail_msg("%s: %s", places[i].name, text);
        }
        qn_dfa_release(d);
    }
}

static void test_names(void **state)
{
    qn_dfa *d = NULL;
    assert_int_equal(qn_dfa_format("telephone", NULL, &d), QN_E_NOT_FOUND);
    assert_int_equal(qn_dfa_format("regex", NULL, &d), QN_E_UNSUPPORTED);
    assert_int_equal(qn_dfa_format("idn-hostname", NULL, &d), QN_E_UNSUPPORTED);
    assert_null(d);
}

static void test_more(void **state)
{
    static const struct {
        const char *name, *text;
        int want;
    } cases[] = {
        {"email", "a@b", 1},
        {"email", "a@-b.com", 0},
        {"email", "a@b..com", 0},
        {"email", "\"a\\\"b\"@b.com", 1},
        {"idn-email", "a@\xef\xbd\x81.com", 0}, /* a full-width letter */
        {"hostname", "3.2.1.ip6.arpa", 1},
        {"uri", "http://[::1]:80/x", 1},
        {"uri", "http://[::1", 0},
        {"uri", "http://[v1.a]/", 1},
        {"iri", "http://x/\xee\x80\x80", 0}, /* private use in a path */
        {"uuid", "", 0},
        {"duration", "P1YT1S", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_dfa *d = format(cases[i].name);
        if (qn_dfa_accepts(d, cases[i].text, strlen(cases[i].text)) != cases[i].want)
            fail_msg("%s: %s", cases[i].name, cases[i].text);
        qn_dfa_release(d);
    }
    char label[64], name[300];
    memset(label, 'a', 63);
    label[63] = 0;
    qn_dfa *d = format("hostname");
    int n = snprintf(name, sizeof name, "%s.%s.%s.%.61s", label, label, label, label);
    assert_int_equal(n, 253);
    assert_true(qn_dfa_accepts(d, name, 253));
    n = snprintf(name, sizeof name, "%s.%s.%s.%.62s", label, label, label, label);
    assert_false(qn_dfa_accepts(d, name, (size_t)n));
    n = snprintf(name, sizeof name, "%sa.com", label);
    assert_false(qn_dfa_accepts(d, name, (size_t)n));
    qn_dfa_release(d);
}

/* The groups of the official suite that are about formats and patterns of strings. */
static void test_suite(void **state)
{
    const char *path = qn_test_need_fixture("json_schema/test_suite.jsonl.gz");
    char command[500], *line = NULL;
    snprintf(command, sizeof command, "gzip -dc '%s'", path);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    size_t capacity = 0, n_formats = 0, n_patterns = 0;
    while (getline(&line, &capacity, f) > 0) {
        if (!strstr(line, "\"pattern\"") && !strstr(line, "optional/format/")) continue;
        json_error_t error;
        json_t *group = json_loads(line, JSON_ALLOW_NUL, &error);
        if (!group) fail_msg("%s: %.200s", error.text, line);
        const char *file = json_string_value(json_object_get(group, "file"));
        json_t *schema = json_object_get(group, "schema");
        const char *name = json_string_value(json_object_get(schema, "format"));
        json_t *pattern = json_object_get(schema, "pattern");
        qn_dfa *d = NULL;
        int is_format = name && strstr(file, "optional/format/");
        if (is_format) {
            qn_status s = qn_dfa_format(name, NULL, &d);
            if (!strcmp(name, "unknown"))
                assert_int_equal(s, QN_E_NOT_FOUND);
            else if (!strcmp(name, "regex") || !strcmp(name, "idn-hostname"))
                assert_int_equal(s, QN_E_UNSUPPORTED);
            else if (s != QN_OK)
                fail_msg("%s: %s", name, qn_last_error());
        } else if (pattern) {
            qn_status s = qn_dfa_regex(json_string_value(pattern), json_string_length(pattern), 0, NULL, &d);
            if (s != QN_OK) fail_msg("%s: %s", json_string_value(pattern), qn_last_error());
        }
        size_t i;
        json_t *test;
        if (d) {
            n_formats += (size_t)is_format;
            n_patterns += (size_t)!is_format;
            json_array_foreach(json_object_get(group, "tests"), i, test)
            {
                json_t *data = json_object_get(test, "data");
                if (!json_is_string(data)) continue;
                const char *text = json_string_value(data);
                int want = json_is_true(json_object_get(test, "valid"));
                /* What a label in Punycode stands for is not checked, so none is taken. */
                if (is_format && !strcmp(name, "hostname") && want && strstr(text, "xn--")) want = 0;
                if (qn_dfa_accepts(d, text, json_string_length(data)) != want)
                    fail_msg("%s: %s: expected %d", file,
                             json_string_value(json_object_get(test, "description")), want);
            }
        }
        qn_dfa_release(d);
        json_decref(group);
    }
    free(line); /* foreign */
    pclose(f);
    assert_true(n_formats > 30 && n_patterns > 20);
}

static void test_allocations(void **state)
{
    static const char *const names[] = {"time", "email", "uri"};
    for (size_t i = 0; i < 3; i++) {
        qn_dfa_formats_forget();
        int64_t blocks = qn_mem_live_blocks();
        for (int64_t n = 1; n < 2000; n++) {
            qn_dfa *d = NULL;
            qn_mem_fail_nth(n);
            qn_status s = qn_dfa_format(names[i], NULL, &d);
            qn_mem_fail_nth(0);
            qn_dfa_release(d);
            qn_dfa_formats_forget();
            assert_int_equal(qn_mem_live_blocks(), blocks);
            if (s == QN_OK) break;
            assert_int_equal(s, QN_E_NOMEM);
        }
    }
}

/* Formats that take long are made once. Whether limits refuse one does not depend on what was made before. */
static void test_kept(void **state)
{
    static const char *const names[] = {"email", "idn-email",     "hostname", "time",         "date-time",
                                        "uri",   "uri-reference", "iri",      "iri-reference"};
    const qn_dfa_limits small = {.steps_max = 1000}, large = {.steps_max = 100000000};
    int64_t blocks;
    (void)state;
    qn_dfa_formats_forget();
    blocks = qn_mem_live_blocks();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        qn_dfa *d = NULL, *again = NULL, *refused = NULL;
        assert_int_equal(qn_dfa_format(names[i], &small, &refused), QN_E_UNSUPPORTED);
        assert_int_equal(qn_dfa_format(names[i], NULL, &d), QN_OK);
        assert_int_equal(qn_dfa_format(names[i], &large, &again), QN_OK);
        assert_ptr_equal(d, again);
        assert_int_equal(qn_dfa_format(names[i], &small, &refused), QN_E_UNSUPPORTED);
        assert_true(d->size_bytes < 4 << 20);
        qn_dfa_release(d);
        qn_dfa_release(again);
    }
    assert_true(qn_mem_live_blocks() > blocks);
    qn_dfa_formats_forget();
    assert_int_equal(qn_mem_live_blocks(), blocks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_date), cmocka_unit_test(test_every_time),
        cmocka_unit_test(test_names),      cmocka_unit_test(test_every_address),
        cmocka_unit_test(test_more),       cmocka_unit_test(test_suite),
        cmocka_unit_test(test_kept),       cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
