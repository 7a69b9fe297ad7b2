/* A batch: answers to a list of prompts, generated together, given in the order of the list.
 *
 * Each prompt has a status: one that cannot be answered disturbs no other. Invariant: the answer to a prompt
 * is that of a generation of it alone with the same options and seed. Model, prompts, options and all that
 * they refer to are borrowed until qn_batch_close. One thread at a time, except qn_batch_cancel. */
#ifndef QUERN_BATCH_H
#define QUERN_BATCH_H

#include <quern/generate.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qn_batch qn_batch;

/* What it points to is valid until the next call on the batch. */
typedef struct {
    size_t i_prompt;
    qn_status status;    /* QN_OK, or why there is no answer, or no more of one than this */
    const char *message; /* NULL with QN_OK */
    int64_t n_prompt_tokens;
    const int32_t *ids; /* [n_ids] what was generated */
    int64_t n_ids;
    const float *logprobs; /* [n_ids] as in qn_token; NULL without logprobs, or without ids */
    const char *text;      /* [text_bytes] NUL-terminated */
    size_t text_bytes;
    qn_end end; /* QN_END_ERROR where status is not QN_OK */
} qn_batch_result;

/* Prompts as in generate.h: of a prompt by rows one row, and no images. options may be NULL; all prompts have
 * the same seed; a deadline is that of the whole batch, from here on; row_adapters, row_constraints and
 * n_top_logprobs are refused (QN_E_ARG). *out is owned by the caller. */
QN_API qn_status qn_batch_open(qn_model *model, const qn_prompt *prompts, size_t n_prompts,
                               const qn_generate_options *options, qn_batch **out);
/* Waits for the next prompt's answer. *is_there is 0, and *out untouched, once all have been given. What is
 * not QN_OK ends the batch and comes again with every call: an option that is refused, no memory. */
QN_API qn_status qn_batch_next(qn_batch *batch, qn_batch_result *out, int *is_there);
/* The prompts that are not answered yet end with QN_END_CANCELLED. Any thread; safe in a signal handler. NULL
 * is accepted. */
QN_API void qn_batch_cancel(qn_batch *batch);
/* Counts and times so far, and the seed. */
QN_API qn_status qn_batch_get_stats(const qn_batch *batch, qn_generation_stats *out);
/* NULL is accepted. */
QN_API void qn_batch_close(qn_batch *batch);

#ifdef __cplusplus
}
#endif
#endif
