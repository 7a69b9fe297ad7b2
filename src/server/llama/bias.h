/* "logit_bias" of llama.cpp's API: biases of token ids and of texts, which become those of their tokens. */
#ifndef QN_SERVER_LLAMA_BIAS_H
#define QN_SERVER_LLAMA_BIAS_H

#include "server/core/request.h"
#include "server/http/http_server.h"

/* Takes what the request has as logit_bias into its options. false as a bias: the token is never drawn. Lists the ids
 * that ignore_eos is about. Returns 0, or the HTTP status of a refusal. On a worker. */
int qn_llama_set_bias(const qn_server *s, qn_api_request *r, qn_api_error *error);

#endif
