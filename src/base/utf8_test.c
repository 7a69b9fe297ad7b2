/* UTF-8: what is valid, and that what is not is cut as Python's errors="replace" cuts it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/buf.h"
#include "base/utf8.h"

#define FFFD "\xef\xbf\xbd"

/* Lossy text of s[0..n) in out; returns its length, at most 3 * n. */
static size_t replace(const char *s, size_t n, char *out)
{
    size_t length = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int incomplete;
        size_t used = qn_utf8_decode(s + i, n - i, &cp);
        if (used) {
            length += qn_utf8_encode(cp, out + length);
        } else {
            used = qn_utf8_invalid_length(s + i, n - i, &incomplete);
            memcpy(out + length, FFFD, 3);
            length += 3;
        }
        assert_true(used >= 1 && used <= n - i);
        i += used;
    }
    return length;
}

/* ~ stands for U+FFFD; from bytes.decode("utf-8", "replace") of Python 3.11. */
static void test_table(void **state)
{
    static const struct {
        const char *in, *want;
    } cases[] = {
        {"\xc0\x80", "~~"},
        {"\xc1\xbf", "~~"},
        {"\xe0\x80\x80", "~~~"},
        {"\xe0\x9f\xbf", "~~~"},
        {"\xed\xa0\x80", "~~~"},
        {"\xed\xbf\xbf", "~~~"},
        {"\xf0\x80\x80\x80", "~~~~"},
        {"\xf0\x8f\xbf\xbf", "~~~~"},
        {"\xf4\x90\x80\x80", "~~~~"},
        {"\xf5\x80\x80\x80", "~~~~"},
        {"\xff", "~"},
        {"\x80", "~"},
        {"\xc2", "~"},
        {"\xc2\x41", "~A"},
        {"\xe2\x82", "~"},
        {"\xe2\x82\x41", "~A"},
        {"\xe2\x82\xe2\x82\xac", "~\xe2\x82\xac"},
        {"\xf0\x9f", "~"},
        {"\xf0\x9f\x98", "~"},
        {"\xf0\x9f\x98\x41", "~A"},
        {"\xf1\x80\x80\xc2\x80", "~\xc2\x80"},
        {"\x61\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64", "a~~~b~c~~d"}, /* Unicode, table 3-8 */
        {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", "~~~~A"},                      /* table 3-11 */
        {"\xed\x9f\xbf", "\xed\x9f\xbf"},
        {"\xee\x80\x80", "\xee\x80\x80"},
        {"\xef\xbf\xbf", "\xef\xbf\xbf"},
        {"\xf0\x90\x80\x80", "\xf0\x90\x80\x80"},
        {"\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char got[64];
        qn_buf want = {0};
        for (const char *p = cases[i].want; *p; p++)
            qn_buf_append(&want, *p == '~' ? FFFD : p, *p == '~' ? 3 : 1);
        got[replace(cases[i].in, strlen(cases[i].in), got)] = 0;
        if (strcmp(got, want.data)) fail_msg("case %zu", i);
        qn_buf_free(&want);
    }
}

/* All strings of four bytes from the borders of the table of well-formed sequences, as one FNV-1a hash:
 *   for t in itertools.product(edge, repeat=4): h = fnv(h, bytes(t).decode("utf-8", "replace").encode()) */
static void test_borders(void **state)
{
    static const uint8_t edge[] = {0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf,
                                   0xc0, 0xc1, 0xc2, 0xdf, 0xe0, 0xe1, 0xec, 0xed, 0xee,
                                   0xef, 0xf0, 0xf1, 0xf3, 0xf4, 0xf5, 0xff};
    enum { N = sizeof edge };
    uint64_t hash = 0xcbf29ce484222325u;
    for (int i = 0; i < N * N * N * N; i++) {
        char in[4] = {(char)edge[i / (N * N * N)], (char)edge[i / (N * N) % N], (char)edge[i / N % N],
                      (char)edge[i % N]};
        char out[12];
        size_t n = replace(in, 4, out);
        for (size_t j = 0; j < n; j++) hash = (hash ^ (uint8_t)out[j]) * 0x100000001b3u;
    }
    assert_true(hash == 0xb9eb8d0b45e0b6d1u);
}

static void test_every_code_point(void **state)
{
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        char s[4];
        uint32_t back = 0;
        size_t n = qn_utf8_encode(cp, s), used = qn_utf8_decode(s, n, &back);
        int surrogate = cp >= 0xd800 && cp <= 0xdfff;
        if (used != (surrogate ? 0 : n) || (used && back != cp)) fail_msg("U+%04X", (unsigned)cp);
        if (n > 1 && qn_utf8_decode(s, n - 1, &back)) fail_msg("U+%04X cut short", (unsigned)cp);
    }
}

static void test_incomplete(void **state)
{
    int incomplete;
    assert_int_equal(qn_utf8_invalid_length("\xf0\x9f\x98", 3, &incomplete), 3);
    assert_true(incomplete);
    assert_int_equal(qn_utf8_invalid_length("\xf0\x9f\x98z", 4, &incomplete), 3);
    assert_false(incomplete);
    assert_int_equal(qn_utf8_invalid_length("\xe0\x9f", 2, &incomplete), 1);
    assert_false(incomplete);
    assert_int_equal(qn_utf8_invalid_length("\x80", 1, &incomplete), 1);
    assert_false(incomplete);
    assert_int_equal(qn_utf8_valid_prefix("a\xc3\xa9\xc3", 4), 3);
    assert_int_equal(qn_utf8_valid_prefix("ab", 2), 2);
    assert_int_equal(qn_utf8_valid_prefix("\xff", 1), 0);
    assert_int_equal(qn_utf8_valid_prefix(NULL, 0), 0);
}

static void test_width(void **state)
{
    static const struct {
        uint32_t code_point;
        int width;
    } cases[] = {{'a', 1},     {0xe9, 1},   {0x301, 0}, {0x6f22, 2},
                 {0x1f600, 2}, {0x200d, 0}, {'\n', 0},  {0x110000, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(qn_utf8_width(cases[i].code_point), cases[i].width);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_borders),
        cmocka_unit_test(test_every_code_point),
        cmocka_unit_test(test_incomplete),
        cmocka_unit_test(test_width),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
