/* Sums, products and extremes up to each element of one axis, of any type and strides.
 *
 * A thread walks a short line in order, f32 in double as the CPU does. Of a long line each thread of a block has
 * a run of neighbours: it joins them, the runs before are joined in order, and then it goes through its own. */
#include "device/cuda/elements/lines.cuh"

enum { LONG = 512, RUNS = 256 };

typedef struct {
    qn_cuda_view x, out;
    int64_t length, n_lines;
    int axis, exclusive, reverse;
    qn_way how;
} work;

/* Elements [begin, end) of a line, in the order of the scan, behind those that r joins. */
static __device__ __forceinline__ qn_wide walk(const work &w, int64_t in_at, int64_t out_at, int64_t begin,
                                               int64_t end, qn_wide r, bool stores)
{
    const int kind = qn_wide_kind_of(w.x.dtype);
    for (int64_t p = begin; p < end; p++) {
        const int64_t j = w.reverse ? w.length - 1 - p : p;
        const qn_wide before = r;
        r = qn_wide_join(w.how, kind, r, qn_wide_get(w.x.dtype, w.x.data, in_at + j * w.x.stride[w.axis]));
        if (stores)
            qn_wide_put(w.x.dtype, w.exclusive ? before : r, w.out.data, out_at + j * w.out.stride[w.axis]);
    }
    return r;
}

static __global__ void scan_short(work w)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= w.n_lines) return;
    walk(w, qn_line_place(w.x, w.axis, i), qn_line_place(w.out, w.axis, i), 0, w.length,
         qn_wide_start(w.how, w.x.dtype), true);
}

static __global__ void scan_long(work w)
{
    __shared__ qn_wide runs[2][RUNS];
    const int t = threadIdx.x, kind = qn_wide_kind_of(w.x.dtype);
    const int64_t in_at = qn_line_place(w.x, w.axis, blockIdx.x),
                  out_at = qn_line_place(w.out, w.axis, blockIdx.x);
    const int64_t each = (w.length + RUNS - 1) / RUNS, begin = t * each < w.length ? t * each : w.length,
                  end = begin + each < w.length ? begin + each : w.length;
    const qn_wide start = qn_wide_start(w.how, w.x.dtype);
    int now = 0;
    runs[0][t] = walk(w, in_at, out_at, begin, end, start, false);
    __syncthreads();
    for (int d = 1; d < RUNS; d *= 2, now ^= 1) { /* runs[now][t]: the 2 d runs up to t */
        runs[now ^ 1][t] = t < d ? runs[now][t] : qn_wide_join(w.how, kind, runs[now][t - d], runs[now][t]);
        __syncthreads();
    }
    walk(w, in_at, out_at, begin, end, t ? runs[now][t - 1] : start, true);
}

static qn_status launch_scan(qn_cuda_context *c, const qn_cuda_step *s)
{
    const qn_cuda_operand *x = &s->in[0];
    const int axis = s->params->scan.axis, how = s->params->scan.how;
    const work w = {qn_cuda_view_of(x),
                    qn_cuda_view_of(&s->out),
                    x->dim[axis],
                    qn_lines(x, axis),
                    axis,
                    s->params->scan.exclusive,
                    s->params->scan.reverse,
                    how == QN_SCAN_SUM    ? QN_WAY_SUM
                    : how == QN_SCAN_PROD ? QN_WAY_PROD
                    : how == QN_SCAN_MAX  ? QN_WAY_MAX
                                          : QN_WAY_MIN};
    if (w.length > LONG) return qn_cuda_begin(c, scan_long, w.n_lines, RUNS, 0, w);
    return qn_cuda_begin(c, scan_short, qn_blocks(w.n_lines, 128), 128, 0, w);
}

extern const qn_cuda_prim qn_cuda_prim_SCAN;
const qn_cuda_prim qn_cuda_prim_SCAN = {launch_scan, NULL};
