/* The order and form that GGUF gives to weights whose published form is another: rows of queries and keys that turn as
 * neighbours, value heads of delta nets key head after key head, parts of one projection in two tensors, rates in place of
 * their logarithms. The target is a configuration as a file of the family has it. Pure functions: any thread. */
#ifndef QN_CONVERT_EXPORT_ORDER_H
#define QN_CONVERT_EXPORT_ORDER_H

#include "model/config/config.h"
#include "model/weights/weights.h"

/* Changes what the configuration of published files says of forms into what a GGUF file of its family has. */
void qn_export_forms(qn_model_config *target);
/* The role that has the rows in published files; QN_WEIGHT_ROLE_COUNT: another role's tensor has them here. */
qn_weight_role qn_export_source(const qn_model_config *target, qn_weight_role role);
/* 1: rows lie in another order, or not all of the source's are taken. */
int qn_export_moves_rows(const qn_model_config *target, qn_weight_role role);
/* Which row of the source becomes `row`. */
int64_t qn_export_row(const qn_model_config *target, qn_weight_role role, int64_t layer, int64_t row);
/* 1: columns lie in another order. */
int qn_export_moves_columns(const qn_model_config *target, qn_weight_role role);
/* A row of the source, in that order: to[n_cols]. */
void qn_export_columns(const qn_model_config *target, const float *from, float *to);
/* What rows of the role are multiplied by, of a model whose multipliers go into the weights. */
float qn_export_scale(const qn_model_config *published, qn_weight_role role, int64_t row);
/* A configuration of published files, less what qn_export_scale has of it. */
void qn_export_fold(qn_model_config *c);
/* What a number of a vector becomes. */
float qn_export_number(qn_weight_role role, float x);

#endif
