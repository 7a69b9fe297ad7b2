#include "server/http/routes.h"

#include <string.h>

/* The end of the segment that begins at text. */
static const char *segment_end(const char *text)
{
    return text + strcspn(text, "/");
}

static int has_path(const qn_route *r, const char *path)
{
    const char *row = r->path;
    size_t n = strlen(row);
    const int is_below = n > 1 && row[n - 1] == '/';
    if (!strchr(row, '{')) return is_below ? strncmp(path, row, n) == 0 && path[n] : strcmp(path, row) == 0;
    while (*row && *path) {
        if (*row != '{') {
            if (*row++ != *path++) return 0;
            continue;
        }
        const char *end = segment_end(path);
        if (end == path) return 0;
        row = segment_end(row);
        path = end;
    }
    return !*row && !*path;
}

void qn_route_get(const qn_route *route, const char *path, const char *name, char *out, size_t size)
{
    const char *row = route->path;
    const size_t n = strlen(name);
    out[0] = 0;
    while (*row && *path) {
        const char *end = segment_end(path);
        if (row[0] == '{' && strncmp(row + 1, name, n) == 0 && row[n + 1] == '}') {
            if ((size_t)(end - path) >= size) return;
            memcpy(out, path, (size_t)(end - path));
            out[end - path] = 0;
            return;
        }
        row = segment_end(row);
        path = end;
        if (*row) row++;
        if (*path) path++;
    }
}

enum { GET = 1, POST = 2, DELETE = 4 };

static const char *allowed_methods(unsigned bits)
{
    static const char *const lists[] = {
        NULL,     "GET, HEAD",         "POST",         "GET, HEAD, POST",
        "DELETE", "GET, HEAD, DELETE", "POST, DELETE", "GET, HEAD, POST, DELETE"};
    return lists[bits];
}

/* The row with this method and path, of those with segments that have names, or of the others. */
static qn_route_match find_among(const qn_route_table *const *tables, size_t n_tables, const char *method,
                                 const char *path, int has_names)
{
    qn_route_match found = {0};
    unsigned allowed = 0;
    for (size_t i = 0; i < n_tables; i++) {
        const qn_route_table *t = tables[i];
        for (const qn_route *r = t->routes; r < t->routes + t->n_routes; r++) {
            if ((strchr(r->path, '{') != NULL) != has_names || !has_path(r, path)) continue;
            int is_get = strcmp(r->method, "GET") == 0;
            if (strcmp(method, r->method) == 0 || (is_get && strcmp(method, "HEAD") == 0))
                return (qn_route_match){r, t, NULL};
            allowed |= is_get ? GET : strcmp(r->method, "POST") == 0 ? POST : DELETE;
            if (!found.table) found.table = t;
        }
    }
    found.allowed = allowed_methods(allowed);
    return found;
}

/* A path that a row spells out is no name: it has the methods of such rows alone. */
static qn_route_match find(const qn_route_table *const *tables, size_t n_tables, const char *method,
                           const char *path)
{
    const qn_route_match found = find_among(tables, n_tables, method, path, 0);
    return found.table ? found : find_among(tables, n_tables, method, path, 1);
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
