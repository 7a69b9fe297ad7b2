/* A list of prompts, worked through in parts: each prompt of a part becomes an item, the rows of the items
 * are evaluated together, and the results are given in the list's order.
 *
 * A part ends when it has about QN_PROMPT_WINDOW rows. If memory does not suffice for a part of several
 * items, none of its results is given, and it starts again with half as many. What a part allocates is held
 * in the model's figures while it runs. A failed item keeps its status and message; the others go on. One
 * thread at a time. */
#ifndef QN_API_LISTS_LIST_PARTS_H
#define QN_API_LISTS_LIST_PARTS_H

#include "api/lists/prompt_rows.h"

/* What is done with a list. An item is a structure of the caller's that begins with a qn_prompt_row. */
typedef struct {
    qn_model *model;
    const qn_logits_options *logits; /* for qn_wanted_rows_evaluate */
    int scores;                      /* of the classification head, in place of logits */
    size_t item_bytes;
    size_t items_max; /* in a part; 0: as many as the rows allow */
    int n_passes;     /* evaluations, one after the other */
    void *user;       /* goes to the functions below */
    /* Makes the item, which is zeroed, of prompt i. A failure is the item's. */
    qn_status (*prepare)(void *user, size_t i_prompt, void *item);
    /* Writes the rows of an item that has not failed for a pass and returns their number, always the same for
     * an item. rows NULL: only counts. */
    int64_t (*add_rows)(void *user, int pass, void *item, qn_wanted_row *rows);
    /* Gets values of a row, as qn_logits_fn; row->owner is the item. */
    qn_status (*take)(void *user, const qn_wanted_row *row, int64_t position, int64_t n, const float *values);
    /* Hands the result over, of a failed item too. A failure ends the list. */
    qn_status (*give)(void *user, size_t i_prompt, void *item);
    /* Frees what the item holds beside its row. */
    void (*end)(void *item);
} qn_list_work;

/* QN_E_NOMEM; the statuses of qn_wanted_rows_evaluate and of give. */
qn_status qn_list_work_run(const qn_list_work *w, size_t n_prompts);

#endif
