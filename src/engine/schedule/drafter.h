/* A drafter: the guesses of a smaller model, for one request.
 *
 * It keeps a sequence of its own on the smaller model's engine, of the same tokens as the request's; its
 * guess is the likeliest continuation. Guessing costs time, so it is left out where it does not pay, and
 * tried again after a while, each time later. It never fails: where the smaller model has no memory left, or
 * cannot take tokens back, there is no guess. The thread that leads the request's scheduler, which alone uses
 * that engine. */
#ifndef QN_ENGINE_SCHEDULE_DRAFTER_H
#define QN_ENGINE_SCHEDULE_DRAFTER_H

#include "engine/machine/engine.h"
#include "engine/schedule/draft.h"

typedef struct qn_drafter qn_drafter;

/* The engine is borrowed. */
qn_status qn_drafter_new(qn_engine *engine, qn_drafter **out);
/* Gives pages back; the next guess begins anew. NULL is accepted. */
void qn_drafter_release(qn_drafter *d);
void qn_drafter_free(qn_drafter *d);
/* What may follow ids[0..n_ids): as many as are worth it, at most n_max (<= QN_DRAFT_MAX), in a step that has
 * n_rows rows without them. Ids only grow from call to call. */
int64_t qn_drafter_guess(qn_drafter *d, const int32_t *ids, int64_t n_ids, const qn_step_costs *costs,
                         int64_t n_rows, int64_t n_max, int32_t *out);

#endif
