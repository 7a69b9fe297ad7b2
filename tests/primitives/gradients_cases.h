/* Random applications of every primitive, for tests/primitives/gradients_test.c. A case is told by a seed and
 * the largest dimension: the same for every type, so that a narrow type can be compared with f32. One thread.
 */
#ifndef QUERN_TESTS_GRADIENTS_CASES_H
#define QUERN_TESTS_GRADIENTS_CASES_H

#include "tests/primitives/case_inputs.h"

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

#endif
