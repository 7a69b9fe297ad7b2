/* How kernel_check compares what kernels gave, and says where: each comparison fails the test with the place
 * that qn_test_at named last. One thread. */
#ifndef QUERN_TESTS_KERNEL_COMPARE_H
#define QUERN_TESTS_KERNEL_COMPARE_H

#include <stddef.h>
#include <stdint.h>

/* What is being computed from now on, for whoever reads of a failure or a crash. */
__attribute__((format(printf, 1, 2))) void qn_test_at(const char *fmt, ...);
/* A handler of SIGSEGV and SIGBUS: writes the place and ends the program. */
void qn_test_crashed(int signal);

void qn_test_same_bytes(const void *got, const void *expected, size_t n);
/* The same bits, or both NaN. */
int qn_test_same_float(float a, float b);
void qn_test_same_floats(const float *got, const float *expected, int64_t n);
/* Element i within the bound; an expected infinity exactly, an expected NaN as any NaN. */
void qn_test_near_float(float got, double expected, double bound, int64_t i);

#endif
