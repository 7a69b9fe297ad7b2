/* Gemma 4 with experts as mlx_lm quantises it (tools/make_mlx_experts.py): 4 bits for the matrices, 8 for the
 * routers; the logits of mlx_lm in float32 arithmetic, and the same bits in every company. On the CPU. On another
 * device: tests/devices/other_quant_test.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/cpu/kernels/kernels.h"
#include "quant/types.h"
#include "tests/devices/other_golden.h"
#include "tests/support/engine_help.h"
#include "tests/support/models/model_dir.h"

#define MODEL "tests/golden/mlx/gemma4_moe-4bit"

static void test_types(void **state)
{
    static const qn_weight_role experts[] = {QN_WEIGHT_EXPERT_GATE, QN_WEIGHT_EXPERT_UP,
                                             QN_WEIGHT_EXPERT_DOWN};
    qn_test_weights m;
    qn_test_ok(qn_test_weights_open(MODEL, &m));
    assert_string_equal(m.config.architecture, "gemma4_text");
    for (int64_t l = 0; l < m.config.num_hidden_layers; l++) {
        qn_affine router = qn_affine_of(qn_weights_get(m.weights, QN_WEIGHT_ROUTER, l)->dtype);
        assert_int_equal(router.bits, 8);
        assert_int_equal(router.group, 64);
        for (size_t i = 0; i < sizeof experts / sizeof experts[0]; i++) {
            qn_affine a = qn_affine_of(qn_weights_get(m.weights, experts[i], l)->dtype);
            assert_int_equal(a.bits, 4);
            assert_int_equal(a.group, 32);
        }
    }
    qn_test_weights_close(&m);
}

static void test_logits(void **state)
{
    qn_test_other_golden(MODEL);
}

static void test_same_bits(void **state)
{
    for (const char *const *set = qn_kernels_names(); *set; set++)
        for (int p = 0; p < 3; p++)
            qn_test_same_bits(&(qn_test_bits){"gemma4_moe-4bit", MODEL, *set, (qn_precision)p,
                                              set[1] ? 54 : 70, 1000, set[1] != NULL, QN_KV_AUTO});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_logits),
        cmocka_unit_test(test_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
