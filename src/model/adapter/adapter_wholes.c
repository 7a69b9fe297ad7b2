#include "model/adapter/adapter_wholes.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "model/weights/row_order.h"
#include "model/weights/weight_roles.h"

enum { NAME_MAX_BYTES = QN_TENSOR_NAME_MAX - 16, WHOLES_MAX = 1 << 16 };

/* What a tensor is, by the end of its name. A form that is the end of another stands behind it. */
typedef enum { FORM_BIAS_OF_B, FORM_A, FORM_B, FORM_M, FORM_TOKENS, FORM_WEIGHT, FORM_BIAS, FORMS } form;
static const struct {
    const char *ending;
    form form;
    int of_base; /* 1: the tensor of the model itself, which peft saves beside factors */
} forms[] = {{".lora_B.bias", FORM_BIAS_OF_B, 0},
             {".lora_embedding_A", FORM_A, 0},
             {".lora_embedding_B", FORM_B, 0},
             {".lora_magnitude_vector", FORM_M, 0},
             {".token_adapter.trainable_tokens_delta", FORM_TOKENS, 0},
             {".base_layer.weight", FORM_WEIGHT, 1},
             {".base_layer.bias", FORM_BIAS, 1},
             {".weight", FORM_WEIGHT, 0},
             {".bias", FORM_BIAS, 0}};

/* A tensor of the file: the module's name, and the model's tensor that it changes. */
typedef struct {
    const qn_tensor_view *v;
    char module[QN_TENSOR_NAME_MAX];
    form form;
    int of_base;
    qn_weight_role role; /* ROLE_COUNT: the model has none */
    int64_t layer;
} tensor;

static qn_status fail_tensor(qn_status status, const qn_tensor_view *v, const char *why)
{
    return qn_fail(status, "%s: tensor %s: %s", v->file, v->name, why);
}

/* ---- names --------------------------------------------------------------------------------------------- */

static int read_name(const char *name, tensor *out)
{
    const size_t n = strlen(name);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const size_t m = strlen(forms[i].ending);
        if (n <= m || n - m > NAME_MAX_BYTES || strcmp(name + n - m, forms[i].ending) != 0) continue;
        snprintf(out->module, sizeof out->module, "%.*s", (int)(n - m), name);
        if (strstr(out->module, ".lora_")) return 0;
        out->form = forms[i].form;
        out->of_base = forms[i].of_base;
        return 1;
    }
    return 0;
}

/* The role whose tensor has this name in published files. */
static void find_role(const qn_model_config *c, const char *name, tensor *out)
{
    char text[QN_TENSOR_NAME_MAX];
    int64_t shape[QN_WEIGHT_DIMS_MAX];
    const char *layers = c->family->layers ? c->family->layers : "layers.";
    const size_t n_layers = strlen(layers);
    out->role = QN_WEIGHT_ROLE_COUNT;
    for (const char *const *p = qn_decoder_prefixes; *p; p++) {
        const size_t n = strlen(*p);
        long long layer = 0;
        int in_layer = 0;
        if (strncmp(name, *p, n) == 0 && strncmp(name + n, layers, n_layers) == 0)
            in_layer = sscanf(name + n + n_layers, "%9lld.", &layer) == 1;
        if (layer < 0 || layer >= c->num_hidden_layers) continue;
        for (int i = in_layer ? QN_WEIGHT_MODEL_COUNT : 0;
             i < (in_layer ? QN_WEIGHT_ROLE_COUNT : QN_WEIGHT_MODEL_COUNT); i++) {
            if (qn_weight_expected(c, layer, (qn_weight_role)i) < QN_WEIGHT_MAYBE ||
                !qn_family_weight_name(c->family, QN_SOURCE_SAFETENSORS, *p, (qn_weight_role)i, layer,
                                       text) ||
                strcmp(text, name) != 0 || qn_weight_shape(c, layer, (qn_weight_role)i, shape) > 2 ||
                qn_weight_taps(c, layer, (qn_weight_role)i) || !qn_row_order_is_known(c, (qn_weight_role)i))
                continue;
            out->role = (qn_weight_role)i;
            out->layer = layer;
            return;
        }
    }
}

/* The model's tensor of a bias of factors is that of the layer's own bias, whether files have one or not. */
static void find_target(const qn_model_config *c, tensor *t)
{
    char name[QN_TENSOR_NAME_MAX + 16];
    const int is_bias = t->form == FORM_BIAS || t->form == FORM_BIAS_OF_B;
    snprintf(name, sizeof name, "%s.%s", t->module, is_bias ? "bias" : "weight");
    find_role(c, name, t);
}

/* ---- shapes -------------------------------------------------------------------------------------------- */

static qn_status check_shape(const qn_tensor_view *v, int n_dims, int64_t first, int64_t second)
{
    char actual[128];
    if (v->n_dims == n_dims && v->shape[0] == first && (n_dims == 1 || v->shape[1] == second)) return QN_OK;
    qn_view_shape_text(v, actual, sizeof actual);
    if (n_dims == 1)
        return qn_fail(QN_E_FORMAT, "%s: tensor %s: shape %s, expected [%lld]", v->file, v->name, actual,
                       (long long)first);
    return qn_fail(QN_E_FORMAT, "%s: tensor %s: shape %s, expected [%lld, %lld]", v->file, v->name, actual,
                   (long long)first, (long long)second);
}

/* The shape that the configuration and the model imply, and where in w the view belongs. */
static qn_status place_view(const tensor *t, const qn_adapter_config *config, int is_vector,
                            qn_adapter_whole *w, const qn_tensor_view ***out)
{
    double factor;
    switch (t->form) {
    case FORM_BIAS_OF_B:
        if (!config->lora_bias)
            return fail_tensor(QN_E_FORMAT, t->v, "the configuration does not set lora_bias");
        QN_TRY(qn_adapter_config_module(config, t->module, &w->rank, &factor));
        w->bias_factor = (float)factor;
        *out = &w->bias;
        return check_shape(t->v, 1, w->n_rows, 0);
    case FORM_A:
    case FORM_B:
        QN_TRY(qn_adapter_config_module(config, t->module, &w->rank, &factor));
        w->factor = (float)factor;
        *out = t->form == FORM_A ? &w->a : &w->b;
        if (config->lora_bias)
            return fail_tensor(QN_E_UNSUPPORTED, t->v, "lora_bias is not for embeddings, as in peft");
        return t->form == FORM_A ? check_shape(t->v, 2, w->rank, w->n_rows)
                                 : check_shape(t->v, 2, w->n_cols, w->rank);
    case FORM_M:
        *out = &w->m;
        if (!config->dora)
            return fail_tensor(QN_E_FORMAT, t->v,
                               "it holds magnitudes of DoRA, but the configuration does not name DoRA");
        return check_shape(t->v, 1, w->n_cols, 0);
    case FORM_TOKENS:
        *out = &w->tokens;
        w->ids = qn_adapter_config_tokens(config, t->module, t->role == QN_WEIGHT_EMBED);
        if (!w->ids)
            return fail_tensor(QN_E_FORMAT, t->v, "trainable_token_indices does not name its module");
        return check_shape(t->v, 2, (int64_t)json_array_size(w->ids), w->n_cols);
    default:
        *out = &w->value;
        return check_shape(t->v, is_vector ? 1 : 2, w->n_rows, w->n_cols);
    }
}

/* ---- entries ------------------------------------------------------------------------------------------- */

static qn_adapter_whole *find(const qn_adapter_wholes *w, qn_weight_role role, int64_t layer)
{
    for (int64_t i = 0; i < w->n; i++)
        if (w->list[i].role == role && w->list[i].layer == layer) return &w->list[i];
    return NULL;
}

static qn_status find_or_add(qn_adapter_wholes *w, const qn_adapter_whole *like, qn_adapter_whole **out)
{
    *out = find(w, like->role, like->layer);
    if (*out) return QN_OK;
    if (w->n == w->capacity) {
        const int64_t more = w->capacity ? 2 * w->capacity : 16;
        if (w->n == WHOLES_MAX) return qn_fail(QN_E_UNSUPPORTED, "the adapter changes too many tensors");
        qn_adapter_whole *list = qn_realloc(w->list, (size_t)more * sizeof *list);
        if (!list) return QN_E_NOMEM;
        w->list = list;
        w->capacity = more;
    }
    *out = &w->list[w->n++];
    **out = *like;
    return QN_OK;
}

static qn_status fail_no_role(const tensor *t, const qn_model_config *c, const qn_adapter_config *config)
{
    const char *field = t->form == FORM_BIAS_OF_B                              ? "lora_bias"
                        : t->form == FORM_TOKENS                               ? "trainable_token_indices"
                        : qn_adapter_targets_saves(config->targets, t->module) ? "modules_to_save"
                        : t->form == FORM_BIAS                                 ? "bias"
                                                                               : "target_modules";
    return qn_fail(QN_E_UNSUPPORTED,
                   "%s: tensor %s (%s): this model (%s) has no such tensor that an adapter may change",
                   t->v->file, t->v->name, field, c->architecture);
}

/* The embedding has factors, rows of tokens and magnitudes, the head rows of tokens, other tensors none. */
static int fits_role(const tensor *t)
{
    const int is_embed = t->role == QN_WEIGHT_EMBED;
    if (t->form == FORM_A || t->form == FORM_B || t->form == FORM_M) return is_embed;
    return t->form != FORM_TOKENS || is_embed || t->role == QN_WEIGHT_LM_HEAD;
}

static qn_status add(qn_adapter_wholes *w, const qn_model_config *c, const qn_adapter_config *config,
                     const tensor *t)
{
    int64_t shape[QN_WEIGHT_DIMS_MAX] = {0, 1};
    const qn_tensor_view **place = NULL;
    qn_adapter_whole *entry;
    if (t->role == QN_WEIGHT_ROLE_COUNT || !fits_role(t)) return fail_no_role(t, c, config);
    const int n_dims = qn_weight_shape(c, t->layer, t->role, shape);
    if (t->v->supported && t->v->dtype != QN_DTYPE_F32 && t->v->dtype != QN_DTYPE_F16 &&
        t->v->dtype != QN_DTYPE_BF16)
        return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s: an adapter of type %s is not supported", t->v->file,
                       t->v->name, t->v->type_name);
    QN_TRY(qn_view_check(t->v));
    const qn_adapter_whole like = {
        .role = t->role, .layer = t->layer, .n_rows = shape[0], .n_cols = n_dims > 1 ? shape[1] : 1};
    QN_TRY(find_or_add(w, &like, &entry));
    QN_TRY(place_view(t, config, n_dims == 1, entry, &place));
    if (*place)
        return qn_fail(QN_E_FORMAT, "%s: tensors %s and %s are for the same tensor of the model", t->v->file,
                       (*place)->name, t->v->name);
    *place = t->v;
    return QN_OK;
}

qn_status qn_adapter_wholes_add(qn_adapter_wholes *w, const qn_model_config *c,
                                const qn_adapter_config *config, const qn_tensor_view *v, const char *name,
                                qn_buf *notes, int *taken)
{
    const char *field = NULL;
    tensor t = {.v = v};
    *taken = 0;
    if (config->layout != QN_ADAPTER_PEFT || !read_name(name, &t)) return QN_OK;
    find_target(c, &t);
    if (t.form == FORM_M && t.role != QN_WEIGHT_EMBED) return QN_OK; /* of a linear layer */
    if (t.form == FORM_WEIGHT && !t.of_base && !qn_adapter_targets_saves(config->targets, t.module))
        return QN_OK;
    *taken = 1;
    if (t.form < FORM_TOKENS)
        QN_TRY(qn_adapter_config_check_target(config, t.module, t.form == FORM_BIAS_OF_B, &field));
    if (!field) return add(w, c, config, &t);
    if (t.form == FORM_A)
        qn_buf_printf(notes, "%s: tensors of %.100s are left out, as %s says\n", v->file, t.module, field);
    return notes->status;
}

void qn_adapter_wholes_free(qn_adapter_wholes *w)
{
    qn_free(w->list);
    *w = (qn_adapter_wholes){0};
}

const qn_tensor_view *qn_adapter_whole_view(const qn_adapter_whole *w)
{
    return w->value ? w->value : w->a ? w->a : w->b ? w->b : w->bias ? w->bias : w->tokens ? w->tokens : w->m;
}

/* ---- the whole ----------------------------------------------------------------------------------------- */

/* 1: the module of some entry ends in the name, or lies in a module that does. */
static int is_saved(const qn_adapter_wholes *w, const char *name)
{
    if (!*name) return 0;
    for (int64_t i = 0; i < w->n; i++) {
        const char *value = w->list[i].value ? w->list[i].value->name : NULL, *at = value;
        for (; at && (at = strstr(at, name)); at++)
            if (at[strlen(name)] == '.') return 1;
    }
    return 0;
}

static int is_of_base(const qn_tensor_view *v)
{
    static const char ending[] = ".base_layer.weight";
    const size_t n = v ? strlen(v->name) : 0, m = sizeof ending - 1;
    return n > m && strcmp(v->name + n - m, ending) == 0;
}

/* The head of a model that has none of its own is the embedding: what peft writes into the tensor of either is the
 * other's too, and so are rows of tokens unless the head has its own. A saved embedding is a copy that the head does
 * not see, but with ensure_weight_tying. */
static qn_status share(qn_adapter_wholes *w, const qn_model_config *c, const qn_adapter_config *config)
{
    const qn_adapter_whole none = {0}, *embed = find(w, QN_WEIGHT_EMBED, 0),
                           *head = find(w, QN_WEIGHT_LM_HEAD, 0);
    if (!c->tie_word_embeddings || (!embed && !head)) return QN_OK;
    qn_adapter_whole e = embed ? *embed : none, h = head ? *head : none, *made;
    if (e.a && config->ties_weights)
        return fail_tensor(
            QN_E_UNSUPPORTED, e.a,
            "ensure_weight_tying puts the embedding's factors into the head, too, which is not "
            "supported; save the adapter without it");
    const int is_copy = config->targets && qn_adapter_targets_saves(config->targets, "embed_tokens");
    const qn_tensor_view *base = is_of_base(h.value)                ? h.value
                                 : is_of_base(e.value)              ? e.value
                                 : is_copy && !config->ties_weights ? NULL
                                                                    : e.value;
    qn_adapter_whole like = {.role = QN_WEIGHT_EMBED,
                             .n_rows = e.n_rows > h.n_rows ? e.n_rows : h.n_rows,
                             .n_cols = e.n_cols > h.n_cols ? e.n_cols : h.n_cols};
    if (base && (!e.value || is_of_base(e.value))) {
        QN_TRY(find_or_add(w, &like, &made));
        made->value = base;
    }
    like.role = QN_WEIGHT_LM_HEAD;
    const int takes_base = base && (!h.value || is_of_base(h.value));
    if (!takes_base && (!e.tokens || h.tokens)) return QN_OK;
    QN_TRY(find_or_add(w, &like, &made));
    if (takes_base) made->value = base;
    if (h.tokens || !e.tokens) return QN_OK;
    made->tokens = e.tokens;
    made->ids = e.ids;
    return QN_OK;
}

/* Of a classifier peft names both modules that models may keep the head in, of which each model has one. */
static int is_other_head(const qn_adapter_wholes *w, const qn_adapter_config *config, const char *name)
{
    static const char *const tasks[] = {"SEQ_CLS", "TOKEN_CLS"}, *const heads[] = {"classifier", "score"};
    const char *task = json_string_value(json_object_get(config->json, "task_type"));
    if (!task || (strcmp(task, tasks[0]) != 0 && strcmp(task, tasks[1]) != 0)) return 0;
    return (strcmp(name, heads[0]) == 0 && is_saved(w, heads[1])) ||
           (strcmp(name, heads[1]) == 0 && is_saved(w, heads[0]));
}

qn_status qn_adapter_wholes_finish(qn_adapter_wholes *w, const qn_model_config *c,
                                   const qn_adapter_config *config)
{
    const char *name;
    for (int64_t i = 0; i < w->n; i++) {
        const qn_adapter_whole *e = &w->list[i];
        if (!e->a != !e->b || (e->m && !e->a))
            return fail_tensor(QN_E_FORMAT,
                               e->a   ? e->a
                               : e->b ? e->b
                                      : e->m,
                               "the other tensor of its pair is missing");
        if (e->a && config->dora && !e->m)
            return fail_tensor(QN_E_FORMAT, e->a, "its matrix has no magnitudes, which DoRA needs");
        if (e->m && c->embedding_scale != 1)
            return fail_tensor(QN_E_UNSUPPORTED, e->m,
                               "use_dora on the embedding of a model that scales its embeddings");
        for (size_t k = 0; e->tokens && k < json_array_size(e->ids); k++)
            if (json_integer_value(json_array_get(e->ids, k)) >= e->n_rows)
                return qn_fail(QN_E_FORMAT,
                               "%s: trainable_token_indices: the id %lld is outside the vocabulary",
                               config->file, (long long)json_integer_value(json_array_get(e->ids, k)));
    }
    for (size_t i = 0; config->targets && (name = qn_adapter_targets_saved(config->targets, i)); i++)
        if (!is_saved(w, name) && !is_other_head(w, config, name))
            return qn_fail(QN_E_FORMAT, "%s: modules_to_save names %.90s, but no tensor of the file is of it",
                           config->file, name);
    return share(w, c, config);
}

/* ---- numbers ------------------------------------------------------------------------------------------- */

static qn_status read_finite(const qn_tensor_view *v, float **out)
{
    *out = qn_alloc_array((size_t)v->n_elements + 1, sizeof **out);
    if (!*out) return QN_E_NOMEM;
    QN_TRY(qn_weights_floats(v, *out));
    for (int64_t i = 0; i < v->n_elements; i++)
        if (!isfinite((*out)[i]))
            return qn_fail(QN_E_FORMAT, "%s: tensor %s: element %lld is %s", v->file, v->name, (long long)i,
                           isnan((*out)[i]) ? "not a number" : "infinite");
    return QN_OK;
}

/* What norms of published files lack beside those of a GGUF file (families.h). */
static float offset_of(const qn_adapter_whole *w, const qn_model_config *c)
{
    return qn_weight_has_offset(w->role) ? c->family->norm_offset - c->norm_offset : 0;
}

/* b [n_cols, rank]; turned [rank, n_cols] is room for it with the factor. */
static void add_factors(const qn_adapter_whole *w, const float *a, const float *b, float *turned,
                        float *numbers)
{
    for (int64_t k = 0; k < w->rank; k++)
        for (int64_t i = 0; i < w->n_cols; i++) turned[k * w->n_cols + i] = w->factor * b[i * w->rank + k];
    for (int64_t r = 0; r < w->n_rows; r++)
        for (int64_t k = 0; k < w->rank; k++) {
            const float by = a[k * w->n_rows + r];
            for (int64_t i = 0; i < w->n_cols; i++)
                numbers[r * w->n_cols + i] += by * turned[k * w->n_cols + i];
        }
}

/* DoRA: the columns get the lengths that the magnitudes say. */
static qn_status set_lengths(const qn_adapter_whole *w, const float *m, float *numbers)
{
    for (int64_t i = 0; i < w->n_cols; i++) {
        double squares = 0;
        for (int64_t r = 0; r < w->n_rows; r++)
            squares += (double)numbers[r * w->n_cols + i] * (double)numbers[r * w->n_cols + i];
        const float by = (float)((double)m[i] / sqrt(squares));
        if (!isfinite(by))
            return qn_fail(QN_E_FORMAT, "%s: tensor %s: column %lld of its matrix has the length %g",
                           w->m->file, w->m->name, (long long)i, sqrt(squares));
        for (int64_t r = 0; r < w->n_rows; r++) numbers[r * w->n_cols + i] *= by;
    }
    return QN_OK;
}

static qn_status apply_value(const qn_adapter_whole *w, const qn_model_config *c, float *numbers)
{
    float *value = NULL;
    const float offset = offset_of(w, c);
    const qn_status status = read_finite(w->value, &value);
    for (int64_t r = 0; status == QN_OK && r < w->n_rows; r++)
        for (int64_t i = 0; i < w->n_cols; i++)
            numbers[qn_row_order_place(c, w->role, w->layer, r) * w->n_cols + i] =
                value[r * w->n_cols + i] + offset;
    qn_free(value);
    return status;
}

static qn_status apply_factors(const qn_adapter_whole *w, float *numbers)
{
    float *a = NULL, *b = NULL, *m = NULL,
          *turned = qn_alloc_array((size_t)w->rank, (size_t)w->n_cols * sizeof *turned);
    qn_status status = turned ? read_finite(w->a, &a) : QN_E_NOMEM;
    if (status == QN_OK) status = read_finite(w->b, &b);
    if (status == QN_OK && w->m) status = read_finite(w->m, &m);
    if (status == QN_OK) add_factors(w, a, b, turned, numbers);
    if (status == QN_OK && m) status = set_lengths(w, m, numbers);
    qn_free(a);
    qn_free(b);
    qn_free(m);
    qn_free(turned);
    return status;
}

static qn_status apply_bias(const qn_adapter_whole *w, const qn_model_config *c, float *numbers)
{
    float *bias = NULL;
    const qn_status status = read_finite(w->bias, &bias);
    for (int64_t r = 0; status == QN_OK && r < w->n_rows; r++)
        numbers[qn_row_order_place(c, w->role, w->layer, r)] += w->bias_factor * bias[r];
    qn_free(bias);
    return status;
}

static qn_status apply_tokens(const qn_adapter_whole *w, float *numbers)
{
    float *rows = NULL;
    const qn_status status = read_finite(w->tokens, &rows);
    for (size_t k = 0; status == QN_OK && k < json_array_size(w->ids); k++)
        memcpy(numbers + json_integer_value(json_array_get(w->ids, k)) * w->n_cols,
               rows + (int64_t)k * w->n_cols, (size_t)w->n_cols * sizeof *rows);
    qn_free(rows);
    return status;
}

qn_status qn_adapter_whole_apply(const qn_adapter_whole *w, const qn_model_config *c, float *numbers)
{
    if (w->value) QN_TRY(apply_value(w, c, numbers));
    if (w->a) QN_TRY(apply_factors(w, numbers));
    if (w->bias) QN_TRY(apply_bias(w, c, numbers));
    if (w->tokens) QN_TRY(apply_tokens(w, numbers));
    for (int64_t i = 0; i < w->n_rows * w->n_cols; i++)
        if (!isfinite(numbers[i]))
            return fail_tensor(QN_E_FORMAT, qn_adapter_whole_view(w), "what comes of it is not finite");
    return QN_OK;
}
