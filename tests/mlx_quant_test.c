/* Quantised models against golden values (quant_golden.h) on the device mlx: those of mlx_models against
 * mlx_lm's own logits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/device.h"
#include "tests/fixtures.h"
#include "tests/quant_golden.h"

static void golden(void **state)
{
    qn_device *d;
    if (qn_device_open("mlx", &(qn_device_options){0}, &d) != QN_OK) {
        qn_test_leave_out(qn_last_error());
        return;
    }
    qn_device_close(d);
    qn_test_quant_golden(*state, "mlx", NULL,
                         (qn_engine_options){.precision = QN_PRECISION_EXACT, .device = "mlx"});
}

int main(void)
{
    struct CMUnitTest tests[16];
    int n = 0;
    for (; qn_test_quant_kinds[n]; n++)
        tests[n] = (struct CMUnitTest){qn_test_quant_kinds[n], golden, NULL, NULL,
                                       (void *)(uintptr_t)qn_test_quant_kinds[n]};
    return _cmocka_run_group_tests("mlx_quant", tests, (size_t)n, NULL, NULL);
}
