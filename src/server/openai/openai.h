/* OpenAI's API: its routes, and its form of errors. */
#ifndef QN_SERVER_OPENAI_OPENAI_H
#define QN_SERVER_OPENAI_OPENAI_H

#include "server/core/dialect.h"
#include "server/http/exchange.h"

extern const qn_route_table qn_openai_routes;
/* Of /v1/completions. */
extern const qn_dialect qn_openai_completions;

/* {"error": {message, type, param, code, request_id}}, in a stream as an event. */
void qn_openai_error_write(const qn_api_error *e, const char *request_id, int in_stream, qn_buf *out);

void qn_route_models(qn_exchange *ex);
void qn_route_chat(qn_exchange *ex);
void qn_route_chat_count(qn_exchange *ex);
void qn_route_completions(qn_exchange *ex);
void qn_route_embeddings(qn_exchange *ex);
void qn_route_decisions(qn_exchange *ex);

#endif
