#include "server/core/api/about.h"
#include "server/openai/openai.h"
#include "server/rerank/request.h"
#include "server/rerank/rerank.h"

static const qn_route_about about_rerank = {.summary = "Orders documents by how relevant they are to a query",
                                            .fields = qn_rerank_fields,
                                            .route = QN_RERANK_ROUTE,
                                            .required = "query"};
static const qn_route_about about_score = {
    .summary = "Tells how relevant texts are to others", .fields = qn_rerank_fields, .route = QN_SCORE_ROUTE};

static const qn_route routes[] = {
    {"POST", "/v1/rerank", qn_route_rerank, 0, 1, &about_rerank, NULL},
    {"POST", "/v2/rerank", qn_route_rerank, 0, 1, &about_rerank, NULL},
    {"POST", "/v1/reranking", qn_route_rerank, 0, 1, &about_rerank, NULL},
    {"POST", "/v1/score", qn_route_score, 0, 1, &about_score, NULL},
};

const qn_route_table qn_rerank_routes = {
    .routes = routes, .n_routes = sizeof routes / sizeof *routes, .write_error = qn_openai_error_write};
