/* The automaton of any number is that of its pattern. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "constrain/automaton/regex.h"
#include "constrain/json/any.h"

/* One digit before the point goes with any exponent that a double has, more digits with two digits of it. */
static const char pattern[] =
    "-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE]\\+?0*[0-9]{1,2})?|"
    "-?[0-9](\\.[0-9]+)?[eE]\\+?0*([12][0-9]{2}|30[0-7])|"
    "-?1(\\.[0-6][0-9]*)?[eE]\\+?0*308|"
    "-?(0|[1-9][0-9]*)(\\.[0-9]+)?[eE]-0*([0-9]{1,2}|[12][0-9]{2}|3[01][0-9]|32[0-3])";

static const struct {
    const char *text;
    int is_number;
} cases[] = {{"0", 1},        {"-1.5", 1},
             {"1e5", 1},      {"1e+308", 1},
             {"1.69E308", 1}, {"1.7e308", 0},
             {"2e308", 0},    {"9.9e307", 1},
             {"10e308", 0},   {"123.25e99", 1},
             {"1e999", 0},    {"1e-323", 1},
             {"1e-324", 0},   {"1e0000009", 1},
             {"1e-07", 1},    {"01", 0},
             {"1.", 0},       {"-", 0},
             {"", 0},         {"1e", 0},
             {"0e999", 0},    {"123456789012345678901234567890", 1}};

static void test_any_number(void **state)
{
    qn_program p;
    qn_dfa *expected = NULL;
    int32_t any;
    (void)state;
    assert_int_equal(qn_program_init(&p, &(qn_dfa_limits){0}), QN_OK);
    assert_int_equal(qn_any_value(&p, &any), QN_OK);
    assert_int_equal(qn_dfa_regex(pattern, strlen(pattern), QN_REGEX_WHOLE, NULL, &expected), QN_OK);
    const qn_dfa *numbers = p.dfas[p.values[any].number];
    assert_true(qn_dfa_equal(numbers, expected));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (qn_dfa_accepts(numbers, cases[i].text, strlen(cases[i].text)) != cases[i].is_number)
            fail_msg("%s", cases[i].text);
    qn_dfa_release(expected);
    qn_program_clear(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_any_number)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
