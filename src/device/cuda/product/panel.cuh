/* From a packed weight to operands of the tensor cores: a tile of 16 x 64 elements as four fragments of f16.
 *
 * What an element is multiplied as ("half"), rounded as written:
 *   F16      the element
 *   SCALED   (code - zero) * scale
 *   AFFINE   code * scale + bias, one rounding; scale and bias that are not f16 are divided by the row's factor
 *            and rounded first
 *   K        code * s - m, one rounding, with s = d * sc, m = dmin * mn rounded
 *   Q6K      (code - 32) * s, with s = d * sc rounded
 *   MX, NV   e2m1 * scale, which is exact while it is in the range of f16 (MX: 2^(e - 127) / factor)
 * The row's factor, a power of two, comes back with the result. */
#ifndef QN_DEVICE_CUDA_PRODUCT_PANEL_CUH
#define QN_DEVICE_CUDA_PRODUCT_PANEL_CUH

#include "device/cuda/product/half2.cuh"
#include "device/cuda/product/mma.cuh"

/* The codes of a lane as pairs: 16 registers, [step][register of the fragment], each two codes of 16 bits. */
template <int BITS>
static __device__ __forceinline__ void qn_tile_codes(const char *codes, int n_tiles, int tile, int lane,
                                                     uint32_t out[16])
{
    constexpr int LOW = BITS == 3 ? 2 : BITS == 5 || BITS == 6 ? 4 : BITS, HIGH = BITS - LOW;
    const char *low = codes + tile * (128 * LOW);
    constexpr uint32_t LOW_MASK = ((1u << LOW) - 1) * 0x10001u;
    if (LOW == 8) {
        const uint4 a = *(const uint4 *)(low + lane * 16), b = *(const uint4 *)(low + 512 + lane * 16);
        const uint32_t v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 16; i++) out[i] = v[i / 2] >> 8 * (i % 2) & 0x00ff00ffu;
    } else if (LOW == 4) {
        const uint4 a = *(const uint4 *)(low + lane * 16);
        const uint32_t v[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
        for (int i = 0; i < 16; i++) out[i] = v[i / 4] >> 4 * (i % 4) & LOW_MASK;
    } else {
        const uint2 a = *(const uint2 *)(low + lane * 8);
        const uint32_t v[2] = {a.x, a.y};
#pragma unroll
        for (int i = 0; i < 16; i++) out[i] = v[i / 8] >> 2 * (i % 8) & LOW_MASK;
    }
    const char *high = codes + n_tiles * (128 * LOW) + tile * (128 * HIGH);
    if (HIGH == 2) {
        const uint2 a = *(const uint2 *)(high + lane * 8);
        const uint32_t v[2] = {a.x, a.y};
#pragma unroll
        for (int i = 0; i < 16; i++) out[i] |= (v[i / 8] >> 2 * (i % 8) & 0x00030003u) << LOW;
    } else if (HIGH == 1) {
        const uint32_t v = *(const uint32_t *)(high + lane * 4);
#pragma unroll
        for (int i = 0; i < 16; i++) out[i] |= (v >> i & 0x00010001u) << LOW;
    }
}

/* A pair of codes below 1,024 minus zero, as f16. */
static __device__ __forceinline__ uint32_t qn_codes_to_half(uint32_t codes, uint32_t zero_and_1024)
{
    return qn_h2_sub(codes | 0x64006400u, zero_and_1024);
}

/* (a & mask) | magic, one instruction on a card. */
static __device__ __forceinline__ uint32_t qn_masked_or(uint32_t a, uint32_t mask, uint32_t magic)
{
#ifdef QN_CUDA_HOST
    return (a & mask) | magic;
#else
    uint32_t out;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(a), "r"(mask), "r"(magic));
    return out;
#endif
}

/* The 4-bit codes of a lane minus zero, as pairs of f16. Codes in the upper half of a byte stay there: with the
 * exponent of 64 their unit is 1. */
static __device__ __forceinline__ void qn_tile_signed4(const char *codes, int tile, int lane, int zero,
                                                       uint32_t out[16])
{
    const uint4 a = *(const uint4 *)(codes + tile * 512 + lane * 16);
    const uint32_t v[4] = {a.x, a.y, a.z, a.w};
    const uint32_t low_zero = 0x64006400u + (uint32_t)zero * 0x10001u,
                   high_zero = 0x54005400u + (uint32_t)zero * 0x100010u;
    QN_UNROLL
    for (int i = 0; i < 16; i += 4) {
        const uint32_t low = v[i / 4], high = low >> 8;
        out[i] = qn_h2_sub(qn_masked_or(low, 0x000f000fu, 0x64006400u), low_zero);
        out[i + 1] = qn_h2_sub(qn_masked_or(low, 0x00f000f0u, 0x54005400u), high_zero);
        out[i + 2] = qn_h2_sub(qn_masked_or(high, 0x000f000fu, 0x64006400u), low_zero);
        out[i + 3] = qn_h2_sub(qn_masked_or(high, 0x00f000f0u, 0x54005400u), high_zero);
    }
}

/* A pair of E2M1 codes times 2^-14, as f16. */
static __device__ __forceinline__ uint32_t qn_e2m1_to_half(uint32_t codes)
{
    return (codes & 0x00080008u) << 12 | (codes & 0x00070007u) << 9;
}

/* Scale i (of a panel's row) of AFFINE, as f16. inverse: 1 / the row's factor. */
static __device__ __forceinline__ uint16_t qn_affine_half(const qn_cuda_weight &w, const char *scales, int i,
                                                          float inverse)
{
    if (w.scale == QN_DTYPE_F16) return ((const uint16_t *)scales)[i];
    const float x =
        w.scale == QN_DTYPE_F32 ? ((const float *)scales)[i] : qn_bf16_float(((const uint16_t *)scales)[i]);
    return qn_float_to_half(x * inverse);
}

/* Fragments of tile `tile` of a unit. inverse: 1 / factor of rows lane / 4 and lane / 4 + 8. */
template <int FORM, int BITS>
static __device__ __forceinline__ void qn_tile_halves(const qn_cuda_weight &w, const char *unit, int tile,
                                                      int lane, const float inverse[2], uint32_t out[16])
{
    constexpr int N = QN_CUDA_PANEL;
    const int r = lane / 4;
    if (FORM == QN_CUDA_F16) {
        const char *at = unit + tile * 2048 + lane * 16;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint4 a = *(const uint4 *)(at + i * 512);
            out[4 * i] = a.x, out[4 * i + 1] = a.y, out[4 * i + 2] = a.z, out[4 * i + 3] = a.w;
        }
        return;
    }
    constexpr int UNIT_K = FORM == QN_CUDA_K || FORM == QN_CUDA_Q6K ? 256 : 64;
    const int n_tiles = FORM == QN_CUDA_AFFINE ? w.unit_k / 64 : UNIT_K / 64;
    const char *scales = unit + (FORM == QN_CUDA_AFFINE ? w.code_bytes : N * UNIT_K * BITS / 8);
    constexpr int SIGNED4 = BITS == 4 && FORM != QN_CUDA_MX && FORM != QN_CUDA_NV;
    if (SIGNED4)
        qn_tile_signed4(unit, tile, lane, FORM == QN_CUDA_SCALED ? 8 : 0, out);
    else
        qn_tile_codes<BITS>(unit, n_tiles, tile, lane, out);
    if (FORM == QN_CUDA_SCALED) {
        const uint32_t zero = 0x64006400u + (1u << (BITS - 1)) * 0x10001u;
#pragma unroll
        for (int b = 0; b < 2; b++) {
            const uint16_t *s = (const uint16_t *)scales + (tile * 2 + b) * N + r;
            const uint32_t s0 = qn_h2_twice(s[0]), s1 = qn_h2_twice(s[8]);
#pragma unroll
            for (int i = 8 * b; i < 8 * b + 8; i++)
                out[i] = qn_h2_mul(SIGNED4 ? out[i] : qn_codes_to_half(out[i], zero), i & 1 ? s1 : s0);
        }
    } else if (FORM == QN_CUDA_AFFINE) {
        /* one group in the tile, or two */
        const int first = w.block == 32   ? 2 * tile
                          : w.block == 64 ? tile
                                          : tile / 2,
                  second = first + (w.block == 32);
#pragma unroll
        for (int b = 0; b < 2; b++) {
            const int group = b ? second : first;
            uint32_t s[2], m[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                s[h] = qn_h2_twice(qn_affine_half(w, scales, 2 * group * N + r + 8 * h, inverse[h]));
                m[h] = qn_h2_twice(qn_affine_half(w, scales, (2 * group + 1) * N + r + 8 * h, inverse[h]));
            }
#pragma unroll
            for (int j = 8 * b; j < 8 * b + 8; j++)
                out[j] =
                    qn_h2_fma(SIGNED4 ? out[j] : qn_codes_to_half(out[j], 0x64006400u), s[j & 1], m[j & 1]);
        }
    } else if (FORM == QN_CUDA_K) {
        const uint16_t *d = (const uint16_t *)(scales + 16 * N);
#pragma unroll
        for (int b = 0; b < 2; b++) {
            const uint16_t *pair = (const uint16_t *)scales + (tile * 2 + b) * N + r;
            uint32_t s[2], m[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                /* (sc, mn) as f16 in one step; times (d, dmin) */
                const uint32_t p = pair[8 * h], both = (p & 0xffu) | (p & 0xff00u) << 8;
                const uint32_t x = qn_h2_mul(qn_codes_to_half(both, 0x64006400u),
                                             (uint32_t)d[r + 8 * h] | (uint32_t)d[N + r + 8 * h] << 16);
                s[h] = qn_h2_twice((uint16_t)x);
                m[h] = qn_h2_neg(qn_h2_twice((uint16_t)(x >> 16)));
            }
#pragma unroll
            for (int i = 8 * b; i < 8 * b + 8; i++)
                out[i] =
                    qn_h2_fma(SIGNED4 ? out[i] : qn_codes_to_half(out[i], 0x64006400u), s[i & 1], m[i & 1]);
        }
    } else if (FORM == QN_CUDA_Q6K) {
        const uint16_t *d = (const uint16_t *)(scales + 16 * N);
#pragma unroll
        for (int b = 0; b < 4; b++) {
            const uint8_t *sc = (const uint8_t *)scales + (tile * 4 + b) * N + r;
            uint32_t s[2];
#pragma unroll
            for (int h = 0; h < 2; h++)
                s[h] = qn_h2_mul(qn_codes_to_half(qn_h2_twice((uint16_t)(sc[8 * h] ^ 0x80u)), 0x64806480u),
                                 qn_h2_twice(d[r + 8 * h]));
#pragma unroll
            for (int i = 4 * b; i < 4 * b + 4; i++)
                out[i] = qn_h2_mul(qn_codes_to_half(out[i], 0x64206420u), s[i & 1]);
        }
    } else {
        constexpr int BLOCKS = FORM == QN_CUDA_MX ? 2 : 4, EACH = 16 / BLOCKS;
        const uint32_t up = 0x74007400u; /* 2^14 */
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            const uint8_t *e = (const uint8_t *)scales + (tile * BLOCKS + b) * N + r;
            uint32_t s[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float x = FORM == QN_CUDA_MX ? 2 * (qn_cuda_e8m0_half(e[8 * h]) * inverse[h])
                                                   : qn_cuda_e4m3(e[8 * h]);
                s[h] = qn_h2_twice(qn_float_to_half(x));
            }
#pragma unroll
            for (int i = EACH * b; i < EACH * b + EACH; i++)
                out[i] = qn_h2_mul(qn_h2_mul(qn_e2m1_to_half(out[i]), up), s[i & 1]);
        }
    }
}

#endif
