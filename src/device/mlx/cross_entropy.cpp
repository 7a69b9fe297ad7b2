/* CROSS_ENTROPY and its gradients, with no more of the logits at a time than all rows by a piece of the
 * vocabulary: pieces are merged in rising order, and where there are several each is computed before the
 * next is built, for MLX would hold many at a time. The gradient computes the logits again; what the softmax
 * is divided by comes from the loss and the target's logit. */
#include "device/mlx/weights.hpp"

namespace qn
{

/* Logits that are held at a time, and the least of the vocabulary that a piece has. */
static constexpr int64_t piece_elements = int64_t(1) << 22, piece_least = 256;

struct head {
    const call &c;
    mx::array x; /* [L, k] */
    qn_mlx_weight w;
    mx::array targets;   /* [L, 1] */
    mx::array is_target; /* [L, 1] bool: in the vocabulary */
    int64_t each;        /* columns of a piece */
};

static head head_of(const call &c)
{
    const mx::array &x = c.in(0);
    const qn_mlx_weight w = operand_weight(c, 1);
    if (w.n_parts != 1 || w.n_in != x.shape(1))
        throw failure(QN_E_UNSUPPORTED, "cross entropy by a part of a head");
    const mx::array targets = mx::reshape(c.in(2), {x.shape(0), 1}),
                    in_range = mx::logical_and(mx::greater_equal(targets, mx::array(0)),
                                               mx::less(targets, mx::array(static_cast<int>(w.n_out))));
    const int64_t rows = x.shape(0) ? x.shape(0) : 1;
    int64_t each = piece_elements / rows / piece_least * piece_least;
    if (each < piece_least) each = piece_least;
    if (each > w.n_out) each = w.n_out;
    c.room(rows * each);
    return {c, x, w, targets, in_range, each};
}

static int64_t end_of(const head &h, int64_t begin)
{
    return begin + h.each < h.w.n_out ? begin + h.each : h.w.n_out;
}

/* Products become logits; tanh, where there is a cap, gets what the cap is multiplied by. */
static mx::array logits_of(const head &h, const mx::array &products, std::optional<mx::array> *tanh)
{
    const qn_params_cross_entropy &p = h.c.p().cross_entropy;
    mx::array z = p.scale != 1 ? mx::multiply(products, mx::array(p.scale)) : products;
    if (!(p.softcap > 0)) return z;
    z = mx::tanh(mx::multiply(z, mx::array(1 / p.softcap)));
    if (tanh) *tanh = z;
    return mx::multiply(z, mx::array(p.softcap));
}

/* Where the target is no row of the head there is no loss. */
static mx::array or_zero(const head &h, const mx::array &a)
{
    return mx::where(h.is_target, a, mx::array(0.0f));
}

mx::array prim_CROSS_ENTROPY(const call &c)
{
    if (c.in(0).shape(0) == 0) return mx::zeros(c.shape);
    const head h = head_of(c);
    std::optional<mx::array> most, sum, of_target;
    for (int64_t begin = 0; begin < h.w.n_out; begin += h.each) {
        const int64_t end = end_of(h, begin);
        const mx::array z = logits_of(h, multiplied(h.x, rows_between(h.w, begin, end), true), nullptr);
        const mx::array here = mx::subtract(h.targets, mx::array(static_cast<int>(begin))),
                        last = mx::array(static_cast<int>(end - begin - 1)),
                        inside = mx::logical_and(mx::greater_equal(here, mx::array(0)),
                                                 mx::less_equal(here, last));
        const mx::array at = mx::clip(here, mx::array(0), last),
                        picked = mx::where(inside, mx::take_along_axis(z, at, 1), mx::array(0.0f));
        const mx::array largest = mx::max(z, 1, true), peak = most ? mx::maximum(*most, largest) : largest,
                        part = mx::sum(mx::exp(mx::subtract(z, peak)), 1, true);
        sum = sum ? mx::add(mx::multiply(*sum, mx::exp(mx::subtract(*most, peak))), part) : part;
        most = peak;
        of_target = of_target ? mx::add(*of_target, picked) : picked;
        if (h.each < h.w.n_out) mx::eval({*sum, *most, *of_target});
    }
    return or_zero(h, mx::subtract(mx::add(*most, mx::log(*sum)), *of_target));
}

/* log of the sum that the softmax of each row is divided by. */
static mx::array log_sum(const head &h)
{
    const mx::array rows = mx::reshape(mx::where(h.is_target, h.targets, mx::array(0)), {h.x.shape(0)});
    const mx::array z = mx::sum(mx::multiply(h.x, rows_of(h.w, rows)), 1, true);
    return mx::add(h.c.in(3), logits_of(h, z, nullptr));
}

/* The gradient by the products of a piece. */
static mx::array by_products(const head &h, const mx::array &products, int64_t begin, int64_t end,
                             const mx::array &lse)
{
    std::optional<mx::array> tanh;
    const mx::array z = logits_of(h, products, &tanh);
    const mx::array columns = mx::arange(static_cast<int>(begin), static_cast<int>(end));
    mx::array d =
        mx::subtract(mx::exp(mx::subtract(z, lse)), mx::astype(mx::equal(columns, h.targets), mx::float32));
    if (tanh) d = mx::subtract(d, mx::multiply(d, mx::square(*tanh)));
    const mx::array factor = mx::multiply(h.c.in(4), mx::array(h.c.p().cross_entropy.scale));
    return or_zero(h, mx::multiply(d, factor));
}

mx::array prim_CROSS_ENTROPY_GRAD(const call &c)
{
    if (c.in(0).shape(0) == 0) return mx::zeros(c.shape);
    const head h = head_of(c);
    const mx::array lse = log_sum(h);
    std::vector<mx::array> done; /* d rows as one sum, d head by pieces */
    for (int64_t begin = 0; begin < h.w.n_out; begin += h.each) {
        const int64_t end = end_of(h, begin);
        const qn_mlx_weight piece = rows_between(h.w, begin, end);
        const mx::array d = by_products(h, multiplied(h.x, piece, true), begin, end, lse);
        if (c.p().cross_entropy.which)
            done.push_back(mx::matmul(mx::swapaxes(d, 0, 1), h.x));
        else if (done.empty())
            done.push_back(multiplied(d, piece, false));
        else
            done[0] = mx::add(done[0], multiplied(d, piece, false));
        if (h.each < h.w.n_out) done.back().eval();
    }
    return done.size() == 1 ? done[0] : mx::concatenate(std::move(done), 0);
}

} // namespace qn
