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
#include "model/adapters.h"
#include "tests/engine_help.h"
#include "tests/fixtures.h"
#include "tests/scratch.h"
#include "tests/train_help.h"
#include "train/trainable_file.h"

enum { N_IDS = 64 };

static void make_adapter(const char *base_path, const char *path)
{
    qn_train_base base;
    qn_trainer *t = NULL;
    const qn_trainer_options o = {.trainable = {.rank = 8, .alpha = 0.8f}, .max_rows = 4, .max_sequences = 1};
    qn_test_ok(qn_train_base_open(base_path, 2, 0, &base));
    qn_test_ok(qn_trainer_new(&base, &o, &t));
    qn_test_fill_factors(qn_trainer_trainable(t), 5);
    qn_test_ok(qn_trainable_save(qn_trainer_trainable(t), &base, path, NULL));
    qn_trainer_free(t);
    qn_train_base_close(&base);
}

typedef struct {
    float *out;
    int64_t vocab_size;
} copies;

static qn_status copy_logits(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    const copies *c = user;
    memcpy(c->out + first * c->vocab_size, logits, (size_t)(n * c->vocab_size) * sizeof *logits);
    return QN_OK;
}

/* [N_IDS, *vocab_size]; qn_free. */
static float *logits_of(const char *path, const char *adapter, int64_t *vocab_size)
{
    qn_buf notes = {0};
    int32_t ids[N_IDS], id = -1;
    qn_engine *e = qn_test_engine(
        path, NULL, (qn_engine_options){.precision = QN_PRECISION_EXACT, .max_rows = 64, .n_threads = 2});
    *vocab_size = qn_engine_config(e)->vocab_size;
    copies c = {qn_alloc_array((size_t)(N_IDS * *vocab_size), sizeof(float)), *vocab_size};
    for (int i = 0; i < N_IDS; i++)
        ids[i] = (int32_t)(qn_random_bits(3, (uint64_t)i) % (uint64_t)*vocab_size);
    if (adapter) qn_test_ok(qn_engine_adapter_load(e, "it", adapter, 1, &notes));
    qn_sequence *s = qn_test_sequence(e);
    qn_test_ok(qn_adapters_hold(qn_engine_adapters(e), adapter ? "it" : "none", &id));
    qn_sequence_set_adapter(s, id);
    qn_feed feed = {s, ids, N_IDS, QN_LOGITS_ALL};
    qn_test_ok(qn_engine_step(e, 1, &feed, copy_logits, NULL, &c));
    qn_sequence_free(s);
    qn_adapters_release(qn_engine_adapters(e), id);
    qn_engine_close(e);
    qn_buf_free(&notes);
    return c.out;
}

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
    make_adapter(base, adapter);
    float *used = logits_of(base, adapter, &n), *bare = logits_of(base, NULL, &n);
    const gap moved = between(used, bare, n);
    printf("%s: the adapter moves logits by %.2g (KL %.2g)\n", name, moved.worst, moved.kl);
    assert_true(moved.kl > 0.01);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        qn_test_ok(qn_model_fuse(base, adapter, out, &(qn_fuse_options){.type = rows[i].type}, NULL));
        float *fused = logits_of(out, NULL, &n);
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
