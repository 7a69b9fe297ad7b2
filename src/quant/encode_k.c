/* The K types: super-blocks of 256 whose sub-blocks have scales (and minima) of their own, which are codes
 * too. For each sub-block scales around the obvious one are tried, the codes of each refined by least squares
 * of the errors; what is nearest stays. */
#include <math.h>
#include <string.h>

#include "quant/encode.h"

enum { SUPER = 256, SUBS_MAX = 16 };

static int store_f16(uint8_t *p, float x)
{
    const uint16_t h = qn_f32_to_f16(x);
    memcpy(p, &h, sizeof h);
    return isfinite(qn_f16_to_f32(h));
}

static float load_f16(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return qn_f16_to_f32(h);
}

static int nearest(double x, int least, int most)
{
    return x >= most ? most : x > least ? (int)floor(x + 0.5) : least;
}

/* The place of what is too large in a super-block. */
static int farthest(const float *x)
{
    int at = 0;
    for (int i = 1; i < SUPER; i++)
        if (fabsf(x[i]) > fabsf(x[at])) at = i;
    return at;
}

/* ---- Q4_K, Q5_K: scale * q - min ----------------------------------------------------------------------- */

enum { TRIES = 7, LOWS = 4, SUB = 32 };

/* Weights of the errors: large numbers count more, none counts nothing. */
static void weigh(const float *x, double w[SUB])
{
    double squares = 0;
    for (int i = 0; i < SUB; i++) squares += (double)x[i] * (double)x[i];
    const double typical = sqrt(squares / SUB);
    for (int i = 0; i < SUB; i++) w[i] = typical + fabs((double)x[i]);
}

typedef struct {
    double scale, min, error; /* min 0 or more */
} fit;

static double error_of(const float *x, const double w[SUB], double scale, double min, int most)
{
    double sum = 0;
    for (int i = 0; i < SUB; i++) {
        const int q = scale > 0 ? nearest(((double)x[i] + min) / scale, 0, most) : 0;
        const double e = scale * q - min - (double)x[i];
        sum += w[i] * e * e;
    }
    return sum;
}

/* The line of least squares through the codes that 1 / step gives. */
static fit refine(const float *x, const double w[SUB], double low, double inverse, int most)
{
    double sw = 0, sx = 0, sq = 0, sqq = 0, sqx = 0;
    for (int i = 0; i < SUB; i++) {
        const double q = nearest(inverse * ((double)x[i] - low), 0, most), v = (double)x[i];
        sw += w[i];
        sx += w[i] * v;
        sq += w[i] * q;
        sqq += w[i] * q * q;
        sqx += w[i] * q * v;
    }
    const double d = sw * sqq - sq * sq;
    fit f = {0, -low, INFINITY};
    if (d > 0) {
        f.scale = (sw * sqx - sx * sq) / d;
        f.min = -(sqq * sx - sq * sqx) / d;
    }
    if (d > 0 && f.min < 0) {
        f.min = 0;
        f.scale = sqx / sqq;
    }
    if (f.scale > 0) f.error = error_of(x, w, f.scale, f.min, most);
    return f;
}

static fit fit_sub(const float *x, const double w[SUB], int most)
{
    double low = 0, high = (double)x[0];
    for (int i = 0; i < SUB; i++) {
        if ((double)x[i] < low) low = (double)x[i];
        if ((double)x[i] > high) high = (double)x[i];
    }
    fit best = {0, -low, INFINITY};
    if (high <= low) return best;
    best.scale = (high - low) / most;
    best.error = error_of(x, w, best.scale, best.min, most);
    /* From the lowest number up to zero: a large number among small ones is worth more than what is below. */
    for (int part = 0; part < (low < 0 ? LOWS : 1); part++) {
        const double from = low * (LOWS - 1 - part) / (LOWS - 1);
        for (int i = 0; i < TRIES && high > from; i++) {
            const fit f = refine(x, w, from, (most - 1 + 2.0 * i / (TRIES - 1)) / (high - from), most);
            if (f.error < best.error) best = f;
        }
    }
    return best;
}

/* 8 scales and minima of 6 bits, as decode.c reads them. */
static void store_scales(const uint8_t scale[8], const uint8_t min[8], uint8_t *s)
{
    for (int i = 0; i < 4; i++) {
        s[i] = (uint8_t)(scale[i] | (scale[i + 4] >> 4) << 6);
        s[i + 4] = (uint8_t)(min[i] | (min[i + 4] >> 4) << 6);
        s[i + 8] = (uint8_t)((scale[i + 4] & 15) | (min[i + 4] & 15) << 4);
    }
}

/* The codes of scale and minimum beside the nearest ones that leave the smallest error. */
static void choose_codes(const float *x, const double w[SUB], int most, double d, double dmin, uint8_t *scale,
                         uint8_t *min)
{
    const int s = *scale, m = *min;
    double least = INFINITY;
    for (int i = s ? s - 1 : 0; i <= s + 1 && i < 64; i++)
        for (int k = m ? m - 1 : 0; k <= m + 1 && k < 64; k++) {
            const double error = error_of(x, w, d * i, dmin * k, most);
            if (error >= least) continue;
            least = error;
            *scale = (uint8_t)i;
            *min = (uint8_t)k;
        }
}

/* d, dmin and scales of a super-block to b[0..16), its codes 0..most to q. 0: too large. */
static int encode_super(const float *x, int most, uint8_t *b, uint8_t q[SUPER])
{
    double w[8][SUB], top_scale = 0, top_min = 0;
    fit fits[8];
    uint8_t scale[8], min[8];
    for (int k = 0; k < 8; k++) {
        weigh(x + SUB * k, w[k]);
        fits[k] = fit_sub(x + SUB * k, w[k], most);
        top_scale = fmax(top_scale, fits[k].scale);
        top_min = fmax(top_min, fits[k].min);
    }
    if (!(store_f16(b, (float)(top_scale / 63)) & store_f16(b + 2, (float)(top_min / 63)))) return 0;
    const double d = (double)load_f16(b), dmin = (double)load_f16(b + 2);
    for (int k = 0; k < 8; k++) {
        scale[k] = (uint8_t)(d > 0 ? nearest(fits[k].scale / d, 0, 63) : 0);
        min[k] = (uint8_t)(dmin > 0 ? nearest(fits[k].min / dmin, 0, 63) : 0);
        choose_codes(x + SUB * k, w[k], most, d, dmin, &scale[k], &min[k]);
        const double step = d * scale[k], low = dmin * min[k];
        for (int i = SUB * k; i < SUB * (k + 1); i++)
            q[i] = (uint8_t)(step > 0 ? nearest(((double)x[i] + low) / step, 0, most) : 0);
    }
    store_scales(scale, min, b + 4);
    return 1;
}

static void store_nibbles(const uint8_t q[SUPER], uint8_t *to)
{
    for (int k = 0; k < 8; k += 2)
        for (int j = 0; j < SUB; j++)
            to[SUB * (k / 2) + j] = (uint8_t)((q[SUB * k + j] & 15) | (q[SUB * (k + 1) + j] & 15) << 4);
}

int64_t qn_encode_q4_k(const qn_type *type, const float *x, int64_t n, void *blocks)
{
    uint8_t *b = blocks, q[SUPER];
    const int64_t end = qn_first_not_finite(x, n);
    for (int64_t i = 0; i < n; i += SUPER, b += 144, x += SUPER) {
        if (i + SUPER > end) return end;
        if (!encode_super(x, 15, b, q)) return i + farthest(x);
        store_nibbles(q, b + 16);
    }
    return n;
}

int64_t qn_encode_q5_k(const qn_type *type, const float *x, int64_t n, void *blocks)
{
    uint8_t *b = blocks, q[SUPER];
    const int64_t end = qn_first_not_finite(x, n);
    for (int64_t i = 0; i < n; i += SUPER, b += 176, x += SUPER) {
        if (i + SUPER > end) return end;
        if (!encode_super(x, 31, b, q)) return i + farthest(x);
        store_nibbles(q, b + 48);
        memset(b + 16, 0, SUB);
        for (int j = 0; j < SUPER; j++) b[16 + j % SUB] |= (uint8_t)((q[j] >> 4) << j / SUB);
    }
    return n;
}

/* ---- Q6_K: scale * q ----------------------------------------------------------------------------------- */

enum { SUB6 = 16, TRIES6 = 19 };

/* A scale whose sign may be either: the number farthest from zero is code -32, or near it. */
static double fit_sub6(const float *x)
{
    double top = 0, best = 0, least = -1;
    for (int i = 0; i < SUB6; i++)
        if (fabs((double)x[i]) > fabs(top)) top = (double)x[i];
    if (top == 0) return 0;
    for (int k = 0; k < TRIES6; k++) {
        const double inverse = -(32 + 0.1 * (k - TRIES6 / 2)) / top;
        double sqq = 0, sqx = 0;
        for (int i = 0; i < SUB6; i++) {
            const double q = nearest((double)x[i] * inverse, -32, 31), w = (double)x[i] * (double)x[i];
            sqq += w * q * q;
            sqx += w * q * (double)x[i];
        }
        if (sqq > 0 && sqx * sqx / sqq > least) {
            least = sqx * sqx / sqq;
            best = sqx / sqq;
        }
    }
    return best;
}

static double error6(const float *x, double scale)
{
    double sum = 0;
    for (int i = 0; i < SUB6; i++) {
        const double e = (scale != 0 ? scale * nearest((double)x[i] / scale, -32, 31) : 0) - (double)x[i];
        sum += e * e;
    }
    return sum;
}

/* The code of the scale beside the nearest one that leaves the smallest error. */
static int choose_code6(const float *x, double d, int code)
{
    int best = code;
    double least = error6(x, d * code);
    for (int c = code - 1; c <= code + 1; c += 2) {
        if (c < -128 || c > 127 || error6(x, d * c) >= least) continue;
        least = error6(x, d * c);
        best = c;
    }
    return best;
}

int64_t qn_encode_q6_k(const qn_type *type, const float *x, int64_t n, void *blocks)
{
    uint8_t *b = blocks;
    const int64_t end = qn_first_not_finite(x, n);
    for (int64_t i = 0; i < n; i += SUPER, b += 210, x += SUPER) {
        double scale[SUBS_MAX], top = 0;
        if (i + SUPER > end) return end;
        for (int k = 0; k < SUBS_MAX; k++) {
            scale[k] = fit_sub6(x + SUB6 * k);
            if (fabs(scale[k]) > fabs(top)) top = scale[k];
        }
        if (!store_f16(b + 208, (float)(top / -128))) return i + farthest(x);
        const double d = (double)load_f16(b + 208);
        memset(b, 0, 192);
        for (int k = 0; k < SUBS_MAX; k++) {
            const int code = d != 0 ? choose_code6(x + SUB6 * k, d, nearest(scale[k] / d, -128, 127)) : 0;
            const double step = d * code;
            b[192 + k] = (uint8_t)code;
            for (int j = SUB6 * k; j < SUB6 * (k + 1); j++) {
                /* 128 elements have 64 bytes of nibbles and 32 of pairs of upper bits. */
                const int q = (step != 0 ? nearest((double)x[j] / step, -32, 31) : 0) + 32, half = j / 128,
                          g = j % 128 / 32, at = j % 32;
                b[64 * half + 32 * (g & 1) + at] |= (uint8_t)((q & 15) << (g < 2 ? 0 : 4));
                b[128 + 32 * half + at] |= (uint8_t)((q >> 4) << 2 * g);
            }
        }
    }
    return n;
}
