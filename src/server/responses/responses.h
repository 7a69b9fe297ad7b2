/* OpenAI's Responses: its routes. Errors have OpenAI's form, but events of streams have types. */
#ifndef QN_SERVER_RESPONSES_RESPONSES_H
#define QN_SERVER_RESPONSES_RESPONSES_H

#include "server/http/exchange.h"

extern const qn_route_table qn_responses_routes;

void qn_route_responses(qn_exchange *ex);
void qn_route_responses_count(qn_exchange *ex);
/* Routes of a response that was stored. */
void qn_route_response_get(qn_exchange *ex);
void qn_route_response_delete(qn_exchange *ex);
void qn_route_response_cancel(qn_exchange *ex);
void qn_route_response_items(qn_exchange *ex);

#endif
