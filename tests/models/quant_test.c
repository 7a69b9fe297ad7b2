/* Quantised models against golden values (quant_golden.h), with each precision on each instruction set. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/cpu/kernels/kernels.h"
#include "tests/support/models/quant_golden.h"

static void golden(void **state)
{
    const char *kind = *state;
    for (const char *const *set = qn_kernels_names(); *set; set++)
        for (int p = 0; p < 3; p++)
            qn_test_quant_golden(kind, *set, *set,
                                 (qn_engine_options){.precision = (qn_precision)p, .n_threads = 2});
}

int main(void)
{
    struct CMUnitTest tests[16];
    int n = 0;
    for (; qn_test_quant_kinds[n]; n++)
        tests[n] = (struct CMUnitTest){qn_test_quant_kinds[n], golden, NULL, NULL,
                                       (void *)(uintptr_t)qn_test_quant_kinds[n]};
    return _cmocka_run_group_tests("quant", tests, (size_t)n, NULL, NULL);
}
