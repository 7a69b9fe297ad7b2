#include "model/config/rope_params.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "model/config/rope_long.h"

static const char *const type_names[] = {"default", "linear",   "llama3",      "yarn",
                                         "dynamic", "longrope", "proportional"};
enum { N_TYPES = sizeof type_names / sizeof type_names[0] };

static const double two_pi = 6.283185307179586;

const char *qn_rope_type_name(qn_rope_type type)
{
    return type_names[type];
}

static qn_status read_type(const qn_fields *params, qn_rope_type *out)
{
    const char *name = NULL;
    int found = 0;
    char label[96];
    if (!params->object) return QN_OK;
    QN_TRY(qn_fields_string(params, "rope_type", &name, &found));
    if (!found) QN_TRY(qn_fields_string(params, "type", &name, &found));
    if (!found) return QN_OK;
    for (int i = 0; i < N_TYPES; i++)
        if (strcmp(name, type_names[i]) == 0) {
            *out = (qn_rope_type)i;
            return QN_OK;
        }
    /* Positions of text are the same on all axes: each section of a head turns as without sections. */
    if (strcmp(name, "mrope") == 0) return QN_OK;
    if (strcmp(name, "su") == 0) { /* its first name */
        *out = QN_ROPE_LONG;
        return QN_OK;
    }
    if (params->gguf_architecture && strcmp(name, "none") == 0) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED,
                   "%s: %s is \"%.40s\", which is not supported (known: default, linear, llama3, yarn, "
                   "dynamic, longrope, proportional)",
                   params->file, qn_fields_label(params, "rope_type", label, sizeof label), name);
}

/* A required number of the parameters. */
static qn_status required(const qn_fields *params, const char *name, double min, double max, double *out)
{
    int found = 0;
    char label[96];
    QN_TRY(qn_fields_spelt_number(params, name, min, max, out, &found));
    if (found) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: %s is missing", params->file,
                   qn_fields_label(params, name, label, sizeof label));
}

/* The context before it was stretched: as transformers has it, a key beside the parameters goes before the
 * one among them, and without either it is max_position_embeddings. */
static qn_status original_positions(const qn_fields *params, const qn_fields *root,
                                    int64_t max_position_embeddings, double *out)
{
    static const char name[] = "original_max_position_embeddings";
    *out = (double)max_position_embeddings;
    QN_TRY(qn_fields_number(params, name, 1, 2147483647, out, NULL));
    return qn_fields_number(root, name, 1, 2147483647, out, NULL);
}

float qn_rope_power(const qn_rope_config *r, int64_t i)
{
    float exponent = (float)(2 * i) / (float)r->rotary_dim;
    return (float)pow((double)(float)r->theta, (double)exponent);
}

/* Llama 3: long waves are stretched, short ones kept, those between blended. */
static qn_status scale_llama3(const qn_fields *params, double original, qn_rope_config *r)
{
    double low = 0, high = 0;
    char label[96];
    QN_TRY(required(params, "low_freq_factor", 1e-6, 1e6, &low));
    QN_TRY(required(params, "high_freq_factor", 1e-6, 1e6, &high));
    if (high <= low)
        return qn_fail(QN_E_FORMAT, "%s: %s is %.9g, expected more than low_freq_factor (%.9g)", params->file,
                       qn_fields_label(params, "high_freq_factor", label, sizeof label), high, low);
    float factor = (float)r->factor, low_wave = (float)(original / low), high_wave = (float)(original / high);
    for (int64_t i = 0; i < r->rotary_dim / 2; i++) {
        float freq = r->inv_freq[i], wave = (float)two_pi / freq, scaled = freq;
        if (wave > low_wave) {
            scaled = freq / factor;
        } else if (wave >= high_wave) {
            float smooth = ((float)original / wave - (float)low) / (float)(high - low);
            scaled = (1.0f - smooth) * freq / factor + smooth * freq;
        }
        r->inv_freq[i] = scaled;
    }
    return QN_OK;
}

/* YaRN (Peng et al. 2023): the dimension that turns `rotations` times over the original context. */
static double yarn_dimension(double rotations, const qn_rope_config *r, double original)
{
    return (double)r->rotary_dim * log(original / (rotations * two_pi)) / (2 * log(r->theta));
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static qn_status yarn_attention_factor(const qn_fields *params, qn_rope_config *r)
{
    double given = 0, mscale = 0, mscale_all = 0, multiplier = 1, log_multiplier = 0;
    int found = 0, cancels = 0;
    QN_TRY(qn_fields_number(params, "attention_factor", 0, 1e6, &given, &found));
    QN_TRY(qn_fields_number(params, "mscale", 0, 1e6, &mscale, NULL));
    QN_TRY(qn_fields_number(params, "mscale_all_dim", 0, 1e6, &mscale_all, NULL));
    QN_TRY(qn_fields_number(params, "yarn_attn_factor", 0, 1e6, &multiplier, NULL));
    /* GGUF has it in place of mscale_all_dim, where the factor goes to the scores and not to the rotation. */
    QN_TRY(qn_fields_number(params, "yarn_log_multiplier", 0, 1e6, &log_multiplier, &cancels));
    if (!found && (cancels || r->ext_factor == 0))
        given = 1;
    else if (!found)
        given = mscale > 0 && mscale_all > 0
                    ? yarn_mscale(r->factor, mscale) / yarn_mscale(r->factor, mscale_all)
                    : yarn_mscale(r->factor, 1);
    r->attention_factor = (float)(given * multiplier);
    return QN_OK;
}

static qn_status read_score_mscale(const qn_fields *params, qn_rope_config *r)
{
    double all = 0;
    QN_TRY(qn_fields_number(params, "mscale_all_dim", 0, 1e6, &all, NULL));
    QN_TRY(qn_fields_number(params, "yarn_log_multiplier", 0, 1e6, &all, NULL));
    if (all > 0) r->score_mscale = (float)yarn_mscale(r->factor, all);
    return QN_OK;
}

static qn_status scale_yarn(const qn_fields *params, const qn_fields *root, double original,
                            qn_rope_config *r)
{
    double fast = 0, slow = 0, ext = -1;
    int truncate = 1;
    QN_TRY(qn_fields_number(params, "beta_fast", 0, 1e6, &fast, NULL));
    QN_TRY(qn_fields_number(params, "beta_slow", 0, 1e6, &slow, NULL));
    if (fast == 0) fast = 32;
    if (slow == 0) slow = 1;
    /* GGUF does not say: as the family has it. */
    QN_TRY(qn_fields_bool(params->gguf_architecture ? root : params, "truncate", &truncate, NULL));
    /* llama.cpp's; negative is its word for the default. */
    QN_TRY(qn_fields_number(params, "yarn_ext_factor", -1, 1, &ext, NULL));
    r->ext_factor = ext < 0 ? 1 : ext;
    QN_TRY(yarn_attention_factor(params, r));
    r->stretched_positions = (int64_t)fmin(original * r->factor, 2147483647);
    r->original_positions = original;
    r->beta_fast = fast;
    r->beta_slow = slow;
    double low = yarn_dimension(fast, r, original), high = yarn_dimension(slow, r, original);
    if (truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, (double)(r->rotary_dim - 1));
    if (low == high) high += 0.001;
    for (int64_t i = 0; i < r->rotary_dim / 2; i++) {
        if (r->ext_factor == 0) { /* as linear scaling has it */
            r->inv_freq[i] /= (float)r->factor;
            continue;
        }
        float interpolated = 1.0f / ((float)r->factor * qn_rope_power(r, i));
        float ramp = ((float)i - (float)low) / (float)(high - low);
        float keep = (1.0f - fminf(fmaxf(ramp, 0.0f), 1.0f)) * (float)r->ext_factor;
        r->inv_freq[i] = interpolated * (1.0f - keep) + r->inv_freq[i] * keep;
    }
    return QN_OK;
}

/* from, name: where the number comes from, for the message. */
static qn_status check_rotary_dim(const qn_fields *from, const char *name, int64_t dim, int64_t head_dim)
{
    char label[96];
    if (dim >= 2 && dim % 2 == 0) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: %s: %lld of %lld head dimensions are rotated, expected an even number",
                   from->file, qn_fields_label(from, name, label, sizeof label), (long long)dim,
                   (long long)head_dim);
}

/* Full layers may have heads of another size, which has a name of its own. */
static const char *head_dim_name(const qn_fields *root, int64_t head_dim)
{
    const json_t *global = qn_fields_get(root, "global_head_dim");
    return json_is_integer(global) && json_integer_value(global) == head_dim ? "global_head_dim" : "head_dim";
}

static qn_status read_rotary_dim(const qn_fields *params, const qn_fields *root, int64_t head_dim,
                                 int64_t *out)
{
    static const char partial_name[] = "partial_rotary_factor";
    const qn_fields *from = root;
    const char *name = "rotary_dim";
    int found = 0, is_share = 0;
    double partial = 1;
    int64_t dim = head_dim;
    if (params->object) QN_TRY(qn_fields_int(params, name, 2, head_dim, &dim, &found));
    if (params->object && !found)
        QN_TRY(qn_fields_number(params, partial_name, 1e-6, 1, &partial, &is_share));
    if (found || is_share)
        from = params;
    else if (!json_is_number(
                 qn_fields_get(root, partial_name))) /* which goes before it, as in transformers */
        QN_TRY(qn_fields_int(root, name, 2, head_dim, &dim, &found));
    if (!found) {
        found = is_share;
        if (!found) QN_TRY(qn_fields_number(root, partial_name, 1e-6, 1, &partial, &found));
        name = found ? partial_name : head_dim_name(root, head_dim);
        dim = (int64_t)((double)head_dim * partial);
    }
    *out = dim;
    return check_rotary_dim(from, name, dim, head_dim);
}

/* All dimensions are in pairs, with the angles of a whole head; pairs beyond the share that is turned stand
 * still. */
static qn_status hold_rest(const qn_fields *params, const qn_fields *root, qn_rope_config *r)
{
    static const char name[] = "partial_rotary_factor";
    int found = 0;
    double share = 1;
    if (params->object) QN_TRY(qn_fields_number(params, name, 0, 1, &share, &found));
    if (!found) QN_TRY(qn_fields_number(root, name, 0, 1, &share, NULL));
    int64_t half = r->rotary_dim / 2;
    for (int64_t i = (int64_t)floor(share * (double)r->rotary_dim / 2); i < half; i++) r->inv_freq[i] = 0;
    return QN_OK;
}

qn_status qn_rope_read(const qn_fields *params, const qn_fields *root, const char *theta_field,
                       int64_t head_dim, int64_t max_position_embeddings, qn_rope_config *out)
{
    qn_rope_config r = {.factor = 1, .attention_factor = 1, .score_mscale = 1};
    qn_status status = QN_OK;
    double original = 0;
    int found = 0;
    char label[96];
    QN_TRY(read_type(params, &r.type));
    if (params->object) QN_TRY(qn_fields_spelt_number(params, "rope_theta", 1e-3, 1e30, &r.theta, &found));
    if (!found) QN_TRY(qn_fields_spelt_number(root, theta_field, 1e-3, 1e30, &r.theta, &found));
    if (!found && *params->path && !params->gguf_architecture)
        return qn_fail(QN_E_FORMAT, "%s: %srope_theta is missing", params->file, params->path);
    if (!found)
        return qn_fail(QN_E_FORMAT, "%s: %s is missing", root->file,
                       qn_fields_label(root, theta_field, label, sizeof label));
    /* Some phi3 call it yarn, which has no such lists. */
    if (r.type == QN_ROPE_YARN && qn_fields_get(params, "short_factor")) r.type = QN_ROPE_LONG;
    if (r.type == QN_ROPE_YARN || r.type == QN_ROPE_LLAMA3 || r.type == QN_ROPE_LONG)
        QN_TRY(original_positions(params, root, max_position_embeddings, &original));
    found = 0;
    if (r.type == QN_ROPE_YARN || r.type == QN_ROPE_PROPORTIONAL)
        QN_TRY(qn_fields_spelt_number(params, "factor", 1e-3, 1e6, &r.factor, &found));
    if (r.type == QN_ROPE_YARN && !found && original < (double)max_position_embeddings)
        r.factor = (double)max_position_embeddings / original;
    else if (r.type != QN_ROPE_DEFAULT && r.type != QN_ROPE_LONG && r.type != QN_ROPE_PROPORTIONAL && !found)
        QN_TRY(required(params, "factor", 1e-3, 1e6, &r.factor));
    if (r.type == QN_ROPE_PROPORTIONAL)
        QN_TRY(check_rotary_dim(root, head_dim_name(root, head_dim), r.rotary_dim = head_dim, head_dim));
    else
        QN_TRY(read_rotary_dim(params, root, head_dim, &r.rotary_dim));

    r.inv_freq = qn_alloc_array((size_t)(r.rotary_dim / 2), sizeof *r.inv_freq);
    if (!r.inv_freq) return QN_E_NOMEM;
    for (int64_t i = 0; i < r.rotary_dim / 2; i++) {
        r.inv_freq[i] = 1.0f / qn_rope_power(&r, i);
        if (r.type == QN_ROPE_LINEAR || r.type == QN_ROPE_PROPORTIONAL) r.inv_freq[i] /= (float)r.factor;
    }
    if (r.type == QN_ROPE_LLAMA3) status = scale_llama3(params, original, &r);
    if (r.type == QN_ROPE_YARN) status = scale_yarn(params, root, original, &r);
    if (status == QN_OK && r.type != QN_ROPE_DEFAULT) status = read_score_mscale(params, &r);
    if (status == QN_OK && r.type == QN_ROPE_LONG && !params->gguf_architecture)
        status = qn_rope_long_read(params, original, max_position_embeddings, &r);
    if (status == QN_OK && r.type == QN_ROPE_PROPORTIONAL) status = hold_rest(params, root, &r);
    if (status == QN_OK)
        *out = r;
    else
        qn_free(r.inv_freq);
    return status;
}

qn_status qn_rope_read_sections(const qn_fields *params, const int64_t *published, int interleaved,
                                qn_rope_config *rope)
{
    const json_t *list = qn_fields_get(params, "mrope_section");
    int64_t section[QN_ROPE_SECTIONS], sum = 0, half = rope->rotary_dim / 2;
    char label[96];
    rope->mrope_interleaved = interleaved;
    if (!list || json_is_null(list)) {
        for (int i = 0; i < QN_ROPE_SECTIONS; i++) sum += published[i];
        if (half == sum || interleaved) memcpy(rope->mrope_section, published, sizeof section);
        return QN_OK;
    }
    qn_fields_label(params, "mrope_section", label, sizeof label);
    if (!json_is_array(list) || json_array_size(list) != QN_ROPE_SECTIONS)
        return qn_fail(QN_E_FORMAT, "%s: %s: expected an array of %d numbers", params->file, label,
                       (int)QN_ROPE_SECTIONS);
    for (int i = 0; i < QN_ROPE_SECTIONS; i++) {
        const json_t *value = json_array_get(list, (size_t)i);
        section[i] = json_is_integer(value) ? (int64_t)json_integer_value(value) : -1;
        if (section[i] < 1 || section[i] > half)
            return qn_fail(QN_E_FORMAT,
                           "%s: %s[%d]: expected a number from 1 to %lld, the number of rotated pairs",
                           params->file, label, i, (long long)half);
        sum += section[i];
    }
    if (sum != half && !interleaved)
        return qn_fail(QN_E_FORMAT, "%s: %s sums to %lld, expected %lld, the number of rotated pairs",
                       params->file, label, (long long)sum, (long long)half);
    memcpy(rope->mrope_section, section, sizeof section);
    return QN_OK;
}

qn_status qn_rope_divide(qn_rope_config *rope, const float *factors, const char *file, const char *tensor)
{
    for (int64_t i = 0; i < rope->rotary_dim / 2; i++) {
        if (!(factors[i] >= 1e-6f && factors[i] <= 1e32f))
            return qn_fail(QN_E_FORMAT, "%s: tensor %s: element %lld is %.9g, expected a positive number",
                           file, tensor, (long long)i, (double)factors[i]);
        rope->inv_freq[i] /= factors[i];
    }
    return QN_OK;
}
