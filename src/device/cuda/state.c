/* Pages of keys and values and slots of recurrent state on the card. All units have addresses from the beginning,
 * one behind the other; memory is put behind them when a unit is first written, and stays. */
#include "base/checked.h"
#include "base/mem.h"
#include "device/cuda/cuda.h"
#include "device/cuda/pages.h"

#include <stdio.h>
#include <string.h>

enum { CHUNK_BYTES = 16 << 20 };

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
    s->is_mapped = qn_calloc(s->size_bytes / s->chunk_bytes, 1);
    if (!s->is_mapped) {
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
    qn_free(s->is_mapped);
    qn_free(s);
}

size_t qn_cuda_state_unit_bytes(const qn_state *s)
{
    return ((const qn_cuda_device_state *)s)->unit_bytes;
}

static qn_status put_memory(qn_cuda_device_state *s, size_t i)
{
    qn_cuda *d = device_of(s);
    QN_TRY(qn_cuda_said(d, d->shim->map(d->context, s->memory, i * s->chunk_bytes, s->chunk_bytes)));
    s->is_mapped[i] = 1;
    /* NaN where nobody has written yet: a kernel that reads it shows */
    return qn_cuda_said(d, d->shim->fill(d->context, s->memory + i * s->chunk_bytes, 0xff, s->chunk_bytes));
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
    const size_t begin = (size_t)unit * s->unit_bytes, end = begin + s->unit_bytes;
    for (size_t i = begin / s->chunk_bytes; i * s->chunk_bytes < end; i++)
        if (!s->is_mapped[i]) QN_TRY(put_memory(s, i));
    return QN_OK;
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

void qn_cuda_state_drop(qn_state *base, int32_t unit)
{
#ifdef QN_SHAKE
    qn_cuda_device_state *s = (qn_cuda_device_state *)base;
    qn_cuda *d = device_of(s);
    keep(s, qn_cuda_state_reach(s, unit));
    keep(s, qn_cuda_said(d, d->shim->fill(d->context, unit_at(s, unit), 0xff, s->unit_bytes)));
#endif
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
