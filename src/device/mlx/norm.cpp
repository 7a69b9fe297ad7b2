/* Norms and rotary position embedding, over the last dimension. */
#include "device/mlx/shim.hpp"

namespace qn
{

/* weight + offset; nothing where there is no weight, whatever the offset. */
static std::optional<mx::array> factors(const call &c, int i)
{
    if (c.n() <= i) return std::nullopt;
    const float offset = c.p().norm.offset;
    return offset != 0 ? c.in(i) + mx::array(offset) : c.in(i);
}

mx::array prim_RMS_NORM(const call &c)
{
    if (c.in(0).size() == 0) return c.in(0);
    return mx::fast::rms_norm(c.in(0), factors(c, 1), c.p().norm.eps);
}

/* r h - x r^3 mean(h x), with r the inverse root of the mean square and h the gradient times the weight. */
mx::array prim_RMS_NORM_GRAD(const call &c)
{
    const mx::array &x = c.in(0);
    if (x.size() == 0) return x;
    const std::optional<mx::array> w = factors(c, 2);
    const mx::array h = w ? c.in(1) * *w : c.in(1);
    const mx::array mean = mx::mean(mx::square(x), -1, true) + mx::array(c.p().norm.eps);
    const mx::array root = mx::rsqrt(mean);
    return h * root - x * (root * mx::mean(h * x, -1, true) / mean);
}

mx::array prim_LAYER_NORM(const call &c)
{
    if (c.in(0).size() == 0) return c.in(0);
    const std::optional<mx::array> none;
    return mx::fast::layer_norm(c.in(0), c.n() > 1 ? std::optional(c.in(1)) : none,
                                c.n() > 2 ? std::optional(c.in(2)) : none, c.p().norm.eps);
}

/* ---- rotary position embedding ------------------------------------------------------------------------- */

mx::array prim_ROPE_TABLE(const call &c)
{
    const mx::array position = mx::expand_dims(mx::astype(c.in(0), mx::float32), 1);
    const mx::array angle = position * mx::expand_dims(c.in(1), 0), factor(c.p().rope.factor);
    return mx::concatenate({mx::cos(angle) * factor, mx::sin(angle) * factor}, 1);
}

/* Columns from .. to of the last dimension, by steps. */
static mx::array columns(const mx::array &x, int from, int to, int step = 1)
{
    mx::Shape begin(x.ndim(), 0), end = x.shape(), steps(x.ndim(), 1);
    begin.back() = from;
    end.back() = to;
    steps.back() = step;
    return mx::slice(x, std::move(begin), std::move(end), std::move(steps));
}

/* Not by fast::rope, which gets other angles (docs/mlx.md).
 * Pairs (x, y) -> (x cos - y sin, y cos + x sin): of halves of the rotary dimensions, or of neighbours. */
mx::array prim_ROPE(const call &c)
{
    const mx::array &x = c.in(0), table = mx::expand_dims(c.in(1), 1);
    const int rotary = table.shape(2), half = rotary / 2, step = c.p().rope.interleaved ? 2 : 1;
    if (x.size() == 0 || rotary == 0) return x;
    const mx::array cosines = columns(table, 0, half), sines = columns(table, half, rotary);
    const mx::array a = step == 2 ? columns(x, 0, rotary, 2) : columns(x, 0, half),
                    b = step == 2 ? columns(x, 1, rotary, 2) : columns(x, half, rotary);
    const mx::array first = a * cosines - b * sines, second = b * cosines + a * sines;
    std::vector<mx::array> parts;
    if (step == 2) {
        const mx::Shape pairs = {x.shape(0), x.shape(1), rotary};
        parts = {mx::reshape(mx::stack({first, second}, -1), pairs)};
    } else {
        parts = {first, second};
    }
    if (rotary < x.shape(2)) parts.push_back(columns(x, rotary, x.shape(2)));
    return mx::concatenate(std::move(parts), -1);
}

} // namespace qn
