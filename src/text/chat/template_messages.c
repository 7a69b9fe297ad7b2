/* Messages before they reach a template. */
#include "base/json/json.h"
#include "text/jinja/template.h"

static qn_status fail_json(void)
{
    return qn_fail(QN_E_NOMEM, "out of memory while preparing messages");
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
