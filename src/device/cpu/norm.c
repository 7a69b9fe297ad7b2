/* Norms, softmax and rotary position embedding: row by row. */
#include <string.h>

#include "device/cpu/cpu.h"
#include "device/cpu/kernels/attention/angles.h"

/* A row is one index of dimension 0; it holds `lines` vectors of `width`. */
typedef struct {
    int64_t begin, end, lines, width, x_stride, out_stride;
} rows;

static rows rows_of(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_operand *o = &s->plan.out;
    rows r = {.width = o->shape.dim[o->shape.n - 1]};
    if (o->shape.n == 1) { /* one vector */
        r.lines = 1;
        r.end = run->thread == 0;
        return r;
    }
    qn_cpu_share(run, qn_cpu_rows(run, o), &r.begin, &r.end);
    r.out_stride = qn_shape_row(&o->shape);
    r.lines = r.width ? r.out_stride / r.width : 0;
    r.x_stride = s->plan.in[0].stride[0];
    return r;
}

static void rms_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    rows r = rows_of(run, s);
    const float *w = s->plan.n_in > 1 ? (const float *)s->in[1] : NULL;
    int64_t from, to;
    qn_cpu_heads(run, r.lines, &from, &to);
    for (int64_t i = r.begin; i < r.end; i++)
        for (int64_t l = from; l < to; l++)
            run->kernels->rms_norm((float *)s->out + i * r.out_stride + l * r.width,
                                   (const float *)s->in[0] + i * r.x_stride + l * r.width, w,
                                   s->plan.params.norm.offset, s->plan.params.norm.eps, r.width);
}

const qn_cpu_prim qn_cpu_RMS_NORM = {rms_run, NULL};

/* As the fallback has it: r h - x r^3 mean(h x). */
static void rms_grad_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_kernels *k = run->kernels;
    const rows r = rows_of(run, s);
    const int64_t n = r.width, g_stride = s->plan.in[1].stride[0];
    const float offset = s->plan.params.norm.offset, *w = s->plan.n_in > 2 ? (const float *)s->in[2] : NULL;
    float *h = (float *)(void *)run->scratch, *factors = h + n;
    if (w && offset != 0) {
        k->ew[QN_EW_ADD](factors, w, 1, &offset, 0, n);
        w = factors;
    }
    for (int64_t i = r.begin; i < r.end; i++)
        for (int64_t l = 0; l < r.lines; l++) {
            const float *x = (const float *)s->in[0] + i * r.x_stride + l * n,
                        *g = (const float *)s->in[1] + i * g_stride + l * n;
            float *out = (float *)s->out + i * r.out_stride + l * n;
            const float one = 1, mean = k->dot(x, x, n) / (float)n + s->plan.params.norm.eps;
            float root;
            k->ew[QN_EW_MUL](h, g, 1, w ? w : &one, w != NULL, n);
            k->ew[QN_EW_RSQRT](&root, &mean, 1, &mean, 1, 1);
            const float share = root * (k->dot(h, x, n) / (float)n) / mean;
            k->ew[QN_EW_MUL](out, h, 1, &root, 0, n);
            k->ew[QN_EW_MUL](h, x, 1, &share, 0, n);
            k->ew[QN_EW_SUB](out, out, 1, h, 1, n);
        }
}

static qn_status rms_grad_prepare(qn_cpu *d, const qn_plan *plan, qn_cpu_step *step, size_t *scratch_bytes,
                                  size_t *shared_bytes)
{
    const size_t need = 2 * (size_t)step->plan.out.shape.dim[step->plan.out.shape.n - 1] * sizeof(float);
    if (*scratch_bytes < need) *scratch_bytes = need;
    return QN_OK;
}

const qn_cpu_prim qn_cpu_RMS_NORM_GRAD = {rms_grad_run, rms_grad_prepare};

static void layer_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    rows r = rows_of(run, s);
    const float *w = s->plan.n_in > 1 ? (const float *)s->in[1] : NULL,
                *b = s->plan.n_in > 2 ? (const float *)s->in[2] : NULL;
    for (int64_t i = r.begin; i < r.end; i++)
        for (int64_t l = 0; l < r.lines; l++)
            run->kernels->layer_norm((float *)s->out + i * r.out_stride + l * r.width,
                                     (const float *)s->in[0] + i * r.x_stride + l * r.width, w, b,
                                     s->plan.params.norm.eps, r.width);
}

const qn_cpu_prim qn_cpu_LAYER_NORM = {layer_run, NULL};

static void softmax_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    rows r = rows_of(run, s);
    for (int64_t i = r.begin; i < r.end; i++)
        for (int64_t l = 0; l < r.lines; l++)
            run->kernels->softmax((float *)s->out + i * r.out_stride + l * r.width,
                                  (const float *)s->in[0] + i * r.x_stride + l * r.width, r.width);
}

const qn_cpu_prim qn_cpu_SOFTMAX = {softmax_run, NULL};

/* Sums run in the order of rows and columns: the same on all sets. */
static void scale_rows(float *m, int64_t n, float eps)
{
    for (int64_t i = 0; i < n; i++) {
        float sum = m[i * n];
        for (int64_t j = 1; j < n; j++) sum += m[i * n + j];
        for (int64_t j = 0; j < n; j++) m[i * n + j] /= sum + eps;
    }
}

static void scale_columns(float *m, int64_t n, float eps)
{
    float sum[QN_SINKHORN_MAX];
    for (int64_t j = 0; j < n; j++) sum[j] = m[j];
    for (int64_t i = 1; i < n; i++)
        for (int64_t j = 0; j < n; j++) sum[j] += m[i * n + j];
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) m[i * n + j] /= sum[j] + eps;
}

static void sinkhorn_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const rows r = rows_of(run, s);
    const int64_t n = r.width;
    const float eps = s->plan.params.sinkhorn.eps;
    for (int64_t i = r.begin; i < r.end; i++)
        for (int64_t l = 0; l < r.lines; l += n) {
            float *m = (float *)s->out + i * r.out_stride + l * n;
            const float *x = (const float *)s->in[0] + i * r.x_stride + l * n;
            for (int64_t k = 0; k < n; k++) run->kernels->softmax(m + k * n, x + k * n, n);
            for (int64_t k = 0; k < n * n; k++) m[k] += eps;
            scale_columns(m, n, eps);
            for (int32_t t = 1; t < s->plan.params.sinkhorn.n_turns; t++) {
                scale_rows(m, n, eps);
                scale_columns(m, n, eps);
            }
        }
}

const qn_cpu_prim qn_cpu_SINKHORN = {sinkhorn_run, NULL};

static void table_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    int64_t begin, end, half = s->plan.in[1].shape.dim[0];
    qn_cpu_share(run, qn_cpu_rows(run, &s->plan.out), &begin, &end);
    for (int64_t i = begin; i < end; i++)
        qn_rope_angles(((const int32_t *)s->in[0])[i], (const float *)s->in[1], half,
                       s->plan.params.rope.factor, (float *)s->out + i * 2 * half);
}

const qn_cpu_prim qn_cpu_ROPE_TABLE = {table_run, NULL};

static void rope_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_operand *x = &s->plan.in[0], *table = &s->plan.in[1];
    int64_t begin, end, from, to, heads = x->shape.dim[1], head_dim = x->shape.dim[2],
                                  rotary = table->shape.dim[1];
    qn_cpu_heads(run, heads, &from, &to);
    qn_cpu_share(run, qn_cpu_rows(run, &s->plan.out), &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        float *out = (float *)s->out + (i * heads + from) * head_dim;
        const float *angles = (const float *)s->in[1] + i * table->stride[0];
        memcpy(out, (const float *)s->in[0] + i * x->stride[0] + from * head_dim,
               (size_t)((to - from) * head_dim) * sizeof(float));
        run->kernels->rope(out, to - from, head_dim, rotary, angles, angles + rotary / 2,
                           s->plan.params.rope.interleaved);
    }
}

const qn_cpu_prim qn_cpu_ROPE = {rope_run, NULL};
