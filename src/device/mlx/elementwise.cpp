/* Element-wise primitives by themselves and in chains, comparisons, choices, copies and dropout. What they
 * give is what device/cpu/typed.c and device/cpu/kernels/vector/elementwise.body.h say: integers wrap around, what
 * is divided by 0 gives 0, quotients are rounded down, NaN comes through. */
#include "device/mlx/shim.hpp"

#include <cmath>

namespace qn
{

static mx::array number(double value, mx::Dtype type)
{
    return mx::array(value, type);
}

static mx::array like(const mx::array &a, double value)
{
    return number(value, a.dtype());
}

/* ---- f64 ---------------------------------------------------------------------------------------------- */

/* MLX computes exp, sin, cos, erf and sigmoid of f64 in f32. What it takes from the C library in double is
 * made use of instead. */

/* (1 + expm1(x / 2))^2, by the reciprocal where x is negative, since 1 + expm1 would cancel there. */
static mx::array wide_exp(const mx::array &a)
{
    const mx::array half = a * like(a, 0.5), up = mx::expm1(mx::abs(half)) + like(a, 1);
    return mx::square(mx::where(half < like(a, 0), mx::reciprocal(up), up));
}

/* By t = tan(x / 2): sin = 2 t / (1 + t^2), cos = (1 - t^2) / (1 + t^2). */
static mx::array wide_sin(const mx::array &a)
{
    const mx::array t = mx::tan(a * like(a, 0.5));
    return like(a, 2) * t / (like(a, 1) + mx::square(t));
}

static mx::array wide_cos(const mx::array &a)
{
    const mx::array squared = mx::square(mx::tan(a * like(a, 0.5)));
    return (like(a, 1) - squared) / (like(a, 1) + squared);
}

/* 2 / sqrt(pi) exp(-x^2) times the sum of 2^n x^(2 n + 1) / (1 3 5 .. (2 n + 1)), all of one sign. From 6
 * on it is 1, and there the sum needs 130 terms. */
static mx::array wide_erf(const mx::array &a)
{
    const double two_over_root_pi = 1.12837916709551257390;
    const mx::array x = mx::maximum(mx::minimum(a, like(a, 6)), like(a, -6)), z = mx::square(x);
    mx::array term = x, sum = x;
    for (int n = 1; n < 130; n++) {
        term = term * z * like(a, 2.0 / (2 * n + 1));
        sum = sum + term;
    }
    const mx::array inner = like(a, two_over_root_pi) * wide_exp(mx::negative(z)) * sum;
    return mx::where(mx::abs(a) >= like(a, 6), mx::sign(a), inner);
}

/* ---- functions that MLX has not, or less exactly ------------------------------------------------------- */

/* MLX's CPU knows exp between -88 and 88 alone, which leaves room for squares. */
static mx::array exp_of(const mx::array &a)
{
    if (a.dtype() == mx::float64) return wide_exp(a);
    return on_gpu() ? mx::exp(a) : mx::square(mx::exp(a * like(a, 0.5)));
}

/* Before 0.32.4, MLX's CPU knew numbers up to some 10^7 alone. */
static bool turns_in_f64(const mx::array &a)
{
#if MLX_VERSION_NUMERIC < 32004
    return a.dtype() == mx::float64 || !on_gpu();
#else
    return a.dtype() == mx::float64;
#endif
}

static mx::array sin_of(const mx::array &a)
{
    return turns_in_f64(a) ? mx::astype(wide_sin(mx::astype(a, mx::float64)), a.dtype()) : mx::sin(a);
}

static mx::array cos_of(const mx::array &a)
{
    return turns_in_f64(a) ? mx::astype(wide_cos(mx::astype(a, mx::float64)), a.dtype()) : mx::cos(a);
}

/* MLX's has an absolute error of 1.5e-7 on the CPU: near 0 the polynomial of
 * device/cpu/kernels/math.body.h. */
static mx::array erf_of(const mx::array &a)
{
    if (a.dtype() == mx::float64) return wide_erf(a);
    const mx::array z = mx::square(a);
    mx::array p = like(a, -0.000598021375);
    for (double c : {0.00499176187, -0.0267662313, 0.112818271, -0.376124978, 0.128379151})
        p = p * z + like(a, c);
    return mx::where(mx::abs(a) < like(a, 0.92), p * a + a, mx::erf(a));
}

static mx::array sigmoid_of(const mx::array &a)
{
    if (a.dtype() != mx::float64) return mx::sigmoid(a);
    return mx::reciprocal(like(a, 1) + wide_exp(mx::negative(a)));
}

static mx::array softplus_of(const mx::array &a)
{
    return mx::maximum(a, like(a, 0)) + mx::log1p(exp_of(mx::negative(mx::abs(a))));
}

static mx::array gelu_of(const mx::array &a)
{
    const mx::array inner = a * like(a, 0.70710678118654752440);
    const mx::array erf = a.dtype() == mx::float64 ? wide_erf(inner) : mx::erf(inner);
    return like(a, 0.5) * a * (like(a, 1) + erf);
}

/* x / 2 (1 + tanh(u)) = x sigmoid(2 u), with u = sqrt(2 / pi) (x + 0.044715 x^3) */
static mx::array gelu_tanh_of(const mx::array &a)
{
    const double two_roots = 1.59576912160573071176; /* 2 sqrt(2 / pi) */
    const mx::array u = a * (like(a, two_roots * 0.044715) * mx::square(a) + like(a, two_roots));
    return a * sigmoid_of(u);
}

static mx::array real(qn_prim prim, const mx::array &a, const mx::array &b)
{
    switch (prim) {
    case QN_PRIM_NEG:
        return mx::negative(a);
    case QN_PRIM_ABS:
        return mx::abs(a);
    case QN_PRIM_EXP:
        return exp_of(a);
    case QN_PRIM_LOG:
        return mx::log(a);
    case QN_PRIM_SQRT:
        return mx::sqrt(a);
    case QN_PRIM_RSQRT:
        return mx::rsqrt(a);
    case QN_PRIM_SQUARE:
        return mx::square(a);
    case QN_PRIM_RECIP:
        return mx::reciprocal(a);
    case QN_PRIM_SIN:
        return sin_of(a);
    case QN_PRIM_COS:
        return cos_of(a);
    case QN_PRIM_TANH:
        return mx::tanh(a);
    case QN_PRIM_ERF:
        return erf_of(a);
    case QN_PRIM_SIGMOID:
        return sigmoid_of(a);
    case QN_PRIM_SOFTPLUS:
        return softplus_of(a);
    case QN_PRIM_SILU:
        return a * sigmoid_of(a);
    case QN_PRIM_GELU:
        return gelu_of(a);
    case QN_PRIM_GELU_TANH:
        return gelu_tanh_of(a);
    case QN_PRIM_RELU:
        return mx::maximum(a, like(a, 0));
    case QN_PRIM_FLOOR:
        return mx::floor(a);
    case QN_PRIM_ROUND:
        return mx::round(a);
    case QN_PRIM_LOG1P:
        return mx::log1p(a);
    case QN_PRIM_EXPM1:
        return mx::expm1(a);
    case QN_PRIM_ADD:
        return mx::add(a, b);
    case QN_PRIM_SUB:
        return mx::subtract(a, b);
    case QN_PRIM_MUL:
        return mx::multiply(a, b);
    case QN_PRIM_DIV:
        return mx::divide(a, b);
    case QN_PRIM_MAXIMUM:
        return mx::maximum(a, b);
    case QN_PRIM_MINIMUM:
        return mx::minimum(a, b);
    case QN_PRIM_POW:
        return mx::power(a, b);
    default:
        throw failure(QN_E_INTERNAL, "an element-wise primitive of another kind");
    }
}

/* ---- integers ----------------------------------------------------------------------------------------- */

static bool is_unsigned(mx::Dtype type)
{
    return mx::issubdtype(type, mx::unsignedinteger);
}

static mx::array negated(const mx::array &a)
{
    return mx::subtract(like(a, 0), a);
}

/* Rounded down, whether MLX's own quotient is, as it is in some versions and back ends, or is cut. Divisors
 * that end a process, 0, and -1 under the smallest number, are never handed to it. */
static mx::array quotient(const mx::array &a, const mx::array &b)
{
    const mx::array zero = like(a, 0), one = like(a, 1), by_zero = mx::equal(b, zero);
    if (is_unsigned(a.dtype()))
        return mx::where(by_zero, zero, mx::floor_divide(a, mx::where(by_zero, one, b)));
    const mx::array by_minus_one = mx::equal(b, like(a, -1));
    const mx::array divisor = mx::where(mx::logical_or(by_zero, by_minus_one), one, b);
    const mx::array q = mx::floor_divide(a, divisor), rest = a - q * divisor;
    const mx::array above =
        mx::logical_and(mx::not_equal(rest, zero), mx::not_equal(mx::less(rest, zero), mx::less(b, zero)));
    const mx::array down = mx::where(above, q - one, q);
    return mx::where(by_zero, zero, mx::where(by_minus_one, negated(a), down));
}

/* To the power of n < 0: 1 / a^-n without its fraction. */
static mx::array whole_power(const mx::array &a, const mx::array &n)
{
    if (is_unsigned(a.dtype())) return mx::power(a, n);
    const mx::array zero = like(a, 0), one = like(a, 1), below = mx::less(n, zero);
    const mx::array sign = one - like(a, 2) * mx::bitwise_and(n, one);
    const mx::array fraction =
        mx::where(mx::equal(a, one), one, mx::where(mx::equal(a, like(a, -1)), sign, zero));
    return mx::where(below, fraction, mx::power(a, mx::where(below, zero, n)));
}

static mx::array integer(qn_prim prim, const mx::array &a, const mx::array &b)
{
    const bool no_sign = is_unsigned(a.dtype());
    switch (prim) {
    case QN_PRIM_NEG:
        return negated(a);
    case QN_PRIM_ABS:
        return no_sign ? a : mx::where(mx::less(a, like(a, 0)), negated(a), a);
    case QN_PRIM_SQUARE:
        return mx::multiply(a, a);
    case QN_PRIM_RELU:
        return no_sign ? a : mx::maximum(a, like(a, 0));
    case QN_PRIM_FLOOR:
    case QN_PRIM_ROUND:
        return a;
    case QN_PRIM_DIV:
        return quotient(a, b);
    case QN_PRIM_POW:
        return whole_power(a, b);
    default:
        return real(prim, a, b);
    }
}

mx::array elementwise(qn_prim prim, const mx::array &a, const mx::array *b)
{
    const mx::array &other = b ? *b : a;
    if (a.dtype() == mx::bool_)
        return prim == QN_PRIM_MAXIMUM ? mx::logical_or(a, other) : mx::logical_and(a, other);
    return mx::issubdtype(a.dtype(), mx::integer) ? integer(prim, a, other) : real(prim, a, other);
}

/* ---- chains ------------------------------------------------------------------------------------------- */

typedef decltype(qn_params::fused) fused;

static const int inputs_of[QN_PRIM_COUNT] = {
#define S(name) 0,
#define E(name, inputs) inputs,
#define P(name, rows) 0,
#include "prim/primitives.def"
};

static std::vector<mx::array> chain(const fused &f, const std::vector<mx::array> &in)
{
    std::vector<mx::array> results;
    for (int i = 0; i < f.n; i++) {
        const qn_fused_op &op = f.op[i];
        const auto operand = [&](int8_t at) { return at >= 0 ? results[at] : in[~at]; };
        const mx::array a = operand(op.a);
        if (inputs_of[op.op] == 1) {
            results.push_back(elementwise(static_cast<qn_prim>(op.op), a, nullptr));
            continue;
        }
        const mx::array b = operand(op.b);
        results.push_back(elementwise(static_cast<qn_prim>(op.op), a, &b));
    }
    return {results.back()};
}

/* Inputs that are all narrow are computed so; else all of f32 are wide. */
std::vector<mx::array> together(const call &c)
{
    std::vector<mx::array> in;
    bool narrow = true;
    for (int i = 0; i < c.n(); i++) narrow = narrow && c.is_narrow(i);
    for (int i = 0; i < c.n(); i++)
        in.push_back(!narrow && c.is_narrow(i) ? mx::astype(c.in(i), mx::float32) : c.in(i));
    return in;
}

/* Compiled without shapes, so that one kernel serves all numbers of rows; inputs have the result's shape in
 * every run, whatever repeats in them. */
mx::array prim_FUSED(const call &c)
{
    std::vector<mx::array> in = together(c);
    const fused f = c.p().fused;
    if (!compiles || f.n < 2) return chain(f, in)[0];
    qn_mlx_memo *&memo = *c.step.memo;
    if (!memo) {
        memo = new qn_mlx_memo{};
        memo->compiled = mx::compile([f](const std::vector<mx::array> &x) { return chain(f, x); }, true);
    }
    return memo->compiled(in)[0];
}

/* ---- moved, compared, chosen -------------------------------------------------------------------------- */

mx::array prim_COPY(const call &c)
{
    return mx::contiguous(c.in(0));
}

mx::array prim_COMPARE(const call &c)
{
    const mx::array &a = c.in(0), &b = c.in(1);
    switch (c.p().compare.which) {
    case QN_COMPARE_EQ:
        return mx::equal(a, b);
    case QN_COMPARE_NE:
        return mx::not_equal(a, b);
    case QN_COMPARE_LT:
        return mx::less(a, b);
    default:
        return mx::less_equal(a, b);
    }
}

mx::array prim_SELECT(const call &c)
{
    return mx::where(c.in(0), c.in(1), c.in(2)); /* of a narrow and a wide one a wide one */
}

mx::array prim_CONCAT(const call &c)
{
    std::vector<mx::array> parts;
    for (int i = 0; i < c.n(); i++)
        if (c.in(i).size() > 0) parts.push_back(c.in(i));
    return parts.empty() ? mx::zeros(c.shape, c.dtype) : mx::concatenate(std::move(parts), -1);
}

/* ---- dropout ------------------------------------------------------------------------------------------ */

static mx::array word(uint64_t x)
{
    return mx::array(x, mx::uint64);
}

/* qn_random_bits of base/random.h, of seeds and positions u64. */
static mx::array random_bits(const mx::array &seed, const mx::array &position)
{
    mx::array z = seed * word(0x9e3779b97f4a7c15u) + position;
    const auto folded = [&](uint64_t shift) { return mx::bitwise_xor(z, mx::right_shift(z, word(shift))); };
    for (int i = 0; i < 2; i++) {
        z = z + word(0x9e3779b97f4a7c15u);
        z = folded(30) * word(0xbf58476d1ce4e5b9u);
        z = folded(27) * word(0x94d049bb133111ebu);
        z = folded(31);
    }
    return z;
}

/* Place i has bits i % 4 * 16 and on of draw i / 4, as device/cpu/dropout.c. */
mx::array prim_DROPOUT(const call &c)
{
    const mx::array &x = c.in(0), key = mx::astype(mx::view(c.in(1), mx::uint32), mx::uint64);
    if (x.size() == 0) return x;
    const auto part = [&](int i) { return mx::slice(key, {i}, {i + 1}); };
    const float rate = c.p().dropout.rate, factor = 1 / (1 - rate);
    const uint32_t below = static_cast<uint32_t>(rate * (1 << 16) + 0.5f);
    const int64_t draws = (static_cast<int64_t>(x.size()) + 3) / 4;
    c.room(draws, 8);
    const mx::array seed = random_bits(mx::bitwise_or(mx::left_shift(part(0), word(32)), part(1)),
                                       word(static_cast<uint64_t>(c.p().dropout.stream)));
    const mx::array drawn = random_bits(seed, mx::arange(0.0, static_cast<double>(draws), mx::uint64));
    const mx::array bits =
        mx::reshape(mx::slice(mx::view(drawn, mx::uint16), {0}, {static_cast<int>(x.size())}), x.shape());
    const mx::array dropped = mx::less(mx::astype(bits, mx::uint32), mx::array(below, mx::uint32));
    const mx::array kept = mx::where(dropped, like(x, 0), x * like(x, factor));
    return mx::where(mx::equal(part(2), word(0)), x, kept);
}

} // namespace qn
