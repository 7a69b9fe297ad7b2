/* Weights out of panels again, a lane or a row at a time: for the scalar set, rows of embeddings and tests.
 */
#include <string.h>

#include "device/cpu/kernels/matmul/pack.h"
#include "quant/types.h"

static uint32_t load32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static void store32(uint8_t *p, uint32_t v)
{
    memcpy(p, &v, 4);
}

static float load_f16(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return qn_f16_to_f32(h);
}

static float load_scale(qn_dtype type, const uint8_t *p)
{
    uint16_t h;
    float f;
    memcpy(&h, p, sizeof h);
    if (type != QN_DTYPE_F32) return type == QN_DTYPE_F16 ? qn_f16_to_f32(h) : qn_bf16_to_f32(h);
    memcpy(&f, p, sizeof f);
    return f;
}

void qn_lane_codes(qn_layout layout, const uint8_t *codes, int lane, uint8_t q[QN_BLOCK])
{
    const uint8_t *p = codes + 4 * lane;
    int bits = qn_layout_bits(layout);
    const int8_t *table = qn_layout_table(layout);
    if (table) {
        for (int k = 0; k < QN_BLOCK; k++)
            q[k] = (uint8_t)(128 + table[p[64 * (k % 16 / 4) + k % 4] >> k / 16 * 4 & 15]);
        return;
    }
    if (bits == 8) {
        for (int g = 0; g < 8; g++) store32(q + 4 * g, load32(p + 64 * g));
        return;
    }
    const uint8_t *pairs = p + (bits == 6 ? 256 : 0), *top = p + (bits == 5 ? 256 : 128);
    for (int g = 0; g < 8; g++) {
        uint32_t v = bits < 4 ? 0 : load32(p + 64 * (g % 4)) >> g / 4 * 4 & 0x0f0f0f0f;
        if (bits == 2 || bits == 3 || bits == 6)
            v |= (load32(pairs + 64 * (g / 4)) >> 2 * (g % 4) & 0x03030303) << (bits == 6 ? 4 : 0);
        if (bits == 3 || bits == 5) v |= (load32(top) >> g & 0x01010101) << (bits - 1);
        store32(q + 4 * g, v);
    }
}

qn_lane_scale qn_lane_scales(qn_dtype dtype, const uint8_t *header, int i_block, int lane)
{
    qn_lane_scale s = {0, 0};
    qn_affine a = qn_affine_of(dtype);
    const qn_layout layout = qn_layout_of(dtype);
    switch (qn_layout_scale(layout)) {
    case QN_SCALE_SYM:
        s.d = qn_layout_number(layout) == QN_NUMBER_E8M0 ? qn_e8m0_half(header[16 * i_block + lane])
                                                         : load_f16(header + 32 * i_block + 2 * lane);
        break;
    case QN_SCALE_GROUP: {
        size_t bytes = a.scale == QN_DTYPE_F32 ? 4 : 2;
        const uint8_t *p = header + (size_t)(i_block * QN_BLOCK / a.group) * 2 * QN_PANEL * bytes;
        s.d = load_scale(a.scale, p + bytes * (size_t)lane);
        s.m = load_scale(a.scale, p + bytes * (size_t)(QN_PANEL + lane));
        break;
    }
    case QN_SCALE_MIN:
        s.d = load_f16(header + 64 * i_block + 2 * lane);
        s.m = load_f16(header + 64 * i_block + 32 + 2 * lane);
        break;
    case QN_SCALE_K: {
        const uint8_t *b = header + 64 + lane;
        int j = i_block & 3, sc, mn;
        if (i_block < 4) {
            sc = b[16 * j] & 63;
            mn = b[16 * (j + 4)] & 63;
        } else {
            sc = (b[16 * (j + 8)] & 15) | (b[16 * j] >> 6) << 4;
            mn = b[16 * (j + 8)] >> 4 | (b[16 * (j + 4)] >> 6) << 4;
        }
        s.d = load_f16(header + 2 * lane) * (float)sc;
        s.m = -(load_f16(header + 32 + 2 * lane) * (float)mn);
        break;
    }
    case QN_SCALE_HALF:
        s.d = qn_e4m3_half(header[32 * i_block + lane]);
        s.m = qn_e4m3_half(header[32 * i_block + 16 + lane]);
        break;
    case QN_SCALE_SUB:
        s.d = load_f16(header + 2 * lane) * (float)(int8_t)header[64 + 32 * i_block + lane];
        s.m = load_f16(header + 2 * lane) * (float)(int8_t)header[80 + 32 * i_block + lane];
        break;
    default:
        break;
    }
    return s;
}

void qn_unpack_row(qn_dtype dtype, int64_t n_in, const void *panels, int64_t row, float *out)
{
    const qn_layout layout = qn_layout_of(dtype);
    int lane = (int)(row % QN_PANEL), zero = qn_layout_zero(layout);
    const uint8_t *panel =
        (const uint8_t *)panels + (size_t)(row / QN_PANEL) * qn_pack_panel_bytes(dtype, n_in);
    qn_scale_kind kind = qn_layout_scale(layout);
    if (dtype == QN_DTYPE_F32) {
        for (int64_t k = 0; k < n_in; k++) memcpy(out + k, panel + (k * QN_PANEL + lane) * 4, 4);
    } else if (dtype == QN_DTYPE_F16) {
        for (int64_t k = 0; k < n_in; k++) out[k] = load_f16(panel + (k * QN_PANEL + lane) * 2);
    } else if (dtype == QN_DTYPE_BF16) {
        for (int64_t k = 0; k < n_in; k++) {
            uint16_t h;
            memcpy(&h, panel + ((k / 2 * QN_PANEL + lane) * 2 + k % 2) * 2, 2);
            out[k] = qn_bf16_to_f32(h);
        }
    }
    if (kind == QN_SCALE_NONE) return;
    for (int64_t k = 0; k < n_in; k += QN_BLOCK * QN_CHUNK) {
        int n_blocks = n_in - k < QN_BLOCK * QN_CHUNK ? (int)((n_in - k) / QN_BLOCK) : QN_CHUNK;
        const uint8_t *codes = panel + qn_layout_header_bytes(layout, dtype, n_blocks);
        for (int b = 0; b < n_blocks; b++, codes += qn_layout_code_bytes(layout)) {
            uint8_t q[QN_BLOCK];
            float *y = out + k + b * QN_BLOCK;
            qn_lane_scale s = qn_lane_scales(dtype, panel, b, lane);
            qn_lane_codes(layout, codes, lane, q);
            if (qn_layout_by_halves(layout)) {
                for (int i = 0; i < QN_BLOCK; i++) y[i] = (i < 16 ? s.d : s.m) * (float)(q[i] - zero);
            } else if (kind == QN_SCALE_SYM) {
                for (int i = 0; i < QN_BLOCK; i++) y[i] = s.d * (float)(q[i] - zero);
            } else {
                for (int i = 0; i < QN_BLOCK; i++) y[i] = s.d * (float)q[i] + s.m;
            }
        }
        panel = codes;
    }
}
