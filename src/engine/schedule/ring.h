/* The way out: what was drawn for one request, from the leader to the request's owner, without a lock.
 *
 * A ring of places, each for one token with its log-probabilities. Who draws writes into a free place and
 * publishes it; when none is free the request is parked until its owner has read. One writer and one reader
 * at a time; each may change threads, as long as the hand-over is ordered (the scheduler's is). Nothing is
 * allocated after qn_ring_new. */
#ifndef QN_ENGINE_SCHEDULE_RING_H
#define QN_ENGINE_SCHEDULE_RING_H

#include <quern/generate.h>
#include <stdatomic.h>

#include "base/status.h"

typedef struct {
    int32_t id;
    float logprob; /* where it was asked for */
    int32_t n_top;
    qn_top_logprob *top; /* [n_top_logprobs], the ring's own */
} qn_drawn;

typedef struct {
    qn_drawn *places; /* [capacity] */
    qn_top_logprob *top;
    int64_t capacity;
    atomic_llong n_written, n_read;
} qn_ring;

/* n_top: most alternatives a token has. */
qn_status qn_ring_init(qn_ring *r, int64_t capacity, int32_t n_top);
void qn_ring_end(qn_ring *r);
/* Writer: places that are free. */
int64_t qn_ring_room(const qn_ring *r);
/* Writer: the place to fill, i places behind the next (i < room); it is seen after qn_ring_publish. */
qn_drawn *qn_ring_place(qn_ring *r, int64_t i);
void qn_ring_publish(qn_ring *r, int64_t n);
/* Reader: the oldest token, valid until qn_ring_drop; NULL: there is none. */
const qn_drawn *qn_ring_peek(const qn_ring *r);
/* Reader: returns nonzero when the ring had been full: who parked the request should be told. */
int qn_ring_drop(qn_ring *r);

#endif
