#include "prim/dtype.h"

#include "quant/types.h"

int qn_dtype_bytes(qn_dtype dtype, int64_t n, size_t *bytes)
{
    return qn_type_bytes(dtype, n, bytes);
}

int qn_dtype_is_plain(qn_dtype dtype)
{
    return !qn_type_is_quantised(dtype);
}

int64_t qn_dtype_encode(qn_dtype dtype, const float *x, int64_t n, void *blocks)
{
    const qn_type *type = qn_type_get(dtype);
    return x && type->encode ? type->encode(type, x, n, blocks) : type->encode != NULL;
}
