#include "cli/constrain/json_lines.h"

#include <errno.h>
#include <string.h>
#include <zlib.h>

#include "base/buf.h"

/* One line into the buffer. *at_end: nothing was left. */
static qn_status read_line(gzFile f, qn_buf *line, int *at_end)
{
    char part[65536];
    qn_buf_reset(line);
    while (gzgets(f, part, sizeof part)) {
        size_t n = strlen(part);
        qn_buf_append(line, part, n);
        if (line->status != QN_OK) return line->status;
        if (n && part[n - 1] == '\n') {
            line->data[--line->length] = 0;
            return QN_OK;
        }
    }
    int code = 0;
    const char *why = gzerror(f, &code);
    if (code != Z_OK && code != Z_STREAM_END)
        return qn_fail(QN_E_IO, "%s", code == Z_ERRNO ? strerror(errno) : why);
    *at_end = !line->length;
    return QN_OK;
}

qn_status qn_json_lines_read(const char *path, qn_json_line_fn *fn, void *user)
{
    gzFile f = gzopen(path, "rb");
    if (!f) return qn_fail(QN_E_IO, "%s: %s", path, errno ? strerror(errno) : "out of memory");
    qn_buf line = {.limit_bytes = QN_JSON_LINE_MAX};
    qn_status status = QN_OK;
    int at_end = 0;
    for (long long i = 1; status == QN_OK && !at_end; i++) {
        status = read_line(f, &line, &at_end);
        if (status == QN_OK && line.length) status = fn(user, line.data, line.length);
        if (status != QN_OK) qn_fail_prefix(status, "%s: line %lld", path, i);
    }
    qn_buf_free(&line);
    gzclose(f);
    return status;
}
