/* What random applications of primitives are made of: dice, values, views of inputs, numbers that are no
 * inputs. A case is told by a seed and the largest dimension. One thread. */
#ifndef QUERN_TESTS_CASE_INPUTS_H
#define QUERN_TESTS_CASE_INPUTS_H

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

/* Where a function bends, both sides of a difference have to lie on the same piece: so far from there. */
typedef enum {
    QN_REAL_ANY,
    QN_REAL_POSITIVE,
    QN_REAL_FROM_ZERO,
    QN_REAL_APART,
    QN_REAL_EVEN,
    QN_REAL_ODD,
    QN_REAL_NEGATIVE
} qn_real_values;

/* From 0 to below, and from 1 to the case's limit. */
int64_t qn_case_roll(qn_gradient_case *c, int64_t below);
int64_t qn_case_size(qn_gradient_case *c);
/* Appends to the case's text. */
__attribute__((format(printf, 2, 3))) void qn_case_say(qn_gradient_case *c, const char *fmt, ...);
qn_shape qn_case_shape(qn_gradient_case *c, int least, int most);

/* ---- by which is differentiated: a new base, and views of one ----------------------------------------- */

qn_array *qn_case_new_base(qn_gradient_case *c, qn_real_values how, qn_shape shape);
qn_array *qn_case_turned(qn_gradient_case *c, qn_real_values how, qn_shape shape);
qn_array *qn_case_cut(qn_gradient_case *c, qn_real_values how, qn_shape shape);
qn_array *qn_case_repeated(qn_gradient_case *c, qn_real_values how, qn_shape shape);
/* Any of these, of any numbers or of those said. */
qn_array *qn_case_real(qn_gradient_case *c, qn_shape shape);
qn_array *qn_case_real_as(qn_gradient_case *c, qn_real_values how, qn_shape shape);
qn_array *qn_case_reals(qn_gradient_case *c, qn_real_values how, int n, const int64_t *dims);
/* The last two arguments of those that take n and dims. */
#define QN_DIMS(...)                                                       \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) \
    {                                                                      \
        __VA_ARGS__                                                        \
    }

/* ---- what is not --------------------------------------------------------------------------------------- */

qn_array *qn_case_constant(qn_gradient_case *c, qn_dtype dtype, const void *data, int n, const int64_t *dims);
qn_array *qn_case_whole(qn_gradient_case *c, const int32_t *x, int n, const int64_t *dims);
qn_array *qn_case_fixed(qn_gradient_case *c, double low, double high, int n, const int64_t *dims);
/* [rows, columns] numbers below `below`, as n dimensions; in a row all different where distinct. */
qn_array *qn_case_indices(qn_gradient_case *c, int64_t rows, int64_t columns, int64_t below, int distinct,
                          int n);
qn_array *qn_case_row_ids(qn_gradient_case *c, int64_t rows, int64_t below);
/* Sequences of 1 to the limit rows; positions (may be NULL) begin anywhere. Returns the rows of all. */
int64_t qn_case_ragged(qn_gradient_case *c, qn_array **row_begin, qn_array **positions);

/* ---- applying ------------------------------------------------------------------------------------------ */

/* To one array, whose type the result has. shape NULL: as the rule says. */
qn_array *qn_case_apply(qn_gradient_case *c, qn_prim prim, const qn_params *p, qn_array *a,
                        const qn_shape *shape);
qn_array *qn_case_call(qn_gradient_case *c, qn_prim prim, const qn_params *p, int n, qn_array *const *in);

#endif
