/* POST /v1/files: the content goes to the disk as it arrives. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "server/files/files.h"
#include "server/files/multipart.h"

enum { PURPOSE_MAX = 32 };

typedef enum { PART_PURPOSE, PART_FILE, PART_IGNORED } part_kind;

typedef struct {
    qn_job job;
    qn_exchange *ex;
    qn_multipart body;
    qn_upload *upload; /* NULL: the file has not begun, or was kept */
    qn_api_error error;
    part_kind part;
    char purpose[PURPOSE_MAX], file_name[QN_MULTIPART_NAME_MAX];
    size_t n_purpose;
    int has_purpose, has_file;
    qn_buf answer;
} upload;

/* ---- parts --------------------------------------------------------------------------------------------- */

/* The last part of a path, as browsers of old times send one. */
static void name_file(upload *u, const char *sent)
{
    const char *slash = strrchr(sent, '/'), *name = slash ? slash + 1 : sent;
    snprintf(u->file_name, sizeof u->file_name, "%s", *name ? name : "file");
}

static int begin_file(upload *u, const qn_multipart_part *part)
{
    if (u->has_file) return qn_api_fail(&u->error, 400, "invalid_value", "file", "file was sent twice");
    if (!part->has_file_name)
        return qn_api_fail(&u->error, 400, "invalid_value", "file",
                           "file must be a file: its part has no filename");
    u->has_file = 1;
    u->part = PART_FILE;
    name_file(u, part->file_name);
    const qn_status status = qn_upload_begin(u->ex->server->archive, 0, &u->upload);
    return status == QN_OK ? 0 : qn_api_fail_status(&u->error, status);
}

static int begin_part(void *user, const qn_multipart_part *part)
{
    upload *u = user;
    const char *name = part->name;
    if (strcmp(name, "file") == 0) return begin_file(u, part);
    if (strcmp(name, "purpose") == 0) {
        if (u->has_purpose)
            return qn_api_fail(&u->error, 400, "invalid_value", "purpose", "purpose was sent twice");
        u->has_purpose = 1;
        u->part = PART_PURPOSE;
        return 0;
    }
    /* Files have the age that --store-days says. */
    u->part = PART_IGNORED;
    if (strncmp(name, "expires_after[", 14) == 0) return 0;
    return qn_api_fail(&u->error, 400, "unknown_parameter", name, "unknown parameter: %s", name);
}

static int take_part(void *user, const char *bytes, size_t n)
{
    upload *u = user;
    if (u->part == PART_IGNORED) return 0;
    if (u->part == PART_FILE) {
        const qn_status status = qn_upload_take(u->upload, bytes, n);
        if (status == QN_OK) return 0;
        qn_api_fail_status(&u->error, status);
        return status == QN_E_FULL
                   ? qn_api_fail(&u->error, 413, "file_too_large", "file", "%s", qn_last_error())
                   : u->error.status;
    }
    if (u->n_purpose + n >= sizeof u->purpose || memchr(bytes, 0, n))
        return qn_api_fail(&u->error, 400, "invalid_value", "purpose", "purpose is none that is known");
    memcpy(u->purpose + u->n_purpose, bytes, n);
    u->n_purpose += n;
    return 0;
}

static int end_part(void *user)
{
    static const char *const known[] = {"batch", "assistants", "fine-tune", "vision", "user_data", "evals"};
    const upload *u = user;
    size_t i = 0;
    if (u->part != PART_PURPOSE) return 0;
    while (i < sizeof known / sizeof *known && strcmp(known[i], u->purpose) != 0) i++;
    if (i < sizeof known / sizeof *known) return 0;
    return qn_api_fail((qn_api_error *)&u->error, 400, "invalid_value", "purpose",
                       "purpose must be batch, assistants, fine-tune, vision, user_data or evals");
}

/* ---- the body ------------------------------------------------------------------------------------------ */

static void client_gone(qn_exchange *ex)
{
    (void)ex; /* free_upload drops what came */
}

static void free_upload(qn_exchange *ex)
{
    upload *u = ex->state;
    if (u->upload) qn_upload_drop(u->upload);
    qn_buf_free(&u->answer);
    qn_free(u);
}

static int begin(qn_exchange *ex, const char *type, qn_api_error *error)
{
    static const qn_multipart_reader reader = {begin_part, take_part, end_part};
    int refused = qn_files_check_store(ex->server, error);
    if (refused) return refused;
    upload *u = qn_calloc(1, sizeof *u);
    if (!u) return qn_api_fail_status(error, QN_E_NOMEM);
    u->ex = ex;
    ex->state = u;
    ex->gone = client_gone;
    ex->free_state = free_upload;
    if (qn_multipart_start(&u->body, type, &reader, u))
        return qn_api_fail(error, 415, "unsupported_media_type", NULL, "%s", u->body.why);
    return 0;
}

static int take(qn_exchange *ex, const char *bytes, size_t n, qn_api_error *error)
{
    upload *u = ex->state;
    if (!qn_multipart_feed(&u->body, bytes, n)) return 0;
    if (u->body.why) qn_api_fail(&u->error, 400, "malformed_request", NULL, "%s", u->body.why);
    *error = u->error;
    return error->status;
}

const qn_body_sink qn_files_sink = {begin, take};

/* ---- keeping ------------------------------------------------------------------------------------------- */

static void keep(qn_job *job)
{
    upload *u = (upload *)(void *)job;
    const qn_server *s = u->ex->server;
    const int64_t created_s = (int64_t)time(NULL);
    char id[QN_STORED_ID_MAX], owner[QN_ARCHIVE_OWNER_MAX];
    snprintf(id, sizeof id, "file-%016" PRIx64, u->ex->number);
    qn_server_owner(s, u->ex->key, owner);
    qn_files_write_object(&s->options->store, id, u->file_name, u->purpose, qn_upload_bytes(u->upload),
                          created_s, &u->answer);
    qn_status status = u->answer.status;
    if (status == QN_OK) {
        status = qn_upload_keep(u->upload, &(qn_stored){.kind = QN_STORED_FILE,
                                                        .id = id,
                                                        .owner = owner,
                                                        .label = u->purpose,
                                                        .created_s = created_s,
                                                        .object = u->answer.data,
                                                        .object_bytes = u->answer.length});
        u->upload = NULL;
    }
    if (status != QN_OK) qn_api_fail_status(&u->error, status);
    if (status == QN_E_FULL) u->error.status = 413, u->error.code = "file_too_large";
}

static void kept(qn_job *job)
{
    upload *u = (upload *)(void *)job;
    if (u->error.status)
        qn_exchange_fail(u->ex, &u->error);
    else
        qn_exchange_reply(u->ex, 200, "application/json", NULL, u->answer.data, u->answer.length);
    qn_exchange_release(u->ex);
}

void qn_route_file_upload(qn_exchange *ex)
{
    upload *u = ex->state;
    qn_api_error error = {0};
    if (!qn_multipart_is_whole(&u->body))
        qn_api_fail(&error, 400, "malformed_request", NULL, "the body ends before its last boundary");
    else if (!u->has_file)
        qn_api_fail(&error, 400, "missing_parameter", "file", "file is missing");
    else if (!u->has_purpose)
        qn_api_fail(&error, 400, "missing_parameter", "purpose", "purpose is missing");
    if (error.status) {
        qn_exchange_fail(ex, &error);
        return;
    }
    u->job = (qn_job){keep, kept, NULL};
    qn_exchange_hold(ex);
    qn_workers_push(ex->server->slow_workers, &u->job);
}
