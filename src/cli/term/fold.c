#include "cli/term/fold.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/utf8.h"
#include "cli/term/out.h"

enum { COLUMNS_UNKNOWN = 80, COLUMNS_MIN = 20, COLUMNS_MAX = 1000 };

int qn_fold_columns(FILE *stream)
{
    const char *said = getenv("COLUMNS");
    struct winsize size;
    long columns = 0;
    if (ioctl(fileno(stream), TIOCGWINSZ, &size) == 0) columns = size.ws_col;
    if (!columns && said) columns = strtol(said, NULL, 10);
    if (columns <= 0) columns = COLUMNS_UNKNOWN;
    return columns < COLUMNS_MIN ? COLUMNS_MIN : columns > COLUMNS_MAX ? COLUMNS_MAX : (int)columns;
}

int qn_fold_terminal(FILE *stream)
{
    return isatty(fileno(stream)) ? qn_fold_columns(stream) : 0;
}

/* The bytes of the next character, its columns into *width. */
static size_t next_character(const char *text, size_t n, int *width)
{
    uint32_t cp = 0;
    const size_t used = qn_utf8_decode(text, n, &cp);
    *width = used ? qn_utf8_width(cp) : 1;
    return used ? used : 1;
}

static int columns_of(const char *text, size_t n)
{
    int columns = 0, width;
    for (size_t i = 0; i < n; columns += width) i += next_character(text + i, n - i, &width);
    return columns;
}

void qn_fold_line_end(qn_buf *b, int indent)
{
    while (b->length && b->data[b->length - 1] == ' ') b->length--;
    qn_buf_printf(b, "\n%*s", indent, "");
}

/* May a long word go on in the next line before text[i]? */
static int is_joint(const char *text, size_t i)
{
    return i && (text[i] == '<' || text[i] == '\\' || strchr(">,/;)]}", text[i - 1]) ||
                 (i > 1 && text[i - 2] == '\\' && text[i - 1] == 'n'));
}

/* A word that no line can hold: the lines end at its marks, or are filled where it has none. */
static int put_long(qn_buf *b, const char *text, size_t n, int at, int indent, int columns)
{
    while (n) {
        size_t i = 0, joint = 0;
        int width = 0, total = 0, until_joint = 0;
        while (i < n) {
            const size_t used = next_character(text + i, n - i, &width);
            if (at + total + width > columns) break;
            total += width;
            i += used;
            if (i < n && is_joint(text, i)) {
                joint = i;
                until_joint = total;
            }
        }
        if (i == 0 && at <= indent) i = next_character(text, n, &total); /* wider than the line */
        if (i < n && joint) {
            i = joint;
            total = until_joint;
        }
        qn_buf_append(b, text, i);
        at += total;
        text += i;
        n -= i;
        if (!n) break;
        qn_fold_line_end(b, indent);
        at = indent;
    }
    return at;
}

int qn_fold_put(qn_buf *b, const char *text, int at, int indent, int columns, unsigned flags)
{
    for (int is_first = 1; *text; is_first = 0) {
        const size_t gap = strspn(text, " \n");
        const int has_end = memchr(text, '\n', gap) != NULL, spaces = is_first ? 0 : has_end ? 1 : (int)gap;
        const size_t n = strcspn(text + gap, " \n");
        if (!n) break;
        text += gap;
        const int width = columns_of(text, n), is_long = indent + width > columns;
        const int overflows =
            columns && at + spaces + width > columns && at > indent && !(is_long && (flags & QN_FOLD_LONG));
        if (overflows || (has_end && !is_first && (flags & QN_FOLD_LINES))) {
            qn_fold_line_end(b, indent);
            at = indent;
        } else {
            qn_buf_printf(b, "%*s", spaces, "");
            at += spaces;
        }
        if (columns && is_long && (flags & QN_FOLD_LONG)) {
            at = put_long(b, text, n, at, indent, columns);
        } else {
            qn_buf_append(b, text, n);
            at += width;
        }
        text += n;
    }
    return at;
}

int qn_fold_put_shown(qn_buf *b, const char *text, size_t n, int at, int indent, int columns, unsigned flags)
{
    qn_buf shown = {0};
    qn_out_put_shown(&shown, text, n, 0);
    if (shown.status != QN_OK) b->status = shown.status;
    if (shown.data && shown.status == QN_OK) at = qn_fold_put(b, shown.data, at, indent, columns, flags);
    qn_buf_free(&shown);
    return at;
}

qn_status qn_fold_out_line(qn_buf *text, int indent)
{
    qn_buf b = {.status = text->status};
    if (text->data && text->status == QN_OK)
        qn_fold_put(&b, text->data, 0, indent, qn_fold_terminal(stdout), 0);
    qn_buf_free(text);
    return qn_out_line(&b);
}
