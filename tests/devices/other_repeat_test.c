/* The same prompt again and again on another device, and the beginnings of it: logits stay what they were, whatever else the device
 * computes. A missing order between operations shows here alone, and best beside other programs. QN_TEST_TIMES: how often (3). */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "engine/machine/engine_parts.h"
#include "tests/devices/other_compare.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

enum { TOKENS = 150, SHORTEST = 30 };

/* Of a row, where sums depend on the batch, in 16 bits. */
static const double TOLERANCE = 1e-1;

static double relative(int64_t n, const float *got, const float *want)
{
    double error = 0, all = 0;
    for (int64_t i = 0; i < n; i++) {
        const double d = (double)got[i] - want[i];
        error += isnan(d) ? INFINITY : d * d;
        all += (double)want[i] * want[i];
    }
    return sqrt(error / all);
}

static void check(const char *path, qn_precision precision, int times)
{
    qn_engine *e = qn_test_engine(path, NULL,
                                  (qn_engine_options){.device = qn_test_other()->name,
                                                      .precision = precision,
                                                      .max_rows = 64,
                                                      .max_sequences = 1,
                                                      .n_threads = 2});
    const int64_t vocab = qn_engine_config(e)->vocab_size;
    const double most = qn_test_other()->sums_by_batch ? TOLERANCE : 0;
    int32_t ids[TOKENS];
    float *first = qn_alloc_array((size_t)(TOKENS * vocab), sizeof *first),
          *again = qn_alloc_array((size_t)(TOKENS * vocab), sizeof *again);
    for (int64_t i = 0; i < TOKENS; i++)
        ids[i] = (int32_t)(qn_random_bits(11, (uint64_t)i) % (uint64_t)vocab);
    qn_test_logits(e, ids, TOKENS, 0, first);
    for (int k = 1; k <= times; k++) {
        const int64_t length = TOKENS - k / 2 * 7 % (TOKENS - SHORTEST);
        qn_test_logits(e, ids, length, 0, again);
        for (int64_t r = 0; r < length; r++) {
            const double off = relative(vocab, again + r * vocab, first + r * vocab);
            if (!(off <= most))
                fail_msg("%s, precision %d, round %d of %lld tokens: row %lld is off by %g", path,
                         (int)precision, k, (long long)length, (long long)r, off);
        }
    }
    qn_free(first);
    qn_free(again);
    qn_engine_close(e);
}

static void repeats(void **state)
{
    const char *times = getenv("QN_TEST_TIMES");
    char path[128];
    snprintf(path, sizeof path, "models/%s", (const char *)*state);
    const char *dir = qn_test_need_fixture(path);
    for (int p = QN_PRECISION_HIGH; p <= QN_PRECISION_FAST; p++)
        check(dir, (qn_precision)p, times ? (int)strtol(times, NULL, 10) : 3);
}

/* An argument picks tests by name: '*olmo2*'. */
int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {{"repeats_llama", repeats, NULL, NULL, "llama"},
                                              {"repeats_olmo2", repeats, NULL, NULL, "olmo2"},
                                              {"repeats_gemma3", repeats, NULL, NULL, "gemma3_text"},
                                              {"repeats_gemma4", repeats, NULL, NULL, "gemma4_k_eq_v"},
                                              {"repeats_phi3", repeats, NULL, NULL, "phi3"},
                                              {"repeats_qwen3_moe", repeats, NULL, NULL, "qwen3_moe"}};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return qn_test_run_others("repeat", tests, sizeof tests / sizeof tests[0], NULL, NULL);
}
