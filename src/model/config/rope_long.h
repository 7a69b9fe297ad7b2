/* LongRoPE (Ding et al. 2024): each pair's frequency is divided by a factor of its own, out of one of two
 * lists: one for sequences of up to original_max_position_embeddings tokens, one for longer ones. cos and sin
 * are multiplied by sqrt(1 + ln(factor) / ln(original)), factor being max_position_embeddings / original. */
#ifndef QN_MODEL_CONFIG_ROPE_LONG_H
#define QN_MODEL_CONFIG_ROPE_LONG_H

#include "format/source/source.h"
#include "model/config/config.h"
#include "model/config/fields.h"

/* Divides r's frequencies (those without scaling) by short_factor and makes the long set, which r then owns.
 * original: the positions of the short set. QN_E_FORMAT: a list is missing, of another length than pairs, or
 * has a number that is not positive. */
qn_status qn_rope_long_read(const qn_fields *params, double original, int64_t max_position_embeddings,
                            qn_rope_config *r);
/* The same from the tensors rope_factors_short and rope_factors_long of a GGUF file, and attn_factor for the
 * multiplier; nothing where the file has neither tensor and r's type does not ask for them. */
qn_status qn_rope_long_read_gguf(const qn_source *src, const qn_fields *root, int64_t max_position_embeddings,
                                 qn_rope_config *r);

#endif
