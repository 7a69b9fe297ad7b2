#include "model/weights/vision_roles.h"

#include <stdio.h>
#include <string.h>

#include "model/config/projector/projector_family.h"

typedef enum {
    DIM_NONE,
    DIM_E,
    DIM_A,
    DIM_3A,
    DIM_F,
    DIM_P,
    DIM_M,
    DIM_IN,
    DIM_OUT,
    DIM_X,
    DIM_Y,
    DIM_H,
    DIM_N,
    DIM_QK,
    DIM_1
} dim;

static const dim shapes[QN_VISION_ROLE_COUNT][2] = {
    [QN_VISION_PATCH_NORM] = {DIM_P},
    [QN_VISION_PATCH_NORM_BIAS] = {DIM_P},
    [QN_VISION_PATCH] = {DIM_E, DIM_P},
    [QN_VISION_PATCH_BIAS] = {DIM_E},
    [QN_VISION_PATCH_LATER] = {DIM_E, DIM_P},
    [QN_VISION_EMBED_NORM] = {DIM_E},
    [QN_VISION_EMBED_NORM_BIAS] = {DIM_E},
    [QN_VISION_CLASS] = {DIM_E},
    [QN_VISION_POSITIONS] = {DIM_N, DIM_E},
    [QN_VISION_PRE_NORM] = {DIM_E},
    [QN_VISION_PRE_NORM_BIAS] = {DIM_E},
    [QN_VISION_POST_NORM] = {DIM_E},
    [QN_VISION_POST_NORM_BIAS] = {DIM_E},
    [QN_VISION_SHIFT] = {DIM_E},
    [QN_VISION_SPREAD] = {DIM_E},
    [QN_VISION_DOWNSAMPLE] = {DIM_H, DIM_M},
    [QN_VISION_DOWNSAMPLE_BIAS] = {DIM_H},
    [QN_VISION_MERGER_PROJ] = {DIM_H, DIM_H},
    [QN_VISION_MERGER_PROJ_BIAS] = {DIM_H},
    [QN_VISION_MERGER_GATE] = {DIM_X, DIM_OUT},
    [QN_VISION_MERGER_GATE_BIAS] = {DIM_X},
    [QN_VISION_MERGER_NORM] = {DIM_IN},
    [QN_VISION_MERGER_NORM_BIAS] = {DIM_IN},
    [QN_VISION_MERGER] = {DIM_E, DIM_M},
    [QN_VISION_MERGER_BIAS] = {DIM_E},
    [QN_VISION_MERGER_UP] = {DIM_X, DIM_OUT},
    [QN_VISION_MERGER_UP_BIAS] = {DIM_X},
    [QN_VISION_MERGER_DOWN] = {DIM_Y, DIM_X},
    [QN_VISION_MERGER_DOWN_BIAS] = {DIM_Y},
    [QN_VISION_PROJECTION] = {DIM_H, DIM_Y},
    [QN_VISION_PROJECTION_BIAS] = {DIM_H},
    [QN_VISION_TURNED_PROJECTION] = {DIM_E, DIM_H},
    [QN_VISION_NORM1] = {DIM_E},
    [QN_VISION_NORM1_BIAS] = {DIM_E},
    [QN_VISION_QKV] = {DIM_3A, DIM_E},
    [QN_VISION_QKV_BIAS] = {DIM_3A},
    [QN_VISION_Q] = {DIM_A, DIM_E},
    [QN_VISION_Q_BIAS] = {DIM_A},
    [QN_VISION_K] = {DIM_A, DIM_E},
    [QN_VISION_K_BIAS] = {DIM_A},
    [QN_VISION_V] = {DIM_A, DIM_E},
    [QN_VISION_V_BIAS] = {DIM_A},
    [QN_VISION_Q_NORM] = {DIM_QK},
    [QN_VISION_K_NORM] = {DIM_QK},
    [QN_VISION_PROJ] = {DIM_E, DIM_A},
    [QN_VISION_PROJ_BIAS] = {DIM_E},
    [QN_VISION_POST_NORM1] = {DIM_E},
    [QN_VISION_SCALE1] = {DIM_E},
    [QN_VISION_NORM2] = {DIM_E},
    [QN_VISION_NORM2_BIAS] = {DIM_E},
    [QN_VISION_GATE] = {DIM_F, DIM_E},
    [QN_VISION_GATE_BIAS] = {DIM_F},
    [QN_VISION_FC1] = {DIM_F, DIM_E},
    [QN_VISION_FC1_BIAS] = {DIM_F},
    [QN_VISION_FC2] = {DIM_E, DIM_F},
    [QN_VISION_FC2_BIAS] = {DIM_E},
    [QN_VISION_POST_NORM2] = {DIM_E},
    [QN_VISION_SCALE2] = {DIM_E},
    [QN_VISION_DEEP_NORM] = {DIM_M},
    [QN_VISION_DEEP_NORM_BIAS] = {DIM_M},
    [QN_VISION_DEEP_UP] = {DIM_X, DIM_M},
    [QN_VISION_DEEP_UP_BIAS] = {DIM_X},
    [QN_VISION_DEEP_DOWN] = {DIM_H, DIM_X},
    [QN_VISION_DEEP_DOWN_BIAS] = {DIM_H},
};
/* Dimension n of a role's tensor. */
static dim dim_of(qn_vision_role role, int n)
{
    if (role >= QN_VISION_BOUNDS && role <= QN_VISION_BOUNDS_END) return n == 0 ? DIM_1 : DIM_NONE;
    return n < 2 ? shapes[role][n] : DIM_NONE;
}

enum { N_LAYER_ROLES = QN_VISION_ROLE_COUNT - QN_VISION_MODEL_COUNT };

static int is_of_axes(const qn_vision_config *v)
{
    return v->places == QN_VISION_PLACES_AXES || v->places == QN_VISION_PLACES_AXES_IN_TURN;
}

/* Rows of the table of positions. */
static int64_t n_positions(const qn_vision_config *v)
{
    const int64_t side = v->places_side;
    if (is_of_axes(v)) return 2 * side;
    return side * side + (v->class_row != QN_VISION_CLASS_NONE);
}

static int64_t dim_size(const qn_model_config *c, dim d)
{
    const qn_vision_config *v = &c->vision;
    const qn_image_processor *p = &v->processor;
    const int64_t heads = v->num_heads * v->head_dim, merged = p->merge_size * p->merge_size * v->embed_dim,
                  out =
                      qn_vision_family_name(v->family, QN_VISION_DOWNSAMPLE) ? c->hidden_size
                      : v->merge == QN_VISION_MERGE_MEAN || qn_vision_family_name(v->family, QN_VISION_MERGER)
                          ? v->embed_dim
                          : merged;
    switch (d) {
    case DIM_NONE:
        break;
    case DIM_1:
        return 1;
    case DIM_E:
        return v->embed_dim;
    case DIM_A:
        return heads;
    case DIM_3A:
        return 3 * heads;
    case DIM_F:
        return v->intermediate_size;
    case DIM_P:
        return QN_IMAGE_CHANNELS * p->temporal_patch_size * p->patch_size * p->patch_size;
    case DIM_M:
        return merged;
    case DIM_IN:
        return v->merge_norm == 2 ? out : v->embed_dim;
    case DIM_OUT:
        return out;
    case DIM_X:
        return v->merger_width ? v->merger_width : out;
    case DIM_Y:
        return v->output_width;
    case DIM_H:
        return c->hidden_size;
    case DIM_N:
        return n_positions(v);
    case DIM_QK:
        return v->qk_norm == 2 ? v->head_dim : heads;
    }
    return 0;
}

/* 1: a tower whose files have this tensor at all has it with these switches. */
static int is_used(const qn_vision_config *v, qn_vision_role role, int64_t layer)
{
    switch (role) {
    case QN_VISION_POST_NORM:
    case QN_VISION_POST_NORM_BIAS:
        return v->post_norm;
    case QN_VISION_POSITIONS:
        return v->places != QN_VISION_PLACES_NONE;
    case QN_VISION_SHIFT:
    case QN_VISION_SPREAD:
        return v->standardize;
    case QN_VISION_MERGER_NORM:
    case QN_VISION_MERGER_NORM_BIAS:
        return v->merge_norm;
    case QN_VISION_MERGER_BIAS:
    case QN_VISION_MERGER_UP_BIAS:
    case QN_VISION_MERGER_DOWN_BIAS:
    case QN_VISION_PROJECTION_BIAS:
        return v->merge_bias;
    case QN_VISION_NORM1_BIAS:
    case QN_VISION_NORM2_BIAS:
        return !v->rms_norm;
    case QN_VISION_QKV_BIAS:
    case QN_VISION_Q_BIAS:
    case QN_VISION_K_BIAS:
    case QN_VISION_V_BIAS:
        return v->qkv_bias;
    case QN_VISION_Q_NORM:
    case QN_VISION_K_NORM:
        return v->qk_norm;
    case QN_VISION_PROJ_BIAS:
        return v->proj_bias;
    case QN_VISION_GATE_BIAS:
    case QN_VISION_FC1_BIAS:
    case QN_VISION_FC2_BIAS:
        return v->mlp_bias;
    default:
        if (role >= QN_VISION_BOUNDS && role <= QN_VISION_BOUNDS_END) return v->clipped_linears;
        return role < QN_VISION_DEEP_NORM || layer < v->n_deepstack;
    }
}

int64_t qn_vision_count(const qn_vision_config *v)
{
    return v->family ? QN_VISION_MODEL_COUNT + v->depth * N_LAYER_ROLES : 0;
}

int64_t qn_vision_index(qn_vision_role role, int64_t layer)
{
    return role < QN_VISION_MODEL_COUNT ? (int64_t)role : (int64_t)role + layer * N_LAYER_ROLES;
}

static int64_t layer_of(int64_t i)
{
    return i < QN_VISION_MODEL_COUNT ? 0 : (i - QN_VISION_MODEL_COUNT) / N_LAYER_ROLES;
}

static qn_vision_role role_of(int64_t i)
{
    return (qn_vision_role)(i - layer_of(i) * N_LAYER_ROLES);
}

int qn_vision_is_plain(int64_t i)
{
    const qn_vision_role role = role_of(i);
    return role == QN_VISION_POSITIONS || role == QN_VISION_CLASS || role == QN_VISION_TURNED_PROJECTION ||
           dim_of(role, 1) == DIM_NONE;
}

/* "visual.blocks.#.attn.qkv.weight" as "visual.block3.attn.qkv.bin". */
static void write_raw_name(const char *own, int64_t layer, char name[QN_VISION_NAME_MAX])
{
    static const char blocks[] = "s.#", weight[] = ".weight";
    const char *number = strstr(own, blocks), *rest = number ? number + strlen(blocks) : own,
               *end = strstr(rest, weight);
    const int n = end ? (int)(end - rest) : (int)strlen(rest);
    if (!number)
        snprintf(name, QN_VISION_NAME_MAX, "%.*s.bin", n, rest);
    else
        snprintf(name, QN_VISION_NAME_MAX, "%.*s%lld%.*s.bin", (int)(number - own), own, (long long)layer, n,
                 rest);
}

/* The names of two matrices change places in older files. */
static qn_vision_role named_as(const qn_vision_config *v, qn_vision_role role)
{
    if (!v->swaps_mlp) return role;
    switch (role) {
    case QN_VISION_FC1:
        return QN_VISION_FC2;
    case QN_VISION_FC1_BIAS:
        return QN_VISION_FC2_BIAS;
    case QN_VISION_FC2:
        return QN_VISION_FC1;
    case QN_VISION_FC2_BIAS:
        return QN_VISION_FC1_BIAS;
    default:
        return role;
    }
}

/* NULL: the files have no such tensor. */
static const char *plain_name(const qn_vision_config *v, qn_vision_role role)
{
    return v->projector ? qn_projector_name(v->projector, named_as(v, role))
                        : qn_vision_family_name(v->family, role);
}

/* The name of a bound: that of its matrix, with another end. */
static const char *bound_name(const qn_vision_config *v, qn_vision_role role, char text[QN_VISION_NAME_MAX])
{
    static const char *const ends[] = {"input_min", "input_max", "output_min", "output_max"};
    static const char end[] = "linear.weight";
    const char *own = plain_name(v, qn_vision_bounded((role - QN_VISION_BOUNDS) / QN_VISION_BOUNDS_EACH));
    const char *cut = own ? strstr(own, v->projector ? end + sizeof "linear." - 1 : end) : NULL;
    if (!cut) return NULL;
    snprintf(text, QN_VISION_NAME_MAX, "%.*s%s", (int)(cut - own), own,
             ends[(role - QN_VISION_BOUNDS) % QN_VISION_BOUNDS_EACH]);
    return text;
}

/* What the files call a role; NULL: nothing. */
static const char *name_of(const qn_vision_config *v, qn_vision_role role, char text[QN_VISION_NAME_MAX])
{
    if (role >= QN_VISION_BOUNDS && role <= QN_VISION_BOUNDS_END) return bound_name(v, role, text);
    return plain_name(v, role);
}

/* The number in a name: a projector's file numbers those of a deepstack by their layers. */
static int64_t number_in_name(const qn_vision_config *v, qn_vision_role role, int64_t layer)
{
    return v->projector && role >= QN_VISION_DEEP_NORM ? v->deepstack_layers[layer] : layer;
}

qn_vision_role qn_vision_bounded(int i)
{
    static const qn_vision_role roles[] = {QN_VISION_Q,    QN_VISION_K,   QN_VISION_V,  QN_VISION_PROJ,
                                           QN_VISION_GATE, QN_VISION_FC1, QN_VISION_FC2};
    return i < (int)(sizeof roles / sizeof roles[0]) ? roles[i] : QN_VISION_ROLE_COUNT;
}

/* A table for each of two axes as files have it. */
static int axes_shape(const qn_vision_config *v, int64_t shape[QN_VISION_DIMS_MAX])
{
    const int in_turn = v->places == QN_VISION_PLACES_AXES_IN_TURN;
    shape[!in_turn] = v->places_side;
    shape[in_turn] = 2;
    shape[2] = v->embed_dim;
    return 3;
}

/* [E, P] as files have it. */
static int patch_shape(const qn_vision_config *v, int64_t shape[QN_VISION_DIMS_MAX])
{
    const qn_image_processor *p = &v->processor;
    const int dims = v->projector ? v->projector->patch_dims : v->family->patch_dims;
    int n = 1;
    if (dims == 2) return 2;
    shape[n++] = QN_IMAGE_CHANNELS;
    if (dims == 5) shape[n++] = p->temporal_patch_size;
    shape[n++] = p->patch_size;
    shape[n++] = p->patch_size;
    return n;
}

/* [H, M] as files have it. */
static int downsample_shape(const qn_vision_config *v, int64_t shape[QN_VISION_DIMS_MAX])
{
    shape[1] = v->embed_dim;
    shape[2] = shape[3] = v->processor.merge_size;
    return 4;
}

int qn_vision_tensor(const qn_model_config *c, qn_source_kind kind, int64_t i, char name[QN_VISION_NAME_MAX],
                     int64_t shape[QN_VISION_DIMS_MAX])
{
    const qn_vision_config *v = &c->vision;
    const int64_t layer = layer_of(i);
    const qn_vision_role role = role_of(i);
    char text[QN_VISION_NAME_MAX];
    const char *own = name_of(v, role, text), *hash = own ? strchr(own, '#') : NULL;
    int n = 0;
    if (!own || !is_used(v, role, layer)) return 0;
    if (kind == QN_SOURCE_RAW)
        write_raw_name(own, layer, name);
    else if (hash)
        snprintf(name, QN_VISION_NAME_MAX, "%s%.*s%lld%s", v->prefix, (int)(hash - own), own,
                 (long long)number_in_name(v, role, layer), hash + 1);
    else
        snprintf(name, QN_VISION_NAME_MAX, "%s%s", v->prefix, own);
    const int is_batched = v->family->batched && !v->projector;
    if (is_batched && (role == QN_VISION_CLASS || role == QN_VISION_POSITIONS)) shape[n++] = 1;
    if (is_batched && role == QN_VISION_CLASS) shape[n++] = 1;
    for (int i = 0; dim_of(role, i) != DIM_NONE; i++) shape[n++] = dim_size(c, dim_of(role, i));
    if (role == QN_VISION_POSITIONS && is_of_axes(v)) n = axes_shape(v, shape);
    if (role == QN_VISION_DOWNSAMPLE) n = downsample_shape(v, shape);
    return role == QN_VISION_PATCH || role == QN_VISION_PATCH_LATER ? patch_shape(v, shape) : n;
}
