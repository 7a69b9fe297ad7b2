/* 16 floats as one value, in portable C: four vectors of 4, which every 64-bit chip has in hardware.
 *
 * All sets offer the same names (vec_avx2.h, vec_avx512.h), so that a loop is written once in a .body.h. A vf
 * has 16 lanes on every set: lane i of a reduction holds the elements whose index is i modulo 16, whatever
 * the machine's registers. Here v_fma rounds twice (multiply, then add); in the other sets once. v_max(a, b)
 * is a > b ? a : b and v_min(a, b) is a < b ? a : b, so b is the answer when one of them is NaN. */
#ifndef QN_DEVICE_CPU_KERNELS_VEC_SCALAR_H
#define QN_DEVICE_CPU_KERNELS_VEC_SCALAR_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef float v_f4 __attribute__((vector_size(16)));
typedef int32_t v_i4 __attribute__((vector_size(16)));
typedef uint32_t v_u4 __attribute__((vector_size(16)));
typedef uint16_t v_h4 __attribute__((vector_size(8)));
typedef struct {
    v_f4 a, b, c, d;
} vf;
typedef struct {
    v_i4 a, b, c, d;
} vm; /* per lane all ones (chosen) or zero */

/* Rows of the matrix micro-kernel (tile.body.h), pairs of row and head in one pass of attention. */
enum { V_TILE_ROWS = 2 };

/* Vectors per tile of so many rows: as many sums as the registers hold, to hide the latency of a
 * multiply-add. */
static inline int v_tile_vecs(int rows)
{
    return rows > 1 ? 1 : 2;
}

static inline vf v_set1(float x)
{
    v_f4 q = {x, x, x, x};
    return (vf){q, q, q, q};
}

static inline v_f4 v_load_4(const float *p)
{
    v_f4 x;
    memcpy(&x, p, sizeof x);
    return x;
}

static inline vf v_load(const float *p)
{
    return (vf){v_load_4(p), v_load_4(p + 4), v_load_4(p + 8), v_load_4(p + 12)};
}

static inline void v_store(float *p, vf x)
{
    memcpy(p, &x.a, sizeof x.a);
    memcpy(p + 4, &x.b, sizeof x.b);
    memcpy(p + 8, &x.c, sizeof x.c);
    memcpy(p + 12, &x.d, sizeof x.d);
}

/* This set has no stores that pass the caches by. */
static inline void v_stream(float *p, vf x)
{
    v_store(p, x);
}

static inline void v_stream_end(void)
{
}

enum { V_CHAIN = 2 }; /* vectors that chain.body.h holds at a time */

/* The first n (0..16) lanes; the others are 0. */
static inline vf v_load_n(const float *p, int n)
{
    float lanes[16] = {0};
    memcpy(lanes, p, (size_t)n * sizeof *p);
    return v_load(lanes);
}

static inline void v_store_n(float *p, vf x, int n)
{
    memcpy(p, &x, (size_t)n * sizeof *p);
}

static inline vf v_add(vf x, vf y)
{
    return (vf){x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d};
}

static inline vf v_sub(vf x, vf y)
{
    return (vf){x.a - y.a, x.b - y.b, x.c - y.c, x.d - y.d};
}

static inline vf v_mul(vf x, vf y)
{
    return (vf){x.a * y.a, x.b * y.b, x.c * y.c, x.d * y.d};
}

static inline vf v_div(vf x, vf y)
{
    return (vf){x.a / y.a, x.b / y.b, x.c / y.c, x.d / y.d};
}

/* x * y + z */
static inline vf v_fma(vf x, vf y, vf z)
{
    return v_add(v_mul(x, y), z);
}

/* z - x * y */
static inline vf v_fnma(vf x, vf y, vf z)
{
    return v_sub(z, v_mul(x, y));
}

static inline vf v_sqrt(vf x)
{
    float lanes[16];
    v_store(lanes, x);
    for (int i = 0; i < 16; i++) lanes[i] = sqrtf(lanes[i]);
    return v_load(lanes);
}

static inline vm v_lt(vf x, vf y)
{
    return (vm){x.a < y.a, x.b < y.b, x.c < y.c, x.d < y.d};
}

static inline vm v_eq(vf x, vf y)
{
    return (vm){x.a == y.a, x.b == y.b, x.c == y.c, x.d == y.d};
}

static inline vm v_is_nan(vf x)
{
    return (vm){x.a != x.a, x.b != x.b, x.c != x.c, x.d != x.d};
}

/* Lanes [begin, end). */
static inline vm v_lanes(int begin, int end)
{
    v_i4 i = {0, 1, 2, 3};
    v_i4 lo = {begin, begin, begin, begin}, hi = {end, end, end, end};
    return (vm){(i >= lo) & (i < hi), (i + 4 >= lo) & (i + 4 < hi), (i + 8 >= lo) & (i + 8 < hi),
                (i + 12 >= lo) & (i + 12 < hi)};
}

static inline vm v_or(vm x, vm y)
{
    return (vm){x.a | y.a, x.b | y.b, x.c | y.c, x.d | y.d};
}

static inline vm v_not(vm x)
{
    return (vm){~x.a, ~x.b, ~x.c, ~x.d};
}

static inline int v_any(vm m)
{
    v_i4 q = m.a | m.b | m.c | m.d;
    return (q[0] | q[1] | q[2] | q[3]) != 0;
}

/* m ? x : y */
static inline vf v_select(vm m, vf x, vf y)
{
    return (vf){
        (v_f4)((m.a & (v_i4)x.a) | (~m.a & (v_i4)y.a)), (v_f4)((m.b & (v_i4)x.b) | (~m.b & (v_i4)y.b)),
        (v_f4)((m.c & (v_i4)x.c) | (~m.c & (v_i4)y.c)), (v_f4)((m.d & (v_i4)x.d) | (~m.d & (v_i4)y.d))};
}

static inline vf v_max(vf x, vf y)
{
    return v_select(v_lt(y, x), x, y);
}

static inline vf v_min(vf x, vf y)
{
    return v_select(v_lt(x, y), x, y);
}

static inline vf v_neg(vf x)
{
    return (vf){-x.a, -x.b, -x.c, -x.d};
}

static inline vf v_abs(vf x)
{
    v_i4 m = {INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX};
    return (vf){(v_f4)((v_i4)x.a & m), (v_f4)((v_i4)x.b & m), (v_f4)((v_i4)x.c & m), (v_f4)((v_i4)x.d & m)};
}

/* |x| with the sign of y */
static inline vf v_copysign(vf x, vf y)
{
    v_i4 m = {INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX};
    return (vf){(v_f4)(((v_i4)x.a & m) | ((v_i4)y.a & ~m)), (v_f4)(((v_i4)x.b & m) | ((v_i4)y.b & ~m)),
                (v_f4)(((v_i4)x.c & m) | ((v_i4)y.c & ~m)), (v_f4)(((v_i4)x.d & m) | ((v_i4)y.d & ~m))};
}

/* To the nearest integer, ties to even; |x| < 2^22. */
static inline vf v_round(vf x)
{
    vf magic = v_set1(12582912.0f);
    return v_sub(v_add(x, magic), magic);
}

static inline v_f4 v_pow2_4(v_i4 n)
{
    return (v_f4)((n + 127) << 23);
}

/* x * 2^n for whole n in [-160, 160] and x in [0.5, 2], rounded once: in two steps, the first of which is
 * exact. */
static inline vf v_scale(vf x, vf n)
{
    v_i4 a = __builtin_convertvector(n.a, v_i4), b = __builtin_convertvector(n.b, v_i4);
    v_i4 c = __builtin_convertvector(n.c, v_i4), d = __builtin_convertvector(n.d, v_i4);
    vf half = {v_pow2_4(a >> 1), v_pow2_4(b >> 1), v_pow2_4(c >> 1), v_pow2_4(d >> 1)};
    vf rest = {v_pow2_4(a - (a >> 1)), v_pow2_4(b - (b >> 1)), v_pow2_4(c - (c >> 1)),
               v_pow2_4(d - (d >> 1))};
    return v_mul(v_mul(x, half), rest);
}

/* The same where the result is a normal number; NaN stays. */
static inline vf v_scale_normal(vf x, vf n)
{
    return v_scale(x, n);
}

static inline v_f4 v_split_4(v_f4 x, v_f4 *e)
{
    v_u4 bits = (v_u4)x - 0x3f3504f3; /* sqrt(1/2) */
    *e = __builtin_convertvector((v_i4)bits >> 23, v_f4);
    return (v_f4)((bits & 0x007fffff) + 0x3f3504f3);
}

/* x = m * 2^e with m in [sqrt(1/2), sqrt(2)), for normal x > 0; returns m. */
static inline vf v_split(vf x, vf *e)
{
    vf m;
    m.a = v_split_4(x.a, &e->a);
    m.b = v_split_4(x.b, &e->b);
    m.c = v_split_4(x.c, &e->c);
    m.d = v_split_4(x.d, &e->d);
    return m;
}

/* The fixed tree of all reductions: lanes i and i + 8, then i + 4, i + 2, i + 1. */
static inline float v_sum(vf x)
{
    v_f4 q = (x.a + x.c) + (x.b + x.d);
    return (q[0] + q[2]) + (q[1] + q[3]);
}

static inline float v_first(vf x)
{
    return x.a[0];
}

/* The largest lane; NaN if one is NaN. */
static inline float v_largest(vf x)
{
    if (v_any(v_is_nan(x))) return NAN;
    float lanes[16], m;
    v_store(lanes, x);
    m = lanes[0];
    for (int i = 1; i < 16; i++) m = lanes[i] > m ? lanes[i] : m;
    return m;
}

static inline v_f4 v_even_4(v_f4 x, v_f4 y)
{
    return __builtin_shufflevector(x, y, 0, 2, 4, 6);
}

static inline v_f4 v_odd_4(v_f4 x, v_f4 y)
{
    return __builtin_shufflevector(x, y, 1, 3, 5, 7);
}

/* The even and the odd elements of the 32 floats x, y. */
static inline void v_unzip(vf x, vf y, vf *even, vf *odd)
{
    *even = (vf){v_even_4(x.a, x.b), v_even_4(x.c, x.d), v_even_4(y.a, y.b), v_even_4(y.c, y.d)};
    *odd = (vf){v_odd_4(x.a, x.b), v_odd_4(x.c, x.d), v_odd_4(y.a, y.b), v_odd_4(y.c, y.d)};
}

static inline v_f4 v_zip_low_4(v_f4 x, v_f4 y)
{
    return __builtin_shufflevector(x, y, 0, 4, 1, 5);
}

static inline v_f4 v_zip_high_4(v_f4 x, v_f4 y)
{
    return __builtin_shufflevector(x, y, 2, 6, 3, 7);
}

static inline void v_zip(vf e, vf o, vf *x, vf *y)
{
    *x = (vf){v_zip_low_4(e.a, o.a), v_zip_high_4(e.a, o.a), v_zip_low_4(e.b, o.b), v_zip_high_4(e.b, o.b)};
    *y = (vf){v_zip_low_4(e.c, o.c), v_zip_high_4(e.c, o.c), v_zip_low_4(e.d, o.d), v_zip_high_4(e.d, o.d)};
}

/* Exponents are moved by a multiplication, which is exact and makes subnormals normal; a signalling NaN
 * becomes quiet, as in the chips' own conversions. */
static inline v_f4 v_load_f16_4(const uint16_t *p)
{
    v_h4 h;
    memcpy(&h, p, sizeof h);
    v_u4 u = __builtin_convertvector(h, v_u4), magnitude = (u & 0x7fff) << 13;
    v_u4 special = (v_u4)(magnitude >= 0x7c00u << 13) & 0x7f800000,
         nan = (v_u4)(magnitude > 0x7c00u << 13) & 0x00400000;
    return (v_f4)((v_u4)((v_f4)magnitude * 0x1p112f) | special | nan | (u & 0x8000) << 16);
}

static inline vf v_load_f16(const uint16_t *p)
{
    return (vf){v_load_f16_4(p), v_load_f16_4(p + 4), v_load_f16_4(p + 8), v_load_f16_4(p + 12)};
}

/* chosen ? x : y */
static inline v_u4 v_pick_4(v_i4 chosen, v_u4 x, v_u4 y)
{
    return ((v_u4)chosen & x) | (~(v_u4)chosen & y);
}

static inline void v_store_f16_4(uint16_t *p, v_f4 x)
{
    v_u4 u = (v_u4)x, magnitude = u & 0x7fffffff;
    v_u4 r = (magnitude + 0xfff + ((magnitude >> 13) & 1) - (112u << 23)) >> 13;
    /* Below 2^-14: adding 0.5 leaves the value in units of 2^-24 in the low bits, rounded. */
    v_u4 small = (v_u4)((v_f4)magnitude + 0.5f) - 0x3f000000;
    r = v_pick_4(magnitude < 0x38800000, small, r);
    r = v_pick_4(magnitude >= 0x47800000, (v_u4){0x7c00, 0x7c00, 0x7c00, 0x7c00}, r);
    r = v_pick_4(magnitude > 0x7f800000, ((magnitude >> 13) & 0x3ff) | 0x7e00, r);
    v_h4 h = __builtin_convertvector(r | ((u >> 16) & 0x8000), v_h4);
    memcpy(p, &h, sizeof h);
}

static inline void v_store_f16(uint16_t *p, vf x)
{
    v_store_f16_4(p, x.a);
    v_store_f16_4(p + 4, x.b);
    v_store_f16_4(p + 8, x.c);
    v_store_f16_4(p + 12, x.d);
}

static inline v_f4 v_load_bf16_4(const uint16_t *p)
{
    v_h4 h;
    memcpy(&h, p, sizeof h);
    return (v_f4)(__builtin_convertvector(h, v_u4) << 16);
}

static inline vf v_load_bf16(const uint16_t *p)
{
    return (vf){v_load_bf16_4(p), v_load_bf16_4(p + 4), v_load_bf16_4(p + 8), v_load_bf16_4(p + 12)};
}

static inline void v_store_bf16_4(uint16_t *p, v_f4 x)
{
    v_u4 u = (v_u4)x, top = u >> 16, rounded = (u + 0x7fff + (top & 1)) >> 16;
    v_h4 h = __builtin_convertvector(v_pick_4((u & 0x7fffffff) > 0x7f800000, top | 0x40, rounded), v_h4);
    memcpy(p, &h, sizeof h);
}

/* Lanes are bits of words: shifted left, then right as signed numbers of 16 bits. */
static inline v_f4 v_load_bits_4(const uint16_t *p, int left, int right)
{
    v_h4 h;
    memcpy(&h, p, sizeof h);
    v_u4 u = __builtin_convertvector(h, v_u4) << (16 + left);
    return __builtin_convertvector((v_i4)u >> (16 + right), v_f4);
}

static inline vf v_load_bits(const uint16_t *p, int left, int right)
{
    return (vf){v_load_bits_4(p, left, right), v_load_bits_4(p + 4, left, right),
                v_load_bits_4(p + 8, left, right), v_load_bits_4(p + 12, left, right)};
}

/* To nearest even; subnormals kept; a NaN keeps its upper bits and becomes quiet. */
static inline void v_store_bf16(uint16_t *p, vf x)
{
    v_store_bf16_4(p, x.a);
    v_store_bf16_4(p + 4, x.b);
    v_store_bf16_4(p + 8, x.c);
    v_store_bf16_4(p + 12, x.d);
}

#endif
