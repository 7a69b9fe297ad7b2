/* Random applications of every primitive, for tests/gradients_test.c. A case is told by a seed and the
 * largest dimension: the same for every type, so that a narrow type can be compared with f32. One thread. */
#ifndef QUERN_TESTS_GRADIENTS_CASES_H
#define QUERN_TESTS_GRADIENTS_CASES_H

#include "array/array.h"

enum { QN_CASE_BASES = 8, QN_CASE_ELEMENTS = 512 };

/* What differentiation is by: an input of programs. What the primitive gets is a view of it. */
typedef struct {
    qn_array *input; /* f32 */
    int64_t n;
    float at[QN_CASE_ELEMENTS]; /* where */
} qn_case_base;

typedef struct {
    qn_scope *scope;
    qn_device *device;
    uint64_t seed, drawn;
    int64_t limit;  /* of dimensions */
    qn_dtype dtype; /* of the primitive's real inputs */
    int as_it_is;   /* the primitive's result, no view or sum of it */
    qn_sizes sizes; /* of runs */
    int n_bases;
    qn_case_base *base; /* [QN_CASE_BASES] */
    char text[1000];    /* shapes, views and parameters */
} qn_gradient_case;

typedef enum {
    QN_CASE_NUMBERS, /* differentiated and compared */
    QN_CASE_REFUSED, /* asked for a gradient by the first base: refused with the reason of its table */
    QN_CASE_NOTHING  /* there is nothing to differentiate: integers, sources, what planners make */
} qn_case_kind;

typedef struct {
    qn_prim prim;
    qn_case_kind kind;
    qn_array *(*make)(qn_gradient_case *c); /* NULL: element-wise, or nothing to make */
} qn_case_row;

/* NULL: the primitive has no row, which is an error of the table. */
const qn_case_row *qn_case_find(qn_prim prim);
/* The primitive's result over views of new bases. NULL: see the scope. */
qn_array *qn_case_make(qn_gradient_case *c, const qn_case_row *row);

/* For those who make cases of their own: a number from 0 to below, and a view of a new base. */
int64_t qn_case_roll(qn_gradient_case *c, int64_t below);
qn_array *qn_case_real(qn_gradient_case *c, qn_shape shape);

#endif
