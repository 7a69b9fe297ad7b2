#include "server/core/request.h"

#include <string.h>

#include "base/json/json_write.h"
#include "server/core/content.h"

void qn_api_request_start(qn_api_request *r, unsigned route)
{
    memset(r, 0, sizeof *r);
    r->route = route;
    r->n = 1;
    r->cache_prompt = 1;
    r->temperature = r->top_p = -1;
    r->repeat_penalty = r->min_p = r->typical_p = -1;
    r->top_k = -2;
    r->continue_final = r->add_generation_prompt = r->thinking = -1;
    r->ping_ms = r->slot = -1;
    r->store = r->key = r->returns_texts = -1;
    r->adapter_scale = 1;
    r->prompt_logprobs = r->reasoning_budget = -1;
    r->repeat_last_n = r->dry_penalty_last_n = -1;
}

int qn_api_request_hold(qn_api_request *r, size_t size_bytes, qn_api_error *error)
{
    if (!r->held) return 0;
    const qn_status status = qn_held_take(r->held, size_bytes, r->held_bytes + size_bytes, 0);
    if (status != QN_OK && !qn_held_fits(r->held, size_bytes))
        return qn_api_fail(
            error, 413, "body_too_large", NULL,
            "the request is larger than the server's memory allows: it would take about %zu bytes",
            size_bytes);
    if (status != QN_OK) return qn_api_fail_status(error, status);
    r->held_bytes += size_bytes;
    return 0;
}

static size_t text_bytes(const json_t *value)
{
    const char *key;
    json_t *each;
    size_t n = json_string_length(value);
    for (size_t i = 0; i < json_array_size(value); i++) n += text_bytes(json_array_get(value, i));
    json_object_foreach((json_t *)value, key, each) n += text_bytes(each);
    return n;
}

int qn_api_request_hold_texts(qn_api_request *r, const json_t *value, qn_api_error *error)
{
    /* Measured with BPE of bytes and of characters, Unigram and WordPiece: 6 to 40 bytes for each byte of text. */
    enum { EACH = 44, LONG = 1 << 18 };
    const size_t n = text_bytes(value);
    if (n < LONG) return 0;
    const int refused = qn_api_request_hold(r, n * EACH, error);
    if (!refused && r->held) r->held_for_texts += n * EACH;
    return refused;
}

void qn_api_request_let_texts(qn_api_request *r)
{
    if (r->held_for_texts) qn_held_give(r->held, r->held_for_texts);
    r->held_bytes -= r->held_for_texts;
    r->held_for_texts = 0;
}

void qn_api_request_warn(qn_api_request *r, const char *param, const char *message)
{
    qn_json_open(&r->warnings, '{');
    qn_json_put_text(&r->warnings, "param", param);
    qn_json_put_text(&r->warnings, "message", message);
    qn_json_close(&r->warnings, '}');
}

/* Windows of 0 turn off what looks at them, as llama.cpp has it; for the library 0 is all. */
static void set_steps(qn_api_request *r)
{
    qn_generate_options *o = &r->o;
    o->top_n_sigma = (float)r->top_n_sigma;
    o->xtc_probability = (float)r->xtc_probability;
    o->xtc_threshold = (float)r->xtc_threshold;
    o->dynatemp_range = (float)r->dynatemp_range;
    o->dynatemp_exponent = (float)r->dynatemp_exponent;
    o->mirostat = (int32_t)r->mirostat;
    o->mirostat_tau = (float)r->mirostat_tau;
    o->mirostat_eta = (float)r->mirostat_eta;
    o->dry_multiplier = r->dry_penalty_last_n ? (float)r->dry_multiplier : 0;
    o->dry_base = (float)r->dry_base;
    o->dry_allowed_length = (int32_t)r->dry_allowed_length;
    o->dry_penalty_last_n = (int32_t)r->dry_penalty_last_n;
    o->repeat_last_n = (int32_t)r->repeat_last_n;
    if (!r->repeat_last_n) {
        o->repeat_penalty = 1;
        o->presence_penalty = o->frequency_penalty = 0;
    }
    if (!r->has_steps) return;
    int is_listed = 0;
    for (size_t i = 0; i < r->n_steps; i++) is_listed |= r->steps[i] == QN_SAMPLER_MIROSTAT;
    if (r->mirostat && !is_listed) r->steps[r->n_steps++] = QN_SAMPLER_MIROSTAT;
    o->sampler_order = r->steps;
    o->n_sampler_order = r->n_steps;
}

static void set_words(qn_api_request *r)
{
    qn_generate_options *o = &r->o;
    const int32_t *ids = (const int32_t *)(const void *)r->ids.data;
    for (size_t i = 0; i < r->n_bad_ids; ids += r->bad_ids[i++].n_ids) r->bad_ids[i].ids = ids;
    o->bad_words = r->bad_words;
    o->n_bad_words = r->n_bad_words;
    o->bad_ids = r->bad_ids;
    o->n_bad_ids = r->n_bad_ids;
    if (r->has_breakers) o->dry_sequence_breakers = r->breakers;
    o->n_dry_sequence_breakers = r->n_breakers;
    if (r->allowed_ids.length) o->allowed_ids = (const int32_t *)(const void *)r->allowed_ids.data;
    o->n_allowed_ids = r->allowed_ids.length / sizeof *o->allowed_ids;
}

void qn_api_request_set_options(qn_api_request *r, const qn_api_request_limits *limits)
{
    qn_generate_options *o = &r->o;
    r->takes_pictures = limits->takes_pictures;
    if (!r->max_tokens && !r->only_prompt) r->max_tokens = limits->default_max_tokens;
    o->max_tokens = r->max_tokens < 0 ? 0 : r->max_tokens; /* the library's "up to the context" */
    o->temperature = (float)(r->temperature >= 0                ? r->temperature
                             : limits->default_temperature >= 0 ? limits->default_temperature
                                                                : 1);
    /* Mirostat chooses how much it cuts: the model's defaults do not cut before it. */
    const int has_defaults = !r->mirostat;
    o->top_p = (float)(r->top_p >= 0                                ? r->top_p
                       : has_defaults && limits->default_top_p >= 0 ? limits->default_top_p
                                                                    : 1);
    o->top_k = (int32_t)(r->top_k >= -1 ? r->top_k : has_defaults ? limits->default_top_k : 0);
    if (o->top_k < 0) o->top_k = 0;
    o->min_p = (float)(r->min_p >= 0 ? r->min_p : has_defaults ? limits->default_min_p : 0);
    o->typical_p = (float)(r->typical_p >= 0 ? r->typical_p : has_defaults ? limits->default_typical_p : 0);
    /* For the library 0 is "off"; here a nucleus of nothing, or of what is as likely as the best, is the best
     * alone. */
    if (r->top_p == 0 || o->top_p <= 0 || o->min_p >= 1) o->top_k = 1;
    if (o->top_p <= 0) o->top_p = 1;
    if (o->min_p >= 1) o->min_p = 0;
    o->repeat_penalty = (float)(r->repeat_penalty > 0                ? r->repeat_penalty
                                : limits->default_repeat_penalty > 0 ? limits->default_repeat_penalty
                                                                     : 1);
    o->presence_penalty = (float)r->presence_penalty;
    o->frequency_penalty = (float)r->frequency_penalty;
    set_steps(r);
    set_words(r);
    if (!o->n_bad_ids) {
        o->bad_ids = limits->default_bad_ids;
        o->n_bad_ids = limits->n_default_bad_ids;
    }
    o->logit_bias = r->bias;
    o->n_logit_bias = r->n_bias;
    o->logprobs = r->logprobs;
    o->n_top_logprobs = (int32_t)r->top_logprobs;
    if (r->reasoning_budget >= 0 && limits->bounds_reasoning) {
        o->max_reasoning_tokens =
            r->reasoning_budget ? r->reasoning_budget : -1; /* 0 is the library's "no bound" */
        o->reasoning_message = r->reasoning_message;
    } else if (r->reasoning_budget >= 0) {
        qn_api_request_warn(
            r, r->budget_param,
            "has no effect: the model's chat template has no reasoning in a form that is known");
    }
    /* An echo with log-probabilities has those of the prompt. */
    const int is_echo = r->echo && r->logprobs;
    o->prompt_logprobs = is_echo || r->prompt_logprobs >= 0;
    o->n_prompt_top_logprobs = is_echo ? (int32_t)r->top_logprobs : 0;
    if (r->prompt_logprobs > o->n_prompt_top_logprobs) o->n_prompt_top_logprobs = (int32_t)r->prompt_logprobs;
    o->post_sampling = r->post_sampling && r->logprobs;
    o->stop_strings = r->stop;
    o->n_stop_strings = r->n_stop;
    o->stop_ids = r->stop_ids;
    o->n_stop_ids = r->n_stop_ids;
    /* 0 asks the library for a fresh seed; of a client it is a seed like any other. */
    if (r->has_seed)
        o->seed = r->seed ? (uint64_t)r->seed : UINT64_C(0x9e3779b97f4a7c15);
    else
        o->seed = limits->default_seed;
}

void qn_api_request_free(qn_api_request *r)
{
    qn_content_free_pictures(r);
    json_decref(r->chat);
    json_decref(r->own_tools);
    json_decref(r->made);
    json_decref(r->history);
    json_decref(r->body);
    r->chat = r->own_tools = NULL;
    r->body = r->made = r->history = NULL;
    for (int i = 0; i < 2; i++) qn_constraint_close(r->constraints[i]);
    r->constraints[0] = r->constraints[1] = NULL;
    qn_buf_free(&r->form.text);
    qn_buf_free(&r->callable);
    qn_buf_free(&r->warnings);
    qn_buf_free(&r->ids);
    qn_buf_free(&r->allowed_ids);
    qn_buf_free(&r->end_ids);
    if (r->held_bytes) qn_held_give(r->held, r->held_bytes);
    r->held_bytes = 0;
}
