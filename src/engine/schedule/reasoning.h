/* A bound on the reasoning in one answer: it sees the answer's tokens, finds the marks that open and close reasoning,
 * and says which ids must come once the reasoning has had its tokens.
 *
 * What must come depends on the tokens so far alone. Tokens that make a mark, and forced ones, do not count. A bound
 * that is reached within a character waits for the end of the character. Reasoning that opens again behind its end goes
 * on with the count. The leader's from submit to done. */
#ifndef QN_ENGINE_SCHEDULE_REASONING_H
#define QN_ENGINE_SCHEDULE_REASONING_H

#include "text/tokenizer/tokenizer.h"

enum { QN_REASONING_MARK_MAX = 96 /* bytes, and its NUL */ };

/* Borrowed: the tokenizer for the life of the object, the rest during qn_reasoning_new. */
typedef struct {
    const qn_tokenizer *tokenizer;
    const char *open, *close; /* shorter than QN_REASONING_MARK_MAX, not empty */
    int begins_inside;        /* the prompt has opened the reasoning */
    int64_t most;             /* tokens; 0: none */
    const int32_t *ids;       /* [n_ids] what is forced; its text should end the reasoning */
    int64_t n_ids;            /* at least 1 */
} qn_reasoning_options;

typedef struct qn_reasoning qn_reasoning;

qn_status qn_reasoning_new(const qn_reasoning_options *o, qn_reasoning **out);
/* NULL is accepted. */
void qn_reasoning_free(qn_reasoning *r);
/* The id that must come next; -1: none must, or r is NULL. */
int32_t qn_reasoning_forced(const qn_reasoning *r);
/* What is forced cannot come: the bound is dropped. */
void qn_reasoning_give_up(qn_reasoning *r);
/* The answer goes on with this token. r may be NULL. */
qn_status qn_reasoning_accept(qn_reasoning *r, int32_t id);

#endif
