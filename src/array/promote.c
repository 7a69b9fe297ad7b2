/* Element types: where two of them meet, and casts. The tables are documented in include/quern/array.h. */
#include "array/graph.h"
#include "prim/convert.h"
#include "prim/dtype.h"

static int is_signed(qn_dtype d)
{
    return d >= QN_DTYPE_I8 && d <= QN_DTYPE_I64;
}

/* u8 and i8 .. u64 and i64 stand in rising width. */
static int rank(qn_dtype d)
{
    return is_signed(d) ? (int)d - QN_DTYPE_I8 : (int)d - QN_DTYPE_U8;
}

qn_dtype qn_promote(qn_dtype a, qn_dtype b)
{
    if (!qn_dtype_is_plain(a)) a = QN_DTYPE_F32;
    if (!qn_dtype_is_plain(b)) b = QN_DTYPE_F32;
    if (a == b || b == QN_DTYPE_BOOL) return a;
    if (a == QN_DTYPE_BOOL) return b;
    int a_float = qn_dtype_is_float(a), b_float = qn_dtype_is_float(b);
    if (a_float && b_float) return a == QN_DTYPE_F64 || b == QN_DTYPE_F64 ? QN_DTYPE_F64 : QN_DTYPE_F32;
    if (a_float || b_float) return a_float ? a : b;
    if (is_signed(a) == is_signed(b)) return rank(a) > rank(b) ? a : b;
    int with_sign = rank(is_signed(a) ? a : b), without = rank(is_signed(a) ? b : a);
    if (with_sign > without) return (qn_dtype)(QN_DTYPE_I8 + with_sign);
    return without == rank(QN_DTYPE_U64) ? QN_DTYPE_F32 : (qn_dtype)(QN_DTYPE_I8 + without + 1);
}

size_t qn_dtype_size(qn_dtype dtype)
{
    return dtype >= 0 && dtype < QN_DTYPE_COUNT ? (size_t)qn_dtype_width(dtype) : 0;
}

qn_array *qn_astype(qn_scope *s, qn_array *a, qn_dtype dtype)
{
    if (!a || s->status != QN_OK) return NULL;
    if (dtype < 0 || dtype >= QN_DTYPE_COUNT || !qn_dtype_is_plain(dtype))
        return qn_scope_fail(s, qn_fail(QN_E_ARG, "qn_astype: %s is not a plain type", qn_dtype_name(dtype)));
    if (a->dtype == dtype) return a;
    return qn_apply(s, QN_PRIM_CAST, NULL, 1, &a, NULL, dtype);
}

qn_array *qn_restated(qn_scope *s, const qn_array *a, qn_dtype dtype)
{
    void *to = NULL;
    qn_array *out = qn_array_alloc(s, "qn_scalar", dtype, 0, NULL, &to);
    if (out) qn_convert(a->dtype, qn_buffer_host(a->buffer, QN_HOST_READS), dtype, to, 1);
    return out;
}
