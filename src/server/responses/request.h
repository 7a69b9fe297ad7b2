/* Bodies of OpenAI's Responses. No sockets, no model: the fuzz target calls these functions as the routes do.
 * One thread at a time. */
#ifndef QN_SERVER_RESPONSES_REQUEST_H
#define QN_SERVER_RESPONSES_REQUEST_H

#include "server/core/fields/field_readers.h"

/* Routes, as the table of fields has them. */
enum {
    QN_RESPONSES_CREATE = 1,
    QN_RESPONSES_COUNT = 2,
};

/* Up to a row without a name. */
extern const qn_field qn_responses_fields[];

/* Reads text[0..n). Returns 0, or the HTTP status of a refusal, which *error explains. qn_api_request_free is
 * due in either case. */
int qn_responses_read(const char *text, size_t n, unsigned route, const qn_api_request_limits *limits,
                      qn_api_request *out, qn_api_error *error);
/* Makes r->chat of the instructions and the input: its items of an answer (reasoning, text, calls) become one
 * message of the assistant, each output of a call a message of a tool. The same. */
int qn_responses_read_items(qn_api_request *r, qn_api_error *error);

/* Readers of fields that are no plain values (request.c). */
qn_field_fn qn_responses_read_tool_choice, qn_responses_read_text, qn_responses_read_reasoning,
    qn_responses_read_include, qn_responses_read_metadata, qn_responses_read_store;

#endif
