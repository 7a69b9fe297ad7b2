/* The table of routes. Loop thread only. */
#ifndef QN_SERVER_ROUTES_H
#define QN_SERVER_ROUTES_H

#include "server/http/exchange.h"

/* Finds the row of a request. Clients build paths in several ways: several '/' count as one, none counts at
 * the end, and the "/v1" at the beginning may be missing. path_out[0..size) gets the path as the table writes
 * it, cut to size. If no row has the path, it gets the path with its slashes cleaned up. Returns NULL if no
 * row has the path (*allowed is NULL), or none has it with this method (*allowed: the methods that it has).
 * Dot segments and escapes are not resolved. */
const qn_route *qn_route_find(const char *method, const char *path, char *path_out, size_t size,
                              const char **allowed);

void qn_route_health(qn_exchange *ex);
void qn_route_models(qn_exchange *ex);
void qn_route_metrics(qn_exchange *ex);
void qn_route_chat(qn_exchange *ex);
void qn_route_completions(qn_exchange *ex);
void qn_route_embeddings(qn_exchange *ex);

#endif
