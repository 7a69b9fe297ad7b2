#include "engine/sample/dry.h"

#include <stdlib.h>

#include "base/mem.h"

/* The largest loss: far above any logit, and small enough that the difference is finite. */
static const double LARGEST = 1e30;

struct qn_dry {
    qn_dry_options o;
    int32_t *length; /* [window] of the match that ends at each place behind the last token */
    uint64_t *found; /* [window] a token, and below it the length of its longest match */
    int32_t *ids;    /* [window] */
    float *amounts;  /* [window] */
};

qn_status qn_dry_new(const qn_dry_options *o, qn_dry **out)
{
    qn_dry *d = qn_calloc(1, sizeof *d);
    if (!d) return QN_E_NOMEM;
    size_t n = (size_t)o->window;
    d->o = *o;
    d->length = qn_alloc_array(n, sizeof *d->length);
    d->found = qn_alloc_array(n, sizeof *d->found);
    d->ids = qn_alloc_array(n, sizeof *d->ids);
    d->amounts = qn_alloc_array(n, sizeof *d->amounts);
    if (!d->length || !d->found || !d->ids || !d->amounts) {
        qn_dry_free(d);
        return QN_E_NOMEM;
    }
    *out = d;
    return QN_OK;
}

void qn_dry_free(qn_dry *d)
{
    if (!d) return;
    qn_free(d->length);
    qn_free(d->found);
    qn_free(d->ids);
    qn_free(d->amounts);
    qn_free(d);
}

static int is_breaker(const qn_dry *d, int32_t id)
{
    return d->o.breakers && (d->o.breakers[id / 64] >> (id % 64) & 1);
}

/* length[k], k >= 1: how far the tokens before t[n-1-k], with it, equal the last ones, at most `limit`. */
static void match(qn_dry *d, const int32_t *t, int64_t n, int64_t limit)
{
    const int32_t *last = t + n - 1;
    int32_t *z = d->length;
    for (int64_t k = 1, left = 0, right = 0; k < n;
         k++) { /* [left, right) is the match that reaches furthest */
        int64_t m = k < right ? (z[k - left] < right - k ? z[k - left] : right - k) : 0;
        while (k + m < n && m < limit && last[-m] == last[-k - m]) m++;
        z[k] = (int32_t)m;
        if (k + m > right) left = k, right = k + m;
    }
}

static double power(double base, int64_t n)
{
    double result = 1;
    for (; n > 0 && result < LARGEST; n /= 2) {
        if (n % 2) result *= base;
        base = base < LARGEST ? base * base : base;
    }
    return result;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

int64_t qn_dry_find(qn_dry *d, const int32_t *tokens, int64_t n, const int32_t **ids, const float **amounts)
{
    int64_t limit = 0, n_found = 0, n_ids = 0;
    const int32_t *last = tokens + n - 1;
    while (limit < n && !is_breaker(d, last[-limit])) limit++;
    if (limit < d->o.allowed_length || n < 2) return 0;
    match(d, tokens, n, limit);
    for (int64_t k = 1; k < n; k++) {
        int32_t next = last[1 - k];
        if (d->length[k] < d->o.allowed_length || is_breaker(d, next)) continue;
        uint64_t both = (uint64_t)next << 32 | (uint32_t)d->length[k];
        if (n_found && d->found[n_found - 1] >> 32 == (uint64_t)next) {
            if (both > d->found[n_found - 1]) d->found[n_found - 1] = both;
        } else {
            d->found[n_found++] = both;
        }
    }
    qsort(d->found, (size_t)n_found, sizeof *d->found, by_value);
    for (int64_t i = 0; i < n_found; i++) {
        int64_t id = (int64_t)(d->found[i] >> 32), length = (int64_t)(d->found[i] & UINT32_MAX);
        if (i + 1 < n_found && (int64_t)(d->found[i + 1] >> 32) == id) continue; /* its longest comes last */
        double amount = (double)d->o.multiplier * power((double)d->o.base, length - d->o.allowed_length);
        d->ids[n_ids] = (int32_t)id;
        d->amounts[n_ids++] = (float)(amount < LARGEST ? amount : LARGEST);
    }
    *ids = d->ids;
    *amounts = d->amounts;
    return n_ids;
}
