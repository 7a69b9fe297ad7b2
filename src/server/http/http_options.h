/* Where a server listens, whom it answers, and how long it waits. Any thread. */
#ifndef QN_SERVER_HTTP_HTTP_OPTIONS_H
#define QN_SERVER_HTTP_HTTP_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

enum { QN_HTTP_HOSTS_MAX = 16 };

/* Strings are borrowed while the server runs. */
typedef struct {
    /* Addresses or names to listen on, and paths of Unix sockets: "unix:PATH", or a name that ends with ".sock". */
    const char *const *hosts;
    size_t n_hosts; /* at most QN_HTTP_HOSTS_MAX */
    int port;       /* of all addresses; 0: any that is free */
    const char *const *api_keys;
    size_t n_api_keys; /* 0: none is asked for; on a loopback address alone */
    size_t
        n_admin_keys; /* behind those in api_keys; they open what the others open, too. 0: nothing is administered */
    const char *const *allowed_hosts;
    size_t n_allowed_hosts; /* besides localhost and addresses */
    const char *const *cors_origins;
    size_t n_cors_origins; /* whose pages may read answers; "*": anybody's */
    size_t body_max_bytes;
    int64_t read_timeout_ms; /* for a request to arrive as a whole */
    int64_t ping_ms;         /* a stream that is silent for so long gets a comment; 0: none */
} qn_http_options;

#endif
