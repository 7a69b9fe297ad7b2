#include "model/config/config.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "model/config/blocks/altup_config.h"
#include "model/config/blocks/encoder_config.h"
#include "model/config/blocks/experts_config.h"
#include "model/config/blocks/hyper_config.h"
#include "model/config/blocks/index_config.h"
#include "model/config/blocks/latent_config.h"
#include "model/config/blocks/ngram_config.h"
#include "model/config/blocks/xielu_config.h"
#include "model/config/families.h"
#include "model/config/fields.h"
#include "model/config/gguf/gguf_config.h"
#include "model/config/layer_config.h"
#include "model/config/layer_list.h"
#include "model/config/projector/projector_config.h"
#include "model/config/quantization.h"
#include "model/config/unknown/unknown_family.h"

/* Bounds of what files may ask for: far above any model, low enough that products of two fit in 63 bits. */
enum {
    VOCAB_MAX = 1 << 24,
    WIDTH_MAX = 1 << 20,
    LAYERS_MAX = 4096,
    HEADS_MAX = 1 << 16,
    POSITIONS_MAX = 2147483647,
    LABEL_MAX = 160
};

/* What the description is read from. */
typedef struct {
    qn_source *src;
    const qn_family *family;
    const char *architecture;
    const char *recognised_by;
    json_t *root;       /* config.json, or GGUF metadata under its names; owned */
    json_t *generation; /* generation_config.json; owned, NULL: none */
    qn_fields fields;
    const qn_rope_options *rope; /* changes; NULL: none */
    qn_buf *notes;               /* what was changed; NULL: not said */
} reader;

/* ---- which family -------------------------------------------------------------------------------------- */

static qn_status parse_side_file(qn_source *src, qn_side_file which, json_t **out)
{
    const char *text;
    size_t n;
    json_t *value = NULL;
    const char *path = qn_source_side_path(src, which);
    QN_TRY(qn_source_side_text(src, which, &text, &n));
    qn_status status = qn_json_parse_python(path, text, n, &value);
    if (status == QN_OK && !json_is_object(value)) {
        json_decref(value);
        status = qn_fail(QN_E_FORMAT, "%s: expected a JSON object", path);
    }
    if (status == QN_OK) *out = value;
    return status;
}

static qn_status unknown_family(const reader *r, const char *file, const char *field, const char *name)
{
    char known[1024], missing[QN_UNKNOWN_TEXT_MAX];
    const int gguf = !r->fields.object;
    (void)qn_unknown_family_text(r->src, r->fields.object, missing);
    return qn_fail(QN_E_UNSUPPORTED, "%s: %s is \"%.64s\", which is not supported; known: %s%s%s", file,
                   field, name, qn_families_known(gguf, known, sizeof known), *missing ? ". Here " : "",
                   missing);
}

/* By the names of tensors. Families that share them differ in their activation: Gemma's are as llama's. */
static qn_status guess_family(reader *r)
{
    static const char *const keys[] = {"hidden_act", "hidden_activation"};
    r->family = qn_family_by_tensors(r->src, &r->recognised_by);
    for (size_t i = 0; r->family && i < sizeof keys / sizeof keys[0]; i++) {
        const char *act = NULL;
        QN_TRY(qn_fields_string(&r->fields, keys[i], &act, NULL));
        if (act && strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
            return qn_fail(QN_E_FORMAT,
                           "%s: model_type is missing, and %s \"%.40s\" does not belong to %s, the family "
                           "that the tensors match",
                           r->fields.file, keys[i], act, r->family->model_types[0]);
    }
    if (r->family) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: model_type is missing, and the tensors match no known family",
                   r->fields.file);
}

/* By model_type (the decoder's own in text_config, then the whole model's), then by class, then by the
 * tensors' names. */
static qn_status find_family(reader *r)
{
    const char *inner = NULL, *outer = NULL, *name = NULL;
    qn_fields whole = {.file = r->fields.file, .object = r->root, .path = ""};
    qn_fields own = r->fields;
    own.outer = NULL;
    QN_TRY(qn_fields_string(&own, "model_type", &inner, NULL));
    QN_TRY(qn_fields_string(&whole, "model_type", &outer, NULL));
    if (inner) r->family = qn_family_by_model_type(inner, &r->architecture);
    if (outer) {
        const qn_family *family = qn_family_by_model_type(outer, &name);
        if (!r->family) r->family = family;
        if (family && family == r->family) r->architecture = name;
    }
    if (r->family) return QN_OK;
    if (inner || outer) return unknown_family(r, r->fields.file, "model_type", outer ? outer : inner);

    const json_t *classes = json_object_get(r->root, "architectures");
    const char *first = json_string_value(json_array_get(classes, 0));
    if (!first) {
        QN_TRY(guess_family(r));
    } else if (!(r->family = qn_family_by_architecture(first))) {
        return unknown_family(r, r->fields.file, "architectures", first);
    }
    r->architecture = r->family->model_types[0];
    return QN_OK;
}

/* How a router scores: as the file says, by llama.cpp's numbers; else it is a sigmoid where experts have a bias to
 * be chosen by. */
static qn_expert_score gguf_score(const reader *r)
{
    const int64_t said = json_integer_value(json_object_get(r->root, "expert_gating_func"));
    if (said == 1) return QN_SCORE_SOFTMAX;
    if (said == 2) return QN_SCORE_SIGMOID;
    const int64_t dense = json_integer_value(json_object_get(r->root, "first_k_dense_replace"));
    return qn_family_find_weight(r->family, r->src, QN_WEIGHT_ROUTER_CORRECTION, dense, NULL)
               ? QN_SCORE_SIGMOID
               : QN_SCORE_SOFTMAX;
}

static qn_status open_gguf(reader *r)
{
    const qn_gguf *g = qn_source_gguf(r->src);
    qn_gguf_string name;
    QN_TRY(qn_gguf_get_string(g, "general.architecture", &name));
    if (name.length == 4 && memcmp(name.data, "clip", 4) == 0) /* llama.cpp's word */
        return qn_fail(QN_E_UNSUPPORTED,
                       "%s: general.architecture is \"clip\": this file has only the tower that a model sees "
                       "with: open the file of the model itself, and give this one with --mmproj",
                       qn_gguf_path(g));
    r->family = qn_family_by_gguf(name.data, name.length, &r->architecture);
    if (!r->family) {
        char text[65];
        size_t n = name.length < sizeof text - 1 ? name.length : sizeof text - 1;
        memcpy(text, name.data, n);
        text[n] = '\0';
        return unknown_family(r, qn_gguf_path(g), "general.architecture", text);
    }
    QN_TRY(qn_gguf_config(r->src, r->architecture, r->family, &r->root));
    if (json_integer_value(json_object_get(r->root, "num_experts")) > 0)
        r->family = qn_family_with_experts(r->family, gguf_score(r));
    r->fields = (qn_fields){.file = qn_gguf_path(g),
                            .object = r->root,
                            .path = "",
                            .defaults = r->family->defaults,
                            .gguf_architecture = r->architecture};
    return QN_OK;
}

static qn_status open_config(reader *r)
{
    int nested = 0;
    qn_fields whole = {.file = qn_source_side_path(r->src, QN_SIDE_CONFIG), .path = ""};
    QN_TRY(parse_side_file(r->src, QN_SIDE_CONFIG, &r->root));
    whole.object = r->root;
    QN_TRY(qn_fields_object(&whole, "text_config", "text_config.", &r->fields, &nested));
    if (nested)
        r->fields.outer = r->root;
    else
        r->fields = whole;
    QN_TRY(find_family(r));
    r->fields.defaults = r->family->defaults;
    r->fields.spelled = r->family->spelled;
    return QN_OK;
}

static qn_status open_reader(reader *r)
{
    if (qn_source_side_path(r->src, QN_SIDE_CONFIG))
        QN_TRY(open_config(r));
    else if (qn_source_get_kind(r->src) == QN_SOURCE_GGUF)
        QN_TRY(open_gguf(r));
    else
        return qn_fail(QN_E_NOT_FOUND, "%s: config.json is missing", qn_source_path(r->src));
    if (qn_source_side_path(r->src, QN_SIDE_GENERATION_CONFIG))
        QN_TRY(parse_side_file(r->src, QN_SIDE_GENERATION_CONFIG, &r->generation));
    return QN_OK;
}

/* ---- sizes and switches -------------------------------------------------------------------------------- */

/* head_dim: as said, else what the query projection has, else the family's, else an even share of
 * hidden_size. */
static qn_status read_head_dim(const reader *r, qn_model_config *c)
{
    const qn_fields *f = &r->fields;
    int found = 0;
    char label[LABEL_MAX];
    const json_t *said = qn_fields_get(f, "head_dim");
    const qn_tensor_view *q = qn_family_find_weight(r->family, r->src, QN_WEIGHT_Q, 0, NULL);
    if ((!said || json_is_null(said)) && !c->attn_output_gate && q && q->n_dims == 2 && q->shape[0] > 0) {
        c->head_dim = q->shape[0] / c->num_attention_heads;
        if (q->shape[0] % c->num_attention_heads || c->head_dim > HEADS_MAX)
            return qn_fail(QN_E_FORMAT, "%s: tensor %s: %lld rows do not match %s %lld", q->file, q->name,
                           (long long)q->shape[0],
                           qn_fields_label(f, "num_attention_heads", label, sizeof label),
                           (long long)c->num_attention_heads);
        found = 1;
    } else {
        QN_TRY(qn_fields_int(f, "head_dim", 1, HEADS_MAX, &c->head_dim, &found));
    }
    if (!found) {
        if (c->hidden_size % c->num_attention_heads)
            return qn_fail(
                QN_E_FORMAT,
                "%s: hidden_size %lld is not a multiple of num_attention_heads %lld, and head_dim is missing",
                f->file, (long long)c->hidden_size, (long long)c->num_attention_heads);
        c->head_dim = c->hidden_size / c->num_attention_heads;
    }
    int64_t v_head_dim = c->head_dim;
    QN_TRY(qn_fields_int(f, "v_head_dim", 1, HEADS_MAX, &v_head_dim, NULL));
    if (v_head_dim != c->head_dim)
        return qn_fail(QN_E_UNSUPPORTED,
                       "%s: %s is %lld, but head_dim is %lld: values of another size than keys are not "
                       "supported",
                       f->file, qn_fields_label(f, "v_head_dim", label, sizeof label), (long long)v_head_dim,
                       (long long)c->head_dim);
    return QN_OK;
}

static qn_status check_groups(const reader *r, const qn_model_config *c, const char *whose)
{
    char label[LABEL_MAX], other[LABEL_MAX];
    if (c->num_attention_heads % c->num_key_value_heads == 0) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: %s %lld is not a multiple of %s %lld%s", r->fields.file,
                   qn_fields_label(&r->fields, "num_attention_heads", label, sizeof label),
                   (long long)c->num_attention_heads,
                   qn_fields_label(&r->fields, "num_key_value_heads", other, sizeof other),
                   (long long)c->num_key_value_heads, whose);
}

/* num_key_value_heads: as said, else what the key projection has, else the family's, else no grouping. */
static qn_status read_heads(const reader *r, qn_model_config *c)
{
    static const char name[] = "num_key_value_heads";
    const json_t *said = qn_fields_get(&r->fields, name);
    if (r->family->latent) return qn_latent_config_read(&r->fields, c);
    c->num_key_value_heads = c->num_attention_heads;
    QN_TRY(qn_fields_int(&r->fields, name, 1, HEADS_MAX, &c->num_key_value_heads, NULL));
    if (said && !json_is_null(said)) QN_TRY(check_groups(r, c, ""));
    QN_TRY(read_head_dim(r, c));
    if (said && !json_is_null(said)) return QN_OK;
    const qn_tensor_view *k = qn_family_find_weight(r->family, r->src, QN_WEIGHT_K, 0, NULL);
    if (!k || k->n_dims != 2 || k->shape[0] <= 0 || k->shape[0] % c->head_dim) return check_groups(r, c, "");
    c->num_key_value_heads = k->shape[0] / c->head_dim;
    return check_groups(r, c, " of the key projection");
}

/* An intermediate_size that counts two matrices of three, times a factor, up to a whole multiple. */
static qn_status adjust_ffn(const qn_fields *f, qn_model_config *c)
{
    int adjusted = 1, found = 0;
    double factor = 1;
    int64_t multiple = 1, size = c->intermediate_size;
    QN_TRY(qn_fields_bool(f, "block_auto_adjust_ff_dim", &adjusted, NULL));
    if (!adjusted) return QN_OK;
    size = 2 * size / 3;
    QN_TRY(qn_fields_number(f, "block_ffn_dim_multiplier", 1e-3, 1e3, &factor, &found));
    if (found) {
        QN_TRY(qn_fields_required_int(f, "block_multiple_of", 1, WIDTH_MAX, &multiple));
        size = ((int64_t)(factor * (double)size) + multiple - 1) / multiple * multiple;
    }
    if (size < 1 || size > VOCAB_MAX)
        return qn_fail(QN_E_FORMAT,
                       "%s: intermediate_size %lld and block_ffn_dim_multiplier give a block of size %lld",
                       f->file, (long long)c->intermediate_size, (long long)size);
    c->intermediate_size = size;
    return QN_OK;
}

static qn_status read_sizes(const reader *r, qn_model_config *c)
{
    const qn_fields *f = &r->fields;
    char label[LABEL_MAX], name[QN_TENSOR_NAME_MAX];
    QN_TRY(qn_fields_required_int(f, "hidden_size", 1, WIDTH_MAX, &c->hidden_size));
    if (r->family->counted_layers)
        QN_TRY(qn_layer_list_count(f, LAYERS_MAX, &c->num_hidden_layers));
    else
        QN_TRY(qn_fields_required_int(f, "num_hidden_layers", 1, LAYERS_MAX, &c->num_hidden_layers));
    QN_TRY(qn_fields_required_int(f, "num_attention_heads", 1, HEADS_MAX, &c->num_attention_heads));
    if (r->family->altup && json_is_array(qn_fields_get(f, "intermediate_size")))
        QN_TRY(qn_altup_read_widths(f, NULL, c));
    else
        QN_TRY(qn_fields_required_int(f, "intermediate_size", 1, VOCAB_MAX, &c->intermediate_size));
    if (r->family->adjusted_ffn && !f->gguf_architecture) QN_TRY(adjust_ffn(f, c));
    QN_TRY(
        qn_fields_required_int(f, "max_position_embeddings", 1, POSITIONS_MAX, &c->max_position_embeddings));

    if (r->family->draft_layers) {
        static const char drafts[] = "num_nextn_predict_layers";
        const int counted = f->gguf_architecture != NULL; /* among the others */
        QN_TRY(qn_fields_int(f, drafts, 0, counted ? c->num_hidden_layers - 1 : LAYERS_MAX,
                             &c->num_nextn_predict_layers, NULL));
        if (counted && !r->family->counted_layers) c->num_hidden_layers -= c->num_nextn_predict_layers;
    }

    /* The embedding's rows are the vocabulary where nothing else says so: GGUF files may leave it out. */
    const qn_tensor_view *embed = qn_family_find_weight(r->family, r->src, QN_WEIGHT_EMBED, 0, NULL);
    if (!qn_fields_get(f, "vocab_size") && embed && embed->n_dims == 2 && embed->shape[0] >= 1 &&
        embed->shape[0] <= VOCAB_MAX)
        c->vocab_size = embed->shape[0];
    else if (f->gguf_architecture && !qn_fields_get(f, "vocab_size") && !embed &&
             qn_family_weight_name(r->family, QN_SOURCE_GGUF, "", QN_WEIGHT_EMBED, 0, name))
        return qn_fail(QN_E_FORMAT, "%s: tensor %s is missing, and so is %s", f->file, name,
                       qn_fields_label(f, "vocab_size", label, sizeof label));
    else
        QN_TRY(qn_fields_required_int(f, "vocab_size", 1, VOCAB_MAX, &c->vocab_size));

    return read_heads(r, c);
}

static qn_status read_hidden_act(const reader *r, qn_model_config *c)
{
    static const struct {
        const char *name;
        qn_hidden_act act;
    } acts[] = {{"silu", QN_HIDDEN_SILU},
                {"swish", QN_HIDDEN_SILU},
                {"swiglu", QN_HIDDEN_SILU}, /* of an MLP with a gate */
                {"gelu_pytorch_tanh", QN_HIDDEN_GELU_TANH},
                {"gelu_new", QN_HIDDEN_GELU_TANH},
                {"gelu_fast", QN_HIDDEN_GELU_TANH},
                {"gelu_accurate", QN_HIDDEN_GELU_TANH},
                {"gelu", QN_HIDDEN_GELU},
                {"gelu_python", QN_HIDDEN_GELU},
                {"relu2", QN_HIDDEN_RELU2},
                {"xielu", QN_HIDDEN_XIELU}};
    const char *name = NULL, *key = NULL;
    char label[LABEL_MAX];
    c->hidden_act = r->family->hidden_act;
    for (const char *const *k = r->family->hidden_act_keys; *k && !name; k++)
        QN_TRY(qn_fields_string(&r->fields, key = *k, &name, NULL));
    if (!name) return QN_OK;
    if (r->family->mlp_limit && strcmp(name, "silu") != 0)
        return qn_fail(QN_E_UNSUPPORTED,
                       "%s: %s is \"%.40s\", which is not supported for this family (known: silu)",
                       r->fields.file, qn_fields_label(&r->fields, key, label, sizeof label), name);
    if (r->family->gelu_is_tanh && strcmp(name, "gelu") == 0) name = "gelu_pytorch_tanh";
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++)
        if (strcmp(acts[i].name, name) == 0) {
            c->hidden_act = acts[i].act;
            return QN_OK;
        }
    return qn_fail(
        QN_E_UNSUPPORTED,
        "%s: %s is \"%.40s\", which is not supported (known: silu, gelu_pytorch_tanh, gelu, relu2, xielu)",
        r->fields.file, qn_fields_label(&r->fields, key, label, sizeof label), name);
}

/* Those of Falcon-H1. */
static qn_status read_many_multipliers(const qn_fields *f, qn_model_config *c)
{
    const struct {
        const char *name;
        float *to;
    } all[] = {{"embedding_multiplier", &c->embedding_scale},
               {"lm_head_multiplier", &c->logits_scale},
               {"attention_in_multiplier", &c->attention_in_scale},
               {"key_multiplier", &c->key_scale},
               {"attention_out_multiplier", &c->attention_out_scale}};
    static const char mlp[] = "mlp_multipliers";
    const json_t *list = qn_fields_get(f, mlp);
    char label[LABEL_MAX];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        double number = 1;
        QN_TRY(qn_fields_number(f, all[i].name, 1e-9, 1e9, &number, NULL));
        *all[i].to = (float)number;
    }
    if (!list || json_is_null(list)) return QN_OK;
    if (!json_is_array(list) || json_array_size(list) != 2 || !json_is_number(json_array_get(list, 0)) ||
        !json_is_number(json_array_get(list, 1)))
        return qn_fail(QN_E_FORMAT, "%s: %s: expected an array of two numbers", f->file,
                       qn_fields_label(f, mlp, label, sizeof label));
    c->gate_scale = (float)json_number_value(json_array_get(list, 0));
    c->mlp_out_scale = (float)json_number_value(json_array_get(list, 1));
    return QN_OK;
}

/* What multiplies embeddings, scores, what blocks add, and logits. */
static qn_status read_multipliers(const reader *r, qn_model_config *c)
{
    double embedding = 1, scores = 1, residual = 1, logits = 1;
    c->embedding_scale = r->family->scaled_embedding ? sqrtf((float)c->hidden_size) : 1.0f;
    c->residual_scale = c->logits_scale = 1;
    if (r->family->logit_scale) {
        const int in_gguf = r->fields.gguf_architecture != NULL; /* where one key serves both ways */
        QN_TRY(qn_fields_number(&r->fields, in_gguf ? "logits_scaling" : "logit_scale", 1e-6, 1e6, &logits,
                                NULL));
        c->logits_scale = (float)logits;
    }
    c->attention_in_scale = c->key_scale = c->attention_out_scale = c->gate_scale = c->mlp_out_scale = 1;
    if (r->family->many_multipliers && !r->fields.gguf_architecture)
        return read_many_multipliers(&r->fields, c);
    if (!r->family->multiplied) return QN_OK;
    QN_TRY(qn_fields_number(&r->fields, "embedding_multiplier", 1e-6, 1e6, &embedding, NULL));
    QN_TRY(qn_fields_number(&r->fields, "attention_multiplier", 1e-6, 1e6, &scores, NULL));
    QN_TRY(qn_fields_number(&r->fields, "residual_multiplier", 1e-6, 1e6, &residual, NULL));
    QN_TRY(qn_fields_number(&r->fields, "logits_scaling", 1e-6, 1e6, &logits, NULL));
    c->embedding_scale = (float)embedding;
    if (!r->fields.gguf_architecture) c->attention_scale = (float)scores; /* attention_scale there */
    c->residual_scale = (float)residual;
    c->logits_scale = (float)(1 / logits);
    return QN_OK;
}

static qn_status read_attention(const reader *r, qn_model_config *c)
{
    const qn_fields *f = &r->fields;
    int scaled = 0, in_gguf = f->gguf_architecture != NULL;
    double eps = 0, scalar = (double)c->head_dim, scale = 0, factor = 1, attn_cap = 0, final_cap = 0;
    char label[LABEL_MAX];
    QN_TRY(qn_fields_number(f, "rms_norm_eps", 0, 1, &eps, &scaled));
    if (!scaled)
        return qn_fail(QN_E_FORMAT, "%s: %s is missing", f->file,
                       qn_fields_label(f, "rms_norm_eps", label, sizeof label));
    c->rms_norm_eps = (float)eps;
    if (r->family->said_post_norm_eps) QN_TRY(qn_fields_number(f, "post_norm_eps", 0, 1, &eps, NULL));
    c->post_norm_eps = (float)eps;

    QN_TRY(qn_fields_number(f, "query_pre_attn_scalar", 1e-6, 1e9, &scalar, NULL));
    if (in_gguf && r->family->gguf_wide_scale_layers == c->num_hidden_layers)
        scalar = (double)c->hidden_size / (double)c->num_attention_heads;
    QN_TRY(qn_fields_number(f, "attention_scale", 0, 1e6, &scale, NULL));
    if (r->family->scales_scores) QN_TRY(qn_fields_number(f, "qk_scale_factor", 1e-6, 1e6, &factor, NULL));
    c->attention_scale = (float)((scale > 0 ? scale : 1 / sqrt(scalar)) * factor);

    QN_TRY(qn_fields_number(f, "attn_logit_softcapping", 0, 1e9, &attn_cap, NULL));
    QN_TRY(qn_fields_number(f, "final_logit_softcapping", 0, 1e9, &final_cap, NULL));
    c->attn_logit_softcapping = (float)attn_cap;
    c->final_logit_softcapping = (float)final_cap;

    QN_TRY(qn_fields_bool(f, "attention_bias", &c->attention_bias, NULL));
    if (r->family->output_bias == QN_OUTPUT_BIAS_AS_QKV) c->attention_output_bias = c->attention_bias;
    if (r->family->output_bias == QN_OUTPUT_BIAS_SAID)
        QN_TRY(qn_fields_bool(f, "attention_out_bias", &c->attention_output_bias, NULL));
    if (r->family->biased_qkv) {
        /* Where the files name no family the tensors alone say. */
        c->attention_bias =
            !r->recognised_by || qn_family_find_weight(r->family, r->src, QN_WEIGHT_Q_BIAS, 0, NULL);
        c->attention_output_bias = 0;
    }
    QN_TRY(qn_fields_bool(f, "mlp_bias", &c->mlp_bias, NULL));
    if (r->family->biases != QN_BIASES_SAID) {
        int has_them = r->family->biases != QN_BIASES_USE_BIAS;
        if (!has_them) QN_TRY(qn_fields_bool(f, "use_bias", &has_them, NULL));
        c->attention_bias = c->attention_output_bias = c->mlp_bias = has_them;
        c->head_bias = r->family->biases == QN_BIASES_ALL;
    }
    /* Files may have the scale of scores as weights of such a norm. */
    if (in_gguf && c->qk_norm == QN_QK_NORM_PLAIN &&
        qn_family_find_weight(r->family, r->src, QN_WEIGHT_Q_NORM, 0, NULL))
        c->qk_norm = QN_QK_NORM_HEAD;
    if (r->family->qk_norm_if) {
        int normed = in_gguf && qn_family_find_weight(r->family, r->src, QN_WEIGHT_Q_NORM, 0, NULL);
        QN_TRY(qn_fields_bool(f, r->family->qk_norm_if, &normed, NULL));
        if (!normed) c->qk_norm = QN_QK_NORM_NONE;
    }
    if (r->family->gated_attention) QN_TRY(qn_fields_bool(f, "attn_output_gate", &c->attn_output_gate, NULL));
    if (r->family->head_gate) QN_TRY(qn_fields_bool(f, "use_attention_gate", &c->attn_head_gate, NULL));
    if (r->family->mlp_limit) {
        double limit = 0;
        QN_TRY(qn_fields_number(f, "swiglu_limit", 1e-3, 1e9, &limit, NULL));
        c->mlp_limit = (float)limit;
    }
    int sandwiched = 1;
    if (r->family->sandwich_norm) QN_TRY(qn_fields_bool(f, "use_sandwich_norm", &sandwiched, NULL));
    if (!sandwiched) c->norms &= ~(unsigned)(QN_NORM_POST_ATTN | QN_NORM_POST_FFN);
    return QN_OK;
}

/* Numbers per token and layer beside the hidden states. */
static qn_status read_layer_input(const reader *r, qn_model_config *c)
{
    static const char rows[] = "vocab_size_per_layer_input";
    char label[LABEL_MAX], other[LABEL_MAX];
    QN_TRY(qn_fields_int(&r->fields, "hidden_size_per_layer_input", 0, WIDTH_MAX,
                         &c->hidden_size_per_layer_input, NULL));
    if (!c->hidden_size_per_layer_input || r->family->layer_input_alone) return QN_OK;
    c->vocab_size_per_layer_input = c->vocab_size; /* as in all GGUF files, which do not say it */
    if (!r->fields.gguf_architecture)
        QN_TRY(qn_fields_required_int(&r->fields, rows, 1, VOCAB_MAX, &c->vocab_size_per_layer_input));
    if (c->vocab_size_per_layer_input >= c->vocab_size || r->family->altup) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: %s is %lld, less than %s %lld", r->fields.file,
                   qn_fields_label(&r->fields, rows, label, sizeof label),
                   (long long)c->vocab_size_per_layer_input,
                   qn_fields_label(&r->fields, "vocab_size", other, sizeof other), (long long)c->vocab_size);
}

/* ---- tokens, quantisation ------------------------------------------------------------------------------ */

static qn_status add_stop_id(qn_model_config *c, const char *file, const char *field, const json_t *value)
{
    if (!json_is_integer(value))
        return qn_fail(QN_E_FORMAT, "%s: %s: expected a token id or a list of them", file, field);
    json_int_t id = json_integer_value(value);
    if (id == -1) return QN_OK; /* some files say so that there is none */
    if (id < 0 || id > INT32_MAX)
        return qn_fail(QN_E_FORMAT, "%s: %s: %lld is not a token id", file, field, (long long)id);
    for (int i = 0; i < c->n_stop_ids; i++)
        if (c->stop_ids[i] == (int32_t)id) return QN_OK;
    if (c->n_stop_ids == QN_STOP_IDS_MAX)
        return qn_fail(QN_E_FORMAT, "%s: %s: more than %d token ids", file, field, (int)QN_STOP_IDS_MAX);
    c->stop_ids[c->n_stop_ids++] = (int32_t)id;
    return QN_OK;
}

static qn_status add_stop_ids(qn_model_config *c, const char *file, const json_t *object, const char *field)
{
    const json_t *value = json_object_get(object, field);
    if (!value || json_is_null(value)) return QN_OK;
    if (!json_is_array(value)) return add_stop_id(c, file, field, value);
    for (size_t i = 0; i < json_array_size(value); i++)
        QN_TRY(add_stop_id(c, file, field, json_array_get(value, i)));
    return QN_OK;
}

static qn_status read_bos(const char *file, const json_t *object, qn_model_config *c)
{
    /* Some files give a list; its first is the one that begins a text. */
    const json_t *value = json_object_get(object, "bos_token_id");
    if (json_is_array(value)) value = json_array_get(value, 0);
    if (c->bos_token_id >= 0 || !value || json_is_null(value)) return QN_OK;
    if (json_is_integer(value) && json_integer_value(value) == -1) return QN_OK; /* there is none */
    if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > INT32_MAX)
        return qn_fail(QN_E_FORMAT, "%s: bos_token_id: expected a token id", file);
    c->bos_token_id = (int32_t)json_integer_value(value);
    return QN_OK;
}

/* *id stays where there is none, which -1 says too, as a number with or without a sign. */
static qn_status read_gguf_token(const qn_gguf *g, const char *key, int64_t *id)
{
    int64_t value = -1;
    QN_TRY(qn_gguf_optional(qn_gguf_get_i64(g, key, -1, UINT32_MAX, &value)));
    if (value == -1 || value == UINT32_MAX) return QN_OK;
    if (value > INT32_MAX)
        return qn_fail(QN_E_FORMAT, "%s: %s is %lld, which is not a token id", qn_gguf_path(g), key,
                       (long long)value);
    *id = value;
    return QN_OK;
}

static qn_status read_gguf_tokens(const qn_gguf *g, qn_model_config *c)
{
    static const char *const stops[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                        "tokenizer.ggml.eom_token_id"};
    int64_t id = c->bos_token_id;
    if (id < 0) {
        QN_TRY(read_gguf_token(g, "tokenizer.ggml.bos_token_id", &id));
        c->bos_token_id = (int32_t)id;
    }
    for (size_t i = 0; i < sizeof stops / sizeof stops[0]; i++) {
        id = -1;
        QN_TRY(read_gguf_token(g, stops[i], &id));
        if (id < 0) continue;
        json_t *value = json_integer(id);
        if (!value) return qn_fail(QN_E_NOMEM, "%s: out of memory", qn_gguf_path(g));
        qn_status status = add_stop_id(c, qn_gguf_path(g), stops[i], value);
        json_decref(value);
        QN_TRY(status);
    }
    return QN_OK;
}

static qn_status read_tokens(const reader *r, qn_model_config *c)
{
    const char *generation_file = qn_source_side_path(r->src, QN_SIDE_GENERATION_CONFIG);
    c->bos_token_id = -1;
    c->stop_tokens = r->family->stop_tokens;
    if (r->generation) {
        QN_TRY(add_stop_ids(c, generation_file, r->generation, "eos_token_id"));
    }
    const json_t *objects[] = {r->fields.object, r->fields.outer};
    for (int i = 0; i < 2; i++) {
        if (!objects[i]) continue;
        QN_TRY(add_stop_ids(c, r->fields.file, objects[i], "eos_token_id"));
        QN_TRY(read_bos(r->fields.file, objects[i], c));
    }
    if (r->generation) QN_TRY(read_bos(generation_file, r->generation, c));
    if (qn_source_gguf(r->src)) QN_TRY(read_gguf_tokens(qn_source_gguf(r->src), c));
    return QN_OK;
}

static qn_status read_quantisation(const reader *r, qn_model_config *c)
{
    if (qn_source_gguf(r->src)) {
        int64_t type = -1;
        QN_TRY(qn_gguf_optional(
            qn_gguf_get_i64(qn_source_gguf(r->src), "general.file_type", 0, INT32_MAX, &type)));
        c->quant_bits = qn_gguf_file_type_bits(type);
        return QN_OK;
    }
    QN_TRY(qn_quantization_read(&r->fields, &c->quantization));
    c->quant_bits = qn_quantization_bits(c->quantization);
    return QN_OK;
}

/* What the files say of the head: without a word, there is one of its own if there is a tensor for it. */
static qn_status read_tie(const reader *r, qn_model_config *c)
{
    c->tie_word_embeddings = !qn_family_find_weight(r->family, r->src, QN_WEIGHT_LM_HEAD, 0, NULL);
    return qn_fields_bool(&r->fields, "tie_word_embeddings", &c->tie_word_embeddings, NULL);
}

/* A GGUF model has its tower in a second file. If that was only found beside the model and does not fit, it is not used. */
static qn_status read_projector(const reader *r, qn_model_config *c)
{
    const char *note = qn_source_projector_note(r->src);
    qn_status status = QN_OK;
    if (*note && r->notes) qn_buf_printf(r->notes, "%s\n", note);
    if (!qn_source_projector(r->src)) return QN_OK;
    if (r->family->sectioned_rope[0] && !c->rope[0].mrope_section[0])
        status =
            qn_fail(QN_E_UNSUPPORTED,
                    "%s: pictures have no positions in this text: the sections of its rotation are missing",
                    qn_gguf_path(qn_source_gguf(r->src)));
    if (status == QN_OK) status = qn_projector_config_read(r->src, c);
    if (status == QN_OK || status == QN_E_NOMEM || qn_source_projector_is_given(r->src)) return status;
    if (r->notes)
        qn_buf_printf(r->notes, "the vision tower beside the model is not used: %s\n", qn_last_error());
    qn_source_drop_projector(r->src);
    return QN_OK;
}

/* A tower is of use where the places of a picture have positions. */
static qn_status read_vision(const reader *r, qn_model_config *c)
{
    if (qn_source_get_kind(r->src) == QN_SOURCE_GGUF) return read_projector(r, c);
    qn_fields whole = {.file = r->fields.file, .object = r->root, .path = ""};
    const char *model_type = c->architecture;
    if (r->family->sectioned_rope[0] && !c->rope[0].mrope_section[0]) return QN_OK;
    QN_TRY(qn_fields_string(&whole, "model_type", &model_type, NULL));
    return qn_vision_config_read(r->src, &whole, model_type, c->hidden_size, c->vocab_size, c->rms_norm_eps,
                                 &c->vision);
}

/* ---- all of it ----------------------------------------------------------------------------------------- */

static qn_status read_all(reader *r, qn_model_config *c)
{
    QN_TRY(open_reader(r));
    int gguf = qn_source_get_kind(r->src) == QN_SOURCE_GGUF;
    c->family = r->family;
    c->architecture = r->architecture;
    c->recognised_by = r->recognised_by;
    c->norms = r->family->norms;
    c->qk_norm = r->family->qk_norm;
    c->qk_norm_after_rope = r->family->qk_norm_after_rope;
    c->qk_norm_with_rope = r->family->qk_norm_with_rope;
    c->layer_norm = r->family->layer_norm;
    c->norm_bias = r->family->norm_bias;
    c->no_final_norm = r->family->no_final_norm;
    c->first_unnormed = r->family->first_unnormed;
    c->parallel_blocks = r->family->parallel_blocks;
    c->plain_mlp = r->family->plain_mlp;
    c->attn_output_gate = r->family->gated_attention;
    c->attn_head_gate = r->family->head_gate;
    c->attn_channel_gate = r->family->channel_gate;
    c->plain_embed_norm = r->family->plain_embed_norm;
    c->value_norm = r->family->value_norm;
    c->layer_scale = r->family->layer_scale;
    c->attention_sinks = r->family->sinks;
    c->norm_offset = gguf ? 0.0f : r->family->norm_offset;
    c->final_norm_offset = r->family->plain_final_norm ? 0.0f : c->norm_offset;
    c->rates_given = r->fields.gguf_architecture != NULL;
    c->multipliers_folded = r->fields.gguf_architecture && r->family->many_multipliers;
    c->rope_interleaved = r->family->rope_interleaved || (gguf && r->family->gguf_rope_interleaved);
    QN_TRY(read_sizes(r, c));
    QN_TRY(read_hidden_act(r, c));
    QN_TRY(read_attention(r, c));
    QN_TRY(read_multipliers(r, c));
    QN_TRY(read_layer_input(r, c));
    QN_TRY(qn_encoder_config_read(r->src, r->family, &r->fields, r->root, c));
    QN_TRY(qn_layer_config_read(r->src, r->family, &r->fields, r->rope, r->notes, c));
    qn_encoder_config_finish(r->family, c);
    QN_TRY(qn_index_config_read(&r->fields, r->family, c));
    QN_TRY(qn_xielu_config_read(r->src, c));
    if (r->family->altup) QN_TRY(qn_altup_config_read(&r->fields, c));
    QN_TRY(qn_hyper_config_read(r->family, &r->fields, c));
    QN_TRY(qn_ngram_config_read(r->src, r->family, &r->fields, c));
    QN_TRY(qn_experts_config_read(r->family, &r->fields, c));
    QN_TRY(read_vision(r, c));
    QN_TRY(read_tie(r, c));
    QN_TRY(read_tokens(r, c));
    return read_quantisation(r, c);
}

qn_status qn_config_read(qn_source *src, qn_model_config *out)
{
    return qn_config_read_changed(src, NULL, NULL, out);
}

qn_status qn_config_read_changed(qn_source *src, const qn_rope_options *rope, qn_buf *notes,
                                 qn_model_config *out)
{
    reader r = {.src = src, .rope = rope, .notes = notes};
    qn_model_config c = {.vocab_size = 0};
    qn_status status = read_all(&r, &c);
    json_decref(r.root);
    json_decref(r.generation);
    if (status == QN_OK)
        *out = c;
    else
        qn_config_free(&c);
    return status;
}

int qn_layer_recurs(const qn_layer_config *l)
{
    return l->mixer == QN_MIXER_DELTA || l->mixer == QN_MIXER_CHANNEL_DELTA ||
           l->mixer == QN_MIXER_SHORT_CONV || qn_layer_has_state_space(l);
}

int qn_layer_has_state_space(const qn_layer_config *l)
{
    return l->mixer == QN_MIXER_STATE_SPACE || l->beside_state_space;
}

int qn_layer_attends(const qn_layer_config *l)
{
    return l->mixer == QN_MIXER_ATTENTION || l->mixer == QN_MIXER_LATENT;
}

void qn_layer_state_floats(const qn_model_config *c, int64_t layer, int64_t *conv, int64_t *rule)
{
    const qn_layer_config *l = &c->layers[layer];
    const qn_delta_config *d = &c->delta;
    *conv = *rule = 0;
    if (l->indexed && l->index_layer == layer) *conv = (c->index.index_kpool - 1) * qn_index_channels(c);
    if (l->mixer == QN_MIXER_SHORT_CONV) *conv = (c->short_conv.conv_L_cache - 1) * c->hidden_size;
    if (qn_layer_has_state_space(l)) {
        const qn_state_space_config *s = &c->state_space;
        const int64_t inner = s->mamba_n_heads * s->mamba_d_head;
        *conv = (s->mamba_d_conv - 1) * (inner + 2 * s->mamba_n_groups * s->mamba_d_state);
        *rule = s->mamba_d_state * inner;
    }
    if (l->mixer == QN_MIXER_DELTA || l->mixer == QN_MIXER_CHANNEL_DELTA) {
        const int64_t k = d->linear_num_key_heads * d->linear_key_head_dim,
                      v = d->linear_num_value_heads * d->linear_value_head_dim;
        *conv = (d->linear_conv_kernel_dim - 1) * (2 * k + v);
        *rule = d->linear_key_head_dim * v;
    }
    if (l->ngrams) *conv += qn_ngram_state_floats(c);
}

int64_t qn_ngram_state_floats(const qn_model_config *c)
{
    const qn_ngram_config *n = &c->ngram;
    const int64_t rows = (n->ple_conv_kernel_size - 1) * n->ngram_size;
    return (n->ngram_size - 1) * n->ngram_size + rows * c->hyper.hc_count * c->hidden_size;
}

void qn_config_free(qn_model_config *c)
{
    if (!c) return;
    qn_free(c->layers);
    c->layers = NULL;
    qn_free(c->ngram.hashes);
    qn_free(c->ngram.n_rows);
    c->ngram.hashes = NULL;
    c->ngram.n_rows = NULL;
    qn_quantization_free(c->quantization);
    c->quantization = NULL;
    for (int i = 0; i < QN_ROPE_SETS; i++) {
        qn_free(c->rope[i].inv_freq);
        qn_free(c->rope[i].long_inv_freq);
        c->rope[i].inv_freq = c->rope[i].long_inv_freq = NULL;
    }
}
