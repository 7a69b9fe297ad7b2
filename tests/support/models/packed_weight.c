#include "tests/support/models/packed_weight.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "tests/devices/other_compare.h"
#include "tests/kernels/kernel_help.h"

qn_buffer *qn_test_packed_weight(qn_device *d, qn_dtype dtype, int64_t n_out, int64_t n_in, float *rows)
{
    qn_buffer *b = NULL;
    if (dtype == QN_DTYPE_COUNT) {
        if (d->ops->alloc(d, (size_t)(n_out * n_in) * sizeof(float), QN_LEDGER_WEIGHTS, &b) != QN_OK)
            fail_msg("%s", qn_last_error());
        float *numbers = qn_buffer_host(b, QN_HOST_WRITES);
        for (int64_t i = 0; i < n_out * n_in; i++) numbers[i] = (float)qn_random_unit(7, (uint64_t)i) - 0.5f;
        if (rows) memcpy(rows, numbers, (size_t)(n_out * n_in) * sizeof *rows);
        return b;
    }
    qn_test_dice dice = {.seed = 11};
    const qn_kernels *k;
    const qn_weight_part part = {.data = qn_test_rows(&dice, QN_TEST_ORDINARY, dtype, n_in, n_out)};
    const qn_weight w = {.dtype = dtype, .n_parts = 1, .n_out = n_out, .n_in = n_in, .parts = &part};
    if (qn_kernels_get(&k) != QN_OK || d->ops->import_weights(d, 1, &w, &b) != QN_OK)
        fail_msg("%s", qn_last_error());
    for (int64_t i = 0; rows && i < n_out; i++) /* a layout of the CPU's */
        k->unpack_row(dtype, n_in, b->data, i, rows + i * n_in);
    qn_test_guarded_end();
    return b;
}
