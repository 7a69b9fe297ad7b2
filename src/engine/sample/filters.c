#include "engine/sample/filters.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* Sums run in so many lanes, which compilers make vectors of: floats within a part, whose terms have the same
 * sign, double behind it. */
enum { LANES = 16, KEY_BITS = 31, DIGIT_BITS = 11, N_DIGITS = 1 << DIGIT_BITS };

/* A smaller exponent has a weight of 0. */
static const float LEAST_EXPONENT = -200;

/* Copies a part to x [QN_ROW_BLOCK], with -inf behind its end. */
static void pad(const qn_candidates_part *part, float *x)
{
    memcpy(x, part->logit, (size_t)part->n * sizeof *x);
    for (int64_t i = part->n; i < QN_ROW_BLOCK; i++) x[i] = -INFINITY;
}

/* ---- top_n_sigma ---- */

void qn_filter_top_n_sigma(qn_candidates *c, float n_sigma)
{
    float buffer[QN_ROW_BLOCK], x[QN_ROW_BLOCK];
    double sum = 0, squares = 0;
    int64_t n = 0;
    const float best = qn_candidates_best_logit(c);
    const int64_t n_parts = qn_candidates_count_parts(c);
    for (int64_t p = 0; p < n_parts; p++) {
        const qn_candidates_part part = qn_candidates_get_part(c, p, buffer);
        float lane[LANES] = {0}, square[LANES] = {0};
        int count[LANES] = {0};
        pad(&part, x);
        for (int64_t i = 0; i < QN_ROW_BLOCK; i += LANES) {
            for (int l = 0; l < LANES; l++) {
                const int is_there = x[i + l] > -INFINITY;
                const float d = is_there ? x[i + l] - best : 0;
                count[l] += is_there;
                lane[l] += d;
                square[l] += d * d;
            }
        }
        for (int l = 0; l < LANES; l++) {
            sum += (double)lane[l];
            squares += (double)square[l];
            n += count[l];
        }
    }
    const double mean = sum / (double)n, variance = squares / (double)n - mean * mean,
                 distance = (double)n_sigma * sqrt(fmax(variance, 0));
    const qn_candidates_rest rest = {distance, INT64_MAX};
    qn_candidates_keep_min_p(c, (float)(-distance * (double)qn_candidates_scale(c)), rest);
}

/* ---- entropy ---- */

/* x is the exponent of a candidate's weight: scale * (logit - the best's). */
typedef struct {
    double total,
        mean; /* of the weights; of x under them, so that -ln p = ln total - x, H = ln total - mean */
    int64_t n;
} spread;

static spread measure(const qn_candidates *c)
{
    float buffer[QN_ROW_BLOCK], x[QN_ROW_BLOCK], weight[QN_ROW_BLOCK];
    double total = 0, weighted = 0;
    int64_t n = 0;
    const float best = qn_candidates_best_logit(c), scale = qn_candidates_scale(c);
    const int64_t n_parts = qn_candidates_count_parts(c);
    for (int64_t p = 0; p < n_parts; p++) {
        const qn_candidates_part part = qn_candidates_get_part(c, p, buffer);
        float sum[LANES] = {0}, weighted_sum[LANES] = {0};
        int count[LANES] = {0};
        pad(&part, x);
        qn_candidates_weigh(c, x, QN_ROW_BLOCK, weight);
        for (int64_t i = 0; i < QN_ROW_BLOCK; i += LANES) {
            for (int l = 0; l < LANES; l++) {
                const float v = x[i + l] > -FLT_MAX ? x[i + l] : -FLT_MAX, e = (v - best) * scale;
                count[l] += x[i + l] > -INFINITY;
                sum[l] += weight[i + l];
                weighted_sum[l] += weight[i + l] * (e > LEAST_EXPONENT ? e : LEAST_EXPONENT);
            }
        }
        for (int l = 0; l < LANES; l++) {
            total += (double)sum[l];
            weighted += (double)weighted_sum[l];
            n += count[l];
        }
    }
    return (spread){total, weighted / total, n};
}

double qn_filter_entropy_share(qn_candidates *c)
{
    const spread s = measure(c);
    if (s.n < 2) return 0;
    const double share = (log(s.total) - s.mean) / log((double)s.n);
    return fmin(fmax(share, 0), 1);
}

/* ---- typical_p ---- */

/* |-ln p - H| of each as a float, whose bits rise with it. Infinite if the logit is -inf. */
static void make_keys(const qn_candidates *c, const spread *s, const float *logit, int64_t n, uint32_t *key)
{
    const float best = qn_candidates_best_logit(c), scale = qn_candidates_scale(c), mean = (float)s->mean;
    float distance[QN_ROW_BLOCK];
    for (int64_t i = 0; i < n; i++) distance[i] = fabsf((logit[i] - best) * scale - mean);
    memcpy(key, distance, (size_t)n * sizeof *key);
}

/* Adds the weights of the candidates whose key begins with prefix, by its next digit. */
static void add_digits(const qn_candidates *c, const spread *s, uint32_t prefix, int rest, int shift,
                       double *mass)
{
    float buffer[QN_ROW_BLOCK], weight[QN_ROW_BLOCK];
    uint32_t key[QN_ROW_BLOCK];
    const uint32_t digit_mask = (1u << (rest - shift)) - 1;
    const int64_t n_parts = qn_candidates_count_parts(c);
    for (int64_t p = 0; p < n_parts; p++) {
        const qn_candidates_part part = qn_candidates_get_part(c, p, buffer);
        int any = rest == KEY_BITS;
        make_keys(c, s, part.logit, part.n, key);
        for (int64_t i = 0; i < part.n && rest < KEY_BITS; i++) any |= key[i] >> rest == prefix;
        if (!any) continue;
        qn_candidates_weigh(c, part.logit, part.n, weight);
        for (int64_t i = 0; i < part.n; i++)
            if (rest == KEY_BITS || key[i] >> rest == prefix)
                mass[key[i] >> shift & digit_mask] += (double)weight[i];
    }
}

/* The largest key that stays. Its digits are found from the highest on. */
static uint32_t find_last_key(const qn_candidates *c, const spread *s, double limit)
{
    uint32_t prefix = 0;
    double before = 0;
    for (int rest = KEY_BITS, bits; rest; rest -= bits) {
        double mass[N_DIGITS] = {0};
        int digit = 0, last = 0;
        bits = rest < DIGIT_BITS ? rest : DIGIT_BITS;
        add_digits(c, s, prefix, rest, rest - bits, mass);
        for (int i = 0; i < N_DIGITS; i++)
            if (mass[i] > 0) last = i;
        while (digit < last && before + mass[digit] < limit) before += mass[digit++];
        prefix = prefix << bits | (uint32_t)digit;
    }
    return prefix;
}

/* The mass of the candidates that are no further away than `distance`. */
static double sum_within(const qn_candidates *c, const spread *s, double distance)
{
    float buffer[QN_ROW_BLOCK], weight[QN_ROW_BLOCK];
    const float near = (float)distance;
    uint32_t key[QN_ROW_BLOCK], most;
    double sum = 0;
    const int64_t n_parts = qn_candidates_count_parts(c);
    memcpy(&most, &near, sizeof most);
    for (int64_t p = 0; p < n_parts; p++) {
        const qn_candidates_part part = qn_candidates_get_part(c, p, buffer);
        make_keys(c, s, part.logit, part.n, key);
        qn_candidates_weigh(c, part.logit, part.n, weight);
        for (int64_t i = 0; i < part.n; i++)
            if (key[i] <= most) sum += (double)weight[i];
    }
    return sum;
}

/* Lists all that can stay, if a list holds them: enough of the mass is as near to the mean as the least that is
 * listed. */
static void list_near(qn_candidates *c, const spread *s, double limit)
{
    static const double exponents[] = {4, 6, 8, 10, 12, 14};
    const double best = (double)qn_candidates_best_logit(c), scale = (double)qn_candidates_scale(c);
    for (size_t i = 0; i < sizeof exponents / sizeof *exponents; i++) {
        const double distance = exponents[i] + s->mean;
        if (distance <= 0) continue;
        if (!qn_candidates_list(c, best - exponents[i] / scale)) return;
        if (sum_within(c, s, distance * 0.999) >= limit * 1.001) return;
        qn_candidates_unlist(c);
    }
}

void qn_filter_typical_p(qn_candidates *c, float p)
{
    float buffer[QN_ROW_BLOCK], low = INFINITY, high = -INFINITY;
    uint32_t key[QN_ROW_BLOCK];
    const spread s = measure(c);
    list_near(c, &s, (double)p * s.total);
    const uint32_t last = find_last_key(c, &s, (double)p * s.total);
    const int64_t n_parts = qn_candidates_count_parts(c);
    for (int64_t i = 0; i < n_parts; i++) {
        const qn_candidates_part part = qn_candidates_get_part(c, i, buffer);
        make_keys(c, &s, part.logit, part.n, key);
        for (int64_t k = 0; k < part.n; k++) {
            if (key[k] > last || part.logit[k] == -INFINITY) continue;
            low = part.logit[k] < low ? part.logit[k] : low;
            high = part.logit[k] > high ? part.logit[k] : high;
        }
    }
    qn_candidates_keep_between(c, low, high);
}

/* ---- xtc ---- */

void qn_filter_xtc(qn_candidates *c, float threshold)
{
    float buffer[QN_ROW_BLOCK], weight[QN_ROW_BLOCK], last = INFINITY;
    int32_t last_id = -1;
    int64_t n = 0;
    const double limit = (double)threshold * qn_candidates_sum(c), scale = (double)qn_candidates_scale(c);
    /* Only near it or above it are weights looked at. */
    const float least = (float)((double)qn_candidates_best_logit(c) + (log(limit) - 0.01) / scale);
    const int64_t n_parts = qn_candidates_count_parts(c);
    for (int64_t p = 0; p < n_parts; p++) {
        const qn_candidates_part part = qn_candidates_get_part(c, p, buffer);
        int any = 0;
        for (int64_t i = 0; i < part.n; i++) any |= part.logit[i] >= least;
        if (!any) continue;
        qn_candidates_weigh(c, part.logit, part.n, weight);
        for (int64_t i = 0; i < part.n; i++) {
            if ((double)weight[i] < limit || part.logit[i] == -INFINITY) continue;
            const int32_t id = part.id ? part.id[i] : part.first + (int32_t)i;
            const float v = part.logit[i];
            n++;
            if (v < last || (v == last && id > last_id)) last = v, last_id = id;
        }
    }
    if (n > 1) qn_candidates_keep_from(c, last, last_id);
}
