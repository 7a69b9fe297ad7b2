#include "convert/export_gguf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "convert/export_order.h"
#include "convert/rewrite_plan.h"
#include "convert/tensor_types.h"
#include "model/config/families.h"
#include "model/config/gguf/gguf_keys.h"
#include "model/config/rope_params.h"
#include "model/weights/weight_roles.h"

enum { KEY_MAX = 192, RANGE_ELEMENTS = 1 << 18, ROLES_MAX = 3, STILL = 30 };

/* A tensor of the new file: matrices one below the other, or a vector. */
typedef struct {
    char name[QN_TENSOR_NAME_MAX];
    qn_weight_role roles[ROLES_MAX];
    int n_roles;
    int64_t layer;
    int n_dims;
    int64_t shape[QN_WEIGHT_DIMS_MAX];
    const qn_type *type;
    const float *factors; /* of rotations: its numbers; NULL: those of the roles */
} item;

typedef struct {
    const qn_rewrite_model *model;
    const qn_fuse_options *options;
    qn_model_config target; /* as the file will have it; what it points to is the model's */
    qn_tensor_types types;
    qn_rewrite_plan plan;
    item *items;
    int64_t n, capacity;
    float *factors[2]; /* of rotations */
    qn_pool *pool;
    size_t done_bytes, total_bytes;
    qn_fuse_result result;
} exporting;

/* ---- metadata ------------------------------------------------------------------------------------------ */

static qn_status put_layers(const exporting *x, qn_gguf_writer *w, const char *key, const qn_gguf_key *k)
{
    const int64_t n = x->target.num_hidden_layers;
    const int is_pattern = k->kind == QN_GGUF_KEY_PATTERN || k->kind == QN_GGUF_KEY_FLAGS;
    int differ = is_pattern;
    double value;
    int32_t *numbers = qn_alloc_array((size_t)n, sizeof *numbers);
    uint8_t *flags = qn_alloc_array((size_t)n, sizeof *flags);
    qn_status status = numbers && flags ? QN_OK : QN_E_NOMEM;
    for (int64_t i = 0; i < n && status == QN_OK; i++) {
        (void)k->value(&x->target, i, &value);
        numbers[i] = (int32_t)value;
        flags[i] = value != 0;
        differ |= numbers[i] != numbers[0];
    }
    if (status == QN_OK && is_pattern)
        status = qn_gguf_writer_array(w, key, QN_GGUF_BOOL, n, flags);
    else if (status == QN_OK && differ)
        status = qn_gguf_writer_array(w, key, QN_GGUF_I32, n, numbers);
    else if (status == QN_OK)
        status = qn_gguf_writer_u32(w, key, (uint32_t)numbers[0]);
    qn_free(numbers);
    qn_free(flags);
    return status;
}

static qn_status put_keys(const exporting *x, const char *architecture, qn_gguf_writer *w)
{
    static const char *const stretched[] = {[QN_ROPE_LINEAR] = "linear",
                                            [QN_ROPE_YARN] = "yarn",
                                            [QN_ROPE_LONG] = "longrope",
                                            [QN_ROPE_PROPORTIONAL] = NULL};
    for (int i = 0; i < qn_gguf_key_count; i++) {
        const qn_gguf_key *k = &qn_gguf_keys[i];
        char key[KEY_MAX];
        double value;
        snprintf(key, sizeof key, "%s.%s", architecture, k->key);
        if (k->kind == QN_GGUF_KEY_STRING) {
            const char *name =
                strcmp(k->key, "rope.scaling.type") == 0 ? stretched[x->target.rope[0].type] : NULL;
            if (name) QN_TRY(qn_gguf_writer_text(w, key, name, strlen(name)));
            continue;
        }
        if (k->kind == QN_GGUF_KEY_SECTIONS) {
            const int64_t *s = x->target.rope[0].mrope_section;
            const int32_t sections[] = {(int32_t)s[0], (int32_t)s[1], (int32_t)s[2], 0};
            if (s[0]) QN_TRY(qn_gguf_writer_array(w, key, QN_GGUF_I32, 4, sections));
            continue;
        }
        if (!k->value || !k->value(&x->target, 0, &value)) continue;
        if (k->kind == QN_GGUF_KEY_PER_LAYER || k->kind == QN_GGUF_KEY_PATTERN ||
            k->kind == QN_GGUF_KEY_FLAGS)
            QN_TRY(put_layers(x, w, key, k));
        else if (k->kind == QN_GGUF_KEY_BOOL)
            QN_TRY(qn_gguf_writer_bool(w, key, value != 0));
        else if (k->kind == QN_GGUF_KEY_NUMBER)
            QN_TRY(qn_gguf_writer_f32(w, key, (float)value));
        else
            QN_TRY(qn_gguf_writer_u32(w, key, (uint32_t)value));
    }
    return QN_OK;
}

static float get_number(const qn_xielu *x, int i)
{
    return i == 0 ? x->alpha_p : i == 1 ? x->alpha_n : i == 2 ? x->beta : x->eps;
}

static qn_status put_xielu(const exporting *x, qn_gguf_writer *w)
{
    static const char *const keys[] = {"xielu.alpha_p", "xielu.alpha_n", "xielu.beta", "xielu.eps"};
    const int64_t n = x->target.num_hidden_layers;
    float *numbers = qn_alloc_array((size_t)n, sizeof *numbers);
    qn_status status = numbers ? QN_OK : QN_E_NOMEM;
    for (int i = 0; i < 4 && status == QN_OK; i++) {
        for (int64_t l = 0; l < n; l++) numbers[l] = get_number(&x->target.layers[l].xielu, i);
        status = qn_gguf_writer_array(w, keys[i], QN_GGUF_F32, n, numbers);
    }
    qn_free(numbers);
    return status;
}

static const char *architecture_of(const qn_model_config *c)
{
    const qn_family *f = c->family;
    return c->experts.num_experts && f->gguf_with_experts ? f->gguf_with_experts : f->gguf_architecture;
}

static qn_status put_metadata(const exporting *x, const qn_export_more *more, qn_gguf_writer *w)
{
    const char *architecture = architecture_of(&x->target);
    const qn_type *type = x->types.matrices;
    int number = -1;
    for (int64_t i = 0; i < x->n && !type; i++)
        if (x->items[i].n_roles && x->items[i].roles[0] == QN_WEIGHT_O) type = x->items[i].type;
    if (type) number = qn_tensor_types_file_type(type->dtype);
    QN_TRY(qn_gguf_writer_text(w, "general.architecture", architecture, strlen(architecture)));
    QN_TRY(qn_gguf_writer_text(w, "general.type", "model", 5));
    if (x->target.hidden_act == QN_HIDDEN_XIELU) QN_TRY(put_xielu(x, w));
    if (number >= 0) QN_TRY(qn_gguf_writer_u32(w, "general.file_type", (uint32_t)number));
    QN_TRY(qn_gguf_writer_u32(w, "general.quantization_version", 2));
    QN_TRY(put_keys(x, architecture, w));
    return more && more->put ? more->put(more->user, architecture, w) : QN_OK;
}

/* ---- which tensors ------------------------------------------------------------------------------------- */

static item *add_item(exporting *x)
{
    if (x->n == x->capacity) {
        const int64_t more = x->capacity ? 2 * x->capacity : 256;
        item *items = qn_realloc(x->items, (size_t)more * sizeof *items);
        if (!items) return NULL;
        x->items = items;
        x->capacity = more;
    }
    x->items[x->n] = (item){.layer = 0};
    return &x->items[x->n++];
}

/* The name of a tensor of experts, all in one. */
static int expert_name(qn_weight_role role, int64_t layer, char *text)
{
    for (const qn_expert_name *e = qn_expert_gguf_names; e->name; e++) {
        const char *hash = strchr(e->name, '#');
        if (e->role != role || e->layout || !hash) continue;
        snprintf(text, QN_TENSOR_NAME_MAX, "%.*s%lld%s", (int)(hash - e->name), e->name, (long long)layer,
                 hash + 1);
        return 1;
    }
    return 0;
}

static qn_status name_role(const exporting *x, const qn_tensor_view *v, qn_weight_role role, int64_t layer,
                           item *out)
{
    const qn_shared_tensor *shared = NULL;
    const qn_family *family = x->target.family;
    /* What is apart in published files may be so in GGUF too. */
    if (qn_family_shared_name(family, QN_SOURCE_GGUF, "", role, layer, out->name, &shared) &&
        shared->safetensors) {
        for (int i = 0; i < ROLES_MAX && shared->roles[i] != QN_WEIGHT_ROLE_COUNT; i++)
            out->roles[out->n_roles++] = shared->roles[i];
        return QN_OK;
    }
    out->roles[out->n_roles++] = role;
    if (v->experts ? expert_name(role, layer, out->name)
                   : qn_family_weight_name(family, QN_SOURCE_GGUF, "", role, layer, out->name))
        return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s has no name in GGUF", v->file, v->name);
}

/* The type of the source where it has a place in GGUF. */
static qn_status choose_type(const exporting *x, const qn_tensor_view *v, item *out)
{
    const qn_type *f32 = qn_type_get(QN_DTYPE_F32), *own = qn_type_get(v->dtype),
                  *wanted =
                      qn_tensor_types_of(&x->types, out->roles[0], out->n_dims, out->shape[out->n_dims - 1]);
    const int is_exact =
        v->n_dims < 2 || out->roles[0] == QN_WEIGHT_ROUTER || out->roles[0] == QN_WEIGHT_SHARED_ROUTER ||
        out->roles[0] == QN_WEIGHT_EXPERT_GATE_BIAS || out->roles[0] == QN_WEIGHT_EXPERT_UP_BIAS ||
        out->roles[0] == QN_WEIGHT_EXPERT_DOWN_BIAS;
    out->type = is_exact ? f32 : wanted ? wanted : own;
    if (out->type->encode && out->type->ggml_type >= 0) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED,
                   "%s: tensor %s has type %s, which GGUF does not have: choose another type", v->file,
                   v->name, own->name);
}

static qn_status plan_role(exporting *x, qn_weight_role role, int64_t layer)
{
    const qn_weight_role source = qn_export_source(&x->target, role);
    item found = {.layer = layer};
    if (source == QN_WEIGHT_ROLE_COUNT) return QN_OK; /* other roles take its rows */
    const qn_tensor_view *v = qn_weights_get(x->model->weights, source, layer);
    if (!v || (role == QN_WEIGHT_LM_HEAD && qn_weights_tied(x->model->weights))) return QN_OK;
    if (v->matrix_bytes && qn_rewrite_target(&x->plan, role, layer))
        return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s cannot be written in GGUF with an adapter", v->file,
                       v->name);
    QN_TRY(name_role(x, v, role, layer, &found));
    if (found.roles[0] != role) return QN_OK; /* with the first of those that share it */
    found.n_dims = qn_weight_gguf_shape(&x->target, layer, role, found.shape);
    for (int i = 1; i < found.n_roles; i++) {
        int64_t shape[QN_WEIGHT_DIMS_MAX];
        qn_weight_shape(&x->target, layer, found.roles[i], shape);
        found.shape[0] += shape[0];
    }
    QN_TRY(choose_type(x, v, &found));
    item *kept = add_item(x);
    if (!kept) return QN_E_NOMEM;
    *kept = found;
    return QN_OK;
}

/* By how much more slowly than without any stretch a pair turns. */
static void fill_factors(const qn_rope_config *r, const float *inv_freq, float *out)
{
    for (int64_t i = 0; i < r->rotary_dim / 2; i++) {
        const double plain = 1 / (double)qn_rope_power(r, i);
        out[i] = inv_freq[i] > 0 ? (float)(plain / (double)inv_freq[i]) : (float)pow(10, STILL);
    }
}

static qn_status plan_factors(exporting *x)
{
    const qn_rope_config *r = &x->target.rope[0];
    const int is_long = r->type == QN_ROPE_LONG, n_lists = is_long ? 2 : 1;
    if (!is_long && r->type != QN_ROPE_LLAMA3 && r->type != QN_ROPE_PROPORTIONAL) return QN_OK;
    for (int i = 0; i < n_lists; i++) {
        item *own = add_item(x);
        x->factors[i] = qn_alloc_array((size_t)(r->rotary_dim / 2), sizeof(float));
        if (!own || !x->factors[i]) return QN_E_NOMEM;
        fill_factors(r, i ? r->long_inv_freq : r->inv_freq, x->factors[i]);
        snprintf(own->name, sizeof own->name, "%s",
                 !is_long ? "rope_freqs.weight"
                 : i      ? "rope_factors_long.weight"
                          : "rope_factors_short.weight");
        own->n_dims = 1;
        own->shape[0] = r->rotary_dim / 2;
        own->type = qn_type_get(QN_DTYPE_F32);
        own->factors = x->factors[i];
    }
    return QN_OK;
}

static qn_status plan_all(exporting *x)
{
    for (int role = 0; role < QN_WEIGHT_MODEL_COUNT; role++) QN_TRY(plan_role(x, (qn_weight_role)role, 0));
    QN_TRY(plan_factors(x));
    for (int64_t i = 0; i < x->target.num_hidden_layers; i++)
        for (int role = QN_WEIGHT_MODEL_COUNT; role < QN_WEIGHT_ROLE_COUNT; role++)
            QN_TRY(plan_role(x, (qn_weight_role)role, i));
    return QN_OK;
}

/* ---- tensors ------------------------------------------------------------------------------------------- */

static const qn_rewrite_cover *find_cover(const exporting *x, qn_weight_role role, int64_t layer)
{
    for (int64_t i = 0; i < x->plan.n; i++)
        if (x->plan.covers[i].role == role && x->plan.covers[i].layer == layer) return &x->plan.covers[i];
    return NULL;
}

static qn_status write_vector(exporting *x, const item *t, const qn_tensor_view *v, qn_row_writer *to)
{
    const qn_weight_role role = t->roles[0];
    const qn_rewrite_cover *c = find_cover(x, role, t->layer);
    const qn_model_config *config = x->model->config;
    const float own = role == QN_WEIGHT_FINAL_NORM ? config->final_norm_offset : config->norm_offset;
    const double offset = qn_weight_has_offset(role) ? (double)own : 0;
    float *in = qn_alloc_array((size_t)v->n_elements, 2 * sizeof *in), *out = in ? in + v->n_elements : NULL;
    if (!in) return QN_E_NOMEM;
    qn_status status = QN_OK;
    if (c && c->numbers)
        memcpy(in, c->numbers, (size_t)v->n_elements * sizeof *in);
    else
        status = qn_weights_vector(v, in);
    const int64_t taps = qn_weight_taps(&x->target, t->layer, role), size = taps ? taps : 1;
    for (int64_t i = 0; i < v->n_elements && status == QN_OK; i++) {
        const int64_t from = qn_export_row(&x->target, role, t->layer, i / size) * size + i % size;
        out[i] = qn_export_number(role, (float)((double)in[from] + offset));
    }
    if (status == QN_OK) status = qn_row_writer_put(to, out, v->n_elements / to->n_cols);
    qn_free(in);
    return status;
}

/* Rows [first, first + n) of the new tensor's part. */
static qn_status read_rows(const exporting *x, const qn_rewrite_rows *r, qn_weight_role role, int64_t layer,
                           int64_t first, int64_t n, float *out)
{
    const int by_columns = qn_export_moves_columns(&x->target, role);
    if (x->target.family->many_multipliers) {
        QN_TRY(qn_rewrite_rows_read(r, first, n, out));
        for (int64_t i = 0; i < n * r->n_cols; i++)
            out[i] *= qn_export_scale(x->model->config, role, first + i / r->n_cols);
        return QN_OK;
    }
    if (!by_columns && !qn_export_moves_rows(&x->target, role)) return qn_rewrite_rows_read(r, first, n, out);
    float *row = by_columns ? qn_alloc_array((size_t)r->n_cols, sizeof *row) : NULL;
    qn_status status = by_columns && !row ? QN_E_NOMEM : QN_OK;
    for (int64_t i = first; i < first + n && status == QN_OK; i++, out += r->n_cols) {
        status = qn_rewrite_rows_read(r, qn_export_row(&x->target, role, layer, i), 1, row ? row : out);
        if (row && status == QN_OK) qn_export_columns(&x->target, row, out);
    }
    qn_free(row);
    return status;
}

static qn_status write_matrix(exporting *x, const qn_tensor_view *v, qn_weight_role role, int64_t layer,
                              int64_t n_rows, qn_row_writer *to)
{
    /* covers of experts are of the source's tensors, whose rows may be those of two roles */
    const qn_rewrite_cover *c = v->experts ? NULL : find_cover(x, qn_export_source(&x->target, role), layer),
                           plain = {.view = v,
                                    .target = v->experts ? qn_rewrite_target(&x->plan, role, layer) : NULL};
    const int64_t most = to->n_cols < RANGE_ELEMENTS ? RANGE_ELEMENTS / to->n_cols : 1;
    float *rows = qn_alloc_array((size_t)(most * to->n_cols), sizeof *rows);
    qn_rewrite_rows r;
    qn_status status = qn_rewrite_rows_open(&x->plan, c ? c : &plain, to->n_cols, &r);
    if (!rows) status = QN_E_NOMEM;
    for (int64_t i = 0; i < n_rows && status == QN_OK; i += most) {
        const int64_t n = n_rows - i < most ? n_rows - i : most;
        status = read_rows(x, &r, role, layer, i, n, rows);
        if (status == QN_OK) status = qn_row_writer_put(to, rows, n);
    }
    qn_rewrite_rows_free(&r);
    qn_free(rows);
    return status;
}

static const qn_tensor_view *source_of(const exporting *x, const item *t, int k)
{
    return qn_weights_get(x->model->weights, qn_export_source(&x->target, t->roles[k]), t->layer);
}

/* Each head's matrix, which may lie apart and transposed. */
static qn_status write_heads(const qn_tensor_view *v, qn_row_writer *to)
{
    const int64_t n_rows = v->shape[1], n_cols = v->shape[2], n = n_rows * n_cols;
    float *stored = qn_alloc_array((size_t)n, 2 * sizeof *stored), *rows = stored ? stored + n : NULL;
    if (!stored) return QN_E_NOMEM;
    qn_status status = QN_OK;
    for (int64_t h = 0; h < v->shape[0] && status == QN_OK; h++) {
        qn_tensor_view one = *v;
        one.data = (const char *)v->data + (size_t)h * v->matrix_bytes;
        one.n_elements = n;
        status = qn_view_floats(&one, 0, n, stored);
        for (int64_t i = 0; i < n && status == QN_OK; i++)
            rows[i] = stored[v->transposed ? i % n_cols * n_rows + i / n_cols : i];
        if (status == QN_OK) status = qn_row_writer_put(to, rows, n_rows);
    }
    qn_free(stored);
    return status;
}

static qn_status write_item(exporting *x, qn_gguf_writer *w, int64_t i)
{
    const item *t = &x->items[i];
    const qn_tensor_view *v = t->n_roles ? source_of(x, t, 0) : NULL;
    size_t size = 0;
    int64_t n_elements = 1;
    qn_row_writer to = {.to = {.gguf = w},
                        .type = t->type,
                        .n_cols = t->shape[t->n_dims - 1],
                        .index = i,
                        .file = v ? v->file : qn_source_path(x->model->source),
                        .name = v ? v->name : t->name,
                        .pool = x->pool};
    qn_status status = QN_OK;
    for (int d = 0; d < t->n_dims; d++) n_elements *= t->shape[d];
    if (!qn_type_bytes(t->type->dtype, n_elements, &size)) return QN_E_INTERNAL;
    if (x->options->progress) QN_TRY(x->options->progress(x->options->user, x->done_bytes, x->total_bytes));
    x->done_bytes += size;
    x->result.size_bytes += size;
    if (t->factors)
        status = qn_row_writer_put(&to, t->factors, 1);
    else if (v->n_dims < 2)
        status = write_vector(x, t, v, &to);
    else if (v->matrix_bytes)
        status = write_heads(v, &to);
    for (int k = 0; k < t->n_roles && v->n_dims > 1 && !v->matrix_bytes && status == QN_OK; k++) {
        const qn_tensor_view *part = source_of(x, t, k);
        const int64_t n_rows = t->n_roles > 1 ? part->n_elements / to.n_cols : n_elements / to.n_cols;
        status = write_matrix(x, part, t->roles[k], t->layer, n_rows, &to);
    }
    qn_row_writer_free(&to);
    return status;
}

/* ---- the file ------------------------------------------------------------------------------------------ */

/* What a reader makes of the file. */
static qn_status check_file(const exporting *x, const qn_export_more *more, const char *path)
{
    qn_source *source = NULL;
    qn_model_config config = {.vocab_size = 0}, meant = *x->model->config;
    qn_weights *weights = NULL;
    qn_export_fold(&meant);
    qn_status status = qn_source_open(path, NULL, &source);
    if (status == QN_OK) status = qn_config_read(source, &config);
    const char *what = status == QN_OK ? qn_export_difference(&meant, &config) : NULL;
    if (what)
        status = qn_fail(QN_E_UNSUPPORTED, "%s: a GGUF file of architecture %s cannot store this model's %s",
                         qn_source_path(x->model->source), architecture_of(&x->target), what);
    if (status == QN_OK) status = qn_weights_open(source, &config, &weights);
    if (status == QN_OK && more && more->check) status = more->check(more->user, qn_source_gguf(source));
    qn_weights_close(weights);
    qn_config_free(&config);
    qn_source_close(source);
    return status;
}

static qn_status fill(exporting *x, const qn_export_more *more, qn_gguf_writer *w)
{
    QN_TRY(put_metadata(x, more, w));
    for (int64_t i = 0; i < x->n; i++) {
        const item *t = &x->items[i];
        int64_t n = 1;
        size_t size = 0;
        QN_TRY(qn_gguf_writer_add(w, t->name, t->type->dtype, t->n_dims, t->shape, NULL));
        for (int d = 0; d < t->n_dims; d++) n *= t->shape[d];
        if (qn_type_bytes(t->type->dtype, n, &size)) x->total_bytes += size;
    }
    QN_TRY(qn_gguf_writer_begin(w));
    for (int64_t i = 0; i < x->n; i++) QN_TRY(write_item(x, w, i));
    QN_TRY(check_file(x, more, qn_gguf_writer_place(w)));
    return qn_gguf_writer_finish(w);
}

static qn_status find_target(exporting *x)
{
    const qn_model_config *c = x->model->config;
    const char *name = c->family->gguf_architecture;
    if (!name)
        return qn_fail(QN_E_UNSUPPORTED, "%s: no GGUF architecture is known for the family %s",
                       qn_source_path(x->model->source), c->architecture);
    if (c->encoder.both_ways)
        return qn_fail(QN_E_UNSUPPORTED, "%s: a %s is an encoder, which is not written as GGUF",
                       qn_source_path(x->model->source), c->architecture);
    const int is_written = c->hyper.kind == QN_HYPER_NONE;
    for (int64_t i = 0; i < c->num_hidden_layers; i++)
        if (qn_layer_recurs(&c->layers[i]) && !is_written)
            return qn_fail(QN_E_UNSUPPORTED,
                           "%s: layers of a %s recur (layer %lld does), which is not written as GGUF",
                           qn_source_path(x->model->source), c->architecture, (long long)i);
    /* A multiplier goes into the matrix. It must not apply to a bias, and a tied head needs the same one as the embedding. */
    if (c->family->many_multipliers &&
        (c->attention_bias || c->mlp_bias || c->state_space.in_bias || c->state_space.out_bias ||
         (qn_weights_tied(x->model->weights) && c->embedding_scale != c->logits_scale)))
        return qn_fail(QN_E_UNSUPPORTED,
                       "%s: the multipliers of a %s with %s do not fit into the matrices of a GGUF file",
                       qn_source_path(x->model->source), c->architecture,
                       qn_weights_tied(x->model->weights) ? "a tied head" : "biases");
    /* Readers differ in how they stretch positions then. */
    if (c->latent.kv_lora_rank && c->query_scale_beta != 0)
        return qn_fail(QN_E_UNSUPPORTED, "%s: a %s scales queries over latents, which is not written as GGUF",
                       qn_source_path(x->model->source), c->architecture);
    x->target = *c;
    x->target.family = qn_family_by_gguf(name, strlen(name), NULL);
    if (c->experts.num_experts) x->target.family = qn_family_with_experts(x->target.family, c->experts.score);
    qn_export_forms(&x->target);
    if (c->family->step_floor && c->state_space.step_min > 0)
        qn_log(QN_LOG_WARNING, "%s: readers of the GGUF file have no least step (time_step_min is %g)",
               qn_source_path(x->model->source), (double)c->state_space.step_min);
    return QN_OK;
}

static qn_status export(exporting *x, const qn_rewrite_changes *changes, const qn_export_more *more,
                        const char *out_path)
{
    qn_gguf_writer *w = NULL;
    QN_TRY(qn_tensor_types_read(x->options->type, x->options->embedding_type, &x->types));
    if (qn_source_get_kind(x->model->source) == QN_SOURCE_GGUF)
        return qn_fail(QN_E_ARG, "%s: it already is a GGUF file", qn_source_path(x->model->source));
    QN_TRY(find_target(x));
    QN_TRY(qn_rewrite_plan_make(x->model, changes, &x->plan));
    x->result.n_merged = x->plan.n_changed;
    QN_TRY(plan_all(x));
    QN_TRY(qn_pool_new(0, &x->pool));
    QN_TRY(qn_gguf_writer_new(out_path, &w));
    qn_status status = fill(x, more, w);
    x->result.n_tensors = x->n;
    qn_gguf_writer_free(w);
    return status;
}

qn_status qn_export_gguf(const qn_rewrite_model *model, const qn_rewrite_changes *changes,
                         const qn_fuse_options *options, const qn_export_more *more, const char *out_path,
                         qn_fuse_result *out)
{
    const qn_fuse_options defaults = {0};
    exporting x = {.model = model, .options = options ? options : &defaults};
    qn_status status = export(&x, changes, more, out_path);
    if (status == QN_OK && out) *out = x.result;
    qn_pool_free(x.pool);
    qn_free(x.factors[0]);
    qn_free(x.factors[1]);
    qn_free(x.items);
    qn_rewrite_plan_free(&x.plan);
    return status;
}
