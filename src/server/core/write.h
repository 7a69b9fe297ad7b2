/* Pieces of JSON that the answers of several dialects have: warnings, what a choice said, tokens with their
 * log-probabilities, times. All functions append. Any thread. */
#ifndef QN_SERVER_CORE_WRITE_H
#define QN_SERVER_CORE_WRITE_H

#include "server/core/completion.h"

/* "warnings": [...]. Nothing if the request has none. */
void qn_write_warnings(const qn_api_request *r, qn_buf *out);
void qn_write_null(qn_buf *out, const char *key);
/* A key with the texts of one kind, joined; of arguments: of the call `index`. */
void qn_write_said(qn_buf *out, const char *key, const qn_said *said, qn_answer_kind kind, int32_t index);
/* As precise as it is; JSON has no infinity. */
void qn_write_logprob(qn_buf *out, float logprob);
/* The text of a token in the middle of a text, perhaps a part of a character; *text is to be freed (qn_buffer_free). */
void qn_write_token_text(const qn_model *model, int32_t id, char **text, size_t *n);
/* {"id":, "token":, "logprob":, "bytes":; the object stays open. The id only with_id; logprob NULL: none. */
void qn_write_open_token(const qn_model *model, int32_t id, const float *logprob, int with_id, qn_buf *out);
/* An array of such objects, one for each token that was said from the one `first` on, each with "top_logprobs". */
void qn_write_tokens(const qn_model *model, const qn_said *said, size_t first, int with_id, qn_buf *out);
/* Any JSON value; NULL: null. */
void qn_write_json(qn_buf *out, const json_t *value);
/* The same with a key. */
void qn_write_value(qn_buf *out, const char *key, const json_t *value);
/* A key with the arguments of a call as a JSON object. If the model broke off, the object has the members that
 * are complete. */
void qn_write_arguments(qn_buf *out, const char *key, const qn_said *said, int32_t index);
/* The key "timings", as llama.cpp's server has it: rates of tokens do not count the first one, which belongs to the
 * prompt. */
void qn_write_timings(const qn_generation_stats *s, qn_buf *out);
/* The key "prompt_progress", the same. */
void qn_write_progress(const qn_prompt_progress *p, qn_buf *out);
/* A key with a time of the calendar, RFC 3339 in UTC. */
void qn_write_time(qn_buf *out, const char *key, int64_t seconds, int64_t nanoseconds);

#endif
