#include "model/weights/row_order.h"

#include "model/config/families.h"

int qn_row_order_differs(const qn_model_config *c, qn_weight_role role)
{
    return c->rope_interleaved && c->family->gguf_rope_interleaved &&
           (role == QN_WEIGHT_Q || role == QN_WEIGHT_K || role == QN_WEIGHT_Q_BIAS ||
            role == QN_WEIGHT_K_BIAS);
}

int64_t qn_row_order_place(const qn_model_config *c, qn_weight_role role, int64_t layer, int64_t row)
{
    if (!qn_row_order_differs(c, role)) return row;
    const int64_t d = c->layers[layer].head_dim, half = d / 2, i = row % d;
    return row - i + (i < half ? 2 * i : 2 * (i - half) + 1);
}

int64_t qn_row_order_published(const qn_model_config *c, qn_weight_role role, int64_t layer, int64_t row)
{
    if (!qn_row_order_differs(c, role)) return row;
    const int64_t d = c->layers[layer].head_dim, i = row % d;
    return row - i + i / 2 + (i % 2 ? d / 2 : 0);
}
