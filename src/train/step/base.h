/* The model that is trained on: its files, its weights on a device, its config. The weights stay as they are,
 * packed; nothing here changes while training runs. One thread at a time. */
#ifndef QN_TRAIN_STEP_BASE_H
#define QN_TRAIN_STEP_BASE_H

#include <quern/model.h>

#include "base/buf.h"
#include "model/config/config.h"
#include "model/forward/layer_groups.h"
#include "model/weights/parameters.h"

typedef struct {
    qn_device *device;
    qn_source *source;
    qn_model_config config;
    qn_weights *weights;
    qn_parameters *parameters;
    qn_layer_groups groups;
    const char *prefix;   /* of the decoder's tensors in published files */
    uint64_t fingerprint; /* of the model's tensors (packed.h) */
    qn_model *lender; /* the open model whose config and weights these are; NULL: they are the base's own */
} qn_train_base;

/* path as for qn_model_open, device as for qn_device_open. n_threads 0: all that affinity and quota allow.
 * memory_limit_bytes 0: none. Untouched on failure. */
qn_status qn_train_base_open(const char *path, const char *device, int n_threads, size_t memory_limit_bytes,
                             qn_train_base *out);
/* The same with all of a device's options, and with other rotary positions (NULL: the files'). notes says what was
 * changed, and where "auto" gives way to the CPU. */
qn_status qn_train_base_open_with(const char *path, const char *device, const qn_device_options *options,
                                  const qn_rope_options *rope, qn_buf *notes, qn_train_base *out);
/* With the weights of an open model, on another device of the same kind: both compute at the same time.
 * n_threads 0: as many as the model has; the memory limit is for what is held beside the weights. */
qn_status qn_train_base_borrow(qn_model *model, int n_threads, size_t memory_limit_bytes, qn_train_base *out);
/* Accepts a zeroed one. */
void qn_train_base_close(qn_train_base *b);

#endif
