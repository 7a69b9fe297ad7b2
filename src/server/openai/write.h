/* What the answers of /v1/chat/completions and /v1/completions share: the object around the choices, its
 * frame in a stream, usage, log-probabilities of prompts. Functions append. Loop thread only, but for
 * qn_openai_make_rest. */
#ifndef QN_SERVER_OPENAI_WRITE_H
#define QN_SERVER_OPENAI_WRITE_H

#include "server/core/completion.h"
#include "server/core/write.h"

/* {"id":, "object":, "created":, "model":, "system_fingerprint":; the object stays open. prefix: of the id,
 * "cmpl-". */
void qn_openai_open(const qn_completion *c, const char *prefix, const char *object, qn_buf *out);
/* The same as an event of a stream, and its end. */
void qn_openai_open_event(const qn_completion *c, const char *prefix, const char *object, qn_buf *out);
void qn_openai_close_event(qn_buf *out);
/* "choices": [{"index":; the choice stays open. */
void qn_openai_open_choice(const qn_completion_choice *choice, qn_buf *out);
/* "token_ids": of what was said, and "prompt_token_ids": of the prompt; nothing unless they are asked for. */
void qn_openai_put_ids(const qn_completion *c, const qn_said *said, qn_buf *out);
void qn_openai_put_prompt_ids(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out);
/* What a worker makes of an answer that has ended: the log-probabilities of its prompts, if they are asked for. */
qn_status qn_openai_make_rest(qn_completion *c);
/* "prompt_logprobs": of the choice's prompt; nothing unless it is asked for. */
void qn_openai_put_prompt_logprobs(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out);
/* "finish_reason" and "stop_reason": the stop string or id of the request that ended the choice, or null. */
void qn_openai_put_finish(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out);
/* "finish_reason":, which closes the choice; and what every chunk has behind its choices: in the last event of the
 * stream, the warnings. */
void qn_openai_close_choice(const qn_completion *c, const qn_completion_choice *choice, int is_last,
                            qn_buf *out);
/* llama.cpp's "timings" of a choice, with timings_per_token. */
void qn_openai_put_timings(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out);
/* What ends a stream: an event with the usage if it is asked for, and "[DONE]". */
void qn_openai_write_end(const qn_completion *c, const char *prefix, const char *object, qn_buf *out);

void qn_openai_put_usage(const qn_completion *c, qn_buf *out);
const char *qn_openai_finish(qn_finish finish);

#endif
