/* GET /health: 200 when a request would be taken. */
#include <string.h>

#include "server/core/state.h"
#include "server/routes.h"

void qn_route_health(qn_exchange *ex)
{
    const qn_server *s = ex->server;
    const char *status = s->http.is_draining ? "draining" : s->model ? "ok" : "loading";
    qn_buf b = {0};
    qn_buf_printf(&b, "{\"status\":\"%s\"}", status);
    qn_exchange_reply(ex, s->model && !s->http.is_draining ? 200 : 503, "application/json",
                      s->model && !s->http.is_draining ? NULL : "retry-after: 1\r\n", b.data, b.length);
    qn_buf_free(&b);
}
