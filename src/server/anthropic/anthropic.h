/* Anthropic's API: its routes, and its form of errors. */
#ifndef QN_SERVER_ANTHROPIC_ANTHROPIC_H
#define QN_SERVER_ANTHROPIC_ANTHROPIC_H

#include "server/http/exchange.h"

extern const qn_route_table qn_anthropic_routes;

/* {"type": "error", "error": {type, message, details: {error_code, param}}, "request_id"}, in a stream as an
 * event. */
void qn_anthropic_error_write(const qn_api_error *e, const char *request_id, int in_stream, qn_buf *out);

void qn_route_messages(qn_exchange *ex);
void qn_route_messages_count(qn_exchange *ex);

#endif
