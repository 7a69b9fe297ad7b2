/* Which function answers a request. The layers above own the tables of routes and hand them down, so nothing
 * here knows an API. Loop thread only. */
#ifndef QN_SERVER_HTTP_ROUTES_H
#define QN_SERVER_HTTP_ROUTES_H

#include "server/http/api_error.h"

typedef struct qn_exchange qn_exchange;

typedef struct {
    const char *method, *path; /* a path that ends with '/' stands for all below it */
    void (*handle)(qn_exchange *ex);
    int is_open;     /* asks for no key */
    int needs_model; /* 503 while there is none, or the server is draining */
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
    const char *allowed;         /* the methods that the path has, if not this one; else NULL */
} qn_route_match;

/* Finds the row of a request. Clients build paths in several ways: several '/' count as one, none counts at
 * the end, and the "/v1" at the beginning may be missing. path_out[0..size) gets the path as the table writes
 * it, cut to size. If no row has the path, it gets the path with its slashes cleaned up. Dot segments and
 * escapes are not resolved. */
qn_route_match qn_route_find(const qn_route_table *const *tables, size_t n_tables, const char *method,
                             const char *path, char *path_out, size_t size);

#endif
