/* Products of rows with packed weights on the tensor cores.
 *
 * The canonical sum. A row of activations is scaled by a power of two and rounded to f16. Columns are taken in
 * chunks of QN_CUDA_CHUNK: in a chunk one chain of tensor-core steps of 16 columns begins at 0 and goes in rising
 * order; the chunks' sums are added in rising order in f32; then the sum is multiplied by both powers of two. This
 * is all that decides a result's bits: how many rows there are, and which kernel computes them, does not. */
#ifndef QN_DEVICE_CUDA_PRODUCT_PRODUCT_H
#define QN_DEVICE_CUDA_PRODUCT_PRODUCT_H

#include "device/cuda/product/groups.cuh"

enum { QN_CUDA_CHUNK = 512 };
/* Tokens of a tile, by which a kernel is named. WIDE: cards of qn_cuda_context.has_wide alone. */
enum { QN_CUDA_FEW = 8, QN_CUDA_SOME = 32, QN_CUDA_MANY = 64, QN_CUDA_WIDE = 128 };

typedef struct {
    qn_cuda_weight w;
    const uint16_t *x;    /* f16 [rows][x_stride], padded with zeros to whole units */
    const float *x_scale; /* [rows] */
    int64_t x_stride;
    int64_t x_tiled; /* not 0: x lies for SOME or WIDE, and this is qn_cuda_tiled_rows; without groups */
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

/* The power of two of a row whose largest |x| is `most`, finite: that comes to lie in [2^13, 2^14). */
static __host__ __device__ __forceinline__ int qn_cuda_row_exponent(float most)
{
    const int e = (int)(qn_cuda_float_bits(most) >> 23) - 126; /* of frexp */
    if (!(most > 0 && most < INFINITY)) return 0;
    return e < -106 ? -120 : e - 14;
}

/* 2^e of a normal number. */
static __host__ __device__ __forceinline__ float qn_cuda_power_of_two(int e)
{
    return qn_cuda_bits_float((uint32_t)(e + 127) << 23);
}

/* Rows of x as they lie for SOME and WIDE: [columns / 64][rows][64 columns]. For WIDE the 64 columns are pieces of 8 as
 * operand B of wgmma.cuh; for SOME they lie as qn_lane_place says. */
static inline int64_t qn_cuda_tiled_rows(int64_t n)
{
    return (n + 7) / 8 * 8;
}

/* Where column k of 64 lies for SOME: the columns that lane 4 g + t has as operand B of four steps are 32 bytes. */
static __host__ __device__ __forceinline__ int64_t qn_lane_place(int64_t k)
{
    return k % 8 / 2 * 16 + k / 8 * 2 + k % 2;
}

/* The kernel for so many tokens of a matrix. Measured on an H100, Q4_0, SOME and WIDE: 32 tokens 61 and 67 us (28672 x
 * 4096), 42 and 110 us (4096 x 14336); 64 tokens 110 and 69 us, 53 and 109 us. So large matrices fill the card with
 * WIDE's pieces of 128 rows. */
static inline int qn_cuda_tile_of(const qn_cuda_context *c, const qn_cuda_weight *w, int64_t n_tokens)
{
    enum { LARGE_PANELS = 1024 };
    if (n_tokens <= QN_CUDA_FEW) return QN_CUDA_FEW;
    if (n_tokens <= QN_CUDA_SOME) return QN_CUDA_SOME;
    if (n_tokens <= 2 * QN_CUDA_SOME && (!c->has_wide || w->n_panels < LARGE_PANELS)) return QN_CUDA_SOME;
    return c->has_wide ? QN_CUDA_WIDE : QN_CUDA_MANY;
}

/* n rows of x f32 [n_in] to f16 with a scale each. tiled: 0, or qn_cuda_tiled_rows(n) for the kernel per_tile. */
qn_status qn_cuda_pack_rows(qn_cuda_context *c, const float *x, qn_cuda_rows rows, int64_t n, int64_t n_in,
                            int64_t padded, int64_t tiled, int per_tile, uint16_t *out, float *scale);
/* per_tile: which kernel. The weight is not of form F32. */
qn_status qn_cuda_product_begin(qn_cuda_context *c, const qn_cuda_product *p, int per_tile);

/* By form, each in a file of its own. */
typedef qn_status qn_cuda_product_fn(qn_cuda_context *c, const qn_cuda_product *p, int per_tile);
qn_cuda_product_fn qn_cuda_product_f16, qn_cuda_product_scaled, qn_cuda_product_affine, qn_cuda_product_k,
    qn_cuda_product_fp4;

#endif
