/* What the files of each instruction set give to dispatch.c: functions that fill their part of a table. A set
 * starts as a copy of scalar and overwrites what it does better. */
#ifndef QN_KERNELS_SETS_H
#define QN_KERNELS_SETS_H

#include "kernels/kernels.h"

void qn_kernels_fill_matmul_scalar(qn_kernels *k);
void qn_kernels_fill_matmul_avx2(qn_kernels *k);
void qn_kernels_fill_matmul_avx512(qn_kernels *k);

/* Element-wise, norms, softmax, sums, rope, conversions, small dense products, attention. */
void qn_kernels_fill_vector_scalar(qn_kernels *k);
void qn_kernels_fill_vector_avx2(qn_kernels *k);
void qn_kernels_fill_vector_avx512(qn_kernels *k);

#endif
