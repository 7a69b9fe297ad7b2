#include "server/core/next_turn/look_ahead.h"

#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"
#include "server/core/conversation.h"
#include "server/core/message.h"
#include "server/core/next_turn/next_turn.h"

typedef struct qn_look_ahead {
    qn_ready ready; /* first: the loop finds it by this */
    qn_job job;
    struct qn_look_ahead *next; /* the next younger one that is pending */
    qn_api_request request;
    qn_buf salt, tenant;
    qn_said said;
    qn_buf said_ids; /* int32_t */
    qn_generation *generation;
    enum { WAITING, OPENING, RUNNING, CLOSING } phase;
    atomic_int is_dropped;
} look_ahead;

/* ---- what the next turn begins with; on a worker ------------------------------------------------------- */

static json_t *last_message(const look_ahead *a)
{
    return json_array_get(a->request.chat, json_array_size(a->request.chat) - 1);
}

/* A message at the end of the conversation; it is taken. NULL: memory is out. */
static qn_status add_message(look_ahead *a, json_t *message)
{
    return json_array_append_new(a->request.chat, message) ? qn_fail_nomem(0) : QN_OK;
}

/* An answer that went on from the last message becomes one with it, and the next turn begins a new message.
 * *begin: what the last message said. */
static qn_status take_continued(look_ahead *a, qn_buf *begin)
{
    const json_t *content = json_object_get(last_message(a), "content");
    const char *role = json_string_value(json_object_get(last_message(a), "role"));
    if (!role || strcmp(role, "assistant") != 0)
        return qn_fail(QN_E_UNSUPPORTED, "the form in which a client returns such a message is not known");
    qn_buf_append(begin, json_string_value(content), json_string_length(content));
    json_array_remove(a->request.chat, json_array_size(a->request.chat) - 1);
    a->request.continue_final = a->request.add_generation_prompt = -1;
    return begin->status;
}

static qn_status add_calls(const look_ahead *a, json_t *message)
{
    qn_buf arguments = {0};
    int failed = !message;
    for (size_t i = 0; i < qn_said_count(&a->said) && !failed; i++) {
        const qn_answer_event e = qn_said_get(&a->said, i);
        if (e.kind != QN_ANSWER_CALL_BEGIN) continue;
        qn_buf_reset(&arguments);
        qn_said_join(&a->said, QN_ANSWER_CALL_ARGUMENTS, e.index, &arguments);
        json_t *id = json_string(e.id), *name = qn_message_text(e.text, e.n),
               *text = qn_message_text(arguments.data, arguments.length);
        failed = !id || !name || !text || arguments.status != QN_OK ||
                 qn_message_add_call(message, id, name, text) != 0;
        json_decref(id);
        json_decref(name);
        json_decref(text);
    }
    qn_buf_free(&arguments);
    return failed ? qn_fail_nomem(0) : QN_OK;
}

static qn_status add_answer(look_ahead *a, int is_continued)
{
    qn_buf content = {0};
    qn_status status = is_continued ? take_continued(a, &content) : QN_OK;
    if (status == QN_OK) {
        qn_said_join(&a->said, QN_ANSWER_CONTENT, 0, &content);
        status = content.status;
    }
    if (status == QN_OK) {
        json_t *message = qn_message_new("assistant", qn_message_text(content.data, content.length));
        status = add_calls(a, message);
        if (status == QN_OK)
            status = add_message(a, message);
        else
            json_decref(message);
    }
    qn_buf_free(&content);
    return status;
}

/* What somebody might say next: the user, or the tool that was called. */
static qn_status add_next(look_ahead *a, const char *content)
{
    json_t *calls = json_object_get(last_message(a), "tool_calls");
    json_t *id = json_object_get(json_array_get(calls, 0), "id");
    json_t *message = qn_message_new(id ? "tool" : "user", qn_message_text(content, strlen(content)));
    if (id && qn_message_set(message, "tool_call_id", json_incref(id))) {
        json_decref(message);
        return qn_fail_nomem(0);
    }
    return add_message(a, message);
}

/* The conversation as it is, or with a next message, which is taken away again. */
static qn_status write_prompt(look_ahead *a, const char *next, qn_chat_prompt *out)
{
    qn_api_error error;
    if (next) QN_TRY(add_next(a, next));
    int refused = qn_chat_prompt_write(a->ready.server, &a->request, out, &error);
    if (next) json_array_remove(a->request.chat, json_array_size(a->request.chat) - 1);
    return refused ? QN_E_ARG : QN_OK;
}

static void notify(void *user)
{
    qn_server_list(user);
}

static qn_status open_generation(look_ahead *a, const int32_t *ids, int64_t n)
{
    const qn_generate_options options = {.adapter = a->request.o.adapter,
                                         .cache_salt = a->salt.data,
                                         .tenant = a->tenant.data,
                                         .notify = notify,
                                         .notify_user = &a->ready};
    return qn_next_turn_open(a->ready.server->model, ids, n, &options, &a->generation);
}

/* The tree knows the tokens that were fed: those asked, and all that were said but perhaps the last. What
 * goes on from there needs no work ahead. */
static int is_known(const look_ahead *a, const int32_t *asked, int64_t n_asked, const int32_t *next,
                    int64_t n)
{
    const int32_t *said = (const int32_t *)(const void *)a->said_ids.data;
    int64_t n_said = (int64_t)(a->said_ids.length / sizeof *said);
    int64_t m = qn_next_turn_common(asked, n_asked, next, n);
    if (m == n_asked) m += qn_next_turn_common(said, n_said, next + m, n - m);
    return m == n || m + 1 >= n_asked + n_said;
}

static void open_job(qn_job *job)
{
    static const char *const contents[2] = QN_NEXT_TURN_CONTENTS;
    look_ahead *a = (look_ahead *)(void *)((char *)job - offsetof(look_ahead, job));
    const qn_model *model = a->ready.server->model;
    qn_chat_prompt chats[3] = {0};
    int32_t *asked = NULL, *next = NULL;
    int64_t n_asked = 0, n = 0;
    qn_status status = atomic_load(&a->is_dropped) ? QN_E_CANCELLED : a->said_ids.status;
    if (status == QN_OK) status = qn_said_status(&a->said);
    if (status == QN_OK) status = write_prompt(a, NULL, &chats[2]);
    if (status == QN_OK) status = qn_chat_render(model, &chats[2].prompt, NULL, &asked, &n_asked);
    if (status == QN_OK) status = add_answer(a, chats[2].prompt.continue_final);
    for (int i = 0; i < 2 && status == QN_OK; i++) status = write_prompt(a, contents[i], &chats[i]);
    if (status == QN_OK)
        status = qn_next_turn_ids(model, (const qn_prompt[2]){chats[0].prompt, chats[1].prompt}, &next, &n);
    if (status == QN_OK && n && !is_known(a, asked, n_asked, next, n)) open_generation(a, next, n);
    for (int i = 0; i < 3; i++) qn_chat_prompt_free(&chats[i]);
    qn_buffer_free(asked);
    qn_buffer_free(next);
}

/* ---- its life; on the loop ----------------------------------------------------------------------------- */

static void close_job(qn_job *job)
{
    look_ahead *a = (look_ahead *)(void *)((char *)job - offsetof(look_ahead, job));
    qn_generation_close(a->generation);
}

static void closed(qn_job *job)
{
    look_ahead *a = (look_ahead *)(void *)((char *)job - offsetof(look_ahead, job));
    qn_server *s = a->ready.server;
    qn_server_look(s); /* it may have been listed just before */
    qn_said_free(&a->said);
    qn_buf_free(&a->said_ids);
    qn_api_request_free(&a->request);
    qn_buf_free(&a->salt);
    qn_buf_free(&a->tenant);
    qn_free(a);
    s->n_look_aheads--;
}

static void take_out(look_ahead *a)
{
    look_ahead **at = &a->ready.server->look_aheads;
    while (*at && *at != a) at = &(*at)->next;
    if (*at) *at = a->next;
}

static void begin_closing(look_ahead *a)
{
    take_out(a);
    a->phase = CLOSING;
    qn_generation_cancel(a->generation);
    a->job = (qn_job){close_job, closed, NULL};
    qn_workers_push(a->ready.server->workers, &a->job);
}

static void look(qn_ready *r)
{
    look_ahead *a = (look_ahead *)(void *)r;
    qn_token token = {.end = QN_END_NONE};
    int is_there = a->phase == RUNNING;
    qn_status status = QN_OK;
    while (is_there && status == QN_OK && token.end == QN_END_NONE)
        status = qn_generation_poll(a->generation, &token, &is_there);
    if (a->phase != RUNNING || (!is_there && status == QN_OK)) return;
    r->server->metrics.n_look_aheads += status == QN_OK && token.end == QN_END_LENGTH;
    begin_closing(a);
}

static void opened(qn_job *job)
{
    look_ahead *a = (look_ahead *)(void *)((char *)job - offsetof(look_ahead, job));
    if (!a->generation || atomic_load(&a->is_dropped)) {
        begin_closing(a);
        return;
    }
    a->phase = RUNNING;
    look(&a->ready);
}

static void drop(look_ahead *a)
{
    take_out(a);
    atomic_store(&a->is_dropped, 1);
    if (a->phase == WAITING || a->phase == RUNNING) begin_closing(a);
}

void qn_look_ahead_drop_all(qn_server *s)
{
    while (s->look_aheads) drop(s->look_aheads);
}

int qn_look_ahead_is_wanted(const qn_completion *c)
{
    return !c->ex->server->options->no_look_ahead && c->request.messages && c->request.cache_prompt &&
           !c->request.n_pictures;
}

void qn_look_ahead_begin(qn_completion *c)
{
    qn_server *s = c->ex->server;
    look_ahead **last = &s->look_aheads, *a;
    int n = 1;
    if (s->http.is_draining ||
        (!qn_said_has(&c->said, QN_ANSWER_CONTENT) && !qn_said_has(&c->said, QN_ANSWER_CALL_BEGIN)))
        return;
    a = qn_calloc(1, sizeof *a);
    if (!a) return;
    a->ready.server = s;
    a->ready.look = look;
    /* Nothing of the completion looks at these any more. */
    a->request = c->request;
    a->salt = c->salt;
    a->tenant = c->tenant;
    a->said = c->said;
    a->said_ids = c->said_ids;
    memset(&c->request, 0, sizeof c->request);
    c->salt = c->tenant = c->said_ids = (qn_buf){0};
    c->said = (qn_said){0};
    a->phase = WAITING;
    s->n_look_aheads++;
    for (; *last; last = &(*last)->next) n++;
    *last = a;
    if (n > QN_LOOK_AHEADS_MAX) drop(s->look_aheads);
}

void qn_look_ahead_start(qn_server *s)
{
    for (look_ahead *a = s->look_aheads; a; a = a->next) {
        if (a->phase != WAITING) continue;
        a->phase = OPENING;
        a->job = (qn_job){open_job, opened, NULL};
        qn_workers_push(s->workers, &a->job);
    }
}
