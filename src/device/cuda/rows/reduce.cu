/* Sums, products, extremes and their places over one axis, of any type and strides.
 *
 * A line of the axis is short or long by its length alone. Short ones: a thread walks it in rising order, or, of
 * f32 side by side, 16 threads hold element i in lane i % 16, so that both give the bits of the CPU's. Long ones:
 * a block's threads hold element i in place i % n, and the places are joined by a tree. */
#include "device/cuda/elements/lines.cuh"

enum { LONG = 1024, LONG_F32 = 4096, PLACES = 256, LANES = 16, WARPS = 16 };

/* ---- arithmetic: of f32 sums and maxima in f32, of all else in 8 bytes --------------------------------- */

typedef struct {
    qn_cuda_view x;
    char *out;
    int64_t length, stride, n_lines;
    int axis;
    qn_way how;
} work;

template <bool MAXIMUM> struct single {
    typedef float number;
    static __device__ float start(const work &w)
    {
        return MAXIMUM ? -INFINITY : 0.0f;
    }
    static __device__ float get(const work &w, int64_t at)
    {
        return ((const float *)w.x.data)[at];
    }
    static __device__ float join(const work &w, float a, float b)
    {
        return MAXIMUM ? qn_larger(a, b) : a + b;
    }
    static __device__ void put(const work &w, int64_t i, float x)
    {
        ((float *)w.out)[i] = x;
    }
};

struct wide {
    typedef qn_wide number;
    static __device__ qn_wide start(const work &w)
    {
        return qn_wide_start(w.how, w.x.dtype);
    }
    static __device__ qn_wide get(const work &w, int64_t at)
    {
        return qn_wide_get(w.x.dtype, w.x.data, at);
    }
    static __device__ qn_wide join(const work &w, qn_wide a, qn_wide b)
    {
        return qn_wide_join(w.how, qn_wide_kind_of(w.x.dtype), a, b);
    }
    static __device__ void put(const work &w, int64_t i, qn_wide x)
    {
        qn_wide_put(w.x.dtype, x, w.out, i);
    }
};

/* ---- kernels ------------------------------------------------------------------------------------------- */

/* A thread a line. */
template <class A> static __global__ void reduce_short(work w)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= w.n_lines) return;
    int64_t at = qn_line_place(w.x, w.axis, i);
    typename A::number r = A::start(w);
    for (int64_t j = 0; j < w.length; j++, at += w.stride) r = A::join(w, r, A::get(w, at));
    A::put(w, i, r);
}

/* 16 threads a line of elements side by side. */
template <class A> static __global__ void reduce_lanes(work w)
{
    const int64_t i = (int64_t)blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
    const int lane = threadIdx.x % LANES;
    typename A::number r = A::start(w);
    if (i < w.n_lines) {
        const int64_t at = qn_line_place(w.x, w.axis, i);
        for (int64_t j = lane; j < w.length; j += LANES) r = A::join(w, r, A::get(w, at + j));
    }
    for (int d = LANES / 2; d; d >>= 1) r = A::join(w, r, __shfl_xor_sync(0xffffffffu, r, d));
    if (lane == 0 && i < w.n_lines) A::put(w, i, r);
}

/* A block a line. */
template <class A> static __global__ void reduce_long(work w)
{
    __shared__ typename A::number places[PLACES];
    const int64_t i = blockIdx.x, at = qn_line_place(w.x, w.axis, i);
    typename A::number r = A::start(w);
    for (int64_t j = threadIdx.x; j < w.length; j += PLACES) r = A::join(w, r, A::get(w, at + j * w.stride));
    places[threadIdx.x] = r;
    __syncthreads();
    for (int d = PLACES / 2; d; d >>= 1) {
        if ((int)threadIdx.x < d)
            places[threadIdx.x] = A::join(w, places[threadIdx.x], places[threadIdx.x + d]);
        __syncthreads();
    }
    if (threadIdx.x == 0) A::put(w, i, places[0]);
}

/* A block 32 neighbouring lines, a warp every 16th of their elements: for lines that lie beside each other. */
template <class A> static __global__ void reduce_columns(work w)
{
    __shared__ typename A::number places[WARPS][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t i = (int64_t)blockIdx.x * 32 + lane;
    typename A::number r = A::start(w);
    if (i < w.n_lines) {
        const int64_t at = qn_line_place(w.x, w.axis, i);
        for (int64_t j = warp; j < w.length; j += WARPS) r = A::join(w, r, A::get(w, at + j * w.stride));
    }
    places[warp][lane] = r;
    __syncthreads();
    if (warp) return;
    for (int k = 1; k < WARPS; k++) r = A::join(w, r, places[k][lane]);
    if (i < w.n_lines) A::put(w, i, r);
}

/* ---- where the largest is ------------------------------------------------------------------------------ */

typedef struct {
    qn_wide x;
    int64_t at; /* -1: none */
} place;

/* The first of the largest, or smallest; the first NaN where there is one. */
static __device__ place better(const work &w, place a, place b)
{
    if (a.at < 0 || b.at < 0) return a.at < 0 ? b : a;
    const place first = a.at < b.at ? a : b, second = a.at < b.at ? b : a;
    const qn_wide r = qn_wide_join(w.how, qn_wide_kind_of(w.x.dtype), first.x, second.x);
    return r.u == first.x.u ? first : second;
}

/* A warp (TEAM 32) or a block a line. */
template <int TEAM> static __global__ void find_extreme(work w)
{
    __shared__ place places[PLACES];
    const int t = threadIdx.x % TEAM;
    const int64_t i = ((int64_t)blockIdx.x * PLACES + threadIdx.x) / TEAM;
    place r = {{0}, -1};
    if (i < w.n_lines) {
        const int64_t at = qn_line_place(w.x, w.axis, i);
        for (int64_t j = t; j < w.length; j += TEAM)
            r = better(w, r, (place){wide::get(w, at + j * w.stride), j});
    }
    places[threadIdx.x] = r;
    __syncthreads();
    for (int d = TEAM / 2; d; d >>= 1) {
        if (t < d) places[threadIdx.x] = better(w, places[threadIdx.x], places[threadIdx.x + d]);
        __syncthreads();
    }
    if (t == 0 && i < w.n_lines) ((int32_t *)w.out)[i] = (int32_t)places[threadIdx.x].at;
}

/* Few long lines of f32 side by side, such as logits: a block a part of a line, then a block a line joins the parts.
 * The order of joining is free. */

enum { PART = 1024, PARTS = 128, LINES_IN_PARTS = 64 };

typedef struct {
    float x; /* negated where the smallest is looked for */
    int32_t at;
} part_best;

static __device__ __forceinline__ part_best better_part(part_best a, part_best b)
{
    const part_best first = a.at < b.at ? a : b, second = a.at < b.at ? b : a;
    return first.x == first.x && (second.x != second.x || second.x > first.x) ? second : first;
}

/* Of PARTS threads; thread 0 gets it. An empty part is {-INFINITY, INT32_MAX}. */
static __device__ __forceinline__ part_best join_parts(part_best *places, part_best mine)
{
    places[threadIdx.x] = mine;
    __syncthreads();
    for (int d = PARTS / 2; d; d >>= 1) {
        if ((int)threadIdx.x < d)
            places[threadIdx.x] = better_part(places[threadIdx.x], places[threadIdx.x + d]);
        __syncthreads();
    }
    return places[0];
}

static __global__ void find_in_parts(work w, int n_parts, part_best *out)
{
    __shared__ part_best places[PARTS];
    const int64_t line = blockIdx.x / n_parts, part = blockIdx.x % n_parts;
    const int64_t begin = part * w.length / n_parts, end = (part + 1) * w.length / n_parts;
    const float *x = (const float *)w.x.data + qn_line_place(w.x, w.axis, line);
    part_best r = {-INFINITY, INT32_MAX};
    for (int64_t j = begin + threadIdx.x; j < end; j += PARTS)
        r = better_part(r, (part_best){w.how == QN_WAY_MIN ? -x[j] : x[j], (int32_t)j});
    r = join_parts(places, r);
    if (threadIdx.x == 0) out[blockIdx.x] = r;
}

static __global__ void find_of_parts(const part_best *parts, int n_parts, int32_t *out)
{
    __shared__ part_best places[PARTS];
    part_best r = {-INFINITY, INT32_MAX};
    if ((int)threadIdx.x < n_parts) r = parts[(int64_t)blockIdx.x * n_parts + threadIdx.x];
    r = join_parts(places, r);
    if (threadIdx.x == 0) out[blockIdx.x] = r.at;
}

/* 0: the line stays whole. */
static int parts_of(const qn_cuda_step *s)
{
    const qn_cuda_operand *x = &s->in[0];
    const int64_t length = x->dim[s->params->reduce.axis];
    if (x->dtype != QN_DTYPE_F32 || x->stride[s->params->reduce.axis] != 1 || length <= LONG_F32) return 0;
    return (int)(length < (int64_t)PART * PARTS ? qn_blocks(length, PART) : PARTS);
}

static size_t arg_max_bytes(const qn_cuda_step *s)
{
    const int64_t lines = qn_lines(&s->in[0], s->params->reduce.axis);
    return (size_t)(lines < LINES_IN_PARTS ? lines : LINES_IN_PARTS) * (size_t)parts_of(s) *
           sizeof(part_best);
}

/* ---- launching ----------------------------------------------------------------------------------------- */

static work work_of(const qn_cuda_step *s, qn_way how)
{
    const qn_cuda_operand *x = &s->in[0];
    const int axis = s->params->reduce.axis;
    return (work){
        qn_cuda_view_of(x), (char *)s->out.data, x->dim[axis], x->stride[axis], qn_lines(x, axis), axis, how};
}

/* Long lines of one stride whose neighbours lie closer than their elements do. */
template <class A> static qn_status launch_long(qn_cuda_context *c, const work &w)
{
    if (w.stride == 1 || w.axis == w.x.n - 1)
        return qn_cuda_begin(c, reduce_long<A>, w.n_lines, PLACES, 0, w);
    return qn_cuda_begin(c, reduce_columns<A>, qn_blocks(w.n_lines, 32), 32 * WARPS, 0, w);
}

template <bool MAXIMUM> static qn_status launch_single(qn_cuda_context *c, const work &w)
{
    typedef single<MAXIMUM> A;
    if (w.length > (w.stride == 1 ? LONG_F32 : LONG)) return launch_long<A>(c, w);
    if (w.stride == 1) return qn_cuda_begin(c, reduce_lanes<A>, qn_blocks(w.n_lines, 128 / LANES), 128, 0, w);
    return qn_cuda_begin(c, reduce_short<A>, qn_blocks(w.n_lines, 128), 128, 0, w);
}

static qn_status launch_wide(qn_cuda_context *c, const work &w)
{
    if (w.length > LONG) return launch_long<wide>(c, w);
    return qn_cuda_begin(c, reduce_short<wide>, qn_blocks(w.n_lines, 128), 128, 0, w);
}

static qn_status launch_sum(qn_cuda_context *c, const qn_cuda_step *s)
{
    const work w = work_of(s, QN_WAY_SUM);
    return w.x.dtype == QN_DTYPE_F32 ? launch_single<false>(c, w) : launch_wide(c, w);
}

static qn_status launch_max(qn_cuda_context *c, const qn_cuda_step *s)
{
    const work w = work_of(s, QN_WAY_MAX);
    return w.x.dtype == QN_DTYPE_F32 ? launch_single<true>(c, w) : launch_wide(c, w);
}

static qn_status launch_min(qn_cuda_context *c, const qn_cuda_step *s)
{
    return launch_wide(c, work_of(s, QN_WAY_MIN));
}

static qn_status launch_prod(qn_cuda_context *c, const qn_cuda_step *s)
{
    return launch_wide(c, work_of(s, QN_WAY_PROD));
}

static qn_status launch_arg_max(qn_cuda_context *c, const qn_cuda_step *s)
{
    const work w = work_of(s, s->params->reduce.least ? QN_WAY_MIN : QN_WAY_MAX);
    const int n_parts = parts_of(s);
    if (n_parts && w.n_lines <= LINES_IN_PARTS) {
        part_best *parts = (part_best *)s->scratch;
        const qn_status status =
            qn_cuda_begin(c, find_in_parts, w.n_lines * n_parts, PARTS, 0, w, n_parts, parts);
        if (status != QN_OK) return status;
        return qn_cuda_begin(c, find_of_parts, w.n_lines, PARTS, 0, parts, n_parts, (int32_t *)w.out);
    }
    if (w.length > LONG) return qn_cuda_begin(c, find_extreme<PLACES>, w.n_lines, PLACES, 0, w);
    return qn_cuda_begin(c, find_extreme<32>, qn_blocks(w.n_lines, PLACES / 32), PLACES, 0, w);
}

extern const qn_cuda_prim qn_cuda_prim_SUM, qn_cuda_prim_MAX, qn_cuda_prim_MIN, qn_cuda_prim_PROD,
    qn_cuda_prim_ARG_MAX;
const qn_cuda_prim qn_cuda_prim_SUM = {launch_sum, NULL};
const qn_cuda_prim qn_cuda_prim_MAX = {launch_max, NULL};
const qn_cuda_prim qn_cuda_prim_MIN = {launch_min, NULL};
const qn_cuda_prim qn_cuda_prim_PROD = {launch_prod, NULL};
const qn_cuda_prim qn_cuda_prim_ARG_MAX = {launch_arg_max, arg_max_bytes};
