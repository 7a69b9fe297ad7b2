#include "server/http/routes.h"

#include <string.h>

static int has_path(const qn_route *r, const char *path)
{
    size_t n = strlen(r->path);
    int is_below = n > 1 && r->path[n - 1] == '/';
    return is_below ? strncmp(path, r->path, n) == 0 && path[n] : strcmp(path, r->path) == 0;
}

/* The row with this method and path. */
static qn_route_match find(const qn_route_table *const *tables, size_t n_tables, const char *method,
                           const char *path)
{
    qn_route_match found = {0};
    for (size_t i = 0; i < n_tables; i++) {
        const qn_route_table *t = tables[i];
        for (const qn_route *r = t->routes; r < t->routes + t->n_routes; r++) {
            if (!has_path(r, path)) continue;
            int is_get = strcmp(r->method, "GET") == 0;
            if (strcmp(method, r->method) == 0 || (is_get && strcmp(method, "HEAD") == 0))
                return (qn_route_match){r, t, NULL};
            found = (qn_route_match){NULL, t, is_get ? "GET, HEAD" : r->method};
        }
    }
    return found;
}

qn_route_match qn_route_find(const qn_route_table *const *tables, size_t n_tables, const char *method,
                             const char *path, char *path_out, size_t size)
{
    static const char prefix[] = "/v1";
    enum { PREFIX = sizeof prefix - 1 };
    size_t n = 0;
    for (; *path && n + 1 < size; path++)
        if (*path != '/' || !n || path_out[n - 1] != '/') path_out[n++] = *path;
    if (n > 1 && path_out[n - 1] == '/') n--;
    path_out[n] = 0;
    qn_route_match found = find(tables, n_tables, method, path_out);
    if (found.table || n + PREFIX >= size) return found;
    memmove(path_out + PREFIX, path_out, n + 1);
    memcpy(path_out, prefix, PREFIX);
    found = find(tables, n_tables, method, path_out);
    if (!found.table) memmove(path_out, path_out + PREFIX, n + 1);
    return found;
}
