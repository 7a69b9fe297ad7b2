#include "cli/term/transfer_line.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/term/fold.h"
#include "cli/term/out.h"
#include "hub/names/choose.h"

enum { BAR_MIN = 10, BAR_MAX = 30 };
static const int64_t redraw_ns = 100 * 1000000ll, sample_ns = 300 * 1000000ll;

void qn_transfer_line_open(qn_transfer_line *t)
{
    const char *term = getenv("TERM");
    *t = (qn_transfer_line){.is_live = isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0};
}

void qn_transfer_line_clear(qn_transfer_line *t)
{
    if (t->is_shown) fputs("\r\033[K", stderr);
    fflush(stderr);
    t->is_shown = 0;
}

static void put_left(double seconds, char *text, size_t size)
{
    const long long s = (long long)(seconds + 0.5);
    if (seconds > 359999)
        snprintf(text, size, "%lld h left", s / 3600);
    else if (s >= 3600)
        snprintf(text, size, "%lld:%02lld:%02lld left", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(text, size, "%lld:%02lld left", s / 60, s % 60);
}

static void put_bar(qn_buf *b, double share, int columns)
{
    const int inside = (columns < BAR_MAX ? columns : BAR_MAX) - 2, done = (int)(share * inside);
    qn_buf_puts(b, "  [");
    for (int i = 0; i < inside; i++) qn_buf_putc(b, i < done ? '=' : i == done ? '>' : ' ');
    qn_buf_putc(b, ']');
}

void qn_transfer_line_text(qn_buf *b, const qn_hub_progress *p, double rate, int columns)
{
    char share[16], bytes[80], tail[2][48] = {"", ""}, a[32], c[32];
    const double part = p->total_bytes > 0 ? (double)p->done_bytes / (double)p->total_bytes : 0;
    if (p->wait_s && !p->total_bytes) {
        qn_buf_printf(b, "%.*s", columns, "the server asks to wait");
        return;
    }
    snprintf(share, sizeof share, "%3d%%", (int)(100 * part));
    snprintf(bytes, sizeof bytes, "  %s of %s", qn_hub_size_text(p->done_bytes, a, sizeof a),
             qn_hub_size_text(p->total_bytes, c, sizeof c));
    if (p->wait_s) {
        snprintf(tail[0], sizeof tail[0], "  waiting %d s", p->wait_s);
    } else if (p->is_checking) {
        snprintf(tail[0], sizeof tail[0], "  checking the sum");
    } else if (rate > 0) {
        char left[32];
        put_left((double)(p->total_bytes - p->done_bytes) / rate, left, sizeof left);
        snprintf(tail[0], sizeof tail[0], "  %s/s", qn_hub_size_text((int64_t)rate, a, sizeof a));
        snprintf(tail[1], sizeof tail[1], "  %s", left);
    }
    /* Who gets room first: share, bytes, rate, time, and what is left is the bar's. */
    int used = (int)strlen(share), n_shown = 0;
    const char *const parts[] = {bytes, tail[0], tail[1]};
    while (n_shown < 3 && used + (int)strlen(parts[n_shown]) <= columns)
        used += (int)strlen(parts[n_shown++]);
    qn_buf_puts(b, share);
    if (columns - used >= BAR_MIN + 2) put_bar(b, part, columns - used - 2);
    for (int i = 0; i < n_shown; i++) qn_buf_puts(b, parts[i]);
}

/* Bytes that were there before the first call are not counted as fast. */
static void take_rate(qn_transfer_line *t, const qn_hub_progress *p, int64_t now_ns)
{
    if (!t->began_ns || p->done_bytes < t->sampled_bytes) {
        if (!t->began_ns) t->began_ns = now_ns;
        t->sampled_ns = now_ns;
        t->sampled_bytes = p->done_bytes;
        return;
    }
    if (now_ns - t->sampled_ns < sample_ns) return;
    const double seconds = (double)(now_ns - t->sampled_ns) * 1e-9;
    const double now = (double)(p->done_bytes - t->sampled_bytes) / seconds;
    t->rate = t->rate > 0 ? 0.8 * t->rate + 0.2 * now : now;
    t->sampled_ns = now_ns;
    t->sampled_bytes = p->done_bytes;
}

void qn_transfer_line_put(qn_transfer_line *t, const qn_hub_progress *p)
{
    qn_buf line = {0};
    const int64_t now_ns = qn_clock_ns();
    if (!t->is_live) return;
    if (p->total_bytes) take_rate(t, p, now_ns);
    if (t->is_shown && now_ns - t->shown_ns < redraw_ns) return;
    t->shown_ns = now_ns;
    /* The last column stays free: some terminals go on in the next line once it is written. */
    qn_transfer_line_text(&line, p, t->rate, qn_fold_columns(stderr) - 1);
    if (line.status == QN_OK && line.length) fprintf(stderr, "\r%s\033[K", line.data);
    fflush(stderr);
    qn_buf_free(&line);
    t->is_shown = 1;
}
