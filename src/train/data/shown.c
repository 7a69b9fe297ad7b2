#include "train/data/shown.h"

#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"

static const char word[] = "\xe2\x98\x83\xe2\x99\x9e"; /* no data say so */

/* Is the text the same with another value of `key` in the request? Takes the value; NULL: no memory. */
static qn_status compare(const qn_shown *s, const char *key, json_t *value, int *same)
{
    qn_rendered other = {0};
    json_t *request = value ? qn_json_copy(s->request) : NULL;
    int failed = !request || json_object_set(request, key, value);
    json_decref(value);
    qn_status status =
        failed ? qn_fail_nomem(sizeof *request) : qn_chat_text_render_parts(s->text, request, &other);
    json_decref(request);
    if (status == QN_E_NOMEM) return status;
    *same = status == QN_OK && other.n == s->whole->n && memcmp(other.text, s->whole->text, other.n) == 0;
    qn_rendered_free(&other);
    return QN_OK;
}

/* ---- tools and calls ---- */

/* A function with another name, and other arguments if it has some. NULL: no memory. */
static json_t *renamed(const json_t *entry)
{
    const json_t *function = json_object_get(entry, "function");
    json_t *inner = qn_json_copy(function ? function : entry), *outer = NULL;
    int failed = !inner || json_object_set_new(inner, "name", json_string(word));
    if (!failed && json_object_get(inner, "arguments"))
        failed = json_object_set_new(inner, "arguments", json_pack("{s:s}", word, word));
    if (!failed && function) {
        outer = qn_json_copy(entry);
        failed = !outer || json_object_set(outer, "function", inner);
    }
    if (failed || function) {
        json_decref(inner);
        inner = NULL;
    }
    if (!failed) return function ? outer : inner;
    json_decref(outer);
    return NULL;
}

/* Entries that are no objects stay. NULL: no memory. */
static json_t *all_renamed(const json_t *list)
{
    json_t *copy = json_array(), *each;
    size_t i;
    int failed = !copy;
    json_array_foreach((json_t *)list, i, each)
    {
        if (failed) break;
        const json_t *function = json_object_get(each, "function");
        json_t *other = json_is_object(each) && (!function || json_is_object(function)) ? renamed(each)
                                                                                        : json_incref(each);
        failed = !other || json_array_append_new(copy, other);
    }
    if (!failed) return copy;
    json_decref(copy);
    return NULL;
}

qn_status qn_shown_tools(const qn_shown *s, int *shown)
{
    int same;
    QN_TRY(compare(s, "tools", all_renamed(json_object_get(s->request, "tools")), &same));
    *shown = !same;
    return QN_OK;
}

qn_status qn_shown_calls(const qn_shown *s, size_t i, int *shown)
{
    const json_t *messages = json_object_get(s->request, "messages"), *message = json_array_get(messages, i);
    json_t *list = qn_json_copy(messages), *copy = qn_json_copy(message),
           *calls = all_renamed(json_object_get(message, "tool_calls"));
    int failed = !list || !copy || !calls || json_object_set(copy, "tool_calls", calls) ||
                 json_array_set(list, i, copy);
    json_decref(copy);
    json_decref(calls);
    if (failed) {
        json_decref(list);
        return qn_fail_nomem(sizeof *list);
    }
    int same;
    QN_TRY(compare(s, "messages", list, &same));
    *shown = !same;
    return QN_OK;
}

/* ---- keys ---- */

static int is_one_of(const char *key, const char *const *names)
{
    while (*names && strcmp(key, *names) != 0) names++;
    return *names != NULL;
}

/* The messages without this key and these; NULL: none. The result NULL: no memory. */
static json_t *without(const json_t *messages, const char *key, const char *const *keys)
{
    json_t *list = json_array(), *each;
    size_t i;
    int failed = !list;
    json_array_foreach((json_t *)messages, i, each)
    {
        json_t *copy = failed ? NULL : qn_json_copy(each);
        for (const char *const *k = keys; copy && k && *k; k++) json_object_del(copy, *k);
        if (copy && key) json_object_del(copy, key);
        failed = failed || !copy || json_array_append_new(list, copy);
    }
    if (!failed) return list;
    json_decref(list);
    return NULL;
}

static qn_status list_keys(const json_t *messages, const char *const *known, const char **keys, size_t *n)
{
    const char *key;
    json_t *each, *value;
    size_t i;
    json_array_foreach((json_t *)messages, i, each)
    {
        json_object_foreach(each, key, value)
        {
            if (json_is_null(value) || is_one_of(key, known) || is_one_of(key, keys)) continue;
            if (*n == QN_SHOWN_KEYS_MAX)
                return qn_fail(QN_E_ARG, "the messages have more than %d keys that are not known",
                               QN_SHOWN_KEYS_MAX);
            keys[(*n)++] = key;
        }
    }
    return QN_OK;
}

/* The function of a call without this key and these. NULL: no memory. */
static json_t *function_without(const json_t *call, const char *key, const char *const *keys)
{
    const json_t *function = json_object_get(call, "function");
    json_t *copy = qn_json_copy(call), *inner = qn_json_copy(function);
    for (const char *const *k = keys; inner && k && *k; k++) json_object_del(inner, *k);
    if (inner && key) json_object_del(inner, key);
    if (copy && inner && json_object_set(copy, "function", inner) == 0) {
        json_decref(inner);
        return copy;
    }
    json_decref(copy);
    json_decref(inner);
    return NULL;
}

/* The calls without this key and these, or with functions that lack them. NULL: no memory. */
static json_t *calls_without(const json_t *calls, int in_functions, const char *key, const char *const *keys)
{
    json_t *list = in_functions ? json_array() : without(calls, key, keys), *each;
    size_t i;
    int failed = !list;
    json_array_foreach((json_t *)calls, i, each)
    {
        if (failed || !in_functions) break;
        json_t *copy = json_is_object(json_object_get(each, "function")) ? function_without(each, key, keys)
                                                                         : json_incref(each);
        failed = !copy || json_array_append_new(list, copy);
    }
    if (!failed) return list;
    json_decref(list);
    return NULL;
}

/* The messages with such calls. NULL: no memory. */
static json_t *messages_with_calls_without(const json_t *messages, int in_functions, const char *key,
                                           const char *const *keys)
{
    json_t *list = json_array(), *each;
    size_t i;
    int failed = !list;
    json_array_foreach((json_t *)messages, i, each)
    {
        const json_t *calls = json_object_get(each, "tool_calls");
        json_t *copy = failed ? NULL : qn_json_copy(each);
        if (copy && json_array_size(calls))
            failed = json_object_set_new(copy, "tool_calls", calls_without(calls, in_functions, key, keys));
        failed = failed || !copy || json_array_append_new(list, copy);
    }
    if (!failed) return list;
    json_decref(list);
    return NULL;
}

/* Where keys lie: in messages, in their calls, in the functions of these. */
typedef enum { OF_MESSAGES, OF_CALLS, OF_FUNCTIONS, PLACES } key_place;
static const char *const paths[PLACES] = {"messages[].", "messages[].tool_calls[].",
                                          "messages[].tool_calls[].function."};

static json_t *all_without(const json_t *messages, key_place place, const char *key, const char *const *keys)
{
    if (place == OF_MESSAGES) return without(messages, key, keys);
    return messages_with_calls_without(messages, place == OF_FUNCTIONS, key, keys);
}

static qn_status list_keys_of(const json_t *messages, key_place place, const char *const *known,
                              const char **keys, size_t *n)
{
    json_t *each, *call;
    size_t i, k;
    if (place == OF_MESSAGES) return list_keys(messages, known, keys, n);
    json_array_foreach((json_t *)messages, i, each)
    {
        const json_t *calls = json_object_get(each, "tool_calls");
        if (place == OF_CALLS) QN_TRY(list_keys(calls, known, keys, n));
        json_array_foreach((json_t *)calls, k, call)
        {
            json_t *function = json_object_get(call, "function");
            if (place != OF_FUNCTIONS || !json_is_object(function)) continue;
            json_t *one = json_array();
            if (!one || json_array_append(one, function)) {
                json_decref(one);
                return qn_fail_nomem(sizeof *one);
            }
            const qn_status status = list_keys(one, known, keys, n);
            json_decref(one); /* the keys are the function's, which the messages hold */
            QN_TRY(status);
        }
    }
    return QN_OK;
}

static qn_status unused_keys(const qn_shown *s, key_place place, const char *const *known, qn_buf *out)
{
    const json_t *messages = json_object_get(s->request, "messages");
    const char *keys[QN_SHOWN_KEYS_MAX + 1] = {NULL};
    size_t n = 0;
    int none_is_used;
    QN_TRY(list_keys_of(messages, place, known, keys, &n));
    if (!n) return QN_OK;
    QN_TRY(compare(s, "messages", all_without(messages, place, NULL, keys), &none_is_used));
    for (size_t i = 0; i < n; i++) {
        int unused = none_is_used;
        if (!unused && n > 1)
            QN_TRY(compare(s, "messages", all_without(messages, place, keys[i], NULL), &unused));
        if (!unused) continue;
        qn_buf_printf(out, "%s%s", paths[place], keys[i]);
        qn_buf_putc(out, 0);
    }
    return out->status;
}

qn_status qn_shown_unused_keys(const qn_shown *s, const char *const *known, qn_buf *out)
{
    static const char *const of_calls[] = {"id", "type", "function", "name", "arguments", NULL},
                             *const of_functions[] = {"name", "arguments", NULL};
    QN_TRY(unused_keys(s, OF_MESSAGES, known, out));
    QN_TRY(unused_keys(s, OF_CALLS, of_calls, out));
    return unused_keys(s, OF_FUNCTIONS, of_functions, out);
}
