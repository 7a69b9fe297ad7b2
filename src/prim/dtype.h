/* Sizes of element types, for those who plan memory; the formats themselves are quant's. */
#ifndef QN_PRIM_DTYPE_H
#define QN_PRIM_DTYPE_H

#include <quern/dtype.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of n elements; 0 is returned when n is negative, not whole blocks, or too large. */
int qn_dtype_bytes(qn_dtype dtype, int64_t n, size_t *bytes);
/* 1: an element is a number of its own, not part of a block. */
int qn_dtype_is_plain(qn_dtype dtype);
/* n numbers, whole blocks, as blocks of a type of weights; returns n, or the place of the first number that
 * the type cannot hold. x NULL: 1 if the type can be encoded, else 0. */
int64_t qn_dtype_encode(qn_dtype dtype, const float *x, int64_t n, void *blocks);

#endif
