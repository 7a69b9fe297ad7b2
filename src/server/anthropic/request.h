/* Bodies of Anthropic's Messages. No sockets, no model: the fuzz target calls these functions as the routes
 * do. One thread at a time. */
#ifndef QN_SERVER_ANTHROPIC_REQUEST_H
#define QN_SERVER_ANTHROPIC_REQUEST_H

#include "server/core/fields/field_readers.h"

/* Routes, as the table of fields has them. */
enum {
    QN_ANTHROPIC_MESSAGES = 1,
    QN_ANTHROPIC_COUNT = 2,
};

/* Up to a row without a name. */
extern const qn_field qn_anthropic_fields[];

/* Reads text[0..n). Returns 0, or the HTTP status of a refusal, which *error explains. qn_api_request_free is
 * due in either case. */
int qn_anthropic_read(const char *text, size_t n, unsigned route, const qn_api_request_limits *limits,
                      qn_api_request *out, qn_api_error *error);
/* Makes r->chat of the system prompt and the messages: text blocks in one text, "thinking" as
 * "reasoning_content", "tool_use" as "tool_calls", each "tool_result" as a message of a tool. The same. */
int qn_anthropic_read_messages(qn_api_request *r, qn_api_error *error);

/* Readers of fields that are no plain values (request.c). */
qn_field_fn qn_anthropic_read_stop, qn_anthropic_read_tool_choice, qn_anthropic_read_thinking,
    qn_anthropic_read_output_config, qn_anthropic_read_thread;

#endif
