/* A tiny llama as mlx_lm.convert writes it, with random weights, and with faults where a test wants them. */
#ifndef QUERN_TESTS_MLX_MODEL_H
#define QUERN_TESTS_MLX_MODEL_H

#include <quern/dtype.h>

/* folder/NAME, the directory of a model like that of tests/support/models/typed_model.h with matrices of `type`.
 * config: JSON text that a merge patch (RFC 7386) brings into config.json, NULL: none. dense: a module
 * ("lm_head") whose weight is BF16 and has no scales; left_out: a tensor that is not written; retyped: one
 * that is written as I8; narrowed: one that lacks its last column; scaled: a module with a global_scale; each
 * may be NULL. */
typedef struct {
    const char *name, *config, *dense, *left_out, *retyped, *narrowed, *scaled;
    qn_dtype type;
} qn_test_mlx;
const char *qn_test_mlx_model(const char *folder, const qn_test_mlx *m);

#endif
