/* Objects: opening, adding, finding, giving up. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "server/archive/archive_sqlite.h"

enum {
    FORMAT_VERSION = 1,
    ROW_BYTES = 256, /* of what the database has of an object beside its texts */
    BUSY_MS = 5000,
    CHECKPOINT_PAGES = 256,
    VACUUM_PAGES = 64 /* given back to the system each time that something was given up */
};

static const char *const schema[] = {
    /* Before the first table. Deleted pages can be given back. */
    "PRAGMA auto_vacuum=INCREMENTAL",
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=NORMAL",
    "PRAGMA secure_delete=OFF",
    "PRAGMA journal_size_limit=1048576",
    "CREATE TABLE IF NOT EXISTS objects(number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, "
    "kind INTEGER NOT "
    "NULL, owner TEXT NOT NULL, label TEXT NOT NULL, refers TEXT NOT NULL, created INTEGER NOT NULL, bytes "
    "INTEGER NOT NULL, "
    "object BLOB NOT NULL, more BLOB NOT NULL)",
    "CREATE INDEX IF NOT EXISTS by_owner ON objects(kind, owner, number)",
    "CREATE TABLE IF NOT EXISTS lines(batch TEXT NOT NULL, line INTEGER NOT NULL, is_error INTEGER NOT NULL, "
    "text BLOB NOT "
    "NULL, PRIMARY KEY(batch, line)) WITHOUT ROWID",
};

/* Objects that may be given up. */
#define GIVES_WAY                            \
    "NOT (kind=3 AND label='" QN_STORED_OPEN \
    "') AND id NOT IN (SELECT refers FROM objects WHERE kind=3 AND label='" QN_STORED_OPEN "')"

int qn_archive_is_id(const char *id)
{
    const size_t n = strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    return n && !id[n] && n < QN_STORED_ID_MAX;
}

void qn_archive_file_path(const char *id, char path[QN_STORED_ID_MAX + 16])
{
    snprintf(path, QN_STORED_ID_MAX + 16, "files/%s", id);
}

int64_t qn_archive_oldest(const qn_archive *s)
{
    return (int64_t)time(NULL) - s->options.age_max_s;
}

int64_t qn_archive_file_bytes_max(const qn_archive *s)
{
    return s->options.file_bytes_max;
}

/* ---- opening ------------------------------------------------------------------------------------------- */

static qn_status io_error(const qn_archive *s, const char *what)
{
    return qn_fail(QN_E_IO, "%s: %s: %s", s->options.folder, what, strerror(errno));
}

static qn_status open_folder(qn_archive *s)
{
    const char *folder = s->options.folder;
    if (mkdir(folder, 0700) != 0 && errno != EEXIST) return io_error(s, "cannot make the folder");
    s->folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->folder < 0) return io_error(s, "cannot open the folder");
    s->lock_file = openat(s->folder, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (s->lock_file < 0) return io_error(s, "cannot make its lock");
    if (flock(s->lock_file, LOCK_EX | LOCK_NB) != 0)
        return qn_fail(QN_E_ARG, "%s: another process has this store open", folder);
    if ((mkdirat(s->folder, "files", 0700) != 0 && errno != EEXIST) ||
        (mkdirat(s->folder, "incoming", 0700) != 0 && errno != EEXIST))
        return io_error(s, "cannot make its folders");
    return QN_OK;
}

static qn_status open_database(qn_archive *s)
{
    qn_buf path = {0};
    int64_t version = 0, n_tables = 0;
    char pragma[64];
    qn_buf_printf(&path, "%s/store.sqlite", s->options.folder);
    QN_TRY(path.status);
    const int code = sqlite3_open_v2(
        path.data, &s->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX, NULL);
    if (code == SQLITE_OK) chmod(path.data, 0600);
    qn_buf_free(&path);
    if (code != SQLITE_OK) return qn_sql_fail(s, code);
    sqlite3_busy_timeout(s->db, BUSY_MS);
    sqlite3_wal_autocheckpoint(s->db, CHECKPOINT_PAGES);
    QN_TRY(qn_sql_number(s, &version, "PRAGMA user_version", ""));
    QN_TRY(qn_sql_number(s, &n_tables, "SELECT count(*) FROM sqlite_master", ""));
    if (n_tables && version != FORMAT_VERSION)
        return qn_fail(QN_E_FORMAT, "%s/store.sqlite: has version %lld, this quern reads version %d",
                       s->options.folder, (long long)version, (int)FORMAT_VERSION);
    for (size_t i = 0; i < sizeof schema / sizeof *schema; i++) QN_TRY(qn_sql_run(s, NULL, schema[i], ""));
    snprintf(pragma, sizeof pragma, "PRAGMA user_version=%d", (int)FORMAT_VERSION);
    return qn_sql_run(s, NULL, pragma, "");
}

qn_status qn_archive_open(const qn_archive_options *options, qn_archive **out)
{
    qn_archive *s = qn_calloc(1, sizeof *s);
    if (!s) return QN_E_NOMEM;
    s->options = *options;
    s->folder = s->lock_file = -1;
    pthread_mutex_init(&s->lock, NULL);
    qn_status status = open_folder(s);
    if (status == QN_OK) status = open_database(s);
    if (status == QN_OK) status = qn_archive_clean_files(s);
    if (status == QN_OK) {
        status = QN_SQL_BEGIN(s);
        if (status == QN_OK) status = qn_sql_end(s, qn_archive_make_room(s, 0));
    }
    if (status == QN_OK)
        *out = s;
    else
        qn_archive_close(s);
    return status;
}

void qn_archive_close(qn_archive *s)
{
    if (!s) return;
    if (s->db) sqlite3_close(s->db);
    if (s->lock_file >= 0) close(s->lock_file);
    if (s->folder >= 0) close(s->folder);
    pthread_mutex_destroy(&s->lock);
    qn_free(s);
}

/* ---- giving up ----------------------------------------------------------------------------------------- */

/* Files without a row are removed when the store is opened, so a process that ends between the two steps leaves nothing. */
static qn_status remove_row(qn_archive *s, int64_t number, qn_stored_kind kind, const char *id)
{
    char path[QN_STORED_ID_MAX + 16];
    QN_TRY(qn_sql_run(s, NULL, "DELETE FROM objects WHERE number=?", "i", number));
    if (kind == QN_STORED_BATCH) QN_TRY(qn_sql_run(s, NULL, "DELETE FROM lines WHERE batch=?", "t", id));
    if (kind == QN_STORED_FILE) {
        qn_archive_file_path(id, path);
        unlinkat(s->folder, path, 0);
    }
    return QN_OK;
}

/* The oldest that gives way, if it was created before `before`. */
static qn_status give_up_one(qn_archive *s, int64_t before, int64_t *bytes, int *found)
{
    sqlite3_stmt *statement;
    char id[QN_STORED_ID_MAX] = "";
    int64_t number = 0;
    qn_stored_kind kind = QN_STORED_RESPONSE;
    QN_TRY(qn_sql_prepare(s, &statement,
                          "SELECT number, kind, id, bytes FROM objects WHERE created<? AND " GIVES_WAY
                          " ORDER BY number LIMIT 1",
                          "i", before));
    qn_status status = qn_sql_step(s, statement, found);
    if (status == QN_OK && *found) {
        number = sqlite3_column_int64(statement, 0);
        kind = (qn_stored_kind)sqlite3_column_int(statement, 1);
        snprintf(id, sizeof id, "%s", (const char *)sqlite3_column_text(statement, 2));
        *bytes = sqlite3_column_int64(statement, 3);
    }
    sqlite3_finalize(statement);
    if (status == QN_OK && *found) status = remove_row(s, number, kind, id);
    return status;
}

qn_status qn_archive_make_room(qn_archive *s, int64_t bytes)
{
    const int64_t most = s->options.bytes_max;
    int64_t held = 0, freed = 0;
    int found = 1, n_removed = 0;
    if (bytes > most)
        return qn_fail(QN_E_FULL, "%lld bytes are more than the whole store may hold (--store-limit: %lld)",
                       (long long)bytes, (long long)most);
    while (found) {
        QN_TRY(give_up_one(s, qn_archive_oldest(s), &freed, &found));
        n_removed += found;
    }
    QN_TRY(qn_sql_number(s, &held, "SELECT coalesce(sum(bytes),0) FROM objects", ""));
    for (found = 1; found && held + bytes > most; held -= found ? freed : 0) {
        QN_TRY(give_up_one(s, INT64_MAX, &freed, &found));
        n_removed += found;
    }
    if (held + bytes > most)
        return qn_fail(QN_E_FULL, "the store is full: open batches hold %lld of its %lld bytes",
                       (long long)held, (long long)most);
    if (!n_removed) return QN_OK;
    char pragma[64];
    snprintf(pragma, sizeof pragma, "PRAGMA incremental_vacuum(%d)", (int)VACUUM_PAGES * n_removed);
    return qn_sql_run(s, NULL, pragma, "");
}

/* ---- objects ------------------------------------------------------------------------------------------- */

/* A row with the id of another one replaces it and keeps its place, and the bytes of its lines. */
qn_status qn_archive_insert(qn_archive *s, const qn_stored *o, int64_t content_bytes)
{
    const int64_t bytes = ROW_BYTES + content_bytes + (int64_t)o->object_bytes + (int64_t)o->more_bytes;
    int64_t before = 0;
    if (!qn_archive_is_id(o->id)) return qn_fail(QN_E_ARG, "'%s' is no id of a stored object", o->id);
    QN_TRY(qn_sql_number(s, &before, "SELECT bytes FROM objects WHERE id=?", "t", o->id));
    QN_TRY(qn_archive_make_room(s, bytes > before ? bytes - before : 0));
    return qn_sql_run(s, NULL,
                      "INSERT INTO objects(id, kind, owner, label, refers, created, bytes, object, more) "
                      "VALUES(?,?,?,?,?,?,?,?,?) ON CONFLICT(id) DO UPDATE SET label=excluded.label, "
                      "object=excluded.object, more=excluded.more, bytes=excluded.bytes + "
                      "(SELECT coalesce(sum(length(text)),0) FROM lines WHERE batch=excluded.id)",
                      "titttiibb", o->id, (int64_t)o->kind, o->owner, o->label, o->refers, o->created_s,
                      bytes, o->object, o->object_bytes, o->more, o->more_bytes);
}

qn_status qn_archive_put(qn_archive *s, const qn_stored *o)
{
    pthread_mutex_lock(&s->lock);
    qn_status status = QN_SQL_BEGIN(s);
    if (status == QN_OK) status = qn_sql_end(s, qn_archive_insert(s, o, 0));
    pthread_mutex_unlock(&s->lock);
    return status;
}

static const char *name_of(qn_stored_kind kind)
{
    return kind == QN_STORED_RESPONSE ? "response" : kind == QN_STORED_FILE ? "file" : "batch";
}

static qn_status not_found(qn_stored_kind kind, const char *id)
{
    return qn_fail(QN_E_NOT_FOUND,
                   "there is no %s '%.63s': it was never stored, or has given way to newer ones",
                   name_of(kind), id);
}

static void put_column(sqlite3_stmt *statement, int i, qn_buf *out)
{
    if (out)
        qn_buf_append(out, sqlite3_column_blob(statement, i), (size_t)sqlite3_column_bytes(statement, i));
}

static qn_status get(qn_archive *s, qn_stored_kind kind, const char *id, const char *owner, qn_buf *object,
                     qn_buf *more)
{
    sqlite3_stmt *statement;
    int has;
    QN_TRY(qn_sql_prepare(
        s, &statement,
        "SELECT object, more FROM objects WHERE id=? AND kind=? AND created>=? AND (owner=? OR ?)", "tiiti",
        id, (int64_t)kind, qn_archive_oldest(s), owner, (int64_t)!owner));
    qn_status status = qn_sql_step(s, statement, &has);
    if (status == QN_OK && !has) status = not_found(kind, id);
    if (status == QN_OK) {
        put_column(statement, 0, object);
        put_column(statement, 1, more);
        status = object->status != QN_OK ? object->status : more ? more->status : QN_OK;
    }
    sqlite3_finalize(statement);
    return status;
}

qn_status qn_archive_get(qn_archive *s, qn_stored_kind kind, const char *id, const char *owner,
                         qn_buf *object, qn_buf *more)
{
    pthread_mutex_lock(&s->lock);
    const qn_status status = get(s, kind, id, owner, object, more);
    pthread_mutex_unlock(&s->lock);
    return status;
}

static qn_status remove_one(qn_archive *s, qn_stored_kind kind, const char *id, const char *owner)
{
    int64_t number = 0, gives_way = 0;
    QN_TRY(qn_sql_number(s, &number,
                         "SELECT number FROM objects WHERE id=? AND kind=? AND created>=? AND owner=?",
                         "tiit", id, (int64_t)kind, qn_archive_oldest(s), owner));
    if (!number) return not_found(kind, id);
    QN_TRY(qn_sql_number(s, &gives_way, "SELECT 1 FROM objects WHERE number=? AND " GIVES_WAY, "i", number));
    if (!gives_way) return qn_fail(QN_E_ARG, "%s '%s' is in use: its batch has not ended", name_of(kind), id);
    return remove_row(s, number, kind, id);
}

qn_status qn_archive_remove(qn_archive *s, qn_stored_kind kind, const char *id, const char *owner)
{
    pthread_mutex_lock(&s->lock);
    qn_status status = QN_SQL_BEGIN(s);
    if (status == QN_OK) status = qn_sql_end(s, remove_one(s, kind, id, owner));
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* ---- lists --------------------------------------------------------------------------------------------- */

static qn_status list(qn_archive *s, const qn_archive_query *q, qn_stored_fn *fn, void *user, int *has_more)
{
    sqlite3_stmt *statement;
    int64_t from = q->oldest_first ? -1 : INT64_MAX, found = 0;
    int has = 1;
    *has_more = 0;
    if (q->after) {
        QN_TRY(qn_sql_number(s, &found, "SELECT number FROM objects WHERE id=? AND kind=? AND (owner=? OR ?)",
                             "titi", q->after, (int64_t)q->kind, q->owner, (int64_t)!q->owner));
        if (!found) return not_found(q->kind, q->after);
        from = found;
    }
    QN_TRY(qn_sql_prepare(
        s, &statement,
        q->oldest_first
            ? "SELECT id, owner, label, refers, created, object FROM objects WHERE kind=? AND (owner=? OR ?) "
              "AND (label=? OR ?) AND created>=? AND number>? ORDER BY number ASC LIMIT ?"
            : "SELECT id, owner, label, refers, created, object FROM objects WHERE kind=? AND (owner=? OR ?) "
              "AND (label=? OR ?) AND created>=? AND number<? ORDER BY number DESC LIMIT ?",
        "ititiiii", (int64_t)q->kind, q->owner, (int64_t)!q->owner, q->label, (int64_t)!q->label,
        qn_archive_oldest(s), from, q->limit + 1));
    qn_status status = QN_OK;
    for (int64_t i = 0; status == QN_OK && has; i++) {
        status = qn_sql_step(s, statement, &has);
        if (status != QN_OK || !has) break;
        if (i == q->limit) {
            *has_more = 1;
            break;
        }
        status = fn(user, &(qn_stored){.kind = q->kind,
                                       .id = (const char *)sqlite3_column_text(statement, 0),
                                       .owner = (const char *)sqlite3_column_text(statement, 1),
                                       .label = (const char *)sqlite3_column_text(statement, 2),
                                       .refers = (const char *)sqlite3_column_text(statement, 3),
                                       .created_s = sqlite3_column_int64(statement, 4),
                                       .object = sqlite3_column_blob(statement, 5),
                                       .object_bytes = (size_t)sqlite3_column_bytes(statement, 5)});
    }
    sqlite3_finalize(statement);
    return status;
}

qn_status qn_archive_list(qn_archive *s, const qn_archive_query *query, qn_stored_fn *fn, void *user,
                          int *has_more)
{
    pthread_mutex_lock(&s->lock);
    const qn_status status = list(s, query, fn, user, has_more);
    pthread_mutex_unlock(&s->lock);
    return status;
}
