/* CAST: the rules of prim/convert.h, where MLX's own conversion is C's. */
#include "device/mlx/shim.hpp"

#include <cmath>

namespace qn
{

static bool is_float(mx::Dtype type)
{
    return mx::issubdtype(type, mx::floating);
}

static bool is_half(mx::Dtype type)
{
    return type == mx::float16 || type == mx::bfloat16;
}

static int bits_of(mx::Dtype type)
{
    return 8 * static_cast<int>(mx::size_of(type));
}

/* Cut toward zero, NaN 0, and the nearest that there is for what lies outside: C's conversion sees numbers
 * inside alone. The limits of many bits are not numbers of a float, so the first ones outside are looked at.
 */
static mx::array to_integer(const mx::array &a, mx::Dtype to)
{
    const mx::array x = is_half(a.dtype()) ? mx::astype(a, mx::float32) : a;
    const bool has_sign = mx::issubdtype(to, mx::signedinteger);
    const int bits = bits_of(to);
    const mx::array high(std::ldexp(1.0, bits - (has_sign ? 1 : 0)), x.dtype()),
        low(has_sign ? -std::ldexp(1.0, bits - 1) : 0.0, x.dtype());
    const uint64_t all = UINT64_MAX >> (64 - bits);
    const mx::array most = mx::astype(mx::array(has_sign ? all >> 1 : all, mx::uint64), to),
                    least = mx::astype(mx::array(has_sign ? ~(all >> 1) : 0, mx::uint64), to);
    const mx::array above = mx::greater_equal(x, high), below = mx::less_equal(x, low);
    const mx::array outside = mx::logical_or(mx::logical_or(above, below), mx::isnan(x));
    const mx::array inside = mx::astype(mx::where(outside, mx::array(0.0, x.dtype()), x), to);
    return mx::where(above, most, mx::where(below, least, inside));
}

/* In f32, whose last bit says whether anything was cut off: rounding that to fewer bits is rounding once. */
static mx::array cut_f64(const mx::array &d)
{
    const mx::array f = mx::astype(d, mx::float32), back = mx::astype(f, mx::float64);
    const mx::array bits = mx::view(f, mx::uint32), one(1u, mx::uint32);
    const mx::array same = mx::logical_or(mx::equal(back, d), mx::isnan(d));
    const mx::array toward_zero = mx::where(mx::greater(mx::abs(back), mx::abs(d)), bits - one, bits);
    return mx::view(mx::where(same, bits, mx::bitwise_or(toward_zero, one)), mx::float32);
}

/* The same of integers: 8 bits are cut as long as f32 does not hold the number. */
static mx::array cut_integer(const mx::array &a)
{
    const bool has_sign = mx::issubdtype(a.dtype(), mx::signedinteger);
    const auto word = [](uint64_t x) { return mx::array(x, mx::uint64); };
    const mx::array wide = mx::astype(a, has_sign ? mx::int64 : mx::uint64),
                    bits = has_sign ? mx::view(wide, mx::uint64) : wide;
    const mx::array negative = has_sign ? mx::less(wide, mx::array(0, mx::int64)) : mx::array(false);
    mx::array u = mx::where(negative, word(0) - bits, bits), scale(1.0f);
    for (int left = bits_of(a.dtype()); left > 24; left -= 8) {
        const mx::array large = mx::greater_equal(u, word(1u << 24));
        const mx::array lost = mx::not_equal(mx::bitwise_and(u, word(0xff)), word(0));
        const mx::array cut = mx::bitwise_or(mx::right_shift(u, word(8)), mx::astype(lost, mx::uint64));
        u = mx::where(large, cut, u);
        scale = scale * mx::where(large, mx::array(256.0f), mx::array(1.0f));
    }
    const mx::array f = mx::astype(u, mx::float32) * scale;
    return mx::where(negative, mx::negative(f), f);
}

static mx::array to_half(const mx::array &a, mx::Dtype to)
{
    if (a.dtype() == mx::float64) return mx::astype(cut_f64(a), to);
    if (is_float(a.dtype())) return mx::astype(mx::astype(a, mx::float32), to);
    return mx::astype(bits_of(a.dtype()) > 24 ? cut_integer(a) : mx::astype(a, mx::float32), to);
}

mx::array prim_CAST(const call &c)
{
    const mx::array &a = c.in(0);
    const mx::Dtype to = c.dtype;
    if (a.dtype() == to) return a;
    if (to == mx::bool_) return mx::not_equal(a, mx::array(0.0, a.dtype()));
    if (is_half(to)) return to_half(a, to);
    return is_float(a.dtype()) && !is_float(to) ? to_integer(a, to) : mx::astype(a, to);
}

} // namespace qn
