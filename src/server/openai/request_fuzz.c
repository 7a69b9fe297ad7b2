/* Any bytes as bodies: the first says for which route and model, the rest is the body. It is read, or refused
 * with a status of the client's fault and a sentence; what was read is within every cap; messages come out as
 * JSON. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json/json.h"
#include "base/utf8.h"
#include "server/openai/decisions.h"
#include "server/openai/openai.h"
#include "server/openai/request.h"

static void check(int ok)
{
    if (!ok) abort();
}

static void check_error(int status, const qn_api_error *error)
{
    qn_buf text = {0};
    json_t *value = NULL;
    check(status >= 400 && status < 500 && error->status == status && error->message[0]);
    check(qn_utf8_valid_prefix(error->message, strlen(error->message)) == strlen(error->message));
    check(qn_utf8_valid_prefix(error->param, strlen(error->param)) == strlen(error->param));
    qn_openai_error_write(error, "req_0", 0, &text);
    check(text.status == QN_OK && qn_json_parse("error", text.data, text.length, &value) == QN_OK);
    json_decref(value);
    qn_buf_free(&text);
}

static void check_options(const qn_api_request *r, const qn_api_request_limits *limits)
{
    const qn_generate_options *o = &r->o;
    check(r->n >= 1 && r->n <= QN_REQUEST_N_MAX && o->max_tokens >= 0);
    check(o->temperature >= 0 && isfinite(o->temperature) && o->top_p > 0 && o->top_p <= 1);
    check(o->min_p >= 0 && o->min_p < 1 && o->top_k >= 0 && o->repeat_penalty > 0);
    check(fabsf(o->presence_penalty) <= 2 && fabsf(o->frequency_penalty) <= 2);
    check(o->n_top_logprobs >= 0 && o->n_top_logprobs <= QN_TOP_LOGPROBS_MAX);
    check(o->n_stop_strings <= QN_REQUEST_STOP_MAX && o->n_stop_ids <= QN_REQUEST_STOP_IDS_MAX);
    for (size_t i = 0; i < o->n_stop_strings; i++) check(o->stop_strings[i][0]);
    for (size_t i = 0; i < o->n_stop_ids; i++)
        check(o->stop_ids[i] >= 0 && o->stop_ids[i] < limits->vocab_size);
    for (size_t i = 0; i < o->n_logit_bias; i++)
        check(o->logit_bias[i].id >= 0 && o->logit_bias[i].id < limits->vocab_size &&
              fabsf(o->logit_bias[i].bias) <= 100);
    for (size_t i = 0; i < o->n_bad_ids; i++)
        for (int64_t k = 0; k < o->bad_ids[i].n_ids; k++)
            check(o->bad_ids[i].ids[k] >= 0 && o->bad_ids[i].ids[k] < limits->vocab_size);
    for (size_t i = 0; i < o->n_allowed_ids; i++)
        check(o->allowed_ids[i] >= 0 && o->allowed_ids[i] < limits->vocab_size);
    for (size_t i = 0; i < o->n_bad_words; i++) check(o->bad_words[i][0]);
    for (size_t i = 0; i < o->n_dry_sequence_breakers; i++) check(o->dry_sequence_breakers[i][0]);
    check(o->n_sampler_order <= QN_SAMPLER_COUNT && o->mirostat >= 0 && o->mirostat <= 2);
    check(!r->has_seed || o->seed);
}

static void check_messages(qn_api_request *r)
{
    qn_api_error error;
    int status = qn_api_request_read_messages(r, &error);
    if (status) {
        check_error(status, &error);
    } else {
        char *text = json_dumps(r->chat, JSON_COMPACT);
        json_t *value = NULL;
        check(text && qn_json_parse("messages", text, strlen(text), &value) == QN_OK);
        check(json_array_size(value) == json_array_size(r->messages));
        json_decref(value);
        free(text); /* foreign: jansson's */
    }
}

static void check_prompts(const json_t *value, const qn_api_request_limits *limits)
{
    qn_api_request_prompt prompt = {0};
    qn_api_error error;
    size_t n = qn_api_request_count_prompts(value);
    for (size_t i = 0; i < n && i < 100; i++) {
        int status = qn_api_request_get_prompt(value, i, "prompt", limits->vocab_size, &prompt, &error);
        if (status)
            check_error(status, &error);
        else
            check(prompt.prompt.text || (prompt.prompt.rows && prompt.row.n_ids > 0));
    }
    qn_buf_free(&prompt.ids);
}

/* What is to be compiled is text, and JSON where it stands for JSON. */
static void check_form(const qn_api_request *r)
{
    const qn_buf *text = &r->form.text;
    json_t *value = NULL;
    check(!r->form.param || r->form.kind <= QN_CONSTRAIN_TOOLS);
    check(!text->length || qn_utf8_valid_prefix(text->data, text->length) == text->length);
    if (r->form.param && r->form.kind == QN_CONSTRAIN_CHOICES)
        check(qn_json_parse("choices", text->data, text->length, &value) == QN_OK &&
              json_array_size(value) > 0);
    json_decref(value);
    check(!r->tools == !r->callable.length);
    check(r->tool_calls == QN_TOOL_CALLS_AUTO || r->tools);
    if (!r->tools) return;
    check(qn_json_parse("tools", r->callable.data, r->callable.length, &value) == QN_OK);
    check(json_array_size(value) > 0 && json_array_size(value) <= QN_REQUEST_TOOLS_MAX);
    json_decref(value);
}

static void check_decisions(qn_api_request *r)
{
    qn_api_error error;
    int status = qn_decision_read_input(r, &error);
    if (status) {
        check_error(status, &error);
        return;
    }
    for (size_t i = 0; i < json_array_size(r->questions) && i < 20; i++) {
        qn_decision_question q = {0};
        status = qn_decision_read_question(r->questions, i, &q, &error);
        if (status)
            check_error(status, &error);
        else
            check(q.n >= 2 && q.n <= QN_DECISION_CHOICES_MAX && q.text.length);
        qn_buf_free(&q.text);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const unsigned routes[] = {QN_REQUEST_CHAT, QN_REQUEST_COMPLETIONS, QN_REQUEST_EMBEDDINGS,
                                      QN_REQUEST_DECISIONS};
    static qn_api_request r;
    qn_api_error error;
    unsigned first = size ? data[0] : 0;
    qn_api_request_limits limits = {.vocab_size = 1 + first * 100,
                                    .takes_pictures = (first & 128) != 0,
                                    .default_temperature = first & 8 ? 0.5f : -1,
                                    .default_top_p = first & 16 ? 0.5f : -1,
                                    .default_top_k = first & 32 ? 5 : -1,
                                    .allow_template_kwargs = (first & 64) != 0};
    const char *body = size ? (const char *)data + 1 : "";
    int status = qn_api_request_read(body, size ? size - 1 : 0, routes[first % 4], &limits, &r, &error);
    if (status) {
        check_error(status, &error);
    } else {
        check_options(&r, &limits);
        if (r.messages) check_messages(&r);
        if (r.prompt) check_prompts(r.prompt, &limits);
        check_form(&r);
        if (r.questions)
            check_decisions(&r);
        else if (r.input)
            check_prompts(r.input, &limits);
    }
    qn_api_request_free(&r);
    return 0;
}
