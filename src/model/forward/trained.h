/* What of a model is being trained, as the graph sees it: low-rank factors beside a matrix (Hu et al. 2021;
 * with magnitudes of its outputs, DoRA, Liu et al. 2024), or an array in a weight's place. The arrays are
 * whoever trains's; the graph is differentiated by them. */
#ifndef QN_MODEL_FORWARD_TRAINED_H
#define QN_MODEL_FORWARD_TRAINED_H

#include "array/array.h"
#include "model/weights/weights.h"

/* Of one matrix. The product of x gets scale * (x a^T) b^T; with a magnitude, the whole of it is divided by
 * the lengths of the rows of W + scale * b a and multiplied by the magnitudes, where the lengths count as
 * constants (section 4.3 of the paper). */
typedef struct {
    qn_array *a,
        *b; /* [rank, n_in], [n_out, rank]; of experts one of each: [E, rank, n_in], [E, n_out, rank];
                        NULL: no factors */
    qn_array *magnitude;         /* [n_out]; NULL: none */
    qn_array *still_a, *still_b; /* with magnitudes: other arrays over the memory of a and b */
    qn_array *squares;           /* with magnitudes: [n_out] squared lengths of the rows of W */
    qn_array *weight;            /* in the place of the model's own; NULL: the model's */
    float scale;
    qn_array *key; /* of qn_dropout of what a reads; NULL: none */
    float dropout;
    int64_t stream;
} qn_trained_matrix;

typedef struct qn_trained qn_trained;

/* Nothing is trained at first. */
qn_status qn_trained_new(int64_t n_layers, qn_trained **out);
void qn_trained_free(qn_trained *t);
/* What of a role is trained, made if it was not there, zeroed; NULL: out of memory. */
qn_trained_matrix *qn_trained_add(qn_trained *t, qn_weight_role role, int64_t layer);
/* NULL: the role is as the model has it; so is everything for t NULL. */
const qn_trained_matrix *qn_trained_get(const qn_trained *t, qn_weight_role role, int64_t layer);

/* y, the product of x with weight, plus what m adds. */
qn_array *qn_trained_linear(qn_scope *s, const qn_trained_matrix *m, qn_array *x, qn_array *weight,
                            qn_array *y);
/* The same of experts: x [R, n_in] or [R, top, n_in] and y [R, top, n_out], the products with those that ids [R,
 * top] names. share [R, top]: y [R, n_out] is their sum, each times its share; NULL: it is not. */
qn_array *qn_trained_experts(qn_scope *s, const qn_trained_matrix *m, qn_array *x, qn_array *ids,
                             qn_array *share, qn_array *y);

#endif
