/* The device mlx in 16 bits, as it computes on a GPU: QUERN_MLX_HALF=1 asks for that on MLX's CPU back end too.
 * Logits of the fixtures' models, and of pictures whose tokens see each other, against those of `exact` at the tolerance of
 * bf16, and sequences in company against the same alone. */
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
#include "tests/support/models/kinds.h"
#include "tests/support/models/seen_picture.h"

/* Relative L2 of a row of logits. mlx_lm itself, on MLX's CPU back end, is 1.8e-2 to 8.3e-2 from its own f32 in bf16 on these
 * models with random weights, and 1.6e-3 to 9.5e-3 in f16. */
static const double bf16_tolerance = 1e-1, f16_tolerance = 1.2e-2;

static qn_engine *open_engine(const char *path, qn_precision precision, int64_t max_sequences)
{
    return qn_test_engine(path, NULL,
                          (qn_engine_options){.device = "mlx",
                                              .precision = precision,
                                              .max_rows = 64,
                                              .max_sequences = max_sequences,
                                              .n_threads = 2});
}

static int open_half(void **state)
{
    qn_device *d;
    setenv("QUERN_MLX_HALF", "1", 1);
    if (qn_device_open("mlx", &(qn_device_options){.n_threads = 1}, &d) == QN_OK) qn_device_close(d);
    return 0;
}

static void need_device(void)
{
    qn_device *d;
    if (qn_device_open("mlx", &(qn_device_options){.n_threads = 1}, &d) != QN_OK)
        qn_test_leave_out(qn_last_error());
    qn_device_close(d);
}

static double relative(int64_t n, const float *got, const float *want)
{
    double error = 0, all = 0;
    for (int64_t i = 0; i < n; i++) {
        const double d = (double)got[i] - want[i];
        error += d * d;
        all += (double)want[i] * want[i];
    }
    return sqrt(error / all);
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of rows, or what a tenth of them keeps if the model has experts: where a router is undecided by a hair,
 * rows go another way, and others that see them too. */
static double typical_row(int64_t n_rows, int64_t n, int has_experts, const float *got, const float *want)
{
    double *rows = qn_alloc_array((size_t)n_rows, sizeof *rows);
    for (int64_t r = 0; r < n_rows; r++) rows[r] = relative(n, got + r * n, want + r * n);
    qsort(rows, (size_t)n_rows, sizeof *rows, by_size);
    const double typical = rows[n_rows / (has_experts ? 10 : 2)];
    qn_free(rows);
    return typical;
}

/* ---- against f32 ----------------------------------------------------------------------------------------- */

enum { TOKENS = 150, SEQUENCES = 4, LONGEST = 90, STEPS = 6 };

static void make_ids(int32_t *ids, int64_t n, uint64_t seed, int64_t vocab)
{
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(qn_random_bits(seed, (uint64_t)i) % (uint64_t)vocab);
}

static float *logits_of(const char *dir, qn_precision precision, int64_t *n, int *has_experts)
{
    qn_engine *e = open_engine(dir, precision, 1);
    const int64_t vocab = qn_engine_config(e)->vocab_size;
    int32_t ids[TOKENS];
    *has_experts = qn_engine_config(e)->experts.num_experts > 0;
    make_ids(ids, TOKENS, 11, vocab);
    *n = TOKENS * vocab;
    float *out = qn_alloc_array((size_t)*n, sizeof *out);
    qn_test_logits(e, ids, TOKENS, 0, out);
    qn_engine_close(e);
    return out;
}

/* A prompt in chunks, with both precisions that may be narrow, in the model's own type and in f16. */
static void check_near(const char *path, double times)
{
    const char *dir = qn_test_need_fixture(path);
    int64_t n;
    int has_experts;
    float *exact = logits_of(dir, QN_PRECISION_EXACT, &n, &has_experts);
    for (int i = 0; i < 4; i++) {
        const int is_f16 = i / 2, p = i % 2 ? QN_PRECISION_FAST : QN_PRECISION_HIGH;
        setenv("QUERN_MLX_HALF", is_f16 ? "f16" : "1", 1);
        float *half = logits_of(dir, (qn_precision)p, &n, &has_experts);
        setenv("QUERN_MLX_HALF", "1", 1);
        const double off = typical_row(TOKENS, n / TOKENS, has_experts, half, exact);
        print_message("%s: precision %d, f16 %d, relative L2 %.2e, of all rows %.2e\n", path, p, is_f16, off,
                      relative(n, half, exact));
        assert_true(off <= times * (is_f16 ? f16_tolerance : bf16_tolerance));
        if (strcmp(path, "models/llama") == 0) assert_true(off > 0); /* it was not f32 */
        qn_free(half);
    }
    qn_free(exact);
}

static void near_exact(void **state)
{
    char path[128];
    need_device();
    snprintf(path, sizeof path, "models/%s", (const char *)*state);
    check_near(path, 1);
}

/* Matrices, heads among them, that MLX quantised, with scales in 16 bits: scales are rounded too. */
static void near_exact_quantised(void **state)
{
    static const char *const folders[] = {"gemma3_text-8bit-g32", "llama-mixed", "qwen2-mxfp4",
                                          "qwen3-4bit-g64"};
    (void)state;
    need_device();
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char path[128];
        snprintf(path, sizeof path, "quant/mlx_models/%s", folders[i]);
        check_near(path, 2);
    }
}

/* ---- company --------------------------------------------------------------------------------------------- */

typedef struct {
    float *out;
    int64_t vocab;
} last_rows;

static qn_status copy_last(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    const last_rows *l = user;
    memcpy(l->out + feed * l->vocab, logits + (n - 1) * l->vocab, (size_t)l->vocab * sizeof *logits);
    return QN_OK;
}

/* Sequences together, first whole, then token by token, against each alone. */
static void company(void **state)
{
    char path[128];
    need_device();
    snprintf(path, sizeof path, "models/%s", (const char *)*state);
    qn_engine *e = open_engine(qn_test_need_fixture(path), QN_PRECISION_HIGH, SEQUENCES);
    const int64_t vocab = qn_engine_config(e)->vocab_size, lengths[SEQUENCES] = {LONGEST, 1, 33, 33};
    int32_t ids[SEQUENCES][LONGEST + STEPS];
    qn_sequence *s[SEQUENCES];
    qn_feed feeds[SEQUENCES];
    float *together = qn_alloc_array((size_t)(SEQUENCES * vocab), sizeof *together),
          *alone = qn_alloc_array((size_t)((LONGEST + STEPS) * vocab), sizeof *alone);
    const last_rows rows = {together, vocab};
    for (int i = 0; i < SEQUENCES; i++) {
        make_ids(ids[i], LONGEST + STEPS, 20 + (uint64_t)i, vocab);
        s[i] = qn_test_sequence(e);
        feeds[i] = (qn_feed){s[i], ids[i], lengths[i], QN_LOGITS_LAST};
    }
    for (int step = 0; step <= STEPS; step++) {
        qn_test_ok(qn_engine_step(e, SEQUENCES, feeds, copy_last, NULL, (void *)(uintptr_t)&rows));
        for (int i = 0; i < SEQUENCES; i++)
            feeds[i] = (qn_feed){s[i], feeds[i].ids + feeds[i].n_ids, 1, QN_LOGITS_LAST};
    }
    for (int i = 0; i < SEQUENCES; i++) {
        const int64_t n = lengths[i] + STEPS;
        qn_test_logits(e, ids[i], n, 0, alone);
        const double off = relative(vocab, together + i * vocab, alone + (n - 1) * vocab);
        if (!(off <= bf16_tolerance)) fail_msg("%s: sequence %d differs by %g in company", path, i, off);
        qn_sequence_free(s[i]);
    }
    qn_free(together);
    qn_free(alone);
    qn_engine_close(e);
}

/* ---- pictures -------------------------------------------------------------------------------------------- */

enum { TWO = 2, DECODED = 4 };

typedef struct {
    float *next[TWO];
    int64_t vocab;
} rows_of_two;

static qn_status append_rows(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    rows_of_two *r = user;
    memcpy(r->next[feed], logits, (size_t)(n * r->vocab) * sizeof *logits);
    r->next[feed] += n * r->vocab;
    return QN_OK;
}

/* Two sequences of the golden prompt in one step, then some tokens behind each: the logits of all their rows. */
static float *logits_of_pictures(const char *kind, qn_precision precision, int64_t *n_rows, int64_t *vocab)
{
    char path[128];
    snprintf(path, sizeof path, "models/%s", kind);
    qn_engine *e = open_engine(qn_test_need_fixture(path), precision, TWO);
    qn_test_picture p = qn_test_picture_open(e, kind);
    *vocab = qn_engine_config(e)->vocab_size;
    *n_rows = TWO * (p.n_ids + DECODED);
    float *out = qn_alloc_array((size_t)(*n_rows * *vocab), sizeof *out);
    rows_of_two rows = {{out, out + *n_rows / TWO * *vocab}, *vocab};
    qn_sequence *s[TWO];
    qn_feed feeds[TWO];
    for (int i = 0; i < TWO; i++) {
        s[i] = qn_test_picture_sequence(e, &p);
        feeds[i] = (qn_feed){s[i], p.ids, p.n_ids, QN_LOGITS_ALL};
    }
    for (int step = 0; step <= DECODED; step++) {
        qn_test_ok(qn_engine_step(e, TWO, feeds, append_rows, NULL, &rows));
        for (int i = 0; i < TWO; i++) feeds[i] = (qn_feed){s[i], p.ids + step, 1, QN_LOGITS_ALL};
    }
    for (int i = 0; i < TWO; i++) qn_sequence_free(s[i]);
    qn_test_picture_close(&p);
    qn_engine_close(e);
    return out;
}

/* A picture's tokens see those behind them. Most rows are theirs. */
static void pictures(void **state)
{
    static const char *const halves[] = {"1", "f16", "bf16"};
    const char *kind = *state;
    int64_t n_rows, vocab;
    need_device();
    float *exact = logits_of_pictures(kind, QN_PRECISION_EXACT, &n_rows, &vocab);
    for (int i = 0; i < 6; i++) {
        const qn_precision precision = i % 2 ? QN_PRECISION_FAST : QN_PRECISION_HIGH;
        setenv("QUERN_MLX_HALF", halves[i / 2], 1);
        float *half = logits_of_pictures(kind, precision, &n_rows, &vocab);
        setenv("QUERN_MLX_HALF", "1", 1);
        const double off = typical_row(n_rows, vocab, 0, half, exact);
        print_message("%s: %s, type %s, relative L2 %.2e\n", kind, qn_test_precision_name(precision),
                      halves[i / 2], off);
        assert_true(off > 0 && off <= (i / 2 == 1 ? f16_tolerance : bf16_tolerance));
        qn_free(half);
    }
    qn_free(exact);
}

/* ---- pages ----------------------------------------------------------------------------------------------- */

/* A sequence that is decoded beside others gets pages that do not lie behind each other; then it goes on alone. */
static void scattered_pages(void **state)
{
    enum { LENGTH = 200 };
    need_device();
    qn_engine *e = open_engine(qn_test_need_fixture("models/llama"), QN_PRECISION_HIGH, 3);
    const int64_t vocab = qn_engine_config(e)->vocab_size;
    int32_t ids[3][LENGTH];
    qn_sequence *s[3];
    qn_feed feeds[3];
    float *out = qn_alloc_array((size_t)(3 * vocab), sizeof *out),
          *alone = qn_alloc_array((size_t)(LENGTH * vocab), sizeof *alone);
    const last_rows rows = {out, vocab};
    for (int i = 0; i < 3; i++) {
        make_ids(ids[i], LENGTH, 30 + (uint64_t)i, vocab);
        s[i] = qn_test_sequence(e);
    }
    for (int64_t at = 0; at < LENGTH; at += 20) {
        const int n = at < LENGTH - 20 ? 3 : 1;
        for (int i = 0; i < n; i++) feeds[i] = (qn_feed){s[i], ids[i] + at, 20, QN_LOGITS_LAST};
        qn_test_ok(qn_engine_step(e, n, feeds, copy_last, NULL, (void *)(uintptr_t)&rows));
    }
    qn_test_logits(e, ids[0], LENGTH, 0, alone);
    assert_true(relative(vocab, out, alone + (LENGTH - 1) * vocab) <= bf16_tolerance);
    for (int i = 0; i < 3; i++) qn_sequence_free(s[i]);
    qn_free(out);
    qn_free(alone);
    qn_engine_close(e);
}

/* An argument picks tests by name: '*phi3*'. */
int main(int argc, char **argv)
{
    static char seeing[][QN_TEST_KIND_BYTES] = {"gemma3_vision", "gemma4_vision", "gemma4_unified"};
    enum { N_SEEING = sizeof seeing / sizeof *seeing };
    static struct CMUnitTest tests[2 * QN_TEST_KINDS_MAX + N_SEEING + 2];
    static const qn_test_kind_row rows[] = {{"near_exact_", near_exact}, {"company_", company}};
    int n = qn_test_kind_rows(2, rows, tests);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    tests[n++] = (struct CMUnitTest){"near_exact_quantised", near_exact_quantised, NULL, NULL, NULL};
    tests[n++] = (struct CMUnitTest){"scattered_pages", scattered_pages, NULL, NULL, NULL};
    for (int i = 0; i < N_SEEING; i++)
        tests[n++] = (struct CMUnitTest){"pictures", pictures, NULL, NULL, seeing[i]};
    return _cmocka_run_group_tests("mlx_half", tests, (size_t)n, open_half, NULL);
}
