/* Listening, and taking connections while the system gives files for them. */
#include <errno.h>
#include <event2/listener.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "base/log.h"
#include "base/mem.h"
#include "server/http/connection.h"

enum { BACKLOG = 1024, CONNECTIONS_MAX = 1024, FILES_KEPT = 64, ACCEPT_AGAIN_MS = 100 };

static const struct timeval soon = {0, ACCEPT_AGAIN_MS * 1000};

static void on_connection(struct evconnlistener *l, evutil_socket_t file, struct sockaddr *from, int n,
                          void *user)
{
    qn_http_server *h = user;
    (void)from, (void)n;
    qn_connection_open(h, file);
    if (h->n_connections < h->connections_max) return;
    /* Others wait in the system's queue. */
    evconnlistener_disable(l);
    evtimer_add(h->accept_again, &soon);
}

static void on_accept_error(struct evconnlistener *l, void *user)
{
    qn_http_server *h = user;
    qn_log(QN_LOG_WARNING, "a connection could not be accepted: %s", strerror(EVUTIL_SOCKET_ERROR()));
    evconnlistener_disable(l);
    evtimer_add(h->accept_again, &soon);
}

static void on_accept_again(evutil_socket_t file, short what, void *user)
{
    qn_http_server *h = user;
    (void)file, (void)what;
    if (h->n_connections < h->connections_max)
        evconnlistener_enable(h->listener);
    else
        evtimer_add(h->accept_again, &soon);
}

static int is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24) == 127;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
    return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(six);
}

static int most_connections(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= CONNECTIONS_MAX + FILES_KEPT)
        return CONNECTIONS_MAX;
    return files.rlim_cur > 2 * FILES_KEPT ? (int)files.rlim_cur - FILES_KEPT : FILES_KEPT;
}

qn_status qn_http_server_listen(qn_http_server *h)
{
    const qn_http_options *o = h->options;
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM},
                    *found = NULL;
    char port[16];
    snprintf(port, sizeof port, "%d", o->port);
    int failed = getaddrinfo(o->host, port, &hints, &found);
    if (failed) return qn_fail(QN_E_ARG, "--host: '%s': %s", o->host, gai_strerror(failed));
    qn_status status = QN_OK;
    h->is_loopback = is_loopback(found->ai_addr);
    h->connections_max = most_connections();
    if (!h->is_loopback && !o->n_api_keys)
        status = qn_fail(QN_E_ARG,
                         "--host %s can be reached from other machines, so the server needs an API key "
                         "(--api-key-file)",
                         o->host);
    if (status == QN_OK) {
        h->listener = evconnlistener_new_bind(
            h->base, on_connection, h, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE,
            BACKLOG, found->ai_addr, (int)found->ai_addrlen);
        if (!h->listener)
            status = qn_fail(QN_E_IO, "cannot listen on %s port %d: %s", o->host, o->port, strerror(errno));
    }
    freeaddrinfo(found);
    QN_TRY(status);
    evconnlistener_set_error_cb(h->listener, on_accept_error);
    h->accept_again = evtimer_new(h->base, on_accept_again, h);
    return h->accept_again ? QN_OK : qn_fail_nomem(0);
}

void qn_http_server_close(qn_http_server *h)
{
    if (h->listener) evconnlistener_free(h->listener);
    if (h->accept_again) event_free(h->accept_again);
    h->listener = NULL;
    h->accept_again = NULL;
}

void qn_http_server_url(const qn_http_server *h, char url[QN_HTTP_URL_MAX])
{
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";
    _Static_assert(QN_HTTP_URL_MAX >= NI_MAXHOST + NI_MAXSERV + 16, "room for the url");
    url[0] = 0;
    if (getsockname(evconnlistener_get_fd(h->listener), (struct sockaddr *)&address, &size) != 0) return;
    getnameinfo((struct sockaddr *)&address, size, host, sizeof host, port, sizeof port,
                NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(url, QN_HTTP_URL_MAX, strchr(host, ':') ? "http://[%s]:%s" : "http://%s:%s", host, port);
}
