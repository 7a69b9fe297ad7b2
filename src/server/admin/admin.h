/* What changes a server while it runs, or looks inside: adapters, the prompt cache. Its errors have OpenAI's form. */
#ifndef QN_SERVER_ADMIN_ADMIN_H
#define QN_SERVER_ADMIN_ADMIN_H

#include "server/http/exchange.h"

extern const qn_route_table qn_admin_routes;

/* All adapters, or the one that the path names. */
void qn_route_adapters(qn_exchange *ex);
void qn_route_adapter_load(qn_exchange *ex);
void qn_route_adapter_unload(qn_exchange *ex);
void qn_route_cache(qn_exchange *ex);
void qn_route_cache_warm(qn_exchange *ex);
void qn_route_cache_unwarm(qn_exchange *ex);
void qn_route_cache_explain(qn_exchange *ex);
void qn_route_cache_save(qn_exchange *ex);
void qn_route_cache_load(qn_exchange *ex);

#endif
