/* In which order a model has the rows of a matrix. Published files have the two halves of a head that a
 * rotation pairs one after the other; GGUF files of some families have the pairs of q and k side by side
 * (families.h), and the model keeps them so. What is of each output (an adapter's B, magnitudes) and comes
 * from published files, or goes there, changes its order with this. Pure functions: any thread. */
#ifndef QN_MODEL_WEIGHTS_ROW_ORDER_H
#define QN_MODEL_WEIGHTS_ROW_ORDER_H

#include "model/config/config.h"
#include "model/weights/weights.h"

/* 1: the model has the role's rows in another order than published files. */
int qn_row_order_differs(const qn_model_config *c, qn_weight_role role);
/* 0: the model has the role's numbers otherwise than published files, beyond the order of rows: multipliers are in them, rates
 * stand for their logarithms, or value heads lie in another order. No adapter of published files fits them. */
int qn_row_order_is_known(const qn_model_config *c, qn_weight_role role);
/* The model's row of the published row `row` of the role's matrix; the same one where orders do not differ.
 */
int64_t qn_row_order_place(const qn_model_config *c, qn_weight_role role, int64_t layer, int64_t row);
/* The other way: the published row of the model's row `row`. */
int64_t qn_row_order_published(const qn_model_config *c, qn_weight_role role, int64_t layer, int64_t row);

#endif
