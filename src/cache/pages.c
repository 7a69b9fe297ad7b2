#include "cache/pages.h"

#include <string.h>

#include "base/mem.h"
#ifdef QN_SHAKE
#include "base/random.h"
#endif

struct qn_pages {
    qn_state *state;
    qn_ledger *ledger;
    size_t unit_bytes;
    int64_t total, n_free;
    int64_t unused; /* units from here on were never handed out */
    int32_t *stack; /* [total] free units that were used before; they come first: their memory is known to be
                       there */
    int64_t n_stack;
    int32_t *count; /* [total] */
};

qn_status qn_pages_new(qn_state *state, qn_pages **out)
{
    qn_pages *p = qn_calloc(1, sizeof *p);
    if (!p) return QN_E_NOMEM;
    p->state = state;
    p->ledger = state->device->ledger;
    p->unit_bytes = state->device->ops->state_unit_bytes(state);
    p->total = p->n_free = state->spec.n_units;
    p->stack = qn_alloc_array((size_t)p->total, sizeof *p->stack);
    p->count = qn_calloc((size_t)p->total, sizeof *p->count);
    if (!p->stack || !p->count) {
        qn_pages_free(p);
        return QN_E_NOMEM;
    }
    *out = p;
    return QN_OK;
}

void qn_pages_free(qn_pages *p)
{
    if (!p) return;
    if (p->stack && p->count)
        qn_ledger_release(p->ledger, QN_LEDGER_KV, (size_t)(p->total - p->n_free) * p->unit_bytes);
    qn_free(p->stack);
    qn_free(p->count);
    qn_free(p);
}

static int32_t take(qn_pages *p)
{
#ifdef QN_SHAKE
    /* Any free id will do: pick among the used ones, or far out among the unused, and show that nothing
     * depends on it. */
    static uint64_t draws;
    uint64_t r = qn_random_bits(7, draws++);
    if (p->unused < p->total && (p->n_stack == 0 || r % 4 == 0)) {
        p->stack[p->n_stack++] = (int32_t)p->unused++;
    }
    int64_t at = (int64_t)(r >> 8) % p->n_stack;
    int32_t swapped = p->stack[at];
    p->stack[at] = p->stack[p->n_stack - 1];
    p->stack[p->n_stack - 1] = swapped;
#endif
    return p->n_stack ? p->stack[--p->n_stack] : (int32_t)p->unused++;
}

qn_status qn_pages_reserve(qn_pages *p, int64_t n, int32_t *ids)
{
    if (n > p->n_free)
        return qn_fail(QN_E_FULL, "kv cache: %lld pages wanted, %lld of %lld are free", (long long)n,
                       (long long)p->n_free, (long long)p->total);
    QN_TRY(qn_ledger_reserve(p->ledger, QN_LEDGER_KV, (size_t)n * p->unit_bytes));
    for (int64_t i = 0; i < n; i++) {
        ids[i] = take(p);
        p->count[ids[i]] = 1;
    }
    p->n_free -= n;
    return QN_OK;
}

void qn_pages_retain(qn_pages *p, int32_t id)
{
    p->count[id]++;
}

void qn_pages_release(qn_pages *p, int32_t id)
{
    if (--p->count[id] > 0) return;
    p->state->device->ops->state_drop(p->state, id);
    p->stack[p->n_stack++] = id;
    p->n_free++;
    qn_ledger_release(p->ledger, QN_LEDGER_KV, p->unit_bytes);
}

int64_t qn_pages_free_count(const qn_pages *p)
{
    return p->n_free;
}

int64_t qn_pages_total(const qn_pages *p)
{
    return p->total;
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

void qn_block_table_end(qn_block_table *t, qn_pages *p)
{
    for (int64_t i = t->n_released; i < t->n; i++) qn_pages_release(p, t->ids[i]);
    qn_free(t->ids);
    *t = (qn_block_table){0};
}
