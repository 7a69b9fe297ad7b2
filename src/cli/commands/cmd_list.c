/* quern list: the models that were fetched, by quern or by Python. */
#include <quern/quern.h>
#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "cli/commands/model_table.h"
#include "cli/term/out.h"
#include "hub/hub.h"

typedef struct {
    int json, names;
} list_options;

#define AT(field) offsetof(list_options, field)
static const qn_arg list_args[] = {
    {"--names", 0, QN_ARG_FLAG, AT(names), 0, 0, NULL,
     "list the short names that quern knows instead, and what they mean"},
    {"--json", 0, QN_ARG_FLAG, AT(json), 0, 0, NULL, "print one JSON object"},
    {0},
};

static const qn_arg_group list_groups[] = {{NULL, list_args, 0, NULL}, {0}};
const qn_arg_spec qn_list_spec = {
    "quern list [--names] [--json]",
    "Lists the models of the cache of Hugging Face, and those of Ollama and of URLs that quern fetched,\n"
    "by the names that commands take.",
    list_groups,
    0,
    0,
    NULL};

typedef struct {
    const qn_hub_settings *settings;
    qn_model_table table;
} listing;

static qn_status take(void *user, const qn_discovery *d)
{
    listing *l = user;
    qn_buf name = {0};
    qn_store_put_name(l->settings, d->path, &name);
    qn_status status = name.status == QN_OK ? qn_model_table_put(&l->table, d, name.data) : name.status;
    qn_buf_free(&name);
    return status;
}

static qn_status look(void *user, const char *folder)
{
    qn_buf snapshots = {0};
    qn_buf_printf(&snapshots, "%s/snapshots", folder);
    qn_status status =
        snapshots.status == QN_OK ? qn_discover(snapshots.data, NULL, take, user) : snapshots.status;
    qn_buf_free(&snapshots);
    return status;
}

static qn_status list_store(int json)
{
    qn_hub_settings settings = {.timeout_s = 0};
    listing l = {.settings = &settings};
    qn_status status = qn_hub_settings_read(&settings);
    if (status == QN_OK) {
        qn_model_table_begin(&l.table, json, settings.cache.data);
        status = qn_store_each(&settings, look, &l);
        if (status == QN_OK) status = qn_model_table_finish(&l.table, settings.cache.data);
        qn_model_table_free(&l.table);
    }
    qn_hub_settings_free(&settings);
    return status;
}

static void put_name_json(qn_buf *b, const qn_hub_short *s)
{
    qn_json_open(b, '{');
    qn_json_put_text(b, "name", s->name);
    qn_json_put_text(b, "repository", s->repo);
    qn_json_put_text(b, "quant", s->quant);
    qn_json_put_int(b, "size_bytes", (int64_t)s->size_mb * 1000000);
    qn_json_put_int(b, "memory_bytes", qn_hub_memory_needed((int64_t)s->size_mb * 1000000));
    qn_json_close(b, '}');
}

static qn_status list_names(int json)
{
    qn_buf b = {0};
    char size[32], memory[32];
    if (json)
        qn_json_open(&b, '[');
    else
        qn_buf_printf(&b, "%-19s %-7s %8s %8s  %s\n", "NAME", "QUANT", "SIZE", "MEMORY", "MEANS");
    for (const qn_hub_short *s = qn_hub_shorts; s->name; s++) {
        if (json) {
            put_name_json(&b, s);
            continue;
        }
        const int64_t bytes = (int64_t)s->size_mb * 1000000;
        qn_buf_printf(&b, "%-19s %-7s %8s %8s  hf:%s%s", s->name, s->quant,
                      qn_hub_size_text(bytes, size, sizeof size),
                      qn_hub_size_text(qn_hub_memory_needed(bytes), memory, sizeof memory), s->repo,
                      s[1].name ? "\n" : "");
    }
    if (json) qn_json_close(&b, ']');
    return qn_out_line(&b);
}

int qn_cmd_list(int argc, char **argv)
{
    list_options o = {.json = 0};
    const char *none;
    int n, code;
    if (qn_args_parse(&qn_list_spec, &o, argc, argv, &none, &n, &code)) return code;
    qn_status status = o.names ? list_names(o.json) : list_store(o.json);
    return status == QN_OK ? QN_EXIT_OK : qn_out_fail();
}
