/* Products in f32: every output is one chain of multiply-adds in rising k, whatever tile computes it. For plain
 * matrices of any strides, and for packed weights whose elements are read in f32 (precision exact, and weights of
 * f32). */
#ifndef QN_DEVICE_CUDA_PRODUCT_FLOAT_PRODUCT_CUH
#define QN_DEVICE_CUDA_PRODUCT_FLOAT_PRODUCT_CUH

#include "device/cuda/product/groups.cuh"

/* out [batches][m, n] = a [.., m, k] b [.., k, n]; strides in elements. */
typedef struct {
    const float *a, *b;
    float *out;
    int64_t m, n, k;
    int64_t a_row, a_col, b_row, b_col, out_row;
    int n_dims; /* batches: their dimensions, slowest first */
    int64_t dim[QN_MAX_DIMS], a_batch[QN_MAX_DIMS], b_batch[QN_MAX_DIMS];
    qn_cuda_weight w; /* with has_weight: b is this weight, [k, n] its transpose unless `straight` */
    int has_weight, straight;
    int64_t part;
    /* Experts: groups [n_groups] of at most m pairs in place of batches, each through its own part. Row r of a
     * group reads row pair / x_share of a and writes row pair of out, plus its part's row of bias [parts][n]. */
    const qn_cuda_group *groups;
    int64_t n_groups;
    const int32_t *pairs;
    int32_t x_share;
    qn_cuda_rows rows; /* of a, in place of a_row */
    const float *bias; /* NULL: none */
} qn_cuda_float_product;

qn_status qn_cuda_float_product_begin(qn_cuda_context *c, const qn_cuda_float_product *p);

#endif
