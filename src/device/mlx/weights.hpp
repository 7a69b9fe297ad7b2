/* Products with weights, for the primitives that multiply: a weight is looked at whole, by its parts, or by
 * rows. */
#ifndef QN_DEVICE_MLX_WEIGHTS_HPP
#define QN_DEVICE_MLX_WEIGHTS_HPP

#include "device/mlx/shim.hpp"

namespace qn
{

/* Operand i of a step as a weight, be it one or an array [n_out, n_in] or [n_parts, n_out, n_in]. */
qn_mlx_weight operand_weight(const call &c, int i);

/* Parts [begin, end) as a weight of so many, rows [begin, end) of a matrix as a matrix. */
qn_mlx_weight parts_of(const qn_mlx_weight &w, int64_t begin, int64_t end);
qn_mlx_weight rows_between(const qn_mlx_weight &w, int64_t begin, int64_t end);

/* Rows of that type of 16 bits are multiplied by the weight as they are. */
bool multiplies_narrow(const qn_mlx_weight &w, mx::Dtype type);
/* x [.., n_in] times the transpose of a matrix, or x [.., n_out] times the matrix itself: of x's type, which is
 * f32 or one that the weight is multiplied by as it is. */
mx::array multiplied(const mx::array &x, const qn_mlx_weight &w, bool transpose);
/* x [.., 1, n] times the matrices that ids name, or their transposes; x's leading dimensions and those of ids
 * are broadcast. sorted: ids rise. room: what may be taken for that. */
mx::array gathered(const call &c, const mx::array &x, const qn_mlx_weight &w, const mx::array &ids,
                   bool transpose, bool sorted);

/* x [R, k] or [R, top, k] times the matrices of ids [R, top], or their transposes: [R, top, n]. */
mx::array chosen_products(const call &c, const mx::array &x, const qn_mlx_weight &w, const mx::array &ids,
                          bool transpose);

/* a, so that it is computed only when b has been: pieces of something large do not pile up then. */
mx::array after(const mx::array &a, const mx::array &b);
/* Elements [begin, end) of one dimension. */
mx::array between(const mx::array &a, int axis, int64_t begin, int64_t end);

} // namespace qn
#endif
