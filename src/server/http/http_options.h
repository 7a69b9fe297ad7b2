/* Where a server listens, whom it answers, and how long it waits. Any thread. */
#ifndef QN_SERVER_HTTP_HTTP_OPTIONS_H
#define QN_SERVER_HTTP_HTTP_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

/* Strings are borrowed while the server runs. */
typedef struct {
    const char *host; /* address or name to listen on */
    int port;         /* 0: any that is free */
    const char *const *api_keys;
    size_t n_api_keys; /* 0: none is asked for; on a loopback address alone */
    const char *const *allowed_hosts;
    size_t n_allowed_hosts; /* besides localhost and addresses */
    const char *const *cors_origins;
    size_t n_cors_origins; /* whose pages may read answers; "*": anybody's */
    size_t body_max_bytes;
    int64_t read_timeout_ms; /* for a request to arrive as a whole */
    int64_t ping_ms;         /* a stream that is silent for so long gets a comment; 0: none */
} qn_http_options;

#endif
