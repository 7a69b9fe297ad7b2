/* The blocks that layers are made of. Each takes rows [R, hidden_size] and returns the same; what is optional
 * in the config is a NULL parameter or a zero number here. */
#ifndef QN_MODEL_BLOCKS_BLOCKS_H
#define QN_MODEL_BLOCKS_BLOCKS_H

#include "model/forward.h"

/* x times transpose(weight), plus the bias when there is one. */
qn_array *qn_block_linear(qn_scope *s, const qn_forward *f, qn_array *x, qn_weight_role weight,
                          qn_weight_role bias, int64_t layer);
/* RMS norm with the config's epsilon and offset; x itself when the model has no such weight. */
qn_array *qn_block_norm(qn_scope *s, const qn_forward *f, qn_array *x, qn_weight_role weight, int64_t layer);
/* cap * tanh(x / cap); x itself when cap is 0. */
qn_array *qn_block_softcap(qn_scope *s, qn_array *x, float cap);
/* Queries, keys and values, their norms and rotation, attention, output. table: cosines and sines of this
 * layer's rope set, NULL where it has none. */
qn_array *qn_block_attention(qn_scope *s, const qn_forward *f, qn_array *x, qn_array *table, int64_t layer);
/* The gated delta net with its state: config.h's qn_delta_config. */
qn_array *qn_block_gated_delta(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer);
/* act(x gate) * (x up), down. */
qn_array *qn_block_mlp(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer);

#endif
