#include "hub/names/url.h"

#include <string.h>
#include <strings.h>

static qn_status read_port(const char *from, const char *end, int *port)
{
    int value = 0;
    for (const char *p = from; p < end; p++) {
        if (*p < '0' || *p > '9') return qn_fail(QN_E_ARG, "the URL's port is not a number");
        value = value * 10 + (*p - '0');
        if (value > 65535) return qn_fail(QN_E_ARG, "the URL's port is larger than 65535");
    }
    if (!value) return qn_fail(QN_E_ARG, "the URL's port is missing or 0");
    *port = value;
    return QN_OK;
}

qn_status qn_url_parse(const char *text, qn_url *out)
{
    qn_url u = {0};
    if (strlen(text) > QN_URL_BYTES_MAX)
        return qn_fail(QN_E_ARG, "the URL is longer than %d bytes", (int)QN_URL_BYTES_MAX);
    for (const char *p = text; *p; p++)
        if ((unsigned char)*p <= ' ' || *p == 0x7f || *p == '\\')
            return qn_fail(QN_E_ARG, "the URL has a space, a backslash or a control character");
    if (strncasecmp(text, "https://", 8) == 0)
        u.is_https = 1, u.port = 443, u.host = text + 8;
    else if (strncasecmp(text, "http://", 7) == 0)
        u.port = 80, u.host = text + 7;
    else
        return qn_fail(QN_E_ARG, "the URL begins with neither https:// nor http://");
    const char *end = u.host + strcspn(u.host, "/?#"), *colon = u.host;
    if (memchr(u.host, '@', (size_t)(end - u.host)))
        return qn_fail(QN_E_ARG, "the URL has a user or a password in it");
    if (*u.host == '[') {
        colon = memchr(u.host, ']', (size_t)(end - u.host));
        if (!colon) return qn_fail(QN_E_ARG, "the URL's host has no ']'");
        colon++;
    }
    while (colon < end && *colon != ':') colon++;
    u.n_host = (size_t)(colon - u.host);
    if (!u.n_host) return qn_fail(QN_E_ARG, "the URL has no host");
    if (colon < end) QN_TRY(read_port(colon + 1, end, &u.port));
    u.path = end;
    *out = u;
    return QN_OK;
}

int qn_url_same_server(const qn_url *a, const qn_url *b)
{
    return a->is_https == b->is_https && a->port == b->port && a->n_host == b->n_host &&
           strncasecmp(a->host, b->host, a->n_host) == 0;
}

int qn_url_is_local(const qn_url *u)
{
    return (u->n_host == 9 && strncasecmp(u->host, "localhost", 9) == 0) ||
           (u->n_host == 5 && memcmp(u->host, "[::1]", 5) == 0) ||
           (u->n_host > 4 && memcmp(u->host, "127.", 4) == 0 && strspn(u->host, "0123456789.") >= u->n_host);
}

const char *qn_url_file(const qn_url *u, size_t *n)
{
    const char *end = u->path + strcspn(u->path, "?#"), *begin = end;
    while (begin > u->path && begin[-1] != '/') begin--;
    *n = (size_t)(end - begin);
    return begin;
}

qn_status qn_url_join(const char *base, const char *location, qn_buf *out)
{
    qn_url from, to;
    qn_buf joined = {0};
    qn_status status = qn_url_parse(base, &from);
    if (status != QN_OK) return status;
    const size_t n_scheme = from.is_https ? 6 : 5; /* "https:" */
    const size_t n_letters = strspn(location, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ");
    if (n_letters && strncmp(location + n_letters, "://", 3) == 0) {
        qn_buf_puts(&joined, location);
    } else if (strncmp(location, "//", 2) == 0) {
        qn_buf_append(&joined, base, n_scheme);
        qn_buf_puts(&joined, location);
    } else {
        size_t n_path = 0;
        const char *path = from.path;
        if (*location != '/') { /* beside the page that said so */
            n_path = strcspn(path, "?#");
            while (n_path && path[n_path - 1] != '/') n_path--;
        }
        qn_buf_append(&joined, base, (size_t)(path - base) + n_path);
        if (*location != '/' && !n_path) qn_buf_putc(&joined, '/');
        qn_buf_puts(&joined, location);
    }
    status = joined.status;
    if (status == QN_OK) status = qn_url_parse(joined.data, &to);
    if (status == QN_E_ARG) status = qn_fail(QN_E_FORMAT, "a redirect leads nowhere: %s", qn_last_error());
    if (status == QN_OK && from.is_https && !to.is_https)
        status = qn_fail(QN_E_FORMAT, "a redirect leads from https to http, which is refused");
    if (status == QN_OK) {
        qn_buf_free(out);
        *out = joined;
    } else {
        qn_buf_free(&joined);
    }
    return status;
}

void qn_url_put_escaped(qn_buf *b, const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        const int plain = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') ||
                          strchr("-._~/", *p);
        if (plain)
            qn_buf_putc(b, (char)*p);
        else
            qn_buf_printf(b, "%%%02X", *p);
    }
}
