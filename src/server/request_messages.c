/* Messages of a chat: OpenAI's form is checked and brought into that of chat templates. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "server/request.h"

static int invalid(qn_api_error *error, size_t i, const char *part, const char *sentence)
{
    char param[128];
    snprintf(param, sizeof param, "messages[%zu]%s%s", i, part[0] ? "." : "", part);
    return qn_api_fail(error, 400, "invalid_value", param, "%s %s", param, sentence);
}

static void put_json(qn_buf *out, const char *key, const json_t *value)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    if (!text) {
        out->status = qn_fail_nomem(0);
        return;
    }
    qn_json_key(out, key);
    qn_buf_puts(out, text);
    free(text); /* foreign: jansson's */
}

/* Parts of the type "text" in one text, a line each. */
static int write_parts(const json_t *parts, size_t i, qn_buf *out, qn_api_error *error)
{
    qn_buf text = {0};
    int refused = 0;
    for (size_t k = 0; k < json_array_size(parts) && !refused; k++) {
        const json_t *part = json_array_get(parts, k), *content = json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type")), *key;
        json_t *each;
        char name[128];
        snprintf(name, sizeof name, "content[%zu]", k);
        if (!type) {
            refused = invalid(error, i, name, "must be an object with a type");
        } else if (strcmp(type, "text") != 0) {
            char param[192];
            snprintf(param, sizeof param, "messages[%zu].content[%zu].type", i, k);
            refused = qn_api_fail(error, 400, "unsupported_content", param,
                                  "%s: parts of the type '%.64s' are not supported; text is", param, type);
        } else if (!json_is_string(content)) {
            refused = invalid(error, i, name, "must have a text");
        } else {
            json_object_foreach((json_t *)part, key, each)
            {
                if (strcmp(key, "type") == 0 || strcmp(key, "text") == 0 || strcmp(key, "cache_control") == 0)
                    continue;
                snprintf(name, sizeof name, "content[%zu].%.64s", k, key);
                refused = invalid(error, i, name, "is an unknown parameter");
                break;
            }
            if (k) qn_buf_putc(&text, '\n');
            qn_buf_append(&text, json_string_value(content), json_string_length(content));
        }
    }
    if (!refused) {
        qn_json_key(out, "content");
        qn_json_text(out, text.data ? text.data : "", text.length);
        if (text.status != QN_OK) out->status = text.status;
    }
    qn_buf_free(&text);
    return refused;
}

static int write_content(const json_t *content, const char *role, size_t i, int may_be_empty, qn_buf *out,
                         qn_api_error *error)
{
    if (json_is_string(content)) {
        qn_json_key(out, "content");
        qn_json_text(out, json_string_value(content), json_string_length(content));
        return 0;
    }
    if (json_is_array(content)) return write_parts(content, i, out, error);
    if (content && !json_is_null(content))
        return invalid(error, i, "content", "must be a string or an array of parts");
    if (!may_be_empty)
        return strcmp(role, "assistant") == 0
                   ? invalid(error, i, "content", "is missing, and so are tool_calls")
                   : invalid(error, i, "content", "is missing");
    qn_json_put_text(out, "content", "");
    return 0;
}

/* Templates take the arguments of a call as an object, as Hugging Face's do; OpenAI's API has them as its
 * text. */
static int write_call(const json_t *call, size_t i, size_t k, qn_buf *out, qn_api_error *error)
{
    const json_t *function = json_object_get(call, "function");
    const json_t *name = json_object_get(function, "name"),
                 *arguments = json_object_get(function, "arguments");
    const json_t *id = json_object_get(call, "id");
    json_t *parsed = NULL;
    char part[64];
    snprintf(part, sizeof part, "tool_calls[%zu]", k);
    if (!json_string_length(name)) return invalid(error, i, part, "must have a function with a name");
    if (json_is_string(arguments)) {
        const char *text = json_string_value(arguments);
        size_t n = json_string_length(arguments);
        if (n && qn_json_parse("arguments", text, n, &parsed) != QN_OK)
            return qn_api_fail(error, 400, "invalid_value", part, "messages[%zu].%s: %s", i, part,
                               qn_last_error());
    }
    qn_json_open(out, '{');
    if (json_is_string(id)) put_json(out, "id", id);
    qn_json_put_text(out, "type", "function");
    qn_json_key(out, "function");
    qn_json_open(out, '{');
    put_json(out, "name", name);
    if (parsed || json_is_object(arguments)) {
        put_json(out, "arguments", parsed ? parsed : arguments);
    } else {
        qn_json_key(out, "arguments");
        qn_buf_puts(out, "{}");
    }
    qn_json_close(out, '}');
    qn_json_close(out, '}');
    json_decref(parsed);
    return 0;
}

static int write_calls(const json_t *calls, size_t i, qn_buf *out, qn_api_error *error)
{
    if (!json_is_array(calls)) return invalid(error, i, "tool_calls", "must be an array");
    if (json_array_size(calls) > QN_REQUEST_TOOLS_MAX)
        return invalid(error, i, "tool_calls", "has too many calls");
    qn_json_key(out, "tool_calls");
    qn_json_open(out, '[');
    for (size_t k = 0; k < json_array_size(calls); k++) {
        int refused = write_call(json_array_get(calls, k), i, k, out, error);
        if (refused) return refused;
    }
    qn_json_close(out, ']');
    return 0;
}

/* Keys of a message beside role, content and tool_calls: those that templates know, and those that say
 * nothing. */
static int write_others(const json_t *message, size_t i, qn_buf *out, qn_api_error *error)
{
    static const char *const passed[] = {"name", "tool_call_id", "reasoning_content", "reasoning",
                                         "thinking"};
    static const char *const known[] = {"role", "content", "tool_calls", "cache_control"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)message, key, value)
    {
        int found = json_is_null(value) || (json_is_array(value) && !json_array_size(value));
        for (size_t k = 0; k < sizeof known / sizeof *known; k++) found |= strcmp(key, known[k]) == 0;
        for (size_t k = 0; k < sizeof passed / sizeof *passed && !found; k++) {
            if (strcmp(key, passed[k]) != 0) continue;
            if (!json_is_string(value)) return invalid(error, i, key, "must be a string");
            put_json(out, key, value);
            found = 1;
        }
        if (!found) return invalid(error, i, key, "is an unknown parameter");
    }
    return 0;
}

static int write_message(const json_t *message, size_t i, qn_buf *out, qn_api_error *error)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    const char *role = json_string_value(json_object_get(message, "role"));
    const json_t *calls = json_object_get(message, "tool_calls");
    size_t k = 0;
    if (!json_is_object(message)) return invalid(error, i, "", "must be an object");
    while (role && k < sizeof roles / sizeof *roles && strcmp(role, roles[k]) != 0) k++;
    if (!role || k == sizeof roles / sizeof *roles)
        return invalid(error, i, "role", "must be system, developer, user, assistant or tool");
    int has_calls = k == 3 && json_array_size(calls);
    qn_json_open(out, '{');
    qn_json_put_text(out, "role", k == 1 ? "system" : role);
    int refused = write_content(json_object_get(message, "content"), role, i, has_calls, out, error);
    if (!refused && calls && !json_is_null(calls) && k != 3)
        refused = invalid(error, i, "tool_calls", "belongs to messages of the assistant");
    if (!refused && has_calls) refused = write_calls(calls, i, out, error);
    if (!refused) refused = write_others(message, i, out, error);
    qn_json_close(out, '}');
    return refused;
}

int qn_request_write_messages(const qn_request *r, qn_buf *out, qn_api_error *error)
{
    size_t n = json_array_size(r->messages);
    if (!json_is_array(r->messages) || !n)
        return qn_api_fail(error, 400, "invalid_value", "messages",
                           "messages must be an array that is not empty");
    if (n > QN_REQUEST_MESSAGES_MAX)
        return qn_api_fail(error, 400, "invalid_value", "messages", "messages: %zu of them, there may be %d",
                           n, (int)QN_REQUEST_MESSAGES_MAX);
    qn_json_open(out, '[');
    for (size_t i = 0; i < n; i++) {
        int refused = write_message(json_array_get(r->messages, i), i, out, error);
        if (refused) return refused;
    }
    qn_json_close(out, ']');
    return out->status == QN_OK ? 0 : qn_api_fail_status(error, out->status);
}
