/* The inside of candidates. candidates.c has the filters that keep a front of the falling order.
 * candidates_edit.c changes single logits and takes tokens out at both ends. No other file includes this. */
#ifndef QN_ENGINE_SAMPLE_CANDIDATES_PARTS_H
#define QN_ENGINE_SAMPLE_CANDIDATES_PARTS_H

#include "engine/sample/candidates.h"

enum { QN_CANDIDATES_WORDS = QN_ROW_BLOCK / 64 };

/* What lies behind it in falling order is no candidate. */
typedef struct {
    float logit;
    int32_t id;
} qn_candidates_cut;

#define QN_CANDIDATES_NO_CUT ((qn_candidates_cut){-INFINITY, INT32_MAX})

struct qn_candidates {
    const qn_logits_kernels *kernels;
    int64_t n_vocab, n_blocks;
    uint64_t *seen;   /* [n_blocks][QN_CANDIDATES_WORDS] bits: the history, or NULL */
    float *block_max; /* [n_blocks] as the logits are now; right while whole */
    float *block_sum; /* [n_blocks] weights, and scratch of find_largest */
    float *logit;     /* the list: [list_size], of which n are in use; NULL when only the best is asked for */
    float *weight;
    int32_t *id;
    float *space; /* [n_vocab] the caller's; NULL: there is none, and nothing edits */

    const float *logits;
    int is_penalised, is_listed;
    float penalty, scale, best;      /* best: the largest logit as it is now */
    qn_candidates_cut before, after; /* of the order before and after the penalty; only for whole */
    int64_t n;
};

int64_t qn_candidates_block_length(const qn_candidates *c, int64_t b);
/* Block b: -inf is no candidate. In place where nothing is changed, else in buffer [QN_ROW_BLOCK]. */
const float *qn_candidates_view(const qn_candidates *c, int64_t b, float *buffer);
/* c->best of values [n]; a status as begin's. */
qn_status qn_candidates_take_best(qn_candidates *c, const float *values, int64_t n);

#endif
