/* What a scheduler is made of, for the files that make it up: scheduler.c decides who leads, admission.c
 * whose request becomes active, batch.c computes a step, outcome.c what it did for each, endings.c how
 * requests end, points.c where they leave prefixes, events.c tells probes. Nobody else looks inside. */
#ifndef QN_ENGINE_SCHEDULE_SCHEDULER_PARTS_H
#define QN_ENGINE_SCHEDULE_SCHEDULER_PARTS_H

#include <pthread.h>

#include <quern/probe.h>

#include "engine/schedule/scheduler.h"
#include "engine/schedule/step_costs.h"

enum { QN_TENANTS_MAX = 64, QN_TENANT_NAME_BYTES = 64 };

/* Tokens served, for turns. Those that have no request left are forgotten when room is needed. */
typedef struct {
    char name[QN_TENANT_NAME_BYTES];
    int64_t n_served, n_live;
} qn_tenant;

typedef struct {
    qn_request *first, *last;
    int64_t n;
} qn_request_list;

/* A thread that waits; lives on its stack. */
typedef struct qn_waiter {
    pthread_cond_t changed;
    pthread_t thread;
    struct qn_waiter *previous, *next;
    qn_client *client; /* NULL: it wants to enter */
    int is_pressing;   /* it cannot be served by another leader */
    int is_granted;    /* it leads */
} qn_waiter;

struct qn_scheduler {
    qn_engine *engine;
    qn_inbox inbox;
    int64_t max_queue;
    atomic_llong n_open; /* submitted, and not ended */
    atomic_llong n_idle; /* of QN_PRIORITY_IDLE, which n_open does not count */

    pthread_mutex_t lock; /* of what follows, up to the leader's part; never held while somebody computes */
    pthread_condattr_t clock;
    int is_led;
    pthread_t leader;
    qn_waiter *first, *last; /* in order of arrival */
    int64_t n_pressing;
    int has_thread, should_end; /* of its own */
    pthread_t thread;
    pthread_cond_t work;              /* its thread waits for that */
    pthread_cond_t settled;           /* who led has let go of requests that ended */
    atomic_int is_asleep, is_stirred; /* its thread; since it looked */
    qn_figures figures;               /* of the last step that ended */

    /* ---- the leader's ---- */
    qn_client *quitting;            /* closed by the leader within its own step */
    qn_client *touched;             /* they have something to read since the last announcement */
    qn_request *ended;              /* since then, by next */
    qn_request_list queued, active; /* both by priority, then by number */
    uint64_t n_numbers, n_steps;
    qn_tenant tenants[QN_TENANTS_MAX];
    qn_feed *feeds;   /* [max_sequences] */
    qn_request **fed; /* whose feed it is */
    int64_t n_feeds;
    qn_step_costs costs;          /* of steps in which all decode */
    qn_prompt_costs prompt_costs; /* of the others, beyond that */
    int64_t n_mixed;              /* steps one after the other in which some decoded beside prompts */
    qn_figures now;
    size_t n_evicted_bytes; /* when probes were told last */
};

/* ---- admission.c ---- */
/* Is it for idle times? Its tenant's turns do not suffer from it. */
int qn_request_is_idle(const qn_request *r);
/* Puts it where its priority and number say. */
void qn_request_list_put(qn_request_list *l, qn_request *r);
void qn_request_list_remove(qn_request_list *l, qn_request *r);
/* Letters become queued requests. */
void qn_admission_receive(qn_scheduler *s);
/* Active requests are told what the next ones share with them, for points to be kept there. */
void qn_admission_mark(qn_scheduler *s);
/* The next that may become active, or NULL. */
qn_request *qn_admission_choose(qn_scheduler *s);
void qn_admission_count(qn_scheduler *s, qn_request *r, int64_t n_tokens);
void qn_admission_forget(qn_scheduler *s, qn_request *r);

/* ---- events.c: for probes; nothing where nobody asks ---- */
void qn_events_cache(qn_scheduler *s, qn_cache_event event, const qn_request *r, int64_t n_tokens);
/* What was evicted since it was called last. */
void qn_events_evictions(qn_scheduler *s);
/* The token that r has drawn, before its ring is published. */
void qn_events_token(qn_scheduler *s, qn_request *r);
void qn_events_step(qn_scheduler *s, int64_t n_prompt_rows, int64_t ns);

/* ---- points.c ---- */
/* May it take prefixes and leave some? Its pictures, if it has any, must be identified. */
int qn_request_uses_tree(const qn_request *r);
/* How many of the ids [from, from + n) it computes at once: up to where a prefix of it is to be kept. */
int64_t qn_points_chunk(qn_scheduler *s, const qn_request *r, int64_t from, int64_t n);
/* Is this length worth keeping? Always, where that costs nothing. */
int qn_points_has(qn_scheduler *s, const qn_request *r, int64_t length);

/* ---- endings.c ---- */
/* Its owner has something to read. */
void qn_batch_touch(qn_scheduler *s, qn_client *c);
/* The prefix tree keeps what the request has computed, if it may. */
void qn_batch_remember(qn_scheduler *s, qn_request *r);
/* What it left there is not to be used any more; active requests that use it are marked. */
void qn_batch_forget(qn_scheduler *s, const qn_request *r);
/* Its logits were no numbers, and what it was given of the prefix tree may be the reason: that is not to be
 * used any more either, and active requests that use it are marked, if they can begin anew. Returns 0 where
 * it was given nothing: it is to blame itself. */
int qn_batch_blame(qn_scheduler *s, qn_request *r);
void qn_batch_end(qn_scheduler *s, qn_request *r, qn_end why);
/* It fails with this thread's message, unless it has one. */
void qn_batch_fail(qn_scheduler *s, qn_request *r, qn_status status);
/* Ends what is left of the request without a word. */
void qn_batch_drop(qn_scheduler *s, qn_request *r);
/* An active request goes back into the queue, and its pages to whoever needs them. */
void qn_batch_preempt(qn_scheduler *s, qn_request *r);
/* Something that it had been given, or had computed, is no good: all of it anew, by itself. Returns 0 when
 * that was tried before. */
int qn_batch_begin_anew(qn_scheduler *s, qn_request *r);
/* Those that are marked by qn_batch_forget begin anew. Ends those that were cancelled, are not wanted any
 * more, or are past their deadline. */
void qn_batch_sweep(qn_scheduler *s, int64_t now);

/* ---- outcome.c ---- */
/* Makes the masks of the step that is under way: the device computes meanwhile. */
void qn_batch_prepare_forms(void *user);
/* Logits of the step that is under way: of s->fed[i_feed], as qn_step_logits_fn. */
qn_status qn_batch_take_logits(void *user, int64_t i_feed, int64_t first, int64_t n, float *logits);
/* A token is given out, a prefix kept, or the request ended. */
void qn_batch_settle(qn_scheduler *s, qn_request *r);
/* The same for all who were fed, when the step as a whole failed: who is to blame shows when each is fed
 * alone. One whose own step fails begins anew, once. */
void qn_batch_settle_failed(qn_scheduler *s);

/* ---- batch.c ---- */
/* One step, led for `client` (NULL: for nobody). Returns 0 when there was nothing to do. */
int qn_batch_step(qn_scheduler *s, qn_client *client);

#endif
