/* Guests: sequences that are computed between the steps of the scheduler's, and give way to them. Where pages
 * or memory are short for any other sequence a guest's are taken: it finds out when it has the engine again,
 * and begins anew. Whoever has the engine. */
#ifndef QN_ENGINE_MACHINE_GUEST_H
#define QN_ENGINE_MACHINE_GUEST_H

#include "engine/machine/engine.h"

typedef struct qn_guest {
    qn_sequence *sequence; /* NULL: it was taken */
    struct qn_guest *next;
} qn_guest;

/* A new sequence, from here to the end a guest of the engine. g is the caller's. */
qn_status qn_guest_begin(qn_guest *g, qn_engine *e);
void qn_guest_end(qn_guest *g, qn_engine *e);
/* Frees one guest's sequence for s, not s itself. 0: there is none. */
int qn_guest_give_way(qn_engine *e, const qn_sequence *s);

#endif
