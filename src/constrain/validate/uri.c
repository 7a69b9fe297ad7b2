#include "constrain/validate/uri.h"

#include <string.h>

typedef struct {
    const char *text;
    size_t n;
} part;

/* scheme, authority and query are with their ':', '//' and '?'. */
typedef struct {
    part scheme, authority, path, query;
} uri;

static size_t find(const char *text, size_t n, const char *any)
{
    size_t i = 0;
    while (i < n && !strchr(any, text[i])) i++;
    return i;
}

size_t qn_uri_fragment(const char *reference, size_t n)
{
    const char *hash = n ? memchr(reference, '#', n) : NULL;
    return hash ? (size_t)(hash - reference) : n;
}

static part take(const char **text, size_t *n, size_t length)
{
    part p = {*text, length};
    *text += length;
    *n -= length;
    return p;
}

static uri split(const char *text, size_t n)
{
    uri u = {0};
    n = qn_uri_fragment(text, n);
    size_t colon = find(text, n, ":/?");
    if (colon && colon < n && text[colon] == ':') u.scheme = take(&text, &n, colon + 1);
    if (n >= 2 && !memcmp(text, "//", 2)) u.authority = take(&text, &n, 2 + find(text + 2, n - 2, "/?"));
    u.path = take(&text, &n, find(text, n, "?"));
    u.query = (part){text, n};
    return u;
}

static void put(qn_buf *out, part p)
{
    if (p.n) qn_buf_append(out, p.text, p.n);
}

/* Appends a path without its "." and ".." (section 5.2.4); "/" is put before each segment that stays. */
static void put_path(qn_buf *out, const char *path, size_t n)
{
    size_t begin = out->length;
    if (!n || *path != '/') {
        if (n) qn_buf_append(out, path, n);
        return;
    }
    for (size_t i = 0; i < n && out->status == QN_OK;) {
        size_t length = 1 + find(path + i + 1, n - i - 1, "/");
        int is_dot = length == 2 && path[i + 1] == '.';
        int is_up = length == 3 && path[i + 1] == '.' && path[i + 2] == '.';
        if (is_up)
            while (out->length > begin && out->data[--out->length] != '/') continue;
        if (!is_dot && !is_up)
            qn_buf_append(out, path + i, length);
        else if (i + length == n)
            qn_buf_putc(out, '/'); /* the path ends in a folder */
        i += length;
    }
}

void qn_uri_resolve(const char *base, const char *reference, size_t n, qn_buf *out)
{
    uri b = split(base, strlen(base)), r = split(reference, n);
    if (r.scheme.n) {
        put(out, r.scheme);
        put(out, r.authority);
        put_path(out, r.path.text, r.path.n);
        put(out, r.query);
        return;
    }
    put(out, b.scheme);
    if (r.authority.n) {
        put(out, r.authority);
        put_path(out, r.path.text, r.path.n);
        put(out, r.query);
        return;
    }
    put(out, b.authority);
    if (!r.path.n) {
        put(out, b.path);
        put(out, r.query.n ? r.query : b.query);
        return;
    }
    qn_buf merged = {0};
    if (*r.path.text != '/') {
        size_t folder = b.path.n;
        while (folder && b.path.text[folder - 1] != '/') folder--;
        if (b.authority.n && !b.path.n) qn_buf_putc(&merged, '/');
        qn_buf_append(&merged, b.path.text ? b.path.text : "", folder);
    }
    put(&merged, r.path);
    put_path(out, merged.data ? merged.data : "", merged.length);
    if (merged.status != QN_OK && out->status == QN_OK) out->status = merged.status;
    qn_buf_free(&merged);
    put(out, r.query);
}

static int hex(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

void qn_uri_decode(const char *text, size_t n, qn_buf *out)
{
    for (size_t i = 0; i < n; i++) {
        int high = text[i] == '%' && n - i > 2 ? hex(text[i + 1]) : -1;
        int low = high >= 0 ? hex(text[i + 2]) : -1;
        if (low >= 0) {
            qn_buf_putc(out, (char)(high * 16 + low));
            i += 2;
        } else {
            qn_buf_putc(out, text[i]);
        }
    }
}
