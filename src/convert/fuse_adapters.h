/* Adapters that are fused together: what all of them add to each matrix, and the numbers of the tensors that they
 * change as a whole. Factors of one matrix are chained: each product is added in the order of the adapters. One thread
 * at a time. */
#ifndef QN_CONVERT_FUSE_ADAPTERS_H
#define QN_CONVERT_FUSE_ADAPTERS_H

#include <quern/adapter.h>

#include "convert/rewrite.h"

typedef struct qn_fuse_adapters qn_fuse_adapters;

/* options: names are not used. notes get a line for what might surprise. QN_E_UNSUPPORTED: several adapters change a
 * matrix that one of them changes with DoRA, a tensor that the model's files do not have, or a head that is the
 * embedding otherwise than the embedding; and the statuses of qn_adapter_file_open. */
qn_status qn_fuse_adapters_open(const qn_rewrite_model *model, const qn_adapter_options *options, int64_t n,
                                qn_buf *notes, qn_fuse_adapters **out);
void qn_fuse_adapters_close(qn_fuse_adapters *a);
/* They live as long as a. */
qn_rewrite_changes qn_fuse_adapters_changes(qn_fuse_adapters *a);

#endif
