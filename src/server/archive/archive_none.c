/* A build without SQLite: nothing opens a store, so no other function is called with one. */
#include "server/archive/archive.h"

static qn_status fail(void)
{
    return qn_fail(QN_E_UNSUPPORTED,
                   "this quern was built without SQLite, so it stores nothing: install libsqlite3-dev "
                   "and build again, or leave --store out");
}

qn_status qn_archive_open(const qn_archive_options *options, qn_archive **out)
{
    (void)options, (void)out;
    return fail();
}

void qn_archive_close(qn_archive *s)
{
    (void)s;
}

int64_t qn_archive_file_bytes_max(const qn_archive *s)
{
    (void)s;
    return 0;
}

qn_status qn_archive_put(qn_archive *s, const qn_stored *o)
{
    (void)s, (void)o;
    return fail();
}

qn_status qn_archive_get(qn_archive *s, qn_stored_kind kind, const char *id, const char *owner,
                         qn_buf *object, qn_buf *more)
{
    (void)s, (void)kind, (void)id, (void)owner, (void)object, (void)more;
    return fail();
}

qn_status qn_archive_remove(qn_archive *s, qn_stored_kind kind, const char *id, const char *owner)
{
    (void)s, (void)kind, (void)id, (void)owner;
    return fail();
}

qn_status qn_archive_list(qn_archive *s, const qn_archive_query *query, qn_stored_fn *fn, void *user,
                          int *has_more)
{
    (void)s, (void)query, (void)fn, (void)user, (void)has_more;
    return fail();
}

qn_status qn_upload_begin(qn_archive *s, int is_own, qn_upload **out)
{
    (void)s, (void)is_own, (void)out;
    return fail();
}

qn_status qn_upload_take(qn_upload *u, const char *bytes, size_t n)
{
    (void)u, (void)bytes, (void)n;
    return fail();
}

int64_t qn_upload_bytes(const qn_upload *u)
{
    (void)u;
    return 0;
}

qn_status qn_upload_keep(qn_upload *u, const qn_stored *file)
{
    (void)u, (void)file;
    return fail();
}

void qn_upload_drop(qn_upload *u)
{
    (void)u;
}

qn_status qn_archive_open_file(qn_archive *s, const char *id, const char *owner, int *file, int64_t *bytes)
{
    (void)s, (void)id, (void)owner, (void)file, (void)bytes;
    return fail();
}

qn_status qn_archive_put_line(qn_archive *s, const char *batch, int64_t line, int is_error, const char *text,
                              size_t n)
{
    (void)s, (void)batch, (void)line, (void)is_error, (void)text, (void)n;
    return fail();
}

qn_status qn_archive_has_line(qn_archive *s, const char *batch, int64_t line, int *has)
{
    (void)s, (void)batch, (void)line, (void)has;
    return fail();
}

qn_status qn_archive_count_lines(qn_archive *s, const char *batch, qn_batch_counts *out)
{
    (void)s, (void)batch, (void)out;
    return fail();
}

qn_status qn_archive_write_lines(qn_archive *s, const char *batch, int is_error, qn_upload *u)
{
    (void)s, (void)batch, (void)is_error, (void)u;
    return fail();
}

qn_status qn_archive_end_batch(qn_archive *s, const qn_stored *batch, qn_upload *const uploads[2],
                               const qn_stored files[2])
{
    (void)s, (void)batch, (void)uploads, (void)files;
    return fail();
}
