/* Products with the matrices that ids name. Many pairs of row and choice are sorted by matrix first, so that
 * each is read once for all that chose it. */
#include "device/mlx/weights.hpp"

namespace qn
{

/* Fewer pairs than this share hardly any matrix. MLX 0.32's CUDA kernel for pairs in no order reads beyond plain matrices
 * that are not turned, if their width is no multiple of 8. */
static constexpr int64_t sorted_from = 64;
static bool are_sorted(const qn_mlx_weight &w, int64_t pairs, bool transpose)
{
    return pairs >= sorted_from || (on_cuda() && w.kind == QN_MLX_PLAIN && !transpose);
}

mx::array chosen_products(const call &c, const mx::array &x, const qn_mlx_weight &w, const mx::array &ids,
                          bool transpose)
{
    const int n_rows = ids.shape(0), top = ids.shape(1);
    const int n = static_cast<int>(transpose ? w.n_out : w.n_in), k = x.shape(-1);
    const int64_t pairs = static_cast<int64_t>(n_rows) * top;
    c.room(pairs * n);
    if (pairs == 0 || x.size() == 0) return mx::zeros({n_rows, top, n}, x.dtype());
    if (!are_sorted(w, pairs, transpose)) {
        const mx::array rows = on_cuda() ? mx::contiguous(x) : x,
                        apart = mx::expand_dims(x.ndim() == 2 ? mx::expand_dims(rows, 1) : rows, -2);
        return mx::squeeze(gathered(c, apart, w, ids, transpose, false), -2);
    }
    c.room(pairs * k);
    const mx::array flat = mx::reshape(ids, {n_rows * top}), order = mx::argsort(flat),
                    from = x.ndim() == 2 ? mx::floor_divide(order, mx::array(top, order.dtype())) : order;
    /* Rows [.., 1, k] before they are taken: of a dimension that expand_dims adds, MLX's CUDA kernel reads the stride. */
    const mx::array sorted =
        gathered(c, mx::take(mx::reshape(x, {-1, 1, k}), from, 0), w, mx::take(flat, order), transpose, true);
    const mx::array back = mx::take(mx::reshape(sorted, {n_rows * top, n}), mx::argsort(order), 0);
    return mx::reshape(back, {n_rows, top, n});
}

static mx::array with_bias(const call &c, const mx::array &y, const mx::array &ids, int i)
{
    return c.p().experts.has_bias ? mx::add(y, mx::astype(mx::take(c.in(i), ids, 0), y.dtype())) : y;
}

/* Rows as the weight is multiplied by them. */
static mx::array rows_for(const call &c, const qn_mlx_weight &w)
{
    const bool is_narrow = c.narrow && multiplies_narrow(w, *c.narrow);
    return mx::astype(c.in(0), is_narrow ? *c.narrow : mx::float32);
}

static mx::array as_result(const call &c, const mx::array &y)
{
    return c.narrow ? mx::astype(y, *c.narrow) : y;
}

/* The operand w [n_experts, n, k], whole. */
static qn_mlx_weight experts_of(const call &c)
{
    const qn_mlx_weight w = operand_weight(c, 1);
    const int64_t k = c.step.prim == QN_PRIM_EXPERTS_GRAD ? w.n_out : w.n_in,
                  n = c.step.prim == QN_PRIM_EXPERTS_GRAD ? w.n_in : w.n_out;
    if (k != c.in(0).shape(-1) || n != c.shape[c.shape.size() - 1])
        throw failure(QN_E_UNSUPPORTED, "experts need all of a weight");
    return w;
}

mx::array prim_EXPERTS(const call &c)
{
    const mx::array &ids = c.in(2);
    const qn_mlx_weight w = experts_of(c);
    return as_result(c, with_bias(c, chosen_products(c, rows_for(c, w), w, ids, true), ids, 3));
}

mx::array prim_EXPERTS_SUM(const call &c)
{
    const qn_mlx_weight w = experts_of(c);
    const mx::array &ids = c.in(2),
                    y = with_bias(c, chosen_products(c, rows_for(c, w), w, ids, true), ids, 4);
    const mx::array share = mx::astype(mx::expand_dims(c.in(3), -1), y.dtype());
    return as_result(c, mx::sum(mx::multiply(y, share), 1));
}

mx::array prim_EXPERTS_GRAD(const call &c)
{
    return chosen_products(c, c.in(0), experts_of(c), c.in(2), false);
}

/* ---- plain matrices ----------------------------------------------------------------------------------- */

mx::array prim_GATHER_MM(const call &c)
{
    return chosen_products(c, c.in(0), operand_weight(c, 1), c.in(2), !c.p().gather_mm.transposed);
}

/* x [R, k] or [R, top, k] as [R top, k]. */
static mx::array by_pair(const mx::array &x, const mx::array &ids)
{
    const int k = x.shape(-1);
    const mx::array all = x.ndim() == 3 ? x : mx::repeat(x, ids.shape(1), 0);
    return mx::reshape(all, {ids.shape(0) * ids.shape(1), k});
}

mx::array prim_SCATTER_MM(const call &c)
{
    const mx::array &ids = c.in(2), zeros = mx::zeros(c.shape, c.dtype);
    const int n = c.shape[1], k = c.shape[2];
    const int64_t pairs = static_cast<int64_t>(ids.size());
    if (pairs == 0 || zeros.size() == 0) return zeros;
    c.room(pairs * n * k);
    const mx::array a = mx::expand_dims(by_pair(c.in(0), ids), 2),
                    b = mx::expand_dims(by_pair(c.in(1), ids), 1);
    return mx::scatter_add(zeros, mx::flatten(ids), mx::expand_dims(mx::multiply(a, b), 1), 0);
}

} // namespace qn
