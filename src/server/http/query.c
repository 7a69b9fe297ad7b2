/* What a path and its query say. */
#include <stdlib.h>
#include <string.h>

#include "server/http/exchange.h"
#include "server/http/routes.h"

static int digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Decodes text[0..n). Returns 0 if an escape is malformed or stands for NUL, or if the text does not fit. */
static int decode(const char *text, size_t n, char *out, size_t size)
{
    size_t n_out = 0;
    for (size_t i = 0; i < n; i++) {
        int c = (unsigned char)text[i];
        if (c == '+') c = ' ';
        if (c == '%') {
            if (i + 2 >= n || digit(text[i + 1]) < 0 || digit(text[i + 2]) < 0) return 0;
            c = digit(text[i + 1]) * 16 + digit(text[i + 2]);
            i += 2;
        }
        if (!c || n_out + 1 >= size) return 0;
        out[n_out++] = (char)c;
    }
    out[n_out] = 0;
    return 1;
}

/* The value of the first parameter of this name, n bytes, as sent; NULL: there is none. */
static const char *find(const qn_exchange *ex, const char *name, size_t *n)
{
    const size_t n_name = strlen(name);
    for (const char *at = ex->query; *at;) {
        const size_t length = strcspn(at, "&");
        if (length >= n_name && strncmp(at, name, n_name) == 0 && (length == n_name || at[n_name] == '=')) {
            *n = length > n_name ? length - n_name - 1 : 0;
            return at + length - *n;
        }
        at += length;
        if (*at) at++;
    }
    return NULL;
}

int qn_exchange_query(const qn_exchange *ex, const char *name, char *out, size_t size, qn_api_error *error)
{
    size_t n = 0;
    const char *value = find(ex, name, &n);
    out[0] = 0;
    if (!value || decode(value, n, out, size)) return 0;
    out[0] = 0;
    return qn_api_fail(error, 400, "invalid_value", name, "%s of the query is malformed or too long", name);
}

int qn_exchange_page(const qn_exchange *ex, int64_t limit, int64_t limit_max, qn_page *out,
                     qn_api_error *error)
{
    char text[16];
    size_t n;
    int refused = qn_exchange_query(ex, "limit", text, sizeof text, error);
    if (refused) return refused;
    out->limit = limit;
    if (find(ex, "limit", &n)) {
        char *end;
        out->limit = strtol(text, &end, 10);
        if (*end || text[0] < '0' || text[0] > '9' || out->limit < 1 || out->limit > limit_max)
            return qn_api_fail(error, 400, "invalid_value", "limit", "limit must be a number from 1 to %lld",
                               (long long)limit_max);
    }
    refused = qn_exchange_query(ex, "order", text, sizeof text, error);
    out->is_asc = strcmp(text, "asc") == 0;
    if (!refused && find(ex, "order", &n) && !out->is_asc && strcmp(text, "desc") != 0)
        refused = qn_api_fail(error, 400, "invalid_value", "order", "order must be asc or desc");
    return refused;
}

void qn_exchange_segment(const qn_exchange *ex, const char *name, char *out, size_t size)
{
    out[0] = 0;
    if (ex->route) qn_route_get(ex->route, ex->path, name, out, size);
}
