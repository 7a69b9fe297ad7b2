/* Messages of a chat: OpenAI's form is checked and brought into that of chat templates. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "server/core/content.h"
#include "server/core/fields/cache_marks.h"
#include "server/core/message.h"
#include "server/openai/request.h"

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

/* Is each key of a part one of known, a list that ends with NULL? "type" and marks of the cache always are. */
static int check_keys(const json_t *part, size_t i, size_t k, const char *const *known, qn_api_error *error)
{
    const char *key;
    json_t *each;
    char name[128];
    json_object_foreach((json_t *)part, key, each)
    {
        size_t n = 0;
        while (known[n] && strcmp(key, known[n]) != 0) n++;
        if (known[n] || strcmp(key, "type") == 0 || strcmp(key, "cache_control") == 0 ||
            strcmp(key, "prompt_cache_breakpoint") == 0)
            continue;
        snprintf(name, sizeof name, "content[%zu].%.64s", k, key);
        return invalid(error, i, name, "is an unknown parameter");
    }
    return 0;
}

/* {"type": "image_url", "image_url": {"url": ..., "detail": ...}}, or the URL alone. */
static int add_image(qn_api_request *r, const json_t *part, size_t i, size_t k, qn_content *content,
                     qn_api_error *error)
{
    static const char *const known[] = {"image_url", NULL};
    const json_t *image = json_object_get(part, "image_url"), *url = json_object_get(image, "url");
    const char *detail = json_string_value(json_object_get(image, "detail"));
    char param[128];
    int refused = check_keys(part, i, k, known, error);
    if (refused) return refused;
    if (detail && strcmp(detail, "auto") != 0) {
        snprintf(param, sizeof param, "messages[%zu].content[%zu].image_url.detail", i, k);
        qn_api_request_warn(r, param, "has no effect: the model's own image processor chooses the size");
    }
    snprintf(param, sizeof param, "messages[%zu].content[%zu].image_url", i, k);
    return qn_content_add_url(content, r, param, url ? url : image, error);
}

/* A mark of the cache at the end of a part. The message comes next. */
static int note_mark(qn_api_request *r, const json_t *part, size_t i, size_t k, const qn_content *content,
                     qn_api_error *error)
{
    char place[64];
    snprintf(place, sizeof place, "messages[%zu].content[%zu]", i, k);
    return qn_cache_mark_read(r, part, place, json_array_size(r->chat) + 1, content->text.length, error);
}

/* Parts of the types "text" and "image_url". *out: NULL if memory is out. */
static int join_parts(qn_api_request *r, const json_t *parts, int may_have_images, size_t i, json_t **out,
                      qn_api_error *error)
{
    static const char *const known[] = {"text", NULL};
    qn_content content = {0};
    int refused = 0;
    for (size_t k = 0; k < json_array_size(parts) && !refused; k++) {
        const json_t *part = json_array_get(parts, k), *text = json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        const int is_image = type && strcmp(type, "image_url") == 0;
        char name[128], param[192];
        snprintf(name, sizeof name, "content[%zu]", k);
        snprintf(param, sizeof param, "messages[%zu].content[%zu].type", i, k);
        if (!type) {
            refused = invalid(error, i, name, "must be an object with a type");
        } else if (is_image && !r->takes_pictures) {
            refused = qn_content_refuse_picture(param, error);
        } else if (is_image && may_have_images) {
            refused = add_image(r, part, i, k, &content, error);
        } else if (strcmp(type, "text") != 0) {
            refused = qn_api_fail(error, 400, "unsupported_content", param,
                                  "%s: parts of the type '%.64s' are not supported here", param, type);
        } else if (!json_is_string(text)) {
            refused = invalid(error, i, name, "must have a text");
        } else {
            refused = check_keys(part, i, k, known, error);
            qn_content_add_text(&content, json_string_value(text), json_string_length(text));
            if (!refused) refused = note_mark(r, part, i, k, &content, error);
        }
    }
    if (!refused) *out = qn_content_take(&content);
    qn_content_free(&content);
    return refused;
}

/* *out: owned by the caller; NULL if memory is out. */
static int read_content(qn_api_request *r, const json_t *content, const char *role, size_t i,
                        int may_be_empty, json_t **out, qn_api_error *error)
{
    if (json_is_string(content)) {
        *out = json_incref((json_t *)content);
        return 0;
    }
    if (json_is_array(content)) {
        const int may_have_images = strcmp(role, "user") == 0 || strcmp(role, "tool") == 0;
        return join_parts(r, content, may_have_images, i, out, error);
    }
    if (content && !json_is_null(content))
        return invalid(error, i, "content", "must be a string or an array of parts");
    if (!may_be_empty)
        return strcmp(role, "assistant") == 0
                   ? invalid(error, i, "content", "is missing, and so are tool_calls")
                   : invalid(error, i, "content", "is missing");
    *out = qn_message_text("", 0);
    return 0;
}

static int is_given(const json_t *value)
{
    return value && !json_is_null(value);
}

/* What the arguments are is looked at by text/chat/chat_fit.h. */
static int add_call(json_t *message, const json_t *id, const json_t *function, size_t i, const char *part,
                    qn_api_error *error)
{
    const json_t *name = json_object_get(function, "name"),
                 *arguments = json_object_get(function, "arguments");
    if (!json_string_length(name)) return invalid(error, i, part, "must have a function with a name");
    if (!is_given(arguments)) arguments = NULL;
    return qn_message_add_call(message, id, name, arguments) ? fail_memory(error) : 0;
}

/* Of "tool_calls", or where those are none the one of "function_call". */
static int add_calls(json_t *message, const json_t *sent, size_t i, qn_api_error *error)
{
    const json_t *calls = json_object_get(sent, "tool_calls");
    const size_t n = json_array_size(calls);
    if (n > QN_REQUEST_TOOLS_MAX) return invalid(error, i, "tool_calls", "has too many calls");
    if (!n) return add_call(message, NULL, json_object_get(sent, "function_call"), i, "function_call", error);
    for (size_t k = 0; k < n; k++) {
        const json_t *call = json_array_get(calls, k), *id = json_object_get(call, "id");
        char part[64];
        snprintf(part, sizeof part, "tool_calls[%zu]", k);
        if (!is_given(id))
            id = NULL;
        else if (!json_is_string(id))
            return invalid(error, i, part, "must have an id that is a string");
        int refused = add_call(message, id, json_object_get(call, "function"), i, part, error);
        if (refused) return refused;
    }
    return 0;
}

/* Keys of a message beside role, content and tool_calls: those that templates know, and those that say
 * nothing. */
static int add_others(json_t *message, const json_t *sent, size_t i, qn_api_error *error)
{
    static const char *const passed[] = {"name", "tool_call_id", "reasoning_content", "reasoning",
                                         "thinking"};
    /* Behind the first ones: fields of answers, which clients send back. */
    static const char *const known[] = {
        "role",          "content",         "tool_calls", "function_call",
        "cache_control", "annotations",     "refusal",    "reasoning_details",
        "parsed",        "thinking_blocks", "citations",  "provider_specific_fields",
        "token_ids",     "logprobs"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)sent, key, value)
    {
        int found = json_is_null(value) || (json_is_array(value) && !json_array_size(value));
        for (size_t k = 0; k < sizeof known / sizeof *known; k++) found |= strcmp(key, known[k]) == 0;
        for (size_t k = 0; k < sizeof passed / sizeof *passed && !found; k++) {
            if (strcmp(key, passed[k]) != 0) continue;
            if (!json_is_string(value)) return invalid(error, i, key, "must be a string");
            if (qn_message_set(message, key, json_incref(value))) return fail_memory(error);
            found = 1;
        }
        if (!found) return invalid(error, i, key, "is an unknown parameter");
    }
    return 0;
}

/* Fields of calls belong to the assistant, and are either one or the other. *n: how many there are. */
static int count_calls(const json_t *message, int is_answer, size_t i, size_t *n, qn_api_error *error)
{
    const json_t *calls = json_object_get(message, "tool_calls"),
                 *call = json_object_get(message, "function_call");
    if (is_given(calls) && !is_answer)
        return invalid(error, i, "tool_calls", "is allowed only in messages of the assistant");
    if (is_given(calls) && !json_is_array(calls)) return invalid(error, i, "tool_calls", "must be an array");
    *n = json_array_size(calls);
    if (!is_given(call)) return 0;
    if (!is_answer) return invalid(error, i, "function_call", "is allowed only in messages of the assistant");
    if (*n) return invalid(error, i, "function_call", "must be absent if tool_calls are given");
    if (!json_is_object(call)) return invalid(error, i, "function_call", "must be an object");
    *n = 1;
    return 0;
}

static int read_message(qn_api_request *r, const json_t *sent, size_t i, qn_api_error *error)
{
    /* As clients write them, and as templates know them. */
    static const struct {
        const char *name, *known_as;
    } roles[] = {{"system", "system"},       {"developer", "system"}, {"user", "user"},
                 {"assistant", "assistant"}, {"tool", "tool"},        {"function", "tool"}};
    enum { N_ROLES = sizeof roles / sizeof *roles };
    const char *role = json_string_value(json_object_get(sent, "role"));
    json_t *content = NULL, *message;
    size_t k = 0, n_calls = 0;
    if (!json_is_object(sent)) return invalid(error, i, "", "must be an object");
    while (role && k < N_ROLES && strcmp(role, roles[k].name) != 0) k++;
    if (!role || k == N_ROLES)
        return invalid(error, i, "role", "must be system, developer, user, assistant, tool or function");
    role = roles[k].known_as;
    int refused = count_calls(sent, strcmp(role, "assistant") == 0, i, &n_calls, error);
    if (!refused)
        refused = read_content(r, json_object_get(sent, "content"), role, i, n_calls > 0, &content, error);
    if (refused) return refused;
    message = qn_message_new(role, content);
    if (json_array_append_new(r->chat, message)) return fail_memory(error);
    char place[32];
    snprintf(place, sizeof place, "messages[%zu]", i);
    refused = qn_cache_mark_read(r, sent, place, json_array_size(r->chat), SIZE_MAX, error);
    if (refused) return refused;
    if (n_calls) refused = add_calls(message, sent, i, error);
    return refused ? refused : add_others(message, sent, i, error);
}

int qn_api_request_read_messages(qn_api_request *r, qn_api_error *error)
{
    size_t n = json_array_size(r->messages);
    if (!json_is_array(r->messages) || !n)
        return qn_api_fail(error, 400, "invalid_value", "messages",
                           "messages must be an array that is not empty");
    if (n > QN_REQUEST_MESSAGES_MAX)
        return qn_api_fail(error, 400, "invalid_value", "messages",
                           "messages has %zu elements, at most %d are allowed", n,
                           (int)QN_REQUEST_MESSAGES_MAX);
    r->chat = json_array();
    if (!r->chat) return fail_memory(error);
    for (size_t i = 0; i < n; i++) {
        int refused = read_message(r, json_array_get(r->messages, i), i, error);
        if (refused) return refused;
    }
    return 0;
}
