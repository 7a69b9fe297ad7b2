/* A request: one row of token ids that an engine computes, and what comes of it.
 *
 * Its owner fills in what is asked, submits it (engine/schedule/scheduler.h) and reads the ring; who leads
 * computes. Life: new -> queued -> active -> done; a request that is preempted or begins anew is queued
 * again, with all its ids, and goes on with the same bits. What is asked stays unchanged until it is done;
 * the leader's part is the leader's until then. Requests of one owner share a client: who waits, and for whom
 * time is counted. */
#ifndef QN_ENGINE_SCHEDULE_REQUEST_H
#define QN_ENGINE_SCHEDULE_REQUEST_H

#include <quern/backend.h>

#include "engine/machine/engine.h"
#include "engine/sample/sampler.h"
#include "engine/schedule/drafter.h"
#include "engine/schedule/form.h"
#include "engine/schedule/inbox.h"
#include "engine/schedule/prompt_logprobs.h"
#include "engine/schedule/reasoning.h"
#include "engine/schedule/ring.h"

typedef struct qn_request qn_request;

/* Zeroed but for notify. */
typedef struct qn_client {
    qn_notify_fn *notify; /* called by who leads when there is something to read; NULL: nobody is */
    void *notify_user;
    /* Wall-clock time of the steps in which its requests took part, a step once; tokens of decode steps. */
    atomic_llong prefill_ns, decode_ns, n_decoded;
    /* The scheduler's. */
    struct qn_client *next_touched;
    int is_touched, has_signal;
    struct qn_waiter *waiter;
    uint64_t last_step;
    void (*quit)(struct qn_client *client); /* see qn_scheduler_quit */
    qn_request *quitting;
    int64_t n_quitting;
    struct qn_client *next_quitting;
} qn_client;

/* Logits [n, vocab_size] of positions [position, position + n); valid during the call. */
typedef qn_status qn_evaluate_fn(void *user, int64_t position, int64_t n, float *logits);

struct qn_request {
    qn_letter letter; /* the inbox's; first */

    /* ---- what is asked ---- */
    qn_client *client;
    int32_t *ids; /* the prompt, and behind it what was drawn: the leader's from submit to done */
    int64_t n_ids, ids_capacity, n_prompt;
    int64_t ids_base;  /* position of ids[0]; above 0 once it has rotated */
    size_t held_bytes; /* of ids: taken by the leader, in the ledger; the owner gives them back */
    int64_t row;       /* of its owner's */
    int64_t n_stable;  /* of the prompt, what a longer one of the same chat begins with too; 0: not known */
    int32_t adapter;   /* held by the owner; -1: none */
    qn_images *images; /* NULL: none */
    int64_t n_unseen;  /* of these, whose vectors are not computed yet */
    qn_prefix_pin pins[QN_PREFIX_PINS_MAX]; /* of the prompt, the shortest first */
    int n_pins, n_pinned;                   /* n_pinned: the leader's; of these, those that are set */
    const char *salt;                       /* only requests of the same salt share prefixes; NULL: "" */
    const char *tenant;                     /* who takes turns with others of the same priority; NULL: "" */
    int32_t priority;                       /* higher ones first */
    int no_cache;                           /* neither uses nor leaves prefixes */
    int rotate;
    int64_t deadline_ns;     /* by qn_clock_ns; 0: none */
    const qn_cancel *cancel; /* NULL: never */
    /* Drawing tokens; sampler NULL: it ends with its last id. */
    qn_sampler *sampler;
    const int32_t *stop_ids;
    int64_t n_stop_ids, max_tokens; /* 0: no limit but room */
    int64_t room;                   /* tokens that it may have, with the prompt */
    qn_form *form;           /* of the owner, the leader's from submit to done; NULL: the answer is free */
    qn_reasoning *reasoning; /* the same; NULL: the reasoning has no bound */
    int logprobs;
    int32_t n_top; /* of a ring made for so many */
    /* Of the prompt: its rows of logits are computed, so none of them comes from the prefix tree. Of the owner, the
     * leader's until the first token is published or the request is done; NULL: they are not asked for. */
    qn_prompt_logprobs *prompt_logprobs;
    int post_sampling;
    int tells_prompt; /* the client is woken after each part of the prompt */
    qn_draft *
        draft; /* engine/schedule/speculate.h; owned by the request, the leader's. NULL: nothing is guessed */
    int64_t n_draft;     /* most guessed ids of a step */
    qn_drafter *drafter; /* as draft; NULL: no smaller model guesses */
    /* Logits from this position on; evaluate NULL: nobody wants them. It rises with what was handed out, so
     * that nothing is twice, however often the request begins again. */
    qn_evaluate_fn *evaluate;
    void *evaluate_user;
    int64_t logits_from;
    int hidden;     /* normed hidden states [n, hidden_size] in place of logits */
    int own_thread; /* evaluate is to be called by the thread that waits for the client, and no other */

    /* ---- what comes of it ---- */
    qn_ring ring;
    atomic_int is_done;    /* then what follows may be read */
    atomic_int is_settled; /* and nobody but the owner looks at it any more, nor for its sake at the client */
    qn_end end;
    int32_t stop_id;   /* of QN_END_STOP: 1 + the id that ended it; 0: none did */
    qn_status failure; /* of QN_END_ERROR */
    char *message;     /* the same; owned by the request */
    int64_t n_cached;  /* ids of the prompt that came from the prefix tree; to be read once admitted_ns is */
    int64_t n_restarts, n_preemptions;
    atomic_llong n_computed;            /* ids of the prompt that are computed or came from the tree */
    atomic_llong n_drafted, n_accepted; /* guessed ids that were computed, and that came true */
    atomic_llong submitted_ns, admitted_ns, first_ns; /* by qn_clock_ns; first_ns: of the first token */
    atomic_int is_unwanted;                           /* set by the owner: ends it as a stop string does */

    /* ---- the leader's ---- */
    qn_request *previous, *next;
    uint64_t number; /* rises with every request */
    int64_t n_generated;
    int64_t n_attached; /* ids that came from the prefix tree when it became active last */
    qn_sequence *sequence;
    int tenant_index;
    int begins_anew; /* it may not use prefixes any more: one of them was no good */
    int is_bad;      /* its logits were no numbers */
    int is_poisoned; /* it is using one that is no good, as was found since: it is to begin anew */
    /* of one step */
    uint64_t seen;
    int is_fed;
    int64_t n_fed, n_ahead; /* n_ahead: of n_fed, ids that are guessed */
    int64_t n_certain;      /* of n_fed, ids of the form's queue, which are no tokens yet */
    int64_t n_noted;        /* of these, those whose log-probabilities were taken */
    int64_t n_drawn;        /* tokens, in the ring's next places */
    qn_status step_status;
    /* Somebody waits until it has computed so many ids, which both share; 0: nobody. */
    int64_t shared_end;
    /* of a queued one: whom it was compared with, and how many ids they share */
    uint64_t compared_with;
    int64_t n_shared;
};

/* Copies the ids; room for those that it draws is made when it becomes active. */
qn_status qn_request_init(qn_request *r, const int32_t *ids, int64_t n_ids, int64_t ring_capacity,
                          int32_t n_top);
/* Frees what qn_request_init took, and the message. Zeroed: nothing. */
void qn_request_end(qn_request *r);
/* Does this token end it, unseen? */
int qn_request_stops_at(const qn_request *r, int32_t id);

/* Where the id at this position lies. */
static inline int32_t *qn_request_id_at(const qn_request *r, int64_t position)
{
    return r->ids + (position - r->ids_base);
}

#endif
