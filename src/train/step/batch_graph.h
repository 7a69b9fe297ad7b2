/* Batches as a program of the forward pass takes them: its inputs, and how they are filled. Any thread. */
#ifndef QN_TRAIN_STEP_BATCH_GRAPH_H
#define QN_TRAIN_STEP_BATCH_GRAPH_H

#include "array/program.h"
#include "model/forward/forward.h"
#include "train/data/batch.h"

/* The largest batch of a program. */
typedef struct {
    int64_t n_rows, n_sequences, n_targets;
} qn_batch_sizes;

/* Makes the inputs of f, whose config is set, with those of the loss. They must be the first of the scope;
 * returns how many they are. */
int qn_batch_graph_inputs(qn_scope *s, qn_forward *f, qn_array **rows, qn_array **targets);
/* Puts a batch into them. QN_E_ARG: it is larger than max, has no targets, or an id outside the vocabulary.
 */
qn_status qn_batch_graph_fill(qn_program *p, const qn_model_config *c, const qn_batch_sizes *max,
                              const qn_train_batch *b);

#endif
