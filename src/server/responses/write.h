/* The objects of a response: itself, and the items of its output. All functions append. By who has the completion for
 * itself. */
#ifndef QN_SERVER_RESPONSES_WRITE_H
#define QN_SERVER_RESPONSES_WRITE_H

#include "server/core/write.h"

/* The response as it is now, by c->state. Before its end (status "in_progress") it has no output and no usage; warnings
 * are told at the end. */
void qn_response_write(const qn_completion *c, qn_buf *out);
/* "resp_...". */
void qn_response_write_id(const qn_completion *c, qn_buf *out);
/* 1: max_output_tokens or the context ended it. */
int qn_response_is_incomplete(const qn_completion *c);

/* An item of the output: a run of text, a run of reasoning, or a call. */
typedef struct {
    qn_answer_event first; /* the part that it begins with */
    size_t i_part;         /* its index */
    int64_t index;         /* of the item */
} qn_response_item;

/* "msg_..." */
void qn_response_put_id(const qn_completion *c, const char *key, const qn_response_item *item, qn_buf *out);
/* status: "in_progress": without its text or arguments. */
void qn_response_write_item(const qn_completion *c, const qn_response_item *item, const char *status,
                            qn_buf *out);
/* {"type": "output_text", "text": ...}, or the same of reasoning. text may be NULL: "". */
void qn_response_write_part(qn_answer_kind kind, const char *text, size_t n, qn_buf *out);
/* What becomes of an item once the answer has ended, or the next part has begun. */
const char *qn_response_item_status(const qn_completion *c, const qn_response_item *item);

#endif
