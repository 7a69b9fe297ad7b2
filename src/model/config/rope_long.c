#include "model/config/rope_long.h"

#include <math.h>

#include "base/mem.h"
#include "model/config/rope_params.h"

enum { LABEL_MAX = 96, POSITIONS_MAX = 2147483647 };
static const double factor_min = 1e-6, factor_max = 1e9;

/* shorter, longer: factors [rotary_dim / 2]; r takes over longer. */
static void apply(qn_rope_config *r, double original, const float *shorter, float *longer)
{
    for (int64_t i = 0; i < r->rotary_dim / 2; i++) {
        float power = qn_rope_power(r, i);
        r->inv_freq[i] = 1.0f / (shorter[i] * power);
        longer[i] = 1.0f / (longer[i] * power);
    }
    r->long_inv_freq = longer;
    r->short_positions = (int64_t)original;
}

/* ---- config.json -------------------------------------------------------------------------------------- */

static qn_status read_list(const qn_fields *params, const char *name, const qn_rope_config *r, float *out)
{
    const json_t *list = qn_fields_get(params, name);
    int64_t n = r->rotary_dim / 2;
    char label[LABEL_MAX];
    qn_fields_label(params, name, label, sizeof label);
    if (!list || json_is_null(list)) return qn_fail(QN_E_FORMAT, "%s: %s is missing", params->file, label);
    if (!json_is_array(list) || json_array_size(list) != (size_t)n)
        return qn_fail(QN_E_FORMAT,
                       "%s: %s: expected an array of %lld numbers, half of head_dim (hidden_size / "
                       "num_attention_heads) times partial_rotary_factor",
                       params->file, label, (long long)n);
    for (int64_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(list, (size_t)i);
        if (!json_is_number(value))
            return qn_fail(QN_E_FORMAT, "%s: %s[%lld] is not a number", params->file, label, (long long)i);
        double number = json_number_value(value);
        if (!(number >= factor_min && number <= factor_max))
            return qn_fail(QN_E_FORMAT, "%s: %s[%lld] is %.9g, expected a positive number", params->file,
                           label, (long long)i, number);
        out[i] = (float)number;
    }
    return QN_OK;
}

static qn_status read_attention_factor(const qn_fields *params, double original,
                                       int64_t max_position_embeddings, qn_rope_config *r)
{
    double given = 1;
    int found = 0;
    char label[LABEL_MAX];
    r->factor = (double)max_position_embeddings / original;
    QN_TRY(qn_fields_number(params, "factor", 1e-3, 1e6, &r->factor, NULL));
    QN_TRY(qn_fields_number(params, "attention_factor", 0, 1e6, &given, &found));
    if (!found && r->factor > 1) {
        if (original < 2)
            return qn_fail(QN_E_FORMAT, "%s: %s is %.9g, expected 2 or more", params->file,
                           qn_fields_label(params, "original_max_position_embeddings", label, sizeof label),
                           original);
        given = sqrt(1 + log(r->factor) / log(original));
    }
    r->attention_factor = (float)given;
    return QN_OK;
}

qn_status qn_rope_long_read(const qn_fields *params, double original, int64_t max_position_embeddings,
                            qn_rope_config *r)
{
    int64_t n = r->rotary_dim / 2;
    QN_TRY(read_attention_factor(params, original, max_position_embeddings, r));
    float *shorter = qn_alloc_array((size_t)n, sizeof *shorter);
    float *longer = qn_alloc_array((size_t)n, sizeof *longer);
    qn_status status = shorter && longer ? QN_OK : QN_E_NOMEM;
    if (status == QN_OK) status = read_list(params, "short_factor", r, shorter);
    if (status == QN_OK) status = read_list(params, "long_factor", r, longer);
    if (status == QN_OK)
        apply(r, original, shorter, longer);
    else
        qn_free(longer);
    qn_free(shorter);
    return status;
}

/* ---- GGUF --------------------------------------------------------------------------------------------- */

static qn_status read_tensor(const qn_source *src, const char *name, const qn_rope_config *r, float *out)
{
    const qn_tensor_view *v = NULL;
    char shape[64];
    int64_t n = r->rotary_dim / 2;
    QN_TRY(qn_source_tensor(src, name, NULL, &v));
    if (v->n_dims != 1 || v->shape[0] != n)
        return qn_fail(QN_E_FORMAT, "%s: tensor %s: shape %s, expected [%lld]", v->file, v->name,
                       qn_view_shape_text(v, shape, sizeof shape), (long long)n);
    QN_TRY(qn_view_floats(v, 0, n, out));
    for (int64_t i = 0; i < n; i++)
        if (!((double)out[i] >= factor_min && (double)out[i] <= factor_max))
            return qn_fail(QN_E_FORMAT, "%s: tensor %s: element %lld is %.9g, expected a positive number",
                           v->file, v->name, (long long)i, (double)out[i]);
    return QN_OK;
}

qn_status qn_rope_long_read_gguf(const qn_source *src, const qn_fields *root, int64_t max_position_embeddings,
                                 qn_rope_config *r)
{
    static const char short_name[] = "rope_factors_short.weight", long_name[] = "rope_factors_long.weight";
    qn_fields scaling;
    int found = 0;
    double multiplier = 1;
    int64_t n = r->rotary_dim / 2, original = max_position_embeddings;
    int asked =
        r->type == QN_ROPE_LONG ||
        (r->type == QN_ROPE_DEFAULT && (qn_source_find(src, short_name) || qn_source_find(src, long_name)));
    if (!asked) return QN_OK;
    r->type = QN_ROPE_LONG;
    QN_TRY(qn_fields_object(root, "rope_scaling", "rope_scaling.", &scaling, &found));
    if (found) {
        QN_TRY(
            qn_fields_int(&scaling, "original_max_position_embeddings", 1, POSITIONS_MAX, &original, NULL));
        QN_TRY(qn_fields_number(&scaling, "yarn_attn_factor", 0, 1e6, &multiplier, NULL));
    }
    r->attention_factor = (float)multiplier;
    float *shorter = qn_alloc_array((size_t)n, sizeof *shorter);
    float *longer = qn_alloc_array((size_t)n, sizeof *longer);
    qn_status status = shorter && longer ? QN_OK : QN_E_NOMEM;
    if (status == QN_OK) status = read_tensor(src, short_name, r, shorter);
    if (status == QN_OK) status = read_tensor(src, long_name, r, longer);
    if (status == QN_OK)
        apply(r, (double)original, shorter, longer);
    else
        qn_free(longer);
    qn_free(shorter);
    return status;
}
