/* Products of rows with plain matrices that their ids name, and the sums of outer products that are the gradient
 * by these matrices: for training, where the matrices are factors of low rank. A pair of row and choice is
 * computed by itself, so its bits do not depend on the others; a matrix sums its pairs in rising order. */
#include <string.h>

#include "device/cpu/cpu.h"

/* Rows shorter than this are columns of one product; longer ones are products of two vectors each. */
enum { SHORT_ROW = 64 };

static const float *vector_of(const qn_operand *o, const char *data, int64_t row, int64_t choice)
{
    return (const float *)(const void *)data + row * o->stride[0] +
           (o->shape.n == 3 ? choice * o->stride[1] : 0);
}

static int32_t id_of(const qn_cpu_step *s, int64_t row, int64_t choice)
{
    return ((const int32_t *)(const void *)s->in[2])[row * s->plan.in[2].stride[0] + choice];
}

static void gather_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_operand *x = &s->plan.in[0], *w = &s->plan.in[1];
    const int64_t top = s->plan.in[2].shape.dim[1], n = s->plan.out.shape.dim[2],
                  k = x->shape.dim[x->shape.n - 1], pairs = qn_cpu_rows(run, &s->plan.out) * top;
    const int transposed = s->plan.params.gather_mm.transposed != 0;
    int64_t begin, end;
    while (qn_cpu_claim(run, pairs, &begin, &end))
        for (int64_t p = begin; p < end; p++) {
            const float *from = vector_of(x, s->in[0], p / top, p % top),
                        *matrix =
                            (const float *)(const void *)s->in[1] + id_of(s, p / top, p % top) * w->stride[0];
            float *out = (float *)(void *)s->out + p * n;
            if (transposed || k < SHORT_ROW)
                run->kernels->gemm_f32(out, n, from, k, 1, matrix, transposed ? n : 1, transposed ? 1 : k, n,
                                       k, 0, 1, 0);
            else
                for (int64_t i = 0; i < n; i++) out[i] = run->kernels->dot(from, matrix + i * k, k);
        }
}

static void one_matrix(const qn_cpu_run *run, const qn_cpu_step *s, int64_t matrix)
{
    const qn_operand *a = &s->plan.in[0], *b = &s->plan.in[1];
    const int64_t rows = qn_cpu_rows(run, a), top = s->plan.in[2].shape.dim[1], n = s->plan.out.shape.dim[1],
                  k = s->plan.out.shape.dim[2];
    float *out = (float *)(void *)s->out + matrix * n * k;
    memset(out, 0, (size_t)(n * k) * sizeof *out);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < top; j++)
            if (id_of(s, r, j) == matrix)
                run->kernels->gemm_f32(out, k, vector_of(a, s->in[0], r, j), 1, 1,
                                       vector_of(b, s->in[1], r, j), k, 1, k, 1, 0, n, 1);
}

static void scatter_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    int64_t begin, end;
    while (qn_cpu_claim(run, s->plan.out.shape.dim[0], &begin, &end))
        for (int64_t i = begin; i < end; i++) one_matrix(run, s, i);
}

static qn_status gather_prepare(qn_cpu *d, const qn_plan *plan, qn_cpu_step *step, size_t *scratch_bytes,
                                size_t *shared_bytes)
{
    const qn_plan_slot *slot = &plan->slots[step->plan.in[1].slot];
    if (slot->buffer && slot->buffer->layout != QN_CPU_LAYOUT_PLAIN)
        return qn_fail(QN_E_UNSUPPORTED, "GATHER_MM takes plain matrices");
    return QN_OK;
}

const qn_cpu_prim qn_cpu_GATHER_MM = {gather_run, gather_prepare};
const qn_cpu_prim qn_cpu_SCATTER_MM = {scatter_run, NULL};
