/* What changes a server while it runs: adapters. Its errors have OpenAI's form. */
#ifndef QN_SERVER_ADMIN_ADMIN_H
#define QN_SERVER_ADMIN_ADMIN_H

#include "server/http/exchange.h"

extern const qn_route_table qn_admin_routes;

/* All adapters, or the one that the path names. */
void qn_route_adapters(qn_exchange *ex);
void qn_route_adapter_load(qn_exchange *ex);
void qn_route_adapter_unload(qn_exchange *ex);

#endif
