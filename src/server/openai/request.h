/* Bodies of OpenAI's API. No sockets, no model: the fuzz target calls these functions as the routes do. One
 * thread at a time. */
#ifndef QN_SERVER_OPENAI_REQUEST_H
#define QN_SERVER_OPENAI_REQUEST_H

#include "server/core/request_fields.h"

/* Routes, as the table of fields has them. */
enum {
    QN_REQUEST_CHAT = 1,
    QN_REQUEST_COMPLETIONS = 2,
    QN_REQUEST_EMBEDDINGS = 4,
    QN_REQUEST_DECISIONS = 8,
};

/* Up to a row without a name. */
extern const qn_field qn_api_request_fields[];

/* Reads text[0..n). Returns 0, or the HTTP status of a refusal, which *error explains. qn_api_request_free is due
 * in either case. */
int qn_api_request_read(const char *text, size_t n, unsigned route, const qn_api_request_limits *limits,
                        qn_api_request *out, qn_api_error *error);
/* Makes r->chat of r->messages: content in one text, "developer" as "system", "function" and "function_call"
 * of old clients as "tool" and "tool_calls". Returns 0, or the HTTP status of a refusal. */
int qn_api_request_read_messages(qn_api_request *r, qn_api_error *error);
/* Checks "tools"; returns 0, or the HTTP status of a refusal. */
int qn_api_request_check_tools(const json_t *tools, qn_api_error *error);

/* Checks what tool_choice says together with the tools, and writes those that may be called. The same. */
int qn_api_request_finish_tools(qn_api_request *r, qn_api_error *error);

/* Readers of fields that are no plain values (request_values.c). */
qn_field_fn qn_field_read_max_tokens, qn_field_read_max_completion_tokens, qn_field_read_stop,
    qn_field_read_stop_ids, qn_field_read_logit_bias, qn_field_read_seed, qn_field_read_stream_options,
    qn_field_read_ping, qn_field_read_tools, qn_field_read_parallel_calls, qn_field_read_completion_logprobs,
    qn_field_read_template_kwargs, qn_field_read_effort, qn_field_read_reasoning_format,
    qn_field_read_truncation, qn_field_read_encoding;
/* The same of the form of answers (request_form.c). */
qn_field_fn qn_field_read_response_format, qn_field_read_json_schema, qn_field_read_regex, qn_field_read_ebnf,
    qn_field_read_grammar, qn_field_read_choice, qn_field_read_structured_outputs, qn_field_read_guided_json,
    qn_field_read_guided_regex, qn_field_read_guided_choice, qn_field_read_guided_grammar,
    qn_field_read_tool_choice;
/* The same of the sampler chain (request_sampling.c). */
qn_field_fn qn_field_read_samplers, qn_field_read_breakers, qn_field_read_bad_words,
    qn_field_read_allowed_ids;

#endif
