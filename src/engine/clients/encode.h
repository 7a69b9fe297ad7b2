/* Vectors or scores of sequences by an encoder. Sequences of like length share steps; between two steps others may use
 * the engine.
 *
 * Any thread; fn is called by the thread that called qn_encode, sequence by sequence in no certain order. */
#ifndef QN_ENGINE_CLIENTS_ENCODE_H
#define QN_ENGINE_CLIENTS_ENCODE_H

#include "base/cancel.h"
#include "engine/machine/encode.h"
#include "engine/schedule/scheduler.h"

/* Of sequence i its vectors [n, qn_engine_encoded_size] from the first token on, or n = 1 and its scores [num_labels];
 * valid during the call. Anything but QN_OK ends all with that status. */
typedef qn_status qn_encoded_fn(void *user, int64_t i, int64_t n, const float *values);

/* Borrowed. */
typedef struct {
    const qn_encode_row *rows;
    int64_t n_rows;
    int scores;              /* 1: scores in place of vectors */
    const qn_cancel *cancel; /* NULL: never */
} qn_encoding;

/* Statuses of qn_engine_encode and qn_engine_classify; QN_E_CANCELLED; QN_E_ARG: this thread is leading. */
qn_status qn_encode(qn_scheduler *s, qn_engine *e, const qn_encoding *what, qn_encoded_fn *fn, void *user);

#endif
