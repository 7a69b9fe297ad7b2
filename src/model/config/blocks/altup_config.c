#include "model/config/blocks/altup_config.h"

#include <math.h>

enum { WIDTH_MAX = 1 << 24, RANK_MAX = 1 << 20, LABEL_MAX = 160 };

static qn_status check_list(const qn_fields *f, const char *name, const json_t *list,
                            const qn_model_config *c)
{
    char label[LABEL_MAX];
    if (json_is_array(list) && json_array_size(list) == (size_t)c->num_hidden_layers) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: %s: expected an array of num_hidden_layers (%lld) numbers", f->file,
                   qn_fields_label(f, name, label, sizeof label), (long long)c->num_hidden_layers);
}

qn_status qn_altup_read_widths(const qn_fields *f, qn_layer_config *layers, qn_model_config *c)
{
    static const char name[] = "intermediate_size";
    const json_t *list = qn_fields_get(f, name);
    char label[LABEL_MAX];
    QN_TRY(check_list(f, name, list, c));
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        const json_t *value = json_array_get(list, (size_t)i);
        if (!json_is_integer(value) || json_integer_value(value) < 1 || json_integer_value(value) > WIDTH_MAX)
            return qn_fail(QN_E_FORMAT, "%s: %s[%lld] is not a number from 1 to %d", f->file,
                           qn_fields_label(f, name, label, sizeof label), (long long)i, (int)WIDTH_MAX);
        if (layers) layers[i].intermediate_size = json_integer_value(value);
    }
    c->intermediate_size = json_integer_value(json_array_get(list, 0));
    return QN_OK;
}

/* x below which the share p of normal numbers lies, by halving. */
static double normal_quantile(double p)
{
    double low = -40, high = 40;
    for (int i = 0; i < 200; i++) {
        const double middle = (low + high) / 2;
        if (0.5 * erfc(-middle / sqrt(2)) < p)
            low = middle;
        else
            high = middle;
    }
    return (low + high) / 2;
}

/* GGUF has the cutoffs: of a normal number, null where nothing is cut. */
static qn_status read_cutoffs(const qn_fields *f, qn_model_config *c)
{
    static const char name[] = "activation_sparsity_scale";
    const json_t *list = qn_fields_get(f, name);
    char label[LABEL_MAX];
    if (!list)
        return qn_fail(QN_E_FORMAT, "%s: %s is missing", f->file,
                       qn_fields_label(f, name, label, sizeof label));
    QN_TRY(check_list(f, name, list, c));
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        const json_t *value = json_array_get(list, (size_t)i);
        const double cutoff = json_number_value(value);
        if (json_is_null(value)) continue;
        c->layers[i].gate_sparsity = (float)(0.5 * erfc(-cutoff / sqrt(2)));
        c->layers[i].gate_cutoff = (float)cutoff;
    }
    return QN_OK;
}

/* Without a list the first ten of more than ten layers are sparse. */
static qn_status read_sparsity(const qn_fields *f, qn_model_config *c)
{
    static const char name[] = "activation_sparsity_pattern";
    const json_t *list = qn_fields_get(f, name);
    char label[LABEL_MAX];
    const int none = !list || json_is_null(list);
    if (!none) QN_TRY(check_list(f, name, list, c));
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        const json_t *value = json_array_get(list, (size_t)i);
        double p = none ? (c->num_hidden_layers > 10 && i < 10 ? 0.95 : 0) : json_number_value(value);
        if ((!none && !json_is_number(value)) || !(p >= 0 && p < 1))
            return qn_fail(QN_E_FORMAT, "%s: %s[%lld] is not a number from 0 to less than 1", f->file,
                           qn_fields_label(f, name, label, sizeof label), (long long)i);
        c->layers[i].gate_sparsity = (float)p;
        /* The reference takes the quantile of the f32 number. */
        if (p > 0) c->layers[i].gate_cutoff = (float)normal_quantile((double)(float)p);
    }
    return QN_OK;
}

qn_status qn_altup_config_read(const qn_fields *f, qn_model_config *c)
{
    static const char sharing[] = "hidden_size_per_layer_input";
    char label[LABEL_MAX];
    QN_TRY(qn_fields_required_int(f, "altup_num_inputs", 1, QN_ALTUP_INPUTS_MAX, &c->altup_num_inputs));
    QN_TRY(qn_fields_int(f, "altup_active_idx", 0, c->altup_num_inputs - 1, &c->altup_active_idx, NULL));
    c->altup_correct_scale = 1;
    QN_TRY(qn_fields_bool(f, "altup_correct_scale", &c->altup_correct_scale, NULL));
    QN_TRY(qn_fields_required_int(f, "laurel_rank", 1, RANK_MAX, &c->laurel_rank));
    if (!c->hidden_size_per_layer_input)
        return qn_fail(QN_E_UNSUPPORTED, "%s: %s is 0, which is not supported for this family", f->file,
                       qn_fields_label(f, sharing, label, sizeof label));
    if (json_is_array(qn_fields_get(f, "intermediate_size"))) QN_TRY(qn_altup_read_widths(f, c->layers, c));
    return f->gguf_architecture ? read_cutoffs(f, c) : read_sparsity(f, c);
}
