/* Logits of rows of ids, through the scheduler: rows share steps with everybody's requests, and prefixes.
 *
 * Any thread; fn is called by the thread that called qn_evaluate, in rising order for each row. */
#ifndef QN_ENGINE_CLIENTS_EVALUATE_H
#define QN_ENGINE_CLIENTS_EVALUATE_H

#include "engine/schedule/scheduler.h"

/* Logits [n, vocab_size] (or hidden states) of positions [position, position + n) of one row; valid during
 * the call, which may change them. Anything but QN_OK ends the row with that status. */
typedef qn_status qn_row_logits_fn(void *user, int64_t row, int64_t position, int64_t n, float *logits);

/* Borrowed. */
typedef struct {
    const qn_ids *rows;
    int64_t n_rows;
    const int32_t *adapters; /* [n_rows], held by the caller */
    const int64_t *from; /* [n_rows] the first position whose logits are wanted; NULL: last_only says it */
    int last_only;       /* only the last position's, else all */
    int hidden;          /* normed hidden states [n, hidden_size] in place of logits */
    int no_cache;
    const char *salt, *tenant; /* as in qn_request */
    int32_t priority;
    const qn_cancel *cancel; /* NULL: never */
    const qn_image *images;  /* of the only row, whose ids have all their tokens */
    size_t n_images;
} qn_evaluation;

/* The first row that fails ends all, and its status is returned. QN_E_ARG: an id outside the vocabulary, or
 * this thread is leading; QN_E_NOMEM: no room for the rows' own memory. */
qn_status qn_evaluate(qn_scheduler *s, qn_engine *e, const qn_evaluation *what, qn_row_logits_fn *fn,
                      void *user);

#endif
