#include "tests/support/expect.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

void qn_test_numbers(qn_scope *s, qn_array *a, int64_t n, const double *want)
{
    double got[QN_TEST_NUMBERS_MAX];
    assert_true(n <= QN_TEST_NUMBERS_MAX);
    if (!a || qn_array_read(s, a, QN_DTYPE_F64, got, n) != QN_OK)
        fail_msg("%s", qn_scope_status(s) ? qn_last_error() : "no array, or another number of elements");
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= 1e-5 * (1 + fabs(want[i]))) && !(isnan(got[i]) && isnan(want[i])))
            fail_msg("element %d is %.9g, not %.9g", (int)i, got[i], want[i]);
}

void qn_test_shape(const qn_array *a, int n_dims, const int64_t *dims)
{
    assert_int_equal(qn_array_n_dims(a), n_dims);
    for (int i = 0; i < n_dims; i++) assert_int_equal(qn_array_dim(a, i), dims[i]);
}

void qn_test_alike(qn_scope *s, qn_array *a, qn_array *b, double difference)
{
    int64_t dims[QN_ARRAY_DIMS_MAX];
    double most;
    for (int i = 0; i < qn_array_n_dims(a); i++) dims[i] = qn_array_dim(a, i);
    qn_test_shape(b, qn_array_n_dims(a), dims);
    qn_array *largest = qn_reduce(s, QN_REDUCE_MAX, qn_abs(s, qn_sub(s, a, b)), 0, NULL, 0);
    if (qn_array_item(s, largest, &most) != QN_OK) fail_msg("%s", qn_last_error());
    if (!(most <= difference)) fail_msg("numbers differ by up to %g", most);
}
