#include "model/config/blocks/vision_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/config/blocks/vision_family.h"

enum {
    LABEL_MAX = 160,
    WIDTH_MAX = 1 << 20,
    HEADS_MAX = 1 << 16,
    MERGE_MAX = 64,
    PATCH_MAX = 1024,
    TIMES_MAX = 64,
    SIDE_MAX = 1 << 14
};

/* The vision_config and, around it, the whole config.json. */
typedef struct {
    qn_fields own, root;
    const qn_vision_family *family;
    int64_t n_tensors, hidden_size, vocab_size;
    float text_eps;
    int64_t image_size; /* 0: views have any size */
} reader;

/* The prefix under which tensors of the tower are there; NULL: none is. */
static const char *find_prefix(const qn_source *src, const qn_vision_family *family)
{
    const char *patch = qn_vision_family_name(family, QN_VISION_PATCH), *end = strchr(patch, '.') + 1;
    for (const char *const *prefix = family->prefixes; *prefix; prefix++) {
        const size_t n = strlen(*prefix), rest = (size_t)(end - patch);
        for (int64_t i = 0; i < qn_source_count(src); i++) {
            const char *name = qn_source_get(src, i)->name;
            if (strncmp(name, *prefix, n) == 0 && strncmp(name + n, patch, rest) == 0) return *prefix;
        }
    }
    return NULL;
}

/* ---- fields -------------------------------------------------------------------------------------------- */

static qn_status read_act(const qn_fields *f, const char *field, qn_vision_act *out)
{
    static const struct {
        const char *name;
        qn_vision_act act;
    } acts[] = {{"quick_gelu", QN_VISION_QUICK_GELU},
                {"gelu", QN_VISION_GELU},
                {"gelu_pytorch_tanh", QN_VISION_GELU_TANH},
                {"silu", QN_VISION_SILU}};
    const char *name = NULL;
    char label[LABEL_MAX];
    QN_TRY(qn_fields_string(f, field, &name, NULL));
    if (!name) return QN_OK;
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++)
        if (strcmp(acts[i].name, name) == 0) {
            *out = acts[i].act;
            return QN_OK;
        }
    return qn_fail(
        QN_E_UNSUPPORTED,
        "%s: %s is \"%.40s\", which is not supported (known: quick_gelu, gelu, gelu_pytorch_tanh, silu)",
        f->file, qn_fields_label(f, field, label, sizeof label), name);
}

/* A number, or a list of the same number for each axis. */
static qn_status read_side(const qn_fields *f, const char *name, int64_t max, int64_t *out)
{
    const json_t *value = qn_fields_get(f, name);
    char label[LABEL_MAX];
    if (!json_is_array(value)) return qn_fields_int(f, name, 1, max, out, NULL);
    qn_fields_label(f, name, label, sizeof label);
    int64_t side = 0;
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *one = json_array_get(value, i);
        const int64_t n = json_is_integer(one) ? (int64_t)json_integer_value(one) : 0;
        if (n < 1 || n > max)
            return qn_fail(QN_E_FORMAT, "%s: %s[%zu]: expected a number from 1 to %lld", f->file, label, i,
                           (long long)max);
        if (i && n != side)
            return qn_fail(QN_E_UNSUPPORTED, "%s: %s has %lld and %lld: sides that differ are not supported",
                           f->file, label, (long long)side, (long long)n);
        side = n;
    }
    if (!side) return qn_fail(QN_E_FORMAT, "%s: %s: expected numbers", f->file, label);
    *out = side;
    return QN_OK;
}

static qn_status check_channels(const qn_fields *f)
{
    static const char *const names[] = {"in_chans", "in_channels", "num_channels"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        int64_t channels = QN_IMAGE_CHANNELS;
        char label[LABEL_MAX];
        QN_TRY(qn_fields_int(f, names[i], 1, WIDTH_MAX, &channels, NULL));
        if (channels != QN_IMAGE_CHANNELS)
            return qn_fail(QN_E_UNSUPPORTED, "%s: %s is %lld, which is not supported (known: %d)", f->file,
                           qn_fields_label(f, names[i], label, sizeof label), (long long)channels,
                           (int)QN_IMAGE_CHANNELS);
    }
    return QN_OK;
}

/* ---- layers -------------------------------------------------------------------------------------------- */

static qn_status read_heads(const qn_fields *f, qn_vision_config *v)
{
    char label[LABEL_MAX], other[LABEL_MAX];
    int found = 0;
    const int64_t parts = v->rope == QN_VISION_ROPE_NONE ? 1 : 4;
    int64_t kv_heads;
    QN_TRY(qn_fields_required_int(f, "num_heads", 1, HEADS_MAX, &v->num_heads));
    kv_heads = v->num_heads;
    QN_TRY(qn_fields_int(f, "num_key_value_heads", 1, HEADS_MAX, &kv_heads, NULL));
    if (kv_heads != v->num_heads)
        return qn_fail(QN_E_UNSUPPORTED,
                       "%s: %s is %lld, but %s is %lld: key heads that are shared are not supported", f->file,
                       qn_fields_label(f, "num_key_value_heads", label, sizeof label), (long long)kv_heads,
                       qn_fields_label(f, "num_heads", other, sizeof other), (long long)v->num_heads);
    QN_TRY(qn_fields_int(f, "head_dim", 1, WIDTH_MAX, &v->head_dim, &found));
    if (found && v->head_dim % parts)
        return qn_fail(QN_E_FORMAT, "%s: %s is %lld, expected a multiple of four", f->file,
                       qn_fields_label(f, "head_dim", label, sizeof label), (long long)v->head_dim);
    if (!found && v->embed_dim % (parts * v->num_heads))
        return qn_fail(QN_E_FORMAT, "%s: %s is %lld, expected a multiple of %s%s %lld", f->file,
                       qn_fields_label(f, "embed_dim", label, sizeof label), (long long)v->embed_dim,
                       parts == 4 ? "four times " : "", qn_fields_label(f, "num_heads", other, sizeof other),
                       (long long)v->num_heads);
    if (!found) v->head_dim = v->embed_dim / v->num_heads;
    if (v->attention_scale == 0) v->attention_scale = (float)(1 / sqrt((double)v->head_dim));
    return QN_OK;
}

static qn_status read_intermediate(const qn_fields *f, qn_vision_config *v)
{
    double ratio = 0;
    char label[LABEL_MAX];
    QN_TRY(qn_fields_int(f, "intermediate_size", 1, WIDTH_MAX, &v->intermediate_size, NULL));
    if (v->intermediate_size) return QN_OK;
    QN_TRY(qn_fields_number(f, "mlp_ratio", 1e-3, 1024, &ratio, NULL));
    v->intermediate_size = (int64_t)((double)v->embed_dim * ratio);
    if (v->intermediate_size >= 1) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: %s leaves no rows of the MLP", f->file,
                   qn_fields_label(f, "mlp_ratio", label, sizeof label));
}

/* The numbers of layers in a list, to out[0..*n); *found 0: there is no list. */
static qn_status read_layers(const qn_fields *f, const char *name, int64_t depth, int64_t max, int64_t *out,
                             int64_t *n, int *found)
{
    const json_t *list = qn_fields_get(f, name);
    char label[LABEL_MAX];
    *found = list && !json_is_null(list);
    if (!*found) return QN_OK;
    qn_fields_label(f, name, label, sizeof label);
    if (!json_is_array(list) || (int64_t)json_array_size(list) > max)
        return qn_fail(QN_E_FORMAT, "%s: %s: expected a list of at most %lld layers", f->file, label,
                       (long long)max);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        const int64_t layer = json_is_integer(one) ? (int64_t)json_integer_value(one) : -1;
        if (layer < 0 || layer >= depth)
            return qn_fail(QN_E_FORMAT, "%s: %s[%zu]: expected the number of one of %lld layers", f->file,
                           label, i, (long long)depth);
        out[i] = layer;
    }
    *n = (int64_t)json_array_size(list);
    return QN_OK;
}

/* layer_types; without it each fourth layer and the last one see whole views. */
static qn_status read_patch_windows(const qn_fields *f, qn_vision_config *v)
{
    static const char name[] = "layer_types";
    enum { PERIOD = 4 };
    const json_t *list = qn_fields_get(f, name);
    const int is_said = list && !json_is_null(list);
    char label[LABEL_MAX];
    qn_fields_label(f, name, label, sizeof label);
    v->window_size = v->places_side;
    memset(v->full_layers, 0, sizeof v->full_layers);
    if (is_said && (!json_is_array(list) || json_array_size(list) < (size_t)v->depth))
        return qn_fail(QN_E_FORMAT, "%s: %s: expected an array with a name for each of the %lld layers",
                       f->file, label, (long long)v->depth);
    for (int64_t i = 0; i < v->depth; i++) {
        const char *type = is_said ? json_string_value(json_array_get(list, (size_t)i)) : NULL;
        int is_full = (i + 1) % PERIOD == 0 || i == v->depth - 1;
        if (type) is_full = strcmp(type, "full_attention") == 0;
        if (is_said && (!type || (!is_full && strcmp(type, "window_attention") != 0)))
            return qn_fail(QN_E_UNSUPPORTED,
                           "%s: %s[%lld] is not supported (known: full_attention, window_attention)", f->file,
                           label, (long long)i);
        if (is_full) v->full_layers[i / 64] |= (uint64_t)1 << i % 64;
    }
    return QN_OK;
}

static qn_status read_windows(const qn_fields *f, qn_vision_config *v)
{
    if (v->patch_windows) return read_patch_windows(f, v);
    int64_t pixels = 0, layers[QN_VISION_LAYERS_MAX], n = 0;
    const int64_t unit = v->processor.patch_size * v->processor.merge_size;
    int found = 0;
    char label[LABEL_MAX];
    QN_TRY(qn_fields_int(f, "window_size", 1, WIDTH_MAX, &pixels, &found));
    if (!found) return QN_OK;
    if (pixels < unit)
        return qn_fail(QN_E_FORMAT, "%s: %s is %lld, less than the %lld pixels of a token", f->file,
                       qn_fields_label(f, "window_size", label, sizeof label), (long long)pixels,
                       (long long)unit);
    v->window_size = pixels / unit;
    QN_TRY(read_layers(f, "fullatt_block_indexes", v->depth, QN_VISION_LAYERS_MAX, layers, &n, &found));
    if (!found) return QN_OK;
    memset(v->full_layers, 0, sizeof v->full_layers);
    for (int64_t i = 0; i < n; i++) v->full_layers[layers[i] / 64] |= (uint64_t)1 << layers[i] % 64;
    return QN_OK;
}

static qn_status read_deepstack(const qn_fields *f, qn_vision_config *v)
{
    int found;
    char label[LABEL_MAX];
    if (!v->n_deepstack) return QN_OK;
    QN_TRY(read_layers(f, "deepstack_visual_indexes", v->depth, QN_VISION_DEEPSTACK_MAX, v->deepstack_layers,
                       &v->n_deepstack, &found));
    for (int64_t i = 0; i < v->n_deepstack; i++) {
        int again = v->deepstack_layers[i] >= v->depth;
        for (int64_t k = 0; k < i; k++) again |= v->deepstack_layers[k] == v->deepstack_layers[i];
        if (again)
            return qn_fail(QN_E_FORMAT, "%s: %s: layer %lld is there twice, or is not one of %lld", f->file,
                           qn_fields_label(f, "deepstack_visual_indexes", label, sizeof label),
                           (long long)v->deepstack_layers[i], (long long)v->depth);
    }
    return QN_OK;
}

/* ---- patches and tokens --------------------------------------------------------------------------------- */

static int64_t whole_root(int64_t n)
{
    int64_t root = (int64_t)sqrt((double)n);
    while (root * root > n) root--;
    while ((root + 1) * (root + 1) <= n) root++;
    return root;
}

static const qn_fields *owner_of(const reader *r, const char *name)
{
    return qn_fields_get(&r->own, name) || !qn_fields_get(&r->root, name) ? &r->own : &r->root;
}

/* How many patches beside each other become a token. */
static qn_status read_merge(const reader *r, qn_vision_config *v)
{
    const char *name = r->family->merged_by;
    const qn_fields *f = owner_of(r, name);
    int64_t *out = &v->processor.merge_size, tokens = 0;
    double share = 0;
    char label[LABEL_MAX];
    *out = 1;
    switch (r->family->merged) {
    case QN_VISION_MERGED_SIDE:
        return qn_fields_required_int(f, name, 1, MERGE_MAX, out);
    case QN_VISION_MERGED_SHARE:
        QN_TRY(qn_fields_number(f, name, 1.0 / MERGE_MAX, 1, &share, NULL));
        *out = share > 0 ? (int64_t)(1 / share) : 1;
        if (share > 0 && (double)*out * share == 1) return QN_OK;
        break;
    case QN_VISION_MERGED_TOKENS:
        QN_TRY(qn_fields_required_int(f, name, 1, (int64_t)SIDE_MAX * SIDE_MAX, &tokens));
        *out = r->image_size / v->processor.patch_size / whole_root(tokens);
        if (*out >= 1 && *out <= MERGE_MAX &&
            *out * whole_root(tokens) * v->processor.patch_size == r->image_size)
            return QN_OK;
        break;
    }
    return qn_fail(QN_E_FORMAT, "%s: %s does not make whole tokens of the patches", f->file,
                   qn_fields_label(f, name, label, sizeof label));
}

static qn_status read_patches(reader *r, qn_vision_config *v)
{
    qn_image_processor *p = &v->processor;
    char label[LABEL_MAX];
    p->patch_size = 0;
    p->temporal_patch_size = 1;
    QN_TRY(check_channels(&r->own));
    QN_TRY(read_side(&r->own, "patch_size", PATCH_MAX, &p->patch_size));
    if (!p->patch_size) return qn_fields_required_int(&r->own, "patch_size", 1, PATCH_MAX, &p->patch_size);
    QN_TRY(read_side(&r->own, "temporal_patch_size", TIMES_MAX, &p->temporal_patch_size));
    QN_TRY(read_side(&r->own, "image_size", SIDE_MAX, &r->image_size));
    if (r->image_size && r->image_size < p->patch_size)
        return qn_fail(QN_E_FORMAT, "%s: %s is %lld, less than a patch", r->own.file,
                       qn_fields_label(&r->own, "image_size", label, sizeof label), (long long)r->image_size);
    return read_merge(r, v);
}

/* Tables of one row for each place of a view have no size of their own. */
static qn_status read_places(const reader *r, qn_vision_config *v)
{
    static const char *const counts[] = {"num_position_embeddings", "num_patches"};
    char label[LABEL_MAX];
    switch (v->places) {
    case QN_VISION_PLACES_NONE:
        return QN_OK;
    case QN_VISION_PLACES_PLAIN:
    case QN_VISION_PLACES_SHARES:
        v->places_side = r->image_size / v->processor.patch_size;
        return v->places_side ? QN_OK
                              : qn_fields_required_int(&r->own, "image_size", 1, SIDE_MAX, &v->places_side);
    case QN_VISION_PLACES_CENTERS:
    case QN_VISION_PLACES_AXES:
    case QN_VISION_PLACES_AXES_IN_TURN:
        return qn_fields_required_int(&r->own, "places_side", 1, WIDTH_MAX, &v->places_side);
    case QN_VISION_PLACES_CORNERS:
    case QN_VISION_PLACES_RESIZED:
        break;
    }
    const char *name = counts[v->places == QN_VISION_PLACES_RESIZED];
    int64_t n = 0;
    QN_TRY(qn_fields_required_int(&r->own, name, 1, (int64_t)SIDE_MAX * SIDE_MAX, &n));
    v->places_side = whole_root(n);
    if (v->places_side * v->places_side == n) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: %s is %lld, which is no square", r->own.file,
                   qn_fields_label(&r->own, name, label, sizeof label), (long long)n);
}

/* ---- all of it ------------------------------------------------------------------------------------------ */

static qn_status read_theta(const qn_fields *f, qn_vision_config *v)
{
    qn_fields params;
    int found = 0;
    double theta = v->rope_theta > 0 ? (double)v->rope_theta : 10000;
    QN_TRY(qn_fields_number(f, "rope_theta", 1e-3, 1e12, &theta, NULL));
    QN_TRY(qn_fields_object(f, "rope_parameters", "vision_config.rope_parameters.", &params, &found));
    if (found) QN_TRY(qn_fields_number(&params, "rope_theta", 1e-3, 1e12, &theta, NULL));
    v->rope_theta = (float)theta;
    return QN_OK;
}

/* Gemma 4 reads the padding's row of the second embedding where a picture is. */
static qn_status read_pad(const reader *r, qn_vision_config *v)
{
    qn_fields text;
    int found = 0;
    int64_t id = 0;
    QN_TRY(qn_fields_object(&r->root, "text_config", "text_config.", &text, &found));
    if (found) QN_TRY(qn_fields_int(&text, "pad_token_id", 0, r->vocab_size - 1, &id, NULL));
    v->layer_input_id = (int32_t)id;
    return QN_OK;
}

static qn_status read_token(const reader *r, qn_vision_config *v)
{
    int64_t id = 0;
    char label[LABEL_MAX];
    QN_TRY(qn_fields_required_int(&r->root, "image_token_id", 0, INT32_MAX, &id));
    if (id >= r->vocab_size)
        return qn_fail(QN_E_FORMAT, "%s: %s is %lld, but vocab_size is %lld", r->root.file,
                       qn_fields_label(&r->root, "image_token_id", label, sizeof label), (long long)id,
                       (long long)r->vocab_size);
    v->image_token_id = v->layer_input_id = (int32_t)id;
    return r->family->text_says_seen ? read_pad(r, v) : QN_OK;
}

/* ---- merging -------------------------------------------------------------------------------------------- */

static qn_status read_eps(const reader *r, qn_vision_config *v)
{
    double eps = 1e-6;
    int found = 0;
    QN_TRY(qn_fields_number(&r->own, "norm_eps", 1e-12, 1, &eps, &found));
    if (v->end_norm_eps > 0) v->end_norm_eps = (float)eps;
    if (v->feature_norm) v->feature_norm_eps = r->text_eps;
    if (v->norm_eps == 0) v->norm_eps = (float)eps;
    if (v->merge_norm_eps == 0) v->merge_norm_eps = found ? (float)eps : r->text_eps;
    return QN_OK;
}

/* Which layer's rows are merged: so many count as layers. */
static qn_status read_last_layer(const reader *r, qn_vision_config *v)
{
    static const char name[] = "vision_feature_layer", strategy[] = "vision_feature_select_strategy";
    int64_t layer = -1;
    const char *how = "default";
    if (json_is_array(qn_fields_get(&r->root, name)))
        return qn_fail(QN_E_UNSUPPORTED, "%s: %s is a list, which is not supported", r->root.file, name);
    QN_TRY(qn_fields_int(&r->root, name, -v->depth, v->depth, &layer, NULL));
    QN_TRY(qn_fields_string(&r->root, strategy, &how, NULL));
    if (v->class_row != QN_VISION_CLASS_NONE && strcmp(how, "default") != 0)
        return qn_fail(QN_E_UNSUPPORTED, "%s: %s is \"%.40s\", which is not supported (known: default)",
                       r->root.file, strategy, how);
    if (layer == 0)
        return qn_fail(QN_E_UNSUPPORTED, "%s: %s is 0, which is not supported", r->root.file, name);
    if (layer != -1) v->post_norm = 0;
    v->depth = layer < 0 ? v->depth + 1 + layer : layer;
    return QN_OK;
}

static qn_status read_widths(const reader *r, qn_vision_config *v)
{
    const qn_vision_family *family = r->family;
    v->output_width = r->hidden_size;
    if (family->down_by)
        QN_TRY(qn_fields_required_int(owner_of(r, family->down_by), family->down_by, 1, WIDTH_MAX,
                                      &v->output_width));
    switch (family->up) {
    case QN_VISION_UP_NONE:
        break;
    case QN_VISION_UP_MERGED:
        v->merger_width = v->processor.merge_size * v->processor.merge_size * v->embed_dim;
        break;
    case QN_VISION_UP_TEXT:
        v->merger_width = r->hidden_size;
        break;
    case QN_VISION_UP_SAID:
        return qn_fields_required_int(owner_of(r, family->up_by), family->up_by, 1, WIDTH_MAX,
                                      &v->merger_width);
    }
    return QN_OK;
}

/* Which tokens of the text see all of their picture. */
static qn_status read_seen(const reader *r, qn_vision_config *v)
{
    static const char name[] = "use_bidirectional_attention";
    qn_fields text;
    const char *whose = NULL;
    int found = 0;
    if (!r->family->text_says_seen) return QN_OK;
    QN_TRY(qn_fields_object(&r->root, "text_config", "text_config.", &text, &found));
    if (found && json_is_string(qn_fields_get(&text, name)))
        QN_TRY(qn_fields_string(&text, name, &whose, NULL));
    if (!whose || strcmp(whose, "vision") != 0) v->seen = QN_VISION_SEEN_BEFORE;
    return QN_OK;
}

static qn_status read_merger(const reader *r, qn_vision_config *v)
{
    int has_norm = 1;
    QN_TRY(read_act(&r->root, "projector_hidden_act", &v->merge_act));
    if (r->family->norm_by) QN_TRY(qn_fields_bool(&r->root, r->family->norm_by, &has_norm, NULL));
    if (!has_norm) v->merge_norm = 0;
    if (r->family->bias_by) QN_TRY(qn_fields_bool(&r->root, r->family->bias_by, &v->merge_bias, NULL));
    QN_TRY(read_widths(r, v));
    QN_TRY(read_seen(r, v));
    return read_last_layer(r, v);
}

/* Switches of InternVL's towers. */
static qn_status read_switches(const qn_fields *f, qn_vision_config *v)
{
    const char *norm = "layer_norm";
    char label[LABEL_MAX];
    int pooled = 1, learned = 1;
    QN_TRY(qn_fields_string(f, "norm_type", &norm, NULL));
    QN_TRY(qn_fields_bool(f, "use_qk_norm", &v->qk_norm, NULL));
    QN_TRY(qn_fields_bool(f, "attention_bias", &v->qkv_bias, NULL));
    QN_TRY(qn_fields_bool(f, "use_mean_pooling", &pooled, NULL));
    QN_TRY(qn_fields_bool(f, "use_absolute_position_embeddings", &learned, NULL));
    v->rms_norm = strcmp(norm, "rms_norm") == 0;
    v->post_norm = !pooled;
    if (!learned) v->places = QN_VISION_PLACES_NONE;
    if (v->rms_norm || strcmp(norm, "layer_norm") == 0) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED,
                   "%s: %s is \"%.40s\", which is not supported (known: layer_norm, rms_norm)", f->file,
                   qn_fields_label(f, "norm_type", label, sizeof label), norm);
}

/* What is merged has the text's width in the end: where the files say it, they must say the same. */
static qn_status check_width(const reader *r)
{
    int64_t merged = r->hidden_size;
    char label[LABEL_MAX];
    QN_TRY(qn_fields_int(&r->own, "out_hidden_size", 1, WIDTH_MAX, &merged, NULL));
    if (merged == r->hidden_size) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: %s is %lld, but the model's own hidden_size is %lld", r->own.file,
                   qn_fields_label(&r->own, "out_hidden_size", label, sizeof label), (long long)merged,
                   (long long)r->hidden_size);
}

/* Each layer has tensors: a depth beyond their number would take memory for nothing. */
static qn_status check_depth(const reader *r, int64_t depth)
{
    char label[LABEL_MAX];
    if (depth <= r->n_tensors) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: %s is %lld, but the files have only %lld tensors", r->own.file,
                   qn_fields_label(&r->own, "depth", label, sizeof label), (long long)depth,
                   (long long)r->n_tensors);
}

static qn_status read_layer_sizes(const reader *r, qn_vision_config *v)
{
    const qn_fields *f = &r->own;
    QN_TRY(qn_fields_required_int(f, "depth", 1, QN_VISION_LAYERS_MAX, &v->depth));
    QN_TRY(check_depth(r, v->depth));
    QN_TRY(read_heads(f, v));
    QN_TRY(read_intermediate(f, v));
    QN_TRY(read_act(f, "hidden_act", &v->hidden_act));
    if (r->family->layer_bias_by) {
        QN_TRY(qn_fields_bool(f, r->family->layer_bias_by, &v->qkv_bias, NULL));
        v->proj_bias = v->mlp_bias = v->qkv_bias;
    }
    if (v->mlp_limit > 0) {
        double limit = (double)v->mlp_limit;
        QN_TRY(qn_fields_number(f, "swiglu_limit", 1e-3, 1e9, &limit, NULL));
        v->mlp_limit = (float)limit;
    }
    QN_TRY(qn_fields_bool(f, "use_clipped_linears", &v->clipped_linears, NULL));
    QN_TRY(qn_fields_bool(f, "standardize", &v->standardize, NULL));
    return r->family->switched ? read_switches(f, v) : QN_OK;
}

static qn_status read_all(reader *r, qn_vision_config *v)
{
    const qn_fields *f = &r->own;
    QN_TRY(qn_fields_required_int(f, "embed_dim", 1, WIDTH_MAX, &v->embed_dim));
    QN_TRY(read_eps(r, v));
    if (!r->family->layerless) QN_TRY(read_layer_sizes(r, v));
    QN_TRY(read_patches(r, v));
    QN_TRY(read_places(r, v));
    QN_TRY(read_theta(f, v));
    QN_TRY(read_windows(f, v));
    QN_TRY(read_deepstack(f, v));
    QN_TRY(check_width(r));
    QN_TRY(read_merger(r, v));
    return read_token(r, v);
}

qn_status qn_vision_config_make(qn_source *src, const qn_vision_description *d, qn_vision_config *out)
{
    reader r = {.own = d->own,
                .root = d->root,
                .family = d->family,
                .n_tensors =
                    qn_source_get_kind(src) == QN_SOURCE_RAW ? QN_VISION_LAYERS_MAX : qn_source_count(src),
                .hidden_size = d->hidden_size,
                .vocab_size = d->vocab_size,
                .text_eps = d->text_eps};
    qn_vision_config v = r.family->fixed;
    v.family = d->family;
    v.projector = d->projector;
    v.prefix = d->prefix;
    r.own.defaults = r.family->defaults;
    r.root.defaults = r.family->root_defaults;
    QN_TRY(read_all(&r, &v));
    const qn_image_tower tower = {.model_type = r.family->model_types[0],
                                  .patch_size = v.processor.patch_size,
                                  .merge_size = v.processor.merge_size,
                                  .temporal_patch_size = v.processor.temporal_patch_size};
    QN_TRY(qn_image_processor_read(src, &tower, &d->images, &v.processor));
    *out = v;
    return QN_OK;
}

qn_status qn_vision_config_read(qn_source *src, const qn_fields *root, const char *model_type,
                                int64_t hidden_size, int64_t vocab_size, float norm_eps,
                                qn_vision_config *out)
{
    qn_vision_description d = {.root = *root,
                               .images = {.path = ""},
                               .family = qn_vision_family_find(model_type),
                               .hidden_size = hidden_size,
                               .vocab_size = vocab_size,
                               .text_eps = norm_eps};
    int found = 0;
    QN_TRY(qn_fields_object(root, "vision_config", "vision_config.", &d.own, &found));
    if (!found || !d.family) return QN_OK;
    d.prefix = find_prefix(src, d.family);
    if (!d.prefix) return QN_OK;
    d.own.spelled = d.family->spelled;
    d.root.spelled = d.family->root_spelled;
    return qn_vision_config_make(src, &d, out);
}

int64_t qn_vision_width(const qn_vision_config *v, int64_t hidden_size)
{
    return hidden_size * (1 + v->n_deepstack);
}

int qn_vision_is_full(const qn_vision_config *v, int64_t layer)
{
    return !v->window_size || (v->full_layers[layer / 64] >> layer % 64 & 1);
}
