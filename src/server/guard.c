#include "server/guard.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

int qn_guard_same(const char *a, const char *b)
{
    size_t n_a = strlen(a), n_b = strlen(b);
    volatile unsigned char differs = n_a != n_b;
    for (size_t i = 0; i < n_b; i++) differs |= (unsigned char)(b[i] ^ a[n_a ? i % n_a : 0]);
    return !differs;
}

/* A page of a stranger whose name was made to point here still sends its own name as Host. Addresses cannot
 * be borrowed that way. */
static int is_known_host(const qn_server *s, const char *host)
{
    char name[256];
    unsigned char address[16];
    const char *end = host[0] == '[' ? strchr(host, ']') : strchr(host, ':');
    size_t n = end ? (size_t)(end - host) : strlen(host);
    const char *begin = host;
    if (host[0] == '[') begin++, n = n ? n - 1 : 0;
    if (n == 0 || n >= sizeof name) return 0;
    memcpy(name, begin, n);
    name[n] = 0;
    if (strcasecmp(name, "localhost") == 0 || inet_pton(AF_INET, name, address) == 1 ||
        inet_pton(AF_INET6, name, address) == 1 || strcasecmp(name, s->options->host) == 0)
        return 1;
    for (size_t i = 0; i < s->options->n_allowed_hosts; i++)
        if (strcasecmp(name, s->options->allowed_hosts[i]) == 0) return 1;
    return 0;
}

/* The key of "Authorization: Bearer KEY"; NULL if there is none. Another scheme is not meant for this server.
 */
static const char *bearer(const qn_http *h)
{
    static const char scheme[] = "bearer ";
    const char *value = qn_http_get(h, "authorization");
    return value && strncasecmp(value, scheme, sizeof scheme - 1) == 0 ? value + sizeof scheme - 1 : NULL;
}

static int check_key(const qn_server *s, const qn_http *h, int *key, qn_api_error *error)
{
    const char *shown = bearer(h), *other = qn_http_get(h, "x-api-key");
    if (!s->options->n_api_keys) return 0;
    /* Anthropic's clients send an empty one where they have a token instead. */
    if (other && !*other) other = NULL;
    if (!shown && !other)
        return qn_api_fail(error, 401, "missing_api_key", NULL,
                           "this server asks for a key: send the header Authorization: Bearer KEY, or "
                           "x-api-key: KEY");
    if (shown && other && !qn_guard_same(shown, other))
        return qn_api_fail(error, 401, "invalid_api_key", NULL,
                           "the headers Authorization and x-api-key show different keys");
    if (!shown) shown = other;
    for (size_t i = 0; i < s->options->n_api_keys; i++)
        if (qn_guard_same(shown, s->options->api_keys[i])) *key = (int)i;
    return *key >= 0 ? 0 : qn_api_fail(error, 401, "invalid_api_key", NULL, "the key is not known here");
}

int qn_guard_check(const qn_server *s, const qn_http *h, const qn_route *route, int *key, qn_api_error *error)
{
    const char *host = qn_http_get(h, "host");
    *key = -1;
    if (host && (s->is_loopback || s->options->n_allowed_hosts) && !is_known_host(s, host))
        return qn_api_fail(
            error, 403, "unknown_host", NULL,
            "this server was called by a name that is not its own (--allow-host NAME allows one)");
    return route && route->is_open ? 0 : check_key(s, h, key, error);
}

void qn_guard_write_cors(const qn_server *s, const qn_http *h, qn_buf *headers)
{
    const char *origin = qn_http_get(h, "origin");
    for (size_t i = 0; origin && i < s->options->n_cors_origins; i++) {
        const char *allowed = s->options->cors_origins[i];
        if (strcmp(allowed, "*") != 0 && strcmp(allowed, origin) != 0) continue;
        qn_buf_printf(headers,
                      "access-control-allow-origin: %s\r\nvary: origin\r\n"
                      "access-control-allow-methods: GET, POST\r\n"
                      "access-control-allow-headers: authorization, content-type\r\n"
                      "access-control-expose-headers: x-request-id, retry-after\r\n",
                      allowed);
        return;
    }
}
