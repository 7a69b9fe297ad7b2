/* The vision tower of a model that sees pictures: its numbers and switches, out of the vision_config of config.json and
 * of the row of vision_family.h. A transformer over the patches of a picture's views, each patch seeing all others of
 * its view; at its end the merge_size^2 patches of a token become one vector of the model's width. Whoever computes
 * never asks which family a tower is of. Immutable after reading: any thread. */
#ifndef QN_MODEL_CONFIG_BLOCKS_VISION_CONFIG_H
#define QN_MODEL_CONFIG_BLOCKS_VISION_CONFIG_H

#include "model/config/blocks/image_config.h"
#include "model/config/fields.h"

typedef enum { QN_VISION_QUICK_GELU, QN_VISION_GELU, QN_VISION_GELU_TANH, QN_VISION_SILU } qn_vision_act;

/* What patches learn of their place: nothing; row * side + column of a table whose side is that of the view; the same
 * of a table of another side, whose corners are those of the view, bilinearly; the same of a table that is resized to
 * the view, bilinearly and antialiased; centers of patches, bilinearly, with nothing beyond the table, where patch i of a
 * view of h x w has place i of one of w x h; the row and column at that share of a table's side; or a row of a table of
 * columns plus one of a table of rows, which lie one below the other or turn by turn. */
typedef enum {
    QN_VISION_PLACES_NONE,
    QN_VISION_PLACES_PLAIN,
    QN_VISION_PLACES_CORNERS,
    QN_VISION_PLACES_RESIZED,
    QN_VISION_PLACES_CENTERS,
    QN_VISION_PLACES_SHARES,
    QN_VISION_PLACES_AXES,
    QN_VISION_PLACES_AXES_IN_TURN
} qn_vision_places;

/* Which pairs of a head turn by which axis: none; the first half of pairs by the row, the others by the column, with
 * the same frequencies; the same, but the first half by the column; the first half by the row, but every second
 * frequency of a whole head each; halves of a head's dimensions, each turned by itself, the first by the column;
 * neighbouring dimensions, the first half of pairs by the column. */
typedef enum {
    QN_VISION_ROPE_NONE,
    QN_VISION_ROPE_HALVES,
    QN_VISION_ROPE_COLUMN_FIRST,
    QN_VISION_ROPE_IN_TURN,
    QN_VISION_ROPE_APART,
    QN_VISION_ROPE_NEIGHBOURS
} qn_vision_rope;

/* How patches of a token are merged: one behind the other; the same, but channel by channel; by their mean. */
typedef enum { QN_VISION_MERGE_ROWS, QN_VISION_MERGE_CHANNELS, QN_VISION_MERGE_MEAN } qn_vision_merge;

/* A row behind or before the patches of a view, which are no place of it. */
typedef enum { QN_VISION_CLASS_NONE, QN_VISION_CLASS_FIRST, QN_VISION_CLASS_LAST } qn_vision_class;

/* Which tokens of the text see all tokens of their picture, those behind them too. */
typedef enum { QN_VISION_SEEN_BEFORE, QN_VISION_SEEN_WHOLE, QN_VISION_SEEN_WHOLE_SLIDING } qn_vision_seen;

enum { QN_VISION_LAYERS_MAX = 4096, QN_VISION_DEEPSTACK_MAX = 16 };

struct qn_vision_family;
struct qn_projector;

typedef struct {
    const struct qn_vision_family *family; /* NULL: the model sees nothing */
    const struct qn_projector *projector; /* the tensors lie in a GGUF as it says; NULL: as the family says */
    int swaps_mlp; /* 1: the projector's file has the names of FC1 and FC2 the other way round, as older ones do */
    const char *prefix; /* of its tensors; static storage */
    int64_t depth;      /* layers that count; the files may have more */
    int64_t embed_dim, num_heads, head_dim, intermediate_size;
    qn_vision_act hidden_act;
    int rms_norm; /* 1: norms of layers are RMS norms, without biases */
    float norm_eps, rope_theta;
    float end_norm_eps;    /* of the norms before and behind the layers; 0: norm_eps */
    float attention_scale; /* scores = attention_scale * q.k */
    int gated_mlp;         /* 1: act(x gate) * (x up), down */
    float
        mlp_limit; /* > 0: gates are at most this before their activation, and what they multiply is within it */
    int qkv_bias, proj_bias, mlp_bias;
    float qk_norm_eps; /* 0: norm_eps */
    int qk_norm;       /* 1: queries and keys are normed as a whole; 2: head by head */
    int post_norm;     /* 1: the last layer's rows are normed, where the files have such a norm */
    int value_norm;    /* 1: each head of values is normed, without a weight */
    float patch_factor, patch_offset; /* value * factor + offset is what the product with patches reads */
    qn_vision_places places;
    int64_t places_side; /* of the table of positions; of one of AXES its rows */
    qn_vision_rope rope;
    int rope_beside; /* 1: pairs are neighbouring dimensions of a head in the files, whatever rope says of its axes */
    qn_vision_class class_row;
    /* Layers but those of full_layers see windows of window_size x window_size tokens alone; 0: no windows. */
    int64_t window_size;
    int patch_windows; /* 1: window_size counts patches, and is places_side; layer_types says which layers have windows */
    uint64_t full_layers[QN_VISION_LAYERS_MAX / 64];
    /* What these layers give is merged like the last one's, and added to the stream behind the text's first layers. */
    int64_t n_deepstack, deepstack_layers[QN_VISION_DEEPSTACK_MAX];

    qn_vision_merge merge;
    int merge_norm; /* 1: patches are normed before they are merged; 2: what is merged is */
    int merge_rms;  /* 1: that is an RMS norm */
    float merge_norm_offset, merge_norm_eps;
    int merge_norm_gelu;  /* 1: what is normed behind the merging goes through GELU */
    int merge_scale_root; /* 1: what is merged is multiplied by sqrt(embed_dim) */
    int standardize;      /* 1: see QN_VISION_SHIFT */
    int merge_bias;       /* of the matrices behind */
    int clipped_linears; /* 1: what each matrix of a layer reads and gives is held between numbers of its own */
    qn_vision_act merge_act;
    int merge_act_after; /* 1: also behind the second matrix */
    int feature_norm;    /* 1: what stands for a token is normed, without a weight */
    float feature_norm_eps;
    int64_t merger_width, output_width; /* of what the first and the second matrix give; 0: there is none */
    qn_vision_seen seen;

    int32_t
        layer_input_id; /* a place of a picture has this token's inputs of layers (hidden_size_per_layer_input) */
    int32_t image_token_id; /* stands in a prompt for each vector of a picture */
    qn_image_processor processor;
} qn_vision_config;

/* root: the whole config.json, text_config and all; model_type: of the whole model. Leaves *out alone where no tower is
 * known of that name, or the file or the tensors have none. hidden_size, vocab_size and norm_eps: the text model's.
 * QN_E_FORMAT, QN_E_UNSUPPORTED: as qn_config_read. */
qn_status qn_vision_config_read(qn_source *src, const qn_fields *root, const char *model_type,
                                int64_t hidden_size, int64_t vocab_size, float norm_eps,
                                qn_vision_config *out);
/* What describes a tower, whatever files it is from. */
typedef struct {
    const struct qn_vision_family *family;
    const struct qn_projector *projector; /* NULL: none */
    const char *prefix;
    qn_fields own, root,
        images; /* vision_config; config.json; preprocessor_config.json, object NULL: there is none */
    int64_t hidden_size, vocab_size;
    float text_eps;
} qn_vision_description;
/* Fills *out: as qn_vision_config_read, once it has found the tower. */
qn_status qn_vision_config_make(qn_source *src, const qn_vision_description *d, qn_vision_config *out);
/* Floats of the vector that stands for a token: the embedding, and behind it what each of the text's first layers adds.
 */
int64_t qn_vision_width(const qn_vision_config *v, int64_t hidden_size);
/* 1: this layer sees whole views. */
int qn_vision_is_full(const qn_vision_config *v, int64_t layer);

#endif
