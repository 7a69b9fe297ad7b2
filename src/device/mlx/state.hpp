/* What attention and recurrent layers ask of a state. */
#ifndef QN_DEVICE_MLX_STATE_HPP
#define QN_DEVICE_MLX_STATE_HPP

#include "device/mlx/shim.hpp"

namespace qn
{

/* Each of the units has a place when it returns. Those who hold units have counted them; what is made beside
 * them for those that come is below budget_bytes. Throws. */
void reach(qn_mlx_state &s, const std::vector<int32_t> &units, size_t budget_bytes);
/* The same of units of a sequence in their order, each behind the one before it where that place is free.
 * The first n_held keep what they hold, and so their places; the others are written anew, wherever they lay.
 * has_before 1: the first one has a place already, and is what they lie behind. */
void reach_behind(qn_mlx_state &s, const std::vector<int32_t> &units, int64_t n_held, bool has_before,
                  size_t budget_bytes);
/* Places of units; throws where one has none. */
std::vector<int32_t> places_of_units(const qn_mlx_state &s, const std::vector<int32_t> &units);

/* Sequences that a primitive computes together: rows [row, row + n * n_rows), n_rows of each. */
struct batch {
    int64_t sequence, n, row, n_rows;
};

/* Sequences with rows by row_begin [S + 1], neighbours with as many rows together as long as `together` says
 * so of what would become of them. */
std::vector<batch> batches_of(const std::vector<int32_t> &row_begin,
                              const std::function<bool(const batch &)> &together);

/* Rows of a batch: [n, n_rows, ..] of x [R, ..]. */
mx::array rows_of_batch(const mx::array &x, const batch &b);

/* The results [n, n_rows, ..] of batches, one below the other, as the call's shape. */
mx::array joined(const call &c, std::vector<mx::array> parts);

/* Host numbers as an array i32. */
mx::array numbers(const std::vector<int32_t> &x, mx::Shape shape);

} // namespace qn
#endif
