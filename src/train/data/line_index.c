#include "train/data/line_index.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/map.h"
#include "base/mem.h"

enum { CHUNK_BYTES = 1 << 18 };

/* From line `first` on there were `skipped` lines of white space before. */
typedef struct {
    int64_t first, skipped;
} gap;

struct qn_line_index {
    char *path;
    int file;
    struct stat found; /* when it was opened */
    int64_t *begin;    /* [n] */
    int64_t n, capacity;
    gap *gaps; /* [n_gaps], rising */
    int64_t n_gaps, gaps_capacity;
    /* Of a file that is one JSON array, where its elements end and in which line they begin; NULL: lines. */
    int64_t *end, *number;
    int64_t end_capacity, number_capacity;
    uint64_t hash; /* chunk by chunk, each of CHUNK_BYTES */
};

/* Up to n bytes at an offset; fewer at the file's end only. */
static qn_status read_at(const qn_line_index *x, int64_t offset, char *to, size_t n, size_t *got)
{
    size_t done = 0;
    while (done < n) {
        ssize_t r = pread(x->file, to + done, n - done, (off_t)(offset + (int64_t)done));
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) return qn_fail(QN_E_IO, "%s: %s", x->path, strerror(errno));
        if (!r) break;
        done += (size_t)r;
    }
    *got = done;
    return QN_OK;
}

/* ---- finding the lines ---- */

/* Room for one more. */
static qn_status grow(void **items, int64_t n, int64_t *capacity, size_t item_bytes)
{
    size_t bytes;
    if (n < *capacity) return QN_OK;
    int64_t more = *capacity ? *capacity * 2 : 256;
    if (!qn_mul_size((size_t)more, item_bytes, &bytes)) return qn_fail_nomem(SIZE_MAX);
    void *fresh = qn_realloc(*items, bytes);
    if (!fresh) return QN_E_NOMEM;
    *items = fresh;
    *capacity = more;
    return QN_OK;
}

/* Where the scan is. */
typedef struct {
    int64_t begin;       /* of the line */
    int64_t n_skipped;   /* lines of white space so far */
    int has_text;        /* of the line */
    int skipped_changed; /* since the last line with text */
} scan;

static qn_status add_line(qn_line_index *x, scan *s)
{
    if (s->skipped_changed) {
        void *gaps = x->gaps;
        QN_TRY(grow(&gaps, x->n_gaps, &x->gaps_capacity, sizeof *x->gaps));
        x->gaps = gaps;
        x->gaps[x->n_gaps++] = (gap){x->n, s->n_skipped};
        s->skipped_changed = 0;
    }
    void *begin = x->begin;
    QN_TRY(grow(&begin, x->n, &x->capacity, sizeof *x->begin));
    x->begin = begin;
    x->begin[x->n++] = s->begin;
    return QN_OK;
}

static qn_status scan_chunk(qn_line_index *x, scan *s, const char *chunk, size_t n, int64_t offset)
{
    for (size_t i = 0; i < n;) {
        for (; i < n && !s->has_text && chunk[i] != '\n'; i++)
            s->has_text = chunk[i] != ' ' && chunk[i] != '\t' && chunk[i] != '\r';
        const char *newline = i < n ? memchr(chunk + i, '\n', n - i) : NULL;
        if (!newline) return QN_OK;
        if (s->has_text) {
            QN_TRY(add_line(x, s));
        } else {
            s->n_skipped++;
            s->skipped_changed = 1;
        }
        i = (size_t)(newline - chunk) + 1;
        s->begin = offset + (int64_t)i;
        s->has_text = 0;
    }
    return QN_OK;
}

/* ---- the elements of an array --------------------------------------------------------------------------- */

typedef struct {
    int64_t line, begin, end; /* end: behind the last byte of the element that is no white space */
    int depth, in_string, is_escaped, in_element, is_over;
} array_scan;

static qn_status add_element(qn_line_index *x, const array_scan *s, int64_t number)
{
    void *begin = x->begin, *end = x->end, *numbers = x->number;
    QN_TRY(grow(&begin, x->n, &x->capacity, sizeof *x->begin));
    x->begin = begin;
    QN_TRY(grow(&end, x->n, &x->end_capacity, sizeof *x->end));
    x->end = end;
    QN_TRY(grow(&numbers, x->n, &x->number_capacity, sizeof *x->number));
    x->number = numbers;
    x->begin[x->n] = s->begin;
    x->end[x->n] = s->end;
    x->number[x->n++] = number;
    return QN_OK;
}

/* Only brackets and strings are looked at; what an element is worth shows when it is parsed. */
static qn_status scan_elements(qn_line_index *x, array_scan *s, const char *chunk, size_t n, int64_t offset,
                               int64_t *number)
{
    for (size_t i = 0; i < n && !s->is_over; i++) {
        const char c = chunk[i];
        const int is_space = c == ' ' || c == '\t' || c == '\r' || c == '\n';
        if (c == '\n') s->line++;
        if (s->in_string) {
            s->in_string = s->is_escaped || c != '"';
            s->is_escaped = !s->is_escaped && c == '\\';
            s->end = offset + (int64_t)i + 1;
            continue;
        }
        if (is_space) continue;
        if (!s->depth) {
            s->depth = 1; /* the array's own bracket */
            continue;
        }
        if (s->depth == 1 && (c == ',' || c == ']')) {
            if (s->in_element) QN_TRY(add_element(x, s, *number));
            s->in_element = 0;
            s->is_over = c == ']';
            continue;
        }
        if (!s->in_element) {
            s->in_element = 1;
            s->begin = offset + (int64_t)i;
            *number = s->line;
        }
        s->end = offset + (int64_t)i + 1;
        s->in_string = c == '"';
        if (c == '{' || c == '[') s->depth++;
        if ((c == '}' || c == ']') && s->depth > 1) s->depth--;
    }
    return QN_OK;
}

static qn_status find_elements(qn_line_index *x)
{
    array_scan s = {.line = 1};
    size_t got = 1;
    int64_t number = 1;
    qn_status status = QN_OK;
    char *chunk = qn_alloc(CHUNK_BYTES);
    if (!chunk) return QN_E_NOMEM;
    for (int64_t offset = 0; status == QN_OK && got; offset += (int64_t)got) {
        status = read_at(x, offset, chunk, CHUNK_BYTES, &got);
        if (status != QN_OK) break;
        x->hash = qn_hash_bytes(chunk, got, x->hash);
        const size_t mark = offset == 0 && got >= 3 && memcmp(chunk, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
        status = scan_elements(x, &s, chunk + mark, got - mark, offset + (int64_t)mark, &number);
    }
    if (status == QN_OK && !s.is_over)
        status = qn_fail(QN_E_FORMAT, "%s: the file begins as a JSON array, which does not end", x->path);
    qn_free(chunk);
    return status;
}

/* *is_array: the first byte of the file that is no white space opens a JSON array. */
static qn_status begins_array(const qn_line_index *x, int *is_array)
{
    char text[4096];
    size_t got = 0, at = 0;
    QN_TRY(read_at(x, 0, text, sizeof text, &got));
    if (got >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) at = 3;
    while (at < got && (text[at] == ' ' || text[at] == '\t' || text[at] == '\r' || text[at] == '\n')) at++;
    *is_array = at < got && text[at] == '[';
    return QN_OK;
}

static qn_status find_lines(qn_line_index *x)
{
    scan s = {0};
    size_t got = 1;
    qn_status status = QN_OK;
    char *chunk = qn_alloc(CHUNK_BYTES);
    if (!chunk) return QN_E_NOMEM;
    for (int64_t offset = 0; status == QN_OK && got; offset += (int64_t)got) {
        status = read_at(x, offset, chunk, CHUNK_BYTES, &got);
        if (status == QN_OK) x->hash = qn_hash_bytes(chunk, got, x->hash);
        size_t mark = offset == 0 && got >= 3 && memcmp(chunk, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
        if (mark) s.begin = (int64_t)mark; /* a byte order mark is none of the text */
        if (status == QN_OK) status = scan_chunk(x, &s, chunk + mark, got - mark, offset + (int64_t)mark);
    }
    if (status == QN_OK && s.has_text) status = add_line(x, &s);
    qn_free(chunk);
    return status;
}

qn_status qn_line_index_open(const char *path, qn_line_index **out)
{
    qn_status status = QN_OK;
    qn_line_index *x = qn_calloc(1, sizeof *x);
    if (!x) return QN_E_NOMEM;
    x->file = -1;
    x->path = qn_strdup(path);
    if (!x->path) {
        status = QN_E_NOMEM;
        goto out;
    }
    x->file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (x->file < 0 || fstat(x->file, &x->found) != 0) {
        status = qn_fail(QN_E_IO, "%s: %s", path, strerror(errno));
        goto out;
    }
    if (!S_ISREG(x->found.st_mode)) {
        status = qn_fail(QN_E_ARG, "%s: not a regular file", path);
        goto out;
    }
    int is_array = 0;
    status = begins_array(x, &is_array);
    if (status == QN_OK) status = is_array ? find_elements(x) : find_lines(x);
out:
    if (status == QN_OK)
        *out = x;
    else
        qn_line_index_close(x);
    return status;
}

void qn_line_index_close(qn_line_index *x)
{
    if (!x) return;
    if (x->file >= 0) close(x->file);
    qn_free(x->path);
    qn_free(x->begin);
    qn_free(x->end);
    qn_free(x->number);
    qn_free(x->gaps);
    qn_free(x);
}

/* ---- asking ---- */

uint64_t qn_line_index_hash(const qn_line_index *x)
{
    return x->hash;
}

int64_t qn_line_index_count(const qn_line_index *x)
{
    return x->n;
}

int64_t qn_line_index_offset(const qn_line_index *x, int64_t i)
{
    return x->begin[i];
}

int64_t qn_line_index_number(const qn_line_index *x, int64_t i)
{
    if (x->number) return x->number[i];
    int64_t low = 0, high = x->n_gaps; /* the first gap behind line i */
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (x->gaps[middle].first <= i)
            low = middle + 1;
        else
            high = middle;
    }
    return i + 1 + (low ? x->gaps[low - 1].skipped : 0);
}

static qn_status check_unchanged(const qn_line_index *x)
{
    struct stat now;
    if (fstat(x->file, &now) != 0) return qn_fail(QN_E_IO, "%s: %s", x->path, strerror(errno));
    if (now.st_size != x->found.st_size || now.st_mtim.tv_sec != x->found.st_mtim.tv_sec ||
        now.st_mtim.tv_nsec != x->found.st_mtim.tv_nsec)
        return qn_fail(QN_E_IO, "%s: the file has changed since it was opened", x->path);
    return QN_OK;
}

qn_status qn_line_index_read(const qn_line_index *x, int64_t i, qn_buf *out)
{
    const int64_t end = x->end ? x->end[i] : i + 1 < x->n ? x->begin[i + 1] : (int64_t)x->found.st_size;
    const char *newline = NULL;
    qn_buf_reset(out);
    QN_TRY(check_unchanged(x));
    for (int64_t at = x->begin[i]; at < end && !newline;) {
        size_t want = end - at < CHUNK_BYTES ? (size_t)(end - at) : (size_t)CHUNK_BYTES, got = 0;
        if (out->length > QN_LINE_BYTES_MAX) break;
        qn_buf_reserve(out, want + 1);
        if (out->status != QN_OK) return out->status;
        char *to = out->data + out->length;
        QN_TRY(read_at(x, at, to, want, &got));
        if (got < want) return qn_fail(QN_E_IO, "%s: the file has become shorter", x->path);
        newline = x->end ? NULL : memchr(to, '\n', got);
        out->length += newline ? (size_t)(newline - to) : got;
        out->data[out->length] = 0;
        at += (int64_t)got;
    }
    if (out->length > QN_LINE_BYTES_MAX)
        return qn_fail(QN_E_FORMAT, "the line has more than %d MiB", QN_LINE_BYTES_MAX >> 20);
    return QN_OK;
}
