#include "quant/mlx.h"

#include <string.h>

/* Scales of a block of 32 codes of 4 bits. */
static int fp4_scales(qn_dtype dtype)
{
    return dtype == QN_DTYPE_NVFP4 ? 2 : 1;
}

qn_mlx_row_bytes qn_mlx_row(qn_dtype dtype, int64_t n_in)
{
    qn_affine a = qn_affine_of(dtype);
    size_t n = (size_t)n_in, scale = a.scale == QN_DTYPE_F32 ? 4 : 2;
    if (!a.bits) return (qn_mlx_row_bytes){n / 2, n / 32 * (size_t)fp4_scales(dtype), 0};
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
    /* Elements follow each other here; in a block a byte holds elements j and j + 16. */
    const int n_scales = fp4_scales(dtype);
    for (int64_t k = 0; k < n_in; k += 32, data += 16, to += 16) {
        for (int j = 0; j < n_scales; j++) *to++ = *scales++;
        for (int j = 0; j < 16; j++) {
            int shift = j % 2 * 4;
            to[j] = (uint8_t)((data[j / 2] >> shift & 15) | (data[8 + j / 2] >> shift & 15) << 4);
        }
    }
}

void qn_mlx_split(qn_dtype dtype, int64_t n_in, const void *blocks, int64_t i, void *weight, void *all_scales,
                  void *all_biases)
{
    qn_affine a = qn_affine_of(dtype);
    qn_mlx_row_bytes row = qn_mlx_row(dtype, n_in);
    uint8_t *data = (uint8_t *)weight + (size_t)i * row.data,
            *scales = (uint8_t *)all_scales + (size_t)i * row.scales;
    const uint8_t *from = blocks;
    if (a.bits) {
        size_t scale = a.scale == QN_DTYPE_F32 ? 4 : 2, codes = (size_t)(a.group * a.bits / 8);
        uint8_t *biases = (uint8_t *)all_biases + (size_t)i * row.biases;
        for (int64_t k = 0; k < n_in; k += a.group, scales += scale, biases += scale, data += codes) {
            memcpy(scales, from, scale);
            memcpy(biases, from + scale, scale);
            memcpy(data, from + 2 * scale, codes);
            from += 2 * scale + codes;
        }
        return;
    }
    const int n_scales = fp4_scales(dtype);
    for (int64_t k = 0; k < n_in; k += 32, data += 16, from += 16) {
        for (int j = 0; j < n_scales; j++) *scales++ = *from++;
        for (int j = 0; j < 16; j++) {
            int shift = j < 8 ? 0 : 4, at = j % 8 * 2;
            data[j] = (uint8_t)((from[at] >> shift & 15) | (from[1 + at] >> shift & 15) << 4);
        }
    }
}
