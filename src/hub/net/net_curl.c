#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "hub/names/url.h"
#include "hub/net/net.h"

enum { CONNECT_TIMEOUT_S = 20, BUFFER_BYTES = 128 << 10 };

struct qn_net {
    CURLM *multi;
    int timeout_s;
    qn_net_call *calls; /* a list of those that live */
};

struct qn_net_call {
    CURL *easy;
    struct curl_slist *headers;
    qn_net_reply reply;
    qn_status (*take)(void *user, const qn_net_reply *reply, const void *bytes, size_t n);
    void *user;
    qn_status status; /* of take */
    char error[CURL_ERROR_SIZE];
    char location[QN_URL_BYTES_MAX + 1], link[QN_URL_BYTES_MAX + 1];
    qn_net_call *next, **place; /* *place == this */
};

qn_status qn_net_open(int timeout_s, qn_net **out)
{
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return qn_fail(QN_E_INTERNAL, "libcurl could not be initialized");
    qn_net *net = qn_calloc(1, sizeof *net);
    if (!net) return QN_E_NOMEM;
    net->timeout_s = timeout_s;
    net->multi = curl_multi_init();
    if (!net->multi) {
        qn_free(net);
        return qn_fail_nomem(0);
    }
    *out = net;
    return QN_OK;
}

void qn_net_close(qn_net *net)
{
    if (!net) return;
    while (net->calls) qn_net_end(net, net->calls);
    curl_multi_cleanup(net->multi);
    qn_free(net);
}

static size_t on_header(char *line, size_t size, size_t n, void *user)
{
    qn_net_call *call = user;
    const char *location = call->location, *link = call->link;
    if (n > 5 &&
        memcmp(line, "HTTP/", 5) == 0) { /* an answer begins; one of a proxy or a "100" went before */
        call->location[0] = call->link[0] = 0;
        call->reply = (qn_net_reply){.length = -1,
                                     .range_begin = -1,
                                     .range_total = -1,
                                     .retry_after_s = -1,
                                     .linked_size = -1,
                                     .location = location,
                                     .link = link};
    }
    qn_net_read_header(&call->reply, call->location, call->link, line, n);
    return size * n;
}

static size_t on_bytes(char *bytes, size_t size, size_t n, void *user)
{
    qn_net_call *call = user;
    long status = 0;
    curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &status);
    call->reply.status = (int)status;
    call->status = call->take(call->user, &call->reply, bytes, size * n);
    return call->status == QN_OK ? size * n : 0;
}

/* 0: memory is out. */
static int add_header(qn_net_call *call, const char *name, const char *value)
{
    char line[QN_URL_BYTES_MAX];
    snprintf(line, sizeof line, "%s: %s", name, value);
    struct curl_slist *longer = curl_slist_append(call->headers, line);
    if (longer) call->headers = longer;
    return longer != NULL;
}

static qn_status set_up(const qn_net *net, qn_net_call *call, const qn_net_request *r)
{
    char range[64], bearer[4200];
    /* The certificates that the system's other programs are told to trust. */
    const char *authorities = getenv("SSL_CERT_FILE");
    int is_good = 1;
    CURL *e = call->easy;
#define SET(option, value) (is_good &= curl_easy_setopt(e, option, value) == CURLE_OK)
    SET(CURLOPT_URL, r->url);
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_FOLLOWLOCATION, 0L);
    SET(CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_USERAGENT, "quern");
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1); /* a connection for each piece: that is faster */
    SET(CURLOPT_CONNECTTIMEOUT,
        (long)(net->timeout_s < CONNECT_TIMEOUT_S ? net->timeout_s : CONNECT_TIMEOUT_S));
    SET(CURLOPT_LOW_SPEED_LIMIT, 1L);
    SET(CURLOPT_LOW_SPEED_TIME, (long)net->timeout_s);
    SET(CURLOPT_BUFFERSIZE, (long)BUFFER_BYTES);
    SET(CURLOPT_ERRORBUFFER, call->error);
    SET(CURLOPT_HEADERFUNCTION, on_header);
    SET(CURLOPT_HEADERDATA, call);
    SET(CURLOPT_WRITEFUNCTION, on_bytes);
    SET(CURLOPT_WRITEDATA, call);
    SET(CURLOPT_PRIVATE, call);
    if (authorities && *authorities) SET(CURLOPT_CAINFO, authorities);
    if (r->end) {
        snprintf(range, sizeof range, "%lld-%lld", (long long)r->begin, (long long)r->end - 1);
        SET(CURLOPT_RANGE, range);
    }
#undef SET
    is_good = is_good && add_header(call, "Accept-Encoding", "identity");
    if (r->accept) is_good = is_good && add_header(call, "Accept", r->accept);
    if (r->token) {
        snprintf(bearer, sizeof bearer, "Bearer %s", r->token);
        is_good = is_good && add_header(call, "Authorization", bearer);
        explicit_bzero(bearer, sizeof bearer);
    }
    is_good = is_good && curl_easy_setopt(e, CURLOPT_HTTPHEADER, call->headers) == CURLE_OK;
    return is_good ? QN_OK : qn_fail(QN_E_INTERNAL, "libcurl refused a request");
}

static void unlink_call(qn_net_call *call)
{
    if (!call->place) return;
    *call->place = call->next;
    if (call->next) call->next->place = call->place;
}

qn_status qn_net_start(qn_net *net, const qn_net_request *request, qn_net_call **out)
{
    qn_net_call *call = qn_calloc(1, sizeof *call);
    if (!call) return QN_E_NOMEM;
    call->take = request->take;
    call->user = request->user;
    call->reply = (qn_net_reply){.location = call->location, .link = call->link};
    call->easy = curl_easy_init();
    qn_status status = call->easy ? set_up(net, call, request) : qn_fail_nomem(0);
    if (status == QN_OK && curl_multi_add_handle(net->multi, call->easy) != CURLM_OK)
        status = qn_fail(QN_E_INTERNAL, "libcurl refused a request");
    if (status != QN_OK) {
        qn_net_end(net, call);
        return status;
    }
    call->place = &net->calls;
    call->next = net->calls;
    if (call->next) call->next->place = &call->next;
    net->calls = call;
    *out = call;
    return QN_OK;
}

/* The call that a message is about, with its result; NULL: no message, or none of an end. */
static qn_net_call *take_message(qn_net *net)
{
    int n_left;
    long status = 0;
    char *private = NULL;
    CURLMsg *m = curl_multi_info_read(net->multi, &n_left);
    if (!m || m->msg != CURLMSG_DONE) return NULL;
    curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &private);
    curl_easy_getinfo(m->easy_handle, CURLINFO_RESPONSE_CODE, &status);
    qn_net_call *call = (qn_net_call *)(void *)private;
    call->reply.status = (int)status;
    call->reply.is_final = m->data.result == CURLE_PEER_FAILED_VERIFICATION ||
                           m->data.result == CURLE_SSL_CACERT_BADFILE ||
                           m->data.result == CURLE_URL_MALFORMAT;
    if (m->data.result != CURLE_OK)
        snprintf(call->reply.failure, sizeof call->reply.failure, "%s",
                 call->error[0] ? call->error : curl_easy_strerror(m->data.result));
    return call;
}

qn_status qn_net_wait(qn_net *net, int timeout_ms, qn_net_call **done, qn_status *status)
{
    int n_running;
    *done = take_message(net);
    if (!*done) {
        CURLMcode code = curl_multi_perform(net->multi, &n_running);
        *done = take_message(net);
        if (code == CURLM_OK && !*done) code = curl_multi_poll(net->multi, NULL, 0, timeout_ms, NULL);
        if (code == CURLM_OK && !*done) code = curl_multi_perform(net->multi, &n_running);
        if (code != CURLM_OK) return qn_fail(QN_E_INTERNAL, "libcurl: %s", curl_multi_strerror(code));
        if (!*done) *done = take_message(net);
    }
    *status = *done ? (*done)->status : QN_OK;
    return QN_OK;
}

const qn_net_reply *qn_net_get_reply(const qn_net_call *call)
{
    return &call->reply;
}

void *qn_net_get_user(const qn_net_call *call)
{
    return call->user;
}

void qn_net_end(qn_net *net, qn_net_call *call)
{
    if (!call) return;
    unlink_call(call);
    if (call->easy) {
        curl_multi_remove_handle(net->multi, call->easy);
        curl_easy_cleanup(call->easy);
    }
    curl_slist_free_all(call->headers);
    qn_free(call);
}
