#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "base/utf8.h"
#include "cli/term/word_wrap.h"

/* Feeds text in pieces of 1 to 5 characters (seed 0: whole). The result is the caller's. */
static char *wrap(const char *text, int width, uint64_t seed)
{
    qn_word_wrap w = {0};
    qn_buf out = {0};
    qn_buf_append(&out, "", 0);
    qn_word_wrap_begin(&w, width);
    size_t length = strlen(text);
    for (size_t at = 0, i = 0; at < length; i++) {
        size_t piece = 0, n_characters = seed ? 1 + qn_random_bits(seed, i) % 5 : length;
        uint32_t c;
        for (size_t k = 0; k < n_characters && at + piece < length; k++)
            piece += qn_utf8_decode(text + at + piece, length - at - piece, &c);
        qn_word_wrap_put(&w, text + at, piece, &out);
        at += piece;
    }
    qn_word_wrap_flush(&w, &out);
    qn_word_wrap_end(&w);
    assert_int_equal(out.status, QN_OK);
    return qn_buf_take(&out, NULL);
}

static void expect(const char *text, int width, const char *want)
{
    for (uint64_t seed = 0; seed < 8; seed++) {
        char *got = wrap(text, width, seed);
        assert_string_equal(got, want);
        qn_free(got);
    }
}

static void test_words(void **state)
{
    expect("", 10, "");
    expect("one two three", 10, "one two\nthree");
    expect("one two three", 7, "one two\nthree");
    expect("one two three", 6, "one\ntwo\nthree");
    expect("one two three", 0, "one two three");
    expect("exact fits", 10, "exact fits");
    expect("exact  fits ", 10, "exact\nfits ");
    expect("full line! ", 10, "full line!");
    expect("a\n\nb c\n", 3, "a\n\nb c\n");
    expect("  in dent", 5, "  in\ndent");
    expect("a\tb c", 9, "a\tb\nc");
    expect("a\tb c", 11, "a\tb c");
}

static void test_long_words_are_the_terminals(void **state)
{
    expect("0123456789abc d", 10, "0123456789abc d");
    expect("x 0123456789abc d", 10, "x\n0123456789abc d");
    /* 13 columns of a long word leave 3 in the last line; 7 more fit, 8 do not. */
    expect("0123456789abc defghi", 10, "0123456789abc defghi");
    expect("0123456789abc defghij", 10, "0123456789abc\ndefghij");
}

static void test_wide_and_combined(void **state)
{
    expect("\xe6\xbc\xa2\xe5\xad\x97\xe6\xbc\xa2\xe5\xad\x97", 5,
           "\xe6\xbc\xa2\xe5\xad\x97\n\xe6\xbc\xa2\xe5\xad\x97");
    expect("ab\xe6\xbc\xa2z", 3, "ab\n\xe6\xbc\xa2z");
    /* e with a combining accent has one column. */
    expect("e\xcc\x81"
           "e\xcc\x81 ee",
           5,
           "e\xcc\x81"
           "e\xcc\x81 ee");
    /* No line begins with a closing mark. */
    expect("\xe6\xbc\xa2\xe5\xad\x97\xe3\x80\x82", 5, "\xe6\xbc\xa2\n\xe5\xad\x97\xe3\x80\x82");
    /* A pair that is joined into one sign is not split. */
    expect("\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x9a\x80", 3, "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x9a\x80");
}

static void test_code_is_left_alone(void **state)
{
    expect("a b c d\n```c\nint a, b, c;\n```\na b c d", 4, "a b\nc d\n```c\nint a, b, c;\n```\na b\nc d");
    expect("~~~\na b c d\n```\n~~~\na b c d", 4, "~~~\na b c d\n```\n~~~\na b\nc d");
    expect("  ```\na b c d", 4, "  ```\na b c d");
    expect("a ```\na b c d", 4, "a\n```\na b\nc d");
    expect("``` a b c d", 4, "``` a b c d");
    expect("`` a b c d", 4, "`` a\nb c\nd");
}

static void test_controls_do_not_pass(void **state)
{
    expect("a\033[2Jb\r\x7f", 0, "a^[[2Jb^M^?");
    expect("a\xc2\x9b"
           "2J",
           20,
           "a\xef\xbf\xbd"
           "2J");
    expect("abc \033d", 5, "abc\n^[d");
}

static void test_marks_have_no_width(void **state)
{
    qn_word_wrap w = {0};
    qn_buf out = {0};
    qn_word_wrap_begin(&w, 7);
    qn_word_wrap_mark(&w, "\033[2m");
    qn_word_wrap_put(&w, "one ", 4, &out);
    qn_word_wrap_mark(&w, "\033[0m");
    qn_word_wrap_put(&w, "two three", 9, &out);
    qn_word_wrap_flush(&w, &out);
    assert_string_equal(out.data, "\033[2mone \033[0mtwo\nthree");
    qn_word_wrap_end(&w);
    qn_buf_free(&out);
}

/* On random texts: nothing but spaces and line ends changes, and no line is wider than asked unless it is one
 * word. */
static void test_random(void **state)
{
    static const char *const pieces[] = {
        "a", "bc", " ", "  ", "\xc3\xa9", "\xe6\xbc\xa2", "\n", "word", "-", "\xf0\x9f\x98\x80"};
    for (uint64_t seed = 1; seed <= 300; seed++) {
        qn_buf text = {0};
        qn_buf_append(&text, "", 0);
        size_t n = qn_random_bits(seed, 1) % 60;
        int width = 4 + (int)(qn_random_bits(seed, 2) % 12);
        for (size_t i = 0; i < n; i++) qn_buf_puts(&text, pieces[qn_random_bits(seed, 10 + i) % 10]);
        char *got = wrap(text.data, width, seed);
        const char *a = text.data, *b = got;
        for (;;) {
            a += strspn(a, " \n"), b += strspn(b, " \n");
            assert_int_equal(*a, *b);
            if (!*a) break;
            a++, b++;
        }
        for (const char *line = got; *line;) {
            size_t length = strcspn(line, "\n");
            int columns = 0;
            uint32_t c;
            for (size_t i = 0; i < length; i += qn_utf8_decode(line + i, length - i, &c)) {
                (void)qn_utf8_decode(line + i, length - i, &c);
                columns += qn_utf8_width(c);
            }
            if (columns > width) {
                size_t spaces = strspn(line, " ");
                assert_true(memchr(line + spaces, ' ', length - spaces) == NULL || columns > 2 * width ||
                            strcspn(line + spaces, " ") > (size_t)width - spaces);
            }
            line += length + (line[length] == '\n');
        }
        qn_free(got);
        qn_buf_free(&text);
    }
}

static void test_allocation_failures(void **state)
{
    int64_t live = qn_mem_live_blocks();
    for (int64_t nth = 1;; nth++) {
        qn_word_wrap w = {0};
        qn_buf out = {0};
        qn_mem_fail_nth(nth);
        qn_word_wrap_begin(&w, 12);
        for (int i = 0; i < 40; i++) qn_word_wrap_put(&w, "some words    ", 14, &out);
        qn_word_wrap_flush(&w, &out);
        qn_mem_fail_nth(0);
        qn_status status = out.status;
        assert_true(status != QN_OK || out.length > 40 * 10);
        qn_word_wrap_end(&w);
        qn_buf_free(&out);
        assert_int_equal(qn_mem_live_blocks(), live);
        if (status == QN_OK) break;
        assert_int_equal(status, QN_E_NOMEM);
        assert_true(nth < 2000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_long_words_are_the_terminals),
        cmocka_unit_test(test_wide_and_combined),
        cmocka_unit_test(test_code_is_left_alone),
        cmocka_unit_test(test_controls_do_not_pass),
        cmocka_unit_test(test_marks_have_no_width),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
