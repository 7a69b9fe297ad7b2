/* Vectors of texts, for bench/embeddings.
 *
 * usage: embed_bench MODEL TEXTS.json high|fast|exact THREADS
 *
 * TEXTS.json is an array of strings. When the model is open, and behind each pass over all texts, a line is printed; each
 * line of standard input asks for a pass: {"seconds":S, "cpu":S, "tokens":N, "texts":N, "first":[X,...]}, the last being the
 * vector of the first text, of length 1. */
#include <jansson.h>
#include <quern/quern.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

enum { TEXTS_MAX = 65536, WIDTH_MAX = 4096 };

static qn_prompt prompts[TEXTS_MAX];

typedef struct {
    float first[WIDTH_MAX];
    int64_t n_tokens, n_values;
} sums;

static qn_status note(void *user, const qn_embed_result *r)
{
    sums *s = user;
    if (r->status != QN_OK) {
        fprintf(stderr, "embed_bench: %s\n", r->message);
        return r->status;
    }
    s->n_tokens += r->n_tokens;
    if (r->i_prompt || r->n_values > WIDTH_MAX) return QN_OK;
    s->n_values = r->n_values;
    memcpy(s->first, r->vector, (size_t)r->n_values * sizeof *s->first);
    return QN_OK;
}

static int run_pass(qn_model *model, size_t n)
{
    static sums s;
    const int64_t start = qn_clock_ns();
    const clock_t cpu = clock();
    s.n_tokens = 0;
    if (qn_embed(model, prompts, n, &(qn_embed_options){.normalise = 1, .truncate = 1}, note, &s) != QN_OK)
        return 0;
    printf("{\"seconds\":%.6f, \"cpu\":%.6f, \"tokens\":%lld, \"texts\":%zu, \"first\":[",
           (double)(qn_clock_ns() - start) * 1e-9, (double)(clock() - cpu) / CLOCKS_PER_SEC,
           (long long)s.n_tokens, n);
    for (int64_t i = 0; i < s.n_values; i++) printf("%s%.9g", i ? "," : "", (double)s.first[i]);
    puts("]}");
    return fflush(stdout) == 0;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {
        [QN_PRECISION_HIGH] = "high", [QN_PRECISION_FAST] = "fast", [QN_PRECISION_EXACT] = "exact"};
    char line[64];
    qn_model *model = NULL;
    qn_model_options o = {.device = "cpu", .precision = QN_PRECISION_HIGH};
    if (argc != 5) return fprintf(stderr, "usage: embed_bench MODEL TEXTS.json PRECISION THREADS\n"), 2;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], argv[3]) == 0) o.precision = (qn_precision)i;
    o.n_threads = (int32_t)strtol(argv[4], NULL, 10);
    json_t *texts = json_load_file(argv[2], 0, NULL);
    const size_t n = json_array_size(texts);
    if (!n || n > TEXTS_MAX) return fprintf(stderr, "embed_bench: %s: no texts, or too many\n", argv[2]), 2;
    for (size_t i = 0; i < n; i++) prompts[i].text = json_string_value(json_array_get(texts, i));
    int is_well = qn_model_open(argv[1], &o, &model) == QN_OK;
    if (is_well) puts("{}");
    fflush(stdout);
    while (is_well && fgets(line, sizeof line, stdin)) is_well = run_pass(model, n);
    if (!is_well) fprintf(stderr, "embed_bench: %s\n", qn_last_error());
    qn_model_close(&model);
    json_decref(texts);
    return !is_well;
}
