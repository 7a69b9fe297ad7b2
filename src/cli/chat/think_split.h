/* Splits an answer, as it comes, into what the model thinks and what it says.
 *
 * Thinking stands between <think> and </think>, at the beginning of an answer only: the words later on are
 * text like any other. The marks belong to the thinking. What may be the beginning of a mark is held.
 * Invariant: the runs, joined, are the text. */
#ifndef QN_CLI_CHAT_THINK_SPLIT_H
#define QN_CLI_CHAT_THINK_SPLIT_H

#include <stddef.h>

enum { QN_THINK_MARK_BYTES = 8 };

typedef struct {
    enum { QN_THINK_BEFORE, QN_THINK_INSIDE, QN_THINK_AFTER } state;
    char held[QN_THINK_MARK_BYTES];
    size_t n_held;
} qn_think_split;

/* One run of bytes, never empty. */
typedef void qn_think_fn(void *user, int is_thinking, const char *text, size_t n);

/* inside: the prompt's last words opened the thinking. */
void qn_think_split_begin(qn_think_split *t, int inside);
void qn_think_split_put(qn_think_split *t, const char *text, size_t n, qn_think_fn *fn, void *user);
/* The end of the answer: hands out what is held. */
void qn_think_split_flush(qn_think_split *t, qn_think_fn *fn, void *user);
/* Does a prompt end by opening the thinking? White space behind the mark does not count. */
int qn_think_split_is_open(const char *prompt);

#endif
