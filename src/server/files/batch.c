#include "server/files/batch.h"

#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "base/json/json_write.h"
#include "base/mem.h"
#include "server/core/write.h"

static const char *const states[] = {
#define QN_BATCH_STATE(name, text) text,
    QN_BATCH_STATES(QN_BATCH_STATE)
#undef QN_BATCH_STATE
};

void qn_batch_info_free(qn_batch_info *b)
{
    json_decref(b->metadata);
    b->metadata = NULL;
}

int qn_batch_is_endpoint(const char *path)
{
    static const char *const known[] = {"/v1/chat/completions", "/v1/completions", "/v1/embeddings",
                                        "/v1/responses"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i], path) == 0) return 1;
    return 0;
}

/* ---- the object ---------------------------------------------------------------------------------------- */

static void put_time(qn_buf *out, const char *key, int64_t seconds)
{
    if (seconds)
        qn_json_put_int(out, key, seconds);
    else
        qn_write_null(out, key);
}

static void put_name(qn_buf *out, const char *key, const char *text)
{
    if (text[0])
        qn_json_put_text(out, key, text);
    else
        qn_write_null(out, key);
}

static void put_errors(const qn_batch_info *b, qn_buf *out)
{
    if (b->state != QN_BATCH_FAILED || !b->ended_s) {
        qn_write_null(out, "errors");
        return;
    }
    qn_json_key(out, "errors");
    qn_json_open(out, '{');
    qn_json_put_text(out, "object", "list");
    qn_json_key(out, "data");
    qn_json_open(out, '[');
    qn_json_open(out, '{');
    qn_json_put_text(out, "code", "batch_failed");
    qn_json_put_text(out, "message", b->why);
    qn_write_null(out, "param");
    qn_write_null(out, "line");
    qn_json_close(out, '}');
    qn_json_close(out, ']');
    qn_json_close(out, '}');
}

void qn_batch_write(const qn_batch_info *b, qn_buf *out)
{
    qn_json_open(out, '{');
    qn_json_put_text(out, "id", b->id);
    qn_json_put_text(out, "object", "batch");
    qn_json_put_text(out, "endpoint", b->endpoint);
    put_errors(b, out);
    qn_json_put_text(out, "input_file_id", b->input);
    qn_json_put_text(out, "completion_window", "24h");
    /* A batch that is about to fail goes on if the server starts again before it has: there may be room then. */
    qn_json_put_text(out, "status",
                     states[b->state == QN_BATCH_FAILED && !b->ended_s ? QN_BATCH_IN_PROGRESS : b->state]);
    put_name(out, "output_file_id", b->output);
    put_name(out, "error_file_id", b->errors);
    qn_json_put_int(out, "created_at", b->created_s);
    qn_json_put_int(out, "in_progress_at", b->created_s);
    qn_json_put_int(out, "expires_at", b->created_s + QN_BATCH_WINDOW_S);
    put_time(out, "finalizing_at", b->state >= QN_BATCH_COMPLETED ? b->ended_s : 0);
    put_time(out, "completed_at", b->state == QN_BATCH_COMPLETED ? b->ended_s : 0);
    put_time(out, "failed_at", b->state == QN_BATCH_FAILED ? b->ended_s : 0);
    put_time(out, "expired_at", b->state == QN_BATCH_EXPIRED ? b->ended_s : 0);
    put_time(out, "cancelling_at", b->cancelling_s);
    put_time(out, "cancelled_at", b->state == QN_BATCH_CANCELLED ? b->ended_s : 0);
    qn_json_key(out, "request_counts");
    qn_json_open(out, '{');
    qn_json_put_int(out, "total", b->n_total);
    qn_json_put_int(out, "completed", b->n_completed);
    qn_json_put_int(out, "failed", b->n_failed);
    qn_json_close(out, '}');
    qn_write_value(out, "metadata", b->metadata);
    qn_json_close(out, '}');
}

static int take_text(const json_t *object, const char *key, char *out, size_t size)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text && snprintf(out, size, "%s", text) < (int)size;
}

qn_status qn_batch_read(const char *text, size_t n, qn_batch_info *b)
{
    char state[32];
    json_t *object = NULL;
    *b = (qn_batch_info){0};
    QN_TRY(qn_json_parse("a stored batch", text, n, &object));
    int is_good = take_text(object, "id", b->id, sizeof b->id) &&
                  take_text(object, "input_file_id", b->input, sizeof b->input) &&
                  take_text(object, "endpoint", b->endpoint, sizeof b->endpoint) &&
                  take_text(object, "status", state, sizeof state) && qn_batch_is_endpoint(b->endpoint);
    b->created_s = json_integer_value(json_object_get(object, "created_at"));
    b->cancelling_s = json_integer_value(json_object_get(object, "cancelling_at"));
    b->n_total = json_integer_value(json_object_get(json_object_get(object, "request_counts"), "total"));
    if (json_is_object(json_object_get(object, "metadata")))
        b->metadata = json_incref(json_object_get(object, "metadata"));
    b->state = QN_BATCH_STATE_COUNT;
    for (int i = 0; is_good && i < QN_BATCH_STATE_COUNT; i++)
        if (strcmp(states[i], state) == 0) b->state = (qn_batch_state)i;
    json_decref(object);
    return b->state < QN_BATCH_STATE_COUNT ? QN_OK : qn_fail(QN_E_FORMAT, "a stored batch is damaged");
}

/* ---- lines --------------------------------------------------------------------------------------------- */

static int invalid(qn_api_error *error, const char *param, const char *sentence)
{
    return qn_api_fail(error, 400, "invalid_request", param, "%s %s", param, sentence);
}

static int check_line(const json_t *line, const char *endpoint, qn_api_error *error)
{
    static const char *const known[] = {"custom_id", "method", "url", "body", NULL};
    static const char *const refused[] = {"stream", "background"};
    const char *method = json_string_value(json_object_get(line, "method")),
               *url = json_string_value(json_object_get(line, "url")), *key;
    const json_t *body = json_object_get(line, "body");
    json_t *value;
    if (!json_is_object(line)) return invalid(error, "line", "must be a JSON object");
    json_object_foreach((json_t *)line, key, value)
    {
        size_t k = 0;
        while (known[k] && strcmp(known[k], key) != 0) k++;
        if (!known[k]) return qn_api_fail(error, 400, "invalid_request", key, "unknown parameter: %s", key);
    }
    if (!json_string_length(json_object_get(line, "custom_id")))
        return invalid(error, "custom_id", "must be a string that is not empty");
    if (!method || strcmp(method, "POST") != 0) return invalid(error, "method", "must be \"POST\"");
    if (!url || strcmp(url, endpoint) != 0) return invalid(error, "url", "must be the endpoint of the batch");
    if (!json_is_object(body)) return invalid(error, "body", "must be a JSON object");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const json_t *asked = json_object_get(body, refused[i]);
        if (asked && !json_is_false(asked) && !json_is_null(asked))
            return invalid(error, refused[i], "is not supported in a batch");
    }
    return 0;
}

int qn_batch_read_line(const char *text, size_t n, const char *endpoint, qn_buf *custom_id, qn_buf *body,
                       qn_api_error *error)
{
    json_t *line = NULL;
    int refused = 0;
    const qn_status status = qn_json_parse_line("the line", text, n, &line);
    if (status != QN_OK) {
        refused = qn_api_fail_status(error, status);
        if (status == QN_E_FORMAT) error->code = "invalid_json";
    }
    const json_t *id = json_object_get(line, "custom_id");
    qn_write_json(custom_id, json_is_string(id) ? id : NULL);
    if (!refused) refused = check_line(line, endpoint, error);
    if (!refused) qn_write_json(body, json_object_get(line, "body"));
    json_decref(line);
    const qn_status written = custom_id->status != QN_OK ? custom_id->status : body->status;
    return refused || written == QN_OK ? refused : qn_api_fail_status(error, written);
}

static void open_line(const char *batch, int64_t line, const qn_buf *custom_id, qn_buf *out)
{
    static const char own[] = "batch_";
    qn_json_open(out, '{');
    qn_json_key(out, "id");
    qn_buf_printf(out, "\"batch_req_%s_%lld\"", batch + sizeof own - 1, (long long)line);
    qn_json_key(out, "custom_id");
    qn_buf_puts(out, custom_id->length ? custom_id->data : "null");
}

void qn_batch_write_answer(const char *batch, int64_t line, const qn_buf *custom_id, int status,
                           const char *request_id, const char *answer, size_t n, qn_buf *out)
{
    open_line(batch, line, custom_id, out);
    qn_json_key(out, "response");
    qn_json_open(out, '{');
    qn_json_put_int(out, "status_code", status);
    qn_json_put_text(out, "request_id", request_id);
    qn_json_key(out, "body");
    qn_buf_append(out, n ? answer : "null", n ? n : 4);
    qn_json_close(out, '}');
    qn_write_null(out, "error");
    qn_json_close(out, '}');
}

void qn_batch_write_failure(const char *batch, int64_t line, const qn_buf *custom_id, const char *code,
                            const char *message, qn_buf *out)
{
    open_line(batch, line, custom_id, out);
    qn_write_null(out, "response");
    qn_json_key(out, "error");
    qn_json_open(out, '{');
    qn_json_put_text(out, "code", code);
    qn_json_put_text(out, "message", message);
    qn_json_close(out, '}');
    qn_json_close(out, '}');
}
