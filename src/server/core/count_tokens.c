#include "server/core/count_tokens.h"

#include "base/mem.h"
#include "server/core/completion.h"
#include "server/core/conversation.h"

typedef struct {
    qn_job job;
    qn_exchange *ex;
    const qn_dialect *dialect;
    qn_count_write_fn *write;
    qn_api_request request;
    qn_api_error error;
    qn_buf answer;
} counting;

static int count(counting *k, int64_t *n_tokens)
{
    const qn_server *s = k->ex->server;
    const qn_api_request_limits limits = qn_server_request_limits(s);
    const char *adapter, *name;
    qn_chat_prompt chat = {0};
    int32_t *ids = NULL;
    int refused = k->dialect->read(k->ex->body.data, k->ex->body.length, &limits, &k->request, &k->error);
    if (!refused) refused = qn_completion_choose_model(s, &k->request, &name, &adapter, &k->error);
    if (!refused) refused = k->dialect->read_messages(&k->request, &k->error);
    if (!refused) refused = qn_chat_prompt_write(s, &k->request, &chat, &k->error);
    if (!refused) {
        const qn_status status = qn_chat_render(s->model, &chat.prompt, NULL, &ids, n_tokens);
        if (status != QN_OK) refused = qn_api_fail_status(&k->error, status);
    }
    qn_buffer_free(ids);
    qn_chat_prompt_free(&chat);
    return refused;
}

static void run(qn_job *job)
{
    counting *k = (counting *)(void *)job;
    int64_t n_tokens = 0;
    if (count(k, &n_tokens)) return;
    k->write(&k->request, n_tokens, &k->answer);
    if (k->answer.status == QN_OK) k->answer.status = k->request.warnings.status;
    if (k->answer.status != QN_OK) qn_api_fail_status(&k->error, k->answer.status);
}

static void done(qn_job *job)
{
    counting *k = (counting *)(void *)job;
    if (k->error.status)
        qn_exchange_fail(k->ex, &k->error);
    else
        qn_exchange_reply(k->ex, 200, "application/json", NULL, k->answer.data, k->answer.length);
    qn_exchange_release(k->ex);
}

static void free_counting(qn_exchange *ex)
{
    counting *k = ex->state;
    qn_api_request_free(&k->request);
    qn_buf_free(&k->answer);
    qn_free(k);
}

void qn_count_tokens_begin(qn_exchange *ex, const qn_dialect *dialect, qn_count_write_fn *write)
{
    qn_api_error error;
    counting *k = qn_calloc(1, sizeof *k);
    if (!k) {
        qn_api_fail_status(&error, QN_E_NOMEM);
        qn_exchange_fail(ex, &error);
        return;
    }
    k->job = (qn_job){run, done, NULL};
    k->ex = ex;
    k->dialect = dialect;
    k->write = write;
    ex->state = k;
    ex->free_state = free_counting;
    qn_exchange_hold(ex);
    qn_workers_push(ex->server->workers, &k->job);
}
