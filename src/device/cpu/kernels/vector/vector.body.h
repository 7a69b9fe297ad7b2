/* Element-wise operations, norms, softmax, rope, reductions, conversions and recurrences, over the names of a
 * vec_<set>.h, math.body.h and elementwise.body.h.
 *
 * The last n % 16 elements go through the same instructions as the others, in a vector filled up with zeros,
 * so that the bits of element i depend on element i alone. Reductions keep element i in lane i % 16. */
#ifndef QN_DEVICE_CPU_KERNELS_VECTOR_VECTOR_BODY_H
#define QN_DEVICE_CPU_KERNELS_VECTOR_VECTOR_BODY_H

#include "device/cpu/kernels/vector/elementwise.body.h"

static inline int tail(int64_t n, int64_t i)
{
    return n - i < 16 ? (int)(n - i) : 16;
}

/* The first m (1..16) lanes. */
static inline vf get(const float *p, int m)
{
    return m == 16 ? v_load(p) : v_load_n(p, m);
}

static inline void put(float *p, vf x, int m)
{
    if (m == 16)
        v_store(p, x);
    else
        v_store_n(p, x, m);
}

/* x in the first m lanes, y in the others. */
static inline vf fill(vf x, int m, float y)
{
    return m == 16 ? x : v_select(v_lanes(0, m), x, v_set1(y));
}

/* ---- element-wise ---- */

/* One loop for all; op is a constant wherever this is expanded. Every load of an element comes before its
 * store: out may be a or b. */
static inline __attribute__((always_inline)) void
each(float *out, const float *a, int64_t a_step, const float *b, int64_t b_step, int64_t n, vf (*op)(vf, vf))
{
    if (n <= 0) return;
    vf x = v_set1(a[0]), y = b ? v_set1(b[0]) : x;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        if (a_step) x = v_load(a + i);
        if (b && b_step) y = v_load(b + i);
        v_store(out + i, op(x, y));
    }
    if (i < n) {
        int m = tail(n, i);
        if (a_step) x = v_load_n(a + i, m);
        if (b && b_step) y = v_load_n(b + i, m);
        v_store_n(out + i, op(x, y), m);
    }
}

#define E(name, inputs)                                                                               \
    static void ew_##name(float *out, const float *a, int64_t a_step, const float *b, int64_t b_step, \
                          int64_t n)                                                                  \
    {                                                                                                 \
        each(out, a, a_step, (inputs) == 2 ? b : NULL, b_step, n, op_##name);                         \
    }
E(COPY, 1)
#include "prim/elementwise.def"

#include "device/cpu/kernels/vector/chain.body.h"

/* ---- reductions ---- */

static float sum(const float *x, int64_t n)
{
    vf s = v_set1(0);
    for (int64_t i = 0; i < n; i += 16) s = v_add(s, get(x + i, tail(n, i)));
    return v_sum(s);
}

static float dot(const float *x, const float *y, int64_t n)
{
    vf s = v_set1(0);
    for (int64_t i = 0; i < n; i += 16) s = v_fma(get(x + i, tail(n, i)), get(y + i, tail(n, i)), s);
    return v_sum(s);
}

/* NaN if one is NaN, -inf if there is none. */
static float max(const float *x, int64_t n)
{
    vf m = v_set1(-INFINITY);
    for (int64_t i = 0; i < n; i += 16)
        m = v_max_or_nan(m, fill(get(x + i, tail(n, i)), tail(n, i), -INFINITY));
    return v_largest(m);
}

/* A row of -inf alone gives zeros. */
static void softmax(float *out, const float *x, int64_t n)
{
    float largest = max(x, n);
    vf m = v_set1(largest == -INFINITY ? 0 : largest), s = v_set1(0);
    for (int64_t i = 0; i < n; i += 16) {
        vf p = fill(v_exp(v_sub(get(x + i, tail(n, i)), m)), tail(n, i), 0);
        s = v_add(s, p);
        put(out + i, p, tail(n, i));
    }
    float total = v_sum(s);
    vf d = v_set1(total == 0 ? 1.0f : total);
    for (int64_t i = 0; i < n; i += 16) put(out + i, v_div(get(out + i, tail(n, i)), d), tail(n, i));
}

/* ---- rows of blocks ---- */

static inline int64_t first_block(int64_t n)
{
    return n < QN_ROW_BLOCK ? n : QN_ROW_BLOCK;
}

static void max_blocks(const float *x, int64_t n, float *out)
{
    for (; n > 0; n -= QN_ROW_BLOCK, x += QN_ROW_BLOCK) {
        int64_t length = first_block(n);
        vf m = v_set1(-INFINITY);
        vm bad = v_is_nan(m);
        for (int64_t i = 0; i < length; i += 16) {
            vf v = fill(get(x + i, tail(length, i)), tail(length, i), -INFINITY);
            bad = v_or(bad, v_is_nan(v));
            m = v_max(v, m); /* m when v is NaN */
        }
        *out++ = v_any(bad) ? NAN : v_largest(m);
    }
}

/* The sum of 2^((x - m) f) of a block, and where the least exponent is. `all`: of any exponents, else of
 * normal results alone. */
static inline vf block_sum(const float *x, int64_t length, vf m, vf f, int all, vf *least)
{
    vf s = v_set1(0);
    for (int64_t i = 0; i < length; i += 16) {
        vf t = v_mul(v_sub(get(x + i, tail(length, i)), m), f);
        vf e = all ? v_exp2_falling(t) : v_exp2_normal(t);
        if (!all) *least = v_min(t, *least); /* what was there when t is NaN */
        s = v_add(s, fill(e, tail(length, i), 0));
    }
    return s;
}

static void sum_exp_blocks(const float *x, int64_t n, float shift, float scale, float *out)
{
    vf m = v_set1(shift), f = v_set1(scale * 1.44269504f), normal = v_set1(EXP2_NORMAL);
    for (; n > 0; n -= QN_ROW_BLOCK, x += QN_ROW_BLOCK) {
        vf least = v_set1(0), s = block_sum(x, first_block(n), m, f, 0, &least);
        if (v_any(v_lt(least, normal))) s = block_sum(x, first_block(n), m, f, 1, &least);
        *out++ = v_sum(s);
    }
}

static void exp_scaled(const float *x, int64_t n, float shift, float scale, float *out)
{
    vf m = v_set1(shift), f = v_set1(scale);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) v_store(out + i, v_exp(v_mul(v_sub(v_load(x + i), m), f)));
    if (i < n) v_store_n(out + i, v_exp(v_mul(v_sub(v_load_n(x + i, tail(n, i)), m), f)), tail(n, i));
}

static int64_t collect(const float *x, int64_t n, float least, int32_t first, int32_t *index, float *value)
{
    int64_t kept = 0;
    vf l = v_set1(least);
    for (int64_t i = 0; i < n; i += 16) {
        int m = tail(n, i);
        if (!v_any(v_not(v_lt(get(x + i, m), l)))) continue;
        for (int j = 0; j < m; j++) { /* no branch: every element is written, those that stay are kept */
            value[kept] = x[i + j];
            index[kept] = first + (int32_t)(i + j);
            kept += x[i + j] >= least;
        }
    }
    return kept;
}

/* ---- norms ---- */

static inline float inverse_root(float x)
{
    return v_first(v_div(v_set1(1.0f), v_sqrt(v_set1(x))));
}

static void rms_norm(float *out, const float *x, const float *w, float w_offset, float eps, int64_t n)
{
    vf r = v_set1(inverse_root(dot(x, x, n) / (float)n + eps)), o = v_set1(w_offset);
    for (int64_t i = 0; i < n; i += 16) {
        vf y = v_mul(get(x + i, tail(n, i)), r);
        put(out + i, w ? v_mul(y, v_add(get(w + i, tail(n, i)), o)) : y, tail(n, i));
    }
}

static void layer_norm(float *out, const float *x, const float *w, const float *b, float eps, int64_t n)
{
    vf mean = v_set1(sum(x, n) / (float)n), s = v_set1(0);
    for (int64_t i = 0; i < n; i += 16) {
        vf d = fill(v_sub(get(x + i, tail(n, i)), mean), tail(n, i), 0);
        s = v_fma(d, d, s);
    }
    vf r = v_set1(inverse_root(v_sum(s) / (float)n + eps));
    for (int64_t i = 0; i < n; i += 16) {
        int m = tail(n, i);
        vf y = v_mul(v_sub(get(x + i, m), mean), r);
        vf scale = w ? get(w + i, m) : v_set1(1.0f);
        put(out + i, b ? v_fma(y, scale, get(b + i, m)) : v_mul(y, scale), m);
    }
}

/* ---- rope ---- */

/* (x, y) -> (x cos - y sin, y cos + x sin): the product with sin is rounded first, then one multiply-add with
 * cos. */
static inline void rotate(vf *x, vf *y, vf c, vf s)
{
    vf a = v_fma(*x, c, v_neg(v_mul(*y, s)));
    *y = v_fma(*y, c, v_mul(*x, s));
    *x = a;
}

static void rope(float *x, int64_t n_heads, int64_t head_dim, int64_t rotary_dim, const float *cosines,
                 const float *sines, int interleaved)
{
    int64_t half = rotary_dim / 2;
    for (int64_t h = 0; h < n_heads; h++, x += head_dim) {
        for (int64_t i = 0; i < half; i += 16) {
            int m = tail(half, i);
            vf c = get(cosines + i, m), s = get(sines + i, m);
            if (interleaved) {
                int m0 = 2 * m < 16 ? 2 * m : 16, m1 = 2 * m - m0;
                float *p = x + 2 * i;
                vf a, b, even, odd;
                a = get(p, m0);
                b = m1 ? get(p + 16, m1) : v_set1(0);
                v_unzip(a, b, &even, &odd);
                rotate(&even, &odd, c, s);
                v_zip(even, odd, &a, &b);
                put(p, a, m0);
                if (m1) put(p + 16, b, m1);
            } else {
                vf a = get(x + i, m), b = get(x + half + i, m);
                rotate(&a, &b, c, s);
                put(x + i, a, m);
                put(x + half + i, b, m);
            }
        }
    }
}

/* ---- conversions ---- */

static void to_f32(qn_dtype from, const void *x, float *out, int64_t n)
{
    if (from == QN_DTYPE_F32) {
        memcpy(out, x, (size_t)n * sizeof *out);
        return;
    }
    const uint16_t *p = x;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        v_store(out + i, from == QN_DTYPE_F16 ? v_load_f16(p + i) : v_load_bf16(p + i));
    if (i < n) {
        uint16_t last[16] = {0};
        memcpy(last, p + i, (size_t)(n - i) * sizeof *p);
        v_store_n(out + i, from == QN_DTYPE_F16 ? v_load_f16(last) : v_load_bf16(last), tail(n, i));
    }
}

static void from_f32(qn_dtype to, const float *x, void *out, int64_t n)
{
    if (to == QN_DTYPE_F32) {
        memcpy(out, x, (size_t)n * sizeof *x);
        return;
    }
    uint16_t *p = out, last[16];
    for (int64_t i = 0; i < n; i += 16) {
        int m = tail(n, i);
        uint16_t *to16 = m == 16 ? p + i : last;
        if (to == QN_DTYPE_F16)
            v_store_f16(to16, get(x + i, m));
        else
            v_store_bf16(to16, get(x + i, m));
        if (m < 16) memcpy(p + i, last, (size_t)m * sizeof *p);
    }
}

#include "device/cpu/kernels/vector/recurrent.body.h"

static void fill_vector(qn_kernels *k)
{
    k->ew[QN_EW_COPY] = ew_COPY;
#define E(name, inputs) k->ew[QN_EW_##name] = ew_##name;
#include "prim/elementwise.def"
    k->ew_chain = ew_chain;
    k->rms_norm = rms_norm;
    k->layer_norm = layer_norm;
    k->rope = rope;
    k->softmax = softmax;
    k->sum = sum;
    k->max = max;
    k->dot = dot;
    k->max_blocks = max_blocks;
    k->sum_exp_blocks = sum_exp_blocks;
    k->exp_scaled = exp_scaled;
    k->collect = collect;
    k->to_f32 = to_f32;
    k->from_f32 = from_f32;
    k->short_conv = short_conv;
    k->gated_delta = gated_delta;
}

#endif
