/* The probes of one engine: who is called at which point (quern/probe.h).
 *
 * Invariant: the word of points is what all registered probes ask for together, so that a point that nobody
 * asks for costs one load. Wanting and emitting: any thread, calls of one engine one at a time. Adding and
 * removing: any thread, but not from inside of a call; what goes on inside a step is asked for and dropped
 * between two steps only (qn_engine_probe_add). */
#ifndef QN_ENGINE_MACHINE_PROBE_H
#define QN_ENGINE_MACHINE_PROBE_H

#include <pthread.h>
#include <quern/probe.h>
#include <stdatomic.h>

#include "device/device.h"

typedef struct {
    atomic_uint points;      /* bits 1 << qn_probe_point */
    pthread_mutex_t lock;    /* of what follows; held during a call */
    atomic_uintptr_t caller; /* names the thread that is in a call; 0: none */
    int64_t n, next;
    struct {
        int64_t number;
        uint32_t points;
        qn_probe_event_fn *fn;
        void *user;
    } entries[QN_PROBES_MAX];
} qn_probes;

void qn_probes_init(qn_probes *p);
void qn_probes_end(qn_probes *p);

/* Does anybody ask for the point? What an event costs to make is spent only then. */
static inline int qn_probes_want(const qn_probes *p, qn_probe_point point)
{
    return atomic_load_explicit(&p->points, memory_order_relaxed) >> point & 1;
}
/* Calls all probes that ask for event->point. */
void qn_probes_emit(qn_probes *p, const qn_probe_event *event);

/* QN_E_ARG: inside of a call; QN_E_FULL. */
qn_status qn_probes_add(qn_probes *p, uint32_t points, qn_probe_event_fn *fn, void *user, int64_t *number);
/* QN_E_ARG: inside of a call; QN_E_NOT_FOUND. */
qn_status qn_probes_remove(qn_probes *p, int64_t number);
/* QN_E_ARG: this thread is inside of a call. */
qn_status qn_probes_check_thread(const qn_probes *p);

/* Is one of the points asked for that lie inside a step? */
int qn_probes_want_steps(const qn_probes *p);
/* Does one of them see this step of a program? */
int qn_probes_want_step(const qn_probes *p, const qn_plan_step *step);
/* Makes the events of what was just computed, of the rows given. */
void qn_probes_see(qn_probes *p, const qn_probe_rows *rows, const qn_probe_view *view);

#endif
