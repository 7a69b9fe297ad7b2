/* Products of rows with packed weights on the tensor cores.
 *
 * The canonical sum. A row of activations is scaled by a power of two and rounded to f16. Columns are taken in
 * chunks of QN_CUDA_CHUNK: in a chunk one chain of tensor-core steps of 16 columns begins at 0 and goes in rising
 * order; the chunks' sums are added in rising order in f32; then the sum is multiplied by both powers of two. This
 * is all that decides a result's bits: how many rows there are, and which kernel computes them, does not. */
#ifndef QN_DEVICE_CUDA_PRODUCT_H
#define QN_DEVICE_CUDA_PRODUCT_H

#include "device/cuda/groups.cuh"

enum { QN_CUDA_CHUNK = 512 };
enum { QN_CUDA_FEW = 8, QN_CUDA_MANY = 64 }; /* tokens of a tile of either kernel */

typedef struct {
    qn_cuda_weight w;
    const uint16_t *x;    /* f16 [rows][x_stride], padded with zeros to whole units */
    const float *x_scale; /* [rows] */
    int64_t x_stride;
    float *out;
    int64_t out_stride, n_tokens;
    /* Experts: groups [n_groups] (n 0: none), of pairs whose numbers are places in out; pair p reads row p /
     * x_share of x. NULL: all tokens go through part 0. */
    const qn_cuda_group *groups;
    int64_t n_groups;
    const int32_t *pairs;
    int32_t x_share;
    const float *bias; /* [parts][n_out], added last; NULL: none */
} qn_cuda_product;

/* Columns of a packed row of activations. */
static inline int64_t qn_cuda_padded(const qn_cuda_weight *w)
{
    return w->n_units * w->unit_k;
}

/* The power of two of a row whose largest |x| is `most`: that comes to lie in [2^13, 2^14). */
static __host__ __device__ __forceinline__ int qn_cuda_row_exponent(float most)
{
    int e = 14;
    if (most > 0 && most < INFINITY) frexpf(most, &e);
    return e < -106 ? -120 : e - 14;
}

/* n rows of x f32 [n_in] to f16 with a scale each. */
qn_status qn_cuda_pack_rows(qn_cuda_context *c, const float *x, qn_cuda_rows rows, int64_t n, int64_t n_in,
                            int64_t padded, uint16_t *out, float *scale);
/* many: which kernel. The weight is not of form F32. */
qn_status qn_cuda_product_begin(qn_cuda_context *c, const qn_cuda_product *p, int many);

/* By form, each in a file of its own. */
typedef qn_status qn_cuda_product_fn(qn_cuda_context *c, const qn_cuda_product *p, int many);
qn_cuda_product_fn qn_cuda_product_f16, qn_cuda_product_scaled, qn_cuda_product_affine, qn_cuda_product_k,
    qn_cuda_product_fp4;

#endif
