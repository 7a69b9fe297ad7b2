#include "train/data/dataset_line.h"

#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "train/data/answer_spans.h"
#include "train/data/shown.h"

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
        status =
            qn_json_parse_exact("arguments", json_string_value(text), json_string_length(text), &arguments);
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

/* The messages of a line, and of each whether it is to be read only. */
typedef struct {
    json_t *messages;
    qn_buf silent;      /* [messages] 1: read only */
    qn_buf *other_keys; /* NULL: nobody asks */
} line_chat;

static int is_number(const json_t *value, double number)
{
    return json_is_number(value) && json_number_value(value) == number;
}

/* Takes the keys that say whether a message counts out of its copy. */
static qn_status take_weight(line_chat *chat, json_t *copy, const char *list, size_t i)
{
    static const char *const keys[] = {"weight", "train", "training"};
    const int is_answer = strcmp(json_string_value(json_object_get(copy, "role")), "assistant") == 0;
    char silent = 0;
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        const json_t *value = json_object_get(copy, keys[k]);
        if (!value) continue;
        const int no = json_is_false(value) || is_number(value, 0),
                  yes = json_is_true(value) || is_number(value, 1);
        if (!no && !yes && !json_is_null(value))
            return qn_fail(QN_E_ARG, "%s[%zu].%s is neither 0 nor 1", list, i, keys[k]);
        if (yes && !is_answer && chat->other_keys) {
            qn_buf_printf(chat->other_keys, "%s[].%s of another role", list, keys[k]);
            qn_buf_putc(chat->other_keys, 0);
        }
        silent |= (char)no;
        json_object_del(copy, keys[k]);
    }
    qn_buf_putc(&chat->silent, silent);
    return chat->silent.status;
}

/* Parts become one text, so their other keys reach no template. */
static void note_part_keys(line_chat *chat, const json_t *message, const char *list)
{
    const json_t *content = json_object_get(message, "content");
    const char *key;
    json_t *part, *value;
    size_t i;
    json_array_foreach((json_t *)content, i, part) json_object_foreach(part, key, value)
    {
        if (!chat->other_keys || strcmp(key, "type") == 0 || strcmp(key, "text") == 0) continue;
        qn_buf_printf(chat->other_keys, "%s[].content[].%s", list, key);
        qn_buf_putc(chat->other_keys, 0);
    }
}

/* Message i of a list in the form that the server gives to templates; adds a new one to the chat. */
static qn_status add_message(line_chat *chat, const json_t *message, const char *list, size_t i)
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
    if (status == QN_OK) status = take_weight(chat, copy, list, i);
    if (status == QN_OK && json_array_append(chat->messages, copy)) status = qn_fail_nomem(sizeof *copy);
    note_part_keys(chat, message, list);
    json_decref(copy);
    return status;
}

/* Checked messages behind those of a chat. */
static qn_status add_messages(line_chat *chat, const json_t *messages, const char *list)
{
    QN_TRY(check_messages(messages, list));
    for (size_t i = 0; i < json_array_size(messages); i++)
        QN_TRY(add_message(chat, json_array_get(messages, i), list, i));
    return QN_OK;
}

/* Messages, or a text that is one of them. */
static qn_status add_turns(line_chat *chat, const json_t *value, const char *list, const char *role)
{
    if (!json_is_string(value)) return add_messages(chat, value, list);
    json_t *message = json_object(), *name = json_string(role);
    int failed = !message || !name || json_object_set(message, "role", name) ||
                 json_object_set(message, "content", (json_t *)value) ||
                 json_array_append(chat->messages, message);
    json_decref(name);
    json_decref(message);
    qn_buf_putc(&chat->silent, 0);
    return failed ? qn_fail_nomem(sizeof *message) : chat->silent.status;
}

static qn_status open_line_chat(line_chat *chat, qn_buf *other_keys)
{
    *chat = (line_chat){.messages = json_array(), .other_keys = other_keys};
    return chat->messages ? QN_OK : qn_fail_nomem(sizeof *chat->messages);
}

static void close_line_chat(line_chat *chat)
{
    json_decref(chat->messages);
    qn_buf_free(&chat->silent);
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
    out->n_endless = eos < 0;
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

/* An answer of a chat. */
typedef struct {
    size_t message;
    int silent;   /* it is read only */
    int is_empty; /* the template writes nothing of it */
} answer;

/* A chat on its way to ids. */
typedef struct {
    const qn_line_options *o;
    const line_chat *chat;
    json_t *request;
    size_t n_before; /* of the messages before this one no answer counts */
    qn_rendered r;
    qn_answer_spans spans;
    answer *answers; /* [n_answers] as the spans, if there are any */
    size_t n_answers;
    int any_silent;
} rendering;

static int ends_turn(const qn_tokenizer *t, int32_t id)
{
    size_t n[2];
    const int32_t *ids[2] = {qn_tokenizer_turn_end_ids(t, &n[0]), qn_tokenizer_eos_ids(t, &n[1])};
    for (int list = 0; list < 2; list++)
        for (size_t i = 0; i < n[list]; i++)
            if (ids[list][i] == id) return 1;
    return 0;
}

/* Counts of a chat's ids: at[2 k] and at[2 k + 1] are where span k begins and ends. */
static qn_status count_spans(const rendering *x, const size_t *at, qn_train_sequence *out)
{
    const qn_tokenizer *t = qn_chat_text_tokenizer(x->o->text);
    const qn_mask mask = x->o->mask;
    out->counts = qn_calloc((size_t)out->n, 1);
    if (!out->counts) return QN_E_NOMEM;
    if (mask == QN_MASK_ALL) memset(out->counts, 1, (size_t)out->n);
    for (int64_t k = 0; k < x->spans.n; k++) {
        const answer *a = &x->answers[k];
        const size_t n = at[2 * k + 1] - at[2 * k];
        const int is_lost = x->spans.spans[k].begin == x->spans.spans[k].end;
        if (mask == QN_MASK_LAST && k + 1 < x->spans.n) continue;
        if (a->silent && is_lost && mask == QN_MASK_ALL)
            return qn_fail(QN_E_ARG,
                           "the text from the chat template does not show where messages[%zu] is, which must "
                           "not count",
                           a->message);
        if (a->silent || a->is_empty) {
            out->n_empty += !a->silent;
            memset(out->counts + at[2 * k], 0, n);
            continue;
        }
        if (mask == QN_MASK_ALL) continue;
        out->n_lost += is_lost;
        out->n_endless += n && !ends_turn(t, out->ids[at[2 * k + 1] - 1]);
        memset(out->counts + at[2 * k], 1, n);
    }
    if (mask != QN_MASK_ALL) return QN_OK;
    int64_t i = 0;
    while (i < out->n && !ends_turn(t, out->ids[i])) i++;
    out->n_endless = i == out->n;
    return QN_OK;
}

static qn_status encode_chat(const rendering *x, qn_train_sequence *out)
{
    size_t n = 0, n_cuts = (size_t)x->spans.n * 2;
    size_t *cuts = qn_alloc_array(n_cuts, sizeof *cuts), *at = qn_alloc_array(n_cuts, sizeof *at);
    qn_status status = cuts && at ? QN_OK : QN_E_NOMEM;
    for (int64_t k = 0; k < x->spans.n && status == QN_OK; k++) {
        cuts[2 * k] = x->spans.spans[k].begin;
        cuts[2 * k + 1] = x->spans.spans[k].end;
    }
    if (status == QN_OK) status = qn_chat_text_encode(x->o->text, &x->r, cuts, n_cuts, at, &out->ids, &n);
    out->n = (int64_t)n;
    if (status == QN_OK) status = count_spans(x, at, out);
    qn_free(cuts);
    qn_free(at);
    return status;
}

static qn_status list_answers(rendering *x)
{
    const size_t n = json_array_size(x->chat->messages);
    x->answers = qn_calloc(n, sizeof *x->answers);
    if (!x->answers) return QN_E_NOMEM;
    for (size_t i = x->n_before; i < n; i++) {
        const json_t *message = json_array_get(x->chat->messages, i);
        if (strcmp(json_string_value(json_object_get(message, "role")), "assistant") != 0) continue;
        const int silent = x->chat->silent.data[i];
        x->answers[x->n_answers++] = (answer){.message = i, .silent = silent};
        x->any_silent |= silent;
    }
    return QN_OK;
}

/* 1: bytes of the span come from what the messages say. */
static int has_words(const qn_rendered *r, const qn_answer_span *s)
{
    for (size_t i = 0; i < r->n_segments && r->segments[i].offset < s->end; i++)
        if (!r->segments[i].trusted && r->segments[i].offset + r->segments[i].n > s->begin) return 1;
    return 0;
}

/* Answers of which nothing is in the text would teach to answer with nothing. */
static qn_status find_empty(rendering *x, qn_train_sequence *out)
{
    enum { WORK_MAX = 1 << 28 };
    const qn_shown shown = {x->o->text, x->request, &x->r};
    size_t work = 0;
    for (size_t k = 0; k < x->n_answers; k++) {
        answer *a = &x->answers[k];
        const json_t *message = json_array_get(x->chat->messages, a->message);
        const int is_last = k + 1 == x->n_answers;
        int calls_shown = 1;
        if (a->silent || (x->o->mask == QN_MASK_LAST && !is_last)) continue;
        if (json_array_size(json_object_get(message, "tool_calls"))) {
            work += x->r.n + json_array_size(x->chat->messages);
            if (work > WORK_MAX)
                return qn_fail(QN_E_FULL, "a chat of %zu bytes with so many tool calls is too long", x->r.n);
            QN_TRY(qn_shown_calls(&shown, a->message, &calls_shown));
            out->n_hidden_calls += !calls_shown;
        }
        const int says = json_string_length(json_object_get(message, "content")) ||
                         json_string_length(json_object_get(message, "reasoning_content"));
        a->is_empty = !calls_shown && !says;
        if (k < (size_t)x->spans.n && x->spans.spans[k].begin < x->spans.spans[k].end)
            a->is_empty |= !has_words(&x->r, &x->spans.spans[k]);
    }
    return QN_OK;
}

/* What the template leaves out. */
static qn_status find_unused(const rendering *x, const json_t *tools, qn_train_sequence *out)
{
    static const char *const known[] = {"role", "content", "tool_calls", NULL};
    const qn_shown shown = {x->o->text, x->request, &x->r};
    int tools_shown = 1;
    if (json_array_size(tools)) QN_TRY(qn_shown_tools(&shown, &tools_shown));
    out->hides_tools = !tools_shown;
    return x->chat->other_keys ? qn_shown_unused_keys(&shown, known, x->chat->other_keys) : QN_OK;
}

/* That some answer counts. */
static qn_status check_answers(const rendering *x, const qn_train_sequence *s)
{
    const size_t n = x->n_answers, first = x->o->mask == QN_MASK_LAST && n ? n - 1 : 0;
    size_t n_silent = 0, n_empty = 0;
    if (x->o->mask == QN_MASK_ALL) return QN_OK;
    for (size_t k = first; k < n; k++) {
        n_silent += x->answers[k].silent != 0;
        n_empty += !x->answers[k].silent && x->answers[k].is_empty;
    }
    if (n_silent == n - first)
        return qn_fail(QN_E_ARG, "%s, so no token counts",
                       n - first == 1 ? "the answer has weight 0" : "all answers have weight 0");
    if (n_silent + n_empty == n - first)
        return qn_fail(QN_E_ARG, "the chat template writes nothing of messages[%zu], so no token counts",
                       x->answers[n - 1].message);
    if (s->n_lost && (size_t)s->n_lost + n_silent + n_empty == n - first)
        return qn_fail(QN_E_ARG, "the text from the chat template does not show where the answer is");
    return QN_OK;
}

static qn_status read_rendered(rendering *x, const json_t *tools, qn_train_sequence *out)
{
    const int all = x->o->mask == QN_MASK_ALL;
    QN_TRY(qn_chat_text_render_parts(x->o->text, x->request, &x->r));
    QN_TRY(list_answers(x));
    QN_TRY(find_unused(x, tools, out));
    if (!all && !x->n_answers)
        return qn_fail(QN_E_ARG, "there is no message of the assistant, so no token counts");
    if (!all || x->any_silent)
        QN_TRY(qn_answer_spans_find(x->o->text, x->request, x->n_before, &x->r, &x->spans));
    QN_TRY(find_empty(x, out));
    QN_TRY(encode_chat(x, out));
    return check_answers(x, out);
}

/* Of the first n_before messages no answer counts. */
static qn_status read_chat(const qn_line_options *o, const line_chat *chat, const json_t *tools,
                           size_t n_before, qn_train_sequence *out)
{
    rendering x = {.o = o, .chat = chat, .n_before = n_before, .request = json_object()};
    int failed = !x.request || json_object_set(x.request, "messages", chat->messages);
    if (json_array_size(tools)) failed = failed || json_object_set(x.request, "tools", (json_t *)tools);
    if (o->now) failed = failed || json_object_set_new(x.request, "now", json_string(o->now));
    qn_status status = failed ? qn_fail_nomem(sizeof *x.request) : read_rendered(&x, tools, out);
    qn_answer_spans_free(&x.spans);
    qn_rendered_free(&x.r);
    qn_free(x.answers);
    json_decref(x.request);
    return status;
}

static qn_status read_messages(const qn_line_options *o, const json_t *line, const json_t *tools,
                               qn_train_sequence *out, qn_buf *other_keys)
{
    line_chat chat;
    qn_status status = open_line_chat(&chat, other_keys);
    if (status == QN_OK) status = add_messages(&chat, json_object_get(line, "messages"), "messages");
    if (status == QN_OK) status = read_chat(o, &chat, tools, 0, out);
    close_line_chat(&chat);
    return status;
}

static qn_status read_pair(const qn_line_options *o, const json_t *line, const json_t *tools,
                           qn_train_sequence *out, qn_buf *other_keys)
{
    const json_t *prompt = json_object_get(line, "prompt"), *completion = json_object_get(line, "completion");
    const int texts = json_is_string(prompt) && json_is_string(completion);
    if (!prompt || !completion)
        return qn_fail(QN_E_ARG, "\"%s\" without \"%s\"", prompt ? "prompt" : "completion",
                       prompt ? "completion" : "prompt");
    if (json_is_string(completion) && !json_string_length(completion))
        return qn_fail(QN_E_ARG, "\"completion\" is empty");
    if (texts && !qn_chat_text_has_template(o->text)) return read_joined(o, prompt, completion, out);
    line_chat chat;
    qn_status status = open_line_chat(&chat, other_keys);
    if (status == QN_OK) status = add_turns(&chat, prompt, "prompt", "user");
    const size_t n_before = json_array_size(chat.messages);
    if (status == QN_OK) status = add_turns(&chat, completion, "completion", "assistant");
    if (status == QN_OK) status = read_chat(o, &chat, tools, n_before, out);
    close_line_chat(&chat);
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
    if (kind == 0) return read_messages(o, line, tools, out, other_keys);
    if (kind == 1) return read_pair(o, line, tools, out, other_keys);
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
