/* Bodies of Ollama's API. No sockets, no model: the fuzz target calls these functions as the routes do. One thread
 * at a time. */
#ifndef QN_SERVER_OLLAMA_REQUEST_H
#define QN_SERVER_OLLAMA_REQUEST_H

#include "server/core/fields/field_readers.h"
#include "server/http/http_server.h"

/* Routes, as the tables of fields have them. */
enum {
    QN_OLLAMA_CHAT = 1,
    QN_OLLAMA_GENERATE = 2,
    QN_OLLAMA_EMBED = 4,
    QN_OLLAMA_EMBEDDINGS = 8,
    QN_OLLAMA_SHOW = 16,
};

/* Of a body, and of "options" within it; up to a row without a name. */
extern const qn_field qn_ollama_fields[], qn_ollama_options[];

/* Reads text[0..n). Returns 0, or the HTTP status of a refusal, which *error explains. qn_api_request_free is due
 * in either case. */
int qn_ollama_read(const char *text, size_t n, unsigned route, const qn_api_request_limits *limits,
                   qn_api_request *out, qn_api_error *error);
/* Makes r->chat of "messages", or of "system" and "prompt". The same. */
int qn_ollama_read_messages(qn_api_request *r, qn_api_error *error);
/* Cuts ":latest" off a name: the tag of what has no other. */
size_t qn_ollama_name_length(const char *name, size_t n);

/* Readers of rows (request.c, request_options.c). */
qn_field_fn qn_ollama_read_model, qn_ollama_read_format, qn_ollama_read_options, qn_ollama_read_images,
    qn_ollama_read_keep_alive, qn_ollama_read_num_predict, qn_ollama_read_num_ctx, qn_ollama_read_seed;

#endif
