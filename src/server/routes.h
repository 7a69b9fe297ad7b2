/* The table of routes. Loop thread only. */
#ifndef QN_SERVER_ROUTES_H
#define QN_SERVER_ROUTES_H

#include "server/exchange.h"

/* NULL: none has this path (*allowed then is NULL), or none has it with this method (*allowed: those that it
 * has). */
const qn_route *qn_route_find(const char *method, const char *path, const char **allowed);

void qn_route_health(qn_exchange *ex);
void qn_route_models(qn_exchange *ex);
void qn_route_metrics(qn_exchange *ex);
void qn_route_chat(qn_exchange *ex);
void qn_route_completions(qn_exchange *ex);
void qn_route_embeddings(qn_exchange *ex);

#endif
