/* A batch: its object as the API shows it, and its lines as they are read and answered. No sockets, no threads: batch_run.c
 * computes batches. */
#ifndef QN_SERVER_FILES_BATCH_H
#define QN_SERVER_FILES_BATCH_H

#include <jansson.h>
#include <stdint.h>

#include "base/buf.h"
#include "server/archive/archive.h"
#include "server/http/api_error.h"

enum { QN_BATCH_ENDPOINT_MAX = 32, QN_BATCH_WINDOW_S = 86400, QN_BATCH_METADATA_MAX = 16 };

#define QN_BATCH_STATES(X)        \
    X(IN_PROGRESS, "in_progress") \
    X(CANCELLING, "cancelling")   \
    X(EXPIRING, "finalizing")     \
    X(COMPLETED, "completed")     \
    X(CANCELLED, "cancelled")     \
    X(EXPIRED, "expired")         \
    X(FAILED, "failed")

typedef enum {
#define QN_BATCH_STATE(name, text) QN_BATCH_##name,
    QN_BATCH_STATES(QN_BATCH_STATE)
#undef QN_BATCH_STATE
        QN_BATCH_STATE_COUNT
} qn_batch_state;

typedef struct {
    char id[QN_STORED_ID_MAX], input[QN_STORED_ID_MAX], owner[QN_ARCHIVE_OWNER_MAX];
    char endpoint[QN_BATCH_ENDPOINT_MAX];
    qn_batch_state state;
    json_t *metadata;                         /* owned; NULL: none */
    int64_t created_s, cancelling_s, ended_s; /* 0: not yet */
    int64_t n_total, n_completed, n_failed;
    char output[QN_STORED_ID_MAX], errors[QN_STORED_ID_MAX]; /* files, once it has ended; "": none */
    char why[512];                                           /* FAILED */
} qn_batch_info;

void qn_batch_info_free(qn_batch_info *b);
/* Appends the object. */
void qn_batch_write(const qn_batch_info *b, qn_buf *out);
/* Reads a stored object back, for a server that starts again. The owner is not in it. qn_batch_info_free is due in any case. */
qn_status qn_batch_read(const char *text, size_t n, qn_batch_info *b);
/* Is it one of the routes that batches may call? */
int qn_batch_is_endpoint(const char *path);

/* A line of the input: its custom_id, and the body of its request. Both are appended as JSON; custom_id is "null" if there
 * is none. Returns 0, or fills in why the line is bad. */
int qn_batch_read_line(const char *text, size_t n, const char *endpoint, qn_buf *custom_id, qn_buf *body,
                       qn_api_error *error);
/* Appends a line of the output: of an answer with its status and the id of its request, or of a line without one. */
void qn_batch_write_answer(const char *batch, int64_t line, const qn_buf *custom_id, int status,
                           const char *request_id, const char *answer, size_t n, qn_buf *out);
void qn_batch_write_failure(const char *batch, int64_t line, const qn_buf *custom_id, const char *code,
                            const char *message, qn_buf *out);

#endif
