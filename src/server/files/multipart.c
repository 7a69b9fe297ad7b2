#include "server/files/multipart.h"

#include <string.h>
#include <strings.h>

#include "base/utf8.h"

static int refuse(qn_multipart *m, const char *why)
{
    m->why = why;
    return -1;
}

/* ---- parameters of a header ---------------------------------------------------------------------------- */

static int is_token(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static const char *skip_space(const char *at)
{
    return at + strspn(at, " \t");
}

/* A value, a token or quoted, into out[0..size). Returns what is behind it, or NULL. */
static const char *read_value(const char *at, char *out, size_t size)
{
    size_t n = 0;
    const int is_quoted = *at == '"';
    if (is_quoted) at++;
    while (is_quoted ? *at && *at != '"' : is_token(*at)) {
        if (is_quoted && *at == '\\' && (at[1] == '"' || at[1] == '\\')) at++;
        if (n + 1 >= size) return NULL;
        out[n++] = *at++;
    }
    out[n] = 0;
    if (is_quoted) return *at == '"' ? at + 1 : NULL;
    return n ? at : NULL;
}

/* The next parameter ("; name=value"). Returns what is behind it, or NULL; *end is 1 where there is none. */
static const char *next_parameter(const char *at, char *name, size_t name_size, char *value, size_t size,
                                  int *end)
{
    size_t n = 0;
    at = skip_space(at);
    *end = !*at;
    if (*end) return at;
    if (*at != ';') return NULL;
    at = skip_space(at + 1);
    *end = !*at;
    if (*end) return at;
    while (is_token(*at) && n + 1 < name_size) name[n++] = *at++;
    name[n] = 0;
    if (!n || *at != '=') return NULL;
    return read_value(at + 1, value, size);
}

/* ---- the beginning ------------------------------------------------------------------------------------- */

/* The characters of RFC 2046. */
static int is_boundary(const char *text)
{
    const size_t n = strlen(text);
    if (!n || n > QN_MULTIPART_BOUNDARY_MAX || text[n - 1] == ' ') return 0;
    for (; *text; text++) {
        const char c = *text;
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              strchr("'()+_,-./:=? ", c)))
            return 0;
    }
    return 1;
}

int qn_multipart_start(qn_multipart *m, const char *content_type, const qn_multipart_reader *reader,
                       void *user)
{
    static const char type[] = "multipart/form-data";
    enum { N = sizeof type - 1 };
    char name[32], value[QN_MULTIPART_BOUNDARY_MAX + 2], boundary[QN_MULTIPART_BOUNDARY_MAX + 2] = "";
    int end = 0;
    memset(m, 0, sizeof *m);
    m->reader = reader;
    m->user = user;
    if (!content_type || strncasecmp(content_type, type, N) != 0 || is_token(content_type[N]))
        return refuse(m, "the content type must be multipart/form-data");
    for (const char *at = content_type + N; !end;) {
        at = next_parameter(at, name, sizeof name, value, sizeof value, &end);
        if (!at) return refuse(m, "the parameters of the content type are malformed");
        if (end || strcasecmp(name, "boundary") != 0) continue;
        if (boundary[0]) return refuse(m, "the content type has two boundaries");
        memcpy(boundary, value, sizeof boundary);
    }
    if (!is_boundary(boundary)) return refuse(m, "the content type has no valid boundary");
    m->mark_bytes = strlen(boundary) + 4;
    memcpy(m->mark, "\r\n--", 4);
    memcpy(m->mark + 4, boundary, strlen(boundary) + 1);
    m->n_matched = 2; /* the first boundary is at the beginning of the body */
    return 0;
}

/* ---- headers of a part --------------------------------------------------------------------------------- */

static int read_disposition(qn_multipart *m, const char *at)
{
    static const char type[] = "form-data";
    char name[32], value[QN_MULTIPART_NAME_MAX];
    int end = 0, has_name = 0;
    if (strncasecmp(at, type, sizeof type - 1) != 0)
        return refuse(m, "a part's content disposition is not form-data");
    for (at += sizeof type - 1; !end;) {
        at = next_parameter(at, name, sizeof name, value, sizeof value, &end);
        if (!at) return refuse(m, "a part's content disposition is malformed, or a name in it is too long");
        if (end) break;
        const int is_name = strcasecmp(name, "name") == 0, is_file = strcasecmp(name, "filename") == 0;
        if ((is_name && has_name) || (is_file && m->part.has_file_name))
            return refuse(m, "a part's content disposition has a name twice");
        if ((is_name || is_file) && qn_utf8_valid_prefix(value, strlen(value)) != strlen(value))
            return refuse(m, "a name of a part is not UTF-8");
        if (is_name) memcpy(m->part.name, value, sizeof value);
        if (is_file) memcpy(m->part.file_name, value, sizeof value);
        has_name |= is_name;
        m->part.has_file_name |= is_file;
    }
    return has_name ? 0 : refuse(m, "a part has no name");
}

/* "Name: value" -> 1 and the value, if it is this header. */
static int is_header(const char *line, const char *name, const char **value)
{
    const size_t n = strlen(name);
    if (strncasecmp(line, name, n) != 0 || line[n] != ':') return 0;
    *value = skip_space(line + n + 1);
    return 1;
}

/* The head is whole: lines that end with CR LF, and an empty one. */
static int read_part_head(qn_multipart *m)
{
    int has_disposition = 0;
    memset(&m->part, 0, sizeof m->part);
    for (char *line = m->head, *stop; *line != '\r'; line = stop + 2) {
        const char *value;
        stop = strstr(line, "\r\n");
        *stop = 0;
        for (const char *at = line; *at; at++)
            if (((unsigned char)*at < 32 && *at != '\t') || *at == 127)
                return refuse(m, "a header of a part has a control character");
        if (line[0] == ' ' || line[0] == '\t' || !strchr(line, ':'))
            return refuse(m, "a header of a part is malformed");
        if (is_header(line, "content-disposition", &value)) {
            if (has_disposition) return refuse(m, "a part has two content dispositions");
            has_disposition = 1;
            const int refused = read_disposition(m, value);
            if (refused) return refused;
        } else if (is_header(line, "content-transfer-encoding", &value) && strcasecmp(value, "binary") != 0 &&
                   strcasecmp(value, "8bit") != 0 && strcasecmp(value, "7bit") != 0) {
            return refuse(m, "a part's content transfer encoding is not supported: send it as it is");
        }
    }
    if (!has_disposition) return refuse(m, "a part has no content disposition");
    if (++m->n_parts > QN_MULTIPART_PARTS_MAX) return refuse(m, "the body has too many parts");
    m->state = QN_MULTIPART_DATA;
    m->n_matched = 0;
    return m->reader->begin(m->user, &m->part);
}

static int feed_head(qn_multipart *m, char c)
{
    if (m->n_head == QN_MULTIPART_HEAD_MAX) return refuse(m, "the headers of a part are too long");
    if (!c) return refuse(m, "a header of a part has a control character");
    m->head[m->n_head++] = c;
    m->head[m->n_head] = 0;
    const size_t n = m->n_head;
    if (c == '\n' && (n < 2 || m->head[n - 2] != '\r'))
        return refuse(m, "a header of a part does not end with CR LF");
    if (c == '\n' && (n == 2 || m->head[n - 3] == '\n')) return read_part_head(m);
    return 0;
}

/* ---- bytes --------------------------------------------------------------------------------------------- */

/* Behind a boundary: "--" ends the body, and CR LF begins a part. */
static int feed_behind(qn_multipart *m, char c)
{
    m->behind[m->n_behind++] = c;
    if (m->n_behind < 2) return 0;
    m->n_behind = 0;
    if (memcmp(m->behind, "--", 2) == 0) {
        m->state = QN_MULTIPART_END;
        m->n_matched = 0;
        return 0;
    }
    if (memcmp(m->behind, "\r\n", 2) != 0)
        return refuse(m, "a boundary is followed by something else than a line end");
    m->state = QN_MULTIPART_HEAD;
    m->n_head = 0;
    return 0;
}

static int give(qn_multipart *m, const char *bytes, size_t n)
{
    return n ? m->reader->data(m->user, bytes, n) : 0;
}

/* The data of a part goes up to the mark. A CR is nowhere in the mark but at its beginning, so what broke off is data, and
 * only its last byte may begin a mark. *used: bytes that were taken. */
static int feed_data(qn_multipart *m, const char *bytes, size_t n, size_t *used)
{
    size_t i = 0;
    if (!m->n_matched) {
        const char *mark = memchr(bytes, '\r', n);
        i = mark ? (size_t)(mark - bytes) : n;
        *used = i + (mark != NULL);
        m->n_matched = mark != NULL;
        return give(m, bytes, i);
    }
    while (i < n && m->n_matched < m->mark_bytes && bytes[i] == m->mark[m->n_matched]) i++, m->n_matched++;
    *used = i;
    if (m->n_matched == m->mark_bytes) {
        m->state = QN_MULTIPART_BEHIND;
        return m->reader->end(m->user);
    }
    if (i == n) return 0;
    const size_t n_broken = m->n_matched;
    m->n_matched = 0;
    return give(m, m->mark, n_broken);
}

static int feed_mark(qn_multipart *m, char c)
{
    if (c != m->mark[m->n_matched])
        return refuse(m, "the body does not begin with the boundary of its content type");
    if (++m->n_matched == m->mark_bytes) m->state = QN_MULTIPART_BEHIND;
    return 0;
}

int qn_multipart_feed(qn_multipart *m, const char *bytes, size_t n)
{
    static const char line_end[] = "\r\n";
    for (size_t i = 0, used; i < n; i += used) {
        int ended = 0;
        used = 1;
        switch (m->state) {
        case QN_MULTIPART_MARK:
            ended = feed_mark(m, bytes[i]);
            break;
        case QN_MULTIPART_BEHIND:
            ended = feed_behind(m, bytes[i]);
            break;
        case QN_MULTIPART_HEAD:
            ended = feed_head(m, bytes[i]);
            break;
        case QN_MULTIPART_DATA:
            ended = feed_data(m, bytes + i, n - i, &used);
            break;
        case QN_MULTIPART_END:
            if (m->n_matched == 2 || bytes[i] != line_end[m->n_matched++])
                ended = refuse(m, "the body goes on behind its last boundary");
            break;
        }
        if (ended) return ended;
    }
    return 0;
}

int qn_multipart_is_whole(const qn_multipart *m)
{
    return m->state == QN_MULTIPART_END;
}
