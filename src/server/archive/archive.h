/* What `quern serve --store DIR` keeps: responses, files and batches, as JSON objects with their owner.
 *
 * The objects lie in one SQLite file, the contents of files beside it. Everything is bounded in bytes and in age: the oldest
 * objects give way, except open batches and the files that these read. A process that is killed at any moment leaves whole
 * objects behind: a row is written in one transaction, and the content of a file is complete before its row is.
 * archive_sqlite.c does it; a build without SQLite has archive_none.c, which opens nothing and says why.
 *
 * Any thread. Calls wait for the disk, so the loop makes none but qn_upload_take and qn_upload_drop. */
#ifndef QN_SERVER_ARCHIVE_ARCHIVE_H
#define QN_SERVER_ARCHIVE_ARCHIVE_H

#include <stdint.h>

#include "base/buf.h"

typedef struct qn_archive qn_archive;
typedef struct qn_upload qn_upload;

/* Strings are borrowed while the store is open. */
typedef struct {
    const char *folder; /* NULL: nothing is stored. Made if it is missing */
    int64_t bytes_max, age_max_s;
    int64_t file_bytes_max; /* of one file, and of all uploads that are under way */
} qn_archive_options;

typedef enum { QN_STORED_RESPONSE = 1, QN_STORED_FILE, QN_STORED_BATCH } qn_stored_kind;
enum { QN_STORED_ID_MAX = 64, QN_ARCHIVE_OWNER_MAX = 65 };

/* A batch with this label is not given up, nor the file that it refers to. */
#define QN_STORED_OPEN "open"

typedef struct {
    qn_stored_kind kind;
    const char *id, *owner; /* owner: qn_archive_name_owner */
    const char *label;      /* of a file: its purpose; of a batch: QN_STORED_OPEN or "ended". NULL: "" */
    const char *refers;     /* of a batch: the id of its input. NULL: "" */
    int64_t created_s;
    const char *object; /* JSON */
    size_t object_bytes;
    const char *more; /* of a response: its input. NULL: nothing */
    size_t more_bytes;
} qn_stored;

/* QN_E_UNSUPPORTED: built without SQLite; QN_E_FORMAT: the folder has something else; QN_E_ARG: another process has
 * it open; QN_E_IO. */
qn_status qn_archive_open(const qn_archive_options *options, qn_archive **out);
void qn_archive_close(qn_archive *s);
/* The most bytes that one file may have. */
int64_t qn_archive_file_bytes_max(const qn_archive *s);
/* Who owns what an API key makes: a sum of it, in hexadecimal digits. NULL: nobody has a key; "". */
void qn_archive_name_owner(const char *key, char owner[QN_ARCHIVE_OWNER_MAX]);

/* Adds an object, or changes the one with its id. QN_E_FULL: it is larger than the whole store. */
qn_status qn_archive_put(qn_archive *s, const qn_stored *o);
/* Appends what the owner's object has; more may be NULL. owner NULL: anybody's. QN_E_NOT_FOUND. */
qn_status qn_archive_get(qn_archive *s, qn_stored_kind kind, const char *id, const char *owner,
                         qn_buf *object, qn_buf *more);
/* QN_E_NOT_FOUND; QN_E_ARG: an open batch, or a file that one reads. */
qn_status qn_archive_remove(qn_archive *s, qn_stored_kind kind, const char *id, const char *owner);

typedef struct {
    qn_stored_kind kind;
    const char *owner; /* NULL: anybody's */
    const char *label; /* NULL: any */
    const char *after; /* the page begins behind this object; NULL: at the beginning. QN_E_NOT_FOUND */
    int64_t limit;
    int oldest_first;
} qn_archive_query;
/* o is borrowed during the call. What it returns but QN_OK ends the list. */
typedef qn_status qn_stored_fn(void *user, const qn_stored *o);
qn_status qn_archive_list(qn_archive *s, const qn_archive_query *query, qn_stored_fn *fn, void *user,
                          int *has_more);

/* A file that arrives. It counts against file_bytes_max (QN_E_FULL), unless the server itself makes it of what is stored. */
qn_status qn_upload_begin(qn_archive *s, int is_own, qn_upload **out);
qn_status qn_upload_take(qn_upload *u, const char *bytes, size_t n);
int64_t qn_upload_bytes(const qn_upload *u);
/* Keeps it as the content of the object, which is put; u is freed in any case. */
qn_status qn_upload_keep(qn_upload *u, const qn_stored *file);
void qn_upload_drop(qn_upload *u);
/* The content, open for reading; the caller closes it. QN_E_NOT_FOUND. */
qn_status qn_archive_open_file(qn_archive *s, const char *id, const char *owner, int *file, int64_t *bytes);

/* Lines of a batch that are answered, until it ends. */
typedef struct {
    int64_t n_lines, n_errors;
} qn_batch_counts;
qn_status qn_archive_put_line(qn_archive *s, const char *batch, int64_t line, int is_error, const char *text,
                              size_t n);
qn_status qn_archive_has_line(qn_archive *s, const char *batch, int64_t line, int *has);
qn_status qn_archive_count_lines(qn_archive *s, const char *batch, qn_batch_counts *out);
/* Appends them in their order to an upload. */
qn_status qn_archive_write_lines(qn_archive *s, const char *batch, int is_error, qn_upload *u);
/* Ends a batch in one step: its last object, the files that hold its lines (an upload may be NULL), no lines any more. The
 * uploads are freed in any case. */
qn_status qn_archive_end_batch(qn_archive *s, const qn_stored *batch, qn_upload *const uploads[2],
                               const qn_stored files[2]);

#endif
