#include "server/openai/decisions.h"

#include <stdio.h>
#include <string.h>

#include "base/json/json_value.h"
#include "base/mem.h"
#include "server/core/message.h"

static int invalid(qn_api_error *error, const char *param, const char *sentence)
{
    return qn_api_fail(error, 400, "invalid_value", param, "%s %s", param, sentence);
}

static int fail_memory(qn_api_error *error)
{
    return qn_api_fail_status(error, qn_fail_nomem(0));
}

static int is_text(const json_t *value, const char *text)
{
    return json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}

/* No other keys than these, which end with NULL; what is null is not there. */
static int check_keys(const json_t *object, const char *const *known, const char *param, qn_api_error *error)
{
    const char *key;
    json_t *each;
    if (!json_is_object(object)) return invalid(error, param, "must be an object");
    json_object_foreach((json_t *)object, key, each)
    {
        char where[160];
        size_t i = 0;
        while (known[i] && strcmp(known[i], key) != 0) i++;
        if (known[i] || json_is_null(each)) continue;
        snprintf(where, sizeof where, "%.90s.%.60s", param, key);
        return qn_api_fail(error, 400, "unknown_parameter", where, "unknown parameter: %s", where);
    }
    return 0;
}

/* ---- texts --------------------------------------------------------------------------------------------- */

static int put_part(const json_t *part, const char *param, qn_buf *out, qn_api_error *error)
{
    static const char *const known[] = {"type", "text", "data", "refusal", "prompt_cache_breakpoint", NULL};
    const json_t *type = json_object_get(part, "type"), *data = json_object_get(part, "data");
    const int is_refusal = is_text(type, "refusal");
    const json_t *text = json_object_get(part, is_refusal ? "refusal" : "text");
    int refused = 0;
    if (is_text(type, "input_image"))
        return qn_api_fail(error, 400, "unsupported_content", param,
                           "%s: parts of the type 'input_image' are not supported; only text and JSON are",
                           param);
    refused = check_keys(part, known, param, error);
    if (refused) return refused;
    if (is_text(type, "input_json")) {
        if (!json_is_object(data) && !json_is_array(data))
            return invalid(error, param, "must have data that is an object or an array");
        qn_json_write_value(out, data);
        return 0;
    }
    if (!is_text(type, "input_text") && !is_text(type, "output_text") && !is_refusal)
        return invalid(error, param, "must be of the type input_text, output_text, refusal or input_json");
    if (!json_is_string(text)) return invalid(error, param, "must have a text");
    qn_buf_append(out, json_string_value(text), json_string_length(text));
    return 0;
}

/* A text, or parts of one, a line each. */
static int put_text(const json_t *value, const char *param, qn_buf *out, qn_api_error *error)
{
    int refused = 0;
    if (json_is_string(value)) {
        qn_buf_append(out, json_string_value(value), json_string_length(value));
        return 0;
    }
    if (!json_is_array(value) || !json_array_size(value))
        return invalid(error, param, "must be a string, or an array of parts that is not empty");
    for (size_t i = 0; i < json_array_size(value) && !refused; i++) {
        char where[160];
        snprintf(where, sizeof where, "%.120s[%zu]", param, i);
        if (i) qn_buf_putc(out, '\n');
        refused = put_part(json_array_get(value, i), where, out, error);
    }
    return refused;
}

/* ---- the input ----------------------------------------------------------------------------------------- */

/* Adds a message with the text of `content`; one that calls a tool has none. *out: borrowed. */
static int add_message(qn_api_request *r, const char *role, int has_text, const json_t *content,
                       const char *param, json_t **out, qn_api_error *error)
{
    qn_buf text = {0};
    int refused = has_text ? put_text(content, param, &text, error) : 0;
    *out = NULL;
    if (!refused && text.status == QN_OK)
        *out = qn_message_new(role, qn_message_text(text.length ? text.data : "", text.length));
    qn_buf_free(&text);
    if (refused) return refused;
    return json_array_append_new(r->chat, *out) ? fail_memory(error) : 0;
}

static int add_call(qn_api_request *r, const json_t *item, const char *param, const char *arguments,
                    qn_api_error *error)
{
    const json_t *name = json_object_get(item, "name"), *id = json_object_get(item, "call_id"),
                 *value = json_object_get(item, arguments);
    json_t *message;
    if (!json_string_length(name) || !json_string_length(id) || !json_is_string(value))
        return qn_api_fail(error, 400, "invalid_value", param, "%s must have a name, a call_id and %s", param,
                           arguments);
    int refused = add_message(r, "assistant", 0, NULL, param, &message, error);
    if (refused) return refused;
    return qn_message_add_call(message, id, name, value) ? fail_memory(error) : 0;
}

static int add_output(qn_api_request *r, const json_t *item, const char *param, qn_api_error *error)
{
    const json_t *id = json_object_get(item, "call_id");
    char where[160];
    json_t *message;
    if (!json_string_length(id)) return invalid(error, param, "must have a call_id");
    snprintf(where, sizeof where, "%.120s.output", param);
    int refused = add_message(r, "tool", 1, json_object_get(item, "output"), where, &message, error);
    if (refused) return refused;
    return qn_message_set(message, "tool_call_id", json_incref((json_t *)id)) ? fail_memory(error) : 0;
}

static int add_item(qn_api_request *r, const json_t *item, const char *param, qn_api_error *error)
{
    static const char *const known[] = {"type",      "role",      "content", "phase",  "call_id",
                                        "name",      "arguments", "input",   "output", "id",
                                        "namespace", "status",    NULL};
    const json_t *type = json_object_get(item, "type"), *role = json_object_get(item, "role");
    const int is_system = is_text(role, "system") || is_text(role, "developer");
    char where[160];
    json_t *message;
    int refused = check_keys(item, known, param, error);
    if (refused) return refused;
    if (is_text(type, "function_call")) return add_call(r, item, param, "arguments", error);
    if (is_text(type, "custom_tool_call")) return add_call(r, item, param, "input", error);
    if (is_text(type, "function_call_output") || is_text(type, "custom_tool_call_output"))
        return add_output(r, item, param, error);
    if (type && !is_text(type, "message"))
        return invalid(error, param, "must be a message, a call of a tool, or the output of one");
    if (!is_system && !is_text(role, "user") && !is_text(role, "assistant"))
        return invalid(error, param, "must have the role system, developer, user or assistant");
    snprintf(where, sizeof where, "%.120s.content", param);
    return add_message(r, is_system ? "system" : json_string_value(role), 1, json_object_get(item, "content"),
                       where, &message, error);
}

int qn_decision_read_input(qn_api_request *r, qn_api_error *error)
{
    const size_t n = json_array_size(r->input);
    json_t *message;
    int refused = 0;
    if (!(r->chat = json_array())) return fail_memory(error);
    if (json_is_string(r->input)) return add_message(r, "user", 1, r->input, "input", &message, error);
    if (!n) return invalid(error, "input", "must be a string, or an array that is not empty");
    if (n > QN_REQUEST_MESSAGES_MAX) return invalid(error, "input", "has too many elements");
    for (size_t i = 0; i < n && !refused; i++) {
        char param[64];
        snprintf(param, sizeof param, "input[%zu]", i);
        refused = add_item(r, json_array_get(r->input, i), param, error);
    }
    return refused;
}

/* ---- questions ----------------------------------------------------------------------------------------- */

void qn_decision_write_label(const qn_decision_question *q, size_t i, char out[QN_DECISION_LABEL_BYTES])
{
    if (q->kind == QN_DECISION_PREDICATE)
        snprintf(out, QN_DECISION_LABEL_BYTES, "%s", i ? "No" : "Yes");
    else if (q->n <= 26)
        snprintf(out, QN_DECISION_LABEL_BYTES, "%c", 'A' + (char)i);
    else
        snprintf(out, QN_DECISION_LABEL_BYTES, "%c%c", 'A' + (char)(i / 26), 'A' + (char)(i % 26));
}

/* "B: value (description)", a line. */
static int put_item(const qn_decision_question *q, size_t i, const char *param, qn_buf *out,
                    qn_api_error *error)
{
    static const char *const of_choices[] = {"value", "description", NULL}, *const of_levels[] = {
                                                                                "label", "description", NULL};
    const int is_choice = q->kind == QN_DECISION_CHOICE;
    const json_t *item = json_array_get(q->items, i),
                 *value = json_object_get(item, is_choice ? "value" : "label"),
                 *description = json_object_get(item, "description");
    char label[QN_DECISION_LABEL_BYTES], where[160];
    snprintf(where, sizeof where, "%.100s[%zu]", param, i);
    int refused = check_keys(item, is_choice ? of_choices : of_levels, where, error);
    if (refused) return refused;
    if (!json_is_string(value) && !(is_choice && json_is_boolean(value)))
        return invalid(error, where,
                       is_choice ? "must have a value, a string or a boolean" : "must have a label");
    for (size_t k = 0; k < i; k++)
        if (json_equal(json_object_get(json_array_get(q->items, k), is_choice ? "value" : "label"), value))
            return invalid(error, where, "stands there twice");
    if (description && !json_is_string(description) && !json_is_null(description))
        return invalid(error, where, "must have a description that is a string");
    qn_decision_write_label(q, i, label);
    qn_buf_printf(out, "\n%s: ", label);
    qn_buf_puts(out, json_is_string(value) ? json_string_value(value)
                     : json_is_true(value) ? "true"
                                           : "false");
    if (json_string_length(description)) qn_buf_printf(out, " (%s)", json_string_value(description));
    return 0;
}

static int put_items(qn_decision_question *q, const char *param, qn_api_error *error)
{
    q->n = json_array_size(q->items);
    if (q->n < 2 || q->n > QN_DECISION_CHOICES_MAX)
        return qn_api_fail(error, 400, "invalid_value", param, "%s must be an array of 2 to %d elements",
                           param, (int)QN_DECISION_CHOICES_MAX);
    for (size_t i = 0; i < q->n; i++) {
        int refused = put_item(q, i, param, &q->text, error);
        if (refused) return refused;
    }
    return 0;
}

int qn_decision_read_question(const json_t *questions, size_t i, qn_decision_question *out,
                              qn_api_error *error)
{
    static const char *const known[] = {"type", "name", "instructions", "choices", "levels", NULL};
    static const char *const kinds[] = {"predicate", "choice", "score"}, *const lists[] = {NULL, "choices",
                                                                                           "levels"};
    const json_t *question = json_array_get(questions, i), *type = json_object_get(question, "type"),
                 *name = json_object_get(question, "name");
    char param[64], where[96];
    int kind = 0;
    snprintf(param, sizeof param, "questions[%zu]", i);
    int refused = check_keys(question, known, param, error);
    if (refused) return refused;
    while (kind < 3 && !is_text(type, kinds[kind])) kind++;
    snprintf(where, sizeof where, "%s.type", param);
    if (kind == 3) return invalid(error, where, "must be \"predicate\", \"choice\" or \"score\"");
    out->kind = (qn_decision_kind)kind;
    snprintf(where, sizeof where, "%s.name", param);
    if (name && !json_is_string(name) && !json_is_null(name))
        return invalid(error, where, "must be a string");
    out->name = json_is_string(name) ? name : NULL;
    snprintf(where, sizeof where, "%s.instructions", param);
    if (kind == QN_DECISION_PREDICATE) qn_buf_puts(&out->text, "Is this statement about the input true?\n");
    refused = put_text(json_object_get(question, "instructions"), where, &out->text, error);
    if (refused) return refused;
    for (int k = 1; k < 3; k++) {
        const json_t *list = json_object_get(question, lists[k]);
        snprintf(where, sizeof where, "%s.%s", param, lists[k]);
        if (k != kind && list && !json_is_null(list)) return invalid(error, where, "belongs to another type");
        if (k != kind) continue;
        out->items = list;
        refused = put_items(out, where, error);
        if (refused) return refused;
    }
    if (kind == QN_DECISION_PREDICATE) out->n = 2;
    qn_buf_puts(&out->text, kind == QN_DECISION_PREDICATE
                                ? "\nAnswer with Yes or No and nothing else."
                                : "\nAnswer with the letters before the right line and "
                                  "nothing else.");
    return out->text.status == QN_OK ? 0 : qn_api_fail_status(error, out->text.status);
}
