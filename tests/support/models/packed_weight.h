/* A random packed weight on a device and its rows as plain numbers, for tests of what computes with it. One
 * thread. */
#ifndef QUERN_TESTS_PACKED_WEIGHT_H
#define QUERN_TESTS_PACKED_WEIGHT_H

#include "device/device.h"

/* [n_out, n_in] of this type, the same for the same arguments on every device; QN_DTYPE_COUNT: a plain f32
 * matrix, not packed. rows (may be NULL) gets the numbers. */
qn_buffer *qn_test_packed_weight(qn_device *d, qn_dtype dtype, int64_t n_out, int64_t n_in, float *rows);

#endif
