/* What differentiation is made of, for the files of array/ only: a pass over the graph below an array, and
 * for each primitive a derivative, a gradient, a tangent and a fallback. All of them build new arrays in the
 * scope; what nobody asks for is never computed. */
#ifndef QN_ARRAY_TAPE_H
#define QN_ARRAY_TAPE_H

#include "array/graph.h"

typedef struct {
    qn_array *a;
    qn_array *value; /* its gradient or tangent as far as known; NULL: zero */
    int depends;     /* on one of the arrays that are differentiated by */
    int leaf;        /* is one of them: what lies below is not looked at */
} qn_tape_node;

/* Arrays of real numbers between `of` and the leaves, inputs first. */
typedef struct {
    qn_tape_node *nodes;
    int64_t n;
} qn_tape;

qn_status qn_tape_new(qn_array *of, int n, qn_array *const *wrt, qn_tape *out);
void qn_tape_free(qn_tape *t);
/* What the derivative of a is by: its inputs, or those that its own gradient speaks of, or nothing. */
int qn_tape_inputs(const qn_array *a, qn_array *const **in);
/* NULL: not on the tape (integers, or not below `of`). */
qn_tape_node *qn_tape_find(const qn_tape *t, const qn_array *a);

/* How a table states a primitive that has no rule in it: by its fallback, or not at all, and why. The reason
 * ends a sentence "NAME has no gradient: ..." and stands in docs/primitives.md. A plain NULL is refused by
 * tests/primitives/gradients_test.c and by tools/lint.py. */
#define QN_BY_FALLBACK NULL, .by_fallback = 1
#define QN_NONE(reason) NULL, .none = "" reason

typedef enum { QN_UNSTATED, QN_BY_RULE, QN_BY_ITS_FALLBACK, QN_STATED_NONE } qn_stated;

/* How a primitive's gradient, tangent or fallback is stated; *why: the reason where there is none, else NULL.
 */
qn_stated qn_gradient_stated(qn_prim prim, const char **why);
qn_stated qn_tangent_stated(qn_prim prim, const char **why);
qn_stated qn_fallback_stated(qn_prim prim, const char **why);

/* Gradients and tangents exist for arrays of real numbers that are plain, not packed. */
int qn_is_real(const qn_array *a);

/* a: an element-wise array. g times the partial derivative of a by input i, NULL where that is 0; g has a
 * shape that fits a's. */
qn_array *qn_derivative(qn_scope *s, qn_array *a, int i, qn_array *g);
/* 1 where x > 0, 0 where x is 0, -1 where x < 0. */
qn_array *qn_sign_of(qn_scope *s, qn_array *x);
/* Zeros of a's shape and type. */
qn_array *qn_zeros_like(qn_scope *s, const qn_array *a);
/* For MAX and MIN: where a's input is the largest (smallest) along its axis, divided by the number of such
 * places. */
qn_array *qn_max_share(qn_scope *s, qn_array *a);
/* The product of a primitive with other inputs: a's parameters, shape and dtype are kept. */
qn_array *qn_again(qn_scope *s, const qn_array *a, qn_array *const *in);
/* g summed over the dimensions that broadcasting `shape` to g's shape had repeated. */
qn_array *qn_sum_to(qn_scope *s, qn_array *g, const qn_shape *shape);

/* n->a has a checkpoint: adds to the nodes of t the gradients that come through what is built anew. */
qn_status qn_checkpoint_back(qn_scope *s, const qn_tape_node *n, const qn_tape *t);
/* a gets a gradient of its own by in[0..n_in), at most QN_CUSTOM_INPUTS_MAX. */
void qn_customize(qn_scope *s, qn_array *a, qn_gradient_function *gradient, void *user, int n_in,
                  qn_array *const *in);
/* n->a has one: adds what it gives. */
qn_status qn_custom_back(qn_scope *s, const qn_tape_node *n, const qn_tape *t);
/* g is added to the gradient of a node. */
void qn_tape_add(qn_scope *s, qn_tape_node *in, qn_array *g);

/* The primitive stated in smaller ones. NULL with a healthy scope: it has no such statement. */
qn_array *qn_fallback(qn_scope *s, qn_prim prim, const qn_params *params, int n_in, qn_array *const *in);

#endif
