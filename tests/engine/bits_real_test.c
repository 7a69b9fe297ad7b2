/* The same bits in any company for both real models: the best instruction set with long prompts, the others
 * with short ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "device/cpu/kernels/kernels.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

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
        qn_test_same_bits(&(qn_test_bits){*state, path, NULL, (qn_precision)p, 40, 40000, 0, QN_KV_AUTO});
        long_prompt(*state, path, (qn_precision)p);
        if (qn_kernels_by_name("avx512")) /* else it is the best one, or not there */
            qn_test_same_bits(
                &(qn_test_bits){*state, path, "avx2", (qn_precision)p, 12, 40000, 0, QN_KV_AUTO});
        qn_test_same_bits(&(qn_test_bits){*state, path, "scalar", (qn_precision)p, 3, 40000, 0, QN_KV_AUTO});
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {"smollm2", real_model, NULL, NULL, (void *)(uintptr_t) "smollm2"},
        {"gemma3-270m", real_model, NULL, NULL, (void *)(uintptr_t) "gemma3-270m"}};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
