/* Which modules the configuration of a PEFT adapter puts factors into: target_modules, exclude_modules,
 * modules_to_save, layers_to_transform and layers_pattern, by peft's own rule (check_target_module_exists). peft
 * leaves out tensors of other modules, with a warning. Immutable after reading: any thread. */
#ifndef QN_MODEL_ADAPTER_ADAPTER_TARGETS_H
#define QN_MODEL_ADAPTER_ADAPTER_TARGETS_H

#include "model/config/fields.h"

typedef struct qn_adapter_targets qn_adapter_targets;

/* Reads the fields and compiles the expressions. QN_E_FORMAT, QN_E_UNSUPPORTED (message: the field). */
qn_status qn_adapter_targets_read(const qn_fields *f, qn_adapter_targets **out);
void qn_adapter_targets_free(qn_adapter_targets *t);
/* module: "model.layers.3.self_attn.q_proj". is_linear 1: a linear layer other than the head, which "all-linear"
 * means. *field NULL: the module gets factors; else the field that says that it does not (static storage). QN_E_FORMAT:
 * its layer is not one of layers_to_transform. */
qn_status qn_adapter_targets_check(const qn_adapter_targets *t, const char *module, int is_linear,
                                   const char **field);
/* 1: a name of modules_to_save is the end of the path of the module or of one that it lies in, as peft finds those that
 * it saves whole. */
int qn_adapter_targets_saves(const qn_adapter_targets *t, const char *module);
/* The i-th name of modules_to_save; NULL: there are not so many. */
const char *qn_adapter_targets_saved(const qn_adapter_targets *t, size_t i);

#endif
