/* The scheduler: who computes what, and when. Continuous batching over one engine.
 *
 * There is no hidden thread: whoever waits for its requests leads, that is, computes steps for everybody,
 * until its own client has something to read, and hands over to the next who waits. With `background` the
 * scheduler has a thread of its own that leads whenever there is work, and nobody else needs to. One thread
 * leads at a time; no lock is held while it computes. Requests come in by a lock-free inbox, tokens leave by
 * a ring a request.
 *
 * A step: those that decode have one row each, then prompts get chunks, within a budget of time while others
 * decode. Queued requests become active as long as there are places (engine's max_sequences): higher
 * priority first, then the tenant that was served least, then in order of arrival. A request that shares a
 * long prefix with one that is computing it waits for that. Where pages are short, what the prefix tree keeps
 * goes first, then requests are preempted, the least important first; only one that is alone fails. Any
 * thread, but for what says otherwise. */
#ifndef QN_ENGINE_SCHEDULE_SCHEDULER_H
#define QN_ENGINE_SCHEDULE_SCHEDULER_H

#include <quern/figures.h>

#include "engine/schedule/request.h"

typedef struct qn_scheduler qn_scheduler;

typedef struct {
    int background;
    int64_t max_queue; /* most requests that are open beside those that have places; 0: no bound */
} qn_scheduler_options;

/* The engine must outlive it. */
qn_status qn_scheduler_new(qn_engine *e, const qn_scheduler_options *options, qn_scheduler **out);
/* No request may be left. NULL is accepted. */
void qn_scheduler_free(qn_scheduler *s);

/* Hands the requests over: all or none. QN_E_FULL: max_queue. Never waits. */
qn_status qn_scheduler_submit(qn_scheduler *s, int64_t n, qn_request *requests);
/* Until a request of the client has a token to read or is done; computes meanwhile. Returns at once when
 * something happened since the last call. QN_E_ARG: this thread is leading (it was called from an evaluate
 * function). must_lead: the client has requests with own_thread. */
qn_status qn_scheduler_wait(qn_scheduler *s, qn_client *client, int must_lead);
/* The owner has read from a ring that was full: whoever computes should know. */
void qn_scheduler_stir(qn_scheduler *s);
/* Takes the client's requests out, wherever they are, and calls quit(client), which may free them: now (waits
 * for a step that is under way), or at the end of the step when this thread is leading it. */
void qn_scheduler_quit(qn_scheduler *s, qn_client *client, int64_t n, qn_request *requests,
                       void (*quit)(qn_client *client));

/* QN_E_ARG: this thread is leading, and may not compute within that. */
qn_status qn_scheduler_check_thread(qn_scheduler *s);
/* Exclusive use of the engine, between steps. QN_E_ARG: this thread is leading. */
qn_status qn_scheduler_enter(qn_scheduler *s);
void qn_scheduler_leave(qn_scheduler *s);
/* Counts a step in the figures. By the scheduler, or between these two, for what is computed without it. */
void qn_scheduler_count_step(qn_scheduler *s, int64_t n_rows, int64_t took_ns);

/* Writes the fields that are of scheduling, and zeros to the others. */
void qn_scheduler_get_figures(qn_scheduler *s, qn_figures *out);

#endif
