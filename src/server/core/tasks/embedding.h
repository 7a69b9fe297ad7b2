/* Vectors for texts, whatever the dialect: a worker reads the body and computes them, several texts at a time.
 *
 * A dialect reads a body into a qn_api_request, whose `input` has the texts, and writes the answer in three pieces.
 * Constant data; all its functions run on a worker. */
#ifndef QN_SERVER_CORE_TASKS_EMBEDDING_H
#define QN_SERVER_CORE_TASKS_EMBEDDING_H

#include <quern/classify.h>

#include "server/core/fields/prompt_forms.h"
#include "server/core/tasks/task.h"

enum { QN_EMBEDDING_INPUTS_MAX = 2048 };

typedef struct {
    const qn_task *task;
    const char *model; /* as the answer names it */
    size_t n_prompts;
    int64_t n_tokens; /* of all prompts; at the end */
} qn_embedding;

typedef struct {
    /* Returns 0, or the HTTP status of a refusal. */
    int (*read)(const char *text, size_t n, const qn_api_request_limits *limits, qn_api_request *out,
                qn_api_error *error);
    const char *field;            /* that `input` is called */
    const qn_prompt_forms *forms; /* what `input` may be beside OpenAI's forms; NULL: nothing */
    int may_be_empty;             /* no input, or an empty one: the answer has no vectors */
    /* These append to the answer. */
    void (*write_begin)(const qn_embedding *e, qn_buf *out);
    void (*write_vector)(const qn_embedding *e, const qn_embed_result *result, qn_buf *out);
    void (*write_end)(const qn_embedding *e, qn_buf *out);
} qn_embed_dialect;

/* Begins the exchange's answer; it goes on by itself. Loop thread. */
void qn_embedding_begin(qn_exchange *ex, const qn_embed_dialect *dialect);
/* Appends a vector as a JSON array. */
void qn_embedding_write(const qn_embed_result *result, qn_buf *out);

#endif
