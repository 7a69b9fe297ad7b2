/* What the answers of /api/chat and /api/generate share: lines of JSON, and the figures of the last one. All
 * functions append. Loop thread only. */
#ifndef QN_SERVER_OLLAMA_WRITE_H
#define QN_SERVER_OLLAMA_WRITE_H

#include "server/core/completion.h"

/* What is remembered of a choice. */
typedef struct {
    size_t n_parts, n_tokens; /* of choice->said that are in lines already */
} qn_ollama_memory;

/* {"model":, "created_at":; the object stays open. */
void qn_ollama_open(const qn_completion *c, qn_buf *out);
/* "logprobs", of the tokens that are in no line yet; nothing if none are asked for. */
void qn_ollama_put_logprobs(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out);
/* The end of write_delta: 1 if nothing has to stay of what the choice has said. */
int qn_ollama_is_written(const qn_completion_choice *choice);
/* "done": false, and the end of a line. */
void qn_ollama_close_line(qn_buf *out);
/* Why the answer ended, how long it took, and warnings; closes the object. */
void qn_ollama_close_last(const qn_completion *c, qn_buf *out);

#endif
