/* Products with weights of 16 bits. */
#include "device/cuda/product/product.cuh"

qn_status qn_cuda_product_f16(qn_cuda_context *c, const qn_cuda_product *p, int per_tile)
{
    return qn_product_launch<QN_CUDA_F16, 16>(c, p, per_tile);
}
