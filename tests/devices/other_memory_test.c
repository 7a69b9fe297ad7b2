/* Memory of a model on the device mlx: its figures beside MLX's own, limits, and what MLX keeps for reuse.
 * Left out where the device is not. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <quern/quern.h>
#include <stdint.h>
#include <string.h>

#include "device/mlx/mlx.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

static const qn_mlx_shim *need_device(void)
{
    const qn_mlx_shim *shim = NULL;
    if (qn_mlx_load(&shim) != QN_OK) qn_test_leave_out(qn_last_error());
    return shim;
}

static qn_model *open_model(size_t limit_bytes)
{
    qn_model *m = NULL;
    const qn_model_options o = {.device = "mlx", .memory_limit_bytes = limit_bytes, .n_threads = 1};
    qn_test_ok(qn_model_open(qn_test_need_fixture("models/llama"), &o, &m));
    return m;
}

static qn_status answer(qn_model *m, int64_t n)
{
    qn_generation *g;
    qn_token t;
    qn_status status =
        qn_generate(m, "The mill", &(qn_generate_options){.max_tokens = n, .ignore_eos = 1}, &g);
    if (status != QN_OK) return status;
    do status = qn_generation_next(g, &t);
    while (status == QN_OK && t.end == QN_END_NONE);
    qn_generation_close(g);
    return status;
}

/* Weights and pages are MLX's, so they are part of what it says; the ledger has besides what lies on the
 * host. */
static void figures_beside_those_of_mlx(void **state)
{
    const qn_mlx_shim *shim = need_device();
    const size_t before = shim->memory().active_bytes;
    qn_model *m = open_model(0);
    qn_test_ok(answer(m, 4));
    qn_memory now;
    qn_test_ok(qn_model_get_memory(m, &now));
    const size_t active = shim->memory().active_bytes - before;
    assert_true(now.weights_bytes > 0 && now.kv_bytes > 0);
    assert_true(active >= now.weights_bytes && active <= now.active_memory_bytes);
    assert_true(now.peak_memory_bytes >= now.active_memory_bytes);
    assert_true(now.cache_memory_bytes >= shim->memory().cache_bytes);
    qn_model_close(&m);
    assert_int_equal(shim->memory().active_bytes, before);
}

static void the_cache_keeps_its_limit(void **state)
{
    const qn_mlx_shim *shim = need_device();
    const size_t before = shim->memory().active_bytes;
    qn_model *m = open_model(0);
    size_t old = 0;
    qn_test_ok(answer(m, 8));
    qn_memory full;
    qn_test_ok(qn_model_get_memory(m, &full));
    qn_test_ok(qn_model_clear_cache(m));
    assert_int_equal(shim->memory().cache_bytes, 0);
    qn_test_ok(qn_model_set_cache_limit(m, 0, &old));
    assert_true(old >= 256 << 20);
    qn_test_ok(answer(m, 8));
    qn_memory now;
    qn_test_ok(qn_model_get_memory(m, &now));
    assert_int_equal(shim->memory().cache_bytes, 0);
    assert_int_equal(now.cache_memory_bytes, 0);
    /* No page is kept: the pools have given back what they had. */
    const size_t active = shim->memory().active_bytes - before;
    assert_true(active >= now.weights_bytes && active <= now.weights_bytes + now.kv_bytes + (64 << 10));
    assert_true(now.kv_bytes < full.kv_bytes / 2);
    qn_test_ok(qn_model_set_cache_limit(m, old, NULL));
    qn_model_close(&m);
}

static void limits_are_refused_before_mlx_is_asked(void **state)
{
    const qn_mlx_shim *shim = need_device();
    qn_model *m = NULL;
    const qn_model_options o = {.device = "mlx", .memory_limit_bytes = 100000};
    assert_int_equal(qn_model_open(qn_test_need_fixture("models/llama"), &o, &m), QN_E_NOMEM);
    m = open_model(0);
    qn_test_ok(answer(m, 2));
    qn_memory now;
    qn_test_ok(qn_model_get_memory(m, &now));
    qn_test_ok(qn_model_set_memory_limit(m, now.active_memory_bytes, NULL));
    assert_int_equal(answer(m, 400), QN_E_NOMEM);
    qn_test_ok(qn_model_set_memory_limit(m, 0, NULL));
    qn_test_ok(answer(m, 400));
    if (!shim->about().on_gpu) assert_int_equal(qn_model_set_wired_limit(m, 1 << 20, NULL), QN_E_UNSUPPORTED);
    qn_test_ok(qn_model_set_wired_limit(m, 0, NULL));
    qn_model_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures_beside_those_of_mlx),
        cmocka_unit_test(the_cache_keeps_its_limit),
        cmocka_unit_test(limits_are_refused_before_mlx_is_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
