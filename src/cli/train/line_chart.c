#include "cli/train/line_chart.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/utf8.h"

/* In the units of the viewBox; the page scales it. */
enum { WIDTH = 720, HEIGHT = 260, LEFT = 64, RIGHT = 16, TOP = 28, BOTTOM = 34, TICKS_MAX = 12 };

void qn_html_put(qn_buf *b, const char *text)
{
    const size_t n = strlen(text);
    for (size_t i = 0, used; i < n; i += used) {
        uint32_t cp;
        used = qn_utf8_decode(text + i, n - i, &cp);
        if (!used || (cp < 0x20 && cp != '\n' && cp != '\t') || (cp >= 0x7f && cp < 0xa0)) {
            qn_buf_puts(b, "\xef\xbf\xbd");
            used = used ? used : 1;
        } else if (cp == '&' || cp == '<' || cp == '>' || cp == '"' || cp == '\'') {
            qn_buf_printf(b, "&#%u;", (unsigned)cp);
        } else {
            qn_buf_append(b, text + i, used);
        }
    }
}

/* ---- axes ---------------------------------------------------------------------------------------------- */

typedef struct {
    double low, high; /* of the data; of their logarithms where is_log */
    int is_log;
    double pixel_low, pixel_high;
    double ticks[TICKS_MAX]; /* [n_ticks], as they are read */
    int n_ticks;
} axis;

/* Is it a point? Numbers that no training has would leave no room for the others. */
static int is_shown(double y)
{
    return fabs(y) < 1e30; /* not for NAN */
}

static double place(const axis *a, double value)
{
    const double v = a->is_log ? log10(value) : value;
    return a->pixel_low + (v - a->low) / (a->high - a->low) * (a->pixel_high - a->pixel_low);
}

/* 1, 2 or 5 times a power of ten, so that about `wanted` of them fit into the span. */
static double nice_step(double span, int wanted)
{
    const double rough = span / wanted, power = pow(10, floor(log10(rough))), share = rough / power;
    return power * (share <= 1 ? 1 : share <= 2 ? 2 : share <= 5 ? 5 : 10);
}

static void add_tick(axis *a, double value)
{
    if (a->n_ticks < TICKS_MAX) a->ticks[a->n_ticks++] = value;
}

static void set_ticks(axis *a, int wanted, int only_whole)
{
    if (a->is_log) {
        /* Powers of ten, with 2 and 5 times these where there are few. */
        const int between = a->high - a->low < 3, stride = 1 + (int)(a->high - a->low) / 8;
        for (int e = (int)floor(a->low); e <= (int)ceil(a->high); e += stride)
            for (int k = 0; k < (between ? 3 : 1); k++) {
                const double value = (k == 0 ? 1 : k == 1 ? 2 : 5) * pow(10, e), at = log10(value);
                if (at >= a->low - 1e-9 && at <= a->high + 1e-9) add_tick(a, value);
            }
        return;
    }
    double step = nice_step(a->high - a->low, wanted);
    if (only_whole && step < 1) step = 1;
    for (double k = ceil(a->low / step - 1e-9); k * step <= a->high + step * 1e-9 && a->n_ticks < TICKS_MAX;
         k++)
        add_tick(a, k * step + 0.0); /* not -0 */
}

/* A range of one number gets room on both sides. */
static void widen(axis *a)
{
    const double around = fabs(a->high) * 0.05 > 1e-12 ? fabs(a->high) * 0.05 : 0.5;
    if (a->high - a->low > fabs(a->high) * 1e-9) return;
    a->low -= around;
    a->high += around;
}

static void find_range(const qn_chart_series *series, int n_series, int is_linear, axis *x, axis *y)
{
    *x = *y = (axis){.low = DBL_MAX, .high = -DBL_MAX};
    for (int s = 0; s < n_series; s++)
        for (int64_t i = 0; i < series[s].n; i++) {
            const qn_chart_point p = series[s].points[i];
            if (!is_shown(p.y)) continue;
            x->low = fmin(x->low, p.x), x->high = fmax(x->high, p.x);
            y->low = fmin(y->low, p.y), y->high = fmax(y->high, p.y);
        }
    y->is_log = !is_linear && y->low > 0 && y->high > 50 * y->low;
    if (y->is_log) y->low = log10(y->low), y->high = log10(y->high);
    widen(x);
    widen(y);
    if (!y->is_log) { /* not along the frame */
        const double room = 0.04 * (y->high - y->low);
        if (y->low < 0 || y->low > room) y->low -= room;
        y->high += room;
    }
    x->pixel_low = LEFT, x->pixel_high = WIDTH - RIGHT;
    y->pixel_low = HEIGHT - BOTTOM, y->pixel_high = TOP;
    set_ticks(x, 8, 1);
    set_ticks(y, 5, 0);
}

static void put_axes(qn_buf *b, const axis *x, const axis *y)
{
    for (int i = 0; i < y->n_ticks; i++) {
        const double at = place(y, y->ticks[i]);
        qn_buf_printf(b, "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>", LEFT,
                      WIDTH - RIGHT, at, at);
        qn_buf_printf(b, "<text class=\"tick y\" x=\"%d\" y=\"%.1f\">%.4g</text>\n", LEFT - 8, at + 4,
                      y->ticks[i]);
    }
    for (int i = 0; i < x->n_ticks; i++)
        qn_buf_printf(b, "<text class=\"tick x\" x=\"%.1f\" y=\"%d\">%.12g</text>\n", place(x, x->ticks[i]),
                      HEIGHT - BOTTOM + 18, x->ticks[i]);
    qn_buf_printf(b, "<path class=\"axis\" d=\"M%d %dV%dH%d\"/>\n", LEFT, TOP, HEIGHT - BOTTOM,
                  WIDTH - RIGHT);
}

/* ---- series -------------------------------------------------------------------------------------------- */

static void put_series(qn_buf *b, const qn_chart_series *s, int i_series, const axis *x, const axis *y)
{
    const int64_t group = (s->n + QN_CHART_POINTS_MAX - 1) / QN_CHART_POINTS_MAX;
    const char *gap = "";
    qn_buf_printf(b, "<polyline class=\"s%d%s\" points=\"", i_series, s->is_faint ? " faint" : "");
    for (int64_t i = 0; i < s->n; i += group) {
        double sum_x = 0, sum_y = 0;
        int64_t n = 0;
        for (int64_t k = i; k < i + group && k < s->n; k++) {
            if (!is_shown(s->points[k].y)) continue;
            sum_x += s->points[k].x;
            sum_y += s->points[k].y;
            n++;
        }
        if (!n) continue;
        qn_buf_printf(b, "%s%.1f,%.1f", gap, place(x, sum_x / (double)n), place(y, sum_y / (double)n));
        gap = " ";
    }
    qn_buf_puts(b, "\"/>\n");
    if (!s->is_marked) return;
    for (int64_t i = 0; i < s->n; i += group) {
        const qn_chart_point p = s->points[i];
        if (!is_shown(p.y)) continue;
        qn_buf_printf(b,
                      "<circle class=\"s%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"><title>step %.12g: "
                      "%.6g</title></circle>\n",
                      i_series, place(x, p.x), place(y, p.y), p.x, p.y);
    }
}

static void put_legend(qn_buf *b, const qn_chart_series *series, int n_series)
{
    double at = WIDTH - RIGHT;
    for (int s = n_series - 1; s >= 0; s--) {
        const double width = 6.5 * (double)strlen(series[s].name) + 40;
        if (!series[s].n) continue;
        at -= width;
        qn_buf_printf(b, "<line class=\"s%d%s\" x1=\"%.1f\" x2=\"%.1f\" y1=\"14\" y2=\"14\"/>", s,
                      series[s].is_faint ? " faint" : "", at, at + 18);
        qn_buf_printf(b, "<text class=\"legend\" x=\"%.1f\" y=\"18\">", at + 23);
        qn_html_put(b, series[s].name);
        qn_buf_puts(b, "</text>\n");
    }
}

void qn_line_chart_put(qn_buf *b, const char *name, const qn_chart_series *series, int n_series,
                       int is_linear)
{
    axis x, y;
    int has_points = 0;
    for (int s = 0; s < n_series; s++)
        for (int64_t i = 0; i < series[s].n && !has_points; i++) has_points = is_shown(series[s].points[i].y);
    qn_buf_printf(b, "<svg class=\"chart\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", WIDTH, HEIGHT);
    qn_html_put(b, name);
    qn_buf_puts(b, "\">\n<text class=\"name\" x=\"4\" y=\"18\">");
    qn_html_put(b, name);
    qn_buf_puts(b, "</text>\n");
    if (has_points) {
        find_range(series, n_series, is_linear, &x, &y);
        put_axes(b, &x, &y);
        for (int s = 0; s < n_series; s++) put_series(b, &series[s], s, &x, &y);
        if (n_series > 1) put_legend(b, series, n_series);
    } else {
        qn_buf_printf(b, "<text class=\"tick x\" x=\"%d\" y=\"%d\">nothing yet</text>\n", WIDTH / 2,
                      HEIGHT / 2);
    }
    qn_buf_puts(b, "</svg>\n");
}
