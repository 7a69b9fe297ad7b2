/* Norms and softmax, line by line (lines4.cuh). */
#include "device/cuda/rows/lines4.cuh"

typedef qn_lines work;

/* ---- kernels ------------------------------------------------------------------------------------------- */

/* r h - x r^3 mean(h x) with h = g * factor. */
template <bool WIDE, bool VEC> struct rms_norm_grad {
    typedef qn_lines work;
    enum { OP = 0 };

    static __device__ void run(const qn_body &b, const work &w)
    {
        const int64_t line = qn_own_line<WIDE>(b);
        if (line >= w.total) return;
        const qn_team me = qn_own_team<WIDE>(b);
        const float *x = qn_line_of(w, w.x, w.x_stride, line), *g = qn_line_of(w, w.g, w.g_stride, line);
        float *out = w.out + line * w.width, v[4], h[4], f[4], xx = 0, hx = 0;
        for (int pass = 0; pass < 2; pass++) {
            float root = 0, share = 0;
            if (pass) {
                const float mean = qn_team_sum<WIDE>(b, xx) / (float)w.width + w.eps;
                root = 1.0f / sqrtf(mean);
                share = root * (qn_team_sum<WIDE>(b, hx) / (float)w.width) / mean;
            }
            QN_EACH4(w, me)
            {
                qn_load4<VEC>(x, i, w.width, 0, v);
                qn_load4<VEC>(g, i, w.width, 0, h);
                if (w.w) qn_load4<VEC>(w.w, i, w.width, 0, f);
                for (int e = 0; e < 4; e++) {
                    if (w.w) h[e] *= f[e] + w.offset;
                    xx = fmaf(v[e], v[e], xx);
                    hx = fmaf(h[e], v[e], hx);
                    h[e] = h[e] * root - v[e] * share;
                }
                if (pass) qn_store4<VEC>(out, i, w.width, h);
            }
        }
    }
};

template <bool WIDE, bool VEC> struct layer_norm {
    typedef qn_lines work;
    enum { OP = 0 };

    static __device__ void run(const qn_body &b, const work &w)
    {
        const int64_t line = qn_own_line<WIDE>(b);
        if (line >= w.total) return;
        const qn_team me = qn_own_team<WIDE>(b);
        const float *x = qn_line_of(w, w.x, w.x_stride, line);
        float *out = w.out + line * w.width, v[4], f[4], bias[4], s = 0;
        QN_EACH4(w, me)
        {
            qn_load4<VEC>(x, i, w.width, 0, v);
            for (int e = 0; e < 4; e++) s += v[e];
        }
        const float mean = qn_team_sum<WIDE>(b, s) / (float)w.width;
        s = 0;
        QN_EACH4(w, me)
        {
            qn_load4<VEC>(x, i, w.width, mean, v);
            for (int e = 0; e < 4; e++) s = fmaf(v[e] - mean, v[e] - mean, s);
        }
        const float r = 1.0f / sqrtf(qn_team_sum<WIDE>(b, s) / (float)w.width + w.eps);
        QN_EACH4(w, me)
        {
            qn_load4<VEC>(x, i, w.width, 0, v);
            if (w.w) qn_load4<VEC>(w.w, i, w.width, 0, f);
            if (w.b) qn_load4<VEC>(w.b, i, w.width, 0, bias);
            for (int e = 0; e < 4; e++) {
                const float y = (v[e] - mean) * r, scale = w.w ? f[e] : 1.0f;
                v[e] = w.b ? fmaf(y, scale, bias[e]) : y * scale;
            }
            qn_store4<VEC>(out, i, w.width, v);
        }
    }
};

/* A line of -inf alone gives zeros. */
template <bool WIDE, bool VEC> struct softmax {
    typedef qn_lines work;
    enum { OP = 0 };

    static __device__ void run(const qn_body &b, const work &w)
    {
        const int64_t line = qn_own_line<WIDE>(b);
        if (line >= w.total) return;
        const qn_team me = qn_own_team<WIDE>(b);
        const float *x = qn_line_of(w, w.x, w.x_stride, line);
        float *out = w.out + line * w.width, v[4], most = -INFINITY, s = 0;
        QN_EACH4(w, me)
        {
            qn_load4<VEC>(x, i, w.width, -INFINITY, v);
            for (int e = 0; e < 4; e++) most = qn_larger(most, v[e]);
        }
        most = qn_team_max<WIDE>(b, most);
        if (most == -INFINITY) most = 0;
        QN_EACH4(w, me)
        {
            qn_load4<VEC>(x, i, w.width, -INFINITY, v);
            for (int e = 0; e < 4; e++) {
                v[e] = expf(v[e] - most);
                if (VEC || i + e < w.width) s += v[e];
            }
            qn_store4<VEC>(out, i, w.width, v);
        }
        s = qn_team_sum<WIDE>(b, s);
        const float total = s == 0 ? 1.0f : s;
        QN_EACH4(w, me)
        {
            qn_load4<VEC>(out, i, w.width, 0, v);
            for (int e = 0; e < 4; e++) v[e] /= total;
            qn_store4<VEC>(out, i, w.width, v);
        }
    }
};

/* ---- launching ----------------------------------------------------------------------------------------- */

static work work_of(const qn_cuda_step *s)
{
    const qn_cuda_operand *o = &s->out;
    work w = {};
    w.x = (const float *)s->in[0].data;
    w.out = (float *)o->data;
    w.width = o->dim[o->n - 1];
    w.lines = 1;
    for (int d = 1; d < o->n - 1; d++) w.lines *= o->dim[d];
    w.total = o->n == 1 ? 1 : o->dim[0] * w.lines;
    if (o->n > 1) w.x_stride = s->in[0].stride[0];
    w.eps = s->params->norm.eps;
    w.offset = s->params->norm.offset;
    if (w.width == 0) w.total = 0;
    return w;
}

static int is_aligned(const void *p, int64_t stride)
{
    return (uintptr_t)p % 16 == 0 && stride % 4 == 0;
}

typedef qn_status begin_fn(qn_cuda_context *c, int64_t grid, int block, size_t shared_bytes, const work &w);

/* kernel: [wide][vec] */
static qn_status launch_lines(qn_cuda_context *c, const work &w, begin_fn *const begin[2][2])
{
    const int vec = w.width % 4 == 0 && is_aligned(w.x, w.x_stride) && is_aligned(w.g, w.g_stride) &&
                    is_aligned(w.w, 0) && is_aligned(w.b, 0) && is_aligned(w.out, 0);
    if (w.width <= QN_NARROW) return begin[0][vec](c, qn_blocks(w.total, QN_TEAMS), 32 * QN_TEAMS, 0, w);
    return begin[1][vec](c, w.total, QN_WIDE_TEAM, 0, w);
}

#define KERNELS(name)                                                                    \
    {                                                                                    \
        {qn_cuda_begin_body<name<false, false>>, qn_cuda_begin_body<name<false, true>>}, \
        {                                                                                \
            qn_cuda_begin_body<name<true, false>>, qn_cuda_begin_body<name<true, true>>  \
        }                                                                                \
    }

static qn_status launch_rms_norm(qn_cuda_context *c, const qn_cuda_step *s)
{
    static begin_fn *const kernels[2][2] = KERNELS(qn_rms_norm);
    work w = work_of(s);
    if (s->n_in > 1) w.w = (const float *)s->in[1].data;
    return launch_lines(c, w, kernels);
}

static qn_status launch_rms_norm_grad(qn_cuda_context *c, const qn_cuda_step *s)
{
    static begin_fn *const kernels[2][2] = KERNELS(rms_norm_grad);
    work w = work_of(s);
    w.g = (const float *)s->in[1].data;
    if (s->out.n > 1) w.g_stride = s->in[1].stride[0];
    if (s->n_in > 2) w.w = (const float *)s->in[2].data;
    return launch_lines(c, w, kernels);
}

static qn_status launch_layer_norm(qn_cuda_context *c, const qn_cuda_step *s)
{
    static begin_fn *const kernels[2][2] = KERNELS(layer_norm);
    work w = work_of(s);
    if (s->n_in > 1) w.w = (const float *)s->in[1].data;
    if (s->n_in > 2) w.b = (const float *)s->in[2].data;
    return launch_lines(c, w, kernels);
}

static qn_status launch_softmax(qn_cuda_context *c, const qn_cuda_step *s)
{
    static begin_fn *const kernels[2][2] = KERNELS(softmax);
    return launch_lines(c, work_of(s), kernels);
}

/* ---- SINKHORN: a thread a matrix ------------------------------------------------------------------------- */

typedef struct {
    const float *x;
    float *out;
    int64_t x_stride, total, each; /* matrices in all, and of a row */
    int n, n_turns;
    float eps;
} sinkhorn_work;

static __global__ void sinkhorn(sinkhorn_work w)
{
    const int64_t k = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int n = w.n;
    float m[QN_SINKHORN_MAX * QN_SINKHORN_MAX];
    if (k >= w.total) return;
    const float *x = w.x + k / w.each * w.x_stride + k % w.each * n * n;
    for (int i = 0; i < n; i++) {
        float most = -INFINITY, sum = 0;
        for (int j = 0; j < n; j++) most = qn_larger(most, x[i * n + j]);
        if (most == -INFINITY) most = 0;
        for (int j = 0; j < n; j++) sum += m[i * n + j] = expf(x[i * n + j] - most);
        for (int j = 0; j < n; j++) m[i * n + j] = m[i * n + j] / (sum == 0 ? 1.0f : sum) + w.eps;
    }
    for (int t = 0; t < w.n_turns; t++) {
        for (int i = 0; t > 0 && i < n; i++) {
            float sum = m[i * n];
            for (int j = 1; j < n; j++) sum += m[i * n + j];
            for (int j = 0; j < n; j++) m[i * n + j] /= sum + w.eps;
        }
        for (int j = 0; j < n; j++) {
            float sum = m[j];
            for (int i = 1; i < n; i++) sum += m[i * n + j];
            for (int i = 0; i < n; i++) m[i * n + j] /= sum + w.eps;
        }
    }
    for (int i = 0; i < n * n; i++) w.out[k * n * n + i] = m[i];
}

static qn_status launch_sinkhorn(qn_cuda_context *c, const qn_cuda_step *s)
{
    enum { BLOCK = 64 };
    const qn_cuda_operand *o = &s->out;
    sinkhorn_work w = {};
    w.x = (const float *)s->in[0].data;
    w.out = (float *)o->data;
    w.x_stride = s->in[0].stride[0];
    w.n = (int)o->dim[o->n - 1];
    w.n_turns = s->params->sinkhorn.n_turns;
    w.eps = s->params->sinkhorn.eps;
    w.each = 1;
    for (int d = 1; d < o->n - 2; d++) w.each *= o->dim[d];
    w.total = w.n ? o->dim[0] * w.each : 0;
    return qn_cuda_begin(c, sinkhorn, qn_blocks(w.total, BLOCK), BLOCK, 0, w);
}

extern const qn_cuda_prim qn_cuda_prim_RMS_NORM, qn_cuda_prim_RMS_NORM_GRAD, qn_cuda_prim_LAYER_NORM,
    qn_cuda_prim_SOFTMAX, qn_cuda_prim_SINKHORN;
const qn_cuda_prim qn_cuda_prim_RMS_NORM = {launch_rms_norm, NULL};
const qn_cuda_prim qn_cuda_prim_RMS_NORM_GRAD = {launch_rms_norm_grad, NULL};
const qn_cuda_prim qn_cuda_prim_LAYER_NORM = {launch_layer_norm, NULL};
const qn_cuda_prim qn_cuda_prim_SOFTMAX = {launch_softmax, NULL};
const qn_cuda_prim qn_cuda_prim_SINKHORN = {launch_sinkhorn, NULL};
