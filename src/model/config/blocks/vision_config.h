/* The vision tower of a model that sees pictures: its numbers, out of the vision_config of config.json. A
 * transformer over the patches of one picture, each seeing all others: layer norms with biases, two positions
 * (row and column) that turn a half of each head's pairs each, an MLP without a gate; at its end the
 * merge_size^2 patches of a token become one vector of the model's own width. Immutable after reading: any
 * thread. */
#ifndef QN_MODEL_CONFIG_BLOCKS_VISION_CONFIG_H
#define QN_MODEL_CONFIG_BLOCKS_VISION_CONFIG_H

#include "model/config/blocks/image_config.h"
#include "model/config/fields.h"

typedef enum { QN_VISION_QUICK_GELU, QN_VISION_GELU, QN_VISION_GELU_TANH, QN_VISION_SILU } qn_vision_act;

typedef struct {
    int64_t depth; /* layers; 0: the model sees nothing */
    int64_t embed_dim, num_heads, intermediate_size;
    qn_vision_act hidden_act;
    float norm_eps, rope_theta;
    int32_t image_token_id; /* stands in a prompt for each vector of a picture */
    const char *prefix;     /* of its tensors; static storage */
    qn_image_processor processor;
} qn_vision_config;

/* root: the whole config.json, text_config and all. Leaves *out alone where the file or the tensors have no
 * tower. hidden_size and vocab_size: the text model's. QN_E_FORMAT, QN_E_UNSUPPORTED: as qn_config_read. */
qn_status qn_vision_config_read(qn_source *src, const qn_fields *root, int64_t hidden_size,
                                int64_t vocab_size, qn_vision_config *out);

#endif
