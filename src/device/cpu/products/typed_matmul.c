/* Products of matrices of f64 and of integers: each output is a sum in rising k, computed by one worker. */
#include <string.h>

#include "device/cpu/wide.h"

/* Row of a (k numbers, a_col apart) times b [k, n]. */
static void row_times(qn_dtype dtype, const char *a, int64_t a_col, int64_t k, const char *b, int64_t b_row,
                      int64_t b_col, int64_t n, char *out)
{
    const qn_wide_kind kind = qn_wide_kind_of(dtype);
    const int64_t bytes = (int64_t)qn_wide_bytes(dtype);
    qn_wide sum[QN_WIDE_TILE], tile[QN_WIDE_TILE], x;
    for (int64_t at = 0; at < n; at += QN_WIDE_TILE) {
        const int64_t m = n - at < QN_WIDE_TILE ? n - at : QN_WIDE_TILE;
        memset(sum, 0, sizeof sum); /* 0 of every kind */
        for (int64_t j = 0; j < k; j++) {
            qn_wide_load(dtype, a + j * a_col * bytes, 1, 1, &x);
            qn_wide_load(dtype, b + (j * b_row + at * b_col) * bytes, b_col, m, tile);
            for (int64_t i = 0; i < m; i++) {
                if (kind == QN_WIDE_REAL)
                    sum[i].f += x.f * tile[i].f;
                else
                    sum[i].u += x.u * tile[i].u;
            }
        }
        qn_wide_store(dtype, sum, m, out + at * bytes, 1);
    }
}

void qn_cpu_typed_matmul(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_operand *a = &s->plan.in[0], *b = &s->plan.in[1], *o = &s->plan.out;
    const int n = a->shape.n;
    const int64_t m = qn_shape_dim(&a->shape, n - 2, &run->sizes), k = a->shape.dim[n - 1],
                  width = o->shape.dim[n - 1], bytes = (int64_t)qn_wide_bytes(a->dtype);
    int64_t batches = 1, begin, end;
    for (int d = 0; d < n - 2; d++) batches *= qn_shape_dim(&a->shape, d, &run->sizes);
    qn_cpu_share(run, batches * m, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        int64_t rest = r / m, ao = r % m * a->stride[n - 2], bo = 0;
        for (int d = n - 3; d >= 0; d--) {
            const int64_t size = qn_shape_dim(&a->shape, d, &run->sizes), i = rest % size;
            rest /= size;
            ao += i * a->stride[d];
            if (b->shape.n == n) bo += i * b->stride[d];
        }
        row_times(a->dtype, s->in[0] + ao * bytes, a->stride[n - 1], k, s->in[1] + bo * bytes,
                  b->stride[b->shape.n - 2], b->stride[b->shape.n - 1], width, s->out + r * width * bytes);
    }
}

void qn_cpu_typed_matmul_rows(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_operand *a = &s->plan.in[0], *b = &s->plan.in[1], *o = &s->plan.out;
    const int64_t width = o->shape.dim[1], bytes = (int64_t)qn_wide_bytes(a->dtype);
    int64_t begin, end;
    qn_cpu_share(run, o->shape.dim[0], &begin, &end);
    for (int64_t r = begin; r < end; r++)
        row_times(a->dtype, s->in[0] + r * a->stride[1] * bytes, a->stride[0], qn_cpu_rows(run, a), s->in[1],
                  b->stride[0], b->stride[1], width, s->out + r * width * bytes);
}
