/* Messages before they reach a template. */
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "text/template.h"

static qn_status fail_json(void)
{
    return qn_fail(QN_E_NOMEM, "out of memory while messages are prepared");
}

static qn_status prepare_message(const json_t *message, size_t i, json_t **out)
{
    if (!json_is_object(message)) return qn_fail(QN_E_ARG, "messages[%zu]: expected an object", i);
    if (!json_is_string(json_object_get(message, "role")))
        return qn_fail(QN_E_ARG, "messages[%zu].role: expected a string", i);
    json_t *copy = json_object(), *from = (json_t *)message; /* iterated, not changed */
    int bad = !copy;
    for (void *at = json_object_iter(from); at && !bad; at = json_object_iter_next(from, at)) {
        json_t *value = json_object_iter_value(at);
        if (json_is_null(value)) continue;
        bad = json_object_setn(copy, json_object_iter_key(at), json_object_iter_key_len(at), value) != 0;
    }
    json_t *reasoning = copy ? json_object_get(copy, "reasoning_content") : NULL;
    if (!bad && reasoning && !json_object_get(copy, "thinking"))
        bad = json_object_set(copy, "thinking", reasoning) != 0;
    if (bad) {
        json_decref(copy);
        return fail_json();
    }
    *out = copy;
    return QN_OK;
}

qn_status qn_template_prepare_messages(const json_t *messages, json_t **out)
{
    if (!json_is_array(messages)) return qn_fail(QN_E_ARG, "messages: expected a list");
    json_t *list = json_array();
    qn_status status = list ? QN_OK : fail_json();
    for (size_t i = 0; i < json_array_size(messages) && status == QN_OK; i++) {
        json_t *message = NULL;
        status = prepare_message(json_array_get(messages, i), i, &message);
        if (status == QN_OK && json_array_append_new(list, message)) status = fail_json();
    }
    if (status != QN_OK) {
        json_decref(list);
        return status;
    }
    *out = list;
    return QN_OK;
}

static int has_role(const json_t *message, const char *role)
{
    const char *own = json_string_value(json_object_get(message, "role"));
    return own && strcmp(own, role) == 0;
}

static int stands_alone(const json_t *message)
{
    return json_object_get(message, "tool_calls") || json_object_get(message, "tool_call_id");
}

/* content as a list of parts; NULL: no memory, or neither text nor list. */
static json_t *as_parts(json_t *content)
{
    if (json_is_array(content)) return qn_json_copy(content);
    if (!json_is_string(content)) return NULL;
    return json_pack("[{s:s, s:O}]", "type", "text", "text", content);
}

static json_t *join_texts(json_t *a, json_t *b)
{
    size_t n_a = json_string_length(a), n_b = json_string_length(b);
    char *text = qn_alloc(n_a + n_b + 2);
    if (!text) return NULL;
    memcpy(text, json_string_value(a), n_a);
    memcpy(text + n_a, "\n\n", 2);
    memcpy(text + n_a + 2, json_string_value(b), n_b);
    json_t *joined = json_stringn(text, n_a + n_b + 2);
    qn_free(text);
    return joined;
}

/* Adds next's content to that of into, which is owned by the result. */
static qn_status join_contents(json_t *into, json_t *next)
{
    json_t *a = json_object_get(into, "content"), *b = json_object_get(next, "content"), *joined;
    if (!b) return QN_OK;
    if (!a) {
        joined = json_incref(b);
    } else if (json_is_string(a) && json_is_string(b)) {
        joined = join_texts(a, b);
    } else {
        json_t *more = as_parts(b);
        joined = as_parts(a);
        if (!joined || !more || json_array_extend(joined, more)) {
            json_decref(joined);
            joined = NULL;
        }
        json_decref(more);
    }
    if (!joined || json_object_set_new(into, "content", joined)) return fail_json();
    return QN_OK;
}

/* The message in list that takes in `next`, or NULL. */
static json_t *joins(const json_t *list, const json_t *next)
{
    size_t n = json_array_size(list);
    if (!n || stands_alone(next)) return NULL;
    json_t *first = json_array_get(list, 0), *last = json_array_get(list, n - 1);
    if (has_role(next, "system")) return has_role(first, "system") ? first : NULL;
    return has_role(next, "user") && has_role(last, "user") && !stands_alone(last) ? last : NULL;
}

static qn_status merge_message(json_t *list, json_t *message)
{
    json_t *copy = qn_json_copy(message);
    int bad = !copy;
    if (!bad && has_role(copy, "developer"))
        bad = json_object_set_new(copy, "role", json_string("system")) != 0;
    json_t *into = bad ? NULL : joins(list, copy);
    qn_status status = bad ? fail_json() : QN_OK;
    if (into)
        status = join_contents(into, copy);
    else if (!bad && json_array_append(list, copy))
        status = fail_json();
    json_decref(copy);
    return status;
}

qn_status qn_template_merge_messages(const json_t *messages, json_t **out)
{
    json_t *list = json_array();
    qn_status status = list ? QN_OK : fail_json();
    for (size_t i = 0; i < json_array_size(messages) && status == QN_OK; i++)
        status = merge_message(list, json_array_get(messages, i));
    if (status != QN_OK) {
        json_decref(list);
        return status;
    }
    *out = list;
    return QN_OK;
}
