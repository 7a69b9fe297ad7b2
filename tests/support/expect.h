/* What tests of public arrays share: numbers of arrays beside those that are expected. A difference ends the
 * running test. One thread at a time. */
#ifndef QUERN_TESTS_EXPECT_H
#define QUERN_TESTS_EXPECT_H

#include <quern/array.h>

enum { QN_TEST_NUMBERS_MAX = 64 };

/* The array has exactly n elements, at most QN_TEST_NUMBERS_MAX, which are want[0..n) in row-major order, each
 * to 1e-5 of its size; NaN is expected where want has it. */
void qn_test_numbers(qn_scope *s, qn_array *a, int64_t n, const double *want);
#define QN_TEST_NUMBERS(s, a, ...) \
    qn_test_numbers(s, a, sizeof((double[]){__VA_ARGS__}) / sizeof(double), (double[]){__VA_ARGS__})
/* The array has this shape. */
void qn_test_shape(const qn_array *a, int n_dims, const int64_t *dims);
#define QN_TEST_SHAPE(a, ...) \
    qn_test_shape(a, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (int64_t[]){__VA_ARGS__})
/* Both have the same shape, and numbers that differ by at most `difference`. */
void qn_test_alike(qn_scope *s, qn_array *a, qn_array *b, double difference);

#endif
