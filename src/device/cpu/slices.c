/* Products by a packed weight W [n, k] that is not transposed: x [rows, n] W, the gradient by what W was
 * multiplied with. A slice of W's rows at a time is unpacked by all workers together, then they share the
 * rows of x. Each output is one chain over rising rows of W, whoever computes it. */
#include "device/cpu/slices.h"

#include <string.h>

/* Columns that are unpacked at a time: a chunk of every layout. */
enum { CHUNK_COLUMNS = 256 };

/* A slice lies as blocks of columns [k / QN_CPU_SLICE_COLUMNS][rows][QN_CPU_SLICE_COLUMNS], in bf16 as pairs
 * of rows. */
static size_t block_bytes(const qn_cpu_slices *w)
{
    return (size_t)QN_CPU_SLICE_ROWS * QN_CPU_SLICE_COLUMNS * (w->bf16 ? sizeof(uint16_t) : sizeof(float));
}

size_t qn_cpu_slice_bytes(const qn_cpu_slices *w)
{
    return (size_t)((w->k + QN_CPU_SLICE_COLUMNS - 1) / QN_CPU_SLICE_COLUMNS) * block_bytes(w);
}

size_t qn_cpu_slice_scratch_bytes(void)
{
    return CHUNK_COLUMNS * QN_PANEL * sizeof(float);
}

int64_t qn_cpu_slice_panels(const qn_cpu_slices *w, int64_t slice)
{
    const int64_t rows = w->n - slice * QN_CPU_SLICE_ROWS;
    return rows < QN_CPU_SLICE_ROWS ? (rows + QN_PANEL - 1) / QN_PANEL : QN_CPU_SLICE_ROWS / QN_PANEL;
}

void qn_cpu_slice_unpack(const qn_kernels *kernels, const qn_cpu_slices *w, int64_t slice, int64_t begin,
                         int64_t end, char *to, float *scratch)
{
    const size_t panel_bytes = qn_pack_panel_bytes(w->dtype, w->k);
    for (int64_t p = begin; p < end; p++) {
        const char *panel =
            (const char *)w->panels + (size_t)(slice * (QN_CPU_SLICE_ROWS / QN_PANEL) + p) * panel_bytes;
        for (int64_t c = 0; c < w->k; c += CHUNK_COLUMNS) {
            const int64_t n = w->k - c < CHUNK_COLUMNS ? w->k - c : CHUNK_COLUMNS;
            kernels->unpack_panel(w->dtype, n, panel + (c ? qn_pack_panel_bytes(w->dtype, c) : 0), 0,
                                  scratch);
            for (int64_t j = 0; j < n; j += QN_CPU_SLICE_COLUMNS) {
                const int64_t columns = n - j < QN_CPU_SLICE_COLUMNS ? n - j : QN_CPU_SLICE_COLUMNS;
                char *block = to + (size_t)((c + j) / QN_CPU_SLICE_COLUMNS) * block_bytes(w);
                const int64_t at = p * QN_PANEL * QN_CPU_SLICE_COLUMNS;
                if (w->bf16)
                    kernels->panel_pairs(scratch + j * QN_PANEL, columns, (uint32_t *)(void *)block + at / 2,
                                         QN_CPU_SLICE_COLUMNS);
                else
                    kernels->panel_rows(scratch + j * QN_PANEL, columns, (float *)(void *)block + at,
                                        QN_CPU_SLICE_COLUMNS);
            }
        }
    }
}

void qn_cpu_slice_multiply(const qn_kernels *kernels, const qn_cpu_slices *w, int64_t slice, const char *from,
                           const void *x, int64_t x_row, float *out, int64_t out_row, int64_t begin,
                           int64_t end, int accumulate)
{
    const int64_t rest = w->n - slice * QN_CPU_SLICE_ROWS,
                  rows = rest < QN_CPU_SLICE_ROWS ? rest : QN_CPU_SLICE_ROWS;
    for (int64_t c = 0; c < w->k; c += QN_CPU_SLICE_COLUMNS, from += block_bytes(w)) {
        const int64_t columns = w->k - c < QN_CPU_SLICE_COLUMNS ? w->k - c : QN_CPU_SLICE_COLUMNS;
        if (w->bf16)
            kernels->gemm_bf16(out + c, out_row, x, x_row, (const uint32_t *)(const void *)from,
                               QN_CPU_SLICE_COLUMNS, columns, rows, begin, end, accumulate);
        else
            kernels->gemm_f32(out + c, out_row, x, x_row, 1, (const float *)(const void *)from,
                              QN_CPU_SLICE_COLUMNS, 1, columns, rows, begin, end, accumulate);
    }
}

/* An odd number of cache lines: rows do not fall on each other in the first-level cache. */
int64_t qn_cpu_slice_row(int64_t n)
{
    return (n + 63) / 64 * 64 + 32;
}

void qn_cpu_slice_round(const qn_kernels *kernels, const float *x, int64_t n, uint16_t *out)
{
    kernels->from_f32(QN_DTYPE_BF16, x, out, n);
    if (n % 2) out[n] = 0;
}

/* ---- MATMUL ------------------------------------------------------------------------------------------- */

/* Claims are of whole tiles of the kernels. */
enum { CLAIM_ROWS = 24 };

static qn_cpu_slices slices_of(const qn_cpu_step *s)
{
    const qn_operand *w = &s->plan.in[1];
    return (qn_cpu_slices){.dtype = w->dtype,
                           .panels = s->weight ? s->weight->data : NULL,
                           .n = w->shape.dim[0],
                           .k = w->shape.dim[1],
                           .bf16 = s->act == QN_ACT_BF16};
}

static int64_t matrix_rows(const qn_operand *x, const qn_sizes *sizes)
{
    return qn_shape_elements(&x->shape, sizes) / x->shape.dim[x->shape.n - 1];
}

void qn_cpu_matmul_back(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_cpu_slices w = slices_of(s);
    const qn_operand *x = &s->plan.in[0];
    const int64_t rows = matrix_rows(x, &run->sizes), stride = x->stride[x->shape.n - 2],
                  x_row = w.bf16 ? qn_cpu_slice_row(w.n) : stride,
                  units = (rows + CLAIM_ROWS - 1) / CLAIM_ROWS;
    const size_t slice_bytes = qn_cpu_slice_bytes(&w);
    char *slices[2] = {run->shared[0], run->shared[0] + slice_bytes};
    uint16_t *rounded = (uint16_t *)(void *)(run->shared[0] + 2 * slice_bytes);
    int64_t begin, end;
    qn_pool_barrier(run->pool); /* others may still read what lies in the shared area */
    while (w.bf16 && qn_cpu_claim(run, rows, &begin, &end))
        for (int64_t r = begin; r < end; r++)
            qn_cpu_slice_round(run->kernels, (const float *)s->in[0] + r * stride, w.n, rounded + r * x_row);
    for (int64_t i = 0; i * QN_CPU_SLICE_ROWS < w.n; i++) {
        const int64_t at = i * QN_CPU_SLICE_ROWS;
        const void *from = w.bf16 ? (const void *)(rounded + at) : (const float *)s->in[0] + at;
        while (qn_cpu_claim(run, qn_cpu_slice_panels(&w, i), &begin, &end))
            qn_cpu_slice_unpack(run->kernels, &w, i, begin, end, slices[i % 2],
                                (float *)(void *)run->scratch);
        qn_pool_barrier(run->pool);
        while (qn_cpu_claim(run, units, &begin, &end))
            qn_cpu_slice_multiply(run->kernels, &w, i, slices[i % 2], from, x_row, (float *)s->out, w.k,
                                  begin * CLAIM_ROWS, end == units ? rows : end * CLAIM_ROWS, i > 0);
    }
    qn_pool_barrier(run->pool); /* nor may others write there meanwhile */
}

void qn_cpu_matmul_back_prepare(qn_cpu *d, const qn_plan *plan, qn_cpu_step *step, size_t *scratch_bytes,
                                size_t *shared_bytes)
{
    const int bf16 = plan->precision != QN_PRECISION_EXACT && !step->plan.params.matmul.exact &&
                     d->kernels->gemm_bf16 != NULL;
    step->fn = qn_cpu_matmul_back;
    step->act = bf16 ? QN_ACT_BF16 : QN_ACT_F32;
    const qn_cpu_slices w = slices_of(step);
    size_t need = 2 * qn_cpu_slice_bytes(&w);
    if (bf16)
        need +=
            (size_t)(matrix_rows(&step->plan.in[0], &plan->max) * qn_cpu_slice_row(w.n)) * sizeof(uint16_t);
    if (*shared_bytes < need) *shared_bytes = need;
    if (*scratch_bytes < qn_cpu_slice_scratch_bytes()) *scratch_bytes = qn_cpu_slice_scratch_bytes();
}
