/* POST /prompt-cache: a worker saves what the model has computed of prompts, as the server does at its end. */
#include "base/mem.h"
#include "server/core/state.h"
#include "server/routes.h"

typedef struct {
    qn_job job;
    qn_exchange *ex;
    qn_api_error error;
} saving;

static void run(qn_job *job)
{
    saving *v = (saving *)(void *)job;
    const qn_server *s = v->ex->server;
    const qn_status status = s->options->save(s->options->user, s->model);
    if (status != QN_OK) qn_api_fail_status(&v->error, status);
}

static void done(qn_job *job)
{
    static const char saved[] = "{\"status\":\"saved\"}";
    saving *v = (saving *)(void *)job;
    if (v->error.status)
        qn_exchange_fail(v->ex, &v->error);
    else
        qn_exchange_reply(v->ex, 200, "application/json", NULL, saved, sizeof saved - 1);
    qn_exchange_release(v->ex);
}

static void free_saving(qn_exchange *ex)
{
    qn_free(ex->state);
}

void qn_route_prompt_cache(qn_exchange *ex)
{
    qn_api_error error = {0};
    saving *v = ex->server->options->save ? qn_calloc(1, sizeof *v) : NULL;
    if (!v) {
        if (ex->server->options->save)
            qn_api_fail_status(&error, QN_E_NOMEM);
        else
            qn_api_fail(&error, 400, "unsupported", NULL,
                        "the server keeps no prompt cache: it was started without --prompt-cache");
        qn_exchange_fail(ex, &error);
        return;
    }
    v->ex = ex;
    v->job = (qn_job){run, done, NULL};
    ex->state = v;
    ex->free_state = free_saving;
    qn_exchange_hold(ex);
    qn_workers_push(ex->server->slow_workers, &v->job);
}
