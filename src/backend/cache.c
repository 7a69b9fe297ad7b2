/* The public functions of cache.h: handles are tickets of the backend's own objects. */
#include <quern/cache.h>

#include "backend/handles.h"
#include "backend/tickets.h"

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
    if (!logits) return qn_fail(QN_E_ARG, "qn_forward_with_cache: nowhere to put the logits");
    QN_TRY(model->backend->get_info(model->object, &info));
    if (capacity >= info.vocab_size) return QN_OK;
    return qn_fail(QN_E_ARG, "room for %lld logits: the vocabulary has %lld", (long long)capacity,
                   (long long)info.vocab_size);
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
    if (!out) return qn_fail(QN_E_ARG, "qn_cache_slice: nowhere to put the handle");
    QN_TRY(begin(cache, NULL, &use));
    qn_status status = use.model->backend->cache_slice(use.model->object, use.object, keep, &object);
    if (status == QN_OK) status = give(use.model, object, out);
    qn_ticket_end(&use);
    return status;
}

qn_status qn_cache_get_length(const qn_cache *cache, int64_t *out)
{
    qn_ticket_use use;
    if (!out) return qn_fail(QN_E_ARG, "qn_cache_get_length: nowhere to put the result");
    QN_TRY(begin(cache, NULL, &use));
    *out = use.model->backend->cache_length(use.model->object, use.object);
    qn_ticket_end(&use);
    return QN_OK;
}

void qn_cache_free(qn_cache *cache)
{
    if (cache) qn_ticket_free(ticket_of(cache));
}
