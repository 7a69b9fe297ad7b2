#include "server/core/tasks/task.h"

#include "base/mem.h"

static void run(qn_job *job)
{
    qn_task *t = (qn_task *)(void *)job;
    t->run(t);
    if (!t->error.status && t->answer.status != QN_OK) qn_api_fail_status(&t->error, t->answer.status);
}

static void done(qn_job *job)
{
    qn_task *t = (qn_task *)(void *)job;
    if (t->maker) t->maker->made(t);
    if (t->error.status) {
        qn_exchange_fail(t->ex, &t->error);
    } else if (t->has_file) {
        qn_exchange_reply_file(t->ex, "application/octet-stream", t->file, t->file_bytes);
    } else {
        t->ex->server->metrics.n_prompt_tokens += t->n_prompt_tokens;
        qn_exchange_reply(t->ex, 200, "application/json", NULL, t->answer.data, t->answer.length);
    }
    qn_exchange_release(t->ex);
}

static void client_gone(qn_exchange *ex)
{
    const qn_task *t = ex->state;
    qn_cancel_set(t->cancel);
}

static void free_task(qn_exchange *ex)
{
    qn_task *t = ex->state;
    if (t->maker) t->maker->free_made(t);
    qn_cancel_free(t->cancel);
    qn_api_request_free(&t->request);
    qn_buf_free(&t->answer);
    qn_free(t);
}

static void begin(qn_exchange *ex, qn_task_fn *fn, const void *dialect, const qn_task_maker *maker,
                  int is_slow)
{
    qn_api_error error;
    qn_task *t = qn_calloc(1, sizeof *t);
    if (!t || qn_cancel_new(&t->cancel) != QN_OK) {
        qn_free(t);
        qn_api_fail_status(&error, QN_E_NOMEM);
        qn_exchange_fail(ex, &error);
        return;
    }
    t->ex = ex;
    t->run = fn;
    t->dialect = dialect;
    t->maker = maker;
    t->job = (qn_job){run, done, NULL};
    ex->state = t;
    ex->gone = client_gone;
    ex->free_state = free_task;
    qn_exchange_hold(ex);
    qn_workers_push(is_slow ? ex->server->slow_workers : ex->server->workers, &t->job);
}

void qn_task_begin(qn_exchange *ex, qn_task_fn *fn, const void *dialect, int is_slow)
{
    begin(ex, fn, dialect, NULL, is_slow);
}

void qn_task_begin_making(qn_exchange *ex, const qn_task_maker *maker, int is_slow)
{
    begin(ex, maker->run, NULL, maker, is_slow);
}
