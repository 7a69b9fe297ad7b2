/* Shapes, slowest dimension first, as in NumPy.
 *
 * A program is compiled once and run with other numbers of rows: its first dimension may depend on three
 * symbols, R rows, S sequences and L logit rows: size 0 = dim[0] + sym[0] R + sym[1] S + sym[2] L. All other
 * dimensions are plain numbers. */
#ifndef QN_PRIM_SHAPE_H
#define QN_PRIM_SHAPE_H

#include <stdint.h>

#include "base/status.h"

enum { QN_MAX_DIMS = 6 };
typedef enum { QN_SYM_R, QN_SYM_S, QN_SYM_L, QN_SYM_COUNT } qn_symbol;

/* Values of the symbols in one run (or their maxima in a plan). */
typedef struct {
    int64_t v[QN_SYM_COUNT];
} qn_sizes;

typedef struct {
    int n; /* 0: a scalar */
    int64_t dim[QN_MAX_DIMS];
    int32_t sym[QN_SYM_COUNT]; /* belong to dimension 0 */
} qn_shape;

/* n plain dimensions. */
qn_shape qn_shape_make(int n, const int64_t *dims);
/* [symbol, dims...] */
qn_shape qn_shape_sym(qn_symbol symbol, int n, const int64_t *dims);
int qn_shape_equal(const qn_shape *a, const qn_shape *b);
int qn_shape_is_symbolic(const qn_shape *a);
/* Size of dimension i under the given sizes. */
int64_t qn_shape_dim(const qn_shape *a, int i, const qn_sizes *sizes);
/* Elements of one index of dimension 0 (1 for a scalar or a vector); never symbolic. */
int64_t qn_shape_row(const qn_shape *a);
/* All elements; plain shapes are checked for overflow when they are made. */
int64_t qn_shape_elements(const qn_shape *a, const qn_sizes *sizes);
/* "[R, 64]" into text[0..size). */
const char *qn_shape_text(const qn_shape *a, char *text, int size);
/* NumPy's rule, right-aligned; QN_E_ARG names both shapes. */
qn_status qn_shape_broadcast(const qn_shape *a, const qn_shape *b, qn_shape *out);
/* Row-major strides in elements (none of them symbolic). */
void qn_shape_strides(const qn_shape *a, int64_t *strides);

#endif
