#include "model/config/blocks/encoder_config.h"

#include <string.h>

#include "base/log.h"

enum { LABEL_MAX = 160, LABELS_MAX = 1 << 16, TYPES_MAX = 1 << 16, WIDTH_MAX = 1 << 20 };

/* GGUF says the opposite, or has another name for the model. */
static qn_status read_causal(const qn_family *family, const qn_fields *f, int *all)
{
    static const char name[] = "causal_attention";
    char label[LABEL_MAX];
    int causal = 1, found = 0;
    *all = family->gguf_both_ways && strcmp(f->gguf_architecture, family->gguf_both_ways) == 0;
    QN_TRY(qn_fields_bool(f, name, &causal, &found));
    if (!found || family->both_ways == QN_BOTH_SAID) {
        *all |= !causal;
        return QN_OK;
    }
    if (causal == (family->both_ways == QN_BOTH_NEVER)) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED, "%s: %s is %s, which is not supported for this architecture", f->file,
                   qn_fields_label(f, name, label, sizeof label), causal ? "true" : "false");
}

/* "vision" is for tokens of images; those of text see what came before them, as everywhere. */
static qn_status read_said(const qn_family *family, const qn_fields *f, int *all)
{
    static const char name[] = "use_bidirectional_attention";
    const char *whose = NULL;
    if (f->gguf_architecture) return read_causal(family, f, all);
    if (json_is_string(qn_fields_get(f, name))) {
        QN_TRY(qn_fields_string(f, name, &whose, NULL));
        *all = strcmp(whose, "vision") != 0;
        if (*all)
            return qn_fail(QN_E_UNSUPPORTED, "%s: %s is \"%.40s\", which is not supported", f->file, name,
                           whose);
        return QN_OK;
    }
    QN_TRY(qn_fields_bool(f, name, all, NULL));
    if (!*all || family->both_ways == QN_BOTH_SAID) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED, "%s: %s is true, which is not supported for the family %s", f->file,
                   name, family->model_types[0]);
}

/* Switches that make a decoder of an encoder, or give it other positions. */
static qn_status refuse_switches(const qn_fields *f)
{
    static const char *const switches[] = {"is_decoder", "add_cross_attention", "prenorm",
                                           "rotary_emb_interleaved", "use_rms_norm"};
    static const char positions[] = "position_embedding_type";
    const char *type = "absolute";
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
        int is_on = 0;
        QN_TRY(qn_fields_bool(f, switches[i], &is_on, NULL));
        if (is_on)
            return qn_fail(QN_E_UNSUPPORTED, "%s: %s is true, which is not supported for an encoder", f->file,
                           switches[i]);
    }
    double turned = 1;
    QN_TRY(qn_fields_number(f, "rotary_emb_fraction", 0, 1, &turned, NULL));
    if (turned < 1 && turned > 0)
        return qn_fail(QN_E_UNSUPPORTED, "%s: rotary_emb_fraction is %g, which is not supported", f->file,
                       turned);
    QN_TRY(qn_fields_string(f, positions, &type, NULL));
    if (strcmp(type, "absolute") == 0) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED, "%s: %s is \"%.40s\", which is not supported (known: absolute)", f->file,
                   positions, type);
}

static qn_status read_positions(const qn_family *family, const qn_fields *f, qn_model_config *c)
{
    qn_encoder_config *e = &c->encoder;
    int64_t pad = -1;
    int found = 0;
    char label[LABEL_MAX], other[LABEL_MAX];
    QN_TRY(qn_fields_int(f, "pad_token_id", -1, c->vocab_size - 1, &pad, &found));
    e->pad_token_id = (int32_t)pad;
    if (!family->learned_positions) return QN_OK;
    e->position_rows = c->max_position_embeddings;
    if (family->learned_positions == QN_POSITIONS_FROM_0) return QN_OK;
    e->skips_pad = pad >= 0;
    e->position_first = pad + 1;
    c->max_position_embeddings -= e->position_first;
    if (c->max_position_embeddings > 0) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: %s is %lld, which leaves no positions behind %s %lld", f->file,
                   qn_fields_label(f, "max_position_embeddings", label, sizeof label),
                   (long long)e->position_rows, qn_fields_label(f, "pad_token_id", other, sizeof other),
                   (long long)pad);
}

/* The classes of a head, as transformers counts them. */
static qn_status read_labels(const qn_fields *f, const json_t *root, int64_t *n)
{
    const json_t *names = json_object_get(root, "id2label");
    if (json_is_object(names) && json_object_size(names) > 0 && json_object_size(names) <= LABELS_MAX) {
        *n = (int64_t)json_object_size(names);
        return QN_OK;
    }
    *n = 2;
    return qn_fields_int(f, "num_labels", 1, LABELS_MAX, n, NULL);
}

static qn_status read_said_head(const qn_fields *f, qn_encoder_config *e)
{
    static const struct {
        const char *name;
        qn_classify_act act;
    } acts[] = {{"gelu", QN_CLASSIFY_GELU},
                {"gelu_pytorch_tanh", QN_CLASSIFY_GELU_TANH},
                {"gelu_new", QN_CLASSIFY_GELU_TANH},
                {"silu", QN_CLASSIFY_SILU},
                {"tanh", QN_CLASSIFY_TANH}};
    const char *pooling = "cls", *act = "gelu";
    char label[LABEL_MAX];
    e->classify_norm = 1;
    QN_TRY(qn_fields_bool(f, "classifier_bias", &e->classify_bias, NULL));
    QN_TRY(qn_fields_string(f, "classifier_pooling", &pooling, NULL));
    e->classify_mean = strcmp(pooling, "mean") == 0;
    if (!e->classify_mean && strcmp(pooling, "cls") != 0)
        return qn_fail(QN_E_UNSUPPORTED, "%s: %s is \"%.40s\", which is not supported (known: cls, mean)",
                       f->file, qn_fields_label(f, "classifier_pooling", label, sizeof label), pooling);
    QN_TRY(qn_fields_string(f, "classifier_activation", &act, NULL));
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        if (strcmp(acts[i].name, act) == 0) {
            e->classify_act = acts[i].act;
            return QN_OK;
        }
    return qn_fail(QN_E_UNSUPPORTED, "%s: %s is \"%.40s\", which is not supported", f->file,
                   qn_fields_label(f, "classifier_activation", label, sizeof label), act);
}

static int ends_in(const char *text, const char *ending)
{
    const size_t n = strlen(text), m = strlen(ending);
    return n >= m && strcmp(text + n - m, ending) == 0;
}

static qn_status read_head(const qn_family *family, const qn_fields *f, const json_t *root,
                           qn_model_config *c)
{
    qn_encoder_config *e = &c->encoder;
    const char *name = json_string_value(json_array_get(json_object_get(root, "architectures"), 0));
    if (!family->classifier || !name || !ends_in(name, "ForSequenceClassification")) return QN_OK;
    QN_TRY(read_labels(f, root, &e->num_labels));
    e->classify_act = QN_CLASSIFY_TANH;
    e->classify_dense = e->classify_bias = 1;
    return family->classifier == QN_CLASSIFIER_SAID ? read_said_head(f, e) : QN_OK;
}

/* GGUF names no class: the head is what the file has of it. */
static qn_status read_gguf_head(const qn_source *src, const qn_family *family, const qn_fields *f,
                                qn_model_config *c)
{
    static const char pooling[] = "classifier_pooling_type";
    enum { MEAN = 1, CLS = 2 }; /* llama.cpp's numbers */
    qn_encoder_config *e = &c->encoder;
    const qn_tensor_view *out = qn_family_find_weight(family, src, QN_WEIGHT_CLASSIFY_OUT, 0, NULL);
    const int said = family->classifier == QN_CLASSIFIER_SAID;
    int64_t rows = MEAN;
    char label[LABEL_MAX];
    if (!family->classifier || !out) return QN_OK;
    if (out->n_dims != 2 || out->shape[0] < 1 || out->shape[0] > LABELS_MAX)
        return qn_fail(QN_E_FORMAT, "%s: tensor %s: shape %s, expected a row for each of 1 to %d labels",
                       f->file, out->name, qn_view_shape_text(out, label, sizeof label), (int)LABELS_MAX);
    e->num_labels = out->shape[0];
    e->classify_dense = qn_family_find_weight(family, src, QN_WEIGHT_CLASSIFY_DENSE, 0, NULL) != NULL;
    e->classify_bias = qn_family_find_weight(family, src, QN_WEIGHT_CLASSIFY_DENSE_BIAS, 0, NULL) != NULL;
    e->classify_norm = qn_family_find_weight(family, src, QN_WEIGHT_CLASSIFY_NORM, 0, NULL) != NULL;
    e->classify_act = said ? QN_CLASSIFY_GELU : QN_CLASSIFY_TANH;
    if (!e->classify_dense) {
        e->classify_bias = e->classify_norm = 0;
        qn_log(QN_LOG_WARNING,
               "%s: the head has no dense layer (cls.weight), which llama.cpp's converter leaves out of a "
               "BertForSequenceClassification: scores are llama.cpp's, not those of the published model",
               f->file);
    }
    if (!said) return QN_OK;
    QN_TRY(qn_fields_int(f, pooling, MEAN, CLS, &rows, NULL));
    e->classify_mean = rows == MEAN;
    return QN_OK;
}

static qn_status read_types(const qn_source *src, const qn_family *family, const qn_fields *f, int64_t *n)
{
    /* llama.cpp counts one type where there is no table. */
    if (f->gguf_architecture && !qn_family_find_weight(family, src, QN_WEIGHT_TYPE_EMBED, 0, NULL))
        return QN_OK;
    return qn_fields_int(f, "type_vocab_size", 0, TYPES_MAX, n, NULL);
}

qn_status qn_encoder_config_read(const qn_source *src, const qn_family *family, const qn_fields *f,
                                 const json_t *root, qn_model_config *c)
{
    qn_encoder_config *e = &c->encoder;
    int said = 0;
    QN_TRY(read_said(family, f, &said));
    e->both_ways = family->both_ways == QN_BOTH_SAID ? said : family->both_ways != QN_BOTH_NEVER;
    if (!e->both_ways) return QN_OK;
    e->embed_norm = family->embed_norm;
    if (family->said_norm_bias) QN_TRY(qn_fields_bool(f, "norm_bias", &c->norm_bias, NULL));
    if (family->token_types) QN_TRY(read_types(src, family, f, &e->type_vocab_size));
    if (family->output_proj)
        QN_TRY(qn_fields_required_int(f, "embedding_dim", 1, WIDTH_MAX, &e->embedding_dim));
    if (family->both_ways != QN_BOTH_SAID) QN_TRY(refuse_switches(f));
    QN_TRY(read_positions(family, f, c));
    return f->gguf_architecture ? read_gguf_head(src, family, f, c) : read_head(family, f, root, c);
}

void qn_encoder_config_finish(const qn_family *family, qn_model_config *c)
{
    if (!c->encoder.both_ways) return;
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        int64_t *window = &c->layers[i].window;
        if (*window) *window = (family->both_ways == QN_BOTH_RADIUS ? *window : *window / 2) + 1;
    }
}
