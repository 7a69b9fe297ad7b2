/* quern show: what a fetched model is. */
#include <quern/quern.h>
#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "cli/commands/inspect_summary.h"
#include "cli/term/out.h"
#include "hub/hub.h"

typedef struct {
    int json;
} show_options;

#define AT(field) offsetof(show_options, field)
static const qn_arg show_args[] = {
    {"--json", 0, QN_ARG_FLAG, AT(json), 0, 0, NULL, "print one JSON object"},
    {0},
};

static const qn_arg_group show_groups[] = {{NULL, show_args, 0, NULL}, {0}};
const qn_arg_spec qn_show_spec = {
    "quern show NAME [--json]",
    "Shows a model that was fetched: its name, revision, place, family, files and types of weights.\n"
    "`quern inspect` shows all of its metadata and tensors.",
    show_groups,
    1,
    1,
    NULL};

typedef struct {
    const char *name, *revision, *path;
    int json;
    qn_buf out;
    int n_found;
} showing;

/* A folder may hold GGUF files too: the model that was meant is the one at the path itself. */
static qn_status take(void *user, const qn_discovery *d)
{
    showing *s = user;
    char size[32];
    if (d->is_problem || strcmp(d->path, s->path) != 0) return QN_OK;
    s->n_found++;
    if (s->json) {
        qn_json_open(&s->out, '{');
        qn_json_put_text(&s->out, "name", s->name);
        qn_json_put_text(&s->out, "path", s->path);
        qn_json_put_text(&s->out, "revision", s->revision);
        qn_json_put_text(&s->out, "format", d->format);
        qn_json_put_text(&s->out, "model_type", d->model_type);
        qn_json_put_text(&s->out, "quant", d->quant);
        qn_json_put_int(&s->out, "quant_bits", d->quant_bits);
        qn_json_put_int(&s->out, "n_files", d->n_files);
        qn_json_put_int(&s->out, "size_bytes", (int64_t)d->size_bytes);
        qn_json_put_int(&s->out, "memory_bytes", qn_hub_memory_needed((int64_t)d->size_bytes));
        qn_json_put_text(&s->out, "status", qn_status_name(d->status));
        qn_json_put_text(&s->out, "error", d->error);
        qn_json_close(&s->out, '}');
        return s->out.status;
    }
    qn_buf_puts(&s->out, "name      ");
    qn_out_put_shown(&s->out, s->name, strlen(s->name), 0);
    qn_buf_printf(&s->out, "\nrevision  %s\npath      ", s->revision);
    qn_out_put_shown(&s->out, s->path, strlen(s->path), 0);
    qn_buf_puts(&s->out, "\nfamily    ");
    qn_out_put_shown(&s->out, d->model_type, strlen(d->model_type), 0);
    qn_buf_puts(&s->out, "\nweights   ");
    qn_out_put_shown(&s->out, d->quant, strlen(d->quant), 0);
    qn_buf_printf(&s->out, "\nmemory    about %s\n",
                  qn_hub_size_text(qn_hub_memory_needed((int64_t)d->size_bytes), size, sizeof size));
    if (d->status != QN_OK) {
        qn_buf_puts(&s->out, "not usable: ");
        qn_out_put_shown(&s->out, d->error, strlen(d->error), 0);
        qn_buf_putc(&s->out, '\n');
    }
    return s->out.status;
}

static qn_status show(const qn_hub_settings *settings, const qn_hub_name *name, int json)
{
    char commit[QN_SUM_HEX_MAX];
    qn_buf path = {0}, what = {0};
    showing s = {.json = json};
    qn_hub_name_put(&what, name);
    qn_status status = what.status;
    if (status == QN_OK) status = qn_store_find(settings, name, qn_hub_machine_memory(), 1, &path, commit);
    if (status == QN_E_NOT_FOUND)
        status = qn_fail(QN_E_NOT_FOUND, "%s is not on this machine; `quern list` shows what is", what.data);
    s.name = what.data;
    s.path = path.data;
    s.revision = commit;
    if (status == QN_OK) status = qn_discover(path.data, NULL, take, &s);
    if (status == QN_OK && !s.n_found)
        status = qn_fail(QN_E_NOT_FOUND, "%s: there is no model there", path.data);
    if (status == QN_OK && json) {
        status = qn_out_line(&s.out);
    } else if (status == QN_OK) {
        qn_buf_putc(&s.out, '\n');
        status = s.out.status == QN_OK ? qn_out_write(s.out.data, s.out.length) : s.out.status;
        if (status == QN_OK) status = qn_inspect_summary(path.data);
    }
    qn_buf_free(&s.out);
    qn_buf_free(&path);
    qn_buf_free(&what);
    return status;
}

int qn_cmd_show(int argc, char **argv)
{
    show_options o = {.json = 0};
    qn_hub_settings settings = {.timeout_s = 0};
    qn_hub_name name;
    const char *text;
    int n, code;
    if (qn_args_parse(&qn_show_spec, &o, argc, argv, &text, &n, &code)) return code;
    qn_status status = qn_hub_name_read(text, 1, &name);
    if (status == QN_OK) status = qn_hub_settings_read(&settings);
    if (status == QN_OK) status = show(&settings, &name, o.json);
    qn_hub_settings_free(&settings);
    return status == QN_OK ? QN_EXIT_OK : qn_out_fail();
}
