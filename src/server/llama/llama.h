/* llama.cpp's own API, beside OpenAI's: its routes, and its form of errors. */
#ifndef QN_SERVER_LLAMA_LLAMA_H
#define QN_SERVER_LLAMA_LLAMA_H

#include "server/core/dialect.h"
#include "server/http/exchange.h"

extern const qn_route_table qn_llama_routes;
/* Of /completion: a path that OpenAI's API has too chooses between them by the body. */
extern const qn_dialect qn_llama_completion;
/* Is a body in llama.cpp's form, by a field that OpenAI's API does not have? */
int qn_llama_is_own(const char *text, size_t n);

/* {"error": {code, message, type, param, request_id}}, in a stream as an event. */
void qn_llama_error_write(const qn_api_error *e, const char *request_id, int in_stream, qn_buf *out);

/* Answers with the JSON in b, which is freed, or with b's failure. */
void qn_llama_reply(qn_exchange *ex, qn_buf *b);
/* The members of a slot that do not depend on requests. */
void qn_llama_put_slot(const qn_server *s, int64_t id, int is_processing, qn_buf *out);

void qn_route_llama_completion(qn_exchange *ex);
void qn_route_llama_infill(qn_exchange *ex);
void qn_route_llama_tokenize(qn_exchange *ex);
void qn_route_llama_detokenize(qn_exchange *ex);
void qn_route_llama_apply_template(qn_exchange *ex);
void qn_route_llama_embedding(qn_exchange *ex);
void qn_route_llama_props(qn_exchange *ex);
void qn_route_llama_slots(qn_exchange *ex);
void qn_route_llama_slot_action(qn_exchange *ex);
void qn_route_llama_version(qn_exchange *ex);
void qn_route_llama_adapters(qn_exchange *ex);
/* What changes a running server: 501. */
void qn_route_llama_refused(qn_exchange *ex);

#endif
