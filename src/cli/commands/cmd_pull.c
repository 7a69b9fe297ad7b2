/* quern pull: fetches a model by its name. */
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/options/model_name.h"
#include "cli/term/out.h"

typedef struct {
    size_t memory_bytes;
    int json, dry_run, offline, no_mmproj;
} pull_options;

#define AT(field) offsetof(pull_options, field)
static const qn_arg pull_args[] = {
    {"--memory", 0, QN_ARG_BYTES, AT(memory_bytes), 0, 0, "BYTES",
     "choose a file as for a machine with so much memory (default: this one's)"},
    {"--no-mmproj", 0, QN_ARG_FLAG, AT(no_mmproj), 0, 0, NULL,
     "leave out the vision tower (mmproj) of a GGUF model"},
    {"--dry-run", 0, QN_ARG_FLAG, AT(dry_run), 0, 0, NULL, "say what would be fetched, and fetch nothing"},
    {"--offline", 0, QN_ARG_FLAG, AT(offline), 0, 0, NULL,
     "do not use the network: only look whether the model is on this machine"},
    {"--json", 0, QN_ARG_FLAG, AT(json), 0, 0, NULL, "print one JSON object at the end"},
    {0},
};

static const qn_arg_group pull_groups[] = {{NULL, pull_args, 0, NULL}, {0}};
const qn_arg_spec qn_pull_spec = {
    "quern pull NAME [--memory BYTES] [--no-mmproj] [--dry-run] [--offline] [--json]",
    "Fetches a model and prints its path. NAME is ORG/NAME or hf:ORG/NAME (with @REVISION, and :FILE or\n"
    ":QUANTISATION), ollama:NAME[:TAG], the URL of a .gguf file, or a short name (quern list --names).\n"
    "What is here already is not fetched again; what was interrupted goes on from where it was.",
    pull_groups,
    1,
    1,
    NULL};

static qn_status print_json(const char *name, const qn_hub_pulled *p, int dry_run)
{
    qn_buf b = {0};
    qn_json_open(&b, '{');
    qn_json_put_text(&b, "name", name);
    qn_json_put_text(&b, "path", p->path.data);
    qn_json_put_text(&b, "revision", p->commit);
    qn_json_put_text(&b, "why", p->why);
    qn_json_key(&b, "files");
    qn_json_open(&b, '[');
    for (size_t i = 0; i < p->files.n; i++) {
        qn_json_open(&b, '{');
        qn_json_put_text(&b, "path", p->files.files[i].path);
        qn_json_put_int(&b, "size_bytes", p->files.files[i].size);
        qn_json_put_text(&b, "sum", p->files.files[i].sum == QN_SUM_NONE ? "" : p->files.files[i].hex);
        qn_json_close(&b, '}');
    }
    qn_json_close(&b, ']');
    qn_json_put_int(&b, "size_bytes", p->total_bytes);
    qn_json_put_int(&b, "here_bytes", p->here_bytes);
    qn_json_put_int(&b, "fetched_bytes", dry_run ? 0 : p->came_bytes);
    qn_json_close(&b, '}');
    return qn_out_line(&b);
}

static qn_status print_plan(const qn_hub_pulled *p)
{
    qn_buf b = {0};
    char size[32];
    for (size_t i = 0; i < p->files.n; i++) {
        qn_buf_printf(&b, "%10s  ", qn_hub_size_text(p->files.files[i].size, size, sizeof size));
        qn_out_put_shown(&b, p->files.files[i].path, strlen(p->files.files[i].path), 0);
        qn_buf_putc(&b, '\n');
    }
    qn_buf_printf(&b, "%10s  in all", qn_hub_size_text(p->total_bytes, size, sizeof size));
    qn_buf_printf(&b, ", %s of it here", qn_hub_size_text(p->here_bytes, size, sizeof size));
    return qn_out_line(&b);
}

static qn_status print_path(const char *path)
{
    qn_buf b = {0};
    qn_buf_puts(&b, path); /* as it is: scripts take it */
    return qn_out_line(&b);
}

/* Without the network: is it here? */
static qn_status look(const qn_hub_settings *settings, const qn_hub_name *name, int64_t memory,
                      qn_hub_pulled *out)
{
    qn_buf what = {0};
    qn_status status = qn_store_find(settings, name, memory, 1, &out->path, out->commit);
    qn_hub_name_put(&what, name);
    if (status == QN_E_NOT_FOUND)
        status = qn_hub_settings_check_online(settings, what.data ? what.data : "the model");
    qn_buf_free(&what);
    return status;
}

static qn_status pull(const qn_hub_name *name, const pull_options *o, qn_hub_pulled *out)
{
    qn_hub_settings settings = {.timeout_s = 0};
    const qn_hub_pull_options options = {
        .memory_bytes = (int64_t)o->memory_bytes, .dry_run = o->dry_run, .no_mmproj = o->no_mmproj};
    qn_status status = qn_hub_settings_read(&settings);
    if (o->offline) settings.offline_by = "--offline";
    if (status == QN_OK && settings.offline_by)
        status = look(&settings, name, o->memory_bytes ? options.memory_bytes : qn_hub_machine_memory(), out);
    else if (status == QN_OK)
        status = qn_model_name_pull(&settings, name, &options, out);
    qn_hub_settings_free(&settings);
    return status;
}

static qn_status print_result(const char *name, const pull_options *o, const qn_hub_pulled *p)
{
    if (o->json) return print_json(name, p, o->dry_run);
    if (o->dry_run && p->why[0]) qn_out_note("%s", p->why);
    if (o->dry_run && p->files.n) return print_plan(p);
    if (!p->came_bytes) qn_out_note("all of it is here already");
    return print_path(p->path.data);
}

int qn_cmd_pull(int argc, char **argv)
{
    pull_options o = {.json = 0};
    qn_hub_name name;
    qn_hub_pulled pulled = {.total_bytes = 0};
    qn_buf what = {0};
    const char *text;
    int n, code;
    if (qn_args_parse(&qn_pull_spec, &o, argc, argv, &text, &n, &code)) return code;
    qn_status status = qn_hub_name_read(text, 1, &name);
    if (status != QN_OK) {
        qn_out_fail();
        return QN_EXIT_USAGE;
    }
    qn_hub_name_put(&what, &name);
    status = what.status;
    if (status == QN_OK && strncmp(what.data, text, strlen(text)) != 0 && !strchr(text, '/'))
        qn_out_note("%s is %s", text, what.data);
    if (status == QN_OK) status = pull(&name, &o, &pulled);
    if (status == QN_OK) status = print_result(what.data, &o, &pulled);
    code = status == QN_OK ? QN_EXIT_OK : status == QN_E_CANCELLED ? QN_EXIT_INTERRUPTED : qn_out_fail();
    qn_hub_pulled_free(&pulled);
    qn_buf_free(&what);
    return code;
}
