/* Arithmetic that notices when a result does not fit, numbers drawn by position, the clock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/random.h"
#include <cmocka.h>

static void test_sizes(void **state)
{
    size_t r = 77;
    assert_true(qn_add_size(SIZE_MAX - 1, 1, &r) && r == SIZE_MAX);
    assert_true(qn_mul_size(SIZE_MAX / 3, 3, &r) && r == SIZE_MAX);
    assert_true(qn_mul_size(SIZE_MAX, 0, &r) && r == 0);
    r = 77;
    assert_false(qn_add_size(SIZE_MAX, 1, &r));
    assert_false(qn_mul_size((size_t)1 << 32, (size_t)1 << 32, &r));
    assert_false(qn_align_size(SIZE_MAX - 14, 16, &r));
    assert_int_equal(r, 77); /* left alone */
    assert_true(qn_align_size(0, 16, &r) && r == 0);
    assert_true(qn_align_size(17, 16, &r) && r == 32);
    assert_true(qn_align_size(SIZE_MAX - 15, 16, &r) && r == SIZE_MAX - 15);
}

static void test_counts(void **state)
{
    int64_t r = 77;
    assert_false(qn_add_i64(INT64_MAX, 1, &r));
    assert_false(qn_add_i64(-1, 5, &r));
    assert_false(qn_add_i64(5, -1, &r));
    assert_false(qn_mul_i64((int64_t)1 << 32, (int64_t)1 << 31, &r));
    assert_false(qn_mul_i64(-1, -1, &r));
    assert_false(qn_mul_i64(0, INT64_MIN, &r));
    assert_int_equal(r, 77);
    assert_true(qn_add_i64(INT64_MAX - 1, 1, &r) && r == INT64_MAX);
    assert_true(qn_mul_i64((int64_t)1 << 31, (int64_t)1 << 31, &r) && r == (int64_t)1 << 62);
}

static void test_ranges(void **state)
{
    assert_true(qn_range_ok(0, 0, 0));
    assert_true(qn_range_ok(10, 0, 10));
    assert_true(qn_range_ok(3, 7, 10));
    assert_false(qn_range_ok(3, 8, 10));
    assert_false(qn_range_ok(11, 0, 10));
    assert_false(qn_range_ok(5, UINT64_MAX - 2, 10)); /* a sum that wraps */
    assert_true(qn_range_ok(UINT64_MAX, 0, UINT64_MAX));
}

static void test_random(void **state)
{
    enum { N = 40000, BINS = 16 };
    int bins[BINS] = {0}, ones[64] = {0};
    double sum = 0, lag = 0;
    for (uint64_t i = 0; i < N; i++) {
        double u = qn_random_unit(7, i);
        if (!(u >= 0 && u < 1)) fail_msg("draw %d", (int)i);
        sum += u;
        lag += (u - 0.5) * (qn_random_unit(8, i) - 0.5); /* the same positions of the next seed */
        bins[(int)(u * BINS)]++;
        for (int b = 0; b < 64; b++) ones[b] += (int)(qn_random_bits(i, 3) >> b & 1);
    }
    double chi = 0;
    for (int i = 0; i < BINS; i++) chi += (bins[i] - N / BINS) * (double)(bins[i] - N / BINS) / (N / BINS);
    assert_true(chi < 45);                              /* 15 degrees of freedom: one in 10,000 is above 44 */
    assert_true(sum / N > 0.492 && sum / N < 0.508);    /* 5 sigma */
    assert_true(lag / N > -0.0025 && lag / N < 0.0025); /* 6 sigma */
    for (int b = 0; b < 64; b++) assert_in_range(ones[b], N / 2 - 500, N / 2 + 500);
    assert_true(qn_random_bits(7, 5) == qn_random_bits(7, 5));
    assert_true(qn_random_bits(7, 5) != qn_random_bits(5, 7));
    assert_true(qn_random_bits(0, 0) != 0);
}

static void test_clock(void **state)
{
    int64_t before = qn_clock_ns();
    for (int i = 0; i < 1000; i++) {
        int64_t now = qn_clock_ns();
        assert_true(now >= before);
        before = now;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),  cmocka_unit_test(test_counts), cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_random), cmocka_unit_test(test_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
