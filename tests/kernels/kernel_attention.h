/* Attention and its pages on every set: the bytes that scalar writes, sums near its own, and the same bits
 * however rows, heads and groups are cut. i picks the type of the pages. One thread. */
#ifndef QUERN_TESTS_KERNEL_ATTENTION_H
#define QUERN_TESTS_KERNEL_ATTENTION_H

#include "tests/kernels/kernel_help.h"

void qn_test_kv_write(qn_test_dice *d, int64_t i);
void qn_test_attend(qn_test_dice *d, int64_t i);
/* Parts, and their merging. */
void qn_test_attend_part(qn_test_dice *d, int64_t i);

#endif
