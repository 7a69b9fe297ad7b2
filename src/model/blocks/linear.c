#include "model/blocks/blocks.h"

qn_array *qn_block_linear(qn_scope *s, const qn_parameters *p, qn_array *x, qn_weight_role weight,
                          qn_weight_role bias, int64_t layer)
{
    qn_array *y = qn_linear(s, x, qn_parameters_get(p, weight, layer)),
             *b = qn_parameters_get(p, bias, layer);
    return b ? qn_add(s, y, b) : y;
}

qn_array *qn_block_norm(qn_scope *s, const qn_forward *f, qn_array *x, qn_weight_role weight, int64_t layer)
{
    qn_array *w = qn_parameters_get(f->parameters, weight, layer);
    return w ? qn_rms_norm(s, x, w, f->config->rms_norm_eps, f->config->norm_offset) : x;
}

qn_array *qn_block_softcap(qn_scope *s, qn_array *x, float cap)
{
    return cap > 0 ? qn_scale(s, qn_unary(s, QN_PRIM_TANH, qn_scale(s, x, 1 / cap)), cap) : x;
}
