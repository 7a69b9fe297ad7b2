/* Listening, and taking connections while the system gives files for them. */
#include <errno.h>
#include <event2/listener.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "server/http/connection.h"

enum { BACKLOG = 1024, CONNECTIONS_MAX = 1024, FILES_KEPT = 64, ACCEPT_AGAIN_MS = 100 };

static const struct timeval soon = {0, ACCEPT_AGAIN_MS * 1000};

/* ---- taking connections -------------------------------------------------------------------------------- */

/* New ones wait in the system's queue. */
static void pause_all(qn_http_server *h)
{
    for (size_t i = 0; i < h->n_listeners; i++) evconnlistener_disable(h->listeners[i]);
    evtimer_add(h->accept_again, &soon);
}

static int has_room(qn_http_server *h)
{
    while (h->n_connections >= h->connections_max && qn_connections_give_way(h)) continue;
    return h->n_connections < h->connections_max;
}

static void on_connection(struct evconnlistener *l, evutil_socket_t file, struct sockaddr *from, int n,
                          void *user)
{
    qn_http_server *h = user;
    (void)l, (void)from, (void)n;
    qn_connection_open(h, file);
    if (!has_room(h)) pause_all(h);
}

static void on_accept_error(struct evconnlistener *l, void *user)
{
    (void)l;
    qn_log(QN_LOG_WARNING, "a connection could not be accepted: %s", strerror(EVUTIL_SOCKET_ERROR()));
    pause_all(user);
}

static void on_accept_again(evutil_socket_t file, short what, void *user)
{
    qn_http_server *h = user;
    (void)file, (void)what;
    if (has_room(h))
        for (size_t i = 0; i < h->n_listeners; i++) evconnlistener_enable(h->listeners[i]);
    else
        evtimer_add(h->accept_again, &soon);
}

static int most_connections(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= CONNECTIONS_MAX + FILES_KEPT)
        return CONNECTIONS_MAX;
    return files.rlim_cur > 2 * FILES_KEPT ? (int)files.rlim_cur - FILES_KEPT : FILES_KEPT;
}

/* ---- addresses ----------------------------------------------------------------------------------------- */

static int is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_UNIX) return 1;
    if (a->sa_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24) == 127;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
    return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(six);
}

/* The path of a Unix socket: behind "unix:", or a name that ends with ".sock". NULL: it is none. */
static const char *socket_path(const char *host)
{
    const size_t n = strlen(host);
    if (strncmp(host, "unix:", 5) == 0) return host + 5;
    return n > 5 && strcmp(host + n - 5, ".sock") == 0 ? host : NULL;
}

static qn_status listen_at(qn_http_server *h, const char *host, const struct sockaddr *address, socklen_t n)
{
    const qn_http_options *o = h->options;
    if (!is_loopback(address) && !o->n_api_keys)
        return qn_fail(QN_E_ARG,
                       "--host %s can be reached from other machines, so the server needs an API key "
                       "(--api-key-file)",
                       host);
    struct evconnlistener *l = evconnlistener_new_bind(
        h->base, on_connection, h, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE, BACKLOG,
        address, (int)n);
    if (!l && address->sa_family == AF_UNIX)
        return qn_fail(QN_E_IO, "cannot listen on %s: %s", host, strerror(errno));
    if (!l) return qn_fail(QN_E_IO, "cannot listen on %s port %d: %s", host, o->port, strerror(errno));
    evconnlistener_set_error_cb(l, on_accept_error);
    h->is_loopback &= is_loopback(address);
    h->listeners[h->n_listeners++] = l;
    return QN_OK;
}

/* A socket that a server left behind, where nobody listens any more, goes away. QN_E_IO: another file, or
 * somebody listens. */
static qn_status take_path(const struct sockaddr_un *address)
{
    struct stat found;
    if (lstat(address->sun_path, &found) != 0) return QN_OK;
    if (!S_ISSOCK(found.st_mode))
        return qn_fail(QN_E_IO, "cannot listen on %s: the file exists and is no socket", address->sun_path);
    const int file = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (file < 0) return qn_fail(QN_E_IO, "cannot listen on %s: %s", address->sun_path, strerror(errno));
    const int is_taken = connect(file, (const struct sockaddr *)address, sizeof *address) == 0;
    const int is_left = !is_taken && errno == ECONNREFUSED;
    close(file);
    if (is_left && unlink(address->sun_path) == 0) return QN_OK;
    return qn_fail(QN_E_IO, "cannot listen on %s: another server uses it", address->sun_path);
}

static qn_status listen_at_path(qn_http_server *h, const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (!*path || strlen(path) >= sizeof address.sun_path)
        return qn_fail(QN_E_ARG, "--host: the path of a socket has 1 to %zu bytes",
                       sizeof address.sun_path - 1);
    memcpy(address.sun_path, path, strlen(path) + 1);
    QN_TRY(take_path(&address));
    const mode_t old = umask(S_IRWXG | S_IRWXO); /* its owner alone may connect */
    const qn_status status = listen_at(h, path, (const struct sockaddr *)&address, sizeof address);
    umask(old);
    return status;
}

/* The port that the first listener got, where any was asked for. */
static int port_of(const qn_http_server *h)
{
    struct sockaddr_storage address;
    for (size_t i = 0; i < h->n_listeners && !h->options->port; i++) {
        socklen_t size = sizeof address;
        if (getsockname(evconnlistener_get_fd(h->listeners[i]), (struct sockaddr *)&address, &size) != 0)
            continue;
        if (address.ss_family == AF_INET) return ntohs(((struct sockaddr_in *)(void *)&address)->sin_port);
        if (address.ss_family == AF_INET6) return ntohs(((struct sockaddr_in6 *)(void *)&address)->sin6_port);
    }
    return h->options->port;
}

static qn_status listen_at_name(qn_http_server *h, const char *host)
{
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM},
                    *found = NULL;
    char port[16];
    snprintf(port, sizeof port, "%d", port_of(h));
    const int failed = getaddrinfo(host, port, &hints, &found);
    if (failed) return qn_fail(QN_E_ARG, "--host: '%s': %s", host, gai_strerror(failed));
    const qn_status status = listen_at(h, host, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return status;
}

qn_status qn_http_server_listen(qn_http_server *h)
{
    const qn_http_options *o = h->options;
    h->connections_max = most_connections();
    h->is_loopback = 1;
    h->accept_again = evtimer_new(h->base, on_accept_again, h);
    if (!h->accept_again) return qn_fail_nomem(0);
    if (o->n_hosts > QN_HTTP_HOSTS_MAX)
        return qn_fail(QN_E_ARG, "--host: at most %d addresses", (int)QN_HTTP_HOSTS_MAX);
    for (size_t i = 0; i < o->n_hosts; i++) {
        const char *path = socket_path(o->hosts[i]);
        QN_TRY(path ? listen_at_path(h, path) : listen_at_name(h, o->hosts[i]));
    }
    return QN_OK;
}

static int is_unix(const qn_http_server *h, size_t i, struct sockaddr_un *address)
{
    socklen_t size = sizeof *address;
    memset(address, 0, sizeof *address);
    return getsockname(evconnlistener_get_fd(h->listeners[i]), (struct sockaddr *)address, &size) == 0 &&
           address->sun_family == AF_UNIX;
}

void qn_http_server_close(qn_http_server *h)
{
    for (size_t i = 0; i < h->n_listeners; i++) {
        struct sockaddr_un address;
        if (is_unix(h, i, &address)) unlink(address.sun_path);
        evconnlistener_free(h->listeners[i]);
    }
    if (h->accept_again) event_free(h->accept_again);
    h->n_listeners = 0;
    h->accept_again = NULL;
}

void qn_http_server_url(const qn_http_server *h, size_t i, char url[QN_HTTP_URL_MAX])
{
    struct sockaddr_storage address;
    struct sockaddr_un path;
    socklen_t size = sizeof address;
    char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";
    _Static_assert(QN_HTTP_URL_MAX >= NI_MAXHOST + NI_MAXSERV + 16, "room for the url");
    url[0] = 0;
    if (is_unix(h, i, &path)) {
        snprintf(url, QN_HTTP_URL_MAX, "unix:%s", path.sun_path);
        return;
    }
    if (getsockname(evconnlistener_get_fd(h->listeners[i]), (struct sockaddr *)&address, &size) != 0) return;
    getnameinfo((struct sockaddr *)&address, size, host, sizeof host, port, sizeof port,
                NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(url, QN_HTTP_URL_MAX, strchr(host, ':') ? "http://[%s]:%s" : "http://%s:%s", host, port);
}
