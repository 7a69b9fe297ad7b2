/* MATMUL, MATMUL_ROWS, LORA and EXPERTS_LORA. Products of f32, and of what becomes f32 without loss, are MLX's; integers,
 * which it does not multiply, are sums of products in the unsigned type that wraps as theirs does. */
#include <map>

#include "device/mlx/weights.hpp"

namespace qn
{

/* Elements of a piece of an integer product before it is summed. */
static constexpr int64_t piece_elements = int64_t(1) << 22;

static bool is_integer(mx::Dtype d)
{
    return !mx::issubdtype(d, mx::inexact);
}

/* a [.., m, k] times b [k, n] or [.., k, n]: a piece of k at a time. bool: 1 where a product is not 0. */
static mx::array integer_product(const call &c, const mx::array &a, const mx::array &b)
{
    const mx::Dtype type = mx::size_of(c.dtype) == 8 ? mx::uint64 : mx::uint32;
    const int64_t k = a.shape(-1);
    int64_t out = 1;
    for (const auto dim : c.shape) out *= dim;
    const int64_t each = out < piece_elements ? piece_elements / out : 1;
    const mx::array left = mx::expand_dims(mx::astype(a, type), -1),
                    right = mx::expand_dims(mx::astype(b, type), -3);
    std::optional<mx::array> sum;
    for (int64_t begin = 0; begin < k; begin += each) {
        const int64_t end = begin + each < k ? begin + each : k;
        c.room((end - begin) * out, mx::size_of(type));
        mx::array x = between(left, static_cast<int>(left.ndim()) - 2, begin, end);
        if (sum) x = after(x, *sum);
        const mx::array y = mx::astype(
            mx::sum(mx::multiply(x, between(right, static_cast<int>(right.ndim()) - 2, begin, end)), -2),
            type);
        sum = sum ? mx::add(*sum, y) : y;
    }
    return mx::astype(*sum, c.dtype);
}

/* Of two arrays; neither the result nor the inner dimension is empty. */
static mx::array array_product(const call &c, const mx::array &a, const mx::array &b)
{
    if (is_integer(c.dtype)) return integer_product(c, a, b);
    if (c.is_narrow(0) && c.is_narrow(1)) return mx::matmul(a, b);
    return mx::matmul(mx::astype(a, c.dtype), mx::astype(b, c.dtype));
}

static bool is_empty(const call &c, const mx::array &a)
{
    if (a.size() == 0) return true;
    for (const auto dim : c.shape)
        if (dim == 0) return true;
    return false;
}

/* A weight is multiplied whole; of a square one the step says which way. */
static mx::array weight_product(const call &c, const qn_mlx_weight &w)
{
    const mx::array &x = c.in(0);
    const int64_t k = x.shape(-1), n = c.shape[c.shape.size() - 1];
    const bool forth = k == w.n_in && n == w.n_out, back = k == w.n_out && n == w.n_in;
    if (w.n_parts != 1 || (!forth && !back))
        throw failure(QN_E_UNSUPPORTED, "matmul with a part of a weight");
    const bool turned = forth && back ? c.step.transposed != 0 : forth;
    if (!c.narrow) return multiplied(mx::astype(x, c.dtype), w, turned);
    if (c.p().matmul.exact) return multiplied(mx::astype(x, mx::float32), w, turned);
    const mx::Dtype type = multiplies_narrow(w, *c.narrow) ? *c.narrow : mx::float32;
    return mx::astype(multiplied(mx::astype(x, type), w, turned), *c.narrow);
}

mx::array prim_MATMUL(const call &c)
{
    if (is_empty(c, c.in(0))) return mx::zeros(c.shape, c.dtype);
    return c.weight(1) ? weight_product(c, *c.weight(1)) : array_product(c, c.in(0), c.in(1));
}

mx::array prim_MATMUL_ROWS(const call &c)
{
    if (is_empty(c, c.in(0))) return mx::zeros(c.shape, c.dtype);
    return array_product(c, mx::swapaxes(c.in(0), 0, 1), c.in(1));
}

/* ---- LORA --------------------------------------------------------------------------------------------- */

static mx::array on_host(const float *data, int64_t rows, int64_t columns)
{
    const int64_t dims[2] = {rows, columns};
    return mx::array(const_cast<float *>(data), shape_of(2, dims), mx::float32, [](void *) {});
}

static mx::array adapted(const mx::array &x, const mx::array &y, const qn_mlx_lora &l)
{
    const mx::array a = on_host(l.a, l.rank, x.shape(1)), b = on_host(l.b, l.rank, y.shape(1));
    const mx::array h = mx::multiply(mx::array(l.scale), mx::matmul(x, mx::swapaxes(a, 0, 1)));
    const mx::array sum = mx::add(y, mx::matmul(h, b));
    return l.gain ? mx::multiply(sum, on_host(l.gain, 1, y.shape(1))) : sum;
}

static mx::array int_array(const std::vector<int32_t> &v)
{
    return mx::array(v.begin(), mx::Shape{static_cast<mx::ShapeElem>(v.size())}, mx::int32);
}

/* Rows of one adapter together, then all back in their places; those of none are y's own. add: what becomes of
 * rows of y, of which ids names the places; NULL: they are all. */
template <class Add>
static mx::array by_adapter(const call &c, const qn_params_lora &p, const std::vector<int32_t> &adapters,
                            Add add)
{
    const mx::array &y = c.in(1);
    std::map<int32_t, std::vector<int32_t>> rows; /* by pair, -1: none */
    for (size_t r = 0; r < adapters.size(); r++) {
        const int32_t a = adapters[r];
        rows[a < 0 || a >= p.n_pairs || !c.step.lora[a].a ? -1 : a].push_back(static_cast<int32_t>(r));
    }
    if (y.size() == 0 || c.in(0).size() == 0) return y;
    if (rows.size() == 1) {
        const int32_t pair = rows.begin()->first;
        return pair < 0 ? y : add(y, nullptr, c.step.lora[pair]);
    }
    std::vector<mx::array> parts;
    std::vector<int32_t> place(adapters.size());
    int32_t n = 0;
    for (const auto &[pair, some] : rows) {
        const mx::array ids = int_array(some), before = mx::take(y, ids, 0);
        parts.push_back(pair < 0 ? before : add(before, &ids, c.step.lora[pair]));
        for (const int32_t r : some) place[r] = n++;
    }
    return mx::take(mx::concatenate(std::move(parts), 0), int_array(place), 0);
}

static mx::array some_of(const mx::array &a, const mx::array *rows)
{
    return rows ? mx::take(a, *rows, 0) : a;
}

mx::array prim_LORA(const call &c)
{
    return by_adapter(c, c.p().lora, c.ints(2),
                      [&](const mx::array &y, const mx::array *rows, const qn_mlx_lora &l) {
                          return adapted(some_of(c.in(0), rows), y, l);
                      });
}

/* Factors of all experts, [experts, rank, columns]. */
static qn_mlx_weight factors_of(const float *data, int64_t experts, int64_t rank, int64_t columns)
{
    const mx::array all = on_host(data, experts * rank, columns);
    const int64_t dims[3] = {experts, rank, columns};
    return {QN_MLX_PLAIN,
            experts,
            rank,
            columns,
            0,
            0,
            experts == 1 ? all : mx::reshape(all, shape_of(3, dims)),
            {},
            {},
            nullptr};
}

mx::array prim_EXPERTS_LORA(const call &c)
{
    const int64_t experts = c.p().experts_lora.n_experts;
    return by_adapter(
        c, c.p().experts_lora.lora, c.ints(3),
        [&](const mx::array &y, const mx::array *rows, const qn_mlx_lora &l) {
            const mx::array x = some_of(c.in(0), rows), ids = some_of(c.in(2), rows);
            mx::array h = chosen_products(c, x, factors_of(l.a, experts, l.rank, x.shape(-1)), ids, true);
            h = mx::multiply(mx::array(l.scale), h);
            if (c.p().experts_lora.has_share)
                h = mx::multiply(h, mx::expand_dims(some_of(c.in(4), rows), -1));
            h = chosen_products(c, h, factors_of(l.b, experts, l.rank, y.shape(-1)), ids, false);
            return mx::add(y, c.p().experts_lora.has_share ? mx::sum(h, 1) : h);
        });
}

} // namespace qn
