/* How many tokens the prompt of a request has, without a generation: for the routes of dialects that only
 * count. A worker reads the body as for an answer and renders the chat; the loop replies. Loop thread only. */
#ifndef QN_SERVER_CORE_COUNT_TOKENS_H
#define QN_SERVER_CORE_COUNT_TOKENS_H

#include "server/core/dialect.h"
#include "server/http/exchange.h"

/* Constant data. */
typedef struct {
    const qn_dialect *dialect; /* `read` and `read_messages`; nothing else of it is used */
    const char *object;        /* of the answer; NULL: it has none */
} qn_count_route;

void qn_count_tokens_begin(qn_exchange *ex, const qn_count_route *route);

#endif
