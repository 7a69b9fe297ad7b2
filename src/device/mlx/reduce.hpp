/* What reductions and orders share. */
#ifndef QN_DEVICE_MLX_REDUCE_HPP
#define QN_DEVICE_MLX_REDUCE_HPP

#include "device/mlx/shim.hpp"

namespace qn
{

/* Integers that rise with the elements, equal where these are: -0 is 0, and NaN is above all numbers, or
 * below all with nan_first. */
mx::array rising_key(const mx::array &a, bool nan_first);

} // namespace qn
#endif
