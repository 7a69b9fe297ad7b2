/* What one choice of an answer says, typed and in the order in which it came: text, reasoning, calls of
 * tools, and tokens with their log-probabilities. Dialects make JSON of it.
 *
 * A whole answer keeps all of it until the end. A stream forgets what its dialect has written. Neighbouring
 * pieces of one kind become one part, so parts do not depend on how the text was cut. The first failure to
 * get memory sticks (qn_said_status). A zeroed qn_said is empty and valid. One thread at a time. */
#ifndef QN_SERVER_CORE_ANSWER_H
#define QN_SERVER_CORE_ANSWER_H

#include <quern/generate.h>

#include "base/buf.h"
#include "text/tools/tool_calls.h"

/* Why a choice ended. */
typedef enum {
    QN_FINISH_NONE, /* it goes on */
    QN_FINISH_STOP, /* the model stopped, or one of the request's stop strings or ids came */
    QN_FINISH_LENGTH,
    QN_FINISH_CALLS /* it asks for tools */
} qn_finish;

typedef struct {
    qn_buf parts, bytes, tokens, tops; /* answer.c */
} qn_said;

typedef struct {
    int32_t id;
    float logprob;
    const qn_top_logprob *top; /* [n_top] */
    int32_t n_top;
    int is_prompt; /* of the prompt, not of the answer; its first token has the logprob NaN */
} qn_said_token;

/* Adds a part; one without text is left out, but for the begin and the end of a call. */
void qn_said_add(qn_said *s, const qn_answer_event *part);
/* Adds a token with its log-probability and those of the likeliest. */
void qn_said_add_token(qn_said *s, const qn_token *token);
/* The same of a token of the prompt. */
void qn_said_add_prompt_token(qn_said *s, const qn_prompt_token *token);
/* QN_OK or QN_E_NOMEM. */
qn_status qn_said_status(const qn_said *s);

size_t qn_said_count(const qn_said *s);
/* The i-th part; its strings are borrowed until something is added or forgotten. */
qn_answer_event qn_said_get(const qn_said *s, size_t i);
/* Is there a part of this kind? */
int qn_said_has(const qn_said *s, qn_answer_kind kind);
/* Appends the texts of all parts of a kind; of the arguments of a call: of the call `index` alone. */
void qn_said_join(const qn_said *s, qn_answer_kind kind, int32_t index, qn_buf *out);
size_t qn_said_count_tokens(const qn_said *s);
qn_said_token qn_said_get_token(const qn_said *s, size_t i);

/* Drops parts, tokens and a failure; keeps the memory. */
void qn_said_forget(qn_said *s);
void qn_said_free(qn_said *s);

#endif
