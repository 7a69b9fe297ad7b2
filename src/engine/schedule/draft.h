/* Drafts: what a sequence may go on with, guessed from its own tokens, and whether guessing pays.
 *
 * Prompt lookup: the last few ids are looked for in what came before; what followed them there is the guess.
 * Memory is taken once and bounded: the last QN_DRAFT_WINDOW ids and two tables over them. Guesses are
 * compared with what really comes whether or not they were computed, so the acceptance is always known, and a
 * draft that was switched off costs nothing and comes back by itself. Nothing depends on any of this but
 * speed. One thread at a time per draft. */
#ifndef QN_ENGINE_SCHEDULE_DRAFT_H
#define QN_ENGINE_SCHEDULE_DRAFT_H

#include <quern/generate.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/schedule/step_costs.h"

enum {
    QN_DRAFT_WINDOW = 8192,            /* ids that are looked through */
    QN_DRAFT_MAX = QN_DRAFT_TOKENS_MAX /* ids of one guess that are computed in a step, at most */
};

/* How often guessed ids come true, the first of a guess and those behind a right one, and what guessing one
 * costs besides computing it. */
typedef struct {
    double first_right, next_right, ns_a_guess;
} qn_draft_odds;

/* How many guessed ids, at most n, are worth computing in a step that has n_rows rows without them: as many
 * as give most tokens a time; 0 unless that is more than without. */
int64_t qn_draft_choose(const qn_step_costs *c, const qn_draft_odds *odds, int64_t n_rows, int64_t n);

typedef struct qn_draft qn_draft;

/* *out is owned by the caller. */
qn_status qn_draft_new(qn_draft **out);
void qn_draft_free(qn_draft *d);
/* The sequence goes on with this id: of the prompt, or drawn. Never allocates. */
void qn_draft_add(qn_draft *d, int32_t id);
/* The guess, at most n_max (<= QN_DRAFT_MAX) ids; returns how many. */
int64_t qn_draft_guess(qn_draft *d, int64_t n_max, int32_t *ids);
/* How many of the n ids of a guess are worth computing (qn_draft_choose). */
int64_t qn_draft_worth(const qn_draft *d, const qn_step_costs *c, int64_t n_rows, int64_t n);

#endif
