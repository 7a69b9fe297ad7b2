/* Where the assistant's answers lie in a rendered chat: its bytes with the end of turn that the template
 * writes behind them, without the white space after that.
 *
 * Templates that mark them ({% generation %}, one for each answer) are believed. Of others the text before an
 * answer is what they make of the messages before it when asked for an answer, and its end is what they make
 * of the messages up to it. Where a template writes earlier turns anew (reasoning that later turns leave out,
 * say), the answer is found by what changes when its words do. What cannot be found that way is none. Pure
 * functions; any thread. */
#ifndef QN_TRAIN_DATA_ANSWER_SPANS_H
#define QN_TRAIN_DATA_ANSWER_SPANS_H

#include "text/chat/chat.h"

typedef struct {
    size_t begin, end; /* bytes of the rendered text */
} qn_answer_span;

typedef struct {
    qn_answer_span *spans; /* [n]: of the messages by the assistant, rising; begin == end: not found */
    int64_t n;
} qn_answer_spans;

/* request: as for qn_chat_text_render; whole: what it rendered to. first: answers among the messages before
 * this one are not looked for. QN_E_NOMEM; QN_E_FULL: so many of them, unmarked, would take too long. */
qn_status qn_answer_spans_find(const qn_chat_text *c, const json_t *request, size_t first,
                               const qn_rendered *whole, qn_answer_spans *out);
void qn_answer_spans_free(qn_answer_spans *s);

#endif
