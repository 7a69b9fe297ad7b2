#include "cli/train/train_report.h"

#include <math.h>
#include <quern/quern.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/term/out.h"
#include "cli/train/line_chart.h"

static const char head[] =
    "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
    "img-src data:\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
    "<link rel=\"icon\" href=\"data:,\">\n<title>";

static const char style[] =
    "</title>\n<style>\n"
    ":root{color-scheme:light dark;--back:#fff;--front:#1c2024;--quiet:#667;--line:#dde;--card:#f7f8fa;"
    "--c0:#2563c9;--c1:#c2410c;--c2:#15803d}\n"
    "@media (prefers-color-scheme:dark){:root{--back:#14171a;--front:#e6e8ea;--quiet:#9aa3ad;--line:#2c3238;"
    "--card:#1b1f24;--c0:#6ea8fe;--c1:#ff9d5c;--c2:#5fd38a}}\n"
    "body{margin:0 auto;padding:1.5rem;max-width:78rem;background:var(--back);color:var(--front);"
    "font:15px/1.5 system-ui,sans-serif}\n"
    "h1{font-size:1.35rem;margin:0 0 .2rem;overflow-wrap:anywhere}h2{font-size:1.05rem;margin:1.6rem 0 "
    ".5rem}\n"
    "p{margin:.2rem 0;color:var(--quiet);overflow-wrap:anywhere}\n"
    ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(30rem,100%),1fr));gap:1rem}\n"
    ".chart{width:100%;background:var(--card);border:1px solid var(--line);border-radius:8px}\n"
    ".chart text{fill:var(--quiet);font-size:12px}.chart "
    ".name{fill:var(--front);font-size:14px;font-weight:600}\n"
    ".tick.x{text-anchor:middle}.tick.y{text-anchor:end}\n"
    ".grid{stroke:var(--line)}.axis{fill:none;stroke:var(--quiet)}\n"
    "polyline{fill:none;stroke-width:1.8;stroke-linejoin:round}.faint{opacity:.35;stroke-width:1}\n"
    ".s0{stroke:var(--c0)}.s1{stroke:var(--c1)}.s2{stroke:var(--c2)}\n"
    "circle.s0{fill:var(--c0)}circle.s1{fill:var(--c1)}circle.s2{fill:var(--c2)}\n"
    ".tables{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(22rem,100%),1fr));gap:0 2rem}\n"
    "table{border-collapse:collapse;width:100%}td,th{padding:.2rem .4rem;border-bottom:1px solid var(--line);"
    "text-align:left;vertical-align:top;font-weight:400;overflow-wrap:anywhere}\n"
    "th{color:var(--quiet);width:45%}td{font-variant-numeric:tabular-nums;unicode-bidi:isolate}\n"
    ".warning{color:var(--c1)}\n"
    "</style>\n</head>\n<body>\n";

/* ---- tables -------------------------------------------------------------------------------------------- */

static void put_row(qn_buf *b, const char *name, const char *text)
{
    qn_buf_puts(b, "<tr><th>");
    qn_html_put(b, name);
    qn_buf_puts(b, "</th><td>");
    qn_html_put(b, text);
    qn_buf_puts(b, "</td></tr>\n");
}

static void put_format(qn_buf *b, const char *name, const char *fmt, ...) QN_PRINTF(3, 4);

static void put_format(qn_buf *b, const char *name, const char *fmt, ...)
{
    char text[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    put_row(b, name, text);
}

/* "1,234,567" into text; returns text. */
static const char *count_text(int64_t n, char text[32])
{
    char digits[24];
    const int length = snprintf(digits, sizeof digits, "%lld", (long long)n);
    int at = 0;
    for (int i = 0; i < length; i++) {
        if (i && i % 3 == length % 3 && digits[i - 1] != '-') text[at++] = ',';
        text[at++] = digits[i];
    }
    text[at] = 0;
    return text;
}

static void open_table(qn_buf *b, const char *title)
{
    qn_buf_printf(b, "<section><h2>%s</h2>\n<table>\n", title);
}

static void close_table(qn_buf *b)
{
    qn_buf_puts(b, "</table></section>\n");
}

static const qn_train_log_valid *find_best(const qn_train_log *log)
{
    const qn_train_log_valid *best = NULL;
    for (int64_t i = 0; i < log->n_valids; i++)
        if (!best || log->valids[i].loss < best->loss) best = &log->valids[i];
    return best;
}

static const char *end_of(const qn_train_log *log)
{
    const char *name = log->end ? json_string_value(json_object_get(log->end, "event")) : NULL;
    return name ? name : "under way";
}

static void put_result(qn_buf *b, const qn_train_log *log, const qn_train_report_about *about)
{
    const qn_train_log_step *first = log->n_steps ? &log->steps[0] : NULL;
    const qn_train_log_step *last = log->n_steps ? &log->steps[log->n_steps - 1] : NULL;
    const qn_train_log_valid *best = find_best(log);
    char size[32], all[32], part[32];
    open_table(b, "Result");
    put_format(b, "state", "%s, step %lld of %lld", end_of(log), (long long)(last ? last->step : 0),
               (long long)about->info.n_steps);
    if (first) {
        put_format(b, "first loss", "%.4f (uniform guess: %.4f)", first->loss, about->info.uniform_loss);
        if (isfinite(last->loss))
            put_format(b, "last loss", "%.4f", last->loss);
        else
            put_row(b, "last loss", "not finite");
    }
    if (best) {
        const qn_train_log_valid *end = &log->valids[log->n_valids - 1];
        put_format(b, "best validation", "%.4f at step %lld (perplexity %.4g)", best->loss,
                   (long long)best->step, exp(best->loss));
        put_format(b, "last validation", "%.4f at step %lld", end->loss, (long long)end->step);
    }
    put_format(b, "tokens", "%s, of which %s count", count_text(log->n_tokens, all),
               count_text(log->n_counted, part));
    if (log->seconds > 0)
        put_format(b, "time of the steps", "%.1f s, %.0f tokens a second", log->seconds,
                   (double)log->n_tokens / log->seconds);
    if (log->peak_memory_bytes > 0)
        put_row(b, "peak memory", qn_out_size_text((size_t)log->peak_memory_bytes, size, sizeof size));
    if (log->n_runs > 1)
        put_format(b, "runs", "%lld, each resumed from the one before", (long long)log->n_runs);
    close_table(b);
}

static void put_data(qn_buf *b, const qn_train_report_about *about)
{
    const qn_train_info *i = &about->info;
    char all[32], part[32];
    open_table(b, "Model and data");
    put_row(b, "model", about->options.model_path);
    put_row(b, "architecture", i->architecture ? i->architecture : "");
    put_format(b, "numbers trained", "%s in %lld arrays; the model has %s", count_text(i->n_trained, part),
               (long long)i->n_arrays, count_text(i->n_model_parameters, all));
    put_row(b, "data", about->options.data_path);
    put_format(b, "lines", "%s, %lld bad, %lld cut", count_text(i->n_lines, all), (long long)i->n_bad_lines,
               (long long)i->n_cut_lines);
    put_format(b, "tokens per epoch", "%s, of which %s count", count_text(i->n_tokens, all),
               count_text(i->n_counted, part));
    put_row(b, "validation lines", count_text(i->n_valid_lines, all));
    close_table(b);
}

/* What the log's settings leave out, for which a resumed run may have another value. */
static void put_method(qn_buf *b, const qn_train_options *o)
{
    static const char *const methods[] = {"LoRA", "DoRA", "all weights"};
    put_row(b, "method", methods[o->method]);
    if (o->method != QN_TRAIN_FULL) {
        put_format(b, "rank", "%d", o->rank ? (int)o->rank : 8);
        put_format(b, "alpha", "%g%s", o->alpha > 0 ? (double)o->alpha : 16, o->rslora ? ", rsLoRA" : "");
        put_format(b, "dropout", "%g", (double)o->dropout);
        put_row(b, "targets", o->targets ? o->targets : "all linear layers");
        if (o->layer_begin || o->layer_end)
            put_format(b, "layers", o->layer_end ? "%lld to %lld" : "from %lld", (long long)o->layer_begin,
                       (long long)o->layer_end - 1);
    }
    if (o->optimizer == QN_OPTIMIZER_SGD)
        put_format(b, "optimiser", "SGD, momentum %g", o->momentum);
    else
        put_format(b, "optimiser", "AdamW, betas %g and %g, eps %g%s", o->beta1 > 0 ? o->beta1 : 0.9,
                   o->beta2 > 0 ? o->beta2 : 0.999, o->eps > 0 ? o->eps : 1e-8,
                   o->no_bias_correction ? ", no bias correction" : "");
}

static void put_settings(qn_buf *b, const qn_train_log *log, const qn_train_report_about *about)
{
    json_t *settings = json_object_get(log->start, "settings"), *value;
    const char *name;
    open_table(b, "Settings");
    put_method(b, &about->options);
    json_object_foreach(settings, name, value)
    {
        if (json_is_string(value)) put_row(b, name, json_string_value(value));
    }
    put_row(b, "quern", qn_version());
    close_table(b);
}

static void put_notes(qn_buf *b, const qn_train_log *log)
{
    if (!log->n_notes) return;
    qn_buf_puts(b, "<h2>Notes</h2>\n");
    for (int64_t i = 0; i < log->n_notes; i++) {
        qn_buf_puts(b, log->notes[i].is_warning ? "<p class=\"warning\">" : "<p>");
        qn_buf_printf(b, "step %lld: ", (long long)log->notes[i].step);
        qn_html_put(b, log->notes[i].text);
        qn_buf_puts(b, "</p>\n");
    }
}

/* ---- curves -------------------------------------------------------------------------------------------- */

double qn_train_smoothing(int64_t n_steps)
{
    return 1 - 1.0 / (n_steps > 500 ? (double)n_steps / 50 : 10);
}

/* One of the numbers of each step. */
static void gather(const qn_train_log *log, size_t offset, qn_chart_point *to)
{
    for (int64_t i = 0; i < log->n_steps; i++) {
        const qn_train_log_step *s = &log->steps[i];
        to[i] = (qn_chart_point){(double)s->step, *(const double *)(const void *)((const char *)s + offset)};
    }
}

static void smooth(const qn_chart_point *from, int64_t n, double forget, qn_chart_point *to)
{
    double sum = 0, weight = 0;
    for (int64_t i = 0; i < n; i++) {
        if (isfinite(from[i].y)) {
            sum = forget * sum + (1 - forget) * from[i].y;
            weight = forget * weight + (1 - forget);
        }
        to[i] = (qn_chart_point){from[i].x, weight > 0 ? sum / weight : NAN};
    }
}

static void put_charts(qn_buf *b, const qn_train_log *log)
{
    const int64_t n = log->n_steps;
    qn_chart_point *raw = qn_alloc_array((size_t)(2 * n + log->n_valids) + 1, sizeof *raw);
    if (!raw) {
        b->status = b->status == QN_OK ? QN_E_NOMEM : b->status;
        return;
    }
    qn_chart_point *smoothed = raw + n, *valids = smoothed + n;
    for (int64_t i = 0; i < log->n_valids; i++)
        valids[i] = (qn_chart_point){(double)log->valids[i].step, log->valids[i].loss};
    gather(log, offsetof(qn_train_log_step, loss), raw);
    smooth(raw, n, qn_train_smoothing(n), smoothed);
    qn_buf_puts(b, "<div class=\"charts\">\n");
    const qn_chart_series losses[] = {
        {.name = "each step", .points = raw, .n = n, .is_faint = 1},
        {.name = "smoothed", .points = smoothed, .n = n},
        {.name = "validation", .points = valids, .n = log->n_valids, .is_marked = 1}};
    qn_line_chart_put(b, "Loss", losses, 3, 0);
    const qn_chart_series only_valid = {
        .name = "validation", .points = valids, .n = log->n_valids, .is_marked = 1};
    if (log->n_valids) qn_line_chart_put(b, "Validation loss", &only_valid, 1, 0);
    const qn_chart_series one = {.name = "each step", .points = raw, .n = n};
    gather(log, offsetof(qn_train_log_step, rate), raw);
    qn_line_chart_put(b, "Learning rate", &one, 1, 1);
    gather(log, offsetof(qn_train_log_step, grad_norm), raw);
    qn_line_chart_put(b, "Gradient norm", &one, 1, 0);
    qn_buf_puts(b, "</div>\n");
    qn_free(raw);
}

/* ---- the page ------------------------------------------------------------------------------------------ */

/* The last part of a path. */
static const char *name_of(const char *path, char *text, size_t size)
{
    size_t n = strlen(path), begin;
    while (n > 1 && path[n - 1] == '/') n--;
    for (begin = n; begin > 0 && path[begin - 1] != '/';) begin--;
    snprintf(text, size, "%.*s", (int)(n - begin), path + begin);
    return text;
}

void qn_train_report_put(qn_buf *b, const qn_train_log *log, const qn_train_report_about *about)
{
    char model[256], data[256];
    name_of(about->options.model_path, model, sizeof model);
    name_of(about->options.data_path, data, sizeof data);
    qn_buf_puts(b, head);
    qn_html_put(b, model);
    qn_buf_puts(b, " on ");
    qn_html_put(b, data);
    qn_buf_puts(b, style);
    qn_buf_puts(b, "<h1>");
    qn_html_put(b, model);
    qn_buf_puts(b, " on ");
    qn_html_put(b, data);
    qn_buf_printf(b, "</h1>\n<p>Training: %s, step %lld of %lld.</p>\n", end_of(log),
                  (long long)(log->n_steps ? log->steps[log->n_steps - 1].step : 0),
                  (long long)about->info.n_steps);
    put_charts(b, log);
    qn_buf_puts(b, "<div class=\"tables\">\n");
    put_result(b, log, about);
    put_data(b, about);
    put_settings(b, log, about);
    qn_buf_puts(b, "</div>\n");
    put_notes(b, log);
    qn_buf_puts(b, "</body>\n</html>\n");
}

qn_status qn_train_report_write(const char *log_path, const char *path, const qn_train_report_about *about)
{
    qn_train_log log;
    qn_buf b = {0};
    QN_TRY(qn_train_log_read(log_path, &log));
    qn_train_report_put(&b, &log, about);
    qn_status status = b.status;
    if (status == QN_OK) status = qn_out_file(path, b.data, b.length, 0);
    qn_buf_free(&b);
    qn_train_log_free(&log);
    return status;
}
