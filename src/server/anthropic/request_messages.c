/* Messages of Anthropic's form: checked, and brought into that of chat templates. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "server/anthropic/request.h"
#include "server/core/content.h"
#include "server/core/fields/cache_marks.h"
#include "server/core/message.h"

enum { PLACE_MAX = 96 };

typedef struct {
    qn_api_request *r;
    qn_api_error *error;
} reading;

static int invalid(const reading *m, const char *place, const char *sentence)
{
    return qn_api_fail(m->error, 400, "invalid_value", place, "%s %s", place, sentence);
}

static int fail_memory(const reading *m)
{
    return qn_api_fail_status(m->error, qn_fail_nomem(0));
}

static const char *type_of(const json_t *block)
{
    return json_string_value(json_object_get(block, "type"));
}

static int is_given(const json_t *value)
{
    return value && !json_is_null(value);
}

/* ---- blocks -------------------------------------------------------------------------------------------- */

/* A block that is not supported where it is. */
static int refuse_block(const reading *m, const char *place, const char *type)
{
    static const struct {
        const char *type, *why;
    } known[] = {{"document", "documents are not supported: put their text into a text block"},
                 {"search_result", "search results are not supported: put their text into a text block"},
                 {"tool_reference", "the server searches for no tools: put them into tools"},
                 {"container_upload", "the server stores no files"}};
    char param[PLACE_MAX + 8];
    snprintf(param, sizeof param, "%s.type", place);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].type, type) == 0)
            return qn_api_fail(m->error, 400, "unsupported_content", param, "%s: %s", param, known[i].why);
    return qn_api_fail(m->error, 400, "unsupported_content", param,
                       "%s: blocks of the type '%.64s' are not supported here", param, type);
}

/* Is each key one of known, a list that ends with NULL? "type" and "cache_control" always are. */
static int check_keys(const reading *m, const json_t *block, const char *place, const char *const *known)
{
    const char *key;
    json_t *value;
    char param[PLACE_MAX + 80];
    json_object_foreach((json_t *)block, key, value)
    {
        size_t k = 0;
        if (json_is_null(value) || strcmp(key, "type") == 0 || strcmp(key, "cache_control") == 0) continue;
        while (known[k] && strcmp(known[k], key) != 0) k++;
        if (known[k]) continue;
        snprintf(param, sizeof param, "%s.%.64s", place, key);
        return qn_api_fail(m->error, 400, "unknown_parameter", param, "unknown parameter: %s", param);
    }
    return 0;
}

/* The block ends where n_text bytes of the message's text have been read, or all of it. The message comes next. */
static int note_mark(const reading *m, const json_t *block, const char *place, size_t n_text)
{
    return qn_cache_mark_read(m->r, block, place, json_array_size(m->r->chat) + 1, n_text, m->error);
}

static int add_text(const reading *m, const json_t *block, const char *place, qn_content *to)
{
    /* "citations" is a field of answers. */
    static const char *const known[] = {"text", "citations", NULL};
    const json_t *content = json_object_get(block, "text");
    int refused = check_keys(m, block, place, known);
    if (refused) return refused;
    if (!json_is_string(content)) return invalid(m, place, "must have a text");
    qn_content_add_text(to, json_string_value(content), json_string_length(content));
    return note_mark(m, block, place, to->text.length);
}

static int add_image(const reading *m, const json_t *block, const char *place, qn_content *to)
{
    static const char *const known[] = {"source", NULL};
    const json_t *source = json_object_get(block, "source");
    const char *type = type_of(source);
    char where[PLACE_MAX + 16];
    int refused = check_keys(m, block, place, known);
    if (!refused) refused = note_mark(m, block, place, SIZE_MAX);
    snprintf(where, sizeof where, "%s.type", place);
    if (!refused && !m->r->takes_pictures) refused = qn_content_refuse_picture(where, m->error);
    if (refused) return refused;
    snprintf(where, sizeof where, "%s.source", place);
    if (type && strcmp(type, "base64") == 0)
        return qn_content_add_base64(to, m->r, where, json_object_get(source, "data"), m->error);
    if (type && strcmp(type, "url") == 0)
        return qn_content_add_url(to, m->r, where, json_object_get(source, "url"), m->error);
    return qn_api_fail(m->error, 400, "unsupported_content", where, "%s must be of the type base64", where);
}

/* A text or a picture. */
static int add_part(const reading *m, const json_t *block, const char *place, qn_content *to)
{
    return strcmp(type_of(block), "text") == 0 ? add_text(m, block, place, to)
                                               : add_image(m, block, place, to);
}

static int is_image(const char *type)
{
    return strcmp(type, "image") == 0;
}

/* A string, or an array of blocks: texts, a line each, and where they may be pictures. */
static int read_texts(const reading *m, const json_t *content, const char *place, int may_have_images,
                      qn_content *to)
{
    if (json_is_string(content)) {
        qn_content_add_text(to, json_string_value(content), json_string_length(content));
        return 0;
    }
    if (!json_is_array(content)) return invalid(m, place, "must be a string or an array of blocks");
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i);
        const char *type = type_of(block);
        char where[PLACE_MAX];
        snprintf(where, sizeof where, "%s[%zu]", place, i);
        if (!type) return invalid(m, where, "must be an object with a type");
        const int is_part = strcmp(type, "text") == 0 || (may_have_images && is_image(type));
        int refused = is_part ? add_part(m, block, where, to) : refuse_block(m, where, type);
        if (refused) return refused;
    }
    return 0;
}

/* ---- messages ------------------------------------------------------------------------------------------ */

/* Appends {role, content}, with a further key if its value is not NULL, which is shared. *content is empty then. */
static int append(const reading *m, const char *role, qn_content *content, const char *key,
                  const json_t *value)
{
    json_t *message = qn_message_new(role, qn_content_take(content));
    int failed = 0;
    if (value) failed |= qn_message_set(message, key, json_incref((json_t *)value));
    failed |= json_array_append(m->r->chat, message);
    json_decref(message);
    return failed ? fail_memory(m) : 0;
}

static int add_result(const reading *m, const json_t *block, const char *place)
{
    static const char *const known[] = {"tool_use_id", "content", "is_error", NULL};
    const json_t *id = json_object_get(block, "tool_use_id"), *content = json_object_get(block, "content");
    const json_t *is_error = json_object_get(block, "is_error");
    char where[PLACE_MAX];
    qn_content said = {0};
    int refused = check_keys(m, block, place, known);
    if (!refused && !json_string_length(id)) refused = invalid(m, place, "must have a tool_use_id");
    if (!refused && is_given(is_error) && !json_is_boolean(is_error))
        refused = invalid(m, place, "must have an is_error that is a boolean");
    snprintf(where, sizeof where, "%s.is_error", place);
    if (json_is_true(is_error))
        qn_api_request_warn(m->r, where, "is not shown to the model: chat templates show the content alone");
    snprintf(where, sizeof where, "%s.content", place);
    if (!refused && is_given(content)) refused = read_texts(m, content, where, 1, &said);
    if (!refused) refused = note_mark(m, block, place, SIZE_MAX);
    if (!refused) refused = append(m, "tool", &said, "tool_call_id", id);
    qn_content_free(&said);
    return refused;
}

/* Results of tools become messages; the texts between them too, in their order. */
static int read_user(const reading *m, const json_t *content, const char *place)
{
    qn_content said = {0};
    int refused = 0, has_said = 0;
    if (json_is_array(content) && !json_array_size(content)) return invalid(m, place, "must not be empty");
    for (size_t i = 0; i < json_array_size(content) && !refused; i++) {
        const json_t *block = json_array_get(content, i);
        const char *type = type_of(block);
        char where[PLACE_MAX];
        snprintf(where, sizeof where, "%s[%zu]", place, i);
        if (!type) {
            refused = invalid(m, where, "must be an object with a type");
        } else if (strcmp(type, "text") == 0 || is_image(type)) {
            refused = add_part(m, block, where, &said);
            has_said = 1;
        } else if (strcmp(type, "tool_result") != 0) {
            refused = refuse_block(m, where, type);
        } else {
            if (has_said) refused = append(m, "user", &said, NULL, NULL);
            has_said = 0;
            if (!refused) refused = add_result(m, block, where);
        }
    }
    if (!refused && !json_is_array(content)) {
        refused = read_texts(m, content, place, 1, &said);
        has_said = 1;
    }
    if (!refused && has_said) refused = append(m, "user", &said, NULL, NULL);
    qn_content_free(&said);
    return refused;
}

static int add_call(const reading *m, const json_t *block, const char *place, json_t *message)
{
    /* "caller" is a field of answers. */
    static const char *const known[] = {"id", "name", "input", "caller", NULL};
    const json_t *id = json_object_get(block, "id"), *name = json_object_get(block, "name"),
                 *input = json_object_get(block, "input");
    int refused = check_keys(m, block, place, known);
    if (refused) return refused;
    if (!json_string_length(id)) return invalid(m, place, "must have an id");
    if (!json_string_length(name)) return invalid(m, place, "must have a name");
    if (!json_is_object(input)) return invalid(m, place, "must have an input that is an object");
    refused = note_mark(m, block, place, SIZE_MAX);
    if (refused) return refused;
    return qn_message_add_call(message, id, name, input) ? fail_memory(m) : 0;
}

static int add_thinking(const reading *m, const json_t *block, const char *place, qn_buf *reasoning)
{
    static const char *const known[] = {"thinking", "signature", NULL};
    const json_t *content = json_object_get(block, "thinking");
    int refused = check_keys(m, block, place, known);
    if (refused) return refused;
    if (!json_is_string(content)) return invalid(m, place, "must have a thinking that is a string");
    if (reasoning->length) qn_buf_putc(reasoning, '\n');
    qn_buf_append(reasoning, json_string_value(content), json_string_length(content));
    return note_mark(m, block, place, 0); /* the text comes behind it */
}

static int add_block(const reading *m, const json_t *block, const char *place, qn_content *said,
                     qn_buf *reasoning, json_t *message)
{
    const char *type = type_of(block);
    if (!type) return invalid(m, place, "must be an object with a type");
    if (strcmp(type, "text") == 0) return add_text(m, block, place, said);
    if (strcmp(type, "thinking") == 0) return add_thinking(m, block, place, reasoning);
    if (strcmp(type, "tool_use") == 0) return add_call(m, block, place, message);
    if (strcmp(type, "redacted_thinking") != 0) return refuse_block(m, place, type);
    qn_api_request_warn(m->r, place, "is not shown to the model: its text is encrypted");
    return 0;
}

/* One message whatever its blocks are: thinking before the text, and calls behind it. */
static int read_answer(const reading *m, const json_t *content, const char *place)
{
    qn_content said = {0};
    qn_buf reasoning = {0};
    json_t *message = json_object();
    int refused = 0;
    if (!json_is_array(content)) refused = read_texts(m, content, place, 0, &said);
    for (size_t i = 0; i < json_array_size(content) && !refused; i++) {
        char where[PLACE_MAX];
        snprintf(where, sizeof where, "%s[%zu]", place, i);
        refused = add_block(m, json_array_get(content, i), where, &said, &reasoning, message);
    }
    if (!refused) {
        int failed = reasoning.status != QN_OK;
        failed |= qn_message_set(message, "role", json_string("assistant"));
        failed |= qn_message_set(message, "content", qn_content_take(&said));
        if (reasoning.length)
            failed |= qn_message_set(message, "reasoning_content",
                                     qn_message_text(reasoning.data, reasoning.length));
        failed |= json_array_append(m->r->chat, message);
        if (failed) refused = fail_memory(m);
    }
    json_decref(message);
    qn_content_free(&said);
    qn_buf_free(&reasoning);
    return refused;
}

static int read_system(const reading *m, const json_t *content, const char *place)
{
    qn_content said = {0};
    int refused = read_texts(m, content, place, 0, &said);
    if (!refused) refused = append(m, "system", &said, NULL, NULL);
    qn_content_free(&said);
    return refused;
}

static int read_message(const reading *m, const json_t *sent, size_t i)
{
    static const char *const known[] = {"role", "content", NULL};
    const char *role = json_string_value(json_object_get(sent, "role"));
    const json_t *content = json_object_get(sent, "content");
    char place[PLACE_MAX], where[PLACE_MAX];
    snprintf(place, sizeof place, "messages[%zu]", i);
    if (!json_is_object(sent)) return invalid(m, place, "must be an object");
    int refused = check_keys(m, sent, place, known);
    if (refused) return refused;
    if (is_given(json_object_get(sent, "cache_control")))
        qn_api_request_warn(m->r, "cache_control",
                            "keeps nothing here: it belongs to a block of the message");
    snprintf(where, sizeof where, "messages[%zu].content", i);
    if (!is_given(content)) return invalid(m, where, "is missing");
    if (role && strcmp(role, "user") == 0) return read_user(m, content, where);
    if (role && strcmp(role, "assistant") == 0) return read_answer(m, content, where);
    if (role && strcmp(role, "system") == 0) return read_system(m, content, where);
    snprintf(where, sizeof where, "messages[%zu].role", i);
    return invalid(m, where, "must be user, assistant or system");
}

int qn_anthropic_read_messages(qn_api_request *r, qn_api_error *error)
{
    const reading m = {r, error};
    const size_t n = json_array_size(r->messages);
    if (!json_is_array(r->messages) || !n)
        return invalid(&m, "messages", "must be an array that is not empty");
    if (n > QN_REQUEST_MESSAGES_MAX)
        return qn_api_fail(error, 400, "invalid_value", "messages",
                           "messages has %zu elements, at most %d are allowed", n,
                           (int)QN_REQUEST_MESSAGES_MAX);
    r->chat = json_array();
    if (!r->chat) return fail_memory(&m);
    int refused = r->system ? read_system(&m, r->system, "system") : 0;
    for (size_t i = 0; i < n && !refused; i++) refused = read_message(&m, json_array_get(r->messages, i), i);
    if (!refused && r->warnings.status != QN_OK) refused = qn_api_fail_status(error, r->warnings.status);
    return refused;
}
