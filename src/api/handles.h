/* The public handles: a qn_model and a qn_generation are thin shells around a backend's own objects.
 *
 * Invariant: a generation is in its model's list exactly while it has a backend object. Closing the model
 * takes the objects out of the generations, which then report QN_E_CLOSED. A call on a
 * generation keeps others away by a flag, so that no lock is held while it computes. */
#ifndef QN_API_HANDLES_H
#define QN_API_HANDLES_H

#include <pthread.h>
#include <quern/backend.h>
#include <stdatomic.h>

#include "base/buf.h"
#include "base/cancel.h"

struct qn_model {
    const qn_backend *backend;
    void *object;
    pthread_mutex_t lock; /* guards the list and the generations' references */
    qn_generation *generations;
    struct qn_tickets *tickets; /* of its cache handles; NULL: it had none yet */
    int rotates;                /* every generation does */
    atomic_int n_borrowers;     /* trainings that compute with its weights (borrow.h) */
};

struct qn_generation {
    qn_cancel cancel;
    pthread_mutex_t lock; /* of is_busy */
    pthread_cond_t is_free;
    int is_busy;      /* a call on the generation is under way; others wait for its end */
    pthread_t caller; /* whose call that is */
    int shall_close;  /* it was closed from within that call: at its end */
    qn_model *model;  /* NULL: the model was closed */
    void *object;     /* the backend's; NULL with model */
    qn_generation *previous, *next;
    atomic_int references; /* the user's, and that of a model which is being closed */
    atomic_llong n_open;   /* rows whose end was not read yet */
    int64_t last_row;      /* whose end event came last, with its reason */
    qn_end last_end;
};

/* Is this thread within a call on one of them? */
int qn_generations_are_calling(qn_model *model);
/* Ends the generations of a model that is being closed. Not within a call on one of them. Returns how many were
 * cut off: not read to their end, and not cancelled before. */
int64_t qn_generations_end_all(qn_model *model);
/* The constraint of the answers to a prompt in its normal form: its own, else that of the options, as the model has
 * it. The caller closes *out; NULL: none. */
qn_status qn_constraint_choose(qn_model *model, const qn_prompt *prompt, const qn_generate_options *options,
                               qn_constraint **out);
/* Checks a prompt and brings it into the form that backends get. *own, NULL before, holds a chat that was not
 * parsed yet while the result is in use: qn_conversation_free, also after a failure. */
qn_status qn_prompt_normalise(const qn_prompt *prompt, qn_prompt *out, qn_conversation **own);

#endif
