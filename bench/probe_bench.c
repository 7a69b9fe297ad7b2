/* What probes cost. usage: probe_bench MODEL [TOKENS]
 *
 * One sequence is decoded again and again, with no probe, with one at the points of tokens, steps and the
 * cache, and with one inside of steps, in turn: milliseconds a token, median of the rounds, and the median of
 * each round's ratio to its own round without a probe; the events of a round. The tokens must be the same. */
#include <quern/quern.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

enum { ROUNDS = 15, TOKENS_MAX = 4096, PROMPT = 32 };

static const struct {
    const char *name;
    uint32_t mask;
} cases[] = {
    {"no probe", 0},
    {"token, step, cache", 1 << QN_PROBE_TOKEN | 1 << QN_PROBE_STEP | 1 << QN_PROBE_CACHE},
    {"layer, attention, router", 1 << QN_PROBE_LAYER | 1 << QN_PROBE_ATTENTION | 1 << QN_PROBE_ROUTER},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static void count(void *user, const qn_probe_event *event)
{
    ++*(int64_t *)user;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *x)
{
    double sorted[ROUNDS];
    memcpy(sorted, x, sizeof sorted);
    qsort(sorted, ROUNDS, sizeof *sorted, by_value);
    return sorted[ROUNDS / 2];
}

/* Milliseconds of each token behind the first. */
static qn_status decode(qn_model *model, int64_t n, int32_t *out, double *ms)
{
    int32_t ids[PROMPT];
    qn_token token;
    qn_generation *g = NULL;
    for (int i = 0; i < PROMPT; i++) ids[i] = 5 + i;
    const qn_ids row = {ids, PROMPT};
    const qn_prompt prompt = {.rows = &row, .n_rows = 1};
    const qn_generate_options o = {.max_tokens = n + 1, .ignore_eos = 1};
    int64_t start = 0;
    qn_status status = qn_generation_open(model, &prompt, &o, &g);
    for (int64_t i = 0; status == QN_OK && i <= n; i++) {
        status = qn_generation_next(g, &token);
        if (i == 0) start = qn_clock_ns();
        out[i] = token.id;
    }
    *ms = (double)(qn_clock_ns() - start) * 1e-6 / (double)n;
    qn_generation_close(g);
    return status;
}

/* One decoding with the probe of a case. */
static qn_status decode_with(qn_model *model, int i_case, int64_t n, int32_t *out, double *ms,
                             int64_t *events)
{
    int64_t probe = 0;
    qn_status status = QN_OK;
    *events = 0;
    if (cases[i_case].mask) status = qn_probe_add(model, cases[i_case].mask, count, events, &probe);
    if (status == QN_OK) status = decode(model, n, out, ms);
    if (probe && status == QN_OK) status = qn_probe_remove(model, probe);
    return status;
}

static qn_status measure(qn_model *model, int64_t n)
{
    static int32_t want[TOKENS_MAX + 1], got[TOKENS_MAX + 1];
    static double ms[N_CASES][ROUNDS], ratio[N_CASES][ROUNDS];
    int64_t events[N_CASES] = {0};
    qn_status status = decode(model, n, want, &ms[0][0]); /* warm */
    for (int r = 0; status == QN_OK && r < ROUNDS; r++)
        for (int c = 0; status == QN_OK && c < N_CASES; c++) {
            status = decode_with(model, c, n, got, &ms[c][r], &events[c]);
            ratio[c][r] = ms[c][r] / ms[0][r];
            if (status == QN_OK && memcmp(want, got, (size_t)(n + 1) * sizeof *got) != 0) {
                printf("%s: other tokens\n", cases[c].name);
                return QN_E_INTERNAL;
            }
        }
    for (int c = 0; status == QN_OK && c < N_CASES; c++)
        printf("%-26s %8.4f ms a token, %.4f of no probe, %lld events\n", cases[c].name, median(ms[c]),
               median(ratio[c]), (long long)events[c]);
    return status;
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "tests/golden/models/llama";
    long n = argc > 2 ? strtol(argv[2], NULL, 10) : 64;
    qn_model *model = NULL;
    if (n < 1 || n > TOKENS_MAX) n = 64;
    qn_status status = qn_model_open(path, NULL, &model);
    if (status == QN_OK) status = measure(model, n);
    if (status != QN_OK) printf("%s: %s\n", path, qn_last_error());
    qn_model_close(&model);
    return status != QN_OK;
}
