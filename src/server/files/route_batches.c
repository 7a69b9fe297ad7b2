/* /v1/batches: create, list, get, cancel. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "server/core/tasks/task.h"
#include "server/files/batch_run.h"
#include "server/files/files.h"
#include "server/files/request.h"

enum { LIMIT = 20, LIMIT_MAX = 100, PIECE_BYTES = 65536 };

/* ---- create -------------------------------------------------------------------------------------------- */

static int check(qn_task *t)
{
    const qn_api_request *r = &t->request;
    const char *key;
    json_t *value;
    if (!r->input_file_id)
        return qn_api_fail(&t->error, 400, "missing_parameter", "input_file_id", "input_file_id is missing");
    if (!r->endpoint)
        return qn_api_fail(&t->error, 400, "missing_parameter", "endpoint", "endpoint is missing");
    if (!qn_batch_is_endpoint(r->endpoint))
        return qn_api_fail(
            &t->error, 400, "invalid_value", "endpoint",
            "endpoint must be /v1/chat/completions, /v1/completions, /v1/embeddings or /v1/responses");
    if (!r->completion_window || strcmp(r->completion_window, "24h") != 0)
        return qn_api_fail(&t->error, 400, "invalid_value", "completion_window",
                           "completion_window must be \"24h\"");
    if (!r->metadata) return 0;
    int is_good = json_is_object(r->metadata) && json_object_size(r->metadata) <= QN_BATCH_METADATA_MAX;
    json_object_foreach((json_t *)r->metadata, key, value) is_good &= json_is_string(value);
    return is_good ? 0
                   : qn_api_fail(&t->error, 400, "invalid_value", "metadata",
                                 "metadata must be an object of at most 16 strings");
}

/* Counts the lines that are not blank. */
static qn_status count_lines(int file, char *piece, int64_t *n_lines)
{
    int is_blank = 1;
    *n_lines = 0;
    for (ssize_t n;;) {
        n = read(file, piece, PIECE_BYTES);
        if (n < 0) return qn_fail(QN_E_IO, "the file cannot be read");
        for (ssize_t i = 0; i < n; i++) {
            if (piece[i] == '\n') {
                *n_lines += !is_blank;
                is_blank = 1;
            } else if (!strchr(" \t\r", piece[i]) || !piece[i]) {
                is_blank = 0;
            }
        }
        if (n == 0) break;
    }
    *n_lines += !is_blank;
    return QN_OK;
}

static int check_input(qn_task *t, const char *owner, int64_t *n_lines)
{
    qn_archive *archive = t->ex->server->archive;
    const char *id = t->request.input_file_id;
    qn_buf object = {0};
    json_t *file = NULL;
    int fd = -1;
    int64_t bytes;
    char *piece = NULL;
    qn_status status = qn_archive_get(archive, QN_STORED_FILE, id, owner, &object, NULL);
    if (status == QN_OK) status = qn_json_parse("a stored file", object.data, object.length, &file);
    if (status == QN_OK) status = qn_archive_open_file(archive, id, owner, &fd, &bytes);
    if (status == QN_OK && !(piece = qn_alloc(PIECE_BYTES))) status = QN_E_NOMEM;
    if (status == QN_OK) status = count_lines(fd, piece, n_lines);
    const char *purpose = json_string_value(json_object_get(file, "purpose"));
    if (status != QN_OK)
        qn_api_fail_status(&t->error, status);
    else if (!purpose || strcmp(purpose, "batch") != 0)
        qn_api_fail(&t->error, 400, "invalid_value", NULL, "input_file_id: the file's purpose is not batch");
    else if (!*n_lines)
        qn_api_fail(&t->error, 400, "empty_file", NULL, "input_file_id: the file has no lines");
    if (t->error.status) snprintf(t->error.param, sizeof t->error.param, "input_file_id");
    if (fd >= 0) close(fd);
    qn_free(piece);
    json_decref(file);
    qn_buf_free(&object);
    return t->error.status;
}

/* What a task makes. */
typedef struct {
    qn_batch_info info;
    qn_batch_run *run;
} made;

static void create(qn_task *t)
{
    const qn_server *s = t->ex->server;
    const qn_api_request_limits limits = qn_server_request_limits(s);
    made *m = t->made = qn_calloc(1, sizeof *m);
    if (!m || !(m->run = qn_batch_run_new())) {
        qn_api_fail_status(&t->error, QN_E_NOMEM);
        return;
    }
    qn_batch_info *b = &m->info;
    qn_server_owner(s, t->ex->key, b->owner);
    if (qn_api_request_read_fields(t->ex->body.data, t->ex->body.length, qn_files_fields, QN_FILES_BATCH,
                                   &limits, &t->request, &t->error) ||
        check(t) || check_input(t, b->owner, &b->n_total))
        return;
    snprintf(b->id, sizeof b->id, "batch_%016" PRIx64, t->ex->number);
    snprintf(b->input, sizeof b->input, "%s", t->request.input_file_id);
    snprintf(b->endpoint, sizeof b->endpoint, "%s", t->request.endpoint);
    b->created_s = (int64_t)time(NULL);
    b->metadata = json_incref((json_t *)t->request.metadata);
    qn_batch_write(b, &t->answer);
    qn_status status = t->answer.status;
    if (status == QN_OK)
        status = qn_archive_put(s->archive, &(qn_stored){.kind = QN_STORED_BATCH,
                                                         .id = b->id,
                                                         .owner = b->owner,
                                                         .label = QN_STORED_OPEN,
                                                         .refers = b->input,
                                                         .created_s = b->created_s,
                                                         .object = t->answer.data,
                                                         .object_bytes = t->answer.length});
    if (status != QN_OK) qn_api_fail_status(&t->error, status);
}

static void created(qn_task *t)
{
    made *m = t->made;
    if (t->error.status) return;
    qn_batches_add(t->ex->server, m->run, &m->info);
    m->run = NULL;
}

static void free_made(qn_task *t)
{
    made *m = t->made;
    if (!m) return;
    qn_batch_info_free(&m->info);
    qn_batch_run_free(m->run);
    qn_free(m);
}

void qn_route_batch_create(qn_exchange *ex)
{
    static const qn_task_maker maker = {create, created, free_made};
    if (!qn_files_refuse(ex)) qn_task_begin_making(ex, &maker, 1);
}

/* ---- list, get ----------------------------------------------------------------------------------------- */

static void list_batches(qn_task *t)
{
    qn_files_write_list(t->ex, QN_STORED_BATCH, NULL, LIMIT, LIMIT_MAX, &t->answer, &t->error);
}

void qn_route_batches(qn_exchange *ex)
{
    if (!qn_files_refuse(ex)) qn_task_begin(ex, list_batches, NULL, 0);
}

static void get(qn_task *t)
{
    const qn_server *s = t->ex->server;
    char id[QN_STORED_ID_MAX], owner[QN_ARCHIVE_OWNER_MAX];
    qn_exchange_segment(t->ex, "batch_id", id, sizeof id);
    qn_server_owner(s, t->ex->key, owner);
    const qn_status status = qn_archive_get(s->archive, QN_STORED_BATCH, id, owner, &t->answer, NULL);
    if (status == QN_OK) return;
    qn_api_fail_status(&t->error, status);
    snprintf(t->error.param, sizeof t->error.param, "batch_id");
}

void qn_route_batch_get(qn_exchange *ex)
{
    if (!qn_files_refuse(ex)) qn_task_begin(ex, get, NULL, 0);
}

/* ---- cancel -------------------------------------------------------------------------------------------- */

/* Nothing is computed: there is no such batch, or it has ended. */
static void cancel_ended(qn_task *t)
{
    qn_batch_info b = {0};
    get(t);
    if (t->error.status) return;
    const qn_status status = qn_batch_read(t->answer.data, t->answer.length, &b);
    if (status != QN_OK)
        qn_api_fail_status(&t->error, status);
    else if (b.state != QN_BATCH_CANCELLED)
        qn_api_fail(&t->error, 409, "batch_ended", "batch_id",
                    "the batch has ended, or is about to: it cannot be cancelled");
    qn_batch_info_free(&b);
}

void qn_route_batch_cancel(qn_exchange *ex)
{
    char id[QN_STORED_ID_MAX], owner[QN_ARCHIVE_OWNER_MAX];
    qn_buf b = {0};
    if (qn_files_refuse(ex)) return;
    qn_exchange_segment(ex, "batch_id", id, sizeof id);
    qn_server_owner(ex->server, ex->key, owner);
    if (qn_batches_cancel(ex->server, id, owner, &b) && b.status == QN_OK)
        qn_exchange_reply(ex, 200, "application/json", NULL, b.data, b.length);
    else
        qn_task_begin(ex, cancel_ended, NULL, 0);
    qn_buf_free(&b);
}
