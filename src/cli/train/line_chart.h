/* A line chart as SVG inside a page: one to three series over steps. Colours come from the page's style
 * (classes chart, axis, grid, s0 to s2), so that it follows a light or a dark one. Pure functions. */
#ifndef QN_CLI_TRAIN_LINE_CHART_H
#define QN_CLI_TRAIN_LINE_CHART_H

#include <stdint.h>

#include "base/buf.h"

/* A series with more points than this is drawn as the means of equal groups of neighbours. */
enum { QN_CHART_POINTS_MAX = 2000 };

typedef struct {
    double x, y; /* y not finite, or beyond 1e30: no point */
} qn_chart_point;

typedef struct {
    const char *name;             /* for the legend */
    const qn_chart_point *points; /* [n], x rising */
    int64_t n;
    int is_marked; /* each point a dot that says its numbers when it is pointed at */
    int is_faint;
} qn_chart_series;

/* Appends <svg> with a title, both axes, a legend where there are several series, and for each a polyline
 * with class sN. The y axis is logarithmic where the numbers span more than a factor of 50. name: plain text.
 */
void qn_line_chart_put(qn_buf *b, const char *name, const qn_chart_series *series, int n_series,
                       int is_linear);
/* Text for HTML and SVG, in elements and quoted attributes. */
void qn_html_put(qn_buf *b, const char *text);

#endif
