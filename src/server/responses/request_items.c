/* Items of an input: checked, and brought into the form of chat templates. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "server/core/message.h"
#include "server/responses/request.h"

enum { PLACE_MAX = 96 };

typedef struct {
    qn_api_request *r;
    qn_api_error *error;
    json_t *answer;   /* the assistant's message that further items go into, borrowed; NULL: none */
    qn_buf reasoning; /* of the answer that comes next */
} reading;

static int invalid(const reading *m, const char *place, const char *sentence)
{
    return qn_api_fail(m->error, 400, "invalid_value", place, "%s %s", place, sentence);
}

static int fail_memory(const reading *m)
{
    return qn_api_fail_status(m->error, qn_fail_nomem(0));
}

static int is_given(const json_t *value)
{
    return value && !json_is_null(value);
}

static const char *type_of(const json_t *object)
{
    return json_string_value(json_object_get(object, "type"));
}

/* Is each key one of known, a list that ends with NULL? "type", "id" and "status" always are. */
static int check_keys(const reading *m, const json_t *object, const char *place, const char *const *known)
{
    static const char *const always[] = {"type", "id", "status"};
    const char *key;
    json_t *value;
    char param[PLACE_MAX + 80];
    json_object_foreach((json_t *)object, key, value)
    {
        size_t k = 0, found = json_is_null(value);
        for (size_t i = 0; i < 3; i++) found |= strcmp(key, always[i]) == 0;
        while (known[k] && strcmp(known[k], key) != 0) k++;
        if (found || known[k]) continue;
        snprintf(param, sizeof param, "%s.%.64s", place, key);
        return qn_api_fail(m->error, 400, "unknown_parameter", param, "unknown parameter: %s", param);
    }
    return 0;
}

/* ---- texts --------------------------------------------------------------------------------------------- */

static int refuse_part(const reading *m, const char *place, const char *type)
{
    char param[PLACE_MAX + 8];
    const int is_image = strcmp(type, "input_image") == 0 || strcmp(type, "image_url") == 0;
    snprintf(param, sizeof param, "%s.type", place);
    if (is_image)
        return qn_api_fail(m->error, 400, "unsupported_content", param,
                           "%s: images are not supported: the server takes only text", param);
    return qn_api_fail(m->error, 400, "unsupported_content", param,
                       "%s: parts of the type '%.64s' are not supported; only text is", param, type);
}

/* A string, or an array of parts of text, a line each. "refusal" is a text as well. */
static int read_texts(const reading *m, const json_t *content, const char *place, qn_buf *text)
{
    static const char *const types[] = {"input_text",   "output_text",    "text",
                                        "summary_text", "reasoning_text", "refusal"};
    /* "annotations" and "logprobs" are fields of answers. */
    static const char *const known[] = {
        "text", "annotations", "logprobs", "refusal", "prompt_cache_breakpoint", NULL};
    if (json_is_string(content)) {
        qn_buf_append(text, json_string_value(content), json_string_length(content));
        return 0;
    }
    if (!json_is_array(content)) return invalid(m, place, "must be a string or an array of parts");
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i);
        const char *type = type_of(part);
        char where[PLACE_MAX];
        size_t k = 0;
        snprintf(where, sizeof where, "%s[%zu]", place, i);
        if (!type) return invalid(m, where, "must be an object with a type");
        while (k < sizeof types / sizeof *types && strcmp(type, types[k]) != 0) k++;
        if (k == sizeof types / sizeof *types) return refuse_part(m, where, type);
        int refused = check_keys(m, part, where, known);
        if (refused) return refused;
        const json_t *value = json_object_get(part, strcmp(type, "refusal") == 0 ? "refusal" : "text");
        if (!json_is_string(value)) return invalid(m, where, "must have a text");
        if (i) qn_buf_putc(text, '\n');
        qn_buf_append(text, json_string_value(value), json_string_length(value));
    }
    return 0;
}

/* ---- items --------------------------------------------------------------------------------------------- */

/* Appends {role, content}; *out, if not NULL: the message, borrowed. */
static int append(const reading *m, const char *role, const qn_buf *text, json_t **out)
{
    json_t *message = qn_message_new(role, qn_message_text(text->data, text->length));
    if (text->status != QN_OK || json_array_append(m->r->chat, message)) {
        json_decref(message);
        return fail_memory(m);
    }
    json_decref(message);
    if (out) *out = message;
    return 0;
}

/* Begins a message of the assistant, with the reasoning that came before it. */
static int begin_answer(reading *m, const qn_buf *text)
{
    int refused = append(m, "assistant", text, &m->answer);
    if (refused || !m->reasoning.length) return refused;
    const int failed = qn_message_set(m->answer, "reasoning_content",
                                      qn_message_text(m->reasoning.data, m->reasoning.length));
    if (failed || m->reasoning.status != QN_OK) return fail_memory(m);
    qn_buf_reset(&m->reasoning);
    return 0;
}

/* What comes next is no answer's. Reasoning that was cut short is an answer without text. */
static int end_answer(reading *m)
{
    const qn_buf none = {0};
    int refused = m->reasoning.length ? begin_answer(m, &none) : 0;
    m->answer = NULL;
    return refused;
}

static int read_message(reading *m, const json_t *item, const char *place)
{
    static const char *const known[] = {"role", "content", "phase", NULL};
    static const char *const roles[][2] = {
        {"user", "user"}, {"assistant", "assistant"}, {"system", "system"}, {"developer", "system"}};
    const char *role = json_string_value(json_object_get(item, "role"));
    char where[PLACE_MAX];
    size_t k = 0;
    qn_buf text = {0};
    int refused = check_keys(m, item, place, known);
    if (refused) return refused;
    while (k < 4 && (!role || strcmp(role, roles[k][0]) != 0)) k++;
    snprintf(where, sizeof where, "%s.role", place);
    if (k == 4) return invalid(m, where, "must be user, assistant, system or developer");
    snprintf(where, sizeof where, "%s.content", place);
    refused = read_texts(m, json_object_get(item, "content"), where, &text);
    if (!refused && k == 1) {
        refused = begin_answer(m, &text);
    } else if (!refused) {
        refused = end_answer(m);
        if (!refused) refused = append(m, roles[k][1], &text, NULL);
    }
    qn_buf_free(&text);
    return refused;
}

static int read_call(reading *m, const json_t *item, const char *place)
{
    static const char *const known[] = {"call_id", "name", "arguments", NULL};
    const json_t *id = json_object_get(item, "call_id"), *name = json_object_get(item, "name"),
                 *arguments = json_object_get(item, "arguments");
    const qn_buf none = {0};
    int refused = check_keys(m, item, place, known);
    if (refused) return refused;
    if (!json_string_length(id)) return invalid(m, place, "must have a call_id");
    if (!json_string_length(name)) return invalid(m, place, "must have a name");
    if (!json_is_string(arguments)) return invalid(m, place, "must have arguments that are a string");
    if (json_array_size(json_object_get(m->answer, "tool_calls")) >= QN_REQUEST_TOOLS_MAX)
        return invalid(m, place, "is one call too many in a row");
    if (!m->answer || m->reasoning.length) refused = begin_answer(m, &none);
    if (refused) return refused;
    return qn_message_add_call(m->answer, id, name, arguments) ? fail_memory(m) : 0;
}

static int read_output(reading *m, const json_t *item, const char *place)
{
    static const char *const known[] = {"call_id", "output", NULL};
    const json_t *id = json_object_get(item, "call_id");
    char where[PLACE_MAX];
    qn_buf text = {0};
    json_t *message = NULL;
    int refused = check_keys(m, item, place, known);
    if (refused) return refused;
    if (!json_string_length(id)) return invalid(m, place, "must have a call_id");
    snprintf(where, sizeof where, "%s.output", place);
    refused = read_texts(m, json_object_get(item, "output"), where, &text);
    if (!refused) refused = end_answer(m);
    if (!refused) refused = append(m, "tool", &text, &message);
    if (!refused && qn_message_set(message, "tool_call_id", json_incref((json_t *)id)))
        refused = fail_memory(m);
    qn_buf_free(&text);
    return refused;
}

/* Its text is shown; a summary only where there is none. */
static int read_reasoning(reading *m, const json_t *item, const char *place)
{
    static const char *const known[] = {"summary", "content", "encrypted_content", NULL};
    const json_t *content = json_object_get(item, "content"), *summary = json_object_get(item, "summary");
    char where[PLACE_MAX];
    int refused = check_keys(m, item, place, known);
    if (refused) return refused;
    m->answer = NULL;
    if (m->reasoning.length) qn_buf_putc(&m->reasoning, '\n');
    const int has_content = json_array_size(content) > 0;
    snprintf(where, sizeof where, "%s.%s", place, has_content ? "content" : "summary");
    if (has_content || is_given(summary))
        refused = read_texts(m, has_content ? content : summary, where, &m->reasoning);
    if (!refused && !has_content && !json_array_size(summary))
        qn_api_request_warn(m->r, place, "is not shown to the model: it has no text");
    return refused;
}

static int read_item(reading *m, const json_t *item, size_t i)
{
    const char *type = type_of(item);
    char place[PLACE_MAX], where[PLACE_MAX];
    snprintf(place, sizeof place, "input[%zu]", i);
    if (!json_is_object(item)) return invalid(m, place, "must be an object");
    if (!type && is_given(json_object_get(item, "role"))) type = "message";
    if (!type) return invalid(m, place, "must have a type or a role");
    if (strcmp(type, "message") == 0) return read_message(m, item, place);
    if (strcmp(type, "function_call") == 0) return read_call(m, item, place);
    if (strcmp(type, "function_call_output") == 0) return read_output(m, item, place);
    if (strcmp(type, "reasoning") == 0) return read_reasoning(m, item, place);
    snprintf(where, sizeof where, "%s.type", place);
    if (strcmp(type, "item_reference") == 0)
        return qn_api_fail(m->error, 400, "unsupported_content", where,
                           "%s: the server stores no items; send them whole", where);
    return qn_api_fail(m->error, 400, "unsupported_content", where,
                       "%s: items of the type '%.64s' are not supported", where, type);
}

static int read_input(reading *m, const json_t *input)
{
    const size_t n = json_array_size(input);
    qn_buf text = {0};
    int refused = 0;
    if (json_is_string(input)) {
        qn_buf_append(&text, json_string_value(input), json_string_length(input));
        refused = append(m, "user", &text, NULL);
        qn_buf_free(&text);
        return refused;
    }
    if (!n) return invalid(m, "input", "must be a string, or an array of items that is not empty");
    if (n > QN_REQUEST_MESSAGES_MAX)
        return qn_api_fail(m->error, 400, "invalid_value", "input",
                           "input has %zu items, at most %d are allowed", n, (int)QN_REQUEST_MESSAGES_MAX);
    for (size_t i = 0; i < n && !refused; i++) refused = read_item(m, json_array_get(input, i), i);
    if (!refused && m->reasoning.length)
        refused = invalid(m, "input", "must not end with a reasoning item: what it belongs to is missing");
    if (!refused && !json_array_size(m->r->chat)) refused = invalid(m, "input", "has nothing to answer");
    return refused;
}

int qn_responses_read_items(qn_api_request *r, qn_api_error *error)
{
    reading m = {.r = r, .error = error};
    int refused = 0;
    r->chat = json_array();
    if (!r->chat) return fail_memory(&m);
    if (json_string_length(r->system)) {
        json_t *message = qn_message_new("system", json_incref((json_t *)r->system));
        if (json_array_append_new(r->chat, message)) refused = fail_memory(&m);
    }
    if (!refused) refused = read_input(&m, r->input);
    qn_buf_free(&m.reasoning);
    if (!refused && r->warnings.status != QN_OK) refused = qn_api_fail_status(error, r->warnings.status);
    return refused;
}
