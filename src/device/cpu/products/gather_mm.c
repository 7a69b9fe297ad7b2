/* Products of rows with plain matrices that their ids name, and the sums of outer products that are the gradient
 * by these matrices: for training, where the matrices are factors of low rank. A pair of row and choice is
 * computed by itself, so its bits do not depend on the others; a matrix sums its pairs in rising order. */
#include <string.h>

#include "device/cpu/cpu.h"

/* Matrices with rows shorter than this, such as B of low rank, are turned round: kernels want long rows. */
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

/* from [rows, columns] as to [columns, rows]. */
static void turn(const float *from, int64_t rows, int64_t columns, float *to)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++) to[c * rows + r] = from[r * columns + c];
}

/* ---- products ------------------------------------------------------------------------------------------ */

/* One step in one run. */
typedef struct {
    const qn_cpu_run *run;
    const qn_cpu_step *s;
    int64_t rows, top, n, k;
    int by_columns; /* the matrix is [k, n], as it lies or turned round; else [n, k] */
} product;

static product begin(const qn_cpu_run *run, const qn_cpu_step *s, int is_turned)
{
    const qn_operand *x = &s->plan.in[0];
    return (product){.run = run,
                     .s = s,
                     .rows = qn_cpu_rows(run, &s->plan.out),
                     .top = s->plan.in[2].shape.dim[1],
                     .n = s->plan.out.shape.dim[2],
                     .k = x->shape.dim[x->shape.n - 1],
                     .by_columns = (s->plan.params.gather_mm.transposed != 0) != is_turned};
}

static void multiply(const product *p, int64_t row, int64_t choice, const float *matrix)
{
    const float *x = vector_of(&p->s->plan.in[0], p->s->in[0], row, choice);
    float *out = (float *)(void *)p->s->out + (row * p->top + choice) * p->n;
    if (p->by_columns)
        p->run->kernels->gemm_f32(out, p->n, x, p->k, 1, matrix, p->n, 1, p->n, p->k, 0, 1, 0);
    else
        for (int64_t i = 0; i < p->n; i++) out[i] = p->run->kernels->dot(x, matrix + i * p->k, p->k);
}

static const float *matrix_of(const qn_cpu_step *s, int64_t i)
{
    return (const float *)(const void *)s->in[1] + i * s->plan.in[1].stride[0];
}

/* Matrix by matrix, each turned round once for all that chose it. */
static void gather_turned(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_operand *w = &s->plan.in[1];
    const product p = begin(run, s, 1);
    float *turned = (float *)(void *)run->scratch;
    int64_t from, to;
    while (qn_cpu_claim(run, w->shape.dim[0], &from, &to))
        for (int64_t i = from; i < to; i++) {
            int is_turned = 0;
            for (int64_t r = 0; r < p.rows; r++)
                for (int64_t j = 0; j < p.top; j++) {
                    if (id_of(s, r, j) != i) continue;
                    if (!is_turned) turn(matrix_of(s, i), w->shape.dim[1], w->shape.dim[2], turned);
                    is_turned = 1;
                    multiply(&p, r, j, turned);
                }
        }
}

static void gather_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    if (s->plan.in[1].shape.dim[2] < SHORT_ROW) {
        gather_turned(run, s);
        return;
    }
    const product p = begin(run, s, 0);
    int64_t from, to;
    while (qn_cpu_claim(run, p.rows * p.top, &from, &to))
        for (int64_t i = from; i < to; i++)
            multiply(&p, i / p.top, i % p.top, matrix_of(s, id_of(s, i / p.top, i % p.top)));
}

/* ---- sums of outer products ----------------------------------------------------------------------------- */

/* 1: the sums are of transposes, which are turned round at the end. */
static int sums_turned(const qn_cpu_step *s)
{
    return s->plan.out.shape.dim[2] < SHORT_ROW && s->plan.out.shape.dim[1] > s->plan.out.shape.dim[2];
}

static void one_matrix(const qn_cpu_run *run, const qn_cpu_step *s, int64_t matrix)
{
    const int is_turned = sums_turned(s), left = is_turned, right = !is_turned;
    const qn_operand *a = &s->plan.in[left], *b = &s->plan.in[right];
    const int64_t rows = qn_cpu_rows(run, a), top = s->plan.in[2].shape.dim[1],
                  n = s->plan.out.shape.dim[is_turned ? 2 : 1], k = s->plan.out.shape.dim[is_turned ? 1 : 2];
    float *out = (float *)(void *)s->out + matrix * n * k,
          *sums = is_turned ? (float *)(void *)run->scratch : out;
    memset(sums, 0, (size_t)(n * k) * sizeof *sums);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < top; j++)
            if (id_of(s, r, j) == matrix)
                run->kernels->gemm_f32(sums, k, vector_of(a, s->in[left], r, j), 1, 1,
                                       vector_of(b, s->in[right], r, j), k, 1, k, 1, 0, n, 1);
    if (is_turned) turn(sums, n, k, out);
}

static void scatter_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    int64_t from, to;
    while (qn_cpu_claim(run, s->plan.out.shape.dim[0], &from, &to))
        for (int64_t i = from; i < to; i++) one_matrix(run, s, i);
}

/* ---- preparing ------------------------------------------------------------------------------------------ */

static void need_matrix(const qn_operand *o, size_t *scratch_bytes)
{
    const size_t bytes = (size_t)(o->shape.dim[1] * o->shape.dim[2]) * sizeof(float);
    if (*scratch_bytes < bytes) *scratch_bytes = bytes;
}

static qn_status gather_prepare(qn_cpu *d, const qn_plan *plan, qn_cpu_step *step, size_t *scratch_bytes,
                                size_t *shared_bytes)
{
    const qn_operand *w = &step->plan.in[1];
    const qn_plan_slot *slot = &plan->slots[w->slot];
    if (slot->buffer && slot->buffer->layout != QN_CPU_LAYOUT_PLAIN)
        return qn_fail(QN_E_UNSUPPORTED, "GATHER_MM takes plain matrices");
    if (w->shape.dim[2] < SHORT_ROW) need_matrix(w, scratch_bytes);
    return QN_OK;
}

static qn_status scatter_prepare(qn_cpu *d, const qn_plan *plan, qn_cpu_step *step, size_t *scratch_bytes,
                                 size_t *shared_bytes)
{
    if (sums_turned(step)) need_matrix(&step->plan.out, scratch_bytes);
    return QN_OK;
}

const qn_cpu_prim qn_cpu_GATHER_MM = {gather_run, gather_prepare};
const qn_cpu_prim qn_cpu_SCATTER_MM = {scatter_run, scatter_prepare};
