/* Helpers of the files that build public operations (ops_*.c): axes, types, and pieces of arrays. */
#ifndef QN_ARRAY_BUILD_H
#define QN_ARRAY_BUILD_H

#include "array/graph.h"
#include "prim/convert.h"
#include "prim/dtype.h"

/* The axis of an array of n dimensions, negative ones counted from the end; -1 and the scope's error, which
 * names the operation and the shape: there is no such one. `a` may be NULL. */
int qn_axis(qn_scope *s, const char *what, const qn_array *a, int axis);
/* The scope's error: "qn_pad: why (array [2, 3])". Returns NULL. */
qn_array *qn_bad_call(qn_scope *s, const char *what, const qn_array *a, const char *why);
/* Floating numbers: integers and bool as f32. */
qn_array *qn_real(qn_scope *s, qn_array *a);
/* f16 and bf16 as f32, for what takes several steps; cast back with qn_astype at the end. */
qn_array *qn_widened(qn_scope *s, qn_array *a);
/* Elements [begin, begin + length) of one axis. */
qn_array *qn_range(qn_scope *s, qn_array *a, int axis, int64_t begin, int64_t length);
/* The axis comes to lie last, and the last one in its place; done twice, all is as it was. */
qn_array *qn_axis_last(qn_scope *s, qn_array *a, int axis);
/* A number of any type, not weak. */
qn_array *qn_constant(qn_scope *s, qn_dtype dtype, double value);
/* One primitive over one axis, which is kept. */
qn_array *qn_over_axis(qn_scope *s, qn_prim prim, qn_array *a, int axis);
/* Indices as i32 in [0, n), for an axis of a of size n: checked where they are data, else cut off. */
qn_array *qn_indices(qn_scope *s, const char *what, const qn_array *a, qn_array *ids, int64_t n);
/* 0, 1, .. n - 1 as i32. */
qn_array *qn_count_up(qn_scope *s, int64_t n);

#endif
