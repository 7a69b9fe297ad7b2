/* Norms and softmax, line by line.
 *
 * A team of threads computes a line: a warp where lines are narrow, else a block. Thread t holds elements
 * 4 (t + k n) to 4 (t + k n) + 3 for k = 0, 1, ..., whether they are read 16 bytes at a time or one by one, and
 * sums are joined by one tree, so that a line's bits depend on its numbers alone. */
#include "device/cuda/kernel.cuh"

enum { NARROW = 512, TEAMS = 4 }; /* up to this width a warp; so many warps of a block */

typedef struct {
    const float *x, *g, *w, *b; /* NULL: there is none */
    float *out;
    int64_t width, lines, total, x_stride, g_stride; /* lines of a row, and of all */
    float eps, offset;
} work;

/* A thread's place in its team. */
typedef struct {
    int t, n;
} team;

template <bool WIDE> static __device__ __forceinline__ team own_team(void)
{
    return WIDE ? (team){(int)threadIdx.x, (int)blockDim.x} : (team){(int)threadIdx.x % 32, 32};
}

template <bool WIDE> static __device__ __forceinline__ int64_t own_line(void)
{
    return WIDE ? (int64_t)blockIdx.x : (int64_t)blockIdx.x * TEAMS + threadIdx.x / 32;
}

/* Of all threads of a team, for all of them. */
template <bool WIDE> static __device__ __forceinline__ float team_sum(float x)
{
    x = qn_warp_sum(x);
    if (!WIDE) return x;
    __shared__ float places[32];
    const int warp = threadIdx.x / 32, n = blockDim.x / 32;
    __syncthreads(); /* the one before has been read */
    if (threadIdx.x % 32 == 0) places[warp] = x;
    __syncthreads();
    return qn_warp_sum((int)threadIdx.x % 32 < n ? places[threadIdx.x % 32] : 0.0f);
}

template <bool WIDE> static __device__ __forceinline__ float team_max(float x)
{
    x = qn_warp_max(x);
    if (!WIDE) return x;
    __shared__ float places[32];
    const int warp = threadIdx.x / 32, n = blockDim.x / 32;
    __syncthreads();
    if (threadIdx.x % 32 == 0) places[warp] = x;
    __syncthreads();
    return qn_warp_max((int)threadIdx.x % 32 < n ? places[threadIdx.x % 32] : -INFINITY);
}

/* Four neighbours, those behind the end `other`. VEC: p + i is aligned to 16, and there are four. */
template <bool VEC>
static __device__ __forceinline__ void load4(const float *p, int64_t i, int64_t n, float other, float *v)
{
    if (VEC) {
        const float4 q = *(const float4 *)(p + i);
        v[0] = q.x, v[1] = q.y, v[2] = q.z, v[3] = q.w;
    } else {
        for (int e = 0; e < 4; e++) v[e] = i + e < n ? p[i + e] : other;
    }
}

template <bool VEC>
static __device__ __forceinline__ void store4(float *p, int64_t i, int64_t n, const float *v)
{
    if (VEC) {
        *(float4 *)(p + i) = make_float4(v[0], v[1], v[2], v[3]);
    } else {
        for (int e = 0; e < 4; e++)
            if (i + e < n) p[i + e] = v[e];
    }
}

static __device__ __forceinline__ const float *line_of(const work &w, const float *x, int64_t stride,
                                                       int64_t line)
{
    return x + line / w.lines * stride + line % w.lines * w.width;
}

#define EACH4(w, team) for (int64_t i = 4 * (team).t; i < (w).width; i += 4 * (team).n)

/* ---- kernels ------------------------------------------------------------------------------------------- */

template <bool WIDE, bool VEC> static __global__ void rms_norm(work w)
{
    const int64_t line = own_line<WIDE>();
    if (line >= w.total) return; /* a whole team */
    const team me = own_team<WIDE>();
    const float *x = line_of(w, w.x, w.x_stride, line);
    float *out = w.out + line * w.width, v[4], f[4], s = 0;
    EACH4(w, me)
    {
        load4<VEC>(x, i, w.width, 0, v);
        for (int e = 0; e < 4; e++) s = fmaf(v[e], v[e], s);
    }
    const float r = 1.0f / sqrtf(team_sum<WIDE>(s) / (float)w.width + w.eps);
    EACH4(w, me)
    {
        load4<VEC>(x, i, w.width, 0, v);
        if (w.w) load4<VEC>(w.w, i, w.width, 0, f);
        for (int e = 0; e < 4; e++) {
            v[e] *= r;
            if (w.w) v[e] *= f[e] + w.offset;
        }
        store4<VEC>(out, i, w.width, v);
    }
}

/* r h - x r^3 mean(h x) with h = g * factor. */
template <bool WIDE, bool VEC> static __global__ void rms_norm_grad(work w)
{
    const int64_t line = own_line<WIDE>();
    if (line >= w.total) return;
    const team me = own_team<WIDE>();
    const float *x = line_of(w, w.x, w.x_stride, line), *g = line_of(w, w.g, w.g_stride, line);
    float *out = w.out + line * w.width, v[4], h[4], f[4], xx = 0, hx = 0;
    for (int pass = 0; pass < 2; pass++) {
        float root = 0, share = 0;
        if (pass) {
            const float mean = team_sum<WIDE>(xx) / (float)w.width + w.eps;
            root = 1.0f / sqrtf(mean);
            share = root * (team_sum<WIDE>(hx) / (float)w.width) / mean;
        }
        EACH4(w, me)
        {
            load4<VEC>(x, i, w.width, 0, v);
            load4<VEC>(g, i, w.width, 0, h);
            if (w.w) load4<VEC>(w.w, i, w.width, 0, f);
            for (int e = 0; e < 4; e++) {
                if (w.w) h[e] *= f[e] + w.offset;
                xx = fmaf(v[e], v[e], xx);
                hx = fmaf(h[e], v[e], hx);
                h[e] = h[e] * root - v[e] * share;
            }
            if (pass) store4<VEC>(out, i, w.width, h);
        }
    }
}

template <bool WIDE, bool VEC> static __global__ void layer_norm(work w)
{
    const int64_t line = own_line<WIDE>();
    if (line >= w.total) return;
    const team me = own_team<WIDE>();
    const float *x = line_of(w, w.x, w.x_stride, line);
    float *out = w.out + line * w.width, v[4], f[4], b[4], s = 0;
    EACH4(w, me)
    {
        load4<VEC>(x, i, w.width, 0, v);
        for (int e = 0; e < 4; e++) s += v[e];
    }
    const float mean = team_sum<WIDE>(s) / (float)w.width;
    s = 0;
    EACH4(w, me)
    {
        load4<VEC>(x, i, w.width, mean, v);
        for (int e = 0; e < 4; e++) s = fmaf(v[e] - mean, v[e] - mean, s);
    }
    const float r = 1.0f / sqrtf(team_sum<WIDE>(s) / (float)w.width + w.eps);
    EACH4(w, me)
    {
        load4<VEC>(x, i, w.width, 0, v);
        if (w.w) load4<VEC>(w.w, i, w.width, 0, f);
        if (w.b) load4<VEC>(w.b, i, w.width, 0, b);
        for (int e = 0; e < 4; e++) {
            const float y = (v[e] - mean) * r, scale = w.w ? f[e] : 1.0f;
            v[e] = w.b ? fmaf(y, scale, b[e]) : y * scale;
        }
        store4<VEC>(out, i, w.width, v);
    }
}

/* A line of -inf alone gives zeros. */
template <bool WIDE, bool VEC> static __global__ void softmax(work w)
{
    const int64_t line = own_line<WIDE>();
    if (line >= w.total) return;
    const team me = own_team<WIDE>();
    const float *x = line_of(w, w.x, w.x_stride, line);
    float *out = w.out + line * w.width, v[4], most = -INFINITY, s = 0;
    EACH4(w, me)
    {
        load4<VEC>(x, i, w.width, -INFINITY, v);
        for (int e = 0; e < 4; e++) most = qn_larger(most, v[e]);
    }
    most = team_max<WIDE>(most);
    if (most == -INFINITY) most = 0;
    EACH4(w, me)
    {
        load4<VEC>(x, i, w.width, -INFINITY, v);
        for (int e = 0; e < 4; e++) {
            v[e] = expf(v[e] - most);
            if (VEC || i + e < w.width) s += v[e];
        }
        store4<VEC>(out, i, w.width, v);
    }
    s = team_sum<WIDE>(s);
    const float total = s == 0 ? 1.0f : s;
    EACH4(w, me)
    {
        load4<VEC>(out, i, w.width, 0, v);
        for (int e = 0; e < 4; e++) v[e] /= total;
        store4<VEC>(out, i, w.width, v);
    }
}

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

typedef void kernel_fn(work);

/* kernel: [wide][vec] */
static qn_status launch_lines(qn_cuda_context *c, const work &w, kernel_fn *const kernel[2][2])
{
    const int vec = w.width % 4 == 0 && is_aligned(w.x, w.x_stride) && is_aligned(w.g, w.g_stride) &&
                    is_aligned(w.w, 0) && is_aligned(w.b, 0) && is_aligned(w.out, 0);
    if (w.width <= NARROW)
        return qn_cuda_begin(c, kernel[0][vec], qn_blocks(w.total, TEAMS), 32 * TEAMS, 0, w);
    int threads = 128;
    while (threads < 1024 && threads * 8 < w.width) threads *= 2;
    return qn_cuda_begin(c, kernel[1][vec], w.total, threads, 0, w);
}

#define KERNELS(name)                            \
    {                                            \
        {name<false, false>, name<false, true>}, \
        {                                        \
            name<true, false>, name<true, true>  \
        }                                        \
    }

static qn_status launch_rms_norm(qn_cuda_context *c, const qn_cuda_step *s)
{
    static kernel_fn *const kernels[2][2] = KERNELS(rms_norm);
    work w = work_of(s);
    if (s->n_in > 1) w.w = (const float *)s->in[1].data;
    return launch_lines(c, w, kernels);
}

static qn_status launch_rms_norm_grad(qn_cuda_context *c, const qn_cuda_step *s)
{
    static kernel_fn *const kernels[2][2] = KERNELS(rms_norm_grad);
    work w = work_of(s);
    w.g = (const float *)s->in[1].data;
    if (s->out.n > 1) w.g_stride = s->in[1].stride[0];
    if (s->n_in > 2) w.w = (const float *)s->in[2].data;
    return launch_lines(c, w, kernels);
}

static qn_status launch_layer_norm(qn_cuda_context *c, const qn_cuda_step *s)
{
    static kernel_fn *const kernels[2][2] = KERNELS(layer_norm);
    work w = work_of(s);
    if (s->n_in > 1) w.w = (const float *)s->in[1].data;
    if (s->n_in > 2) w.b = (const float *)s->in[2].data;
    return launch_lines(c, w, kernels);
}

static qn_status launch_softmax(qn_cuda_context *c, const qn_cuda_step *s)
{
    static kernel_fn *const kernels[2][2] = KERNELS(softmax);
    return launch_lines(c, work_of(s), kernels);
}

extern const qn_cuda_prim qn_cuda_prim_RMS_NORM, qn_cuda_prim_RMS_NORM_GRAD, qn_cuda_prim_LAYER_NORM,
    qn_cuda_prim_SOFTMAX;
const qn_cuda_prim qn_cuda_prim_RMS_NORM = {launch_rms_norm, NULL};
const qn_cuda_prim qn_cuda_prim_RMS_NORM_GRAD = {launch_rms_norm_grad, NULL};
const qn_cuda_prim qn_cuda_prim_LAYER_NORM = {launch_layer_norm, NULL};
const qn_cuda_prim qn_cuda_prim_SOFTMAX = {launch_softmax, NULL};
