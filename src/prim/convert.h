/* Casts between plain element types, on the host. The rules are those of qn_astype (include/quern/array.h):
 * floats are cut toward zero and saturate on their way to integers, NaN gives 0; integers keep their low
 * bits; floats are rounded once, to nearest even, whatever they come from; bool is "not 0". Any thread. */
#ifndef QN_PRIM_CONVERT_H
#define QN_PRIM_CONVERT_H

#include <quern/dtype.h>
#include <stdint.h>

/* x[0..n) of one plain type to out[0..n) of another; the two do not overlap. */
void qn_convert(qn_dtype from, const void *x, qn_dtype to, void *out, int64_t n);
/* The same with elements of x so many bytes apart. */
void qn_convert_strided(qn_dtype from, const void *x, int64_t stride_bytes, qn_dtype to, void *out,
                        int64_t n);

/* 1: F16, BF16, F32 or F64. */
int qn_dtype_is_float(qn_dtype dtype);
/* Bytes of an element of a plain type; 0: a block type. */
int qn_dtype_width(qn_dtype dtype);

#endif
