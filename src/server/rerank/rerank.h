/* Rerankers over HTTP: documents in the order of their relevance to a query, in the forms of Jina, Cohere, vLLM and
 * llama.cpp (`documents`) or of Text Embeddings Inference (`texts`), and vLLM's scores of pairs. Errors have OpenAI's
 * form. */
#ifndef QN_SERVER_RERANK_RERANK_H
#define QN_SERVER_RERANK_RERANK_H

#include "server/http/exchange.h"

extern const qn_route_table qn_rerank_routes;

void qn_route_rerank(qn_exchange *ex);
void qn_route_score(qn_exchange *ex);

#endif
