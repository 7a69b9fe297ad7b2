/* Matrix products. Against a packed weight: activations are packed (quantised) first, by the row-local steps
 * that made them where there are such, then panels are shared by the workers; by one that is not transposed:
 * slices.c. Between plain f32 arrays: gemm_f32. */
#include <string.h>

#include "base/mem.h"
#include "device/cpu/cpu.h"
#include "device/cpu/slices.h"
#include "device/cpu/wide.h"

static int64_t matrix_rows(const qn_cpu_run *run, const qn_operand *x)
{
    return qn_shape_elements(&x->shape, &run->sizes) / x->shape.dim[x->shape.n - 1];
}

static void pack(const qn_cpu_run *run, const qn_cpu_step *s, char *to, int64_t stride, int64_t n_in,
                 int64_t begin, int64_t end)
{
    size_t row_bytes = qn_act_row_bytes(s->act, n_in);
    for (int64_t r = begin; r < end; r++)
        run->kernels->act_pack(s->act, n_in, (const float *)s->in[0] + r * stride,
                               to + (size_t)r * row_bytes);
}

void qn_cpu_pack_turn(const qn_cpu_run *run, const qn_cpu_step *s, int64_t begin, int64_t end)
{
    const qn_operand *x = &s->plan.in[0];
    pack(run, s, run->shared[s->area], x->stride[0], x->shape.dim[1], begin, end);
}

const char *qn_cpu_pack_rows(const qn_cpu_run *run, const qn_cpu_step *s, int64_t rows, int64_t stride,
                             int64_t n_in)
{
    int64_t begin, end;
    char *shared = run->shared[s->area];
    if (s->ready) return shared;
    if (rows <= QN_CPU_OWN_ROWS) {
        if (s->repack) pack(run, s, run->scratch, stride, n_in, 0, rows);
        return run->scratch;
    }
    if (s->repack) {
        while (qn_cpu_claim(run, rows, &begin, &end)) pack(run, s, shared, stride, n_in, begin, end);
        qn_pool_barrier(run->pool);
    }
    return shared;
}

static void packed_matmul(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_operand *x = &s->plan.in[0];
    int n = x->shape.n;
    int64_t n_in = x->shape.dim[n - 1], n_out = s->plan.out.shape.dim[s->plan.out.shape.n - 1],
            rows = matrix_rows(run, x), begin, end;
    size_t own_bytes = QN_CPU_OWN_ROWS * qn_act_row_bytes(s->act, n_in);
    const char *packed = qn_cpu_pack_rows(run, s, rows, x->stride[n - 2], n_in);
    qn_matmul_args a = {.dtype = s->plan.in[1].dtype,
                        .act = s->act,
                        .n_in = n_in,
                        .n_out = n_out,
                        .panels = s->weight->data,
                        .x = packed,
                        .n_rows = rows,
                        .out = (float *)s->out,
                        .out_stride = n_out,
                        .streams = rows * n_out >= QN_CPU_STREAM_ELEMENTS && n_out % QN_PANEL == 0 &&
                                   (uintptr_t)s->out % 64 == 0};
    while (qn_cpu_claim_panels(run, s->act, rows, (n_out + QN_PANEL - 1) / QN_PANEL, &begin, &end)) {
        run->kernels->matmul(&a, begin, end, run->scratch + own_bytes);
        a.same_rows = 1;
    }
}

static void plain_matmul(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_operand *a = &s->plan.in[0], *b = &s->plan.in[1], *o = &s->plan.out;
    int n = a->shape.n;
    int64_t m = qn_shape_dim(&a->shape, n - 2, &run->sizes), k = a->shape.dim[n - 1],
            width = o->shape.dim[n - 1];
    int64_t batches = 1, begin, end;
    for (int d = 0; d < n - 2; d++) batches *= qn_shape_dim(&a->shape, d, &run->sizes);
    /* batch x rows are shared by the workers as one run of lines */
    qn_cpu_share(run, batches * m, &begin, &end);
    for (int64_t at = begin; at < end;) {
        int64_t batch = at / m, from = at % m, to = end - batch * m < m ? end - batch * m : m, rest = batch,
                ao = 0, bo = 0;
        for (int d = n - 3; d >= 0; d--) {
            int64_t size = qn_shape_dim(&a->shape, d, &run->sizes), i = rest % size;
            rest /= size;
            ao += i * a->stride[d];
            if (b->shape.n == n) bo += i * b->stride[d];
        }
        run->kernels->gemm_f32((float *)s->out + batch * m * width, width, (const float *)s->in[0] + ao,
                               a->stride[n - 2], a->stride[n - 1], (const float *)s->in[1] + bo,
                               b->stride[b->shape.n - 2], b->stride[b->shape.n - 1], width, k, from, to, 0);
        at = batch * m + to;
    }
}

static void grow(size_t *have, size_t need)
{
    if (*have < need) *have = need;
}

static qn_status matmul_prepare(qn_cpu *d, const qn_plan *plan, qn_cpu_step *step, size_t *scratch_bytes,
                                size_t *shared_bytes)
{
    const qn_operand *x = &step->plan.in[0], *w = &step->plan.in[1];
    const qn_plan_slot *slot = &plan->slots[w->slot];
    int n = x->shape.n;
    if (!slot->buffer || slot->buffer->layout != QN_CPU_LAYOUT_PANELS) {
        if (x->dtype == QN_DTYPE_BF16) return qn_cpu_bf16_matmul_prepare(d, plan, step, shared_bytes);
        if (x->dtype != QN_DTYPE_F32) {
            step->fn = qn_cpu_typed_matmul;
            return QN_OK;
        }
        if (w->dtype != QN_DTYPE_F32)
            return qn_fail(QN_E_UNSUPPORTED, "matmul with a plain %s matrix", qn_dtype_name(w->dtype));
        step->fn = plain_matmul;
        return QN_OK;
    }
    int64_t stride = 0;
    for (int i = n - 2; i > 0; i--) /* leading dimensions must be one run of equally spaced rows */
        if (x->stride[i - 1] != x->stride[i] * x->shape.dim[i]) stride = -1;
    int transposed = w->stride[0] == 1 && w->stride[1] == w->shape.dim[0];
    if (w->offset || w->shape.n != 2 || slot->buffer->cold || stride < 0 || x->stride[n - 1] != 1 ||
        !(transposed || (w->stride[1] == 1 && w->stride[0] == w->shape.dim[1])))
        return qn_fail(QN_E_UNSUPPORTED,
                       "matmul with a part of a packed weight, or with strided activations");
    if (!transposed) {
        step->weight = slot->buffer;
        qn_cpu_matmul_back_prepare(d, plan, step, scratch_bytes, shared_bytes);
        return QN_OK;
    }
    int64_t n_in = w->shape.dim[0], rows = qn_shape_elements(&x->shape, &plan->max) / n_in;
    step->weight = slot->buffer;
    step->act =
        qn_matmul_act(w->dtype, step->plan.params.matmul.exact ? QN_PRECISION_EXACT : plan->precision);
    step->packs = QN_CPU_PACKS_ROWS;
    size_t row_bytes = qn_act_row_bytes(step->act, n_in);
    grow(scratch_bytes,
         QN_CPU_OWN_ROWS * row_bytes + qn_matmul_scratch_bytes(d->kernels, w->dtype, step->act, n_in, rows));
    if (rows > QN_CPU_OWN_ROWS) grow(shared_bytes, (size_t)rows * row_bytes);
    return QN_OK;
}

const qn_cpu_prim qn_cpu_MATMUL = {packed_matmul, matmul_prepare};

/* Workers take rows of the output, so each sum over the inputs' rows has one owner and one order. */
static void matmul_rows(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_operand *a = &s->plan.in[0], *b = &s->plan.in[1], *o = &s->plan.out;
    int64_t begin, end, width = o->shape.dim[1];
    if (a->dtype != QN_DTYPE_F32) {
        qn_cpu_typed_matmul_rows(run, s);
        return;
    }
    qn_cpu_share(run, o->shape.dim[0], &begin, &end);
    if (begin < end)
        run->kernels->gemm_f32((float *)s->out, width, (const float *)s->in[0], a->stride[1], a->stride[0],
                               (const float *)s->in[1], b->stride[0], b->stride[1], width,
                               qn_cpu_rows(run, a), begin, end, 0);
}

const qn_cpu_prim qn_cpu_MATMUL_ROWS = {matmul_rows, NULL};
