#include "server/http/guard.h"

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
static int is_known_host(const qn_http_server *s, const char *host)
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
        inet_pton(AF_INET6, name, address) == 1)
        return 1;
    for (size_t i = 0; i < s->options->n_hosts; i++)
        if (strcasecmp(name, s->options->hosts[i]) == 0) return 1;
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

static int check_key(const qn_http_server *s, const qn_http *h, const qn_route *route, int *key,
                     qn_api_error *error)
{
    const char *shown = bearer(h), *other = qn_http_get(h, "x-api-key");
    const size_t n_keys = s->options->n_api_keys, n_all = n_keys + s->options->n_admin_keys;
    const int is_admin = route && route->access == QN_ACCESS_ADMIN;
    if (is_admin && n_all == n_keys)
        return qn_api_fail(
            error, 403, "no_admin_key", NULL,
            "this route changes the server, so it needs an admin key, and the server has none: "
            "start it with --admin-key-file FILE");
    if (!is_admin && !n_keys) return 0;
    /* Anthropic's clients send an empty one where they have a token instead. */
    if (other && !*other) other = NULL;
    if (!shown && !other)
        return qn_api_fail(error, 401, "missing_api_key", NULL,
                           "%s needs an %s key: send the header Authorization: Bearer KEY, or "
                           "x-api-key: KEY",
                           is_admin ? "this route" : "this server", is_admin ? "admin" : "API");
    if (shown && other && !qn_guard_same(shown, other))
        return qn_api_fail(error, 401, "invalid_api_key", NULL,
                           "the headers Authorization and x-api-key have different keys");
    if (!shown) shown = other;
    for (size_t i = 0; i < n_all; i++)
        if (qn_guard_same(shown, s->options->api_keys[i])) *key = (int)i;
    if (is_admin && *key >= 0 && (size_t)*key < n_keys)
        return qn_api_fail(error, 403, "not_admin", NULL, "the key is not an admin key (--admin-key-file)");
    return *key >= 0 ? 0 : qn_api_fail(error, 401, "invalid_api_key", NULL, "the API key is not valid");
}

int qn_guard_check(const qn_http_server *s, const qn_http *h, const qn_route *route, int *key,
                   qn_api_error *error)
{
    const char *host = qn_http_get(h, "host");
    *key = -1;
    if (host && (s->is_loopback || s->options->n_allowed_hosts) && !is_known_host(s, host))
        return qn_api_fail(
            error, 403, "unknown_host", NULL,
            "the request's host name is not one of this server's (--allow-host NAME allows one)");
    return route && route->access == QN_ACCESS_OPEN ? 0 : check_key(s, h, route, key, error);
}

/* ---- pages of other origins (CORS) --------------------------------------------------------------------- */

enum { EXTRA_HEADERS_MAX = 32, EXTRA_NAME_MAX = 64 };

/* What SDKs send from a browser: OpenAI's, Anthropic's, Vercel's, OpenRouter's. */
static const char allowed_headers[] =
    "authorization, content-type, x-api-key, accept, user-agent, x-requested-with, x-request-id, "
    "openai-organization, openai-project, openai-beta, anthropic-version, anthropic-beta, "
    "anthropic-dangerous-direct-browser-access, http-referer, x-title";

/* OpenAI's and Anthropic's SDKs send headers with this prefix, and new versions send new ones. */
static const char extra_prefix[] = "x-stainless-";

/* Is name[0..n) such a header, of letters, digits and hyphens? */
static int is_extra(const char *name, size_t n)
{
    size_t i = sizeof extra_prefix - 1;
    if (n <= i || n > EXTRA_NAME_MAX || strncasecmp(name, extra_prefix, i) != 0) return 0;
    for (; i < n; i++) {
        const char c = name[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-'))
            return 0;
    }
    return 1;
}

/* asked: what a preflight lists, or NULL. */
static void write_allowed_headers(const char *asked, qn_buf *headers)
{
    qn_buf_printf(headers, "access-control-allow-headers: %s", allowed_headers);
    for (int n = 0; asked && *asked && n < EXTRA_HEADERS_MAX;) {
        asked += strspn(asked, ", \t");
        const size_t length = strcspn(asked, ", \t");
        if (is_extra(asked, length)) {
            qn_buf_puts(headers, ", ");
            qn_buf_append(headers, asked, length);
            n++;
        }
        asked += length;
    }
    qn_buf_puts(headers, "\r\n");
}

/* What a browser asks before it sends a page's request. Pages may use GET and POST on any path that a browser lets
 * them call; other methods are listed where the path takes them. */
static void write_preflight(const qn_http *h, int is_named, const char *methods, qn_buf *headers)
{
    const char *private_network = qn_http_get(h, "access-control-request-private-network");
    qn_buf_printf(headers, "access-control-allow-methods: GET, POST%s\r\n",
                  methods && strstr(methods, "DELETE") ? ", DELETE" : "");
    write_allowed_headers(qn_http_get(h, "access-control-request-headers"), headers);
    /* Chromium caps this at two hours. */
    qn_buf_puts(headers, "access-control-max-age: 7200\r\n");
    /* Chromium asks this if a public page calls a private address. "*" does not allow it. */
    if (is_named && private_network && strcmp(private_network, "true") == 0)
        qn_buf_puts(headers, "access-control-allow-private-network: true\r\n");
}

void qn_guard_write_cors(const qn_http_server *s, const qn_http *h, const char *methods, qn_buf *headers)
{
    const char *origin = qn_http_get(h, "origin");
    const int is_preflight = h->method && strcmp(h->method, "OPTIONS") == 0;
    for (size_t i = 0; origin && i < s->options->n_cors_origins; i++) {
        const char *allowed = s->options->cors_origins[i];
        const int is_named = strcmp(allowed, "*") != 0;
        if (is_named && strcmp(allowed, origin) != 0) continue;
        qn_buf_printf(
            headers,
            "access-control-allow-origin: %s\r\n"
            "access-control-expose-headers: x-request-id, request-id, retry-after\r\nvary: origin%s\r\n",
            allowed, is_preflight ? ", access-control-request-headers" : "");
        if (is_preflight) write_preflight(h, is_named, methods, headers);
        return;
    }
}
