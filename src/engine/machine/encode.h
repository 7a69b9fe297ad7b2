/* Steps of an encoder: whole sequences in, vectors of all their rows or scores out.
 *
 * Nothing is kept between steps, so a step has whole sequences, and an engine over an encoder has no pages, no prefix
 * tree and no logits. Invariant: what a sequence gets does not depend on its company, bit for bit. One thread at a
 * time. */
#ifndef QN_ENGINE_MACHINE_ENCODE_H
#define QN_ENGINE_MACHINE_ENCODE_H

#include "engine/machine/engine.h"

enum { QN_ENCODE_SEQUENCES = 64 /* of one step, at most */ };

typedef struct {
    const int32_t *ids, *types; /* [n_ids]; types NULL: all are 0 */
    int64_t n_ids;              /* in [1, context_size] */
    int32_t adapter;            /* id; -1: none */
} qn_encode_row;

/* 1: the engine's model is an encoder, for which the functions below are; others take qn_engine_step. */
int qn_engine_encodes(const qn_engine *e);
/* Numbers of each vector. */
int64_t qn_engine_encoded_size(const qn_engine *e);
/* Rows of all sequences that a step should have; a single longer sequence may have more. */
int64_t qn_engine_encode_rows(const qn_engine *e);
/* Computes n sequences. *out [all rows, qn_engine_encoded_size], one sequence after the other, valid until the next
 * step. QN_E_ARG: an id outside the vocabulary, a type that the model has not, too many tokens. QN_E_NOMEM: the memory
 * limit. */
qn_status qn_engine_encode(qn_engine *e, int64_t n, const qn_encode_row *rows, const float **out);
/* Scores [n, num_labels] of the same by the model's head, valid until the next step. QN_E_UNSUPPORTED: it has no head. */
qn_status qn_engine_classify(qn_engine *e, int64_t n, const qn_encode_row *rows, const float **out);

#endif
