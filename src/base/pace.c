#include "base/pace.h"

/* A disturbed stretch together, before a trial, is a period of a quota (100 ms), in which all stand still at
 * once. A trial in vain costs up to half of its time, so each comes later than the one before. */
static const int64_t stretch_ns = 100000000, trial_ns = 30000000, alone_ns = 500000000, look_ns = 20000000,
                     first_pause_ns = 1000000000, last_pause_ns = 8000000000;
static const double gain = 0.9; /* alone has to take less than this part */

static void enter(qn_pace *p, qn_pace_state state)
{
    p->state = state;
    p->ns = p->n_runs = 0;
}

/* Both were measured. */
static void decide(qn_pace *p, int64_t now_ns)
{
    if (p->alone < gain * p->together) {
        p->alone_until = now_ns + alone_ns;
        p->pause_ns = 0;
        enter(p, QN_PACE_ALONE);
        return;
    }
    if (p->state == QN_PACE_TRIAL) {
        p->pause_ns = !p->pause_ns                      ? first_pause_ns
                      : 2 * p->pause_ns < last_pause_ns ? 2 * p->pause_ns
                                                        : last_pause_ns;
        p->retry_at = now_ns + p->pause_ns;
    }
    enter(p, QN_PACE_TOGETHER);
}

int qn_pace_is_alone(qn_pace *p, int64_t now_ns)
{
    if (p->state == QN_PACE_ALONE && now_ns >= p->alone_until) {
        if (p->n_runs) p->alone = (double)p->ns / (double)p->n_runs;
        enter(p, QN_PACE_LOOK);
    }
    return p->state == QN_PACE_TRIAL || p->state == QN_PACE_ALONE;
}

void qn_pace_count(qn_pace *p, int64_t took_ns, int64_t now_ns, int is_disturbed)
{
    p->ns += took_ns;
    p->n_runs++;
    const double each = (double)p->ns / (double)p->n_runs;
    switch (p->state) {
    case QN_PACE_TOGETHER:
        if (!is_disturbed || now_ns < p->retry_at) {
            enter(p, QN_PACE_TOGETHER);
        } else if (p->ns >= stretch_ns) {
            p->together = each;
            enter(p, QN_PACE_TRIAL);
        }
        return;
    case QN_PACE_TRIAL:
        if (p->ns < trial_ns) return;
        p->alone = each;
        decide(p, now_ns);
        return;
    case QN_PACE_LOOK:
        if (p->ns < look_ns) return;
        p->together = each;
        decide(p, now_ns);
        return;
    default:
        return;
    }
}
