#include "model/config/blocks/state_space_config.h"

#include <math.h>
#include <string.h>

enum { HEADS_MAX = 1 << 16, WIDTH_MAX = 1 << 20, KERNEL_MAX = 1024, LABEL_MAX = 160 };

/* n numbers of a list; *found 0: it is absent. Infinity is a bare word, or spelled {"__float__": "Infinity"}. */
static qn_status read_list(const qn_fields *f, const char *name, int n, double max, double *out, int *found)
{
    const json_t *list = qn_fields_get(f, name);
    char label[LABEL_MAX];
    *found = list && !json_is_null(list);
    if (!*found) return QN_OK;
    qn_fields_label(f, name, label, sizeof label);
    if (!json_is_array(list) || json_array_size(list) != (size_t)n)
        return qn_fail(QN_E_FORMAT, "%s: %s: expected an array of %d numbers", f->file, label, n);
    for (int i = 0; i < n; i++) {
        const json_t *value = json_array_get(list, (size_t)i);
        const char *word =
            json_string_value(json_is_object(value) ? json_object_get(value, "__float__") : value);
        const double number =
            word && strcmp(word, "Infinity") == 0 ? (double)INFINITY : json_number_value(value);
        if ((!word && !json_is_number(value)) || !(number >= 0) ||
            (number > max && number < (double)INFINITY))
            return qn_fail(QN_E_FORMAT, "%s: %s[%d] is not a number from 0 to %.9g", f->file, label, i, max);
        out[i] = number;
    }
    return QN_OK;
}

/* mamba_d_head is a number or "auto", which shares out the inner width. */
static qn_status read_head_dim(const qn_fields *f, int64_t inner, qn_state_space_config *s)
{
    static const char name[] = "mamba_d_head";
    const json_t *said = qn_fields_get(f, name);
    char label[LABEL_MAX], other[LABEL_MAX];
    if (json_is_string(said) && strcmp(json_string_value(said), "auto") == 0)
        said = NULL;
    else
        QN_TRY(qn_fields_int(f, name, 1, HEADS_MAX, &s->mamba_d_head, NULL));
    if (!said || json_is_null(said)) {
        if (inner < s->mamba_n_heads)
            return qn_fail(QN_E_FORMAT, "%s: %s is missing", f->file,
                           qn_fields_label(f, name, label, sizeof label));
        s->mamba_d_head = inner / s->mamba_n_heads;
    }
    if (inner && s->mamba_d_head * s->mamba_n_heads != inner)
        return qn_fail(QN_E_FORMAT, "%s: %s %lld times %s %lld is not the inner width %lld", f->file,
                       qn_fields_label(f, "mamba_n_heads", label, sizeof label), (long long)s->mamba_n_heads,
                       qn_fields_label(f, name, other, sizeof other), (long long)s->mamba_d_head,
                       (long long)inner);
    return QN_OK;
}

static qn_status read_sizes(const qn_fields *f, const qn_family *family, const qn_model_config *c,
                            qn_state_space_config *s)
{
    char label[LABEL_MAX], other[LABEL_MAX];
    int64_t inner = 0, expand = 2;
    int found = 0;
    QN_TRY(qn_fields_required_int(f, "mamba_n_heads", 1, HEADS_MAX, &s->mamba_n_heads));
    QN_TRY(qn_fields_required_int(f, "mamba_d_state", 1, HEADS_MAX, &s->mamba_d_state));
    QN_TRY(qn_fields_required_int(f, "mamba_n_groups", 1, HEADS_MAX, &s->mamba_n_groups));
    QN_TRY(qn_fields_required_int(f, "mamba_d_conv", 1, KERNEL_MAX, &s->mamba_d_conv));
    if (f->gguf_architecture) {
        QN_TRY(qn_fields_required_int(f, "mamba_d_ssm", 1, WIDTH_MAX, &inner));
    } else if (family->inner_width) {
        QN_TRY(qn_fields_int(f, "mamba_d_ssm", 1, WIDTH_MAX, &inner, &found));
        QN_TRY(qn_fields_int(f, "mamba_expand", 1, 1024, &expand, NULL));
        if (!found) inner = expand * c->hidden_size;
    }
    QN_TRY(read_head_dim(f, inner, s));
    if (s->mamba_n_heads * s->mamba_d_head > WIDTH_MAX || s->mamba_n_groups * s->mamba_d_state > WIDTH_MAX)
        return qn_fail(QN_E_FORMAT, "%s: %s %lld and %s %lld give more than %d channels", f->file,
                       qn_fields_label(f, "mamba_n_heads", label, sizeof label), (long long)s->mamba_n_heads,
                       qn_fields_label(f, "mamba_d_head", other, sizeof other), (long long)s->mamba_d_head,
                       (int)WIDTH_MAX);
    if (s->mamba_n_heads % s->mamba_n_groups == 0) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: %s %lld is not a multiple of %s %lld", f->file,
                   qn_fields_label(f, "mamba_n_heads", label, sizeof label), (long long)s->mamba_n_heads,
                   qn_fields_label(f, "mamba_n_groups", other, sizeof other), (long long)s->mamba_n_groups);
}

static qn_status read_steps(const qn_fields *f, const qn_family *family, qn_state_space_config *s)
{
    double limits[2] = {0, (double)INFINITY};
    int found = 0;
    if (family->step_floor)
        QN_TRY(qn_fields_number(f, "time_step_min", 0, 1e30, &limits[0], NULL));
    else
        QN_TRY(read_list(f, "time_step_limit", 2, 1e300, limits, &found));
    s->step_min = (float)limits[0];
    s->step_max = (float)limits[1];
    return QN_OK;
}

static qn_status read_norm(const qn_fields *f, const qn_family *family, qn_state_space_config *s)
{
    int normed = 1, before = 0;
    if (family->optional_ssm_norm) {
        normed = 0;
        QN_TRY(qn_fields_bool(f, "mamba_rms_norm", &normed, NULL));
        QN_TRY(qn_fields_bool(f, "mamba_norm_before_gate", &before, NULL));
    }
    s->norm = !normed ? QN_SSM_NORM_NONE : before ? QN_SSM_NORM_BEFORE_GATE : QN_SSM_NORM_BEHIND_GATE;
    return QN_OK;
}

static qn_status read_activation(const qn_fields *f, const qn_model_config *c, qn_state_space_config *s)
{
    static const char name[] = "mamba_hidden_act";
    const char *act = "silu";
    int found = 0;
    char label[LABEL_MAX];
    QN_TRY(qn_fields_string(f, name, &act, &found));
    if (found && strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        return qn_fail(QN_E_UNSUPPORTED, "%s: %s is \"%.40s\", which is not supported (known: silu)", f->file,
                       qn_fields_label(f, name, label, sizeof label), act);
    if (!found && c->hidden_act != QN_HIDDEN_SILU && c->hidden_act != QN_HIDDEN_RELU2)
        return qn_fail(QN_E_UNSUPPORTED, "%s: %s: the convolution of state spaces takes silu alone", f->file,
                       qn_fields_label(f, "hidden_act", label, sizeof label));
    return QN_OK;
}

static qn_status read_multipliers(const qn_fields *f, const qn_family *family, qn_state_space_config *s)
{
    double in = 1, out = 1, parts[QN_SSM_PARTS] = {1, 1, 1, 1, 1};
    int found;
    if (family->many_multipliers) {
        QN_TRY(qn_fields_number(f, "ssm_in_multiplier", 1e-6, 1e6, &in, NULL));
        QN_TRY(qn_fields_number(f, "ssm_out_multiplier", 1e-6, 1e6, &out, NULL));
        QN_TRY(read_list(f, "ssm_multipliers", QN_SSM_PARTS, 1e6, parts, &found));
    }
    s->in_scale = (float)in;
    s->out_scale = (float)out;
    for (int i = 0; i < QN_SSM_PARTS; i++) s->part_scale[i] = (float)parts[i];
    return QN_OK;
}

/* Of GGUF, which does not say it: by the tensors of the first layer that has a state space. */
static void find_vectors(const qn_source *src, const qn_family *family, const qn_model_config *c,
                         qn_state_space_config *s)
{
    int64_t i = 0;
    while (i < c->num_hidden_layers - 1 && !qn_layer_has_state_space(&c->layers[i])) i++;
    s->conv_bias = qn_family_find_weight(family, src, QN_WEIGHT_CONV_BIAS, i, NULL) != NULL;
    s->in_bias = qn_family_find_weight(family, src, QN_WEIGHT_SSM_IN_BIAS, i, NULL) != NULL;
    s->out_bias = qn_family_find_weight(family, src, QN_WEIGHT_SSM_OUT_BIAS, i, NULL) != NULL;
    if (family->optional_ssm_norm)
        s->norm = qn_family_find_weight(family, src, QN_WEIGHT_SSM_NORM, i, NULL) ? QN_SSM_NORM_BEHIND_GATE
                                                                                  : QN_SSM_NORM_NONE;
}

qn_status qn_state_space_config_read(const qn_source *src, const qn_fields *f, const qn_family *family,
                                     qn_model_config *c)
{
    qn_state_space_config *s = &c->state_space;
    QN_TRY(read_sizes(f, family, c, s));
    QN_TRY(read_steps(f, family, s));
    QN_TRY(read_norm(f, family, s));
    QN_TRY(read_activation(f, c, s));
    QN_TRY(read_multipliers(f, family, s));
    if (f->gguf_architecture) {
        find_vectors(src, family, c, s);
        return QN_OK;
    }
    s->conv_bias = 1;
    QN_TRY(qn_fields_bool(f, "mamba_conv_bias", &s->conv_bias, NULL));
    QN_TRY(qn_fields_bool(f, "mamba_proj_bias", &s->in_bias, NULL));
    s->out_bias = s->in_bias;
    if (!family->ssm_out_bias_key) return QN_OK;
    s->out_bias = 0;
    return qn_fields_bool(f, family->ssm_out_bias_key, &s->out_bias, NULL);
}
