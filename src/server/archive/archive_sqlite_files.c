/* Contents of files, and the lines of batches. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "server/archive/archive_sqlite.h"

struct qn_upload {
    qn_archive *archive;
    int file;
    char path[48]; /* "incoming/NUMBER" */
    int64_t bytes;
    int is_own; /* not counted */
};

static qn_status io_error(const qn_archive *s, const char *what)
{
    return qn_fail(QN_E_IO, "%s: %s: %s", s->options.folder, what, strerror(errno));
}

/* ---- what an ended process left ------------------------------------------------------------------------ */

/* Removes the files of a sub-folder that have no row; without has_rows: all. */
static qn_status clean(qn_archive *s, const char *folder, int has_rows)
{
    const int fd = openat(s->folder, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = fd >= 0 ? fdopendir(fd) : NULL;
    qn_status status = entries ? QN_OK : io_error(s, "cannot read its folders");
    if (!entries && fd >= 0) close(fd);
    for (const struct dirent *e; status == QN_OK && entries && (e = readdir(entries));) {
        int64_t is_kept = e->d_name[0] == '.';
        if (has_rows && !is_kept && qn_archive_is_id(e->d_name))
            status =
                qn_sql_number(s, &is_kept, "SELECT 1 FROM objects WHERE id=? AND kind=2", "t", e->d_name);
        if (status == QN_OK && !is_kept) unlinkat(dirfd(entries), e->d_name, 0);
    }
    if (entries) closedir(entries);
    return status;
}

/* Removes the rows whose content is gone. */
static qn_status clean_rows(qn_archive *s)
{
    sqlite3_stmt *statement;
    char path[QN_STORED_ID_MAX + 16];
    int has = 1;
    QN_TRY(qn_sql_prepare(s, &statement, "SELECT id FROM objects WHERE kind=2", ""));
    qn_status status = QN_OK;
    while (status == QN_OK && has) {
        status = qn_sql_step(s, statement, &has);
        if (status != QN_OK || !has) break;
        const char *id = (const char *)sqlite3_column_text(statement, 0);
        qn_archive_file_path(id, path);
        if (faccessat(s->folder, path, F_OK, 0) != 0 && errno == ENOENT)
            status = qn_sql_run(s, NULL, "DELETE FROM objects WHERE id=?", "t", id);
    }
    sqlite3_finalize(statement);
    return status;
}

qn_status qn_archive_clean_files(qn_archive *s)
{
    QN_TRY(clean_rows(s));
    QN_TRY(clean(s, "incoming", 0));
    return clean(s, "files", 1);
}

/* ---- uploads ------------------------------------------------------------------------------------------- */

qn_status qn_upload_begin(qn_archive *s, int is_own, qn_upload **out)
{
    qn_upload *u = qn_calloc(1, sizeof *u);
    if (!u) return QN_E_NOMEM;
    u->archive = s;
    u->is_own = is_own;
    snprintf(u->path, sizeof u->path, "incoming/%llu", atomic_fetch_add(&s->n_uploads, 1));
    u->file = openat(s->folder, u->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (u->file < 0) {
        const qn_status status = io_error(s, "cannot make a file");
        qn_free(u);
        return status;
    }
    *out = u;
    return QN_OK;
}

/* Notes bytes of uploads that are under way. */
static qn_status count(qn_archive *s, int64_t bytes)
{
    const long long most = s->options.file_bytes_max, before = atomic_fetch_add(&s->upload_bytes, bytes);
    if (bytes <= 0 || before + bytes <= most) return QN_OK;
    atomic_fetch_sub(&s->upload_bytes, bytes);
    return qn_fail(QN_E_FULL,
                   "the file, or all files that arrive now, are larger than %lld bytes (--max-file)", most);
}

qn_status qn_upload_take(qn_upload *u, const char *bytes, size_t n)
{
    if (!u->is_own) QN_TRY(count(u->archive, (int64_t)n));
    u->bytes += (int64_t)n;
    while (n) {
        const ssize_t written = write(u->file, bytes, n);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return io_error(u->archive, "cannot write a file");
        bytes += written;
        n -= (size_t)written;
    }
    return QN_OK;
}

int64_t qn_upload_bytes(const qn_upload *u)
{
    return u->bytes;
}

static void free_upload(qn_upload *u, int is_kept)
{
    if (!u) return;
    if (u->file >= 0) close(u->file);
    if (!is_kept) unlinkat(u->archive->folder, u->path, 0);
    if (!u->is_own) count(u->archive, -u->bytes);
    qn_free(u);
}

void qn_upload_drop(qn_upload *u)
{
    free_upload(u, 0);
}

static qn_status flush(qn_upload *u)
{
    return fsync(u->file) == 0 ? QN_OK : io_error(u->archive, "cannot write a file");
}

/* The content, and then its row; within a transaction. */
static qn_status keep(qn_upload *u, const qn_stored *file, int *is_kept)
{
    qn_archive *s = u->archive;
    char path[QN_STORED_ID_MAX + 16];
    QN_TRY(qn_archive_insert(s, file, u->bytes));
    qn_archive_file_path(file->id, path);
    if (renameat(s->folder, u->path, s->folder, path) != 0) return io_error(s, "cannot name a file");
    *is_kept = 1;
    return QN_OK;
}

qn_status qn_upload_keep(qn_upload *u, const qn_stored *file)
{
    qn_archive *s = u->archive;
    int is_kept = 0;
    qn_status status = flush(u);
    pthread_mutex_lock(&s->lock);
    if (status == QN_OK) status = QN_SQL_BEGIN(s);
    if (status == QN_OK) status = qn_sql_end(s, keep(u, file, &is_kept));
    pthread_mutex_unlock(&s->lock);
    free_upload(u, is_kept);
    return status;
}

qn_status qn_archive_open_file(qn_archive *s, const char *id, const char *owner, int *file, int64_t *bytes)
{
    char path[QN_STORED_ID_MAX + 16];
    struct stat st;
    qn_buf object = {0};
    qn_status status = qn_archive_get(s, QN_STORED_FILE, id, owner, &object, NULL);
    qn_buf_free(&object);
    QN_TRY(status);
    qn_archive_file_path(id, path);
    const int fd = openat(s->folder, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) {
        status = io_error(s, "cannot open a file");
        if (fd >= 0) close(fd);
        return status;
    }
    *file = fd;
    *bytes = (int64_t)st.st_size;
    return QN_OK;
}

/* ---- lines --------------------------------------------------------------------------------------------- */

static qn_status put_line(qn_archive *s, const char *batch, int64_t line, int is_error, const char *text,
                          size_t n)
{
    QN_TRY(qn_archive_make_room(s, (int64_t)n));
    QN_TRY(qn_sql_run(s, NULL, "INSERT OR IGNORE INTO lines(batch, line, is_error, text) VALUES(?,?,?,?)",
                      "tiib", batch, line, (int64_t)is_error, text, n));
    return qn_sql_run(s, NULL, "UPDATE objects SET bytes=bytes+? WHERE id=?", "it", (int64_t)n, batch);
}

qn_status qn_archive_put_line(qn_archive *s, const char *batch, int64_t line, int is_error, const char *text,
                              size_t n)
{
    pthread_mutex_lock(&s->lock);
    qn_status status = QN_SQL_BEGIN(s);
    if (status == QN_OK) status = qn_sql_end(s, put_line(s, batch, line, is_error, text, n));
    pthread_mutex_unlock(&s->lock);
    return status;
}

qn_status qn_archive_has_line(qn_archive *s, const char *batch, int64_t line, int *has)
{
    int64_t found = 0;
    pthread_mutex_lock(&s->lock);
    const qn_status status =
        qn_sql_number(s, &found, "SELECT 1 FROM lines WHERE batch=? AND line=?", "ti", batch, line);
    pthread_mutex_unlock(&s->lock);
    *has = found != 0;
    return status;
}

qn_status qn_archive_count_lines(qn_archive *s, const char *batch, qn_batch_counts *out)
{
    *out = (qn_batch_counts){0};
    pthread_mutex_lock(&s->lock);
    qn_status status =
        qn_sql_number(s, &out->n_lines, "SELECT count(*) FROM lines WHERE batch=?", "t", batch);
    if (status == QN_OK)
        status = qn_sql_number(s, &out->n_errors, "SELECT count(*) FROM lines WHERE batch=? AND is_error=1",
                               "t", batch);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* One line, behind `line`; *line is set to it. */
static qn_status next_line(qn_archive *s, const char *batch, int is_error, int64_t *line, qn_buf *text,
                           int *has)
{
    sqlite3_stmt *statement;
    pthread_mutex_lock(&s->lock);
    qn_status status =
        qn_sql_prepare(s, &statement,
                       "SELECT line, text FROM lines WHERE batch=? AND is_error=? AND line>? ORDER BY line "
                       "LIMIT 1",
                       "tii", batch, (int64_t)is_error, *line);
    if (status == QN_OK) status = qn_sql_step(s, statement, has);
    if (status == QN_OK && *has) {
        *line = sqlite3_column_int64(statement, 0);
        qn_buf_append(text, sqlite3_column_blob(statement, 1), (size_t)sqlite3_column_bytes(statement, 1));
        status = text->status;
    }
    sqlite3_finalize(statement);
    pthread_mutex_unlock(&s->lock);
    return status;
}

qn_status qn_archive_write_lines(qn_archive *s, const char *batch, int is_error, qn_upload *u)
{
    qn_buf text = {0};
    int64_t line = -1;
    int has = 1;
    qn_status status = QN_OK;
    while (status == QN_OK && has) {
        qn_buf_reset(&text);
        status = next_line(s, batch, is_error, &line, &text, &has);
        if (status == QN_OK && has) {
            qn_buf_putc(&text, '\n');
            status = text.status == QN_OK ? qn_upload_take(u, text.data, text.length) : text.status;
        }
    }
    qn_buf_free(&text);
    return status;
}

/* The lines go first: their bytes make room for the files that hold them. */
static qn_status end_batch(qn_archive *s, const qn_stored *batch, qn_upload *const uploads[2],
                           const qn_stored files[2], int is_kept[2])
{
    QN_TRY(qn_sql_run(s, NULL, "DELETE FROM lines WHERE batch=?", "t", batch->id));
    QN_TRY(qn_archive_insert(s, batch, 0));
    for (int i = 0; i < 2; i++)
        if (uploads[i]) QN_TRY(keep(uploads[i], &files[i], &is_kept[i]));
    return QN_OK;
}

qn_status qn_archive_end_batch(qn_archive *s, const qn_stored *batch, qn_upload *const uploads[2],
                               const qn_stored files[2])
{
    int is_kept[2] = {0};
    qn_status status = QN_OK;
    for (int i = 0; i < 2 && status == QN_OK; i++)
        if (uploads[i]) status = flush(uploads[i]);
    pthread_mutex_lock(&s->lock);
    if (status == QN_OK) status = QN_SQL_BEGIN(s);
    if (status == QN_OK) status = qn_sql_end(s, end_batch(s, batch, uploads, files, is_kept));
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < 2; i++) free_upload(uploads[i], is_kept[i]);
    return status;
}
