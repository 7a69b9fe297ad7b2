/* The forward pass of every model, as a graph. It reads the config and calls blocks; it never asks which
 * family it is. Prefill, decode and batches run the same graph with other inputs.
 *
 * Rows are tokens of several sequences in a row, each sequence's tokens together and in rising positions. */
#ifndef QN_MODEL_FORWARD_FORWARD_H
#define QN_MODEL_FORWARD_FORWARD_H

#include "array/array.h"
#include "model/adapter/adapters.h"
#include "model/config/config.h"
#include "model/forward/layer_groups.h"
#include "model/forward/trained.h"
#include "model/weights/parameters.h"

typedef struct {
    const qn_model_config *config;
    const qn_parameters *parameters;
    const qn_layer_groups *groups;
    qn_array *ids, *positions; /* [R] i32 */
    /* [R] i32, by which each section of pairs is turned; NULL where the config has no mrope_section */
    qn_array *rope_positions[QN_ROPE_SECTIONS];
    qn_array *row_begin; /* [S + 1] i32 */
    /* [R] i32, the rows of encoder.position_rows and encoder.type_vocab_size that belong to tokens; NULL where the
     * config has no such table */
    qn_array *places, *types;
    qn_array *is_long; /* [R, 1] f32: 1 for rows of sequences longer than rope_short_positions, else 0; NULL
                            where the config has no such limit */
    /* Vectors [R, qn_vision_width] that stand for rows where is_embed [R, 1] f32 is 1, and not 0; what lies behind the
     * embedding is added behind the first layers. NULL where the config has no vision tower. */
    qn_array *embeds, *is_embed;
    qn_state *state[QN_LAYER_GROUPS_MAX]; /* per group; all NULL: ragged attention without a cache */
    qn_array
        *blocks[QN_LAYER_GROUPS_MAX]; /* per group: block table, see qn_params_attend; NULL without a state */
    qn_state *recurrent;              /* slots of the recurrent layers; NULL: there are none, or all
                                         sequences start from zero and leave nothing behind */
    qn_array *slots, *reset;          /* [S] i32, see qn_params_recurrent; NULL without recurrent layers */
    qn_adapters *adapters;            /* NULL: none */
    qn_array *row_adapters;           /* [R] i32 id of each row's adapter, -1: none; of the head [L] */
    const qn_trained *trained;        /* NULL: nothing is being trained */
    /* [N, 1, L, L] f32, 0 or -INFINITY: it decides which keys a row sees, in place of their order. Rows are
     * then N sequences of L tokens, without states; a layer's window bounds the keys before a row as ever. No
     * layer is recurrent. NULL: a row sees the rows of its sequence up to itself. */
    qn_array *mask;
    int checkpoint_layers; /* 1: a gradient builds each layer anew (qn_checkpoint_from) */
    int64_t context_size;  /* > 0: a row at p sees (p - context_size, p] at most, on every layer */
} qn_forward;

/* The array of a role: the model's, or what is trained in its place. */
qn_array *qn_forward_weight(const qn_forward *f, qn_weight_role role, int64_t layer);

/* The residual stream after the last layer, before the final norm: [R, hidden_size]. Labels: "hidden.0"
 * (embedding), "hidden.I" (after layer I; of models with hyper-connections all streams, [R, hc_count *
 * hidden_size]), "layer.I.queries" and "layer.I.keys" (as attention uses
 * them). */
qn_array *qn_forward_body(qn_scope *s, const qn_forward *f);
/* Its pieces. The stream before the first layer, and the inputs that layers have for themselves (NULL where
 * the model has none): both are computed from ids and embeds. Then layers [begin, end) of a stream x [R,
 * hidden_size] with these inputs [R, num_hidden_layers * hidden_size_per_layer_input]; of a model with
 * several streams (altup_num_inputs, hc_count) all layers together. */
qn_array *qn_forward_embed(qn_scope *s, const qn_forward *f, qn_array **layer_inputs);
qn_array *qn_forward_layers(qn_scope *s, const qn_forward *f, qn_array *x, qn_array *layer_inputs,
                            int64_t begin, int64_t end);
/* Final norm (label "final_norm") [L, hidden_size] of the rows of hidden [R, hidden_size] that rows [L] i32
 * names. */
qn_array *qn_forward_norm(qn_scope *s, const qn_forward *f, qn_array *hidden, qn_array *rows);
/* The same, and from it logits [L, vocab_size]. */
qn_array *qn_forward_head(qn_scope *s, const qn_forward *f, qn_array *hidden, qn_array *rows);
/* Cross-entropy [L, 1] (label "losses") of these rows' logits and targets [L, 1] i32, in the vocabulary; the
 * logits are not held unless something is added to the head's product. */
qn_array *qn_forward_losses(qn_scope *s, const qn_forward *f, qn_array *hidden, qn_array *rows,
                            qn_array *targets);

/* Of an encoder: what it makes of the rows, behind its final norm and projection, [R, embedding_dim or hidden_size].
 * The last layer's label "hidden.I" is that of the stream before the norm. */
qn_array *qn_forward_encode(qn_scope *s, const qn_forward *f);
/* Scores [L, num_labels] of sequences, of which x [L, hidden_size] has the rows or means that the head reads. */
qn_array *qn_forward_classify(qn_scope *s, const qn_forward *f, qn_array *x);

#endif
