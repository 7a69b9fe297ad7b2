#include "cli/train/train_progress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/options/args.h"
#include "cli/term/fold.h"
#include "cli/term/out.h"
#include "cli/train/train_report.h"

enum { BAR_MIN = 10, BAR_MAX = 30, PLAIN_LINES = 20 };
static const int64_t live_ns = 100 * 1000000ll, plain_ns = 10 * 1000000000ll;

const char *qn_train_time_text(double seconds, char *text, size_t size)
{
    const int64_t s = seconds >= 0 && seconds < 1e12 ? (int64_t)(seconds + 0.5) : -1;
    if (s < 0)
        snprintf(text, size, "?");
    else if (s < 60)
        snprintf(text, size, "%lld s", (long long)s);
    else if (s < 3600)
        snprintf(text, size, "%lld:%02lld", (long long)s / 60, (long long)s % 60);
    else if (s < 48 * 3600)
        snprintf(text, size, "%lld:%02lld:%02lld", (long long)s / 3600, (long long)s / 60 % 60,
                 (long long)s % 60);
    else
        snprintf(text, size, "%lld d %lld h", (long long)s / 86400, (long long)s / 3600 % 24);
    return text;
}

/* Where the device computes. */
static size_t memory_of(const qn_train_step_report *r)
{
    return r->device_memory_bytes ? r->device_memory_bytes : r->memory_bytes;
}

static void put_bar(qn_buf *b, const qn_train_step_report *r, int columns)
{
    const int inside = (columns < BAR_MAX ? columns : BAR_MAX) - 2;
    const int done = r->n_steps > 0 ? (int)((double)inside * (double)r->step / (double)r->n_steps) : 0;
    qn_buf_putc(b, '[');
    for (int i = 0; i < inside; i++) qn_buf_putc(b, i < done ? '=' : i == done ? '>' : ' ');
    qn_buf_putc(b, ']');
}

void qn_train_progress_line(qn_buf *b, const qn_train_step_report *r, double smoothed, int columns)
{
    enum { STEP, LOSS, RATE, SPEED, MEMORY, ETA, N_PARTS };
    /* Who gets room first. */
    static const int order[N_PARTS] = {STEP, LOSS, ETA, SPEED, RATE, MEMORY};
    char part[N_PARTS][48], size[32], eta[32];
    int has[N_PARTS] = {0}, used = 0;
    snprintf(part[STEP], sizeof part[STEP], "%lld/%lld", (long long)r->step, (long long)r->n_steps);
    snprintf(part[LOSS], sizeof part[LOSS], "loss %.4f", smoothed);
    snprintf(part[RATE], sizeof part[RATE], "lr %.2e", r->rate);
    snprintf(part[SPEED], sizeof part[SPEED], "%.0f tok/s", r->tokens_per_s);
    snprintf(part[MEMORY], sizeof part[MEMORY], "%s", qn_out_size_text(memory_of(r), size, sizeof size));
    snprintf(part[ETA], sizeof part[ETA], "ETA %s", qn_train_time_text(r->eta_s, eta, sizeof eta));
    for (int i = 0; i < N_PARTS; i++) {
        const int more = (int)strlen(part[order[i]]) + (used ? 2 : 0);
        if (used + more > columns) break;
        used += more;
        has[order[i]] = 1;
    }
    for (int i = 0, is_first = 1; i < N_PARTS; i++) {
        if (!has[i]) continue;
        if (!is_first) qn_buf_puts(b, "  ");
        qn_buf_puts(b, part[i]);
        is_first = 0;
        if (i == STEP && columns - used - 2 >= BAR_MIN) {
            qn_buf_puts(b, "  ");
            put_bar(b, r, columns - used - 2);
        }
    }
}

void qn_train_progress_open(qn_train_progress *p)
{
    const char *term = getenv("TERM");
    *p = (qn_train_progress){.is_live = isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0,
                             .has_style = qn_out_has_style(stderr)};
}

void qn_train_progress_clear(qn_train_progress *p)
{
    if (p->is_shown) fputs("\r\033[K", stderr);
    fflush(stderr);
    p->is_shown = 0;
}

static void show_live(qn_train_progress *p, const qn_train_step_report *r)
{
    qn_buf line = {0};
    /* The last column stays free: some terminals go on in the next line once it is written. */
    qn_train_progress_line(&line, r, p->smoothed / p->weight, qn_fold_columns(stderr) - 1);
    if (line.status == QN_OK && line.length)
        fprintf(stderr, p->has_style ? "\r\033[1m%s\033[0m\033[K" : "\r%s\033[K", line.data);
    fflush(stderr);
    qn_buf_free(&line);
    p->is_shown = 1;
}

static void show_plain(const qn_train_progress *p, const qn_train_step_report *r)
{
    char size[32], eta[32];
    fprintf(stderr,
            "step %lld/%lld: loss %.4f (smoothed %.4f), lr %.3g, gradient %.3g, %.0f tok/s, %s, ETA %s\n",
            (long long)r->step, (long long)r->n_steps, r->loss, p->smoothed / p->weight, r->rate,
            r->grad_norm, r->tokens_per_s, qn_out_size_text(memory_of(r), size, sizeof size),
            qn_train_time_text(r->eta_s, eta, sizeof eta));
}

static void show_step(qn_train_progress *p, const qn_train_step_report *r)
{
    const double forget = qn_train_smoothing(r->n_steps);
    const int64_t now_ns = qn_clock_ns(), every = r->n_steps > PLAIN_LINES ? r->n_steps / PLAIN_LINES : 1;
    const int is_edge = !p->shown_step || r->step == r->n_steps;
    p->smoothed = forget * p->smoothed + (1 - forget) * r->loss;
    p->weight = forget * p->weight + (1 - forget);
    if (p->is_live ? !is_edge && now_ns - p->shown_ns < live_ns
                   : !is_edge && r->step % every && now_ns - p->shown_ns < plain_ns)
        return;
    p->shown_ns = now_ns;
    p->shown_step = r->step;
    if (p->is_live)
        show_live(p, r);
    else
        show_plain(p, r);
}

void qn_train_progress_put(qn_train_progress *p, const qn_train_event *event)
{
    if (event->kind == QN_TRAIN_EVENT_STEP) {
        show_step(p, event->report);
    } else if (event->kind == QN_TRAIN_EVENT_VALID) {
        qn_train_progress_clear(p);
        fprintf(stderr, "step %lld: validation loss %.4f, perplexity %.4g%s\n", (long long)event->step,
                event->valid_loss, exp(event->valid_loss),
                event->valid_loss <= event->best_loss ? ", the best so far" : "");
    } else if (event->kind == QN_TRAIN_EVENT_NOTE || event->kind == QN_TRAIN_EVENT_WARNING) {
        qn_train_progress_clear(p);
        qn_out_note("%s%s", event->kind == QN_TRAIN_EVENT_WARNING ? "warning: " : "", event->text);
    }
}
