/* The model families, one row each (family_rows.c): how a family is recognised, what its files leave unsaid,
 * what its tensors are called (weight_names.c). A new family of known blocks is a new row. Read by what
 * reads files: config.c, weights.c, adapters; constant data. */
#ifndef QN_MODEL_CONFIG_FAMILIES_H
#define QN_MODEL_CONFIG_FAMILIES_H

#include "format/source/source.h"
#include "model/config/config.h"
#include "model/config/fields.h"
#include "model/config/weight_role.h"

/* Which layers slide when the files do not list layer_types. */
typedef enum {
    QN_SLIDE_NEVER,
    QN_SLIDE_EVERY,   /* all layers, where sliding_window is set */
    QN_SLIDE_PERIOD,  /* all but each sliding_window_pattern-th */
    QN_SLIDE_BEHIND,  /* the same, but the first layer is the first of those that do not */
    QN_SLIDE_FROM,    /* from layer max_window_layers on, where use_sliding_window is true */
    QN_SLIDE_NO_ROPE, /* those without RoPE, where use_sliding_window is true */
    QN_SLIDE_BEFORE,  /* all but each sliding_window_pattern-th, counted from the last one back */
    QN_SLIDE_CHUNKS   /* those with RoPE, where sliding_window is set, which is then the size of chunks */
} qn_slide_rule;

/* Layers of linear_attention are gated delta nets, all but each full_attention_interval-th where the files do
 * not list layer_types. */
typedef enum {
    QN_DELTA_NEVER,
    QN_DELTA_SPLIT,      /* in_proj_qkv, in_proj_z, in_proj_a, in_proj_b */
    QN_DELTA_BY_CHANNEL, /* Kimi delta attention: linear_attn_config, else linear_num_heads, linear_head_dim */
    QN_DELTA_BY_CHANNEL_HELD, /* the same, with linear_lower_bound */
    QN_DELTA_BY_HEAD          /* in_proj_qkvz, in_proj_ba, key head by key head */
} qn_delta_rule;

/* Whether the output projection of attention has a bias. */
typedef enum {
    QN_OUTPUT_BIAS_AS_QKV, /* where attention_bias says that q, k and v have one */
    QN_OUTPUT_BIAS_SAID,   /* where attention_out_bias says so */
    QN_OUTPUT_BIAS_NONE
} qn_output_bias_rule;
/* Which layers recur when the files do not list layer_types, with the family's recurrent mixer. */
typedef enum {
    QN_RECUR_INTERVAL, /* all but each full_attention_interval-th */
    QN_RECUR_INDEXED,  /* all but those that full_attn_idxs names; none where it is absent */
    QN_RECUR_TURNS, /* of each four: recurrent, recurrent, full, recurrent; then sliding in place of the first */
    QN_RECUR_LISTED,  /* files must list them */
    QN_RECUR_EVERY,   /* all */
    QN_RECUR_LETTERS, /* hybrid_override_pattern: M recurs, * attends, - is an MLP, E experts */
    QN_RECUR_ATTN_CONFIG, /* linear_attn_config lists both kinds, from 1 on; else all but each fourth behind the first */
    QN_RECUR_BESIDE /* each layer attends and has a state space beside */
} qn_recur_rule;

/* Whether attention sees the rows behind a row, and how far where it has a window w. */
typedef enum {
    QN_BOTH_NEVER,
    QN_BOTH_SAID,  /* where use_bidirectional_attention says so: w / 2 rows to each side */
    QN_BOTH_HALF,  /* w / 2 rows to each side */
    QN_BOTH_RADIUS /* w rows to each side */
} qn_both_rule;

/* Which linear layers have biases. */
typedef enum {
    QN_BIASES_SAID,     /* attention_bias and mlp_bias say it */
    QN_BIASES_LAYERS,   /* all in a layer */
    QN_BIASES_USE_BIAS, /* use_bias says it of all in a layer */
    QN_BIASES_ALL       /* all, and the head */
} qn_bias_rule;

/* A tensor that the family calls otherwise than the table of names does. */
typedef struct {
    qn_weight_role role; /* QN_WEIGHT_ROLE_COUNT ends a list */
    const char *name;
} qn_renamed_weight;

/* A tensor that holds the rows of several roles, one below the other. Files may have them apart too. */
typedef struct {
    const char *safetensors, *gguf; /* its name, '#' for the layer; both NULL end a list */
    qn_weight_role roles[3];        /* from the top; QN_WEIGHT_ROLE_COUNT: no more */
} qn_shared_tensor;

/* How a family is known from files that name none: a tensor of layer 0 that is there while others are not. */
typedef struct {
    const char *tensor;         /* NULL ends a list */
    const char *const *without; /* NULL at the end */
    const char *words;          /* for the user */
} qn_known_by;

/* How the matrices of experts lie in a tensor: one below the other; each with the rows of two roles, first
 * half and second half or turn by turn, of which SECOND names the second; each transposed; the published form
 * of mxfp4, in two tensors, NAME_blocks and NAME_scales. */
enum {
    QN_EXPERTS_HALVES = 1,
    QN_EXPERTS_TURNS = 2,
    QN_EXPERTS_SECOND = 4,
    QN_EXPERTS_TRANSPOSED = 8,
    QN_EXPERTS_BLOCKS = 16
};

/* '#' is the layer, '@' the expert where each has a tensor of its own. */
typedef struct {
    qn_weight_role role;
    const char *name; /* NULL ends a list */
    unsigned layout;  /* QN_EXPERTS_* */
} qn_expert_name;

extern const qn_expert_name qn_expert_names[];        /* of Qwen and others in safetensors */
extern const qn_expert_name qn_expert_joined_names[]; /* the same, published with all experts in one tensor */
extern const qn_expert_name qn_expert_transposed_names[]; /* the same, each matrix transposed */
extern const qn_expert_name qn_expert_mixtral_names[];
extern const qn_expert_name qn_expert_llama4_names[];
extern const qn_expert_name qn_expert_granite_names[];
extern const qn_expert_name qn_expert_nemotron_names[];
extern const qn_expert_name qn_expert_lfm2_names[];
extern const qn_expert_name qn_expert_gpt_oss_names[];
extern const qn_expert_name qn_expert_gemma4_names[];
extern const qn_expert_name qn_expert_gguf_names[];

/* What libraries make adapters of: a module for each expert (older transformers), one for all experts (mlx_lm), or
 * a parameter of three dimensions, which may have the rows of two roles (transformers 5). */
typedef enum { QN_EXPERTS_EACH, QN_EXPERTS_STACKED, QN_EXPERTS_PARAMETER } qn_expert_form;

/* What a family fixes of its experts; see qn_experts_config. */
typedef struct {
    const qn_expert_name *names; /* in safetensors; the first that is there counts */
    const char *only_if;         /* a field without whose truth there are none; NULL: always */
    qn_expert_score score;
    int norm_topk_prob;      /* 1: whatever the files say */
    int gguf_norm_topk_prob; /* 1: in GGUF, which does not say */
    int correction_bias, bias, shared_gate;
    int never_normed;  /* norm_topk_prob is not looked at, there is no such norm */
    int group_scores;  /* a group is as good as the sum of so many of its best; 0: two */
    int method_groups; /* topk_method says whether there are groups: "greedy", "group_limited_greedy" */
    int listed_layers; /* mlp_layer_types lists the layers with experts; without it, all but the first have them */
    int named_layers; /* moe_layers has the numbers of those with experts; without it decoder_sparse_step counts */
    int first_dense; /* of listed_layers: without the list first_k_dense_replace counts */
    int optional; /* 1: no experts where their number is 0; MLPs are then as large as the shared expert is */
    const char *bias_key; /* a field that may switch correction_bias off; NULL: none */
    float topk_norm_eps;  /* 0: the usual one */
    int scales_input;
    int beside_mlp; /* 1: layers with experts have a dense block too */
    int router_norm, expert_scale;
    float swiglu_alpha;
} qn_family_experts;

/* Which rows of a learned table of positions tokens have: from the first on, or from the one behind pad_token_id. */
typedef enum { QN_POSITIONS_NONE, QN_POSITIONS_FROM_0, QN_POSITIONS_BEHIND_PAD } qn_position_rule;

/* The form of the head that scores a sequence: tanh of a dense layer of the first row; or as the files say, which row
 * or the mean, with which activation, and normed. */
typedef enum { QN_CLASSIFIER_NONE, QN_CLASSIFIER_TANH, QN_CLASSIFIER_SAID } qn_classifier_rule;

typedef struct qn_family {
    const char *const *model_types;   /* as in config.json, NULL at the end; the first is the family's name */
    const char *const *architectures; /* classes, for files that have no model_type; NULL at the end */
    const char *gguf_architecture;    /* NULL: not in GGUF */
    const char *gguf_both_ways;       /* in GGUF where BOTH_SAID says so; NULL: the same name */
    const char *gguf_with_experts;    /* in GGUF of models with experts; NULL: the same name */
    const qn_known_by *known_by;      /* NULL: never known by its tensors */
    const qn_field_default *defaults;
    const qn_field_spelling *spelled;      /* NULL: none */
    const qn_renamed_weight *renamed;      /* in safetensors; NULL: none */
    const qn_renamed_weight *gguf_renamed; /* NULL: none */
    const qn_shared_tensor *shared;        /* NULL: none */
    const qn_family_experts *experts;      /* NULL: none */
    const char *const *stop_tokens;        /* end of turn, NULL at the end */

    const char *const *hidden_act_keys; /* fields that name the activation, the first that is set counts */
    qn_hidden_act hidden_act;           /* without these fields, and in GGUF */
    int gelu_is_tanh;                   /* "gelu" in old files means the approximation by tanh */
    unsigned norms;                     /* QN_NORM_* */
    qn_qk_norm qk_norm;
    const char *qk_norm_if; /* a field without whose truth there is no such norm; NULL: always */
    int qk_norm_after_rope;
    int qk_norm_with_rope;
    int scales_queries; /* llama_4_scaling_beta of the RoPE parameters: query_scale_beta */
    int tempers_queries; /* attn_scale, floor_scale, of layers without RoPE where attn_temperature_tuning says so */
    int rope_alpha; /* RoPE type "dynamic" with alpha: theta * alpha^(head_dim / (head_dim - 2)) at all lengths */
    int rope_interleaved;
    int layer_norm, norm_bias, parallel_blocks, plain_mlp;
    qn_bias_rule biases;
    qn_both_rule both_ways;
    int no_final_norm, first_unnormed, embed_norm;
    int said_norm_bias;                 /* norm_bias of the files */
    qn_position_rule learned_positions; /* a table of max_position_embeddings rows */
    int token_types;                    /* type_vocab_size */
    int layer_input_alone;              /* inputs of layers come of a projection alone */
    int layer_heads;                    /* num_global_key_value_heads counts whatever attention_k_eq_v says */
    int output_proj;                    /* embedding_dim */
    qn_classifier_rule classifier;      /* of classes whose names end in ForSequenceClassification */
    const char *layers;                 /* how names of layers begin in safetensors; NULL: "layers." */
    int logit_scale;                    /* logits are multiplied by the field logit_scale */
    int full_skips_rope;                /* layers that do not slide have no RoPE, in models with a window */
    qn_output_bias_rule output_bias;
    int draft_layers; /* num_nextn_predict_layers more layers follow in the files, for drafts */
    int multiplied;   /* embedding_multiplier, attention_multiplier, residual_multiplier and
                       logits_scaling, each 1 where it is not said */
    int value_norm;
    int layer_scale;
    qn_slide_rule slide;
    qn_delta_rule delta;
    qn_mixer recurrent;  /* of layers that recur; ATTENTION: none does. DELTA where delta says how */
    qn_recur_rule recur; /* where a layer may recur */
    qn_hyper_kind hyper; /* hc_mult, or hc_count, and its like */
    int ngrams;          /* ple_layer_ids and what goes with it */
    int said_gate;       /* output_gate_type, else hidden_act, says how the delta net's output is gated */
    int altup; /* altup_*, laurel_rank, activation_sparsity_pattern; intermediate_size may be a list */
    int counted_layers; /* num_hidden_layers is the length of the list of layers, whatever the files say */
    int single_blocks;  /* a layer mixes positions or has a feed-forward block, as the list of layers says */
    int no_rope;        /* positions turn nothing */
    int said_rope;      /* the same unless position_embedding_type is "rope" */
    int inner_width;    /* mamba_d_ssm, else mamba_expand times hidden_size, is the width of a state space */
    int step_floor;     /* time_step_min is the least step, and no other limit is looked at */
    int optional_ssm_norm;        /* mamba_rms_norm, mamba_norm_before_gate */
    int many_multipliers;         /* Falcon-H1's twelve */
    const char *ssm_out_bias_key; /* NULL: the projection behind a state space has a bias as the one before */
    int adjusted_ffn;             /* block_auto_adjust_ff_dim and its like make intermediate_size */
    int sandwich_norm;            /* use_sandwich_norm 0 takes the norms after the blocks away */
    int head_gate;                /* use_attention_gate: attn_head_gate, 1 where it is not said */
    int channel_gate;             /* attn_channel_gate */
    int plain_embed_norm, plain_final_norm; /* the latter: final_norm_offset is 0 */
    int said_post_norm_eps;                 /* post_norm_eps */
    int scales_scores;                      /* scores are multiplied by qk_scale_factor too */
    int rope_thetas; /* layer_rope_theta is 0 for layers without RoPE; without it, of each fourth from the last back */
    int latent; /* all layers attend over latents */
    qn_index_pool
        index; /* all attention layers are indexed so: index_n_heads, index_head_dim, index_kpool, index_topk,
                            index_kpool_always_select_tail, indexer_types (blocks/index_config.h) */
    int mlp_limit;       /* swiglu_limit: the field of that name in qn_model_config */
    int latent_norm_eps; /* norms of latents have rms_norm_eps */
    int unrotated;       /* latents have no part that is rotated: qk_rope_head_dim is 0 */
    int gated_attention; /* attn_output_gate, where the files do not say */
    /* mrope_section says which pairs turn by which of three positions; these, where it is absent. 0: one turns all. */
    int64_t sectioned_rope[QN_ROPE_SECTIONS];
    int sections_take_turns; /* qn_rope_config.mrope_interleaved */
    int skips_rope;          /* no_rope_layers, no_rope_layer_interval: layers that have no RoPE */
    int last_is_full;        /* the last layer never slides, whatever layer_types says of it */
    /* JSON: what config.json means by leaving rope_parameters out; NULL: nothing. */
    const char *rope_parameters;
    float norm_offset;         /* as published; GGUF files have it added to the weights already */
    int scaled_embedding;      /* embedding rows are multiplied by sqrt(hidden_size) */
    int sinks;                 /* attention_sinks */
    int biased_qkv;            /* q, k and v have biases whatever attention_bias says, o has none */
    int gguf_slides;           /* GGUF gives the same name to a family whose layers slide, and says which */
    int gguf_rope_interleaved; /* GGUF files have the rows of q and k permuted for pairs (2i, 2i + 1) */
    int64_t gguf_wide_scale_layers; /* GGUF does not say query_pre_attn_scalar: it is head_dim but in the
                                       published model with this many layers, where it is hidden_size /
                                       num_attention_heads; 0: no such model */
} qn_family;

/* [qn_family_count], .. */
extern const qn_family qn_family_rows[], qn_family_experts_rows[], qn_family_recurrent_rows[],
    qn_family_seeing_rows[], qn_family_encoder_rows[];
extern const int qn_family_count, qn_family_experts_count, qn_family_recurrent_count, qn_family_seeing_count,
    qn_family_encoder_count;

/* Row i of the tables, one behind the other; NULL behind the last. */
const qn_family *qn_family_at(int i);

/* NULL: not known. *name gets the row's own spelling. */
const qn_family *qn_family_by_model_type(const char *model_type, const char **name);
const qn_family *qn_family_by_architecture(const char *architecture);
/* name (may be NULL): the same, and static. */
const qn_family *qn_family_by_gguf(const char *architecture, size_t length, const char **name);
/* The family with experts that GGUF gives the same name as this one, if there are several the one whose router
 * scores so; itself when there is none. */
const qn_family *qn_family_with_experts(const qn_family *family, qn_expert_score score);
/* *words: what gave it away; static. */
const qn_family *qn_family_by_tensors(const qn_source *src, const char **words);
/* "llama, qwen3, ...": model types, or GGUF architectures; into text, cut when too long; returns text. */
const char *qn_families_known(int gguf, char *text, size_t size);

/* Where published files of transformers keep the decoder: "model.", ...; NULL at the end. */
extern const char *const qn_decoder_prefixes[];
enum { QN_TENSOR_NAME_MAX = 128 };
/* Name of a tensor in files of this kind, into text[QN_TENSOR_NAME_MAX]; prefix: one of qn_decoder_prefixes,
 * ignored for GGUF. 0: this kind of file never has it. */
int qn_family_weight_name(const qn_family *family, qn_source_kind kind, const char *prefix,
                          qn_weight_role role, int64_t layer, char *text);
/* The name in safetensors that families give a role which do not rename it. 0: there is none. */
int qn_family_usual_name(const char *prefix, qn_weight_role role, int64_t layer, char *text);
/* 1: the family's files of this kind may have a tensor of this name. */
int qn_family_has_name(const qn_family *family, qn_source_kind kind, const char *name);
/* The same for the tensor that the role's rows lie in; 0: the role has one of its own. *shared: its roles. */
int qn_family_shared_name(const qn_family *family, qn_source_kind kind, const char *prefix,
                          qn_weight_role role, int64_t layer, char *text, const qn_shared_tensor **shared);
/* Name of the module or parameter that has a role's matrices of experts, into text[QN_TENSOR_NAME_MAX]; '@' is the
 * expert where each has its own. layout (may be NULL): QN_EXPERTS_* of a parameter. 0: the family has none. */
int qn_family_expert_module(const qn_family *family, qn_expert_form form, const char *prefix,
                            qn_weight_role role, int64_t layer, char *text, unsigned *layout);
/* The role of a name of that form, "layers.3.mlp.experts.7.up_proj"; of a parameter its first role. *expert: -1
 * where all are in one. 0: it is none. */
int qn_family_expert_find(const qn_family *family, qn_expert_form form, const char *module,
                          qn_weight_role *role, int64_t *expert);
/* The tensor under any of its names; NULL (without a message) when there is none. prefix (may be NULL) gets
 * the one that fit. */
const qn_tensor_view *qn_family_find_weight(const qn_family *family, const qn_source *src,
                                            qn_weight_role role, int64_t layer, const char **prefix);

#endif
