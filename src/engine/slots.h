/* Places on an engine: who may hold sequences, in order of arrival, and whose turn it is to compute.
 *
 * A call takes as many places as it will hold sequences, all at once, and gives them back when it ends; those
 * who come later wait behind it. Computing itself is one at a time, under the turn. Any thread. */
#ifndef QN_ENGINE_SLOTS_H
#define QN_ENGINE_SLOTS_H

#include <pthread.h>
#include <stdint.h>

#include "base/status.h"

typedef struct qn_slots qn_slots;

/* One call's places. Zeroed at first; belongs to the call. */
typedef struct qn_slots_holder {
    int64_t n;        /* places held */
    pthread_t thread; /* that used them last */
    struct qn_slots_holder *previous, *next;
} qn_slots_holder;

qn_status qn_slots_new(int64_t n, qn_slots **out);
/* NULL is accepted. Nobody may hold or wait. */
void qn_slots_free(qn_slots *s);
int64_t qn_slots_count(const qn_slots *s);

/* Why waiting should end: QN_OK to go on. Asked about every 20 ms. */
typedef qn_status qn_slots_stop_fn(void *user);
/* Takes n (at most the count) places for h, which holds none. Returns what stop returned where that was not
 * QN_OK. QN_E_FULL: the places that are missing are held by calls of this very thread, so that waiting would
 * never end. QN_E_ARG: this thread has the turn. */
qn_status qn_slots_take(qn_slots *s, int64_t n, qn_slots_holder *h, qn_slots_stop_fn *stop, void *user);
/* Gives all of h's places back; none is fine. */
void qn_slots_give(qn_slots *s, qn_slots_holder *h);

/* The engine is the caller's from here to the end of its turn; turns come in the order in which they were
 * asked for. h: a holder, or NULL. A thread may begin again within its turn, to free sequences. */
void qn_slots_begin_turn(qn_slots *s, qn_slots_holder *h);
void qn_slots_end_turn(qn_slots *s);
/* QN_E_ARG: this thread has the turn already, and may not compute within it. */
qn_status qn_slots_check_thread(qn_slots *s);

#endif
