/* Weights locked in the machine's memory (mlock), so that they are never paged out, up to a limit.
 * The largest come first; the last may be locked in part. Locks are of whole pages and belong to nobody else:
 * keys, values and scratch are not locked. One thread at a time. */
#ifndef QN_ENGINE_MACHINE_WIRED_H
#define QN_ENGINE_MACHINE_WIRED_H

#include "model/weights/parameters.h"

typedef struct {
    char *begin;
    size_t size_bytes;
} qn_wired_range;

/* Zeroed: nothing is locked. */
typedef struct {
    qn_wired_range *ranges;
    int64_t n;
    size_t size_bytes; /* of all */
} qn_wired;

/* Locks up to limit_bytes of the weights of a model of n_layers layers, which must outlive w; 0 unlocks all.
 * QN_E_NOMEM: the system refused (message: how much of how much, its limit, what to do); what was locked
 * before is locked then. */
qn_status qn_wired_set(qn_wired *w, const qn_parameters *p, int64_t n_layers, size_t limit_bytes);
/* Unlocks all. */
void qn_wired_end(qn_wired *w);

#endif
