/* Items of an input: checked, and brought into the form of chat templates. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "server/core/content.h"
#include "server/core/fields/cache_marks.h"
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

/* {"type": "input_image", "image_url": "data:...", "detail": ...} */
static int add_image(const reading *m, const json_t *part, const char *place, qn_content *to)
{
    static const char *const known[] = {"image_url", "detail", "prompt_cache_breakpoint", NULL};
    const char *detail = json_string_value(json_object_get(part, "detail"));
    char where[PLACE_MAX + 16];
    int refused = check_keys(m, part, place, known);
    snprintf(where, sizeof where, "%s.type", place);
    if (!refused && !m->r->takes_pictures) refused = qn_content_refuse_picture(where, m->error);
    if (refused) return refused;
    snprintf(where, sizeof where, "%s.detail", place);
    if (detail && strcmp(detail, "auto") != 0)
        qn_api_request_warn(m->r, where, "has no effect: the model's own image processor chooses the size");
    snprintf(where, sizeof where, "%s.image_url", place);
    return qn_content_add_url(to, m->r, where, json_object_get(part, "image_url"), m->error);
}

static int add_text(const reading *m, const json_t *part, const char *type, const char *place, qn_content *to)
{
    /* "annotations" and "logprobs" are fields of answers. */
    static const char *const known[] = {
        "text", "annotations", "logprobs", "refusal", "prompt_cache_breakpoint", NULL};
    int refused = check_keys(m, part, place, known);
    if (refused) return refused;
    const json_t *value = json_object_get(part, strcmp(type, "refusal") == 0 ? "refusal" : "text");
    if (!json_is_string(value)) return invalid(m, place, "must have a text");
    qn_content_add_text(to, json_string_value(value), json_string_length(value));
    return qn_cache_mark_read(m->r, part, place, json_array_size(m->r->chat) + 1, to->text.length, m->error);
}

/* A string, or an array of parts: texts, a line each, and where they may be pictures. "refusal" is a text as well. */
static int read_texts(const reading *m, const json_t *content, const char *place, int may_have_images,
                      qn_content *to)
{
    static const char *const types[] = {"input_text",   "output_text",    "text",
                                        "summary_text", "reasoning_text", "refusal"};
    if (json_is_string(content)) {
        qn_content_add_text(to, json_string_value(content), json_string_length(content));
        return 0;
    }
    if (!json_is_array(content)) return invalid(m, place, "must be a string or an array of parts");
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i);
        const char *type = type_of(part);
        char where[PLACE_MAX], param[PLACE_MAX + 8];
        size_t k = 0;
        int refused;
        snprintf(where, sizeof where, "%s[%zu]", place, i);
        snprintf(param, sizeof param, "%s.type", where);
        if (!type) return invalid(m, where, "must be an object with a type");
        while (k < sizeof types / sizeof *types && strcmp(type, types[k]) != 0) k++;
        if (may_have_images && strcmp(type, "input_image") == 0)
            refused = add_image(m, part, where, to);
        else if (k < sizeof types / sizeof *types)
            refused = add_text(m, part, type, where, to);
        else
            refused = qn_api_fail(m->error, 400, "unsupported_content", param,
                                  "%s: parts of the type '%.64s' are not supported here", param, type);
        if (refused) return refused;
    }
    return 0;
}

/* ---- items --------------------------------------------------------------------------------------------- */

/* Appends {role, content}; *out, if not NULL: the message, borrowed. *content is empty then. */
static int append(const reading *m, const char *role, qn_content *content, json_t **out)
{
    json_t *message = qn_message_new(role, qn_content_take(content));
    if (json_array_append(m->r->chat, message)) {
        json_decref(message);
        return fail_memory(m);
    }
    json_decref(message);
    if (out) *out = message;
    return 0;
}

/* Begins a message of the assistant, with the reasoning that came before it. */
static int begin_answer(reading *m, qn_content *content)
{
    int refused = append(m, "assistant", content, &m->answer);
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
    qn_content none = {0};
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
    qn_content said = {0};
    int refused = check_keys(m, item, place, known);
    if (refused) return refused;
    while (k < 4 && (!role || strcmp(role, roles[k][0]) != 0)) k++;
    snprintf(where, sizeof where, "%s.role", place);
    if (k == 4) return invalid(m, where, "must be user, assistant, system or developer");
    snprintf(where, sizeof where, "%s.content", place);
    refused = read_texts(m, json_object_get(item, "content"), where, k == 0, &said);
    if (!refused && k == 1) {
        refused = begin_answer(m, &said);
    } else if (!refused) {
        refused = end_answer(m);
        if (!refused) refused = append(m, roles[k][1], &said, NULL);
    }
    qn_content_free(&said);
    return refused;
}

static int read_call(reading *m, const json_t *item, const char *place)
{
    static const char *const known[] = {"call_id", "name", "arguments", NULL};
    const json_t *id = json_object_get(item, "call_id"), *name = json_object_get(item, "name"),
                 *arguments = json_object_get(item, "arguments");
    qn_content none = {0};
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
    qn_content said = {0};
    json_t *message = NULL;
    int refused = check_keys(m, item, place, known);
    if (refused) return refused;
    if (!json_string_length(id)) return invalid(m, place, "must have a call_id");
    snprintf(where, sizeof where, "%s.output", place);
    refused = read_texts(m, json_object_get(item, "output"), where, 1, &said);
    if (!refused) refused = end_answer(m);
    if (!refused) refused = append(m, "tool", &said, &message);
    if (!refused && qn_message_set(message, "tool_call_id", json_incref((json_t *)id)))
        refused = fail_memory(m);
    qn_content_free(&said);
    return refused;
}

/* Its text is shown; a summary only where there is none. */
static int read_reasoning(reading *m, const json_t *item, const char *place)
{
    static const char *const known[] = {"summary", "content", "encrypted_content", NULL};
    const json_t *content = json_object_get(item, "content"), *summary = json_object_get(item, "summary");
    char where[PLACE_MAX];
    qn_content said = {0};
    int refused = check_keys(m, item, place, known);
    if (refused) return refused;
    m->answer = NULL;
    if (m->reasoning.length) qn_buf_putc(&m->reasoning, '\n');
    const int has_content = json_array_size(content) > 0;
    snprintf(where, sizeof where, "%s.%s", place, has_content ? "content" : "summary");
    if (has_content || is_given(summary))
        refused = read_texts(m, has_content ? content : summary, where, 0, &said);
    qn_buf_append(&m->reasoning, said.text.data ? said.text.data : "", said.text.length);
    if (said.text.status != QN_OK) m->reasoning.status = said.text.status;
    qn_content_free(&said);
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
    qn_content said = {0};
    int refused = 0;
    if (json_is_string(input)) {
        refused = end_answer(m);
        if (refused) return refused;
        qn_content_add_text(&said, json_string_value(input), json_string_length(input));
        return append(m, "user", &said, NULL);
    }
    if (!n) return invalid(m, "input", "must be a string, or an array of items that is not empty");
    if (n + json_array_size(m->r->history) > QN_REQUEST_MESSAGES_MAX)
        return qn_api_fail(m->error, 400, "invalid_value", "input",
                           "input has %zu items with those before it, at most %d are allowed",
                           n + json_array_size(m->r->history), (int)QN_REQUEST_MESSAGES_MAX);
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
    /* It was an input, or an output, before: what is said of an item is said of the request that it came with. */
    const size_t n_warned = r->warnings.length;
    for (size_t i = 0; i < json_array_size(r->history) && !refused; i++)
        refused = read_item(&m, json_array_get(r->history, i), i);
    if (r->history && r->warnings.data) r->warnings.data[r->warnings.length = n_warned] = 0;
    if (!refused) refused = read_input(&m, r->input);
    qn_buf_free(&m.reasoning);
    if (!refused && r->warnings.status != QN_OK) refused = qn_api_fail_status(error, r->warnings.status);
    return refused;
}
