/* Statements of SQLite with their values. */
#include <stdarg.h>
#include <string.h>

#include "base/mem.h"
#include "server/archive/archive_sqlite.h"

qn_status qn_sql_fail(qn_archive *s, int code)
{
    const char *folder = s->options.folder;
    switch (code & 0xff) {
    case SQLITE_NOMEM:
        return qn_fail_nomem(0);
    case SQLITE_FULL:
        return qn_fail(QN_E_IO, "%s: the disk is full", folder);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return qn_fail(QN_E_FORMAT, "%s/store.sqlite: is no store, or is damaged: %s", folder,
                       sqlite3_errmsg(s->db));
    default:
        return qn_fail(QN_E_IO, "%s/store.sqlite: %s", folder,
                       s->db ? sqlite3_errmsg(s->db) : sqlite3_errstr(code));
    }
}

static qn_status prepare(qn_archive *s, sqlite3_stmt **out, const char *sql, const char *types,
                         va_list values)
{
    *out = NULL;
    int code = sqlite3_prepare_v2(s->db, sql, -1, out, NULL);
    for (int i = 1; *types && code == SQLITE_OK; types++, i++) {
        if (*types == 'i') {
            code = sqlite3_bind_int64(*out, i, va_arg(values, int64_t));
        } else if (*types == 't') {
            const char *text = va_arg(values, const char *);
            code = sqlite3_bind_text(*out, i, text ? text : "", -1, SQLITE_STATIC);
        } else {
            const char *bytes = va_arg(values, const char *);
            const size_t n = va_arg(values, size_t);
            code = sqlite3_bind_blob64(*out, i, bytes ? bytes : "", bytes ? n : 0, SQLITE_STATIC);
        }
    }
    if (code == SQLITE_OK) return QN_OK;
    const qn_status status = qn_sql_fail(s, code);
    sqlite3_finalize(*out);
    *out = NULL;
    return status;
}

qn_status qn_sql_prepare(qn_archive *s, sqlite3_stmt **out, const char *sql, const char *types, ...)
{
    va_list values;
    va_start(values, types);
    const qn_status status = prepare(s, out, sql, types, values);
    va_end(values);
    return status;
}

qn_status qn_sql_step(qn_archive *s, sqlite3_stmt *statement, int *has)
{
    const int code = sqlite3_step(statement);
    *has = code == SQLITE_ROW;
    return code == SQLITE_ROW || code == SQLITE_DONE ? QN_OK : qn_sql_fail(s, code);
}

qn_status qn_sql_run(qn_archive *s, int *n_changes, const char *sql, const char *types, ...)
{
    sqlite3_stmt *statement;
    va_list values;
    int has = 1;
    va_start(values, types);
    qn_status status = prepare(s, &statement, sql, types, values);
    va_end(values);
    while (status == QN_OK && has) status = qn_sql_step(s, statement, &has); /* a PRAGMA tells its value */
    sqlite3_finalize(statement);
    if (status == QN_OK && n_changes) *n_changes = sqlite3_changes(s->db);
    return status;
}

qn_status qn_sql_number(qn_archive *s, int64_t *out, const char *sql, const char *types, ...)
{
    sqlite3_stmt *statement;
    va_list values;
    int has = 0;
    va_start(values, types);
    qn_status status = prepare(s, &statement, sql, types, values);
    va_end(values);
    if (status == QN_OK) status = qn_sql_step(s, statement, &has);
    if (status == QN_OK && has) *out = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    return status;
}

qn_status qn_sql_end(qn_archive *s, qn_status status)
{
    char why[QN_ERROR_TEXT_MAX];
    if (status == QN_OK) status = qn_sql_run(s, NULL, "COMMIT", "");
    if (status == QN_OK) return QN_OK;
    /* The message of the failure, not of what follows it. */
    memcpy(why, qn_last_error(), strlen(qn_last_error()) + 1);
    if (!sqlite3_get_autocommit(s->db)) qn_sql_run(s, NULL, "ROLLBACK", "");
    return qn_fail_copy(status, why);
}
