#include "server/admin/request.h"

#include "server/core/api/about.h"

int qn_admin_read(qn_task *t)
{
    const qn_api_request_limits limits = qn_server_request_limits(t->ex->server);
    return qn_api_request_read_fields(t->ex->body.data, t->ex->body.length, qn_admin_fields,
                                      t->ex->route->about->route, &limits, &t->request, &t->error);
}

int qn_admin_fail_missing(qn_task *t, const char *field)
{
    return qn_api_fail(&t->error, 400, "missing_parameter", field, "%s is missing", field);
}
