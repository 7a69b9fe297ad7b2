/* Which function answers a request. The layers above own the tables of routes and hand them down, so nothing
 * here knows an API. Loop thread only. */
#ifndef QN_SERVER_HTTP_ROUTES_H
#define QN_SERVER_HTTP_ROUTES_H

#include "server/http/api_error.h"

typedef struct qn_exchange qn_exchange;

/* Takes a body piece by piece while it arrives, for routes whose bodies are too large for memory. The functions run
 * on the loop. They return 0, or the HTTP status of a refusal. */
typedef struct {
    /* Before the first byte; type is the request's content type, or NULL. */
    int (*begin)(qn_exchange *ex, const char *type, qn_api_error *error);
    int (*take)(qn_exchange *ex, const char *bytes, size_t n, qn_api_error *error);
} qn_body_sink;

/* What /openapi.json says of a route: core/api/about.h. */
typedef struct qn_route_about qn_route_about;

/* Which key a route asks for. */
enum {
    QN_ACCESS_KEY,  /* any, if the server has keys */
    QN_ACCESS_OPEN, /* none */
    QN_ACCESS_ADMIN /* an admin key in any case */
};

typedef struct {
    /* A path that ends with '/' stands for all below it. "{NAME}" stands for one segment. */
    const char *method, *path;
    void (*handle)(qn_exchange *ex);
    int access;      /* QN_ACCESS_... */
    int needs_model; /* 503 while there is none, or the server is draining */
    const qn_route_about *about;
    const qn_body_sink *sink; /* NULL: `handle` gets the whole body */
} qn_route;

/* The routes of one API. */
typedef struct {
    const qn_route *routes; /* [n_routes] */
    size_t n_routes;
    /* Appends an error: JSON; if in_stream, with its frame in a stream that has begun. */
    void (*write_error)(const qn_api_error *e, const char *request_id, int in_stream, qn_buf *out);
    const char *id_header; /* where its clients look for the id, beside x-request-id; NULL: nowhere */
} qn_route_table;

typedef struct {
    const qn_route *route;       /* NULL: no row has the path with this method */
    const qn_route_table *table; /* that has the path; NULL: none */
    const char *allowed; /* the methods that the path has, if not this one; else NULL. Static storage */
} qn_route_match;

/* Finds the row of a request. Clients build paths in several ways: several '/' count as one, none counts at
 * the end, and the "/v1" at the beginning may be missing. path_out[0..size) gets the path as the table writes
 * it, cut to size. If no row has the path, it gets the path with its slashes cleaned up. Dot segments and
 * escapes are not resolved. */
qn_route_match qn_route_find(const qn_route_table *const *tables, size_t n_tables, const char *method,
                             const char *path, char *path_out, size_t size);
/* The text that stands for "{NAME}" in a path that has this row. It goes to out[0..size); "" if it does not fit. */
void qn_route_get(const qn_route *route, const char *path, const char *name, char *out, size_t size);

#endif
