#include "engine/sample/sampler.h"

#include <math.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/random.h"
#include "engine/sample/candidates.h"

struct qn_sampler {
    int64_t n_vocab;
    float temperature, top_p, min_p_log, repeat_penalty;
    int32_t top_k;
    uint64_t seed;
    qn_sampler_step order[QN_SAMPLER_COUNT];
    size_t n_order;
    qn_candidates *candidates;
    float presence_penalty, frequency_penalty;
    qn_logit_bias *bias; /* [n_bias] */
    size_t n_bias;
    int32_t *n_drawn; /* [n_vocab] how often each token came; NULL: no penalty asks */
    float *adjusted;  /* [n_vocab] the logits that the chain sees; NULL: the model's own */
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

static qn_status check_additions(const qn_generate_options *o)
{
    QN_TRY(check_range("presence_penalty", o->presence_penalty, -2, 2));
    QN_TRY(check_range("frequency_penalty", o->frequency_penalty, -2, 2));
    QN_TRY(check_range("n_top_logprobs", o->n_top_logprobs, 0, QN_TOP_LOGPROBS_MAX));
    QN_TRY(check_range("n_draft", o->n_draft, 0, QN_DRAFT_TOKENS_MAX));
    if (o->n_top_logprobs && !o->logprobs)
        return qn_fail(QN_E_ARG, "n_top_logprobs is %d, but logprobs is off", (int)o->n_top_logprobs);
    if (o->n_logit_bias > QN_LOGIT_BIAS_MAX)
        return qn_fail(QN_E_ARG, "logit_bias: %zu tokens, at most %d are allowed", o->n_logit_bias,
                       (int)QN_LOGIT_BIAS_MAX);
    if (o->n_logit_bias && !o->logit_bias) return qn_fail(QN_E_ARG, "logit_bias is NULL");
    for (size_t i = 0; i < o->n_logit_bias; i++) {
        if (o->logit_bias[i].id < 0)
            return qn_fail(QN_E_ARG, "logit_bias: %d is not a token id", (int)o->logit_bias[i].id);
        QN_TRY(check_range("logit_bias", o->logit_bias[i].bias, -100, 100));
    }
    return QN_OK;
}

qn_status qn_sampler_check(const qn_generate_options *o)
{
    QN_TRY(check_additions(o));
    QN_TRY(check_range("temperature", o->temperature, 0, 1000));
    QN_TRY(check_range("top_p", o->top_p, 0, 1));
    QN_TRY(check_range("min_p", o->min_p, 0, 1));
    QN_TRY(check_range("top_k", o->top_k, 0, INT32_MAX));
    /* 0.01 as a float is a little less than 0.01. */
    if (o->repeat_penalty != 0) QN_TRY(check_range("repeat_penalty", o->repeat_penalty, (double)0.01f, 100));
    if (!o->sampler_order) return o->n_sampler_order ? qn_fail(QN_E_ARG, "sampler_order is NULL") : QN_OK;
    unsigned used = 0;
    for (size_t i = 0; i < o->n_sampler_order; i++) {
        unsigned step = (unsigned)o->sampler_order[i];
        if (step >= QN_SAMPLER_COUNT) return qn_fail(QN_E_ARG, "sampler_order: %u is not a step", step);
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

int qn_sampler_is_plain(const qn_sampler *s)
{
    return s->temperature == 0 && !has_penalty(s) && !s->adjusted;
}

static qn_status take_additions(qn_sampler *s, const qn_generate_options *o)
{
    const size_t n_vocab = (size_t)s->n_vocab;
    const int counts = o->presence_penalty != 0 || o->frequency_penalty != 0;
    s->presence_penalty = o->presence_penalty;
    s->frequency_penalty = o->frequency_penalty;
    if (!o->n_logit_bias && !counts) return QN_OK;
    if (!(s->adjusted = qn_alloc_array(n_vocab, sizeof *s->adjusted))) return QN_E_NOMEM;
    if (counts && !(s->n_drawn = qn_calloc(n_vocab, sizeof *s->n_drawn))) return QN_E_NOMEM;
    if (!o->n_logit_bias) return QN_OK;
    if (!(s->bias = qn_alloc_array(o->n_logit_bias, sizeof *s->bias))) return QN_E_NOMEM;
    memcpy(s->bias, o->logit_bias, o->n_logit_bias * sizeof *s->bias);
    s->n_bias = o->n_logit_bias;
    return QN_OK;
}

qn_status qn_sampler_new(const qn_logits_kernels *kernels, const qn_generate_options *o, int64_t n_vocab,
                         qn_sampler **out)
{
    QN_TRY(qn_sampler_check(o));
    if (!kernels) QN_TRY(qn_device_get_logits_kernels(NULL, &kernels));
    if (n_vocab < 1 || n_vocab > INT32_MAX)
        return qn_fail(QN_E_ARG, "a vocabulary of %lld tokens", (long long)n_vocab);
    for (size_t i = 0; i < o->n_logit_bias; i++)
        if (o->logit_bias[i].id >= n_vocab)
            return qn_fail(QN_E_ARG, "logit_bias: token id %d is outside the vocabulary of %lld",
                           (int)o->logit_bias[i].id, (long long)n_vocab);
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
    qn_status status =
        qn_candidates_new(kernels, n_vocab, has_penalty(s), s->temperature == 0, &s->candidates);
    if (status == QN_OK) status = take_additions(s, o);
    if (status != QN_OK) {
        qn_sampler_free(s);
        return status;
    }
    *out = s;
    return QN_OK;
}

size_t qn_sampler_bytes(int64_t n_vocab)
{
    return sizeof(qn_sampler) + qn_candidates_bytes(n_vocab);
}

void qn_sampler_free(qn_sampler *s)
{
    if (!s) return;
    qn_candidates_free(s->candidates);
    qn_free(s->bias);
    qn_free(s->n_drawn);
    qn_free(s->adjusted);
    qn_free(s);
}

qn_status qn_sampler_accept(qn_sampler *s, const int32_t *ids, int64_t n_ids)
{
    for (int64_t i = 0; i < n_ids; i++) {
        if (ids[i] < 0 || ids[i] >= s->n_vocab)
            return qn_fail(QN_E_ARG, "token id %d is outside the vocabulary of %lld tokens", (int)ids[i],
                           (long long)s->n_vocab);
        qn_candidates_mark(s->candidates, ids[i]);
    }
    return QN_OK;
}

qn_status qn_sampler_accept_drawn(qn_sampler *s, int32_t id)
{
    QN_TRY(qn_sampler_accept(s, &id, 1));
    if (s->n_drawn && s->n_drawn[id] < INT32_MAX) s->n_drawn[id]++;
    return QN_OK;
}

/* The logits that the chain begins with. */
static const float *adjust(qn_sampler *s, const float *logits)
{
    float *x = s->adjusted;
    if (!x) return logits;
    memcpy(x, logits, (size_t)s->n_vocab * sizeof *x);
    for (int64_t i = 0; s->n_drawn && i < s->n_vocab; i++)
        if (s->n_drawn[i]) x[i] -= (float)s->n_drawn[i] * s->frequency_penalty + s->presence_penalty;
    for (size_t i = 0; i < s->n_bias; i++) x[s->bias[i].id] += s->bias[i].bias;
    return x;
}

/* Bounded, so that the best's distance 0 stays 0: a tiny temperature is its own limit. */
static float find_scale(const qn_sampler *s)
{
    return s->temperature > 1e-30f ? 1 / s->temperature : 1e30f;
}

/* What steps [i, n_order) leave at most; scale: the one before them. A penalty changes the order, and a later
 * top_p takes its share of all that is left then: up to the first of them. */
static qn_candidates_rest look_ahead(const qn_sampler *s, size_t i, float scale)
{
    qn_candidates_rest rest = {INFINITY, INT64_MAX};
    for (size_t j = i; j < s->n_order; j++) {
        qn_sampler_step step = s->order[j];
        if (step == QN_SAMPLER_REPEAT_PENALTY || (step == QN_SAMPLER_TOP_P && j > i)) break;
        if (step == QN_SAMPLER_TEMPERATURE) scale = find_scale(s);
        if (step == QN_SAMPLER_MIN_P) rest.distance = -(double)s->min_p_log / (double)scale;
        if (step == QN_SAMPLER_TOP_K) rest.count = s->top_k;
    }
    return rest;
}

static qn_status run_chain(qn_sampler *s, const float *logits)
{
    qn_candidates *c = s->candidates;
    float scale = 1;
    QN_TRY(qn_candidates_begin(c, adjust(s, logits)));
    for (size_t i = 0; i < s->n_order; i++) {
        switch (s->order[i]) {
        case QN_SAMPLER_REPEAT_PENALTY:
            QN_TRY(qn_candidates_penalise(c, s->repeat_penalty));
            break;
        case QN_SAMPLER_TOP_P:
            qn_candidates_keep_top_p(c, s->top_p, look_ahead(s, i, scale));
            break;
        case QN_SAMPLER_MIN_P:
            qn_candidates_keep_min_p(c, s->min_p_log, look_ahead(s, i, scale));
            break;
        case QN_SAMPLER_TOP_K:
            qn_candidates_keep_top_k(c, s->top_k, look_ahead(s, i, scale));
            break;
        case QN_SAMPLER_TEMPERATURE:
            scale = find_scale(s);
            qn_candidates_set_scale(c, scale);
            break;
        case QN_SAMPLER_COUNT:
            break;
        }
    }
    return QN_OK;
}

qn_status qn_sampler_draw(qn_sampler *s, const float *logits, int64_t position, int32_t *id)
{
    QN_TRY(run_chain(s, logits));
    *id = s->temperature == 0
              ? qn_candidates_best(s->candidates)
              : qn_candidates_pick(s->candidates, qn_random_unit(s->seed, (uint64_t)position));
    return QN_OK;
}

qn_status qn_sampler_distribution(qn_sampler *s, const float *logits, float *probabilities)
{
    QN_TRY(run_chain(s, logits));
    if (s->temperature != 0) {
        qn_candidates_distribution(s->candidates, probabilities);
        return QN_OK;
    }
    memset(probabilities, 0, (size_t)s->n_vocab * sizeof *probabilities);
    probabilities[qn_candidates_best(s->candidates)] = 1;
    return QN_OK;
}

uint64_t qn_sampler_fresh_seed(void)
{
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed)
        seed = qn_random_bits((uint64_t)qn_clock_ns(), 0);
    return seed ? seed : 1;
}
