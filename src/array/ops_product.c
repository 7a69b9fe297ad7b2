/* Products of matrices and vectors. */
#include <string.h>

#include "array/build.h"

/* The dimensions before the last two of both, broadcast against each other. */
static int batches(qn_scope *s, const qn_array *a, const qn_array *b, qn_shape *out)
{
    qn_shape x = a->shape, y = b->shape;
    x.n -= 2;
    y.n -= 2;
    if (x.n == 0) memset(x.sym, 0, sizeof x.sym);
    if (y.n == 0) memset(y.sym, 0, sizeof y.sym);
    const qn_status status = qn_shape_broadcast(&x, &y, out);
    if (status != QN_OK) {
        char from[96], to[96];
        qn_scope_fail(s, qn_fail(status, "qn_matmul: matrices %s and %s do not match",
                                 qn_shape_text(&a->shape, from, sizeof from),
                                 qn_shape_text(&b->shape, to, sizeof to)));
        return 0;
    }
    return 1;
}

static qn_array *repeated(qn_scope *s, qn_array *a, const qn_shape *batch)
{
    qn_shape shape = *batch;
    shape.dim[shape.n++] = a->shape.dim[a->shape.n - 2];
    shape.dim[shape.n++] = a->shape.dim[a->shape.n - 1];
    return qn_shape_equal(&shape, &a->shape) ? a : qn_broadcast_sym(s, a, shape);
}

qn_array *qn_matmul(qn_scope *s, qn_array *a, qn_array *b)
{
    if (!a || !b) return NULL;
    const int row = a->shape.n == 1, column = b->shape.n == 1;
    if (a->shape.n == 0 || b->shape.n == 0)
        return qn_bad_call(s, "qn_matmul", a->shape.n ? b : a, "takes vectors and matrices, not scalars");
    if (row) a = qn_expand_dims(s, a, 0);
    if (column) b = qn_expand_dims(s, b, 1);
    if (!a || !b) return NULL;
    if (b->shape.n > 2) {
        qn_shape batch;
        if (!batches(s, a, b, &batch)) return NULL;
        a = repeated(s, a, &batch);
        b = repeated(s, b, &batch);
    }
    qn_array *c = qn_binary(s, QN_PRIM_MATMUL, a, b);
    if (c && column) c = qn_squeeze(s, c, -1);
    return c && row ? qn_squeeze(s, c, column ? -1 : -2) : c;
}

qn_array *qn_linear(qn_scope *s, qn_array *x, qn_array *weight)
{
    return qn_matmul(s, x, qn_transpose(s, weight));
}
