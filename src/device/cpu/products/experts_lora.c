/* Low-rank additions of adapters to products with chosen experts. Each pair of row and choice is computed by
 * itself, so no bit of a row depends on the rows beside it; a row without an adapter is a copy. */
#include <string.h>

#include "device/cpu/cpu.h"

enum { OWN_ROWS = 4 }; /* up to here workers share the columns, and each computes x A^T for itself */

/* NULL: nothing is added to the row. */
static const qn_lora_pair *pair_of(const qn_params_lora *p, int32_t adapter)
{
    if (adapter < 0 || adapter >= p->n_pairs || !p->pairs[adapter].data) return NULL;
    return &p->pairs[adapter];
}

/* Columns [begin, end) of what choice j of a row adds to out. */
static void add_choice(const qn_cpu_run *run, const qn_cpu_step *s, const qn_lora_pair *pair, int64_t row,
                       int64_t j, int64_t begin, int64_t end, float *out)
{
    const qn_operand *x = &s->plan.in[0], *ids = &s->plan.in[2];
    const int64_t n_in = x->shape.dim[x->shape.n - 1], n_out = s->plan.out.shape.dim[s->plan.out.shape.n - 1],
                  rank = pair->rank;
    const int32_t expert = ((const int32_t *)(const void *)s->in[2])[row * ids->stride[0] + j];
    const float *a = (const float *)pair->data->data + pair->a + expert * rank * n_in,
                *b = (const float *)pair->data->data + pair->b + expert * rank * n_out,
                *from = (const float *)(const void *)s->in[0] + row * x->stride[0] +
                        (x->shape.n == 3 ? j * x->stride[1] : 0);
    float *h = (float *)(void *)run->scratch, scale = pair->scale;
    if (s->plan.params.experts_lora.has_share)
        scale *= ((const float *)(const void *)s->in[4])[row * s->plan.in[4].stride[0] + j];
    for (int64_t k = 0; k < rank; k++) h[k] = scale * run->kernels->dot(from, a + k * n_in, n_in);
    run->kernels->gemm_f32(out + begin, n_out, h, rank, 1, b + begin, n_out, 1, end - begin, rank, 0, 1, 1);
}

/* Columns [begin, end) of the rows [first, last). */
static void adapt(const qn_cpu_run *run, const qn_cpu_step *s, int64_t first, int64_t last, int64_t begin,
                  int64_t end)
{
    const qn_operand *y = &s->plan.in[1];
    const int32_t *adapters = (const int32_t *)(const void *)s->in[3];
    const int has_share = s->plan.params.experts_lora.has_share;
    const int64_t top = s->plan.in[2].shape.dim[1], n_out = s->plan.out.shape.dim[s->plan.out.shape.n - 1],
                  lines = has_share ? 1 : top;
    for (int64_t r = first; r < last; r++) {
        const qn_lora_pair *pair = pair_of(&s->plan.params.experts_lora.lora, adapters[r]);
        float *out = (float *)(void *)s->out + r * lines * n_out;
        for (int64_t j = 0; j < lines; j++)
            memcpy(out + j * n_out + begin,
                   (const float *)(const void *)s->in[1] + r * y->stride[0] + j * n_out + begin,
                   (size_t)(end - begin) * sizeof *out);
        for (int64_t j = 0; pair && j < top; j++)
            add_choice(run, s, pair, r, j, begin, end, out + (has_share ? 0 : j * n_out));
    }
}

static void experts_lora_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    int64_t rows = qn_cpu_rows(run, &s->plan.out), n_out = s->plan.out.shape.dim[s->plan.out.shape.n - 1],
            begin, end;
    if (rows <= OWN_ROWS) {
        qn_pool_share(n_out, QN_PANEL, run->thread, run->n_threads, &begin, &end);
        if (begin < end) adapt(run, s, 0, rows, begin, end);
    } else {
        qn_cpu_share(run, rows, &begin, &end);
        adapt(run, s, begin, end, 0, n_out);
    }
}

static qn_status experts_lora_prepare(qn_cpu *d, const qn_plan *plan, qn_cpu_step *step,
                                      size_t *scratch_bytes, size_t *shared_bytes)
{
    size_t need = sizeof(float) * QN_LORA_RANK_MAX;
    if (*scratch_bytes < need) *scratch_bytes = need;
    return QN_OK;
}

const qn_cpu_prim qn_cpu_EXPERTS_LORA = {experts_lora_run, experts_lora_prepare};
