/* Attention over k and v of the same rows: what training differentiates. The rows are read where they lie, in the
 * groups and pages that they would have in a state of F32: so a row gets the bits that it gets there. */
#include "device/cuda/attention/attention.cuh"

static qn_kv_rows rows_of(const qn_cuda_operand *o)
{
    qn_kv_rows r = {(const char *)o->data, o->stride[0] * 4, o->dim[2] * 4, 0, (int)o->dim[2]};
    return r;
}

static int is_aligned(const qn_kv_rows *r)
{
    return r->token % 16 == 0 && r->head % 16 == 0 && (uintptr_t)r->base % 16 == 0;
}

qn_status qn_cuda_attend_ragged(qn_cuda_context *c, const qn_cuda_step *s)
{
    qn_cuda_attention a = qn_cuda_attention_of(s, 5);
    if (!a.past || !a.n_sequences) return QN_OK;
    a.k = rows_of(&s->in[1]);
    a.v = rows_of(&s->in[2]);
    a.is_loose = !is_aligned(&a.k) || !is_aligned(&a.v);
    a.n_groups = 1;
    if (s->params->attend.block) return qn_cuda_attend_chosen(c, s, &a, QN_DTYPE_F32);
    return qn_cuda_attend(c, &a, QN_DTYPE_F32, NULL);
}
