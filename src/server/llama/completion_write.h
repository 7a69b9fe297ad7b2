/* The JSON of /completion and /infill: events of a stream, and whole answers. All functions append. Loop thread only.
 */
#ifndef QN_SERVER_LLAMA_COMPLETION_WRITE_H
#define QN_SERVER_LLAMA_COMPLETION_WRITE_H

#include "server/core/completion.h"

/* What is remembered of a choice. */
typedef struct {
    int has_new_line; /* its text has one */
} qn_llama_memory;

void qn_llama_write_whole(const qn_completion *c, qn_buf *out);
void qn_llama_write_begin(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out);
void qn_llama_write_progress(const qn_completion *c, const qn_completion_choice *choice,
                             const qn_prompt_progress *progress, qn_buf *out);
int qn_llama_write_delta(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out);
void qn_llama_write_finish(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out);
void qn_llama_write_end(const qn_completion *c, qn_buf *out);

#endif
