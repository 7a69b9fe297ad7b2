/* Rows of a tensor as a tensor: files may keep the matrices of several roles in one, row below row (phi3's
 * qkv_proj: queries, keys, values). Immutable; lives until it is freed, and the tensor that it shows rows of
 * must outlive it. */
#ifndef QN_MODEL_WEIGHTS_WEIGHT_ROWS_H
#define QN_MODEL_WEIGHTS_WEIGHT_ROWS_H

#include "base/status.h"
#include "format/files/tensor_view.h"

typedef struct qn_weight_rows qn_weight_rows;

/* Rows [first, first + n) of `whole`, which has them: of a matrix or a vector in a supported type, with its
 * scales and biases where it has these. stored: the tensor of the file, what the view's `whole` is set to.
 * Named "NAME[first:end]", as no tensor of the same file is. */
qn_status qn_weight_rows_new(const qn_tensor_view *whole, const qn_tensor_view *stored, int64_t first,
                             int64_t n, qn_weight_rows **out);
void qn_weight_rows_free(qn_weight_rows *r);
/* Borrowed. */
const qn_tensor_view *qn_weight_rows_view(const qn_weight_rows *r);

#endif
