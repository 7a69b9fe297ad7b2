/* The data of arrays: views of it in place, elements in logical order. */
#include <string.h>

#include "array/eval.h"
#include "prim/convert.h"
#include "prim/dtype.h"

const void *qn_array_data(const qn_array *a)
{
    if (!a || a->prim != QN_PRIM_DATA || a->buffer->layout != 0 || qn_array_wait(a) != QN_OK) return NULL;
    return qn_buffer_host(a->buffer, QN_HOST_READS);
}

/* ---- views in place ----------------------------------------------------------------------------------- */

/* Views upon views deeper than this are computed instead. */
enum { DEPTH_MAX = 64 };

static int is_row_major(const qn_view *v)
{
    int64_t s = 1;
    for (int i = v->n_dims - 1; i >= 0; i--) {
        if (v->dims[i] != 1 && v->strides[i] != s) return 0;
        s *= v->dims[i];
    }
    return 1;
}

static void set_row_major(qn_view *v, const qn_shape *shape)
{
    v->n_dims = shape->n;
    for (int i = 0; i < shape->n; i++) v->dims[i] = shape->dim[i];
    qn_shape_strides(shape, v->strides);
}

static void move(qn_view *v, int64_t elements)
{
    v->data = (const char *)v->data + elements * qn_dtype_width(v->dtype);
}

/* v: the view of a's input, which becomes that of a. 0: it has to be computed. */
static int look_through(const qn_array *a, qn_view *v)
{
    const qn_view from = *v;
    switch (a->prim) {
    case QN_PRIM_RESHAPE:
        if (!is_row_major(v)) return 0;
        set_row_major(v, &a->shape);
        return 1;
    case QN_PRIM_TRANSPOSE:
        for (int i = 0; i < v->n_dims; i++) {
            v->dims[i] = from.dims[a->params.transpose.perm[i]];
            v->strides[i] = from.strides[a->params.transpose.perm[i]];
        }
        return 1;
    case QN_PRIM_SLICE:
        for (int i = 0; i < v->n_dims; i++) {
            move(v, a->params.slice.begin[i] * v->strides[i]);
            v->dims[i] = a->shape.dim[i];
            if (a->params.slice.step[i]) v->strides[i] *= a->params.slice.step[i];
        }
        return 1;
    case QN_PRIM_STRIDED:
        if (!is_row_major(v)) return 0;
        v->n_dims = a->shape.n;
        move(v, a->params.strided.offset);
        for (int i = 0; i < a->shape.n; i++) {
            v->dims[i] = a->shape.dim[i];
            v->strides[i] = a->params.strided.stride[i];
        }
        return 1;
    case QN_PRIM_BROADCAST:
        v->n_dims = a->shape.n;
        for (int i = 0; i < a->shape.n; i++) {
            int j = i - (a->shape.n - from.n_dims);
            v->dims[i] = a->shape.dim[i];
            v->strides[i] = j < 0 || (from.dims[j] == 1 && a->shape.dim[i] != 1) ? 0 : from.strides[j];
        }
        return 1;
    default:
        return 0;
    }
}

/* 1: a is data or a view of it; the data is *base's. */
static int resolve(const qn_array *a, qn_view *out, const qn_array **base, int depth)
{
    if (a->prim == QN_PRIM_DATA) {
        if (a->buffer->layout != 0 || !qn_dtype_is_plain(a->dtype)) return 0;
        *out = (qn_view){.data = qn_buffer_host(a->buffer, QN_HOST_READS), .dtype = a->dtype};
        if (!out->data) return 0;
        set_row_major(out, &a->shape);
        *base = a;
        return 1;
    }
    if (a->n_in != 1 || depth == DEPTH_MAX || qn_shape_is_symbolic(&a->shape)) return 0;
    return resolve(a->in[0], out, base, depth + 1) && look_through(a, out);
}

qn_status qn_array_view(qn_scope *s, qn_array *a, qn_view *out)
{
    QN_TRY(qn_scope_status(s));
    if (!a) return qn_fail(QN_E_ARG, "the array whose data is read is NULL");
    qn_view v;
    const qn_array *base;
    if (!resolve(a, &v, &base, 0)) {
        QN_TRY(qn_eval(s, 1, &a));
        if (!resolve(a, &v, &base, 0))
            return qn_fail(QN_E_UNSUPPORTED, "the elements of a quantised array (%s) cannot be read",
                           qn_dtype_name(a->dtype));
    }
    if (base->job) {
        QN_TRY(qn_scope_settle(s));
        QN_TRY(qn_array_wait(base));
    }
    *out = v;
    return QN_OK;
}

/* ---- elements ----------------------------------------------------------------------------------------- */

void qn_iterator_begin(qn_iterator *it, const qn_view *view)
{
    *it = (qn_iterator){.view = view, .left = 1, .at = view->data};
    for (int i = 0; i < view->n_dims; i++) it->left *= view->dims[i];
}

const void *qn_iterator_next(qn_iterator *it)
{
    if (it->left <= 0) return NULL;
    const qn_view *v = it->view;
    const char *here = it->at;
    const int64_t width = qn_dtype_width(v->dtype);
    it->left--;
    for (int d = v->n_dims - 1; d >= 0; d--) {
        it->at += v->strides[d] * width;
        if (++it->index[d] < v->dims[d]) break;
        it->at -= v->strides[d] * v->dims[d] * width;
        it->index[d] = 0;
    }
    return here;
}

/* Lines of the last dimension, in order. */
static void copy_view(const qn_view *v, int d, const char *from, qn_dtype to, char **out)
{
    const int64_t width = qn_dtype_width(v->dtype);
    if (d >= v->n_dims - 1) {
        int64_t n = v->n_dims ? v->dims[d] : 1, stride = v->n_dims ? v->strides[d] : 1;
        qn_convert_strided(v->dtype, from, stride * width, to, *out, n);
        *out += n * qn_dtype_width(to);
        return;
    }
    for (int64_t i = 0; i < v->dims[d]; i++) copy_view(v, d + 1, from + i * v->strides[d] * width, to, out);
}

qn_status qn_array_read(qn_scope *s, qn_array *a, qn_dtype dtype, void *out, int64_t n)
{
    qn_view v;
    int64_t size = 1;
    if (!qn_dtype_is_plain(dtype))
        return qn_fail(QN_E_ARG, "qn_array_read: %s is not a plain type", qn_dtype_name(dtype));
    QN_TRY(qn_array_view(s, a, &v));
    for (int i = 0; i < v.n_dims; i++) size *= v.dims[i];
    if (n != size)
        return qn_fail(QN_E_ARG, "qn_array_read: the array has %lld elements, not %lld", (long long)size,
                       (long long)n);
    char *to = out;
    if (size) copy_view(&v, 0, v.data, dtype, &to);
    return QN_OK;
}

qn_status qn_array_item(qn_scope *s, qn_array *a, double *out)
{
    return qn_array_read(s, a, QN_DTYPE_F64, out, 1);
}

qn_status qn_array_item_i64(qn_scope *s, qn_array *a, int64_t *out)
{
    return qn_array_read(s, a, QN_DTYPE_I64, out, 1);
}

qn_status qn_array_at(qn_scope *s, qn_array *a, const int64_t *index, double *out)
{
    qn_view v;
    QN_TRY(qn_array_view(s, a, &v));
    int64_t at = 0;
    for (int d = 0; d < v.n_dims; d++) {
        int64_t i = index[d] < 0 ? index[d] + v.dims[d] : index[d];
        if (i < 0 || i >= v.dims[d])
            return qn_fail(QN_E_ARG, "index %lld of dimension %d, which has %lld", (long long)index[d], d,
                           (long long)v.dims[d]);
        at += i * v.strides[d];
    }
    qn_convert(v.dtype, (const char *)v.data + at * qn_dtype_width(v.dtype), QN_DTYPE_F64, out, 1);
    return QN_OK;
}
