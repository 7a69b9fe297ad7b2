/* Rows of keys and values into the pages of their sequences. */
#include "device/cuda/attention/attention_write.cuh"

qn_status qn_cuda_write_pages(qn_cuda_context *c, const qn_cuda_step *s)
{
    const qn_cuda_state *p = &s->state;
    const qn_cuda_operand *k = &s->in[1], *v = &s->in[2];
    qn_writing a = {p->base, p->unit_bytes, p->dtype, k->dim[0], s->in[4].dim[0] - 1, s->in[5].stride[0]};
    a.kv_heads = (int)p->kv_heads;
    a.positions = (const int32_t *)s->in[3].data;
    a.row_begin = (const int32_t *)s->in[4].data;
    a.blocks = (const int32_t *)s->in[5].data;
    a.k = {(const float *)k->data, k->stride[0], (int)p->head_dim, (int)qn_blocks(p->head_dim, 32)};
    a.k.token_bytes = qn_cuda_token_bytes(p->dtype, p->head_dim);
    a.k.head_bytes = a.k.token_bytes * QN_PAGE_TOKENS;
    if (!p->v_in_k) {
        a.v = {(const float *)v->data, v->stride[0], (int)p->v_dim, (int)qn_blocks(p->v_dim, 32)};
        a.v.at = a.k.head_bytes * (size_t)p->kv_heads;
        a.v.token_bytes = qn_cuda_token_bytes(p->dtype, p->v_dim);
        a.v.head_bytes = a.v.token_bytes * QN_PAGE_TOKENS;
    }
    const int64_t warps = a.n_rows * a.kv_heads * (a.k.n_blocks + a.v.n_blocks);
    return qn_cuda_begin_body<qn_write_rows>(c, qn_blocks(warps, qn_write_rows::BLOCK / 32),
                                             qn_write_rows::BLOCK, 0, a);
}
