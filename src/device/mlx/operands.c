/* The operands of a step of a plan: views of what earlier steps gave, what lies in buffers, constants. */
#include "base/mem.h"
#include "device/mlx/program_parts.h"
#include "prim/dtype.h"

/* Smaller inputs are copied, so that the host may write the next ones while this run's state is still
 * computed. */
enum { COPY_BYTES = 256 << 10 };

qn_mlx *qn_mlx_device_of(const qn_mlx_exec *e)
{
    return (qn_mlx *)e->base.device;
}

size_t qn_mlx_element_bytes(qn_dtype dtype)
{
    size_t bytes = 0;
    qn_dtype_bytes(dtype, 1, &bytes);
    return bytes;
}

void qn_mlx_dims_of(const qn_mlx_exec *e, const qn_shape *shape, int64_t *dims)
{
    for (int i = 0; i < shape->n; i++) dims[i] = qn_shape_dim(shape, i, &e->sizes);
}

static int is_contiguous(int n, const int64_t *dims, const int64_t *strides)
{
    int64_t s = 1;
    for (int i = n - 1; i >= 0; i--) {
        if (strides[i] != s && dims[i] != 1) return 0;
        s *= dims[i];
    }
    return 1;
}

static qn_status hold(qn_mlx_exec *e, qn_mlx_array *a)
{
    if (e->n_held == e->held_capacity) {
        const int more = e->held_capacity ? 2 * e->held_capacity : 64;
        qn_mlx_array **held = qn_realloc(e->held, (size_t)more * sizeof *held);
        if (!held) {
            qn_mlx_device_of(e)->shim->array_free(a);
            return QN_E_NOMEM;
        }
        e->held = held;
        e->held_capacity = more;
    }
    e->held[e->n_held++] = a;
    return QN_OK;
}

/* Memory of the host as an array that is held until the run is over. */
static qn_status hand_over(qn_mlx_exec *e, const void *data, int n, const int64_t *dims, qn_dtype dtype,
                           qn_mlx_array **out)
{
    const qn_mlx_shim *shim = qn_mlx_device_of(e)->shim;
    size_t bytes = qn_mlx_element_bytes(dtype);
    for (int i = 0; i < n; i++) bytes *= (size_t)dims[i];
    const int borrow = bytes > COPY_BYTES;
    e->borrows |= borrow;
    QN_TRY(qn_mlx_check(shim, shim->array_new(data, n, dims, dtype, borrow, out)));
    return hold(e, *out);
}

/* What a run left in the buffer, as the operand. An operand may have room for more rows than there are: it is read
 * by these alone then. *out NULL: it is not what the operand begins with. */
static qn_status left_there(qn_mlx_exec *e, const qn_mlx_face *f, const qn_operand *o, int64_t *dims,
                            qn_mlx_array **out)
{
    const qn_mlx_shim *shim = qn_mlx_device_of(e)->shim;
    const size_t row = (size_t)qn_shape_row(&o->shape) * qn_mlx_element_bytes(o->dtype);
    *out = NULL;
    if (!f->array || !f->valid_bytes || o->offset || o->dtype != f->dtype || !row || f->valid_bytes % row ||
        !is_contiguous(o->shape.n, dims, o->stride))
        return QN_OK;
    const int64_t rows = (int64_t)(f->valid_bytes / row);
    if (o->shape.n && rows < dims[0]) dims[0] = rows;
    if (o->shape.n ? dims[0] != rows : rows != 1) return QN_OK;
    return qn_mlx_check(shim, shim->array_view(f->array, 0, o->shape.n, dims, o->stride, out));
}

/* What lies in the buffer of a slot that no step has written: the operand itself where its elements lie one
 * after the other, else a view of the whole buffer. */
static qn_status buffer_operand(qn_mlx_exec *e, const qn_operand *o, const int64_t *dims, qn_mlx_array **out)
{
    const qn_mlx_shim *shim = qn_mlx_device_of(e)->shim;
    const qn_buffer *b = e->plan.slots[o->slot].buffer;
    const size_t each = qn_mlx_element_bytes(o->dtype);
    if (is_contiguous(o->shape.n, dims, o->stride))
        return hand_over(e, (const char *)b->data + o->offset * (int64_t)each, o->shape.n, dims, o->dtype,
                         out);
    qn_mlx_array *whole;
    const int64_t elements = (int64_t)(b->size_bytes / each);
    QN_TRY(hand_over(e, b->data, 1, &elements, o->dtype, &whole));
    QN_TRY(qn_mlx_check(shim, shim->array_view(whole, o->offset, o->shape.n, dims, o->stride, out)));
    return hold(e, *out);
}

/* Those that take a constant in 16 bits beside rows of 16 bits. */
static int takes_narrow_constant(const qn_plan_step *s, int k)
{
    if (qn_prim_get(s->prim)->kind == QN_CLASS_ELEMENTWISE || s->prim == QN_PRIM_FUSED) return 1;
    return k > 0 && (s->prim == QN_PRIM_RMS_NORM || s->prim == QN_PRIM_LAYER_NORM) &&
           s->params.norm.offset == 0;
}

/* A constant of the host as an array that is kept: on a GPU each use would be a copy. */
static qn_status constant(qn_mlx_exec *e, const qn_operand *o, const int64_t *dims, int narrow,
                          qn_mlx_array **out)
{
    const qn_mlx *d = qn_mlx_device_of(e);
    qn_buffer *b = e->plan.slots[o->slot].buffer;
    qn_mlx_face *f;
    QN_TRY(qn_mlx_face_get(b, &f));
    const int64_t n = (int64_t)(b->size_bytes / qn_mlx_element_bytes(o->dtype));
    if (!f->array || f->dtype != o->dtype) {
        d->shim->array_free(f->array);
        f->array = NULL;
        f->dtype = o->dtype;
        QN_TRY(qn_mlx_check(d->shim, d->shim->array_new(b->data, 1, &n, o->dtype, 0, &f->array)));
    }
    if (narrow && (!f->narrow || f->narrow_type != e->narrow)) {
        d->shim->array_free(f->narrow);
        f->narrow = NULL;
        f->narrow_type = e->narrow;
        QN_TRY(qn_mlx_check(d->shim, d->shim->array_cast(f->array, e->narrow, &f->narrow)));
        QN_TRY(qn_mlx_check(d->shim, d->shim->eval(1, &f->narrow, 0, NULL, 0)));
    }
    qn_mlx_array *whole = narrow ? f->narrow : f->array;
    if (o->shape.n == 1 && dims[0] == n && o->stride[0] == 1 && !o->offset) {
        *out = whole;
        return QN_OK;
    }
    QN_TRY(qn_mlx_check(d->shim, d->shim->array_view(whole, o->offset, o->shape.n, dims, o->stride, out)));
    return hold(e, *out);
}

/* What lies in a buffer that neither a run nor the host writes any longer, and that is not large. */
static int is_constant(const qn_mlx_exec *e, const qn_operand *o)
{
    enum { CONSTANT_BYTES = 1 << 20 };
    const qn_buffer *b = e->plan.slots[o->slot].buffer;
    if (e->slots[o->slot] || !b || b->layout != QN_MLX_LAYOUT_PLAIN || b->size_bytes > CONSTANT_BYTES)
        return 0;
    const qn_mlx_face *f = b->mirror;
    return !f || (!f->is_kept && !f->valid_bytes);
}

/* An operand as an array. owned 1: to be freed after the step. narrow 1: a constant in 16 bits. */
static qn_status operand(qn_mlx_exec *e, const qn_plan_step *s, int k, int narrow, qn_mlx_array **out,
                         int *owned)
{
    const qn_mlx_shim *shim = qn_mlx_device_of(e)->shim;
    const qn_operand *o = &s->in[k];
    int64_t dims[QN_MAX_DIMS];
    qn_mlx_dims_of(e, &o->shape, dims);
    *owned = 0;
    if (e->slots[o->slot]) {
        *owned = 1;
        return qn_mlx_check(shim,
                            shim->array_view(e->slots[o->slot], o->offset, o->shape.n, dims, o->stride, out));
    }
    qn_buffer *b = e->plan.slots[o->slot].buffer;
    qn_mlx_face *f = NULL;
    if (b->mirror) QN_TRY(qn_mlx_face_get(b, &f));
    if (f && !f->is_kept) {
        QN_TRY(left_there(e, f, o, dims, out));
        *owned = *out != NULL;
        if (*out) return QN_OK;
    }
    qn_mlx_dims_of(e, &o->shape, dims);
    QN_TRY(qn_mlx_face_read(qn_mlx_device_of(e), b));
    if (is_constant(e, o) && (narrow || e->keeps_constants)) return constant(e, o, dims, narrow, out);
    return buffer_operand(e, o, dims, out);
}

qn_status qn_mlx_operands(qn_mlx_exec *e, const qn_plan_step *s, const qn_mlx_step *step, qn_mlx_array **in,
                          int *owned)
{
    const qn_mlx_shim *shim = qn_mlx_device_of(e)->shim;
    int some = 0, all = 1;
    for (int constants = 0; constants < 2; constants++)
        for (int k = 0; k < s->n_in; k++) {
            const int is_float = s->in[k].dtype == QN_DTYPE_F32;
            if (step->weight[k] || step->host[k] || is_constant(e, &s->in[k]) != constants) continue;
            const int narrow = constants && is_float && some && all && takes_narrow_constant(s, k);
            QN_TRY(operand(e, s, k, narrow, &in[k], &owned[k]));
            if (constants || !is_float) continue;
            some = 1;
            all = all && shim->array_is_narrow(in[k]);
        }
    return QN_OK;
}

const int32_t *qn_mlx_numbers_of(qn_mlx_exec *e, const qn_plan_step *s, int k, int64_t *n)
{
    const qn_operand *o = &s->in[k];
    int64_t dims[QN_MAX_DIMS];
    const int needed = (s->prim == QN_PRIM_ATTEND && k >= 3 && k <= (s->params.attend.state ? 5 : 4)) ||
                       (s->prim == QN_PRIM_INDEX_BLOCKS && k >= 2 && k <= (s->params.index.state ? 4 : 3)) ||
                       (s->prim == QN_PRIM_ROPE_TABLE && k == 0 && e->narrow != QN_DTYPE_F32);
    if (!needed || e->slots[o->slot] || o->dtype != QN_DTYPE_I32) return NULL;
    const qn_buffer *b = e->plan.slots[o->slot].buffer;
    const qn_mlx_face *f = b->mirror;
    qn_mlx_dims_of(e, &o->shape, dims);
    if ((f && f->is_newer) || !is_contiguous(o->shape.n, dims, o->stride)) return NULL;
    *n = qn_shape_elements(&o->shape, &e->sizes);
    return (const int32_t *)b->data + o->offset;
}

qn_mlx_weight *qn_mlx_weight_of(const qn_mlx_exec *e, const qn_operand *o)
{
    const qn_buffer *b = e->plan.slots[o->slot].buffer;
    return b && b->layout == QN_MLX_LAYOUT_WEIGHT ? b->data : NULL;
}
