#include "model/adapter/adapter_config.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "model/config/fields.h"
#include "prim/prim.h"

/* Larger factors, of either sign, are a mistake. */
static const double factor_max = 1e6;

static int in_list(const char *const *list, const char *name)
{
    for (; *list; list++)
        if (strcmp(*list, name) == 0) return 1;
    return 0;
}

/* ---- PEFT --------------------------------------------------------------------------------------------- */

/* Read below or in adapter_targets.c, or of no influence on the numbers: where the adapter comes from, how it began
 * and was trained. peft turns fan_in_fan_out off for linear layers, and it is about merging alone. */
static const char *const skipped[] = {"peft_type",
                                      "r",
                                      "lora_alpha",
                                      "use_dora",
                                      "use_rslora",
                                      "rank_pattern",
                                      "alpha_pattern",
                                      "init_lora_weights",
                                      "layers_to_transform",
                                      "auto_mapping",
                                      "base_model_name_or_path",
                                      "peft_version",
                                      "revision",
                                      "task_type",
                                      "inference_mode",
                                      "lora_dropout",
                                      "loftq_config",
                                      "eva_config",
                                      "corda_config",
                                      "lora_ga_config",
                                      "megatron_core",
                                      "qalora_group_size",
                                      "target_modules",
                                      "target_parameters",
                                      "exclude_modules",
                                      "layers_pattern",
                                      "runtime_config",
                                      "ensure_weight_tying",
                                      "bias",
                                      "lora_bias",
                                      "fan_in_fan_out",
                                      "modules_to_save",
                                      "trainable_token_indices",
                                      NULL};
/* Ways to begin that leave the base model as it is. */
static const char *const plain_starts[] = {"gaussian", "orthogonal", "eva", NULL};

/* "bias": "none" is PEFT's way to say that there is none. */
static int is_off(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return json_object_size(value) == 0;
    case JSON_ARRAY:
        return json_array_size(value) == 0;
    case JSON_STRING:
        return json_string_length(value) == 0 || strcmp(json_string_value(value), "none") == 0;
    case JSON_INTEGER:
        return json_integer_value(value) == 0;
    case JSON_REAL:
        return json_real_value(value) == 0;
    case JSON_TRUE:
        return 0;
    default:
        return 1;
    }
}

static qn_status check_known(const qn_fields *f)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)f->object, key, value)
    {
        if (in_list(skipped, key) || is_off(value)) continue;
        return qn_fail(QN_E_UNSUPPORTED, "%s: %s asks for a feature that adapters do not support", f->file,
                       key);
    }
    return QN_OK;
}

static qn_status check_start(const qn_fields *f)
{
    const json_t *start = qn_fields_get(f, "init_lora_weights");
    if (!json_is_string(start) || in_list(plain_starts, json_string_value(start))) return QN_OK;
    return qn_fail(
        QN_E_UNSUPPORTED,
        "%s: init_lora_weights is \"%.40s\": such an adapter needs a base model that was changed with it; "
        "convert it to a plain adapter first",
        f->file, json_string_value(start));
}

/* Compiles the keys; *list is to be freed on failure too. */
static qn_status read_pattern(const qn_fields *f, const char *name, double min, double max,
                              qn_adapter_patterns *list)
{
    qn_fields pattern;
    int found;
    const char *key;
    json_t *value;
    QN_TRY(qn_fields_object(f, name, "", &pattern, &found));
    if (!found) return QN_OK;
    const size_t n = json_object_size(pattern.object);
    if (n > QN_ADAPTER_PATTERNS_MAX)
        return qn_fail(QN_E_UNSUPPORTED, "%s: %s has %zu keys, at most %d are allowed", f->file, name, n,
                       QN_ADAPTER_PATTERNS_MAX);
    list->rows = qn_calloc(n, sizeof *list->rows);
    if (!list->rows) return QN_E_NOMEM;
    json_object_foreach((json_t *)(uintptr_t)pattern.object, key, value)
    {
        qn_adapter_pattern *row = &list->rows[list->n];
        QN_TRY(qn_fields_number(&pattern, key, min, max, &row->value, &found));
        if (!found) return qn_fail(QN_E_FORMAT, "%s: %s: %.60s is null", f->file, name, key);
        const qn_status status = qn_name_pattern_new(key, &row->pattern);
        if (status != QN_OK) return qn_fail_prefix(status, "%s: %s", f->file, name);
        list->n++;
    }
    return QN_OK;
}

/* The biases that are trained lie in the file, so the field says nothing that its tensors do not say. */
static qn_status check_bias(const qn_fields *f)
{
    const char *bias = "none";
    int found;
    QN_TRY(qn_fields_string(f, "bias", &bias, &found));
    if (strcmp(bias, "none") == 0 || strcmp(bias, "all") == 0 || strcmp(bias, "lora_only") == 0) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED, "%s: bias is \"%.40s\", expected none, all or lora_only", f->file, bias);
}

static qn_status check_ids(const qn_fields *f, const json_t *ids)
{
    const json_t *id;
    size_t i;
    if (!json_is_array(ids) || json_array_size(ids) > INT32_MAX)
        return qn_fail(QN_E_FORMAT, "%s: trainable_token_indices is not a list of ids", f->file);
    json_array_foreach(ids, i, id) if (!json_is_integer(id) || json_integer_value(id) < 0 ||
                                       json_integer_value(id) >
                                           INT32_MAX) return qn_fail(QN_E_FORMAT,
                                                                     "%s: trainable_token_indices: element "
                                                                     "%zu is not the id of a token",
                                                                     f->file, i);
    return QN_OK;
}

/* A list, or one for each of several modules. */
static qn_status check_tokens(const qn_fields *f)
{
    const json_t *tokens = qn_fields_get(f, "trainable_token_indices");
    const char *module;
    json_t *ids;
    if (!tokens || json_is_null(tokens)) return QN_OK;
    if (!json_is_object(tokens)) return check_ids(f, tokens);
    json_object_foreach((json_t *)(uintptr_t)tokens, module, ids) QN_TRY(check_ids(f, ids));
    return QN_OK;
}

static qn_status read_peft(const qn_fields *f, const char *type, qn_adapter_config *out)
{
    int found;
    if (strcmp(type, "LORA") != 0)
        return qn_fail(QN_E_UNSUPPORTED, "%s: peft_type is \"%.40s\", only LORA is supported", f->file, type);
    QN_TRY(check_known(f));
    QN_TRY(check_start(f));
    QN_TRY(qn_fields_required_int(f, "r", 1, QN_LORA_RANK_MAX, &out->rank));
    QN_TRY(qn_fields_number(f, "lora_alpha", -factor_max, factor_max, &out->alpha, &found));
    if (!found) return qn_fail(QN_E_FORMAT, "%s: lora_alpha is missing", f->file);
    QN_TRY(qn_fields_bool(f, "use_rslora", &out->rslora, NULL));
    QN_TRY(qn_fields_bool(f, "use_dora", &out->dora, NULL));
    QN_TRY(read_pattern(f, "rank_pattern", 1, QN_LORA_RANK_MAX, &out->ranks));
    QN_TRY(read_pattern(f, "alpha_pattern", -factor_max, factor_max, &out->alphas));
    QN_TRY(qn_fields_bool(f, "lora_bias", &out->lora_bias, NULL));
    QN_TRY(qn_fields_bool(f, "ensure_weight_tying", &out->ties_weights, NULL));
    if (out->lora_bias && out->dora)
        return qn_fail(QN_E_UNSUPPORTED, "%s: lora_bias and use_dora together are not supported, as in peft",
                       f->file);
    QN_TRY(check_bias(f));
    QN_TRY(check_tokens(f));
    return qn_adapter_targets_read(f, &out->targets);
}

/* ---- mlx_lm ------------------------------------------------------------------------------------------- */

/* The rest of the file is the settings of the training. */
static qn_status read_mlx(const qn_fields *f, qn_buf *notes, qn_adapter_config *out)
{
    qn_fields lora;
    const char *type = "lora";
    int found;
    QN_TRY(qn_fields_string(f, "fine_tune_type", &type, &found));
    out->dora = strcmp(type, "dora") == 0;
    if (!out->dora && strcmp(type, "lora") != 0)
        return qn_fail(QN_E_UNSUPPORTED, "%s: fine_tune_type is \"%.40s\", only lora and dora are supported",
                       f->file, type);
    QN_TRY(qn_fields_object(f, "lora_parameters", "lora_parameters.", &lora, &found));
    if (!found) return qn_fail(QN_E_FORMAT, "%s: lora_parameters is missing", f->file);
    QN_TRY(qn_fields_required_int(&lora, "rank", 1, QN_LORA_RANK_MAX, &out->rank));
    QN_TRY(qn_fields_number(&lora, "scale", -factor_max, factor_max, &out->scale, &found));
    if (!found) return qn_fail(QN_E_FORMAT, "%s: lora_parameters.scale is missing", f->file);
    if (qn_fields_get(&lora, "alpha"))
        qn_buf_printf(notes, "%s: lora_parameters.alpha is ignored, scale is the factor\n", f->file);
    return notes->status;
}

/* ---- both --------------------------------------------------------------------------------------------- */

static qn_status read_any(const qn_fields *f, qn_buf *notes, qn_adapter_config *out)
{
    const char *type;
    int is_peft;
    if (!json_is_object(f->object)) return qn_fail(QN_E_FORMAT, "%s: it is not an object", f->file);
    QN_TRY(qn_fields_string(f, "peft_type", &type, &is_peft));
    out->layout = is_peft ? QN_ADAPTER_PEFT : QN_ADAPTER_MLX;
    if (is_peft) return read_peft(f, type, out);
    if (qn_fields_get(f, "lora_parameters") || qn_fields_get(f, "fine_tune_type"))
        return read_mlx(f, notes, out);
    return qn_fail(
        QN_E_FORMAT,
        "%s: it has neither PEFT's peft_type nor mlx_lm's lora_parameters, so it does not describe an "
        "adapter",
        f->file);
}

qn_status qn_adapter_config_read(const char *file, const char *text, size_t n, qn_buf *notes,
                                 qn_adapter_config *out)
{
    qn_adapter_config c = {.file = file};
    QN_TRY(qn_json_parse_python(file, text, n, &c.json));
    qn_status status = read_any(&(qn_fields){.file = file, .object = c.json, .path = ""}, notes, &c);
    if (status == QN_OK)
        *out = c;
    else
        qn_adapter_config_free(&c);
    return status;
}

static void free_patterns(qn_adapter_patterns *list)
{
    for (size_t i = 0; i < list->n; i++) qn_name_pattern_free(list->rows[i].pattern);
    qn_free(list->rows);
}

void qn_adapter_config_free(qn_adapter_config *c)
{
    free_patterns(&c->ranks);
    free_patterns(&c->alphas);
    qn_adapter_targets_free(c->targets);
    json_decref(c->json);
    *c = (qn_adapter_config){0};
}

/* The row of the first key that matches; NULL: none does. */
static qn_status find_pattern(const qn_adapter_patterns *list, const char *module,
                              const qn_adapter_pattern **out)
{
    int matches = 0;
    *out = NULL;
    for (size_t i = 0; i < list->n && !matches; i++) {
        QN_TRY(qn_name_pattern_match(list->rows[i].pattern, module, &matches));
        if (matches) *out = &list->rows[i];
    }
    return QN_OK;
}

qn_status qn_adapter_config_module(const qn_adapter_config *c, const char *module, int64_t *rank,
                                   double *factor)
{
    *rank = c->rank;
    *factor = c->scale;
    if (c->layout == QN_ADAPTER_MLX) return QN_OK;
    const qn_adapter_pattern *row;
    double alpha = c->alpha;
    QN_TRY(find_pattern(&c->ranks, module, &row));
    if (row) {
        double own = row->value;
        if (own != floor(own))
            return qn_fail(QN_E_FORMAT, "%s: rank_pattern: the rank %g is not a whole number", c->file, own);
        *rank = (int64_t)own;
    }
    QN_TRY(find_pattern(&c->alphas, module, &row));
    if (row) alpha = row->value;
    *factor = alpha / (c->rslora ? sqrt((double)*rank) : (double)*rank);
    return QN_OK;
}

qn_status qn_adapter_config_check_target(const qn_adapter_config *c, const char *module, int is_linear,
                                         const char **field)
{
    *field = NULL;
    return c->targets ? qn_adapter_targets_check(c->targets, module, is_linear, field) : QN_OK;
}

const json_t *qn_adapter_config_tokens(const qn_adapter_config *c, const char *module, int is_embed)
{
    const json_t *tokens = json_object_get(c->json, "trainable_token_indices");
    const char *name;
    json_t *ids;
    const size_t n = strlen(module);
    if (json_is_array(tokens)) return is_embed ? tokens : NULL;
    json_object_foreach((json_t *)(uintptr_t)tokens, name, ids)
    {
        const size_t m = strlen(name);
        if (m && m <= n && strcmp(module + n - m, name) == 0) return ids;
    }
    return NULL;
}

const char *qn_adapter_config_target(const qn_adapter_config *c, size_t i)
{
    if (c->layout == QN_ADAPTER_MLX) return NULL;
    return json_string_value(json_array_get(json_object_get(c->json, "target_modules"), i));
}

const char *qn_adapter_config_parameter(const qn_adapter_config *c, size_t i)
{
    return json_string_value(json_array_get(json_object_get(c->json, "target_parameters"), i));
}

int qn_adapter_config_has_parameter(const qn_adapter_config *c, const char *parameter)
{
    const char *name;
    const size_t n = strlen(parameter);
    for (size_t i = 0; (name = qn_adapter_config_parameter(c, i)); i++) {
        const size_t m = strlen(name);
        if (m && m <= n && strcmp(parameter + n - m, name) == 0 && (m == n || parameter[n - m - 1] == '.'))
            return 1;
    }
    return 0;
}
