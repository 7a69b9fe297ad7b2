/* What a model is, in numbers and switches: everything that the forward pass reads. Fields bear config.json's
 * names; GGUF keys are mapped to the same names once, while reading. Whoever computes never asks which family
 * a model is of: what differs between families is a field here, named after the idea, and a row of families.c
 * says how the field is found. Invariant: a config that was read is whole and in range: sizes positive and
 * bounded, heads divisible by their groups, rotary dimensions even, one qn_layer_config per layer. Immutable
 * after reading: any thread. */
#ifndef QN_MODEL_CONFIG_CONFIG_H
#define QN_MODEL_CONFIG_CONFIG_H

#include <quern/model.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "format/source/source.h"
#include "model/config/blocks/vision_config.h"

typedef enum {
    QN_HIDDEN_SILU,
    QN_HIDDEN_GELU_TANH,
    QN_HIDDEN_GELU,
    QN_HIDDEN_XIELU,
    QN_HIDDEN_RELU2
} qn_hidden_act;

/* The activation of a head that scores sequences. */
typedef enum { QN_CLASSIFY_TANH, QN_CLASSIFY_GELU, QN_CLASSIFY_GELU_TANH, QN_CLASSIFY_SILU } qn_classify_act;

/* xIELU (Huang and Schlag 2024): softplus(alpha_p) x^2 + beta x where x > 0, else
 * (beta + softplus(alpha_n)) (expm1(min(x, eps)) - x) + beta x. */
typedef struct {
    float alpha_p, alpha_n, beta, eps;
} qn_xielu;

/* Where a block is normed. PRE: its input. POST: its output, before it is added to the residual stream. SUM: the
 * stream itself, when the output has been added. */
enum {
    QN_NORM_PRE_ATTN = 1,
    QN_NORM_POST_ATTN = 2,
    QN_NORM_PRE_FFN = 4,
    QN_NORM_POST_FFN = 8,
    QN_NORM_SUM_ATTN = 16,
    QN_NORM_SUM_FFN = 32
};

/* Norm of queries and keys: of each head by itself (weight [head_dim]), of all heads at once (weights
 * [heads * head_dim]), or of each head without a weight. */
typedef enum { QN_QK_NORM_NONE, QN_QK_NORM_HEAD, QN_QK_NORM_WHOLE, QN_QK_NORM_PLAIN } qn_qk_norm;

/* What mixes positions in a layer: attention over keys and values, or attention over latents of which all
 * heads' keys and values are made, or a recurrence (DELTA, the gated delta net; SHORT_CONV, a gated causal
 * convolution; STATE_SPACE, Mamba-2; CHANNEL_DELTA, Kimi delta attention), or nothing. */
typedef enum {
    QN_MIXER_ATTENTION,
    QN_MIXER_LATENT,
    QN_MIXER_DELTA,
    QN_MIXER_SHORT_CONV,
    QN_MIXER_STATE_SPACE,
    QN_MIXER_CHANNEL_DELTA,
    QN_MIXER_NONE
} qn_mixer;

/* What an attention layer sees. */
typedef enum { QN_LAYER_FULL, QN_LAYER_SLIDING } qn_layer_kind;

enum { QN_ROPE_NONE = -1, QN_ROPE_SECTIONS = 3 };

typedef struct {
    qn_mixer mixer;
    qn_layer_kind kind;
    int64_t window; /* position p sees (p - window, p]; 0: all of [0, p]; of an encoder (p - window,
                                    p + window), and all */
    int64_t chunk; /* > 0, and window the same: of these only what is in p's own chunk of so many positions */
    int rope;      /* index into rope[]; QN_ROPE_NONE: positions turn nothing */
    int64_t kv_layer;            /* whose keys and values it reads: its own, or those of the last layer of its
                                    kind that has its own */
    int64_t num_key_value_heads; /* divides num_attention_heads */
    int64_t head_dim;            /* of queries and keys */
    int64_t v_head_dim;          /* of values: the same but for LATENT */
    int indexed; /* 1: a row attends to the blocks of positions that an index chooses, and to its tail */
    int64_t index_layer; /* where indexed: whose choice it takes, its own or that of a layer before */
    int value_is_key;    /* 1: values are the keys before their norm and rotation; no projection */
    int64_t intermediate_size;
    qn_xielu xielu;         /* where hidden_act is XIELU */
    int beside_state_space; /* 1: a state space reads the same rows as attention, and what both give is added */
    float gate_sparsity; /* > 0: of an MLP's gate only what is above mean + gate_cutoff * deviation of the row
                                 counts, which is that share of normal numbers less */
    float gate_cutoff;
    int ngrams; /* which of ngram.hashes it has, from 1 on; 0: none */
    int has_mlp,
        has_experts; /* the feed-forward block: a dense one, experts, both beside each other, or none */
} qn_layer_config;

/* PROPORTIONAL turns the first pairs only, as they turn in a head that is turned as a whole: the others have
 * frequency 0. DYNAMIC (NTK) is DEFAULT up to max_position_embeddings. Beyond them transformers turns each
 * token by the length of the sequence at the time, so that keys depend on how a prompt was cut; here
 * positions beyond are turned as those before. */
typedef enum {
    QN_ROPE_DEFAULT,
    QN_ROPE_LINEAR,
    QN_ROPE_LLAMA3,
    QN_ROPE_YARN,
    QN_ROPE_DYNAMIC,
    QN_ROPE_LONG,
    QN_ROPE_PROPORTIONAL
} qn_rope_type;

/* Rotary embedding. Dimension pair i of the first rotary_dim dimensions of a head is turned by the angle
 * position * inv_freq[i]; cos and sin are multiplied by attention_factor. */
typedef struct {
    qn_rope_type type;
    double theta;
    double factor;                                   /* stretch of the context; 1: none */
    int64_t rotary_dim;                              /* even, <= head_dim */
    float attention_factor;                          /* 1 but for YaRN and LongRoPE */
    int64_t stretched_positions;                     /* YaRN: the context that it stretches to; else 0 */
    double original_positions, beta_fast, beta_slow; /* YaRN: of which inv_freq was made; else 0 */
    double ext_factor;                               /* YaRN: share of the unstretched frequency; else 0 */
    float score_mscale;      /* of what is stretched: (score_mscale)^2 belongs to attention_scale where
                                mscale_all_dim says so; else 1 */
    int64_t short_positions; /* LongRoPE: longer sequences are turned by long_inv_freq; else 0 */
    /* A place in a picture has three positions: the first mrope_section[0] pairs turn by the time, the next
     * by the row, the last by the column. Text has them equal. Their sum is rotary_dim / 2; all 0: one
     * position turns all pairs. */
    int64_t mrope_section[QN_ROPE_SECTIONS];
    /* 1: sections take turns: of the first 3 * mrope_section[1] pairs each third one turns by the row, of the first
     * 3 * mrope_section[2] each third by the column, and all others by the time. */
    int mrope_interleaved;
    float *inv_freq;      /* [rotary_dim / 2], all scaling applied; rounded as transformers does in float32 */
    float *long_inv_freq; /* the same; NULL but for LongRoPE */
} qn_rope_config;

/* What a router makes of its logits, of which the num_experts_per_tok best are chosen: shares of all experts;
 * the same, but of the chosen ones alone; each by itself; or the chosen ones each by itself, by the largest logits. */
typedef enum {
    QN_SCORE_SOFTMAX,
    QN_SCORE_SOFTMAX_CHOSEN,
    QN_SCORE_SIGMOID,
    QN_SCORE_SIGMOID_CHOSEN
} qn_expert_score;

/* Mixture of experts; num_experts 0: there is none. An expert is act(gate x) * (up x), down. */
typedef struct {
    int64_t num_experts, num_experts_per_tok, moe_intermediate_size;
    qn_expert_score score;
    int norm_topk_prob;          /* 1: the scores of the chosen experts are scaled to sum to 1 */
    float routed_scaling_factor; /* and multiplied by this; 1: none */
    /* Experts are n_group groups of neighbours, of which the topk_group best count: those with the largest
     * sum of their group_scores largest scores. n_group 1: no groups. */
    int64_t n_group, topk_group, group_scores;
    int correction_bias; /* 1: scores are chosen by with a bias of each expert, and used without it */
    int bias;            /* 1: router and matrices have biases */
    int scales_input;    /* 1: an expert reads the row times its score, and what experts give is added */
    /* > 0: an expert is (clamp(up) + 1) * gate * sigmoid(swiglu_alpha gate), gate at most swiglu_limit and up
     * within it */
    float swiglu_alpha, swiglu_limit;
    int64_t shared_intermediate_size; /* of the expert that all rows have beside theirs; 0: none */
    float topk_norm_eps;              /* added to the sum that norm_topk_prob divides by */
    int shared_gate;                  /* 1: what it gives is multiplied by the sigmoid of one more logit */
    int router_norm;  /* 1: the router looks at rows that are normed by themselves, times a number of each
                         channel  and hidden_size^-0.5 */
    int expert_scale; /* 1: what an expert gives is multiplied by a number of its own */
} qn_experts_config;

/* Gated delta net, and Kimi delta attention, which has as many key heads: linear_num_value_heads heads with a state [linear_key_head_dim, linear_value_head_dim]
 * each; as many of them to each key head share its queries and keys. */
typedef struct {
    int64_t linear_num_key_heads, linear_num_value_heads; /* the latter a multiple of the former */
    int64_t linear_key_head_dim, linear_value_head_dim;
    int64_t linear_conv_kernel_dim; /* rows that the convolution before sees */
    /* < 0: what a channel forgets is held: g = lower_bound * sigmoid(exp(A_log) (f + dt_bias)); 0: see
     * blocks/channel_delta.c. */
    float lower_bound;
    int gate_sigmoid; /* 1: the output is gated by sigmoid(z), else by silu(z) */
    int by_head; /* 1: two projections that hold all parts of one key head beside each other, q, k, v and z, and b and
                    a; 0: one for q, k and v, and one each for z, a and b */
    int z_apart; /* 1: of by_head that of b and a alone; q, k and v have one, and z has one */
    int tiled; /* 1: value head i has key head i % linear_num_key_heads; 0: value heads of one key head are neighbours */
} qn_delta_config;

/* Gated short convolution: (b, c, x) = in, out of c * conv(b * x), where conv is causal, with weights for each
 * channel. */
typedef struct {
    int64_t conv_L_cache; /* rows that the convolution sees */
    int conv_bias;        /* 1: the convolution and both projections have biases */
} qn_short_conv_config;

/* Where a state space norms what its heads give, group by group: not at all, before it is gated or behind that. */
typedef enum { QN_SSM_NORM_NONE, QN_SSM_NORM_BEFORE_GATE, QN_SSM_NORM_BEHIND_GATE } qn_ssm_norm;

/* Mamba-2: mamba_n_heads heads with a state [mamba_d_state, mamba_d_head] each; as many of them to each of
 * mamba_n_groups groups share B and C. See blocks/state_space.c. */
enum { QN_SSM_PARTS = 5 };
typedef struct {
    int64_t mamba_n_heads, mamba_d_head, mamba_d_state, mamba_n_groups;
    int64_t mamba_d_conv; /* rows that the convolution before sees */
    int conv_bias, in_bias, out_bias;
    qn_ssm_norm norm;
    float step_min, step_max;       /* limits of a row's step; 0 and INFINITY: none */
    float in_scale, out_scale;      /* multiply the rows that it reads, and what it gives */
    float part_scale[QN_SSM_PARTS]; /* multiply what the projection gives: z, x, B, C and the step */
} qn_state_space_config;

/* Multi-head latent attention. Of each head qk_nope_head_dim dimensions of keys, and its values, are made of
 * a latent of kv_lora_rank dimensions; qk_rope_head_dim more are rotated and the same for all heads. */
typedef struct {
    int64_t q_lora_rank; /* queries are made of so many dimensions; 0: of the hidden state itself */
    int64_t kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim;
    float norm_eps; /* of the norms of latents, whatever rms_norm_eps is */
} qn_latent_config;

/* Attention over chosen blocks. Each index_kpool positions from a sequence's first on are a block. Of a block that a
 * row sees as a whole the index keeps one key of index_head_dim numbers, pooled of those of its positions. A row
 * scores it by the sum over index_n_heads queries of relu(q . key / sqrt(index_head_dim)), and attends to the
 * positions of its index_topk / index_kpool best blocks. See blocks/index.c. */
typedef enum {
    QN_INDEX_NONE,
    QN_INDEX_MEAN, /* the mean of the keys, then normed (RMS) and rotated as the block's first position is */
    QN_INDEX_GATED /* keys are normed (with mean and bias) before; each channel's sum is weighted by a softmax over the
                      block of a product of the layer's input plus a number of the place in the block. Nothing is
                      rotated, and heads are weighted by a product of the layer's input times index_n_heads^-0.5 */
} qn_index_pool;
typedef struct {
    qn_index_pool pool; /* NONE: no layer is indexed */
    int64_t index_n_heads, index_head_dim;
    int64_t index_kpool, index_topk; /* the latter a multiple of the former */
    int no_tail; /* 1: a row does not see the positions behind the last whole block, itself among them, and where it
                    chose nothing it gathers 0 */
} qn_index_config;

/* Encoders: each row sees the rows behind it too, nothing is kept between steps, and there is no next token. Zero
 * for other models. */
typedef struct {
    int both_ways;
    /* A table has a row for each position. The first position has row position_first; with skips_pad, a token
     * pad_token_id has row pad_token_id and does not move the positions behind it. 0: there is no such table. */
    int64_t position_rows, position_first;
    int skips_pad;
    int32_t pad_token_id;    /* -1: none */
    int64_t type_vocab_size; /* a table has a row for each type of token; 0: there is no such table */
    int embed_norm;          /* 1: the sum of a token's rows is normed before the first layer */
    int64_t embedding_dim;   /* > 0: rows behind the final norm become so many numbers */
    /* > 0: a head gives each sequence so many scores: of the first row, or with classify_mean of the mean of all,
     * out(norm(act(dense x))), where the norm is optional; without classify_dense, out(x). */
    int64_t num_labels;
    int classify_dense, classify_mean, classify_norm, classify_bias;
    qn_classify_act classify_act;
} qn_encoder_config;

/* Hyper-connections: the residual stream is hc_count streams side by side. Before a block they become the one row that it
 * reads; behind it the streams are mixed, and each gets its share of what the block gives. See blocks/hyper.c.
 * SINKHORN: what mixes them has rows and columns of sum 1, to which hc_sinkhorn_iters turns of scaling lead. LOW_RANK:
 * streams are not mixed, and a matrix of rank hc_lowrank makes a weight of each channel of each stream in the row. */
typedef enum { QN_HYPER_NONE, QN_HYPER_SINKHORN, QN_HYPER_LOW_RANK } qn_hyper_kind;
typedef struct {
    qn_hyper_kind kind;
    int64_t hc_count; /* 0: one stream without any of this */
    int64_t hc_sinkhorn_iters;
    float hc_eps;
    int64_t hc_lowrank;
} qn_hyper_config;

/* Embeddings of the n-grams that end at a token, for n from 2 to ngram_size: each of heads_per_ngram heads hashes the
 * n-gram to a row of its part of the layer's table, and the rows of all heads are ple_embed_dim numbers. A gate weighs
 * them for each stream, and a convolution over ple_conv_kernel_size rows, each ngram_size rows behind the one before it,
 * is added (blocks/ngrams.c). */
enum { QN_NGRAM_MAX = 8, QN_NGRAM_HEADS_MAX = 128 };
typedef struct {
    int64_t multiplier[QN_NGRAM_MAX];   /* of the token, the one before it, ..: [ngram_size] */
    int32_t size[QN_NGRAM_HEADS_MAX];   /* rows of each head: what its hash is taken modulo */
    int32_t offset[QN_NGRAM_HEADS_MAX]; /* and the first of them */
} qn_ngram_hash;
typedef struct {
    int64_t ngram_size, heads_per_ngram; /* ngram_size 0: no layer has any */
    int64_t n_heads;                     /* of all n together */
    int64_t ple_embed_dim, ple_conv_kernel_size;
    int64_t split_ngram_parts; /* tensors that a table may lie in */
    int32_t eos_token_id;      /* an n-gram does not reach over one: it stands in for the tokens before */
    qn_ngram_hash *hashes;     /* [n_hashes], one for each layer that has any */
    int64_t *n_rows;           /* [n_hashes] of the layer's table */
    int64_t n_hashes;
} qn_ngram_config;

enum { QN_ALTUP_INPUTS_MAX = 8, QN_HYPER_STREAMS_MAX = 8 };
enum { QN_ROPE_SETS = 2, QN_STOP_IDS_MAX = 32 };

struct qn_family;

typedef struct {
    const char *architecture;       /* the family as config.json calls it, "gemma3_text"; static storage */
    const char *recognised_by;      /* the files name none: what in them gave it away; else NULL; static */
    const struct qn_family *family; /* for weights.c, which takes tensor names from it */

    int64_t vocab_size, hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim,
        intermediate_size;
    int64_t max_position_embeddings; /* with YaRN the stretched context: files often give the one before */
    qn_layer_config *layers;         /* [num_hidden_layers] */

    /* Norms: x / sqrt(mean(x^2) + rms_norm_eps) * (norm_offset + weight); with layer_norm mean(x) is taken from x
     * before, and norm_bias says that a bias is added. */
    float rms_norm_eps;
    int layer_norm, norm_bias;
    float norm_offset;       /* 1 where weights are stored as their distance from one, else 0 */
    float final_norm_offset; /* the same of the norm behind the last layer */
    float post_norm_eps;     /* in place of rms_norm_eps, of norms of what attention and MLPs give */
    int plain_embed_norm;    /* 1: rows of the embedding are normed, without a weight */
    unsigned norms;          /* QN_NORM_* bits; norms on all layers alike */
    int no_final_norm;       /* 1: the stream behind the last layer is the result */
    int first_unnormed;      /* 1: the first layer has no norm before attention */
    int parallel_blocks; /* 1: attention and the feed-forward block both read what the norm before attention gives,
                            and both are added to the stream */
    int plain_mlp;       /* 1: MLPs are act(x up) down, without a gate */
    /* > 0: of every MLP and expert the gate is at most this before its activation, and up is within it. */
    float mlp_limit;
    qn_qk_norm qk_norm;
    int qk_norm_after_rope; /* 1: queries and keys are normed when they have been rotated */
    int qk_norm_with_rope;  /* 1: in layers with RoPE alone */
    /* Queries at position p are multiplied by 1 + query_scale_beta * ln(1 + floor((p + query_scale_first) /
     * query_scale_positions)); beta 0: they are not. query_scale_no_rope: in layers without RoPE alone. */
    float query_scale_beta, query_scale_positions, query_scale_first;
    int query_scale_no_rope;
    int attn_output_gate; /* 1: each head's rows of q are followed by as many of a gate: what attention gives
                             is multiplied by sigmoid(gate) */
    int attn_head_gate; /* 1: what each head gives is multiplied by the sigmoid of a logit of the layer's input */
    int attn_channel_gate; /* 1: what attention gives is multiplied by the sigmoid of a product of the layer's input */
    int value_norm;  /* 1: each head of values is normed, without a weight */
    int layer_scale; /* 1: what a layer gives is multiplied by a number of its own, where the files have it */

    /* P numbers per token and layer beside the hidden states (0: none): a row of a second embedding, [V2,
     * num_hidden_layers * P], plus a projection of the first, see blocks/layer_input.c. */
    int64_t hidden_size_per_layer_input; /* P */
    int64_t vocab_size_per_layer_input;  /* V2; ids beyond read row 0; 0: the projection alone, unscaled */

    /* Multiply what attention reads, its keys, what it gives, an MLP's gate before its activation, and what the MLP
     * gives. */
    float attention_in_scale, key_scale, attention_out_scale, gate_scale, mlp_out_scale;
    /* The residual stream is so many (0: one): blocks/altup.c. altup_correct_scale: what the per-layer input reads is
     * multiplied by a number of each channel. */
    int64_t altup_num_inputs, altup_active_idx;
    int altup_correct_scale;
    int64_t
        laurel_rank; /* > 0: beside attention a product of that rank reads the same rows: qn_block_laurel */
    qn_hyper_config hyper;
    qn_ngram_config ngram;
    float residual_scale;                                  /* multiplies what a block adds to the stream */
    float logits_scale;                                    /* multiplies logits, before their soft cap */
    float embedding_scale;                                 /* multiplies embedding rows; 1: none */
    float attention_scale;                                 /* scores = attention_scale * q.k */
    float attn_logit_softcapping, final_logit_softcapping; /* x -> cap * tanh(x / cap); 0: none */
    qn_hidden_act hidden_act;

    qn_rope_config rope[QN_ROPE_SETS];
    int n_rope;                   /* sets in use */
    int64_t rope_short_positions; /* short_positions of the sets that have one; 0: none does */
    int rope_interleaved;         /* pairs are dimensions (2i, 2i+1); else (i, i + rotary_dim/2) */
    int rope_changed;             /* 1: options changed it to what the files do not say */

    /* 1: the files say that these vectors exist, so a missing one is an error. A bias that is in the file is
     * used in any case. */
    int attention_bias;        /* of q, k and v */
    int attention_output_bias; /* of o */
    int mlp_bias;
    int head_bias;
    int tie_word_embeddings; /* what the files say; a head of its own in the files is used anyway: see
                                weights.h */

    int attention_sinks; /* 1: a logit of each head takes part in the softmax and takes nothing */
    qn_experts_config experts;
    int64_t
        num_nextn_predict_layers; /* layers behind the others in the files, for drafts, that are left out */
    qn_latent_config latent;      /* of layers whose mixer is LATENT, likewise */
    qn_index_config index;        /* of layers that are indexed; likewise */
    qn_delta_config delta;        /* of layers whose mixer is DELTA; zero when there is none */
    int multipliers_folded; /* 1: the weights have been multiplied by what published files say beside them */
    int rates_given;        /* 1: of recurrences A_log has the rates themselves, -exp(A_log) */
    qn_state_space_config state_space; /* of layers that have one; likewise */
    qn_short_conv_config short_conv;   /* of layers whose mixer is SHORT_CONV; likewise */

    qn_encoder_config encoder;
    qn_vision_config vision; /* family NULL: it takes no images */

    int32_t bos_token_id;              /* -1: none */
    int32_t stop_ids[QN_STOP_IDS_MAX]; /* eos ids of generation_config.json, config.json and GGUF metadata,
                                          each once */
    int n_stop_ids;
    const char *const *stop_tokens; /* the family's end-of-turn tokens by text, NULL at the end; those that
                                       are in the vocabulary as special tokens stop too */

    struct qn_quantization *quantization; /* MLX's quantised layers; NULL: the files do not say. Owned */
    int quant_bits; /* bits of most quantised weights, as the files declare them; 0: not quantised or not said
                     */
} qn_model_config;

/* Reads the model's description: config.json and generation_config.json where there is one, else GGUF
 * metadata (beside a GGUF file config.json wins). What they leave out follows from tensor shapes or from the
 * family. *out owns arrays: free with qn_config_free. src is needed during the call only. QN_E_UNSUPPORTED:
 * unknown architecture (the message lists the known ones), rope type or activation. QN_E_FORMAT: a field is
 * missing, of the wrong type, out of range or at odds with another. Untouched on failure. */
qn_status qn_config_read(qn_source *src, qn_model_config *out);
/* The same as if the files had the rotary positions of rope. notes gets a sentence on what was changed. rope and notes
 * may be NULL. Also the statuses of qn_rope_options. */
qn_status qn_config_read_changed(qn_source *src, const qn_rope_options *rope, qn_buf *notes,
                                 qn_model_config *out);
/* Frees the arrays; the struct itself is the caller's. Accepts NULL and a zeroed config. */
void qn_config_free(qn_model_config *c);

/* 1: the layer keeps a state in place of keys and values. */
int qn_layer_recurs(const qn_layer_config *l);
/* 1: the layer has a state space, by itself or beside attention. */
int qn_layer_has_state_space(const qn_layer_config *l);
/* 1: the layer keeps keys and values, or reads those of another. */
int qn_layer_attends(const qn_layer_config *l);

/* What a recurrent layer keeps of a sequence, in floats: of its convolution, and of the recurrence behind it. 0 for
 * other layers. */
void qn_layer_state_floats(const qn_model_config *c, int64_t layer, int64_t *conv, int64_t *rule);

/* Of these, what embeddings of n-grams keep, behind the layer's own convolution: the tokens before, then the rows that
 * their convolution sees (blocks/ngrams.c). */
int64_t qn_ngram_state_floats(const qn_model_config *c);

/* "default", "llama3", ... Static storage. */
const char *qn_rope_type_name(qn_rope_type type);

#endif
