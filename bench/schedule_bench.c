/* What the scheduler gains and costs. usage: schedule_bench MODEL [fast|high] [ROUNDS]
 *
 * Scenes on one model, each against its own alternative, in turn; the median of the rounds' ratios, and the
 * least and the largest:
 *   shared  32 requests of 512 equal tokens and 16 of their own, 16 tokens each: time with prefixes / without
 *   hit     the same prompt of 512 again: time to the first token / a decode step
 *   gap     one stream decodes while a prompt of 4,000 tokens arrives: its longest gap / its median gap, and
 *           the same for who puts the whole prompt into one step (chunks without a budget: the prompt's time)
 *   crowd   12 streams decode while a prompt of 1,024 tokens arrives: its first token / the same alone, and
 *           the longest time in which each of them gets a token / the median before
 *   cost    32 sequences decode: nanoseconds around the steps / in them
 */
#include <quern/quern.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

enum {
    ROUNDS_MAX = 31,
    SHARED = 512,
    OWN = 16,
    N = 32,
    LONG = 4000,
    STREAM = 4096,
    CROWD = 12,
    CROWD_PROMPT = 256,
    CROWD_AHEAD = 32, /* tokens that a generation may be ahead of who reads it */
    CROWD_USUAL = 16, /* rounds before the prompt comes */
    LATE = 1024
};

typedef struct {
    double x[ROUNDS_MAX];
    int n;
} ratios;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_value);
    return x[n / 2];
}

static void print(const char *name, ratios *r)
{
    double m = median(r->x, r->n);
    printf("%-44s %8.4f  (%.4f to %.4f)\n", name, m, r->x[0], r->x[r->n - 1]);
}

static void die(const char *what)
{
    fprintf(stderr, "schedule_bench: %s: %s\n", what, qn_last_error());
    exit(1);
}

static void fill(int32_t *ids, int64_t n, int64_t vocab, uint32_t seed)
{
    for (int64_t i = 0; i < n; i++)
        ids[i] = (int32_t)(10 + (seed * 2654435761u + (uint32_t)i * 40503u) % (uint32_t)(vocab - 20));
}

static qn_generation *open_row(qn_model *model, const int32_t *ids, int64_t n, qn_generate_options o)
{
    qn_generation *g = NULL;
    const qn_ids row = {ids, n};
    o.ignore_eos = 1;
    if (qn_generation_open(model, &(qn_prompt){.rows = &row, .n_rows = 1}, &o, &g) != QN_OK) die("open");
    return g;
}

static void drain(qn_generation *g)
{
    qn_token t = {0};
    while (t.end == QN_END_NONE)
        if (qn_generation_next(g, &t) != QN_OK) die("next");
}

/* Milliseconds. */
static double shared(qn_model *model, int64_t vocab, uint32_t seed, int no_cache)
{
    static int32_t ids[N][SHARED + OWN];
    qn_generation *g[N];
    int64_t start = qn_clock_ns();
    for (int i = 0; i < N; i++) {
        fill(ids[i], SHARED, vocab, seed);
        fill(ids[i] + SHARED, OWN, vocab, seed + 1 + (uint32_t)i);
        g[i] = open_row(model, ids[i], SHARED + OWN,
                        (qn_generate_options){.max_tokens = 16, .no_prefix_cache = no_cache});
    }
    for (int i = 0; i < N; i++) drain(g[i]);
    for (int i = 0; i < N; i++) qn_generation_close(g[i]);
    return (double)(qn_clock_ns() - start) * 1e-6;
}

/* A first token from the cache, in steps of decoding. */
static double hit(qn_model *model, int64_t vocab, uint32_t seed)
{
    int32_t ids[SHARED];
    double first = 0, step = 0;
    fill(ids, SHARED, vocab, seed);
    for (int again = 0; again < 2; again++) {
        qn_generation_stats stats;
        qn_generation *g = open_row(model, ids, SHARED, (qn_generate_options){.max_tokens = 32});
        drain(g);
        if (qn_generation_get_stats(g, &stats) != QN_OK) die("stats");
        qn_generation_close(g);
        first = stats.first_token_ms;
        step = 1e3 / stats.decode_tokens_per_sec;
    }
    return first / step;
}

/* Gaps of a stream, while (with_prompt) a long prompt arrives after its 32nd token. */
static void stream(qn_model *model, int64_t vocab, uint32_t seed, double *longest_ms, double *median_ms,
                   double *prompt_ms)
{
    static int32_t ids[LONG];
    static double gaps[STREAM];
    int n = 0;
    qn_token t = {0};
    qn_generation *other = NULL;
    qn_generation_stats stats = {0};
    fill(ids, LONG, vocab, seed);
    qn_generation *g =
        open_row(model, ids, 16, (qn_generate_options){.max_tokens = STREAM, .no_prefix_cache = 1});
    int64_t before = qn_clock_ns();
    *longest_ms = *median_ms = 0;
    while (n < STREAM && t.end == QN_END_NONE) {
        if (qn_generation_next(g, &t) != QN_OK) die("next");
        int64_t now = qn_clock_ns();
        gaps[n] = (double)(now - before) * 1e-6;
        before = now;
        if (n > 32 && gaps[n] > *longest_ms) *longest_ms = gaps[n];
        if (n == 32) {
            *median_ms = median(gaps, n);
            other = open_row(model, ids, LONG, (qn_generate_options){.max_tokens = 1, .no_prefix_cache = 1});
        }
        if (other && n % 8 == 0) {
            if (qn_generation_get_stats(other, &stats) != QN_OK) die("stats");
            if (stats.first_token_ms > 0) break;
        }
        n++;
    }
    *prompt_ms = stats.first_token_ms;
    drain(other);
    qn_generation_close(other);
    qn_generation_close(g);
}

/* first: of the prompt beside the crowd / alone; gap: the crowd's. */
static void crowd(qn_model *model, int64_t vocab, uint32_t seed, double *first, double *gap)
{
    static int32_t ids[CROWD][CROWD_PROMPT], late[LATE];
    static double rounds[STREAM];
    qn_generation *g[CROWD], *other = NULL;
    qn_generation_stats alone, stats = {0};
    qn_token t;
    double longest = 0, usual = 0;
    fill(late, LATE, vocab, seed + CROWD);
    const qn_generate_options one = {.max_tokens = 1, .no_prefix_cache = 1};
    other = open_row(model, late, LATE, one);
    drain(other);
    if (qn_generation_get_stats(other, &alone) != QN_OK) die("stats");
    qn_generation_close(other);
    other = NULL;
    for (int i = 0; i < CROWD; i++) {
        fill(ids[i], CROWD_PROMPT, vocab, seed + (uint32_t)i);
        g[i] = open_row(model, ids[i], CROWD_PROMPT,
                        (qn_generate_options){.max_tokens = STREAM, .no_prefix_cache = 1});
    }
    for (int i = 0; i < CROWD; i++)
        if (qn_generation_next(g[i], &t) != QN_OK) die("next");
    for (int n = -CROWD_AHEAD; n < STREAM && stats.first_token_ms <= 0; n++) {
        int64_t before = qn_clock_ns();
        for (int i = 0; i < CROWD; i++)
            if (qn_generation_next(g[i], &t) != QN_OK) die("next");
        if (n < 0) continue; /* until what came before all had begun is read */
        rounds[n] = (double)(qn_clock_ns() - before);
        if (other && rounds[n] > longest) longest = rounds[n];
        if (n == CROWD_USUAL) {
            usual = median(rounds, n);
            other = open_row(model, late, LATE, one);
        }
        if (other && qn_generation_get_stats(other, &stats) != QN_OK) die("stats");
    }
    *first = stats.first_token_ms / alone.first_token_ms;
    *gap = longest / usual;
    drain(other);
    qn_generation_close(other);
    for (int i = 0; i < CROWD; i++) qn_generation_close(g[i]);
}

static double cost(qn_model *model, int64_t vocab, uint32_t seed)
{
    static int32_t ids[N][OWN];
    qn_generation *g[N];
    qn_figures a, b;
    for (int i = 0; i < N; i++) {
        fill(ids[i], OWN, vocab, seed + (uint32_t)i);
        g[i] = open_row(model, ids[i], OWN, (qn_generate_options){.max_tokens = 96, .no_prefix_cache = 1});
    }
    qn_token t;
    for (int i = 0; i < N; i++)
        if (qn_generation_next(g[i], &t) != QN_OK) die("next");
    if (qn_model_get_figures(model, &a) != QN_OK) die("figures");
    for (int k = 0; k < 64; k++)
        for (int i = 0; i < N; i++)
            if (qn_generation_next(g[i], &t) != QN_OK) die("next");
    if (qn_model_get_figures(model, &b) != QN_OK) die("figures");
    for (int i = 0; i < N; i++) qn_generation_close(g[i]);
    return (double)(b.scheduling_ns - a.scheduling_ns) / (double)(b.step_ns - a.step_ns);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: schedule_bench MODEL [fast|high] [ROUNDS]\n");
        return 2;
    }
    qn_model_info info;
    qn_model *model = NULL;
    qn_model_options o = {.parallel_slots = N,
                          .context_size = 8192,
                          .precision = argc > 2 && strcmp(argv[2], "high") == 0 ? QN_PRECISION_HIGH
                                                                                : QN_PRECISION_FAST};
    int rounds = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 3;
    if (rounds < 1 || rounds > ROUNDS_MAX) rounds = 3;
    if (qn_model_open(argv[1], &o, &model) != QN_OK || qn_model_get_info(model, &info) != QN_OK) die(argv[1]);
    ratios of_shared = {0}, of_hit = {0}, of_gap = {0}, of_whole = {0}, of_cost = {0}, budget = {0},
           of_first = {0}, of_crowd = {0};
    for (int i = 0; i < rounds; i++) {
        uint32_t seed = 1000 * (uint32_t)(i + 1);
        double longest, usual, prompt;
        double alone = shared(model, info.vocab_size, seed, 1);
        of_shared.x[of_shared.n++] = shared(model, info.vocab_size, seed, 0) / alone;
        of_hit.x[of_hit.n++] = hit(model, info.vocab_size, seed + 100);
        stream(model, info.vocab_size, seed + 200, &longest, &usual, &prompt);
        of_gap.x[of_gap.n++] = longest / usual;
        budget.x[budget.n++] = longest - 2 * usual;
        of_whole.x[of_whole.n++] = longest / prompt;
        crowd(model, info.vocab_size, seed + 400, &of_first.x[of_first.n++], &of_crowd.x[of_crowd.n++]);
        of_cost.x[of_cost.n++] = cost(model, info.vocab_size, seed + 300);
    }
    printf("%s, %s, %d threads, %d rounds: median (least to largest)\n", argv[1],
           qn_precision_name(info.precision), (int)info.n_threads, rounds);
    print("32 over one prefix of 512: time / without", &of_shared);
    print("the same prompt again: first token / step", &of_hit);
    print("a long prompt arrives: longest gap / usual", &of_gap);
    print("  longest gap less two usual ones, ms", &budget);
    print("  longest gap / time of the whole prompt", &of_whole);
    print("a prompt beside 12: first token / alone", &of_first);
    print("  their longest gap / usual", &of_crowd);
    print("32 decode: around the steps / in them", &of_cost);
    qn_model_close(&model);
    return 0;
}
