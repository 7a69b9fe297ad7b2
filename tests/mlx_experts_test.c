/* Gemma 4 with experts as mlx_lm quantises it (tools/make_mlx_experts.py): 4 bits for the matrices, 8 for the
 * routers; the logits of mlx_lm in float32 arithmetic, and the same bits in every company. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/kernels.h"
#include "quant/types.h"
#include "tests/engine_help.h"
#include "tests/fixtures.h"
#include "tests/model_dir.h"
#include "tests/scratch.h"

#define MODEL "tests/golden/mlx/gemma4_moe-4bit"

/* In float32 arithmetic logits of up to 20 stay within this; relative L2 of the others as the fixtures'
 * README has it for MLX's types, but for routers that decide otherwise by a hair, which the golden ids avoid.
 */
static const double exact_tolerance = 1e-3, relative_tolerance = 2e-2;

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

/* A copy of a tensor's data, which MLX lays at any address. */
static void *aligned_copy(const qn_tensor_view *v)
{
    void *copy = test_calloc(v->size_bytes, 1);
    memcpy(copy, v->data, v->size_bytes);
    return copy;
}

static void test_logits(void **state)
{
    qn_safetensors *st;
    qn_test_ok(qn_safetensors_open(MODEL "/expected.safetensors", &st));
    const qn_tensor_view *logits = qn_test_tensor(st, "logits", 0);
    int64_t n_ids = qn_test_tensor(st, "ids", 0)->n_elements,
            n_greedy = qn_test_tensor(st, "greedy", 0)->n_elements;
    int32_t *ids = aligned_copy(qn_test_tensor(st, "ids", 0)),
            *greedy = aligned_copy(qn_test_tensor(st, "greedy", 0));
    float *want = aligned_copy(logits), *got = test_calloc((size_t)logits->n_elements, sizeof *got);
    for (const char *const *set = qn_kernels_names(); *set; set++)
        for (int p = 0; p < 3; p++) {
            qn_precision precision = (qn_precision)p;
            qn_engine *e =
                qn_test_engine(MODEL, *set, (qn_engine_options){.precision = precision, .n_threads = 2});
            double worst = 0, error = 0, all = 0;
            int32_t picked[64];
            qn_test_logits(e, ids, n_ids, 0, got);
            for (int64_t i = 0; i < logits->n_elements; i++) {
                double d = (double)got[i] - want[i];
                worst = fmax(worst, fabs(d));
                error += d * d;
                all += (double)want[i] * want[i];
            }
            if (precision == QN_PRECISION_EXACT) {
                if (!(worst <= exact_tolerance)) fail_msg("%s: logits differ by %g", *set, worst);
                assert_true(n_greedy <= 64);
                qn_test_greedy(e, ids, 12, picked, n_greedy);
                for (int64_t k = 0; k < n_greedy; k++) assert_int_equal(picked[k], greedy[k]);
            } else if (!(sqrt(error / all) <= relative_tolerance)) {
                fail_msg("%s %s: relative L2 %g", *set, qn_test_precision_name(precision), sqrt(error / all));
            }
            qn_engine_close(e);
        }
    test_free(ids);
    test_free(greedy);
    test_free(want);
    test_free(got);
    qn_safetensors_close(st);
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
