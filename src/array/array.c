#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "array/tape.h"
#include "base/mem.h"

static atomic_uint_fast64_t next_id = 1;

/* ---- scopes ------------------------------------------------------------------------------------------- */

qn_scope *qn_scope_new(qn_device *device)
{
    qn_scope *s = qn_calloc(1, sizeof *s);
    if (s) s->device = device;
    return s;
}

void qn_scope_free(qn_scope *s)
{
    if (!s) return;
    for (int64_t i = s->n_owned - 1; i >= 0; i--) qn_release(s->owned[i]);
    qn_free(s->owned);
    qn_free(s);
}

qn_status qn_scope_status(qn_scope *s)
{
    return s->status == QN_OK ? QN_OK : qn_fail_copy(s->status, s->message);
}

qn_device *qn_scope_device(qn_scope *s)
{
    return s->device;
}

void qn_scope_precision(qn_scope *s, qn_precision precision)
{
    s->precision = precision;
}

void qn_scope_prefix(qn_scope *s, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(s->prefix, sizeof s->prefix, fmt, args);
    va_end(args);
}

qn_array *qn_scope_fail(qn_scope *s, qn_status status)
{
    if (s->status == QN_OK) {
        s->status = status;
        snprintf(s->message, sizeof s->message, "%s", qn_last_error());
    }
    return NULL;
}

/* ---- handles ------------------------------------------------------------------------------------------ */

static qn_array *array_new(qn_scope *s)
{
    if (s->n_owned == s->capacity) {
        int64_t capacity = s->capacity ? 2 * s->capacity : 64;
        qn_array **owned = qn_realloc(s->owned, (size_t)capacity * sizeof *owned);
        if (!owned) return qn_scope_fail(s, QN_E_NOMEM);
        s->owned = owned;
        s->capacity = capacity;
    }
    qn_array *a = qn_calloc(1, sizeof *a);
    if (!a) return qn_scope_fail(s, QN_E_NOMEM);
    atomic_init(&a->references, 1);
    a->id = atomic_fetch_add_explicit(&next_id, 1, memory_order_relaxed);
    s->owned[s->n_owned++] = a;
    return a;
}

qn_array *qn_keep(qn_array *a)
{
    if (a) atomic_fetch_add_explicit(&a->references, 1, memory_order_relaxed);
    return a;
}

/* Frees without recursion: a graph may be millions of arrays deep. */
void qn_release(qn_array *a)
{
    qn_array *dead = NULL;
    if (a && atomic_fetch_sub_explicit(&a->references, 1, memory_order_acq_rel) == 1) dead = a;
    while (dead) {
        qn_array *d = dead;
        dead = d->next;
        for (int i = 0; i < d->n_in; i++) {
            if (atomic_fetch_sub_explicit(&d->in[i]->references, 1, memory_order_acq_rel) != 1) continue;
            d->in[i]->next = dead;
            dead = d->in[i];
        }
        qn_buffer_release(d->buffer);
        qn_free(d->label);
        qn_free(d);
    }
}

const qn_shape *qn_array_shape(const qn_array *a)
{
    return &a->shape;
}

qn_dtype qn_array_dtype(const qn_array *a)
{
    return a->dtype;
}

const void *qn_array_data(const qn_array *a)
{
    return a && a->prim == QN_PRIM_DATA && a->buffer->layout == 0 ? a->buffer->data : NULL;
}

const qn_buffer *qn_array_buffer(const qn_array *a)
{
    return a && a->prim == QN_PRIM_DATA ? a->buffer : NULL;
}

qn_array *qn_label(qn_scope *s, qn_array *a, const char *name)
{
    if (!a) return NULL;
    char text[128];
    snprintf(text, sizeof text, "%s%s", s->prefix, name);
    char *label = qn_strdup(text);
    if (!label) return qn_scope_fail(s, QN_E_NOMEM);
    qn_free(a->label);
    a->label = label;
    return a;
}

/* ---- sources ------------------------------------------------------------------------------------------ */

qn_array *qn_from_buffer(qn_scope *s, qn_dtype dtype, qn_shape shape, qn_buffer *buffer)
{
    if (!buffer) return NULL;
    qn_array *a = array_new(s);
    if (!a) return NULL;
    a->prim = QN_PRIM_DATA;
    a->dtype = dtype;
    a->shape = shape;
    a->buffer = qn_buffer_retain(buffer);
    return a;
}

qn_array *qn_from_data(qn_scope *s, qn_dtype dtype, qn_shape shape, const void *data)
{
    size_t size = dtype == QN_DTYPE_F32 || dtype == QN_DTYPE_I32 ? 4 : 0;
    if (!size)
        return qn_scope_fail(
            s, qn_fail(QN_E_ARG, "plain data must be f32 or i32, not %s", qn_dtype_name(dtype)));
    size_t bytes = (size_t)qn_shape_elements(&shape, NULL) * size;
    qn_buffer *b = NULL;
    qn_status status = s->device->ops->alloc(s->device, bytes, QN_LEDGER_OTHER, &b);
    if (status != QN_OK) return qn_scope_fail(s, status);
    memcpy(b->data, data, bytes);
    qn_array *a = qn_from_buffer(s, dtype, shape, b);
    qn_buffer_release(b);
    return a;
}

qn_array *qn_scalar(qn_scope *s, float value)
{
    return qn_from_data(s, QN_DTYPE_F32, (qn_shape){0}, &value);
}

qn_array *qn_input(qn_scope *s, qn_dtype dtype, qn_shape shape)
{
    qn_array *a = array_new(s);
    if (!a) return NULL;
    a->prim = QN_PRIM_INPUT;
    a->dtype = dtype;
    a->shape = shape;
    a->input = s->n_inputs++;
    return a;
}

/* ---- primitives --------------------------------------------------------------------------------------- */

qn_array *qn_apply(qn_scope *s, qn_prim prim, const qn_params *params, int n_in, qn_array *const *in,
                   const qn_shape *shape, qn_dtype dtype)
{
    static const qn_params none;
    if (s->status != QN_OK) return NULL;
    qn_prim_call call = {.prim = prim, .params = params ? params : &none, .n_in = n_in};
    for (int i = 0; i < n_in; i++) {
        if (!in[i])
            return qn_scope_fail(s, qn_fail(QN_E_ARG, "%s: input %d is NULL", qn_prim_get(prim)->name, i));
        call.shape[i] = &in[i]->shape;
        call.dtype[i] = in[i]->dtype;
    }
    qn_shape out = shape ? *shape : (qn_shape){0};
    qn_status status = qn_prim_get(prim)->rule(&call, &out, &dtype);
    if (status != QN_OK) return qn_scope_fail(s, status);
    if (qn_prim_get(prim)->class != QN_CLASS_SOURCE && !s->device->ops->supports(s->device, prim)) {
        /* without a fallback the planner says what is missing */
        qn_array *other = qn_fallback(s, prim, call.params, n_in, in);
        if (other || s->status != QN_OK) return other;
    }
    qn_array *a = array_new(s);
    if (!a) return NULL;
    a->prim = prim;
    a->params = *call.params;
    a->shape = out;
    a->dtype = dtype;
    for (int i = 0; i < n_in; i++) a->in[i] = qn_keep(in[i]);
    a->n_in = n_in;
    return a;
}

qn_array *qn_unary(qn_scope *s, qn_prim prim, qn_array *a)
{
    return qn_apply(s, prim, NULL, 1, &a, NULL, QN_DTYPE_F32);
}

qn_array *qn_binary(qn_scope *s, qn_prim prim, qn_array *a, qn_array *b)
{
    return qn_apply(s, prim, NULL, 2, (qn_array *[]){a, b}, NULL, QN_DTYPE_F32);
}
