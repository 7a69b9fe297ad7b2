#include "server/core/count_tokens.h"

#include "base/json/json_write.h"
#include "server/core/completion.h"
#include "server/core/conversation.h"
#include "server/core/tasks/task.h"
#include "server/core/write.h"

static int count(qn_task *t, const qn_dialect *dialect, int64_t *n_tokens)
{
    const qn_server *s = t->ex->server;
    const qn_api_request_limits limits = qn_server_request_limits(s);
    const char *adapter, *name;
    qn_chat_prompt chat = {0};
    int32_t *ids = NULL;
    int refused = dialect->read(t->ex->body.data, t->ex->body.length, &limits, &t->request, &t->error);
    if (!refused) refused = qn_completion_choose_model(s, &t->request, &name, &adapter, &t->error);
    t->request.key = t->ex->key;
    if (!refused && dialect->prepare) refused = dialect->prepare(s, &t->request, &t->error);
    if (!refused) refused = dialect->read_messages(&t->request, &t->error);
    if (!refused) refused = qn_api_request_hold_texts(&t->request, t->request.chat, &t->error);
    if (!refused) refused = qn_chat_prompt_write(s, &t->request, &chat, &t->error);
    if (!refused) {
        const qn_status status = qn_chat_render(s->model, &chat.prompt, NULL, &ids, n_tokens);
        if (status != QN_OK) refused = qn_api_fail_status(&t->error, status);
    }
    qn_buffer_free(ids);
    qn_chat_prompt_free(&chat);
    return refused;
}

static void run(qn_task *t)
{
    const qn_count_route *route = t->dialect;
    int64_t n_tokens = 0;
    if (count(t, route->dialect, &n_tokens)) return;
    qn_json_open(&t->answer, '{');
    if (route->object) qn_json_put_text(&t->answer, "object", route->object);
    qn_json_put_int(&t->answer, "input_tokens", n_tokens);
    qn_write_warnings(&t->request, &t->answer);
    qn_json_close(&t->answer, '}');
}

void qn_count_tokens_begin(qn_exchange *ex, const qn_count_route *route)
{
    qn_task_begin(ex, run, route, 0);
}
