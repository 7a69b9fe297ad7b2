#include "format/files/folder_writer.h"

#include <dirent.h>
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

enum { ATTEMPTS = 100 };

struct qn_folder_writer {
    char *path;   /* as given, for messages */
    char *target; /* with links resolved */
    char *own;    /* the new folder, until it has its place; then what is left of the old one */
    char *asked;  /* of qn_folder_writer_path */
    const char *drops[QN_FOLDER_WRITER_DROPS];
    int n_drops, is_made;
};

static qn_status io_error(const char *path, const char *what)
{
    return qn_fail(QN_E_IO, "%s: %s: %s", path, what, strerror(errno));
}

static qn_status join(const char *folder, const char *name, char **out)
{
    qn_buf b = {0};
    qn_buf_printf(&b, "%s/%s", folder, name);
    *out = qn_buf_take(&b, NULL);
    return *out ? QN_OK : QN_E_NOMEM;
}

/* ---- files -------------------------------------------------------------------------------------------- */

static int write_all(int file, const char *bytes, size_t n)
{
    while (n) {
        ssize_t written = write(file, bytes, n);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return 0;
        bytes += written;
        n -= (size_t)written;
    }
    return fsync(file) == 0;
}

qn_status qn_file_write(const char *path, const void *bytes, size_t n)
{
    qn_buf name = {0};
    int file = -1;
    for (int i = 0; i < ATTEMPTS && file < 0; i++) {
        qn_buf_reset(&name);
        qn_buf_printf(&name, "%s.%ld-%d.tmp", path, (long)getpid(), i);
        if (name.status != QN_OK) return name.status;
        file = open(name.data, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (file < 0 && errno != EEXIST) break;
    }
    qn_status status = file < 0 ? io_error(path, "cannot create it") : QN_OK;
    if (status == QN_OK && !write_all(file, bytes, n)) status = io_error(path, "cannot write");
    if (file >= 0 && close(file) != 0 && status == QN_OK) status = io_error(path, "cannot write");
    if (status == QN_OK && rename(name.data, path) != 0) status = io_error(path, "cannot put it in place");
    if (status != QN_OK && file >= 0) unlink(name.data);
    qn_buf_free(&name);
    return status;
}

/* ---- folders ------------------------------------------------------------------------------------------ */

static qn_status make_folder(qn_folder_writer *w)
{
    qn_buf name = {0};
    for (int i = 0; i < ATTEMPTS && !w->is_made; i++) {
        qn_buf_reset(&name);
        qn_buf_printf(&name, "%s.%ld-%d.tmp", w->target, (long)getpid(), i);
        if (name.status != QN_OK) return name.status;
        w->is_made = mkdir(name.data, 0777) == 0;
        if (!w->is_made && errno != EEXIST) break;
    }
    if (w->is_made) {
        w->own = qn_buf_take(&name, NULL);
        return QN_OK;
    }
    qn_status status = io_error(w->path, "cannot make a folder for it");
    qn_buf_free(&name);
    return status;
}

static qn_status begin(qn_folder_writer *w, const char *path)
{
    struct stat about;
    char resolved[PATH_MAX];
    const int exists = stat(path, &about) == 0;
    size_t n = strlen(path);
    if (exists && !S_ISDIR(about.st_mode))
        return qn_fail(QN_E_IO, "%s: it already exists and is not a folder", path);
    while (n > 1 && path[n - 1] == '/') n--;
    w->path = qn_strdup(path);
    w->target = exists && realpath(path, resolved) ? qn_strdup(resolved) : qn_strndup(path, n);
    return w->path && w->target ? make_folder(w) : QN_E_NOMEM;
}

qn_status qn_folder_writer_new(const char *path, qn_folder_writer **out)
{
    qn_folder_writer *w = qn_calloc(1, sizeof *w);
    if (!w) return QN_E_NOMEM;
    qn_status status = begin(w, path);
    if (status == QN_OK)
        *out = w;
    else
        qn_folder_writer_free(w);
    return status;
}

const char *qn_folder_writer_path(qn_folder_writer *w, const char *name)
{
    qn_free(w->asked);
    w->asked = NULL;
    return join(w->own, name, &w->asked) == QN_OK ? w->asked : NULL;
}

qn_status qn_folder_writer_make(qn_folder_writer *w, const char *name)
{
    const char *path = qn_folder_writer_path(w, name);
    if (!path) return QN_E_NOMEM;
    return mkdir(path, 0777) == 0 || errno == EEXIST ? QN_OK : io_error(path, "cannot make a folder");
}

void qn_folder_writer_drop(qn_folder_writer *w, const char *name)
{
    if (w->n_drops < QN_FOLDER_WRITER_DROPS) w->drops[w->n_drops++] = name;
}

static int is_own_entry(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

static void remove_entries(int folder, int depth)
{
    DIR *d = folder < 0 ? NULL : fdopendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (is_own_entry(e->d_name) || unlinkat(dirfd(d), e->d_name, 0) == 0 || !depth) continue;
        remove_entries(openat(dirfd(d), e->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW),
                       depth - 1);
        unlinkat(dirfd(d), e->d_name, AT_REMOVEDIR);
    }
    if (d)
        closedir(d);
    else if (folder >= 0)
        close(folder);
}

/* Removes the files of a folder and of the folders in it, and it. Takes no memory of ours: it cannot stop
 * half-way. */
static void remove_folder(const char *path)
{
    remove_entries(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), 1);
    rmdir(path);
}

/* By a third name: the target is away for a moment. */
static qn_status exchange_slowly(const qn_folder_writer *w)
{
    qn_buf aside = {0};
    qn_buf_printf(&aside, "%s.old", w->own);
    qn_status status = aside.status;
    if (status == QN_OK && rename(w->target, aside.data) != 0)
        status = io_error(w->path, "cannot move it aside");
    if (status == QN_OK && rename(w->own, w->target) != 0) {
        status = io_error(w->path, "cannot put it in place");
        rename(aside.data, w->target);
    }
    if (status == QN_OK) rename(aside.data, w->own);
    qn_buf_free(&aside);
    return status;
}

/* The two folders change names. */
static qn_status exchange(const qn_folder_writer *w)
{
#ifdef RENAME_EXCHANGE
    if (renameat2(AT_FDCWD, w->own, AT_FDCWD, w->target, RENAME_EXCHANGE) == 0) return QN_OK;
    if (errno != ENOSYS && errno != EINVAL) return io_error(w->path, "cannot put it in place");
#endif
    return exchange_slowly(w);
}

static int is_dropped(const qn_folder_writer *w, const char *name)
{
    for (int i = 0; i < w->n_drops; i++)
        if (strcmp(w->drops[i], name) == 0) return 1;
    return 0;
}

/* What the old folder, which has the new one's first name now, had beside the new files. */
static qn_status move_rest(const qn_folder_writer *w)
{
    DIR *from = opendir(w->own), *to = opendir(w->target);
    qn_status status = from && to ? QN_OK : io_error(w->own, "cannot read it");
    for (struct dirent *e; status == QN_OK && (e = readdir(from));) {
        if (is_own_entry(e->d_name) || is_dropped(w, e->d_name)) continue;
        if (faccessat(dirfd(to), e->d_name, F_OK, AT_SYMLINK_NOFOLLOW) == 0) continue; /* a newer one */
        if (renameat(dirfd(from), e->d_name, dirfd(to), e->d_name) != 0)
            status = qn_fail(QN_E_IO, "%s/%s: cannot move it to %s: %s", w->own, e->d_name, w->path,
                             strerror(errno));
    }
    if (from) closedir(from);
    if (to) closedir(to);
    return status;
}

qn_status qn_folder_writer_finish(qn_folder_writer *w)
{
    int folder = open(w->own, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) {
        fsync(folder);
        close(folder);
    }
    if (rename(w->own, w->target) == 0) { /* nothing was there, or an empty folder */
        w->is_made = 0;
        return QN_OK;
    }
    if (errno != ENOTEMPTY && errno != EEXIST) return io_error(w->path, "cannot put it in place");
    QN_TRY(exchange(w));
    qn_status status = move_rest(w);
    if (status != QN_OK) w->is_made = 0; /* what did not move stays */
    return status;
}

void qn_folder_writer_free(qn_folder_writer *w)
{
    if (!w) return;
    if (w->is_made) remove_folder(w->own);
    qn_free(w->asked);
    qn_free(w->own);
    qn_free(w->target);
    qn_free(w->path);
    qn_free(w);
}
