#include "model/config/blocks/vision_config.h"

#include <string.h>

enum { LABEL_MAX = 160 };

/* What transformers' configuration class takes an absent field for. */
static const qn_field_default defaults[] = {
    {"depth", 32, 0},      {"embed_dim", 1280, 0},       {"num_heads", 16, 0},          {"mlp_ratio", 4, 0},
    {"patch_size", 14, 0}, {"spatial_merge_size", 2, 0}, {"temporal_patch_size", 2, 0}, {NULL, 0, 0}};

/* Older files and newer ones. */
static const char *const prefixes[] = {"visual.", "model.visual."};

/* That of the first tensor that has one; NULL: none has. */
static const char *find_prefix(const qn_source *src)
{
    for (int64_t i = 0; i < qn_source_count(src); i++)
        for (size_t k = 0; k < sizeof prefixes / sizeof prefixes[0]; k++)
            if (strncmp(qn_source_get(src, i)->name, prefixes[k], strlen(prefixes[k])) == 0)
                return prefixes[k];
    return NULL;
}

static qn_status read_act(const qn_fields *f, qn_vision_act *out)
{
    static const struct {
        const char *name;
        qn_vision_act act;
    } acts[] = {{"quick_gelu", QN_VISION_QUICK_GELU},
                {"gelu", QN_VISION_GELU},
                {"gelu_pytorch_tanh", QN_VISION_GELU_TANH},
                {"silu", QN_VISION_SILU}};
    const char *name = "quick_gelu";
    char label[LABEL_MAX];
    QN_TRY(qn_fields_string(f, "hidden_act", &name, NULL));
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++)
        if (strcmp(acts[i].name, name) == 0) {
            *out = acts[i].act;
            return QN_OK;
        }
    return qn_fail(
        QN_E_UNSUPPORTED,
        "%s: %s is \"%.40s\", which is not supported (known: quick_gelu, gelu, gelu_pytorch_tanh, silu)",
        f->file, qn_fields_label(f, "hidden_act", label, sizeof label), name);
}

/* Sizes, each bounded so that products of three fit in 63 bits. */
static qn_status read_sizes(const qn_fields *f, int64_t hidden_size, qn_vision_config *v)
{
    enum {
        LAYERS_MAX = 4096,
        WIDTH_MAX = 1 << 20,
        HEADS_MAX = 1 << 16,
        MERGE_MAX = 64,
        PATCH_MAX = 1024,
        TIMES_MAX = 64
    };
    double ratio = 0;
    int64_t channels = QN_IMAGE_CHANNELS, merged = hidden_size;
    char label[LABEL_MAX], other[LABEL_MAX];
    qn_image_processor *p = &v->processor;
    QN_TRY(qn_fields_required_int(f, "depth", 1, LAYERS_MAX, &v->depth));
    QN_TRY(qn_fields_required_int(f, "embed_dim", 1, WIDTH_MAX, &v->embed_dim));
    QN_TRY(qn_fields_required_int(f, "num_heads", 1, HEADS_MAX, &v->num_heads));
    QN_TRY(qn_fields_number(f, "mlp_ratio", 1e-3, 1024, &ratio, NULL));
    QN_TRY(qn_fields_required_int(f, "patch_size", 1, PATCH_MAX, &p->patch_size));
    QN_TRY(qn_fields_required_int(f, "spatial_merge_size", 1, MERGE_MAX, &p->merge_size));
    QN_TRY(qn_fields_required_int(f, "temporal_patch_size", 1, TIMES_MAX, &p->temporal_patch_size));
    QN_TRY(qn_fields_int(f, "in_chans", 1, WIDTH_MAX, &channels, NULL));
    QN_TRY(qn_fields_int(f, "in_channels", 1, WIDTH_MAX, &channels, NULL));
    QN_TRY(qn_fields_int(f, "hidden_size", 1, WIDTH_MAX, &merged, NULL));
    if (v->embed_dim % (4 * v->num_heads))
        return qn_fail(QN_E_FORMAT, "%s: %s is %lld, expected a multiple of four times %s %lld", f->file,
                       qn_fields_label(f, "embed_dim", label, sizeof label), (long long)v->embed_dim,
                       qn_fields_label(f, "num_heads", other, sizeof other), (long long)v->num_heads);
    if (channels != QN_IMAGE_CHANNELS)
        return qn_fail(QN_E_UNSUPPORTED, "%s: %s is %lld, which is not supported (known: %d)", f->file,
                       qn_fields_label(f, "in_channels", label, sizeof label), (long long)channels,
                       (int)QN_IMAGE_CHANNELS);
    if (merged != hidden_size)
        return qn_fail(QN_E_FORMAT, "%s: %s is %lld, but the model's own hidden_size is %lld", f->file,
                       qn_fields_label(f, "hidden_size", label, sizeof label), (long long)merged,
                       (long long)hidden_size);
    v->intermediate_size = (int64_t)((double)v->embed_dim * ratio);
    if (v->intermediate_size >= 1) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: %s leaves no rows of the MLP", f->file,
                   qn_fields_label(f, "mlp_ratio", label, sizeof label));
}

static qn_status read_token(const qn_fields *root, int64_t vocab_size, qn_vision_config *v)
{
    int64_t id = 151655; /* of the published models */
    QN_TRY(qn_fields_int(root, "image_token_id", 0, INT32_MAX, &id, NULL));
    if (id >= vocab_size)
        return qn_fail(QN_E_FORMAT, "%s: image_token_id is %lld, but the vocabulary has %lld tokens",
                       root->file, (long long)id, (long long)vocab_size);
    v->image_token_id = (int32_t)id;
    return QN_OK;
}

qn_status qn_vision_config_read(qn_source *src, const qn_fields *root, int64_t hidden_size,
                                int64_t vocab_size, qn_vision_config *out)
{
    qn_fields f;
    int found = 0;
    const char *model_type = "qwen2_vl";
    qn_vision_config v = {.prefix = find_prefix(src), .norm_eps = 1e-6f, .rope_theta = 10000};
    QN_TRY(qn_fields_object(root, "vision_config", "vision_config.", &f, &found));
    if (!found || !v.prefix) return QN_OK;
    f.defaults = defaults;
    QN_TRY(qn_fields_string(root, "model_type", &model_type, NULL));
    QN_TRY(read_sizes(&f, hidden_size, &v));
    QN_TRY(read_act(&f, &v.hidden_act));
    QN_TRY(read_token(root, vocab_size, &v));
    const qn_image_tower tower = {.model_type = model_type,
                                  .patch_size = v.processor.patch_size,
                                  .merge_size = v.processor.merge_size,
                                  .temporal_patch_size = v.processor.temporal_patch_size};
    QN_TRY(qn_image_processor_read(src, &tower, &v.processor));
    *out = v;
    return QN_OK;
}
