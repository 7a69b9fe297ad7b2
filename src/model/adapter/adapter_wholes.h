/* Whole tensors of the model that an adapter of PEFT changes: saved modules (modules_to_save), biases (bias), the
 * biases of factors (lora_bias), the embedding's factors (lora_embedding_A and _B) and rows of single tokens
 * (trainable_token_indices). Unlike the factors of linear layers they are applied to the numbers of the tensor at
 * once, and what comes of it stands in the tensor's place.
 *
 * Invariant: a role and layer has one entry; every view has the shape that the model implies. Views are the
 * adapter file's. Immutable after reading: any thread. */
#ifndef QN_MODEL_ADAPTER_ADAPTER_WHOLES_H
#define QN_MODEL_ADAPTER_ADAPTER_WHOLES_H

#include "model/adapter/adapter_config.h"
#include "model/config/families.h"
#include "model/weights/weights.h"

/* Applied in this order; NULL views are not there. */
typedef struct {
    qn_weight_role role;
    int64_t layer;               /* 0 for roles of the whole model */
    int64_t n_rows, n_cols;      /* of the tensor; a vector's n_cols is 1 */
    const qn_tensor_view *value; /* takes the place of all numbers */
    const qn_tensor_view *a, *b; /* lora_embedding_A [rank, n_rows] and _B [n_cols, rank], of the embedding */
    const qn_tensor_view *m;     /* DoRA's magnitudes [n_cols] of the embedding */
    const qn_tensor_view *bias;  /* factor * bias [n_rows] is added */
    const qn_tensor_view *tokens; /* [n_ids, n_cols]: rows of the tokens in ids */
    const json_t *ids;            /* borrowed from the configuration */
    float factor, bias_factor;
    int64_t rank;
} qn_adapter_whole;

typedef struct {
    qn_adapter_whole *list; /* owned */
    int64_t n, capacity;
} qn_adapter_wholes;

/* Reads the tensor v, called `name` without the layout's prefix, if it is of a form above: *taken 1. QN_E_FORMAT:
 * its shape, or the configuration does not fit it; QN_E_UNSUPPORTED: the model has no such tensor. */
qn_status qn_adapter_wholes_add(qn_adapter_wholes *w, const qn_model_config *c,
                                const qn_adapter_config *config, const qn_tensor_view *v, const char *name,
                                qn_buf *notes, int *taken);
/* After the last tensor: pairs are whole, modules_to_save is in the file, and a head that is the embedding has what the
 * embedding has. */
qn_status qn_adapter_wholes_finish(qn_adapter_wholes *w, const qn_model_config *c,
                                   const qn_adapter_config *config);
void qn_adapter_wholes_free(qn_adapter_wholes *w);
/* What names the entry in messages: one of its tensors. */
const qn_tensor_view *qn_adapter_whole_view(const qn_adapter_whole *w);
/* numbers [n_rows, n_cols], the model's own, in the model's order of rows (row_order.h), become the changed ones.
 * QN_E_FORMAT: a number that is not finite. */
qn_status qn_adapter_whole_apply(const qn_adapter_whole *w, const qn_model_config *c, float *numbers);

#endif
