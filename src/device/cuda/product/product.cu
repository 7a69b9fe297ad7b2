/* Activations for the tensor cores, and which file has the kernels of a weight's form. */
#include "device/cuda/product/product.h"

/* The largest |x| of a row comes to lie in [2^13, 2^14). */
static __global__ void __launch_bounds__(256)
    pack_rows(const float *x, qn_cuda_rows rows, int64_t n_in, int64_t padded, int64_t tiled, int per_tile,
              uint16_t *out, float *scale)
{
    __shared__ float largest[8];
    const int64_t r = blockIdx.x;
    const float *row = x + qn_row_begin(rows, r);
    float most = 0;
    for (int64_t k = threadIdx.x; k < n_in; k += 256) {
        const float a = fabsf(row[k]);
        most = a > most ? a : most; /* NaN is passed over: the products show it */
    }
    most = qn_warp_max(most);
    if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = most;
    __syncthreads();
    for (int i = 0; i < 8; i++) most = largest[i] > most ? largest[i] : most;
    const int e = qn_cuda_row_exponent(most);
    const float down = qn_cuda_power_of_two(-e);
    if (threadIdx.x == 0) scale[r] = qn_cuda_power_of_two(e);
    for (int64_t k = threadIdx.x; k < padded; k += 256) {
        const int64_t place = per_tile == QN_CUDA_SOME ? qn_lane_place(k % 64) : (k / 8 ^ r) % 8 * 8 + k % 8;
        const int64_t at = tiled ? (k / 64 * tiled + r) * 64 + place : r * padded + k;
        out[at] = k < n_in ? qn_float_to_half(row[k] * down) : 0;
    }
}

qn_status qn_cuda_pack_rows(qn_cuda_context *c, const float *x, qn_cuda_rows rows, int64_t n, int64_t n_in,
                            int64_t padded, int64_t tiled, int per_tile, uint16_t *out, float *scale)
{
    return qn_cuda_launch(c, pack_rows, n, 256, 0, x, rows, n_in, padded, tiled, per_tile, out, scale);
}

qn_status qn_cuda_product_begin(qn_cuda_context *c, const qn_cuda_product *p, int per_tile)
{
    switch (p->w.form) {
    case QN_CUDA_F16:
        return qn_cuda_product_f16(c, p, per_tile);
    case QN_CUDA_SCALED:
        return qn_cuda_product_scaled(c, p, per_tile);
    case QN_CUDA_AFFINE:
        return qn_cuda_product_affine(c, p, per_tile);
    case QN_CUDA_K:
    case QN_CUDA_Q6K:
        return qn_cuda_product_k(c, p, per_tile);
    default:
        return qn_cuda_product_fp4(c, p, per_tile);
    }
}
