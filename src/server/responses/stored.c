/* A response lies in the archive with all the items that the model was shown, so another response can go on from it after its
 * predecessors gave way. */
#include "server/responses/stored.h"

#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "server/core/message.h"
#include "server/core/write.h"
#include "server/responses/write.h"

static int fail_memory(qn_api_error *error)
{
    return qn_api_fail_status(error, qn_fail_nomem(0));
}

/* ---- what came before ---------------------------------------------------------------------------------- */

static int join(json_t *items, const json_t *output, json_t **out, qn_api_error *error)
{
    if (!json_is_array(items) || json_array_extend(items, (json_t *)output)) return fail_memory(error);
    *out = json_incref(items);
    return 0;
}

static int is_in_progress(const json_t *response)
{
    const char *status = json_string_value(json_object_get(response, "status"));
    return status && strcmp(status, "in_progress") == 0;
}

int qn_response_load_history(const qn_server *s, qn_api_request *r, qn_api_error *error)
{
    char owner[QN_ARCHIVE_OWNER_MAX];
    qn_buf object = {0}, more = {0};
    json_t *response = NULL, *items = NULL;
    int refused = 0;
    if (!r->previous_id) return 0;
    qn_server_owner(s, r->key, owner);
    qn_status status = qn_archive_get(s->archive, QN_STORED_RESPONSE, r->previous_id, owner, &object, &more);
    if (status == QN_OK)
        status = qn_json_parse_exact("a stored response", object.data, object.length, &response);
    if (status == QN_OK) status = qn_json_parse_exact("a stored input", more.data, more.length, &items);
    if (status != QN_OK) {
        refused = qn_api_fail_status(error, status);
        if (status == QN_E_NOT_FOUND) error->code = "previous_response_not_found";
        snprintf(error->param, sizeof error->param, "previous_response_id");
    } else if (is_in_progress(response)) {
        refused = qn_api_fail(error, 400, "invalid_value", "previous_response_id",
                              "previous_response_id: the response is still being made");
    } else {
        refused = join(items, json_object_get(response, "output"), &r->history, error);
    }
    json_decref(response);
    json_decref(items);
    qn_buf_free(&object);
    qn_buf_free(&more);
    return refused;
}

/* ---- storing ------------------------------------------------------------------------------------------- */

/* The text of a message as its one part. */
static int set_part(json_t *item)
{
    const char *role = json_string_value(json_object_get(item, "role"));
    const int is_answer = role && strcmp(role, "assistant") == 0;
    json_t *part = json_pack("{s:s, s:O}", "type", is_answer ? "output_text" : "input_text", "text",
                             json_object_get(item, "content"));
    json_t *content = json_array();
    if (!part || json_array_append_new(content, part)) {
        json_decref(content);
        return -1;
    }
    return json_object_set_new(item, "content", content);
}

/* An item of the input as the API shows it later: with an id and a type, messages with parts. */
static int add_item(json_t *list, const json_t *sent, const char *number, size_t i)
{
    char id[64];
    json_t *item = qn_json_copy(sent);
    const char *type = json_string_value(json_object_get(item, "type"));
    if (!item) return -1;
    int failed = type ? 0 : json_object_set_new(item, "type", json_string("message"));
    type = json_string_value(json_object_get(item, "type"));
    const int is_message = type && strcmp(type, "message") == 0;
    const char *prefix = is_message ? "msg" : type && strcmp(type, "reasoning") == 0 ? "rs" : "fc";
    snprintf(id, sizeof id, "%s_%s_in_%zu", prefix, number, i);
    if (!failed && !json_is_string(json_object_get(item, "id")))
        failed = json_object_set_new(item, "id", json_string(id));
    if (!failed && is_message && json_is_string(json_object_get(item, "content"))) failed = set_part(item);
    if (!failed && is_message && !json_is_string(json_object_get(item, "status")))
        failed = json_object_set_new(item, "status", json_string("completed"));
    if (failed || json_array_append_new(list, item)) {
        if (failed) json_decref(item);
        return -1;
    }
    return 0;
}

static json_t *make_input(const qn_completion *c, const char *number)
{
    const json_t *input = c->request.input;
    json_t *list = json_array(), *message = NULL;
    int failed = !list || (c->request.history && json_array_extend(list, c->request.history));
    if (!failed && json_is_string(input)) {
        message = json_pack("{s:s, s:O}", "role", "user", "content", input);
        failed = !message || add_item(list, message, number, 0);
        json_decref(message);
    }
    for (size_t i = 0; i < json_array_size(input) && !failed; i++)
        failed = add_item(list, json_array_get(input, i), number, i);
    if (!failed) return list;
    json_decref(list);
    return NULL;
}

qn_status qn_response_keep(const qn_completion *c)
{
    const qn_server *s = c->ex->server;
    char owner[QN_ARCHIVE_OWNER_MAX];
    qn_buf id = {0}, object = {0}, more = {0};
    qn_response_write_id(c, &id);
    json_t *input = id.status == QN_OK ? make_input(c, id.data + strlen("resp_")) : NULL;
    qn_status status = input ? QN_OK : qn_fail_nomem(0);
    if (input) qn_write_json(&more, input);
    qn_response_write(c, &object);
    if (status == QN_OK) status = object.status != QN_OK ? object.status : more.status;
    if (status == QN_OK) {
        qn_server_owner(s, c->request.key, owner);
        status = qn_archive_put(
            s->archive, &(qn_stored){.kind = QN_STORED_RESPONSE,
                                     .id = id.data,
                                     .owner = owner,
                                     .label = c->state == QN_ANSWER_GOES_ON ? QN_STORED_OPEN : "ended",
                                     .created_s = c->created_s,
                                     .object = object.data,
                                     .object_bytes = object.length,
                                     .more = more.data,
                                     .more_bytes = more.length});
    }
    json_decref(input);
    qn_buf_free(&id);
    qn_buf_free(&object);
    qn_buf_free(&more);
    return status;
}

/* ---- after a restart ----------------------------------------------------------------------------------- */

static qn_status add_id(void *user, const qn_stored *o)
{
    return json_array_append_new(user, json_pack("[s,s]", o->id, o->owner)) ? qn_fail_nomem(0) : QN_OK;
}

qn_status qn_response_mend(qn_archive *archive, const char *id, const char *owner)
{
    qn_buf object = {0}, more = {0}, out = {0};
    json_t *response = NULL;
    qn_status status = qn_archive_get(archive, QN_STORED_RESPONSE, id, owner, &object, &more);
    if (status == QN_OK)
        status = qn_json_parse_exact("a stored response", object.data, object.length, &response);
    if (status == QN_OK &&
        (json_object_set_new(response, "status", json_string("failed")) ||
         json_object_set_new(response, "error",
                             json_pack("{s:s,s:s}", "code", "server_error", "message",
                                       "the server ended before the response was complete"))))
        status = qn_fail_nomem(0);
    if (status == QN_OK) {
        qn_write_json(&out, response);
        status = out.status;
    }
    const int64_t created_s = json_integer_value(json_object_get(response, "created_at"));
    if (status == QN_OK)
        status = qn_archive_put(archive, &(qn_stored){QN_STORED_RESPONSE, id, owner, "ended", NULL, created_s,
                                                      out.data, out.length, more.data, more.length});
    json_decref(response);
    qn_buf_free(&object);
    qn_buf_free(&more);
    qn_buf_free(&out);
    return status;
}

qn_status qn_responses_mend(qn_archive *archive)
{
    const qn_archive_query open = {
        .kind = QN_STORED_RESPONSE, .label = QN_STORED_OPEN, .limit = INT32_MAX, .oldest_first = 1};
    json_t *found = json_array();
    int more;
    qn_status status = found ? qn_archive_list(archive, &open, add_id, found, &more) : qn_fail_nomem(0);
    for (size_t i = 0; i < json_array_size(found) && status == QN_OK; i++) {
        const json_t *each = json_array_get(found, i);
        status = qn_response_mend(archive, json_string_value(json_array_get(each, 0)),
                                  json_string_value(json_array_get(each, 1)));
    }
    json_decref(found);
    return status;
}
