/* Rotary position embedding: angles of positions, and the rotation of heads by them. */
#include "device/cuda/kernel.cuh"

/* sin and cos on [-pi/4, pi/4]: Taylor series to x^15 and x^16, as the CPU's angles.c has them. */
static __device__ double sin_small(double x)
{
    const double z = x * x;
    double p = -1.0 / 1307674368000.0;
    p = p * z + 1.0 / 6227020800.0;
    p = p * z - 1.0 / 39916800.0;
    p = p * z + 1.0 / 362880.0;
    p = p * z - 1.0 / 5040.0;
    p = p * z + 1.0 / 120.0;
    p = p * z - 1.0 / 6.0;
    return x + x * z * p;
}

static __device__ double cos_small(double x)
{
    const double z = x * x;
    double p = 1.0 / 20922789888000.0;
    p = p * z - 1.0 / 87178291200.0;
    p = p * z + 1.0 / 479001600.0;
    p = p * z - 1.0 / 3628800.0;
    p = p * z + 1.0 / 40320.0;
    p = p * z - 1.0 / 720.0;
    p = p * z + 1.0 / 24.0;
    p = p * z - 0.5;
    return 1.0 + z * p;
}

/* A thread an angle. Bits are the CPU's: the same steps in the same order, none of them fused. */
static __global__ void find_angles(const int32_t *positions, const float *frequencies, int64_t n_rows,
                                   int64_t half, float factor, float *out)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n_rows * half) return;
    const int64_t row = i / half, k = i % half;
    const double high = 1.57079632673412561417e+00, low = 6.07710050650619224932e-11; /* pi/2 in two parts */
    const float angle = (float)positions[row] * frequencies[k];
    const double x = angle, n = floor(x * 0.63661977236758134308 + 0.5), r = (x - n * high) - n * low;
    const double s = sin_small(r), c = cos_small(r);
    const int quadrant = (int)((int64_t)n & 3);
    const double cosine = quadrant == 0 ? c : quadrant == 1 ? -s : quadrant == 2 ? -c : s;
    const double sine = quadrant == 0 ? s : quadrant == 1 ? c : quadrant == 2 ? -s : -c;
    out[row * 2 * half + k] = factor * (float)cosine;
    out[row * 2 * half + half + k] = factor * (float)sine;
}

static qn_status launch_table(qn_cuda_context *c, const qn_cuda_step *s)
{
    const int64_t n_rows = s->out.dim[0], half = s->in[1].dim[0];
    return qn_cuda_begin(c, find_angles, qn_blocks(n_rows * half, 128), 128, 0,
                         (const int32_t *)s->in[0].data, (const float *)s->in[1].data, n_rows, half,
                         s->params->rope.factor, (float *)s->out.data);
}

typedef struct {
    const float *x, *table;
    float *out;
    int64_t n_rows, heads, head_dim, half, x_stride, table_stride;
    int interleaved;
} work;

/* A thread a pair, or two elements that stay as they are: head_dim - rotary_dim may be odd. The product with the
 * sine is rounded first, then one multiply-add with the cosine, as the CPU's vector sets do it. */
static __global__ void rotate(work w)
{
    const int64_t pairs = (w.head_dim + 1) / 2, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= w.n_rows * w.heads * pairs) return;
    const int64_t p = i % pairs, head = i / pairs % w.heads, row = i / pairs / w.heads;
    const float *x = w.x + row * w.x_stride + head * w.head_dim;
    float *out = w.out + (row * w.heads + head) * w.head_dim;
    if (p >= w.half) {
        out[2 * p] = x[2 * p];
        if (2 * p + 1 < w.head_dim) out[2 * p + 1] = x[2 * p + 1];
        return;
    }
    const float cosine = w.table[row * w.table_stride + p], sine = w.table[row * w.table_stride + w.half + p];
    const int64_t a = w.interleaved ? 2 * p : p, b = w.interleaved ? a + 1 : p + w.half;
    const float u = x[a], v = x[b];
    out[a] = fmaf(u, cosine, -(v * sine));
    out[b] = fmaf(v, cosine, u * sine);
}

static qn_status launch_rope(qn_cuda_context *c, const qn_cuda_step *s)
{
    const qn_cuda_operand *x = &s->in[0], *table = &s->in[1];
    const work w = {(const float *)x->data,
                    (const float *)table->data,
                    (float *)s->out.data,
                    x->dim[0],
                    x->dim[1],
                    x->dim[2],
                    table->dim[1] / 2,
                    x->stride[0],
                    table->stride[0],
                    s->params->rope.interleaved};
    return qn_cuda_begin(c, rotate, qn_blocks(w.n_rows * w.heads * ((w.head_dim + 1) / 2), 256), 256, 0, w);
}

extern const qn_cuda_prim qn_cuda_prim_ROPE_TABLE, qn_cuda_prim_ROPE;
const qn_cuda_prim qn_cuda_prim_ROPE_TABLE = {launch_table, NULL};
const qn_cuda_prim qn_cuda_prim_ROPE = {launch_rope, NULL};
