#include "text/chat/chat_draft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json/json.h"
#include "base/json/json_value.h"
#include "base/mem.h"
#include "text/tools/tool_writer.h"

/* Arguments stand in a conversation, which must not become too deep for the reader of JSON. */
enum { ARGUMENTS_DEPTH_MAX = QN_JSON_DEPTH_MAX - 16 };

static const char *role_of(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    return role ? role : "";
}

static int has_role(const json_t *message, const char *role)
{
    return strcmp(role_of(message), role) == 0;
}

static qn_status fail_memory(void)
{
    return qn_fail(QN_E_NOMEM, "out of memory while preparing messages");
}

/* Sets a member of an object that is ours; takes value. */
static qn_status put(json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value) ? fail_memory() : QN_OK;
}

static qn_status put_text(json_t *object, const char *key, const char *text, size_t n)
{
    return put(object, key, json_stringn_nocheck(text, n));
}

static qn_status put_buf(json_t *object, const char *key, const qn_buf *b)
{
    QN_TRY(b->status);
    return put_text(object, key, b->data ? b->data : "", b->length);
}

/* The i-th message as a copy that may be changed; borrowed. */
static qn_status own_message(qn_chat_draft *d, size_t i, json_t **out)
{
    json_t *copy = qn_json_copy(json_array_get(d->messages, i));
    if (!copy || json_array_set_new(d->messages, i, copy)) return fail_memory();
    *out = copy;
    return QN_OK;
}

/* ---- calls --------------------------------------------------------------------------------------------- */

static int is_blank(const char *text, size_t n)
{
    while (n && (text[n - 1] == ' ' || (text[n - 1] >= 9 && text[n - 1] <= 13))) n--;
    return n == 0;
}

/* What the arguments of a call are: a new reference; a text that is no JSON stays a text. */
static qn_status read_arguments(const json_t *call, json_t **out)
{
    json_t *arguments = json_object_get(json_object_get(call, "function"), "arguments"), *parsed = NULL;
    const char *text = json_string_value(arguments);
    const size_t n = json_string_length(arguments);
    if (!arguments || json_is_null(arguments) || (text && is_blank(text, n))) {
        if (!(*out = json_object())) return fail_memory();
        return QN_OK;
    }
    if (text && qn_json_depth_ok(text, n, ARGUMENTS_DEPTH_MAX)) {
        qn_status status = qn_json_parse_lenient("arguments", text, n, &parsed);
        if (status == QN_E_NOMEM) return status;
    }
    *out = parsed ? parsed : json_incref(arguments);
    return QN_OK;
}

qn_status qn_chat_call_is_bad(const json_t *call, int *is_bad)
{
    json_t *arguments = NULL;
    QN_TRY(read_arguments(call, &arguments));
    *is_bad = !json_is_object(arguments);
    json_decref(arguments);
    return QN_OK;
}

static qn_status put_arguments_text(json_t *function, const json_t *read)
{
    const json_t *given = json_object_get(function, "arguments");
    if (json_is_string(given) && !is_blank(json_string_value(given), json_string_length(given))) return QN_OK;
    qn_buf text = {0};
    qn_json_write_value(&text, read);
    qn_status status = text.status;
    if (status == QN_OK) status = put_text(function, "arguments", text.data, text.length);
    qn_buf_free(&text);
    return status;
}

/* call and function are ours. */
static qn_status change_arguments(json_t *call, json_t *function, const qn_chat_changes *c)
{
    json_t *read = NULL;
    QN_TRY(read_arguments(call, &read));
    const int empties = (c->steps & QN_CHAT_EMPTY_ARGUMENTS) && !json_is_object(read);
    if (empties && c->text_arguments) {
        json_decref(read);
        return put_text(function, "arguments", "{}", 2);
    }
    if (empties) {
        json_decref(read);
        return put(function, "arguments", json_object());
    }
    if (!c->text_arguments) return put(function, "arguments", read);
    qn_status status = put_arguments_text(function, read);
    json_decref(read);
    return status;
}

/* The id of a call that has none depends on its place. */
static qn_status change_id(json_t *object, const char *key, qn_call_id_form form, size_t i, size_t k)
{
    char id[QN_CALL_ID_BYTES_MAX];
    const json_t *given = json_object_get(object, key);
    if (json_string_length(given))
        qn_call_id_map(form, json_string_value(given), json_string_length(given), id);
    else
        qn_call_id_write(form, 0, (int64_t)i, (int32_t)k, id);
    return put_text(object, key, id, strlen(id));
}

/* A list of calls of our own, in which each call and its function are ours too. */
static qn_status copy_calls(const json_t *calls, json_t *message)
{
    json_t *list = json_array();
    qn_status status = list ? QN_OK : fail_memory();
    for (size_t k = 0; k < json_array_size(calls) && status == QN_OK; k++) {
        const json_t *given = json_array_get(calls, k);
        json_t *call = json_is_object(given) ? qn_json_copy(given) : json_object();
        const json_t *of = json_object_get(call, "function");
        json_t *function = json_is_object(of) ? qn_json_copy(of) : json_object();
        if (!call || !function || json_object_set(call, "function", function) ||
            json_array_append(list, call))
            status = fail_memory();
        json_decref(function);
        json_decref(call);
    }
    if (status == QN_OK && json_object_set(message, "tool_calls", list)) status = fail_memory();
    json_decref(list);
    return status;
}

static qn_status change_calls(qn_chat_draft *d, size_t i, const qn_chat_changes *c, json_t **out)
{
    json_t *message = NULL;
    QN_TRY(own_message(d, i, &message));
    QN_TRY(copy_calls(json_object_get(message, "tool_calls"), message));
    json_t *calls = json_object_get(message, "tool_calls");
    for (size_t k = 0; k < json_array_size(calls); k++) {
        json_t *call = json_array_get(calls, k);
        QN_TRY(change_arguments(call, json_object_get(call, "function"), c));
        if (c->steps & QN_CHAT_MAP_IDS) QN_TRY(change_id(call, "id", c->ids, i, k));
    }
    *out = calls;
    return QN_OK;
}

/* A result without an id belongs to the call at its place among the results. */
static qn_status change_result(qn_chat_draft *d, size_t i, const qn_chat_changes *c, const json_t *calls,
                               size_t place)
{
    json_t *message = NULL, *id = json_object_get(json_array_get(calls, place), "id");
    QN_TRY(own_message(d, i, &message));
    if (!json_string_length(json_object_get(message, "tool_call_id")) && id)
        return put_text(message, "tool_call_id", json_string_value(id), json_string_length(id));
    return change_id(message, "tool_call_id", c->ids, i, 0);
}

static qn_status change_all_calls(qn_chat_draft *d, const qn_chat_changes *c)
{
    json_t *calls = NULL; /* the last ones */
    size_t n_results = 0;
    for (size_t i = 0; i < json_array_size(d->messages); i++) {
        const json_t *message = json_array_get(d->messages, i);
        if (json_array_size(json_object_get(message, "tool_calls"))) {
            QN_TRY(change_calls(d, i, c, &calls));
            n_results = 0;
        } else if (has_role(message, "tool") && (c->steps & QN_CHAT_MAP_IDS)) {
            QN_TRY(change_result(d, i, c, calls, n_results++));
        }
    }
    return QN_OK;
}

/* ---- calls one by one ---------------------------------------------------------------------------------- */

/* Takes message. d->origins has room. */
static qn_status append(json_t *to, json_t *message, qn_chat_origin origin, qn_chat_origin *origins)
{
    if (!message || json_array_append_new(to, message)) return fail_memory();
    origins[json_array_size(to) - 1] = origin;
    return QN_OK;
}

static int belongs(const json_t *result, size_t i, const json_t *call, size_t k)
{
    const json_t *of = json_object_get(result, "tool_call_id"), *id = json_object_get(call, "id");
    return of && id ? json_equal(of, id) : i == k;
}

/* The i-th message, of n_calls calls, with the n results that follow it. */
static qn_status split(const qn_chat_draft *d, size_t i, size_t n, json_t *to, qn_chat_origin *origins)
{
    const json_t *message = json_array_get(d->messages, i), *calls = json_object_get(message, "tool_calls");
    char *is_taken = qn_calloc(n + 1, 1);
    qn_status status = is_taken ? QN_OK : QN_E_NOMEM;
    for (size_t k = 0; k < json_array_size(calls) && status == QN_OK; k++) {
        json_t *call = json_array_get(calls, k);
        json_t *one =
            k ? json_pack("{s:s, s:s, s:[O]}", "role", role_of(message), "content", "", "tool_calls", call)
              : qn_json_copy(message);
        if (one && !k && json_object_set_new(one, "tool_calls", json_pack("[O]", call))) {
            json_decref(one);
            one = NULL;
        }
        status = append(to, one, (qn_chat_origin){d->origins[i].message, k}, origins);
        for (size_t j = 0; j < n && status == QN_OK; j++) {
            json_t *result = json_array_get(d->messages, i + 1 + j);
            if (is_taken[j] || !belongs(result, j, call, k)) continue;
            is_taken[j] = 1;
            status = append(to, json_incref(result), d->origins[i + 1 + j], origins);
        }
    }
    for (size_t j = 0; j < n && status == QN_OK; j++)
        if (!is_taken[j])
            status = append(to, json_incref(json_array_get(d->messages, i + 1 + j)), d->origins[i + 1 + j],
                            origins);
    qn_free(is_taken);
    return status;
}

static size_t count_calls(const json_t *message)
{
    return json_array_size(json_object_get(message, "tool_calls"));
}

static qn_status split_calls(qn_chat_draft *d)
{
    const size_t n = json_array_size(d->messages);
    size_t n_most = n;
    for (size_t i = 0; i < n; i++) n_most += count_calls(json_array_get(d->messages, i));
    json_t *to = json_array();
    qn_chat_origin *origins = qn_alloc_array(n_most, sizeof *origins);
    qn_status status = to && origins ? QN_OK : fail_memory();
    for (size_t i = 0, n_results; i < n && status == QN_OK; i += 1 + n_results) {
        json_t *message = json_array_get(d->messages, i);
        n_results = 0;
        if (count_calls(message) < 2) {
            status = append(to, json_incref(message), d->origins[i], origins);
            continue;
        }
        while (has_role(json_array_get(d->messages, i + 1 + n_results), "tool")) n_results++;
        status = split(d, i, n_results, to, origins);
    }
    if (status != QN_OK) {
        json_decref(to);
        qn_free(origins);
        return status;
    }
    qn_chat_draft_free(d);
    *d = (qn_chat_draft){to, origins};
    return QN_OK;
}

/* ---- system messages ----------------------------------------------------------------------------------- */

static int is_system(const json_t *message)
{
    return has_role(message, "system") && json_is_string(json_object_get(message, "content"));
}

static void join(qn_buf *b, const json_t *text)
{
    const size_t n = json_string_length(text);
    if (b->length && n) qn_buf_puts(b, "\n\n");
    qn_buf_append(b, json_string_value(text), n);
}

/* Takes the system messages out of *d; *text gets theirs. Returns how many there were. */
static size_t take_system(qn_chat_draft *d, qn_buf *text, qn_chat_origin *origin, json_t **first)
{
    size_t n = json_array_size(d->messages), to = 0;
    *first = NULL;
    for (size_t i = 0; i < n; i++) {
        json_t *message = json_array_get(d->messages, i);
        if (is_system(message)) {
            join(text, json_object_get(message, "content"));
            if (!*first) {
                *origin = d->origins[i];
                *first = json_incref(message);
            }
            continue;
        }
        d->origins[to] = d->origins[i];
        /* Neither fails: the place is there. */
        if (to < i) json_array_set(d->messages, to, message);
        to++;
    }
    for (size_t i = n; i > to; i--) json_array_remove(d->messages, i - 1);
    return n - to;
}

static qn_status change_system(qn_chat_draft *d, int to_user)
{
    qn_buf text = {0};
    json_t *first, *message = NULL;
    qn_chat_origin origin = {0};
    size_t at = 0, n_taken = take_system(d, &text, &origin, &first);
    qn_status status = QN_OK;
    if (to_user)
        while (at < json_array_size(d->messages) && !has_role(json_array_get(d->messages, at), "user")) at++;
    if (n_taken && to_user && at < json_array_size(d->messages) &&
        json_is_string(json_object_get(json_array_get(d->messages, at), "content"))) {
        status = own_message(d, at, &message);
        if (status == QN_OK) join(&text, json_object_get(message, "content"));
    } else if (n_taken) {
        message = qn_json_copy(first);
        if (!message || json_array_insert(d->messages, 0, message)) status = fail_memory();
        json_decref(message);
        memmove(d->origins + 1, d->origins, (json_array_size(d->messages) - 1) * sizeof *d->origins);
        d->origins[0] = origin;
        if (status == QN_OK && to_user) status = put_text(message, "role", "user", 4);
    }
    if (status == QN_OK && message) status = put_buf(message, "content", &text);
    json_decref(first);
    qn_buf_free(&text);
    return status;
}

/* ---- neighbours ---------------------------------------------------------------------------------------- */

/* Nothing of b is lost when its content goes to a. */
static int may_join(const json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;
    if (has_role(a, "tool") || !has_role(a, role_of(b)) || json_object_get(a, "tool_calls")) return 0;
    if (!json_is_string(json_object_get(a, "content")) || !json_is_string(json_object_get(b, "content")))
        return 0;
    json_object_foreach((json_t *)b, key, value)
    {
        if (strcmp(key, "content") == 0 || strcmp(key, "tool_calls") == 0) continue;
        if (!json_equal(json_object_get(a, key), value)) return 0;
    }
    return 1;
}

static qn_status join_neighbours(qn_chat_draft *d)
{
    json_t *joined = json_array();
    qn_status status = joined ? QN_OK : fail_memory();
    const size_t n = json_array_size(d->messages);
    for (size_t i = 0, end; i < n && status == QN_OK; i = end) {
        json_t *message = json_array_get(d->messages, i);
        json_t *copy = qn_json_copy(message);
        qn_buf text = {0};
        if (!copy) status = fail_memory();
        if (copy) join(&text, json_object_get(copy, "content"));
        for (end = i + 1; end < n && copy && may_join(copy, json_array_get(d->messages, end)); end++) {
            json_t *next = json_array_get(d->messages, end), *calls = json_object_get(next, "tool_calls");
            join(&text, json_object_get(next, "content"));
            if (calls && json_object_set(copy, "tool_calls", calls)) status = fail_memory();
        }
        if (status == QN_OK && end > i + 1) status = put_buf(copy, "content", &text);
        if (status == QN_OK) {
            d->origins[json_array_size(joined)] = d->origins[i];
            if (json_array_append(joined, copy)) status = fail_memory();
        }
        json_decref(copy);
        qn_buf_free(&text);
    }
    if (status != QN_OK) {
        json_decref(joined);
        return status;
    }
    json_decref(d->messages);
    d->messages = joined;
    return QN_OK;
}

/* ---- a draft ------------------------------------------------------------------------------------------- */

qn_status qn_chat_draft_make(const json_t *given, const qn_chat_changes *c, qn_chat_draft *out)
{
    const size_t n = json_array_size(given);
    *out = (qn_chat_draft){0};
    out->messages = qn_json_copy(given);
    if (!out->messages) return fail_memory();
    out->origins = qn_alloc_array(n, sizeof *out->origins);
    if (n && !out->origins) return QN_E_NOMEM;
    for (size_t i = 0; i < n; i++) out->origins[i] = (qn_chat_origin){.message = i};
    QN_TRY(change_all_calls(out, c));
    if (c->steps & QN_CHAT_SPLIT_CALLS) QN_TRY(split_calls(out));
    if (c->steps & (QN_CHAT_JOIN_SYSTEM | QN_CHAT_SYSTEM_TO_USER))
        QN_TRY(change_system(out, (c->steps & QN_CHAT_SYSTEM_TO_USER) != 0));
    return c->steps & QN_CHAT_JOIN_NEIGHBOURS ? join_neighbours(out) : QN_OK;
}

/* A content of parts gets one part more. message is ours. */
static qn_status append_text(json_t *message, const qn_buf *text)
{
    json_t *content = json_object_get(message, "content");
    if (!json_is_array(content)) return put_buf(message, "content", text);
    json_t *parts = json_copy(content), *own = json_stringn_nocheck(text->data, text->length);
    json_t *part = own ? json_pack("{s:s, s:o}", "type", "text", "text", own) : NULL;
    const int failed =
        !parts || !part || json_array_append(parts, part) || json_object_set(message, "content", parts);
    json_decref(part);
    json_decref(parts);
    return failed ? fail_memory() : QN_OK;
}

static qn_status write_calls(qn_chat_draft *d, size_t i, const qn_call_format *format)
{
    json_t *message = NULL;
    QN_TRY(own_message(d, i, &message));
    const json_t *content = json_object_get(message, "content");
    qn_buf text = {0};
    if (json_string_length(content)) {
        qn_buf_append(&text, json_string_value(content), json_string_length(content));
        qn_buf_putc(&text, '\n');
    }
    const int is_written = qn_tool_writer_put(format, json_object_get(message, "tool_calls"), &text);
    qn_status status = text.status;
    if (status == QN_OK && is_written) status = append_text(message, &text);
    if (status == QN_OK && is_written) json_object_del(message, "tool_calls");
    qn_buf_free(&text);
    return status;
}

qn_status qn_chat_draft_finish(qn_chat_draft *d, const qn_chat_changes *c)
{
    for (size_t i = 0; (c->steps & QN_CHAT_WRITE_CALLS) && i < json_array_size(d->messages); i++)
        if (count_calls(json_array_get(d->messages, i))) QN_TRY(write_calls(d, i, c->calls));
    return QN_OK;
}

void qn_chat_draft_free(qn_chat_draft *d)
{
    json_decref(d->messages);
    qn_free(d->origins);
    *d = (qn_chat_draft){0};
}

/* ---- marks --------------------------------------------------------------------------------------------- */

/* A letter, so that no template takes it for a number, digits that no template changes, and a number. */
static const char mark_begin[] = "918273645";
enum { NUMBER_DIGITS = 6, MARKS_MAX = 999999 };

typedef struct {
    char text[sizeof mark_begin + NUMBER_DIGITS + 1];
    size_t n;
} mark_text;

static mark_text next_mark(qn_chat_marks *m, const qn_chat_origin *of, int64_t call)
{
    mark_text t;
    t.n = (size_t)snprintf(t.text, sizeof t.text, "q%s%06u", mark_begin, (unsigned)m->n);
    m->marks[m->n++] = (qn_chat_mark){.message = of->message, .call = call};
    return t;
}

/* The first value of arguments that are an object or a list, a text that is no JSON in whole; other values
 * have no mark. function is ours. */
static qn_status mark_arguments(json_t *function, const qn_chat_origin *of, size_t k, qn_chat_marks *m)
{
    const json_t *arguments = json_object_get(function, "arguments");
    mark_text t;
    if (json_is_string(arguments)) {
        const char *text = json_string_value(arguments);
        char object[sizeof t.text + 16];
        t = next_mark(m, of, (int64_t)(of->call + k));
        if (*text != '{') return put_text(function, "arguments", t.text, t.n);
        int n = snprintf(object, sizeof object, "{\"a\":\"%s\"}", t.text);
        return put_text(function, "arguments", object, (size_t)n);
    }
    if (!json_is_object(arguments) && !json_is_array(arguments)) return QN_OK;
    t = next_mark(m, of, (int64_t)(of->call + k));
    json_t *copy = qn_json_copy(arguments);
    if (!copy) return fail_memory();
    int failed;
    if (json_is_array(copy)) {
        failed = json_array_size(copy) ? json_array_set_new(copy, 0, json_string(t.text))
                                       : json_array_append_new(copy, json_string(t.text));
    } else {
        const char *key = json_object_iter_key(json_object_iter(copy));
        failed = json_object_set_new(copy, key ? key : "a", json_string(t.text));
    }
    failed |= json_object_set(function, "arguments", copy);
    json_decref(copy);
    return failed ? fail_memory() : QN_OK;
}

static int is_markable(const json_t *content)
{
    return json_is_string(content) && !is_blank(json_string_value(content), json_string_length(content));
}

/* The first text of a content of parts; the others are left alone. message is ours. */
static qn_status mark_part(json_t *message, const qn_chat_origin *origin, qn_chat_marks *m)
{
    json_t *parts = json_copy(json_object_get(message, "content")), *part = NULL;
    size_t k = 0, n = json_array_size(parts);
    while (k < n && !is_markable(json_object_get(json_array_get(parts, k), "text"))) k++;
    if (k < n) part = qn_json_copy(json_array_get(parts, k));
    const int failed = !parts || (k < n && (!part || json_array_set_new(parts, k, part))) ||
                       json_object_set(message, "content", parts);
    json_decref(parts);
    if (failed) return fail_memory();
    if (k == n) return QN_OK;
    mark_text t = next_mark(m, origin, -1);
    return put_text(part, "text", t.text, t.n);
}

static qn_status mark_message(qn_chat_draft *d, size_t i, qn_chat_marks *m)
{
    json_t *message = NULL, *calls;
    QN_TRY(own_message(d, i, &message));
    if (is_markable(json_object_get(message, "content"))) {
        mark_text t = next_mark(m, &d->origins[i], -1);
        QN_TRY(put_text(message, "content", t.text, t.n));
    } else if (json_is_array(json_object_get(message, "content"))) {
        QN_TRY(mark_part(message, &d->origins[i], m));
    }
    if (!json_object_get(message, "tool_calls")) return QN_OK;
    QN_TRY(copy_calls(json_object_get(message, "tool_calls"), message));
    calls = json_object_get(message, "tool_calls");
    for (size_t k = 0; k < json_array_size(calls); k++)
        QN_TRY(mark_arguments(json_object_get(json_array_get(calls, k), "function"), &d->origins[i], k, m));
    return QN_OK;
}

qn_status qn_chat_draft_mark(qn_chat_draft *d, qn_chat_marks *out)
{
    size_t n = json_array_size(d->messages);
    *out = (qn_chat_marks){0};
    for (size_t i = 0; i < json_array_size(d->messages); i++)
        n += json_array_size(json_object_get(json_array_get(d->messages, i), "tool_calls"));
    out->marks = qn_calloc(n, sizeof *out->marks);
    if (n && !out->marks) return QN_E_NOMEM;
    for (size_t i = 0; i < json_array_size(d->messages) && n <= MARKS_MAX; i++)
        QN_TRY(mark_message(d, i, out));
    return QN_OK;
}

void qn_chat_marks_find(qn_chat_marks *m, const char *text, size_t n)
{
    const size_t begin = sizeof mark_begin - 1, whole = begin + NUMBER_DIGITS;
    for (const char *at = text, *end = text + n; (at = memchr(at, mark_begin[0], (size_t)(end - at))); at++) {
        size_t number = 0;
        if ((size_t)(end - at) < whole) return;
        if (memcmp(at, mark_begin, begin) != 0) continue;
        for (size_t i = begin; i < whole; i++) number = number * 10 + (size_t)(at[i] - '0');
        if (number < m->n) m->marks[number].is_shown = 1;
    }
}

void qn_chat_marks_free(qn_chat_marks *m)
{
    qn_free(m->marks);
    *m = (qn_chat_marks){0};
}
