/* Rotary position embedding. */
#include "device/cuda/attention/rope.cuh"

static qn_status launch_table(qn_cuda_context *c, const qn_cuda_step *s)
{
    const int64_t n_rows = s->out.dim[0], half = s->in[1].dim[0];
    const qn_find_angles::work w = {
        (const int32_t *)s->in[0].data, (const float *)s->in[1].data, n_rows, half,
        s->params->rope.factor,         (float *)s->out.data};
    return qn_cuda_begin_body<qn_find_angles>(c, qn_blocks(n_rows * half, qn_find_angles::BLOCK),
                                              qn_find_angles::BLOCK, 0, w);
}

static qn_status launch_rope(qn_cuda_context *c, const qn_cuda_step *s)
{
    const qn_cuda_operand *x = &s->in[0], *table = &s->in[1];
    const qn_rotate::work w = {(const float *)x->data,
                               (const float *)table->data,
                               (float *)s->out.data,
                               x->dim[0],
                               x->dim[1],
                               x->dim[2],
                               table->dim[1] / 2,
                               x->stride[0],
                               table->stride[0],
                               s->params->rope.interleaved};
    return qn_cuda_begin_body<qn_rotate>(
        c, qn_blocks(w.n_rows * w.heads * ((w.head_dim + 1) / 2), qn_rotate::BLOCK), qn_rotate::BLOCK, 0, w);
}

extern const qn_cuda_prim qn_cuda_prim_ROPE_TABLE, qn_cuda_prim_ROPE;
const qn_cuda_prim qn_cuda_prim_ROPE_TABLE = {launch_table, NULL};
const qn_cuda_prim qn_cuda_prim_ROPE = {launch_rope, NULL};
