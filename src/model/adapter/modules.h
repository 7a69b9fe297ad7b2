/* The linear layers of a model under the names that published files give them: what adapters are made for. A
 * module is one matrix of the model, or several that files keep in one tensor, one below the other. The matrices
 * of a layer's experts are modules under the names of transformers' parameters, "model.layers.3.mlp.experts.
 * gate_up_proj": the same matrices for each expert. */
#ifndef QN_MODEL_ADAPTER_MODULES_H
#define QN_MODEL_ADAPTER_MODULES_H

#include "model/config/families.h"
#include "model/weights/parameters.h"
#include "model/weights/weight_roles.h"

enum { QN_MODULE_ROLES_MAX = 3 };

typedef struct {
    char name[QN_TENSOR_NAME_MAX]; /* "model.layers.3.self_attn.q_proj" */
    int64_t layer;                 /* -1: of the whole model */
    int n_roles;
    qn_weight_role roles[QN_MODULE_ROLES_MAX]; /* from the top */
    int64_t n_out[QN_MODULE_ROLES_MAX];        /* rows of each */
    int64_t n_in, n_rows;                      /* of the module; of each expert */
    int64_t n_experts;                         /* 0: the matrices are no experts' */
} qn_module;

/* 1: a role is a matrix that adapters are made for; shape gets its two dimensions. */
int qn_module_has_role(const qn_model_config *c, qn_weight_role role, int64_t layer,
                       int64_t shape[QN_WEIGHT_DIMS_MAX]);

/* 1: a role is the matrices of experts; shape gets their number and the two dimensions of each. */
int qn_module_has_experts(const qn_model_config *c, qn_weight_role role, int64_t layer,
                          int64_t shape[QN_WEIGHT_DIMS_MAX]);

/* All modules whose matrices the model has, sorted by name; prefix: one of qn_decoder_prefixes. The caller
 * frees *out. */
qn_status qn_modules_list(const qn_model_config *c, const qn_parameters *p, const char *prefix,
                          qn_module **out, int64_t *n);

#endif
