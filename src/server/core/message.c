#include "server/core/message.h"

json_t *qn_message_text(const char *text, size_t n)
{
    return json_stringn(n ? text : "", n);
}

int qn_message_set(json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value);
}

json_t *qn_message_new(const char *role, json_t *content)
{
    json_t *message = json_object();
    int failed = qn_message_set(message, "role", json_string(role));
    failed |= qn_message_set(message, "content", content);
    if (!failed) return message;
    json_decref(message);
    return NULL;
}

/* A value that gets one more owner. */
static json_t *shared(const json_t *value)
{
    return json_incref((json_t *)value);
}

int qn_message_add_call(json_t *message, const json_t *id, const json_t *name, const json_t *arguments)
{
    json_t *calls = json_object_get(message, "tool_calls"), *call = json_object(), *function = json_object();
    int failed = 0;
    if (!calls) {
        failed = qn_message_set(message, "tool_calls", json_array());
        calls = json_object_get(message, "tool_calls");
    }
    if (id) failed |= qn_message_set(call, "id", shared(id));
    failed |= qn_message_set(call, "type", json_string("function"));
    failed |= qn_message_set(function, "name", shared(name));
    if (arguments) failed |= qn_message_set(function, "arguments", shared(arguments));
    failed |= qn_message_set(call, "function", function);
    failed |= json_array_append_new(calls, call);
    return failed ? -1 : 0;
}
