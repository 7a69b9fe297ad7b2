/* Which matrices of a model a tensor of an adapter belongs to, by the name of its module.
 *
 * Linear layers have the names of published files. Matrices of experts come in the three forms of qn_expert_form:
 * A module for each expert (transformers 4), or factors of a parameter (PEFT's target_parameters): the module is
 * then the one that holds the parameters, and where both of its parameters have factors, those of the first are
 * called base_layer. mlx_lm has one module for all experts. Pure functions: any thread. */
#ifndef QN_MODEL_ADAPTER_ADAPTER_PLACE_H
#define QN_MODEL_ADAPTER_ADAPTER_PLACE_H

#include "model/adapter/adapter_config.h"
#include "model/adapter/modules.h"

typedef struct {
    int n_roles; /* 0: there is no such module */
    qn_weight_role roles[QN_MODULE_ROLES_MAX];
    int64_t layer;
    int64_t n_experts; /* 0: the matrices are no experts' */
    qn_expert_form form;
    int64_t expert; /* of QN_EXPERTS_EACH */
    int turns;      /* 1: outputs of two roles take turns */
    char module
        [QN_TENSOR_NAME_MAX]; /* as the configuration names it: that of a parameter is the parameter's */
    int is_unread; /* 1: the module is of a head that scores sequences, and the model was opened without one */
    int64_t beyond; /* >= 0: the module is of this layer, which the model does not have */
} qn_adapter_place;

/* has_inner 1: there is a module of this name with ".base_layer" behind it, too. QN_E_FORMAT: target_parameters
 * does not say which parameter it is. */
qn_status qn_adapter_place_find(const qn_model_config *c, const qn_adapter_config *config, const char *module,
                                int has_inner, qn_adapter_place *out);

#endif
