/* What one pass learns from: sequences as flat ragged rows, as inference has them. Sequences of one batch do
 * not see each other, so packing short ones together changes nothing, and there is no padding. */
#ifndef QN_TRAIN_DATA_BATCH_H
#define QN_TRAIN_DATA_BATCH_H

#include <stdint.h>

/* Row r is a token. Target l is the token that row rows[l] should predict. Borrowed from who made it. */
typedef struct {
    int64_t n_rows, n_sequences, n_targets;
    const int32_t *ids;       /* [n_rows] */
    const int32_t *row_begin; /* [n_sequences + 1]: rows of sequence s are row_begin[s] .. row_begin[s + 1] */
    const int32_t *rows;      /* [n_targets], rising */
    const int32_t *targets;   /* [n_targets] */
} qn_train_batch;

#endif
