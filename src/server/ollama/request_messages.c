/* Messages of a chat: Ollama's form is checked and brought into that of chat templates. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "server/core/content.h"
#include "server/core/message.h"
#include "server/ollama/request.h"

static int invalid(qn_api_error *error, size_t i, const char *part, const char *sentence)
{
    char param[128];
    snprintf(param, sizeof param, "messages[%zu]%s%s", i, part[0] ? "." : "", part);
    return qn_api_fail(error, 400, "invalid_value", param, "%s %s", param, sentence);
}

static int fail_memory(qn_api_error *error)
{
    return qn_api_fail_status(error, qn_fail_nomem(0));
}

static int is_given(const json_t *value)
{
    return value && !json_is_null(value);
}

static int add_calls(json_t *message, const json_t *calls, size_t i, qn_api_error *error)
{
    const size_t n = json_array_size(calls);
    if (!json_is_array(calls)) return invalid(error, i, "tool_calls", "must be an array");
    if (n > QN_REQUEST_TOOLS_MAX) return invalid(error, i, "tool_calls", "has too many calls");
    for (size_t k = 0; k < n; k++) {
        const json_t *call = json_array_get(calls, k), *function = json_object_get(call, "function"),
                     *name = json_object_get(function, "name"), *id = json_object_get(call, "id"),
                     *arguments = json_object_get(function, "arguments");
        char part[64];
        snprintf(part, sizeof part, "tool_calls[%zu]", k);
        if (!json_string_length(name)) return invalid(error, i, part, "must have a function with a name");
        if (is_given(id) && !json_is_string(id))
            return invalid(error, i, part, "must have an id that is a string");
        if (is_given(arguments) && !json_is_object(arguments))
            return invalid(error, i, part, "must have arguments that are an object");
        if (qn_message_add_call(message, is_given(id) && json_string_length(id) ? id : NULL, name,
                                is_given(arguments) ? arguments : NULL))
            return fail_memory(error);
    }
    return 0;
}

/* Keys beside role, content and tool_calls. */
static int add_others(json_t *message, const json_t *sent, size_t i, qn_api_error *error)
{
    /* As clients write them, and as templates know them. */
    static const struct {
        const char *name, *known_as;
    } passed[] = {{"thinking", "reasoning_content"},
                  {"tool_name", "name"},
                  {"name", "name"},
                  {"tool_call_id", "tool_call_id"}};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)sent, key, value)
    {
        int found = json_is_null(value) || strcmp(key, "role") == 0 || strcmp(key, "content") == 0 ||
                    strcmp(key, "tool_calls") == 0 || strcmp(key, "images") == 0;
        for (size_t k = 0; k < sizeof passed / sizeof *passed && !found; k++) {
            if (strcmp(key, passed[k].name) != 0) continue;
            if (!json_is_string(value)) return invalid(error, i, key, "must be a string");
            if (json_string_length(value) && qn_message_set(message, passed[k].known_as, json_incref(value)))
                return fail_memory(error);
            found = 1;
        }
        if (!found) return invalid(error, i, key, "is an unknown parameter");
    }
    return 0;
}

/* A text with images in base64 in front of it, as a string or parts. *out: NULL if memory is out. */
static int make_content(qn_api_request *r, const json_t *text, const json_t *images, const char *place,
                        json_t **out, qn_api_error *error)
{
    qn_content content = {0};
    int refused = 0;
    char param[64];
    if (json_array_size(images) && !r->takes_pictures) return qn_content_refuse_picture(place, error);
    for (size_t i = 0; i < json_array_size(images) && !refused; i++) {
        snprintf(param, sizeof param, "%s[%zu]", place, i);
        refused = qn_content_add_base64(&content, r, param, json_array_get(images, i), error);
    }
    if (is_given(text)) qn_content_add_text(&content, json_string_value(text), json_string_length(text));
    if (!refused) *out = qn_content_take(&content);
    qn_content_free(&content);
    return refused;
}

static int read_message(qn_api_request *r, const json_t *sent, size_t i, qn_api_error *error)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    const char *role = json_string_value(json_object_get(sent, "role"));
    const json_t *content = json_object_get(sent, "content"), *calls = json_object_get(sent, "tool_calls");
    const json_t *images = json_object_get(sent, "images");
    const int has_calls = is_given(calls);
    json_t *whole = NULL;
    char place[48];
    size_t k = 0;
    if (!json_is_object(sent)) return invalid(error, i, "", "must be an object");
    while (role && k < 4 && strcmp(role, roles[k]) != 0) k++;
    if (!role || k == 4) return invalid(error, i, "role", "must be system, user, assistant or tool");
    if (is_given(content) && !json_is_string(content))
        return invalid(error, i, "content", "must be a string");
    if (has_calls && strcmp(role, "assistant") != 0)
        return invalid(error, i, "tool_calls", "is allowed only in messages of the assistant");
    if (!is_given(content) && !has_calls) return invalid(error, i, "content", "is missing");
    if (is_given(images) && !json_is_array(images)) return invalid(error, i, "images", "must be an array");
    if (json_array_size(images) && (k == 0 || k == 2))
        return invalid(error, i, "images", "are allowed only in messages of the user and of tools");
    snprintf(place, sizeof place, "messages[%zu].images", i);
    int refused = make_content(r, content, images, place, &whole, error);
    if (refused) return refused;
    json_t *message = qn_message_new(role, whole);
    if (json_array_append_new(r->chat, message)) return fail_memory(error);
    refused = has_calls ? add_calls(message, calls, i, error) : 0;
    return refused ? refused : add_others(message, sent, i, error);
}

/* Of /api/generate. */
static int read_prompt(qn_api_request *r, qn_api_error *error)
{
    if (r->system &&
        json_array_append_new(r->chat, qn_message_new("system", json_incref((json_t *)r->system))))
        return fail_memory(error);
    json_t *content = NULL;
    const int refused = make_content(r, r->content, r->images, "images", &content, error);
    if (refused) return refused;
    return json_array_append_new(r->chat, qn_message_new("user", content)) ? fail_memory(error) : 0;
}

int qn_ollama_read_messages(qn_api_request *r, qn_api_error *error)
{
    const size_t n = json_array_size(r->messages);
    r->chat = json_array();
    if (!r->chat) return fail_memory(error);
    if (r->route == QN_OLLAMA_GENERATE) return read_prompt(r, error);
    if (n > QN_REQUEST_MESSAGES_MAX)
        return qn_api_fail(error, 400, "invalid_value", "messages",
                           "messages has %zu elements, at most %d are allowed", n,
                           (int)QN_REQUEST_MESSAGES_MAX);
    for (size_t i = 0; i < n; i++) {
        int refused = read_message(r, json_array_get(r->messages, i), i, error);
        if (refused) return refused;
    }
    return 0;
}
