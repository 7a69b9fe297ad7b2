#include "tests/support/models/quant_golden.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

const char *const qn_test_quant_kinds[] = {"gguf_models/llama-F32",
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

static void check(const char *kind, const char *name, const char *path, const char *set, qn_engine_options o,
                  const qn_safetensors *st)
{
    const qn_tensor_view *ids = qn_test_tensor(st, "input_ids", 0), *want = qn_test_tensor(st, "logits", 0),
                         *greedy = qn_test_tensor(st, "greedy_ids", 0);
    qn_engine *e = qn_test_engine(path, set, o);
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
    print_message("%s %s %s: largest difference %.2g, NMSE %.2g\n", kind, name,
                  qn_test_precision_name(o.precision), worst, error / power);
    if (!(error <= bar(kind) * power)) fail_msg("NMSE is %g, the bar %g", error / power, bar(kind));
    if (o.precision == QN_PRECISION_EXACT) {
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

void qn_test_quant_golden(const char *kind, const char *name, const char *set, qn_engine_options o)
{
    char path[128], model[512];
    int gguf = strncmp(kind, "gguf", 4) == 0;
    snprintf(path, sizeof path, "quant/%s%s", kind, gguf ? ".gguf" : "");
    snprintf(model, sizeof model, "%s", qn_test_need_fixture(path));
    snprintf(path, sizeof path, "quant/%s%cexpected.safetensors", kind, gguf ? '.' : '/');
    qn_safetensors *st = NULL;
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture(path), &st));
    check(kind, name, model, set, o, st);
    qn_safetensors_close(st);
}
