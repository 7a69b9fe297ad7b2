/* quern rm: removes a fetched model. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/term/out.h"
#include "hub/hub.h"

typedef struct {
    int yes;
} rm_options;

#define AT(field) offsetof(rm_options, field)
static const qn_arg rm_args[] = {
    {"--yes", 'y', QN_ARG_FLAG, AT(yes), 0, 0, NULL, "do not ask"},
    {0},
};

static const qn_arg_group rm_groups[] = {{NULL, rm_args, 0, NULL}, {0}};
const qn_arg_spec qn_rm_spec = {
    "quern rm NAME [--yes]",
    "Removes one revision of a fetched model, or one file of it (NAME:FILE), and the bytes that no other\n"
    "revision has. Asks before, unless --yes is given. What an interrupted pull left goes too.",
    rm_groups,
    1,
    1,
    NULL};

/* 1: yes. */
static int ask(const char *name, const qn_store_removal *r)
{
    char size[32], line[16] = "";
    qn_buf b = {0};
    qn_buf_puts(&b, "remove ");
    qn_out_put_shown(&b, name, strlen(name), 0);
    if (!r->is_whole)
        qn_buf_printf(&b, " (%zu file%s)", r->links.n, qn_out_plural((int64_t)r->links.n));
    else if (r->commit[0])
        qn_buf_printf(&b, " (revision %.10s)", r->commit);
    else
        qn_buf_puts(&b, " (what an interrupted pull left)");
    qn_buf_printf(&b, ", %s? [y/N] ", qn_hub_size_text(r->freed_bytes, size, sizeof size));
    if (b.status == QN_OK) fputs(b.data, stderr);
    fflush(stderr);
    qn_buf_free(&b);
    return fgets(line, sizeof line, stdin) && (strcmp(line, "y\n") == 0 || strcmp(line, "yes\n") == 0);
}

static qn_status run(const qn_hub_settings *settings, const qn_hub_name *name, const rm_options *o,
                     int *was_removed)
{
    qn_buf what = {0};
    qn_store_removal r = {.is_whole = 0};
    char size[32];
    int lock = -1;
    qn_hub_name_put(&what, name);
    qn_status status = what.status;
    if (status == QN_OK) status = qn_store_plan_removal(settings, name, &r);
    if (status == QN_E_NOT_FOUND)
        status = qn_fail(QN_E_NOT_FOUND, "%s is not on this machine; `quern list` shows what is", what.data);
    if (status == QN_OK && (o->yes || ask(what.data, &r))) {
        /* What it is may have changed while the user thought: the plan is made again under the lock. */
        qn_store_removal now = {.is_whole = 0};
        status = qn_store_lock(NULL, r.folder.data, &lock);
        if (status == QN_OK) status = qn_store_plan_removal(settings, name, &now);
        if (status == QN_OK) status = qn_store_remove(&now);
        if (status == QN_OK) {
            qn_out_note("%s: removed, %s freed", what.data,
                        qn_hub_size_text(now.freed_bytes, size, sizeof size));
            *was_removed = 1;
        }
        qn_store_removal_free(&now);
    }
    qn_store_unlock(lock);
    qn_store_removal_free(&r);
    qn_buf_free(&what);
    return status;
}

int qn_cmd_rm(int argc, char **argv)
{
    rm_options o = {.yes = 0};
    qn_hub_settings settings = {.timeout_s = 0};
    qn_hub_name name;
    const char *text;
    int n, code, was_removed = 0;
    if (qn_args_parse(&qn_rm_spec, &o, argc, argv, &text, &n, &code)) return code;
    if (!o.yes && !isatty(STDIN_FILENO))
        return qn_args_fail("rm",
                            "standard input is no terminal to be asked on: --yes removes without asking");
    qn_status status = qn_hub_name_read(text, 1, &name);
    if (status == QN_OK) status = qn_hub_settings_read(&settings);
    if (status == QN_OK) status = run(&settings, &name, &o, &was_removed);
    if (status == QN_OK && !was_removed) qn_out_note("nothing was removed");
    qn_hub_settings_free(&settings);
    return status != QN_OK ? qn_out_fail() : was_removed ? QN_EXIT_OK : QN_EXIT_ERROR;
}
