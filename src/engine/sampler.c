#include "engine/sampler.h"

#include <float.h>
#include <math.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/random.h"

/* Falling order is found through bins: a token whose distance to the best (in units of the exponent) is d
 * falls into bin d * BINS_PER_UNIT, the last bin takes the rest. Only the bin in which the limit is crossed
 * is put in order. */
enum { N_BINS = 1024, BINS_PER_UNIT = 16, LANES = 16, BLOCK = 1024 };

struct qn_sampler {
    int64_t n_vocab;
    float temperature, top_p, min_p_log, repeat_penalty;
    int use_min_p;
    int32_t top_k;
    uint64_t seed;
    qn_sampler_step order[QN_SAMPLER_COUNT];
    size_t n_order;
    uint64_t *seen; /* [n_vocab / 64 rounded up] bits: the history; NULL when there is no penalty */

    /* Candidates that the steps so far have left: [n] of n_vocab. Effective logit: logit * scale. */
    float *logit;  /* NULL when greedy without penalty */
    float *weight; /* exp(effective logit - that of the best) */
    int32_t *id;
    int64_t n;
    float scale;
};

const char *qn_sampler_step_name(qn_sampler_step step)
{
    static const char *const names[] = {
#define NAME(name, text) text,
        QN_SAMPLER_LIST(NAME)
#undef NAME
    };
    return (size_t)step < QN_SAMPLER_COUNT ? names[step] : "unknown step";
}

int qn_sampler_step_from_name(const char *name, qn_sampler_step *out)
{
    for (int i = 0; i < QN_SAMPLER_COUNT; i++) {
        if (strcmp(name, qn_sampler_step_name((qn_sampler_step)i)) == 0) {
            *out = (qn_sampler_step)i;
            return 1;
        }
    }
    return 0;
}

static qn_status check_range(const char *field, double value, double low, double high)
{
    if (value >= low && value <= high) return QN_OK;
    return qn_fail(QN_E_ARG, "%s: %g is not in the range %g to %g", field, value, low, high);
}

qn_status qn_sampler_check(const qn_generate_options *o)
{
    QN_TRY(check_range("temperature", o->temperature, 0, 1000));
    QN_TRY(check_range("top_p", o->top_p, 0, 1));
    QN_TRY(check_range("min_p", o->min_p, 0, 1));
    QN_TRY(check_range("top_k", o->top_k, 0, INT32_MAX));
    if (o->repeat_penalty != 0) QN_TRY(check_range("repeat_penalty", o->repeat_penalty, 0.01, 100));
    if (!o->sampler_order) return o->n_sampler_order ? qn_fail(QN_E_ARG, "sampler_order is NULL") : QN_OK;
    unsigned used = 0;
    for (size_t i = 0; i < o->n_sampler_order; i++) {
        unsigned step = (unsigned)o->sampler_order[i];
        if (step >= QN_SAMPLER_COUNT) return qn_fail(QN_E_ARG, "sampler_order: %u is no step", step);
        if (used & 1u << step)
            return qn_fail(QN_E_ARG, "sampler_order: %s appears twice",
                           qn_sampler_step_name(o->sampler_order[i]));
        used |= 1u << step;
    }
    return QN_OK;
}

/* Takes the steps that do something, in their order. */
static void take_order(qn_sampler *s, const qn_generate_options *o)
{
    size_t n = o->sampler_order ? o->n_sampler_order : QN_SAMPLER_COUNT;
    for (size_t i = 0; i < n; i++) {
        qn_sampler_step step = o->sampler_order ? o->sampler_order[i] : (qn_sampler_step)i;
        int on = 0;
        switch (step) {
        case QN_SAMPLER_REPEAT_PENALTY:
            on = o->repeat_penalty != 0 && o->repeat_penalty != 1;
            break;
        case QN_SAMPLER_TOP_P:
            on = o->top_p > 0 && o->top_p < 1;
            break;
        case QN_SAMPLER_MIN_P:
            on = o->min_p > 0;
            break;
        case QN_SAMPLER_TOP_K:
            on = o->top_k > 0 && o->top_k < s->n_vocab;
            break;
        case QN_SAMPLER_TEMPERATURE:
            on = o->temperature != 1;
            break;
        case QN_SAMPLER_COUNT:
            break;
        }
        /* Greedy takes the best, which every filter keeps. */
        if (s->temperature == 0 && step != QN_SAMPLER_REPEAT_PENALTY) on = 0;
        if (on) s->order[s->n_order++] = step;
    }
}

static int has_penalty(const qn_sampler *s)
{
    for (size_t i = 0; i < s->n_order; i++)
        if (s->order[i] == QN_SAMPLER_REPEAT_PENALTY) return 1;
    return 0;
}

qn_status qn_sampler_new(const qn_generate_options *o, int64_t n_vocab, qn_sampler **out)
{
    QN_TRY(qn_sampler_check(o));
    if (n_vocab < 1 || n_vocab > INT32_MAX)
        return qn_fail(QN_E_ARG, "a vocabulary of %lld tokens", (long long)n_vocab);
    qn_sampler *s = qn_calloc(1, sizeof *s);
    if (!s) return QN_E_NOMEM;
    s->n_vocab = n_vocab;
    s->temperature = o->temperature;
    s->top_p = o->top_p;
    s->min_p_log = o->min_p > 0 ? logf(o->min_p) : -INFINITY;
    s->top_k = o->top_k;
    s->repeat_penalty = o->repeat_penalty;
    s->seed = o->seed;
    take_order(s, o);
    size_t n = (size_t)n_vocab;
    if (has_penalty(s)) {
        s->seen = qn_calloc((n + 63) / 64, sizeof *s->seen);
        if (!s->seen) goto fail;
    }
    if (s->temperature != 0 || s->seen) {
        s->logit = qn_alloc_array(n, sizeof *s->logit);
        if (!s->logit) goto fail;
    }
    if (s->temperature != 0) {
        s->weight = qn_alloc_array(n, sizeof *s->weight);
        s->id = qn_alloc_array(n, sizeof *s->id);
        if (!s->weight || !s->id) goto fail;
    }
    *out = s;
    return QN_OK;
fail:
    qn_sampler_free(s);
    return QN_E_NOMEM;
}

size_t qn_sampler_bytes(int64_t n_vocab)
{
    const qn_sampler *s = NULL;
    size_t n = (size_t)n_vocab;
    return sizeof *s + (n + 63) / 64 * sizeof *s->seen +
           n * (sizeof *s->logit + sizeof *s->weight + sizeof *s->id);
}

void qn_sampler_free(qn_sampler *s)
{
    if (!s) return;
    qn_free(s->seen);
    qn_free(s->logit);
    qn_free(s->weight);
    qn_free(s->id);
    qn_free(s);
}

qn_status qn_sampler_accept(qn_sampler *s, const int32_t *ids, int64_t n_ids)
{
    for (int64_t i = 0; i < n_ids; i++) {
        if (ids[i] < 0 || ids[i] >= s->n_vocab)
            return qn_fail(QN_E_ARG, "token id %d is outside the vocabulary of %lld tokens", (int)ids[i],
                           (long long)s->n_vocab);
        if (s->seen) s->seen[ids[i] / 64] |= UINT64_C(1) << (ids[i] % 64);
    }
    return QN_OK;
}

/* Largest of x[0..n); *usable is 0 when a value is NaN or +inf, or none is finite. */
static float find_max(const float *x, int64_t n, int *usable)
{
    float lane[LANES];
    int32_t bad[LANES] = {0};
    for (int l = 0; l < LANES; l++) lane[l] = -INFINITY;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int l = 0; l < LANES; l++) {
            float v = x[i + l];
            bad[l] |= !(v <= FLT_MAX);
            lane[l] = v > lane[l] ? v : lane[l];
        }
    }
    for (; i < n; i++) {
        bad[0] |= !(x[i] <= FLT_MAX);
        lane[0] = x[i] > lane[0] ? x[i] : lane[0];
    }
    for (int l = 1; l < LANES; l++) {
        bad[0] |= bad[l];
        lane[0] = lane[l] > lane[0] ? lane[l] : lane[0];
    }
    *usable = !bad[0] && lane[0] >= -FLT_MAX;
    return lane[0];
}

static qn_status fail_logits(void)
{
    return qn_fail(QN_E_INTERNAL, "the model gave logits that are not finite numbers");
}

/* exp(x) for x <= 0 within 2 units in the last place; 0 below -87. Our own, so that draws do not depend on
 * the C library. */
static inline float exp_negative(float x)
{
    float clamped = x < -87.0f ? -87.0f : x;
    float k = (clamped * 1.44269504f + 12582912.0f) - 12582912.0f; /* nearest integer */
    float r = (clamped - k * 0.693359375f) + k * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t bits = ((int32_t)k + 127) * (1 << 23);
    float power;
    memcpy(&power, &bits, sizeof power);
    return p * power * (float)(x >= -87.0f); /* no branch: the loop over it is to be vectorised */
}

/* Sum of x[0..n), of those above least: lanes of floats over a block, blocks in double. */
static double sum_above(const float *x, int64_t n, float least)
{
    double sum = 0;
    int64_t i = 0;
    while (i + LANES <= n) {
        float lane[LANES] = {0};
        int64_t end = i + BLOCK < n ? i + BLOCK : n;
        for (; i + LANES <= end; i += LANES)
            for (int l = 0; l < LANES; l++) lane[l] += x[i + l] > least ? x[i + l] : 0;
        for (int l = 0; l < LANES; l++) sum += (double)lane[l];
    }
    for (; i < n; i++) sum += x[i] > least ? (double)x[i] : 0;
    return sum;
}

/* Fills the candidates' weights; returns their sum. best: the largest logit. */
static double fill_weights(qn_sampler *s, float best)
{
    const float *logit = s->logit;
    float *weight = s->weight, scale = s->scale;
    int64_t n = s->n;
    for (int64_t i = 0; i < n; i++) weight[i] = exp_negative((logit[i] - best) * scale);
    return sum_above(s->weight, s->n, 0);
}

static inline float penalised(float v, float penalty)
{
    return v < 0 ? v * penalty : v / penalty;
}

static void apply_penalty(qn_sampler *s)
{
    if (s->n == s->n_vocab) { /* candidate i is token i */
        for (int64_t word = 0; word < (s->n_vocab + 63) / 64; word++) {
            for (uint64_t bits = s->seen[word]; bits; bits &= bits - 1) {
                int64_t i = word * 64 + __builtin_ctzll(bits);
                s->logit[i] = penalised(s->logit[i], s->repeat_penalty);
            }
        }
        return;
    }
    for (int64_t i = 0; i < s->n; i++)
        if (s->seen[s->id[i] / 64] >> (s->id[i] % 64) & 1)
            s->logit[i] = penalised(s->logit[i], s->repeat_penalty);
}

static void swap_candidates(qn_sampler *s, int64_t a, int64_t b)
{
    float logit = s->logit[a], weight = s->weight[a];
    int32_t id = s->id[a];
    s->logit[a] = s->logit[b], s->weight[a] = s->weight[b], s->id[a] = s->id[b];
    s->logit[b] = logit, s->weight[b] = weight, s->id[b] = id;
}

static int comes_before(const qn_sampler *s, int64_t a, int64_t b)
{
    return s->logit[a] > s->logit[b] || (s->logit[a] == s->logit[b] && s->id[a] < s->id[b]);
}

/* Restores the heap over candidates [begin, end) whose root (the first in falling order) lies at the END of
 * the range, so that roots taken off leave the order of what stays: node j is candidate end - 1 - j. */
static void sift_down(qn_sampler *s, int64_t begin, int64_t end, int64_t node)
{
    for (;;) {
        int64_t first = node, n = end - begin;
        for (int64_t child = 2 * node + 1; child <= 2 * node + 2 && child < n; child++)
            if (comes_before(s, end - 1 - child, end - 1 - first)) first = child;
        if (first == node) return;
        swap_candidates(s, end - 1 - node, end - 1 - first);
        node = first;
    }
}

/* Which bin the candidate falls into; falls monotonically with its logit. */
static inline int bin_of(const qn_sampler *s, float best, int64_t i)
{
    float d = (best - s->logit[i]) * s->scale * BINS_PER_UNIT;
    return d < (float)(N_BINS - 1) ? (int)d : N_BINS - 1;
}

/* Most of a large vocabulary has next to no weight. Where the candidates near the best reach the limit of
 * mass by far, the others cannot stay and need no order: this drops them in one cheap pass. */
static void drop_tail(qn_sampler *s, double limit)
{
    const float least = 6e-6f; /* exp(-12) */
    if (sum_above(s->weight, s->n, least) < limit * 1.001) return;
    int64_t kept = 0;
    for (int64_t i = 0; i < s->n; i++) {
        float weight = s->weight[i];
        s->logit[kept] = s->logit[i];
        s->id[kept] = s->id[i];
        s->weight[kept] = weight;
        kept += weight > least;
    }
    s->n = kept;
}

/* Keeps the candidates for which the sum of measures above them, in falling order, is less than limit; the
 * measure is the weight, or 1 for each (by_count: then also all that equal the last one kept). */
static void keep_best(qn_sampler *s, float best, double limit, int by_count)
{
    double mass[N_BINS] = {0}, above = 0;
    for (int64_t i = 0; i < s->n; i++) mass[bin_of(s, best, i)] += by_count ? 1 : (double)s->weight[i];
    int crossing = 0;
    while (crossing < N_BINS - 1 && above + mass[crossing] < limit) above += mass[crossing++];

    /* Bins below the crossing one move to the front, the crossing bin behind them. */
    int64_t kept = 0, end = 0;
    for (int64_t i = 0; i < s->n; i++) {
        int bin = bin_of(s, best, i);
        if (bin > crossing) continue;
        if (i != end) swap_candidates(s, i, end);
        if (bin < crossing) {
            if (kept != end) swap_candidates(s, kept, end);
            kept++;
        }
        end++;
    }
    /* Takes candidates out of the crossing bin, best first. */
    float last = INFINITY;
    int any = 0;
    for (int64_t node = (end - kept) / 2 - 1; node >= 0; node--) sift_down(s, kept, end, node);
    while (kept < end) {
        int64_t root = end - 1;
        if (above >= limit && !(by_count && any && s->logit[root] == last)) break;
        any = 1;
        last = s->logit[root];
        above += by_count ? 1 : (double)s->weight[root];
        swap_candidates(s, kept, root);
        kept++;
        sift_down(s, kept, end, 0);
    }
    s->n = kept;
}

static void keep_min_p(qn_sampler *s, float best)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < s->n; i++) {
        if ((s->logit[i] - best) * s->scale < s->min_p_log) continue;
        s->logit[kept] = s->logit[i];
        s->id[kept] = s->id[i];
        kept++;
    }
    s->n = kept;
}

/* Runs the chain; leaves candidates with their weights and *total, the sum of those. Not for greedy. */
static qn_status run_chain(qn_sampler *s, const float *logits, double *total)
{
    memcpy(s->logit, logits, (size_t)s->n_vocab * sizeof *logits);
    for (int32_t i = 0; i < s->n_vocab; i++) s->id[i] = i;
    s->n = s->n_vocab;
    s->scale = 1;
    int usable;
    double mass;
    float best = find_max(s->logit, s->n, &usable);
    if (!usable) return fail_logits();
    for (size_t i = 0; i < s->n_order; i++) {
        switch (s->order[i]) {
        case QN_SAMPLER_REPEAT_PENALTY:
            apply_penalty(s);
            best = find_max(s->logit, s->n, &usable);
            if (!usable) return fail_logits();
            break;
        case QN_SAMPLER_TOP_P:
            mass = s->top_p * fill_weights(s, best);
            drop_tail(s, mass);
            keep_best(s, best, mass, 0);
            break;
        case QN_SAMPLER_MIN_P:
            keep_min_p(s, best);
            break;
        case QN_SAMPLER_TOP_K:
            if (s->n > s->top_k) keep_best(s, best, s->top_k, 1);
            break;
        case QN_SAMPLER_TEMPERATURE:
            /* Bounded, so that the best's distance 0 stays 0: a tiny temperature is its own limit. */
            s->scale = s->temperature > 1e-30f ? 1 / s->temperature : 1e30f;
            break;
        case QN_SAMPLER_COUNT:
            break;
        }
    }
    *total = fill_weights(s, best);
    return QN_OK;
}

static qn_status find_greedy(qn_sampler *s, const float *logits, int32_t *id)
{
    if (s->seen) {
        memcpy(s->logit, logits, (size_t)s->n_vocab * sizeof *logits);
        s->n = s->n_vocab;
        apply_penalty(s);
        logits = s->logit;
    }
    int usable;
    float best = find_max(logits, s->n_vocab, &usable);
    if (!usable) return fail_logits();
    int32_t i = 0;
    while (logits[i] != best) i++;
    *id = i;
    return QN_OK;
}

qn_status qn_sampler_draw(qn_sampler *s, const float *logits, int64_t position, int32_t *id)
{
    if (s->temperature == 0) return find_greedy(s, logits, id);
    double total = 0;
    QN_TRY(run_chain(s, logits, &total));
    double target = qn_random_unit(s->seed, (uint64_t)position) * total, sum = 0;
    int64_t chosen = -1;
    for (int64_t i = 0; i < s->n; i++) {
        if (s->weight[i] <= 0) continue;
        chosen = i; /* the last one with a weight, should rounding keep the sum below the target */
        sum += (double)s->weight[i];
        if (target < sum) break;
    }
    *id = s->id[chosen];
    return QN_OK;
}

qn_status qn_sampler_distribution(qn_sampler *s, const float *logits, float *probabilities)
{
    int32_t id = 0;
    double total = 0;
    if (s->temperature == 0) {
        QN_TRY(find_greedy(s, logits, &id));
        memset(probabilities, 0, (size_t)s->n_vocab * sizeof *probabilities);
        probabilities[id] = 1;
        return QN_OK;
    }
    QN_TRY(run_chain(s, logits, &total));
    memset(probabilities, 0, (size_t)s->n_vocab * sizeof *probabilities);
    for (int64_t i = 0; i < s->n; i++) probabilities[s->id[i]] = (float)((double)s->weight[i] / total);
    return QN_OK;
}

uint64_t qn_sampler_fresh_seed(void)
{
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed)
        seed = qn_random_bits((uint64_t)qn_clock_ns(), 0);
    return seed ? seed : 1;
}
