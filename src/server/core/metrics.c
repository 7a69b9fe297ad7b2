#include "server/core/metrics.h"

#include <string.h>

static const double first_bound_s = 0.0005;

void qn_histogram_add(qn_histogram *h, double seconds)
{
    int i = 0;
    double bound = first_bound_s;
    if (!(seconds > 0)) seconds = 0;
    for (; i < QN_HISTOGRAM_BUCKETS && seconds > bound; bound *= 2) i++;
    h->counts[i]++;
    h->sum_s += seconds;
}

void qn_metrics_head(qn_buf *out, const char *name, const char *type, const char *help)
{
    qn_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

void qn_metrics_value(qn_buf *out, const char *name, const char *label, double value)
{
    qn_buf_printf(out, label ? "%s{%s} %.15g\n" : "%s%s %.15g\n", name, label ? label : "", value);
}

void qn_metrics_buckets(qn_buf *out, const char *name, const char *help, const int64_t *counts, int n,
                        double first_s, double sum_s)
{
    int64_t total = 0;
    double bound = first_s;
    qn_metrics_head(out, name, "histogram", help);
    for (int i = 0; i < n - 1; i++, bound *= 2) {
        total += counts[i];
        qn_buf_printf(out, "%s_bucket{le=\"%.15g\"} %lld\n", name, bound, (long long)total);
    }
    total += counts[n - 1];
    qn_buf_printf(out, "%s_bucket{le=\"+Inf\"} %lld\n%s_sum %.15g\n%s_count %lld\n", name, (long long)total,
                  name, sum_s, name, (long long)total);
}

void qn_histogram_write(const qn_histogram *h, const char *name, const char *help, qn_buf *out)
{
    qn_metrics_buckets(out, name, help, h->counts, QN_HISTOGRAM_BUCKETS + 1, first_bound_s, h->sum_s);
}

void qn_metrics_count(qn_server_metrics *m, const char *route, int status)
{
    size_t i = 0;
    while (i < m->n_answers && (m->answers[i].status != status || strcmp(m->answers[i].route, route) != 0))
        i++;
    if (i == QN_METRICS_STATUSES) return;
    if (i == m->n_answers) {
        m->answers[i].route = route;
        m->answers[i].status = status;
        m->n_answers++;
    }
    m->answers[i].n++;
}
