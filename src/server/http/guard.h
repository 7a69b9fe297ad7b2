/* What stands before every route, in this order: whose name the server was called by (DNS rebinding), which
 * page asks (CORS), the key. Loop thread only. */
#ifndef QN_SERVER_HTTP_GUARD_H
#define QN_SERVER_HTTP_GUARD_H

#include "server/http/http.h"
#include "server/http/http_server.h"

/* Returns 0, or the HTTP status of a refusal. *key: which key was shown, -1: none. A key comes as
 * "Authorization: Bearer KEY" or as "x-api-key: KEY"; both must be the same where both are sent. */
int qn_guard_check(const qn_http_server *s, const qn_http *h, const qn_route *route, int *key,
                   qn_api_error *error);
/* The header lines that let the page of an allowed origin read the answer, and of a preflight those that let
 * it send its request; nothing for others. Of the headers that a preflight asks for only known ones are
 * allowed. methods: those of the path, "GET, HEAD, DELETE"; NULL: the path has none, or was not looked for.
 */
void qn_guard_write_cors(const qn_http_server *s, const qn_http *h, const char *methods, qn_buf *headers);
/* Compares in a time that depends on the length of b alone. */
int qn_guard_same(const char *a, const char *b);

#endif
