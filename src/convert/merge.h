/* One matrix of an adapter, or those of all experts, added to the weights that it belongs to: W + factor B A in f32,
 * and for DoRA the rows of it brought to the lengths that the magnitudes say. One thread at a time. */
#ifndef QN_CONVERT_MERGE_H
#define QN_CONVERT_MERGE_H

#include "model/adapter/adapter_file.h"
#include "model/config/config.h"

typedef struct qn_merge {
    const qn_adapter_target *target;
    float *a, *b, *m;      /* as qn_adapter_target_read gives them, in one block */
    struct qn_merge *also; /* of target->also, owned; NULL: none */
} qn_merge;

/* With those behind target->also. c: of the model, in whose order rows are (row_order.h). Untouched on failure. */
qn_status qn_merge_read(const qn_model_config *c, const qn_adapter_target *target, qn_merge *out);
/* Accepts a zeroed one. */
void qn_merge_free(qn_merge *m);
/* rows: [n, n_in], those of the model's matrix from `first` on, become the merged ones. Rows of experts count on:
 * row o of expert e is e n_out + o. change: room for
 * n_in numbers. QN_E_FORMAT: a row of length 0, or one that is not finite. */
qn_status qn_merge_rows(const qn_merge *m, int64_t first, int64_t n, float *rows, float *change);
/* Column `input` of an expert's matrix becomes the merged one: its outputs out[0], out[step], ... QN_E_FORMAT: one is
 * not finite. */
qn_status qn_merge_inputs(const qn_merge *m, int64_t expert, int64_t input, int64_t step, float *out);

#endif
