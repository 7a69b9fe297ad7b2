/* State on MLX: pools that grow by need. */
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/mem.h"
#include "device/mlx/mlx.h"
#include "prim/dtype.h"

/* What a call of the shim needs, and gives. */
typedef struct {
    qn_mlx_device_state *s;
    const qn_mlx_shim *shim;
    int32_t from, unit;
    void *bytes;
    const void *source;
    size_t room;
} state_call;

static qn_mlx *device_of(const qn_mlx_device_state *s)
{
    return (qn_mlx *)s->base.device;
}

static qn_status check_type(const qn_state_spec *spec)
{
    if (spec->kind == QN_STATE_SLOTS || spec->dtype == QN_DTYPE_F32 || spec->dtype == QN_DTYPE_F16 ||
        spec->dtype == QN_DTYPE_BF16)
        return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED,
                   "device mlx: no keys and values of type %s; --kv-type f16 is one that it has",
                   qn_dtype_name(spec->dtype));
}

/* One layer's bytes of a unit times the layers, and that of all units is a size. */
static int size_unit(const qn_state_spec *spec, size_t *out)
{
    size_t n = (size_t)spec->slot_floats, each = sizeof(float), all;
    if (spec->kind == QN_STATE_PAGES) {
        const int64_t dims = spec->head_dim + (spec->v_in_k ? 0 : spec->v_dim);
        each = spec->dtype == QN_DTYPE_F32 ? 4 : 2;
        if (!qn_mul_size((size_t)dims, (size_t)spec->kv_heads, &n) ||
            !qn_mul_size(n, QN_STATE_PAGE_TOKENS, &n))
            return 0;
    }
    return qn_mul_size(n, each, &n) && qn_mul_size(n, (size_t)spec->n_layers, out) && *out &&
           qn_mul_size(*out, (size_t)spec->n_units, &all) && all;
}

static qn_status new_state(void *arg)
{
    const state_call *c = arg;
    const qn_state_spec *p = &c->s->base.spec;
    return qn_mlx_check(c->shim,
                        c->shim->state_new(p->kind == QN_STATE_PAGES, p->n_layers, p->n_units,
                                           QN_STATE_PAGE_TOKENS, p->kv_heads, p->head_dim,
                                           p->v_in_k ? 0 : p->v_dim, p->dtype, p->slot_floats, &c->s->mlx));
}

qn_status qn_mlx_state_new(qn_device *d, const qn_state_spec *spec, qn_state **out)
{
    QN_TRY(check_type(spec));
    size_t unit_bytes;
    if (!size_unit(spec, &unit_bytes))
        return qn_fail(QN_E_ARG, "state of %lld layers and %lld units is empty or too large",
                       (long long)spec->n_layers, (long long)spec->n_units);
    qn_mlx_device_state *s = qn_calloc(1, sizeof *s);
    if (!s) return QN_E_NOMEM;
    s->base.device = d;
    s->base.spec = *spec;
    s->unit_bytes = unit_bytes;
    const qn_status status =
        qn_mlx_call(device_of(s)->owner, new_state, &(state_call){.s = s, .shim = device_of(s)->shim});
    if (status != QN_OK) {
        qn_free(s);
        return status;
    }
    *out = &s->base;
    return QN_OK;
}

static qn_status free_state(void *arg)
{
    const state_call *c = arg;
    c->shim->state_free(c->s->mlx);
    return QN_OK;
}

void qn_mlx_state_free(qn_state *base)
{
    qn_mlx_device_state *s = (qn_mlx_device_state *)base;
    if (!s) return;
    qn_mlx_call(device_of(s)->owner, free_state, &(state_call){.s = s, .shim = device_of(s)->shim});
    qn_ledger_release(base->device->ledger, QN_LEDGER_KV, s->spare_bytes);
    qn_free(s);
}

size_t qn_mlx_state_unit_bytes(const qn_state *s)
{
    return ((const qn_mlx_device_state *)s)->unit_bytes;
}

qn_status qn_mlx_state_count(qn_mlx_device_state *s)
{
    if (s->status != QN_OK) return qn_fail(s->status, "%s", s->message);
    const size_t spare = device_of(s)->shim->state_spare(s->mlx);
    if (spare > s->spare_bytes)
        QN_TRY(qn_ledger_reserve(s->base.device->ledger, QN_LEDGER_KV, spare - s->spare_bytes));
    else
        qn_ledger_release(s->base.device->ledger, QN_LEDGER_KV, s->spare_bytes - spare);
    s->spare_bytes = spare;
    return QN_OK;
}

/* Copies and writes cannot fail: the next run does, for what the unit holds is not what it should. */
static void remember(qn_mlx_device_state *s, qn_status status)
{
    if (status == QN_OK) status = qn_mlx_state_count(s);
    if (status == QN_OK || s->status != QN_OK) return;
    s->status = status;
    snprintf(s->message, sizeof s->message, "%s", qn_last_error());
}

#ifdef QN_SHAKE
static qn_status drop_unit(void *arg)
{
    const state_call *c = arg;
    return qn_mlx_check(c->shim, c->shim->state_drop(c->s->mlx, c->unit));
}
#endif

/* A unit's memory is part of its neighbours', so there is none to give back. Whoever reclaims memory calls
 * this with locks held, and must not wait for MLX. */
void qn_mlx_state_drop(qn_state *base, int32_t unit)
{
#ifdef QN_SHAKE
    qn_mlx_device_state *s = (qn_mlx_device_state *)base;
    remember(s, qn_mlx_call(device_of(s)->owner, drop_unit,
                            &(state_call){.s = s, .shim = device_of(s)->shim, .unit = unit}));
#endif
}

static qn_status copy_unit(void *arg)
{
    const state_call *c = arg;
    return qn_mlx_check(c->shim, c->shim->state_copy(c->s->mlx, c->from, c->unit, c->room));
}

void qn_mlx_state_copy(qn_state *base, int32_t from, int32_t to)
{
    qn_mlx_device_state *s = (qn_mlx_device_state *)base;
    state_call c = {
        .s = s, .shim = device_of(s)->shim, .from = from, .unit = to, .room = qn_mlx_room(device_of(s))};
    remember(s, qn_mlx_call(device_of(s)->owner, copy_unit, &c));
}

static qn_status read_unit(void *arg)
{
    const state_call *c = arg;
    return qn_mlx_check(c->shim, c->shim->state_read(c->s->mlx, c->unit, c->bytes, c->s->unit_bytes));
}

/* What cannot be read is NaN: nothing that is made of it passes for sound. */
void qn_mlx_state_read(const qn_state *base, int32_t unit, void *bytes)
{
    qn_mlx_device_state *s = (qn_mlx_device_state *)(uintptr_t)base;
    state_call c = {.s = s, .shim = device_of(s)->shim, .unit = unit, .bytes = bytes};
    if (qn_mlx_call(device_of(s)->owner, read_unit, &c) != QN_OK) memset(bytes, 0xff, s->unit_bytes);
}

static qn_status write_unit(void *arg)
{
    const state_call *c = arg;
    return qn_mlx_check(c->shim,
                        c->shim->state_write(c->s->mlx, c->unit, c->source, c->s->unit_bytes, c->room));
}

void qn_mlx_state_write(qn_state *base, int32_t unit, const void *bytes)
{
    qn_mlx_device_state *s = (qn_mlx_device_state *)base;
    state_call c = {
        .s = s, .shim = device_of(s)->shim, .unit = unit, .source = bytes, .room = qn_mlx_room(device_of(s))};
    remember(s, qn_mlx_call(device_of(s)->owner, write_unit, &c));
}
