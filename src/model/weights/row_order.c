#include "model/weights/row_order.h"

#include "model/config/families.h"

int qn_row_order_differs(const qn_model_config *c, qn_weight_role role)
{
    return c->rope_interleaved && c->family->gguf_rope_interleaved &&
           (role == QN_WEIGHT_Q || role == QN_WEIGHT_K || role == QN_WEIGHT_Q_BIAS ||
            role == QN_WEIGHT_K_BIAS);
}

int qn_row_order_is_known(const qn_model_config *c, qn_weight_role role)
{
    switch (role) {
    case QN_WEIGHT_SSM_A_LOG:
        return !c->rates_given;
    case QN_WEIGHT_DELTA_A_LOG:
        return !c->rates_given && !c->delta.tiled;
    case QN_WEIGHT_DELTA_QKV:
    case QN_WEIGHT_DELTA_Z:
    case QN_WEIGHT_DELTA_A:
    case QN_WEIGHT_DELTA_B:
    case QN_WEIGHT_DELTA_OUT:
    case QN_WEIGHT_DELTA_DT_BIAS:
    case QN_WEIGHT_CONV:
        return !c->delta.tiled;
    case QN_WEIGHT_EMBED:
    case QN_WEIGHT_LM_HEAD:
    case QN_WEIGHT_Q:
    case QN_WEIGHT_K:
    case QN_WEIGHT_V:
    case QN_WEIGHT_O:
    case QN_WEIGHT_GATE:
    case QN_WEIGHT_DOWN:
    case QN_WEIGHT_SSM_IN:
    case QN_WEIGHT_SSM_OUT:
        return !c->multipliers_folded;
    default:
        return 1;
    }
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
