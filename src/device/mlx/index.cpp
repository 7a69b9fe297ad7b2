/* The blocks that rows attend to: all that a row sees as a whole are scored, and the best are taken by their rank, of equal
 * ones the lower numbers, as on the CPU. Sequences go one by one, many rows in pieces. */
#include <algorithm>
#include <limits>

#include "device/mlx/attention.hpp"

namespace qn
{

static mx::array number(int64_t x)
{
    return mx::array(static_cast<int>(x));
}

/* The keys [end - begin, d] of blocks. */
static mx::array keys_of(const call &c, const indexed &x, int64_t begin, int64_t end)
{
    if (c.step.state) return keys_in_pages(c, x, begin, end);
    const mx::array &k = c.in(1);
    const auto block = static_cast<mx::ShapeElem>(c.p().index.block);
    const auto first = static_cast<mx::ShapeElem>(x.row + (begin + 1) * block - 1),
               past = static_cast<mx::ShapeElem>(x.row + end * block);
    return mx::slice(k, {first, 0}, {past, k.shape(1)}, {block, 1});
}

/* Scores [n, keys] of rows [row, row + n). */
static mx::array scores_of(const call &c, int64_t row, int64_t n, const mx::array &keys)
{
    const qn_params_index &p = c.p().index;
    const mx::array q = range_of(c.in(0), 0, row, row + n);
    mx::array x = mx::matmul(mx::reshape(q, {-1, q.shape(2)}), mx::transpose(keys));
    x = mx::reshape(mx::multiply(x, mx::array(p.scale)), {q.shape(0), q.shape(1), keys.shape(0)});
    x = mx::where(mx::less(x, mx::array(0.0f)), mx::array(0.0f), x);
    if (p.has_weights) x = mx::multiply(x, mx::expand_dims(range_of(c.in(c.n() - 1), 0, row, row + n), 2));
    return mx::sum(x, 1);
}

/* Rises with the number; NaN is below all numbers, and -0 is 0. */
static mx::array rank_of(const mx::array &x)
{
    const mx::array sign(uint32_t{1} << 31), bits = mx::view(x, mx::uint32);
    mx::array rank = mx::where(mx::less(bits, sign), mx::bitwise_or(bits, sign), mx::bitwise_invert(bits));
    rank = mx::where(mx::equal(x, mx::array(0.0f)), sign, rank);
    return mx::where(mx::isnan(x), mx::array(uint32_t{0}), rank);
}

/* Of candidates, bool [n, blocks], the `top` best by rank. */
static mx::array best_of(const mx::array &candidates, const mx::array &ranks, int64_t top)
{
    const int64_t n_blocks = ranks.shape(1);
    const mx::array rank = mx::where(candidates, ranks, mx::array(uint32_t{0}));
    const mx::array least = range_of(mx::sort(rank, 1), 1, n_blocks - top, n_blocks - top + 1);
    const mx::array above = mx::greater(rank, least);
    const mx::array level = mx::logical_and(candidates, mx::equal(rank, least));
    const mx::array left = mx::subtract(number(top), mx::sum(mx::astype(above, mx::int32), 1, true));
    const mx::array place = mx::cumsum(mx::astype(level, mx::int32), 1);
    return mx::logical_or(above, mx::logical_and(level, mx::less_equal(place, left)));
}

/* The numbers of chosen blocks [n, top], rising, of those from `first` on; -1 behind the last. */
static mx::array numbers_of(const mx::array &chosen, int64_t first, int64_t top)
{
    const int64_t n_blocks = chosen.shape(1), n = std::min(top, n_blocks);
    const mx::array none(std::numeric_limits<int32_t>::max());
    const mx::array all = mx::arange(static_cast<int>(first), static_cast<int>(first + n_blocks));
    mx::array x = range_of(mx::sort(mx::where(chosen, all, none), 1), 1, 0, n);
    x = mx::where(mx::equal(x, none), number(-1), x);
    return n == top ? x : mx::pad(x, {{0, 0}, {0, static_cast<int>(top - n)}}, number(-1));
}

/* The choices [n, top] of a sequence's rows. */
static mx::array choose(const call &c, const indexed &x)
{
    const qn_params_index &p = c.p().index;
    const int64_t end = (x.position + x.n) / p.block,
                  seen = p.window ? std::max<int64_t>(0, x.position - p.window + 1) : 0,
                  first = (std::max(seen, x.before) + p.block - 1) / p.block, n_blocks = end - first;
    const auto rows = static_cast<mx::ShapeElem>(x.n);
    if (n_blocks <= 0) return mx::full({rows, p.top}, -1, mx::int32);
    const mx::array at =
        mx::reshape(mx::arange(static_cast<int>(x.position), static_cast<int>(x.position + x.n)), {-1, 1});
    const mx::array block = mx::arange(static_cast<int>(first), static_cast<int>(end));
    mx::array candidates = mx::less(block, mx::floor_divide(mx::add(at, number(1)), number(p.block)));
    if (p.window)
        candidates = mx::logical_and(candidates, mx::greater(mx::multiply(block, number(p.block)),
                                                             mx::subtract(at, number(p.window))));
    if (n_blocks <= p.top) return numbers_of(candidates, first, p.top);
    const mx::array keys = keys_of(c, x, first, end);
    const int64_t heads = c.in(0).shape(1),
                  piece = std::clamp<int64_t>(SCORES_MAX / (heads * n_blocks), 1, x.n);
    std::vector<mx::array> parts;
    c.room(2 * piece * heads * n_blocks);
    for (int64_t row = 0; row < x.n; row += piece) {
        const int64_t n = std::min(piece, x.n - row);
        const mx::array ranks = rank_of(scores_of(c, x.row + row, n, keys));
        parts.push_back(
            numbers_of(best_of(range_of(candidates, 0, row, row + n), ranks, p.top), first, p.top));
    }
    return mx::concatenate(std::move(parts), 0);
}

/* Sequences of rows themselves. */
static std::vector<indexed> index_rows(const call &c)
{
    const std::vector<int32_t> row_begin = c.ints(3);
    std::vector<indexed> all;
    for (size_t i = 0; i + 1 < row_begin.size(); i++)
        if (row_begin[i] < row_begin[i + 1])
            all.push_back({static_cast<int64_t>(i), row_begin[i], row_begin[i + 1] - row_begin[i], 0, 0});
    return all;
}

mx::array prim_INDEX_BLOCKS(const call &c)
{
    std::vector<mx::array> parts;
    for (const indexed &x : c.step.state ? index_pages(c) : index_rows(c))
        parts.push_back(mx::expand_dims(choose(c, x), 0));
    return joined(c, std::move(parts));
}

} // namespace qn
