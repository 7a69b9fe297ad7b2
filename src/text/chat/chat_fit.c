#include "text/chat/chat_fit.h"

#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "text/chat/chat_draft.h"
#include "text/tools/tool_writer.h"

static const char *role_of(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    return role ? role : "";
}

static int is_role(const json_t *message, const char *role)
{
    return strcmp(role_of(message), role) == 0;
}

/* ---- what is unusual ----------------------------------------------------------------------------------- */

/* What a conversation has, and so which changes can help it. */
typedef struct {
    size_t n_messages, n_system, n_bad_arguments;
    int has_late_system; /* one that is not the first message */
    int has_calls;       /* or results */
    int has_parallel_calls;
    int has_neighbours; /* of one role, but for results; a system message between them does not count */
    int lacks_question; /* its first message but for the system's is none of the user */
} shape;

static shape shape_of(const json_t *messages)
{
    shape s = {.n_messages = json_array_size(messages), .lacks_question = 1};
    const json_t *before = NULL;
    for (size_t i = 0; i < s.n_messages; i++) {
        const json_t *message = json_array_get(messages, i);
        if (is_role(message, "system") || is_role(message, "developer")) {
            s.n_system++;
            s.has_late_system |= i > 0;
            continue;
        }
        if (is_role(message, "tool") || is_role(message, "function") ||
            json_array_size(json_object_get(message, "tool_calls")) ||
            json_is_object(json_object_get(message, "function_call")))
            s.has_calls = 1;
        s.has_parallel_calls |= json_array_size(json_object_get(message, "tool_calls")) > 1;
        if (!before) s.lacks_question = !is_role(message, "user");
        s.has_neighbours |= before && is_role(message, role_of(before)) && !is_role(message, "tool");
        before = message;
    }
    return s;
}

int qn_chat_fit_is_needed(const json_t *messages, const qn_chat_traits *traits, int with_tools,
                          int continue_final)
{
    const shape s = shape_of(messages);
    return continue_final || s.has_late_system || s.has_calls || s.has_neighbours || s.lacks_question ||
           (s.n_system && (with_tools || !traits->shows_system)) ||
           is_role(json_array_get(messages, s.n_messages - 1), "assistant");
}

/* ---- changes ------------------------------------------------------------------------------------------- */

static int has_calls(const shape *s, const qn_chat_traits *t)
{
    return s->has_calls;
}

static int has_writable_calls(const shape *s, const qn_chat_traits *t)
{
    return s->has_calls && t->calls;
}

static int has_bad_arguments(const shape *s, const qn_chat_traits *t)
{
    return s->n_bad_arguments > 0;
}

static int has_parallel_calls(const shape *s, const qn_chat_traits *t)
{
    return s->has_parallel_calls;
}

static int has_late_system(const shape *s, const qn_chat_traits *t)
{
    return s->has_late_system;
}

static int has_system(const shape *s, const qn_chat_traits *t)
{
    return s->n_system > 0;
}

static int has_neighbours(const shape *s, const qn_chat_traits *t)
{
    return s->has_neighbours;
}

/* In the order in which they are tried, each in addition to those before; those that were not needed are
 * left out again. */
static const struct {
    unsigned step;
    int (*can_help)(const shape *s, const qn_chat_traits *t);
    const char *note; /* of the param "messages"; NULL: there is one for each call */
} changes[] = {
    {QN_CHAT_MAP_IDS, has_calls,
     "ids of tool calls were replaced: the model's chat template refuses them as they are"},
    {QN_CHAT_EMPTY_ARGUMENTS, has_bad_arguments, NULL},
    {QN_CHAT_SPLIT_CALLS, has_parallel_calls,
     "parallel calls were put one after the other, each with its result: the model's chat template takes one "
     "call per message"},
    {QN_CHAT_WRITE_CALLS, has_writable_calls,
     "the tool calls were written into the text of the answers, as the model writes them: the model's chat "
     "template shows no tool calls"},
    {QN_CHAT_JOIN_SYSTEM, has_late_system,
     "the system messages were joined into one at the beginning: the model's chat template does not take "
     "them where they are"},
    {QN_CHAT_SYSTEM_TO_USER, has_system,
     "the system message was moved to the start of the first user message: the model's chat template does "
     "not take system messages"},
    {QN_CHAT_JOIN_NEIGHBOURS, has_neighbours,
     "consecutive messages of one role were joined: the model's chat template does not take such messages"},
};
enum { N_CHANGES = sizeof changes / sizeof *changes };

static const char is_text[] = "the arguments are not a JSON object: the model sees them as text";
static const char is_emptied[] =
    "the arguments are not a JSON object, which the model's chat template needs: an empty object was used "
    "instead";
static const char is_left_out[] = "is not shown: the model's chat template shows only the message's "
                                  "tool_calls";
static const char are_more[] = "has further parts that the model's chat template does not take as they are";

/* ---- trying -------------------------------------------------------------------------------------------- */

typedef struct {
    const json_t *messages;
    const qn_chat_traits *traits;
    const qn_chat_renderer *renderer;
    int continue_final;
    shape shape;
} fitting;

/* What became of one try. */
typedef struct {
    int fits;
    int is_refused; /* by the template: the sentence is the thread's last error */
    qn_chat_mark missing;
} outcome;

static qn_chat_changes changes_of(const fitting *f, unsigned steps)
{
    return (qn_chat_changes){steps, f->traits->ids, f->traits->calls, f->traits->text_arguments};
}

static int has_shown_call(const qn_chat_marks *m, size_t i)
{
    for (size_t k = i + 1; k < m->n && m->marks[k].message == m->marks[i].message; k++)
        if (m->marks[k].call >= 0) return m->marks[k].is_shown;
    return 0;
}

/* A content beside calls may be missing; that is only told. */
static int is_missing(const qn_chat_marks *m, size_t i)
{
    return !m->marks[i].is_shown && !(m->marks[i].call < 0 && has_shown_call(m, i));
}

/* Renders with words in the place of texts; *marks says which of them came out. */
static qn_status try(const fitting *f, unsigned steps, qn_chat_marks *marks, outcome *out)
{
    const qn_chat_changes c = changes_of(f, steps);
    qn_chat_draft draft;
    qn_buf text = {0};
    *out = (outcome){.fits = 1};
    *marks = (qn_chat_marks){0};
    qn_status status = qn_chat_draft_make(f->messages, &c, &draft);
    if (status == QN_OK) status = qn_chat_draft_mark(&draft, marks);
    if (status == QN_OK) status = qn_chat_draft_finish(&draft, &c);
    if (status == QN_OK) {
        status = f->renderer->render(f->renderer->user, draft.messages, f->continue_final, &text);
        if (status == QN_OK) status = text.status;
        if (status == QN_OK) {
            qn_chat_marks_find(marks, text.data ? text.data : "", text.length);
        } else if (status != QN_E_NOMEM) {
            /* Other failures, such as a spent budget, say nothing about the conversation. */
            out->is_refused = status == QN_E_ARG;
            out->fits = !out->is_refused;
            for (size_t i = 0; i < marks->n; i++) marks->marks[i].is_shown = 1;
            status = QN_OK;
        }
    }
    for (size_t i = 0; i < marks->n && out->fits && status == QN_OK; i++) {
        out->fits = !is_missing(marks, i);
        out->missing = marks->marks[i];
    }
    qn_chat_draft_free(&draft);
    qn_buf_free(&text);
    return status;
}

/* ---- what is told -------------------------------------------------------------------------------------- */

static void note(qn_chat_fitted *out, const char *message, size_t i, const char *part, int64_t k)
{
    if (out->n_notes == QN_CHAT_NOTES_MAX) return;
    const int is_last = out->n_notes + 1 == QN_CHAT_NOTES_MAX;
    qn_chat_note *n = &out->notes[out->n_notes++];
    n->message = is_last ? are_more : message;
    if (is_last || !part)
        snprintf(n->param, sizeof n->param, "messages");
    else if (k < 0)
        snprintf(n->param, sizeof n->param, "messages[%zu].%s", i, part);
    else
        snprintf(n->param, sizeof n->param, "messages[%zu].%s[%lld]", i, part, (long long)k);
}

static qn_status note_bad_arguments(const fitting *f, unsigned steps, qn_chat_fitted *out)
{
    for (size_t i = 0; f->shape.n_bad_arguments && i < f->shape.n_messages; i++) {
        const json_t *calls = json_object_get(json_array_get(f->messages, i), "tool_calls");
        for (size_t k = 0; k < json_array_size(calls); k++) {
            int is_bad = 0;
            QN_TRY(qn_chat_call_is_bad(json_array_get(calls, k), &is_bad));
            if (is_bad)
                note(out, steps & QN_CHAT_EMPTY_ARGUMENTS ? is_emptied : is_text, i, "tool_calls",
                     (int64_t)k);
        }
    }
    return QN_OK;
}

static qn_status take(const fitting *f, unsigned steps, const qn_chat_marks *marks, qn_chat_fitted *out)
{
    const qn_chat_changes c = changes_of(f, steps);
    qn_chat_draft draft;
    for (size_t i = 0; i < N_CHANGES; i++)
        if ((steps & changes[i].step) && changes[i].note) note(out, changes[i].note, 0, NULL, -1);
    for (size_t i = 0; i < marks->n; i++)
        if (!marks->marks[i].is_shown) note(out, is_left_out, marks->marks[i].message, "content", -1);
    QN_TRY(note_bad_arguments(f, steps, out));
    qn_status status = qn_chat_draft_make(f->messages, &c, &draft);
    if (status == QN_OK) status = qn_chat_draft_finish(&draft, &c);
    if (status == QN_OK) out->messages = json_incref(draft.messages);
    qn_chat_draft_free(&draft);
    return status;
}

static qn_status fail_missing(const fitting *f, const qn_chat_mark *missing, qn_chat_fitted *out)
{
    const json_t *message = json_array_get(f->messages, missing->message);
    const int is_call = missing->call >= 0;
    int n = snprintf(out->param, sizeof out->param, "messages[%zu]", missing->message);
    if (is_call)
        snprintf(out->param + n, sizeof out->param - (size_t)n, ".tool_calls[%lld]",
                 (long long)missing->call);
    return qn_fail(QN_E_ARG, "%s: the model's chat template does not show %s", out->param,
                   is_call                      ? "tool calls"
                   : is_role(message, "tool")   ? "tool results"
                   : is_role(message, "system") ? "this system message"
                                                : "this message");
}

/* What is wrong with the last message alone is told of it. */
static qn_status fail_refused(const fitting *f, const char *sentence, qn_chat_fitted *out)
{
    fitting other = *f;
    qn_chat_marks marks = {0};
    outcome found = {0};
    qn_status status = QN_OK;
    other.continue_final = 0;
    if (f->continue_final) status = try(&other, 0, &marks, &found);
    qn_chat_marks_free(&marks);
    if (status != QN_OK) return status;
    if (found.fits)
        snprintf(out->param, sizeof out->param, "messages[%zu]", f->shape.n_messages - 1);
    else
        snprintf(out->param, sizeof out->param, "messages");
    return qn_fail(QN_E_ARG, "%s", sentence);
}

/* ---- fitting ------------------------------------------------------------------------------------------- */

static qn_status count_bad_arguments(fitting *f)
{
    for (size_t i = 0; f->shape.has_calls && i < f->shape.n_messages; i++) {
        const json_t *calls = json_object_get(json_array_get(f->messages, i), "tool_calls");
        for (size_t k = 0; k < json_array_size(calls); k++) {
            int is_bad = 0;
            QN_TRY(qn_chat_call_is_bad(json_array_get(calls, k), &is_bad));
            f->shape.n_bad_arguments += (size_t)is_bad;
        }
    }
    return QN_OK;
}

/* Leaves changes out that are not needed, the later ones first: they change more. The last, n - 1, was needed
 * by the others. *marks are those of the steps that stay. */
static qn_status leave_out(const fitting *f, size_t n, unsigned *steps, qn_chat_marks *marks)
{
    for (size_t i = n ? n - 1 : 0; i-- > 0;) {
        const unsigned fewer = *steps & ~changes[i].step;
        qn_chat_marks others;
        outcome found;
        if (fewer == *steps) continue;
        qn_status status = try(f, fewer, &others, &found);
        if (status == QN_OK && found.fits) {
            qn_chat_marks swapped = *marks;
            *marks = others;
            others = swapped;
            *steps = fewer;
        }
        qn_chat_marks_free(&others);
        QN_TRY(status);
    }
    return QN_OK;
}

static qn_status find_steps(const fitting *f, unsigned *steps, qn_chat_marks *marks, qn_chat_fitted *out)
{
    outcome first, last;
    char refusal[QN_ERROR_TEXT_MAX] = "";
    QN_TRY(try(f, 0, marks, &first));
    if (first.is_refused) snprintf(refusal, sizeof refusal, "%s", qn_last_error());
    last = first;
    size_t n = 0;
    for (; n < N_CHANGES && !last.fits; n++) {
        if (!changes[n].can_help(&f->shape, f->traits)) continue;
        *steps |= changes[n].step;
        qn_chat_marks_free(marks);
        QN_TRY(try(f, *steps, marks, &last));
    }
    if (last.fits) return leave_out(f, n, steps, marks);
    if (!first.is_refused) return fail_missing(f, &first.missing, out);
    if (!last.is_refused) return fail_missing(f, &last.missing, out);
    return fail_refused(f, refusal, out);
}

qn_status qn_chat_fit(const json_t *messages, const qn_chat_traits *traits, int continue_final,
                      const qn_chat_renderer *renderer, qn_chat_fitted *out)
{
    fitting f = {messages, traits, renderer, continue_final, shape_of(messages)};
    qn_chat_marks marks = {0};
    unsigned steps = 0;
    *out = (qn_chat_fitted){0};
    QN_TRY(count_bad_arguments(&f));
    qn_status status = find_steps(&f, &steps, &marks, out);
    if (status == QN_OK) status = take(&f, steps, &marks, out);
    qn_chat_marks_free(&marks);
    return status;
}

void qn_chat_fitted_free(qn_chat_fitted *f)
{
    json_decref(f->messages);
    f->messages = NULL;
}

/* ---- traits -------------------------------------------------------------------------------------------- */

const char qn_chat_probe_tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"probe\",\"description\":\"probes\",\"parameters\":{"
    "\"type\":\"object\",\"properties\":{\"word\":{\"type\":\"string\",\"description\":\"a word\"}},"
    "\"required\":[\"word\"]}}}]";

static const char system_talk[] = "[{\"role\":\"system\",\"content\":\"s\"},"
                                  "{\"role\":\"user\",\"content\":\"u\"}]";
/* The id goes in twice. */
static const char tool_talk[] =
    "[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{"
    "\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":\"probe\",\"arguments\":\"{\\\"word\\\":"
    "\\\"w\\\"}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"%s\",\"name\":\"probe\",\"content\":\"r\"}]";

static qn_status probe(const qn_chat_renderer *renderer, const qn_chat_traits *traits, const char *talk,
                       int *fits)
{
    fitting f = {.traits = traits, .renderer = renderer};
    qn_chat_marks marks = {0};
    outcome found = {0};
    json_t *messages = NULL;
    QN_TRY(qn_json_parse("a probe", talk, strlen(talk), &messages));
    f.messages = messages;
    qn_status status = try(&f, 0, &marks, &found);
    *fits = found.fits;
    qn_chat_marks_free(&marks);
    json_decref(messages);
    return status;
}

qn_status qn_chat_traits_find(const qn_chat_renderer *plain, const qn_chat_renderer *with_tools,
                              qn_answer_format format, qn_chat_traits *out)
{
    int shown[2] = {0}, found = 0;
    *out = (qn_chat_traits){0};
    QN_TRY(probe(plain, out, system_talk, &shown[0]));
    QN_TRY(probe(with_tools, out, system_talk, &shown[1]));
    for (int as_text = 0; as_text < 2 && !found; as_text++)
        for (int form = 0; form < QN_CALL_ID_FORMS && !found; form++) {
            const qn_chat_traits t = {.ids = (qn_call_id_form)form, .text_arguments = as_text};
            char id[QN_CALL_ID_BYTES_MAX], talk[sizeof tool_talk + 2 * sizeof id];
            qn_call_id_write(t.ids, 0, 0, 0, id);
            snprintf(talk, sizeof talk, tool_talk, id, id);
            QN_TRY(probe(with_tools, &t, talk, &found));
            if (found) *out = t;
        }
    if (qn_tool_writer_knows(format.calls)) out->calls = format.calls;
    out->shows_system = shown[0] && shown[1];
    return QN_OK;
}
