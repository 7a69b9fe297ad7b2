#include "server/llama/settings.h"

#include <math.h>
#include <string.h>

#include "base/json/json_write.h"

static void put_texts(qn_buf *out, const char *key, const char *const *texts, size_t n)
{
    qn_json_key(out, key);
    qn_json_open(out, '[');
    for (size_t i = 0; i < n; i++) qn_json_text(out, texts[i], strlen(texts[i]));
    qn_json_close(out, ']');
}

/* The steps in their order, under the names that llama.cpp has for them. */
static void put_samplers(qn_buf *out, const qn_generate_options *o)
{
    const size_t n = o->sampler_order ? o->n_sampler_order : (size_t)QN_SAMPLER_COUNT;
    static const char *const names[] = {
#define QN_STEP_NAME(name, text) [QN_SAMPLER_##name] = text,
        QN_SAMPLER_LIST(QN_STEP_NAME)
#undef QN_STEP_NAME
    };
    qn_json_key(out, "samplers");
    qn_json_open(out, '[');
    for (size_t i = 0; i < n; i++) {
        const qn_sampler_step step = o->sampler_order ? o->sampler_order[i] : (qn_sampler_step)i;
        const char *name = step == QN_SAMPLER_REPEAT_PENALTY ? "penalties"
                           : step == QN_SAMPLER_TYPICAL_P    ? "typ_p"
                                                             : names[step];
        if (step != QN_SAMPLER_MIROSTAT) qn_json_text(out, name, strlen(name));
    }
    qn_json_close(out, ']');
}

static void put_bias(int32_t id, double bias, qn_buf *out)
{
    qn_json_open(out, '{');
    qn_json_put_real(out, "bias", bias); /* -inf: null */
    qn_json_put_int(out, "token", id);
    qn_json_close(out, '}');
}

/* With ignore_eos the tokens that end an answer of this model are listed too, as tokens that never come. */
static void put_biases(const qn_api_request *r, qn_buf *out)
{
    const int32_t *ends = (const int32_t *)(const void *)r->end_ids.data;
    qn_json_key(out, "logit_bias");
    qn_json_open(out, '[');
    for (size_t i = 0; i < r->o.n_logit_bias; i++)
        put_bias(r->o.logit_bias[i].id, (double)r->o.logit_bias[i].bias, out);
    for (size_t i = 0; i < r->end_ids.length / sizeof *ends; i++) put_bias(ends[i], (double)-INFINITY, out);
    qn_json_close(out, ']');
}

void qn_llama_write_settings(const qn_api_request *r, uint64_t seed, qn_buf *out)
{
    const qn_generate_options *o = &r->o;
    const int64_t most = r->only_prompt ? 0 : o->max_tokens ? o->max_tokens : -1;
    qn_json_open(out, '{');
    qn_json_put_int(out, "n_predict", most);
    qn_json_put_int(out, "max_tokens", most);
    qn_json_key(out, "seed");
    qn_json_uint(out, seed);
    qn_json_put_real(out, "temperature", (double)o->temperature);
    qn_json_put_real(out, "dynatemp_range", (double)o->dynatemp_range);
    qn_json_put_real(out, "dynatemp_exponent", o->dynatemp_exponent > 0 ? (double)o->dynatemp_exponent : 1);
    qn_json_put_int(out, "top_k", o->top_k);
    qn_json_put_real(out, "top_p", (double)o->top_p);
    qn_json_put_real(out, "min_p", (double)o->min_p);
    qn_json_put_real(out, "top_n_sigma", o->top_n_sigma > 0 ? (double)o->top_n_sigma : -1);
    qn_json_put_real(out, "xtc_probability", (double)o->xtc_probability);
    qn_json_put_real(out, "xtc_threshold", o->xtc_threshold > 0 ? (double)o->xtc_threshold : 0.1);
    qn_json_put_real(out, "typical_p", o->typical_p > 0 ? (double)o->typical_p : 1);
    qn_json_put_int(out, "repeat_last_n", o->repeat_last_n);
    qn_json_put_real(out, "repeat_penalty", (double)o->repeat_penalty);
    qn_json_put_real(out, "presence_penalty", (double)o->presence_penalty);
    qn_json_put_real(out, "frequency_penalty", (double)o->frequency_penalty);
    qn_json_put_real(out, "dry_multiplier", (double)o->dry_multiplier);
    qn_json_put_real(out, "dry_base", o->dry_base > 0 ? (double)o->dry_base : 1.75);
    qn_json_put_int(out, "dry_allowed_length", o->dry_allowed_length ? o->dry_allowed_length : 2);
    qn_json_put_int(out, "dry_penalty_last_n", o->dry_penalty_last_n);
    if (o->dry_sequence_breakers)
        put_texts(out, "dry_sequence_breakers", o->dry_sequence_breakers, o->n_dry_sequence_breakers);
    qn_json_put_int(out, "mirostat", o->mirostat);
    qn_json_put_real(out, "mirostat_tau", o->mirostat_tau > 0 ? (double)o->mirostat_tau : 5);
    qn_json_put_real(out, "mirostat_eta", o->mirostat_eta > 0 ? (double)o->mirostat_eta : 0.1);
    /* There is no adaptive sampler: a negative target is off. */
    qn_json_put_int(out, "adaptive_target", -1);
    qn_json_put_real(out, "adaptive_decay", 0.9);
    put_biases(r, out);
    put_texts(out, "stop", o->stop_strings, o->n_stop_strings);
    put_samplers(out, o);
    qn_json_put_int(out, "n_keep", 0);
    qn_json_put_int(out, "n_discard", 0);
    qn_json_put_int(out, "min_keep", 0);
    qn_json_put_bool(out, "backend_sampling", 0);
    qn_json_put_bool(out, "ignore_eos", o->ignore_eos);
    qn_json_put_bool(out, "stream", r->stream);
    qn_json_put_int(out, "n_probs", r->top_logprobs);
    qn_json_put_bool(out, "post_sampling_probs", r->post_sampling);
    qn_json_put_bool(out, "timings_per_token", r->wants_timings);
    put_texts(out, "preserved_tokens", NULL, 0);
    put_texts(out, "lora", NULL, 0); /* an adapter is a part of the model's name */
    qn_json_close(out, '}');
}
