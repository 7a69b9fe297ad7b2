/* Along one axis: sums, products, extremes and their places, running ones; softmax. NaN comes through: it is
 * the largest and the smallest of what it is among. */
#include "device/mlx/reduce.hpp"

#include <limits>

namespace qn
{

static bool is_float(mx::Dtype type)
{
    return mx::issubdtype(type, mx::floating);
}

/* In which MLX reduces: it widens small integers by itself, and of bool the sum is "any", the product "all".
 */
static mx::array as_number(const mx::array &a)
{
    return a.dtype() == mx::bool_ ? mx::astype(a, mx::int32) : a;
}

mx::array prim_SUM(const call &c)
{
    return mx::astype(mx::sum(as_number(c.in(0)), c.p().reduce.axis, true), c.dtype);
}

mx::array prim_PROD(const call &c)
{
    return mx::astype(mx::prod(as_number(c.in(0)), c.p().reduce.axis, true), c.dtype);
}

/* What comes of no numbers, as in a run without rows, and before the first: what all others are larger than,
 * or smaller, or what changes none of them. */
static mx::array start_of(int how, mx::Dtype type)
{
    const bool is_max = how == QN_SCAN_MAX, has_sign = mx::issubdtype(type, mx::signedinteger);
    if (how == QN_SCAN_SUM || how == QN_SCAN_PROD) return mx::array(how == QN_SCAN_PROD ? 1.0 : 0.0, type);
    if (type == mx::bool_) return mx::array(!is_max);
    const double all = std::numeric_limits<double>::infinity();
    if (is_float(type)) return mx::array(is_max ? -all : all, type);
    const uint64_t most = UINT64_MAX >> (64 - 8 * mx::size_of(type) + has_sign), least = has_sign ? ~most : 0;
    return mx::astype(mx::array(is_max ? least : most, mx::uint64), type);
}

static mx::array extreme(const call &c, bool is_max)
{
    const mx::array &a = c.in(0);
    const int axis = c.p().reduce.axis;
    if (a.size() == 0) return mx::full(c.shape, start_of(is_max ? QN_SCAN_MAX : QN_SCAN_MIN, c.dtype));
    if (a.dtype() == mx::bool_) return is_max ? mx::any(a, axis, true) : mx::all(a, axis, true);
    return is_max ? mx::max(a, axis, true) : mx::min(a, axis, true);
}

mx::array prim_MAX(const call &c)
{
    return extreme(c, true);
}

mx::array prim_MIN(const call &c)
{
    return extreme(c, false);
}

/* ---- places ------------------------------------------------------------------------------------------- */

mx::array rising_key(const mx::array &a, bool nan_first)
{
    if (a.dtype() == mx::bool_) return mx::astype(a, mx::uint8);
    if (!is_float(a.dtype())) return a;
    const bool wide = a.dtype() == mx::float64;
    const mx::Dtype type = wide ? mx::uint64 : mx::uint32;
    const mx::array sign(wide ? UINT64_C(1) << 63 : UINT64_C(1) << 31, type);
    /* all zeros are one number */
    const mx::array bits =
        mx::view(mx::where(mx::equal(a, mx::array(0.0, a.dtype())), mx::array(0.0, a.dtype()), a), type);
    const mx::array negative = mx::greater_equal(bits, sign);
    const mx::array key = mx::where(negative, mx::bitwise_invert(bits), mx::bitwise_or(bits, sign));
    const mx::array nan = nan_first ? mx::array(0, type) : mx::array(wide ? UINT64_MAX : UINT32_MAX, type);
    return mx::where(mx::isnan(a), nan, key);
}

/* The first of the largest or smallest; the first NaN where there is one. */
mx::array prim_ARG_MAX(const call &c)
{
    const int axis = c.p().reduce.axis, least = c.p().reduce.least;
    if (c.in(0).size() == 0) return mx::zeros(c.shape, c.dtype);
    const mx::array key = rising_key(c.in(0), least != 0);
    return mx::astype(least ? mx::argmin(key, axis, true) : mx::argmax(key, axis, true), c.dtype);
}

/* ---- running ------------------------------------------------------------------------------------------ */

static mx::array running(const mx::array &a, const decltype(qn_params::scan) &p)
{
    const bool reverse = p.reverse != 0, inclusive = p.exclusive == 0;
    switch (p.how) {
    case QN_SCAN_SUM:
        return mx::cumsum(a, p.axis, reverse, inclusive);
    case QN_SCAN_PROD:
        return mx::cumprod(a, p.axis, reverse, inclusive);
    case QN_SCAN_MAX:
        return mx::cummax(a, p.axis, reverse, inclusive);
    default:
        return mx::cummin(a, p.axis, reverse, inclusive);
    }
}

/* From the first NaN on all is NaN, which not every version and back end has of extremes. */
static mx::array running_real(const mx::array &a, decltype(qn_params::scan) p)
{
    if (p.how == QN_SCAN_SUM || p.how == QN_SCAN_PROD) return running(a, p);
    const mx::array bad = mx::isnan(a), extremes = running(mx::where(bad, start_of(p.how, a.dtype()), a), p);
    p.how = QN_SCAN_SUM;
    const mx::array n_bad = running(mx::astype(bad, mx::int32), p);
    const mx::array nan(std::numeric_limits<double>::quiet_NaN(), a.dtype());
    return mx::where(mx::greater(n_bad, mx::array(0, mx::int32)), nan, extremes);
}

mx::array prim_SCAN(const call &c)
{
    const auto &p = c.p().scan;
    mx::array a = c.in(0);
    /* of one number, which may have the stride 0, MLX 0.31 divides by that */
    if (a.size() == 0 || a.shape(p.axis) == 1)
        return p.exclusive ? mx::full(c.shape, start_of(p.how, c.dtype)) : a;
    if (a.dtype() == mx::bool_) a = mx::astype(a, p.how <= QN_SCAN_PROD ? mx::int32 : mx::uint8);
    return mx::astype(is_float(a.dtype()) ? running_real(a, p) : running(a, p), c.dtype);
}

/* A row of -inf alone gives zeros. */
static mx::array shares(const mx::array &x)
{
    if (x.size() == 0) return x;
    const mx::array nothing(-std::numeric_limits<float>::infinity());
    return mx::where(mx::equal(mx::max(x, -1, true), nothing), mx::array(0.0f), mx::softmax(x, -1, true));
}

mx::array prim_SOFTMAX(const call &c)
{
    return shares(c.in(0));
}

mx::array prim_SINKHORN(const call &c)
{
    const auto &p = c.p().sinkhorn;
    const mx::array eps(p.eps);
    if (c.in(0).size() == 0) return c.in(0);
    mx::array m = mx::add(shares(c.in(0)), eps);
    m = mx::divide(m, mx::add(mx::sum(m, -2, true), eps));
    for (int i = 1; i < p.n_turns; i++) {
        m = mx::divide(m, mx::add(mx::sum(m, -1, true), eps));
        m = mx::divide(m, mx::add(mx::sum(m, -2, true), eps));
    }
    return m;
}

} // namespace qn
