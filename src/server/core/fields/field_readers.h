/* Readers of fields that are no plain values, for the tables of all dialects (QN_FIELD_OWN). Each is named after
 * the field that it reads, and its errors carry that name.
 *
 * A dialect that has the same value under another name writes its own reader. No sockets, no model. One thread at a
 * time. */
#ifndef QN_SERVER_CORE_FIELDS_FIELD_READERS_H
#define QN_SERVER_CORE_FIELDS_FIELD_READERS_H

#include "server/core/fields/request_fields.h"

/* Checks "tools" in OpenAI's form; returns 0, or the HTTP status of a refusal. */
int qn_api_request_check_tools(const json_t *tools, qn_api_error *error);

qn_field_fn qn_field_read_max_tokens, qn_field_read_max_tokens_of_text, qn_field_read_n_predict,
    qn_field_read_max_completion_tokens, qn_field_read_stop, qn_field_read_stop_ids, qn_field_read_logit_bias,
    qn_field_read_seed, qn_field_read_stream_options, qn_field_read_ping, qn_field_read_slot,
    qn_field_read_tools, qn_field_read_parallel_calls, qn_field_read_completion_logprobs,
    qn_field_read_template_kwargs, qn_field_read_effort, qn_field_read_reasoning_format,
    qn_field_read_truncation, qn_field_read_encoding;
/* Adds the bias of a token, -100 to 100 or -INFINITY. Returns 0, or the HTTP status of a refusal. */
int qn_field_add_bias(qn_api_request *r, int64_t id, double bias, int64_t vocab_size, qn_api_error *error);
/* "123" -> 123; -1 for anything else. */
int64_t qn_field_read_id(const char *text);
/* The same of the budget of reasoning, which several fields may set to one value. `param` is static storage. */
int qn_field_set_budget(qn_api_request *r, const char *param, const json_t *value, qn_api_error *error);
qn_field_fn qn_field_read_thinking_budget, qn_field_read_thinking_token_budget,
    qn_field_read_thinking_budget_tokens, qn_field_read_reasoning_budget, qn_field_read_budget_message,
    qn_field_read_reasoning;
/* Checks what tool_choice says together with the tools, and writes those that may be called. The same. */
int qn_api_request_finish_tools(qn_api_request *r, qn_api_error *error);
/* Sets the form of the answer: a JSON schema, or any JSON object. param, static storage, is the field that asks
 * for it. The same. */
int qn_form_set_schema(qn_api_request *r, const char *param, const json_t *schema, qn_api_error *error);
int qn_form_set_object(qn_api_request *r, const char *param, qn_api_error *error);
/* The same of the form of answers (form_readers.c). */
qn_field_fn qn_field_read_response_format, qn_field_read_json_schema, qn_field_read_regex, qn_field_read_ebnf,
    qn_field_read_grammar, qn_field_read_choice, qn_field_read_structured_outputs, qn_field_read_guided_json,
    qn_field_read_guided_regex, qn_field_read_guided_choice, qn_field_read_guided_grammar,
    qn_field_read_tool_choice;
/* The same of the sampler chain (field_readers_sampling.c). */
qn_field_fn qn_field_read_adaptive_target, qn_field_read_samplers, qn_field_read_breakers,
    qn_field_read_bad_words, qn_field_read_allowed_ids;

#endif
