#include "cache/pages.h"

#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#ifdef QN_SHAKE
#include "base/random.h"
#endif

/* Units whose number does not matter. */
typedef struct {
    int32_t *ids; /* [total] */
    int64_t n;
} heap;

struct qn_pages {
    qn_state *state;
    qn_ledger *ledger;
    size_t unit_bytes;
    pthread_mutex_t lock; /* of what follows; the ledger's may be taken inside it, but nothing reserved */
    int64_t total, n_free;
    int64_t unused; /* units from here on were never handed out */
    heap cached;    /* free, memory kept */
    heap dropped;   /* free, memory given back */
    int32_t *count; /* [total] */
};

qn_status qn_pages_new(qn_state *state, qn_pages **out)
{
    qn_pages *p = qn_calloc(1, sizeof *p);
    if (!p) return QN_E_NOMEM;
    pthread_mutex_init(&p->lock, NULL);
    p->state = state;
    p->ledger = state->device->ledger;
    p->unit_bytes = state->device->ops->state_unit_bytes(state);
    p->total = p->n_free = state->spec.n_units;
    p->cached.ids = qn_alloc_array((size_t)p->total, sizeof *p->cached.ids);
    p->dropped.ids = qn_alloc_array((size_t)p->total, sizeof *p->dropped.ids);
    p->count = qn_calloc((size_t)p->total, sizeof *p->count);
    if (!p->cached.ids || !p->dropped.ids || !p->count) {
        qn_pages_free(p);
        return QN_E_NOMEM;
    }
    *out = p;
    return QN_OK;
}

void qn_pages_free(qn_pages *p)
{
    if (!p) return;
    qn_ledger_release(p->ledger, QN_LEDGER_KV, (size_t)(p->total - p->n_free) * p->unit_bytes);
    qn_ledger_release(p->ledger, QN_LEDGER_CACHE, (size_t)p->cached.n * p->unit_bytes);
    pthread_mutex_destroy(&p->lock);
    qn_free(p->cached.ids);
    qn_free(p->dropped.ids);
    qn_free(p->count);
    qn_free(p);
}

static void put(heap *h, int32_t id)
{
    h->ids[h->n++] = id;
}

static int32_t get(heap *h)
{
#ifdef QN_SHAKE
    /* Any id will do: show that nothing depends on it. */
    static uint64_t draws;
    int64_t at = (int64_t)(qn_random_bits(7, draws++) % (uint64_t)h->n);
    int32_t swapped = h->ids[at];
    h->ids[at] = h->ids[h->n - 1];
    h->ids[h->n - 1] = swapped;
#endif
    return h->ids[--h->n];
}

static int32_t take(qn_pages *p)
{
#ifdef QN_SHAKE
    /* Now and then far out among the unused. */
    static uint64_t draws;
    if (p->unused < p->total && qn_random_bits(8, draws++) % 4 == 0) put(&p->dropped, (int32_t)p->unused++);
#endif
    if (p->cached.n) return get(&p->cached);
    return p->dropped.n ? get(&p->dropped) : (int32_t)p->unused++;
}

/* A page that nobody holds: kept while there is room for such. The lock is held. */
static void put_back(qn_pages *p, int32_t id)
{
    int keep = qn_ledger_keep(p->ledger, QN_LEDGER_KV, p->unit_bytes);
#ifdef QN_SHAKE
    p->state->device->ops->state_drop(p->state, id); /* it poisons */
#else
    if (!keep) p->state->device->ops->state_drop(p->state, id);
#endif
    put(keep ? &p->cached : &p->dropped, id);
    p->n_free++;
}

qn_status qn_pages_reserve(qn_pages *p, int64_t n, int32_t *ids)
{
    pthread_mutex_lock(&p->lock);
    if (n > p->n_free) {
        int64_t n_free = p->n_free;
        pthread_mutex_unlock(&p->lock);
        return qn_fail(QN_E_FULL, "kv cache: %lld pages wanted, %lld of %lld are free", (long long)n,
                       (long long)n_free, (long long)p->total);
    }
    int64_t n_cached = n < p->cached.n ? n : p->cached.n;
    for (int64_t i = 0; i < n; i++) {
        ids[i] = take(p);
        p->count[ids[i]] = 1;
    }
    p->n_free -= n;
    qn_ledger_reuse(p->ledger, QN_LEDGER_KV, (size_t)n_cached * p->unit_bytes);
    pthread_mutex_unlock(&p->lock);
    qn_status status = qn_ledger_reserve(p->ledger, QN_LEDGER_KV, (size_t)(n - n_cached) * p->unit_bytes);
    if (status == QN_OK) return QN_OK;
    pthread_mutex_lock(&p->lock);
    for (int64_t i = 0; i < n; i++) {
        p->count[ids[i]] = 0;
        if (i < n_cached) {
            put_back(p, ids[i]);
        } else {
            put(&p->dropped, ids[i]);
            p->n_free++;
        }
    }
    pthread_mutex_unlock(&p->lock);
    return status;
}

void qn_pages_retain(qn_pages *p, int32_t id)
{
    pthread_mutex_lock(&p->lock);
    p->count[id]++;
    pthread_mutex_unlock(&p->lock);
}

void qn_pages_release(qn_pages *p, int32_t id)
{
    pthread_mutex_lock(&p->lock);
    if (--p->count[id] == 0) put_back(p, id);
    pthread_mutex_unlock(&p->lock);
}

size_t qn_pages_reclaim(qn_pages *p, size_t size_bytes)
{
    size_t given = 0;
    pthread_mutex_lock(&p->lock);
    for (; given < size_bytes && p->cached.n; given += p->unit_bytes) {
        int32_t id = get(&p->cached);
        p->state->device->ops->state_drop(p->state, id);
        put(&p->dropped, id);
    }
    qn_ledger_release(p->ledger, QN_LEDGER_CACHE, given);
    pthread_mutex_unlock(&p->lock);
    return given;
}

int64_t qn_pages_free_count(const qn_pages *p)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&p->lock;
    pthread_mutex_lock(lock);
    int64_t n = p->n_free;
    pthread_mutex_unlock(lock);
    return n;
}

int64_t qn_pages_total(const qn_pages *p)
{
    return p->total;
}

size_t qn_pages_bytes(const qn_pages *p)
{
    return sizeof *p + 3 * (size_t)p->total * sizeof(int32_t);
}

size_t qn_pages_unit_bytes(const qn_pages *p)
{
    return p->unit_bytes;
}

/* ---- block tables ------------------------------------------------------------------------------------- */

qn_status qn_block_table_init(qn_block_table *t, int64_t capacity)
{
    *t = (qn_block_table){.capacity = capacity};
    t->ids = qn_alloc_array((size_t)capacity, sizeof *t->ids);
    return t->ids ? QN_OK : QN_E_NOMEM;
}

qn_status qn_block_table_extend(qn_block_table *t, qn_pages *p, int64_t end)
{
    int64_t need = (end + QN_STATE_PAGE_TOKENS - 1) / QN_STATE_PAGE_TOKENS - t->base;
    if (need <= t->n) return QN_OK;
    if (need > t->capacity)
        return qn_fail(QN_E_FULL, "kv cache: the sequence needs %lld pages, its table holds %lld",
                       (long long)need, (long long)t->capacity);
    QN_TRY(qn_pages_reserve(p, need - t->n, t->ids + t->n));
    t->n = need;
    return QN_OK;
}

void qn_block_table_release_below(qn_block_table *t, qn_pages *p, int64_t first)
{
    int64_t end = first / QN_STATE_PAGE_TOKENS - t->base;
    if (end > t->n) end = t->n;
    for (; t->n_released < end; t->n_released++) {
        qn_pages_release(p, t->ids[t->n_released]);
        t->ids[t->n_released] = -1;
    }
    int64_t move = t->n_released / QN_BLOCK_BASE_STEP * QN_BLOCK_BASE_STEP;
    if (move <= 0) return;
    memmove(t->ids, t->ids + move, (size_t)(t->n - move) * sizeof *t->ids);
    t->base += move;
    t->n -= move;
    t->n_released -= move;
}

void qn_block_table_clear(qn_block_table *t, qn_pages *p)
{
    for (int64_t i = t->n_released; i < t->n; i++) qn_pages_release(p, t->ids[i]);
    t->base = t->n = t->n_released = 0;
}

void qn_block_table_end(qn_block_table *t, qn_pages *p)
{
    qn_block_table_clear(t, p);
    qn_free(t->ids);
    *t = (qn_block_table){0};
}
