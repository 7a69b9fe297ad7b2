/* Ollama's API: its routes, and its form of errors. Streams are lines of JSON. */
#ifndef QN_SERVER_OLLAMA_OLLAMA_H
#define QN_SERVER_OLLAMA_OLLAMA_H

#include "server/http/exchange.h"

extern const qn_route_table qn_ollama_routes;

/* The version of the API that is spoken here: clients ask which one there is. */
#define QN_OLLAMA_VERSION "0.13.0"
#define QN_STREAM_LINES "application/x-ndjson"

/* {"error": the sentence, "code":, "param":, "request_id":}, in a stream as a line. */
void qn_ollama_error_write(const qn_api_error *e, const char *request_id, int in_stream, qn_buf *out);

void qn_route_ollama_root(qn_exchange *ex);
void qn_route_ollama_version(qn_exchange *ex);
void qn_route_ollama_chat(qn_exchange *ex);
void qn_route_ollama_generate(qn_exchange *ex);
void qn_route_ollama_embed(qn_exchange *ex);
void qn_route_ollama_embeddings(qn_exchange *ex);
void qn_route_ollama_tags(qn_exchange *ex);
void qn_route_ollama_ps(qn_exchange *ex);
void qn_route_ollama_show(qn_exchange *ex);
/* What changes the models that a server has: 501. */
void qn_route_ollama_refused(qn_exchange *ex);

#endif
