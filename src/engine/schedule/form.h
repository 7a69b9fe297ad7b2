/* A form: the place of one request in its constraint, and what the constraint says comes next.
 *
 * Tokens come in two ways. Where several may come, one is drawn under a mask. Where only one text can come, its
 * tokens are forced: they wait in a queue and are given out before anything is drawn. Forced tokens are accepted
 * by the constraint and by the sampler when they enter the queue, so whatever becomes of a step, nothing is
 * accepted twice. A form may have two constraints: the answer is in one of them, and each lasts as long as the
 * answer may be in it. What comes depends on the tokens so far alone. One thread at a time. */
#ifndef QN_ENGINE_SCHEDULE_FORM_H
#define QN_ENGINE_SCHEDULE_FORM_H

#include "constrain/constraint.h"
#include "engine/sample/sampler.h"

enum { QN_FORCED_MAX = 256 /* ids of one look at what is forced: a part of what "forced" means */ };

typedef struct qn_form qn_form;

/* What a form needs to know of its request. Ids are borrowed for the form's life. */
typedef struct {
    int64_t n_vocab;         /* of the logits */
    const int32_t *stop_ids; /* they end the request: they may come where the form may end */
    int64_t n_stop_ids;
    const int32_t *end_ids; /* the vocabulary's; they never come, for the row goes on as long as it may */
    int64_t n_end_ids;
} qn_form_ends;

/* The constraints are retained; alternative NULL: there is one. sampler, whose masks are allowed here, outlives the
 * form. */
qn_status qn_form_new(qn_constraint *c, qn_constraint *alternative, const qn_form_ends *ends,
                      qn_sampler *sampler, qn_form **out);
/* NULL is accepted. */
void qn_form_free(qn_form *f);

/* The constraint of the answer's form; NULL: two are left that it may be in. Borrowed, as long as the form lives. */
qn_constraint *qn_form_get_constraint(const qn_form *f);
/* 1: nothing may come any more. */
int qn_form_is_over(const qn_form *f);
/* 1: nothing may come behind the queue. */
int qn_form_is_ending(const qn_form *f);
/* 1: the next token is in the queue. */
int qn_form_is_forced(const qn_form *f);
/* How many of the queue are known to be followed by one more token, forced or drawn. */
int64_t qn_form_count_followed(const qn_form *f);
/* The ids in the queue. */
const int32_t *qn_form_get_forced(const qn_form *f, int64_t *n);
/* The first n of the queue are given out. */
void qn_form_take(qn_form *f, int64_t n);
/* Looks again if the queue is empty and was full. Between steps. */
qn_status qn_form_refill(qn_form *f);
/* Makes the mask of the next draw, if the queue is empty: any time before set_mask, which fails if this did. */
void qn_form_prepare(qn_form *f);
/* Sets the sampler's mask for the next draw; the queue is empty. */
qn_status qn_form_set_mask(qn_form *f);
/* May this id come next? The queue is empty. 0 also if the mask cannot be made. */
int qn_form_allows(qn_form *f, int32_t id);
/* Goes on with a token that was drawn and that is no stop id; the sampler has accepted it. */
qn_status qn_form_accept(qn_form *f, int32_t id);
/* Of n guessed ids, how many may come; where one would force others, these take the place of what was guessed
 * behind it. The queue is empty. Failures only make it fewer. */
int64_t qn_form_fit_guess(qn_form *f, int32_t *ids, int64_t n);

#endif
