#include "server/metrics.h"

#include <string.h>

static double bound(int i)
{
    return 0.0005 * (double)(1 << i);
}

void qn_histogram_add(qn_histogram *h, double seconds)
{
    int i = 0;
    if (!(seconds > 0)) seconds = 0;
    while (i < QN_HISTOGRAM_BUCKETS && seconds > bound(i)) i++;
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

void qn_histogram_write(const qn_histogram *h, const char *name, const char *help, qn_buf *out)
{
    int64_t n = 0;
    qn_metrics_head(out, name, "histogram", help);
    for (int i = 0; i < QN_HISTOGRAM_BUCKETS; i++) {
        n += h->counts[i];
        qn_buf_printf(out, "%s_bucket{le=\"%.15g\"} %lld\n", name, bound(i), (long long)n);
    }
    n += h->counts[QN_HISTOGRAM_BUCKETS];
    qn_buf_printf(out, "%s_bucket{le=\"+Inf\"} %lld\n%s_sum %.15g\n%s_count %lld\n", name, (long long)n, name,
                  h->sum_s, name, (long long)n);
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
