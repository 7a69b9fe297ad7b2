/* The blocks that layers are made of. Each takes rows [R, hidden_size] and returns the same; what is optional
 * in the config is a NULL parameter or a zero number here. */
#ifndef QN_MODEL_FORWARD_BLOCKS_BLOCKS_H
#define QN_MODEL_FORWARD_BLOCKS_BLOCKS_H

#include "model/forward/forward.h"

/* x times transpose(weight), plus what the rows' adapters add, plus the bias when there is one (never for
 * QN_WEIGHT_ROLE_COUNT). */
qn_array *qn_block_linear(qn_scope *s, const qn_forward *f, qn_array *x, qn_weight_role weight,
                          qn_weight_role bias, int64_t layer);
/* 1: adapters change the tensor. */
int qn_block_is_changed(const qn_forward *f, qn_weight_role role, int64_t layer);
/* Rows [R, hidden_size] of the embedding for ids [R], as the rows' adapters have them. */
qn_array *qn_block_embedding(qn_scope *s, const qn_forward *f, qn_array *ids);
/* The product y of x with the matrix of a role, plus what the rows' adapters add to it. */
qn_array *qn_block_adapted(qn_scope *s, const qn_forward *f, qn_array *x, qn_array *y, qn_weight_role weight,
                           int64_t layer);
/* The same of experts: y [R, top, n_out], the products of x [R, n_in] or [R, top, n_in] with the matrices of ids [R,
 * top], or their sum [R, n_out] by share [R, top] if it is not NULL. */
qn_array *qn_block_adapted_experts(qn_scope *s, const qn_forward *f, qn_array *x, qn_array *y, qn_array *ids,
                                   qn_array *share, qn_weight_role weight, int64_t layer);
/* The config's norm, with its epsilon and offset; x itself when the model has no such weight. */
qn_array *qn_block_norm(qn_scope *s, const qn_forward *f, qn_array *x, qn_weight_role weight, int64_t layer);
/* cap * tanh(x / cap); x itself when cap is 0. */
qn_array *qn_block_softcap(qn_scope *s, qn_array *x, float cap);
/* Cosines and sines, as qn_rope takes them, of pairs that turn by several positions: those of each section by
 * positions [R] and frequencies [n_pairs] of its own, one section after the other. */
typedef struct {
    qn_array *positions, *frequencies;
    int64_t n_pairs;
} qn_rope_section;
enum { QN_ROPE_SECTIONS_MAX = 4 };
qn_array *qn_block_rope_table(qn_scope *s, int n, const qn_rope_section *sections, float factor);
/* Cosines and sines of rope set i of all rows, by f's positions. */
qn_array *qn_block_rope(qn_scope *s, const qn_forward *f, int i);
/* Keys and values that the last layer of a layer group made: what a layer reads that has none of its own. chosen:
 * likewise the blocks that its index chose. */
typedef struct {
    qn_array *k, *v, *chosen;
} qn_block_kv;
/* What the rows' positions make of queries and keys of a layer: cosines and sines of its rope set, NULL where it
 * has none; what queries are multiplied by, [R, 1, 1], NULL: nothing. */
typedef struct {
    qn_array *table, *query_scale;
} qn_block_positions;
/* Queries, keys and values, their norms and rotation, attention, output. kv: of this layer's group; set by a layer
 * that has its own. */
qn_array *qn_block_attention(qn_scope *s, const qn_forward *f, qn_array *x, const qn_block_positions *at,
                             qn_block_kv *kv, int64_t layer);
/* What the heads of a layer gather: queries q [R, heads, head_dim] over keys k and values v of the rows, as p
 * says. group: the layer's. sinks, chosen: NULL if p does not ask for them. */
qn_array *qn_block_attend(qn_scope *s, const qn_forward *f, const qn_params_attend *p, int group, qn_array *q,
                          qn_array *k, qn_array *v, qn_array *sinks, qn_array *chosen);
/* How many positions a row of a layer sees at most, itself among them: the narrower of its window and the context; 0:
 * all. */
int64_t qn_block_window(const qn_forward *f, int64_t layer);
/* Into p what an indexed layer's attention is told, and into kv the choice, where the layer makes it. x, q and at: as of
 * qn_block_index. Nothing for other layers. */
void qn_block_choose(qn_scope *s, const qn_forward *f, qn_array *x, qn_array *q, const qn_block_positions *at,
                     qn_block_kv *kv, qn_params_attend *p, int64_t layer);
/* The blocks that rows of a layer with an index of its own attend to, [R, index_topk / index_kpool] i32: rising
 * numbers, -1 behind the last where there are fewer. x [R, hidden_size]: what the layer reads. q: what its index
 * queries are made of, x itself or the latent of the layer's queries [R, q_lora_rank]. at: as of its attention. Keys of
 * the index go to pages of its own group, and the rows of a block that is not whole to the layer's slot. */
qn_array *qn_block_index(qn_scope *s, const qn_forward *f, qn_array *x, qn_array *q,
                         const qn_block_positions *at, int64_t layer);
/* Attention over latents: config.h's qn_latent_config. choice: only its chosen is looked at. */
qn_array *qn_block_latent_attention(qn_scope *s, const qn_forward *f, qn_array *x,
                                    const qn_block_positions *at, qn_block_kv *choice, int64_t layer);
/* A recurrent primitive over inputs in[0..n), which become n + 3, with the layer's slot from how.offset floats on; or
 * n + 1, where every sequence starts from zero. */
qn_array *qn_block_recurrent(qn_scope *s, const qn_forward *f, qn_prim prim, qn_params_recurrent how, int n,
                             qn_array **in, int64_t layer);
/* A causal convolution of each channel of x over the rows of its sequence, plus the bias where there is one. offset:
 * in floats, of what it keeps in the layer's slot. */
qn_array *qn_block_conv(qn_scope *s, const qn_forward *f, qn_array *x, qn_weight_role weight,
                        qn_weight_role bias, int64_t offset, int64_t layer);
/* exp(A_log) of a recurrence, the same for all rows of x: of its last dimension, or (n_heads > 0) of the one before, which
 * is n_heads. */
qn_array *qn_block_rates(qn_scope *s, const qn_forward *f, qn_weight_role role, int64_t n_heads, qn_array *x,
                         int64_t layer);
/* Heads [R, n, dim] at `begin` of x [R, ..], each times length / sqrt(sum(x^2) + 1e-6): an RMS norm of another
 * epsilon. */
qn_array *qn_block_unit_heads(qn_scope *s, qn_array *x, int64_t begin, int64_t n, int64_t dim, float length);
/* Kimi delta attention: config.h's qn_delta_config. */
qn_array *qn_block_channel_delta(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer);
/* Alternating updates: streams [altup_num_inputs] of [R, hidden_size], made of the embedding x, and in the end one
 * again. Before a layer predicted [altup_num_inputs] is filled; behind it, x being what the active one became,
 * streams. layer_inputs NULL: there are none. */
void qn_block_altup_begin(qn_scope *s, const qn_forward *f, qn_array *x, qn_array **streams);
void qn_block_altup_predict(qn_scope *s, const qn_forward *f, qn_array *const *streams, qn_array **predicted,
                            int64_t layer);
void qn_block_altup_correct(qn_scope *s, const qn_forward *f, qn_array *const *predicted, qn_array *x,
                            qn_array *layer_inputs, qn_array **streams, int64_t layer);
qn_array *qn_block_altup_end(qn_scope *s, const qn_forward *f, qn_array *const *streams);
/* Hyper-connections: streams x [R, hc_count, hidden_size], made of the embedding (label "hidden.0") and in the end one
 * row again. `read` gives what a block reads of them, [R, hidden_size], and keeps in *out what `write` needs: it adds what
 * the block gives, h [R, hidden_size]. */
typedef enum { QN_HYPER_ATTN, QN_HYPER_FFN } qn_hyper_place;
typedef struct {
    qn_array *streams;
    qn_array *post; /* [R, hc_count]: what each stream gets of h */
    qn_array *mix; /* [R, hc_count, hc_count]: [i, j] of stream i goes to j; NULL: streams stay as they are */
} qn_block_streams;
qn_array *qn_block_hyper_begin(qn_scope *s, const qn_forward *f, qn_array *x);
qn_array *qn_block_hyper_read(qn_scope *s, const qn_forward *f, qn_array *x, qn_hyper_place place,
                              int64_t layer, qn_block_streams *out);
qn_array *qn_block_hyper_write(qn_scope *s, const qn_forward *f, const qn_block_streams *to, qn_array *h);
qn_array *qn_block_hyper_end(qn_scope *s, const qn_forward *f, qn_array *x);
/* The norm of each stream of x [R, hc_count, hidden_size], which may be flat, by itself, with weights for all channels:
 * [R, hc_count * hidden_size]. */
qn_array *qn_block_stream_norm(qn_scope *s, const qn_forward *f, qn_array *x, qn_weight_role weight,
                               int64_t layer);
/* Streams x with what embeddings of n-grams (config.h's qn_ngram_config) add to them in a layer that has any. */
qn_array *qn_block_ngrams(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer);
/* x plus the norm of its product with a matrix of low rank (LAuReL, Menghani et al. 2024). */
qn_array *qn_block_laurel(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer);
/* Mamba-2's state space: config.h's qn_state_space_config. */
qn_array *qn_block_state_space(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer);
/* The gated short convolution: config.h's qn_short_conv_config. */
qn_array *qn_block_short_conv(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer);
/* The gated delta net with its state: config.h's qn_delta_config. */
qn_array *qn_block_gated_delta(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer);
/* The config's activation, as this layer has it. */
qn_array *qn_block_activation(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer);
/* act(gate) * up, both within mlp_limit before. */
qn_array *qn_block_gated(qn_scope *s, const qn_forward *f, qn_array *gate, qn_array *up, int64_t layer);
/* act(x gate) * (x up), down; without a gate act(x up), down. */
qn_array *qn_block_mlp(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer);
/* The inputs of all layers, [R, num_hidden_layers * hidden_size_per_layer_input], from the ids and their
 * embedding x; NULL when the model has none. */
qn_array *qn_block_layer_inputs(qn_scope *s, const qn_forward *f, qn_array *x);
/* What a layer's own input adds to x: act(x gate) * input, out, norm. */
qn_array *qn_block_layer_input(qn_scope *s, const qn_forward *f, qn_array *x, qn_array *inputs,
                               int64_t layer);
/* Which experts a row goes to: *ids [R, num_experts_per_tok], rising, and *share, their parts of the sum. x:
 * what the router reads. */
void qn_block_route(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer, qn_array **ids,
                    qn_array **share);
/* The sum of what the chosen experts make of x. */
qn_array *qn_block_chosen(qn_scope *s, const qn_forward *f, qn_array *x, qn_array *ids, qn_array *share,
                          int64_t layer);
/* Router and experts over the same rows, and the expert that all rows have where there is one. */
qn_array *qn_block_experts(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer);
/* A dense block and experts beside it, each with norms of its own, and the sum of what they give. x: rows
 * before any norm, which the router reads. */
qn_array *qn_block_mlp_and_experts(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer);

#endif
