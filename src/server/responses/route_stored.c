/* GET, DELETE and cancel of /v1/responses/ID, and its input items. */
#include <string.h>

#include "base/json/json.h"
#include "base/json/json_write.h"
#include "server/core/tasks/task.h"
#include "server/core/write.h"
#include "server/responses/responses.h"
#include "server/responses/stored.h"

/* ---- what all have in common --------------------------------------------------------------------------- */

/* Refuses if nothing is stored. Returns 1 if the exchange was answered. */
static int refuse_without_store(qn_exchange *ex)
{
    qn_api_error error;
    if (ex->server->archive) return 0;
    qn_api_fail(&error, 404, "response_not_found", "response_id",
                "this server stores no responses: each ends with its request, and \"store\" is answered "
                "false; start it "
                "with --store DIR");
    qn_exchange_fail(ex, &error);
    return 1;
}

static int fail(qn_task *t, qn_status status)
{
    const int refused = qn_api_fail_status(&t->error, status);
    if (status == QN_E_NOT_FOUND) t->error.code = "response_not_found";
    memcpy(t->error.param, "response_id", sizeof "response_id");
    return refused;
}

/* The completion in the background that makes the response, if there is one and the key may see it. Loop thread. */
static qn_completion *find_background(const qn_exchange *ex)
{
    char id[QN_STORED_ID_MAX];
    qn_exchange_segment(ex, "response_id", id, sizeof id);
    for (qn_completion *c = ex->server->background; c; c = c->next_background)
        if (strncmp(id, "resp_", 5) == 0 && strcmp(id + 5, c->ex->id + 4) == 0 && c->ex->key == ex->key)
            return c;
    return NULL;
}

static void reply(qn_exchange *ex, const qn_buf *b)
{
    qn_exchange_reply(ex, 200, "application/json", NULL, b->data, b->length);
}

/* ---- get ----------------------------------------------------------------------------------------------- */

static qn_status load(qn_task *t, qn_buf *object, qn_buf *more)
{
    const qn_server *s = t->ex->server;
    char id[QN_STORED_ID_MAX], owner[QN_ARCHIVE_OWNER_MAX];
    qn_exchange_segment(t->ex, "response_id", id, sizeof id);
    qn_server_owner(s, t->ex->key, owner);
    const qn_status status = qn_archive_get(s->archive, QN_STORED_RESPONSE, id, owner, object, more);
    if (status != QN_OK) fail(t, status);
    return status;
}

/* Nothing makes the response: if it is in progress all the same, its end could not be stored. */
static void mend(qn_task *t)
{
    char id[QN_STORED_ID_MAX], owner[QN_ARCHIVE_OWNER_MAX];
    json_t *response = NULL;
    if (!strstr(t->answer.data, "\"in_progress\"")) return; /* most are not even parsed */
    qn_status status = qn_json_parse_exact("a stored response", t->answer.data, t->answer.length, &response);
    const char *state = json_string_value(json_object_get(response, "status"));
    if (status == QN_OK && state && strcmp(state, "in_progress") == 0) {
        qn_exchange_segment(t->ex, "response_id", id, sizeof id);
        qn_server_owner(t->ex->server, t->ex->key, owner);
        status = qn_response_mend(t->ex->server->archive, id, owner);
        qn_buf_reset(&t->answer);
        if (status == QN_OK) load(t, &t->answer, NULL);
    }
    if (status != QN_OK) fail(t, status);
    json_decref(response);
}

/* The task's dialect is the completion that makes the response, or NULL: there is none. */
static void get(qn_task *t)
{
    char stream[16];
    if (qn_exchange_query(t->ex, "stream", stream, sizeof stream, &t->error)) return;
    if (strcmp(stream, "true") == 0)
        qn_api_fail(&t->error, 400, "unsupported_parameter", "stream",
                    "stream is not supported: a stored response is given as a whole");
    else if (load(t, &t->answer, NULL) == QN_OK && !t->dialect)
        mend(t);
}

void qn_route_response_get(qn_exchange *ex)
{
    if (refuse_without_store(ex)) return;
    const qn_completion *c = find_background(ex);
    /* What a worker is still storing. */
    if (c && c->shown.length && c->shown.status == QN_OK)
        reply(ex, &c->shown);
    else
        qn_task_begin(ex, get, c, 0);
}

/* ---- delete -------------------------------------------------------------------------------------------- */

static void remove_one(qn_task *t)
{
    const qn_server *s = t->ex->server;
    char id[QN_STORED_ID_MAX], owner[QN_ARCHIVE_OWNER_MAX];
    qn_exchange_segment(t->ex, "response_id", id, sizeof id);
    qn_server_owner(s, t->ex->key, owner);
    const qn_status status = qn_archive_remove(s->archive, QN_STORED_RESPONSE, id, owner);
    if (status != QN_OK) {
        fail(t, status);
        return;
    }
    qn_json_open(&t->answer, '{');
    qn_json_put_text(&t->answer, "id", id);
    qn_json_put_text(&t->answer, "object", "response");
    qn_json_put_bool(&t->answer, "deleted", 1);
    qn_json_close(&t->answer, '}');
}

void qn_route_response_delete(qn_exchange *ex)
{
    qn_api_error error;
    if (refuse_without_store(ex)) return;
    if (!find_background(ex)) {
        qn_task_begin(ex, remove_one, NULL, 0);
        return;
    }
    qn_api_fail(&error, 409, "response_in_progress", "response_id",
                "the response is still being made: cancel it first");
    qn_exchange_fail(ex, &error);
}

/* ---- cancel -------------------------------------------------------------------------------------------- */

/* Nothing is being made: a response that was cancelled is given again, and another one is not cancelled any more. */
static void cancel_ended(qn_task *t)
{
    json_t *response = NULL;
    qn_status status = load(t, &t->answer, NULL);
    if (status != QN_OK) return;
    status = qn_json_parse_exact("a stored response", t->answer.data, t->answer.length, &response);
    const char *state = json_string_value(json_object_get(response, "status"));
    if (status != QN_OK)
        fail(t, status);
    else if (!json_is_true(json_object_get(response, "background")))
        qn_api_fail(&t->error, 400, "invalid_value", "response_id",
                    "only a response that was asked for with \"background\": true can be cancelled");
    else if (!state || strcmp(state, "cancelled") != 0)
        qn_api_fail(&t->error, 400, "invalid_value", "response_id",
                    "the response has ended: its status is \"%s\"", state ? state : "");
    json_decref(response);
}

void qn_route_response_cancel(qn_exchange *ex)
{
    if (refuse_without_store(ex)) return;
    qn_completion *c = find_background(ex);
    if (c) qn_completion_cancel(c);
    if (c && c->shown.length && c->shown.status == QN_OK)
        reply(ex, &c->shown);
    else
        qn_task_begin(ex, cancel_ended, NULL, 0);
}

/* ---- input items --------------------------------------------------------------------------------------- */

enum { LIMIT = 20, LIMIT_MAX = 100 };

static size_t find_after(const json_t *items, const char *after, int is_asc)
{
    const size_t n = json_array_size(items);
    for (size_t i = 0; i < n; i++) {
        const char *id = json_string_value(json_object_get(json_array_get(items, i), "id"));
        if (id && strcmp(id, after) == 0) return is_asc ? i + 1 : n - i;
    }
    return n + 1;
}

/* Position i of the order that was asked for. */
static const json_t *item_at(const json_t *items, size_t i, int is_asc)
{
    return json_array_get(items, is_asc ? i : json_array_size(items) - 1 - i);
}

static void put_id(qn_buf *out, const char *key, const json_t *item)
{
    qn_write_value(out, key, json_object_get(item, "id"));
}

static void write_items(qn_task *t, const json_t *items, int64_t limit, int is_asc, const char *after)
{
    const size_t n = json_array_size(items), first = *after ? find_after(items, after, is_asc) : 0;
    qn_buf *out = &t->answer;
    if (first > n) {
        qn_api_fail(&t->error, 400, "invalid_value", "after", "after: the response has no item of this id");
        return;
    }
    const size_t end = n - first > (size_t)limit ? first + (size_t)limit : n;
    qn_json_open(out, '{');
    qn_json_put_text(out, "object", "list");
    qn_json_key(out, "data");
    qn_json_open(out, '[');
    for (size_t i = first; i < end; i++) {
        if (i > first) qn_buf_putc(out, ',');
        qn_write_json(out, item_at(items, i, is_asc));
    }
    qn_json_close(out, ']');
    put_id(out, "first_id", end > first ? item_at(items, first, is_asc) : NULL);
    put_id(out, "last_id", end > first ? item_at(items, end - 1, is_asc) : NULL);
    qn_json_put_bool(out, "has_more", end < n);
    qn_json_close(out, '}');
}

static void list_items(qn_task *t)
{
    char after[128];
    qn_page page;
    qn_buf object = {0}, more = {0};
    json_t *items = NULL;
    if (qn_exchange_page(t->ex, LIMIT, LIMIT_MAX, &page, &t->error) ||
        qn_exchange_query(t->ex, "after", after, sizeof after, &t->error))
        return;
    qn_status status = load(t, &object, &more);
    if (status == QN_OK) {
        status = qn_json_parse_exact("a stored input", more.data, more.length, &items);
        if (status != QN_OK)
            fail(t, status);
        else
            write_items(t, items, page.limit, page.is_asc, after);
    }
    json_decref(items);
    qn_buf_free(&object);
    qn_buf_free(&more);
}

void qn_route_response_items(qn_exchange *ex)
{
    if (!refuse_without_store(ex)) qn_task_begin(ex, list_items, NULL, 0);
}
