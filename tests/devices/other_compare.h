/* Two devices side by side: "mlx", and "cpu" with the scalar instruction set, which is the reference. One
 * thread. */
#ifndef QUERN_TESTS_OTHER_COMPARE_H
#define QUERN_TESTS_OTHER_COMPARE_H

#include "device/device.h"

typedef struct {
    qn_device *cpu, *mlx;
} qn_test_pair;

/* Opens both. compile: MLX compiles chains (on the CPU by a compiler of the machine). The running test ends
 * as skipped, with one line that says why, where MLX is not there. */
qn_test_pair qn_test_pair_open(int compile);
void qn_test_pair_close(qn_test_pair *p);

/* By how much numbers may differ: relative * the larger one of |want| and least. Integers not at all; NaN
 * meets NaN, and an infinity its like. */
typedef struct {
    double relative, least;
} qn_test_tolerance;
/* got and want [n] of one plain type. 1: they differ, and why (256 bytes) says where. */
int qn_test_differ(qn_dtype dtype, int64_t n, const void *got, const void *want, qn_test_tolerance t,
                   char *why);
/* The largest |x| of n numbers that is finite. */
double qn_test_largest(qn_dtype dtype, int64_t n, const void *x);

#endif
