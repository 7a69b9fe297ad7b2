/* Generation: rows of prompt ids become rows of tokens and text, as events.
 *
 * Each row is a sequence of the engine with a sampler, a detokenizer and a watch for stop strings of its own.
 * The rows that hold a place run together, one step of the engine for all of them; further rows follow as
 * places become free. A row ends by itself: its failure does not touch the others. One thread at a time per
 * generation; several generations may share an engine. */
#ifndef QN_ENGINE_GENERATE_H
#define QN_ENGINE_GENERATE_H

#include <quern/backend.h>

#include "engine/engine.h"
#include "engine/slots.h"
#include "text/tokenizer.h"

typedef struct qn_run qn_run;

/* What runs share. All borrowed. */
typedef struct {
    qn_engine *engine;
    qn_slots *slots;
    const qn_tokenizer *tokenizer; /* NULL: there is none, tokens have ids and no text */
    const int32_t *stop_ids;       /* the model's own */
    int64_t n_stop_ids;
} qn_run_model;

/* Rows of ids, and the images of the only one. */
typedef struct {
    const qn_ids *rows;
    int64_t n_rows;
    const qn_image *images;
    size_t n_images;
} qn_run_prompt;

/* Copies ids, images and options. QN_E_ARG: a prompt is empty, longer than the context (both counts), or has
 * an id outside the vocabulary; images as qn_images_new says. cancel may be NULL. */
qn_status qn_run_open(const qn_run_model *model, const qn_run_prompt *prompt,
                      const qn_generate_options *options, const qn_cancel *cancel, qn_run **out);
/* The next event, as qn_generation_next gives it; not to be called after the last row's end event. */
qn_status qn_run_next(qn_run *r, qn_token *out);
void qn_run_get_stats(const qn_run *r, qn_generation_stats *out);
/* Gives sequences and places back. NULL is accepted. */
void qn_run_close(qn_run *r);

#endif
