/* What is left of memory, what MLX keeps for reuse, and freeing: buffers are the host's memory but for
 * weights. */
#include <stdint.h>
#include <unistd.h>

#include "base/mem.h"
#include "device/host.h"
#include "device/mlx/mlx.h"

size_t qn_mlx_room(const qn_mlx *d)
{
    const qn_ledger_figures f = qn_ledger_get(d->base.ledger);
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    const size_t machine = pages > 0 && page > 0 ? (size_t)pages * (size_t)page : SIZE_MAX;
    const size_t limit = f.limit && f.limit < machine ? f.limit : machine;
    const size_t used = f.total - f.held[QN_LEDGER_CACHE];
    return used < limit ? limit - used : 0;
}

void qn_mlx_limit_by_default(qn_ledger *ledger, const qn_mlx_about *about)
{
    if (about->recommended_bytes && !qn_ledger_get_limit(ledger))
        qn_ledger_set_limit(ledger, about->recommended_bytes);
}

/* ---- MLX's cache and wired memory ---------------------------------------------------------------------- */

typedef struct {
    const qn_mlx *d;
    size_t bytes;
} memory_call;

static qn_status read_cache(void *arg)
{
    memory_call *c = arg;
    c->bytes = c->d->shim->memory().cache_bytes;
    return QN_OK;
}

static qn_status limit_cache(void *arg)
{
    const memory_call *c = arg;
    c->d->shim->set_limits(SIZE_MAX, c->bytes, SIZE_MAX);
    if (c->d->shim->memory().cache_bytes > c->bytes) c->d->shim->clear_cache(1);
    return QN_OK;
}

static qn_status clear(void *arg)
{
    ((memory_call *)arg)->d->shim->clear_cache(1);
    return QN_OK;
}

static qn_status wire(void *arg)
{
    const memory_call *c = arg;
    c->d->shim->set_limits(SIZE_MAX, SIZE_MAX, c->bytes);
    return QN_OK;
}

size_t qn_mlx_cache_bytes(qn_device *d)
{
    memory_call c = {(qn_mlx *)d, 0};
    qn_mlx_call(c.d->owner, read_cache, &c);
    return c.bytes;
}

void qn_mlx_set_cache_limit(qn_device *d, size_t limit_bytes)
{
    memory_call c = {(qn_mlx *)d, limit_bytes};
    qn_mlx_call(c.d->owner, limit_cache, &c);
}

void qn_mlx_clear_cache(qn_device *d)
{
    memory_call c = {(qn_mlx *)d, 0};
    qn_mlx_call(c.d->owner, clear, &c);
}

qn_status qn_mlx_wire(qn_device *base, size_t limit_bytes, size_t *wired_bytes)
{
    memory_call c = {(qn_mlx *)base, limit_bytes};
    if (!c.d->shim->about().on_gpu && limit_bytes)
        return qn_fail(QN_E_UNSUPPORTED, "device mlx: MLX cannot lock memory without a GPU");
    QN_TRY(qn_mlx_call(c.d->owner, wire, &c));
    const size_t weights = qn_ledger_held(base->ledger, QN_LEDGER_WEIGHTS);
    *wired_bytes = weights < limit_bytes ? weights : limit_bytes;
    return QN_OK;
}

void qn_mlx_keep_limit(const qn_mlx *d)
{
    const qn_ledger_figures f = qn_ledger_get(d->base.ledger);
    if (f.limit && f.total + d->shim->memory().cache_bytes > f.limit) d->shim->clear_cache(0);
}

/* ---- buffers ------------------------------------------------------------------------------------------- */

typedef struct {
    const qn_mlx_shim *shim;
    qn_mlx_weight *weight;
} freeing;

static qn_status free_weight(void *arg)
{
    const freeing *f = arg;
    f->shim->weight_free(f->weight);
    return QN_OK;
}

void qn_mlx_free(qn_device *base, qn_buffer *b)
{
    qn_mlx *d = (qn_mlx *)base;
    if (b->layout == QN_MLX_LAYOUT_WEIGHT) {
        qn_mlx_call(d->owner, free_weight, &(freeing){d->shim, b->data});
        qn_ledger_release(base->ledger, b->entry, b->size_bytes);
    } else {
        qn_mlx_free_mirror(base, b);
        qn_host_free(base, b);
    }
    qn_free(b);
}
