/* What the files of the archive share: the database behind its lock, and statements with their values. */
#ifndef QN_SERVER_ARCHIVE_ARCHIVE_SQLITE_H
#define QN_SERVER_ARCHIVE_ARCHIVE_SQLITE_H

#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>

#include "server/archive/archive.h"

struct qn_archive {
    qn_archive_options options;
    sqlite3 *db;
    int folder, lock_file;
    pthread_mutex_t lock; /* of the database */
    atomic_llong
        upload_bytes; /* of files that arrive: the loop counts them, and must not wait for the lock */
    atomic_ullong n_uploads;
};

/* Makes a statement of sql and binds its values: 't' a text (NULL: ""), 'i' an int64_t, 'b' a pointer and a size_t. */
qn_status qn_sql_prepare(qn_archive *s, sqlite3_stmt **out, const char *sql, const char *types, ...);
/* Runs one that gives no rows. *n_changes may be NULL. */
qn_status qn_sql_run(qn_archive *s, int *n_changes, const char *sql, const char *types, ...);
/* The next row. *has is 0 at the end. */
qn_status qn_sql_step(qn_archive *s, sqlite3_stmt *statement, int *has);
/* One number of one row; it stays as it is if there is no row. */
qn_status qn_sql_number(qn_archive *s, int64_t *out, const char *sql, const char *types, ...);
/* Ends the transaction that QN_SQL_BEGIN began: takes it back unless status is QN_OK. Returns status, or why it failed. */
#define QN_SQL_BEGIN(s) qn_sql_run(s, NULL, "BEGIN IMMEDIATE", "")
qn_status qn_sql_end(qn_archive *s, qn_status status);
/* The last failure of the database. */
qn_status qn_sql_fail(qn_archive *s, int code);

/* These need the lock, and a transaction. */
qn_status qn_archive_insert(qn_archive *s, const qn_stored *o, int64_t content_bytes);
/* Removes what is too old, and the oldest until `bytes` more fit. */
qn_status qn_archive_make_room(qn_archive *s, int64_t bytes);

/* Removes what an ended process left: files that never became whole, or whose row is gone. */
qn_status qn_archive_clean_files(qn_archive *s);
/* The oldest time that is not too old. */
int64_t qn_archive_oldest(const qn_archive *s);
/* "files/ID", relative to the folder. */
void qn_archive_file_path(const char *id, char path[QN_STORED_ID_MAX + 16]);
/* Is the id made of letters, digits, '-' and '_', so that it is safe as the name of a file? */
int qn_archive_is_id(const char *id);

#endif
