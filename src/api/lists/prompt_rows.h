/* Lists of prompts: each becomes a row of token ids with a status of its own, and rows are evaluated
 * together.
 *
 * A row that failed keeps status and message and is left out from then on. One thread at a time. */
#ifndef QN_API_LISTS_PROMPT_ROWS_H
#define QN_API_LISTS_PROMPT_ROWS_H

#include <quern/backend.h>

enum { QN_PROMPT_WINDOW = 256 /* rows that are evaluated together, about */ };

typedef struct {
    int32_t *ids; /* [n_ids] */
    int64_t n_ids;
    qn_status status;
    char *message; /* of a failure; NULL: nothing but the status's own */
} qn_prompt_row;

/* Encodes a prompt. Failures are the row's: no tokens, an id outside the vocabulary, more than limit tokens
 * (0: no limit), images. */
void qn_prompt_row_make(qn_model *model, const qn_prompt *prompt, int64_t limit, qn_prompt_row *out);
/* The row fails with this thread's message, unless it has failed before. */
void qn_prompt_row_fail(qn_prompt_row *row, qn_status status);
/* The message, or the status's text; NULL without a failure. */
const char *qn_prompt_row_message(const qn_prompt_row *row);
/* Frees what the row holds. Zeroed: nothing. */
void qn_prompt_row_end(qn_prompt_row *row);

/* What a list has allocated, in the model's figures (`other`). */
typedef struct {
    qn_model *model;
    size_t held_bytes;
} qn_list_memory;

/* What this thread has allocated since qn_mem_thread_bytes gave `mark` is held until qn_list_memory_release.
 * QN_E_NOMEM: the memory limit. A backend that counts no memory holds none. */
qn_status qn_list_memory_hold(qn_list_memory *m, int64_t mark);
/* All of it. Zeroed: nothing. */
void qn_list_memory_release(qn_list_memory *m);
/* Ids to compute for a prompt, and the first position whose values are wanted. */
typedef struct {
    qn_ids ids;
    int64_t first;
    qn_prompt_row *owner;
    int64_t tag;          /* the caller's, to tell the rows of an owner apart */
    const int32_t *types; /* [ids.n_ids], with scores; NULL: all 0 */
} qn_wanted_row;

/* Evaluates what has an owner that has not failed; o as for qn_model_logits, its row_first left out;
 * scores: values are those of the classification head, a row each. fn gets
 * the row's index here; the blocks of one may come a second time, from its first on. When they cannot be
 * computed together, each is tried alone and fails its owner; when the memory limit leaves no room for what
 * that takes, all fail. QN_E_NOMEM; QN_E_CANCELLED; what fn returns;
 * QN_E_ARG, QN_E_NOT_FOUND and QN_E_UNSUPPORTED where nothing was computed: then it is none of the rows'
 * faults. */
qn_status qn_wanted_rows_evaluate(qn_model *model, const qn_wanted_row *rows, int64_t n_rows,
                                  const qn_logits_options *o, int scores, qn_logits_fn *fn, void *user);

#endif
