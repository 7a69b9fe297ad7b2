#include "server/http/http.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* Steps inside a chunked body. */
enum { CHUNK_SIZE, CHUNK_DATA, CHUNK_END, LAST_LINE };

/* Headers that say how long a request is, or whom it is for, stand once or not at all. */
static const char *const single[] = {"authorization",     "content-encoding", "content-length",
                                     "content-type",      "expect",           "host",
                                     "transfer-encoding", "origin",           "x-api-key"};

void qn_http_start(qn_http *h, size_t body_max)
{
    memset(h, 0, sizeof *h);
    h->body_max = body_max;
    h->content_length = -1;
}

void qn_http_next(qn_http *h)
{
    qn_buf head = h->head;
    size_t body_max = h->body_max;
    qn_buf_free(&h->body);
    qn_buf_reset(&head);
    qn_http_start(h, body_max);
    h->head = head;
}

void qn_http_free(qn_http *h)
{
    qn_buf_free(&h->head);
    qn_buf_free(&h->body);
}

/* Callers return at once: what follows would use values that are unchecked, or report a later reason. */
static void refuse(qn_http *h, int status, const char *why)
{
    h->state = QN_HTTP_FAILED;
    h->status = status;
    h->why = why;
}

/* ---- the head ------------------------------------------------------------------------------------------ */

static int is_token(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

/* A character that needs no escape in a path. */
static int is_plain(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c && strchr("-._~", c));
}

static char small(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
}

/* Is word one of the comma-separated words of a list, whatever its case? */
static int has_word(const char *list, const char *word)
{
    size_t n = strlen(word);
    while (*list) {
        size_t length = strcspn(list, ","), i = 0;
        const char *begin = list + strspn(list, " \t"), *end = list + length;
        while (end > begin && (end[-1] == ' ' || end[-1] == '\t')) end--;
        while (begin + i < end && i < n && small(begin[i]) == word[i]) i++;
        if (i == n && begin + i == end) return 1;
        list += length + (list[length] == ',');
    }
    return 0;
}

static int digit_of(char c)
{
    static const char digits[] = "0123456789abcdef";
    const char *at = c ? strchr(digits, small(c)) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* Escapes of characters that need none become the characters (RFC 3986, 6.2.2.2). 0: an escape is malformed. */
static int unescape(char *path)
{
    char *to = path;
    for (const char *from = path; *from; from++) {
        *to++ = *from;
        if (*from != '%') continue;
        const int high = digit_of(from[1]), low = high < 0 ? -1 : digit_of(from[2]);
        if (low < 0) return 0;
        const char c = (char)(high * 16 + low);
        if (is_plain(c))
            to[-1] = c;
        else
            *to++ = from[1], *to++ = from[2];
        from += 2;
    }
    *to = 0;
    return 1;
}

/* Makes a path of http://HOST[:PORT][/path][?query], in place; NULL: malformed. */
static char *read_absolute(qn_http *h, char *target)
{
    static const char *const schemes[] = {"http://", "https://"};
    for (size_t i = 0; i < 2; i++) {
        const size_t n = strlen(schemes[i]);
        if (strncasecmp(target, schemes[i], n) != 0) continue;
        char *host = target + n;
        const size_t length = strcspn(host, "/?");
        if (!length || memchr(host, '@', length)) return NULL;
        char *rest = host + length;
        h->authority = memmove(target, host, length);
        target[length] = 0; /* at least seven bytes before rest */
        if (*rest != '/') *--rest = '/';
        return rest;
    }
    return NULL;
}

/* METHOD SP /path[?query] SP HTTP/1.x */
static void read_request_line(qn_http *h, char *line)
{
    char *target = strchr(line, ' ');
    char *version = target ? strchr(target + 1, ' ') : NULL;
    if (!version || strchr(version + 1, ' ')) {
        refuse(h, 400, "the request line is not METHOD, path and version");
        return;
    }
    *target++ = *version++ = 0;
    const char *c = line;
    while (is_token(*c)) c++;
    if (*c || c == line) {
        refuse(h, 400, "the method is malformed");
        return;
    }
    if (strncmp(version, "HTTP/", 5) != 0) {
        refuse(h, 400, "the request line is not METHOD, path and version");
        return;
    }
    if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0) {
        refuse(h, 505, "only HTTP/1.1 and HTTP/1.0 are supported");
        return;
    }
    if (*target != '/') target = read_absolute(h, target);
    if (!target) {
        refuse(h, 400, "the target is not a path");
        return;
    }
    for (const unsigned char *t = (unsigned char *)target; *t; t++)
        if (*t <= ' ' || *t >= 127 || *t == '#') {
            refuse(h, 400, "the path has a character that must be escaped");
            return;
        }
    h->minor = version[7] - '0';
    h->keep_alive = h->minor == 1;
    h->method = line;
    h->path = target;
    size_t n = strcspn(target, "?");
    h->query = target + n + (target[n] == '?');
    target[n] = 0;
    if (!unescape(target)) refuse(h, 400, "the path has a malformed escape");
}

static void read_header(qn_http *h, char *line)
{
    char *name = line, *value = line;
    if (*line == ' ' || *line == '\t') {
        refuse(h, 400, "a header is folded over two lines");
        return;
    }
    while (is_token(*value)) *value = small(*value), value++;
    if (value == name || *value != ':') {
        refuse(h, 400, "a header is malformed");
        return;
    }
    *value++ = 0;
    value += strspn(value, " \t");
    size_t n = strlen(value);
    while (n && (value[n - 1] == ' ' || value[n - 1] == '\t')) value[--n] = 0;
    for (const unsigned char *c = (unsigned char *)value; *c; c++)
        if ((*c < ' ' && *c != '\t') || *c == 127) {
            refuse(h, 400, "a header has a control character");
            return;
        }
    if (h->n_headers == QN_HTTP_HEADERS_MAX) {
        refuse(h, 431, "too many headers");
        return;
    }
    for (size_t i = 0; i < sizeof single / sizeof *single; i++)
        if (strcmp(name, single[i]) == 0 && qn_http_get(h, name)) {
            refuse(h, 400, "a header appears twice that may appear only once");
            return;
        }
    h->headers[h->n_headers++] = (qn_http_header){name, value};
}

static void read_length(qn_http *h, const char *text)
{
    uint64_t n = 0;
    if (!*text) {
        refuse(h, 400, "Content-Length is not a number");
        return;
    }
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || n > (uint64_t)INT64_MAX / 10 - 1) {
            refuse(h, 400, "Content-Length is not a number");
            return;
        }
        n = n * 10 + (uint64_t)(*text - '0');
    }
    h->content_length = (int64_t)n;
}

/* The host of the target counts, whatever the header says. */
static void set_host(qn_http *h)
{
    for (size_t i = 0; i < h->n_headers; i++) {
        if (strcmp(h->headers[i].name, "host") != 0) continue;
        h->headers[i].value = h->authority;
        return;
    }
    static char name[] = "host";
    if (h->n_headers == QN_HTTP_HEADERS_MAX)
        refuse(h, 431, "too many headers");
    else
        h->headers[h->n_headers++] = (qn_http_header){name, h->authority};
}

/* How long the request is, and what becomes of the connection. */
static void read_framing(qn_http *h)
{
    const char *length = qn_http_get(h, "content-length"), *coding = qn_http_get(h, "transfer-encoding");
    const char *expect = qn_http_get(h, "expect"), *encoding = qn_http_get(h, "content-encoding");
    if (h->minor == 1 && !qn_http_get(h, "host")) {
        refuse(h, 400, "the header Host is missing");
        return;
    }
    if (h->authority) set_host(h);
    if (h->state == QN_HTTP_FAILED) return;
    if (length && coding) {
        refuse(h, 400, "Content-Length and Transfer-Encoding exclude each other");
        return;
    }
    if (length) read_length(h, length);
    if (h->state == QN_HTTP_FAILED) return;
    if (coding && h->minor == 0) {
        refuse(h, 400, "HTTP/1.0 has no Transfer-Encoding");
        return;
    }
    if (coding && strcmp(coding, "chunked") != 0) {
        refuse(h, 400, "the only supported Transfer-Encoding is chunked");
        return;
    }
    if (encoding && strcmp(encoding, "identity") != 0) {
        refuse(h, 415, "compressed requests are not supported");
        return;
    }
    if (expect && strcmp(expect, "100-continue") != 0) {
        refuse(h, 417, "the only supported expectation is 100-continue");
        return;
    }
    h->is_chunked = coding != NULL;
    h->wants_continue = expect && h->minor == 1;
    for (size_t i = 0; i < h->n_headers; i++) {
        if (strcmp(h->headers[i].name, "connection") != 0) continue;
        if (has_word(h->headers[i].value, "close")) h->keep_alive = 0;
        if (h->minor == 0 && has_word(h->headers[i].value, "keep-alive")) h->keep_alive = 1;
    }
}

/* The head is whole, its last line end included: cut it into lines. */
static void read_head(qn_http *h)
{
    char *line = h->head.data, *end = h->head.data + h->head.length - 2;
    if (memchr(line, 0, h->head.length)) {
        refuse(h, 400, "the head has a NUL byte");
        return;
    }
    for (int first = 1; line < end && h->state != QN_HTTP_FAILED; first = 0) {
        char *stop = line + strcspn(line, "\r\n");
        if (stop[0] != '\r' || stop[1] != '\n') {
            refuse(h, 400, "a line does not end with CR LF");
            return;
        }
        *stop = 0;
        if (first)
            read_request_line(h, line);
        else
            read_header(h, line);
        line = stop + 2;
    }
    if (h->state != QN_HTTP_FAILED) read_framing(h);
    if (h->state != QN_HTTP_FAILED) h->state = QN_HTTP_READY;
}

/* Takes bytes up to the empty line. */
static size_t feed_head(qn_http *h, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char c = bytes[i];
        if (h->head.length == QN_HTTP_HEAD_MAX) {
            refuse(h, 431, "the head of the request is too long");
            return i;
        }
        qn_buf_putc(&h->head, c);
        if (h->head.status != QN_OK) {
            refuse(h, 503, "out of memory");
            return i;
        }
        const char *data = h->head.data;
        size_t length = h->head.length;
        if (c == '\n' && (length < 2 || data[length - 2] != '\r')) {
            refuse(h, 400, "a line does not end with CR LF");
            return i + 1;
        }
        if (c == '\n' && (length == 2 || (length >= 4 && data[length - 3] == '\n'))) {
            if (length > 2) {
                read_head(h);
                return i + 1;
            }
            qn_buf_reset(&h->head);
            if (h->n_empty_lines++ == QN_HTTP_EMPTY_LINES_MAX) {
                refuse(h, 400, "the request line is missing");
                return i + 1;
            }
        }
    }
    return n;
}

/* ---- the body ------------------------------------------------------------------------------------------ */

void qn_http_read_body(qn_http *h)
{
    if (h->state != QN_HTTP_READY) return;
    if (h->content_length > 0 && (uint64_t)h->content_length > h->body_max) {
        refuse(h, 413, "the body is larger than this server allows");
        return;
    }
    h->left = h->content_length > 0 ? (uint64_t)h->content_length : 0;
    h->step = CHUNK_SIZE;
    h->state = h->is_chunked || h->left ? QN_HTTP_BODY : QN_HTTP_DONE;
    if (h->left && h->left <= QN_HTTP_RESERVED_MAX) qn_buf_reserve(&h->body, (size_t)h->left);
}

/* As much of the body, or of its chunk, as is here. */
static size_t take(qn_http *h, const char *bytes, size_t n)
{
    if (n > h->left) n = (size_t)h->left;
    qn_buf_append(&h->body, bytes, n);
    h->left -= n;
    if (h->body.status != QN_OK) refuse(h, 503, "out of memory");
    return n;
}

/* A line of a chunked body is whole: the size of the next chunk, or the end. */
static void read_chunk_line(qn_http *h)
{
    const char *why = "a chunk's size is malformed";
    uint64_t size = 0;
    if (h->step != CHUNK_SIZE) {
        if (h->line_length) {
            refuse(h, 400,
                   h->step == LAST_LINE ? "trailers are not supported"
                                        : "a chunk is longer than its stated size");
            return;
        }
        if (h->step == LAST_LINE) h->state = QN_HTTP_DONE;
        h->step = CHUNK_SIZE;
        return;
    }
    size_t length = h->line_length; /* white space may stand before an extension */
    while (h->is_extension && length && (h->line[length - 1] == ' ' || h->line[length - 1] == '\t')) length--;
    for (size_t i = 0; i < length; i++) {
        const int digit = digit_of(h->line[i]);
        if (digit < 0) {
            refuse(h, 400, why);
            return;
        }
        size = size * 16 + (uint64_t)digit;
    }
    if (!length) {
        refuse(h, 400, why);
        return;
    }
    if (size > h->body_max || h->body.length > h->body_max - size) {
        refuse(h, 413, "the body is larger than this server allows");
        return;
    }
    h->left = size;
    h->step = size ? CHUNK_DATA : LAST_LINE;
}

static size_t feed_chunks(qn_http *h, const char *bytes, size_t n)
{
    if (h->step == CHUNK_DATA) {
        size_t taken = take(h, bytes, n);
        if (!h->left) h->step = CHUNK_END;
        return taken;
    }
    const char c = *bytes;
    if (h->is_after_return != (c == '\n')) {
        refuse(h, 400, "a line does not end with CR LF");
    } else if (c == '\n') {
        read_chunk_line(h);
        h->line_length = 0;
        h->is_after_return = h->is_extension = 0;
    } else if (c == '\r') {
        h->is_after_return = 1;
    } else if (h->is_extension || (c == ';' && h->step == CHUNK_SIZE)) {
        h->is_extension = 1;
        if (((unsigned char)c < ' ' && c != '\t') || c == 127)
            refuse(h, 400, "a chunk extension has a control character");
        else if (++h->n_extension_bytes > QN_HTTP_EXTENSIONS_MAX)
            refuse(h, 400, "the chunk extensions are too long");
    } else if (h->line_length == QN_HTTP_CHUNK_LINE_MAX) {
        refuse(h, 400, "a chunk's size is malformed");
    } else {
        h->line[h->line_length++] = c;
    }
    return 1;
}

size_t qn_http_feed(qn_http *h, const void *bytes, size_t n)
{
    const char *p = bytes;
    size_t used = 0;
    while (used < n && (h->state == QN_HTTP_HEAD || h->state == QN_HTTP_BODY)) {
        if (h->state == QN_HTTP_HEAD) {
            used += feed_head(h, p + used, n - used);
        } else if (h->is_chunked) {
            used += feed_chunks(h, p + used, n - used);
        } else {
            used += take(h, p + used, n - used);
            if (!h->left && h->state == QN_HTTP_BODY) h->state = QN_HTTP_DONE;
        }
    }
    return used;
}

int qn_http_is_inside(const qn_http *h)
{
    return h->state == QN_HTTP_HEAD ? h->head.length > 0
                                    : h->state == QN_HTTP_BODY || h->state == QN_HTTP_READY;
}

const char *qn_http_get(const qn_http *h, const char *name)
{
    for (size_t i = 0; i < h->n_headers; i++)
        if (strcmp(h->headers[i].name, name) == 0) return h->headers[i].value;
    return NULL;
}

void qn_http_date(int64_t time_s, char date[QN_HTTP_DATE_BYTES])
{
    static const char days[][4] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"},
                      months[][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    const time_t t = (time_t)time_s;
    struct tm at = {0};
    gmtime_r(&t, &at);
    snprintf(date, QN_HTTP_DATE_BYTES, "%s, %02d %s %04d %02d:%02d:%02d GMT", days[at.tm_wday % 7],
             at.tm_mday % 100, months[at.tm_mon % 12], (1900 + at.tm_year) % 10000, at.tm_hour % 100,
             at.tm_min % 100, at.tm_sec % 100);
}

const char *qn_http_reason(int status)
{
    static const struct {
        int status;
        const char *reason;
    } known[] = {{100, "Continue"},
                 {200, "OK"},
                 {204, "No Content"},
                 {400, "Bad Request"},
                 {401, "Unauthorized"},
                 {403, "Forbidden"},
                 {404, "Not Found"},
                 {405, "Method Not Allowed"},
                 {408, "Request Timeout"},
                 {413, "Content Too Large"},
                 {415, "Unsupported Media Type"},
                 {417, "Expectation Failed"},
                 {429, "Too Many Requests"},
                 {431, "Request Header Fields Too Large"},
                 {500, "Internal Server Error"},
                 {501, "Not "
                       "Implemented"},
                 {503, "Service Unavailable"},
                 {505, "HTTP Version Not Supported"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].status == status) return known[i].reason;
    return "Unknown";
}
