/* Primitives that carry a state from row to row. */
#include "model/forward/blocks/blocks.h"

qn_array *qn_block_recurrent(qn_scope *s, const qn_forward *f, qn_prim prim, qn_params_recurrent how, int n,
                             qn_array **in, int64_t layer)
{
    qn_params p = {.recurrent = how};
    p.recurrent.state = f->recurrent;
    p.recurrent.layer = f->groups->recurrent_of[layer];
    in[n] = f->row_begin;
    if (!f->recurrent) return qn_apply(s, prim, &p, n + 1, in, NULL, QN_DTYPE_F32);
    in[n + 1] = f->slots;
    in[n + 2] = f->reset;
    return qn_apply(s, prim, &p, n + 3, in, NULL, QN_DTYPE_F32);
}

qn_array *qn_block_rates(qn_scope *s, const qn_forward *f, qn_weight_role role, int64_t n_heads, qn_array *x,
                         int64_t layer)
{
    qn_array *rate = qn_forward_weight(f, role, layer);
    if (rate && n_heads) rate = qn_reshape_sym(s, rate, qn_shape_make(2, (int64_t[]){n_heads, 1}));
    rate = rate && x ? qn_broadcast_sym(s, rate, *qn_array_shape(x)) : NULL;
    return qn_unary(s, f->config->rates_given ? QN_PRIM_NEG : QN_PRIM_EXP, rate);
}

qn_array *qn_block_conv(qn_scope *s, const qn_forward *f, qn_array *x, qn_weight_role weight,
                        qn_weight_role bias, int64_t offset, int64_t layer)
{
    qn_array *in[5] = {x, qn_forward_weight(f, weight, layer)}, *b = qn_forward_weight(f, bias, layer);
    x = qn_block_recurrent(s, f, QN_PRIM_SHORT_CONV, (qn_params_recurrent){.offset = offset}, 2, in, layer);
    return b ? qn_add(s, x, b) : x;
}
