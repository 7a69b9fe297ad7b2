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

/* The same as x's type, since MLX's norm gives the wider one of both. A weight is a constant of the program. */
static std::optional<mx::array> narrow_factors(const call &c, int i)
{
    if (c.n() <= i) return std::nullopt;
    const float offset = c.p().norm.offset;
    if (offset == 0 && c.is_narrow(i)) return c.in(i);
    return c.once(c.in(i), [&](const mx::array &w) {
        return mx::astype(offset != 0 ? mx::astype(w, mx::float32) + mx::array(offset) : w, *c.narrow);
    });
}

/* What is multiplied next is of 16 bits, if that may be: the norm of an f32 array too. */
static mx::array narrowed(const call &c, const mx::array &y)
{
    return c.narrow && c.dtype == mx::float32 ? mx::astype(y, *c.narrow) : y;
}

mx::array prim_RMS_NORM(const call &c)
{
    if (c.in(0).size() == 0) return c.in(0);
    const mx::array y =
        mx::fast::rms_norm(c.in(0), c.is_narrow(0) ? narrow_factors(c, 1) : factors(c, 1), c.p().norm.eps);
    return narrowed(c, y);
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
    const auto as_input = [&](int i) {
        return c.n() > i ? std::optional(mx::astype(c.in(i), c.in(0).dtype())) : none;
    };
    return narrowed(c, mx::fast::layer_norm(c.in(0), as_input(1), as_input(2), c.p().norm.eps));
}

/* ---- rotary position embedding ------------------------------------------------------------------------- */

static mx::array positions_of(const call &c)
{
    if (!c.step.host || !c.step.host[0]) return c.in(0);
    const std::vector<int32_t> host = c.ints(0);
    return mx::array(host.data(), {static_cast<mx::ShapeElem>(host.size())}, mx::int32);
}

/* Not computed where the fused form is taken: nobody reads it then. */
mx::array prim_ROPE_TABLE(const call &c)
{
    const mx::array position = mx::expand_dims(mx::astype(positions_of(c), mx::float32), 1);
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

/* MLX's own call takes periods. What is 0, a dimension that is not turned, has an endless one. */
std::shared_ptr<qn_mlx_turns> turns_of(const call &c)
{
    if (!c.step.host || !c.step.host[0]) return nullptr;
    const mx::array periods = c.once(c.in(1), [](const mx::array &f) { return mx::reciprocal(f); });
    return std::make_shared<qn_mlx_turns>(qn_mlx_turns{c.ints(0), periods, std::nullopt, c.p().rope.factor});
}

/* Rows whose positions rise by one lie behind each other for MLX; else each is a sequence of its own. Angles
 * differ from the table's (docs/notebook/mlx.md) by less than 16 bits show. */
static mx::array turned(const call &c, qn_mlx_turns &t)
{
    const mx::array &x = c.in(0);
    const int rotary = 2 * t.periods.shape(0), rows = x.shape(0), first = t.positions[0];
    const bool traditional = c.p().rope.interleaved != 0;
    bool in_order = true;
    for (int i = 1; i < rows; i++) in_order = in_order && t.positions[i] == first + i;
    mx::array y = x;
    if (in_order && rows > 1) {
        const mx::array sequence = mx::expand_dims(mx::transpose(x, {1, 0, 2}), 0);
        y = mx::fast::rope(sequence, rotary, traditional, std::nullopt, 1.0f, first, t.periods);
        y = mx::transpose(mx::squeeze(y, 0), {1, 0, 2});
    } else {
        if (!t.offsets) t.offsets = mx::array(t.positions.data(), {rows}, mx::int32);
        y = mx::fast::rope(mx::expand_dims(x, 2), rotary, traditional, std::nullopt, 1.0f, *t.offsets,
                           t.periods);
        y = mx::squeeze(y, 2);
    }
    return t.factor == 1 ? y : mx::astype(mx::multiply(y, mx::array(t.factor, y.dtype())), y.dtype());
}

/* MLX's CUDA kernel begins with blocks that no card takes, if few elements turn in many rows. */
static bool may_fuse(int rotary)
{
    return rotary >= 32 || !on_cuda();
}

/* In f32 not by fast::rope, which gets other angles (docs/mlx.md).
 * Pairs (x, y) -> (x cos - y sin, y cos + x sin): of halves of the rotary dimensions, or of neighbours. */
mx::array prim_ROPE(const call &c)
{
    const mx::array table = mx::expand_dims(c.in(1), 1);
    const int rotary = table.shape(2), half = rotary / 2, step = c.p().rope.interleaved ? 2 : 1;
    if (c.in(0).size() == 0 || rotary == 0) return c.in(0);
    const std::shared_ptr<qn_mlx_turns> &turns = c.step.in[1]->turns;
    if (c.is_narrow(0) && turns && may_fuse(rotary) && (turns->factor == 1 || rotary == c.in(0).shape(2)) &&
        static_cast<int>(turns->positions.size()) == c.in(0).shape(0))
        return turned(c, *turns);
    const mx::array x = c.is_narrow(0) ? mx::astype(c.in(0), mx::float32) : c.in(0);
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
    const mx::array y = mx::concatenate(std::move(parts), -1);
    return c.is_narrow(0) ? mx::astype(y, *c.narrow) : y;
}

} // namespace qn
