/* mlx_lm, Apple's Python package, as a backend: a process of its own that runs the model, one generation at
 * a time, others in order behind it. `make NOMLXLM=1` leaves it out. */
#ifndef QN_BACKEND_MLX_LM_MLX_LM_H
#define QN_BACKEND_MLX_LM_MLX_LM_H

#include <quern/backend.h>

extern const qn_backend qn_backend_mlx_lm;

#endif
