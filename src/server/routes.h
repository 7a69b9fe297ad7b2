/* All routes of the server: quern's own, and those of each API that it speaks. */
#ifndef QN_SERVER_ROUTES_H
#define QN_SERVER_ROUTES_H

#include "server/http/exchange.h"

enum { QN_SERVER_TABLES = 9 };
/* The first is OpenAI's, in whose form the errors of unknown paths are written. */
extern const qn_route_table *const qn_server_tables[QN_SERVER_TABLES];

void qn_route_health(qn_exchange *ex);
void qn_route_metrics(qn_exchange *ex);
void qn_route_prompt_cache(qn_exchange *ex);
void qn_route_completions_either(qn_exchange *ex);
void qn_route_openapi(qn_exchange *ex);

#endif
