/* quern bench: prefill and decode speed, load time and memory of one model. */
#include <quern/quern.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/random.h"
#include "cli/command.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/out.h"

enum { RUNS_MAX = 101, SEQUENCES_MAX = 256, WARM_PROMPT = 256, WARM_DECODE = 8 };

typedef struct {
    qn_load_options load;
    int64_t n_prompt, n_decode, n_sequences;
    int32_t n_runs;
    int json, precision; /* 0: high and fast */
} bench_options;

#define AT(field) offsetof(bench_options, field)
static const qn_arg bench_args[] = {
    {"--prompt-tokens", 0, QN_ARG_INT64, AT(n_prompt), 1, INT32_MAX, "N",
     "tokens of the prompt (default 512)"},
    {"--decode-tokens", 'n', QN_ARG_INT64, AT(n_decode), 2, INT32_MAX, "N",
     "tokens generated after it (default 64)"},
    {"--sequences", 0, QN_ARG_INT64, AT(n_sequences), 1, SEQUENCES_MAX, "N",
     "prompts that run together; decode counts the tokens of all (default 1)"},
    {"--runs", 0, QN_ARG_INT32, AT(n_runs), 1, RUNS_MAX, "N",
     "repetitions, of which the median counts (default 5)"},
    {"--precision", 0, QN_ARG_CHOICE, AT(precision), 0, 0, "both|high|fast|exact",
     "arithmetic (default both: high, fast)"},
    {"--json", 0, QN_ARG_FLAG, AT(json), 0, 0, NULL, "print one JSON object"},
    {0},
};

typedef struct {
    double median, low, high;
} spread;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static spread summarise(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, by_value);
    double median = n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
    return (spread){median, values[0], values[n - 1]};
}

/* Speeds of one run; decode of all sequences together. */
typedef struct {
    double prefill, decode;
} speeds;

/* Prompts of n_prompt ids and n_decode tokens behind each. Sequences whose prompt is done early go on while
 * others are read; decode is timed from there on where all go together, and only while they do. */
static qn_status run_once(qn_model *model, const int32_t *ids, int64_t n_prompt, int64_t n_decode,
                          int64_t n_sequences, speeds *out)
{
    qn_generate_options options = {.ignore_eos = 1};
    qn_generation_stats stats, before = {0};
    qn_generation *generation = NULL;
    qn_ids rows[SEQUENCES_MAX];
    char begun[SEQUENCES_MAX] = {0};
    int64_t n_begun = 0, n_events = 0;
    for (int64_t i = 0; i < n_sequences; i++) rows[i] = (qn_ids){ids + i * n_prompt, n_prompt};
    QN_TRY(
        qn_generation_open(model, &(qn_prompt){.rows = rows, .n_rows = n_sequences}, &options, &generation));
    qn_interrupt_watch(generation);
    qn_status status = QN_OK;
    while (status == QN_OK && n_events < (n_decode - 1) * n_sequences) {
        qn_token token;
        status = qn_generation_next(generation, &token);
        if (status == QN_OK && token.end == QN_END_CANCELLED) status = qn_fail(QN_E_CANCELLED, "interrupted");
        if (token.end != QN_END_NONE) break; /* the context is full */
        if (n_begun == n_sequences) {
            n_events++;
        } else if (status == QN_OK && !begun[token.row]) {
            begun[token.row] = 1;
            if (++n_begun == n_sequences) status = qn_generation_get_stats(generation, &before);
        }
    }
    if (status == QN_OK) status = qn_generation_get_stats(generation, &stats);
    if (status == QN_OK) { /* ended, so that the model's metrics speak of it */
        qn_token token;
        qn_generation_cancel(generation);
        status = qn_generation_next(generation, &token);
    }
    if (status == QN_OK) {
        double decode_ms = stats.decode_ms - before.decode_ms;
        out->prefill = n_begun == n_sequences ? before.prefill_tokens_per_sec : stats.prefill_tokens_per_sec;
        out->decode = decode_ms > 0 && n_events ? (double)n_events / decode_ms * 1e3 : 0;
    }
    qn_interrupt_watch(NULL);
    qn_generation_close(generation);
    return status;
}

static void put_spread(qn_buf *b, const char *key, spread s)
{
    qn_json_key(b, key);
    qn_json_open(b, '{');
    qn_json_put_real(b, "median", s.median);
    qn_json_put_real(b, "min", s.low);
    qn_json_put_real(b, "max", s.high);
    qn_json_close(b, '}');
}

static qn_status measure(qn_model *model, const bench_options *o, const int32_t *ids, qn_buf *json)
{
    double prefill[RUNS_MAX], decode[RUNS_MAX];
    speeds once;
    qn_model_info info;
    qn_metrics metrics;
    QN_TRY(qn_model_get_info(model, &info));
    /* Warms caches and pages; does not count. */
    QN_TRY(
        run_once(model, ids, o->n_prompt < WARM_PROMPT ? o->n_prompt : WARM_PROMPT, WARM_DECODE, 1, &once));
    for (int i = 0; i < o->n_runs; i++) {
        QN_TRY(run_once(model, ids, o->n_prompt, o->n_decode, o->n_sequences, &once));
        prefill[i] = once.prefill;
        decode[i] = once.decode;
    }
    QN_TRY(qn_model_get_metrics(model, &metrics));
    spread p = summarise(prefill, o->n_runs), d = summarise(decode, o->n_runs);
    if (o->json) {
        qn_json_open(json, '{');
        qn_json_put_text(json, "precision", qn_precision_name(info.precision));
        put_spread(json, "prefill_tokens_per_sec", p);
        put_spread(json, "decode_tokens_per_sec", d);
        qn_json_key(json, "metrics");
        qn_json_metrics(json, &metrics);
        qn_json_key(json, "model");
        qn_json_info(json, &info);
        qn_json_close(json, '}');
        return json->status;
    }
    qn_buf b = {0};
    qn_buf_printf(&b,
                  "%-6s %6s  prefill %8.1f tok/s (%.1f to %.1f)  decode %7.1f tok/s (%.1f to %.1f)  load "
                  "%.0f ms  peak %.1f MiB",
                  qn_precision_name(info.precision), info.cpu_set, p.median, p.low, p.high, d.median, d.low,
                  d.high, metrics.load_total_ms, (double)metrics.peak_memory_bytes / 1048576);
    return qn_out_line(&b);
}

static qn_status bench_precision(const char *path, bench_options *o, qn_precision precision, qn_buf *json)
{
    qn_model *model = NULL;
    qn_model_info info;
    int32_t *ids = NULL;
    o->load.precision = (int)precision;
    if (o->load.o.parallel_slots < o->n_sequences) o->load.o.parallel_slots = (int32_t)o->n_sequences;
    qn_status status = qn_load_open(path, &o->load, &model);
    if (status == QN_OK) status = qn_model_get_info(model, &info);
    if (status == QN_OK) {
        ids = qn_alloc_array((size_t)(o->n_prompt * o->n_sequences), sizeof *ids);
        status = ids ? QN_OK : QN_E_NOMEM;
    }
    if (status == QN_OK) {
        for (int64_t i = 0; i < o->n_prompt * o->n_sequences; i++)
            ids[i] = (int32_t)(qn_random_bits(1, (uint64_t)i) % (uint64_t)info.vocab_size);
        status = measure(model, o, ids, json);
    }
    qn_free(ids);
    qn_model_close(&model);
    return status;
}

static const qn_arg_group bench_groups[] = {
    {NULL, bench_args, 0}, {"Loading", qn_load_args + 1, AT(load)}, {0}};
const qn_arg_spec qn_bench_spec = {
    "quern bench MODEL [options]",
    "Measures sequences of random ids: prefill, and decode behind it, apart, after a short run to warm up.",
    bench_groups,
    1,
    1,
    NULL};

int qn_cmd_bench(int argc, char **argv)
{
    bench_options o = {.n_prompt = 512, .n_decode = 64, .n_sequences = 1, .n_runs = 5};
    const char *path;
    int n, code;
    if (qn_args_parse(&qn_bench_spec, &o, argc, argv, &path, &n, &code)) return code;
    qn_interrupt_start();
    qn_buf json = {0};
    if (o.json) {
        qn_json_open(&json, '{');
        qn_json_put_int(&json, "prompt_tokens", o.n_prompt);
        qn_json_put_int(&json, "decode_tokens", o.n_decode);
        qn_json_put_int(&json, "sequences", o.n_sequences);
        qn_json_put_int(&json, "runs", o.n_runs);
        qn_json_key(&json, "results");
        qn_json_open(&json, '[');
    }
    qn_status status = QN_OK;
    if (o.precision == 0 || o.precision == 1) status = bench_precision(path, &o, QN_PRECISION_HIGH, &json);
    if (status == QN_OK && (o.precision == 0 || o.precision == 2))
        status = bench_precision(path, &o, QN_PRECISION_FAST, &json);
    if (status == QN_OK && o.precision == 3) status = bench_precision(path, &o, QN_PRECISION_EXACT, &json);
    if (status == QN_OK && o.json) {
        qn_json_close(&json, ']');
        qn_json_close(&json, '}');
        status = qn_out_line(&json);
    }
    qn_buf_free(&json);
    qn_load_end(&o.load);
    if (status == QN_E_CANCELLED) return QN_EXIT_INTERRUPTED;
    return status == QN_OK ? QN_EXIT_OK : qn_out_fail();
}
