/* Bodies of llama.cpp's API. No sockets; the fuzz target calls these functions as the routes do. One thread at a
 * time. */
#ifndef QN_SERVER_LLAMA_REQUEST_H
#define QN_SERVER_LLAMA_REQUEST_H

#include "server/core/fields/field_readers.h"
#include "server/http/http_server.h"

/* Routes, as the table of fields has them. */
enum {
    QN_LLAMA_COMPLETION = 1,
    QN_LLAMA_INFILL = 2,
    QN_LLAMA_TOKENIZE = 4,
    QN_LLAMA_DETOKENIZE = 8,
    QN_LLAMA_EMBEDDING = 16,
    QN_LLAMA_SLOT = 32,
};

enum { QN_LLAMA_FIELDS_MAX = 64 };

/* Up to a row without a name. */
extern const qn_field qn_llama_fields[];

/* Reads text[0..n). Returns 0, or the HTTP status of a refusal, which *error explains. qn_api_request_free is due
 * in either case. */
int qn_llama_read(
    const char *text, size_t n, unsigned route, const qn_api_request_limits *limits, qn_api_request *out,
    qn_api_error *
        error); /* A prompt in any of llama.cpp's forms, or an array of them, as the rest of the server takes it (prompt_forms.h). *out
 * is owned by the caller. The same. */
int qn_llama_make_prompt(const qn_model *model, const json_t *prompt, const char *param, json_t **out,
                         qn_api_error *error);

/* Readers of rows. */
qn_field_fn qn_llama_read_n_predict, qn_llama_read_max_tokens, qn_llama_read_n_probs, qn_llama_read_seed,
    qn_llama_read_fields, qn_llama_read_normalize;

#endif
