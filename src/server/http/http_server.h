/* The part of the server that owns sockets: it listens, holds connections, and hands requests to routes. It
 * knows no model.
 *
 * The layers above fill in what stands before `base` and may read the rest. Connections live in
 * connection.c. Loop thread only. */
#ifndef QN_SERVER_HTTP_HTTP_SERVER_H
#define QN_SERVER_HTTP_HTTP_SERVER_H

#include <event2/event.h>

#include "server/http/http_options.h"
#include "server/http/routes.h"

typedef struct qn_server qn_server; /* of the layers above (core/state.h), which routes look into */

typedef struct {
    const qn_http_options *options;
    const qn_route_table *const
        *tables; /* [n_tables]; the first writes the errors of paths that no table has */
    size_t n_tables;
    qn_server *server;
    /* Memory of bodies, which are counted as they arrive; whole_bytes: of this one until now. QN_E_NOMEM: there is no
     * room. */
    qn_status (*hold)(qn_server *server, size_t size_bytes, size_t whole_bytes);
    void (*release)(qn_server *server, size_t size_bytes);
    /* An exchange has its answer, or its client is gone. */
    void (*answered)(const qn_exchange *ex, int is_gone);
    /* An exchange was freed, a connection was closed, or the last bytes of one left: what waited for the end
     * of all may go on. */
    void (*ended)(qn_server *server);
    uint64_t id_seed; /* of the requests' names */
    int has_model;    /* 0: routes that need a model refuse */
    int is_draining;  /* 1: they refuse, and connections close behind their answer */
    struct event_base *base;
    struct evconnlistener *listeners[QN_HTTP_HOSTS_MAX];
    size_t n_listeners;
    struct event *accept_again;
    int is_loopback; /* all listeners are */
    int n_connections, connections_max;
    int64_t n_exchanges; /* that have been asked for and are not freed */
    struct qn_connection *connections;
    uint64_t n_ids;
} qn_http_server;

enum { QN_HTTP_URL_MAX = 1088 };

/* Begins to listen. QN_E_ARG: a host that is not known, or an address off loopback without a key. QN_E_IO: a port
 * or a socket's path that is taken. qn_http_server_close is due in either case. */
qn_status qn_http_server_listen(qn_http_server *h);
/* Stops listening, and removes the files of Unix sockets. Connections stay: qn_connections_close. */
void qn_http_server_close(qn_http_server *h);
/* "http://127.0.0.1:8080" or "unix:PATH" of listener i; "" if the system does not tell. */
void qn_http_server_url(const qn_http_server *h, size_t i, char url[QN_HTTP_URL_MAX]);

#endif
