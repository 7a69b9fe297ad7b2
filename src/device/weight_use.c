#include "device/weight_use.h"

int qn_reads_weight(qn_prim prim, int i_in)
{
    switch (prim) {
    case QN_PRIM_TAKE:
        return i_in == 0;
    case QN_PRIM_MATMUL:
    case QN_PRIM_EXPERTS:
    case QN_PRIM_EXPERTS_SUM:
    case QN_PRIM_EXPERTS_GRAD:
    case QN_PRIM_CROSS_ENTROPY:
    case QN_PRIM_CROSS_ENTROPY_GRAD:
        return i_in == 1;
    default:
        return 0;
    }
}

int qn_operand_in_order(const qn_operand *o, int turned)
{
    int64_t next = 1;
    for (int i = o->shape.n - 1; i >= 0; i--) {
        const int d = turned ? o->shape.n - 1 - i : i;
        if (o->stride[d] != next && o->shape.dim[d] != 1) return 0;
        next *= o->shape.dim[d];
    }
    return 1;
}
