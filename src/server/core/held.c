#include "server/core/held.h"

#include <malloc.h>

#include "api/hold.h"
#include "base/status.h"

static const size_t least = (size_t)256 << 20, most = (size_t)1 << 30;
/* As much freed at once may leave pages of the C library's heap unused: they go back to the system. */
static const size_t trim_bytes = (size_t)1 << 20;
static const size_t small_bytes = (size_t)1 << 20;

void qn_held_start(qn_held *h, size_t machine_bytes)
{
    const size_t part = machine_bytes / 8;
    *h = (qn_held){.most = part < least ? least : part > most ? most : part};
    pthread_mutex_init(&h->lock, NULL);
}

void qn_held_end(qn_held *h)
{
    pthread_mutex_destroy(&h->lock);
}

void qn_held_set_model(qn_held *h, qn_model *model)
{
    qn_memory memory;
    pthread_mutex_lock(&h->lock);
    if (h->model && h->in_model) qn_model_release(h->model, h->in_model);
    h->in_model = 0;
    h->model = model;
    if (model && qn_model_get_memory(model, &memory) == QN_OK && memory.limit_bytes) {
        const size_t left = memory.limit_bytes > memory.active_memory_bytes
                                ? memory.limit_bytes - memory.active_memory_bytes
                                : 0;
        if (left / 2 < h->most) h->most = left / 2;
    }
    pthread_mutex_unlock(&h->lock);
}

/* Up to where such a request may take. */
static size_t bound_of(const qn_held *h, size_t whole_bytes, int arrives)
{
    return whole_bytes <= small_bytes ? h->most : arrives ? h->most / 2 : h->most / 4 * 3;
}

qn_status qn_held_take(qn_held *h, size_t size_bytes, size_t whole_bytes, int arrives)
{
    pthread_mutex_lock(&h->lock);
    const size_t bound = bound_of(h, whole_bytes, arrives);
    qn_status status = QN_OK;
    if (h->held > bound || size_bytes > bound - h->held)
        status = qn_fail(QN_E_NOMEM,
                         "the requests that are not answered hold %zu of %zu bytes; %zu more have no room",
                         h->held, bound, size_bytes);
    else if (h->model)
        status = qn_model_hold(h->model, size_bytes);
    if (status == QN_OK) {
        h->held += size_bytes;
        h->in_model += h->model ? size_bytes : 0;
    }
    pthread_mutex_unlock(&h->lock);
    return status;
}

void qn_held_give(qn_held *h, size_t size_bytes)
{
    if (!size_bytes) return;
    pthread_mutex_lock(&h->lock);
    const size_t n = size_bytes < h->in_model ? size_bytes : h->in_model;
    if (n) qn_model_release(h->model, n);
    h->in_model -= n;
    h->held -= size_bytes;
    pthread_mutex_unlock(&h->lock);
    if (size_bytes >= trim_bytes) malloc_trim(0);
}

int qn_held_fits(qn_held *h, size_t size_bytes)
{
    pthread_mutex_lock(&h->lock);
    const int fits = size_bytes <= bound_of(h, size_bytes, 0);
    pthread_mutex_unlock(&h->lock);
    return fits;
}

size_t qn_held_get(qn_held *h)
{
    pthread_mutex_lock(&h->lock);
    const size_t held = h->held;
    pthread_mutex_unlock(&h->lock);
    return held;
}
