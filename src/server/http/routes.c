#include "server/http/routes.h"

#include <string.h>

static const qn_route routes[] = {
    {"GET", "/health", qn_route_health, 1, 0},
    {"GET", "/metrics", qn_route_metrics, 0, 0},
    {"GET", "/v1/models", qn_route_models, 0, 1},
    {"GET", "/v1/models/", qn_route_models, 0, 1},
    {"POST", "/v1/chat/completions", qn_route_chat, 0, 1},
    {"POST", "/v1/completions", qn_route_completions, 0, 1},
    {"POST", "/v1/embeddings", qn_route_embeddings, 0, 1},
};

/* The row with this method and path; *allowed as in qn_route_find. */
static const qn_route *find(const char *method, const char *path, const char **allowed)
{
    *allowed = NULL;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        const qn_route *r = &routes[i];
        size_t n = strlen(r->path);
        int is_below = r->path[n - 1] == '/';
        if (is_below ? strncmp(path, r->path, n) != 0 || !path[n] : strcmp(path, r->path) != 0) continue;
        int is_get = strcmp(r->method, "GET") == 0;
        if (strcmp(method, r->method) == 0 || (is_get && strcmp(method, "HEAD") == 0)) return r;
        *allowed = is_get ? "GET, HEAD" : r->method;
    }
    return NULL;
}

const qn_route *qn_route_find(const char *method, const char *path, char *path_out, size_t size,
                              const char **allowed)
{
    static const char prefix[] = "/v1";
    enum { PREFIX = sizeof prefix - 1 };
    size_t n = 0;
    for (; *path && n + 1 < size; path++)
        if (*path != '/' || !n || path_out[n - 1] != '/') path_out[n++] = *path;
    if (n > 1 && path_out[n - 1] == '/') n--;
    path_out[n] = 0;
    const qn_route *route = find(method, path_out, allowed);
    if (route || *allowed || n + PREFIX >= size) return route;
    memmove(path_out + PREFIX, path_out, n + 1);
    memcpy(path_out, prefix, PREFIX);
    route = find(method, path_out, allowed);
    if (!route && !*allowed) memmove(path_out, path_out + PREFIX, n + 1);
    return route;
}
