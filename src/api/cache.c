/* The public functions of cache.h: handles are tickets of the backend's own objects. */
#include <quern/backend.h>
#include <string.h>

#include "api/handles.h"
#include "api/tickets.h"
#include "backend/registry.h"
#include "base/utf8.h"

_Static_assert(sizeof(qn_cache *) >= sizeof(qn_ticket), "a handle has room for a ticket");

static qn_ticket ticket_of(const qn_cache *cache)
{
    return (qn_ticket)(uintptr_t)cache;
}

static void free_object(qn_model *model, void *object)
{
    model->backend->cache_free(model->object, object);
}

/* Gives the object out as a handle. */
static qn_status give(qn_model *model, void *object, qn_cache **out)
{
    qn_ticket ticket = 0;
    qn_status status = qn_ticket_new(model, object, free_object, &ticket);
    if (status == QN_OK)
        *out = (qn_cache *)(uintptr_t)ticket;
    else
        free_object(model, object);
    return status;
}

static qn_status begin(const qn_cache *cache, const qn_model *model, qn_ticket_use *use)
{
    if (!cache) return qn_fail(QN_E_ARG, "the cache handle is NULL");
    return qn_ticket_begin(ticket_of(cache), model, use);
}

static qn_status check_logits(const qn_model *model, const float *logits, int64_t capacity)
{
    qn_model_info info;
    if (!logits) return qn_fail(QN_E_ARG, "qn_forward_with_cache: logits is NULL");
    QN_TRY(model->backend->get_info(model->object, &info));
    if (capacity >= info.vocab_size) return QN_OK;
    return qn_fail(QN_E_ARG, "there is room for %lld logits, but the vocabulary has %lld",
                   (long long)capacity, (long long)info.vocab_size);
}

qn_status qn_forward_with_cache(qn_model *model, const int32_t *ids, int64_t n_ids, const qn_cache *cache,
                                float *logits, int64_t logits_capacity, qn_cache **out)
{
    qn_ticket_use use = {.object = NULL};
    void *object = NULL;
    if (!model || !out) return qn_fail(QN_E_ARG, "qn_forward_with_cache: model and out are needed");
    if (!ids || n_ids < 1) return qn_fail(QN_E_ARG, "qn_forward_with_cache: there are no token ids");
    if (!model->backend->cache_forward || !model->backend->get_info)
        return qn_backend_fail_missing(model->backend, "cache handles");
    QN_TRY(check_logits(model, logits, logits_capacity));
    if (cache) QN_TRY(begin(cache, model, &use));
    qn_status status = model->backend->cache_forward(model->object, ids, n_ids, use.object, logits, &object);
    if (cache) qn_ticket_end(&use);
    return status == QN_OK ? give(model, object, out) : status;
}

qn_status qn_cache_slice(const qn_cache *cache, int64_t keep, qn_cache **out)
{
    qn_ticket_use use;
    void *object = NULL;
    if (!out) return qn_fail(QN_E_ARG, "qn_cache_slice: out is NULL");
    QN_TRY(begin(cache, NULL, &use));
    qn_status status = use.model->backend->cache_slice(use.model->object, use.object, keep, &object);
    if (status == QN_OK) status = give(use.model, object, out);
    qn_ticket_end(&use);
    return status;
}

qn_status qn_cache_get_length(const qn_cache *cache, int64_t *out)
{
    qn_ticket_use use;
    if (!out) return qn_fail(QN_E_ARG, "qn_cache_get_length: out is NULL");
    QN_TRY(begin(cache, NULL, &use));
    *out = use.model->backend->cache_length(use.model->object, use.object);
    qn_ticket_end(&use);
    return QN_OK;
}

void qn_cache_free(qn_cache *cache)
{
    if (cache) qn_ticket_free(ticket_of(cache));
}

/* ---- files -------------------------------------------------------------------------------------------- */

qn_status qn_cache_save(const qn_cache *cache, const char *path)
{
    qn_ticket_use use;
    if (!path) return qn_fail(QN_E_ARG, "qn_cache_save: path is NULL");
    QN_TRY(begin(cache, NULL, &use));
    const qn_backend *backend = use.model->backend;
    qn_status status = backend->cache_save ? backend->cache_save(use.model->object, use.object, path)
                                           : qn_backend_fail_missing(backend, "saving handles");
    qn_ticket_end(&use);
    return status;
}

qn_status qn_cache_load(qn_model *model, const char *path, qn_cache **out)
{
    void *object = NULL;
    if (!model || !path || !out) return qn_fail(QN_E_ARG, "qn_cache_load: model, path and out are needed");
    if (!model->backend->cache_load) return qn_backend_fail_missing(model->backend, "loading handles");
    QN_TRY(model->backend->cache_load(model->object, path, &object));
    return give(model, object, out);
}

qn_status qn_model_save_state(qn_model *model, const char *path)
{
    if (!model || !path) return qn_fail(QN_E_ARG, "qn_model_save_state: model and path are needed");
    if (!model->backend->save_state) return qn_backend_fail_missing(model->backend, "saving its state");
    return model->backend->save_state(model->object, path);
}

qn_status qn_model_load_state(qn_model *model, const char *path)
{
    if (!model || !path) return qn_fail(QN_E_ARG, "qn_model_load_state: model and path are needed");
    if (!model->backend->load_state) return qn_backend_fail_missing(model->backend, "loading its state");
    return model->backend->load_state(model->object, path);
}

/* ---- prefixes ----------------------------------------------------------------------------------------- */

/* One row without images, in the form that backends get. */
static qn_status check_prompt(const qn_prompt *prompt, const char *function, qn_prompt *normal,
                              qn_conversation **own)
{
    QN_TRY(qn_prompt_normalise(prompt, normal, own));
    if (normal->n_images)
        return qn_fail(QN_E_UNSUPPORTED, "%s: prompts with images cannot be kept", function);
    if (normal->rows && normal->n_rows != 1)
        return qn_fail(QN_E_ARG, "%s: %lld rows, expected one", function, (long long)normal->n_rows);
    return QN_OK;
}

qn_status qn_model_warm(qn_model *model, const qn_prompt *prompt, const char *name)
{
    return qn_model_warm_prefix(model, prompt, name, NULL);
}

qn_status qn_model_warm_prefix(qn_model *model, const qn_prompt *prompt, const char *name,
                               const qn_prefix_options *options)
{
    const qn_prefix_options none = {0};
    qn_prompt normal;
    qn_conversation *own = NULL;
    if (!model || !prompt || !name || !name[0])
        return qn_fail(QN_E_ARG, "qn_model_warm: model, prompt and a name are needed");
    if (!model->backend->warm) return qn_backend_fail_missing(model->backend, "prefixes that are kept ready");
    qn_status status = check_prompt(prompt, "qn_model_warm", &normal, &own);
    if (status == QN_OK)
        status = model->backend->warm(model->object, &normal, name, options ? options : &none);
    qn_conversation_free(own);
    return status;
}

qn_status qn_model_unwarm(qn_model *model, const char *name)
{
    if (!model || !name) return qn_fail(QN_E_ARG, "qn_model_unwarm: model and name are needed");
    if (!model->backend->unwarm)
        return qn_backend_fail_missing(model->backend, "prefixes that are kept ready");
    return model->backend->unwarm(model->object, name);
}

static qn_status fail_without_prefixes(const qn_model *model)
{
    return qn_backend_fail_missing(model->backend, "saving prefixes");
}

qn_status qn_model_save_prefix(qn_model *model, const int32_t *ids, int64_t n_ids,
                               const qn_prefix_options *options, const char *path, int64_t *n_saved)
{
    const qn_prefix_options none = {0};
    if (!model || (!ids && n_ids) || n_ids < 0 || !path || !n_saved)
        return qn_fail(QN_E_ARG, "qn_model_save_prefix: model, ids, path and n_saved are needed");
    if (!model->backend->save_prefix) return fail_without_prefixes(model);
    return model->backend->save_prefix(model->object, ids, n_ids, options ? options : &none, path, n_saved);
}

qn_status qn_model_load_prefix(qn_model *model, const char *path, qn_saved_prefix **out)
{
    if (!model || !path || !out)
        return qn_fail(QN_E_ARG, "qn_model_load_prefix: model, path and out are needed");
    if (!model->backend->load_prefix) return fail_without_prefixes(model);
    return model->backend->load_prefix(model->object, path, out);
}

qn_status qn_model_forget_prefix(qn_model *model, const int32_t *ids, int64_t n_ids,
                                 const qn_prefix_options *options, int64_t *n_forgotten)
{
    const qn_prefix_options none = {0};
    int64_t n = 0;
    if (!model || (!ids && n_ids) || n_ids < 0)
        return qn_fail(QN_E_ARG, "qn_model_forget_prefix: model and ids are needed");
    if (!model->backend->forget_prefix) return fail_without_prefixes(model);
    QN_TRY(model->backend->forget_prefix(model->object, ids, n_ids, options ? options : &none, &n));
    if (n_forgotten) *n_forgotten = n;
    return QN_OK;
}

/* Text of ids[0..n), cut at a character's end; empty where the model has no tokenizer. */
static qn_status put_text(const qn_model *model, const int32_t *ids, int64_t n, char *out)
{
    char *text = NULL;
    size_t n_bytes = 0;
    out[0] = 0;
    if (n <= 0) return QN_OK;
    qn_status status = qn_model_decode(model, ids, n, NULL, &text, &n_bytes);
    if (status == QN_E_NOT_FOUND || status == QN_E_UNSUPPORTED) return QN_OK;
    QN_TRY(status);
    size_t kept = n_bytes < QN_CACHE_TEXT_BYTES ? n_bytes : QN_CACHE_TEXT_BYTES - 1;
    if (kept < n_bytes) kept = qn_utf8_valid_prefix(text, kept);
    memcpy(out, text, kept);
    out[kept] = 0;
    qn_buffer_free(text);
    return QN_OK;
}

static qn_status explain(qn_model *model, const qn_prompt *normal, const qn_prefix_options *options,
                         qn_cache_miss *out)
{
    const qn_prefix_options none = {0};
    QN_TRY(model->backend->cache_explain(model->object, normal, options ? options : &none, out));
    QN_TRY(put_text(model, out->given + out->i_given, out->i_given < out->n_given, out->given_token));
    QN_TRY(put_text(model, out->known + out->i_known, out->i_known < out->n_known, out->known_token));
    QN_TRY(put_text(model, out->given, out->n_given, out->given_context));
    return put_text(model, out->known, out->n_known, out->known_context);
}

qn_status qn_cache_explain(qn_model *model, const qn_prompt *prompt, qn_cache_miss *out)
{
    return qn_cache_explain_prefix(model, prompt, NULL, out);
}

qn_status qn_cache_explain_prefix(qn_model *model, const qn_prompt *prompt, const qn_prefix_options *options,
                                  qn_cache_miss *out)
{
    qn_prompt normal;
    qn_conversation *own = NULL;
    qn_cache_miss miss = {.reason = QN_CACHE_USABLE};
    if (!model || !prompt || !out)
        return qn_fail(QN_E_ARG, "qn_cache_explain: model, prompt and out are needed");
    if (!model->backend->cache_explain) return qn_backend_fail_missing(model->backend, "a prefix cache");
    qn_status status = check_prompt(prompt, "qn_cache_explain", &normal, &own);
    if (status == QN_OK) status = explain(model, &normal, options, &miss);
    if (status == QN_OK) *out = miss;
    qn_conversation_free(own);
    return status;
}

const char *qn_cache_reason_name(qn_cache_reason reason)
{
    static const char *const names[] = {
#define QN_CACHE_REASON_TEXT(name, text) text,
        QN_CACHE_REASON_LIST(QN_CACHE_REASON_TEXT)
#undef QN_CACHE_REASON_TEXT
    };
    return (size_t)reason < sizeof names / sizeof *names ? names[reason] : "unknown reason";
}

qn_status qn_cache_get_counters(const qn_model *model, qn_cache_counters *out)
{
    if (!model || !out) return qn_fail(QN_E_ARG, "qn_cache_get_counters: model and out are needed");
    if (!model->backend->cache_get_counters) return qn_backend_fail_missing(model->backend, "a prefix cache");
    return model->backend->cache_get_counters(model->object, out);
}
