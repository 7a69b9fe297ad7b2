#include "engine/schedule/ring.h"

#include "base/mem.h"

qn_status qn_ring_init(qn_ring *r, int64_t capacity, int32_t n_top)
{
    r->places = qn_calloc((size_t)capacity, sizeof *r->places);
    if (!r->places) return QN_E_NOMEM;
    r->capacity = capacity;
    if (n_top <= 0) return QN_OK;
    r->top = qn_alloc_array((size_t)capacity * (size_t)n_top, sizeof *r->top);
    if (!r->top) return QN_E_NOMEM;
    for (int64_t i = 0; i < capacity; i++) r->places[i].top = r->top + i * n_top;
    return QN_OK;
}

void qn_ring_end(qn_ring *r)
{
    qn_free(r->places);
    qn_free(r->top);
    r->places = NULL;
    r->top = NULL;
}

int64_t qn_ring_room(const qn_ring *r)
{
    return r->capacity - (atomic_load_explicit(&r->n_written, memory_order_relaxed) -
                          atomic_load_explicit(&r->n_read, memory_order_seq_cst));
}

qn_drawn *qn_ring_place(qn_ring *r, int64_t i)
{
    return &r->places[(atomic_load_explicit(&r->n_written, memory_order_relaxed) + i) % r->capacity];
}

void qn_ring_publish(qn_ring *r, int64_t n)
{
    /* Ordered with the look at n_read that parks the request: qn_ring_drop does the same from the other side.
     */
    atomic_fetch_add_explicit(&r->n_written, n, memory_order_seq_cst);
}

const qn_drawn *qn_ring_peek(const qn_ring *r)
{
    long long at = atomic_load_explicit(&r->n_read, memory_order_relaxed);
    if (at == atomic_load_explicit(&r->n_written, memory_order_acquire)) return NULL;
    return &r->places[at % r->capacity];
}

int qn_ring_drop(qn_ring *r)
{
    long long at = atomic_fetch_add_explicit(&r->n_read, 1, memory_order_seq_cst);
    return atomic_load_explicit(&r->n_written, memory_order_seq_cst) - at >= r->capacity;
}
