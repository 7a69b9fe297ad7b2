/* Rows of each head of a matrix as a tensor of matrices, one a head: files may keep what belongs to a head
 * together, keys above values (deepseek's kv_b_proj). Immutable; the tensor that it shows rows of must
 * outlive it. */
#ifndef QN_MODEL_WEIGHTS_WEIGHT_HEADS_H
#define QN_MODEL_WEIGHTS_WEIGHT_HEADS_H

#include "base/status.h"
#include "format/files/tensor_view.h"

typedef struct qn_weight_heads qn_weight_heads;

/* Rows [first, first + n) of each of n_heads equal parts of `whole`, a matrix [n_heads * ?, columns]: the
 * view is [n_heads, n, columns], or [n_heads, columns, n] of transposed matrices. Named "NAME[*:first:end]".
 * QN_E_UNSUPPORTED: a quantised matrix. */
qn_status qn_weight_heads_new(const qn_tensor_view *whole, int64_t n_heads, int64_t first, int64_t n,
                              int transposed, qn_weight_heads **out);
void qn_weight_heads_free(qn_weight_heads *h);
/* Borrowed. */
const qn_tensor_view *qn_weight_heads_view(const qn_weight_heads *h);

#endif
