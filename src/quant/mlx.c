#include "quant/mlx.h"

#include <string.h>

qn_mlx_row_bytes qn_mlx_row(qn_dtype dtype, int64_t n_in)
{
    qn_affine a = qn_affine_of(dtype);
    size_t n = (size_t)n_in, scale = a.scale == QN_DTYPE_F32 ? 4 : 2;
    if (!a.bits) return (qn_mlx_row_bytes){n / 2, n / 32, 0};
    size_t groups = n / (size_t)a.group;
    return (qn_mlx_row_bytes){n * (size_t)a.bits / 8, groups * scale, groups * scale};
}

void qn_mlx_join(qn_dtype dtype, int64_t n_in, const void *weight, const void *all_scales,
                 const void *all_biases, int64_t i, void *out)
{
    qn_affine a = qn_affine_of(dtype);
    qn_mlx_row_bytes row = qn_mlx_row(dtype, n_in);
    const uint8_t *data = (const uint8_t *)weight + (size_t)i * row.data,
                  *scales = (const uint8_t *)all_scales + (size_t)i * row.scales,
                  *biases = a.bits ? (const uint8_t *)all_biases + (size_t)i * row.biases : NULL;
    uint8_t *to = out;
    if (a.bits) {
        size_t scale = a.scale == QN_DTYPE_F32 ? 4 : 2, codes = (size_t)(a.group * a.bits / 8);
        for (int64_t k = 0; k < n_in; k += a.group, scales += scale, biases += scale, data += codes) {
            memcpy(to, scales, scale);
            memcpy(to + scale, biases, scale);
            memcpy(to + 2 * scale, data, codes);
            to += 2 * scale + codes;
        }
        return;
    }
    /* Elements follow each other here; in GGUF's block a byte holds elements j and j + 16. */
    for (int64_t k = 0; k < n_in; k += 32, data += 16, to += 17) {
        to[0] = *scales++;
        for (int j = 0; j < 16; j++) {
            int shift = j % 2 * 4;
            to[1 + j] = (uint8_t)((data[j / 2] >> shift & 15) | (data[8 + j / 2] >> shift & 15) << 4);
        }
    }
}
