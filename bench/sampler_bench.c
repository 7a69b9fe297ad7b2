/* What sampling costs over greedy, on one thread. usage: sampler_bench [vocabulary]
 *
 * For each vocabulary, distribution and chain: microseconds of a draw less those of a greedy draw, best and
 * median of the rounds, in which the chains take turns; and how often the time of one reading of the logits
 * at the cache's bandwidth, measured in the same rounds, goes into the best. Logits lie in the cache as after
 * the head of a model. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/random.h"
#include "bench/peaks.h"
#include "engine/sample/sampler.h"

enum { ROUNDS = 41, DRAWS = 8, N_SEEN = 500, N_CONTEXT = 4096 };

static const int32_t word[] = {7, 9};
static const qn_ids bad = {word, 2};
static const char *const no_breakers[] = {NULL};

static const struct {
    const char *name;
    qn_generate_options o;
} chains[] = {
    {"greedy", {.temperature = 0}},
    {"greedy, penalty", {.temperature = 0, .repeat_penalty = 1.1f}},
    {"full chain",
     {.temperature = 0.8f, .top_p = 0.95f, .min_p = 0.05f, .top_k = 40, .repeat_penalty = 1.1f}},
    {"penalty", {.temperature = 1, .repeat_penalty = 1.1f}},
    {"top_p", {.temperature = 1, .top_p = 0.95f}},
    {"min_p", {.temperature = 1, .min_p = 0.05f}},
    {"top_k", {.temperature = 1, .top_k = 40}},
    {"top_k 1000", {.temperature = 1, .top_k = 1000}},
    {"temperature", {.temperature = 0.8f}},
    {"temperature 0.5", {.temperature = 0.5f}},
    {"typical_p", {.temperature = 1, .typical_p = 0.95f}},
    {"top_n_sigma", {.temperature = 1, .top_n_sigma = 1}},
    {"xtc", {.temperature = 1, .xtc_probability = 1, .xtc_threshold = 0.01f}},
    {"top_k, xtc", {.temperature = 1, .top_k = 40, .xtc_probability = 1}},
    {"dynatemp", {.temperature = 1, .dynatemp_range = 0.5f}},
    {"mirostat 1", {.temperature = 1, .mirostat = 1}},
    {"mirostat 2", {.temperature = 1, .mirostat = 2}},
    {"dry", {.temperature = 1, .dry_multiplier = 0.8f, .dry_sequence_breakers = no_breakers}},
    {"repeat_last_n", {.temperature = 1, .repeat_penalty = 1.1f, .repeat_last_n = 64}},
    {"bad words", {.temperature = 1, .bad_ids = &bad, .n_bad_ids = 1}},
    {"allowed ids", {.temperature = 1, .allowed_ids = word, .n_allowed_ids = 2}},
};
enum { N_CHAINS = sizeof chains / sizeof *chains };

/* peaked: one token has nearly all. realistic: a few stand out of many. flat: none does. */
static void fill(float *x, int64_t n, const char *distribution)
{
    double spread = strcmp(distribution, "flat") == 0 ? 0.05 : 2.5;
    for (int64_t i = 0; i < n; i++) {
        double a = qn_random_unit(1, (uint64_t)(2 * i)), b = qn_random_unit(1, (uint64_t)(2 * i + 1));
        x[i] = (float)(spread * sqrt(-2 * log(1 - a)) * cos(6.283185307179586 * b));
    }
    if (strcmp(distribution, "peaked") == 0) x[n / 3] = 40;
    if (strcmp(distribution, "realistic") == 0)
        for (int64_t i = 0; i < 12; i++) x[i * 7919 % n] = 18 - 0.6f * (float)i;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double read_us(const float *x, int64_t n)
{
    peak_read_fn *read = NULL;
    for (size_t i = 0; i < sizeof peak_readers / sizeof *peak_readers; i++)
        if (peak_readers[i].usable()) read = peak_readers[i].read;
    uint64_t sum = 0;
    int64_t start = qn_clock_ns();
    for (int i = 0; i < DRAWS; i++) sum ^= read((const char *)x, (size_t)n * sizeof *x);
    double us = (double)(qn_clock_ns() - start) / 1e3 / DRAWS;
    return sum == 1 ? us + 1e-9 : us; /* the sum is used */
}

static int measure(int64_t n, const char *distribution, const float *x)
{
    qn_sampler *samplers[N_CHAINS] = {NULL};
    qn_words *words[N_CHAINS] = {NULL};
    static double us[N_CHAINS][ROUNDS];
    double limit = INFINITY;
    int rc = 1;
    for (int c = 0; c < N_CHAINS; c++) {
        const qn_generate_options *o = &chains[c].o;
        if (qn_words_are_needed(o) && qn_words_new(NULL, o, n, N_CONTEXT, &words[c]) != QN_OK) goto out;
        if (qn_sampler_new(NULL, o, n, words[c], &samplers[c]) != QN_OK) goto out;
        const int repeats = o->dry_multiplier > 0; /* then it says the same again and again */
        for (int64_t i = 0; i < (repeats ? N_CONTEXT : N_SEEN); i++) { /* some of the best are among them */
            int32_t id = (int32_t)((repeats ? i % N_SEEN : i) * 7919 * 3 % n);
            if (qn_sampler_accept(samplers[c], &id, 1) != QN_OK) goto out;
        }
    }
    for (int round = 0; round < ROUNDS; round++) {
        limit = fmin(limit, read_us(x, n));
        for (int c = 0; c < N_CHAINS; c++) {
            int32_t id;
            int64_t start = qn_clock_ns();
            for (int i = 0; i < DRAWS; i++)
                if (qn_sampler_draw(samplers[c], x, round * DRAWS + i, &id) != QN_OK) goto out;
            us[c][round] = (double)(qn_clock_ns() - start) / 1e3 / DRAWS;
        }
    }
    printf("%lld tokens, %s: read once in %.1f us\n", (long long)n, distribution, limit);
    for (int c = 0; c < N_CHAINS; c++) {
        qsort(us[c], ROUNDS, sizeof **us, by_value);
        double best = us[c][0] - (c ? us[0][0] : 0), median = us[c][ROUNDS / 2] - (c ? us[0][ROUNDS / 2] : 0);
        printf("  %-16s %s %8.1f us, median %8.1f, %6.1f readings\n", chains[c].name,
               c ? "greedy +" : "        ", best, median, best / limit);
    }
    rc = 0;
out:
    if (rc) fprintf(stderr, "%s\n", qn_last_error());
    for (int c = 0; c < N_CHAINS; c++) {
        qn_sampler_free(samplers[c]);
        qn_words_free(words[c]);
    }
    return rc;
}

int main(int argc, char **argv)
{
    static const char *const distributions[] = {"peaked", "realistic", "flat"};
    int64_t sizes[] = {32000, 151936, 262144}, n_sizes = 3;
    if (argc > 1) {
        sizes[0] = strtoll(argv[1], NULL, 10) / 128 * 128; /* what the readers can read */
        n_sizes = 1;
    }
    for (int64_t s = 0; s < n_sizes; s++) {
        float *x = sizes[s] > 0 ? qn_alloc_array((size_t)sizes[s], sizeof *x) : NULL;
        if (!x) {
            fprintf(stderr, "no memory for %lld tokens\n", (long long)sizes[s]);
            return 1;
        }
        for (int d = 0; d < 3; d++) {
            fill(x, sizes[s], distributions[d]);
            if (measure(sizes[s], distributions[d], x)) {
                qn_free(x);
                return 1;
            }
        }
        qn_free(x);
    }
    return 0;
}
