/* /v1/cache: what the prompt cache has and how it is used; its state in files of --cache-folder. */
#include <stdio.h>
#include <sys/stat.h>

#include "base/json/json_write.h"
#include "server/admin/admin.h"
#include "server/admin/request.h"
#include "server/core/folder.h"
#include "server/core/write.h"

/* ---- figures ------------------------------------------------------------------------------------------- */

static void write_figures(const qn_cache_counters *c, const qn_memory *m, qn_buf *b)
{
    const struct {
        const char *key;
        int64_t value;
    } now[] = {{"tokens", c->n_tokens},
               {"nodes", c->n_nodes},
               {"pages", c->n_pages},
               {"snapshots", c->n_snapshots},
               {"warm", c->n_pins},
               {"pins", c->n_timed_pins},
               {"bytes", (int64_t)m->cache_memory_bytes},
               {"limit_bytes", (int64_t)m->cache_limit_bytes}},
      total[] = {{"hits", c->n_hits},
                 {"misses", c->n_misses},
                 {"reused_tokens", c->n_tokens_reused},
                 {"inserted_tokens", c->n_tokens_inserted},
                 {"evicted_nodes", c->n_evicted_nodes},
                 {"evicted_tokens", c->n_evicted_tokens},
                 {"evicted_snapshots", c->n_evicted_snapshots},
                 {"evicted_bytes", (int64_t)c->evicted_bytes},
                 {"pins_given_up", c->n_given_up_pins},
                 {"poisoned_nodes", c->n_poisoned_nodes}};
    qn_json_open(b, '{');
    qn_json_put_text(b, "object", "cache");
    qn_json_key(b, "now");
    qn_json_open(b, '{');
    for (size_t i = 0; i < sizeof now / sizeof *now; i++) qn_json_put_int(b, now[i].key, now[i].value);
    qn_json_close(b, '}');
    qn_json_key(b, "total");
    qn_json_open(b, '{');
    for (size_t i = 0; i < sizeof total / sizeof *total; i++)
        qn_json_put_int(b, total[i].key, total[i].value);
    qn_json_close(b, '}');
    qn_json_close(b, '}');
}

void qn_route_cache(qn_exchange *ex)
{
    qn_cache_counters counters;
    qn_memory memory;
    qn_api_error error = {0};
    qn_buf b = {0};
    qn_status status = qn_cache_get_counters(ex->server->model, &counters);
    if (status == QN_OK) status = qn_model_get_memory(ex->server->model, &memory);
    if (status == QN_OK) {
        write_figures(&counters, &memory, &b);
        status = b.status;
    }
    if (status == QN_OK) {
        qn_exchange_reply(ex, 200, "application/json", NULL, b.data, b.length);
    } else {
        qn_api_fail_status(&error, status);
        qn_exchange_fail(ex, &error);
    }
    qn_buf_free(&b);
}

/* ---- files --------------------------------------------------------------------------------------------- */

static int find_file(qn_task *t, char path[QN_FOLDER_PATH_MAX])
{
    const char *folder = t->ex->server->options->cache_folder;
    if (!folder)
        return qn_api_fail(&t->error, 403, "no_cache_folder", NULL,
                           "the server has no folder for its cache: start it with --cache-folder DIR");
    const int refused = qn_admin_read(t);
    if (refused) return refused;
    if (!t->request.cache_file) return qn_admin_fail_missing(t, "file");
    return qn_folder_name_file(folder, t->request.cache_file, "file", path, &t->error);
}

static void write_done(qn_task *t, const char *status)
{
    qn_json_open(&t->answer, '{');
    qn_json_put_text(&t->answer, "file", t->request.cache_file);
    qn_json_put_text(&t->answer, "status", status);
    qn_json_close(&t->answer, '}');
}

static void save(qn_task *t)
{
    char path[QN_FOLDER_PATH_MAX];
    if (find_file(t, path)) return;
    const qn_status status = qn_model_save_state(t->ex->server->model, path);
    if (status == QN_OK)
        write_done(t, "saved");
    else
        qn_api_fail_status(&t->error, status);
}

static void load(qn_task *t)
{
    char path[QN_FOLDER_PATH_MAX];
    struct stat st;
    if (find_file(t, path)) return;
    if (stat(path, &st) != 0) {
        qn_api_fail(&t->error, 404, "not_found", "file", "file: the server's folder has no '%s'",
                    t->request.cache_file);
        return;
    }
    const qn_status status = qn_model_load_state(t->ex->server->model, path);
    if (status == QN_OK) {
        write_done(t, "loaded");
        return;
    }
    qn_api_fail_status(&t->error, status);
    if (t->error.status < 500) snprintf(t->error.param, sizeof t->error.param, "file");
}

void qn_route_cache_save(qn_exchange *ex)
{
    qn_task_begin(ex, save, NULL, 1);
}

void qn_route_cache_load(qn_exchange *ex)
{
    qn_task_begin(ex, load, NULL, 1);
}
