/* The tensors of a model by role: "queries of layer 3", whatever the file calls them. Names and shapes are a
 * table of data; the source's kind and the family pick the column. Invariant: after open every tensor that
 * the config requires is there and every tensor that is shown has the shape that the config implies, so
 * whoever packs or computes checks no shape again. Views are borrowed from the source, which must outlive
 * this object. Immutable after open: any thread. */
#ifndef QN_MODEL_WEIGHTS_WEIGHTS_H
#define QN_MODEL_WEIGHTS_WEIGHTS_H

#include "base/status.h"
#include "format/source/source.h"
#include "model/config/config.h"
#include "model/config/weight_role.h"

typedef struct qn_weights qn_weights;

/* Finds all tensors that c requires or allows and checks their shapes. Both arguments must outlive *out (c
 * for its dimensions). QN_E_FORMAT: a tensor is missing (message: file, name, expected shape) or has another
 * shape (file, name, both shapes). QN_E_UNSUPPORTED: a tensor's type, or a tensor of a layer that the family
 * has no use for. */
qn_status qn_weights_open(const qn_source *src, const qn_model_config *c, qn_weights **out);
void qn_weights_close(qn_weights *w);

/* layer: 0 for the roles of the whole model. NULL (without a message): the model has no such tensor.
 * Borrowed. */
const qn_tensor_view *qn_weights_get(const qn_weights *w, qn_weight_role role, int64_t layer);
int64_t qn_weights_layers(const qn_weights *w);
/* Tensor i of the vision tower, [0, qn_weights_vision_count): see vision_roles.h. Borrowed. */
int64_t qn_weights_vision_count(const qn_weights *w);
const qn_tensor_view *qn_weights_vision(const qn_weights *w, int64_t i);
/* 1: LM_HEAD is EMBED's own view, to be packed once. */
int qn_weights_tied(const qn_weights *w);

/* Decodes all elements, in the order of the file, to f32: out[0..v->n_elements), also of a matrix that lies
 * in several tensors. QN_E_UNSUPPORTED: a type that has no decoder. */
qn_status qn_weights_floats(const qn_tensor_view *v, float *out);
/* Rows [first, first + n) of a tensor whose elements are taken as rows of n_cols (of a matrix its columns),
 * to f32: out [n, n_cols]. */
qn_status qn_weights_rows(const qn_tensor_view *v, int64_t n_cols, int64_t first, int64_t n, float *out);
/* Decodes a tensor of one dimension (norms, biases) to f32: out[0..v->shape[0]). QN_E_FORMAT: more
 * dimensions. QN_E_UNSUPPORTED: a type that has no decoder. */
qn_status qn_weights_vector(const qn_tensor_view *v, float *out);

#endif
