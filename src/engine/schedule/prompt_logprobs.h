/* Log-probabilities of the tokens of one prompt: of each position its token's, and the likeliest ones'.
 *
 * Rows of logits come one by one while the prompt is computed, in rising order, and only their figures are kept. A
 * request that begins again goes on where it was, so no position is written twice. The leader writes until the
 * request's first token is published or the request is done; then its owner may read. */
#ifndef QN_ENGINE_SCHEDULE_PROMPT_LOGPROBS_H
#define QN_ENGINE_SCHEDULE_PROMPT_LOGPROBS_H

#include "engine/sample/logprobs.h"

typedef struct qn_prompt_logprobs qn_prompt_logprobs;

/* Of the prompt that begins with the id `first`; n_prompt at least 1. n_top: 0 to QN_TOP_LOGPROBS_MAX. All memory is
 * taken here. */
qn_status qn_prompt_logprobs_new(int32_t first, int64_t n_prompt, int32_t n_top, qn_prompt_logprobs **out);
/* NULL is accepted. */
void qn_prompt_logprobs_free(qn_prompt_logprobs *p);

/* The position whose row of logits is wanted next; -1: all are there, or p is NULL. */
int64_t qn_prompt_logprobs_wanted(const qn_prompt_logprobs *p);
/* Takes the row that is wanted, which `id` follows in the prompt. */
void qn_prompt_logprobs_note(qn_prompt_logprobs *p, const qn_logprobs *row, int32_t id);
/* The token at a position. Returns 0 if it is not there yet. */
int qn_prompt_logprobs_get(const qn_prompt_logprobs *p, int64_t position, qn_prompt_token *out);

#endif
