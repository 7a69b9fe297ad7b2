/* Layers whose keys and values are kept alike share one pool of pages: the same head shape and the same
 * window. A layer that reads another's keys and values (kv_layer of config.h) is in that one's group and has
 * no place of its own. Recurrent layers share one slot for each sequence.
 *
 * The layers below a border may be another device's than those from it on. A page or slot then has a part on
 * each, and places in it are counted for each part alone. */
#ifndef QN_MODEL_FORWARD_LAYER_GROUPS_H
#define QN_MODEL_FORWARD_LAYER_GROUPS_H

#include "model/config/config.h"

enum { QN_LAYER_GROUPS_MAX = 8 };

typedef struct {
    int64_t window; /* 0: all positions are kept */
    int64_t num_key_value_heads, head_dim, v_head_dim;
    int v_in_k; /* 1: values are the first v_head_dim dimensions of the keys */
    int of_index; /* 1: keys that an index chooses by: f32 whatever the type of others, so that it chooses alike */
    int64_t n_layers; /* that keep keys and values */
    int64_t n_below;  /* of these, those below the border */
} qn_layer_group;

typedef struct {
    int n; /* pools of pages; 0 for an encoder, which keeps nothing, though its layers have groups too */
    qn_layer_group group[QN_LAYER_GROUPS_MAX];
    int64_t border;            /* 0: one device has all layers */
    int64_t n_recurrent;       /* layers with a recurrent state */
    int64_t n_recurrent_below; /* of these, those below the border */
    int64_t rule_offset;       /* of each of them: floats of a slot before the state of its recurrence */
    int64_t rule_floats;       /* of each of them: of that state at most */
    int64_t recurrent_floats;  /* of each of them in a slot: what the convolution keeps, then the state of the
                                     recurrence where it has one */
    int32_t *group_of, *index_of; /* [num_hidden_layers]: its group, and the place in its part of the group of
                                     the keys and values that it reads; -1 for a layer without */
    int32_t *recurrent_of; /* [num_hidden_layers]: its place among the recurrent ones of its part; -1 for
                                     others */
    int index_group;       /* that of all keys of indexes; -1: there are none */
    int32_t
        *index_place; /* [num_hidden_layers]: of a layer with an index, the place in its part of that group */
} qn_layer_groups;

/* QN_E_UNSUPPORTED: more kinds of layers than groups. */
qn_status qn_layer_groups_make(const qn_model_config *c, qn_layer_groups *out);
/* The same with a border, which qn_layer_border gave. */
qn_status qn_layer_groups_split(const qn_model_config *c, int64_t border, qn_layer_groups *out);
/* The last border at or below n, in [0, n], that no layer reads keys and values across. One stream alone can cross
 * it, so a model with several (altup_num_inputs, hyper) has none between its layers. Nor has an encoder. */
int64_t qn_layer_border(const qn_model_config *c, int64_t n);
void qn_layer_groups_free(qn_layer_groups *g);

#endif
