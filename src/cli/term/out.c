#include "cli/term/out.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/utf8.h"
#include "cli/command.h"
#include "cli/term/fold.h"

enum { DRAIN_BYTES = 1 << 20 };

qn_status qn_json_drain(qn_buf *b)
{
    if (b->status != QN_OK || b->length < DRAIN_BYTES) return b->status;
    /* The last byte says whether a comma is due: it stays. */
    QN_TRY(qn_out_write(b->data, b->length - 1));
    b->data[0] = b->data[b->length - 1];
    b->length = 1;
    return QN_OK;
}

/* Characters that change how the rest of a line is shown, or are not shown themselves. */
static int is_deceptive(uint32_t cp)
{
    return (cp >= 0x200b && cp <= 0x200f) || (cp >= 0x2028 && cp <= 0x202e) ||
           (cp >= 0x2060 && cp <= 0x206f) || cp == 0x061c || cp == 0x00ad || cp == 0xfeff ||
           (cp >= 0xfff9 && cp <= 0xfffb) || (cp >= 0xe0000 && cp <= 0xe0fff);
}

/* One character of s[0..n) as it is shown, into text[16]; returns the bytes that it took, *columns its width.
 */
static size_t show_one(const char *s, size_t n, char *text, int *columns)
{
    uint32_t cp = 0;
    size_t used = qn_utf8_decode(s, n, &cp);
    if (used == 0)
        *columns = snprintf(text, 16, "\\x%02x", (unsigned char)*s);
    else if (cp == '\n' || cp == '\r' || cp == '\t')
        *columns = snprintf(text, 16, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
    else if (cp < 0x20 || cp == 0x7f)
        *columns = snprintf(text, 16, "\\x%02x", cp);
    else if (cp < 0xa0 ? cp > 0x7f : is_deceptive(cp))
        *columns = snprintf(text, 16, "\\u%04x", cp);
    else {
        memcpy(text, s, used);
        text[used] = 0;
        *columns = qn_utf8_width(cp);
    }
    return used ? used : 1;
}

int qn_out_put_shown(qn_buf *b, const char *text, size_t n, int columns_max)
{
    static const char dots[] = "...";
    int at = 0, columns;
    size_t cut = b->length; /* the last place at which the dots still fit */
    int cut_at = 0;
    for (size_t i = 0; i < n;) {
        char one[16];
        i += show_one(text + i, n - i, one, &columns);
        if (columns_max && at + columns > columns_max) {
            if (b->status == QN_OK && b->data) b->length = cut;
            qn_buf_puts(b, dots);
            return cut_at + (int)sizeof dots - 1;
        }
        qn_buf_puts(b, one);
        at += columns;
        if (at + (int)sizeof dots - 1 <= columns_max) {
            cut = b->length;
            cut_at = at;
        }
    }
    return at;
}

void qn_out_put_column(qn_buf *b, const char *text, int columns)
{
    int used = qn_out_put_shown(b, text, strlen(text), columns);
    qn_buf_printf(b, "%*s", columns - used, "");
}

const char *qn_out_plural(int64_t n)
{
    return n == 1 ? "" : "s";
}

const char *qn_out_size_text(size_t size_bytes, char *text, size_t size)
{
    static const char units[][4] = {"KiB", "MiB", "GiB", "TiB"};
    double value = (double)size_bytes;
    int unit = -1;
    for (; value >= 1000 && unit < 3; unit++) value /= 1024;
    if (unit < 0)
        snprintf(text, size, "%zu B", size_bytes);
    else
        snprintf(text, size, value < 9.95 ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return text;
}

qn_status qn_out_write(const char *bytes, size_t n)
{
    /* Not through stdio, which loses bytes when Ctrl-C comes while a terminal or pipe does not take them. */
    int failed = fflush(stdout) != 0;
    while (!failed && n) {
        ssize_t written = write(STDOUT_FILENO, bytes, n);
        failed = written < 0 && errno != EINTR;
        if (written < 0) continue;
        bytes += written;
        n -= (size_t)written;
    }
    return failed ? qn_fail(QN_E_IO, "standard output: %s", strerror(errno)) : QN_OK;
}

qn_status qn_out_line(qn_buf *b)
{
    qn_buf_putc(b, '\n');
    qn_status status = b->status;
    if (status == QN_OK) status = qn_out_write(b->data, b->length);
    qn_buf_free(b);
    return status;
}

static qn_status write_all(int file, const char *bytes, size_t n, int to_disk)
{
    while (n) {
        ssize_t written = write(file, bytes, n);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return qn_fail(QN_E_IO, "%s", strerror(errno));
        bytes += written;
        n -= (size_t)written;
    }
    return !to_disk || fsync(file) == 0 ? QN_OK : qn_fail(QN_E_IO, "%s", strerror(errno));
}

/* What files are made with that are not private. */
static mode_t public_mode(void)
{
    mode_t mask = umask(0);
    umask(mask);
    return 0666 & ~mask;
}

qn_status qn_out_file(const char *path, const char *bytes, size_t n, int is_private)
{
    struct stat info;
    qn_buf temporary = {0};
    const int in_place = stat(path, &info) == 0 && !S_ISREG(info.st_mode);
    if (!in_place) qn_buf_printf(&temporary, "%s.XXXXXX", path);
    QN_TRY(temporary.status);
    int file = in_place ? open(path, O_WRONLY | O_CLOEXEC) : mkstemp(temporary.data);
    qn_status status =
        file < 0 ? qn_fail(QN_E_IO, "%s", strerror(errno)) : write_all(file, bytes, n, !in_place);
    if (status == QN_OK && !in_place && !is_private && fchmod(file, public_mode()) != 0)
        status = qn_fail(QN_E_IO, "%s", strerror(errno));
    if (file >= 0 && close(file) != 0 && status == QN_OK) status = qn_fail(QN_E_IO, "%s", strerror(errno));
    if (status == QN_OK && !in_place && rename(temporary.data, path) != 0)
        status = qn_fail(QN_E_IO, "%s", strerror(errno));
    if (status != QN_OK) {
        if (file >= 0 && !in_place) unlink(temporary.data);
        status = qn_fail_prefix(status, "%s", path);
    }
    qn_buf_free(&temporary);
    return status;
}

/* One line, in pieces that fit if it is for a terminal. */
static void put_note(const char *text)
{
    static const char begin[] = "quern: ";
    qn_buf b = {0};
    qn_buf_puts(&b, begin);
    qn_fold_put(&b, text, (int)sizeof begin - 1, 0, qn_fold_terminal(stderr), 0);
    if (b.status == QN_OK)
        fprintf(stderr, "%s\n", b.data);
    else
        fprintf(stderr, "%s%s\n", begin, text);
    qn_buf_free(&b);
}

int qn_out_fail(void)
{
    char text[QN_ERROR_TEXT_MAX];
    snprintf(text, sizeof text, "%s", qn_last_error());
    put_note(text);
    return QN_EXIT_ERROR;
}

void qn_out_note(const char *fmt, ...)
{
    char text[QN_ERROR_TEXT_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    qn_utf8_clean(text);
    put_note(text);
}

int qn_out_has_style(FILE *stream)
{
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    if (no_color && no_color[0]) return 0;
    return term && strcmp(term, "dumb") != 0 && isatty(fileno(stream));
}
