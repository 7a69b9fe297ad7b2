/* Products with weights of forms MX and NV: MXFP4, NVFP4. */
#include "device/cuda/product/product.cuh"

qn_status qn_cuda_product_fp4(qn_cuda_context *c, const qn_cuda_product *p, int per_tile)
{
    if (p->w.form == QN_CUDA_MX) return qn_product_launch<QN_CUDA_MX, 4>(c, p, per_tile);
    return qn_product_launch<QN_CUDA_NV, 4>(c, p, per_tile);
}
