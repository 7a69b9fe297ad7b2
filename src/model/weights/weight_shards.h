/* A matrix whose rows files may keep in several tensors, one below the other ("NAME.shard_0.weight", ..): a table of
 * n-grams is too large for one. Immutable; lives until it is freed, and the tensors must outlive it. */
#ifndef QN_MODEL_WEIGHTS_WEIGHT_SHARDS_H
#define QN_MODEL_WEIGHTS_WEIGHT_SHARDS_H

#include "base/status.h"
#include "format/source/source.h"

typedef struct qn_weight_shards qn_weight_shards;

/* *out: the matrix of that shape, of tensors whose names are `name` with "shard_0." and so on before its last part; NULL
 * (without a message): the first is not there. Several ones are put together in memory. QN_E_FORMAT: their rows are not
 * as many, or one has other columns. QN_E_UNSUPPORTED: their types differ or are not of weights. */
qn_status qn_weight_shards_find(const qn_source *src, const char *name, const int64_t shape[2],
                                qn_weight_shards **out);
void qn_weight_shards_free(qn_weight_shards *s);
/* Borrowed. */
const qn_tensor_view *qn_weight_shards_view(const qn_weight_shards *s);
/* 1: the tensor is one of them. */
int qn_weight_shards_uses(const qn_weight_shards *s, const qn_tensor_view *v);

#endif
