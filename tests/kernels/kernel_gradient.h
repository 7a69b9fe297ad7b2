/* Checks of what gradients are computed with: products of f32 and of bf16 numbers, panels as rows. One
 * problem a call, on every set that has the kernel, against the definition in double. One thread. */
#ifndef QUERN_TESTS_KERNEL_GRADIENT_H
#define QUERN_TESTS_KERNEL_GRADIENT_H

#include "tests/kernels/kernel_help.h"

void qn_test_gemm_f32(qn_test_dice *d);
void qn_test_gemm_bf16(qn_test_dice *d);
void qn_test_panel_rows(qn_test_dice *d);
void qn_test_panel_pairs(qn_test_dice *d);

#endif
