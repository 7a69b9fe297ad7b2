/* Tensor cores on the host: fragments of a whole warp at once. The sum is that of ../tensor_step.h, computed with
 * floats that are powers of two in place of exponents, which vectorises: 1 us for a product of fragments. What has
 * an infinity or no number in it takes the plain function. Compiled without sanitizers (tools/make/cuda.mk). */
#include "device/cuda/product/half2.cuh"
#include "device/cuda/product/mma.cuh"
#include "device/cuda/product/tensor_step.h"

enum { M = 16, N = 8, K = 16, FRACTION = 23 + QN_TENSOR_EXTRA_BITS };
static_assert(QN_TENSOR_EXTRA_BITS <= 2, "sums of 16 products are 32-bit integers");

namespace
{
/* Of a warp's operands, k first in b: value, 2^exponent (0 for a 0), and the bits. */
struct operands {
    float a[M][K], a_power[M][K], b[K][N], b_power[K][N], c[M][N];
    uint16_t a_bits[M][K], b_bits[N][K];
    int a_special[M], b_special[N]; /* an infinity or no number is in the row, the column */
};
} // namespace

static float power_of(uint16_t h)
{
    const uint32_t field = h >> 10 & 31;
    return h & 0x7fffu ? qn_cuda_bits_float(((field ? field : 1) + 112) << 23) : 0;
}

static void set_a(operands *o, int row, int k, uint16_t h)
{
    o->a_bits[row][k] = h;
    o->a[row][k] = qn_cuda_half_value(h);
    o->a_power[row][k] = power_of(h);
    o->a_special[row] |= (h & 0x7c00u) == 0x7c00u;
}

static void set_b(operands *o, int k, int column, uint16_t h)
{
    o->b_bits[column][k] = h;
    o->b[k][column] = qn_cuda_half_value(h);
    o->b_power[k][column] = power_of(h);
    o->b_special[column] |= (h & 0x7c00u) == 0x7c00u;
}

static void gather(operands *o, void *const *args)
{
    memset(o->a_special, 0, sizeof o->a_special);
    memset(o->b_special, 0, sizeof o->b_special);
    for (int lane = 0; lane < 32; lane++) {
        const qn_emulated_fragments *f = (const qn_emulated_fragments *)args[lane];
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 8; i++)
            set_a(o, g + i / 2 % 2 * 8, 2 * t + i % 2 + i / 4 * 8, (uint16_t)(f->a[i / 2] >> 16 * (i % 2)));
        for (int i = 0; i < 4; i++)
            set_b(o, 2 * t + i % 2 + i / 2 * 8, g, (uint16_t)(f->b[i / 2] >> 16 * (i % 2)));
        for (int i = 0; i < 4; i++) o->c[g + i / 2 * 8][2 * t + i % 2] = f->d[i];
    }
}

/* sum * unit, cut to a f32. unit is a power of two. */
static float cut(int64_t sum, float unit)
{
    uint64_t m = sum < 0 ? (uint64_t)-sum : (uint64_t)sum;
    if (m >> 24) {
        const int drop = 40 - __builtin_clzll(m);
        m = m >> drop << drop;
    }
    const float x = (float)(int64_t)m * unit;
    return sum < 0 ? -x : x;
}

/* Products k, k + 1, ... of a row; into c[N]. */
static void row_sums(const operands *o, int row, int first_k, float *c)
{
    float largest[N], scale[N], products[N];
    int32_t sums[N], c_sums[N];
    for (int n = 0; n < N; n++) products[n] = 0;
    for (int k = first_k; k < first_k + QN_TENSOR_PRODUCTS; k++) {
        const float power = o->a_power[row][k];
        for (int n = 0; n < N; n++) {
            const float p = power * o->b_power[k][n];
            products[n] = p > products[n] ? p : products[n];
        }
    }
    for (int n = 0; n < N; n++) {
        const float power =
            qn_cuda_bits_float(qn_cuda_float_bits(c[n]) & 0x7f800000u); /* 0: c does not count */
        largest[n] = power > products[n] ? power : products[n];
        if (products[n] == 0) largest[n] = 1;
        scale[n] = qn_cuda_bits_float((uint32_t)((FRACTION + 254) << 23) - qn_cuda_float_bits(largest[n]));
        c_sums[n] = products[n] == 0 ? 0 : (int32_t)(c[n] * scale[n]);
        sums[n] = 0;
    }
    for (int k = first_k; k < first_k + QN_TENSOR_PRODUCTS; k++) {
        const float a = o->a[row][k];
        for (int n = 0; n < N; n++) sums[n] += (int32_t)(a * o->b[k][n] * scale[n]);
    }
    for (int n = 0; n < N; n++) {
        const float unit = largest[n] * (1.0f / (1 << FRACTION));
        c[n] = products[n] == 0 ? c[n] + 0.0f : cut((int64_t)sums[n] + c_sums[n], unit);
    }
}

static int is_special(float c)
{
    return (qn_cuda_float_bits(c) & 0x7f800000u) == 0x7f800000u;
}

void qn_emulated_multiply(void *const *args, int n_lanes)
{
    operands o;
    (void)n_lanes;
    gather(&o, args);
    for (int row = 0; row < M; row++) {
        float c[N], safe[N];
        for (int n = 0; n < N; n++) c[n] = o.c[row][n], safe[n] = is_special(c[n]) ? 0 : c[n];
        if (!o.a_special[row])
            for (int k = 0; k < K; k += QN_TENSOR_PRODUCTS) row_sums(&o, row, k, safe);
        for (int n = 0; n < N; n++) {
            const int is_plain = !o.a_special[row] && !o.b_special[n] && !is_special(c[n]);
            const float x = is_plain ? safe[n] : qn_tensor_step(c[n], o.a_bits[row], o.b_bits[n]);
            const qn_emulated_fragments *f = (const qn_emulated_fragments *)args[row % 8 * 4 + n / 2];
            f->d[row / 8 * 2 + n % 2] = x;
        }
    }
}

void qn_emulated_mma(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    qn_emulated_fragments mine = {d, a, b};
    qn_emulated_warp("mma", &mine, qn_emulated_multiply);
}

/* ---- ldmatrix ------------------------------------------------------------------------------------------ */

namespace
{
struct rows {
    uint32_t *r;
    const uint16_t *row;
};
} // namespace

static void load(void *const *args, int is_transposed)
{
    uint32_t out[32][4];
    for (int lane = 0; lane < 32; lane++) {
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; i++) {
            uint16_t pair[2];
            for (int j = 0; j < 2; j++) {
                const int row = is_transposed ? 2 * t + j : g, column = is_transposed ? g : 2 * t + j;
                pair[j] = ((const rows *)args[8 * i + row])->row[column];
            }
            out[lane][i] = pair[0] | (uint32_t)pair[1] << 16;
        }
    }
    for (int lane = 0; lane < 32; lane++) memcpy(((const rows *)args[lane])->r, out[lane], sizeof out[lane]);
}

static void load_rows(void *const *args, int n_lanes)
{
    (void)n_lanes;
    load(args, 0);
}

static void load_columns(void *const *args, int n_lanes)
{
    (void)n_lanes;
    load(args, 1);
}

void qn_emulated_ldmatrix(uint32_t r[4], const void *row, int is_transposed)
{
    rows mine = {r, (const uint16_t *)row};
    qn_emulated_warp(is_transposed ? "ldmatrix.trans" : "ldmatrix", &mine,
                     is_transposed ? load_columns : load_rows);
}

/* ---- pairs of f16 -------------------------------------------------------------------------------------- */

/* A sum of two doubles rounded to odd, then to f16: as if it was rounded once. */
static uint16_t round_sum(double x, double y)
{
    const double sum = x + y, x_part = sum - y, rest = (x - x_part) + (y - (sum - x_part));
    double odd = sum;
    uint64_t u;
    memcpy(&u, &sum, sizeof u);
    if (rest == rest && rest != 0 && !(u & 1)) {
        u += (rest > 0) == (sum > 0) ? 1 : (uint64_t)-1;
        memcpy(&odd, &u, sizeof odd);
    }
    float f = (float)odd; /* to f32, again to odd: f16 has 13 bits less */
    if ((double)f != odd && f == f && !is_special(f)) {
        uint32_t v = qn_cuda_float_bits(f);
        const double size = odd < 0 ? -odd : odd, f_size = f < 0 ? -(double)f : (double)f;
        if (f_size > size) v--;
        f = qn_cuda_bits_float(v | 1);
    }
    return qn_cuda_to_half(f);
}

uint32_t qn_emulated_half2(char operation, uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t out = 0;
    for (int i = 0; i < 32; i += 16) {
        const float x = qn_cuda_half_value((uint16_t)(a >> i)), y = qn_cuda_half_value((uint16_t)(b >> i));
        uint16_t h;
        switch (operation) {
        case '-':
            h = qn_cuda_to_half(x - y);
            break; /* f32 has more than twice the bits: rounding twice is once */
        case '*':
            h = qn_cuda_to_half(x * y);
            break;
        default:
            h = round_sum((double)x * y, qn_cuda_half_value((uint16_t)(c >> i)));
        }
        out |= (uint32_t)h << i;
    }
    return out;
}
