/* What a form costs, and what forced text gains. usage: constrain_decode MODEL [SCHEMAS.jsonl [N]]
 *
 * Without SCHEMAS: decode at 1 and at 16 sequences: free, and held to two schemas that force next to nothing. Free and held
 * answers of TOKENS tokens are neighbours, and swap places each round; milliseconds for each token of a sequence, medians of
 * ROUNDS, and the median and the quartiles of the ratios of neighbours, by the clock and by the processor time of all
 * threads: the goal is at most 1.02. With SCHEMAS (lines as in fixtures/json_schema), complete
 * answers to the first N (100) of them that compile, each with as many free tokens behind it: tokens, and the time of a
 * token beside a free one. Ratios below 1 are forced text. */
#include <quern/quern.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/json/json.h"
#include "base/json/json_value.h"
#include "base/mem.h"

enum { ROUNDS = 21, TOKENS = 128, SEQUENCES_MAX = 16, ANSWER_MAX = 512, LINE_MAX_BYTES = 4 << 20 };

static const char *const held[] = {
    "{\"type\": \"string\", \"minLength\": 2000}",
    "{\"type\": \"array\", \"items\": {\"type\": \"integer\"}, \"minItems\": 500}",
};
enum { N_HELD = sizeof held / sizeof *held };

static void check(qn_status status)
{
    if (status == QN_OK) return;
    fprintf(stderr, "constrain_decode: %s\n", qn_last_error());
    exit(1);
}

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

typedef struct {
    double ms, cpu_ms;
} times;

static int64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Tokens of all rows, from the first one to the end. Returns the times of a token of a row. */
static times generate(qn_model *m, const qn_ids *prompt, int n_rows, qn_constraint *c, int64_t max_tokens,
                      int64_t *n_tokens)
{
    qn_ids rows[SEQUENCES_MAX];
    qn_generation *g = NULL;
    qn_token t;
    const qn_generate_options o = {.max_tokens = max_tokens,
                                   .ignore_eos = !c || max_tokens == TOKENS,
                                   .seed = 1,
                                   .temperature = 1,
                                   .constraint = c};
    int64_t n = 0, start = 0, cpu_start = 0;
    for (int i = 0; i < n_rows; i++) rows[i] = *prompt;
    check(qn_generation_open(m, &(qn_prompt){.rows = rows, .n_rows = n_rows}, &o, &g));
    for (int n_open = n_rows; n_open;) {
        check(qn_generation_next(g, &t));
        if (t.end != QN_END_NONE) {
            n_open--;
        } else if (n++ == n_rows - 1) {
            start = qn_clock_ns(); /* each row has about one */
            cpu_start = cpu_ns();
        }
    }
    const double each = n > n_rows ? 1e-6 * n_rows / (double)(n - n_rows) : 0;
    const times t_all = {(double)(qn_clock_ns() - start) * each, (double)(cpu_ns() - cpu_start) * each};
    qn_generation_close(g);
    *n_tokens = n - n_rows;
    return t_all;
}

static void measure_cost(qn_model *m, const qn_ids *prompt, int n_rows)
{
    for (int k = 0; k < N_HELD; k++) {
        double without[ROUNDS], with[ROUNDS], ratio[ROUNDS], cpu_ratio[ROUNDS];
        int64_t n;
        qn_constraint *c = NULL;
        check(qn_constraint_open(
            m, &(qn_constraint_options){.kind = QN_CONSTRAIN_JSON_SCHEMA, .text = held[k]}, &c));
        generate(m, prompt, n_rows, c, TOKENS,
                 &n); /* what it learns while it is used is known from here on */
        for (int i = 0; i < ROUNDS; i++) {
            times of[2];
            for (int k = 0; k < 2; k++)
                of[(i + k) % 2] = generate(m, prompt, n_rows, (i + k) % 2 ? c : NULL, TOKENS, &n);
            without[i] = of[0].ms;
            with[i] = of[1].ms;
            ratio[i] = of[1].ms / of[0].ms;
            cpu_ratio[i] = of[1].cpu_ms / of[0].cpu_ms;
        }
        const double middle = median(ratio, ROUNDS), cpu_middle = median(cpu_ratio, ROUNDS);
        printf("%2d sequences, %s: free %.3f ms, held %.3f ms, ratio %.3f (%.3f to %.3f), of processor time "
               "%.3f "
               "(%.3f to %.3f)\n",
               n_rows, held[k], median(without, ROUNDS), median(with, ROUNDS), middle, ratio[ROUNDS / 4],
               ratio[ROUNDS * 3 / 4], cpu_middle, cpu_ratio[ROUNDS / 4], cpu_ratio[ROUNDS * 3 / 4]);
        fflush(stdout);
        qn_constraint_close(c);
    }
}

/* The schema of one line. NULL: the line has none, or it does not compile. */
static qn_constraint *open_line(qn_model *m, const char *line, size_t n)
{
    json_t *value = NULL;
    qn_buf b = {0};
    qn_constraint *c = NULL;
    if (qn_json_parse("line", line, n, &value) != QN_OK) return NULL;
    const json_t *schema = json_object_get(value, "schema");
    if (schema) {
        qn_json_write_value(&b, schema);
        qn_constraint_open(m, &(qn_constraint_options){QN_CONSTRAIN_JSON_SCHEMA, .text = b.data}, &c);
    }
    qn_buf_free(&b);
    json_decref(value);
    return c;
}

static void measure_forced(qn_model *m, const qn_ids *prompt, const char *path, int n_wanted)
{
    FILE *f = fopen(path, "r");
    char *line = qn_alloc(LINE_MAX_BYTES);
    double *ratio = qn_alloc_array((size_t)n_wanted, sizeof *ratio), ms_all = 0, cpu_all = 0, free_all = 0,
           free_cpu = 0;
    int64_t n, n_all = 0;
    int n_schemas = 0;
    if (!f || !line || !ratio) {
        fprintf(stderr, "constrain_decode: %s cannot be read\n", path);
        exit(1);
    }
    while (n_schemas < n_wanted && fgets(line, LINE_MAX_BYTES, f)) {
        qn_constraint *c = open_line(m, line, strlen(line));
        if (!c) continue;
        const times held_times = generate(m, prompt, 1, c, ANSWER_MAX, &n);
        if (n > 0) {
            int64_t n_free;
            const times free_times = generate(m, prompt, 1, NULL, n + 1, &n_free);
            ratio[n_schemas++] = held_times.ms / free_times.ms;
            ms_all += held_times.ms * (double)n;
            cpu_all += held_times.cpu_ms * (double)n;
            free_all += free_times.ms * (double)n;
            free_cpu += free_times.cpu_ms * (double)n;
            n_all += n;
        }
        qn_constraint_close(c);
    }
    if (n_schemas) {
        const double middle = median(ratio, n_schemas);
        printf("%d schemas, %lld tokens: %.3f ms a token, as many free ones %.3f ms: ratio %.3f of all, of "
               "processor "
               "time %.3f; of a schema: median %.3f, best %.3f, worst %.3f\n",
               n_schemas, (long long)n_all, ms_all / (double)n_all, free_all / (double)n_all,
               ms_all / free_all, cpu_all / free_cpu, middle, ratio[0], ratio[n_schemas - 1]);
    }
    qn_free(line);
    qn_free(ratio);
    fclose(f);
}

int main(int argc, char **argv)
{
    static const char text[] = "Write the record as JSON:";
    qn_model *m = NULL;
    int32_t *ids = NULL;
    int64_t n_ids;
    if (argc < 2 || argc > 4) {
        fprintf(stderr, "usage: constrain_decode MODEL [SCHEMAS.jsonl [N]]\n");
        return 2;
    }
    check(qn_model_open(argv[1], &(qn_model_options){.parallel_slots = SEQUENCES_MAX}, &m));
    check(qn_model_encode(m, text, strlen(text), &(qn_encode_options){.bos = 1}, &ids, &n_ids));
    const qn_ids prompt = {ids, n_ids};
    if (argc == 2) measure_cost(m, &prompt, 1);
    if (argc == 2) measure_cost(m, &prompt, SEQUENCES_MAX);
    if (argc > 2) measure_forced(m, &prompt, argv[2], argc > 3 ? (int)strtol(argv[3], NULL, 10) : 100);
    qn_buffer_free(ids);
    qn_model_close(&m);
    return 0;
}
