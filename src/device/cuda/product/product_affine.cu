/* Products with weights of form AFFINE: Q4_1, Q5_1, MLX's. */
#include "device/cuda/product/product.cuh"

qn_status qn_cuda_product_affine(qn_cuda_context *c, const qn_cuda_product *p, int per_tile)
{
    switch (p->w.bits) {
    case 2:
        return qn_product_launch<QN_CUDA_AFFINE, 2>(c, p, per_tile);
    case 3:
        return qn_product_launch<QN_CUDA_AFFINE, 3>(c, p, per_tile);
    case 4:
        return qn_product_launch<QN_CUDA_AFFINE, 4>(c, p, per_tile);
    case 5:
        return qn_product_launch<QN_CUDA_AFFINE, 5>(c, p, per_tile);
    case 6:
        return qn_product_launch<QN_CUDA_AFFINE, 6>(c, p, per_tile);
    default:
        return qn_product_launch<QN_CUDA_AFFINE, 8>(c, p, per_tile);
    }
}
