/* quern bench: what qn_bench_run measures of one model, in one or more precisions. */
#include <float.h>
#include <quern/quern.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/options/options.h"
#include "cli/term/fold.h"
#include "cli/term/interrupt.h"
#include "cli/term/out.h"

enum { SEQUENCES_MAX = 256 };

typedef struct {
    qn_load_options load;
    qn_bench_options bench;
    float max_perplexity;
    int only_speed, json, precision; /* 0: high and fast */
} bench_options;

#define AT(field) offsetof(bench_options, field)
static const qn_arg bench_args[] = {
    {"--prompt", 'p', QN_ARG_TEXT, AT(bench.prompt), 0, 0, "TEXT",
     "prompt text, used as it is (default: random token ids)"},
    {"--prompt-tokens", 0, QN_ARG_INT64, AT(bench.n_prompt_tokens), 1, INT32_MAX, "N",
     "number of random token ids in the prompt (default 512)"},
    {"--decode-tokens", 'n', QN_ARG_INT64, AT(bench.n_decode_tokens), 2, INT32_MAX, "N",
     "tokens to generate after the prompt (default 64)"},
    {"--sequences", 0, QN_ARG_INT64, AT(bench.n_sequences), 1, SEQUENCES_MAX, "N",
     "number of prompts run together; the decode speed counts the tokens of all (default 1)"},
    {"--runs", 0, QN_ARG_INT32, AT(bench.n_runs), 1, QN_BENCH_RUNS_MAX, "N",
     "number of repetitions; the median is reported (default 5)"},
    {"--only-speed", 0, QN_ARG_FLAG, AT(only_speed), 0, 0, NULL, "measure only prefill and decode"},
    {"--max-perplexity", 0, QN_ARG_FLOAT, AT(max_perplexity), 1, FLT_MAX, "X",
     "maximum perplexity of the built-in text (default: the size of the vocabulary)"},
    {"--precision", 0, QN_ARG_CHOICE, AT(precision), 0, 0, "both|high|fast|exact",
     "arithmetic precision (default both: high and fast)"},
    {"--json", 0, QN_ARG_FLAG, AT(json), 0, 0, NULL, "print one JSON object"},
    {0},
};

static const qn_arg_rule bench_rules[] = {
    {"--prompt", .excludes = "--prompt-tokens", .why = "a prompt has its own tokens"},
    {0},
};

/* ---- JSON --------------------------------------------------------------------------------------------- */

static void put_spread(qn_buf *b, const char *key, qn_bench_spread s)
{
    qn_json_key(b, key);
    qn_json_open(b, '{');
    qn_json_put_real(b, "median", s.median);
    qn_json_put_real(b, "min", s.low);
    qn_json_put_real(b, "max", s.high);
    qn_json_close(b, '}');
}

static void put_quality(qn_buf *b, const qn_bench_report *r)
{
    qn_json_key(b, "answers");
    qn_json_open(b, '[');
    for (int32_t i = 0; i < r->n_answers; i++) {
        qn_json_open(b, '{');
        qn_json_put_text(b, "prompt", r->answers[i].prompt);
        qn_json_key(b, "ids");
        qn_json_ids(b, r->answers[i].ids, r->answers[i].n_ids);
        qn_json_close(b, '}');
    }
    qn_json_close(b, ']');
    if (!r->n_scored) return;
    qn_json_put_real(b, "perplexity", r->perplexity);
    qn_json_put_int(b, "n_scored", r->n_scored);
}

static void put_checks(qn_buf *b, const qn_bench_report *r)
{
    qn_json_key(b, "checks");
    qn_json_open(b, '[');
    for (int32_t i = 0; i < r->n_checks; i++) {
        const qn_bench_check *c = &r->checks[i];
        qn_json_open(b, '{');
        qn_json_put_text(b, "name", c->name);
        qn_json_put_text(b, "rule", c->rule);
        qn_json_put_real(b, "value", c->value);
        qn_json_put_real(b, "bound", c->bound);
        qn_json_put_bool(b, "passed", c->passed);
        qn_json_close(b, '}');
    }
    qn_json_close(b, ']');
}

static void put_report(qn_buf *b, const qn_bench_report *r)
{
    if (r->parts >> QN_BENCH_SPEED & 1) {
        put_spread(b, "prefill_tokens_per_sec", r->prefill_tokens_per_sec);
        put_spread(b, "decode_tokens_per_sec", r->decode_tokens_per_sec);
        qn_json_put_int(b, "peak_memory_bytes", (int64_t)r->peak_memory_bytes);
        qn_json_put_int(b, "active_memory_bytes", (int64_t)r->active_memory_bytes);
    }
    for (int part = QN_BENCH_PROMPT_CACHE; part < QN_BENCH_COUNT; part++) {
        if (!(r->parts >> part & 1)) continue;
        qn_json_key(b, qn_bench_part_name((qn_bench_part)part));
        qn_json_open(b, '{');
        if (part == QN_BENCH_PROMPT_CACHE) {
            qn_json_put_real(b, "hit_rate", r->hit_rate);
            put_spread(b, "cold_first_token_ms", r->cold_first_token_ms);
            put_spread(b, "warm_first_token_ms", r->warm_first_token_ms);
        } else if (part == QN_BENCH_STATE) {
            qn_json_put_int(b, "size_bytes", (int64_t)r->state_bytes);
            put_spread(b, "save_ms", r->state_save_ms);
            put_spread(b, "restore_ms", r->state_restore_ms);
        } else if (part == QN_BENCH_PROBES) {
            qn_json_put_int(b, "events", r->n_probe_events);
            qn_json_put_real(b, "overhead", r->probe_overhead);
        } else {
            put_quality(b, r);
        }
        qn_json_close(b, '}');
    }
    if (r->n_checks) put_checks(b, r);
}

/* ---- text --------------------------------------------------------------------------------------------- */

enum { PART_COLUMN = 15 }; /* where the parts of a report begin */

/* A part of a line of a report, in the next line if this one is full. */
static void put_part(qn_buf *b, int *at, int columns, const char *fmt, ...) QN_PRINTF(4, 5);
static void put_part(qn_buf *b, int *at, int columns, const char *fmt, ...)
{
    char text[160];
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    const int is_over = columns && *at > PART_COLUMN && *at + 2 + n > columns;
    if (is_over) qn_fold_line_end(b, PART_COLUMN);
    if (is_over) *at = PART_COLUMN;
    const int gap = *at > PART_COLUMN ? 2 : 0;
    qn_buf_printf(b, "%*s", gap, "");
    *at = qn_fold_put(b, text, *at + gap, PART_COLUMN + 2, columns, 0);
}

/* A line of a report. */
static void put_below(qn_buf *b, int columns, const char *fmt, ...) QN_PRINTF(3, 4);
static void put_below(qn_buf *b, int columns, const char *fmt, ...)
{
    char text[QN_ERROR_TEXT_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    qn_buf_printf(b, "\n%*s", PART_COLUMN, "");
    qn_fold_put(b, text, PART_COLUMN, PART_COLUMN + 2, columns, 0);
}

static void put_found(qn_buf *b, const qn_bench_report *r, int columns)
{
    char perplexity[40] = "";
    int n_passed = 0;
    for (int32_t i = 0; i < r->n_checks; i++) n_passed += r->checks[i].passed;
    if (r->n_scored) snprintf(perplexity, sizeof perplexity, "perplexity %.4g", r->perplexity);
    if (r->n_checks)
        put_below(b, columns, "checks: %d of %d passed%s%s", n_passed, r->n_checks, r->n_scored ? ", " : "",
                  perplexity);
    else if (r->n_scored)
        put_below(b, columns, "%s", perplexity);
    for (int32_t i = 0; i < r->n_checks; i++) {
        const qn_bench_check *c = &r->checks[i];
        if (!c->passed)
            put_below(b, columns, "failed: %s (%s): %g, bound %g", c->name, c->rule, c->value, c->bound);
    }
}

static qn_status print_report(const qn_bench_report *r, const qn_model_info *info, const qn_metrics *m)
{
    const qn_bench_spread *p = &r->prefill_tokens_per_sec, *d = &r->decode_tokens_per_sec;
    const int columns = qn_fold_terminal(stdout);
    qn_buf b = {0};
    qn_buf_printf(&b, "%-6s %6s  ", qn_precision_name(info->precision), info->cpu_set);
    int at = (int)b.length;
    if (at > PART_COLUMN && columns) at = columns; /* a long name has the line for itself */
    put_part(&b, &at, columns, "prefill %8.1f tok/s (%.1f to %.1f)", p->median, p->low, p->high);
    put_part(&b, &at, columns, "decode %7.1f tok/s (%.1f to %.1f)", d->median, d->low, d->high);
    put_part(&b, &at, columns, "load %.0f ms", m->load_total_ms);
    put_part(&b, &at, columns, "peak %.1f MiB", (double)r->peak_memory_bytes / 1048576);
    if (r->parts >> QN_BENCH_PROMPT_CACHE & 1)
        put_below(&b, columns, "prompt again: %.1f%% of it cached, first token after %.2f ms (%.2f)",
                  100 * r->hit_rate, r->warm_first_token_ms.median, r->cold_first_token_ms.median);
    if (r->parts >> QN_BENCH_STATE & 1)
        put_below(&b, columns, "state: %.1f MiB, saved in %.2f ms, restored in %.2f ms",
                  (double)r->state_bytes / 1048576, r->state_save_ms.median, r->state_restore_ms.median);
    if (r->parts >> QN_BENCH_PROBES & 1)
        put_below(&b, columns, "probes: %lld events, %+.2f%% time", (long long)r->n_probe_events,
                  100 * r->probe_overhead);
    put_found(&b, r, columns);
    return qn_out_line(&b);
}

/* ---- the command -------------------------------------------------------------------------------------- */

static void watch(void *user, qn_generation *generation)
{
    qn_interrupt_watch(generation);
}

/* Other programs compute by their own rules, so that one run says it all. */
static int has_precisions(const bench_options *o)
{
    const qn_backend *backend = qn_backend_get(o->load.o.backend);
    return !backend || backend->logits != NULL;
}

/* A line on a terminal that goes away again; what NULL: now. */
static void show_progress(const char *what, qn_precision precision)
{
    if (!isatty(STDERR_FILENO)) return;
    if (what)
        fprintf(stderr, "\r%s, precision %s ... ", what, qn_precision_name(precision));
    else
        fprintf(stderr, "\r%50s\r", "");
    fflush(stderr);
}

/* What the lines mean, for those who read them. */
static qn_status print_legend(void)
{
    static const char text[] =
        "prefill: how fast a prompt is read; decode: how fast an answer is written.\n"
        "Figures are medians of the runs, the slowest and the fastest in brackets.\n"
        "prompt again: the same prompt a second time; in brackets the first time.\n"
        "state: a conversation's keys and values, saved to memory and taken up again.\n"
        "probes: what watching the model's inside costs.\n"
        "checks: whether the answers are plausible.";
    const int columns = qn_fold_terminal(stdout);
    qn_buf b = {0};
    if (!columns) return QN_OK;
    qn_buf_putc(&b, '\n');
    qn_fold_put(&b, text, 0, 0, columns, QN_FOLD_LINES);
    return qn_out_line(&b);
}

/* report: of the last precision that was measured. */
static qn_status bench_precision(const char *path, bench_options *o, qn_precision precision, qn_buf *json,
                                 qn_bench_report *report)
{
    qn_model *model = NULL;
    qn_model_info info;
    qn_metrics metrics;
    o->load.precision = (int)precision;
    if (o->load.o.parallel_slots < o->bench.n_sequences)
        o->load.o.parallel_slots = (int32_t)o->bench.n_sequences;
    show_progress("loading", precision);
    qn_status status = qn_load_open(path, &o->load, &model);
    if (status == QN_OK) show_progress("measuring", precision);
    if (status == QN_OK) status = qn_bench_run(model, &o->bench, report);
    show_progress(NULL, precision);
    if (status == QN_OK) status = qn_model_get_info(model, &info);
    if (status == QN_OK) status = qn_model_get_metrics(model, &metrics);
    if (status == QN_OK && !o->json) status = print_report(report, &info, &metrics);
    if (status == QN_OK && o->json) {
        qn_json_open(json, '{');
        qn_json_put_text(json, "precision", qn_precision_name(info.precision));
        put_report(json, report);
        qn_json_key(json, "metrics");
        qn_json_metrics(json, &metrics);
        qn_json_key(json, "model");
        qn_json_info(json, &info);
        qn_json_close(json, '}');
        status = json->status;
    }
    qn_model_close(&model);
    return status;
}

static const qn_arg_group bench_groups[] = {{NULL, bench_args, 0, bench_rules},
                                            {"Loading", qn_load_args + 1, AT(load), NULL},
                                            {"Rotary positions", qn_rope_args, AT(load.rope), qn_rope_rules},
                                            {0}};
const qn_arg_spec qn_bench_spec = {"quern bench MODEL [options]",
                                   "Measures the speed of prefill and of decode separately, after a short "
                                   "warm-up run. Then it measures\nhow fast a repeated prompt is answered "
                                   "and what probes cost, and checks that the answers are\nplausible.",
                                   bench_groups,
                                   1,
                                   1,
                                   NULL};

int qn_cmd_bench(int argc, char **argv)
{
    static const qn_precision precisions[] = {QN_PRECISION_HIGH, QN_PRECISION_FAST, QN_PRECISION_EXACT};
    bench_options o = {.bench = {.watch = watch}};
    const char *path;
    int n, code;
    if (qn_args_parse(&qn_bench_spec, &o, argc, argv, &path, &n, &code)) return code;
    o.bench.max_perplexity = o.max_perplexity;
    if (o.only_speed) o.bench.parts = 1u << QN_BENCH_SPEED;
    qn_interrupt_start_for_files();
    qn_bench_report report = {0};
    qn_buf results = {0}, json = {0};
    qn_status status = QN_OK;
    qn_json_open(&results, '[');
    for (int i = 0; i < 3 && status == QN_OK; i++)
        if (o.precision == 0 ? i < (has_precisions(&o) ? 2 : 1) : o.precision == i + 1)
            status = bench_precision(path, &o, precisions[i], &results, &report);
    qn_json_close(&results, ']');
    if (status == QN_OK && !o.json && !o.only_speed) status = print_legend();
    if (status == QN_OK && o.json) {
        qn_json_open(&json, '{');
        qn_json_put_int(&json, "prompt_tokens", report.n_prompt_tokens);
        qn_json_put_int(&json, "decode_tokens", report.n_decode_tokens);
        qn_json_put_int(&json, "sequences", report.n_sequences);
        qn_json_put_int(&json, "runs", report.n_runs);
        qn_json_key(&json, "results");
        qn_buf_append(&json, results.data, results.length);
        qn_json_close(&json, '}');
        status = results.status == QN_OK ? qn_out_line(&json) : results.status;
    }
    qn_buf_free(&results);
    qn_buf_free(&json);
    qn_load_end(&o.load);
    if (status == QN_E_CANCELLED) return QN_EXIT_INTERRUPTED;
    return status == QN_OK ? QN_EXIT_OK : qn_out_fail();
}
