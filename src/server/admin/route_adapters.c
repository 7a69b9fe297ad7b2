/* /v1/adapters: list, describe, load and unload; the same in vLLM's form. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/json/json_write.h"
#include "server/admin/admin.h"
#include "server/admin/request.h"
#include "server/core/api/about.h"
#include "server/core/folder.h"
#include "server/core/next_turn/look_ahead.h"
#include "server/core/tasks/task.h"
#include "server/core/write.h"

enum {
    NAME_MAX_BYTES = 128,
    /* A generation is closed shortly after its last event was sent. */
    UNLOAD_WAIT_MS = 2000,
    UNLOAD_EACH_MS = 5
};

/* ---- what there is ------------------------------------------------------------------------------------- */

/* r: the request whose warnings are added, or NULL. */
static void write_adapter(const qn_server *s, const qn_adapter_info *info, const qn_api_request *r, qn_buf *b)
{
    qn_buf model = {0};
    qn_buf_printf(&model, "%s+%s", s->options->model_name, info->name);
    if (model.status != QN_OK) b->status = model.status;
    qn_json_open(b, '{');
    qn_json_put_text(b, "id", info->name);
    qn_json_put_text(b, "object", "adapter");
    qn_json_put_text(b, "model", model.data ? model.data : "");
    qn_json_put_text(b, "layout", info->layout);
    qn_json_put_real(b, "scale", (double)info->scale);
    qn_json_put_bool(b, "is_default", info->is_default);
    qn_json_put_int(b, "rank", info->rank);
    qn_json_put_int(b, "n_matrices", info->n_matrices);
    qn_json_put_int(b, "size_bytes", (int64_t)info->size_bytes);
    if (r) qn_write_warnings(r, b);
    qn_json_close(b, '}');
    qn_buf_free(&model);
}

/* Returns 1 if an adapter of this name is loaded. */
static int find_adapter(const qn_server *s, const char *name, qn_adapter_info *out)
{
    for (int64_t i = 0; qn_adapter_get_info(s->model, i, out) == QN_OK; i++)
        if (strcmp(out->name, name) == 0) return 1;
    return 0;
}

static int fail_unknown(qn_api_error *error, const char *field, const char *name)
{
    return qn_api_fail(error, 404, "adapter_not_found", field,
                       "no adapter '%s' is loaded; GET /v1/adapters lists those that are", name);
}

static void write_all(const qn_server *s, qn_buf *b)
{
    qn_adapter_info info;
    qn_buf_puts(b, "{\"object\":\"list\",\"data\":[");
    for (int64_t i = 0; qn_adapter_get_info(s->model, i, &info) == QN_OK; i++)
        write_adapter(s, &info, NULL, b);
    qn_json_close(b, ']');
    qn_json_close(b, '}');
}

void qn_route_adapters(qn_exchange *ex)
{
    char name[NAME_MAX_BYTES];
    qn_adapter_info info;
    qn_api_error error = {0};
    qn_buf b = {0};
    qn_exchange_segment(ex, "adapter", name, sizeof name);
    if (!strchr(ex->route->path, '{'))
        write_all(ex->server, &b);
    else if (find_adapter(ex->server, name, &info))
        write_adapter(ex->server, &info, NULL, &b);
    else
        fail_unknown(&error, NULL, name);
    if (b.status != QN_OK) qn_api_fail_status(&error, b.status);
    if (error.status)
        qn_exchange_fail(ex, &error);
    else
        qn_exchange_reply(ex, 200, "application/json", NULL, b.data, b.length);
    qn_buf_free(&b);
}

/* ---- load ---------------------------------------------------------------------------------------------- */

/* The fields as the API of the route calls them. */
typedef struct {
    const char *name, *path;
} field_names;

static const field_names own_fields = {"name", "path"}, vllm_fields = {"lora_name", "lora_path"};

/* What the library says of a failure. */
static void fail_load(qn_task *t, const field_names *fields, const char *name, qn_status status)
{
    qn_adapter_info info;
    const char *field = status == QN_E_ARG ? fields->name : fields->path;
    qn_api_fail_status(&t->error, status);
    if (status == QN_E_FULL)
        qn_api_fail(&t->error, 409, "too_many_adapters", NULL, "%s", qn_last_error());
    else if (status == QN_E_ARG && find_adapter(t->ex->server, name, &info))
        qn_api_fail(&t->error, 409, "adapter_exists", field, "an adapter named %s is loaded already", name);
    else if (t->error.status < 500)
        snprintf(t->error.param, sizeof t->error.param, "%s", field);
}

/* Reads the body, and makes a path of what it names. */
static int prepare_load(qn_task *t, const field_names *fields, const char **name,
                        char path[QN_FOLDER_PATH_MAX])
{
    const qn_server_options *o = t->ex->server->options;
    const qn_api_request *r = &t->request;
    if (!o->adapter_folder)
        return qn_api_fail(&t->error, 403, "no_adapter_folder", NULL,
                           "the server has no folder of adapters: start it with --adapter-folder DIR");
    const int refused = qn_admin_read(t);
    if (refused) return refused;
    if (!r->adapter_path) return qn_admin_fail_missing(t, fields->path);
    if (!r->adapter_name && fields == &vllm_fields) return qn_admin_fail_missing(t, fields->name);
    const char *last = strrchr(r->adapter_path, '/');
    *name = r->adapter_name ? r->adapter_name : last ? last + 1 : r->adapter_path;
    if (r->adapter_scale == 0)
        return qn_api_fail(&t->error, 400, "invalid_value", "scale", "scale must not be 0");
    if (strcmp(*name, o->model_name) == 0)
        return qn_api_fail(&t->error, 400, "invalid_value", fields->name, "%s is the name of the model",
                           fields->name);
    return qn_folder_find(o->adapter_folder, r->adapter_path, fields->path, path, &t->error);
}

static void load(qn_task *t)
{
    const qn_server *s = t->ex->server;
    const int is_vllm = t->ex->route->about->route == QN_ADMIN_VLLM_LOAD;
    const field_names *fields = is_vllm ? &vllm_fields : &own_fields;
    const char *name = NULL;
    char path[QN_FOLDER_PATH_MAX];
    qn_adapter_info info;
    if (prepare_load(t, fields, &name, path)) return;
    const qn_status status = qn_adapter_load(
        s->model,
        &(qn_adapter_options){.name = name, .path = path, .scale = (float)t->request.adapter_scale});
    if (status != QN_OK)
        fail_load(t, fields, name, status);
    else if (find_adapter(s, name, &info))
        write_adapter(s, &info, &t->request, &t->answer);
    else /* another request has unloaded it already */
        fail_unknown(&t->error, NULL, name);
}

void qn_route_adapter_load(qn_exchange *ex)
{
    qn_task_begin(ex, load, NULL, 1);
}

/* ---- unload -------------------------------------------------------------------------------------------- */

/* What was answered a moment ago may not be closed yet; longer work is not waited for. */
static qn_status unload_soon(qn_task *t, const char *name)
{
    const int64_t end_ns = qn_clock_ns() + (int64_t)UNLOAD_WAIT_MS * 1000000;
    for (;;) {
        const qn_status status = qn_adapter_unload(t->ex->server->model, name);
        if (status != QN_E_ARG || qn_clock_ns() >= end_ns || qn_cancel_is_set(t->cancel)) return status;
        nanosleep(&(struct timespec){0, UNLOAD_EACH_MS * 1000000}, NULL);
    }
}

static void unload(qn_task *t)
{
    char of_path[NAME_MAX_BYTES];
    const char *name = of_path, *field = NULL;
    qn_exchange_segment(t->ex, "adapter", of_path, sizeof of_path);
    if (t->ex->route->about->fields) {
        field = "lora_name";
        if (qn_admin_read(t)) return;
        if (!(name = t->request.adapter_name)) {
            qn_admin_fail_missing(t, field);
            return;
        }
    }
    const qn_status status = unload_soon(t, name);
    if (status == QN_E_ARG)
        qn_api_fail(&t->error, 409, "adapter_in_use", field, "%s", qn_last_error());
    else if (status == QN_E_NOT_FOUND)
        fail_unknown(&t->error, field, name);
    else if (status != QN_OK)
        qn_api_fail_status(&t->error, status);
    if (status != QN_OK) return;
    qn_json_open(&t->answer, '{');
    qn_json_put_text(&t->answer, "id", name);
    qn_json_put_text(&t->answer, "object", "adapter");
    qn_json_put_bool(&t->answer, "deleted", 1);
    qn_write_warnings(&t->request, &t->answer);
    qn_json_close(&t->answer, '}');
}

void qn_route_adapter_unload(qn_exchange *ex)
{
    /* Work of idle times is no reason to refuse. */
    qn_look_ahead_drop_all(ex->server);
    qn_task_begin(ex, unload, NULL, 1);
}
