/* Low-rank additions of adapters to a product: next to the product itself they are little work, so that the
 * only care taken is that no bit of a row depends on the rows beside it. */
#include <string.h>

#include "device/cpu/cpu.h"

enum {
    OWN_ROWS = 4, /* up to here workers share the columns, and each computes x A^T for itself */
    TILE_ROWS = 8 /* rows of one adapter that pass over B together */
};

/* NULL: nothing is added to the row. */
static const qn_lora_pair *pair_of(const qn_params_lora *p, int32_t adapter)
{
    if (adapter < 0 || adapter >= p->n_pairs || !p->pairs[adapter].data) return NULL;
    return &p->pairs[adapter];
}

/* Columns [begin, end) of the rows [row, row + n), n <= TILE_ROWS, which use one adapter. */
static void add_rows(const qn_cpu_run *run, const qn_cpu_step *s, const qn_lora_pair *pair, int64_t row,
                     int64_t n, int64_t begin, int64_t end)
{
    const qn_operand *x = &s->plan.in[0];
    int64_t n_in = x->shape.dim[1], n_out = s->plan.out.shape.dim[1], rank = pair->rank;
    const float *a = (const float *)pair->data->data + pair->a,
                *b = (const float *)pair->data->data + pair->b;
    float *h = (float *)run->scratch;
    for (int64_t i = 0; i < n; i++) {
        const float *from = (const float *)s->in[0] + (row + i) * x->stride[0];
        for (int64_t k = 0; k < rank; k++)
            h[i * rank + k] = pair->scale * run->kernels->dot(from, a + k * n_in, n_in);
    }
    run->kernels->gemm_f32((float *)s->out + row * n_out + begin, n_out, h, rank, 1, b + begin, n_out, 1,
                           end - begin, rank, 0, n, 1);
    for (int64_t i = 0; pair->gain >= 0 && i < n; i++) {
        float *out = (float *)s->out + (row + i) * n_out + begin;
        const float *gain = (const float *)pair->data->data + pair->gain + begin;
        run->kernels->ew[QN_EW_MUL](out, out, 1, gain, 1, end - begin);
    }
}

/* Columns [begin, end) of the rows [first, last). */
static void adapt(const qn_cpu_run *run, const qn_cpu_step *s, int64_t first, int64_t last, int64_t begin,
                  int64_t end)
{
    const qn_operand *y = &s->plan.in[1];
    const int32_t *adapters = (const int32_t *)s->in[2];
    int64_t n_out = s->plan.out.shape.dim[1];
    for (int64_t r = first; r < last; r++)
        memcpy((float *)s->out + r * n_out + begin, (const float *)s->in[1] + r * y->stride[0] + begin,
               (size_t)(end - begin) * sizeof(float));
    for (int64_t r = first, n; r < last; r += n) {
        const qn_lora_pair *pair = pair_of(&s->plan.params.lora, adapters[r]);
        for (n = 1; n < TILE_ROWS && r + n < last && adapters[r + n] == adapters[r];) n++;
        if (pair) add_rows(run, s, pair, r, n, begin, end);
    }
}

static void lora_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    int64_t rows = qn_cpu_rows(run, &s->plan.out), n_out = s->plan.out.shape.dim[1], begin, end;
    if (rows <= OWN_ROWS) {
        qn_pool_share(n_out, QN_PANEL, run->thread, run->n_threads, &begin, &end);
        if (begin < end) adapt(run, s, 0, rows, begin, end);
    } else {
        qn_cpu_share(run, rows, &begin, &end);
        adapt(run, s, begin, end, 0, n_out);
    }
}

static qn_status lora_prepare(qn_cpu *d, const qn_plan *plan, qn_cpu_step *step, size_t *scratch_bytes,
                              size_t *shared_bytes)
{
    size_t need = sizeof(float) * TILE_ROWS * QN_LORA_RANK_MAX;
    if (*scratch_bytes < need) *scratch_bytes = need;
    return QN_OK;
}

const qn_cpu_prim qn_cpu_LORA = {lora_run, lora_prepare};
