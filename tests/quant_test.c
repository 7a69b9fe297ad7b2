/* Quantised models against golden values: every file of the fixtures' quant/gguf_models and directory of
 * quant/mlx_models, with each precision on each instruction set. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "tests/engine_help.h"
#include "tests/fixtures.h"

/* NAME.gguf, or a directory. */
static const char *const kinds[] = {"gguf_models/llama-F32",
                                    "gguf_models/llama-Q8_0",
                                    "gguf_models/llama-Q4_K_M",
                                    "gguf_models/qwen2-Q5_K_M",
                                    "gguf_models/qwen3-F16",
                                    "gguf_models/qwen3-Q4_K_M",
                                    "gguf_models/gemma3-Q8_0",
                                    "gguf_models/gemma3-Q4_0",
                                    "mlx_models/gemma3_text-8bit-g32",
                                    "mlx_models/llama-mixed",
                                    "mlx_models/qwen2-mxfp4",
                                    "mlx_models/qwen3-4bit-g64",
                                    NULL};

/* How far from float32 the reduced precisions may be: NMSE of GGUF, relative L2 squared of MLX. */
static double bar(const char *kind)
{
    return strncmp(kind, "mlx", 3) == 0 ? 2e-2 * 2e-2 : 5e-3;
}

static void check(const char *kind, const char *path, const char *set, qn_precision precision,
                  const qn_safetensors *st)
{
    const qn_tensor_view *ids = qn_test_tensor(st, "input_ids", 0), *want = qn_test_tensor(st, "logits", 0),
                         *greedy = qn_test_tensor(st, "greedy_ids", 0);
    qn_engine *e = qn_test_engine(path, set, (qn_engine_options){.precision = precision, .n_threads = 2});
    assert_int_equal(want->n_elements, ids->n_elements * qn_engine_config(e)->vocab_size);
    float *got = test_calloc((size_t)want->n_elements, sizeof *got);
    int64_t n_rows = ids->n_dims == 2 ? ids->shape[0] : 1, n = ids->n_elements / n_rows;
    for (int64_t r = 0; r < n_rows; r++)
        qn_test_logits(e, (const int32_t *)ids->data + r * n, n, 0, got + r * (want->n_elements / n_rows));
    double worst = 0, error = 0, power = 0;
    for (int64_t i = 0; i < want->n_elements; i++) {
        double w = ((const float *)want->data)[i], d = got[i] - w;
        if (!(fabs(d) <= worst)) worst = fabs(d);
        error += d * d;
        power += w * w;
    }
    test_free(got);
    print_message("%s %s %s: largest difference %.2g, NMSE %.2g\n", kind, set,
                  qn_test_precision_name(precision), worst, error / power);
    if (!(error <= bar(kind) * power)) fail_msg("NMSE is %g, the bar %g", error / power, bar(kind));
    if (precision == QN_PRECISION_EXACT) {
        if (!(worst <= 1e-3)) fail_msg("logits differ by %g, the bar 1e-3", worst);
        int32_t picked[64];
        int64_t n_prompt = 12, n_new = greedy->n_elements - n_prompt;
        assert_true(n_new > 0 && n_new <= 64);
        qn_test_greedy(e, greedy->data, n_prompt, picked, n_new);
        for (int64_t i = 0; i < n_new; i++)
            assert_int_equal(picked[i], ((const int32_t *)greedy->data)[n_prompt + i]);
    }
    qn_engine_close(e);
}

static void golden(void **state)
{
    const char *kind = *state;
    char path[128], model[512];
    int gguf = strncmp(kind, "gguf", 4) == 0;
    snprintf(path, sizeof path, "quant/%s%s", kind, gguf ? ".gguf" : "");
    snprintf(model, sizeof model, "%s", qn_test_need_fixture(path));
    snprintf(path, sizeof path, "quant/%s%cexpected.safetensors", kind, gguf ? '.' : '/');
    qn_safetensors *st = NULL;
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture(path), &st));
    for (const char *const *set = qn_kernels_names(); *set; set++)
        for (int p = 0; p < 3; p++) check(kind, model, *set, (qn_precision)p, st);
    qn_safetensors_close(st);
}

int main(void)
{
    struct CMUnitTest tests[16];
    int n = 0;
    for (; kinds[n]; n++)
        tests[n] = (struct CMUnitTest){kinds[n], golden, NULL, NULL, (void *)(uintptr_t)kinds[n]};
    return _cmocka_run_group_tests("quant", tests, (size_t)n, NULL, NULL);
}
