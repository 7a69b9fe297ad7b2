/* Quantised models against golden values (quant_golden.h, other_golden.h) on another device: those of
 * mlx_models and tests/golden/mlx against mlx_lm's own logits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/devices/other_compare.h"
#include "tests/devices/other_golden.h"
#include "tests/support/models/quant_golden.h"

static qn_engine_options on_other(void)
{
    return (qn_engine_options){.precision = QN_PRECISION_EXACT, .device = qn_test_other()->name};
}

static void golden(void **state)
{
    const qn_engine_options o = on_other();
    qn_test_quant_golden(*state, o.device, NULL, o);
}

static void golden_of_this_clone(void **state)
{
    qn_test_other_golden_with(*state, NULL, on_other());
}

int main(void)
{
    static char clones[][40] = {"tests/golden/mlx/qwen3-nvfp4", "tests/golden/mlx/gemma4_moe-4bit"};
    struct CMUnitTest tests[16];
    int n = 0;
    for (; qn_test_quant_kinds[n]; n++)
        tests[n] = (struct CMUnitTest){qn_test_quant_kinds[n], golden, NULL, NULL,
                                       (void *)(uintptr_t)qn_test_quant_kinds[n]};
    for (size_t i = 0; i < sizeof clones / sizeof *clones; i++)
        tests[n++] = (struct CMUnitTest){clones[i], golden_of_this_clone, NULL, NULL, clones[i]};
    return qn_test_run_others("quant", tests, (size_t)n, NULL, NULL);
}
