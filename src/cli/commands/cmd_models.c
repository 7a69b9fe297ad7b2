/* quern models: which models lie below a folder. */
#include <quern/quern.h>
#include <stddef.h>

#include "cli/command.h"
#include "cli/commands/model_table.h"
#include "cli/options/args.h"
#include "cli/term/out.h"

typedef struct {
    qn_discover_options o;
    int json;
} models_options;

#define AT(field) offsetof(models_options, field)
static const qn_arg models_args[] = {
    {"--depth", 0, QN_ARG_INT32, AT(o.max_depth), 1, 256, "N",
     "maximum depth of folders; DIR itself has depth 1 (default 32)"},
    {"--follow-links", 0, QN_ARG_FLAG, AT(o.follow_links), 0, 0, NULL,
     "also follow symbolic links to folders"},
    {"--json", 0, QN_ARG_FLAG, AT(json), 0, 0, NULL, "print one JSON object"},
    {0},
};

static qn_status take(void *user, const qn_discovery *d)
{
    return qn_model_table_put(user, d, NULL);
}

static const qn_arg_group models_groups[] = {{NULL, models_args, 0, NULL}, {0}};
const qn_arg_spec qn_models_spec = {
    "quern models DIR [--depth N] [--follow-links] [--json]",
    "Lists the models below a folder with family, weight types, size and path. Only file headers and\n"
    "config.json are read. A model that cannot be used is listed with the reason. Hidden folders are\n"
    "skipped; links to files are followed.",
    models_groups,
    1,
    1,
    NULL};

int qn_cmd_models(int argc, char **argv)
{
    models_options o = {0};
    const char *path;
    int n, code;
    if (qn_args_parse(&qn_models_spec, &o, argc, argv, &path, &n, &code)) return code;
    qn_model_table table;
    qn_model_table_begin(&table, o.json, path);
    qn_status status = qn_discover(path, &o.o, take, &table);
    if (status == QN_OK) status = qn_model_table_finish(&table, path);
    code = status == QN_OK ? QN_EXIT_OK : qn_out_fail();
    qn_model_table_free(&table);
    return code;
}
