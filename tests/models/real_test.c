/* The two real models against transformers in float32 on the same weights (fixtures/real). KL divergence is
 * over the 64 stored logits and one bucket for the rest. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

enum { TOP = 64, GREEDY = 64 };

/* What a model and a precision must reach. kl: no worse than llama.cpp's on the same file either. */
typedef struct {
    const char *model, *fixture;
    qn_precision precision;
    double kl, same_top, perplexity; /* 0: no bar */
} bar;

static const bar bars[] = {
    {"smollm2", "real/smollm2.safetensors", QN_PRECISION_EXACT, 0, 0, 0},
    {"smollm2", "real/smollm2.safetensors", QN_PRECISION_HIGH, 1e-5, 0.995, 0},
    {"smollm2", "real/smollm2.safetensors", QN_PRECISION_FAST, 4.9e-3, 0.93, 0.012},
    {"gemma3-270m", "real/gemma3_270m.safetensors", QN_PRECISION_EXACT, 0, 0, 0},
    {"gemma3-270m", "real/gemma3_270m.safetensors", QN_PRECISION_HIGH, 1e-5, 0.995, 0},
    {"gemma3-270m", "real/gemma3_270m.safetensors", QN_PRECISION_FAST, 6e-3, 0.93, 0.012},
};

typedef struct {
    const int32_t *ids, *top_ids;
    const float *top_logits, *logsumexp;
    int64_t n, vocab;
    /* found */
    int64_t n_same_top, n_wrong_top; /* wrong: though the margin exceeds 1e-3 */
    double kl, difference, nll;
} comparison;

static double log_sum_exp(const float *x, int64_t n)
{
    float largest = x[0];
    double sum = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > largest) largest = x[i];
    for (int64_t i = 0; i < n; i++) sum += (double)expf(x[i] - largest);
    return (double)largest + log(sum);
}

static void compare_row(comparison *c, int64_t row, const float *logits)
{
    const int32_t *ids = c->top_ids + row * TOP;
    const float *top = c->top_logits + row * TOP;
    double lse = log_sum_exp(logits, c->vocab), p_rest = 1, q_rest = 1, kl = 0;
    for (int i = 0; i < TOP; i++) {
        double p = exp((double)top[i] - (double)c->logsumexp[row]), q = (double)logits[ids[i]] - lse;
        kl += p * ((double)top[i] - (double)c->logsumexp[row] - q);
        p_rest -= p;
        q_rest -= exp(q);
        c->difference += fabs((double)top[i] - (double)logits[ids[i]]);
    }
    if (p_rest > 1e-9 && q_rest > 1e-9) kl += p_rest * log(p_rest / q_rest);
    c->kl += kl;
    int same = qn_test_argmax(logits, c->vocab) == ids[0];
    c->n_same_top += same;
    if (!same && top[0] - top[1] > 1e-3f) c->n_wrong_top++;
    if (row + 1 < c->n) c->nll += lse - (double)logits[c->ids[row + 1]];
}

static qn_status compare_logits(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    comparison *c = user;
    for (int64_t i = 0; i < n; i++) compare_row(c, first + i, logits + i * c->vocab);
    return QN_OK;
}

/* The stored continuations of three prefixes, up to where the reference itself was nearly undecided. */
static void check_greedy(qn_engine *e, const qn_safetensors *st)
{
    const int32_t *want = qn_test_tensor(st, "greedy", 0)->data,
                  *lengths = qn_test_tensor(st, "greedy_len", 0)->data,
                  *ids = qn_test_tensor(st, "ids", 0)->data;
    const float *margin = qn_test_tensor(st, "greedy_margin", 0)->data;
    for (int i = 0; i < 3; i++, want += GREEDY, margin += GREEDY) {
        int32_t got[GREEDY];
        int n = 0;
        qn_test_greedy(e, ids, lengths[i], got, GREEDY);
        while (n < GREEDY && margin[n] >= 1e-2f) n++;
        for (int k = 0; k < n; k++)
            if (got[k] != want[k])
                fail_msg("greedy token %d after %d tokens is %d, expected %d", k, lengths[i], got[k],
                         want[k]);
        print_message("  greedy after %d tokens: %d compared\n", lengths[i], n);
    }
}

static void real(void **state)
{
    const bar *b = *state;
    const char *path = qn_test_need_model(b->model);
    qn_safetensors *st = NULL;
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture(b->fixture), &st));
    const qn_tensor_view *ids = qn_test_tensor(st, "ids", 0);
    int64_t start = qn_clock_ns();
    qn_engine *e = qn_test_engine(
        path, NULL, (qn_engine_options){.precision = b->precision, .n_threads = 2, .context_size = 2048});
    comparison c = {.ids = ids->data,
                    .top_ids = qn_test_tensor(st, "top_ids", 0)->data,
                    .top_logits = qn_test_tensor(st, "top_logits", 0)->data,
                    .logsumexp = qn_test_tensor(st, "logsumexp", 0)->data,
                    .n = ids->n_elements,
                    .vocab = qn_engine_config(e)->vocab_size};
    qn_sequence *s = qn_test_sequence(e);
    qn_feed feed = {s, c.ids, c.n, QN_LOGITS_ALL};
    qn_test_ok(qn_engine_step(e, 1, &feed, compare_logits, NULL, &c));
    qn_sequence_free(s);
    double n = (double)c.n, kl = c.kl / n, same = (double)c.n_same_top / n,
           difference = c.difference / (n * TOP), nll = c.nll / (n - 1),
           reference = strtod(qn_safetensors_metadata(st, "mean_nll"), NULL),
           perplexity = exp(nll - reference) - 1;
    print_message(
        "%s %s %s: mean KL %.3g, top-1 %.2f%% (%d wrong above the margin), mean |dlogit| %.3g, perplexity "
        "%+.3f%%, %.1f s\n",
        b->model, qn_engine_get_info(e)->cpu_set, qn_test_precision_name(b->precision), kl, same * 100,
        (int)c.n_wrong_top, difference, perplexity * 100, (double)(qn_clock_ns() - start) * 1e-9);
    if (b->precision == QN_PRECISION_EXACT) {
        assert_int_equal(c.n_wrong_top, 0);
        assert_true(difference <= 1e-3);
        check_greedy(e, st);
    }
    if (b->kl > 0) assert_true(kl <= b->kl);
    if (b->same_top > 0) assert_true(same >= b->same_top);
    if (b->perplexity > 0) assert_true(fabs(perplexity) <= b->perplexity);
    qn_engine_close(e);
    qn_safetensors_close(st);
}

int main(void)
{
    struct CMUnitTest tests[sizeof bars / sizeof *bars];
    static char names[sizeof bars / sizeof *bars][64];
    size_t n = sizeof bars / sizeof *bars;
    for (size_t i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], "%s_%s", bars[i].model,
                 qn_test_precision_name(bars[i].precision));
        tests[i] = (struct CMUnitTest){names[i], real, NULL, NULL, (void *)(uintptr_t)&bars[i]};
    }
    return _cmocka_run_group_tests("real", tests, n, NULL, NULL);
}
