#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "constrain/automaton/numbers.h"

static qn_dfa *number(qn_number_bounds b)
{
    qn_dfa *d = NULL;
    if (qn_dfa_number(&b, NULL, &d) != QN_OK) fail_msg("%s", qn_last_error());
    return d;
}

static void expect(qn_number_bounds b, const char *text, int want)
{
    qn_dfa *d = number(b);
    if (qn_dfa_accepts(d, text, strlen(text)) != want) fail_msg("%s: expected %d", text, want);
    qn_dfa_release(d);
}

static void test_examples(void **state)
{
    static const char *const spelled[] = {"0",         "-0",    "-0.0", "1e-07", "1.5e+16",
                                          "12345.678", "1E400", "0e5",  "12e3"};
    static const char *const misspelled[] = {"",   "-",  "00",  "01",  "1.", ".5",
                                             "+1", "1e", "1e+", "0x1", "1 ", "NaN"};
    for (size_t i = 0; i < sizeof spelled / sizeof *spelled; i++) {
        expect((qn_number_bounds){0}, spelled[i], 1);
        expect((qn_number_bounds){.minimum = "0"}, spelled[i], 1);
    }
    for (size_t i = 0; i < sizeof misspelled / sizeof *misspelled; i++)
        expect((qn_number_bounds){0}, misspelled[i], 0);
    qn_number_bounds integer = {.integer = 1}, above = {.exclusive_minimum = "0"},
                     small = {.maximum = "1e-7"};
    expect(integer, "1.0", 1);
    expect(integer, "1.50", 0);
    expect(integer, "-0", 1);
    expect(integer, "-0.0", 1);
    expect(integer, "1e2", 1);
    expect(integer, "1e-2", 0);
    expect(integer, "1.5e+16", 1);
    expect(integer, "1.5e0", 0);
    expect(integer, "1.1234567890123456e+16", 1);
    expect(integer, "9.007199254740993e+18", 1);
    expect(integer, "-1.7976931348623157e+308", 1);
    expect(integer, "1.5e-16", 0);
    expect(integer, "7e0", 1);
    expect(integer, "1.2345678901234567e+16", 1);
    expect(integer, "123456789012345678901234567890", 1);
    expect(above, "0", 0);
    expect(above, "-0", 0);
    expect(above, "0.0e7", 0);
    expect(above, "1e-300", 1);
    expect(above, "12e-300", 1);
    expect(above, "-1", 0);
    expect(small, "1e-07", 1);
    expect(small, "1.0001e-07", 0);
    expect(small, "0.0000001", 1);
    expect(small, "0.00000011", 0);
    expect(small, "9.9e-8", 1);
    expect(small, "-5", 1);
    expect((qn_number_bounds){.maximum = "1.7976931348623157e+308"}, "1.7976931348623157e+308", 1);
    expect((qn_number_bounds){.maximum = "1.7976931348623157e+308"}, "1.7976931348623158e+308", 0);
    expect((qn_number_bounds){.minimum = "-12.5"}, "-12.5", 1);
    expect((qn_number_bounds){.minimum = "-12.5"}, "-12.50", 1);
    expect((qn_number_bounds){.minimum = "-12.5"}, "-12.51", 0);
    expect((qn_number_bounds){.multiple_of = "0.01"}, "19.99", 1);
    expect((qn_number_bounds){.multiple_of = "0.01"}, "19.990", 1);
    expect((qn_number_bounds){.multiple_of = "0.01"}, "19.991", 0);
    expect((qn_number_bounds){.multiple_of = "0.0001"}, "0.0075", 1);
    expect((qn_number_bounds){.multiple_of = "0.0001"}, "0.00751", 0);
    expect((qn_number_bounds){.multiple_of = "1.5"}, "4.5", 1);
    expect((qn_number_bounds){.multiple_of = "1.5"}, "35", 0);
    expect((qn_number_bounds){.multiple_of = "0.5"}, "1e308", 1);
    expect((qn_number_bounds){.multiple_of = "1e-8"}, "1e-07", 1);
    expect((qn_number_bounds){.multiple_of = "1000000"}, "12000000", 1);
    expect((qn_number_bounds){.multiple_of = "1000000"}, "12500000", 0);
    expect((qn_number_bounds){.multiple_of = "1e300"}, "0", 1);
    expect((qn_number_bounds){.integer = 1, .multiple_of = "86400"}, "172800", 1);
    qn_dfa *d = number((qn_number_bounds){.minimum = "5", .maximum = "4"});
    assert_true(qn_dfa_is_empty(d));
    qn_dfa_release(d);
}

static void test_refusals(void **state)
{
    static const struct {
        qn_number_bounds bounds;
        qn_status status;
        const char *part;
    } cases[] = {
        {{.minimum = "abc"}, QN_E_FORMAT, "minimum"},
        {{.maximum = "01"}, QN_E_FORMAT, "maximum"},
        {{.exclusive_maximum = "1."}, QN_E_FORMAT, "exclusiveMaximum"},
        {{.multiple_of = "0"}, QN_E_FORMAT, "multipleOf"},
        {{.multiple_of = "-2"}, QN_E_FORMAT, "multipleOf"},
        {{.multiple_of = "0.123456789"}, QN_E_UNSUPPORTED, "multipleOf"},
        {{.minimum = "1e5000"}, QN_E_UNSUPPORTED, "exponent"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_dfa *d = NULL;
        assert_int_equal(qn_dfa_number(&cases[i].bounds, NULL, &d), cases[i].status);
        assert_non_null(strstr(qn_last_error(), cases[i].part));
        assert_null(d);
    }
}

/* --- Random bounds and spellings beside exact arithmetic: everything times 10^12 is a whole number. --- */

typedef __int128 scaled;
enum { SCALE = 12 };

static scaled power(int n)
{
    scaled p = 1;
    while (n-- > 0) p *= 10;
    return p;
}

typedef struct {
    char text[60];
    scaled value;
    int is_plain; /* no exponent, or one digit but 0 before the point */
} spelled;

static spelled draw_number(uint64_t seed, uint64_t *n, int with_exponent)
{
    spelled s = {.is_plain = 1};
    char *p = s.text;
    int n_whole = (int)(qn_random_bits(seed, (*n)++) % 4), n_behind = (int)(qn_random_bits(seed, (*n)++) % 4);
    int is_negative = qn_random_bits(seed, (*n)++) % 2, exponent = 0;
    scaled digits = 0;
    if (is_negative) *p++ = '-';
    if (n_whole == 0) *p++ = '0';
    for (int i = 0; i < n_whole; i++) {
        int d = (int)(qn_random_bits(seed, (*n)++) % (i ? 10 : 9)) + (i ? 0 : 1);
        if (qn_random_bits(seed, (*n)++) % 3 == 0 && i) d = 0;
        *p++ = (char)('0' + d);
        digits = digits * 10 + d;
    }
    if (n_behind) *p++ = '.';
    for (int i = 0; i < n_behind; i++) {
        int d = qn_random_bits(seed, (*n)++) % 3 == 0 ? 0 : (int)(qn_random_bits(seed, (*n)++) % 10);
        *p++ = (char)('0' + d);
        digits = digits * 10 + d;
    }
    *p = 0;
    if (with_exponent) {
        exponent = (int)(qn_random_bits(seed, (*n)++) % 9) - 4;
        snprintf(p, 20, "e%s%02d", exponent < 0 ? "-" : "+", exponent < 0 ? -exponent : exponent);
        s.is_plain = digits == 0 || n_whole == 1;
    }
    s.value = digits * power(SCALE - n_behind + exponent) * (is_negative ? -1 : 1);
    return s;
}

static void test_random(void **state)
{
    size_t n_accepted = 0, n_all = 0;
    for (uint64_t seed = 1; seed < 1500; seed++) {
        uint64_t n = 0;
        uint64_t which = qn_random_bits(seed, n++);
        spelled limit[4];
        const char *text[4] = {0};
        for (int i = 0; i < 4; i++) {
            limit[i] = draw_number(seed, &n, qn_random_bits(seed, n++) % 3 == 0);
            if (which >> i & 1 && which >> (8 + i) & 1) text[i] = limit[i].text;
        }
        spelled by = draw_number(seed, &n, 0);
        const char *by_text = by.text;
        if (by.value < 0) by.value = -by.value, by_text++;
        qn_number_bounds b = {.integer = which >> 20 & 1,
                              .minimum = text[0],
                              .maximum = text[1],
                              .exclusive_minimum = text[2],
                              .exclusive_maximum = text[3]};
        if (which >> 21 & 1 && by.value) b.multiple_of = by_text;
        qn_dfa *d = NULL;
        qn_status st = qn_dfa_number(&b, NULL, &d);
        if (st == QN_E_UNSUPPORTED && b.multiple_of) continue;
        if (st != QN_OK) fail_msg("%s", qn_last_error());
        for (int k = 0; k < 100; k++) {
            spelled x = draw_number(seed, &n, k % 3 == 0);
            if (k % 7 == 1) x = limit[k % 4]; /* the bounds themselves */
            int want = (!text[0] || x.value >= limit[0].value) && (!text[1] || x.value <= limit[1].value) &&
                       (!text[2] || x.value > limit[2].value) && (!text[3] || x.value < limit[3].value) &&
                       (!b.integer || x.value % power(SCALE) == 0) &&
                       (!b.multiple_of || x.value % by.value == 0);
            int got = qn_dfa_accepts(d, x.text, strlen(x.text));
            n_accepted += (size_t)got;
            n_all++;
            int has_exponent = strchr(x.text, 'e') != NULL, has_divisor = b.integer || b.multiple_of;
            /* Of spellings with an exponent, those that repr writes are taken, which end in no 0. */
            int must = want && x.is_plain && !(has_exponent && has_divisor && strchr(x.text, '.'));
            if ((got && !want) || (!got && must))
                fail_msg("seed %d: %s: %d, min %s max %s above %s below %s integer %d multiple %s", (int)seed,
                         x.text, got, text[0], text[1], text[2], text[3], b.integer, b.multiple_of);
        }
        qn_dfa_release(d);
    }
    assert_true(n_accepted > n_all / 20);
}

static void test_allocations(void **state)
{
    int64_t blocks = qn_mem_live_blocks();
    for (int64_t n = 1; n < 2000; n++) {
        qn_dfa *d = NULL;
        qn_number_bounds b = {.integer = 1, .minimum = "-12", .exclusive_maximum = "300", .multiple_of = "4"};
        qn_mem_fail_nth(n);
        qn_status s = qn_dfa_number(&b, NULL, &d);
        qn_mem_fail_nth(0);
        qn_dfa_release(d);
        assert_int_equal(qn_mem_live_blocks(), blocks);
        if (s == QN_OK) break;
        assert_int_equal(s, QN_E_NOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
