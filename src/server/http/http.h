/* HTTP/1.1 requests, read strictly: bytes go in as they come, a request comes out, or the status that refuses
 * it.
 *
 * What two programs might read differently is refused, so that nothing can be smuggled past a proxy: bare
 * line feeds, folded lines, a length given twice or beside a transfer coding, trailers, control characters.
 * As RFC 9112 has it, an empty line before a request and chunk extensions are skipped, and of a target in absolute
 * form the host takes the place of the header Host. Letters, digits and - . _ ~ of a path are unescaped.
 * Invariant: what is held is bounded by QN_HTTP_HEAD_MAX and body_max. Nothing here reads or writes a socket. One
 * thread at a time. */
#ifndef QN_SERVER_HTTP_HTTP_H
#define QN_SERVER_HTTP_HTTP_H

#include <stdint.h>

#include "base/buf.h"

enum {
    QN_HTTP_HEAD_MAX = 16384,
    QN_HTTP_HEADERS_MAX = 64,
    QN_HTTP_CHUNK_LINE_MAX = 16,
    QN_HTTP_RESERVED_MAX = 64 << 20, /* of a body whose length is said: the memory is taken at once */
    QN_HTTP_EXTENSIONS_MAX = 4096,   /* bytes of a body's chunk extensions */
    QN_HTTP_EMPTY_LINES_MAX = 4      /* before a request */
};

typedef enum {
    QN_HTTP_HEAD,  /* request line and headers */
    QN_HTTP_READY, /* the head is whole: look at it, then qn_http_read_body or give up */
    QN_HTTP_BODY,
    QN_HTTP_DONE,  /* the request is whole */
    QN_HTTP_FAILED /* `status` and `why` say how; the connection is of no more use */
} qn_http_state;

/* Strings lie in the parser's head and end with a NUL. */
typedef struct {
    char *name, *value; /* the name in small letters */
} qn_http_header;

typedef struct {
    qn_http_state state;
    int status;                  /* of a failure: 400, 413, 415, 417, 431, 503, 505 */
    const char *why;             /* one sentence; static storage */
    char *method, *path, *query; /* query: behind the '?', or "" */
    char *authority;             /* of a target in absolute form; NULL: none */
    int n_empty_lines;           /* that were skipped */
    int minor;                   /* 1 for HTTP/1.1, 0 for HTTP/1.0 */
    qn_http_header headers[QN_HTTP_HEADERS_MAX];
    size_t n_headers;
    int64_t content_length; /* -1: none */
    int is_chunked, keep_alive, wants_continue;
    qn_buf head, body;
    size_t body_max;
    int step;      /* inside a chunked body */
    uint64_t left; /* bytes of the body or chunk that are still to come */
    char line[QN_HTTP_CHUNK_LINE_MAX];
    size_t line_length;
    int is_extension;    /* the rest of the line says nothing to us */
    int is_after_return; /* the line's CR was read */
    size_t n_extension_bytes;
} qn_http;

/* A parser for the first request. */
void qn_http_start(qn_http *h, size_t body_max);
/* Forgets the request, for the next one on the same connection. */
void qn_http_next(qn_http *h);
void qn_http_free(qn_http *h);
/* Takes bytes[0..n) as far as the request goes; returns how many. It stops at READY, DONE and FAILED. */
size_t qn_http_feed(qn_http *h, const void *bytes, size_t n);
/* From READY on: the body is wanted. The state becomes BODY, DONE where there is none, or FAILED (413). */
void qn_http_read_body(qn_http *h);
/* 1 when a request has begun and is not whole. */
int qn_http_is_inside(const qn_http *h);
/* The value of a header that may stand once; NULL: absent. name in small letters. */
const char *qn_http_get(const qn_http *h, const char *name);
enum { QN_HTTP_DATE_BYTES = 30 };
/* "Sun, 06 Nov 1994 08:49:37 GMT" of a time since the epoch, up to the year 9999. */
void qn_http_date(int64_t time_s, char date[QN_HTTP_DATE_BYTES]);
/* "Not Found". */
const char *qn_http_reason(int status);

#endif
