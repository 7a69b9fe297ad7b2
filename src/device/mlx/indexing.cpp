/* Rows by ids, elements along a row, parts that are replaced, orders. Ids that come from a user are checked
 * before they get here. */
#include "device/mlx/reduce.hpp"

namespace qn
{

/* ---- rows --------------------------------------------------------------------------------------------- */

mx::array prim_TAKE(const call &c)
{
    const mx::array &ids = c.in(1);
    if (ids.size() == 0) return mx::zeros(c.shape, c.dtype);
    const mx::Dtype type = c.narrow && c.dtype == mx::float32 ? *c.narrow : c.dtype;
    if (const qn_mlx_weight *w = c.weight(0))
        return mx::astype(rows_of(*w, ids, type == c.dtype ? mx::float32 : type), type);
    const mx::array rows = mx::take(c.in(0), ids, 0);
    return c.is_narrow(0) ? rows : mx::astype(rows, c.dtype);
}

/* What add makes of zeros and x. MLX's GPUs add no integers of 64 bits: these are added as four of 16, whose sums have
 * 32 bits for `most` of them, and the sums together are those of 64 bits, which wrap. */
template <class Add> static mx::array added_up(const call &c, const mx::array &x, int64_t most, Add add)
{
    const mx::array zeros = mx::zeros(c.shape, c.dtype);
    if (x.size() == 0 || zeros.size() == 0) return zeros;
    if (!on_gpu() || mx::size_of(c.dtype) != 8) return add(zeros, x);
    if (most > 65536) throw failure(QN_E_UNSUPPORTED, "a GPU adds up to 65536 integers of 64 bits");
    const mx::array bits = mx::astype(x, mx::uint64), none = mx::zeros(c.shape, mx::uint32);
    std::optional<mx::array> sum;
    for (uint64_t shift = 0; shift < 64; shift += 16) {
        const mx::array by(shift, mx::uint64), low(uint64_t{0xffff}, mx::uint64);
        const mx::array part = mx::astype(mx::bitwise_and(mx::right_shift(bits, by), low), mx::uint32);
        const mx::array all = mx::left_shift(mx::astype(add(none, part), mx::uint64), by);
        sum = sum ? mx::add(*sum, all) : all;
    }
    return mx::astype(*sum, c.dtype);
}

/* In rising row order on the CPU; what is summed is bool nowhere, types.c sees to it. */
mx::array prim_SCATTER_ADD(const call &c)
{
    return added_up(c, c.in(0), c.in(0).shape(0), [&](const mx::array &into, const mx::array &x) {
        return mx::scatter_add(into, c.in(1), mx::expand_dims(x, 1), 0);
    });
}

/* ---- along a row -------------------------------------------------------------------------------------- */

mx::array prim_TAKE_ALONG(const call &c)
{
    if (c.in(1).size() == 0) return mx::zeros(c.shape, c.dtype);
    return mx::take_along_axis(c.in(0), c.in(1), 1);
}

mx::array prim_SCATTER_ALONG(const call &c)
{
    return added_up(c, c.in(0), c.in(0).shape(1), [&](const mx::array &into, const mx::array &x) {
        return mx::scatter_add_axis(into, c.in(1), x, 1);
    });
}

/* The largest j of those that write to a place; ids outside of the row write nowhere. */
mx::array prim_LAST_WRITER(const call &c)
{
    const mx::array &ids = c.in(0), nobody = mx::full(c.shape, -1, mx::int32);
    if (ids.size() == 0 || nobody.size() == 0) return nobody;
    const int rows = ids.shape(0), k = ids.shape(1);
    const mx::array zero(0, mx::int32), end(c.shape[1], mx::int32);
    const mx::array inside = mx::logical_and(mx::greater_equal(ids, zero), mx::less(ids, end));
    const mx::array j = mx::where(inside, mx::reshape(mx::arange(k), {1, k}), mx::array(-1, mx::int32));
    const std::vector<mx::array> places = {
        mx::broadcast_to(mx::reshape(mx::arange(rows), {rows, 1}), ids.shape()),
        mx::where(inside, ids, zero)};
    return mx::scatter_max(nobody, places, mx::expand_dims(j, {2, 3}), {0, 1});
}

/* ---- hashes ------------------------------------------------------------------------------------------- */

static mx::array column(const mx::array &x, int k)
{
    return mx::slice(x, {0, k}, {x.shape(0), k + 1});
}

mx::array prim_HASH_IDS(const call &c)
{
    if (c.shape[0] == 0 || c.shape[1] == 0) return mx::zeros(c.shape, mx::int32);
    const mx::array tokens = mx::astype(c.in(0), mx::uint64), by = mx::astype(c.in(1), mx::uint64);
    const int n = tokens.shape(1), heads = c.shape[1], each = heads / (n - 1);
    const mx::array end(static_cast<uint64_t>(c.p().hash_ids.end), mx::uint64);
    mx::array hash = mx::multiply(column(tokens, 0), mx::slice(by, {0}, {1}));
    mx::array cut = mx::zeros({tokens.shape(0), 1}, mx::bool_);
    std::vector<mx::array> parts;
    for (int k = 1; k < n; k++) {
        const mx::array token = column(tokens, k);
        cut = mx::logical_or(cut, mx::equal(token, end));
        hash = mx::bitwise_xor(hash, mx::multiply(mx::where(cut, end, token), mx::slice(by, {k}, {k + 1})));
        const mx::array sizes = mx::slice(c.in(2), {(k - 1) * each}, {k * each});
        parts.push_back(mx::remainder(hash, mx::astype(sizes, mx::uint64)));
    }
    return mx::add(mx::astype(mx::concatenate(parts, 1), mx::int32), c.in(3));
}

/* ---- a part replaced ---------------------------------------------------------------------------------- */

/* Backwards along the dimensions that are marked. */
static mx::array turned(const mx::array &a, const std::vector<bool> &back)
{
    mx::Shape begin(a.ndim(), 0), end = a.shape(), steps(a.ndim(), 1);
    for (int d = 0; d < static_cast<int>(a.ndim()); d++) {
        if (!back[d]) continue;
        begin[d] = a.shape(d) - 1;
        end[d] = -a.shape(d) - 1;
        steps[d] = -1;
    }
    return mx::slice(a, std::move(begin), std::move(end), std::move(steps));
}

mx::array prim_UPDATE(const call &c)
{
    const mx::array &x = c.in(0), &part = c.in(1);
    const int n = static_cast<int>(x.ndim());
    if (n == 0) return part;
    if (part.size() == 0) return x;
    mx::Shape begin(n), end(n), steps(n);
    std::vector<bool> back(n);
    for (int d = 0; d < n; d++) {
        const int64_t first = c.p().slice.begin[d], step = c.p().slice.step[d] ? c.p().slice.step[d] : 1,
                      last = first + (part.shape(d) - 1) * step;
        back[d] = last < first;
        begin[d] = static_cast<int>(back[d] ? last : first);
        end[d] = static_cast<int>(back[d] ? first : last) + 1;
        /* of one element any step will do, as long as MLX takes it */
        steps[d] = part.shape(d) == 1 ? 1 : static_cast<int>(step < 0 ? -step : step);
    }
    return mx::slice_update(x, turned(part, back), std::move(begin), std::move(end), std::move(steps));
}

/* ---- orders ------------------------------------------------------------------------------------------- */

/* MLX's sort is stable. Falling, equal ones keep their order too, so the keys are turned and not the result.
 */
mx::array prim_ARG_SORT(const call &c)
{
    const mx::array &a = c.in(0);
    if (a.size() == 0) return mx::zeros(c.shape, c.dtype);
    const mx::array key = rising_key(a, false);
    return mx::astype(mx::argsort(c.p().sort.falling ? mx::bitwise_invert(key) : key, -1), c.dtype);
}

/* NaN is taken when numbers are used up. */
mx::array prim_TOP_K(const call &c)
{
    const mx::array &x = c.in(0);
    if (x.size() == 0) return mx::zeros(c.shape, c.dtype);
    const mx::array order = mx::argsort(mx::negative(x), 1);
    const mx::array best = mx::astype(mx::slice(order, {0, 0}, c.shape), c.dtype);
    return c.p().top_k.rising ? mx::sort(best, 1) : best;
}

} // namespace qn
