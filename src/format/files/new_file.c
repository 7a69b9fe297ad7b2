#include "format/files/new_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"

struct qn_new_file {
    char *path;      /* as given, for messages */
    char *target;    /* where the file shall be: path with links resolved */
    char *temporary; /* NULL: the target is a device and written in place */
    int fd;          /* -1: closed */
    int failed, finished;
};

static qn_status io_error(qn_new_file *f, const char *what)
{
    f->failed = 1;
    return qn_fail(QN_E_IO, "%s: %s: %s", f->path, what, strerror(errno));
}

/* A new file beside the target, under a name that nobody else uses. */
static qn_status create_temporary(qn_new_file *f, int is_private)
{
    qn_buf name = {0};
    for (int attempt = 0; attempt < 100; attempt++) {
        qn_buf_reset(&name);
        qn_buf_printf(&name, "%s.%ld-%d.tmp", f->target, (long)getpid(), attempt);
        if (name.status != QN_OK) break;
        f->fd = open(name.data, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, is_private ? 0600 : 0666);
        if (f->fd >= 0 || errno != EEXIST) break;
    }
    qn_status status = name.status;
    if (status == QN_OK && f->fd < 0) status = io_error(f, "cannot create it");
    if (status == QN_OK) {
        f->temporary = name.data;
        name = (qn_buf){0};
    }
    qn_buf_free(&name);
    return status;
}

static qn_status open_target(qn_new_file *f, int is_private)
{
    struct stat st;
    char resolved[PATH_MAX];
    int exists = stat(f->path, &st) == 0;
    if (exists && S_ISDIR(st.st_mode))
        return qn_fail(QN_E_IO, "%s: is a directory, expected a file", f->path);
    f->target = qn_strdup(exists && realpath(f->path, resolved) ? resolved : f->path);
    if (!f->target) return QN_E_NOMEM;
    if (!exists || S_ISREG(st.st_mode)) return create_temporary(f, is_private);
    f->fd = open(f->target, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
    return f->fd < 0 ? io_error(f, "cannot open it for writing") : QN_OK;
}

static qn_status take_room(qn_new_file *f, size_t size_bytes)
{
    if (!f->temporary || !size_bytes) return QN_OK;
    int error = posix_fallocate(f->fd, 0, (off_t)size_bytes);
    if (error == ENOSPC || error == EFBIG || error == EDQUOT) {
        errno = error;
        return io_error(f, "there is no room for it");
    }
    if (error && ftruncate(f->fd, (off_t)size_bytes) != 0) return io_error(f, "cannot write");
    return QN_OK;
}

qn_status qn_new_file_open(const char *path, int is_private, size_t size_bytes, qn_new_file **out)
{
    qn_new_file *f = qn_calloc(1, sizeof *f);
    if (!f) return QN_E_NOMEM;
    f->fd = -1;
    f->path = qn_strdup(path);
    qn_status status = f->path ? open_target(f, is_private) : QN_E_NOMEM;
    if (status == QN_OK) status = take_room(f, size_bytes);
    if (status == QN_OK)
        *out = f;
    else
        qn_new_file_free(f);
    return status;
}

qn_status qn_new_file_write(qn_new_file *f, size_t offset, const void *bytes, size_t n)
{
    const char *p = bytes;
    if (f->fd < 0 || f->failed) return qn_fail(QN_E_ARG, "%s: not open for writing", f->path);
    while (n) {
        ssize_t put = pwrite(f->fd, p, n, (off_t)offset);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) {
            if (put == 0) errno = ENOSPC;
            return io_error(f, "cannot write");
        }
        p += put;
        offset += (size_t)put;
        n -= (size_t)put;
    }
    return QN_OK;
}

const char *qn_new_file_place(const qn_new_file *f)
{
    return f->temporary ? f->temporary : f->target;
}

qn_status qn_new_file_finish(qn_new_file *f)
{
    if (f->fd < 0 || f->failed) return qn_fail(QN_E_ARG, "%s: not open for writing", f->path);
    if (f->temporary && fsync(f->fd) < 0) return io_error(f, "cannot write");
    int closed = close(f->fd);
    f->fd = -1;
    if (closed < 0) return io_error(f, "cannot write");
    if (f->temporary && rename(f->temporary, f->target) < 0) return io_error(f, "cannot put it in place");
    f->finished = 1;
    return QN_OK;
}

void qn_new_file_free(qn_new_file *f)
{
    if (!f) return;
    if (f->fd >= 0) close(f->fd);
    if (f->temporary && !f->finished) unlink(f->temporary);
    qn_free(f->temporary);
    qn_free(f->target);
    qn_free(f->path);
    qn_free(f);
}
