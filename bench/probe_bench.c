/* What probes cost. usage: probe_bench [MODEL [CYCLES]]
 *
 * One sequence is decoded, and every BLOCK tokens the probes change: none, none again, one at the points of
 * tokens, steps and the cache, one inside of steps, and back in the other order. So a cycle has each case
 * twice, as early as late: what drifts (the context's length, the clock, the neighbours) is the same for all.
 * A cycle gives one ratio per case, its time / that of no probe. Shown are the median of CYCLES ratios, the
 * range in which the true median lies with 95% (order statistics), and the events of a token. "none again" is
 * compared with itself: its distance from 1 is what the measurement cannot see, and what a probe costs that
 * was removed. The tokens must be those of a sequence that nobody looked at. */
#include <math.h>
#include <quern/quern.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

enum {
    CYCLES_MAX = 4096,
    PROMPT = 32,
    BLOCK = 4,
    WARM = 16,             /* tokens of a sequence before its first cycle */
    CYCLES_A_SEQUENCE = 12 /* then it begins again */
};

static const struct {
    const char *name;
    uint32_t mask;
} cases[] = {
    {"no probe", 0},
    {"none again", 0},
    {"token, step, cache", 1 << QN_PROBE_TOKEN | 1 << QN_PROBE_STEP | 1 << QN_PROBE_CACHE},
    {"layer, attention, router", 1 << QN_PROBE_LAYER | 1 << QN_PROBE_ATTENTION | 1 << QN_PROBE_ROUTER},
};
enum {
    N_CASES = sizeof cases / sizeof *cases,
    BLOCKS = 2 * N_CASES, /* of a cycle */
    TOKENS = WARM + CYCLES_A_SEQUENCE * BLOCKS * BLOCK
};

typedef struct {
    qn_model *model;
    int32_t want[TOKENS];
    int64_t n_events[N_CASES], n_tokens[N_CASES];
    double ratios[N_CASES][CYCLES_MAX], ms[CYCLES_MAX];
    int n;
} bench;

static void count(void *user, const qn_probe_event *event)
{
    ++*(int64_t *)user;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static qn_status open_sequence(bench *b, qn_generation **out)
{
    int32_t ids[PROMPT];
    for (int i = 0; i < PROMPT; i++) ids[i] = 5 + i;
    const qn_ids row = {ids, PROMPT};
    const qn_prompt prompt = {.rows = &row, .n_rows = 1};
    const qn_generate_options o = {.max_tokens = TOKENS, .ignore_eos = 1};
    return qn_generation_open(b->model, &prompt, &o, out);
}

/* Tokens [from, from + n) of the sequence; want: they are noted, else compared. */
static qn_status read_tokens(bench *b, qn_generation *g, int from, int n, int want)
{
    qn_token token;
    for (int i = from; i < from + n; i++) {
        qn_status status = qn_generation_next(g, &token);
        if (status != QN_OK) return status;
        if (want) b->want[i] = token.id;
        if (b->want[i] == token.id) continue;
        printf("other tokens with a probe\n");
        return QN_E_INTERNAL;
    }
    return QN_OK;
}

/* One block with the probe of a case: nanoseconds are added. */
static qn_status run_block(bench *b, qn_generation *g, int i_case, int from, int64_t *ns)
{
    int64_t probe = 0;
    qn_status status = QN_OK;
    if (cases[i_case].mask)
        status = qn_probe_add(b->model, cases[i_case].mask, count, &b->n_events[i_case], &probe);
    int64_t start = qn_clock_ns();
    if (status == QN_OK) status = read_tokens(b, g, from, BLOCK, 0);
    *ns += qn_clock_ns() - start;
    b->n_tokens[i_case] += BLOCK;
    if (probe && status == QN_OK) status = qn_probe_remove(b->model, probe);
    return status;
}

static qn_status run_cycle(bench *b, qn_generation *g, int from)
{
    int64_t ns[N_CASES] = {0};
    qn_status status = QN_OK;
    for (int i = 0; status == QN_OK && i < BLOCKS; i++) {
        int i_case = i < N_CASES ? i : BLOCKS - 1 - i;
        status = run_block(b, g, i_case, from + i * BLOCK, &ns[i_case]);
    }
    for (int c = 0; c < N_CASES; c++) b->ratios[c][b->n] = (double)ns[c] / (double)ns[0];
    b->ms[b->n++] = (double)ns[0] * 1e-6 / (2 * BLOCK);
    return status;
}

static qn_status run_sequence(bench *b, int n_cycles)
{
    qn_generation *g = NULL;
    qn_status status = open_sequence(b, &g);
    if (status == QN_OK) status = read_tokens(b, g, 0, n_cycles ? WARM : TOKENS, !n_cycles);
    for (int i = 0; status == QN_OK && i < n_cycles && i < CYCLES_A_SEQUENCE; i++)
        status = run_cycle(b, g, WARM + i * BLOCKS * BLOCK);
    qn_generation_close(g);
    return status;
}

static void print(bench *b)
{
    /* Of n values in order, the median of what they were drawn from lies between those so far from the middle
     * with 95%. */
    int far = (int)ceil(0.98 * sqrt(b->n)), low = b->n / 2 - far, high = b->n / 2 + far;
    if (low < 0) low = 0;
    if (high > b->n - 1) high = b->n - 1;
    qsort(b->ms, (size_t)b->n, sizeof *b->ms, by_value);
    printf("%d cycles, %.4f ms a token\n", b->n, b->ms[b->n / 2]);
    for (int c = 1; c < N_CASES; c++) {
        double *r = b->ratios[c];
        qsort(r, (size_t)b->n, sizeof *r, by_value);
        printf("%-26s %.4f of no probe (%.4f to %.4f), %.1f events a token\n", cases[c].name, r[b->n / 2],
               r[low], r[high], (double)b->n_events[c] / (double)b->n_tokens[c]);
    }
}

int main(int argc, char **argv)
{
    static bench b;
    const char *path = argc > 1 ? argv[1] : "tests/golden/models/llama";
    long n = argc > 2 ? strtol(argv[2], NULL, 10) : 240;
    const qn_model_options o = {.context_size = PROMPT + TOKENS};
    if (n < 1 || n > CYCLES_MAX) n = 240;
    qn_status status = qn_model_open(path, &o, &b.model);
    if (status == QN_OK) status = run_sequence(&b, 0);
    while (status == QN_OK && b.n < n) status = run_sequence(&b, (int)n - b.n);
    if (status == QN_OK) print(&b);
    if (status != QN_OK) printf("%s: %s\n", path, qn_last_error());
    qn_model_close(&b.model);
    return status != QN_OK;
}
