/* Pages of keys and values and slots of recurrent state on the card. All units have addresses from the beginning,
 * one behind the other; memory is put behind them when a unit is first written, chunk by chunk, and a chunk goes
 * when all of its units were dropped. The device's thread reaches units, any thread drops those that nobody holds.
 * What chunks have beside live units is in the ledger as far as its limit leaves room: never more than a chunk
 * beside each unit. */
#include "base/checked.h"
#include "base/mem.h"
#include "device/cuda/attention/pages.h"
#include "device/cuda/cuda.h"

#include <stdio.h>
#include <string.h>

enum { CHUNK_BYTES = 2 << 20 };

static qn_cuda *device_of(const qn_cuda_device_state *s)
{
    return (qn_cuda *)s->base.device;
}

qn_status qn_cuda_state_new(qn_device *base, const qn_state_spec *spec, qn_state **out)
{
    qn_cuda *d = (qn_cuda *)base;
    qn_cuda_device_state *s = qn_calloc(1, sizeof *s);
    if (!s) return QN_E_NOMEM;
    s->base.device = base;
    s->base.spec = *spec;
    if (spec->kind == QN_STATE_PAGES)
        s->part_bytes =
            qn_cuda_page_bytes(spec->dtype, spec->kv_heads, spec->head_dim, spec->v_in_k ? 0 : spec->v_dim);
    else if (!qn_mul_size((size_t)spec->slot_floats, sizeof(float), &s->part_bytes))
        s->part_bytes = 0;
    if (!s->part_bytes || !qn_mul_size(s->part_bytes, (size_t)spec->n_layers, &s->unit_bytes) ||
        !qn_mul_size(s->unit_bytes, (size_t)spec->n_units, &s->size_bytes) || !s->size_bytes) {
        qn_free(s);
        return qn_fail(QN_E_ARG, "state of %lld layers and %lld units is empty or too large",
                       (long long)spec->n_layers, (long long)spec->n_units);
    }
    if (s->size_bytes >= CHUNK_BYTES && !qn_align_size(s->size_bytes, CHUNK_BYTES, &s->size_bytes)) {
        qn_free(s);
        return qn_fail(QN_E_ARG, "state of %lld units is too large", (long long)spec->n_units);
    }
    void *memory = NULL;
    size_t granule = 1;
    const qn_status status = qn_cuda_said(d, d->shim->reserve(d->context, s->size_bytes, &memory, &granule));
    if (status != QN_OK) {
        qn_free(s);
        return status;
    }
    s->memory = memory;
    s->chunk_bytes = CHUNK_BYTES;
    if (s->size_bytes < CHUNK_BYTES)
        s->size_bytes = s->chunk_bytes = (s->size_bytes + granule - 1) / granule * granule;
    pthread_mutex_init(&s->lock, NULL);
    const size_t n_chunks = s->size_bytes / s->chunk_bytes;
    s->is_mapped = qn_calloc(n_chunks, 1);
    s->n_live = qn_calloc(n_chunks, sizeof *s->n_live);
    s->is_live = qn_calloc((size_t)spec->n_units, 1);
    if (!s->is_mapped || !s->n_live || !s->is_live) {
        qn_cuda_state_free(&s->base);
        return QN_E_NOMEM;
    }
    *out = &s->base;
    return QN_OK;
}

void qn_cuda_state_free(qn_state *base)
{
    qn_cuda_device_state *s = (qn_cuda_device_state *)base;
    if (!s) return;
    qn_cuda *d = device_of(s);
    for (size_t i = 0; s->is_mapped && i < s->size_bytes / s->chunk_bytes; i++)
        if (s->is_mapped[i]) d->shim->unmap(d->context, s->memory, i * s->chunk_bytes, s->chunk_bytes);
    d->shim->release(d->context, s->memory, s->size_bytes);
    qn_ledger_release(d->base.ledger, QN_LEDGER_SCRATCH, s->spare_bytes);
    pthread_mutex_destroy(&s->lock);
    qn_free(s->is_mapped);
    qn_free(s->n_live);
    qn_free(s->is_live);
    qn_free(s);
}

size_t qn_cuda_state_unit_bytes(const qn_state *s)
{
    return ((const qn_cuda_device_state *)s)->unit_bytes;
}

/* The chunks [first, end) that a unit lies in. */
static size_t chunks_of(const qn_cuda_device_state *s, int32_t unit, size_t *end)
{
    const size_t begin = (size_t)unit * s->unit_bytes;
    *end = (begin + s->unit_bytes - 1) / s->chunk_bytes + 1;
    return begin / s->chunk_bytes;
}

/* The lock is held. */
static void count_spare(qn_cuda_device_state *s)
{
    qn_ledger *ledger = s->base.device->ledger;
    const size_t spare = s->mapped_bytes - s->live_bytes;
    if (spare < s->spare_bytes)
        qn_ledger_release(ledger, QN_LEDGER_SCRATCH, s->spare_bytes - spare);
    else if (!qn_ledger_try(ledger, QN_LEDGER_SCRATCH, spare - s->spare_bytes))
        return;
    s->spare_bytes = spare;
}

static qn_status put_memory(qn_cuda_device_state *s, size_t i)
{
    qn_cuda *d = device_of(s);
    QN_TRY(qn_cuda_said(d, d->shim->map(d->context, s->memory, i * s->chunk_bytes, s->chunk_bytes)));
    s->is_mapped[i] = 1;
    s->mapped_bytes += s->chunk_bytes;
    /* NaN where nobody has written yet: a kernel that reads it shows */
    return qn_cuda_said(d, d->shim->fill(d->context, s->memory + i * s->chunk_bytes, 0xff, s->chunk_bytes));
}

/* The lock is held. */
static qn_status make_live(qn_cuda_device_state *s, int32_t unit)
{
    size_t end, first = chunks_of(s, unit, &end);
    for (size_t i = first; i < end; i++)
        if (!s->is_mapped[i]) QN_TRY(put_memory(s, i));
    for (size_t i = first; i < end; i++) s->n_live[i]++;
    s->is_live[unit] = 1;
    s->live_bytes += s->unit_bytes;
    count_spare(s);
    return QN_OK;
}

qn_status qn_cuda_state_reach(qn_cuda_device_state *s, int32_t unit)
{
    if (s->status != QN_OK) {
        const qn_status status = s->status;
        s->status = QN_OK;
        return qn_fail(status, "%s", s->message);
    }
    if (unit < 0 || unit >= s->base.spec.n_units)
        return qn_fail(QN_E_ARG, "device cuda: unit %d of a state of %lld", unit,
                       (long long)s->base.spec.n_units);
    if (s->is_live[unit]) return QN_OK; /* whoever reaches a unit holds it, so nobody drops it now */
    pthread_mutex_lock(&s->lock);
    const qn_status status = make_live(s, unit);
    pthread_mutex_unlock(&s->lock);
    return status;
}

static char *unit_at(const qn_cuda_device_state *s, int32_t unit)
{
    return s->memory + (size_t)unit * s->unit_bytes;
}

/* What cannot return a status leaves it for the next run. */
static void keep(qn_cuda_device_state *s, qn_status status)
{
    if (status == QN_OK) return;
    s->status = status;
    snprintf(s->message, sizeof s->message, "%s", qn_last_error());
}

/* The lock is held. */
static void let_go(qn_cuda_device_state *s, int32_t unit)
{
    qn_cuda *d = device_of(s);
    size_t end, first = chunks_of(s, unit, &end);
    s->is_live[unit] = 0;
    s->live_bytes -= s->unit_bytes;
    for (size_t i = first; i < end; i++) {
        if (--s->n_live[i]) continue;
        d->shim->unmap(d->context, s->memory, i * s->chunk_bytes, s->chunk_bytes);
        s->is_mapped[i] = 0;
        s->mapped_bytes -= s->chunk_bytes;
    }
    count_spare(s);
}

void qn_cuda_state_drop(qn_state *base, int32_t unit)
{
    qn_cuda_device_state *s = (qn_cuda_device_state *)base;
    pthread_mutex_lock(&s->lock);
    if (s->is_live[unit]) {
#ifdef QN_SHAKE
        const qn_cuda *d = device_of(s);
        d->shim->fill(d->context, unit_at(s, unit), 0xff, s->unit_bytes);
#endif
        let_go(s, unit);
    }
    pthread_mutex_unlock(&s->lock);
}

void qn_cuda_state_copy(qn_state *base, int32_t from, int32_t to)
{
    qn_cuda_device_state *s = (qn_cuda_device_state *)base;
    qn_cuda *d = device_of(s);
    qn_status status = qn_cuda_state_reach(s, from);
    if (status == QN_OK) status = qn_cuda_state_reach(s, to);
    if (status == QN_OK)
        status = qn_cuda_said(d, d->shim->copy(d->context, unit_at(s, to), unit_at(s, from), s->unit_bytes));
    keep(s, status);
}

void qn_cuda_state_read(const qn_state *base, int32_t unit, void *bytes)
{
    qn_cuda_device_state *s = (qn_cuda_device_state *)(uintptr_t)base;
    qn_cuda *d = device_of(s);
    qn_status status = qn_cuda_state_reach(s, unit);
    if (status == QN_OK)
        status = qn_cuda_said(d, d->shim->copy(d->context, bytes, unit_at(s, unit), s->unit_bytes));
    if (status == QN_OK) status = qn_cuda_said(d, d->shim->wait(d->context));
    if (status != QN_OK) memset(bytes, 0xff, s->unit_bytes);
    keep(s, status);
}

void qn_cuda_state_write(qn_state *base, int32_t unit, const void *bytes)
{
    qn_cuda_device_state *s = (qn_cuda_device_state *)base;
    qn_cuda *d = device_of(s);
    qn_status status = qn_cuda_state_reach(s, unit);
    if (status == QN_OK)
        status = qn_cuda_said(d, d->shim->copy(d->context, unit_at(s, unit), bytes, s->unit_bytes));
    if (status == QN_OK) status = qn_cuda_said(d, d->shim->wait(d->context));
    keep(s, status);
}

qn_cuda_state qn_cuda_state_layer(const qn_cuda_device_state *s, int64_t layer)
{
    const qn_state_spec *spec = &s->base.spec;
    return (qn_cuda_state){.base = s->memory + (size_t)layer * s->part_bytes,
                           .unit_bytes = s->unit_bytes,
                           .kv_heads = spec->kv_heads,
                           .head_dim = spec->head_dim,
                           .v_dim = spec->v_dim,
                           .v_in_k = spec->v_in_k,
                           .dtype = spec->dtype};
}
