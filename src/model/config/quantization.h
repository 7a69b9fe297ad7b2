/* What config.json says of MLX's quantised layers ("quantization", or "quantization_config" in older files):
 *   {"group_size": 64, "bits": 4, "mode": "affine",
 *    "model.layers.0.mlp.down_proj": {"group_size": 32, "bits": 8}, "lm_head": false}
 * A module (a tensor's name less ".weight") that is named has its own parameters, or none (false). Whether a
 * layer is quantised is said by its tensors: with scales it is, without it is dense, whatever stands here.
 * Immutable after reading: any thread. */
#ifndef QN_MODEL_CONFIG_QUANTIZATION_H
#define QN_MODEL_CONFIG_QUANTIZATION_H

#include "base/status.h"
#include "format/source/source.h"
#include "model/config/fields.h"

typedef struct qn_quantization qn_quantization;

/* *out: NULL where the file says nothing. QN_E_FORMAT, QN_E_UNSUPPORTED: name file, field and value. */
qn_status qn_quantization_read(const qn_fields *f, qn_quantization **out);
void qn_quantization_free(qn_quantization *q);
/* Bits of a code where no module says otherwise. */
int qn_quantization_bits(const qn_quantization *q);

/* The matrix, or matrices, of this shape (2 or 3 dimensions) whose tensor is `weight`. *found 0: it has no
 * scales, so it is dense. Otherwise *out is a view of all of it: dtype AFFINE* or MXFP4, shape, data (the
 * words), scales and biases (format/files/tensor_view.h, quant/mlx.h). q may be NULL. QN_E_FORMAT: a tensor
 * is missing, of the wrong shape or type, or at odds with the config; QN_E_UNSUPPORTED: bits, group or mode.
 */
qn_status qn_quantization_view(const qn_quantization *q, const qn_source *src, const qn_tensor_view *weight,
                               int n_dims, const int64_t *shape, qn_tensor_view *out, int *found);

#endif
