/* Requests over HTTP, several at a time, driven by one thread that waits for them. A request is one exchange: no
 * redirect is followed, nothing is tried again, no sum is checked; that is decided above (way.h). Bytes are handed
 * over as they come and are never kept here.
 *
 * net_curl.c does it by libcurl; a build without libcurl has net_none.c, which opens nothing and says why. */
#ifndef QN_HUB_NET_NET_H
#define QN_HUB_NET_NET_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct qn_net qn_net;
typedef struct qn_net_call qn_net_call;

enum { QN_NET_TEXT_MAX = 256 };

/* What is known of an answer. Numbers that were not said are -1, texts "". */
typedef struct {
    int status;                    /* 0: there was no answer; failure says why */
    char failure[QN_NET_TEXT_MAX]; /* what libcurl says; "" where the exchange went well */
    int is_final;                  /* of failure: asking again changes nothing, as with a bad certificate */
    int64_t length;                /* Content-Length */
    int64_t range_begin, range_total; /* Content-Range */
    int64_t retry_after_s;
    int64_t reset_s;            /* RateLimit's t (a draft of the IETF, which the Hub follows); 0: not said */
    int64_t linked_size;        /* X-Linked-Size */
    char etag[QN_NET_TEXT_MAX]; /* without quotes and W/ */
    char linked_etag[QN_NET_TEXT_MAX]; /* X-Linked-ETag, likewise */
    char error[QN_NET_TEXT_MAX];       /* X-Error-Message, else X-Error-Code */
    const char *location, *link;       /* "" where absent; they live as long as the call */
} qn_net_reply;

typedef struct {
    const char *url;
    const char *token;  /* NULL: none */
    const char *accept; /* NULL: anything */
    int64_t begin, end; /* the bytes asked for, [begin, end); end 0: all, without a Range */
    /* Takes bytes of the body; anything but QN_OK ends the call, and qn_net_wait reports it. */
    qn_status (*take)(void *user, const qn_net_reply *reply, const void *bytes, size_t n);
    void *user;
} qn_net_request;

/* timeout_s: a call without a byte for so long fails. QN_E_UNSUPPORTED: built without libcurl. */
qn_status qn_net_open(int timeout_s, qn_net **out);
/* Ends all calls. NULL is accepted. */
void qn_net_close(qn_net *net);
/* The request's texts are copied. *out lives until qn_net_end. */
qn_status qn_net_start(qn_net *net, const qn_net_request *request, qn_net_call **out);
/* Waits for up to timeout_ms; *done is a call that has ended, or NULL. *status is what its take returned, or QN_OK.
 * The thread's message is take's. */
qn_status qn_net_wait(qn_net *net, int timeout_ms, qn_net_call **done, qn_status *status);
const qn_net_reply *qn_net_get_reply(const qn_net_call *call);
void *qn_net_get_user(const qn_net_call *call);
/* Ends the call, over or not. NULL is accepted. */
void qn_net_end(qn_net *net, qn_net_call *call);

/* One header line ("Name: value\r\n") into a reply; location and link are texts of at least QN_URL_BYTES_MAX + 1
 * bytes. For net_curl.c, its tests and the fuzz target. */
void qn_net_read_header(qn_net_reply *r, char *location, char *link, const char *line, size_t n);

#endif
