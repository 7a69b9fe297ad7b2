/* The same bits in any company, for every weight type, each precision and each instruction set, and for both
 * real models. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "tests/engine_help.h"
#include "tests/fixtures.h"
#include "tests/scratch.h"
#include "tests/typed_model.h"

/* Long enough for two chunks of 512 and three groups of 256 positions; scalar code is slow. */
static int64_t longest(const char *set)
{
    return strcmp(set, "scalar") == 0 ? 70 : 530;
}

static void every_way(const char *name, const char *path, int32_t id_end)
{
    for (const char *const *set = qn_kernels_names(); *set; set++)
        for (int p = 0; p < 3; p++)
            qn_test_same_bits(&(qn_test_bits){name, path, *set, (qn_precision)p, longest(*set), id_end});
}

static void weight_type(void **state)
{
    qn_dtype type = *(const qn_dtype *)*state;
    const char *folder = qn_test_scratch();
    every_way(qn_dtype_name(type), qn_test_typed_model(folder, type), QN_TEST_TYPED_VOCAB);
    qn_test_remove(folder);
}

static void fixture(void **state)
{
    every_way(*state, qn_test_need_fixture(*state), 400);
}

/* Long prompts, by the logits of the last token alone. */
static void long_prompt(const char *name, const char *path, qn_precision precision)
{
    enum { N = 530 };
    static const int64_t pieces[] = {512, 64, 7};
    int32_t ids[N];
    for (int i = 0; i < N; i++) ids[i] = 1 + (i * 7919 + i * i) % 40000;
    qn_engine_options o = {.precision = precision, .n_threads = 2, .max_rows = N, .context_size = 1024};
    qn_engine *e = qn_test_engine(path, NULL, o);
    uint64_t whole = qn_test_last_hash(e, ids, N, N);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
        if (qn_test_last_hash(e, ids, N, pieces[i]) != whole)
            fail_msg("%s %s: bits differ in pieces of %d", name, qn_test_precision_name(precision),
                     (int)pieces[i]);
    qn_engine_close(e);
}

static void real_model(void **state)
{
    const char *path = qn_test_need_model(*state);
    for (int p = 0; p < 3; p++) {
        qn_test_same_bits(&(qn_test_bits){*state, path, NULL, (qn_precision)p, 40, 40000});
        long_prompt(*state, path, (qn_precision)p);
    }
}

int main(void)
{
    static const char *const fixtures[] = {
        "quant/gguf_models/llama-Q4_K_M.gguf", "quant/gguf_models/qwen2-Q5_K_M.gguf",
        "quant/gguf_models/qwen3-Q4_K_M.gguf", "quant/gguf_models/gemma3-Q8_0.gguf",
        "quant/gguf_models/gemma3-Q4_0.gguf",  NULL};
    static const char *const models[] = {"smollm2", "gemma3-270m", NULL};
    struct CMUnitTest tests[32];
    size_t n = 0;
    for (const qn_dtype *t = qn_test_weight_types; *t != QN_DTYPE_COUNT; t++)
        tests[n++] = (struct CMUnitTest){qn_dtype_name(*t), weight_type, NULL, NULL, (void *)(uintptr_t)t};
    for (int i = 0; fixtures[i]; i++)
        tests[n++] = (struct CMUnitTest){fixtures[i], fixture, NULL, NULL, (void *)(uintptr_t)fixtures[i]};
    for (int i = 0; models[i]; i++)
        tests[n++] = (struct CMUnitTest){models[i], real_model, NULL, NULL, (void *)(uintptr_t)models[i]};
    return _cmocka_run_group_tests("bits", tests, n, NULL, NULL);
}
