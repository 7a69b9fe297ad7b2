#include "model/config/projector/projector_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/json/json.h"
#include "model/config/projector/projector_family.h"

enum { KEY_MAX = 192, LIST_MAX = 4096 };
static const char prefix[] = "clip.vision.", patch_name[] = "v.patch_embd.weight",
                  up_name[] = "v.blk.0.ffn_up.weight", down_name[] = "v.blk.0.ffn_down.weight";

typedef struct {
    const qn_source *src;
    const qn_gguf *g;
    const qn_projector *row;
    json_t *objects[3]; /* by qn_projector_place */
} maker;

static qn_status no_memory(const qn_gguf *g)
{
    return qn_fail(QN_E_NOMEM, "%s: out of memory", qn_gguf_path(g));
}

/* ---- which tower ---------------------------------------------------------------------------------------- */

static qn_status is_said(const qn_gguf *g, const char *key, int *out)
{
    *out = 0;
    return qn_gguf_optional(qn_gguf_get_bool(g, key, out));
}

/* The text of a key, at most KEY_MAX bytes; "": there is none. */
static qn_status read_text(const qn_gguf *g, const char *key, char text[KEY_MAX])
{
    qn_gguf_string s = {.data = "", .length = 0};
    QN_TRY(qn_gguf_optional(qn_gguf_get_string(g, key, &s)));
    snprintf(text, KEY_MAX, "%.*s", (int)(s.length < KEY_MAX ? s.length : KEY_MAX - 1), s.data);
    return QN_OK;
}

static qn_status refuse_type(const qn_gguf *g, const char *key, const char *type)
{
    qn_buf known = {0};
    for (int i = 0; qn_projector_row(i); i++)
        if (!qn_projector_row(i)->told_by)
            qn_buf_printf(&known, "%s%s", i ? ", " : "", qn_projector_row(i)->name);
    qn_status status = known.status;
    if (status == QN_OK)
        status = qn_fail(QN_E_UNSUPPORTED, "%s: %s is \"%.60s\", which is not supported (known: %s)",
                         qn_gguf_path(g), key, type, known.data);
    qn_buf_free(&known);
    return status;
}

static qn_status find_row(const qn_gguf *g, const qn_projector **out)
{
    static const char *const keys[] = {"clip.vision.projector_type", "clip.projector_type"};
    char type[KEY_MAX] = "";
    int sees = 0, hears = 0, i = 0;
    QN_TRY(is_said(g, "clip.has_vision_encoder", &sees));
    QN_TRY(is_said(g, "clip.has_audio_encoder", &hears));
    if (!sees)
        return qn_fail(QN_E_UNSUPPORTED, "%s: %s", qn_gguf_path(g),
                       hears ? "this tower hears and does not see (clip.has_audio_encoder): sound is not "
                               "supported"
                             : "clip.has_vision_encoder is not true: the file has no vision tower");
    for (; i < 2 && !type[0]; i++) QN_TRY(read_text(g, keys[i], type));
    if (!type[0])
        return qn_fail(QN_E_UNSUPPORTED,
                       "%s: clip.projector_type is missing: towers of this kind (LLaVA's) are not supported",
                       qn_gguf_path(g));
    for (int k = 0; qn_projector_row(k); k++) {
        const qn_projector *row = qn_projector_row(k);
        if (strcmp(row->name, type) != 0 || (row->told_by && !qn_gguf_find(g, row->told_by))) continue;
        *out = row;
        return QN_OK;
    }
    return refuse_type(g, keys[i - 1], type);
}

/* ---- fields --------------------------------------------------------------------------------------------- */

/* The element of an array, or the value itself, as JSON; NULL: of a type that no field has. */
static json_t *number_at(const qn_gguf_value *v, int64_t i)
{
    const uint8_t *p = v->data + (size_t)i * qn_gguf_type_size(v->element_type);
    float f;
    double d;
    int32_t n = 0;
    uint32_t u;
    switch (v->element_type) {
    case QN_GGUF_F32:
        memcpy(&f, p, sizeof f);
        return json_real(isfinite(f) ? (double)f : 0);
    case QN_GGUF_F64:
        memcpy(&d, p, sizeof d);
        return json_real(isfinite(d) ? d : 0);
    case QN_GGUF_I32:
        memcpy(&n, p, sizeof n);
        return json_integer(n);
    case QN_GGUF_U32:
        memcpy(&u, p, sizeof u);
        return json_integer(u);
    case QN_GGUF_BOOL:
        return json_boolean(*p != 0);
    default:
        return NULL;
    }
}

static qn_status put(maker *m, qn_projector_place place, const char *name, json_t *value)
{
    json_t *object = m->objects[place];
    const char *dot = place == QN_PROJECTOR_IMAGES ? strchr(name, '.') : NULL;
    char group[64];
    if (!value) return no_memory(m->g);
    if (dot) {
        snprintf(group, sizeof group, "%.*s", (int)(dot - name), name);
        json_t *inner = json_object_get(object, group);
        if (!inner && json_object_set_new(object, group, inner = json_object()) != 0) {
            json_decref(value);
            return no_memory(m->g);
        }
        object = inner;
        name = dot + 1;
    }
    return json_object_set_new(object, name, value) == 0 ? QN_OK : no_memory(m->g);
}

/* All numbers behind the prefix, by their own names. */
static qn_status copy_keys(maker *m)
{
    for (int64_t i = 0; i < qn_gguf_value_count(m->g); i++) {
        const qn_gguf_value *v = qn_gguf_value_get(m->g, i);
        if (strncmp(v->key, prefix, sizeof prefix - 1) != 0) continue;
        const char *name = v->key + sizeof prefix - 1;
        json_t *value = NULL;
        if (!qn_gguf_type_size(v->element_type) || v->count > LIST_MAX) continue;
        if (v->type != QN_GGUF_ARRAY) {
            value = number_at(v, 0);
        } else if ((value = json_array())) {
            for (int64_t k = 0; k < v->count; k++) {
                json_t *one = number_at(v, k);
                if (one && json_array_append_new(value, one) != 0) {
                    json_decref(value);
                    return no_memory(m->g);
                }
            }
        }
        if (!value) continue;
        if (strcmp(name, "image_mean") == 0 || strcmp(name, "image_std") == 0)
            QN_TRY(put(m, QN_PROJECTOR_IMAGES, name, value));
        else
            QN_TRY(put(m, QN_PROJECTOR_VISION, name, value));
    }
    return QN_OK;
}

/* The number of a key; 0: there is none. */
static qn_status number_of(const maker *m, const char *key, double *out)
{
    char full[KEY_MAX];
    *out = 0;
    snprintf(full, sizeof full, "%s%s", prefix, key);
    return qn_gguf_optional(qn_gguf_get_f64(m->g, full, 0, 1e9, out));
}

static double square_root(double n)
{
    const double root = floor(sqrt(n));
    return root * root == n ? root : 0;
}

/* The numbers of layers that a key says, as a list. */
static qn_status put_layers(maker *m, const qn_projector_value *v)
{
    char key[KEY_MAX];
    double depth, period = 0;
    snprintf(key, sizeof key, "%s%s", prefix, v->from);
    const qn_gguf_value *flags = qn_gguf_value_find(m->g, key);
    QN_TRY(number_of(m, "block_count", &depth));
    if (v->kind == QN_PROJECTOR_PERIOD) QN_TRY(number_of(m, v->from, &period));
    if (v->kind == QN_PROJECTOR_PERIOD && period < 1) return QN_OK;
    if (v->kind == QN_PROJECTOR_FLAGGED && flags &&
        (flags->type != QN_GGUF_ARRAY || flags->element_type != QN_GGUF_BOOL))
        return qn_fail(QN_E_FORMAT, "%s: %s: expected a list of true and false", qn_gguf_path(m->g), key);
    const int64_t n = v->kind == QN_PROJECTOR_PERIOD ? (int64_t)depth : flags ? flags->count : 0;
    json_t *list = json_array();
    for (int64_t i = 0; list && i < n && i < LIST_MAX; i++) {
        const int is_in =
            flags && v->kind == QN_PROJECTOR_FLAGGED ? flags->data[i] != 0 : (i + 1) % (int64_t)period == 0;
        if (is_in && json_array_append_new(list, json_integer(i)) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return put(m, v->place, v->name, list);
}

/* The number that a value is made of; 0: what it is made of is not there. */
static qn_status number_from(const maker *m, const qn_projector_value *v, double *out)
{
    const qn_tensor_view *t = v->from ? qn_source_find(m->src, v->from) : NULL;
    double patch, merge, heads, image, n;
    *out = 0;
    switch (v->kind) {
    case QN_PROJECTOR_GIVEN:
        *out = v->value;
        return QN_OK;
    case QN_PROJECTOR_KEY:
        QN_TRY(number_of(m, v->from, out));
        if (v->value != 0) *out *= v->value;
        return QN_OK;
    case QN_PROJECTOR_INVERSE:
        QN_TRY(number_of(m, v->from, &n));
        *out = n > 0 ? 1 / n : 0;
        return QN_OK;
    case QN_PROJECTOR_TOKENS:
        QN_TRY(number_of(m, "patch_size", &patch));
        QN_TRY(number_of(m, "spatial_merge_size", &merge));
        if (merge == 0) merge = 2;
        *out = fmin(v->value * patch * merge * patch * merge, 1 << 26);
        return QN_OK;
    case QN_PROJECTOR_UNITS:
        QN_TRY(number_of(m, "patch_size", &patch));
        QN_TRY(number_of(m, "spatial_merge_size", &merge));
        QN_TRY(number_of(m, v->from, &n));
        if (patch > 0 && merge > 0) *out = floor(n / (patch * merge * patch * merge));
        return QN_OK;
    case QN_PROJECTOR_SHRUNK:
        QN_TRY(number_of(m, "patch_size", &patch));
        QN_TRY(number_of(m, "image_size", &image));
        QN_TRY(number_of(m, v->from, &n));
        if (n == 0) n = v->value;
        if (patch > 0) *out = pow(floor(floor(image / patch) / n), 2);
        return QN_OK;
    case QN_PROJECTOR_ROWS:
        *out = t && t->n_dims ? (double)t->shape[0] : 0;
        return QN_OK;
    case QN_PROJECTOR_COLUMNS:
        *out = t && t->n_dims > 1 ? (double)t->shape[1] : 0;
        return QN_OK;
    case QN_PROJECTOR_SIDE:
        *out = t && t->n_dims ? square_root((double)t->shape[0]) : 0;
        return QN_OK;
    case QN_PROJECTOR_SHARE:
        QN_TRY(number_of(m, "attention.head_count", &heads));
        if (t && t->n_dims && heads >= 1) *out = floor((double)t->shape[0] / heads);
        return QN_OK;
    default:
        return QN_OK;
    }
}

static qn_status put_value(maker *m, const qn_projector_value *v)
{
    double n;
    switch (v->kind) {
    case QN_PROJECTOR_PERIOD:
    case QN_PROJECTOR_FLAGGED:
        return put_layers(m, v);
    case QN_PROJECTOR_HAS:
    case QN_PROJECTOR_LACKS:
        return put(m, v->place, v->name,
                   json_boolean((v->kind == QN_PROJECTOR_HAS) == (qn_source_find(m->src, v->from) != NULL)));
    case QN_PROJECTOR_WORD:
        return qn_source_find(m->src, v->from) ? QN_OK : put(m, v->place, v->name, json_string(v->word));
    default:
        QN_TRY(number_from(m, v, &n));
        if (n == 0) return QN_OK;
        n = fmin(n, 1e15); /* no field takes more */
        return put(m, v->place, v->name, n == floor(n) ? json_integer((json_int_t)n) : json_real(n));
    }
}

/* The width of the MLP is that of its matrices: some files say another, or none. */
static qn_status put_mlp(maker *m, int *is_swapped)
{
    const qn_tensor_view *up = qn_source_find(m->src, up_name), *down = qn_source_find(m->src, down_name);
    double width;
    int is_silu = 0;
    *is_swapped = 0;
    QN_TRY(is_said(m->g, "clip.use_silu", &is_silu));
    if (is_silu) QN_TRY(put(m, QN_PROJECTOR_VISION, "hidden_act", json_string("silu")));
    if (!up || !down || up->n_dims != 2 || down->n_dims != 2) return QN_OK;
    QN_TRY(number_of(m, "embedding_length", &width));
    *is_swapped = (double)up->shape[0] == width && (double)down->shape[0] != width;
    return put(m, QN_PROJECTOR_VISION, "intermediate_size",
               json_integer((*is_swapped ? down : up)->shape[0]));
}

/* ---- the text ------------------------------------------------------------------------------------------- */

/* The id of the first of these words that the text's vocabulary has. */
static qn_status find_token(const maker *m, int64_t *id)
{
    const qn_gguf *text = qn_source_gguf(m->src);
    qn_gguf_strings all;
    qn_gguf_string s;
    *id = -1;
    QN_TRY(qn_gguf_get_strings(text, "tokenizer.ggml.tokens", &all));
    for (int w = 0; m->row->image_tokens[w] && *id < 0; w++) {
        const char *word = m->row->image_tokens[w];
        qn_gguf_strings it = all;
        for (int64_t i = 0; *id < 0 && qn_gguf_strings_next(&it, &s); i++)
            if (s.length == strlen(word) && memcmp(s.data, word, s.length) == 0) *id = i;
    }
    if (*id >= 0) return QN_OK;
    return qn_fail(
        QN_E_ARG,
        "%s: this vision tower (%s) needs the token %s, which the vocabulary of %s does not have: it "
        "belongs to another model",
        qn_gguf_path(m->g), m->row->name, m->row->image_tokens[0], qn_gguf_path(text));
}

static qn_status check_width(const maker *m, const qn_model_config *c)
{
    double width;
    QN_TRY(number_of(m, "projection_dim", &width));
    if (width == 0 || width == (double)c->hidden_size) return QN_OK;
    return qn_fail(QN_E_ARG,
                   "%s: the vision tower gives vectors of %.0f numbers (clip.vision.projection_dim), but the "
                   "embeddings of %s have %lld: it belongs to another model",
                   qn_gguf_path(m->g), width, qn_gguf_path(qn_source_gguf(m->src)),
                   (long long)c->hidden_size);
}

/* What the reader asks the text's configuration for. */
static qn_status put_text(maker *m, const qn_model_config *c)
{
    int64_t pad = -1;
    json_t *text = json_object();
    if (!text || json_object_set_new(m->objects[QN_PROJECTOR_ROOT], "text_config", text) != 0)
        return no_memory(m->g);
    QN_TRY(qn_gguf_optional(
        qn_gguf_get_i64(qn_source_gguf(m->src), "tokenizer.ggml.padding_token_id", 0, UINT32_MAX, &pad)));
    int is_kept =
        pad < 0 || pad >= c->vocab_size || json_object_set_new(text, "pad_token_id", json_integer(pad)) == 0;
    if (m->row->inputs_deny_seen && !c->hidden_size_per_layer_input)
        is_kept &= json_object_set_new(text, "use_bidirectional_attention", json_string("vision")) == 0;
    return is_kept ? QN_OK : no_memory(m->g);
}

/* ---- all of it ------------------------------------------------------------------------------------------ */

static qn_status make_objects(maker *m, const qn_model_config *c, int *swaps_mlp)
{
    int64_t id;
    double theta = 0;
    for (int i = 0; i < 3; i++)
        if (!(m->objects[i] = json_object())) return no_memory(m->g);
    QN_TRY(check_width(m, c));
    QN_TRY(find_token(m, &id));
    QN_TRY(copy_keys(m));
    QN_TRY(put_mlp(m, swaps_mlp));
    QN_TRY(qn_gguf_optional(qn_gguf_get_f64(m->g, "clip.rope.freq_base", 1e-3, 1e12, &theta)));
    if (theta > 0) QN_TRY(put(m, QN_PROJECTOR_VISION, "rope_theta", json_real(theta)));
    for (const qn_projector_value *v = m->row->values; v->name; v++) QN_TRY(put_value(m, v));
    QN_TRY(put_text(m, c));
    return put(m, QN_PROJECTOR_ROOT, "image_token_id", json_integer(id));
}

/* What the file has otherwise than published ones. */
static void change(const qn_projector *row, int swaps_mlp, qn_vision_config *v)
{
    v->swaps_mlp = swaps_mlp;
    if (row->planes) v->processor.order = QN_IMAGE_PLANES;
    if (row->pairs_beside) v->rope_beside = 1;
    if (row->axes_apart) v->places = QN_VISION_PLACES_AXES;
    if (row->whole_norms) v->merge_norm_offset = 0;
}

static qn_status read_tower(maker *m, qn_source *src, qn_model_config *c)
{
    static const qn_field_spelling spelled[] = {{"depth", "block_count"},
                                                {"embed_dim", "embedding_length"},
                                                {"num_heads", "attention.head_count"},
                                                {"num_key_value_heads", "attention.head_count_kv"},
                                                {"head_dim", "attention.head_dim"},
                                                {"norm_eps", "attention.layer_norm_epsilon"},
                                                {"merge_size", "spatial_merge_size"},
                                                {"swiglu_limit", "swiglu_clamp"},
                                                {NULL, NULL}};
    int swaps_mlp = 0;
    QN_TRY(find_row(m->g, &m->row));
    if (!qn_source_find(src, patch_name))
        return qn_fail(QN_E_FORMAT, "%s: tensor %s is missing", qn_gguf_path(m->g), patch_name);
    QN_TRY(make_objects(m, c, &swaps_mlp));
    const char *file = qn_gguf_path(m->g);
    qn_vision_description d = {
        .family = qn_vision_family_find(m->row->model_type),
        .projector = m->row,
        .prefix = "",
        .own = {.file = file, .object = m->objects[QN_PROJECTOR_VISION], .path = prefix, .spelled = spelled},
        .root = {.file = file, .object = m->objects[QN_PROJECTOR_ROOT], .path = ""},
        .images = {.file = file, .object = m->objects[QN_PROJECTOR_IMAGES], .path = prefix},
        .hidden_size = c->hidden_size,
        .vocab_size = c->vocab_size,
        .text_eps = c->rms_norm_eps};
    QN_TRY(qn_vision_config_make(src, &d, &c->vision));
    change(m->row, swaps_mlp, &c->vision);
    return QN_OK;
}

qn_status qn_projector_config_read(qn_source *src, qn_model_config *c)
{
    maker m = {.src = src, .g = qn_source_projector(src)};
    qn_status status = read_tower(&m, src, c);
    for (int i = 0; i < 3; i++) json_decref(m.objects[i]);
    return status;
}
