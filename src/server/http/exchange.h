/* One request and its answer, as routes see them: the connection below and the threads beside are not their
 * business.
 *
 * An exchange lives until it is answered, or its client is gone, and its last hold is released. Loop thread
 * only. */
#ifndef QN_SERVER_HTTP_EXCHANGE_H
#define QN_SERVER_HTTP_EXCHANGE_H

#include <stdint.h>

#include "base/buf.h"
#include "server/http/api_error.h"
#include "server/http/http_server.h"

typedef struct qn_connection qn_connection;

/* Who takes the answer of a request that the server makes to itself. */
typedef struct {
    /* The whole answer. The exchange may be gone afterwards. */
    void (*take)(void *user, const qn_exchange *ex, int status, const char *body, size_t n);
    void *user;
} qn_local_client;

enum { QN_QUERY_MAX = 512 };

struct qn_exchange {
    qn_server *server;
    qn_http_server *http;
    qn_connection *connection;    /* NULL: the client is gone, or has its answer */
    const qn_route *route;        /* NULL: none was found */
    const qn_route_table *table;  /* that has the path, or the first: it writes the errors */
    const char *allowed;          /* without a route: the methods of the path. NULL: none */
    uint64_t number;              /* random */
    char id[32];                  /* "req_..." and the number */
    char path[160];               /* as the table of routes writes it, cut */
    char query[QN_QUERY_MAX];     /* behind the '?', as sent, or "" */
    const qn_local_client *local; /* a request of the server itself: there is no connection. NULL: none */
    qn_buf body;
    int key; /* which API key was shown; -1: none */
    int64_t begin_ns;
    int is_idle;             /* computed in idle times */
    int is_head, is_chunked; /* asked by HEAD; answered in chunks */
    int64_t ping_ms;         /* of a stream: `ping` after each such silence; 0: none */
    int64_t sent_ns;         /* when bytes were last handed to the connection */
    int status;              /* of the answer; 0: not begun */
    int holds;
    /* Set by a route that goes on after `handle`. */
    void *state;
    const char *ping;                    /* a frame of its stream; NULL: a comment. Static storage */
    void (*gone)(qn_exchange *ex);       /* the client went before it had its answer */
    void (*drained)(qn_exchange *ex);    /* there is room for more of a stream */
    void (*free_state)(qn_exchange *ex); /* last of all */
};

/* The whole answer. headers: further header lines, each with its CR LF, or NULL. */
void qn_exchange_reply(qn_exchange *ex, int status, const char *type, const char *headers, const char *body,
                       size_t n);
/* A whole answer of length bytes that the open file has from its beginning. The file is closed in any case. */
void qn_exchange_reply_file(qn_exchange *ex, const char *type, int file, int64_t length);
/* An error as the API of the path writes it; of a stream that has begun: an event with it, and the end. */
void qn_exchange_fail(qn_exchange *ex, const qn_api_error *error);
/* The content type of server-sent events. */
#define QN_STREAM_EVENTS "text/event-stream; charset=utf-8"
/* A stream: its head, bytes with the frames of their type, its end. After each silence of the length that the
 * server's options say `ping` is sent, a comment of server-sent events as a rule: proxies and clients close streams that are
 * silent. A stream of another type must turn that off. */
void qn_exchange_stream(qn_exchange *ex, const char *type);
/* Sets another length of silence for a stream that has begun. 0: no comments; negative: as the options say.
 */
void qn_exchange_ping_every(qn_exchange *ex, int64_t ms);
/* Nothing is sent if n is 0. */
void qn_exchange_send(qn_exchange *ex, const char *bytes, size_t n);
void qn_exchange_end(qn_exchange *ex);
/* 1: the client is slow; what it has not taken yet is enough until `drained`. */
int qn_exchange_is_full(const qn_exchange *ex);

/* 1: somebody waits for the answer. */
int qn_exchange_is_awaited(const qn_exchange *ex);
/* A value of the query ("limit" of "?limit=5&order=asc"), decoded, or "" if it is absent. Returns 0, or 400. */
int qn_exchange_query(const qn_exchange *ex, const char *name, char *out, size_t size, qn_api_error *error);
/* `limit` and `order` of a query about a list. */
typedef struct {
    int64_t limit;
    int is_asc; /* the oldest first; else the newest */
} qn_page;
/* Reads them; limit is the default, and at most limit_max. Returns 0, or 400. */
int qn_exchange_page(const qn_exchange *ex, int64_t limit, int64_t limit_max, qn_page *out,
                     qn_api_error *error);
/* The text that stands for "{NAME}" of the route's path, or "". */
void qn_exchange_segment(const qn_exchange *ex, const char *name, char *out, size_t size);

/* A request that the server makes to itself, computed in idle times, for the key `key`. `client` lives until it took the
 * answer, or the request was abandoned. NULL: it was answered at once, and took the body over; or, with the body left to
 * the caller, memory is out or the path unknown. */
qn_exchange *qn_exchange_begin_local(qn_http_server *http, const char *method, const char *path, qn_buf *body,
                                     int key, const qn_local_client *client);
/* Its answer is no longer wanted. */
void qn_exchange_abandon(qn_exchange *ex);

/* Keeps the exchange while a job or a generation is under way. */
void qn_exchange_hold(qn_exchange *ex);
void qn_exchange_release(qn_exchange *ex);

#endif
