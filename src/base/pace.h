/* Whether runs of which many alike follow each other are better done by all workers of a pool or by the
 * caller alone: beside processes that keep workers from their processors, all wait for the one that does not
 * run, and one alone can be faster. It is found out by trying, so that whatever else slows a run changes
 * nothing. */
#ifndef QN_BASE_PACE_H
#define QN_BASE_PACE_H

#include <stdint.h>

typedef enum { QN_PACE_TOGETHER, QN_PACE_TRIAL, QN_PACE_ALONE, QN_PACE_LOOK } qn_pace_state;

/* Zero at first. Times by the clock. */
typedef struct {
    qn_pace_state state;
    int64_t ns, n_runs;     /* in this state */
    double together, alone; /* nanoseconds of a run, as measured last */
    int64_t alone_until;    /* of QN_PACE_ALONE */
    int64_t retry_at;       /* no trial before */
    int64_t pause_ns;       /* that the last one in vain put it off */
} qn_pace;

/* A run is about to begin: whether it should be the caller's alone. */
int qn_pace_is_alone(qn_pace *p, int64_t now_ns);
/* It took so long. is_disturbed: workers were kept waiting by others lately. */
void qn_pace_count(qn_pace *p, int64_t took_ns, int64_t now_ns, int is_disturbed);

#endif
