#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "array/eval.h"
#include "array/tape.h"
#include "base/mem.h"
#include "prim/convert.h"

static atomic_uint_fast64_t next_id = 1;

/* ---- handles ------------------------------------------------------------------------------------------ */

qn_array *qn_array_new(qn_scope *s)
{
    if (s->n_owned == s->capacity) {
        int64_t capacity = s->capacity ? 2 * s->capacity : 64;
        qn_array **owned = qn_realloc(s->owned, (size_t)capacity * sizeof *owned);
        if (!owned) return qn_scope_fail(s, QN_E_NOMEM);
        s->owned = owned;
        s->capacity = capacity;
    }
    qn_slab *slab = s->slab;
    if (!slab) {
        slab = qn_alloc(sizeof *slab);
        if (!slab) return qn_scope_fail(s, QN_E_NOMEM);
        atomic_init(&slab->left, QN_SLAB_ARRAYS);
        slab->n = 0;
        s->slab = slab;
    }
    qn_array *a = &slab->array[slab->n++];
    if (slab->n == QN_SLAB_ARRAYS) s->slab = NULL;
    memset(a, 0, sizeof *a);
    a->slab = slab;
    atomic_init(&a->references, 1);
    a->id = atomic_fetch_add_explicit(&next_id, 1, memory_order_relaxed);
    s->owned[s->n_owned++] = a;
    return a;
}

static void slab_release(qn_slab *slab, int n)
{
    if (atomic_fetch_sub_explicit(&slab->left, n, memory_order_acq_rel) == n) qn_free(slab);
}

void qn_slab_leave(qn_scope *s)
{
    if (s->slab) slab_release(s->slab, QN_SLAB_ARRAYS - s->slab->n);
    s->slab = NULL;
}

uint64_t qn_array_youngest(void)
{
    return atomic_load_explicit(&next_id, memory_order_relaxed) - 1;
}

qn_array *qn_keep(qn_array *a)
{
    if (a) atomic_fetch_add_explicit(&a->references, 1, memory_order_relaxed);
    return a;
}

/* One reference less to each; those without any are put before the chain `dead`. */
static qn_array *let_go(int n, qn_array *const *in, qn_array *dead)
{
    for (int i = 0; i < n; i++) {
        if (atomic_fetch_sub_explicit(&in[i]->references, 1, memory_order_acq_rel) != 1) continue;
        in[i]->next = dead;
        dead = in[i];
    }
    return dead;
}

/* Frees without recursion: a graph may be millions of arrays deep. */
void qn_release(qn_array *a)
{
    qn_array *dead = NULL;
    if (a && atomic_fetch_sub_explicit(&a->references, 1, memory_order_acq_rel) == 1) dead = a;
    while (dead) {
        qn_array *d = dead;
        dead = d->next;
        dead = let_go(d->n_in, d->in, dead);
        if (d->custom) {
            dead = let_go(d->custom->n_in, d->custom->in, dead);
            qn_free(d->custom->in);
            qn_free(d->custom);
        }
        qn_job_release(d->job);
        qn_buffer_release(d->buffer);
        qn_free(d->label);
        slab_release(d->slab, 1);
    }
}

const qn_shape *qn_array_shape(const qn_array *a)
{
    return &a->shape;
}

int qn_array_n_dims(const qn_array *a)
{
    return a ? a->shape.n : -1;
}

int64_t qn_array_dim(const qn_array *a, int i)
{
    if (!a) return -1;
    if (i < 0) i += a->shape.n;
    if (i < 0 || i >= a->shape.n || (i == 0 && qn_shape_is_symbolic(&a->shape))) return -1;
    return a->shape.dim[i];
}

int64_t qn_array_size(const qn_array *a)
{
    return !a || qn_shape_is_symbolic(&a->shape) ? -1 : qn_shape_elements(&a->shape, NULL);
}

qn_dtype qn_array_dtype(const qn_array *a)
{
    return a ? a->dtype : QN_DTYPE_COUNT;
}

qn_buffer *qn_array_buffer(const qn_array *a)
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
    qn_array *a = qn_array_new(s);
    if (!a) return NULL;
    a->prim = QN_PRIM_DATA;
    a->dtype = dtype;
    a->shape = shape;
    a->buffer = qn_buffer_retain(buffer);
    return a;
}

qn_array *qn_input(qn_scope *s, qn_dtype dtype, qn_shape shape)
{
    qn_array *a = qn_array_new(s);
    if (!a) return NULL;
    a->prim = QN_PRIM_INPUT;
    a->dtype = dtype;
    a->shape = shape;
    a->input = s->n_inputs++;
    return a;
}

/* ---- primitives --------------------------------------------------------------------------------------- */

static qn_array *apply(qn_scope *s, qn_prim prim, const qn_params *params, int n_in, qn_array *const *in,
                       const qn_shape *shape, qn_dtype dtype)
{
    /* what is fused for f32 is computed in f64 by its parts */
    const int by_parts = n_in && in[0]->dtype == QN_DTYPE_F64 && qn_is_f32_alone(prim);
    qn_prim_call call = {.prim = prim, .params = params, .n_in = n_in};
    for (int i = 0; i < n_in; i++) {
        call.shape[i] = &in[i]->shape;
        call.dtype[i] = by_parts && in[i]->dtype == QN_DTYPE_F64 ? QN_DTYPE_F32 : in[i]->dtype;
    }
    qn_shape out = shape ? *shape : (qn_shape){0};
    const qn_status status = qn_prim_get(prim)->rule(&call, &out, &dtype);
    if (status != QN_OK) return qn_scope_fail(s, status);
    /* fallbacks speak of real numbers: what is computed in integers a device has or has not */
    const int is_whole = qn_prim_get(prim)->kind == QN_CLASS_ELEMENTWISE && !qn_dtype_is_float(in[0]->dtype);
    if (by_parts || (qn_prim_get(prim)->kind != QN_CLASS_SOURCE && !is_whole &&
                     !s->device->ops->supports(s->device, prim))) {
        /* without a fallback the planner says what is missing */
        qn_array *other = qn_fallback(s, prim, call.params, n_in, in);
        if (other || s->status != QN_OK) return other;
        if (by_parts)
            return qn_scope_fail(s,
                                 qn_fail(QN_E_UNSUPPORTED, "%s: f64 is not supported; f32, f16 and bf16 are",
                                         qn_prim_get(prim)->name));
    }
    qn_array *a = qn_array_new(s);
    if (!a) return NULL;
    a->prim = prim;
    a->params = *call.params;
    a->shape = out;
    a->dtype = dtype;
    for (int i = 0; i < n_in; i++) a->in[i] = qn_keep(in[i]);
    a->n_in = n_in;
    return a;
}

qn_array *qn_apply(qn_scope *s, qn_prim prim, const qn_params *params, int n_in, qn_array *const *in,
                   const qn_shape *shape, qn_dtype dtype)
{
    static const qn_params none;
    if (s->status != QN_OK) return NULL;
    if (n_in > QN_MAX_INPUTS)
        return qn_scope_fail(
            s, qn_fail(QN_E_ARG, "%s: %d inputs, at most %d", qn_prim_get(prim)->name, n_in, QN_MAX_INPUTS));
    qn_array *fitting[QN_MAX_INPUTS];
    qn_dtype back;
    for (int i = 0; i < n_in; i++)
        if (!(fitting[i] = in[i]))
            return qn_scope_fail(s, qn_fail(QN_E_ARG, "%s: input %d is NULL", qn_prim_get(prim)->name, i));
    if (!qn_fit_types(s, prim, n_in, fitting, &back)) return NULL;
    qn_array *a = apply(s, prim, params ? params : &none, n_in, fitting, shape, dtype);
    return a && back != QN_DTYPE_COUNT && a->dtype == QN_DTYPE_F32 ? qn_astype(s, a, back) : a;
}

qn_array *qn_unary(qn_scope *s, qn_prim prim, qn_array *a)
{
    return qn_apply(s, prim, NULL, 1, &a, NULL, QN_DTYPE_F32);
}

qn_array *qn_binary(qn_scope *s, qn_prim prim, qn_array *a, qn_array *b)
{
    return qn_apply(s, prim, NULL, 2, (qn_array *[]){a, b}, NULL, QN_DTYPE_F32);
}
