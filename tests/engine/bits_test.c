/* The same bits in any company, for every weight type, each precision and each instruction set. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "device/cpu/kernels/kernels.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/typed_model.h"
#include "tests/support/scratch.h"

/* LONG is two chunks of 512 and three groups of 256 positions, which not every weight type needs anew; scalar
 * code is slow, and so are emulators, and sanitizers, which look for other faults. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(QN_EMULATED)
enum { SLOW = 8, SHORT = 40, LONG = 70, BRIEF = 1 };
#else
enum { SLOW = 20, SHORT = 70, LONG = 530, BRIEF = 0 };
#endif

/* no_fast: `fast` is computed as `high` is. */
static void every_way(const char *name, const char *path, const char *set, int64_t longest, int32_t id_end,
                      int brief, int no_fast)
{
    for (int p = 0; p < 3; p++)
        if (p != QN_PRECISION_FAST || !no_fast)
            qn_test_same_bits(&(qn_test_bits){name, path, set, (qn_precision)p, longest, id_end,
                                              brief || BRIEF, QN_KV_AUTO});
}

static void weight_type(void **state)
{
    qn_dtype type = *(const qn_dtype *)*state;
    const char *folder = qn_test_scratch();
    const char *path = qn_test_typed_model(folder, type);
    int no_fast = qn_matmul_act(type, QN_PRECISION_FAST) == qn_matmul_act(type, QN_PRECISION_HIGH);
    int64_t longest = type == QN_DTYPE_F32 || type == QN_DTYPE_Q4_K ? LONG : SHORT;
    for (const char *const *set = qn_kernels_names(); *set; set++)
        every_way(qn_dtype_name(type), path, *set, strcmp(*set, "scalar") == 0 ? SLOW : longest,
                  QN_TEST_TYPED_VOCAB, 0, no_fast);
    qn_test_remove(folder);
}

/* Windows, soft caps and rotary scaling past one group of positions; GGUF and MLX files at a length that
 * fills pages. */
static const struct fixture {
    const char *path;
    int64_t longest;
    int brief; /* tests/models/models_test.c has more of it at SHORT */
} fixtures[] = {
    {"models/mistral", LONG, 1},
    {"models/qwen2_window", LONG, 1},
    {"models/gemma2", LONG, 1},
    {"models/qwen3_next", LONG, 1},
    {"models/deepseek_v3", LONG, 1},
    {"quant/gguf_models/llama-Q4_K_M.gguf", SHORT, 0},
    {"quant/gguf_models/qwen2-Q5_K_M.gguf", SHORT, 0},
    {"quant/gguf_models/qwen3-Q4_K_M.gguf", SHORT, 0},
    {"quant/gguf_models/gemma3-Q8_0.gguf", SHORT, 0},
    {"quant/gguf_models/gemma3-Q4_0.gguf", LONG, 0},
    {"quant/mlx_models/gemma3_text-8bit-g32", SHORT, 0},
    {"quant/mlx_models/llama-mixed", SHORT, 0},
    {"quant/mlx_models/qwen2-mxfp4", SHORT, 0},
    {"quant/mlx_models/qwen3-4bit-g64", SHORT, 0},
};
enum { N_FIXTURES = sizeof fixtures / sizeof fixtures[0], TESTS_MAX = QN_DTYPE_COUNT + N_FIXTURES + 1 };

static void fixture(void **state)
{
    const struct fixture *f = *state;
    const char *const *set = qn_kernels_names();
    while (set[1]) set++; /* the best is enough here */
    every_way(f->path, qn_test_need_fixture(f->path), *set, f->longest, 400, f->brief, 0);
}

/* Keys and values of each type, over windows and soft caps and several groups of positions. */
static void kv_type(void **state)
{
    const char *path = "models/gemma2", *folder = qn_test_need_fixture(path);
    for (const char *const *set = qn_kernels_names(); *set; set++)
        for (int type = QN_KV_F32; type <= QN_KV_Q4_0; type++)
            qn_test_same_bits(&(qn_test_bits){path, folder, *set, QN_PRECISION_HIGH,
                                              strcmp(*set, "scalar") == 0 ? SLOW : LONG, 400, 1,
                                              (qn_kv_type)type});
}

int main(void)
{
    static struct CMUnitTest tests[TESTS_MAX];
    size_t n = 0;
    for (const qn_dtype *t = qn_test_weight_types; *t != QN_DTYPE_COUNT; t++)
        tests[n++] = (struct CMUnitTest){qn_dtype_name(*t), weight_type, NULL, NULL, (void *)(uintptr_t)t};
    for (int i = 0; i < N_FIXTURES; i++)
        tests[n++] =
            (struct CMUnitTest){fixtures[i].path, fixture, NULL, NULL, (void *)(uintptr_t)&fixtures[i]};
    tests[n++] = (struct CMUnitTest){"types of keys and values", kv_type, NULL, NULL, NULL};
    return _cmocka_run_group_tests("bits", tests, n, NULL, NULL);
}
