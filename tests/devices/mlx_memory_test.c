/* Memory that the device mlx locks: MLX does so on a GPU alone. The rest: tests/devices/other_memory_test.c. Left
 * out if the device is absent. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <quern/quern.h>
#include <stdint.h>

#include "device/mlx/mlx.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

static void weights_are_locked_on_a_gpu(void **state)
{
    const qn_mlx_shim *shim;
    qn_model *m = NULL;
    if (qn_mlx_load(&shim) != QN_OK) {
        qn_test_leave_out(qn_last_error());
        return;
    }
    const qn_model_options o = {.device = "mlx", .n_threads = 1};
    qn_test_ok(qn_model_open(qn_test_need_fixture("models/llama"), &o, &m));
    const qn_status expected = shim->about().on_gpu ? QN_OK : QN_E_UNSUPPORTED;
    assert_int_equal(qn_model_set_wired_limit(m, 1 << 20, NULL), expected);
    qn_test_ok(qn_model_set_wired_limit(m, 0, NULL));
    qn_model_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(weights_are_locked_on_a_gpu)};
    return cmocka_run_group_tests_name("mlx_memory", tests, NULL, NULL);
}
