/* /slots: which are busy; saving, restoring and erasing what a slot has. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/json/json_write.h"
#include "server/core/completion.h"
#include "server/core/folder.h"
#include "server/core/slots/slots.h"
#include "server/core/tasks/task.h"
#include "server/llama/llama.h"
#include "server/llama/request.h"

/* ---- GET ----------------------------------------------------------------------------------------------- */

void qn_llama_put_slot(const qn_server *s, int64_t id, int is_processing, qn_buf *out)
{
    qn_json_put_int(out, "id", id);
    qn_json_put_int(out, "n_ctx", s->info.context_size);
    qn_json_put_bool(out, "speculative", s->options->n_draft > 0);
    qn_json_put_bool(out, "is_processing", is_processing);
}

/* Without a folder requests have no fixed places: the first slots are busy, as many as there are. */
static void put_slot(const qn_server *s, int64_t id, qn_buf *out)
{
    int64_t n_ids = 0;
    const int is_busy = s->slots ? qn_slots_look(s->slots, id, &n_ids) : id < s->n_generating;
    qn_json_open(out, '{');
    qn_llama_put_slot(s, id, is_busy, out);
    if (n_ids) qn_json_put_int(out, "n_prompt_tokens", n_ids);
    qn_json_close(out, '}');
}

void qn_route_llama_slots(qn_exchange *ex)
{
    const qn_server *s = ex->server;
    char must_be_idle[8];
    qn_api_error error = {0};
    qn_buf b = {0};
    int refused = qn_exchange_query(ex, "fail_on_no_slot", must_be_idle, sizeof must_be_idle, &error);
    if (!refused && must_be_idle[0] && s->n_generating >= s->info.parallel_slots)
        refused = qn_api_fail(&error, 503, "no_slot", NULL, "no slot is idle");
    if (refused) {
        qn_exchange_fail(ex, &error);
        return;
    }
    qn_json_open(&b, '[');
    for (int64_t i = 0; i < s->info.parallel_slots; i++) put_slot(s, i, &b);
    qn_json_close(&b, ']');
    qn_llama_reply(ex, &b);
}

/* ---- POST ---------------------------------------------------------------------------------------------- */

/* The number in the path; -1: there is no such slot. */
static int64_t find_slot(const qn_task *t)
{
    const char *text = t->ex->path + strlen("/slots/");
    char *end;
    const long long id = strtoll(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && id < qn_slots_count(t->ex->server->slots) ? id : -1;
}

static int find_file(qn_task *t, char path[QN_FOLDER_PATH_MAX])
{
    const qn_server *s = t->ex->server;
    const qn_api_request_limits limits = qn_server_request_limits(s);
    const int refused = qn_api_request_read_fields(t->ex->body.data, t->ex->body.length, qn_llama_fields,
                                                   QN_LLAMA_SLOT, &limits, &t->request, &t->error);
    if (refused) return refused;
    if (!t->request.cache_file)
        return qn_api_fail(&t->error, 400, "missing_parameter", "filename", "filename is missing");
    return qn_folder_name_file(s->options->slot_folder, t->request.cache_file, "filename", path, &t->error);
}

static int fail(qn_task *t, qn_status status)
{
    qn_api_fail_status(&t->error, status);
    if (t->error.status < 500) snprintf(t->error.param, sizeof t->error.param, "filename");
    return t->error.status;
}

/* -1: the file is not there. */
static int64_t size_of(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (int64_t)st.st_size : -1;
}

/* {"id_slot", "filename", "n_saved", "n_written", "timings": {"save_ms"}}, or the same of a restoration. */
static void write_done(qn_task *t, int64_t id, int is_save, int64_t n, int64_t n_bytes, int64_t begin_ns)
{
    qn_buf *b = &t->answer;
    qn_json_open(b, '{');
    qn_json_put_int(b, "id_slot", id);
    qn_json_put_text(b, "filename", t->request.cache_file);
    qn_json_put_int(b, is_save ? "n_saved" : "n_restored", n);
    qn_json_put_int(b, is_save ? "n_written" : "n_read", n_bytes);
    qn_json_key(b, "timings");
    qn_json_open(b, '{');
    qn_json_put_real(b, is_save ? "save_ms" : "restore_ms", (double)(qn_clock_ns() - begin_ns) * 1e-6);
    qn_json_close(b, '}');
    qn_json_close(b, '}');
}

static void save(qn_task *t, int64_t id)
{
    const qn_server *s = t->ex->server;
    const int64_t begin_ns = qn_clock_ns();
    char path[QN_FOLDER_PATH_MAX];
    qn_slot_sequence has;
    qn_buf salt = {0};
    int64_t n_saved = 0;
    if (find_file(t, path)) return;
    qn_completion_write_salt(s, t->ex->key, NULL, &salt); /* of a slot that has nothing */
    qn_status status = salt.status;
    if (status == QN_OK) status = qn_slots_get(s->slots, id, t->ex->key, 0, &has);
    if (status == QN_OK) {
        const qn_prefix_options options = {has.adapter, has.n_ids ? has.salt : salt.data};
        status = qn_model_save_prefix(s->model, has.ids, has.n_ids, &options, path, &n_saved);
        qn_slot_sequence_free(&has);
    }
    qn_buf_free(&salt);
    if (status != QN_OK)
        fail(t, status);
    else
        write_done(t, id, 1, n_saved, size_of(path), begin_ns);
}

/* Did a request with the exchange's key make the sequence? The salt begins with the number of the key. */
static int check_owner(qn_task *t, const qn_saved_prefix *p)
{
    const qn_http_options *o = &t->ex->server->options->http;
    char own[24];
    const int n = snprintf(own, sizeof own, "%d ", t->ex->key);
    if (!o->n_api_keys || (p->options.cache_salt && strncmp(p->options.cache_salt, own, (size_t)n) == 0))
        return 0;
    return qn_api_fail(&t->error, 403, "other_key", "filename",
                       "filename: a client with another key saved it");
}

static int load(qn_task *t, const char *path, qn_saved_prefix **out)
{
    if (size_of(path) < 0)
        return qn_api_fail(&t->error, 400, "not_found", "filename",
                           "filename: the server's folder has no '%s'", t->request.cache_file);
    const qn_status status = qn_model_load_prefix(t->ex->server->model, path, out);
    return status == QN_OK ? 0 : fail(t, status);
}

/* Of a file without an adapter, as a request says it: a model that has none needs no "none". */
static const char *adapter_of(const qn_server *s, const qn_saved_prefix *p)
{
    qn_adapter_info info;
    const int has_adapters = qn_adapter_get_info(s->model, 0, &info) == QN_OK;
    return !has_adapters && strcmp(p->options.adapter, "none") == 0 ? NULL : p->options.adapter;
}

/* As llama.cpp has it, the slot is empty if that fails. */
static void restore(qn_task *t, int64_t id)
{
    const qn_server *s = t->ex->server;
    const int64_t begin_ns = qn_clock_ns();
    qn_slot_owner owner = {.key = t->ex->key};
    char path[QN_FOLDER_PATH_MAX];
    qn_saved_prefix *p = NULL;
    if (find_file(t, path)) return;
    int refused = load(t, path, &p);
    if (!refused) refused = check_owner(t, p);
    if (!refused) owner.options = (qn_prefix_options){adapter_of(s, p), p->options.cache_salt};
    qn_slots_set(s->slots, id, &owner, refused ? NULL : p->ids, refused ? 0 : p->n_loaded);
    if (!refused) write_done(t, id, 0, p->n_loaded, size_of(path), begin_ns);
    qn_buffer_free(p);
}

static void erase(qn_task *t, int64_t id)
{
    const qn_server *s = t->ex->server;
    qn_slot_sequence has;
    qn_status status = qn_slots_get(s->slots, id, t->ex->key, 1, &has);
    if (status == QN_OK && has.n_ids) {
        const qn_prefix_options options = {has.adapter, has.salt};
        status = qn_model_forget_prefix(s->model, has.ids, has.n_ids, &options, NULL);
    }
    if (status == QN_OK) {
        qn_json_open(&t->answer, '{');
        qn_json_put_int(&t->answer, "id_slot", id);
        qn_json_put_int(&t->answer, "n_erased", has.n_ids);
        qn_json_close(&t->answer, '}');
    } else {
        qn_api_fail_status(&t->error, status);
    }
    qn_slot_sequence_free(&has);
}

static void act(qn_task *t)
{
    char action[16];
    if (!t->ex->server->slots) {
        qn_api_fail(&t->error, 501, "not_supported", NULL,
                    "slots are not saved: start the server with --slot-save-path DIR. POST /prompt-cache "
                    "saves what is computed of all prompts");
        return;
    }
    const int64_t id = find_slot(t);
    if (id < 0) {
        qn_api_fail(&t->error, 400, "invalid_value", "id_slot",
                    "id_slot of the path must be one of the %lld slots",
                    (long long)qn_slots_count(t->ex->server->slots));
        return;
    }
    if (qn_exchange_query(t->ex, "action", action, sizeof action, &t->error)) return;
    if (strcmp(action, "save") == 0)
        save(t, id);
    else if (strcmp(action, "restore") == 0)
        restore(t, id);
    else if (strcmp(action, "erase") == 0)
        erase(t, id);
    else
        qn_api_fail(&t->error, 400, "invalid_value", "action",
                    "action of the query must be save, restore or erase");
}

void qn_route_llama_slot_action(qn_exchange *ex)
{
    qn_task_begin(ex, act, NULL, 1);
}
