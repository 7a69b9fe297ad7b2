/* Bodies of /v1/rerank and /v1/score. No sockets, no model; the fuzz target calls these functions as the routes do.
 * One thread at a time. */
#ifndef QN_SERVER_RERANK_REQUEST_H
#define QN_SERVER_RERANK_REQUEST_H

#include <quern/rerank.h>

#include "server/core/fields/request_fields.h"

/* Routes, as the table of fields has them. */
enum { QN_RERANK_ROUTE = 1, QN_SCORE_ROUTE = 2 };

enum { QN_RERANK_PAIRS_MAX = 2048 };

/* Up to a row without a name. */
extern const qn_field qn_rerank_fields[];

/* Reads text[0..n). Returns 0, or the HTTP status of a refusal, which *error explains. qn_api_request_free is due
 * in either case. */
int qn_rerank_read(const char *text, size_t n, unsigned route, const qn_api_request_limits *limits,
                   qn_api_request *out, qn_api_error *error);
/* The pairs that the request is about; texts are borrowed from it. *pairs is to be freed (qn_free). The same. */
int qn_rerank_make_pairs(const qn_api_request *r, qn_pair **pairs, size_t *n, qn_api_error *error);

#endif
