/* Products of bf16 matrices into f32. The second one is laid in pairs of rows first, by all workers together
 * and each element once; the first one is copied only where its rows are no runs of even length. Where the
 * set does not multiply bf16, both become f32. Rows of the output are shared. */
#include <string.h>

#include "base/checked.h"
#include "device/cpu/wide.h"

enum { PAIRS = 32, LINES = 16 }; /* rows of pairs, rows of the first matrix, that are handed out at once */
enum { CROWDED = 512, BLOCK = 64 };

typedef struct {
    int64_t m, k, n, batches, matrices; /* matrices: of the second operand, 1 where all share it */
    int64_t width;                      /* numbers in a row of the first operand's copy */
    int copies, pairs;
} shape;

static shape shape_of(const qn_kernels *k, const qn_plan_step *s, const qn_sizes *sizes)
{
    const qn_operand *a = &s->in[0], *b = &s->in[1];
    const int n = a->shape.n;
    shape w = {.m = qn_shape_dim(&a->shape, n - 2, sizes),
               .k = a->shape.dim[n - 1],
               .n = s->out.shape.dim[n - 1],
               .batches = 1,
               .pairs = k->gemm_bf16 != NULL};
    for (int d = 0; d < n - 2; d++) w.batches *= qn_shape_dim(&a->shape, d, sizes);
    w.matrices = b->shape.n == n ? w.batches : 1;
    w.width = w.pairs ? (w.k + 1) / 2 * 2 : w.k;
    w.copies = !w.pairs || w.width != w.k || a->stride[n - 1] != 1;
    /* rows so far apart share few lines of the first-level cache: measured, 8% of a product of 2048 */
    if (w.pairs && w.k >= CROWDED && w.n >= CROWDED && a->stride[n - 2] * 2 % 1024 == 0) {
        w.copies = 1;
        w.width += 32;
    }
    return w;
}

static int64_t second_bytes(const shape *w)
{
    return w->pairs ? w->matrices * ((w->k + 1) / 2) * w->n * 4 : w->matrices * w->k * w->n * 4;
}

/* Where matrix i of an operand begins, in elements. */
static int64_t matrix_at(const qn_operand *o, const qn_sizes *sizes, int64_t i)
{
    int64_t at = 0;
    for (int d = o->shape.n - 3; d >= 0; d--) {
        const int64_t size = qn_shape_dim(&o->shape, d, sizes);
        at += i % size * o->stride[d];
        i /= size;
    }
    return at;
}

static float widened(uint16_t x)
{
    const uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Rows 2 p and 2 p + 1 of b as one row of pairs; the last one may be alone. */
static void lay_pairs(uint32_t *out, const uint16_t *b, int64_t row, int64_t column, int64_t n, int both)
{
    const uint16_t *low = b, *high = both ? b + row : b;
    const uint32_t keep = both ? ~0u : 0xffff;
    if (column == 1)
        for (int64_t j = 0; j < n; j++) out[j] = (low[j] | (uint32_t)high[j] << 16) & keep;
    else
        for (int64_t j = 0; j < n; j++) out[j] = (low[j * column] | (uint32_t)high[j * column] << 16) & keep;
}

/* Rows of pairs [begin, end) of one matrix, in blocks of columns one behind the other: [n / 64][pairs][64],
 * the last block as wide as it is. */
static void lay_second(const shape *w, uint32_t *out, const uint16_t *b, int64_t row, int64_t column,
                       int64_t begin, int64_t end)
{
    const int64_t pairs = (w->k + 1) / 2;
    for (int64_t j = 0; j < w->n; j += BLOCK) {
        const int64_t width = w->n - j < BLOCK ? w->n - j : BLOCK;
        for (int64_t p = begin; p < end; p++)
            lay_pairs(out + j * pairs + p * width, b + 2 * p * row + j * column, row, column, width,
                      2 * p + 1 < w->k);
    }
}

static void widen_second(const shape *w, float *out, const uint16_t *b, int64_t row, int64_t column,
                         int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = 0; j < w->n; j++) out[i * w->n + j] = widened(b[i * row + j * column]);
}

static void copy_first(const shape *w, char *out, const uint16_t *a, int64_t column)
{
    if (w->pairs && column == 1)
        memcpy(out, a, (size_t)w->k * sizeof *a);
    else if (w->pairs)
        for (int64_t i = 0; i < w->k; i++) ((uint16_t *)(void *)out)[i] = a[i * column];
    else
        for (int64_t i = 0; i < w->k; i++) ((float *)(void *)out)[i] = widened(a[i * column]);
    if (w->pairs && w->k % 2) ((uint16_t *)(void *)out)[w->k] = 0;
}

/* What all workers need of both operands, in the shared area. */
static void lay_out(const qn_cpu_run *run, const qn_cpu_step *s, const shape *w, char *second, char *first)
{
    const qn_operand *a = &s->plan.in[0], *b = &s->plan.in[1];
    const int64_t rows = w->pairs ? (w->k + 1) / 2 : w->k, pieces = (rows + PAIRS - 1) / PAIRS;
    const int64_t lines = w->copies ? w->batches * w->m : 0, line = w->width * (w->pairs ? 2 : 4);
    const int64_t laid = w->matrices * pieces, all = laid + (lines + LINES - 1) / LINES;
    const uint16_t *from_a = (const uint16_t *)(const void *)s->in[0], *from_b = (const void *)s->in[1];
    int64_t begin, end;
    while (qn_cpu_claim(run, all, &begin, &end))
        for (int64_t i = begin; i < end; i++) {
            if (i < laid) {
                const int64_t matrix = i / pieces, from = i % pieces * PAIRS,
                              to = from + PAIRS < rows ? from + PAIRS : rows;
                const uint16_t *at = from_b + matrix_at(b, &run->sizes, matrix);
                const int64_t row = b->stride[b->shape.n - 2], column = b->stride[b->shape.n - 1];
                char *out = second + matrix * rows * w->n * 4;
                if (w->pairs)
                    lay_second(w, (uint32_t *)(void *)out, at, row, column, from, to);
                else
                    widen_second(w, (float *)(void *)out, at, row, column, from, to);
                continue;
            }
            const int64_t from = (i - laid) * LINES, to = from + LINES < lines ? from + LINES : lines;
            for (int64_t r = from; r < to; r++)
                copy_first(w, first + r * line,
                           from_a + matrix_at(a, &run->sizes, r / w->m) +
                               r % w->m * a->stride[a->shape.n - 2],
                           a->stride[a->shape.n - 1]);
        }
}

void qn_cpu_bf16_matmul(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_operand *a = &s->plan.in[0];
    const shape w = shape_of(run->kernels, &s->plan, &run->sizes);
    char *second = run->shared[0], *first = second + second_bytes(&w);
    int64_t begin, end;
    qn_pool_barrier(run->pool); /* others may still read what lies in the shared area */
    lay_out(run, s, &w, second, first);
    qn_pool_barrier(run->pool);
    qn_cpu_share(run, w.batches * w.m, &begin, &end);
    for (int64_t at = begin; at < end;) {
        const int64_t batch = at / w.m, from = at % w.m,
                      to = end - batch * w.m < w.m ? end - batch * w.m : w.m;
        const char *b = second + (w.matrices > 1 ? batch : 0) * (w.pairs ? (w.k + 1) / 2 : w.k) * w.n * 4;
        float *out = (float *)s->out + batch * w.m * w.n;
        if (w.pairs) {
            const uint16_t *x = (const uint16_t *)(const void *)s->in[0] + matrix_at(a, &run->sizes, batch);
            if (w.copies) x = (const uint16_t *)(void *)first + batch * w.m * w.width;
            for (int64_t j = 0; j < w.n; j += BLOCK) {
                const int64_t width = w.n - j < BLOCK ? w.n - j : BLOCK;
                run->kernels->gemm_bf16(out + j, w.n, x, w.copies ? w.width : a->stride[a->shape.n - 2],
                                        (const uint32_t *)(const void *)b + j * ((w.k + 1) / 2), width, width,
                                        w.k, from, to, 0);
            }
        } else {
            run->kernels->gemm_f32(out, w.n, (const float *)(void *)first + batch * w.m * w.k, w.k, 1,
                                   (const float *)(const void *)b, w.n, 1, w.n, w.k, from, to, 0);
        }
        at = batch * w.m + to;
    }
    qn_pool_barrier(run->pool); /* nor may others write there meanwhile */
}

qn_status qn_cpu_bf16_matmul_prepare(qn_cpu *d, const qn_plan *plan, qn_cpu_step *step, size_t *shared_bytes)
{
    const shape w = shape_of(d->kernels, &step->plan, &plan->max);
    const int64_t line = w.width * (w.pairs ? 2 : 4);
    int64_t lines, first = 0, all;
    if (!qn_mul_i64(w.batches, w.m, &lines) || (w.copies && !qn_mul_i64(lines, line, &first)) ||
        !qn_add_i64(second_bytes(&w), first, &all) || (uint64_t)all > SIZE_MAX / 2)
        return qn_fail(QN_E_ARG, "MATMUL: too large");
    if (*shared_bytes < (size_t)all) *shared_bytes = (size_t)all;
    step->fn = qn_cpu_bf16_matmul;
    return QN_OK;
}
