/* The kernels of recurrent layers on every set: against sums in double, and the same bits when rows and lanes
 * are cut as the dice fall. One thread. */
#ifndef QUERN_TESTS_KERNEL_RECURRENT_H
#define QUERN_TESTS_KERNEL_RECURRENT_H

#include "tests/kernels/kernel_help.h"

void qn_test_short_conv(qn_test_dice *d);
void qn_test_gated_delta(qn_test_dice *d);

#endif
