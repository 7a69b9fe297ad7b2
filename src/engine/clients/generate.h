/* Generation: rows of prompt ids become rows of tokens and text, as events.
 *
 * Each row is a request to the scheduler (engine/schedule/scheduler.h), which draws its tokens; here they
 * become text, watched for stop strings. A row ends by itself: its failure does not touch the others. One
 * thread at a time per generation; any number of generations share an engine. */
#ifndef QN_ENGINE_CLIENTS_GENERATE_H
#define QN_ENGINE_CLIENTS_GENERATE_H

#include <quern/backend.h>

#include "engine/machine/engine.h"
#include "engine/schedule/reasoning.h"
#include "engine/schedule/scheduler.h"
#include "text/tokenizer/tokenizer.h"

typedef struct qn_run qn_run;

/* What runs share. All borrowed. */
typedef struct {
    qn_engine *engine;
    qn_scheduler *scheduler;
    const qn_tokenizer *tokenizer; /* NULL: there is none, tokens have ids and no text */
    const int32_t *stop_ids;       /* the model's own */
    int64_t n_stop_ids;
    qn_engine *draft_engine; /* of the model that guesses (engine/schedule/speculate.h); NULL: none */
} qn_run_model;

/* Rows of ids, and the images of the only one. */
typedef struct {
    const qn_ids *rows;
    int64_t n_rows;
    const qn_image *images;
    size_t n_images;
    const qn_reasoning_options *reasoning; /* of the only row; NULL, or n_ids 0: it has no bound */
    int64_t
        n_stable; /* of the only row: what a longer prompt of the same chat begins with too; 0: not known */
} qn_run_prompt;

/* Copies ids, images and options, and submits the rows. QN_E_ARG: a prompt is empty, longer than the context
 * (both counts), or has an id outside the vocabulary; images as qn_images_new says. QN_E_FULL: the queue is
 * full. cancel may be NULL. */
qn_status qn_run_open(const qn_run_model *model, const qn_run_prompt *prompt,
                      const qn_generate_options *options, const qn_cancel *cancel, qn_run **out);
/* The next event, as qn_generation_next gives it; not to be called after the last row's end event. */
qn_status qn_run_next(qn_run *r, qn_token *out);
/* The same, if there is one already: *is_there 0 otherwise. */
qn_status qn_run_poll(qn_run *r, qn_token *out, int *is_there);
/* As qn_generation_get_prompt_token. */
qn_status qn_run_get_prompt_token(const qn_run *r, int64_t row, int64_t position, qn_prompt_token *out);
void qn_run_get_stats(const qn_run *r, qn_generation_stats *out);
/* Gives sequences and places back. NULL is accepted. */
void qn_run_close(qn_run *r);

#endif
