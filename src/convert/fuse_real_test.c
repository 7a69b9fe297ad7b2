/* Real models in GGUF with a random adapter: in f32 the fused model computes what the adapter on the base
 * does, and in its own type, quantised anew, it stays near; how near is printed, and bounded by what
 * quantising alone costs. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <quern/adapter.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "model/adapter/adapters.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"
#include "tests/support/train_help.h"
#include "train/files/trainable_file.h"

enum { N_IDS = 64 };

typedef struct {
    double worst, kl;
    int n_same;
} gap;

static int64_t best_of(const float *x, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

static double log_sum(const float *x, int64_t n)
{
    const double top = (double)x[best_of(x, n)];
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += exp((double)x[i] - top);
    return top + log(sum);
}

static gap between(const float *a, const float *b, int64_t n)
{
    gap g = {0, 0, 0};
    for (int t = 0; t < N_IDS; t++, a += n, b += n) {
        const double from = log_sum(a, n), to = log_sum(b, n);
        for (int64_t i = 0; i < n; i++) {
            const double p = (double)a[i] - from;
            g.kl += exp(p) * (p - ((double)b[i] - to)) / N_IDS;
            g.worst = fmax(g.worst, fabs((double)a[i] - (double)b[i]));
        }
        g.n_same += best_of(a, n) == best_of(b, n);
    }
    return g;
}

static void real_model(void **state)
{
    const char *name = *state, *scratch = qn_test_scratch();
    /* f32 leaves what the order of sums makes; the others a share of what the adapter moves. */
    const struct {
        const char *type;
        double share, kl;
    } rows[] = {{"f32", 0, 1e-8}, {"q8_0", 0.01, 0.01}, {NULL, 0.5, 0.1}};
    char base[512], adapter[512], out[512];
    int64_t n;
    snprintf(base, sizeof base, "%s", qn_test_need_model(name));
    snprintf(adapter, sizeof adapter, "%s/adapter", scratch);
    snprintf(out, sizeof out, "%s/fused.gguf", scratch);
    qn_test_make_adapter(base, &(qn_trainable_options){.rank = 8, .alpha = 0.8f}, adapter);
    float *used = qn_test_logits_with(base, adapter, N_IDS, &n),
          *bare = qn_test_logits_with(base, NULL, N_IDS, &n);
    const gap moved = between(used, bare, n);
    printf("%s: the adapter moves logits by %.2g (KL %.2g)\n", name, moved.worst, moved.kl);
    assert_true(moved.kl > 0.01);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        qn_test_ok(qn_model_fuse(base, adapter, out, &(qn_fuse_options){.type = rows[i].type}, NULL));
        float *fused = qn_test_logits_with(out, NULL, N_IDS, &n);
        const gap g = between(used, fused, n);
        printf("%s, %s: logits within %.2g, KL %.2g, the same best token for %d of %d\n", name,
               rows[i].type ? rows[i].type : "types kept", g.worst, g.kl, g.n_same, N_IDS);
        if (!(g.kl <= rows[i].kl + rows[i].share * moved.kl)) fail_msg("%s", name);
        if (!rows[i].share && !(g.worst <= 2e-3)) fail_msg("%s: f32", name);
        qn_free(fused);
        remove(out);
    }
    qn_free(used);
    qn_free(bare);
    qn_test_remove(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {"smollm2", real_model, NULL, NULL, (void *)(uintptr_t) "smollm2"},
        {"gemma3-270m", real_model, NULL, NULL, (void *)(uintptr_t) "gemma3-270m"},
    };
    return cmocka_run_group_tests_name("fuse_real", tests, NULL, NULL);
}
