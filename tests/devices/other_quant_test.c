/* Quantised models against golden values (quant_golden.h, mlx_golden.h) on the device mlx: those of
 * mlx_models and tests/golden/mlx against mlx_lm's own logits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/device.h"
#include "tests/devices/other_golden.h"
#include "tests/support/fixtures.h"
#include "tests/support/quant_golden.h"

static const qn_engine_options on_mlx = {.precision = QN_PRECISION_EXACT, .device = "mlx"};

static int is_there(void)
{
    qn_device *d;
    if (qn_device_open("mlx", &(qn_device_options){0}, &d) != QN_OK) {
        qn_test_leave_out(qn_last_error());
        return 0;
    }
    qn_device_close(d);
    return 1;
}

static void golden(void **state)
{
    if (is_there()) qn_test_quant_golden(*state, "mlx", NULL, on_mlx);
}

static void golden_of_this_clone(void **state)
{
    if (is_there()) qn_test_mlx_golden_with(*state, NULL, on_mlx);
}

int main(void)
{
    struct CMUnitTest tests[16];
    int n = 0;
    for (; qn_test_quant_kinds[n]; n++)
        tests[n] = (struct CMUnitTest){qn_test_quant_kinds[n], golden, NULL, NULL,
                                       (void *)(uintptr_t)qn_test_quant_kinds[n]};
    tests[n++] = (struct CMUnitTest){"qwen3-nvfp4", golden_of_this_clone, NULL, NULL,
                                     (void *)(uintptr_t) "tests/golden/mlx/qwen3-nvfp4"};
    return _cmocka_run_group_tests("mlx_quant", tests, (size_t)n, NULL, NULL);
}
