#include "model/weights/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/mem.h"
#include "model/config/blocks/ngram_config.h"
#include "model/config/blocks/xielu_config.h"
#include "model/config/families.h"
#include "model/config/projector/projector_family.h"
#include "model/config/quantization.h"
#include "model/weights/vision_roles.h"
#include "model/weights/weight_experts.h"
#include "model/weights/weight_heads.h"
#include "model/weights/weight_roles.h"
#include "model/weights/weight_rows.h"
#include "model/weights/weight_shards.h"
#include "quant/types.h"

enum {
    N_LAYER_ROLES = QN_WEIGHT_ROLE_COUNT - QN_WEIGHT_MODEL_COUNT,
    EXPERT_ROLES = QN_WEIGHT_EXPERT_DOWN_BIAS - QN_WEIGHT_EXPERT_GATE + 1
};

struct qn_weights {
    int64_t n_layers;
    int tied;
    const qn_tensor_view *model[QN_WEIGHT_MODEL_COUNT];
    const qn_tensor_view *(**layers)[N_LAYER_ROLES]; /* [n_layers]; NULL: not looked for yet */
    qn_tensor_view *
        *joined; /* views of our own: of matrices that lie in several tensors, and of other shapes */
    qn_weight_rows **rows;   /* views of tensors that share one */
    qn_weight_heads **heads; /* views of matrices of one head each */
    qn_weight_experts **experts;
    const qn_tensor_view **vision; /* [n_vision] */
    qn_weight_shards **shards;     /* of tables that lie in several tensors */
    int64_t n_joined, n_rows, n_heads, n_experts, n_vision, n_shards;
};

static const char *shape_text(const int64_t *shape, int n, char *text, size_t size)
{
    size_t used = 0;
    for (int i = 0; i < n && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld%s", i ? ", " : "[", (long long)shape[i],
                                 i == n - 1 ? "]" : "");
    return text;
}

/* 1: the files have what could share a tensor in tensors of their own. */
static int lie_apart(const qn_source *src, const qn_model_config *c, const char *prefix,
                     const qn_shared_tensor *shared, int64_t layer)
{
    char own[QN_TENSOR_NAME_MAX];
    return qn_family_weight_name(c->family, qn_source_get_kind(src), prefix, shared->roles[0], layer, own) &&
           qn_source_find(src, own);
}

/* Where the role's rows lie in the tensor that it shares: [*first, *first + *n). Fills that tensor's shape
 * and returns its number of dimensions. */
static int shared_shape(const qn_model_config *c, const qn_shared_tensor *shared, qn_weight_role role,
                        int64_t layer, int64_t total[QN_WEIGHT_DIMS_MAX], int64_t *first, int64_t *n)
{
    int64_t shape[QN_WEIGHT_DIMS_MAX];
    int n_dims = 0;
    total[0] = 0;
    for (int i = 0; i < 3 && shared->roles[i] != QN_WEIGHT_ROLE_COUNT; i++) {
        if (qn_weight_expected(c, layer, shared->roles[i]) == QN_WEIGHT_NEVER) continue;
        n_dims = qn_weight_shape(c, layer, shared->roles[i], shape);
        if (shared->roles[i] == role) {
            *first = total[0];
            *n = shape[0];
        }
        total[0] += shape[0];
        for (int d = 1; d < n_dims; d++) total[d] = shape[d];
    }
    return n_dims;
}

/* Of the elements; 0: too many. */
static size_t raw_bytes(const int64_t *shape, int n_dims, qn_dtype dtype)
{
    int64_t n = 1;
    size_t bytes;
    for (int i = 0; i < n_dims; i++)
        if (!qn_mul_i64(n, shape[i], &n)) return 0;
    return qn_type_bytes(dtype, n, &bytes) ? bytes : 0;
}

static qn_status missing_raw(const qn_source *src, const qn_model_config *c, const char *name,
                             const int64_t *shape, int n_dims)
{
    char text[64];
    const qn_tensor_view *other = qn_source_get(src, 0);
    if (!*name)
        return qn_fail(QN_E_UNSUPPORTED, "%s: bin_weights has no files for all tensors of the family %s",
                       qn_source_path(src), c->architecture);
    return qn_fail(QN_E_FORMAT,
                   "%s/bin_weights/%s is missing, expected with %zu bytes: %s elements of type %s",
                   qn_source_path(src), name, raw_bytes(shape, n_dims, other->dtype),
                   shape_text(shape, n_dims, text, sizeof text), other->type_name);
}

/* 1: the role has rows of each head of a tensor that two roles share. */
static int is_of_heads(qn_weight_role role)
{
    return role == QN_WEIGHT_LATENT_K_B || role == QN_WEIGHT_LATENT_V_B;
}

/* 1: the role is a vector of a recurrence, of which files differ in dimensions of 1. */
static int is_of_recurrence(const qn_model_config *c, int64_t layer, qn_weight_role role)
{
    return qn_weight_taps(c, layer, role) || role == QN_WEIGHT_SSM_NORM || role == QN_WEIGHT_SSM_A_LOG ||
           role == QN_WEIGHT_SSM_D || role == QN_WEIGHT_DELTA_A_LOG || role == QN_WEIGHT_DELTA_NORM;
}

/* The next dimension of a shape that is not 1; 1 behind the last. */
static int64_t next_dim(const int64_t *shape, int n_dims, int *at)
{
    while (*at < n_dims && shape[*at] == 1) ++*at;
    return *at < n_dims ? shape[(*at)++] : 1;
}

static int same_but_for_ones(const qn_tensor_view *v, const int64_t *shape, int n_dims)
{
    int i = 0, k = 0;
    while (i < v->n_dims || k < n_dims)
        if (next_dim(v->shape, v->n_dims, &i) != next_dim(shape, n_dims, &k)) return 0;
    return 1;
}

/* The shape of the tensor that the files have for a role. */
static int stored_shape(const qn_source *src, const qn_model_config *c, int64_t layer, qn_weight_role role,
                        int64_t shape[QN_WEIGHT_DIMS_MAX])
{
    if (qn_source_get_kind(src) == QN_SOURCE_GGUF) return qn_weight_gguf_shape(c, layer, role, shape);
    if (!is_of_heads(role)) return qn_weight_shape(c, layer, role, shape);
    shape[0] = c->num_attention_heads * (c->latent.qk_nope_head_dim + c->latent.v_head_dim);
    shape[1] = c->latent.kv_lora_rank;
    return 2;
}

/* Where a tensor that is missing would be. */
static const char *weights_file(const qn_source *src)
{
    return qn_source_file_count(src) == 1 ? qn_source_file_path(src, 0) : qn_source_path(src);
}

static qn_status missing(const qn_source *src, const qn_model_config *c, const char *prefix,
                         qn_weight_role role, int64_t layer)
{
    char name[QN_TENSOR_NAME_MAX] = "", expected[64];
    int64_t shape[QN_WEIGHT_DIMS_MAX], first, n;
    qn_source_kind kind = qn_source_get_kind(src);
    const qn_shared_tensor *shared = NULL;
    int n_dims;
    if (qn_family_shared_name(c->family, kind, prefix, role, layer, name, &shared) &&
        !lie_apart(src, c, prefix, shared, layer)) {
        n_dims = shared_shape(c, shared, role, layer, shape, &first, &n);
    } else {
        n_dims = stored_shape(src, c, layer, role, shape);
        qn_family_weight_name(c->family, kind, prefix, role, layer, name);
    }
    if (kind == QN_SOURCE_RAW) return missing_raw(src, c, name, shape, n_dims);
    return qn_fail(QN_E_FORMAT, "%s: tensor %s is missing, expected with shape %s", weights_file(src), name,
                   shape_text(shape, n_dims, expected, sizeof expected));
}

static qn_status check_view(const qn_tensor_view *v, const int64_t *shape, int n_dims)
{
    char actual[128], expected[64];
    if (!v->supported || !qn_type_get(v->dtype)->decode)
        return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s: type %s is not supported for weights", v->file,
                       v->name, v->type_name);
    int same = v->n_dims == n_dims;
    for (int i = 0; same && i < n_dims; i++) same = v->shape[i] == shape[i];
    if (same) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: tensor %s: shape %s, expected %s", v->file, v->name,
                   qn_view_shape_text(v, actual, sizeof actual),
                   shape_text(shape, n_dims, expected, sizeof expected));
}

/* In place of *v the same elements in a matrix of that many rows, or (1) in one dimension. */
static qn_status show_as(qn_weights *w, int64_t n_rows, const qn_tensor_view **v)
{
    qn_tensor_view *kept = qn_alloc(sizeof *kept);
    if (!kept) return QN_E_NOMEM;
    *kept = **v;
    kept->n_dims = n_rows > 1 ? 2 : 1;
    kept->shape[0] = n_rows > 1 ? n_rows : kept->n_elements;
    kept->shape[1] = kept->n_elements / n_rows;
    kept->whole = *v;
    w->joined[w->n_joined++] = kept;
    *v = kept;
    return QN_OK;
}

/* In place of *v, a vector, the same as a matrix of one row. */
static qn_status show_as_row(qn_weights *w, const qn_tensor_view **v)
{
    QN_TRY(show_as(w, 1, v));
    qn_tensor_view *kept = w->joined[w->n_joined - 1];
    kept->n_dims = 2;
    kept->shape[1] = kept->shape[0];
    kept->shape[0] = 1;
    return QN_OK;
}

/* In place of *v, of three dimensions, the same with the size of each of its matrices. */
static qn_status show_matrices(qn_weights *w, const qn_tensor_view **v)
{
    qn_tensor_view *kept = qn_alloc(sizeof *kept);
    if (!kept) return QN_E_NOMEM;
    *kept = **v;
    kept->matrix_bytes = kept->size_bytes / (size_t)kept->shape[0];
    kept->whole = *v;
    w->joined[w->n_joined++] = kept;
    *v = kept;
    return QN_OK;
}

/* In place of *v each head's keys, or values. */
static qn_status show_heads(const qn_model_config *c, qn_weights *w, qn_weight_role role,
                            const qn_tensor_view **v)
{
    const int64_t keys = c->latent.qk_nope_head_dim, values = c->latent.v_head_dim;
    const int of_keys = role == QN_WEIGHT_LATENT_K_B;
    qn_weight_heads **kept = &w->heads[w->n_heads];
    QN_TRY(qn_weight_heads_new(*v, c->num_attention_heads, of_keys ? 0 : keys, of_keys ? keys : values,
                               of_keys, kept));
    w->n_heads++;
    *v = qn_weight_heads_view(*kept);
    return QN_OK;
}

/* In place of *v, of a matrix, the view of all its tensors where it has several. */
static qn_status join(const qn_source *src, const qn_model_config *c, qn_weights *w, const int64_t shape[2],
                      const qn_tensor_view **v)
{
    qn_tensor_view all;
    int found;
    if (qn_source_get_kind(src) != QN_SOURCE_SAFETENSORS) return QN_OK;
    QN_TRY(qn_quantization_view(c->quantization, src, *v, 2, shape, &all, &found));
    if (!found) return QN_OK;
    qn_tensor_view *kept = qn_alloc(sizeof *kept);
    if (!kept) return QN_E_NOMEM;
    *kept = all;
    w->joined[w->n_joined++] = kept;
    *v = kept;
    return QN_OK;
}

/* *out: the role's rows of a tensor that it shares with others; untouched where there is none. */
static qn_status find_rows(const qn_source *src, const qn_model_config *c, qn_weights *w, const char *prefix,
                           qn_weight_role role, int64_t layer, const qn_tensor_view **out)
{
    const qn_shared_tensor *shared = NULL;
    char name[QN_TENSOR_NAME_MAX];
    int64_t total[QN_WEIGHT_DIMS_MAX], first = 0, n = 0;
    int found = 0;
    qn_tensor_view all;
    if (!qn_family_shared_name(c->family, qn_source_get_kind(src), prefix, role, layer, name, &shared) ||
        lie_apart(src, c, prefix, shared, layer))
        return QN_OK;
    const qn_tensor_view *stored = qn_source_find(src, name), *v = stored;
    if (!v) return QN_OK;
    int n_dims = shared_shape(c, shared, role, layer, total, &first, &n);
    if (n_dims == 2 && qn_source_get_kind(src) == QN_SOURCE_SAFETENSORS) {
        QN_TRY(qn_quantization_view(c->quantization, src, stored, 2, total, &all, &found));
        if (found) v = &all;
    }
    if (n_dims == 2 && v->n_dims == 3 && v->shape[0] * v->shape[1] == total[0])
        QN_TRY(show_as(w, total[0], &v)); /* a tensor of matrices */
    QN_TRY(check_view(v, total, n_dims));
    qn_weight_rows **kept = &w->rows[w->n_rows];
    QN_TRY(qn_weight_rows_new(v, stored, first, n, kept));
    w->n_rows++;
    *out = qn_weight_rows_view(*kept);
    return QN_OK;
}

static qn_status find_experts(const qn_source *src, const qn_model_config *c, qn_weights *w,
                              const char *prefix, qn_weight_role role, int64_t layer,
                              const qn_tensor_view **out)
{
    qn_weight_experts **kept = &w->experts[w->n_experts];
    QN_TRY(qn_weight_experts_find(src, c, prefix, role, layer, kept));
    if (!*kept) return qn_weight_experts_missing(src, c, prefix, role, layer);
    w->n_experts++;
    *out = qn_weight_experts_view(*kept);
    return QN_OK;
}

/* *v: the table in several tensors; untouched where the first of these is not there. */
static qn_status find_shards(const qn_source *src, qn_weights *w, const char *name, const int64_t shape[2],
                             const qn_tensor_view **v)
{
    qn_weight_shards **kept = &w->shards[w->n_shards];
    QN_TRY(qn_weight_shards_find(src, name, shape, kept));
    if (!*kept) return QN_OK;
    w->n_shards++;
    *v = qn_weight_shards_view(*kept);
    return QN_OK;
}

/* In place of *v, a file of bin_weights, the view with the shape that the config implies. */
static qn_status shape_raw(qn_weights *w, const int64_t *shape, int n_dims, const qn_tensor_view **v)
{
    char text[64];
    size_t expected = raw_bytes(shape, n_dims, (*v)->dtype);
    if ((*v)->size_bytes != expected)
        return qn_fail(QN_E_FORMAT, "%s: %zu bytes, expected %zu: %s elements of type %s", (*v)->file,
                       (*v)->size_bytes, expected, shape_text(shape, n_dims, text, sizeof text),
                       (*v)->type_name);
    qn_tensor_view *kept = qn_alloc(sizeof *kept);
    if (!kept) return QN_E_NOMEM;
    *kept = **v;
    kept->n_dims = n_dims;
    memcpy(kept->shape, shape, (size_t)n_dims * sizeof *shape);
    w->joined[w->n_joined++] = kept;
    *v = kept;
    return QN_OK;
}

/* *out: the tensor, or NULL where the model does without. prefix: where the decoder lies in this file. */
static qn_status find(const qn_source *src, const qn_model_config *c, qn_weights *w, const char *prefix,
                      qn_weight_role role, int64_t layer, const qn_tensor_view **out)
{
    int64_t shape[QN_WEIGHT_DIMS_MAX];
    char name[QN_TENSOR_NAME_MAX];
    int n_dims = stored_shape(src, c, layer, role, shape);
    qn_weight_presence expected = qn_weight_expected(c, layer, role);
    *out = NULL;
    if (expected == QN_WEIGHT_NEVER || expected == QN_WEIGHT_UNUSED) return QN_OK;
    if (qn_weight_experts_has_role(role)) return find_experts(src, c, w, prefix, role, layer, out);
    QN_TRY(find_rows(src, c, w, prefix, role, layer, out));
    if (*out) return QN_OK;
    const qn_tensor_view *v =
        qn_family_weight_name(c->family, qn_source_get_kind(src), prefix, role, layer, name)
            ? qn_source_find(src, name)
            : NULL;
    if (!v && role == QN_WEIGHT_NGRAM_EMBED && qn_source_get_kind(src) == QN_SOURCE_SAFETENSORS)
        QN_TRY(find_shards(src, w, name, shape, &v));
    if (!v && role == QN_WEIGHT_LM_HEAD) v = qn_family_find_weight(c->family, src, role, layer, NULL);
    if (!v) return expected == QN_WEIGHT_NEEDED ? missing(src, c, prefix, role, layer) : QN_OK;
    if (n_dims == 2) QN_TRY(join(src, c, w, shape, &v));
    if (qn_source_get_kind(src) == QN_SOURCE_RAW) QN_TRY(shape_raw(w, shape, n_dims, &v));
    /* Published files of Kimi's have A_log as [1, 1, heads, 1]. */
    const int is_flat =
        is_of_recurrence(c, layer, role) &&
        ((role == QN_WEIGHT_DELTA_A_LOG && v->n_dims > 1) || qn_source_get_kind(src) == QN_SOURCE_GGUF) &&
        same_but_for_ones(v, shape, n_dims);
    if (role == QN_WEIGHT_SHARED_ROUTER && v->n_dims == 1 && qn_source_get_kind(src) == QN_SOURCE_GGUF)
        QN_TRY(show_as_row(w, &v)); /* as older converters write it */
    QN_TRY(is_flat ? check_view(v, v->shape, v->n_dims) : check_view(v, shape, n_dims));
    if (is_flat || qn_weight_taps(c, layer, role) || role == QN_WEIGHT_INDEX_PLACES)
        QN_TRY(show_as(w, 1, &v));
    if (is_of_heads(role) && n_dims == 2) QN_TRY(show_heads(c, w, role, &v));
    if (is_of_heads(role) && n_dims == 3) QN_TRY(show_matrices(w, &v));
    *out = v;
    return QN_OK;
}

/* The number behind "model.layers." (GGUF: "blk.") in a tensor's name; -1: it is of no layer. */
static int64_t layer_of(const qn_source *src, const qn_family *family, const char *prefix, const char *name)
{
    static const char *const begins[] = {
        [QN_SOURCE_SAFETENSORS] = "layers.", [QN_SOURCE_GGUF] = "blk.", [QN_SOURCE_RAW] = "layer"};
    qn_source_kind kind = qn_source_get_kind(src);
    const char *parts[] = {kind == QN_SOURCE_SAFETENSORS ? prefix : "", begins[kind] ? begins[kind] : ""};
    if (kind == QN_SOURCE_SAFETENSORS && family->layers) parts[1] = family->layers;
    int64_t layer = 0;
    int digits = 0;
    for (int i = 0; i < 2; i++) {
        if (strncmp(name, parts[i], strlen(parts[i])) != 0) return -1;
        name += strlen(parts[i]);
    }
    for (; *name >= '0' && *name <= '9' && digits < 18; name++, digits++) layer = 10 * layer + (*name - '0');
    return digits && *name == '.' ? layer : -1;
}

/* 1: part is v, or some rows of it. */
static int is_or_shows(const qn_tensor_view *part, const qn_tensor_view *v)
{
    return part && (part == v || part->whole == v);
}

/* 1: a role's tensor, or the scales or biases of one that is joined; or what needs no place. */
static int is_taken(const qn_tensor_view *v, const qn_tensor_view *const roles_of_layer[N_LAYER_ROLES])
{
    /* Figures that older files carry along; ours follow from the config. */
    static const char *const derived[] = {"rotary_emb.inv_freq", "attn_rot_embd", "masked_bias"};
    for (int i = 0; i < N_LAYER_ROLES; i++) {
        const qn_tensor_view *r = roles_of_layer[i];
        if (r && (strcmp(r->name, v->name) == 0 || r->whole == v || is_or_shows(r->scales, v) ||
                  is_or_shows(r->biases, v) || (r->experts && qn_weight_experts_uses(r->experts, v))))
            return 1;
    }
    for (size_t i = 0; i < sizeof derived / sizeof *derived; i++)
        if (strstr(v->name, derived[i])) return 1;
    return 0;
}

/* 1: nothing reads it, and files may have it: a role's tensor, or the scales or biases beside it. */
static int is_unused(const qn_source *src, const qn_model_config *c, const char *prefix, int64_t layer,
                     const qn_tensor_view *v)
{
    static const char suffix[] = "weight";
    for (int role = QN_WEIGHT_MODEL_COUNT; role < QN_WEIGHT_ROLE_COUNT; role++) {
        char name[QN_TENSOR_NAME_MAX];
        if (qn_weight_expected(c, layer, (qn_weight_role)role) != QN_WEIGHT_UNUSED) continue;
        if (!qn_family_weight_name(c->family, qn_source_get_kind(src), prefix, (qn_weight_role)role, layer,
                                   name))
            continue;
        if (strcmp(v->name, name) == 0) return 1;
        size_t n = strlen(name) - strlen(suffix);
        if (strcmp(name + n, suffix) == 0 && strncmp(v->name, name, n) == 0 &&
            (strcmp(v->name + n, "scales") == 0 || strcmp(v->name + n, "biases") == 0))
            return 1;
    }
    return 0;
}

static int is_shard(const qn_weights *w, const qn_tensor_view *v)
{
    for (int64_t i = 0; i < w->n_shards; i++)
        if (qn_weight_shards_uses(w->shards[i], v)) return 1;
    return 0;
}

/* A tensor of a layer that nothing takes would be left out of the computation without a word, as the norms of
 * q and k are when a config takes a qwen3 for a llama, or whole layers when it asks for fewer. */
static qn_status check_all_taken(const qn_source *src, const char *prefix, const qn_model_config *c,
                                 const qn_weights *w)
{
    static const qn_tensor_view *const none[N_LAYER_ROLES];
    for (int64_t i = 0; i < qn_source_count(src); i++) {
        const qn_tensor_view *v = qn_source_get(src, i);
        int64_t layer = layer_of(src, c->family, prefix, v->name);
        int beyond = layer >= c->num_hidden_layers;
        if ((c->hidden_act == QN_HIDDEN_XIELU && qn_xielu_config_has(v->name)) ||
            (c->ngram.n_hashes && qn_ngram_config_has(v->name)))
            continue; /* read with the config */
        if (is_shard(w, v)) continue;
        if (layer < 0 || is_taken(v, beyond ? none : *w->layers[layer])) continue;
        if (beyond && layer < c->num_hidden_layers + c->num_nextn_predict_layers) continue;
        if (beyond)
            return qn_fail(QN_E_FORMAT, "%s: tensor %s belongs to layer %lld, but num_hidden_layers is %lld",
                           v->file, v->name, (long long)layer, (long long)c->num_hidden_layers);
        if (is_unused(src, c, prefix, layer, v)) continue;
        return qn_fail(QN_E_UNSUPPORTED,
                       "%s: tensor %s does not belong to a model of the family %s (is the model_type right?)",
                       v->file, v->name, c->architecture);
    }
    return QN_OK;
}

/* In place of *v, whose dimensions differ in those of 1, the same with this shape. */
static qn_status show_shaped(qn_weights *w, const int64_t *shape, int n_dims, const qn_tensor_view **v)
{
    if (!same_but_for_ones(*v, shape, n_dims)) return QN_OK;
    QN_TRY(show_as(w, 1, v));
    qn_tensor_view *kept = w->joined[w->n_joined - 1];
    kept->n_dims = n_dims;
    memcpy(kept->shape, shape, (size_t)n_dims * sizeof *shape);
    return QN_OK;
}

/* 1: no tower needs it: it is for sound, or of a layer behind those that count, or what the text has itself. */
static int is_spare(const qn_model_config *c, const char *name)
{
    static const char *const begins[] = {"a.", "mm.a.", "v.token_embd.img_"}, block[] = "v.blk.";
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (strncmp(name, begins[i], strlen(begins[i])) == 0) return 1;
    return strncmp(name, block, sizeof block - 1) == 0 &&
           strtoll(name + sizeof block - 1, NULL, 10) >= c->vision.depth;
}

/* A tensor of a vision tower that nothing takes would be left out of the computation without a word. */
static qn_status check_tower_taken(const qn_source *src, const qn_model_config *c, const qn_weights *w)
{
    const qn_gguf *g = qn_source_projector(src);
    for (int64_t i = 0; g && i < qn_gguf_count(g); i++) {
        const char *name = qn_gguf_get(g, i)->name;
        int is_found = is_spare(c, name);
        for (int64_t k = 0; !is_found && k < w->n_vision; k++)
            is_found = w->vision[k] && strcmp(w->vision[k]->name, name) == 0;
        if (!is_found)
            return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s does not belong to a vision tower of the type %s",
                           qn_gguf_path(g), name, c->vision.projector->name);
    }
    return QN_OK;
}

static qn_status find_vision(const qn_source *src, const qn_model_config *c, qn_weights *w)
{
    w->n_vision = qn_vision_count(&c->vision);
    if (!w->n_vision) return QN_OK;
    w->vision = qn_calloc((size_t)w->n_vision, sizeof *w->vision);
    if (!w->vision) return QN_E_NOMEM;
    for (int64_t i = 0; i < w->n_vision; i++) {
        int64_t shape[QN_VISION_DIMS_MAX];
        char name[QN_VISION_NAME_MAX], expected[128];
        const int is_raw = qn_source_get_kind(src) == QN_SOURCE_RAW;
        int n_dims = qn_vision_tensor(c, qn_source_get_kind(src), i, name, shape);
        if (!n_dims) continue;
        const qn_tensor_view *v = qn_source_find(src, name);
        if (!v && is_raw) return missing_raw(src, c, name, shape, n_dims);
        if (!v)
            return qn_fail(QN_E_FORMAT, "%s: tensor %s is missing, expected with shape %s",
                           c->vision.projector ? qn_gguf_path(qn_source_projector(src)) : weights_file(src),
                           name, shape_text(shape, n_dims, expected, sizeof expected));
        if (c->vision.projector && v->n_dims != n_dims) QN_TRY(show_shaped(w, shape, n_dims, &v));
        if (n_dims == 2) QN_TRY(join(src, c, w, shape, &v));
        if (is_raw) QN_TRY(shape_raw(w, shape, n_dims, &v));
        if (v->n_dims == 0) QN_TRY(show_as(w, 1, &v)); /* a single number */
        QN_TRY(check_view(v, shape, n_dims));
        if (qn_vision_is_plain(i))
            QN_TRY(show_as(w, 1, &v));
        else if (n_dims > 2)
            QN_TRY(show_as(w, shape[0], &v));
        w->vision[i] = v;
    }
    return c->vision.projector ? check_tower_taken(src, c, w) : QN_OK;
}

static qn_status find_all(const qn_source *src, const qn_model_config *c, qn_weights *w)
{
    const char *prefix = qn_decoder_prefixes[0];
    qn_family_find_weight(c->family, src, QN_WEIGHT_EMBED, 0, &prefix);
    for (int role = 0; role < QN_WEIGHT_MODEL_COUNT; role++)
        QN_TRY(find(src, c, w, prefix, (qn_weight_role)role, 0, &w->model[role]));
    w->tied = !w->model[QN_WEIGHT_LM_HEAD];
    if (w->tied) w->model[QN_WEIGHT_LM_HEAD] = w->model[QN_WEIGHT_EMBED];
    for (int64_t layer = 0; layer < c->num_hidden_layers; layer++) {
        /* One by one: a config may ask for many more layers than the files have. */
        if (!(w->layers[layer] = qn_calloc(1, sizeof **w->layers))) return QN_E_NOMEM;
        for (int i = 0; i < N_LAYER_ROLES; i++)
            QN_TRY(find(src, c, w, prefix, (qn_weight_role)(QN_WEIGHT_MODEL_COUNT + i), layer,
                        &(*w->layers[layer])[i]));
    }
    QN_TRY(find_vision(src, c, w));
    return check_all_taken(src, prefix, c, w);
}

qn_status qn_weights_open(const qn_source *src, const qn_model_config *c, qn_weights **out)
{
    qn_weights *w = qn_calloc(1, sizeof *w);
    if (!w) return QN_E_NOMEM;
    w->n_layers = c->num_hidden_layers;
    w->layers = qn_calloc((size_t)c->num_hidden_layers, sizeof *w->layers);
    w->joined = qn_calloc(3 * ((size_t)qn_source_count(src) + 1), sizeof *w->joined);
    w->heads = qn_calloc(2 * (size_t)qn_source_count(src) + 1, sizeof *w->heads);
    w->rows = qn_calloc(3 * (size_t)qn_source_count(src) + 1, sizeof *w->rows);
    w->experts = qn_calloc((size_t)c->num_hidden_layers, EXPERT_ROLES * sizeof *w->experts);
    w->shards = qn_calloc((size_t)c->ngram.n_hashes + 1, sizeof *w->shards);
    int made = w->layers && w->joined && w->heads && w->rows && w->experts && w->shards;
    qn_status status = made ? find_all(src, c, w) : QN_E_NOMEM;
    if (status == QN_OK)
        *out = w;
    else
        qn_weights_close(w);
    return status;
}

void qn_weights_close(qn_weights *w)
{
    if (!w) return;
    for (int64_t i = 0; i < w->n_joined; i++) qn_free(w->joined[i]);
    qn_free(w->joined);
    for (int64_t i = 0; i < w->n_rows; i++) qn_weight_rows_free(w->rows[i]);
    qn_free(w->rows);
    for (int64_t i = 0; i < w->n_heads; i++) qn_weight_heads_free(w->heads[i]);
    qn_free(w->heads);
    for (int64_t i = 0; w->layers && i < w->n_layers; i++) qn_free(w->layers[i]);
    for (int64_t i = 0; i < w->n_experts; i++) qn_weight_experts_free(w->experts[i]);
    qn_free(w->experts);
    for (int64_t i = 0; i < w->n_shards; i++) qn_weight_shards_free(w->shards[i]);
    qn_free(w->shards);
    qn_free(w->vision);
    qn_free(w->layers);
    qn_free(w);
}

const qn_tensor_view *qn_weights_get(const qn_weights *w, qn_weight_role role, int64_t layer)
{
    if (role < QN_WEIGHT_MODEL_COUNT) return w->model[role];
    return layer >= 0 && layer < w->n_layers ? (*w->layers[layer])[role - QN_WEIGHT_MODEL_COUNT] : NULL;
}

int64_t qn_weights_layers(const qn_weights *w)
{
    return w->n_layers;
}

int64_t qn_weights_vision_count(const qn_weights *w)
{
    return w->n_vision;
}

const qn_tensor_view *qn_weights_vision(const qn_weights *w, int64_t i)
{
    return w->vision[i];
}

int qn_weights_tied(const qn_weights *w)
{
    return w->tied;
}
