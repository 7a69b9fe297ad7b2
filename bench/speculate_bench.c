/* What speculation gains where a text repeats, and costs where it does not: the same greedy or seeded
 * generation with and without, in turns.
 *
 * usage: speculate_bench --model PATH [--tokens N] [--threads N] [--rounds N] [--draft N] [--rows N]
 *        [--draft-model PATH]
 *
 * "repeats": a passage twice, then its beginning: what an edit, a quotation or code asks for. "new": sampled
 * at a high temperature. Tokens a second of decoding (median of the rounds), and how many guesses came true.
 * Both must give the same tokens; the program fails if not. */
#include <quern/quern.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS_MAX = 32, TOKENS_MAX = 4096, ROWS_MAX = 32 };

static const char passage[] =
    "The miller keeps two ledgers. The first says who brought grain, how many sacks, and on which day of the "
    "week; the second says what was ground, how fine, and what the stones cost. At noon he reads both aloud, "
    "line by line, and whoever finds a difference may name it: wheat 14 sacks on Monday, rye 9 on Tuesday, "
    "barley 23 on Thursday, oats 5 on Friday. Nothing is struck out; a wrong line is followed by a right "
    "one.\n\n";

typedef struct {
    int32_t ids[TOKENS_MAX];
    int64_t n;
    qn_generation_stats stats;
} outcome;

static int run(qn_model *model, const qn_ids *rows, int64_t n_rows, const qn_generate_options *o,
               outcome *out)
{
    qn_generation *g = NULL;
    qn_token t = {0};
    out->n = 0;
    if (qn_generation_open(model, &(qn_prompt){.rows = rows, .n_rows = n_rows}, o, &g) != QN_OK) return 0;
    int64_t n_over = 0;
    while (n_over < n_rows && qn_generation_next(g, &t) == QN_OK) {
        n_over += t.end != QN_END_NONE;
        if (t.end == QN_END_NONE && t.row == 0 && out->n < TOKENS_MAX) out->ids[out->n++] = t.id;
    }
    int ok = n_over == n_rows && qn_generation_get_stats(g, &out->stats) == QN_OK;
    qn_generation_close(g);
    return ok;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int64_t n)
{
    qsort(x, (size_t)n, sizeof *x, by_size);
    return x[n / 2];
}

static int compare(qn_model *model, const char *name, const qn_ids *rows, int64_t n_rows,
                   qn_generate_options o, int32_t n_draft, int64_t rounds)
{
    static outcome out[2];
    double speed[2][ROUNDS_MAX], ratio[ROUNDS_MAX];
    if (!run(model, rows, n_rows, &o, &out[0])) return 0; /* prompts come from the prefix cache from now on */
    for (int64_t i = 0; i < rounds; i++) {
        for (int turn = 0; turn < 2; turn++) {
            int on = (turn + (int)i) % 2;
            o.n_draft = on ? n_draft : 0;
            if (!run(model, rows, n_rows, &o, &out[on])) return 0;
            speed[on][i] = out[on].stats.decode_tokens_per_sec;
        }
        ratio[i] = speed[1][i] / speed[0][i];
        if (out[0].n != out[1].n ||
            memcmp(out[0].ids, out[1].ids, (size_t)out[0].n * sizeof *out[0].ids) != 0) {
            fprintf(stderr, "speculate_bench: %s: other tokens with speculation\n", name);
            exit(1);
        }
    }
    printf("%-8s %2lld rows: without %8.1f tokens/s, with %8.1f, ratio %5.2f; %lld guessed, %lld came true\n",
           name, (long long)n_rows, median(speed[0], rounds), median(speed[1], rounds), median(ratio, rounds),
           (long long)out[1].stats.n_drafted_tokens, (long long)out[1].stats.n_accepted_tokens);
    return 1;
}

int main(int argc, char **argv)
{
    static char text[3 * sizeof passage];
    const char *path = NULL, *draft_model = NULL;
    long long tokens = 96, threads = 0, rounds = 3, draft = QN_DRAFT_TOKENS_MAX, n_rows = 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--model") == 0) path = argv[i + 1];
        if (strcmp(argv[i], "--draft-model") == 0) draft_model = argv[i + 1];
        if (strcmp(argv[i], "--tokens") == 0) tokens = strtoll(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--threads") == 0) threads = strtoll(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--rounds") == 0) rounds = strtoll(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--draft") == 0) draft = strtoll(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--rows") == 0) n_rows = strtoll(argv[i + 1], NULL, 10);
    }
    if (!path || tokens < 2 || tokens > TOKENS_MAX || rounds < 1 || rounds > ROUNDS_MAX || n_rows < 1 ||
        n_rows > ROWS_MAX)
        return 2;
    snprintf(text, sizeof text, "%s%s%.60s", passage, passage, passage);
    const qn_model_options o = {.n_threads = (int32_t)threads,
                                .parallel_slots = (int32_t)n_rows,
                                .draft_model = draft_model,
                                .context_size = tokens + 600};
    qn_model *model = NULL;
    qn_ids rows[ROWS_MAX], ids = {0};
    int32_t *found = NULL;
    int64_t n_found = 0;
    qn_status status = qn_model_open(path, &o, &model);
    if (status == QN_OK) status = qn_model_encode(model, text, strlen(text), NULL, &found, &n_found);
    ids = (qn_ids){found, n_found};
    for (int i = 0; i < ROWS_MAX; i++) rows[i] = ids;
    const qn_generate_options greedy = {.max_tokens = tokens, .ignore_eos = 1},
                              sampled = {
                                  .max_tokens = tokens, .ignore_eos = 1, .temperature = 1.5f, .seed = 4};
    int ok = status == QN_OK && compare(model, "repeats", rows, n_rows, greedy, (int32_t)draft, rounds) &&
             compare(model, "new", rows, n_rows, sampled, (int32_t)draft, rounds);
    if (!ok) fprintf(stderr, "speculate_bench: %s\n", qn_last_error());
    qn_buffer_free(found);
    qn_model_close(&model);
    return !ok;
}
