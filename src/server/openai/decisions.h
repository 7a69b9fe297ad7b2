/* Bodies of /v1/decisions: the input becomes a chat, each question a last message and the answers to choose from.
 *
 * Answers are labels of one width ("A", or "AA" where there are more than 26), so none is the beginning of another
 * and their probabilities can be compared. No sockets, no model. One thread at a time. */
#ifndef QN_SERVER_OPENAI_DECISIONS_H
#define QN_SERVER_OPENAI_DECISIONS_H

#include <jansson.h>

#include "server/core/request.h"

enum { QN_DECISION_QUESTIONS_MAX = 400, QN_DECISION_CHOICES_MAX = 255, QN_DECISION_LABEL_BYTES = 8 };

typedef enum { QN_DECISION_PREDICATE, QN_DECISION_CHOICE, QN_DECISION_SCORE } qn_decision_kind;

/* One question. JSON values are borrowed from the body. */
typedef struct {
    qn_decision_kind kind;
    const json_t *name;  /* a string, or NULL */
    const json_t *items; /* choices or levels; NULL of a predicate */
    size_t n;            /* answers to choose from */
    qn_buf text;         /* what the model is asked */
} qn_decision_question;

/* Makes r->chat of "input" (r->input). Returns 0, or the HTTP status of a refusal. */
int qn_decision_read_input(qn_api_request *r, qn_api_error *error);
/* Reads the i-th of the questions. The caller frees out->text, also after a refusal. The same. */
int qn_decision_read_question(const json_t *questions, size_t i, qn_decision_question *out,
                              qn_api_error *error);
/* The label of answer i of q. */
void qn_decision_write_label(const qn_decision_question *q, size_t i, char out[QN_DECISION_LABEL_BYTES]);

#endif
