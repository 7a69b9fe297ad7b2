/* State on MLX: pools that grow by need, and shrink when less than half of them is used. Whoever drops a unit
 * holds locks and must not wait for MLX: it leaves a note, which the owner's thread takes in before it looks
 * at the state again. */
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/mem.h"
#include "device/mlx/mlx.h"
#include "prim/dtype.h"

/* What was dropped is filled with NaN before somebody else has it. */
#ifdef QN_SHAKE
enum { QN_SHAKEN = 1 };
#else
enum { QN_SHAKEN = 0 };
#endif

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
                   "device mlx: keys and values of type %s are not supported; --kv-type f16 is",
                   qn_dtype_name(spec->dtype));
}

/* One layer's bytes of a unit times the layers, and that of all units is a size. */
static int size_unit(const qn_state_spec *spec, size_t *out)
{
    size_t n = (size_t)spec->slot_floats, each = sizeof(float), all;
    if (spec->kind == QN_STATE_PAGES) {
        const int64_t dims = spec->head_dim + (spec->v_in_k ? 0 : spec->v_dim);
        each = spec->dtype == QN_DTYPE_F32 ? 4 : 2;
        if (!qn_mul_size((size_t)dims, (size_t)spec->kv_heads, &n) || !qn_mul_size(n, QN_PAGE_TOKENS, &n))
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
                        c->shim->state_new(p->kind == QN_STATE_PAGES, p->n_layers, p->n_units, QN_PAGE_TOKENS,
                                           p->kv_heads, p->head_dim, p->v_in_k ? 0 : p->v_dim, p->dtype,
                                           p->slot_floats, &c->s->mlx));
}

static void settle_by_itself(void *arg);

static void free_notes(qn_mlx_device_state *s)
{
    pthread_mutex_destroy(&s->lock);
    qn_free(s->dropped);
    qn_free(s->is_dropped);
    qn_free(s);
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
    pthread_mutex_init(&s->lock, NULL);
    s->base.device = d;
    s->base.spec = *spec;
    s->unit_bytes = unit_bytes;
    s->settling = (qn_mlx_job){.run = settle_by_itself, .arg = s};
    s->dropped = qn_alloc_array((size_t)spec->n_units, sizeof *s->dropped);
    s->is_dropped = qn_calloc((size_t)spec->n_units, 1);
    const qn_status status =
        !s->dropped || !s->is_dropped
            ? QN_E_NOMEM
            : qn_mlx_call(device_of(s)->owner, new_state, &(state_call){.s = s, .shim = device_of(s)->shim});
    if (status != QN_OK) {
        free_notes(s);
        return status;
    }
    *out = &s->base;
    return QN_OK;
}

static qn_status free_state(void *arg)
{
    const state_call *c = arg;
    c->shim->state_free(c->s->mlx);
    qn_ledger_release(c->s->base.device->ledger, QN_LEDGER_KV, c->s->spare_bytes);
    return QN_OK;
}

void qn_mlx_state_free(qn_state *base)
{
    qn_mlx_device_state *s = (qn_mlx_device_state *)base;
    if (!s) return;
    qn_mlx_call(device_of(s)->owner, free_state, &(state_call){.s = s, .shim = device_of(s)->shim});
    free_notes(s);
}

size_t qn_mlx_state_unit_bytes(const qn_state *s)
{
    return ((const qn_mlx_device_state *)s)->unit_bytes;
}

/* ---- what is used ------------------------------------------------------------------------------------- */

/* Copies and writes cannot fail: the next run does, for what the unit holds is not what it should. */
static void remember(qn_mlx_device_state *s, qn_status status)
{
    if (status == QN_OK || s->status != QN_OK) return;
    s->status = status;
    snprintf(s->message, sizeof s->message, "%s", qn_last_error());
}

/* A pool that was rebuilt in part is of no use. */
static qn_status shrink(qn_mlx_device_state *s)
{
    const qn_mlx_shim *shim = device_of(s)->shim;
    const qn_status status = qn_mlx_check(shim, shim->state_shrink(s->mlx));
    remember(s, status);
    if (status == QN_OK) shim->clear_cache(0);
    return status;
}

qn_status qn_mlx_state_count(qn_mlx_device_state *s)
{
    const qn_mlx_shim *shim = device_of(s)->shim;
    qn_ledger *ledger = s->base.device->ledger;
    if (s->status != QN_OK) return qn_fail(s->status, "%s", s->message);
    size_t spare = shim->state_spare(s->mlx);
    if (spare > s->spare_bytes && !qn_ledger_try(ledger, QN_LEDGER_KV, spare - s->spare_bytes)) {
        QN_TRY(shrink(s));
        spare = shim->state_spare(s->mlx); /* 0 */
    } else if (spare > s->spare_bytes) {
        s->spare_bytes = spare;
    }
    if (spare < s->spare_bytes) qn_ledger_release(ledger, QN_LEDGER_KV, s->spare_bytes - spare);
    s->spare_bytes = spare;
    return QN_OK;
}

qn_status qn_mlx_state_settle(qn_mlx_device_state *s)
{
    const qn_mlx_shim *shim = device_of(s)->shim;
    qn_status status = QN_OK;
    pthread_mutex_lock(&s->lock);
    const int64_t n = s->n_dropped;
    for (int64_t i = 0; i < n; i++) {
        const qn_status dropped = qn_mlx_check(shim, shim->state_drop(s->mlx, s->dropped[i], QN_SHAKEN));
        s->is_dropped[s->dropped[i]] = 0;
        if (status == QN_OK) status = dropped;
    }
    s->n_dropped = 0;
    pthread_mutex_unlock(&s->lock);
    if (!n || status != QN_OK) return status;
    if (2 * shim->state_spare(s->mlx) > shim->state_bytes(s->mlx)) QN_TRY(shrink(s));
    return qn_mlx_state_count(s);
}

static void settle_by_itself(void *arg)
{
    remember(arg, qn_mlx_state_settle(arg));
}

void qn_mlx_state_drop(qn_state *base, int32_t unit)
{
    qn_mlx_device_state *s = (qn_mlx_device_state *)base;
    pthread_mutex_lock(&s->lock);
    if (!s->is_dropped[unit]) s->dropped[s->n_dropped++] = unit;
    s->is_dropped[unit] = 1;
    pthread_mutex_unlock(&s->lock);
    qn_mlx_post(device_of(s)->owner, &s->settling);
}

/* ---- units -------------------------------------------------------------------------------------------- */

/* A change of a unit by the owner's thread, between what was dropped before and what is counted behind it. */
static qn_status change(const state_call *c, qn_status (*fn)(const state_call *c))
{
    qn_status status = qn_mlx_state_settle(c->s);
    if (status == QN_OK) status = qn_mlx_check(c->shim, fn(c));
    if (status == QN_OK) status = qn_mlx_state_count(c->s);
    remember(c->s, status);
    return status;
}

static qn_status copy_unit(const state_call *c)
{
    return c->shim->state_copy(c->s->mlx, c->from, c->unit, c->room);
}

static qn_status change_by_copy(void *arg)
{
    return change(arg, copy_unit);
}

void qn_mlx_state_copy(qn_state *base, int32_t from, int32_t to)
{
    qn_mlx_device_state *s = (qn_mlx_device_state *)base;
    state_call c = {
        .s = s, .shim = device_of(s)->shim, .from = from, .unit = to, .room = qn_mlx_room(device_of(s))};
    qn_mlx_call(device_of(s)->owner, change_by_copy, &c);
}

static qn_status read_unit(void *arg)
{
    const state_call *c = arg;
    QN_TRY(qn_mlx_state_settle(c->s));
    return qn_mlx_check(c->shim, c->shim->state_read(c->s->mlx, c->unit, c->bytes, c->s->unit_bytes));
}

/* What cannot be read is NaN: nothing that is made of it passes for sound. */
void qn_mlx_state_read(const qn_state *base, int32_t unit, void *bytes)
{
    qn_mlx_device_state *s = (qn_mlx_device_state *)(uintptr_t)base;
    state_call c = {.s = s, .shim = device_of(s)->shim, .unit = unit, .bytes = bytes};
    if (qn_mlx_call(device_of(s)->owner, read_unit, &c) != QN_OK) memset(bytes, 0xff, s->unit_bytes);
}

static qn_status write_unit(const state_call *c)
{
    return c->shim->state_write(c->s->mlx, c->unit, c->source, c->s->unit_bytes, c->room);
}

static qn_status change_by_write(void *arg)
{
    return change(arg, write_unit);
}

void qn_mlx_state_write(qn_state *base, int32_t unit, const void *bytes)
{
    qn_mlx_device_state *s = (qn_mlx_device_state *)base;
    state_call c = {
        .s = s, .shim = device_of(s)->shim, .unit = unit, .source = bytes, .room = qn_mlx_room(device_of(s))};
    qn_mlx_call(device_of(s)->owner, change_by_write, &c);
}
