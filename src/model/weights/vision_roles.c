#include "model/weights/vision_roles.h"

#include <stdio.h>
#include <string.h>

typedef enum { DIM_NONE, DIM_E, DIM_3E, DIM_F, DIM_M, DIM_H, DIM_CHANNELS, DIM_TIMES, DIM_PATCH } dim;

/* '#' is the layer. */
static const struct {
    const char *name;
    dim shape[QN_VISION_DIMS_MAX];
} roles[QN_VISION_ROLE_COUNT] = {
    [QN_VISION_PATCH] = {"patch_embed.proj.weight", {DIM_E, DIM_CHANNELS, DIM_TIMES, DIM_PATCH, DIM_PATCH}},
    [QN_VISION_MERGER_NORM] = {"merger.ln_q.weight", {DIM_E}},
    [QN_VISION_MERGER_NORM_BIAS] = {"merger.ln_q.bias", {DIM_E}},
    [QN_VISION_MERGER_UP] = {"merger.mlp.0.weight", {DIM_M, DIM_M}},
    [QN_VISION_MERGER_UP_BIAS] = {"merger.mlp.0.bias", {DIM_M}},
    [QN_VISION_MERGER_DOWN] = {"merger.mlp.2.weight", {DIM_H, DIM_M}},
    [QN_VISION_MERGER_DOWN_BIAS] = {"merger.mlp.2.bias", {DIM_H}},
    [QN_VISION_NORM1] = {"blocks.#.norm1.weight", {DIM_E}},
    [QN_VISION_NORM1_BIAS] = {"blocks.#.norm1.bias", {DIM_E}},
    [QN_VISION_QKV] = {"blocks.#.attn.qkv.weight", {DIM_3E, DIM_E}},
    [QN_VISION_QKV_BIAS] = {"blocks.#.attn.qkv.bias", {DIM_3E}},
    [QN_VISION_PROJ] = {"blocks.#.attn.proj.weight", {DIM_E, DIM_E}},
    [QN_VISION_PROJ_BIAS] = {"blocks.#.attn.proj.bias", {DIM_E}},
    [QN_VISION_NORM2] = {"blocks.#.norm2.weight", {DIM_E}},
    [QN_VISION_NORM2_BIAS] = {"blocks.#.norm2.bias", {DIM_E}},
    [QN_VISION_FC1] = {"blocks.#.mlp.fc1.weight", {DIM_F, DIM_E}},
    [QN_VISION_FC1_BIAS] = {"blocks.#.mlp.fc1.bias", {DIM_F}},
    [QN_VISION_FC2] = {"blocks.#.mlp.fc2.weight", {DIM_E, DIM_F}},
    [QN_VISION_FC2_BIAS] = {"blocks.#.mlp.fc2.bias", {DIM_E}},
};
enum { N_LAYER_ROLES = QN_VISION_ROLE_COUNT - QN_VISION_MODEL_COUNT };

static int64_t dim_size(const qn_model_config *c, dim d)
{
    const qn_vision_config *v = &c->vision;
    switch (d) {
    case DIM_E:
        return v->embed_dim;
    case DIM_3E:
        return 3 * v->embed_dim;
    case DIM_F:
        return v->intermediate_size;
    case DIM_M:
        return v->processor.merge_size * v->processor.merge_size * v->embed_dim;
    case DIM_H:
        return c->hidden_size;
    case DIM_CHANNELS:
        return QN_IMAGE_CHANNELS;
    case DIM_TIMES:
        return v->processor.temporal_patch_size;
    case DIM_PATCH:
        return v->processor.patch_size;
    default:
        return 0;
    }
}

int64_t qn_vision_count(const qn_vision_config *v)
{
    return v->depth ? QN_VISION_MODEL_COUNT + v->depth * N_LAYER_ROLES : 0;
}

int64_t qn_vision_index(qn_vision_role role, int64_t layer)
{
    return role < QN_VISION_MODEL_COUNT ? (int64_t)role : (int64_t)role + layer * N_LAYER_ROLES;
}

/* "blocks.#.attn.qkv.weight" as "block3.attn.qkv.bin". */
static void write_raw_name(const char *own, int64_t layer, char name[QN_VISION_NAME_MAX])
{
    static const char blocks[] = "blocks.#", weight[] = ".weight";
    const char *rest = strstr(own, blocks) == own ? own + strlen(blocks) : own, *end = strstr(rest, weight);
    const int n = end ? (int)(end - rest) : (int)strlen(rest);
    if (rest == own)
        snprintf(name, QN_VISION_NAME_MAX, "visual.%.*s.bin", n, rest);
    else
        snprintf(name, QN_VISION_NAME_MAX, "visual.block%lld%.*s.bin", (long long)layer, n, rest);
}

int qn_vision_tensor(const qn_model_config *c, qn_source_kind kind, int64_t i, char name[QN_VISION_NAME_MAX],
                     int64_t shape[QN_VISION_DIMS_MAX])
{
    int64_t layer = i < QN_VISION_MODEL_COUNT ? 0 : (i - QN_VISION_MODEL_COUNT) / N_LAYER_ROLES,
            role = i - layer * N_LAYER_ROLES;
    const char *own = roles[role].name, *hash = strchr(own, '#');
    int n = 0;
    if (kind == QN_SOURCE_RAW)
        write_raw_name(own, layer, name);
    else if (hash)
        snprintf(name, QN_VISION_NAME_MAX, "%s%.*s%lld%s", c->vision.prefix, (int)(hash - own), own,
                 (long long)layer, hash + 1);
    else
        snprintf(name, QN_VISION_NAME_MAX, "%s%s", c->vision.prefix, own);
    for (; n < QN_VISION_DIMS_MAX && roles[role].shape[n] != DIM_NONE; n++)
        shape[n] = dim_size(c, roles[role].shape[n]);
    return n;
}
