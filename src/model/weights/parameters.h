/* A model's weights on a device: one array per role and layer, packed once; a tied head is the embedding's
 * own array. Immutable after loading. The source's pages of packed tensors are dropped, so the file and its
 * packed form are never resident together. */
#ifndef QN_MODEL_WEIGHTS_PARAMETERS_H
#define QN_MODEL_WEIGHTS_PARAMETERS_H

#include "array/array.h"
#include "format/source/packed.h"
#include "model/weights/weights.h"

typedef struct qn_parameters qn_parameters;

/* A matrix, or the matrices of experts or heads, as a device takes them. parts [qn_parameters_parts] are
 * written, the result points to them; both borrow the view's data. */
qn_weight qn_parameters_weight(const qn_tensor_view *v, qn_weight_part *parts);
int64_t qn_parameters_parts(const qn_tensor_view *v);

/* Packs matrices, all together, and decodes vectors to f32; or takes both from a packed file that fits
 * (model/weights/packing.h), which *out then owns: where it lacks one, QN_E_FORMAT. packed NULL: none. The
 * device and config must outlive *out; the source may be closed afterwards (the files of experts that wait to
 * be used stay mapped). QN_E_UNSUPPORTED: no layout for a matrix (message: which). QN_E_NOMEM: the ledger's
 * limit. */
qn_status qn_parameters_load(qn_device *device, const qn_weights *weights, const qn_model_config *config,
                             qn_packed *packed, qn_parameters **out);
/* What a load would take of the device's memory, and qn_parameters_bits of it. Loads nothing. */
qn_status qn_parameters_measure(qn_device *device, const qn_weights *weights, const qn_model_config *config,
                                size_t *size_bytes, int *bits);
/* A part of a model: layers [begin, end), and with has_model also what no layer has (embedding, final norm,
 * head, vision tower). The arrays of the others are NULL. Rope sets belong to every part. */
typedef struct {
    int64_t begin, end;
    int has_model;
    int as_bf16; /* 1: matrices of f32 and f16 that rows are multiplied with are rounded to bf16; not of packed files */
} qn_parameters_part;
/* The same of a part alone. */
qn_status qn_parameters_load_part(qn_device *device, const qn_weights *weights, const qn_model_config *config,
                                  const qn_parameters_part *part, qn_packed *packed, qn_parameters **out);
qn_status qn_parameters_measure_part(qn_device *device, const qn_weights *weights,
                                     const qn_model_config *config, const qn_parameters_part *part,
                                     size_t *size_bytes, int *bits);
/* Other arrays over the same memory, for another thread: an array belongs to one thread at a time, weights do
 * not. device: of the same kind as that of p, which must outlive *out. */
qn_status qn_parameters_share(const qn_parameters *p, qn_device *device, qn_parameters **out);
void qn_parameters_free(qn_parameters *p);
/* Borrowed; NULL when the model has no such tensor. Matrices are [out, in]. layer: 0 for roles of the whole
 * model. */
qn_array *qn_parameters_get(const qn_parameters *p, qn_weight_role role, int64_t layer);
/* Weights of the convolution that brings the rows of a block together, [index_kpool, qn_index_channels]; NULL where no
 * layer is indexed. */
qn_array *qn_parameters_index_taps(const qn_parameters *p);
/* The numbers of heads, 0, 1, .., i32 [num_attention_heads]; NULL where no matrix is of one head alone. */
qn_array *qn_parameters_heads(const qn_parameters *p);
/* Inverse frequencies of rope set i, f32 [rotary_dim / 2]; is_long: those of long sequences, NULL where these
 * are no others. */
qn_array *qn_parameters_rope(const qn_parameters *p, int i, int is_long);
/* Tensor i of the vision tower, [0, qn_parameters_vision_count): see vision_roles.h. Borrowed; NULL where the
 * tower has no such tensor. */
int64_t qn_parameters_vision_count(const qn_parameters *p);
qn_array *qn_parameters_vision(const qn_parameters *p, int64_t i);
/* Inverse frequencies of its rotation, f32: a quarter of a head's dimensions for rows, as many for columns; NULL where
 * it has none. */
qn_array *qn_parameters_vision_rope(const qn_parameters *p);
/* Elements of all weights, a tied one once; and the bits of the type that holds most of them. */
int64_t qn_parameters_count(const qn_parameters *p);
int qn_parameters_bits(const qn_parameters *p);

#endif
