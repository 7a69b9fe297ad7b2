/* Products with weights of form SCALED: Q4_0, Q5_0, Q8_0. */
#include "device/cuda/product/product.cuh"

qn_status qn_cuda_product_scaled(qn_cuda_context *c, const qn_cuda_product *p, int per_tile)
{
    if (p->w.bits == 4) return qn_product_launch<QN_CUDA_SCALED, 4>(c, p, per_tile);
    if (p->w.bits == 5) return qn_product_launch<QN_CUDA_SCALED, 5>(c, p, per_tile);
    return qn_product_launch<QN_CUDA_SCALED, 8>(c, p, per_tile);
}
