#include "model/weight_roles.h"

/* A dimension of a role's shape, by the letters of weights.h. */
typedef enum { DIM_NONE, DIM_V, DIM_H, DIM_Q, DIM_K, DIM_D, DIM_F, DIM_Q_NORM, DIM_K_NORM } dim;

/* When a tensor must be there. The norms are there by the config alone; a bias that is in the file is taken
 * in any case. */
typedef enum { ALWAYS, IF_UNTIED, IF_NORM, IF_QK_NORM, IF_QKV_BIAS, IF_O_BIAS, IF_MLP_BIAS } need;

static const struct {
    dim shape[QN_WEIGHT_DIMS_MAX];
    need need;
    unsigned norm; /* IF_NORM: the bit of the config */
} roles[QN_WEIGHT_ROLE_COUNT] = {
    [QN_WEIGHT_EMBED] = {{DIM_V, DIM_H}, ALWAYS, 0},
    [QN_WEIGHT_FINAL_NORM] = {{DIM_H}, ALWAYS, 0},
    [QN_WEIGHT_LM_HEAD] = {{DIM_V, DIM_H}, IF_UNTIED, 0},
    [QN_WEIGHT_ATTN_NORM] = {{DIM_H}, IF_NORM, QN_NORM_PRE_ATTN},
    [QN_WEIGHT_Q] = {{DIM_Q, DIM_H}, ALWAYS, 0},
    [QN_WEIGHT_K] = {{DIM_K, DIM_H}, ALWAYS, 0},
    [QN_WEIGHT_V] = {{DIM_K, DIM_H}, ALWAYS, 0},
    [QN_WEIGHT_O] = {{DIM_H, DIM_Q}, ALWAYS, 0},
    [QN_WEIGHT_Q_BIAS] = {{DIM_Q}, IF_QKV_BIAS, 0},
    [QN_WEIGHT_K_BIAS] = {{DIM_K}, IF_QKV_BIAS, 0},
    [QN_WEIGHT_V_BIAS] = {{DIM_K}, IF_QKV_BIAS, 0},
    [QN_WEIGHT_O_BIAS] = {{DIM_H}, IF_O_BIAS, 0},
    [QN_WEIGHT_Q_NORM] = {{DIM_Q_NORM}, IF_QK_NORM, 0},
    [QN_WEIGHT_K_NORM] = {{DIM_K_NORM}, IF_QK_NORM, 0},
    [QN_WEIGHT_POST_ATTN_NORM] = {{DIM_H}, IF_NORM, QN_NORM_POST_ATTN},
    [QN_WEIGHT_FFN_NORM] = {{DIM_H}, IF_NORM, QN_NORM_PRE_FFN},
    [QN_WEIGHT_GATE] = {{DIM_F, DIM_H}, ALWAYS, 0},
    [QN_WEIGHT_UP] = {{DIM_F, DIM_H}, ALWAYS, 0},
    [QN_WEIGHT_DOWN] = {{DIM_H, DIM_F}, ALWAYS, 0},
    [QN_WEIGHT_GATE_BIAS] = {{DIM_F}, IF_MLP_BIAS, 0},
    [QN_WEIGHT_UP_BIAS] = {{DIM_F}, IF_MLP_BIAS, 0},
    [QN_WEIGHT_DOWN_BIAS] = {{DIM_H}, IF_MLP_BIAS, 0},
    [QN_WEIGHT_POST_FFN_NORM] = {{DIM_H}, IF_NORM, QN_NORM_POST_FFN},
};

static int64_t dim_size(const qn_model_config *c, const qn_layer_config *l, dim d)
{
    switch (d) {
    case DIM_V:
        return c->vocab_size;
    case DIM_H:
        return c->hidden_size;
    case DIM_Q:
        return c->num_attention_heads * l->head_dim;
    case DIM_K:
        return l->num_key_value_heads * l->head_dim;
    case DIM_D:
        return l->head_dim;
    case DIM_F:
        return l->intermediate_size;
    case DIM_Q_NORM:
        return c->qk_norm == QN_QK_NORM_WHOLE ? dim_size(c, l, DIM_Q) : l->head_dim;
    case DIM_K_NORM:
        return c->qk_norm == QN_QK_NORM_WHOLE ? dim_size(c, l, DIM_K) : l->head_dim;
    default:
        return 0;
    }
}

int qn_weight_shape(const qn_model_config *c, int64_t layer, qn_weight_role role,
                    int64_t shape[QN_WEIGHT_DIMS_MAX])
{
    int n = 0;
    for (; n < QN_WEIGHT_DIMS_MAX && roles[role].shape[n] != DIM_NONE; n++)
        shape[n] = dim_size(c, &c->layers[layer], roles[role].shape[n]);
    return n;
}

static qn_weight_presence strictly(int is_there)
{
    return is_there ? QN_WEIGHT_NEEDED : QN_WEIGHT_NEVER;
}

static qn_weight_presence loosely(int is_said)
{
    return is_said ? QN_WEIGHT_NEEDED : QN_WEIGHT_MAYBE;
}

qn_weight_presence qn_weight_expected(const qn_model_config *c, int64_t layer, qn_weight_role role)
{
    switch (roles[role].need) {
    case ALWAYS:
        return QN_WEIGHT_NEEDED;
    case IF_UNTIED:
        return loosely(!c->tie_word_embeddings);
    case IF_NORM:
        return strictly((c->norms & roles[role].norm) != 0);
    case IF_QK_NORM:
        return strictly(c->qk_norm != QN_QK_NORM_NONE);
    case IF_QKV_BIAS:
        return loosely(c->attention_bias);
    case IF_O_BIAS:
        return loosely(c->attention_output_bias);
    case IF_MLP_BIAS:
        return loosely(c->mlp_bias);
    }
    return QN_WEIGHT_NEVER;
}
