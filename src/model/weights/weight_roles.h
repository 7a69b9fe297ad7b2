/* Shape of each role's tensor and when a model has it, as a table over the config. Constant data; read by
 * weights.c, which finds the tensors, and by whoever makes one up (tests). */
#ifndef QN_MODEL_WEIGHTS_WEIGHT_ROLES_H
#define QN_MODEL_WEIGHTS_WEIGHT_ROLES_H

#include "model/config/config.h"
#include "model/weights/weights.h"

enum { QN_WEIGHT_DIMS_MAX = 3 };

typedef enum {
    QN_WEIGHT_NEVER,  /* a tensor of this role has no place in the model */
    QN_WEIGHT_UNUSED, /* files may carry it; nothing reads it */
    QN_WEIGHT_MAYBE,  /* used where the files have it */
    QN_WEIGHT_NEEDED, /* a missing one is an error */
} qn_weight_presence;

/* layer: 0 for the roles of the whole model. Fills shape, outermost first; returns the number of dimensions.
 */
int qn_weight_shape(const qn_model_config *c, int64_t layer, qn_weight_role role,
                    int64_t shape[QN_WEIGHT_DIMS_MAX]);
/* The same of a GGUF file, in which some vectors of recurrences are matrices. */
int qn_weight_gguf_shape(const qn_model_config *c, int64_t layer, qn_weight_role role,
                         int64_t shape[QN_WEIGHT_DIMS_MAX]);
/* Of a convolution's weights [channels, 1, taps], which are one dimension for weights.h and [taps, channels] for
 * blocks: the taps; else 0. */
int64_t qn_weight_taps(const qn_model_config *c, int64_t layer, qn_weight_role role);
/* 1: a norm that norm_offset of the family is about (families.h). */
int qn_weight_has_offset(qn_weight_role role);
qn_weight_presence qn_weight_expected(const qn_model_config *c, int64_t layer, qn_weight_role role);

#endif
