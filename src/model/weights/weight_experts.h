/* The matrices of a layer's experts as one tensor [num_experts, rows, columns], wherever the files have them:
 * a tensor for each expert, or one for all; with the rows of two roles in it, one half below the other or
 * taking turns; or each matrix transposed. Biases [num_experts, rows] likewise, as a vector. Immutable; the
 * source must outlive it. */
#ifndef QN_MODEL_WEIGHTS_WEIGHT_EXPERTS_H
#define QN_MODEL_WEIGHTS_WEIGHT_EXPERTS_H

#include "array/array.h"
#include "model/config/families.h"

typedef struct qn_weight_experts qn_weight_experts;

/* 1: tensors of this role are found here. */
int qn_weight_experts_has_role(qn_weight_role role);
/* Finds a role's tensors and checks their shapes and types. *out NULL: the files have none. QN_E_FORMAT,
 * QN_E_UNSUPPORTED: as for any tensor. */
qn_status qn_weight_experts_find(const qn_source *src, const qn_model_config *c, const char *prefix,
                                 qn_weight_role role, int64_t layer, qn_weight_experts **out);
void qn_weight_experts_free(qn_weight_experts *e);
/* The tensor that is missed where none was found, by the name it usually has. */
qn_status qn_weight_experts_missing(const qn_source *src, const qn_model_config *c, const char *prefix,
                                    qn_weight_role role, int64_t layer);

/* [num_experts, rows, columns], or of a bias [num_experts * rows]. Its data are not to be read: `experts` of
 * it is this object. Borrowed. */
const qn_tensor_view *qn_weight_experts_view(const qn_weight_experts *e);
/* 1: the tensor of the file is part of it. */
int qn_weight_experts_uses(const qn_weight_experts *e, const qn_tensor_view *stored);
/* For a device; parts [num_experts]. cold 1: each may be packed when it is first used; the files must then
 * stay mapped (qn_weight_experts_mappings). */
qn_weight qn_weight_experts_weight(const qn_weight_experts *e, int cold, qn_weight_part *parts);
/* 1: they lie in mapped files, and may stay there. */
int qn_weight_experts_may_wait(const qn_weight_experts *e);
/* The i-th tensor of a file that it uses; NULL at the end. */
const qn_tensor_view *qn_weight_experts_stored(const qn_weight_experts *e, int64_t i);
/* How the outputs of a role lie in its tensors: those of an expert are lines first, first + step, .. of n_lines,
 * rows or, transposed, columns. */
typedef struct {
    int64_t n_lines, first, step;
    int transposed;
    int blocks; /* the published form of mxfp4: the tensor has no rows */
} qn_weight_experts_lines;
qn_weight_experts_lines qn_weight_experts_get_lines(const qn_weight_experts *e);
/* The i-th tensor of matrices with its scales and biases, of expert i or the only one of all; NULL at the end. */
const qn_tensor_view *qn_weight_experts_matrices(const qn_weight_experts *e, int64_t i);
/* Row `row` of the matrix of an expert: out [columns]. */
qn_status qn_weight_experts_row(const qn_weight_experts *e, int64_t expert, int64_t row, float *out);
/* A bias: out [num_experts * rows]. */
qn_status qn_weight_experts_vector(const qn_weight_experts *e, float *out);

#endif
