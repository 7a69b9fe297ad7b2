/* The description of the server's API, OpenAPI 3.1, written from the tables of routes and fields. Any thread. */
#ifndef QN_SERVER_CORE_API_OPENAPI_H
#define QN_SERVER_CORE_API_OPENAPI_H

#include "base/buf.h"
#include "server/http/http_server.h"

/* Appends the document, JSON. has_keys: the server asks for API keys. */
void qn_openapi_write(const qn_route_table *const *tables, size_t n_tables, int has_keys, qn_buf *out);

#endif
