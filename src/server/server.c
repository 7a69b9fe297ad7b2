#include "server/server.h"

#include <errno.h>
#include <event2/listener.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

#include "base/log.h"
#include "base/mem.h"
#include "server/core/conversation.h"
#include "server/core/look_ahead.h"
#include "server/http/connection.h"

enum {
    WORKERS = 3,
    SLOW_WORKERS = 2,
    BACKLOG = 1024,
    CONNECTIONS_MAX = 1024,
    FILES_KEPT = 64,
    ACCEPT_AGAIN_MS = 100
};

/* The model is opened by a worker. */
typedef struct {
    qn_job job;
    qn_server *server;
    qn_model *model;
    qn_model_info info;
    qn_chat_traits traits;
    qn_status status;
    char why[QN_ERROR_TEXT_MAX];
} loading;

typedef struct {
    qn_server server;
    struct evconnlistener *listener;
    struct event *wake_event, *signals[2], *accept_again;
    loading load;
    int is_loading;
    qn_status status; /* why it ends */
    char why[QN_ERROR_TEXT_MAX];
} running;

/* ---- what threads have for the loop -------------------------------------------------------------------- */

void qn_server_list(qn_ready *r)
{
    if (atomic_exchange(&r->is_listed, 1)) return;
    _Atomic(qn_ready *) *list = &r->server->ready;
    r->next = atomic_load(list);
    while (!atomic_compare_exchange_weak(list, &r->next, r)) {
    }
    qn_wake_send(&r->server->wake);
}

void qn_server_look(qn_server *s)
{
    qn_ready *r = atomic_exchange(&s->ready, NULL);
    while (r) {
        qn_ready *next = r->next;
        /* From here on it may be listed again: what comes now is not missed. */
        atomic_store(&r->is_listed, 0);
        r->look(r);
        r = next;
    }
}

static void on_wake(evutil_socket_t file, short what, void *user)
{
    running *r = user;
    (void)file, (void)what;
    qn_wake_take(&r->server.wake);
    qn_server_look(&r->server);
    qn_workers_collect(r->server.workers);
    qn_workers_collect(r->server.slow_workers);
}

void qn_server_note_end(qn_server *s)
{
    if (s->n_exchanges) return;
    if (!s->is_draining)
        qn_look_ahead_start(s);
    else if (qn_connections_are_flushed(s))
        event_base_loopbreak(s->base);
}

/* ---- the model ----------------------------------------------------------------------------------------- */

static void load_model(qn_job *job)
{
    loading *l = (loading *)job;
    const qn_server_options *o = l->server->options;
    l->status = o->open(o->user, &l->model);
    if (l->status == QN_OK) l->status = qn_model_get_info(l->model, &l->info);
    if (l->status == QN_OK && l->info.has_chat_template)
        l->status = qn_conversation_find_traits(l->model, &l->traits);
    if (l->status != QN_OK) snprintf(l->why, sizeof l->why, "%s", qn_last_error());
}

static void model_loaded(qn_job *job)
{
    loading *l = (loading *)job;
    running *r = (running *)l->server;
    qn_server *s = l->server;
    r->is_loading = 0;
    if (l->status != QN_OK) {
        r->status = l->status;
        memcpy(r->why, l->why, sizeof r->why);
        event_base_loopbreak(s->base);
        return;
    }
    s->info = l->info;
    s->traits = l->traits;
    s->model = l->model;
    s->created_s = (int64_t)time(NULL);
    if (s->options->say) s->options->say(s->options->user, NULL);
}

/* ---- listening ----------------------------------------------------------------------------------------- */

static void on_connection(struct evconnlistener *l, evutil_socket_t file, struct sockaddr *from, int n,
                          void *user)
{
    running *r = user;
    struct timeval soon = {0, ACCEPT_AGAIN_MS * 1000};
    (void)from, (void)n;
    qn_connection_open(&r->server, file);
    if (r->server.n_connections < r->server.connections_max) return;
    /* Others wait in the system's queue. */
    evconnlistener_disable(l);
    evtimer_add(r->accept_again, &soon);
}

static void on_accept_error(struct evconnlistener *l, void *user)
{
    running *r = user;
    struct timeval soon = {0, ACCEPT_AGAIN_MS * 1000};
    qn_log(QN_LOG_WARNING, "a connection could not be taken: %s", strerror(EVUTIL_SOCKET_ERROR()));
    evconnlistener_disable(l);
    evtimer_add(r->accept_again, &soon);
}

static void on_accept_again(evutil_socket_t file, short what, void *user)
{
    running *r = user;
    struct timeval soon = {0, ACCEPT_AGAIN_MS * 1000};
    (void)file, (void)what;
    if (r->server.n_connections < r->server.connections_max)
        evconnlistener_enable(r->listener);
    else
        evtimer_add(r->accept_again, &soon);
}

static int is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24) == 127;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
    return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(six);
}

/* "http://127.0.0.1:8080" of the socket that listens. */
static void say_where(running *r)
{
    const qn_server_options *o = r->server.options;
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?", url[NI_MAXHOST + NI_MAXSERV + 16];
    if (!o->say || getsockname(evconnlistener_get_fd(r->listener), (struct sockaddr *)&address, &size) != 0)
        return;
    getnameinfo((struct sockaddr *)&address, size, host, sizeof host, port, sizeof port,
                NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(url, sizeof url, strchr(host, ':') ? "http://[%s]:%s" : "http://%s:%s", host, port);
    o->say(o->user, url);
}

static qn_status start_listening(running *r)
{
    const qn_server_options *o = r->server.options;
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM},
                    *found = NULL;
    char port[16];
    snprintf(port, sizeof port, "%d", o->port);
    int failed = getaddrinfo(o->host, port, &hints, &found);
    if (failed) return qn_fail(QN_E_ARG, "--host: '%s': %s", o->host, gai_strerror(failed));
    qn_status status = QN_OK;
    r->server.is_loopback = is_loopback(found->ai_addr);
    if (!r->server.is_loopback && !o->n_api_keys)
        status = qn_fail(QN_E_ARG,
                         "--host %s can be reached from other machines: that needs a key (--api-key-file)",
                         o->host);
    if (status == QN_OK) {
        r->listener =
            evconnlistener_new_bind(r->server.base, on_connection, r,
                                    LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE,
                                    BACKLOG, found->ai_addr, (int)found->ai_addrlen);
        if (!r->listener)
            status = qn_fail(QN_E_IO, "cannot listen on %s port %d: %s", o->host, o->port, strerror(errno));
    }
    freeaddrinfo(found);
    if (status == QN_OK) evconnlistener_set_error_cb(r->listener, on_accept_error);
    return status;
}

/* ---- the end ------------------------------------------------------------------------------------------- */

static void on_signal(evutil_socket_t number, short what, void *user)
{
    running *r = user;
    qn_server *s = &r->server;
    (void)what;
    if (r->is_loading) { /* nothing is half done */
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    if (s->is_draining) {
        r->status = QN_E_CANCELLED;
        snprintf(r->why, sizeof r->why, "ended by a second signal");
        event_base_loopbreak(s->base);
        return;
    }
    s->is_draining = 1;
    qn_log(QN_LOG_INFO, "draining: %lld requests are under way", (long long)s->n_exchanges);
    qn_look_ahead_drop_all(s);
    qn_connections_close(s, 0);
    qn_server_note_end(s);
}

static qn_status start(running *r)
{
    qn_server *s = &r->server;
    static const int numbers[] = {SIGTERM, SIGINT};
    QN_TRY(qn_wake_open(&s->wake));
    s->base = event_base_new();
    if (!s->base) return qn_fail_nomem(0);
    QN_TRY(start_listening(r));
    r->wake_event = event_new(s->base, s->wake.file, EV_READ | EV_PERSIST, on_wake, r);
    r->accept_again = evtimer_new(s->base, on_accept_again, r);
    if (!r->wake_event || !r->accept_again || event_add(r->wake_event, NULL) != 0) return qn_fail_nomem(0);
    for (int i = 0; i < 2; i++) {
        r->signals[i] = evsignal_new(s->base, numbers[i], on_signal, r);
        if (!r->signals[i] || event_add(r->signals[i], NULL) != 0) return qn_fail_nomem(0);
    }
    QN_TRY(qn_workers_new(WORKERS, &s->wake, &s->workers));
    QN_TRY(qn_workers_new(SLOW_WORKERS, &s->wake, &s->slow_workers));
    r->load = (loading){.job = {load_model, model_loaded, NULL}, .server = s};
    r->is_loading = 1;
    qn_workers_push(s->slow_workers, &r->load.job);
    say_where(r);
    return QN_OK;
}

/* Ends what runs, in an order in which nothing is used after it is gone: clients, then jobs, then the model.
 */
static void stop(running *r)
{
    qn_server *s = &r->server;
    if (r->listener) evconnlistener_free(r->listener);
    qn_look_ahead_drop_all(s);
    qn_connections_close(s, 1);
    /* Jobs that end may start others, such as to close what they opened. */
    while (s->workers && (s->n_exchanges || s->n_look_aheads)) {
        struct timeval most = {0, 10000};
        event_base_loopexit(s->base, &most);
        event_base_loop(s->base, EVLOOP_ONCE);
    }
    qn_workers_free(s->slow_workers);
    qn_workers_free(s->workers);
    if (r->load.model) qn_model_close(&r->load.model);
    for (int i = 0; i < 2; i++)
        if (r->signals[i]) event_free(r->signals[i]);
    if (r->accept_again) event_free(r->accept_again);
    if (r->wake_event) event_free(r->wake_event);
    if (s->base) event_base_free(s->base);
    qn_wake_close(&s->wake);
}

static int most_connections(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= CONNECTIONS_MAX + FILES_KEPT)
        return CONNECTIONS_MAX;
    return files.rlim_cur > 2 * FILES_KEPT ? (int)files.rlim_cur - FILES_KEPT : FILES_KEPT;
}

qn_status qn_server_run(const qn_server_options *options)
{
    running *r = qn_calloc(1, sizeof *r);
    if (!r) return QN_E_NOMEM;
    qn_server *s = &r->server;
    s->options = options;
    s->wake.file = -1;
    s->connections_max = most_connections();
    if (getrandom(&s->id_seed, sizeof s->id_seed, GRND_NONBLOCK) < 0) s->id_seed = (uint64_t)time(NULL);
    signal(SIGPIPE, SIG_IGN);
    qn_status status = start(r);
    if (status == QN_OK) {
        event_base_dispatch(s->base);
        status = r->status;
        if (status != QN_OK) qn_fail_copy(status, r->why);
    }
    stop(r);
    qn_free(r);
    return status;
}
