/* The public functions of model.h, memory.h and tokenizer.h: argument checks, then the backend. */
#include <quern/quern.h>
#include <string.h>

#include "api/handles.h"
#include "api/tickets.h"
#include "backend/registry.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "model/config/rope_change.h"
#include "text/tokenizer/tokenizer.h"

static qn_status check_options(const qn_model_options *o)
{
    const struct {
        const char *name;
        int64_t value, most;
    } fields[] = {
        {"n_threads", o->n_threads, 1024},
        {"context_size", o->context_size, INT32_MAX},
        {"parallel_slots", o->parallel_slots, 1024},
        {"prefill_chunk", o->prefill_chunk, INT32_MAX},
        {"precision", (int64_t)o->precision, QN_PRECISION_EXACT},
        {"kv_type", (int64_t)o->kv_type, QN_KV_Q4_0},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (fields[i].value < 0 || fields[i].value > fields[i].most)
            return qn_fail(QN_E_ARG, "%s: %lld is not in the range 0 to %lld", fields[i].name,
                           (long long)fields[i].value, (long long)fields[i].most);
    }
    QN_TRY(qn_rope_change_check(&o->rope));
    if (o->packed && !*o->packed) return qn_fail(QN_E_ARG, "packed: the path is empty");
    return QN_OK;
}

/* Notes are for whoever looks at the info, and for whoever does not. */
static void log_notes(qn_model *model)
{
    qn_model_info info;
    if (!model->backend->get_info || model->backend->get_info(model->object, &info) != QN_OK) return;
    if (info.notes) qn_log_lines(QN_LOG_WARNING, info.notes);
}

/* "auto" chose a card. */
static void log_device(qn_model *model, const qn_model_options *o)
{
    qn_model_info info;
    if ((o->device && strcmp(o->device, "auto") != 0) || !model->backend->get_info) return;
    if (model->backend->get_info(model->object, &info) != QN_OK || !info.device_name || !*info.device_name)
        return;
    qn_log(QN_LOG_INFO, "computed on the device %s: %s", info.device, info.device_name);
}

static qn_status set_limits(qn_model *model, const qn_model_options *o)
{
    const size_t cache = o->cache_limit_bytes == QN_KEEP_NOTHING ? 0 : o->cache_limit_bytes;
    if (o->cache_limit_bytes) QN_TRY(qn_model_set_cache_limit(model, cache, NULL));
    return o->wired_limit_bytes ? qn_model_set_wired_limit(model, o->wired_limit_bytes, NULL) : QN_OK;
}

qn_status qn_model_open(const char *path, const qn_model_options *options, qn_model **out)
{
    const qn_model_options defaults = {0};
    if (!path || !out) return qn_fail(QN_E_ARG, "qn_model_open: path and out are needed");
    if (!options) options = &defaults;
    QN_TRY(check_options(options));
    const qn_backend *backend = qn_backend_get(options->backend);
    if (!backend) {
        char names[256];
        qn_backend_list_names(names, sizeof names);
        return qn_fail(QN_E_NOT_FOUND, "there is no backend named %s; there are: %s", options->backend,
                       names);
    }
    qn_model *model = qn_calloc(1, sizeof *model);
    if (!model) return QN_E_NOMEM;
    model->backend = backend;
    qn_status status = backend->open(path, options, &model->object);
    if (status != QN_OK) {
        qn_free(model);
        return status;
    }
    pthread_mutex_init(&model->lock, NULL);
    model->rotates = options->rotate;
    atomic_init(&model->n_borrowers, 0);
    status = set_limits(model, options);
    if (status != QN_OK) {
        qn_model_close(&model);
        return status;
    }
    log_device(model, options);
    log_notes(model);
    *out = model;
    return QN_OK;
}

qn_status qn_model_close(qn_model **model)
{
    if (!model || !*model) return QN_OK;
    qn_model *m = *model;
    const char *why = qn_generations_are_calling(m) ? "from within a call on one of the model's generations"
                      : atomic_load(&m->n_borrowers)
                          ? "before the training that uses the model's weights was closed"
                          : NULL;
    if (why) {
        const qn_status status = qn_fail(QN_E_ARG, "qn_model_close was called %s: the model stays open", why);
        qn_log(QN_LOG_ERROR, "%s", qn_last_error());
        return status;
    }
    *model = NULL;
    const int64_t n_cut = qn_generations_end_all(m);
    qn_tickets_end_all(m);
    m->backend->close(m->object);
    pthread_mutex_destroy(&m->lock);
    qn_free(m);
    return n_cut ? qn_fail(QN_E_CANCELLED, "qn_model_close: %lld generation%s cut off", (long long)n_cut,
                           n_cut == 1 ? " was" : "s were")
                 : QN_OK;
}

static qn_status check_handle(const qn_model *model, const void *out, const char *function)
{
    if (!model) return qn_fail(QN_E_ARG, "%s: the model is NULL", function);
    if (!out) return qn_fail(QN_E_ARG, "%s: out is NULL", function);
    return QN_OK;
}

qn_status qn_model_get_info(const qn_model *model, qn_model_info *out)
{
    QN_TRY(check_handle(model, out, "qn_model_get_info"));
    if (!model->backend->get_info) return qn_backend_fail_missing(model->backend, "info");
    QN_TRY(model->backend->get_info(model->object, out));
    if (!out->generation_config) out->generation_config = "";
    return QN_OK;
}

qn_status qn_model_get_metrics(const qn_model *model, qn_metrics *out)
{
    QN_TRY(check_handle(model, out, "qn_model_get_metrics"));
    if (!model->backend->get_metrics) return qn_backend_fail_missing(model->backend, "metrics");
    return model->backend->get_metrics(model->object, out);
}

qn_status qn_model_get_figures(const qn_model *model, qn_figures *out)
{
    QN_TRY(check_handle(model, out, "qn_model_get_figures"));
    if (!model->backend->get_figures) return qn_backend_fail_missing(model->backend, "figures");
    return model->backend->get_figures(model->object, out);
}

qn_status qn_model_get_memory(const qn_model *model, qn_memory *out)
{
    QN_TRY(check_handle(model, out, "qn_model_get_memory"));
    if (!model->backend->get_memory) return qn_backend_fail_missing(model->backend, "memory figures");
    return model->backend->get_memory(model->object, out);
}

typedef qn_status set_limit_fn(void *model, size_t limit_bytes, size_t *old_bytes);

static qn_status set_limit(qn_model *model, const char *what, set_limit_fn *set, size_t limit_bytes,
                           size_t *old_bytes)
{
    size_t old = 0;
    if (!set) return qn_backend_fail_missing(model->backend, what);
    QN_TRY(set(model->object, limit_bytes, &old));
    if (old_bytes) *old_bytes = old;
    return QN_OK;
}

qn_status qn_model_get_device_memory(const qn_model *model, qn_device_memory *out)
{
    QN_TRY(check_handle(model, out, "qn_model_get_device_memory"));
    *out = (qn_device_memory){0};
    return model->backend->get_device_memory ? model->backend->get_device_memory(model->object, out) : QN_OK;
}

qn_status qn_model_set_device_memory_limit(qn_model *model, size_t limit_bytes, size_t *old_bytes)
{
    QN_TRY(check_handle(model, model, "qn_model_set_device_memory_limit"));
    return set_limit(model, "a memory limit of the device", model->backend->set_device_memory_limit,
                     limit_bytes, old_bytes);
}

qn_status qn_model_set_memory_limit(qn_model *model, size_t limit_bytes, size_t *old_bytes)
{
    QN_TRY(check_handle(model, model, "qn_model_set_memory_limit"));
    return set_limit(model, "a memory limit", model->backend->set_memory_limit, limit_bytes, old_bytes);
}

qn_status qn_model_set_cache_limit(qn_model *model, size_t limit_bytes, size_t *old_bytes)
{
    QN_TRY(check_handle(model, model, "qn_model_set_cache_limit"));
    return set_limit(model, "a cache limit", model->backend->set_cache_limit, limit_bytes, old_bytes);
}

qn_status qn_model_set_wired_limit(qn_model *model, size_t limit_bytes, size_t *old_bytes)
{
    QN_TRY(check_handle(model, model, "qn_model_set_wired_limit"));
    return set_limit(model, "a wired limit", model->backend->set_wired_limit, limit_bytes, old_bytes);
}

qn_status qn_model_clear_cache(qn_model *model)
{
    QN_TRY(check_handle(model, model, "qn_model_clear_cache"));
    if (!model->backend->clear_cache) return qn_backend_fail_missing(model->backend, "clearing its cache");
    return model->backend->clear_cache(model->object);
}

qn_status qn_model_reset_peak_memory(qn_model *model)
{
    QN_TRY(check_handle(model, model, "qn_model_reset_peak_memory"));
    if (!model->backend->reset_peak_memory)
        return qn_backend_fail_missing(model->backend, "resetting the peak of its memory");
    return model->backend->reset_peak_memory(model->object);
}

qn_status qn_model_logits(qn_model *model, const qn_ids *rows, int64_t n_rows,
                          const qn_logits_options *options, qn_logits_fn *fn, void *user)
{
    const qn_logits_options defaults = {0};
    QN_TRY(check_handle(model, rows, "qn_model_logits"));
    if (!fn || n_rows < 1) return qn_fail(QN_E_ARG, "qn_model_logits: there are no rows, or no function");
    for (int64_t i = 0; i < n_rows; i++)
        if (!rows[i].ids || rows[i].n_ids < 1)
            return qn_fail(QN_E_ARG, "row %lld has no token ids", (long long)i);
    for (int64_t i = 0; options && options->row_first && i < n_rows; i++)
        if (options->row_first[i] < 0 || options->row_first[i] >= rows[i].n_ids)
            return qn_fail(QN_E_ARG, "row_first: row %lld has %lld tokens, none at position %lld",
                           (long long)i, (long long)rows[i].n_ids, (long long)options->row_first[i]);
    if (options && options->n_images && (!options->images || n_rows != 1))
        return qn_fail(QN_E_ARG, "images: a single row takes them, and images must not be NULL");
    if (!model->backend->logits) return qn_backend_fail_missing(model->backend, "logits");
    return model->backend->logits(model->object, rows, n_rows, options ? options : &defaults, fn, user);
}

qn_status qn_adapter_load(qn_model *model, const qn_adapter_options *options)
{
    QN_TRY(check_handle(model, options, "qn_adapter_load"));
    if (!options->name || !options->path)
        return qn_fail(QN_E_ARG, "qn_adapter_load: name and path are needed");
    if (!model->backend->adapter_load) return qn_backend_fail_missing(model->backend, "adapters");
    qn_adapter_options o = *options;
    if (o.scale == 0) o.scale = 1;
    return model->backend->adapter_load(model->object, &o);
}

qn_status qn_adapter_unload(qn_model *model, const char *name)
{
    QN_TRY(check_handle(model, model, "qn_adapter_unload"));
    if (!name) return qn_fail(QN_E_ARG, "qn_adapter_unload: name is NULL");
    if (!model->backend->adapter_unload) return qn_backend_fail_missing(model->backend, "adapters");
    return model->backend->adapter_unload(model->object, name);
}

qn_status qn_adapter_get_info(const qn_model *model, int64_t i_adapter, qn_adapter_info *out)
{
    QN_TRY(check_handle(model, out, "qn_adapter_get_info"));
    if (!model->backend->adapter_get_info) return qn_backend_fail_missing(model->backend, "adapters");
    return model->backend->adapter_get_info(model->object, i_adapter, out);
}

qn_status qn_model_encode(const qn_model *model, const char *text, size_t n_bytes,
                          const qn_encode_options *options, int32_t **ids, int64_t *n_ids)
{
    const qn_encode_options defaults = {0};
    QN_TRY(check_handle(model, ids, "qn_model_encode"));
    if (!n_ids || (!text && n_bytes)) return qn_fail(QN_E_ARG, "qn_model_encode: text or n_ids is NULL");
    if (n_bytes > QN_TOKENIZER_TEXT_MAX) /* said before gigabytes are read */
        return qn_fail(QN_E_ARG, "a text of more than %d bytes cannot be tokenised at once",
                       QN_TOKENIZER_TEXT_MAX);
    size_t valid = qn_utf8_valid_prefix(text, n_bytes);
    if (valid != n_bytes) return qn_fail(QN_E_FORMAT, "the text is not valid UTF-8 at byte %zu", valid);
    if (!model->backend->encode) return qn_backend_fail_missing(model->backend, "encoding");
    return model->backend->encode(model->object, text ? text : "", n_bytes, options ? options : &defaults,
                                  ids, n_ids);
}

qn_status qn_model_decode(const qn_model *model, const int32_t *ids, int64_t n_ids,
                          const qn_decode_options *options, char **text, size_t *n_bytes)
{
    const qn_decode_options defaults = {0};
    size_t ignored;
    QN_TRY(check_handle(model, text, "qn_model_decode"));
    if (n_ids < 0 || (!ids && n_ids)) return qn_fail(QN_E_ARG, "qn_model_decode: no ids");
    if (!model->backend->decode) return qn_backend_fail_missing(model->backend, "decoding");
    return model->backend->decode(model->object, ids, n_ids, options ? options : &defaults, text,
                                  n_bytes ? n_bytes : &ignored);
}

int qn_model_is_stop_id(const qn_model *model, int32_t id)
{
    return model && model->backend->is_stop_id && model->backend->is_stop_id(model->object, id);
}
