/* Whole tensors that an adapter changes (adapter_wholes.h), as what programs add for the rows that use it: the
 * distance of the changed numbers from the model's own, as pairs for LORA and EXPERTS_LORA.
 *
 * A vector's distance d is the product of a row of ones [1] with d [1, n]. The embedding's is that of the experts'
 * matrices, a token being an expert with one input, which is 1. A matrix's is x I D^T, with I in pieces of at most
 * QN_LORA_RANK_MAX inputs; where fewer rows than that change, the product with these rows alone. The thread that owns
 * the device. */
#ifndef QN_MODEL_ADAPTER_ADAPTER_CHANGES_H
#define QN_MODEL_ADAPTER_ADAPTER_CHANGES_H

#include "array/array.h"
#include "model/adapter/adapter_wholes.h"
#include "model/weights/parameters.h"

typedef struct {
    qn_buffer *data; /* NULL: nothing changes */
    size_t size_bytes;
    qn_lora_pair *pairs; /* [n_pairs], owned */
    int n_pairs;
} qn_adapter_change;

/* Steps of a program that a role's changes may need, at least 1. */
int qn_adapter_change_steps(const qn_model_config *c, qn_weight_role role, int64_t layer);
/* scale multiplies the distance. QN_E_UNSUPPORTED: the model has no such tensor. Untouched on failure. */
qn_status qn_adapter_change_make(qn_device *device, const qn_parameters *p, const qn_model_config *c,
                                 const qn_adapter_whole *w, float scale, qn_adapter_change *out);
/* Accepts a zeroed one. */
void qn_adapter_change_free(qn_adapter_change *change);

#endif
