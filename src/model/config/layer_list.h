/* What each layer is where the files do not list layer_types, but say it another way: by the indices of some of
 * them, or by the family's rule. */
#ifndef QN_MODEL_CONFIG_LAYER_LIST_H
#define QN_MODEL_CONFIG_LAYER_LIST_H

#include "model/config/families.h"

/* layer_types as the files have it, borrowed, or as the family's rule makes it: *made owns that, else it is NULL.
 * *types NULL: neither says anything. QN_E_FORMAT: what they say is none. */
qn_status qn_layer_list_read(const qn_fields *f, const qn_family *family, int64_t n_layers,
                             const json_t **types, json_t **made);
/* How many layers there are where their list counts, not num_hidden_layers. */
qn_status qn_layer_list_count(const qn_fields *f, int64_t max, int64_t *n);
/* What a name of layer_types stands for in this family; -1: an unknown name. NONE: "mlp" or "moe". */
int qn_layer_list_mixer(const qn_family *family, const char *name);
/* How files call a layer that recurs; static. */
const char *qn_layer_list_recurrent(const qn_family *family);
/* How files call a layer that does not see all before it; static. */
const char *qn_layer_list_narrow(const qn_family *family);
/* The names that this family knows, for a message; static. */
const char *qn_layer_list_known(const qn_family *family);

#endif
