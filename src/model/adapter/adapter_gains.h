/* What DoRA's magnitudes multiply the outputs of a matrix by. The thread that owns the device. */
#ifndef QN_MODEL_ADAPTER_ADAPTER_GAINS_H
#define QN_MODEL_ADAPTER_ADAPTER_GAINS_H

#include "array/array.h"
#include "model/adapter/adapter_file.h"

/* w: the model's matrix on its device, NULL: it has none. p: the target's factors. gain [n_out] holds the magnitudes
 * before, in the model's order of rows. QN_E_FORMAT: a row of length 0. */
qn_status qn_adapter_gains(qn_device *device, qn_array *w, const qn_adapter_target *t, const qn_lora_pair *p,
                           float *gain);

#endif
