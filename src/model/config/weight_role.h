/* What the tensors of a model are for. Families name them by role, weights.h finds them, and blocks compute
 * with them. */
#ifndef QN_MODEL_CONFIG_WEIGHT_ROLE_H
#define QN_MODEL_CONFIG_WEIGHT_ROLE_H

/* Shapes: V vocab_size, H hidden_size, Q num_attention_heads * head_dim, K num_key_value_heads * head_dim, D
 * head_dim, F intermediate_size; these and Q of the layer at hand, E num_experts, M moe_intermediate_size, S
 * shared_intermediate_size; V2 vocab_size_per_layer_input, P hidden_size_per_layer_input, L
 * num_hidden_layers. Matrices are [out, in]. */
typedef enum {
    QN_WEIGHT_EMBED,           /* [V, H] */
    QN_WEIGHT_FINAL_NORM,      /* [H] */
    QN_WEIGHT_FINAL_NORM_BIAS, /* [H] */
    QN_WEIGHT_LM_HEAD,      /* [V, H]; never NULL: the embedding where the files have no head of their own */
    QN_WEIGHT_LM_HEAD_BIAS, /* [V] */
    QN_WEIGHT_POSITION_EMBED,      /* [position_rows, H]; these of encoders */
    QN_WEIGHT_TYPE_EMBED,          /* [type_vocab_size, H] */
    QN_WEIGHT_EMBED_NORM,          /* [H] of what is embedded */
    QN_WEIGHT_EMBED_NORM_BIAS,     /* [H] */
    QN_WEIGHT_OUTPUT_PROJ,         /* [embedding_dim, H] behind the final norm */
    QN_WEIGHT_CLASSIFY_DENSE,      /* [H, H]; of a head that gives each sequence num_labels scores */
    QN_WEIGHT_CLASSIFY_DENSE_BIAS, /* [H] */
    QN_WEIGHT_CLASSIFY_NORM,       /* [H] */
    QN_WEIGHT_CLASSIFY_NORM_BIAS,  /* [H] */
    QN_WEIGHT_CLASSIFY_OUT,        /* [num_labels, H] */
    QN_WEIGHT_CLASSIFY_OUT_BIAS,   /* [num_labels] */
    QN_WEIGHT_LAYER_INPUT_EMBED,   /* [V2, L * P] */
    QN_WEIGHT_LAYER_INPUT_PROJ,    /* [L * P, H] of the embedding, beside it */
    QN_WEIGHT_LAYER_INPUT_NORM,    /* [P] of that projection, layer by layer */
    QN_WEIGHT_ALTUP_IN, /* [H, H]: makes each stream but the first of the embedding; as many as there may be */
    QN_WEIGHT_ALTUP_OUT = QN_WEIGHT_ALTUP_IN + 7,       /* [H, H]: and back */
    QN_WEIGHT_HYPER_END_NORM = QN_WEIGHT_ALTUP_OUT + 7, /* [n H]; these three make one row of the n streams of
                                                           hyper-connections of low rank behind the last layer */
    QN_WEIGHT_HYPER_END_DOWN,                           /* [hc_lowrank, n H] */
    QN_WEIGHT_HYPER_END_UP,                             /* [n H, hc_lowrank] */
    QN_WEIGHT_MODEL_COUNT,
    /* From here on one per layer. */
    QN_WEIGHT_ATTN_NORM = QN_WEIGHT_MODEL_COUNT, /* [H] before attention */
    QN_WEIGHT_ATTN_NORM_BIAS,                    /* [H] */
    QN_WEIGHT_Q,                                 /* [Q, H]; with a gate [2 Q, H] */
    QN_WEIGHT_K,                                 /* [K, H] */
    QN_WEIGHT_V,                                 /* [K, H] */
    QN_WEIGHT_O,                                 /* [H, Q] */
    QN_WEIGHT_Q_BIAS,                            /* [Q] */
    QN_WEIGHT_K_BIAS,                            /* [K] */
    QN_WEIGHT_V_BIAS,                            /* [K] */
    QN_WEIGHT_O_BIAS,                            /* [H] */
    QN_WEIGHT_Q_NORM,                            /* [D], or [Q] where all heads are normed at once */
    QN_WEIGHT_K_NORM,                            /* [D], or [K] */
    QN_WEIGHT_Q_NORM_BIAS,                       /* [D] */
    QN_WEIGHT_K_NORM_BIAS,                       /* [D] */
    QN_WEIGHT_HEAD_GATE,                         /* [num_attention_heads, H], or [heads * head_dim, H] */
    QN_WEIGHT_POST_ATTN_NORM,                    /* [H] after attention, before it is added */
    QN_WEIGHT_SUM_ATTN_NORM,                     /* [H] of the stream when attention was added */
    QN_WEIGHT_SUM_ATTN_NORM_BIAS,                /* [H] */
    QN_WEIGHT_SUM_FFN_NORM,                      /* [H] of the stream when the feed-forward block was added */
    QN_WEIGHT_SUM_FFN_NORM_BIAS,                 /* [H] */
    QN_WEIGHT_FFN_NORM,                          /* [H] before the feed-forward block */
    QN_WEIGHT_FFN_NORM_BIAS,                     /* [H] */
    QN_WEIGHT_GATE,                              /* [F, H] */
    QN_WEIGHT_UP,                                /* [F, H] */
    QN_WEIGHT_DOWN,                              /* [H, F] */
    QN_WEIGHT_GATE_BIAS,                         /* [F] */
    QN_WEIGHT_UP_BIAS,                           /* [F] */
    QN_WEIGHT_DOWN_BIAS,                         /* [H] */
    QN_WEIGHT_LATENT_Q_A,                        /* [q_lora_rank, H] */
    QN_WEIGHT_LATENT_Q_A_BIAS,                   /* [q_lora_rank] */
    QN_WEIGHT_LATENT_Q_A_NORM,                   /* [q_lora_rank] */
    QN_WEIGHT_LATENT_Q_B,  /* [num_attention_heads * (qk_nope_head_dim + qk_rope_head_dim), q_lora_rank] */
    QN_WEIGHT_LATENT_KV_A, /* [kv_lora_rank + qk_rope_head_dim, H] */
    QN_WEIGHT_LATENT_KV_A_BIAS, /* [kv_lora_rank + qk_rope_head_dim] */
    QN_WEIGHT_LATENT_KV_A_NORM, /* [kv_lora_rank] */
    QN_WEIGHT_LATENT_K_B,       /* [num_attention_heads, kv_lora_rank, qk_nope_head_dim]; these two are one in
                                   files: [heads * (qk_nope_head_dim + v_head_dim), kv_lora_rank] */
    QN_WEIGHT_LATENT_V_B,       /* [num_attention_heads, v_head_dim, kv_lora_rank] */
    QN_WEIGHT_INDEX_Q, /* [n d, H], with latents [n d, q_lora_rank]; of an index of n heads of d dimensions */
    QN_WEIGHT_INDEX_K, /* [d, H] */
    QN_WEIGHT_INDEX_Q_NORM,      /* [d]; of QN_INDEX_MEAN */
    QN_WEIGHT_INDEX_K_NORM,      /* [d] */
    QN_WEIGHT_INDEX_K_NORM_BIAS, /* [d]; from here of QN_INDEX_GATED */
    QN_WEIGHT_INDEX_HEADS,       /* [n, H]: weights of heads */
    QN_WEIGHT_INDEX_GATE,        /* [d, H]: weights of a block's positions */
    QN_WEIGHT_INDEX_PLACES, /* [index_kpool, d] in files, one dimension here: the same by place in the block */
    QN_WEIGHT_DELTA_QKV,    /* [2 nk dk + nv dv, H]; the gated delta net, with nk key heads of dk and nv value
                             heads of dv dimensions */
    QN_WEIGHT_DELTA_Z,      /* [nv dv, H] */
    QN_WEIGHT_DELTA_A,      /* [nv, H] */
    QN_WEIGHT_DELTA_B,      /* [nv, H] */
    QN_WEIGHT_DELTA_QKVZ,   /* [2 nk dk + 2 nv dv, H]: those of one key head in a row */
    QN_WEIGHT_DELTA_BA,     /* [2 nv, H], likewise */
    QN_WEIGHT_CONV,   /* [channels, 1, kernel] in files, one dimension here: of the causal convolution of a
                             recurrent layer; of the delta net's 2 nk dk + nv dv channels */
    QN_WEIGHT_CONV_Q, /* [nv dv, 1, kernel], likewise: of queries, keys and values apart */
    QN_WEIGHT_CONV_K,
    QN_WEIGHT_CONV_V,
    QN_WEIGHT_DECAY_A,    /* [dk, H]: decays of nv heads by channel, by a low rank */
    QN_WEIGHT_DECAY_B,    /* [nv dk, dk] */
    QN_WEIGHT_OUT_GATE_A, /* [dv, H]: the gate of what heads give, by a low rank */
    QN_WEIGHT_OUT_GATE_B, /* [nv dv, dv] */
    QN_WEIGHT_CONV_BIAS,  /* [channels] */
    QN_WEIGHT_SSM_IN, /* [2 I + 2 G N + h, H]: z, x, B, C and steps of a state space of h heads, I in all, with G
                             groups of N */
    QN_WEIGHT_SSM_IN_BIAS,       /* of as many */
    QN_WEIGHT_SSM_DT_BIAS,       /* [h] */
    QN_WEIGHT_SSM_A_LOG,         /* [h] */
    QN_WEIGHT_SSM_D,             /* [h] */
    QN_WEIGHT_SSM_NORM,          /* [I] */
    QN_WEIGHT_SSM_OUT,           /* [H, I] */
    QN_WEIGHT_SSM_OUT_BIAS,      /* [H] */
    QN_WEIGHT_SHORT_IN,          /* [3 H, H]: b, c and x of the gated short convolution of H channels */
    QN_WEIGHT_SHORT_IN_BIAS,     /* [3 H] */
    QN_WEIGHT_SHORT_OUT,         /* [H, H] */
    QN_WEIGHT_SHORT_OUT_BIAS,    /* [H] */
    QN_WEIGHT_DELTA_DT_BIAS,     /* [nv] */
    QN_WEIGHT_DELTA_A_LOG,       /* [nv] */
    QN_WEIGHT_DELTA_NORM,        /* [dv] */
    QN_WEIGHT_DELTA_OUT,         /* [H, nv dv] */
    QN_WEIGHT_ROUTER,            /* [E, H] */
    QN_WEIGHT_ROUTER_BIAS,       /* [E] */
    QN_WEIGHT_ROUTER_CORRECTION, /* [E] */
    QN_WEIGHT_EXPERT_GATE,       /* [E, M, H]; these six: see weight_experts.h */
    QN_WEIGHT_EXPERT_UP,         /* [E, M, H] */
    QN_WEIGHT_EXPERT_DOWN,       /* [E, H, M] */
    QN_WEIGHT_EXPERT_GATE_BIAS,  /* [E, M] in files, one dimension here */
    QN_WEIGHT_EXPERT_UP_BIAS,    /* [E, M], likewise */
    QN_WEIGHT_EXPERT_DOWN_BIAS,  /* [E, H], likewise */
    QN_WEIGHT_SHARED_GATE,       /* [S, H]; of the expert that all rows have */
    QN_WEIGHT_SHARED_UP,         /* [S, H] */
    QN_WEIGHT_SHARED_DOWN,       /* [H, S] */
    QN_WEIGHT_SHARED_ROUTER,     /* [1, H] */
    QN_WEIGHT_SINKS,             /* [num_attention_heads]: a logit that takes part in attention's softmax */
    QN_WEIGHT_POST_FFN_NORM,     /* [H] after the feed-forward block, before it is added */
    QN_WEIGHT_POST_MLP_NORM,     /* [H] where the layer has both: after the dense block */
    QN_WEIGHT_EXPERTS_NORM,      /* [H] before the experts */
    QN_WEIGHT_POST_EXPERTS_NORM, /* [H] after them */
    QN_WEIGHT_ROUTER_SCALE,      /* [H] */
    QN_WEIGHT_EXPERT_SCALE,      /* [E] */
    QN_WEIGHT_LAYER_INPUT_GATE,  /* [P, H] */
    QN_WEIGHT_LAYER_INPUT_OUT,   /* [H, P] */
    QN_WEIGHT_POST_LAYER_INPUT_NORM, /* [H] after the per-layer input, before it is added */
    QN_WEIGHT_ALTUP_ROUTER_NORM,     /* [H]; of n streams */
    QN_WEIGHT_ALTUP_ROUTER,          /* [n, H] */
    QN_WEIGHT_ALTUP_PREDICT,         /* [n n, n] */
    QN_WEIGHT_ALTUP_CORRECT,         /* [n, n] */
    QN_WEIGHT_ALTUP_SCALE,           /* [H] */
    QN_WEIGHT_LAUREL_LEFT,           /* [laurel_rank, H] */
    QN_WEIGHT_LAUREL_RIGHT,          /* [H, laurel_rank] */
    QN_WEIGHT_LAUREL_NORM,           /* [H] */
    QN_WEIGHT_LAYER_SCALE,           /* [1] */
    QN_WEIGHT_HYPER_ATTN, /* [n (2 + n), n H]; hyper-connections of n streams around what mixes positions: shares
                                   of streams in what is read and in what is given, then how streams are mixed */
    QN_WEIGHT_HYPER_ATTN_BASE,  /* [n (2 + n)] */
    QN_WEIGHT_HYPER_ATTN_SCALE, /* [3] of these three parts */
    QN_WEIGHT_HYPER_FFN,        /* the same around the feed-forward block */
    QN_WEIGHT_HYPER_FFN_BASE,
    QN_WEIGHT_HYPER_FFN_SCALE,
    QN_WEIGHT_HYPER_ATTN_NORM,   /* [n H]; of low rank, these four around what mixes positions */
    QN_WEIGHT_HYPER_ATTN_DOWN,   /* [hc_lowrank, n H] */
    QN_WEIGHT_HYPER_ATTN_UP,     /* [n H, hc_lowrank] */
    QN_WEIGHT_HYPER_ATTN_INJECT, /* [n, n H] */
    QN_WEIGHT_HYPER_FFN_NORM,    /* the same around the feed-forward block */
    QN_WEIGHT_HYPER_FFN_DOWN,
    QN_WEIGHT_HYPER_FFN_UP,
    QN_WEIGHT_HYPER_FFN_INJECT,
    QN_WEIGHT_NGRAM_EMBED,      /* [n_rows, ple_embed_dim / n_heads]; files may have it in several tensors */
    QN_WEIGHT_NGRAM_KEY,        /* [n H, ple_embed_dim] */
    QN_WEIGHT_NGRAM_VALUE,      /* [H, ple_embed_dim] */
    QN_WEIGHT_NGRAM_KEY_NORM,   /* [n H] */
    QN_WEIGHT_NGRAM_QUERY_NORM, /* [n H] */
    QN_WEIGHT_NGRAM_CONV_NORM,  /* [n H] */
    QN_WEIGHT_NGRAM_CONV,       /* [n H, 1, ple_conv_kernel_size] in files, one dimension here */
    QN_WEIGHT_ROLE_COUNT
} qn_weight_role;

#endif
