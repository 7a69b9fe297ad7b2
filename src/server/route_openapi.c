/* GET /openapi.json: the description of the API, written from the tables of routes and fields. */
#include "server/core/api/openapi.h"
#include "server/core/state.h"
#include "server/routes.h"

void qn_route_openapi(qn_exchange *ex)
{
    const qn_http_server *http = ex->http;
    qn_api_error error;
    qn_buf b = {0};
    qn_openapi_write(http->tables, http->n_tables, http->options->n_api_keys > 0, &b);
    if (b.status == QN_OK) {
        qn_exchange_reply(ex, 200, "application/json", NULL, b.data, b.length);
    } else {
        qn_api_fail_status(&error, b.status);
        qn_exchange_fail(ex, &error);
    }
    qn_buf_free(&b);
}
