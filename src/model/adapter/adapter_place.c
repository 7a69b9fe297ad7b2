#include "model/adapter/adapter_place.h"

#include <stdio.h>
#include <string.h>

#include "model/config/families.h"

static const char inner[] = ".base_layer";

/* The number behind `layers` that follows the decoder's prefix; -1: there is none. */
static int64_t number_behind(const char *layers, const char *rest)
{
    int64_t layer = 0;
    int digits = 0;
    if (strncmp(rest, layers, strlen(layers)) != 0) return -1;
    for (rest += strlen(layers); *rest >= '0' && *rest <= '9' && digits < 18; rest++, digits++)
        layer = 10 * layer + (*rest - '0');
    return digits && *rest == '.' ? layer : -1;
}

/* As the family's files call layers, or as transformers does. */
static int64_t layer_of(const qn_family *family, const char *rest)
{
    const int64_t own = family->layers ? number_behind(family->layers, rest) : -1;
    return own >= 0 ? own : number_behind("layers.", rest);
}

/* ---- linear layers ------------------------------------------------------------------------------------ */

/* The roles whose matrix is the module's weight where the decoder lies at prefix: one, or all that share it,
 * from the top. */
static void find_linear(const qn_model_config *c, const char *module, const char *prefix, int in_layer,
                        qn_adapter_place *out)
{
    char full[QN_TENSOR_NAME_MAX], name[QN_TENSOR_NAME_MAX];
    int64_t shape[QN_WEIGHT_DIMS_MAX];
    const qn_shared_tensor *shared;
    int begin = in_layer ? QN_WEIGHT_MODEL_COUNT : 0;
    int end = in_layer ? QN_WEIGHT_ROLE_COUNT : QN_WEIGHT_MODEL_COUNT;
    snprintf(full, sizeof full, "%s.weight", module);
    for (int i = begin; i < end; i++) {
        qn_weight_role role = (qn_weight_role)i;
        if (!qn_module_has_role(c, role, out->layer, shape)) continue;
        if (qn_family_weight_name(c->family, QN_SOURCE_SAFETENSORS, prefix, role, out->layer, name) &&
            strcmp(name, full) == 0) {
            out->roles[out->n_roles++] = role;
            return;
        }
        if (!qn_family_shared_name(c->family, QN_SOURCE_SAFETENSORS, prefix, role, out->layer, name,
                                   &shared) ||
            strcmp(name, full) != 0)
            continue;
        while (out->n_roles < QN_MODULE_ROLES_MAX && shared->roles[out->n_roles] != QN_WEIGHT_ROLE_COUNT) {
            out->roles[out->n_roles] = shared->roles[out->n_roles];
            out->n_roles++;
        }
        return;
    }
}

/* The same under the name that most families give the role, as transformers' own classes do where published files have
 * other names. */
static void find_usual(const qn_model_config *c, const char *module, const char *prefix,
                       qn_adapter_place *out)
{
    char full[QN_TENSOR_NAME_MAX], name[QN_TENSOR_NAME_MAX];
    int64_t shape[QN_WEIGHT_DIMS_MAX];
    snprintf(full, sizeof full, "%s.weight", module);
    for (int i = QN_WEIGHT_MODEL_COUNT; i < QN_WEIGHT_ROLE_COUNT; i++) {
        const qn_weight_role role = (qn_weight_role)i;
        if (!qn_module_has_role(c, role, out->layer, shape) ||
            !qn_family_usual_name(prefix, role, out->layer, name) || strcmp(name, full) != 0)
            continue;
        out->roles[out->n_roles++] = role;
        return;
    }
}

/* ---- experts ------------------------------------------------------------------------------------------ */

/* rest: the module behind the decoder's prefix. */
static void find_module_of_experts(const qn_model_config *c, qn_expert_form form, const char *rest,
                                   qn_adapter_place *out)
{
    qn_weight_role role;
    int64_t expert, shape[QN_WEIGHT_DIMS_MAX];
    if (!qn_family_expert_find(c->family, form, rest, &role, &expert) ||
        !qn_module_has_experts(c, role, out->layer, shape) || expert >= shape[0])
        return;
    out->roles[out->n_roles++] = role;
    out->n_experts = shape[0];
    out->form = form;
    out->expert = expert;
}

static void take_parameter(const qn_model_config *c, qn_weight_role first, const char *name, unsigned layout,
                           qn_adapter_place *out)
{
    int64_t shape[QN_WEIGHT_DIMS_MAX];
    if (!qn_module_has_experts(c, first, out->layer, shape)) return;
    out->n_experts = shape[0];
    out->form = QN_EXPERTS_PARAMETER;
    out->roles[out->n_roles++] = first;
    if (layout & (QN_EXPERTS_HALVES | QN_EXPERTS_TURNS)) out->roles[out->n_roles++] = QN_WEIGHT_EXPERT_UP;
    out->turns = (layout & QN_EXPERTS_TURNS) != 0;
    snprintf(out->module, sizeof out->module, "%s", name);
}

/* Both parameters of a layer's experts lie in one module, the rows of gate and up in the first. */
static qn_status find_parameter(const qn_model_config *c, const qn_adapter_config *config, const char *module,
                                const char *prefix, int has_inner, qn_adapter_place *out)
{
    char name[2][QN_TENSOR_NAME_MAX];
    unsigned layout[2];
    const qn_weight_role first[2] = {c->plain_mlp ? QN_WEIGHT_EXPERT_UP : QN_WEIGHT_EXPERT_GATE,
                                     QN_WEIGHT_EXPERT_DOWN};
    for (int i = 0; i < 2; i++)
        if (!qn_family_expert_module(c->family, QN_EXPERTS_PARAMETER, prefix, first[i], out->layer, name[i],
                                     &layout[i]))
            return QN_OK;
    const size_t n = (size_t)(strrchr(name[0], '.') - name[0]);
    if (strncmp(module, name[0], n) != 0) return QN_OK;
    int which = has_inner;
    if (strcmp(module + n, inner) == 0) {
        which = 0;
    } else if (module[n]) {
        return QN_OK;
    } else if (!has_inner) {
        const int is_first = qn_adapter_config_has_parameter(config, name[0]),
                  is_second = qn_adapter_config_has_parameter(config, name[1]);
        if (is_first == is_second)
            return qn_fail(
                QN_E_FORMAT,
                "target_parameters names %s of the two parameters %s and %s, but the file has factors "
                "of one",
                is_first ? "both" : "none", name[0], strrchr(name[1], '.') + 1);
        which = is_second;
    }
    take_parameter(c, first[which], name[which], layout[which], out);
    return QN_OK;
}

/* ------------------------------------------------------------------------------------------------------- */

/* Encoders are published with the first layer of a head, the pooler, that vectors of rows are not made of. */
static int is_unread_head(const qn_model_config *c, const char *module)
{
    char full[QN_TENSOR_NAME_MAX], name[QN_TENSOR_NAME_MAX];
    if (!c->encoder.both_ways || c->encoder.num_labels) return 0;
    snprintf(full, sizeof full, "%s.weight", module);
    for (const char *const *p = qn_decoder_prefixes; *p; p++)
        for (int i = QN_WEIGHT_CLASSIFY_DENSE; i <= QN_WEIGHT_CLASSIFY_OUT; i++) {
            const qn_weight_role role = (qn_weight_role)i;
            if (qn_family_weight_name(c->family, QN_SOURCE_SAFETENSORS, *p, role, 0, name) &&
                strcmp(name, full) == 0)
                return 1;
            if (qn_family_usual_name(*p, role, 0, name) && strcmp(name, full) == 0) return 1;
        }
    return 0;
}

qn_status qn_adapter_place_find(const qn_model_config *c, const qn_adapter_config *config, const char *module,
                                int has_inner, qn_adapter_place *out)
{
    const int is_mlx = config->layout == QN_ADAPTER_MLX;
    int64_t beyond = -1;
    for (const char *const *p = qn_decoder_prefixes; *p; p++) {
        if (strncmp(module, *p, strlen(*p)) != 0) continue;
        const char *rest = module + strlen(*p);
        const int64_t layer = layer_of(c->family, rest);
        *out = (qn_adapter_place){.layer = layer < 0 ? 0 : layer};
        if (layer >= c->num_hidden_layers) {
            beyond = layer;
            continue;
        }
        snprintf(out->module, sizeof out->module, "%s", module);
        if (layer >= 0 && c->family->experts) {
            find_module_of_experts(c, QN_EXPERTS_EACH, rest, out);
            if (!out->n_roles && is_mlx) find_module_of_experts(c, QN_EXPERTS_STACKED, rest, out);
            if (!out->n_roles && !is_mlx) QN_TRY(find_parameter(c, config, module, *p, has_inner, out));
        }
        if (!out->n_roles) find_linear(c, module, *p, layer >= 0, out);
        if (!out->n_roles && layer >= 0) find_usual(c, module, *p, out);
        out->beyond = -1;
        if (out->n_roles) return QN_OK;
    }
    *out = (qn_adapter_place){.beyond = beyond, .is_unread = is_unread_head(c, module)};
    return QN_OK;
}
