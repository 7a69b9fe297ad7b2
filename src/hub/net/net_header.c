/* The headers of an answer, one line at a time. */
#include <string.h>
#include <strings.h>

#include "hub/names/url.h"
#include "hub/net/net.h"

/* A number of digits and nothing else; -1 where it is none or too large. */
static int64_t read_number(const char *s, size_t n)
{
    int64_t value = 0;
    if (!n || n > 18) return -1;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9') return -1;
        value = value * 10 + (s[i] - '0');
    }
    return value;
}

/* What does not fit is not taken. */
static void copy(char *to, size_t size, const char *s, size_t n)
{
    if (n >= size || memchr(s, 0, n)) n = 0;
    memcpy(to, s, n);
    to[n] = 0;
}

/* W/"abc" -> abc */
static void copy_etag(char *to, size_t size, const char *s, size_t n)
{
    if (n > 2 && s[0] == 'W' && s[1] == '/') s += 2, n -= 2;
    if (n > 1 && s[0] == '"' && s[n - 1] == '"') s++, n -= 2;
    copy(to, size, s, n);
}

/* "api";r=0;t=55 */
static int64_t read_reset(const char *s, size_t n)
{
    for (size_t i = 0; i + 2 < n; i++) {
        if (memcmp(s + i, "t=", 2) != 0 || (i && s[i - 1] != ';' && s[i - 1] != ' ')) continue;
        size_t n_digits = 0;
        while (i + 2 + n_digits < n && s[i + 2 + n_digits] >= '0' && s[i + 2 + n_digits] <= '9') n_digits++;
        const int64_t value = read_number(s + i + 2, n_digits);
        return value > 0 ? value : 0;
    }
    return 0;
}

/* "bytes 5-9/100" */
static void read_range(qn_net_reply *r, const char *s, size_t n)
{
    const char *slash = memchr(s, '/', n), *dash = memchr(s, '-', n);
    if (n < 7 || strncasecmp(s, "bytes ", 6) != 0 || !slash || !dash || dash > slash) return;
    r->range_begin = read_number(s + 6, (size_t)(dash - s) - 6);
    r->range_total = read_number(slash + 1, (size_t)(s + n - slash) - 1);
}

void qn_net_read_header(qn_net_reply *r, char *location, char *link, const char *line, size_t n)
{
    while (n && strchr("\r\n \t", line[n - 1])) n--;
    const char *colon = memchr(line, ':', n);
    if (!colon) return;
    const char *value = colon + 1;
    const size_t n_name = (size_t)(colon - line);
    while (value < line + n && (*value == ' ' || *value == '\t')) value++;
    const size_t n_value = (size_t)(line + n - value);
#define IS(name) (n_name == sizeof name - 1 && strncasecmp(line, name, n_name) == 0)
    if (IS("content-length"))
        r->length = read_number(value, n_value);
    else if (IS("content-range"))
        read_range(r, value, n_value);
    else if (IS("retry-after"))
        r->retry_after_s = read_number(value, n_value); /* a date counts as not said */
    else if (IS("ratelimit"))
        r->reset_s = read_reset(value, n_value);
    else if (IS("x-linked-size"))
        r->linked_size = read_number(value, n_value);
    else if (IS("etag"))
        copy_etag(r->etag, sizeof r->etag, value, n_value);
    else if (IS("x-linked-etag"))
        copy_etag(r->linked_etag, sizeof r->linked_etag, value, n_value);
    else if (IS("x-error-message") || (IS("x-error-code") && !r->error[0]))
        copy(r->error, sizeof r->error, value, n_value);
    else if (IS("location"))
        copy(location, QN_URL_BYTES_MAX + 1, value, n_value);
    else if (IS("link"))
        copy(link, QN_URL_BYTES_MAX + 1, value, n_value);
#undef IS
}
