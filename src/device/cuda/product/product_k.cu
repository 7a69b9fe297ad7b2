/* Products with weights of forms K and Q6K: Q4_K, Q5_K, Q6_K. */
#include "device/cuda/product/product.cuh"

qn_status qn_cuda_product_k(qn_cuda_context *c, const qn_cuda_product *p, int per_tile)
{
    if (p->w.form == QN_CUDA_Q6K) return qn_product_launch<QN_CUDA_Q6K, 6>(c, p, per_tile);
    if (p->w.bits == 4) return qn_product_launch<QN_CUDA_K, 4>(c, p, per_tile);
    return qn_product_launch<QN_CUDA_K, 5>(c, p, per_tile);
}
