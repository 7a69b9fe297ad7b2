#include "model/config/layer_config.h"

#include <math.h>
#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "model/config/blocks/latent_config.h"
#include "model/config/blocks/state_space_config.h"
#include "model/config/layer_heads.h"
#include "model/config/layer_list.h"
#include "model/config/rope_change.h"
#include "model/config/rope_long.h"
#include "model/config/rope_params.h"

enum { LAYERS_MAX = 4096, POSITIONS_MAX = 2147483647, LABEL_MAX = 160 };

/* What is found out of a layer one by one. */
typedef struct {
    char turns;  /* it has RoPE */
    char slides; /* it has a window */
    qn_mixer mixer;
    char has_mlp, has_experts; /* where a layer is one block alone */
} layer_flags;

static qn_status read_said_rope(const qn_fields *f, const qn_family *family, int *turns)
{
    static const char name[] = "position_embedding_type";
    const char *type = "nope";
    char label[LABEL_MAX];
    if (!family->said_rope) return QN_OK;
    if (f->gguf_architecture) return qn_fields_bool(f, "rope_finetuned", turns, NULL);
    QN_TRY(qn_fields_string(f, name, &type, NULL));
    *turns = strcmp(type, "rope") == 0;
    if (*turns || strcmp(type, "nope") == 0) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED, "%s: %s is \"%.40s\", which is not supported (known: rope, nope)",
                   f->file, qn_fields_label(f, name, label, sizeof label), type);
}

/* layer_rope_theta: the numbers themselves mean nothing, rope_theta counts. */
static qn_status read_rope_thetas(const qn_fields *f, int64_t n_layers, layer_flags *flags)
{
    static const char name[] = "layer_rope_theta";
    enum { PERIOD = 4 };
    const json_t *list = qn_fields_get(f, name);
    char label[LABEL_MAX];
    const int is_said = list && !json_is_null(list);
    if (is_said && (!json_is_array(list) || json_array_size(list) < (size_t)n_layers))
        return qn_fail(QN_E_FORMAT, "%s: %s: expected an array with a number for each of the %lld layers",
                       f->file, qn_fields_label(f, name, label, sizeof label), (long long)n_layers);
    for (int64_t i = 0; i < n_layers; i++) {
        const json_t *value = is_said ? json_array_get(list, (size_t)i) : NULL;
        if (value && !json_is_number(value))
            return qn_fail(QN_E_FORMAT, "%s: %s[%lld] is not a number", f->file,
                           qn_fields_label(f, name, label, sizeof label), (long long)i);
        flags[i].turns = value ? json_number_value(value) != 0 : (n_layers - 1 - i) % PERIOD != 0;
    }
    return QN_OK;
}

/* no_rope_layers, which has a 1 for each layer with RoPE; without it, or where it is empty, every
 * no_rope_layer_interval-th has none. */
static qn_status read_no_rope(const qn_fields *f, const qn_family *family, int64_t n_layers,
                              layer_flags *flags)
{
    const json_t *list = qn_fields_get(f, "no_rope_layers");
    char label[LABEL_MAX];
    int turns = !family->no_rope;
    QN_TRY(read_said_rope(f, family, &turns));
    for (int64_t i = 0; i < n_layers; i++) flags[i].turns = (char)turns;
    if (family->rope_thetas && !f->gguf_architecture) return read_rope_thetas(f, n_layers, flags);
    if (!family->skips_rope) return QN_OK;
    if (!list || json_is_null(list) || (json_is_array(list) && !json_array_size(list))) {
        int64_t interval;
        QN_TRY(qn_fields_required_int(f, "no_rope_layer_interval", 1, POSITIONS_MAX, &interval));
        for (int64_t i = 0; i < n_layers; i++) flags[i].turns = (i + 1) % interval != 0;
        return QN_OK;
    }
    qn_fields_label(f, "no_rope_layers", label, sizeof label);
    if (!json_is_array(list) || json_array_size(list) < (size_t)n_layers)
        return qn_fail(QN_E_FORMAT, "%s: %s: expected an array with a 0 or 1 for each of the %lld layers",
                       f->file, label, (long long)n_layers);
    for (int64_t i = 0; i < n_layers; i++) {
        const json_t *value = json_array_get(list, (size_t)i);
        if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > 1)
            return qn_fail(QN_E_FORMAT, "%s: %s[%lld] is neither 0 nor 1", f->file, label, (long long)i);
        flags[i].turns = json_integer_value(value) == 1;
    }
    return QN_OK;
}

/* The layer types that are listed, or else the family's rule. flags [num_hidden_layers]. */
static qn_status read_layer_types(const qn_fields *f, const qn_family *family, const json_t *types,
                                  int64_t n_layers, int64_t window, layer_flags *flags)
{
    char label[LABEL_MAX];
    if (!types) {
        int64_t period = 0, first = 0, interval = 0;
        if (family->recurrent != QN_MIXER_ATTENTION)
            QN_TRY(qn_fields_required_int(f, "full_attention_interval", 1, LAYERS_MAX, &interval));
        const int has_period = family->slide == QN_SLIDE_PERIOD || family->slide == QN_SLIDE_BEHIND ||
                               family->slide == QN_SLIDE_BEFORE;
        if (has_period && window > 0)
            QN_TRY(qn_fields_required_int(f, "sliding_window_pattern", 1, LAYERS_MAX, &period));
        if (family->slide == QN_SLIDE_FROM)
            QN_TRY(qn_fields_int(f, "max_window_layers", 0, POSITIONS_MAX, &first, NULL));
        for (int64_t i = 0; i < n_layers; i++)
            flags[i].mixer = interval > 0 && (i + 1) % interval != 0 ? family->recurrent : QN_MIXER_ATTENTION;
        for (int64_t i = 0; i < n_layers; i++)
            flags[i].slides =
                window > 0 && (family->slide == QN_SLIDE_EVERY ||
                               (family->slide == QN_SLIDE_PERIOD && (i + 1) % period != 0) ||
                               (family->slide == QN_SLIDE_BEHIND && i % period != 0) ||
                               (family->slide == QN_SLIDE_BEFORE && (n_layers - 1 - i) % period != 0) ||
                               (family->slide == QN_SLIDE_FROM && i >= first) ||
                               (family->slide == QN_SLIDE_NO_ROPE && !flags[i].turns) ||
                               (family->slide == QN_SLIDE_CHUNKS && flags[i].turns));
        return QN_OK;
    }
    qn_fields_label(f, "layer_types", label, sizeof label);
    if (!json_is_array(types) || json_array_size(types) != (size_t)n_layers)
        return qn_fail(QN_E_FORMAT, "%s: %s: expected an array of num_hidden_layers (%lld) names", f->file,
                       label, (long long)n_layers);
    for (int64_t i = 0; i < n_layers; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        if (!type) return qn_fail(QN_E_FORMAT, "%s: %s[%lld] is not a string", f->file, label, (long long)i);
        flags[i].slides = strcmp(type, qn_layer_list_narrow(family)) == 0;
        const int mixer = qn_layer_list_mixer(family, type);
        if (mixer < 0)
            return qn_fail(QN_E_UNSUPPORTED, "%s: %s[%lld] is \"%.40s\", which is not supported (known: %s)",
                           f->file, label, (long long)i, type, qn_layer_list_known(family));
        flags[i].mixer = (qn_mixer)mixer;
        flags[i].has_experts = mixer == QN_MIXER_NONE && strcmp(type, "moe") == 0;
        flags[i].has_mlp = mixer == QN_MIXER_NONE && !flags[i].has_experts;
    }
    return QN_OK;
}

/* rope: set 1 for sliding layers, whether there is one or not. */
static qn_status make_layers(const qn_fields *f, const qn_family *family, const json_t *types,
                             qn_model_config *c)
{
    int64_t window = 0;
    int use_window = 1;
    char label[LABEL_MAX];
    if (family->slide == QN_SLIDE_FROM || family->slide == QN_SLIDE_NO_ROPE)
        QN_TRY(qn_fields_bool(f, "use_sliding_window", &use_window, NULL));
    /* GGUF files of families in which every layer may slide say 0 for none. */
    int no_window = f->gguf_architecture && family->slide == QN_SLIDE_EVERY ? 0 : 1;
    if (use_window && (family->slide != QN_SLIDE_NEVER || types))
        QN_TRY(qn_fields_int(f, "sliding_window", no_window, POSITIONS_MAX, &window, NULL));

    layer_flags *flags = qn_calloc((size_t)c->num_hidden_layers, sizeof *flags);
    if (!flags) return QN_E_NOMEM;
    qn_status status = read_no_rope(f, family, c->num_hidden_layers, flags);
    if (status == QN_OK) status = read_layer_types(f, family, types, c->num_hidden_layers, window, flags);
    if (family->last_is_full) flags[c->num_hidden_layers - 1].slides = 0;
    if (status == QN_OK && !(c->layers = qn_calloc((size_t)c->num_hidden_layers, sizeof *c->layers)))
        status = QN_E_NOMEM;
    for (int64_t i = 0; status == QN_OK && i < c->num_hidden_layers; i++) {
        /* A window that is switched off leaves the layer types of the files as they are, and means nothing.
         */
        int sliding = flags[i].slides && use_window;
        /* GGUF has no list of thetas: the layers without RoPE are those that do not slide. */
        const int skips = family->full_skips_rope || (family->rope_thetas && f->gguf_architecture);
        if (skips && window > 0 && !sliding) flags[i].turns = 0;
        if (sliding && window == 0)
            status = qn_fail(QN_E_FORMAT, "%s: layer %lld has %s attention, but %s is missing", f->file,
                             (long long)i, family->slide == QN_SLIDE_CHUNKS ? "chunked" : "sliding",
                             qn_fields_label(f, "sliding_window", label, sizeof label));
        c->layers[i] = (qn_layer_config){.mixer = flags[i].mixer,
                                         .kind = sliding ? QN_LAYER_SLIDING : QN_LAYER_FULL,
                                         .window = sliding ? window : 0,
                                         .chunk = sliding && family->slide == QN_SLIDE_CHUNKS ? window : 0,
                                         .rope = flags[i].turns ? sliding : QN_ROPE_NONE,
                                         .intermediate_size = c->intermediate_size,
                                         .beside_state_space = family->recur == QN_RECUR_BESIDE,
                                         .has_experts = flags[i].has_experts,
                                         .has_mlp = !family->single_blocks || flags[i].has_mlp};
    }
    qn_free(flags);
    return status;
}

static qn_status read_layers(const qn_fields *f, const qn_family *family, qn_model_config *c)
{
    const json_t *types;
    json_t *made;
    QN_TRY(qn_layer_list_read(f, family, c->num_hidden_layers, &types, &made));
    qn_status status = make_layers(f, family, types, c);
    json_decref(made);
    return status;
}

static qn_status read_short_conv(const qn_fields *f, qn_short_conv_config *s)
{
    enum { KERNEL_MAX = 1024 };
    QN_TRY(qn_fields_required_int(f, "conv_L_cache", 1, KERNEL_MAX, &s->conv_L_cache));
    return qn_fields_bool(f, "conv_bias", &s->conv_bias, NULL);
}

/* The numbers of linear_attn_config, or those beside it. */
static qn_status read_channel_delta(const qn_fields *f, qn_delta_config *d)
{
    enum { HEADS_MAX = 1 << 16, KERNEL_MAX = 1024 };
    qn_fields own = {.path = ""};
    int found = 0, has_heads = 0, has_dim = 0, has_kernel = 0;
    QN_TRY(qn_fields_object(f, "linear_attn_config", "linear_attn_config.", &own, &found));
    if (found) {
        QN_TRY(qn_fields_int(&own, "num_heads", 1, HEADS_MAX, &d->linear_num_key_heads, &has_heads));
        QN_TRY(qn_fields_int(&own, "head_dim", 1, HEADS_MAX, &d->linear_key_head_dim, &has_dim));
        QN_TRY(qn_fields_int(&own, "short_conv_kernel_size", 1, KERNEL_MAX, &d->linear_conv_kernel_dim,
                             &has_kernel));
    }
    if (!has_heads)
        QN_TRY(qn_fields_required_int(f, "linear_num_heads", 1, HEADS_MAX, &d->linear_num_key_heads));
    if (!has_dim) QN_TRY(qn_fields_required_int(f, "linear_head_dim", 1, HEADS_MAX, &d->linear_key_head_dim));
    if (!has_kernel)
        QN_TRY(
            qn_fields_required_int(f, "linear_conv_kernel_dim", 1, KERNEL_MAX, &d->linear_conv_kernel_dim));
    d->linear_num_value_heads = d->linear_num_key_heads;
    d->linear_value_head_dim = d->linear_key_head_dim;
    return QN_OK;
}

/* linear_lower_bound, null where there is none. gate_lower_bound of linear_attn_config, be it null, replaces it, and
 * safe_gate makes it -5 where neither has a number. */
static qn_status read_lower_bound(const qn_fields *f, qn_delta_config *d)
{
    static const char inner[] = "gate_lower_bound";
    const double least = -1e6, most = -1e-6;
    qn_fields own = {.path = ""};
    double bound = 0;
    int found = 0, has_bound = 0, is_safe = 1;
    QN_TRY(qn_fields_number(f, "linear_lower_bound", least, most, &bound, &has_bound));
    QN_TRY(qn_fields_object(f, "linear_attn_config", "linear_attn_config.", &own, &found));
    if (found && qn_fields_get(&own, inner))
        QN_TRY(qn_fields_number(&own, inner, least, most, &bound, &has_bound));
    if (found) QN_TRY(qn_fields_bool(&own, "safe_gate", &is_safe, NULL));
    d->lower_bound = has_bound ? (float)bound : found && is_safe ? -5.0f : 0;
    return QN_OK;
}

/* output_gate_type, else hidden_act. */
static qn_status read_gate(const qn_fields *f, qn_delta_config *d)
{
    static const char own[] = "output_gate_type";
    const char *key = own, *type = NULL;
    char label[LABEL_MAX];
    d->gate_sigmoid = f->gguf_architecture != NULL; /* which does not say it */
    QN_TRY(qn_fields_string(f, key, &type, NULL));
    if (!type) QN_TRY(qn_fields_string(f, key = "hidden_act", &type, NULL));
    if (!type) return QN_OK;
    d->gate_sigmoid = strcmp(type, "sigmoid") == 0;
    if (d->gate_sigmoid || strcmp(type, "silu") == 0) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED, "%s: %s is \"%.40s\", which is not supported (known: sigmoid, silu)",
                   f->file, qn_fields_label(f, key, label, sizeof label), type);
}

/* Of families whose rows lie by key head: does the GGUF file have one tensor for q, k and v? Older converters put z there too. */
static int has_qkv(const qn_source *src, const qn_family *family, const qn_model_config *c)
{
    int64_t layer = 0;
    while (layer < c->num_hidden_layers - 1 && c->layers[layer].mixer != QN_MIXER_DELTA) layer++;
    return qn_family_find_weight(family, src, QN_WEIGHT_DELTA_QKV, layer, NULL) != NULL;
}

static qn_status read_delta(const qn_source *src, const qn_fields *f, const qn_family *family,
                            qn_model_config *c)
{
    qn_delta_config *d = &c->delta;
    enum { HEADS_MAX = 1 << 16, KERNEL_MAX = 1024 };
    char label[LABEL_MAX], other[LABEL_MAX];
    if (family->delta == QN_DELTA_BY_CHANNEL_HELD) QN_TRY(read_lower_bound(f, d));
    if (family->delta == QN_DELTA_BY_CHANNEL || family->delta == QN_DELTA_BY_CHANNEL_HELD)
        return read_channel_delta(f, d);
    QN_TRY(qn_fields_required_int(f, "linear_num_key_heads", 1, HEADS_MAX, &d->linear_num_key_heads));
    QN_TRY(qn_fields_required_int(f, "linear_num_value_heads", 1, HEADS_MAX, &d->linear_num_value_heads));
    QN_TRY(qn_fields_required_int(f, "linear_key_head_dim", 1, HEADS_MAX, &d->linear_key_head_dim));
    QN_TRY(qn_fields_required_int(f, "linear_value_head_dim", 1, HEADS_MAX, &d->linear_value_head_dim));
    QN_TRY(qn_fields_required_int(f, "linear_conv_kernel_dim", 1, KERNEL_MAX, &d->linear_conv_kernel_dim));
    d->by_head = family->delta == QN_DELTA_BY_HEAD;
    d->z_apart = d->by_head && f->gguf_architecture && has_qkv(src, family, c);
    if (family->said_gate) QN_TRY(read_gate(f, d));
    d->tiled = f->gguf_architecture && family->delta == QN_DELTA_SPLIT &&
               d->linear_num_value_heads != d->linear_num_key_heads;
    if (d->linear_num_value_heads % d->linear_num_key_heads == 0) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: %s %lld is not a multiple of %s %lld", f->file,
                   qn_fields_label(f, "linear_num_value_heads", label, sizeof label),
                   (long long)d->linear_num_value_heads,
                   qn_fields_label(f, "linear_num_key_heads", other, sizeof other),
                   (long long)d->linear_num_key_heads);
}

/* The set, or a plain one, with what rope_scaling says, which wins. *merged owns the new object. */
static qn_status merge_scaling(qn_fields *set, const json_t *scaling, json_t **merged)
{
    *merged = set->object ? qn_json_copy(set->object) : json_pack("{s:s}", "rope_type", "default");
    if (!*merged || json_object_update(*merged, (json_t *)scaling)) return qn_fail_nomem(sizeof **merged);
    set->object = *merged;
    return QN_OK;
}

/* What the family means by other names, in place of the parameters' own: *meant owns the new object. */
static qn_status read_meaning(const qn_fields *f, const qn_family *family, const qn_model_config *c,
                              qn_fields *params, json_t **meant)
{
    const char *type = NULL;
    double alpha = 0, theta = 0;
    int found = 0;
    if (family->rope_alpha && params->object) {
        QN_TRY(qn_fields_string(params, "rope_type", &type, NULL));
        if (!type) QN_TRY(qn_fields_string(params, "type", &type, NULL));
        QN_TRY(qn_fields_number(params, "alpha", 0, 1e9, &alpha, NULL));
    }
    if (type && strcmp(type, "dynamic") == 0 && alpha > 0 && c->head_dim > 2) {
        QN_TRY(qn_fields_spelt_number(params, "rope_theta", 1e-3, 1e30, &theta, &found));
        if (!found) QN_TRY(qn_fields_spelt_number(f, "rope_theta", 1e-3, 1e30, &theta, &found));
        theta *= pow(alpha, (double)c->head_dim / (double)(c->head_dim - 2));
        *meant = json_pack("{s:s, s:f}", "rope_type", "default", "rope_theta", theta);
    } else if (family->latent) { /* the part that is rotated has a field for itself */
        double tenth = 0;
        *meant = params->object ? qn_json_copy(params->object) : json_object();
        if (*meant && params->object) /* as converters write it of MLA */
            QN_TRY(qn_fields_number(params, "yarn_log_multiplier", 0, 1e6, &tenth, &found));
        if (*meant &&
            (json_object_set_new(*meant, "rotary_dim", json_integer(c->head_dim)) != 0 ||
             (found && json_object_set_new(*meant, "yarn_log_multiplier", json_real(10 * tenth)) != 0))) {
            json_decref(*meant);
            *meant = NULL;
        }
    } else {
        return QN_OK;
    }
    params->object = *meant;
    return *meant ? QN_OK : qn_fail_nomem(sizeof **meant);
}

static qn_status read_query_scale(const qn_fields *f, const qn_fields *params, qn_model_config *c)
{
    static const char name[] = "original_max_position_embeddings";
    double beta = 0, positions = (double)c->max_position_embeddings;
    if (f->gguf_architecture) /* not all converters write it */
        QN_TRY(qn_fields_number(f, "llama_4_scaling_beta", 0, 1e6, &beta, NULL));
    if (!params->object) return QN_OK;
    QN_TRY(qn_fields_number(params, "llama_4_scaling_beta", 0, 1e6, &beta, NULL));
    QN_TRY(qn_fields_number(params, name, 1, POSITIONS_MAX, &positions, NULL));
    QN_TRY(qn_fields_number(f, name, 1, POSITIONS_MAX, &positions, NULL));
    c->query_scale_beta = (float)beta;
    c->query_scale_positions = (float)positions;
    return QN_OK;
}

/* attn_temperature_tuning: published files have a number there too. */
static qn_status read_temperature(const qn_fields *f, qn_model_config *c)
{
    static const char said[] = "attn_temperature_tuning";
    const json_t *value = qn_fields_get(f, said);
    double beta = 0, positions = 1;
    int tempers = json_is_integer(value) && json_integer_value(value) != 0;
    if (!json_is_integer(value)) QN_TRY(qn_fields_bool(f, said, &tempers, NULL));
    QN_TRY(qn_fields_number(f, "attn_scale", -1e6, 1e6, &beta, NULL));
    QN_TRY(qn_fields_number(f, "floor_scale", 1, POSITIONS_MAX, &positions, NULL));
    c->query_scale_beta = tempers ? (float)beta : 0;
    c->query_scale_positions = (float)positions;
    c->query_scale_first = 1;
    c->query_scale_no_rope = 1;
    return QN_OK;
}

/* rope_parameters is one set, or one for full and one for sliding layers; the older rope_scaling is for full
 * layers (all, in families with one set). Where both are there, rope_scaling replaces a single set and is put over
 * that of full layers, as in transformers; empty objects say nothing. Heads of two sizes want two sets. */
static qn_status read_rope_sets(const qn_fields *f, const qn_family *family, const qn_fields *parameters,
                                qn_model_config *c, json_t **merged, json_t **meant)
{
    qn_fields params = *parameters, full = {.file = f->file, .path = ""}, local = full;
    int found = 0, has_full = 0, has_local = 0, two = 0;
    int64_t head_dim = c->head_dim; /* of full layers */
    double local_theta = 0;
    for (int64_t i = 0; i < c->num_hidden_layers; i++)
        if (c->layers[i].kind == QN_LAYER_FULL) head_dim = c->layers[i].head_dim;
    if (params.object) {
        QN_TRY(
            qn_fields_object(&params, "full_attention", "rope_parameters.full_attention.", &full, &has_full));
        QN_TRY(qn_fields_object(&params, "sliding_attention", "rope_parameters.sliding_attention.", &local,
                                &has_local));
    }
    QN_TRY(qn_fields_number(f, "rope_local_base_freq", 1e-3, 1e30, &local_theta, &two));
    qn_fields scaling = {.path = ""};
    QN_TRY(qn_fields_object(f, "rope_scaling", "rope_scaling.", &scaling, &found));
    const int has_scaling = found && json_object_size(scaling.object), nested = has_full || has_local;
    /* Of two sets, a flat rope_parameters says nothing of either. */
    const int params_are_sets = two && !f->gguf_architecture;
    if (!nested && params_are_sets) params.object = NULL;
    if (has_scaling && (nested || params_are_sets)) {
        if (!has_full) full.path = scaling.path;
        QN_TRY(merge_scaling(&full, scaling.object, merged));
        has_full = 1;
    } else if (has_scaling) {
        params = scaling;
    }
    if (has_local && !has_full) params.object = NULL;
    QN_TRY(read_meaning(f, family, c, has_full ? &full : &params, meant));
    if (family->scales_queries) QN_TRY(read_query_scale(f, has_full ? &full : &params, c));
    QN_TRY(qn_rope_read(has_full ? &full : &params, f, "rope_theta", head_dim, c->max_position_embeddings,
                        &c->rope[0]));
    if (family->sectioned_rope[0])
        QN_TRY(
            qn_rope_read_sections(&params, family->sectioned_rope, family->sections_take_turns, &c->rope[0]));
    c->n_rope = 1;
    if (has_local || two || head_dim != c->head_dim) {
        const char *theta = two ? "rope_local_base_freq" : "rope_theta";
        if (!has_local && !two) local = params;
        QN_TRY(qn_rope_read(&local, f, theta, c->head_dim, c->max_position_embeddings, &c->rope[1]));
        c->n_rope = 2;
    }
    return QN_OK;
}

static qn_status read_rope(const qn_fields *f, const qn_family *family, qn_model_config *c)
{
    qn_fields params = {.file = f->file, .path = ""};
    json_t *absent = NULL, *merged = NULL, *meant = NULL;
    int found = 0;
    if (family->latent && !c->latent.qk_rope_head_dim) return QN_OK; /* nothing is rotated */
    QN_TRY(qn_fields_object(f, "rope_parameters", "rope_parameters.", &params, &found));
    if (!found && family->rope_parameters && !f->gguf_architecture) {
        QN_TRY(qn_json_parse(f->file, family->rope_parameters, strlen(family->rope_parameters), &absent));
        params.object = absent;
    }
    qn_status status = read_rope_sets(f, family, &params, c, &merged, &meant);
    json_decref(merged);
    json_decref(meant);
    json_decref(absent);
    if (status == QN_OK && c->n_rope == 1)
        for (int64_t i = 0; i < c->num_hidden_layers; i++)
            if (c->layers[i].rope != QN_ROPE_NONE) c->layers[i].rope = 0;
    return status;
}

/* GGUF files of Llama 3 carry its scaling as a table of factors. Where config.json described the model it is
 * in there already. */
static qn_status read_rope_factors(const qn_source *src, const qn_fields *f, qn_model_config *c)
{
    const qn_tensor_view *v = f->gguf_architecture ? qn_source_find(src, "rope_freqs.weight") : NULL;
    char shape[64];
    if (!v) return QN_OK;
    int64_t n = c->rope[0].rotary_dim / 2;
    if (v->n_dims != 1 || v->shape[0] != n)
        return qn_fail(QN_E_FORMAT, "%s: tensor %s: shape %s, expected [%lld]", v->file, v->name,
                       qn_view_shape_text(v, shape, sizeof shape), (long long)n);
    float *factors = qn_alloc_array((size_t)n, sizeof *factors);
    if (!factors) return QN_E_NOMEM;
    qn_status status = qn_view_floats(v, 0, n, factors);
    if (status == QN_OK) status = qn_rope_divide(&c->rope[0], factors, v->file, v->name);
    qn_free(factors);
    return status;
}

static qn_status read_short_positions(const qn_source *src, const qn_fields *f, qn_model_config *c)
{
    if (f->gguf_architecture) QN_TRY(qn_rope_long_read_gguf(src, f, c->max_position_embeddings, &c->rope[0]));
    for (int i = 0; i < c->n_rope; i++) {
        int64_t own = c->rope[i].short_positions;
        if (own && c->rope_short_positions && own != c->rope_short_positions)
            return qn_fail(
                QN_E_UNSUPPORTED,
                "%s: original_max_position_embeddings is %lld for some layers and %lld for others, "
                "which is not supported",
                f->file, (long long)c->rope_short_positions, (long long)own);
        if (own) c->rope_short_positions = own;
    }
    return QN_OK;
}

/* How positions turn queries and keys, and how many there are. */
static qn_status read_positions(const qn_source *src, const qn_family *family, const qn_fields *f,
                                qn_model_config *c)
{
    QN_TRY(read_rope(f, family, c));
    if (family->tempers_queries) QN_TRY(read_temperature(f, c));
    if (c->rope[0].stretched_positions > c->max_position_embeddings)
        c->max_position_embeddings = c->rope[0].stretched_positions;
    QN_TRY(read_rope_factors(src, f, c));
    return read_short_positions(src, f, c);
}

/* Sets rope_changed unless the files say the same. own_positions: their max_position_embeddings. */
static qn_status compare_positions(const qn_source *src, const qn_family *family, const qn_fields *f,
                                   int64_t own_positions, qn_model_config *c)
{
    qn_model_config plain = *c;
    plain.max_position_embeddings = own_positions;
    plain.rope_short_positions = 0;
    for (int i = 0; i < QN_ROPE_SETS; i++) plain.rope[i] = (qn_rope_config){.inv_freq = NULL};
    const qn_status status = read_positions(src, family, f, &plain);
    c->rope_changed = status != QN_OK || qn_rope_change_hash(&plain) != qn_rope_change_hash(c) ||
                      plain.max_position_embeddings != c->max_position_embeddings;
    for (int i = 0; i < QN_ROPE_SETS; i++) {
        qn_free(plain.rope[i].inv_freq);
        qn_free(plain.rope[i].long_inv_freq);
    }
    return status == QN_E_NOMEM ? status : QN_OK;
}

static qn_status read_changed_positions(const qn_source *src, const qn_family *family, const qn_fields *f,
                                        const qn_rope_options *rope, qn_buf *notes, qn_model_config *c)
{
    qn_fields changed = *f;
    json_t *edited = NULL;
    const int64_t own_positions = c->max_position_embeddings;
    qn_status status = qn_rope_change_check(rope);
    if (status == QN_OK) status = qn_rope_change_apply(rope, src, family, c, &changed, &edited);
    if (status == QN_OK) status = read_positions(src, family, &changed, c);
    if (status == QN_OK) status = compare_positions(src, family, f, own_positions, c);
    if (status == QN_OK && notes && c->rope_changed) status = qn_rope_change_note(rope, src, f, c, notes);
    json_decref(edited);
    return status;
}

qn_status qn_layer_config_read(const qn_source *src, const qn_family *family, const qn_fields *f,
                               const qn_rope_options *rope, qn_buf *notes, qn_model_config *c)
{
    QN_TRY(read_layers(f, family, c));
    QN_TRY(qn_layer_heads_read(src, family, f, c));
    if (qn_rope_change_asked(rope))
        QN_TRY(read_changed_positions(src, family, f, rope, notes, c));
    else
        QN_TRY(read_positions(src, family, f, c));
    if (family->latent) qn_latent_config_finish(c);
    if (family->delta != QN_DELTA_NEVER) QN_TRY(read_delta(src, f, family, c));
    if (family->recurrent == QN_MIXER_STATE_SPACE) QN_TRY(qn_state_space_config_read(src, f, family, c));
    return family->recurrent == QN_MIXER_SHORT_CONV ? read_short_conv(f, &c->short_conv) : QN_OK;
}
