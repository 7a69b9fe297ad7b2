/* Bodies of rotary position embedding: angles of positions, and the rotation of heads by them. */
#ifndef QN_DEVICE_CUDA_ATTENTION_ROPE_CUH
#define QN_DEVICE_CUDA_ATTENTION_ROPE_CUH

#include "device/cuda/kernel.cuh"
#include "device/cuda/step/step.h"

/* sin and cos on [-pi/4, pi/4]: Taylor series to x^15 and x^16, as the CPU's angles.c has them. */
static __device__ inline double qn_sin_small(double x)
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

static __device__ inline double qn_cos_small(double x)
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
struct qn_find_angles {
    typedef struct {
        const int32_t *positions;
        const float *frequencies;
        int64_t n_rows, half;
        float factor;
        float *out;
    } work;
    enum { OP = QN_OP_ANGLES, BLOCK = 128 };

    static __device__ void run(const qn_body &b, const work &w)
    {
        const int64_t i = b.block * BLOCK + threadIdx.x;
        if (i >= w.n_rows * w.half) return;
        const int64_t row = i / w.half, k = i % w.half;
        const double high = 1.57079632673412561417e+00,
                     low = 6.07710050650619224932e-11; /* pi/2 in two parts */
        const float angle = (float)w.positions[row] * w.frequencies[k];
        const double x = angle, n = floor(x * 0.63661977236758134308 + 0.5), r = (x - n * high) - n * low;
        const double s = qn_sin_small(r), c = qn_cos_small(r);
        const int quadrant = (int)((int64_t)n & 3);
        const double cosine = quadrant == 0 ? c : quadrant == 1 ? -s : quadrant == 2 ? -c : s;
        const double sine = quadrant == 0 ? s : quadrant == 1 ? c : quadrant == 2 ? -s : -c;
        w.out[row * 2 * w.half + k] = w.factor * (float)cosine;
        w.out[row * 2 * w.half + w.half + k] = w.factor * (float)sine;
    }
};

/* A thread a pair, or two elements that stay as they are: head_dim - rotary_dim may be odd. The product with the
 * sine is rounded first, then one multiply-add with the cosine, as the CPU's vector sets do it. */
struct qn_rotate {
    typedef struct {
        const float *x, *table;
        float *out;
        int64_t n_rows, heads, head_dim, half, x_stride, table_stride;
        int interleaved;
    } work;
    enum { OP = QN_OP_ROTATE, BLOCK = 256 };

    static __device__ void run(const qn_body &b, const work &w)
    {
        const int64_t pairs = (w.head_dim + 1) / 2, i = b.block * BLOCK + threadIdx.x;
        if (i >= w.n_rows * w.heads * pairs) return;
        const int64_t p = i % pairs, head = i / pairs % w.heads, row = i / pairs / w.heads;
        const float *x = w.x + row * w.x_stride + head * w.head_dim;
        float *out = w.out + (row * w.heads + head) * w.head_dim;
        if (p >= w.half) {
            out[2 * p] = x[2 * p];
            if (2 * p + 1 < w.head_dim) out[2 * p + 1] = x[2 * p + 1];
            return;
        }
        const float cosine = w.table[row * w.table_stride + p],
                    sine = w.table[row * w.table_stride + w.half + p];
        const int64_t first = w.interleaved ? 2 * p : p, second = w.interleaved ? first + 1 : p + w.half;
        const float u = x[first], v = x[second];
        out[first] = fmaf(u, cosine, -(v * sine));
        out[second] = fmaf(v, cosine, u * sine);
    }
};

/* One element of what qn_rotate gives. */
static __device__ __forceinline__ float qn_rotated(const qn_rotate::work &w, int64_t row, int64_t head,
                                                   int64_t d)
{
    const float *x = w.x + row * w.x_stride + head * w.head_dim;
    if (d >= 2 * w.half) return x[d];
    const int64_t p = w.interleaved ? d / 2 : d % w.half;
    const int is_second = w.interleaved ? (int)(d % 2) : d >= w.half;
    const float cosine = w.table[row * w.table_stride + p], sine = w.table[row * w.table_stride + w.half + p];
    const float u = x[w.interleaved ? 2 * p : p], v = x[w.interleaved ? 2 * p + 1 : p + w.half];
    return is_second ? fmaf(v, cosine, u * sine) : fmaf(u, cosine, -(v * sine));
}

#endif
