#include "prim/convert.h"

#include <string.h>

#include "prim/dtype.h"
#include "quant/types.h"

/* A tile goes through one of three wide forms: integers as 64 bits (unsigned ones as their own kind only
 * where they become floats), narrow floats as f32, f64 as itself. */
enum { TILE = 256 };
typedef enum { WIDE_I64, WIDE_U64, WIDE_F32, WIDE_F64 } wide_kind;
typedef union {
    int64_t i[TILE];
    uint64_t u[TILE];
    float f[TILE];
    double d[TILE];
} wide;

int qn_dtype_is_float(qn_dtype dtype)
{
    return dtype >= QN_DTYPE_F16 && dtype <= QN_DTYPE_F64;
}

int qn_dtype_width(qn_dtype dtype)
{
    return qn_dtype_is_plain(dtype) ? (int)qn_type_get(dtype)->block_bytes : 0;
}

static wide_kind kind_of(qn_dtype dtype)
{
    if (dtype == QN_DTYPE_F64) return WIDE_F64;
    if (qn_dtype_is_float(dtype)) return WIDE_F32;
    return dtype == QN_DTYPE_U64 ? WIDE_U64 : WIDE_I64;
}

/* Bytes may lie anywhere: elements are fetched by memcpy, which compiles to plain loads. */
static void widen(qn_dtype from, const char *x, int64_t step, wide *w, int64_t n)
{
    for (int64_t i = 0; i < n; i++, x += step) {
        uint16_t h;
        int16_t s;
        uint32_t u;
        int32_t v;
        switch (from) {
        case QN_DTYPE_BOOL:
            w->i[i] = *x != 0;
            break;
        case QN_DTYPE_U8:
            w->i[i] = *(const uint8_t *)x;
            break;
        case QN_DTYPE_I8:
            w->i[i] = *(const int8_t *)x;
            break;
        case QN_DTYPE_U16:
            memcpy(&h, x, 2);
            w->i[i] = h;
            break;
        case QN_DTYPE_I16:
            memcpy(&s, x, 2);
            w->i[i] = s;
            break;
        case QN_DTYPE_U32:
            memcpy(&u, x, 4);
            w->i[i] = u;
            break;
        case QN_DTYPE_I32:
            memcpy(&v, x, 4);
            w->i[i] = v;
            break;
        case QN_DTYPE_F16:
            memcpy(&h, x, 2);
            w->f[i] = qn_f16_to_f32(h);
            break;
        case QN_DTYPE_BF16:
            memcpy(&h, x, 2);
            w->f[i] = qn_bf16_to_f32(h);
            break;
        case QN_DTYPE_F32:
            memcpy(&w->f[i], x, 4);
            break;
        default: /* U64, I64, F64 */
            memcpy(&w->i[i], x, 8);
        }
    }
}

/* A number in f32 whose last bit says whether anything was cut off: rounding it once more to a type of fewer
 * bits gives what rounding the first number would. */
static float cut_f64(double d)
{
    float f = (float)d;
    if ((double)f == d || d != d) return f;
    uint32_t bits = qn_float_bits(f);
    if ((double)(f < 0 ? -f : f) > (d < 0 ? -d : d)) bits--; /* rounded away from zero: one back */
    return qn_bits_float(bits | 1);
}

static float cut_u64(uint64_t u)
{
    int shift = 0;
    uint64_t lost = 0;
    while (u >> 24) {
        lost |= u & 1;
        u >>= 1;
        shift++;
    }
    float f = (float)(u | lost), scale = qn_bits_float((uint32_t)(127 + shift) << 23);
    return f * scale;
}

static float narrow_float(const wide *w, wide_kind kind, int64_t i)
{
    switch (kind) {
    case WIDE_F32:
        return w->f[i];
    case WIDE_F64:
        return cut_f64(w->d[i]);
    case WIDE_U64:
        return cut_u64(w->u[i]);
    default:
        return w->i[i] < 0 ? -cut_u64(0 - w->u[i]) : cut_u64(w->u[i]);
    }
}

static float as_f32(const wide *w, wide_kind kind, int64_t i)
{
    return kind == WIDE_F32   ? w->f[i]
           : kind == WIDE_F64 ? (float)w->d[i]
           : kind == WIDE_U64 ? (float)w->u[i]
                              : (float)w->i[i];
}

static double as_f64(const wide *w, wide_kind kind, int64_t i)
{
    return kind == WIDE_F32   ? (double)w->f[i]
           : kind == WIDE_F64 ? w->d[i]
           : kind == WIDE_U64 ? (double)w->u[i]
                              : (double)w->i[i];
}

/* From a float into [low, high]; the limits of 64 bits are not numbers of f64, so the first ones outside are
 * looked at. */
static uint64_t as_integer(qn_dtype to, double d)
{
    int bits = 8 * qn_dtype_width(to);
    int is_signed = to == QN_DTYPE_I8 || to == QN_DTYPE_I16 || to == QN_DTYPE_I32 || to == QN_DTYPE_I64;
    double above = is_signed ? (double)(UINT64_C(1) << (bits - 1)) : 2 * (double)(UINT64_C(1) << (bits - 1));
    if (d != d) return 0;
    if (is_signed) {
        if (d >= above) return (UINT64_C(1) << (bits - 1)) - 1;
        return d <= -above ? UINT64_C(1) << (bits - 1) : (uint64_t)(int64_t)d;
    }
    if (d >= above) return bits == 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1;
    return d <= 0 ? 0 : (uint64_t)d;
}

static uint64_t bits_of(qn_dtype to, const wide *w, wide_kind kind, int64_t i)
{
    if (to == QN_DTYPE_BOOL)
        return kind == WIDE_F32 ? w->f[i] != 0 : kind == WIDE_F64 ? w->d[i] != 0 : w->i[i] != 0;
    if (to == QN_DTYPE_F16) return qn_f32_to_f16(narrow_float(w, kind, i));
    if (to == QN_DTYPE_BF16) return qn_f32_to_bf16(narrow_float(w, kind, i));
    if (kind == WIDE_F32 || kind == WIDE_F64) return as_integer(to, as_f64(w, kind, i));
    return w->u[i];
}

static void narrow(qn_dtype to, const wide *w, wide_kind kind, char *out, int64_t n)
{
    int width = qn_dtype_width(to);
    for (int64_t i = 0; i < n; i++) {
        if (to == QN_DTYPE_F32) {
            float f = as_f32(w, kind, i);
            memcpy(out + 4 * i, &f, 4);
        } else if (to == QN_DTYPE_F64) {
            double d = as_f64(w, kind, i);
            memcpy(out + 8 * i, &d, 8);
        } else {
            uint64_t v = bits_of(to, w, kind, i);
            for (int k = 0; k < width; k++) out[(int64_t)width * i + k] = (char)(v >> 8 * k);
        }
    }
}

void qn_convert_strided(qn_dtype from, const void *x, int64_t stride_bytes, qn_dtype to, void *out, int64_t n)
{
    int64_t in_width = qn_dtype_width(from), out_width = qn_dtype_width(to);
    if (from == to && stride_bytes == in_width) {
        memcpy(out, x, (size_t)(n * in_width));
        return;
    }
    wide w;
    for (int64_t at = 0; at < n; at += TILE) {
        int64_t m = n - at < TILE ? n - at : TILE;
        char *to_here = (char *)out + at * out_width;
        if (from == to) {
            for (int64_t i = 0; i < m; i++)
                memcpy(to_here + i * in_width, (const char *)x + (at + i) * stride_bytes, (size_t)in_width);
            continue;
        }
        widen(from, (const char *)x + at * stride_bytes, stride_bytes, &w, m);
        narrow(to, &w, kind_of(from), to_here, m);
    }
}

void qn_convert(qn_dtype from, const void *x, qn_dtype to, void *out, int64_t n)
{
    qn_convert_strided(from, x, qn_dtype_width(from), to, out, n);
}
