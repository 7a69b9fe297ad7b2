#include "train/data/dataset_line.h"

#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "train/data/answer_spans.h"

int qn_line_is_bad(qn_status status)
{
    return status == QN_E_FORMAT || status == QN_E_ARG || status == QN_E_UNSUPPORTED || status == QN_E_FULL;
}

void qn_train_sequence_free(qn_train_sequence *s)
{
    qn_free(s->ids);
    qn_free(s->counts);
    *s = (qn_train_sequence){0};
}

/* ---- what a line may say ---- */

static qn_status check_content(const json_t *message, const char *list, size_t i)
{
    const json_t *content = json_object_get(message, "content"),
                 *calls = json_object_get(message, "tool_calls");
    if (calls && !json_is_null(calls) && !json_is_array(calls))
        return qn_fail(QN_E_ARG, "%s[%zu].tool_calls is not a list", list, i);
    if (json_is_string(content)) return QN_OK;
    if (!content || json_is_null(content)) {
        const json_t *reasoning = json_object_get(message, "reasoning_content");
        if (json_array_size(calls) || json_string_length(reasoning)) return QN_OK;
        return qn_fail(QN_E_ARG, "%s[%zu] has no content", list, i);
    }
    if (!json_is_array(content)) return qn_fail(QN_E_ARG, "%s[%zu].content is not a text", list, i);
    for (size_t k = 0; k < json_array_size(content); k++) {
        const json_t *part = json_array_get(content, k);
        if (!json_is_string(json_object_get(part, "text")))
            return qn_fail(QN_E_ARG, "%s[%zu].content[%zu] is not a part with a text", list, i, k);
    }
    return QN_OK;
}

static qn_status check_messages(const json_t *messages, const char *list)
{
    static const char *const roles[] = {"system", "developer", "user",    "assistant",
                                        "tool",   "function",  "ipython", "observation"};
    enum { N_ROLES = sizeof roles / sizeof *roles };
    if (!json_is_array(messages)) return qn_fail(QN_E_ARG, "%s is not a list of messages", list);
    if (!json_array_size(messages)) return qn_fail(QN_E_ARG, "%s is empty", list);
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i);
        const char *role = json_string_value(json_object_get(message, "role"));
        size_t k = 0;
        if (!json_is_object(message)) return qn_fail(QN_E_ARG, "%s[%zu] is not an object", list, i);
        if (!role) return qn_fail(QN_E_ARG, "%s[%zu] has no role", list, i);
        while (k < N_ROLES && strcmp(role, roles[k]) != 0) k++;
        if (k == N_ROLES)
            return qn_fail(QN_E_ARG, "%s[%zu]: the role \"%.40s\" does not exist", list, i, role);
        QN_TRY(check_content(message, list, i));
    }
    return QN_OK;
}

/* OpenAI's API has a call's arguments as their text; templates take the object. *out is a new call. */
static qn_status copy_call(const json_t *call, json_t **out)
{
    const json_t *function = json_object_get(call, "function"),
                 *text = json_object_get(function ? function : call, "arguments");
    json_t *arguments = NULL, *inner = NULL, *copy = qn_json_copy(call);
    qn_status status = copy ? QN_OK : qn_fail_nomem(sizeof *copy);
    if (status == QN_OK && json_string_length(text))
        status = qn_json_parse("arguments", json_string_value(text), json_string_length(text), &arguments);
    if (status == QN_OK && json_is_object(arguments)) {
        inner = function ? qn_json_copy(function) : json_incref(copy);
        if (!inner || json_object_set(inner, "arguments", arguments) ||
            (function && json_object_set(copy, "function", inner)))
            status = qn_fail_nomem(sizeof *copy);
    }
    json_decref(inner);
    json_decref(arguments);
    if (status == QN_OK)
        *out = copy;
    else
        json_decref(copy);
    return status;
}

static qn_status copy_calls(const json_t *calls, const char *list, size_t i, json_t **out)
{
    json_t *copies = json_array(), *copy = NULL;
    qn_status status = copies ? QN_OK : qn_fail_nomem(sizeof *copies);
    for (size_t k = 0; k < json_array_size(calls) && status == QN_OK; k++) {
        const json_t *call = json_array_get(calls, k);
        if (!json_is_object(call))
            status = qn_fail(QN_E_ARG, "%s[%zu].tool_calls[%zu] is not an object", list, i, k);
        if (status == QN_OK) {
            status = copy_call(call, &copy);
            if (qn_line_is_bad(status)) qn_fail_prefix(status, "%s[%zu].tool_calls[%zu]", list, i, k);
        }
        if (status == QN_OK && json_array_append_new(copies, copy)) status = qn_fail_nomem(sizeof *copies);
    }
    if (status == QN_OK)
        *out = copies;
    else
        json_decref(copies);
    return status;
}

/* What a message says as the server gives it to templates, which need not know of parts: one text, a line for
 * each. *out NULL: it is that already. */
static qn_status copy_content(const json_t *content, json_t **out)
{
    qn_buf text = {0};
    *out = NULL;
    if (json_is_string(content)) return QN_OK;
    for (size_t k = 0; k < json_array_size(content); k++) {
        const json_t *part = json_object_get(json_array_get(content, k), "text");
        if (k) qn_buf_putc(&text, '\n');
        qn_buf_append(&text, json_string_value(part), json_string_length(part));
    }
    qn_status status = text.status;
    if (status == QN_OK) *out = json_stringn(text.data ? text.data : "", text.length);
    if (status == QN_OK && !*out) status = qn_fail_nomem(text.length);
    qn_buf_free(&text);
    return status;
}

/* A member of its own; takes the value, NULL: out of memory. */
static qn_status set_member(json_t *message, const char *key, json_t *value)
{
    return json_object_set_new(message, key, value) ? qn_fail_nomem(sizeof *message) : QN_OK;
}

/* Message i of a list in the form that the server gives to templates; adds a new one to the chat. */
static qn_status add_message(json_t *chat, const json_t *message, const char *list, size_t i)
{
    const json_t *calls = json_object_get(message, "tool_calls");
    json_t *copy = qn_json_copy(message), *copies = NULL, *text = NULL;
    qn_status status = copy ? QN_OK : qn_fail_nomem(sizeof *copy);
    if (status == QN_OK && strcmp(json_string_value(json_object_get(message, "role")), "developer") == 0)
        status = set_member(copy, "role", json_string("system"));
    if (status == QN_OK) status = copy_content(json_object_get(message, "content"), &text);
    if (status == QN_OK && text) status = set_member(copy, "content", text);
    if (status == QN_OK && json_array_size(calls)) status = copy_calls(calls, list, i, &copies);
    if (status == QN_OK && copies) status = set_member(copy, "tool_calls", copies);
    if (status == QN_OK && json_array_append(chat, copy)) status = qn_fail_nomem(sizeof *copy);
    json_decref(copy);
    return status;
}

/* Checked messages behind those of a chat. */
static qn_status add_messages(json_t *chat, const json_t *messages, const char *list)
{
    QN_TRY(check_messages(messages, list));
    for (size_t i = 0; i < json_array_size(messages); i++)
        QN_TRY(add_message(chat, json_array_get(messages, i), list, i));
    return QN_OK;
}

/* Messages, or a text that is one of them. */
static qn_status add_turns(json_t *chat, const json_t *value, const char *list, const char *role)
{
    if (!json_is_string(value)) return add_messages(chat, value, list);
    json_t *message = json_object(), *name = json_string(role);
    int failed = !message || !name || json_object_set(message, "role", name) ||
                 json_object_set(message, "content", (json_t *)value) || json_array_append(chat, message);
    json_decref(name);
    json_decref(message);
    return failed ? qn_fail_nomem(sizeof *message) : QN_OK;
}

/* ---- texts ---- */

/* Ids with counts: those from `from` on. Takes the ids. EOS is put at their end unless it is there. */
static qn_status end_text(const qn_tokenizer *t, int32_t *ids, size_t n, size_t from, qn_train_sequence *out)
{
    const int32_t eos = qn_tokenizer_eos_id(t);
    out->ids = ids;
    out->n = (int64_t)n;
    if (eos >= 0 && (!n || ids[n - 1] != eos)) {
        int32_t *longer = qn_realloc(ids, (n + 1) * sizeof *ids);
        if (!longer) return QN_E_NOMEM;
        longer[n] = eos;
        out->ids = longer;
        out->n++;
    }
    out->counts = qn_alloc((size_t)out->n);
    if (!out->counts) return QN_E_NOMEM;
    for (int64_t i = 0; i < out->n; i++) out->counts[i] = i >= (int64_t)from;
    return QN_OK;
}

static qn_status read_text(const qn_line_options *o, const json_t *text, qn_train_sequence *out)
{
    const qn_tokenizer *t = qn_chat_text_tokenizer(o->text);
    int32_t *ids;
    size_t n;
    if (!json_is_string(text)) return qn_fail(QN_E_ARG, "\"text\" is not a text");
    if (!json_string_length(text)) return qn_fail(QN_E_ARG, "\"text\" is empty");
    QN_TRY(qn_tokenizer_encode(t, json_string_value(text), json_string_length(text),
                               QN_ENCODE_SPECIAL | QN_ENCODE_BOS, &ids, &n));
    return end_text(t, ids, n, 0, out);
}

/* A prompt and its completion, joined. */
static qn_status read_joined(const qn_line_options *o, const json_t *prompt, const json_t *completion,
                             qn_train_sequence *out)
{
    const qn_tokenizer *t = qn_chat_text_tokenizer(o->text);
    const qn_text_segment parts[] = {{json_string_value(prompt), json_string_length(prompt), 1},
                                     {json_string_value(completion), json_string_length(completion), 1}};
    int32_t *ids;
    size_t n, from;
    QN_TRY(qn_tokenizer_encode_cut(t, parts, 2, QN_ENCODE_BOS, &parts[0].n, 1, &from, &ids, &n));
    return end_text(t, ids, n, o->mask == QN_MASK_ALL ? 0 : from, out);
}

/* ---- chats ---- */

/* Counts of a chat's ids: at[2 k] and at[2 k + 1] are where span k begins and ends. */
static qn_status count_spans(const qn_answer_spans *spans, const size_t *at, qn_mask mask,
                             qn_train_sequence *out)
{
    out->counts = qn_calloc((size_t)out->n, 1);
    if (!out->counts) return QN_E_NOMEM;
    if (mask == QN_MASK_ALL) memset(out->counts, 1, (size_t)out->n);
    for (int64_t k = 0; k < spans->n && mask != QN_MASK_ALL; k++) {
        if (mask == QN_MASK_LAST && k + 1 < spans->n) continue;
        out->n_lost += spans->spans[k].begin == spans->spans[k].end;
        memset(out->counts + at[2 * k], 1, at[2 * k + 1] - at[2 * k]);
    }
    return QN_OK;
}

static qn_status encode_chat(const qn_line_options *o, const qn_rendered *r, const qn_answer_spans *spans,
                             qn_train_sequence *out)
{
    size_t n = 0, n_cuts = (size_t)spans->n * 2;
    size_t *cuts = qn_alloc_array(n_cuts, sizeof *cuts), *at = qn_alloc_array(n_cuts, sizeof *at);
    qn_status status = cuts && at ? QN_OK : QN_E_NOMEM;
    for (int64_t k = 0; k < spans->n && status == QN_OK; k++) {
        cuts[2 * k] = spans->spans[k].begin;
        cuts[2 * k + 1] = spans->spans[k].end;
    }
    if (status == QN_OK) status = qn_chat_text_encode(o->text, r, cuts, n_cuts, at, &out->ids, &n);
    out->n = (int64_t)n;
    if (status == QN_OK) status = count_spans(spans, at, o->mask, out);
    qn_free(cuts);
    qn_free(at);
    return status;
}

/* Does a text name one of these tools? Templates that know of them do. */
static int names_tool(const qn_rendered *r, const json_t *tools)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *function = json_object_get(tool, "function"),
                     *name = json_object_get(function ? function : tool, "name");
        const size_t n = json_string_length(name);
        if (n && memmem(r->text, r->n, json_string_value(name), n)) return 1;
    }
    return 0;
}

/* Of the first n_before messages no answer counts. */
static qn_status read_chat(const qn_line_options *o, json_t *messages, const json_t *tools, size_t n_before,
                           qn_train_sequence *out)
{
    qn_rendered r = {0};
    qn_answer_spans spans = {0};
    json_t *request = json_object();
    int failed = !request || json_object_set(request, "messages", messages);
    if (json_array_size(tools)) failed = failed || json_object_set(request, "tools", (json_t *)tools);
    if (o->now) failed = failed || json_object_set_new(request, "now", json_string(o->now));
    qn_status status = failed ? qn_fail_nomem(sizeof *request) : QN_OK;
    if (status == QN_OK) status = qn_chat_text_render_parts(o->text, request, &r);
    out->hides_tools = status == QN_OK && json_array_size(tools) && !names_tool(&r, tools);
    if (status == QN_OK && o->mask != QN_MASK_ALL)
        status = qn_answer_spans_find(o->text, request, n_before, &r, &spans);
    if (status == QN_OK && o->mask != QN_MASK_ALL && !spans.n)
        status = qn_fail(QN_E_ARG, "there is no message of the assistant, so no token counts");
    if (status == QN_OK) status = encode_chat(o, &r, &spans, out);
    if (status == QN_OK && spans.n && out->n_lost == (o->mask == QN_MASK_LAST ? 1 : spans.n))
        status = qn_fail(QN_E_ARG, "the text from the chat template does not show where the answer is");
    qn_answer_spans_free(&spans);
    qn_rendered_free(&r);
    json_decref(request);
    return status;
}

static qn_status read_messages(const qn_line_options *o, const json_t *line, const json_t *tools,
                               qn_train_sequence *out)
{
    json_t *messages = json_array();
    qn_status status = messages ? QN_OK : qn_fail_nomem(sizeof *messages);
    if (status == QN_OK) status = add_messages(messages, json_object_get(line, "messages"), "messages");
    if (status == QN_OK) status = read_chat(o, messages, tools, 0, out);
    json_decref(messages);
    return status;
}

static qn_status read_pair(const qn_line_options *o, const json_t *line, const json_t *tools,
                           qn_train_sequence *out)
{
    const json_t *prompt = json_object_get(line, "prompt"), *completion = json_object_get(line, "completion");
    const int texts = json_is_string(prompt) && json_is_string(completion);
    if (!prompt || !completion)
        return qn_fail(QN_E_ARG, "\"%s\" without \"%s\"", prompt ? "prompt" : "completion",
                       prompt ? "completion" : "prompt");
    if (json_is_string(completion) && !json_string_length(completion))
        return qn_fail(QN_E_ARG, "\"completion\" is empty");
    if (texts && !qn_chat_text_has_template(o->text)) return read_joined(o, prompt, completion, out);
    json_t *messages = json_array();
    qn_status status = messages ? QN_OK : qn_fail_nomem(sizeof *messages);
    if (status == QN_OK) status = add_turns(messages, prompt, "prompt", "user");
    const size_t n_before = json_array_size(messages);
    if (status == QN_OK) status = add_turns(messages, completion, "completion", "assistant");
    if (status == QN_OK) status = read_chat(o, messages, tools, n_before, out);
    json_decref(messages);
    return status;
}

/* ---- ids ---- */

static qn_status read_count(const json_t *value, int64_t i, uint8_t *out)
{
    const int is_one = json_is_true(value) || (json_is_integer(value) && json_integer_value(value) == 1);
    const int is_zero = json_is_false(value) || (json_is_integer(value) && json_integer_value(value) == 0);
    if (!is_one && !is_zero) return qn_fail(QN_E_ARG, "counts[%lld] is neither 0 nor 1", (long long)i);
    *out = (uint8_t)is_one;
    return QN_OK;
}

static qn_status read_ids(const json_t *ids, const json_t *counts, qn_train_sequence *out)
{
    const size_t n = json_array_size(ids);
    if (!json_is_array(ids)) return qn_fail(QN_E_ARG, "\"ids\" is not a list");
    if (counts && (!json_is_array(counts) || json_array_size(counts) != n))
        return qn_fail(QN_E_ARG, "\"counts\" is not a list as long as \"ids\", which has %zu elements", n);
    out->ids = qn_alloc_array(n, sizeof *out->ids);
    out->counts = qn_alloc(n);
    out->n = (int64_t)n;
    if (!out->ids || !out->counts) return QN_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(ids, i);
        const json_int_t value = json_integer_value(id);
        if (!json_is_integer(id) || value < 0 || value > INT32_MAX)
            return qn_fail(QN_E_ARG, "ids[%zu] is not a token id", i);
        out->ids[i] = (int32_t)value;
        out->counts[i] = 1;
        if (counts) QN_TRY(read_count(json_array_get(counts, i), (int64_t)i, &out->counts[i]));
    }
    return QN_OK;
}

/* ---- a line ---- */

static void list_other_keys(const json_t *line, const char *const *known, qn_buf *out)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)line, key, value)
    {
        size_t i = 0;
        while (known[i] && strcmp(key, known[i]) != 0) i++;
        if (!known[i]) qn_buf_append(out, key, strlen(key) + 1);
    }
}

static qn_status read_object(const qn_line_options *o, const json_t *line, qn_train_sequence *out,
                             qn_buf *other_keys)
{
    static const char *const kinds[][4] = {{"messages", "tools", NULL},
                                           {"prompt", "completion", "tools", NULL},
                                           {"ids", "counts", NULL},
                                           {"text", NULL}};
    const json_t *tools = json_object_get(line, "tools");
    int kind = json_object_get(line, "messages") ? 0 : 3;
    if (!json_is_object(line)) return qn_fail(QN_E_ARG, "not an object");
    if (kind && (json_object_get(line, "prompt") || json_object_get(line, "completion"))) kind = 1;
    if (kind == 3 && json_object_get(line, "ids")) kind = 2;
    if (kind == 3 && !json_object_get(line, "text"))
        return qn_fail(QN_E_ARG,
                       "it has none of the keys \"messages\", \"prompt\" and \"completion\", \"text\", "
                       "\"ids\"");
    if (kind < 2 && tools && !json_is_null(tools) && !json_is_array(tools))
        return qn_fail(QN_E_ARG, "\"tools\" is not a list");
    if (other_keys) list_other_keys(line, kinds[kind], other_keys);
    if (kind == 0) return read_messages(o, line, tools, out);
    if (kind == 1) return read_pair(o, line, tools, out);
    if (kind == 2) return read_ids(json_object_get(line, "ids"), json_object_get(line, "counts"), out);
    return read_text(o, json_object_get(line, "text"), out);
}

/* Cuts what is too long, then what follows the last target. */
static qn_status finish(const qn_line_options *o, qn_train_sequence *s)
{
    int64_t last = 0;
    if (s->n) s->counts[0] = 0;
    for (int64_t i = 0; i < s->n; i++)
        if (s->counts[i]) last = i;
    if (!last) return qn_fail(QN_E_ARG, "none of its %lld tokens counts", (long long)s->n);
    for (int64_t i = 0; i <= last && o->vocab_size; i++)
        if (s->ids[i] >= o->vocab_size)
            return qn_fail(QN_E_ARG, "token %lld has the id %d, but the model's vocabulary has %lld tokens",
                           (long long)i, s->ids[i], (long long)o->vocab_size);
    s->n_whole = last + 1;
    s->n = s->n_whole < o->max_length ? s->n_whole : o->max_length;
    last = 0;
    for (int64_t i = 0; i < s->n; i++) {
        s->n_counted += s->counts[i];
        if (s->counts[i]) last = i;
    }
    if (!last)
        return qn_fail(QN_E_ARG, "none of its first %lld tokens counts; it has %lld", (long long)s->n,
                       (long long)s->n_whole);
    s->n = last + 1;
    return QN_OK;
}

qn_status qn_train_sequence_read(const qn_line_options *options, const char *line, size_t n,
                                 qn_train_sequence *out, qn_buf *other_keys)
{
    json_t *object = NULL;
    qn_train_sequence made = {0};
    qn_status status = qn_json_parse_line("the line is not one JSON object", line, n, &object);
    if (status == QN_OK) status = read_object(options, object, &made, other_keys);
    if (status == QN_OK) status = finish(options, &made);
    if (status == QN_OK && other_keys) status = other_keys->status;
    json_decref(object);
    if (status == QN_OK)
        *out = made;
    else
        qn_train_sequence_free(&made);
    return status;
}
