/* Histograms, and how they are written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
/* cmocka wants these before it */
#include <cmocka.h>

#include "server/core/metrics.h"

static void test_histogram(void **state)
{
    qn_histogram h = {0};
    qn_buf text = {0};
    (void)state;
    qn_histogram_add(&h, 0.0004);
    qn_histogram_add(&h, 0.0005);
    qn_histogram_add(&h, 0.0006);
    qn_histogram_add(&h, 1e9);
    qn_histogram_add(&h, -1);
    assert_true(h.counts[0] == 3 && h.counts[1] == 1 && h.counts[QN_HISTOGRAM_BUCKETS] == 1);
    qn_histogram_write(&h, "x", "help", &text);
    assert_non_null(strstr(text.data, "x_bucket{le=\"0.0005\"} 3\n"));
    assert_non_null(strstr(text.data, "x_bucket{le=\"0.001\"} 4\n"));
    assert_non_null(strstr(text.data, "x_bucket{le=\"+Inf\"} 5\n"));
    assert_non_null(strstr(text.data, "x_count 5\n"));
    qn_buf_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_histogram)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
