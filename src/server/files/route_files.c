/* GET /v1/files, and of one file: itself, its content, its end. */
#include <stdio.h>
#include <string.h>

#include "base/json/json_write.h"
#include "server/core/tasks/task.h"
#include "server/files/files.h"

enum { LIMIT = 10000, LIMIT_MAX = 10000 };

/* ---- what files and batches have in common ------------------------------------------------------------- */

int qn_files_check_store(const qn_server *s, qn_api_error *error)
{
    if (s->archive) return 0;
    return qn_api_fail(error, 400, "unsupported", NULL,
                       "this server stores no files and no batches: start it with --store DIR");
}

int qn_files_refuse(qn_exchange *ex)
{
    qn_api_error error;
    if (!qn_files_check_store(ex->server, &error)) return 0;
    qn_exchange_fail(ex, &error);
    return error.status;
}

typedef struct {
    qn_buf *out;
    char first[QN_STORED_ID_MAX], last[QN_STORED_ID_MAX];
} listing;

static qn_status put_object(void *user, const qn_stored *o)
{
    listing *l = user;
    if (l->first[0]) qn_buf_putc(l->out, ',');
    if (!l->first[0]) snprintf(l->first, sizeof l->first, "%s", o->id);
    snprintf(l->last, sizeof l->last, "%s", o->id);
    qn_buf_append(l->out, o->object, o->object_bytes);
    return l->out->status;
}

static void put_id(qn_buf *out, const char *key, const char *id)
{
    qn_json_key(out, key);
    if (id[0])
        qn_json_text(out, id, strlen(id));
    else
        qn_buf_puts(out, "null");
}

int qn_files_write_list(const qn_exchange *ex, qn_stored_kind kind, const char *label, int64_t limit,
                        int64_t limit_max, qn_buf *out, qn_api_error *error)
{
    const qn_server *s = ex->server;
    listing l = {.out = out};
    char owner[QN_ARCHIVE_OWNER_MAX], after[QN_STORED_ID_MAX];
    qn_page page;
    int has_more = 0;
    if (qn_exchange_page(ex, limit, limit_max, &page, error) ||
        qn_exchange_query(ex, "after", after, sizeof after, error))
        return error->status;
    qn_server_owner(s, ex->key, owner);
    const qn_archive_query query = {kind, owner, label, after[0] ? after : NULL, page.limit, page.is_asc};
    qn_json_open(out, '{');
    qn_json_put_text(out, "object", "list");
    qn_json_key(out, "data");
    qn_json_open(out, '[');
    const qn_status status = qn_archive_list(s->archive, &query, put_object, &l, &has_more);
    if (status != QN_OK) {
        const int refused = qn_api_fail_status(error, status == QN_E_NOT_FOUND ? QN_E_ARG : status);
        if (status == QN_E_NOT_FOUND) snprintf(error->param, sizeof error->param, "after");
        return refused;
    }
    qn_json_close(out, ']');
    put_id(out, "first_id", l.first);
    put_id(out, "last_id", l.last);
    qn_json_put_bool(out, "has_more", has_more);
    qn_json_close(out, '}');
    return 0;
}

/* ---- files --------------------------------------------------------------------------------------------- */

void qn_files_write_object(const qn_archive_options *o, const char *id, const char *file_name,
                           const char *purpose, int64_t bytes, int64_t created_s, qn_buf *out)
{
    qn_json_open(out, '{');
    qn_json_put_text(out, "id", id);
    qn_json_put_text(out, "object", "file");
    qn_json_put_int(out, "bytes", bytes);
    qn_json_put_int(out, "created_at", created_s);
    qn_json_put_int(out, "expires_at", created_s + o->age_max_s);
    qn_json_put_text(out, "filename", file_name);
    qn_json_put_text(out, "purpose", purpose);
    qn_json_put_text(out, "status", "processed");
    qn_json_close(out, '}');
}

static void list_files(qn_task *t)
{
    char purpose[64];
    if (qn_exchange_query(t->ex, "purpose", purpose, sizeof purpose, &t->error)) return;
    qn_files_write_list(t->ex, QN_STORED_FILE, purpose[0] ? purpose : NULL, LIMIT, LIMIT_MAX, &t->answer,
                        &t->error);
}

static void fail(qn_task *t, qn_status status)
{
    qn_api_fail_status(&t->error, status);
    if (status == QN_E_ARG) t->error.status = 409, t->error.code = "file_in_use";
    snprintf(t->error.param, sizeof t->error.param, "file_id");
}

/* The id of the path, and who asks. */
static void name(const qn_task *t, char id[QN_STORED_ID_MAX], char owner[QN_ARCHIVE_OWNER_MAX])
{
    qn_exchange_segment(t->ex, "file_id", id, QN_STORED_ID_MAX);
    qn_server_owner(t->ex->server, t->ex->key, owner);
}

static void get(qn_task *t)
{
    char id[QN_STORED_ID_MAX], owner[QN_ARCHIVE_OWNER_MAX];
    name(t, id, owner);
    const qn_status status =
        qn_archive_get(t->ex->server->archive, QN_STORED_FILE, id, owner, &t->answer, NULL);
    if (status != QN_OK) fail(t, status);
}

static void content(qn_task *t)
{
    char id[QN_STORED_ID_MAX], owner[QN_ARCHIVE_OWNER_MAX];
    name(t, id, owner);
    const qn_status status =
        qn_archive_open_file(t->ex->server->archive, id, owner, &t->file, &t->file_bytes);
    if (status == QN_OK)
        t->has_file = 1;
    else
        fail(t, status);
}

static void remove_file(qn_task *t)
{
    char id[QN_STORED_ID_MAX], owner[QN_ARCHIVE_OWNER_MAX];
    name(t, id, owner);
    const qn_status status = qn_archive_remove(t->ex->server->archive, QN_STORED_FILE, id, owner);
    if (status != QN_OK) {
        fail(t, status);
        return;
    }
    qn_json_open(&t->answer, '{');
    qn_json_put_text(&t->answer, "id", id);
    qn_json_put_text(&t->answer, "object", "file");
    qn_json_put_bool(&t->answer, "deleted", 1);
    qn_json_close(&t->answer, '}');
}

static void run(qn_exchange *ex, qn_task_fn *fn)
{
    if (!qn_files_refuse(ex)) qn_task_begin(ex, fn, NULL, 0);
}

void qn_route_files(qn_exchange *ex)
{
    run(ex, list_files);
}

void qn_route_file_get(qn_exchange *ex)
{
    run(ex, get);
}

void qn_route_file_content(qn_exchange *ex)
{
    run(ex, content);
}

void qn_route_file_delete(qn_exchange *ex)
{
    run(ex, remove_file);
}
