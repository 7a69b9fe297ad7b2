#include "server/core/request.h"

#include <string.h>

#include "base/json/json_write.h"

void qn_api_request_start(qn_api_request *r, unsigned route)
{
    memset(r, 0, sizeof *r);
    r->route = route;
    r->n = 1;
    r->cache_prompt = 1;
    r->temperature = r->top_p = -1;
    r->repeat_penalty = 1;
    r->top_k = -2;
    r->continue_final = r->add_generation_prompt = -1;
    r->ping_ms = -1;
}

void qn_api_request_warn(qn_api_request *r, const char *param, const char *message)
{
    qn_json_open(&r->warnings, '{');
    qn_json_put_text(&r->warnings, "param", param);
    qn_json_put_text(&r->warnings, "message", message);
    qn_json_close(&r->warnings, '}');
}

void qn_api_request_set_options(qn_api_request *r, const qn_api_request_limits *limits)
{
    qn_generate_options *o = &r->o;
    o->max_tokens = r->max_tokens < 0 ? 0 : r->max_tokens; /* the library's "up to the context" */
    o->temperature = (float)(r->temperature >= 0                ? r->temperature
                             : limits->default_temperature >= 0 ? limits->default_temperature
                                                                : 1);
    o->top_p = (float)(r->top_p >= 0 ? r->top_p : limits->default_top_p >= 0 ? limits->default_top_p : 1);
    o->top_k = (int32_t)(r->top_k >= -1 ? r->top_k : limits->default_top_k);
    if (o->top_k < 0) o->top_k = 0;
    o->min_p = (float)r->min_p;
    /* For the library 0 is "off"; here a nucleus of nothing, or of what is as likely as the best, is the best
     * alone. */
    if (r->top_p == 0 || o->top_p <= 0 || r->min_p == 1) o->top_k = 1;
    if (o->top_p <= 0) o->top_p = 1;
    if (o->min_p >= 1) o->min_p = 0;
    o->repeat_penalty = (float)r->repeat_penalty;
    o->presence_penalty = (float)r->presence_penalty;
    o->frequency_penalty = (float)r->frequency_penalty;
    o->logit_bias = r->bias;
    o->n_logit_bias = r->n_bias;
    o->logprobs = r->logprobs;
    o->n_top_logprobs = (int32_t)r->top_logprobs;
    o->stop_strings = r->stop;
    o->n_stop_strings = r->n_stop;
    o->stop_ids = r->stop_ids;
    o->n_stop_ids = r->n_stop_ids;
    /* 0 asks the library for a fresh seed; of a client it is a seed like any other. */
    if (r->has_seed) o->seed = r->seed ? (uint64_t)r->seed : UINT64_C(0x9e3779b97f4a7c15);
}

void qn_api_request_free(qn_api_request *r)
{
    json_decref(r->chat);
    json_decref(r->body);
    r->chat = NULL;
    r->body = NULL;
    qn_buf_free(&r->warnings);
}
