/* The limit that a device takes from its GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/mlx/mlx.h"

static void limits_by_default(void **state)
{
    const qn_mlx_about gpu = {.on_gpu = 1, .recommended_bytes = 1000}, host = {.on_gpu = 0};
    qn_ledger *l = qn_ledger_new();
    qn_mlx_limit_by_default(l, &host);
    assert_int_equal(qn_ledger_get_limit(l), 0);
    qn_mlx_limit_by_default(l, &gpu);
    assert_int_equal(qn_ledger_get_limit(l), 1000);
    assert_int_equal(qn_ledger_reserve(l, QN_LEDGER_WEIGHTS, 1001), QN_E_NOMEM);
    qn_ledger_set_limit(l, 5000); /* a user's own stays */
    qn_mlx_limit_by_default(l, &gpu);
    assert_int_equal(qn_ledger_get_limit(l), 5000);
    qn_ledger_free(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(limits_by_default)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
