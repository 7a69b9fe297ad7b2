/* The sampling fields of the options: names of the steps, and ranges. */
#include <math.h>
#include <string.h>

#include "base/utf8.h"
#include "engine/sample/sampler.h"

const char *qn_sampler_step_name(qn_sampler_step step)
{
    static const char *const names[] = {
#define NAME(name, text) text,
        QN_SAMPLER_LIST(NAME)
#undef NAME
    };
    return (size_t)step < QN_SAMPLER_COUNT ? names[step] : "unknown step";
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
    QN_TRY(check_range("n_prompt_top_logprobs", o->n_prompt_top_logprobs, 0, QN_TOP_LOGPROBS_MAX));
    QN_TRY(check_range("n_draft", o->n_draft, 0, QN_DRAFT_TOKENS_MAX));
    if (o->n_top_logprobs && !o->logprobs)
        return qn_fail(QN_E_ARG, "n_top_logprobs is %d, but logprobs is off", (int)o->n_top_logprobs);
    if (o->n_prompt_top_logprobs && !o->prompt_logprobs)
        return qn_fail(QN_E_ARG, "n_prompt_top_logprobs is %d, but prompt_logprobs is off",
                       (int)o->n_prompt_top_logprobs);
    if (o->post_sampling && !o->logprobs) return qn_fail(QN_E_ARG, "post_sampling needs logprobs");
    if (o->n_logit_bias > QN_LOGIT_BIAS_MAX)
        return qn_fail(QN_E_ARG, "logit_bias: %zu tokens, at most %d are allowed", o->n_logit_bias,
                       (int)QN_LOGIT_BIAS_MAX);
    if (o->n_logit_bias && !o->logit_bias) return qn_fail(QN_E_ARG, "logit_bias is NULL");
    for (size_t i = 0; i < o->n_logit_bias; i++) {
        if (o->logit_bias[i].id < 0)
            return qn_fail(QN_E_ARG, "logit_bias: %d is not a token id", (int)o->logit_bias[i].id);
        if (o->logit_bias[i].bias != -INFINITY)
            QN_TRY(check_range("logit_bias", o->logit_bias[i].bias, -100, 100));
    }
    return QN_OK;
}

/* A list of texts. */
static qn_status check_texts(const char *field, const char *const *texts, size_t n, size_t most)
{
    if (n > most) return qn_fail(QN_E_ARG, "%s: %zu entries, at most %zu are allowed", field, n, most);
    if (n && !texts) return qn_fail(QN_E_ARG, "%s is NULL", field);
    for (size_t i = 0; i < n; i++) {
        if (!texts[i] || !texts[i][0]) return qn_fail(QN_E_ARG, "%s: entry %zu is empty", field, i);
        const size_t length = strlen(texts[i]), valid = qn_utf8_valid_prefix(texts[i], length);
        if (valid != length)
            return qn_fail(QN_E_FORMAT, "%s: entry %zu is not valid UTF-8 at byte %zu", field, i, valid);
    }
    return QN_OK;
}

/* Ids are checked where the vocabulary is known. */
static qn_status check_words(const qn_generate_options *o)
{
    QN_TRY(check_texts("bad_words", o->bad_words, o->n_bad_words, QN_BAD_WORDS_MAX));
    QN_TRY(check_texts("dry_sequence_breakers", o->dry_sequence_breakers, o->n_dry_sequence_breakers,
                       QN_DRY_BREAKERS_MAX));
    if (o->n_bad_ids > QN_BAD_WORDS_MAX)
        return qn_fail(QN_E_ARG, "bad_ids: %zu entries, at most %d are allowed", o->n_bad_ids,
                       (int)QN_BAD_WORDS_MAX);
    if (o->n_bad_ids && !o->bad_ids) return qn_fail(QN_E_ARG, "bad_ids is NULL");
    for (size_t i = 0; i < o->n_bad_ids; i++)
        if (!o->bad_ids[i].ids) return qn_fail(QN_E_ARG, "bad_ids: entry %zu is NULL", i);
    if (o->n_allowed_ids && !o->allowed_ids) return qn_fail(QN_E_ARG, "allowed_ids is NULL");
    if (o->allowed_ids && !o->n_allowed_ids) return qn_fail(QN_E_ARG, "allowed_ids: no token is allowed");
    return QN_OK;
}

static qn_status check_steps(const qn_generate_options *o)
{
    QN_TRY(check_range("repeat_last_n", o->repeat_last_n, -1, INT32_MAX));
    QN_TRY(check_range("typical_p", o->typical_p, 0, 1));
    QN_TRY(check_range("top_n_sigma", o->top_n_sigma, -1, 1000));
    QN_TRY(check_range("xtc_probability", o->xtc_probability, 0, 1));
    QN_TRY(check_range("xtc_threshold", o->xtc_threshold, 0, 1));
    QN_TRY(check_range("dynatemp_range", o->dynatemp_range, 0, 1000));
    QN_TRY(check_range("dynatemp_exponent", o->dynatemp_exponent, 0, 100));
    QN_TRY(check_range("mirostat", o->mirostat, 0, 2));
    QN_TRY(check_range("mirostat_tau", o->mirostat_tau, 0, 100));
    QN_TRY(check_range("mirostat_eta", o->mirostat_eta, 0, 1));
    QN_TRY(check_range("dry_multiplier", o->dry_multiplier, 0, 100));
    if (o->dry_base != 0) QN_TRY(check_range("dry_base", o->dry_base, 1, 100));
    QN_TRY(check_range("dry_allowed_length", o->dry_allowed_length, 0, INT32_MAX));
    return check_range("dry_penalty_last_n", o->dry_penalty_last_n, -1, INT32_MAX);
}

qn_status qn_sampler_check(const qn_generate_options *o)
{
    QN_TRY(check_additions(o));
    QN_TRY(check_steps(o));
    QN_TRY(check_words(o));
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
        if (o->mirostat && used & 1u << QN_SAMPLER_MIROSTAT)
            return qn_fail(QN_E_ARG, "sampler_order: %s comes after mirostat, which must be the last step",
                           qn_sampler_step_name(o->sampler_order[i]));
        used |= 1u << step;
    }
    return QN_OK;
}
