/* Bodies of OpenAI's API. No sockets, no model: the fuzz target calls these functions as the routes do. One
 * thread at a time. */
#ifndef QN_SERVER_OPENAI_REQUEST_H
#define QN_SERVER_OPENAI_REQUEST_H

#include "server/core/fields/request_fields.h"

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

#endif
