/* Texts classified under one instruction: all in one call, and one by one.
 *
 * usage: classify_bench --model PATH [--texts N] [--instruction N] [--length N] [--slots N] [--threads N]
 * [--rounds N] [--device NAME] [--precision high|fast|exact]
 *
 * The instruction and the texts are ids; there are three answers, one of them of two tokens. In turn, each
 * round: one call for all texts; a call for each, where the instruction is kept from call to call; a call for
 * each on a model that keeps nothing. Milliseconds, and the ratios of each round to its first (median). The
 * answers' probabilities must be the same bits, unless the device is MLX, which doesn't promise it. */
#include <quern/quern.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

enum { TEXTS_MAX = 1024, LENGTH_MAX = 8192, ROUNDS_MAX = 16, ANSWERS = 3 };

typedef struct {
    int64_t texts, instruction, length, slots, threads, rounds;
    const char *model, *device, *precision;
} setup;

static int32_t ids[TEXTS_MAX][LENGTH_MAX];
static qn_ids rows[TEXTS_MAX];
static qn_prompt prompts[TEXTS_MAX];
static double scores[3][TEXTS_MAX][ANSWERS];

typedef struct {
    double (*to)[ANSWERS];
    int64_t n;
} sink;

static qn_status note(void *user, const qn_classify_result *r)
{
    sink *s = user;
    if (r->status != QN_OK) {
        fprintf(stderr, "classify_bench: %s\n", r->message);
        return r->status;
    }
    for (int i = 0; i < ANSWERS; i++) s->to[s->n][i] = r->choices[i].logprob;
    s->n++;
    return QN_OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int64_t n)
{
    qsort(x, (size_t)n, sizeof *x, by_value);
    return x[n / 2];
}

/* Classifies `per_call` texts a call; milliseconds, or below 0. */
static double run(qn_model *model, int64_t n, int64_t per_call, double (*to)[ANSWERS])
{
    static const int32_t answers[ANSWERS][2] = {{300}, {301}, {302, 303}};
    const qn_choice choices[ANSWERS] = {
        {.ids = answers[0], .n_ids = 1}, {.ids = answers[1], .n_ids = 1}, {.ids = answers[2], .n_ids = 2}};
    const qn_classify_options o = {.choices = {choices, ANSWERS}};
    sink s = {to, 0};
    qn_model_clear_cache(model);
    int64_t start = qn_clock_ns();
    for (int64_t i = 0; i < n; i += per_call)
        if (qn_classify(model, prompts + i, (size_t)per_call, &o, note, &s) != QN_OK) return -1;
    return (double)(qn_clock_ns() - start) * 1e-6;
}

static int measure(const setup *s, qn_model *model, qn_model *forgetful)
{
    double ms[3][ROUNDS_MAX], ratio[3][ROUNDS_MAX];
    static const char *const names[] = {"one call", "one by one", "one by one, nothing kept"};
    for (int64_t round = -1; round < s->rounds; round++) {
        for (int way = 0; way < 3; way++) {
            double t = run(way == 2 ? forgetful : model, s->texts, way ? 1 : s->texts, scores[way]);
            if (t < 0) return 1;
            if (round < 0) continue;
            ms[way][round] = t;
            ratio[way][round] = t / ms[0][round];
        }
    }
    for (int way = 0; way < 3; way++)
        printf("%-26s %9.1f ms  %6.2f times one call\n", names[way], median(ms[way], s->rounds),
               median(ratio[way], s->rounds));
    int promised = !s->device || strcmp(s->device, "mlx") != 0;
    for (int way = 1; promised && way < 3; way++) {
        if (memcmp(scores[way], scores[0], sizeof scores[0]) == 0) continue;
        fprintf(stderr, "classify_bench: %s: other bits than in one call\n", names[way]);
        return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    setup s = {64, 200, 16, 16, 0, 5, NULL, NULL, "high"};
    for (int i = 1; i + 1 < argc; i += 2) {
        const struct {
            const char *name;
            int64_t *value;
        } numbers[] = {{"--texts", &s.texts}, {"--instruction", &s.instruction}, {"--length", &s.length},
                       {"--slots", &s.slots}, {"--threads", &s.threads},         {"--rounds", &s.rounds}};
        const struct {
            const char *name, **value;
        } words[] = {{"--model", &s.model}, {"--device", &s.device}, {"--precision", &s.precision}};
        for (size_t k = 0; k < sizeof words / sizeof *words; k++)
            if (strcmp(argv[i], words[k].name) == 0) *words[k].value = argv[i + 1];
        for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
            if (strcmp(argv[i], numbers[k].name) == 0) *numbers[k].value = strtoll(argv[i + 1], NULL, 10);
    }
    int64_t longest = s.instruction + s.length;
    if (!s.model || s.texts < 1 || s.texts > TEXTS_MAX || s.instruction < 0 || s.length < 1 ||
        longest > LENGTH_MAX || s.slots < 1 || s.threads < 0 || s.rounds < 1 || s.rounds > ROUNDS_MAX) {
        fprintf(stderr,
                "usage: classify_bench --model PATH [--texts N] [--instruction N] [--length N] [--slots N] "
                "[--threads N] [--rounds N] [--device NAME] [--precision high|fast|exact]\n");
        return 2;
    }
    for (int64_t t = 0; t < s.texts; t++) {
        for (int64_t i = 0; i < longest; i++)
            ids[t][i] = (int32_t)(20 + (i < s.instruction ? i * 31 : (t + 1) * 17 + i * 7) % 220);
        rows[t] = (qn_ids){ids[t], longest};
        prompts[t] = (qn_prompt){.rows = &rows[t], .n_rows = 1};
    }
    qn_model_options o = {.parallel_slots = (int32_t)s.slots,
                          .n_threads = (int32_t)s.threads,
                          .context_size = longest + 8,
                          .device = s.device};
    for (int p = QN_PRECISION_HIGH; p <= QN_PRECISION_EXACT; p++)
        if (strcmp(s.precision, qn_precision_name((qn_precision)p)) == 0) o.precision = (qn_precision)p;
    qn_model *model = NULL, *forgetful = NULL;
    qn_status status = qn_model_open(s.model, &o, &model);
    o.no_prefix_cache = 1;
    if (status == QN_OK) status = qn_model_open(s.model, &o, &forgetful);
    if (status != QN_OK) fprintf(stderr, "classify_bench: %s\n", qn_last_error());
    int code = status == QN_OK ? measure(&s, model, forgetful) : 1;
    qn_model_close(&model);
    qn_model_close(&forgetful);
    return code;
}
