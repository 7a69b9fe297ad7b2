#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "base/mem.h"
#include "device/cpu/cpu.h"

qn_status qn_cpu_state_new(qn_device *d, const qn_state_spec *spec, qn_state **out)
{
    qn_cpu_state *s = qn_calloc(1, sizeof *s);
    if (!s) return QN_E_NOMEM;
    s->base.device = d;
    s->base.spec = *spec;
    if (spec->kind == QN_STATE_PAGES)
        s->part_bytes =
            qn_kv_page_bytes(spec->dtype, spec->kv_heads, spec->head_dim, spec->v_in_k ? 0 : spec->v_dim);
    else if (!qn_mul_size((size_t)spec->slot_floats, sizeof(float), &s->part_bytes) ||
             !qn_align_size(s->part_bytes, 64, &s->part_bytes))
        s->part_bytes = 0;
    if (!s->part_bytes || !qn_mul_size(s->part_bytes, (size_t)spec->n_layers, &s->unit_bytes) ||
        !qn_mul_size(s->unit_bytes, (size_t)spec->n_units, &s->size_bytes) || !s->size_bytes) {
        qn_free(s);
        return qn_fail(QN_E_ARG, "state of %lld layers and %lld units is empty or too large",
                       (long long)spec->n_layers, (long long)spec->n_units);
    }
    s->memory = qn_alloc_mapped(s->size_bytes);
    if (!s->memory) {
        qn_free(s);
        return QN_E_NOMEM;
    }
    *out = &s->base;
#ifdef QN_SHAKE
    if (s->size_bytes < (size_t)256 << 20)
        for (int64_t u = 0; u < spec->n_units; u++) qn_cpu_state_drop(*out, (int32_t)u);
#endif
    return QN_OK;
}

void qn_cpu_state_free(qn_state *base)
{
    qn_cpu_state *s = (qn_cpu_state *)base;
    if (!s) return;
    qn_free_mapped(s->memory, s->size_bytes);
    qn_free(s);
}

size_t qn_cpu_state_unit_bytes(const qn_state *s)
{
    return ((const qn_cpu_state *)s)->unit_bytes;
}

void qn_cpu_state_drop(qn_state *base, int32_t unit)
{
    qn_cpu_state *s = (qn_cpu_state *)base;
    char *at = s->memory + (size_t)unit * s->unit_bytes;
#ifdef QN_SHAKE
    memset(at, 0xff, s->unit_bytes); /* NaN in f16 and f32: whoever reads it shows */
#else
    qn_drop_pages(at, s->unit_bytes);
#endif
}

void qn_cpu_state_copy(qn_state *base, int32_t from, int32_t to)
{
    qn_cpu_state *s = (qn_cpu_state *)base;
    memcpy(s->memory + (size_t)to * s->unit_bytes, s->memory + (size_t)from * s->unit_bytes, s->unit_bytes);
}

void qn_cpu_state_read(const qn_state *base, int32_t unit, void *bytes)
{
    const qn_cpu_state *s = (const qn_cpu_state *)base;
    memcpy(bytes, s->memory + (size_t)unit * s->unit_bytes, s->unit_bytes);
}

void qn_cpu_state_write(qn_state *base, int32_t unit, const void *bytes)
{
    qn_cpu_state *s = (qn_cpu_state *)base;
    memcpy(s->memory + (size_t)unit * s->unit_bytes, bytes, s->unit_bytes);
}

qn_kv_layout qn_cpu_state_pages(const qn_state *base, int64_t layer)
{
    const qn_cpu_state *s = (const qn_cpu_state *)base;
    const qn_state_spec *spec = &base->spec;
    return (qn_kv_layout){.dtype = spec->dtype,
                          .kv_heads = spec->kv_heads,
                          .head_dim = spec->head_dim,
                          .v_dim = spec->v_dim,
                          .v_in_k = spec->v_in_k,
                          .pages = s->memory + (size_t)layer * s->part_bytes,
                          .page_stride_bytes = s->unit_bytes};
}

float *qn_cpu_state_slot(const qn_state *base, int64_t layer, int64_t slot)
{
    const qn_cpu_state *s = (const qn_cpu_state *)base;
    return (float *)(s->memory + (size_t)slot * s->unit_bytes + (size_t)layer * s->part_bytes);
}
