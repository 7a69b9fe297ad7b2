/* From the rope parameters of a model's description to a table of inverse frequencies, in the float32 steps
 * of transformers (modeling_rope_utils), so that angles agree with it to the last bit or nearly so. */
#ifndef QN_MODEL_CONFIG_ROPE_PARAMS_H
#define QN_MODEL_CONFIG_ROPE_PARAMS_H

#include "model/config/config.h"
#include "model/config/fields.h"

/* params: the object rope_scaling or rope_parameters; params->object NULL: no scaling. root is asked for what
 * params lack (rope_theta under the name theta_field, partial_rotary_factor, rotary_dim). *out owns inv_freq
 * and long_inv_freq (qn_free); of a GGUF file's LongRoPE the factors are still to be read (rope_long.h). */
qn_status qn_rope_read(const qn_fields *params, const qn_fields *root, const char *theta_field,
                       int64_t head_dim, int64_t max_position_embeddings, qn_rope_config *out);
/* theta^(2i / rotary_dim). */
float qn_rope_power(const qn_rope_config *r, int64_t i);
/* Divides each frequency by its own factor (GGUF's rope_freqs tensor: Llama 3's scaling as a table).
 * QN_E_FORMAT: a factor that is not a positive number; file and tensor are named. */
qn_status qn_rope_divide(qn_rope_config *rope, const float *factors, const char *file, const char *tensor);

/* mrope_section: three numbers that sum to the pairs that are turned, unless they take turns. Where the parameters lack
 * it, it is that of the published models if their heads have as many pairs or if sections take turns; else there are no
 * sections. */
qn_status qn_rope_read_sections(const qn_fields *params, const int64_t *published, int interleaved,
                                qn_rope_config *rope);

#endif
