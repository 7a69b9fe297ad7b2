#include "model/adapter/modules.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/weights/row_order.h"

typedef struct {
    const qn_model_config *config;
    const qn_parameters *parameters;
    const char *prefix;
    qn_module *list;
    int64_t n, capacity;
} listing;

int qn_module_has_role(const qn_model_config *c, qn_weight_role role, int64_t layer,
                       int64_t shape[QN_WEIGHT_DIMS_MAX])
{
    return role != QN_WEIGHT_EMBED && role != QN_WEIGHT_NGRAM_EMBED && qn_row_order_is_known(c, role) &&
           qn_weight_expected(c, layer, role) != QN_WEIGHT_NEVER &&
           qn_weight_shape(c, layer, role, shape) == 2;
}

int qn_module_has_experts(const qn_model_config *c, qn_weight_role role, int64_t layer,
                          int64_t shape[QN_WEIGHT_DIMS_MAX])
{
    return role >= QN_WEIGHT_EXPERT_GATE && role <= QN_WEIGHT_EXPERT_DOWN &&
           qn_weight_expected(c, layer, role) != QN_WEIGHT_NEVER &&
           qn_weight_shape(c, layer, role, shape) == 3;
}

/* The module of a role's matrix; 0: it has none. */
static int name_matrix(const listing *l, qn_weight_role role, int64_t layer, char name[QN_TENSOR_NAME_MAX])
{
    const qn_shared_tensor *shared;
    const qn_family *family = l->config->family;
    if (!qn_family_shared_name(family, QN_SOURCE_SAFETENSORS, l->prefix, role, layer, name, &shared) &&
        !qn_family_weight_name(family, QN_SOURCE_SAFETENSORS, l->prefix, role, layer, name))
        return 0;
    size_t length = strlen(name), ending = strlen(".weight");
    if (length <= ending || strcmp(name + length - ending, ".weight") != 0) return 0;
    name[length - ending] = '\0';
    return 1;
}

static qn_status add_role(listing *l, qn_weight_role role, int64_t layer)
{
    char name[QN_TENSOR_NAME_MAX];
    int64_t shape[QN_WEIGHT_DIMS_MAX], n_experts = 0;
    if (!qn_parameters_get(l->parameters, role, layer)) return QN_OK;
    if (qn_module_has_experts(l->config, role, layer, shape)) {
        n_experts = shape[0];
        shape[0] = shape[1];
        shape[1] = shape[2];
        if (!qn_family_expert_module(l->config->family, QN_EXPERTS_PARAMETER, l->prefix, role, layer, name,
                                     NULL))
            return QN_OK;
    } else if (!qn_module_has_role(l->config, role, layer, shape) || !name_matrix(l, role, layer, name)) {
        return QN_OK;
    }
    qn_module *m = l->n ? &l->list[l->n - 1] : NULL;
    for (int64_t i = l->n - 1; i >= 0 && l->list[i].layer == (role < QN_WEIGHT_MODEL_COUNT ? -1 : layer); i--)
        if (strcmp(l->list[i].name, name) == 0) {
            m = &l->list[i];
            break;
        }
    if (!m || strcmp(m->name, name) != 0) {
        if (l->n == l->capacity) {
            int64_t more = l->capacity ? 2 * l->capacity : 64;
            qn_module *list = qn_realloc(l->list, (size_t)more * sizeof *list);
            if (!list) return QN_E_NOMEM;
            l->list = list;
            l->capacity = more;
        }
        m = &l->list[l->n++];
        *m = (qn_module){
            .layer = role < QN_WEIGHT_MODEL_COUNT ? -1 : layer, .n_in = shape[1], .n_experts = n_experts};
        memcpy(m->name, name, strlen(name) + 1);
    }
    if (m->n_roles == QN_MODULE_ROLES_MAX || m->n_in != shape[1])
        return qn_fail(QN_E_INTERNAL, "module %s has matrices that do not fit together", name);
    m->roles[m->n_roles] = role;
    m->n_out[m->n_roles++] = shape[0];
    m->n_rows += shape[0];
    return QN_OK;
}

static int by_name(const void *x, const void *y)
{
    return strcmp(((const qn_module *)x)->name, ((const qn_module *)y)->name);
}

/* A shared tensor's roles lie in the order of its row, which need not be that of the roles. */
static void order_roles(const listing *l, qn_module *m)
{
    char name[QN_TENSOR_NAME_MAX];
    const qn_shared_tensor *shared;
    int64_t layer = m->layer < 0 ? 0 : m->layer, n_out[QN_MODULE_ROLES_MAX];
    qn_weight_role roles[QN_MODULE_ROLES_MAX];
    int n = 0;
    if (m->n_roles < 2 || m->n_experts ||
        !qn_family_shared_name(l->config->family, QN_SOURCE_SAFETENSORS, l->prefix, m->roles[0], layer, name,
                               &shared))
        return;
    for (int i = 0; i < QN_MODULE_ROLES_MAX && shared->roles[i] != QN_WEIGHT_ROLE_COUNT; i++)
        for (int j = 0; j < m->n_roles; j++)
            if (m->roles[j] == shared->roles[i]) {
                roles[n] = m->roles[j];
                n_out[n++] = m->n_out[j];
            }
    memcpy(m->roles, roles, sizeof roles[0] * (size_t)n);
    memcpy(m->n_out, n_out, sizeof n_out[0] * (size_t)n);
}

qn_status qn_modules_list(const qn_model_config *c, const qn_parameters *p, const char *prefix,
                          qn_module **out, int64_t *n)
{
    listing l = {.config = c, .parameters = p, .prefix = prefix};
    qn_status status = QN_OK;
    for (int role = 0; role < QN_WEIGHT_MODEL_COUNT && status == QN_OK; role++)
        status = add_role(&l, (qn_weight_role)role, 0);
    for (int64_t i = 0; i < c->num_hidden_layers; i++)
        for (int role = QN_WEIGHT_MODEL_COUNT; role < QN_WEIGHT_ROLE_COUNT && status == QN_OK; role++)
            status = add_role(&l, (qn_weight_role)role, i);
    if (status != QN_OK) {
        qn_free(l.list);
        return status;
    }
    for (int64_t i = 0; i < l.n; i++) order_roles(&l, &l.list[i]);
    if (l.n) qsort(l.list, (size_t)l.n, sizeof *l.list, by_name);
    *out = l.list;
    *n = l.n;
    return QN_OK;
}
