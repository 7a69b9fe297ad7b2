/* Random applications of the primitives that tests/primitives/gradients_cases.h has none of, since there is
 * nothing to differentiate: comparisons, places, orders, random numbers, sources, chains; and scans that have
 * no gradient at their ends. One thread. */
#ifndef QUERN_TESTS_OTHER_CASES_H
#define QUERN_TESTS_OTHER_CASES_H

#include "tests/primitives/gradients_cases.h"

/* 1: there are some. */
int qn_other_case_has(qn_prim prim);
/* The primitive's result over views of new bases. NULL: see the scope. */
qn_array *qn_other_case_make(qn_gradient_case *c, qn_prim prim);

#endif
