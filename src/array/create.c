/* Arrays from nothing: data, constants, ranges. */
#include <math.h>
#include <string.h>

#include "array/graph.h"
#include "base/checked.h"
#include "prim/convert.h"
#include "prim/dtype.h"

_Static_assert((int)QN_ARRAY_DIMS_MAX == (int)QN_MAX_DIMS, "public arrays have as many dimensions");

int qn_check_shape(qn_scope *s, const char *what, qn_dtype dtype, int n_dims, const int64_t *dims,
                   qn_shape *shape, size_t *size_bytes)
{
    if (s->status != QN_OK) return 0;
    qn_shape out = {.n = n_dims};
    int64_t n = 1;
    qn_status status = QN_OK;
    if (n_dims < 0 || n_dims > QN_MAX_DIMS)
        status = qn_fail(QN_E_ARG, "%s: %d dimensions, at most %d", what, n_dims, (int)QN_MAX_DIMS);
    for (int i = 0; i < n_dims && status == QN_OK; i++) {
        out.dim[i] = dims[i];
        if (dims[i] < 0)
            status = qn_fail(QN_E_ARG, "%s: dimension %d is %lld", what, i, (long long)dims[i]);
        else if (!qn_mul_i64(n, dims[i], &n))
            status = qn_fail(QN_E_ARG, "%s: the shape is too large", what);
    }
    if (status == QN_OK && (!qn_dtype_bytes(dtype, n, size_bytes) || *size_bytes > PTRDIFF_MAX))
        status = qn_fail(QN_E_ARG, "%s: the shape is too large", what);
    if (status != QN_OK) {
        qn_scope_fail(s, status);
        return 0;
    }
    *shape = out;
    return 1;
}

qn_array *qn_array_alloc(qn_scope *s, const char *what, qn_dtype dtype, int n_dims, const int64_t *dims,
                         void **data)
{
    qn_shape shape;
    size_t bytes;
    if (s->status != QN_OK) return NULL;
    if (dtype < 0 || dtype >= QN_DTYPE_COUNT || !qn_dtype_is_plain(dtype))
        return qn_scope_fail(s, qn_fail(QN_E_ARG, "%s: %s is not a plain type", what, qn_dtype_name(dtype)));
    if (!qn_check_shape(s, what, dtype, n_dims, dims, &shape, &bytes)) return NULL;
    qn_buffer *b = NULL;
    qn_status status = s->device->ops->alloc(s->device, bytes, QN_LEDGER_OTHER, &b);
    if (status != QN_OK) return qn_scope_fail(s, status);
    void *bytes_on_host = qn_buffer_host(b, QN_HOST_WRITES);
    qn_array *a = bytes_on_host ? qn_from_buffer(s, dtype, shape, b) : qn_scope_fail(s, QN_E_NOMEM);
    *data = bytes_on_host;
    qn_buffer_release(b);
    return a;
}

qn_array *qn_from_data(qn_scope *s, qn_dtype dtype, int n_dims, const int64_t *dims, const void *data)
{
    void *to = NULL;
    qn_array *a = qn_array_alloc(s, "qn_from_data", dtype, n_dims, dims, &to);
    if (a && qn_array_size(a)) memcpy(to, data, (size_t)qn_array_size(a) * qn_dtype_size(dtype));
    return a;
}

qn_array *qn_scalar(qn_scope *s, float value)
{
    qn_array *a = qn_from_data(s, QN_DTYPE_F32, 0, NULL, &value);
    if (a) a->weak = 1;
    return a;
}

qn_array *qn_full(qn_scope *s, qn_dtype dtype, int n_dims, const int64_t *dims, double value)
{
    void *to = NULL;
    qn_shape shape;
    size_t bytes;
    qn_array *a = qn_array_alloc(s, "qn_full", dtype, 0, NULL, &to);
    if (!a || !qn_check_shape(s, "qn_full", dtype, n_dims, dims, &shape, &bytes)) return NULL;
    qn_convert(QN_DTYPE_F64, &value, dtype, to, 1);
    return n_dims ? qn_broadcast_sym(s, a, shape) : a;
}

qn_array *qn_zeros(qn_scope *s, qn_dtype dtype, int n_dims, const int64_t *dims)
{
    return qn_full(s, dtype, n_dims, dims, 0);
}

qn_array *qn_ones(qn_scope *s, qn_dtype dtype, int n_dims, const int64_t *dims)
{
    return qn_full(s, dtype, n_dims, dims, 1);
}

/* start + i * step for i in [0, n), the last one `last` where it is asked for. */
static qn_array *ramp(qn_scope *s, const char *what, qn_dtype dtype, double start, double step, int64_t n,
                      const double *last)
{
    void *to = NULL;
    qn_array *a = qn_array_alloc(s, what, dtype, 1, &n, &to);
    size_t width = qn_dtype_size(dtype);
    for (int64_t i = 0; a && i < n; i++) {
        double x = last && i == n - 1 && n > 1 ? *last : start + (double)i * step;
        qn_convert(QN_DTYPE_F64, &x, dtype, (char *)to + (size_t)i * width, 1);
    }
    return a;
}

qn_array *qn_arange(qn_scope *s, qn_dtype dtype, double start, double stop, double step)
{
    double n = ceil((stop - start) / step);
    if (!isfinite(start) || !isfinite(stop) || !isfinite(step) || step == 0 || !(n < 0x1p53))
        return s->status != QN_OK
                   ? NULL
                   : qn_scope_fail(s, qn_fail(QN_E_ARG, "qn_arange: from %g to %g by %g", start, stop, step));
    return ramp(s, "qn_arange", dtype, start, step, n > 0 ? (int64_t)n : 0, NULL);
}

qn_array *qn_linspace(qn_scope *s, qn_dtype dtype, double start, double stop, int64_t n)
{
    if (!isfinite(start) || !isfinite(stop))
        return s->status != QN_OK
                   ? NULL
                   : qn_scope_fail(s, qn_fail(QN_E_ARG, "qn_linspace: from %g to %g", start, stop));
    return ramp(s, "qn_linspace", dtype, start, n > 1 ? (stop - start) / (double)(n - 1) : 0, n, &stop);
}

qn_array *qn_eye(qn_scope *s, qn_dtype dtype, int64_t rows, int64_t columns, int64_t diagonal)
{
    void *to = NULL;
    const double one = 1;
    qn_array *a = qn_array_alloc(s, "qn_eye", dtype, 2, (int64_t[]){rows, columns}, &to);
    for (int64_t i = diagonal < 0 ? -diagonal : 0; a && i < rows && i + diagonal < columns; i++)
        qn_convert(QN_DTYPE_F64, &one, dtype,
                   (char *)to + (size_t)(i * columns + i + diagonal) * qn_dtype_size(dtype), 1);
    return a;
}
