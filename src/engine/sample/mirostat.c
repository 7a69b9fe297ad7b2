#include "engine/sample/mirostat.h"

#include <math.h>
#include <stdlib.h>

/* The tokens that the paper fits Zipf's law to, and the one behind them. */
enum { N_FITTED = 100, N_TOP = N_FITTED + 1 };

static const double LN_2 = 0.69314718055994530942;

void qn_mirostat_begin(qn_mirostat *m, int version, float tau, float eta)
{
    *m = (qn_mirostat){
        .version = version, .tau = tau > 0 ? (double)tau : 5, .eta = eta > 0 ? (double)eta : (double)0.1f};
    m->mu = 2 * m->tau;
}

static int falling(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* Puts v in the place of the least of a heap of n. */
static void replace_least(float *heap, int n, float v)
{
    int node = 0;
    for (int child; (child = 2 * node + 1) < n; node = child) {
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= v) break;
        heap[node] = heap[child];
    }
    heap[node] = v;
}

/* The largest logits in falling order; returns how many. *n: of all candidates. */
static int find_top(const qn_candidates *c, float *top, int64_t *n)
{
    float buffer[QN_ROW_BLOCK];
    const int64_t n_parts = qn_candidates_count_parts(c);
    int n_top = 0;
    *n = 0;
    for (int64_t p = 0; p < n_parts; p++) {
        const qn_candidates_part part = qn_candidates_get_part(c, p, buffer);
        const float least = n_top == N_TOP ? top[0] : -INFINITY;
        int n_there = 0, n_larger = 0;
        for (int64_t i = 0; i < part.n; i++) {
            n_there += part.logit[i] > -INFINITY;
            n_larger += part.logit[i] > least;
        }
        *n += n_there;
        for (int64_t i = 0; n_larger && i < part.n; i++) {
            const float v = part.logit[i];
            if (n_top == N_TOP) {
                if (v > top[0]) replace_least(top, N_TOP, v);
                continue;
            }
            if (v == -INFINITY) continue;
            int k = n_top++; /* in rising order, which is a heap, too */
            for (; k && top[k - 1] > v; k--) top[k] = top[k - 1];
            top[k] = v;
        }
    }
    qsort(top, (size_t)n_top, sizeof *top, falling);
    return n_top;
}

/* INT64_MAX: all. */
static int64_t find_k(const qn_mirostat *m, const qn_candidates *c)
{
    float top[N_TOP];
    int64_t n;
    const int n_top = find_top(c, top, &n);
    double products = 0, squares = 0;
    for (int i = 0; i + 1 < n_top; i++) {
        const double b = ((double)top[i] - (double)top[i + 1]) * (double)qn_candidates_scale(c),
                     t = log((double)(i + 2) / (double)(i + 1));
        products += b * t;
        squares += t * t;
    }
    if (n_top < 2) return 1;
    const double s = products / squares, e = s - 1;
    /* At s = 1 both sides of the fraction are 0; its limit is 1 / ln N. */
    const double part = fabs(e) < 1e-9 ? 1 / log((double)n) : e / (1 - pow((double)n, -e));
    const double k = pow(part * exp2(m->mu), 1 / s);
    if (!(k < (double)n)) return INT64_MAX;
    return k < 1.5 ? 1 : (int64_t)nearbyint(k);
}

void qn_mirostat_filter(qn_mirostat *m, qn_candidates *c)
{
    const double total = qn_candidates_sum(c);
    m->log2_total = log2(total);
    if (m->version == 1) {
        const int64_t k = find_k(m, c);
        const qn_candidates_rest rest = {INFINITY, k};
        if (k < INT64_MAX) qn_candidates_keep_top_k(c, k, rest);
        return;
    }
    const double log_p = fmin((m->log2_total - m->mu) * LN_2, 0);
    const qn_candidates_rest rest = {-log_p / (double)qn_candidates_scale(c), INT64_MAX};
    qn_candidates_keep_min_p(c, (float)log_p, rest);
}

void qn_mirostat_look(qn_mirostat *m, const qn_candidates *c, int32_t id)
{
    const double d = (double)qn_candidates_logit(c, id) - (double)qn_candidates_best_logit(c);
    m->surprise = m->log2_total - d * (double)qn_candidates_scale(c) / LN_2;
}

void qn_mirostat_accept(qn_mirostat *m)
{
    m->mu -= m->eta * (m->surprise - m->tau);
}
