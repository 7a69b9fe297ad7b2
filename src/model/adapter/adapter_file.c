#include "model/adapter/adapter_file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "format/files/mmap.h"
#include "model/adapter/adapter_place.h"
#include "model/config/families.h"

enum { CONFIG_BYTES_MAX = 1 << 20, MODULE_MAX = QN_TENSOR_NAME_MAX - 8 };

const qn_adapter_names qn_adapter_layouts[QN_ADAPTER_LAYOUTS] = {
    [QN_ADAPTER_PEFT] = {"adapter_model.safetensors",
                         "base_model.model.",
                         {".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector"}},
    [QN_ADAPTER_MLX] = {"adapters.safetensors", "", {".lora_a", ".lora_b", ".m"}},
};

typedef struct {
    qn_adapter_file *f;
    const qn_model_config *model;
    qn_adapter_target *table; /* [1 + num_hidden_layers][QN_WEIGHT_ROLE_COUNT]; the model's own roles first */
    qn_buf *notes;
} reading;

static qn_adapter_target *target_at(const reading *r, qn_weight_role role, int64_t layer)
{
    int64_t row = role < QN_WEIGHT_MODEL_COUNT ? 0 : 1 + layer;
    return &r->table[row * QN_WEIGHT_ROLE_COUNT + role];
}

static qn_status fail_tensor(qn_status status, const qn_tensor_view *v, const char *why)
{
    return qn_fail(status, "%s: tensor %s: %s", v->file, v->name, why);
}

/* ---- names -------------------------------------------------------------------------------------------- */

/* The module's name, less what the layout puts around it, and which part the tensor is. */
static qn_status read_name(const reading *r, const qn_tensor_view *v, char module[MODULE_MAX],
                           qn_adapter_tensor *out)
{
    const qn_adapter_config *config = &r->f->config;
    const char *name = v->name, *prefix = qn_adapter_layouts[config->layout].prefix;
    const char *const *endings = qn_adapter_layouts[config->layout].ending;
    if (strncmp(name, prefix, strlen(prefix)) == 0) name += strlen(prefix);
    size_t n = strlen(name);
    for (int i = 0; i < QN_ADAPTER_PARTS; i++) {
        size_t m = strlen(endings[i]);
        if (n <= m || strcmp(name + n - m, endings[i]) != 0) continue;
        if (n - m >= MODULE_MAX) return fail_tensor(QN_E_FORMAT, v, "the name is too long");
        if (i == QN_ADAPTER_M && !config->dora)
            return fail_tensor(QN_E_FORMAT, v,
                               "it holds magnitudes of DoRA, but the configuration does not name DoRA");
        snprintf(module, MODULE_MAX, "%.*s", (int)(n - m), name);
        *out = (qn_adapter_tensor)i;
        return QN_OK;
    }
    return qn_fail(QN_E_UNSUPPORTED,
                   "%s: tensor %s: it is not a matrix of an adapter (names must end in %s or %s)%s", v->file,
                   v->name, endings[QN_ADAPTER_A], endings[QN_ADAPTER_B],
                   config->layout == QN_ADAPTER_PEFT ? ", and modules_to_save does not name its module" : "");
}

/* ---- tensors ------------------------------------------------------------------------------------------ */

/* Sizes that all parts must agree with. */
typedef struct {
    int64_t rank, n_in, n_rows;
} sizes;

/* The shape of A or B; returns the number of dimensions. */
static int shape_of(const reading *r, const qn_adapter_place *to, qn_adapter_tensor p, const sizes *s,
                    int64_t want[3])
{
    const int is_stacked = to->n_experts && to->form == QN_EXPERTS_STACKED, is_a = p == QN_ADAPTER_A;
    const int64_t all = to->n_experts && to->form == QN_EXPERTS_PARAMETER ? to->n_experts * s->rank : s->rank;
    int n = 0;
    if (is_stacked) want[n++] = to->n_experts;
    want[n++] = is_a ? all : s->n_rows;
    want[n++] = is_a ? s->n_in : all;
    if (r->f->config.layout == QN_ADAPTER_MLX && !is_stacked) {
        const int64_t first = want[0];
        want[0] = want[1];
        want[1] = first;
    }
    return n;
}

static qn_status check_shape(const reading *r, const qn_tensor_view *v, const qn_adapter_place *to,
                             qn_adapter_tensor p, const sizes *s)
{
    int64_t want[3];
    char actual[128], expected[128] = "";
    if (p == QN_ADAPTER_M) {
        if (v->n_dims == 1 && v->shape[0] == s->n_rows) return QN_OK;
        return qn_fail(QN_E_FORMAT, "%s: tensor %s: shape %s, expected [%lld]", v->file, v->name,
                       qn_view_shape_text(v, actual, sizeof actual), (long long)s->n_rows);
    }
    const int n = shape_of(r, to, p, s, want);
    int same = v->n_dims == n;
    size_t used = 0;
    for (int i = 0; i < n; i++) {
        same = same && v->shape[i] == want[i];
        used += (size_t)snprintf(expected + used, sizeof expected - used, "%s%lld", i ? ", " : "",
                                 (long long)want[i]);
    }
    if (same) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: tensor %s: shape %s, expected [%s] (rank %lld)", v->file, v->name,
                   qn_view_shape_text(v, actual, sizeof actual), expected, (long long)s->rank);
}

/* 1: the module of the tensor lies inside another of the same name: see adapter_place.h. */
static int has_inner(const reading *r, const qn_tensor_view *v, qn_adapter_tensor p)
{
    char name[2 * QN_TENSOR_NAME_MAX];
    const char *ending = qn_adapter_layouts[r->f->config.layout].ending[p];
    const size_t n = strlen(v->name) - strlen(ending);
    const int length = snprintf(name, sizeof name, "%.*s.base_layer%s", (int)n, v->name, ending);
    return length < (int)sizeof name && qn_safetensors_find(r->f->tensors, name) != NULL;
}

/* 1: the matrix of multi-head latent attention that keys and values come from; it is never applied by itself. */
static int is_absorbed(const reading *r, const char *module)
{
    static const char name[] = ".self_attn.kv_b_proj";
    const size_t n = strlen(module), m = sizeof name - 1;
    return r->model->latent.kv_lora_rank > 0 && n > m && strcmp(module + n - m, name) == 0;
}

/* No roles: the configuration leaves the module out. */
static qn_status find_place(const reading *r, const qn_tensor_view *v, qn_adapter_place *to,
                            qn_adapter_tensor *p)
{
    char module[MODULE_MAX];
    const char *field;
    QN_TRY(read_name(r, v, module, p));
    if (v->supported && v->dtype != QN_DTYPE_F32 && v->dtype != QN_DTYPE_F16 && v->dtype != QN_DTYPE_BF16)
        return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s: an adapter of type %s is not supported", v->file,
                       v->name, v->type_name);
    QN_TRY(qn_view_check(v));
    const qn_status status = qn_adapter_place_find(r->model, &r->f->config, module, has_inner(r, v, *p), to);
    if (status != QN_OK) return qn_fail_prefix(status, "%s: tensor %s", v->file, v->name);
    if (!to->n_roles && to->beyond >= 0)
        return qn_fail(QN_E_FORMAT, "%s: tensor %s: it is for layer %lld, but the model has %lld layers",
                       v->file, v->name, (long long)to->beyond, (long long)r->model->num_hidden_layers);
    if (!to->n_roles && to->is_unread) {
        if (*p == QN_ADAPTER_A)
            qn_buf_printf(r->notes,
                          "%s: tensors of %.100s are left out: the model was opened without a head\n",
                          v->file, module);
        return r->notes->status;
    }
    if (!to->n_roles && is_absorbed(r, module))
        return qn_fail(
            QN_E_UNSUPPORTED,
            "%s: tensor %s: %s is computed as a part of attention over latent keys, so no adapter can "
            "be added to it: merge the adapter into the weights (peft: merge_and_unload)",
            v->file, v->name, module);
    if (!to->n_roles)
        return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s: %s is not a linear layer of this model (%s)%s",
                       v->file, v->name, module, r->model->architecture,
                       r->model->delta.tiled || r->model->multipliers_folded
                           ? ", or its GGUF file has the layer in another form than published files"
                           : "");
    if (to->n_experts && *p == QN_ADAPTER_M)
        return fail_tensor(QN_E_UNSUPPORTED, v, "magnitudes (DoRA) of matrices of experts are not supported");
    if (to->n_experts && to->form == QN_EXPERTS_PARAMETER) return QN_OK; /* target_parameters named it */
    QN_TRY(qn_adapter_config_check_target(&r->f->config, module, to->roles[0] != QN_WEIGHT_LM_HEAD, &field));
    if (!field) return QN_OK;
    to->n_roles = 0;
    if (*p == QN_ADAPTER_A)
        qn_buf_printf(r->notes, "%s: tensors of %.100s are left out, as %s says\n", v->file, module, field);
    return r->notes->status;
}

/* Rows and columns of a role's matrix, or of each of its experts'. */
static void matrix_of(const reading *r, const qn_adapter_place *to, int i, int64_t *n_out, int64_t *n_in)
{
    int64_t shape[QN_WEIGHT_DIMS_MAX];
    const int first = to->n_experts > 0;
    qn_weight_shape(r->model, to->layer, to->roles[i], shape);
    *n_out = shape[first];
    *n_in = shape[first + 1];
}

/* Where the view belongs; NULL: out of memory. */
static const qn_tensor_view **place_in(const reading *r, const qn_adapter_place *to, qn_adapter_tensor p,
                                       qn_adapter_target *t)
{
    if (!to->n_experts || to->form != QN_EXPERTS_EACH)
        return p == QN_ADAPTER_A ? &t->a : p == QN_ADAPTER_B ? &t->b : &t->m;
    if (!t->each) t->each = qn_arena_calloc(&r->f->arena, 2 * (size_t)to->n_experts, sizeof *t->each);
    return t->each ? &t->each[2 * to->expert + (p == QN_ADAPTER_B)] : NULL;
}

static qn_status add_to_target(const reading *r, const qn_tensor_view *v, const qn_adapter_place *to,
                               qn_adapter_tensor p, const qn_adapter_target *like)
{
    qn_adapter_target *t = target_at(r, like->role, to->layer);
    const qn_tensor_view *one = t->a ? t->a : t->b;
    if (one && (t->form != to->form || t->rank != like->rank))
        return qn_fail(QN_E_UNSUPPORTED,
                       "%s: tensors %s and %s are of different forms or ranks of one matrix", v->file,
                       one->name, v->name);
    const qn_tensor_view **mine = place_in(r, to, p, t);
    if (!mine) return QN_E_NOMEM;
    if (*mine)
        return qn_fail(QN_E_FORMAT, "%s: tensors %s and %s are for the same matrix", v->file, (*mine)->name,
                       v->name);
    *mine = v;
    qn_adapter_target made = *like;
    made.a = t->each && p == QN_ADAPTER_A && !t->a ? v : t->a;
    made.b = t->each && p == QN_ADAPTER_B && !t->b ? v : t->b;
    made.m = t->m;
    made.each = t->each;
    *t = made;
    return QN_OK;
}

static qn_status add_tensor(const reading *r, const qn_tensor_view *v)
{
    qn_adapter_place to;
    qn_adapter_tensor p = QN_ADAPTER_A;
    double factor;
    sizes s = {0};
    int64_t n_out, row = 0;
    QN_TRY(find_place(r, v, &to, &p));
    if (!to.n_roles) return QN_OK;
    QN_TRY(qn_adapter_config_module(&r->f->config, to.module, &s.rank, &factor));
    if (!isfinite((float)factor)) return fail_tensor(QN_E_FORMAT, v, "its scale is too large");
    for (int i = 0; i < to.n_roles; i++) {
        matrix_of(r, &to, i, &n_out, &s.n_in);
        s.n_rows += n_out;
    }
    QN_TRY(check_shape(r, v, &to, p, &s));
    for (int i = 0; i < to.n_roles; i++) {
        matrix_of(r, &to, i, &n_out, &s.n_in);
        QN_TRY(add_to_target(r, v, &to, p,
                             &(qn_adapter_target){.layout = r->f->config.layout,
                                                  .role = to.roles[i],
                                                  .layer = to.layer,
                                                  .n_in = s.n_in,
                                                  .n_out = n_out,
                                                  .row = to.turns ? i : row,
                                                  .row_step = to.turns ? to.n_roles : 1,
                                                  .n_rows = s.n_rows,
                                                  .rank = (int32_t)s.rank,
                                                  .factor = (float)factor,
                                                  .n_experts = to.n_experts,
                                                  .form = to.form}));
        row += n_out;
    }
    return QN_OK;
}

static qn_status fail_half(const qn_tensor_view *v)
{
    return qn_fail(QN_E_FORMAT, "%s: tensor %s: the other tensor of its pair is missing", v->file, v->name);
}

/* Targets with all their parts, in the order of the table. */
static qn_status gather(const reading *r)
{
    qn_adapter_file *f = r->f;
    int64_t rows = 1 + r->model->num_hidden_layers, n = 0;
    for (int64_t i = 0; i < rows * QN_WEIGHT_ROLE_COUNT; i++) {
        const qn_adapter_target *t = &r->table[i];
        const qn_tensor_view *v = t->a ? t->a : t->b ? t->b : t->m;
        if (!v) continue;
        if (f->config.dora && !t->m)
            return fail_tensor(QN_E_FORMAT, v, "its matrix has no magnitudes, which DoRA needs");
        if (!t->a || !t->b) return fail_half(v);
        for (int64_t e = 0; t->each && e < t->n_experts; e++)
            if (!t->each[2 * e] != !t->each[2 * e + 1])
                return fail_half(t->each[2 * e] ? t->each[2 * e] : t->each[2 * e + 1]);
        r->table[n++] = *t;
    }
    if (!n && !f->wholes.n)
        return qn_fail(QN_E_FORMAT, "%s: it has no tensors", qn_safetensors_path(f->tensors));
    f->targets = qn_alloc_array((size_t)n + 1, sizeof *f->targets);
    if (!f->targets) return QN_E_NOMEM;
    memcpy(f->targets, r->table, (size_t)n * sizeof *f->targets);
    f->n_targets = n;
    return QN_OK;
}

/* 1: some target is of a parameter whose path ends in name. */
static int has_parameter(const qn_adapter_file *f, const qn_model_config *model, const char *name)
{
    char path[QN_TENSOR_NAME_MAX];
    const size_t n = strlen(name);
    for (int64_t i = 0; i < f->n_targets; i++) {
        const qn_adapter_target *t = &f->targets[i];
        if (!t->n_experts || t->form != QN_EXPERTS_PARAMETER) continue;
        for (const char *const *p = qn_decoder_prefixes; *p; p++) {
            if (!qn_family_expert_module(model->family, QN_EXPERTS_PARAMETER, *p, t->role, t->layer, path,
                                         NULL))
                continue;
            const size_t m = strlen(path);
            if (n <= m && strcmp(path + m - n, name) == 0) return 1;
        }
    }
    return 0;
}

/* Lists of targets may be made for several families, so a name that no tensor has is no error. */
static qn_status note_targets(const reading *r)
{
    const char *name, *prefix = qn_adapter_layouts[r->f->config.layout].prefix;
    for (size_t i = 0; (name = qn_adapter_config_target(&r->f->config, i)); i++) {
        char part[MODULE_MAX];
        int found = 0;
        snprintf(part, sizeof part, "%.90s.lora_", name);
        for (int64_t j = 0; j < qn_safetensors_count(r->f->tensors) && !found; j++) {
            const char *tensor = qn_safetensors_get(r->f->tensors, j)->name, *at;
            if (strncmp(tensor, prefix, strlen(prefix)) == 0) tensor += strlen(prefix);
            at = strstr(tensor, part);
            found = at && (at == tensor || at[-1] == '.');
        }
        if (!found)
            qn_buf_printf(r->notes, "%s: target_modules names %.90s, but no tensor belongs to it\n",
                          r->f->config_path, name);
    }
    for (size_t i = 0; (name = qn_adapter_config_parameter(&r->f->config, i)); i++)
        if (!has_parameter(r->f, r->model, name))
            qn_buf_printf(r->notes, "%s: target_parameters names %.90s, but no tensor belongs to it\n",
                          r->f->config_path, name);
    return r->notes->status;
}

static qn_status read_tensors(const reading *r)
{
    const char *prefix = qn_adapter_layouts[r->f->config.layout].prefix;
    for (int64_t i = 0; i < qn_safetensors_count(r->f->tensors); i++) {
        const qn_tensor_view *v = qn_safetensors_get(r->f->tensors, i);
        const char *name = v->name;
        int taken;
        if (strncmp(name, prefix, strlen(prefix)) == 0) name += strlen(prefix);
        QN_TRY(qn_adapter_wholes_add(&r->f->wholes, r->model, &r->f->config, v, name, r->notes, &taken));
        if (!taken) QN_TRY(add_tensor(r, v));
    }
    QN_TRY(qn_adapter_wholes_finish(&r->f->wholes, r->model, &r->f->config));
    QN_TRY(gather(r));
    return note_targets(r);
}

/* ---- files -------------------------------------------------------------------------------------------- */

static qn_status join(const char *folder, const char *between, const char *name, char **out)
{
    qn_buf b = {0};
    qn_buf_printf(&b, "%s%s%s", folder, between, name);
    *out = qn_buf_take(&b, NULL);
    return *out ? QN_OK : QN_E_NOMEM;
}

static qn_status no_tensors(const char *path, qn_adapter_layout layout)
{
    char *bin = NULL;
    QN_TRY(join(path, "/", "adapter_model.bin", &bin));
    int is_pickle = access(bin, F_OK) == 0;
    qn_free(bin);
    if (is_pickle)
        return qn_fail(QN_E_UNSUPPORTED,
                       "%s: adapter_model.bin is a Python pickle, which may run code; save the adapter as "
                       "safetensors",
                       path);
    return qn_fail(QN_E_NOT_FOUND, "%s: there is no %s beside adapter_config.json", path,
                   qn_adapter_layouts[layout].file);
}

/* The folder of a training has the adapter in best/, or without a validation in last/. *out NULL: this is none. */
static qn_status find_trained(const char *path, char **out)
{
    static const char *const names[] = {"", "best/", "last/"};
    *out = NULL;
    for (int i = 0; i < 3; i++) {
        qn_buf b = {0};
        qn_buf_printf(&b, "%s/%s%s", path, names[i], QN_ADAPTER_CONFIG_NAME);
        const int is_there = b.status == QN_OK && access(b.data, F_OK) == 0;
        const qn_status status = b.status;
        qn_buf_free(&b);
        QN_TRY(status);
        if (!is_there) continue;
        return i ? join(path, "/", i == 1 ? "best" : "last", out) : QN_OK;
    }
    return QN_OK;
}

static qn_status open_files(const char *path, qn_adapter_file *f, qn_buf *notes)
{
    struct stat about;
    char *text = NULL, *tensors = NULL;
    size_t n = 0;
    if (stat(path, &about) != 0)
        return qn_fail(errno == ENOENT || errno == ENOTDIR ? QN_E_NOT_FOUND : QN_E_IO, "%s: %s", path,
                       strerror(errno));
    int is_file = !S_ISDIR(about.st_mode);
    char *folder = qn_strdup(path), *slash;
    if (!folder) return QN_E_NOMEM;
    if (is_file && (slash = strrchr(folder, '/'))) *slash = '\0';
    qn_status status =
        join(is_file && !strchr(path, '/') ? "." : folder, "/", QN_ADAPTER_CONFIG_NAME, &f->config_path);
    qn_free(folder);
    if (status == QN_OK) status = qn_file_read(f->config_path, CONFIG_BYTES_MAX, &text, &n);
    if (status == QN_E_NOT_FOUND)
        status = qn_fail(status, "%s: there is no adapter_config.json, so it is not a LoRA adapter", path);
    if (status == QN_OK) status = qn_adapter_config_read(f->config_path, text, n, notes, &f->config);
    if (status == QN_OK && !is_file)
        status = join(path, "/", qn_adapter_layouts[f->config.layout].file, &tensors);
    if (status == QN_OK && !is_file && access(tensors, F_OK) != 0)
        status = no_tensors(path, f->config.layout);
    if (status == QN_OK) status = qn_safetensors_open(is_file ? path : tensors, &f->tensors);
    qn_free(text);
    qn_free(tensors);
    return status;
}

qn_status qn_adapter_file_open(const char *path, const qn_model_config *model, qn_buf *notes,
                               qn_adapter_file *out)
{
    qn_adapter_file f = {0};
    char *trained = NULL;
    QN_TRY(find_trained(path, &trained));
    if (trained) path = trained;
    reading r = {.f = &f, .model = model, .notes = notes};
    qn_status status = open_files(path, &f, notes);
    if (status == QN_OK) {
        r.table = qn_calloc((size_t)model->num_hidden_layers + 1, QN_WEIGHT_ROLE_COUNT * sizeof *r.table);
        status = r.table ? read_tensors(&r) : QN_E_NOMEM;
    }
    qn_free(r.table);
    qn_free(trained);
    if (status == QN_OK)
        *out = f;
    else
        qn_adapter_file_close(&f);
    return status;
}

qn_status qn_adapter_file_needs_factors(const qn_adapter_file *f, const char *what)
{
    if (!f->wholes.n) return QN_OK;
    const qn_tensor_view *v = qn_adapter_whole_view(&f->wholes.list[0]);
    return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s: %s", v->file, v->name, what);
}

void qn_adapter_file_close(qn_adapter_file *f)
{
    qn_adapter_wholes_free(&f->wholes);
    qn_safetensors_close(f->tensors);
    qn_adapter_config_free(&f->config);
    qn_free(f->config_path);
    qn_free(f->targets);
    qn_arena_clear(&f->arena);
    *f = (qn_adapter_file){0};
}

/* ---- numbers ------------------------------------------------------------------------------------------ */

static qn_status read_finite(const qn_tensor_view *v, float *out)
{
    QN_TRY(qn_weights_floats(v, out));
    for (int64_t i = 0; i < v->n_elements; i++)
        if (!isfinite(out[i]))
            return qn_fail(QN_E_FORMAT, "%s: tensor %s: element %lld is %s", v->file, v->name, (long long)i,
                           isnan(out[i]) ? "not a number" : "infinite");
    return QN_OK;
}

/* Elements between experts, ranks, and inputs or outputs. */
typedef struct {
    int64_t expert, rank, along;
} strides;

static strides of_a(const qn_adapter_target *t, int is_mlx)
{
    if (t->n_experts && t->form != QN_EXPERTS_EACH) return (strides){t->rank * t->n_in, t->n_in, 1};
    return is_mlx ? (strides){0, 1, t->rank} : (strides){0, t->n_in, 1};
}

static strides of_b(const qn_adapter_target *t, int is_mlx)
{
    if (t->n_experts && t->form == QN_EXPERTS_PARAMETER)
        return (strides){1, t->n_experts, t->rank * t->n_experts};
    if (t->n_experts && t->form == QN_EXPERTS_STACKED) return (strides){t->n_rows * t->rank, 1, t->rank};
    return is_mlx ? (strides){0, t->n_rows, 1} : (strides){0, 1, t->rank};
}

/* What the tensors of a side have, [matrices][rank, n]: input or output i is first + step * i of the file's. */
static qn_status read_side(const qn_adapter_target *t, int is_b, strides s, int64_t n, float *values,
                           float *out)
{
    const int64_t first = is_b ? t->row : 0, step = is_b ? t->row_step : 1;
    const qn_tensor_view *v = is_b ? t->b : t->a;
    if (!t->each) QN_TRY(read_finite(v, values));
    for (int64_t e = 0; e < qn_adapter_target_count(t); e++, out += t->rank * n) {
        if (t->each && !t->each[2 * e + is_b]) {
            memset(out, 0, (size_t)(t->rank * n) * sizeof *out);
            continue;
        }
        if (t->each) QN_TRY(read_finite(t->each[2 * e + is_b], values));
        for (int64_t k = 0; k < t->rank; k++)
            for (int64_t i = 0; i < n; i++)
                out[k * n + i] = values[e * s.expert + k * s.rank + (first + step * i) * s.along];
    }
    return QN_OK;
}

qn_status qn_adapter_target_read(const qn_adapter_target *t, float *a, float *b, float *m)
{
    int is_mlx = t->layout == QN_ADAPTER_MLX;
    int64_t most = t->a->n_elements > t->b->n_elements ? t->a->n_elements : t->b->n_elements;
    float *values = qn_alloc_array((size_t)most, sizeof *values); /* of the magnitudes there are fewer */
    if (!values) return QN_E_NOMEM;
    qn_status status = read_side(t, 0, of_a(t, is_mlx), t->n_in, values, a);
    if (status == QN_OK) status = read_side(t, 1, of_b(t, is_mlx), t->n_out, values, b);
    if (status == QN_OK && t->m) status = read_finite(t->m, values);
    if (status == QN_OK && t->m) memcpy(m, values + t->row, (size_t)t->n_out * sizeof *m);
    qn_free(values);
    return status;
}
