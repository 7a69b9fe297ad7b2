#include "server/http/connection.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "server/http/guard.h"
#include "server/http/http.h"

enum {
    PIECE_BYTES = 65536,        /* of input that is looked at together */
    AHEAD_MAX = 65536,          /* sent before the answer to what came before */
    OUTPUT_LOW = 65536,         /* of a stream: more is made when less than this waits */
    OUTPUT_HIGH = 262144,       /* no more is made when more than this waits */
    IDLE_S = 75,                /* between two requests */
    WRITE_S = 60,               /* without any progress */
    SUNK_BYTES = 1 << 20,       /* of a body that a sink takes: as many give it its time again */
    LINGER_S = 3,               /* for the client to read the answer that refused it, */
    LINGER_BYTES_MAX = 64 << 20 /* and to send what it was sending */
};

typedef enum { READING, ANSWERING, LINGERING } phase;

struct qn_connection {
    qn_http_server *server;
    struct bufferevent *bev;
    struct event *timer; /* a request's time, the idle time, lingering; of a stream: the next comment */
    qn_http http;
    phase phase;
    qn_exchange *exchange; /* that is being read or answered */
    size_t counted;        /* bytes of the body in the server's sum */
    size_t lingered;
    size_t sunk;      /* bytes that the route's sink took since the timer was set */
    int closes;       /* after this answer */
    int is_used;      /* it had an answer before */
    int has_key;      /* its last request showed one */
    int64_t since_ns; /* of the idle time, or of the request that is read */
    int is_inside;    /* of process_input: who would free it leaves that to the outermost */
    int is_dead;
    struct qn_connection *previous, *next;
};

static void process_input(qn_connection *c);

/* ---- life ---------------------------------------------------------------------------------------------- */

static void free_exchange(qn_exchange *ex)
{
    qn_http_server *s = ex->http;
    if (ex->connection || ex->local || ex->holds) return;
    if (ex->free_state) ex->free_state(ex);
    qn_buf_free(&ex->body);
    qn_free(ex);
    s->n_exchanges--;
    s->ended(s->server);
}

void qn_exchange_hold(qn_exchange *ex)
{
    ex->holds++;
}

void qn_exchange_release(qn_exchange *ex)
{
    ex->holds--;
    free_exchange(ex);
}

/* The request's body takes so many bytes now. QN_E_NOMEM: there is no room for more; the count stays. */
static qn_status count_body(qn_connection *c, size_t bytes)
{
    qn_http_server *s = c->server;
    if (bytes > c->counted) QN_TRY(s->hold(s->server, bytes - c->counted, bytes));
    if (bytes < c->counted) s->release(s->server, c->counted - bytes);
    c->counted = bytes;
    return QN_OK;
}

/* The exchange has its answer, or nobody to answer to. */
static void part(qn_connection *c, int is_gone)
{
    qn_exchange *ex = c->exchange;
    if (!ex) return;
    count_body(c, 0);
    c->exchange = NULL;
    ex->connection = NULL;
    ex->http->answered(ex, is_gone);
    if (is_gone) {
        qn_log(QN_LOG_INFO, "%s %s: the client disconnected", ex->id, ex->path);
        if (ex->gone) ex->gone(ex);
    } else {
        qn_log(QN_LOG_INFO, "%s %s: %d after %.1f ms", ex->id, ex->path, ex->status,
               (double)(qn_clock_ns() - ex->begin_ns) * 1e-6);
    }
    free_exchange(ex);
}

static void close_connection(qn_connection *c)
{
    qn_http_server *s = c->server;
    part(c, 1);
    if (c->is_inside) {
        c->is_dead = 1;
        return;
    }
    if (c->previous)
        c->previous->next = c->next;
    else
        s->connections = c->next;
    if (c->next) c->next->previous = c->previous;
    count_body(c, 0);
    if (c->bev) bufferevent_free(c->bev);
    if (c->timer) event_free(c->timer);
    qn_http_free(&c->http);
    s->n_connections--;
    qn_free(c);
    s->ended(s->server);
}

static void set_timer(qn_connection *c, int64_t ms)
{
    struct timeval t = {ms / 1000, ms % 1000 * 1000};
    evtimer_add(c->timer, &t);
}

/* The answer is on its way, and the client may still be sending: what it sends is thrown away for a while,
 * because closing at once would take the answer back. */
static void linger(qn_connection *c)
{
    c->phase = LINGERING;
    set_timer(c, LINGER_S * 1000);
    if (evbuffer_get_length(bufferevent_get_output(c->bev)) == 0)
        shutdown(bufferevent_getfd(c->bev), SHUT_WR);
}

/* The answer is whole. */
static void finish(qn_connection *c)
{
    part(c, 0);
    if (c->closes || c->server->is_draining) {
        linger(c);
        return;
    }
    qn_http_next(&c->http);
    c->phase = READING;
    c->is_used = 1;
    c->since_ns = qn_clock_ns();
    set_timer(c, IDLE_S * 1000);
    process_input(c);
}

/* ---- answers ------------------------------------------------------------------------------------------- */

static struct evbuffer *output(const qn_exchange *ex)
{
    return bufferevent_get_output(ex->connection->bev);
}

/* Memory that runs out while an answer is written ends its connection: half an answer is none. */
static void put(qn_exchange *ex, const void *bytes, size_t n)
{
    if (ex->connection && n && evbuffer_add(output(ex), bytes, n) != 0) ex->connection->closes = 1;
    ex->sent_ns = qn_clock_ns();
}

static void write_head(qn_exchange *ex, int status, const char *type, const char *headers, int64_t length)
{
    qn_connection *c = ex->connection;
    qn_buf b = {0};
    ex->status = status;
    if (!c->http.keep_alive || c->http.state != QN_HTTP_DONE || c->server->is_draining) c->closes = 1;
    ex->is_chunked = length < 0 && c->http.minor == 1;
    if (length < 0 && !ex->is_chunked) c->closes = 1;
    char date[QN_HTTP_DATE_BYTES];
    qn_http_date(time(NULL), date);
    qn_buf_printf(&b, "HTTP/1.1 %d %s\r\ndate: %s\r\nx-request-id: %s\r\nx-content-type-options: nosniff\r\n",
                  status, qn_http_reason(status), date, ex->id);
    if (ex->table && ex->table->id_header) qn_buf_printf(&b, "%s: %s\r\n", ex->table->id_header, ex->id);
    if (type) qn_buf_printf(&b, "content-type: %s\r\n", type);
    if (headers) qn_buf_puts(&b, headers);
    qn_guard_write_cors(c->server, &c->http, ex->allowed, &b);
    if (ex->is_chunked)
        qn_buf_puts(&b, "transfer-encoding: chunked\r\n");
    else if (length >= 0)
        qn_buf_printf(&b, "content-length: %" PRId64 "\r\n", length);
    qn_buf_printf(&b, "connection: %s\r\n\r\n", c->closes ? "close" : "keep-alive");
    if (b.status == QN_OK)
        put(ex, b.data, b.length);
    else
        c->closes = 1;
    qn_buf_free(&b);
}

/* The answer to a request of the server itself. */
static void give_local(qn_exchange *ex, int status, const char *body, size_t n)
{
    const qn_local_client *client = ex->local;
    ex->status = status;
    qn_exchange_hold(ex);
    ex->local = NULL;
    client->take(client->user, ex, status, body, n);
    qn_exchange_release(ex);
}

void qn_exchange_reply(qn_exchange *ex, int status, const char *type, const char *headers, const char *body,
                       size_t n)
{
    if (ex->local) give_local(ex, status, body, n);
    if (!ex->connection) return;
    write_head(ex, status, type, headers, (int64_t)n);
    if (!ex->is_head) put(ex, body, n);
    finish(ex->connection);
}

void qn_exchange_reply_file(qn_exchange *ex, const char *type, int file, int64_t length)
{
    if (!ex->connection) {
        close(file);
        return;
    }
    write_head(ex, 200, type, NULL, length);
    if (ex->is_head || !length)
        close(file);
    else if (evbuffer_add_file(output(ex), file, 0, length) != 0) /* closes it */
        ex->connection->closes = 1;
    finish(ex->connection);
}

/* The frame around n bytes of a stream. */
static void begin_chunk(qn_exchange *ex, size_t n)
{
    char size[32];
    if (ex->is_chunked) put(ex, size, (size_t)snprintf(size, sizeof size, "%zx\r\n", n));
}

static void end_chunk(qn_exchange *ex)
{
    if (ex->is_chunked) put(ex, "\r\n", 2);
}

void qn_exchange_ping_every(qn_exchange *ex, int64_t ms)
{
    if (!ex->connection || !ex->status) return;
    ex->ping_ms = ms < 0 ? ex->http->options->ping_ms : ms;
    if (ex->ping_ms)
        set_timer(ex->connection, ex->ping_ms);
    else
        evtimer_del(ex->connection->timer);
}

/* The timer of a stream. It is not set again for each event; when it runs out it looks at how long ago the
 * last one was. Bytes that the client has not taken yet are no silence. */
static void ping(qn_connection *c)
{
    qn_exchange *ex = c->exchange;
    const char *frame = ex->ping ? ex->ping : ": keep-alive\n\n";
    int64_t left_ms = ex->ping_ms - (qn_clock_ns() - ex->sent_ns) / 1000000;
    if (left_ms <= 0) {
        if (evbuffer_get_length(output(ex)) == 0) {
            begin_chunk(ex, strlen(frame));
            put(ex, frame, strlen(frame));
            end_chunk(ex);
        }
        left_ms = ex->ping_ms;
    }
    set_timer(c, left_ms);
}

void qn_exchange_stream(qn_exchange *ex, const char *type)
{
    if (!ex->connection || ex->status) return;
    write_head(ex, 200, type, "cache-control: no-cache\r\nx-accel-buffering: no\r\n", -1);
    qn_exchange_ping_every(ex, -1);
}

void qn_exchange_send(qn_exchange *ex, const char *bytes, size_t n)
{
    if (!ex->connection || !n) return;
    begin_chunk(ex, n);
    put(ex, bytes, n);
    end_chunk(ex);
}

void qn_exchange_end(qn_exchange *ex)
{
    if (!ex->connection) return;
    if (ex->is_chunked) put(ex, "0\r\n\r\n", 5);
    finish(ex->connection);
}

void qn_exchange_fail(qn_exchange *ex, const qn_api_error *error)
{
    qn_buf b = {0}, headers = {0};
    if (!qn_exchange_is_awaited(ex)) return;
    ex->table->write_error(error, ex->id, ex->status != 0, &b);
    if (ex->local) {
        give_local(ex, error->status, b.data, b.length);
    } else if (b.status != QN_OK) { /* not even that much memory */
        close_connection(ex->connection);
    } else if (ex->status) {
        qn_exchange_send(ex, b.data, b.length);
        ex->connection->closes = 1;
        qn_exchange_end(ex);
    } else {
        if (error->status == 401) qn_buf_puts(&headers, "www-authenticate: Bearer\r\n");
        if (error->allow) qn_buf_printf(&headers, "allow: %s\r\n", error->allow);
        if (error->retry_after_s) qn_buf_printf(&headers, "retry-after: %d\r\n", error->retry_after_s);
        qn_exchange_reply(ex, error->status, "application/json", headers.data, b.data, b.length);
    }
    qn_buf_free(&b);
    qn_buf_free(&headers);
}

int qn_exchange_is_full(const qn_exchange *ex)
{
    return ex->connection && evbuffer_get_length(output(ex)) > OUTPUT_HIGH;
}

/* ---- requests ------------------------------------------------------------------------------------------ */

/* c may be NULL. */
static qn_exchange *make_exchange(qn_http_server *s, qn_connection *c)
{
    qn_exchange *ex = qn_calloc(1, sizeof *ex);
    if (!ex) return NULL;
    ex->number = qn_random_bits(s->id_seed, s->n_ids++);
    snprintf(ex->id, sizeof ex->id, "req_%016" PRIx64, ex->number);
    ex->server = s->server;
    ex->http = s;
    ex->table = s->tables[0];
    ex->connection = c;
    ex->key = -1;
    ex->begin_ns = qn_clock_ns();
    s->n_exchanges++;
    return ex;
}

static qn_exchange *new_exchange(qn_connection *c)
{
    return c->exchange = make_exchange(c->server, c);
}

int qn_exchange_is_awaited(const qn_exchange *ex)
{
    return ex->connection || ex->local;
}

qn_exchange *qn_exchange_begin_local(qn_http_server *http, const char *method, const char *path, qn_buf *body,
                                     int key, const qn_local_client *client)
{
    qn_exchange *ex = make_exchange(http, NULL);
    if (!ex) return NULL;
    const qn_route_match found =
        qn_route_find(http->tables, http->n_tables, method, path, ex->path, sizeof ex->path);
    ex->local = found.route ? client : NULL;
    if (!found.route) {
        free_exchange(ex);
        return NULL;
    }
    ex->route = found.route;
    ex->table = found.table;
    ex->key = key;
    ex->is_idle = 1;
    ex->body = *body;
    *body = (qn_buf){0};
    qn_exchange_hold(ex);
    ex->route->handle(ex);
    const int is_asked = ex->local != NULL;
    qn_exchange_release(ex);
    return is_asked ? ex : NULL;
}

void qn_exchange_abandon(qn_exchange *ex)
{
    ex->local = NULL;
    if (ex->gone) ex->gone(ex);
    free_exchange(ex);
}

static int is_json(const char *type)
{
    static const char json[] = "application/json";
    enum { N = sizeof json - 1 };
    return type && strncasecmp(type, json, N) == 0 && (!type[N] || strchr("; \t", type[N]));
}

/* Browsers send one of these headers with each POST of a page. Programs send neither, and what they call the type of
 * a body (`curl -d`) does not matter. */
static int is_of_page(const qn_http *h)
{
    return qn_http_get(h, "origin") || qn_http_get(h, "sec-fetch-site");
}

/* The head is whole. Refuses before the body is taken, where there is a reason. */
static int check_head(qn_connection *c, qn_exchange *ex, qn_api_error *error)
{
    const qn_http *h = &c->http;
    const qn_route_match found =
        qn_route_find(c->server->tables, c->server->n_tables, h->method, h->path, ex->path, sizeof ex->path);
    ex->is_head = strcmp(h->method, "HEAD") == 0;
    ex->route = found.route;
    ex->allowed = found.allowed;
    snprintf(ex->query, sizeof ex->query, "%s", h->query);
    if (found.table) ex->table = found.table;
    int is_preflight = c->server->options->n_cors_origins && strcmp(h->method, "OPTIONS") == 0 && found.table;
    static const qn_route preflight = {.access = QN_ACCESS_OPEN};
    int refused = qn_guard_check(c->server, h, is_preflight ? &preflight : ex->route, &ex->key, error);
    c->has_key = ex->key >= 0;
    if (refused || is_preflight) return refused;
    if (!ex->route && found.allowed) {
        qn_api_fail(error, 405, "method_not_allowed", NULL, "%s takes %s", ex->path, found.allowed);
        error->allow = found.allowed;
        return 405;
    }
    if (!ex->route) return qn_api_fail(error, 404, "unknown_path", NULL, "this server has no %s", ex->path);
    if (strlen(h->query) >= sizeof ex->query)
        return qn_api_fail(error, 400, "invalid_value", NULL, "the query of the path is longer than %d bytes",
                           QN_QUERY_MAX - 1);
    if (strcmp(h->method, "POST") == 0 && !is_json(qn_http_get(h, "content-type")) && is_of_page(h))
        return qn_api_fail(error, 415, "unsupported_media_type", NULL,
                           "the content type of a web page's request must be application/json");
    if (ex->route->needs_model && c->server->is_draining)
        return qn_api_fail(error, 503, "shutting_down", NULL, "the server is shutting down");
    if (ex->route->needs_model && !c->server->has_model)
        return qn_api_fail(error, 503, "loading", NULL, "the model is still loading");
    return 0;
}

static void refuse(qn_connection *c, const qn_api_error *error)
{
    c->phase = ANSWERING;
    c->closes |= c->http.state != QN_HTTP_DONE;
    qn_exchange_fail(c->exchange, error);
}

/* The request is whole. */
static void dispatch(qn_connection *c)
{
    qn_exchange *ex = c->exchange;
    c->phase = ANSWERING;
    evtimer_del(c->timer);
    ex->body = c->http.body;
    c->http.body = (qn_buf){0};
    if (ex->route)
        ex->route->handle(ex);
    else
        qn_exchange_reply(ex, 204, NULL, NULL, NULL, 0); /* a preflight */
}

/* What is here of the body goes to the route's sink, if it has one. Returns 0, or the status of a refusal. */
static int sink_body(qn_connection *c, qn_api_error *error)
{
    qn_buf *body = &c->http.body;
    const qn_route *route = c->exchange ? c->exchange->route : NULL;
    const size_t n = body->length;
    if (!route || !route->sink || !n || c->http.state == QN_HTTP_FAILED) return 0;
    const int refused = route->sink->take(c->exchange, body->data, n, error);
    qn_buf_reset(body);
    c->sunk += n;
    if (!refused && c->sunk >= SUNK_BYTES) {
        c->sunk = 0;
        set_timer(c, c->server->options->read_timeout_ms);
    }
    return refused;
}

/* The route's sink decides how long a body may be. */
static int begin_body(qn_connection *c, qn_api_error *error)
{
    qn_http *h = &c->http;
    const qn_route *route = c->exchange->route;
    h->body_max = c->server->options->body_max_bytes;
    if (!route || !route->sink) return 0;
    h->body_max = SIZE_MAX / 2;
    c->sunk = 0;
    return route->sink->begin(c->exchange, qn_http_get(h, "content-type"), error);
}

/* Of a body whose length was said all memory is there from the start, but only what came was touched; another grows by
 * doubling. */
static size_t body_bytes(const qn_http *h)
{
    return h->is_chunked ? h->body.capacity : h->body.length;
}

/* A step forward of the request that is read. */
static void look(qn_connection *c)
{
    qn_http *h = &c->http;
    qn_api_error error;
    if (!c->exchange && h->state != QN_HTTP_HEAD && !new_exchange(c)) {
        close_connection(c);
        return;
    }
    if (h->state == QN_HTTP_READY) {
        if (check_head(c, c->exchange, &error) || begin_body(c, &error)) {
            refuse(c, &error);
            return;
        }
        qn_http_read_body(h);
        if (h->state == QN_HTTP_BODY && h->wants_continue)
            put(c->exchange, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    }
    if (sink_body(c, &error)) {
        refuse(c, &error);
        return;
    }
    const qn_status counted = count_body(c, body_bytes(h));
    if (h->state == QN_HTTP_FAILED) {
        qn_api_fail(&error, h->status, h->status == 413 ? "body_too_large" : "malformed_request", NULL, "%s",
                    h->why);
        refuse(c, &error);
    } else if (counted != QN_OK) {
        qn_buf_free(&h->body);
        qn_api_fail(&error, 503, "overloaded", NULL, "there is no memory left for the request: %s",
                    qn_last_error());
        refuse(c, &error);
    } else if (h->state == QN_HTTP_DONE) {
        dispatch(c);
    }
}

static void process_input(qn_connection *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    if (c->is_inside) return;
    c->is_inside = 1;
    while (c->phase == READING && !c->is_dead && evbuffer_get_length(in)) {
        size_t n = evbuffer_get_length(in) < PIECE_BYTES ? evbuffer_get_length(in) : PIECE_BYTES;
        const unsigned char *bytes = evbuffer_pullup(in, (ev_ssize_t)n);
        if (!bytes) {
            c->is_dead = 1;
            break;
        }
        if (!qn_http_is_inside(&c->http)) {
            c->since_ns = qn_clock_ns();
            set_timer(c, c->server->options->read_timeout_ms);
        }
        evbuffer_drain(in, qn_http_feed(&c->http, bytes, n));
        look(c);
    }
    if (c->phase == LINGERING) {
        c->lingered += evbuffer_get_length(in);
        evbuffer_drain(in, evbuffer_get_length(in));
    }
    /* An answer to one who sends on and on without waiting would be held for ever. */
    if (evbuffer_get_length(in) > AHEAD_MAX || c->lingered > LINGER_BYTES_MAX) c->is_dead = 1;
    c->is_inside = 0;
    if (c->is_dead) close_connection(c);
}

/* ---- the loop's calls ---------------------------------------------------------------------------------- */

static void on_input(struct bufferevent *bev, void *user)
{
    (void)bev;
    process_input(user);
}

static void on_output(struct bufferevent *bev, void *user)
{
    qn_connection *c = user;
    if (c->phase == LINGERING && evbuffer_get_length(bufferevent_get_output(bev)) == 0)
        shutdown(bufferevent_getfd(bev), SHUT_WR), c->server->ended(c->server->server);
    else if (c->phase == ANSWERING && c->exchange && c->exchange->status && c->exchange->drained)
        c->exchange->drained(c->exchange);
}

static void on_event(struct bufferevent *bev, short what, void *user)
{
    (void)bev;
    if (what & (BEV_EVENT_EOF | BEV_EVENT_ERROR | BEV_EVENT_TIMEOUT)) close_connection(user);
}

static void on_timer(evutil_socket_t file, short what, void *user)
{
    qn_connection *c = user;
    qn_api_error error;
    (void)file, (void)what;
    if (c->phase == ANSWERING) {
        ping(c);
        return;
    }
    if (c->phase != READING || !qn_http_is_inside(&c->http) || (!c->exchange && !new_exchange(c))) {
        close_connection(c);
        return;
    }
    qn_api_fail(&error, 408, "timeout", NULL, "the request did not arrive in time");
    c->http.state = QN_HTTP_FAILED;
    refuse(c, &error);
}

void qn_connection_open(qn_http_server *s, int file)
{
    int one = 1;
    struct timeval write_time = {WRITE_S, 0};
    qn_connection *c = qn_calloc(1, sizeof *c);
    if (!c) {
        evutil_closesocket(file);
        return;
    }
    c->server = s;
    c->since_ns = qn_clock_ns();
    qn_http_start(&c->http, s->options->body_max_bytes);
    c->next = s->connections;
    if (c->next) c->next->previous = c;
    s->connections = c;
    s->n_connections++;
    setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    c->bev = bufferevent_socket_new(s->base, file, BEV_OPT_CLOSE_ON_FREE);
    c->timer = evtimer_new(s->base, on_timer, c);
    if (!c->bev || !c->timer) {
        if (!c->bev) evutil_closesocket(file);
        close_connection(c);
        return;
    }
    bufferevent_setcb(c->bev, on_input, on_output, on_event, c);
    bufferevent_setwatermark(c->bev, EV_WRITE, OUTPUT_LOW, 0);
    bufferevent_set_timeouts(c->bev, NULL, &write_time);
    set_timer(c, s->options->read_timeout_ms);
    bufferevent_enable(c->bev, EV_READ | EV_WRITE);
}

void qn_connections_close(qn_http_server *s, int all)
{
    for (qn_connection *c = s->connections, *next; c; c = next) {
        next = c->next;
        if (all)
            close_connection(c);
        else if (c->is_used && c->phase == READING && !qn_http_is_inside(&c->http))
            linger(c); /* the end of its last answer may still be on its way */
    }
}

/* The lower, the sooner it gives way; -1: never. */
static int rank(const qn_connection *c)
{
    if (c->phase != READING) return -1;
    return 2 * c->has_key + qn_http_is_inside(&c->http);
}

int qn_connections_give_way(qn_http_server *s)
{
    qn_connection *first = NULL;
    for (qn_connection *c = s->connections; c; c = c->next) {
        if (rank(c) < 0 || c->is_inside) continue;
        if (!first || rank(c) < rank(first) || (rank(c) == rank(first) && c->since_ns < first->since_ns))
            first = c;
    }
    if (!first) return 0;
    close_connection(first);
    return 1;
}

int qn_connections_are_flushed(const qn_http_server *s)
{
    for (const qn_connection *c = s->connections; c; c = c->next)
        if (evbuffer_get_length(bufferevent_get_output(c->bev))) return 0;
    return 1;
}
