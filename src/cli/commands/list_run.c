#include "cli/commands/list_run.h"

#include <quern/quern.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/term/interrupt.h"
#include "cli/term/out.h"

/* Fills the prompts. As in `run`, texts are chats if the model has a chat template, unless raw. */
static qn_status fill_prompts(qn_list_run *run, const qn_list_options *o)
{
    qn_model_info info;
    QN_TRY(qn_model_get_info(run->model, &info));
    const int as_chats = info.has_chat_template && !o->raw;
    if (o->system && !as_chats)
        return qn_fail(QN_E_ARG, "--system needs a chat template, and %s",
                       o->raw ? "--raw leaves it out" : "the model has none");
    return qn_prompt_list_finish(&run->list, as_chats, o->system);
}

static qn_status check_forms(const qn_prompt_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        if (l->lines[i].form)
            return qn_fail(QN_E_FORMAT,
                           "%s: line %lld: \"%s\" is for answers, and this command generates none", l->name,
                           (long long)l->lines[i].line, l->lines[i].form_name);
    return QN_OK;
}

int qn_list_run_command(const char *name, const char *path, qn_list_options *o,
                        qn_status (*prepare)(qn_list_run *run), qn_status (*call)(qn_list_run *run),
                        void *user)
{
    qn_list_run run = {.user = user};
    if (!o->from.path && !o->from.texts.n && isatty(STDIN_FILENO))
        return qn_args_fail(name, "no prompts: give a file by -f, texts by -p, or pipe them in");
    qn_status status = qn_prompt_list_read(&o->from, o->whole, &run.list);
    if (status == QN_OK && !o->takes_forms) status = check_forms(&run.list);
    if (status == QN_OK && prepare) status = prepare(&run);
    if (status == QN_OK) status = qn_load_open_for(path, &o->load, run.list.n, &run.model);
    if (status == QN_OK) status = fill_prompts(&run, o);
    if (status == QN_OK) status = qn_cancel_new(&run.cancel);
    if (status == QN_OK) {
        qn_interrupt_start();
        qn_interrupt_watch_call(run.cancel);
        status = call(&run);
        qn_interrupt_watch_call(NULL);
    }
    int code = status != QN_OK ? qn_out_fail() : run.n_failed ? QN_EXIT_ERROR : QN_EXIT_OK;
    if (status == QN_E_CANCELLED) code = QN_EXIT_INTERRUPTED;
    qn_cancel_free(run.cancel);
    qn_model_close(&run.model);
    qn_load_end(&o->load);
    qn_prompt_list_free(&run.list);
    return code;
}

void qn_list_run_open_json(qn_list_run *run, qn_buf *b, size_t i_prompt, qn_status status,
                           const char *message)
{
    run->n_failed += status != QN_OK;
    qn_json_open(b, '{');
    qn_json_put_int(b, "index", (int64_t)i_prompt);
    qn_json_put_text(b, "status", qn_status_name(status));
    if (status != QN_OK) qn_json_put_text(b, "error", message ? message : qn_status_text(status));
}

int qn_list_run_check(qn_list_run *run, const char *what, size_t i_prompt, qn_status status,
                      const char *message)
{
    if (status == QN_OK) return 1;
    run->n_failed++;
    qn_out_note("%s %zu: %s", what, i_prompt, message);
    return 0;
}
