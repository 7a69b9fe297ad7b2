/* Learning rates: the warm-up, where each kind begins and ends, and schedules without room for a part. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>

#include "train/step/schedule.h"

static void rate_is(const qn_schedule *s, int64_t i, double want)
{
    const double got = qn_schedule_rate(s, i);
    if (!(fabs(got - want) <= 1e-15 + 1e-12 * fabs(want)))
        fail_msg("step %d: %.17g, expected %.17g", (int)i, got, want);
}

static void kinds(void **state)
{
    const qn_schedule constant = {QN_SCHEDULE_CONSTANT, 0.5, 0.1, 4, 12};
    for (int64_t i = 0; i < 4; i++) rate_is(&constant, i, 0.125 * (double)(i + 1));
    for (int64_t i = 4; i < 20; i++) rate_is(&constant, i, 0.5);

    const qn_schedule linear = {QN_SCHEDULE_LINEAR, 0.5, 0.1, 4, 12};
    for (int64_t i = 0; i < 4; i++) rate_is(&linear, i, 0.125 * (double)(i + 1));
    for (int64_t i = 4; i <= 12; i++) rate_is(&linear, i, 0.5 - 0.05 * (double)(i - 4));
    rate_is(&linear, 100, 0.1);

    const qn_schedule cosine = {QN_SCHEDULE_COSINE, 0.5, 0, 4, 12};
    rate_is(&cosine, 4, 0.5);
    rate_is(&cosine, 8, 0.25);
    rate_is(&cosine, 12, 0);
    rate_is(&cosine, INT64_MAX, 0);
    for (int64_t i = 4; i < 12; i++) {
        assert_true(qn_schedule_rate(&cosine, i + 1) < qn_schedule_rate(&cosine, i));
        rate_is(&cosine, 16 - i, 0.5 - qn_schedule_rate(&cosine, i)); /* the two halves */
    }
}

/* No step is without a rate, except where it was asked for. */
static void edges(void **state)
{
    for (qn_schedule_kind kind = QN_SCHEDULE_CONSTANT; kind <= QN_SCHEDULE_COSINE; kind++) {
        const qn_schedule one = {kind, 2, 0, 0, 1}, all_warm = {kind, 2, 0, 8, 8}, more = {kind, 2, 0, 8, 3};
        rate_is(&one, 0, 2);
        rate_is(&all_warm, 0, 0.25);
        rate_is(&all_warm, 7, 2);
        rate_is(&more, 2, 0.75);
        for (int64_t i = 0; i < 8; i++) assert_true(qn_schedule_rate(&all_warm, i) > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(kinds), cmocka_unit_test(edges)};
    return cmocka_run_group_tests_name("schedule", tests, NULL, NULL);
}
