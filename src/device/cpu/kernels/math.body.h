/* exp, log, tanh, erf, sin, cos and what is made of them, all lanes of a vf at a time, over the names of a
 * vec_<set>.h.
 *
 * Polynomials are minimax fits of our own, coefficients rounded to f32 one after the other with the rest
 * refitted. Largest errors found by vector_test over all sets are written beside each function, in units of
 * the last place (ulp) of the true value. */
#ifndef QN_DEVICE_CPU_KERNELS_MATH_BODY_H
#define QN_DEVICE_CPU_KERNELS_MATH_BODY_H

/* Lanes of a vf: 16 on every set of the CPU, 1 on a card (cuda/math.cuh). */
#ifndef V_LANES
#define V_LANES 16
#endif

/* 1.1 ulp. exp(-inf) = 0, overflow gives inf, below -104 the result is 0, subnormal results are right. */
static inline vf v_exp(vf x)
{
    vf t = v_min(v_set1(89.0f), v_max(v_set1(-105.0f), x)); /* NaN stays */
    vf n = v_round(v_mul(t, v_set1(1.44269504f)));
    vf r = v_fnma(n, v_set1(0.693359375f), t); /* ln 2 in two parts; n times the first is exact */
    r = v_fnma(n, v_set1(-2.12194440e-4f), r);
    vf p = v_set1(0.00139429222f);
    p = v_fma(p, r, v_set1(0.00836939365f));
    p = v_fma(p, r, v_set1(0.0416663773f));
    p = v_fma(p, r, v_set1(0.166665152f));
    p = v_fma(p, r, v_set1(0.5f));
    p = v_fma(v_mul(r, r), p, r);
    return v_scale(v_add(p, v_set1(1.0f)), n);
}

/* 2^t = 2^*n times the result, which is in [0.7, 1.5]. */
static inline vf v_exp2_parts(vf t, vf *n)
{
    *n = v_round(t);
    vf f = v_sub(t, *n);
    vf p = v_set1(1.535336188319500e-4f);
    p = v_fma(p, f, v_set1(1.339887440266574e-3f));
    p = v_fma(p, f, v_set1(9.618437357674640e-3f));
    p = v_fma(p, f, v_set1(5.550332471162809e-2f));
    p = v_fma(p, f, v_set1(2.402264791363012e-1f));
    p = v_fma(p, f, v_set1(6.931472028550421e-1f));
    return v_fma(p, f, v_set1(1.0f));
}

/* 1.2 ulp: 2^t for t <= 0; NaN stays, below -150 the result is 0. Cheaper than exp, for sums of many:
 * where t is a rounded product, its error of 2^-24 |t| is the larger one. */
static inline vf v_exp2_falling(vf t)
{
    vf n, p = v_exp2_parts(v_max(v_set1(-151.0f), t), &n);
    return v_scale(p, n);
}

/* The same bits for t >= EXP2_NORMAL, from where on the result is a normal number. */
#define EXP2_NORMAL (-125.0f)
static inline vf v_exp2_normal(vf t)
{
    vf n, p = v_exp2_parts(t, &n);
    return v_scale_normal(p, n);
}

/* log of a positive normal number. */
static inline vf v_log_normal(vf x, vf shift)
{
    vf e, m = v_split(x, &e);
    e = v_add(e, shift);
    vf f = v_sub(m, v_set1(1.0f));
    vf z = v_mul(f, f);
    vf p = v_set1(0.0674953908f);
    p = v_fma(p, f, v_set1(-0.116701826f));
    p = v_fma(p, f, v_set1(0.118834712f));
    p = v_fma(p, f, v_set1(-0.124062084f));
    p = v_fma(p, f, v_set1(0.142203629f));
    p = v_fma(p, f, v_set1(-0.166679904f));
    p = v_fma(p, f, v_set1(0.200020716f));
    p = v_fma(p, f, v_set1(-0.250000089f));
    p = v_fma(p, f, v_set1(0.333333135f));
    p = v_mul(v_mul(z, f), p);
    p = v_fma(e, v_set1(-2.12194440e-4f), p);
    p = v_fnma(z, v_set1(0.5f), p);
    p = v_add(f, p);
    return v_fma(e, v_set1(0.693359375f), p);
}

/* 1.5 ulp. log(0) = -inf, of a negative number NaN. */
static inline vf v_log(vf x)
{
    vm tiny = v_lt(x, v_set1(0x1p-126f));
    vf r =
        v_log_normal(v_select(tiny, v_mul(x, v_set1(0x1p24f)), x), v_select(tiny, v_set1(-24.0f), v_set1(0)));
    r = v_select(v_eq(x, v_set1(0)), v_set1(-INFINITY), r);
    r = v_select(v_eq(x, v_set1(INFINITY)), x, r);
    return v_select(v_or(v_lt(x, v_set1(0)), v_is_nan(x)), v_set1(NAN), r);
}

/* 2 ulp. */
static inline vf v_tanh(vf x)
{
    vf t = v_abs(x);
    vf z = v_mul(x, x);
    vf p = v_set1(-0.00571083929f);
    p = v_fma(p, z, v_set1(0.0206455812f));
    p = v_fma(p, z, v_set1(-0.0537421741f));
    p = v_fma(p, z, v_set1(0.133314788f));
    p = v_fma(p, z, v_set1(-0.333332837f));
    vf small = v_fma(v_mul(p, z), x, x);
    vf e = v_exp(v_add(t, t));
    vf big = v_sub(v_set1(1.0f), v_div(v_set1(2.0f), v_add(e, v_set1(1.0f))));
    return v_copysign(v_select(v_lt(t, v_set1(0.625f)), small, big), x); /* small rounds -0 to 0 */
}

/* 1.5 ulp: x + x P(x^2) near 0, else 1 - exp(-t - t R(t)). */
static inline vf v_erf(vf x)
{
    vf t = v_min(v_set1(4.0f), v_abs(x)); /* erf(4) rounds to 1 */
    vf z = v_mul(t, t);
    vf p = v_set1(-0.000598021375f);
    p = v_fma(p, z, v_set1(0.00499176187f));
    p = v_fma(p, z, v_set1(-0.0267662313f));
    p = v_fma(p, z, v_set1(0.112818271f));
    p = v_fma(p, z, v_set1(-0.376124978f));
    p = v_fma(p, z, v_set1(0.128379151f));
    vf small = v_fma(p, x, x);
    vf r = v_set1(1.12300122e-05f);
    r = v_fma(r, t, v_set1(-0.000322794018f));
    r = v_fma(r, t, v_set1(0.0036424296f));
    r = v_fma(r, t, v_set1(-0.0237620194f));
    r = v_fma(r, t, v_set1(0.106236845f));
    r = v_fma(r, t, v_set1(0.635151327f));
    r = v_fma(r, t, v_set1(0.12864849f));
    vf big = v_sub(v_set1(1.0f), v_exp(v_neg(v_fma(r, t, t))));
    return v_select(v_lt(t, v_set1(0.92f)), small, v_copysign(big, x));
}

static inline vf v_sigmoid(vf x)
{
    return v_div(v_set1(1.0f), v_add(v_set1(1.0f), v_exp(v_neg(x))));
}

/* log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|)); log1p(y) = log(u) + (y - (u - 1)) / u with u = 1 + y
 * rounded. */
static inline vf v_softplus(vf x)
{
    vf one = v_set1(1.0f);
    vf y = v_exp(v_neg(v_abs(x)));
    vf u = v_add(one, y);
    vf l = v_add(v_log_normal(u, v_set1(0)), v_div(v_sub(y, v_sub(u, one)), u));
    return v_add(v_max(v_set1(0), x), l);
}

/* Quarter turns n = round(2 x / pi) and the rest r = x - n pi / 2 in [-pi/4, pi/4]. Products of n and the
 * three parts of pi / 2 are exact up to |x| = 2^17. */
static inline vf v_turns(vf x, vf *r)
{
    vf n = v_round(v_mul(x, v_set1(0.636619772f)));
    vf t = v_fnma(n, v_set1(1.5703125f), x);
    t = v_fnma(n, v_set1(4.825592041015625e-4f), t);
    *r = v_fnma(n, v_set1(1.26759085e-6f), t);
    return n;
}

/* sin of (n + shift) quarter turns plus r. */
static inline vf v_sin_turns(vf n, vf r, float shift)
{
    vf z = v_mul(r, r);
    vf s = v_set1(-0.000195184082f);
    s = v_fma(s, z, v_set1(0.0083321901f));
    s = v_fma(s, z, v_set1(-0.166666552f));
    s = v_fma(v_mul(s, z), r, r);
    vf c = v_set1(2.44306684e-05f);
    c = v_fma(c, z, v_set1(-0.00138873013f));
    c = v_fma(c, z, v_set1(0.0416666456f));
    c = v_fma(v_mul(c, z), z, v_fnma(z, v_set1(0.5f), v_set1(1.0f)));
    /* q in -2..2 is n + shift modulo 4: odd takes the cosine; -1 and +-2 change the sign */
    vf q = v_add(n, v_set1(shift));
    q = v_fnma(v_round(v_mul(q, v_set1(0.25f))), v_set1(4.0f), q);
    vf a = v_abs(q);
    vf y = v_select(v_eq(a, v_set1(1.0f)), c, s);
    vm minus = v_or(v_eq(a, v_set1(2.0f)), v_eq(q, v_set1(-1.0f)));
    return v_select(minus, v_neg(y), y);
}

/* The first 224 binary digits of 2 / pi after a word of zeros. */
static const uint32_t two_over_pi[8] = {0,          0xa2f9836e, 0x4e441529, 0xfc2757d1,
                                        0xf534ddc0, 0xdb629599, 0x3c439041, 0xfe5163ab};

/* v_turns for one finite |x| >= 2^17, by the 96 digits of 2 / pi that matter (Payne and Hanek). n is given
 * modulo 4. */
static inline float big_turns(float x, float *r)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    int first = 32 + (int)((u >> 23) & 0xff) - 150 - 2; /* digits before it stand for whole turns */
    unsigned __int128 digits = 0;
    for (int i = 0; i < 4; i++) digits = digits << 32 | two_over_pi[first / 32 + i];
    digits = digits << (first % 32) >> 32;
    unsigned __int128 product = (digits * ((u & 0x7fffff) | 0x800000)) << 32;
    unsigned quarter = (unsigned)(product >> 126);
    double rest = (double)(int64_t)((uint64_t)(product >> 64) << 2) * 0x1p-64; /* [-0.5, 0.5) */
    if (rest < 0) quarter++;
    rest *= 1.5707963267948966;
    *r = (float)(u >> 31 ? -rest : rest);
    return u >> 31 ? -(float)(quarter & 3) : (float)(quarter & 3);
}

static inline vf v_sin_or_cos(vf x, float shift)
{
    vf r, n = v_turns(x, &r);
    vm fits = v_lt(v_abs(x), v_set1(131072.0f));
    if (v_any(v_not(fits))) {
        float xs[V_LANES], ns[V_LANES], rs[V_LANES];
        v_store(xs, x);
        v_store(ns, n);
        v_store(rs, r);
        for (int i = 0; i < V_LANES; i++) {
            if (!(fabsf(xs[i]) <= FLT_MAX))
                ns[i] = 0, rs[i] = NAN;
            else if (fabsf(xs[i]) >= 131072.0f)
                ns[i] = big_turns(xs[i], &rs[i]);
        }
        n = v_load(ns);
        r = v_load(rs);
    }
    return v_sin_turns(n, r, shift);
}

/* 1.5 ulp for |x| <= 1000, beyond it 1e-7 absolute for every finite x. */
static inline vf v_sin(vf x)
{
    return v_select(v_eq(x, v_set1(0)), x, v_sin_or_cos(x, 0)); /* keeps the sign of 0 */
}

static inline vf v_cos(vf x)
{
    return v_sin_or_cos(x, 1.0f);
}

/* |x|^y for finite x != 0 in double: log2 by the series of atanh, exp2 by that of exp; then one rounding. */
static const double inverse_odd[11] = {1.0,      1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9, 1.0 / 11,
                                       1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21};
static const double inverse_factorial[14] = {
    1.0,        1.0,         1.0 / 2,      1.0 / 6,       1.0 / 24,       1.0 / 120,       1.0 / 720,
    1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};
static inline float pow_positive(double x, double y)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    int64_t e = (int64_t)(u - 0x3fe6a09e667f3bcd) >> 52;
    u -= (uint64_t)e << 52;
    double m;
    memcpy(&m, &u, sizeof m);
    double s = (m - 1.0) / (m + 1.0), z = s * s, p = 0; /* m in [sqrt(1/2), sqrt(2)) */
    for (int k = 10; k >= 0; k--) p = p * z + inverse_odd[k];
    double t = y * ((double)e + 2.8853900817779268 * (s * p));
    if (!(t > -200.0)) return t != t ? NAN : 0.0f;
    if (t > 200.0) return INFINITY;
    double n = (t + 0x1.8p52) - 0x1.8p52, f = (t - n) * 0.69314718055994531, q = 0;
    for (int k = 13; k >= 0; k--) q = q * f + inverse_factorial[k];
    u = (uint64_t)(int64_t)(n + 1023.0) << 52;
    memcpy(&m, &u, sizeof m);
    return (float)(q * m);
}

/* C's pow on one pair, 0.5 ulp. */
static inline float pow_lane(float x, float y)
{
    float a = fabsf(x), b = fabsf(y);
    if (x == 1.0f || y == 0) return 1.0f;
    if (x != x || y != y) return NAN;
    if (b > FLT_MAX) return a == 1.0f ? 1.0f : (a > 1.0f) == (y > 0) ? INFINITY : 0;
    int whole = b >= 0x1p23f || (float)(int32_t)y == y;
    int odd = whole && b < 0x1p24f && ((int32_t)b & 1);
    if (x < 0 && a <= FLT_MAX && !whole) return NAN;
    float r = a == 0 ? (y > 0 ? 0 : INFINITY) : a > FLT_MAX ? (y > 0 ? INFINITY : 0) : pow_positive(a, y);
    return odd ? copysignf(r, x) : r;
}

static inline vf v_pow(vf x, vf y)
{
    float xs[V_LANES], ys[V_LANES];
    v_store(xs, x);
    v_store(ys, y);
    for (int i = 0; i < V_LANES; i++) xs[i] = pow_lane(xs[i], ys[i]);
    return v_load(xs);
}

#endif
